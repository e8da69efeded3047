//! Secrets: a new one takes hold, and none is ever found where it does not belong.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use crate::caller::{add_call, get, post, until};
use crate::rig::Rig;

const OLD: &str = "canary-of-the-old-secret";
const NEW: &str = "canary-of-the-new-secret";

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: teller
input: {type: object, required: [kind], properties: {kind: {type: string}}}
state: {init: {heard: ""}}
steps:
  ask:
    effect: echo
    with: {kind: "${input.kind}"}
    set: {heard: "${result.you_sent}"}
"#;

/// Repeats the header that should have been secret: in its answer, and in its refusals.
async fn echo() -> MockServer {
    let service = MockServer::start().await;
    let repeat = |request: &Request| {
        let header = &request.headers["authorization"];
        let body = json!({"you_sent": header.to_str().expect("text")});
        let refused = String::from_utf8_lossy(&request.body).contains("bad");
        ResponseTemplate::new(if refused { 402 } else { 200 }).set_body_json(body)
    };
    Mock::given(any()).respond_with(repeat).mount(&service).await;
    service
}

async fn start(rig: &Rig, key: &str, kind: &str) {
    let body = json!({"key": key, "input": {"kind": kind}}).to_string();
    let answer = post(rig, "/v1/tenants/acme/sagas/teller/instances", body).await;
    assert!((200..300).contains(&answer.status), "{answer:?}");
}

fn path(key: &str) -> String {
    format!("/v1/tenants/acme/sagas/teller/instances/{key}")
}

/// The files below a folder that hold one of the secrets.
fn leaks(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            leaks(&path, found);
            continue;
        }
        let bytes = std::fs::read(&path).expect("readable");
        let holds = |canary: &str| bytes.windows(canary.len()).any(|part| part == canary.as_bytes());
        if holds(OLD) || holds(NEW) {
            found.push(path.display().to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_secret_takes_hold_and_none_is_kept_or_told() {
    let outside = tempfile::tempdir().expect("a folder");
    let file = outside.path().join("token");
    std::fs::write(&file, format!("{OLD}\n")).expect("written");
    let extra = json!({
        "secrets": {"token": {"file": file}},
        "worker": {"secrets_every": "1s"},
        "log": {"level": "debug"},
    });
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    let service = echo().await;
    let more = "  headers: {Authorization: \"Bearer ${secrets.token}\"}\n  body: {kind: \"${input.kind}\"}\n";
    add_call(&rig, "echo", &service, more);
    rig.add_saga("teller", SAGA);
    rig.start().await;

    start(&rig, "good", "good").await;
    let view = until(&rig, &path("good"), |view| view["phase"] == "completed").await;
    assert_eq!(view["state"]["heard"], "Bearer ***", "{view}");
    start(&rig, "bad", "bad").await;
    let view = until(&rig, &path("bad"), |view| view["phase"] == "failed").await;
    assert!(
        view.to_string().contains("Bearer ***"),
        "the refusal is told: {view}"
    );

    std::fs::write(&file, format!("{NEW}\n")).expect("written");
    let begin = Instant::now();
    for number in 0.. {
        let key = format!("after-{number}");
        start(&rig, &key, "good").await;
        until(&rig, &path(&key), |view| view["phase"] == "completed").await;
        let requests = service.received_requests().await.expect("they are recorded");
        let last = requests.last().expect("there was one");
        if last.headers["authorization"] == format!("Bearer {NEW}") {
            break;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    for page in [
        "/info",
        "/metrics",
        "/health",
        &path("bad"),
        &format!("{}/inputs", path("good")),
    ] {
        let told = get(&rig, page).await.text;
        assert!(!told.contains(OLD) && !told.contains(NEW), "{page}: {told}");
    }
    assert_eq!(rig.terminate().await, Some(0));
    let mut found = Vec::new();
    leaks(rig.folder(), &mut found);
    assert!(found.is_empty(), "a secret is in {found:?}");
}
