//! Secrets: a new one takes hold, and none is ever found where it does not belong.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use crate::api::caller::{add_call, get, post, until};
use crate::support::nats_server::NatsServer;
use crate::support::rig::Rig;

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

/// Writes a file that only its owner may read.
fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
    set_mode(path, 0o600);
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
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

/// Runs the saga with the old secret, well and badly, then until the new one is used, and looks for both in all that
/// is told. `change` puts the new one in the place of the old one.
async fn changed<F: Future<Output = ()>>(rig: &mut Rig, change: impl FnOnce() -> F) {
    let service = echo().await;
    let more = "  headers: {Authorization: \"Bearer ${secrets.token}\"}\n  body: {kind: \"${input.kind}\"}\n";
    add_call(rig, "echo", &service, more);
    rig.add_saga("teller", SAGA);
    rig.start().await;

    start(rig, "good", "good").await;
    let view = until(rig, &path("good"), |view| view["phase"] == "completed").await;
    assert_eq!(view["state"]["heard"], "Bearer ***", "{view}");
    start(rig, "bad", "bad").await;
    let view = until(rig, &path("bad"), |view| view["phase"] == "failed").await;
    assert!(
        view.to_string().contains("Bearer ***"),
        "the refusal is told: {view}"
    );

    change().await;
    let begin = Instant::now();
    for number in 0.. {
        let key = format!("after-{number}");
        start(rig, &key, "good").await;
        until(rig, &path(&key), |view| view["phase"] == "completed").await;
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
        let told = get(rig, page).await.text;
        assert!(!told.contains(OLD) && !told.contains(NEW), "{page}: {told}");
    }
    assert_eq!(rig.terminate().await, Some(0));
    let mut found = Vec::new();
    leaks(rig.folder(), &mut found);
    assert!(found.is_empty(), "a secret is in {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_secret_takes_hold_and_none_is_kept_or_told() {
    let outside = tempfile::tempdir().expect("a folder");
    let file = outside.path().join("token");
    write(&file, &format!("{OLD}\n"));
    let extra = json!({
        "secrets": {"token": {"file": file}},
        "worker": {"secrets_every": "1s"},
        "log": {"level": "trace"},
    });
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    let change = || async { std::fs::write(&file, format!("{NEW}\n")).expect("written") };
    changed(&mut rig, change).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_every_user_may_read_refuses_the_start_and_is_not_read_again_later() {
    let outside = tempfile::tempdir().expect("a folder");
    let file = outside.path().join("token");
    write(&file, OLD);
    let extra = json!({"secrets": {"token": {"file": file}}, "worker": {"secrets_every": "1s"}});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    for mode in [0o644, 0o602] {
        set_mode(&file, mode);
        rig.launch();
        assert_eq!(rig.exit().await, Some(78), "{}", rig.log_tail());
        let told = rig.log_tail();
        assert!(
            told.contains("SR0416") && told.contains("secrets.token") && !told.contains(OLD),
            "{told}"
        );
    }
    set_mode(&file, 0o640);
    rig.start().await;
    std::fs::write(&file, NEW).expect("written");
    set_mode(&file, 0o644);
    let begin = Instant::now();
    let log = || std::fs::read_to_string(rig.log()).expect("a log");
    while !log().contains("cannot read secrets; the known ones stay in use") {
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(log().contains("SR0416") && !log().contains(NEW), "{}", log());
    assert_eq!(rig.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_of_nats_kv_takes_hold_and_is_nowhere_but_there() {
    let server = NatsServer::start();
    let client = async_nats::connect(server.url()).await.expect("connected");
    let context = async_nats::jetstream::new(client);
    let bucket = async_nats::jetstream::kv::Config {
        bucket: "vault".to_owned(),
        ..Default::default()
    };
    let vault = context.create_key_value(bucket).await.expect("created");
    vault.put("pay.token", OLD.into()).await.expect("kept");
    let extra = json!({
        "secrets": {"token": {"kv": {"bucket": "vault", "key": "pay.token"}}},
        "worker": {"secrets_every": "1s"},
        "log": {"level": "trace"},
    });
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    let change = || async {
        vault.put("pay.token", NEW.into()).await.expect("kept");
    };
    changed(&mut rig, change).await;
    let mut found = Vec::new();
    leaks(server.folder(), &mut found);
    assert!(!found.is_empty(), "the bucket is on the disk");
    found.retain(|path| !path.contains("KV_vault"));
    assert!(found.is_empty(), "a secret is in {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_nats_kv_does_not_have_keeps_the_runner_from_starting() {
    let server = NatsServer::start();
    let client = async_nats::connect(server.url()).await.expect("connected");
    let context = async_nats::jetstream::new(client);
    let bucket = async_nats::jetstream::kv::Config {
        bucket: "vault".to_owned(),
        ..Default::default()
    };
    let vault = context.create_key_value(bucket).await.expect("created");
    vault.put("gone", OLD.into()).await.expect("kept");
    vault.delete("gone").await.expect("deleted");
    for (bucket, key, said) in [
        ("vault", "nothing", "bucket vault of NATS KV has no key nothing"),
        ("vault", "gone", "bucket vault of NATS KV has no key gone"),
        ("nowhere", "token", "secret token: bucket nowhere"),
    ] {
        let extra = json!({"secrets": {"token": {"kv": {"bucket": bucket, "key": key}}}});
        let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
        rig.launch();
        assert_eq!(rig.exit().await, Some(78), "{}", rig.log_tail());
        let log = rig.log_tail();
        assert!(log.contains(said) && log.contains("SR0404"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_and_what_it_is_asked_for_with_are_told_nowhere() {
    let outside = tempfile::tempdir().expect("a folder");
    let file = outside.path().join("client");
    write(&file, OLD);
    let extra = json!({
        "secrets": {"client": {"file": file}},
        "log": {"level": "trace"},
    });
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    // It refuses whoever asks again, and repeats what it was asked with.
    let login = MockServer::start().await;
    let token = json!({"access_token": NEW, "expires_in": 3600});
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200).set_body_json(token))
        .up_to_n_times(1)
        .mount(&login)
        .await;
    let refusal = |request: &Request| {
        let sent = &request.headers["authorization"];
        ResponseTemplate::new(401).set_body_json(json!({"error": sent.to_str().expect("text")}))
    };
    Mock::given(any()).respond_with(refusal).mount(&login).await;
    let service = echo().await;
    let more = format!(
        "  body: {{kind: \"${{input.kind}}\"}}\n  auth: {{oauth2: {{token_url: \"{}/token\", client_id: shop, client_secret: \"${{secrets.client}}\", audience: \"${{input.kind == 'other' ? 'b' : 'a'}}\"}}}}\n",
        login.uri()
    );
    add_call(&rig, "echo", &service, &more);
    rig.add_saga("teller", SAGA);
    rig.start().await;

    start(&rig, "good", "good").await;
    let view = until(&rig, &path("good"), |view| view["phase"] == "completed").await;
    assert_eq!(view["state"]["heard"], "Bearer ***", "{view}");
    start(&rig, "bad", "bad").await;
    let view = until(&rig, &path("bad"), |view| view["phase"] == "failed").await;
    assert!(view.to_string().contains("Bearer ***"), "{view}");
    start(&rig, "other", "other").await;
    let view = until(&rig, &path("other"), |view| view["phase"] == "failed").await;
    assert!(
        view.to_string().contains("no token: 401 Unauthorized: Basic ***"),
        "{view}"
    );
    assert_eq!(rig.terminate().await, Some(0));
    let mut found = Vec::new();
    leaks(rig.folder(), &mut found);
    assert!(found.is_empty(), "a secret is in {found:?}");
}
