//! Steps whose time runs out, on the real binary.

use std::time::Duration;

use serde_json::json;
use wiremock::ResponseTemplate;

use crate::api::caller::{add_call, instance, send, service, until};
use crate::support::rig::Rig;

const PATIENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: patient
start: Bank.Asked
key: {"Bank.*": event.data.bank}
state: {init: {said: ""}}
steps:
  ask:
    effect: bank-ask
    with: {bank: "${key}"}
    deadline: 4s
    retry: {errors: ["*"], attempts: 1000, backoff: {initial: 500ms, factor: 1, max: 500ms}}
    on_error: {deadline: {set: {said: "${error.class}"}, continue: true}}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_past_its_deadline_is_not_retried_despite_restarts() {
    let bank = service(ResponseTemplate::new(503)).await;
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.add_saga("patient", PATIENT);
    add_call(&rig, "bank-ask", &bank, "retry: {attempts: 1}\n");
    rig.start().await;
    send(&rig, "acme", "b-1", "Bank.Asked", json!({"bank": "b-1"})).await;
    let path = instance("acme", "patient", "b-1");
    until(&rig, &path, |view| view["steps"][0]["attempt"].as_u64() > Some(1)).await;
    rig.kill();
    rig.start().await;
    let view = until(&rig, &path, |view| view["phase"] == "completed").await;
    assert_eq!(view["state"], json!({"said": "deadline"}));
    assert_eq!(rig.terminate().await, Some(0));
}
