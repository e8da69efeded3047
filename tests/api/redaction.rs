//! Values that an effect redacts are told nowhere.

use std::time::Duration;

use serde_json::json;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use crate::api::caller::{add_call, get, post, until};
use crate::support::rig::Rig;

/// Made in the step, so that it is in the command alone.
const CARD: &str = "canary-of-the-card";
/// Longer than what failures of expressions show of a text.
const HOLDER: &str = "canary-of-the-holder-whose-name-is-longer-than-forty-letters";
const LAST: &str = "canary-of-the-result";

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: till
input: {type: object, required: [kind], properties: {kind: {type: string}}}
state: {init: {paid: false}}
steps:
  charge:
    effect: charge
    with: {kind: "${input.kind}", card: "${'canary-of-' + 'the-card'}"}
    set: {paid: "${result.ok}"}
"#;

/// Tells the card and its holder in whatever it answers, and refuses what is bad.
async fn bank() -> MockServer {
    let service = MockServer::start().await;
    let answer = |request: &Request| {
        let asked: serde_json::Value = serde_json::from_slice(&request.body).expect("JSON");
        let mut body = json!({
            "reason": format!("no money on {}", asked["card"].as_str().expect("text")),
            "holder": {"names": [HOLDER]},
        });
        let status = match asked["kind"].as_str() {
            Some("bad") => 402,
            Some("late") => 503,
            _ => 200,
        };
        if status == 200 {
            body["last"] = json!(LAST);
        }
        ResponseTemplate::new(status).set_body_json(body)
    };
    Mock::given(any()).respond_with(answer).mount(&service).await;
    service
}

fn path(key: &str) -> String {
    format!("/v1/tenants/acme/sagas/till/instances/{key}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redacted_values_are_in_no_failure_log_or_page() {
    let extra = json!({"log": {"level": "trace"}});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    let service = bank().await;
    let more = concat!(
        "  body: {kind: \"${input.kind}\", card: \"${input.card}\"}\n",
        "retry: {attempts: 2, backoff: {initial: 100ms, max: 100ms}}\n",
        "classify: [{when: 'int(response.body.holder.names[0]) == 1', as: one}]\n",
        "result: {ok: \"${response.status == 200}\", last: \"${response.body.last}\"}\n",
        "redact: [input.card, response.body.holder.names, result.last]\n",
    );
    add_call(&rig, "charge", &service, more);
    rig.add_saga("till", SAGA);
    rig.start().await;

    for (key, phase) in [("good", "completed"), ("bad", "failed"), ("late", "failed")] {
        let body = json!({"key": key, "input": {"kind": key}}).to_string();
        let answer = post(&rig, "/v1/tenants/acme/sagas/till/instances", body).await;
        assert!((200..300).contains(&answer.status), "{answer:?}");
        let view = until(&rig, &path(key), |view| view["phase"] == phase).await;
        if phase == "failed" {
            let told = view["failure"]["message"].as_str().expect("a message");
            assert!(told.contains("no money on ***"), "{view}");
            assert!(told.contains(r#""names":"***""#), "{view}");
        }
    }
    let inputs = get(&rig, &format!("{}/inputs", path("good"))).await.text;
    assert!(inputs.contains(r#""last":"***""#), "{inputs}");
    assert!(inputs.contains(r#""card":"***""#), "{inputs}");

    for key in ["good", "bad", "late"] {
        for page in [path(key), format!("{}/inputs", path(key))] {
            let told = get(&rig, &page).await.text;
            for canary in [CARD, HOLDER, LAST] {
                assert!(!told.contains(canary), "{page}: {told}");
            }
        }
    }
    for page in ["/info", "/metrics", "/health", "/v1/tenants/acme/dead-letters"] {
        let told = get(&rig, page).await.text;
        assert!(!told.contains("canary"), "{page}: {told}");
    }
    assert_eq!(rig.terminate().await, Some(0));
    let log = std::fs::read_to_string(rig.log()).expect("a log");
    assert!(
        log.contains("rule does not apply") && log.contains("effect has failed"),
        "{log}"
    );
    let line = log.lines().find(|line| line.contains("canary"));
    assert_eq!(line, None, "the log tells");
}
