//! Steps that wait for whoever was given a token.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use wiremock::{MockServer, ResponseTemplate};

use crate::api::caller::{add_call, get, instance, post, send, service, until};
use crate::support::rig::Rig;

const CONTRACT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: contract
start: Contract.Drafted
key: {"Contract.*": event.data.contract}
state: {init: {signed: ""}}
steps:
  sign:
    effect: signature-ask
    with: {contract: "${key}"}
    wait: {callback: true, timeout: 1h}
    set: {signed: "${signal.name}", asked: "${result.ticket}"}
    on_error: {refused: {fail: {code: unsigned}}}
"#;

const LEASE: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: lease
start: Lease.Drafted
key: {"Lease.*": event.data.lease}
state: {init: {signed: ""}}
steps:
  sign:
    effect: signature-ask
    with: {contract: "${key}"}
    wait: {callback: true, timeout: 1h, heartbeat: 4s}
    retry: {errors: [heartbeat], attempts: 100, backoff: {initial: 200ms, factor: 1}}
    set: {signed: "${signal.name}"}
"#;

/// A runner with the saga, the service that asks for signatures and keeps the tokens, and the key of the tokens.
async fn signing() -> (Rig, MockServer, NamedTempFile) {
    let service = service(ResponseTemplate::new(200).set_body_json(json!({"ticket": "t-1"}))).await;
    let key = NamedTempFile::new().expect("a file");
    std::fs::write(key.path(), "a key for the callbacks of a test\n").expect("written");
    let extra = json!({"callbacks": {"key": {"file": key.path()}}});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    rig.add_saga("contract", CONTRACT);
    rig.add_saga("lease", LEASE);
    let body = "  body: {contract: \"${input.contract}\", answer: \"${command.token}\"}\n";
    add_call(&rig, "signature-ask", &service, body);
    rig.start().await;
    (rig, service, key)
}

/// The token that the service was given for `contract`.
async fn token(service: &MockServer, contract: &str) -> String {
    let requests = service.received_requests().await.expect("kept");
    let mut bodies = requests
        .iter()
        .map(|request| serde_json::from_slice::<Value>(&request.body).expect("JSON"));
    let body = bodies
        .rfind(|body| body["contract"] == contract)
        .expect("it was asked");
    body["answer"].as_str().expect("a token").to_owned()
}

async fn waiting(rig: &Rig, contract: &str) {
    let event = format!("{contract}-drafted");
    send(
        rig,
        "acme",
        &event,
        "Contract.Drafted",
        json!({"contract": contract}),
    )
    .await;
    until(rig, &instance("acme", "contract", contract), |view| {
        view["steps"][0]["status"] == "waiting"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_valid_callback_token_completes_the_step() {
    let (mut rig, service, _key) = signing().await;
    for contract in ["c-1", "c-2", "c-3"] {
        waiting(&rig, contract).await;
    }
    let first = token(&service, "c-1").await;
    let path = format!("/v1/callbacks/{first}");
    let done = json!({"ok": {"name": "ada"}}).to_string();

    let forged = format!("/v1/callbacks/{}x", &first[..first.len() - 1]);
    post(&rig, &forged, done.clone()).await.is_problem(404, "SR0502");
    post(&rig, "/v1/callbacks/nonsense", done.clone())
        .await
        .is_problem(404, "SR0502");
    for wrong in [
        json!({}),
        json!({"ok": {}, "error": {"class": "refused"}}),
        json!({"okay": {}}),
        json!({"error": {"class": ""}}),
        json!({"heartbeat": false}),
        json!({"heartbeat": true, "ok": {}}),
        json!({"error": {"class": "refused by all"}}),
        json!({"error": {"class": "refused", "message": "m".repeat(5_000)}}),
    ] {
        post(&rig, &path, wrong.to_string())
            .await
            .is_problem(400, "SR0501");
    }
    let still = get(&rig, &instance("acme", "contract", "c-1")).await.json();
    assert_eq!(still["steps"][0]["status"], "waiting");

    // A token outlives the process that made it.
    rig.kill();
    rig.start().await;
    assert_eq!(post(&rig, &path, done.clone()).await.status, 202);
    let view = until(&rig, &instance("acme", "contract", "c-1"), |view| {
        view["phase"] == "completed"
    })
    .await;
    assert_eq!(view["state"], json!({"signed": "ada", "asked": "t-1"}));
    // What is said twice is said once, and the first answer stands.
    assert_eq!(post(&rig, &path, done).await.status, 202);
    for other in [
        json!({"ok": {"name": "eve"}}),
        json!({"error": {"class": "refused"}}),
    ] {
        let other = post(&rig, &path, other.to_string()).await;
        let problem = other.is_problem(409, "SR0514");
        assert_eq!(
            problem["detail"],
            "the token was used before, with another answer: the first one counts"
        );
    }
    // Of work that is over no heartbeat is taken.
    let alive = json!({"heartbeat": true}).to_string();
    post(&rig, &path, alive).await.is_problem(410, "SR0510");

    let second = token(&service, "c-2").await;
    let refused = json!({"error": {"class": "refused", "message": "not like this"}}).to_string();
    let answer = post(&rig, &format!("/v1/callbacks/{second}"), refused).await;
    assert_eq!(answer.status, 202);
    let view = until(&rig, &instance("acme", "contract", "c-2"), |view| {
        view["phase"] == "failed"
    })
    .await;
    assert_eq!(view["failure"]["code"], "unsigned");
    let other = get(&rig, &instance("acme", "contract", "c-3")).await.json();
    assert_eq!(other["phase"], "running");
    let first = get(&rig, &instance("acme", "contract", "c-1")).await.json();
    assert_eq!(first["phase"], "completed");

    // The bearer of a token must not find it where others can read.
    let listed = get(&rig, &format!("{}/inputs", instance("acme", "contract", "c-1"))).await;
    assert!(!listed.text.contains(&second), "{}", listed.text);
    assert_eq!(rig.terminate().await, Some(0));
    let log = std::fs::read_to_string(rig.log()).expect("a log");
    assert!(!log.contains(&second), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_callback_token_expires_despite_restarts() {
    let (mut rig, service, _key) = signing().await;
    send(
        &rig,
        "acme",
        "l-1-drafted",
        "Lease.Drafted",
        json!({"lease": "l-1"}),
    )
    .await;
    let path = instance("acme", "lease", "l-1");
    until(&rig, &path, |view| view["steps"][0]["status"] == "waiting").await;
    let first = token(&service, "l-1").await;
    // On a slow machine the first one may be too late for its attempt.
    let is_alive = |view: &Value| {
        view["history"]
            .to_string()
            .contains(r#""heartbeat":{"step":"sign"}"#)
    };
    let begin = std::time::Instant::now();
    loop {
        let alive = json!({"heartbeat": true}).to_string();
        let newest = token(&service, "l-1").await;
        let answer = post(&rig, &format!("/v1/callbacks/{newest}"), alive).await;
        assert!([202, 410].contains(&answer.status), "{answer:?}");
        if is_alive(&get(&rig, &path).await.json()) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    rig.kill();
    rig.start().await;
    // Silence: the work is asked for anew.
    until(&rig, &path, |view| view["steps"][0]["attempt"].as_u64() > Some(1)).await;
    let signed = |name: &str| json!({"ok": {"name": name}}).to_string();
    let late = post(&rig, &format!("/v1/callbacks/{first}"), signed("eve")).await;
    late.is_problem(410, "SR0510");
    let late = post(
        &rig,
        &format!("/v1/callbacks/{first}"),
        json!({"heartbeat": true}).to_string(),
    )
    .await;
    late.is_problem(410, "SR0510");
    let begin = std::time::Instant::now();
    loop {
        let newest = token(&service, "l-1").await;
        if newest != first {
            let answer = post(&rig, &format!("/v1/callbacks/{newest}"), signed("ada")).await;
            assert_eq!(answer.status, 202, "{answer:?}");
        }
        let view = get(&rig, &path).await.json();
        if view["phase"] == "completed" {
            assert_eq!(
                view["state"],
                json!({"signed": "ada"}),
                "the old token is worth nothing"
            );
            break;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(rig.terminate().await, Some(0));
}
