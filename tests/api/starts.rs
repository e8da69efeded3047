//! Instances that a request starts.

use std::time::Duration;

use serde_json::json;

use crate::caller::{get, instance, post, runner, until};

const RENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: rent
input: {type: object, required: [months], properties: {months: {type: integer}}}
state: {init: {left: "${input.months}"}}
steps:
  wait: {wait: {signal: paid, timeout: 1h}, set: {by: "${signal.by}"}}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_starts_one_instance_with_its_input() {
    let rig = runner(Duration::ZERO).await;
    rig.add_saga("rent", RENT);
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    let path = "/v1/tenants/acme/sagas/rent/instances";
    let body = json!({"key": "flat-1", "input": {"months": 3}, "request_id": "r-1"}).to_string();
    let answer = post(&rig, path, body.clone()).await;
    assert_eq!((answer.status, &answer.json()["key"]), (202, &json!("flat-1")));
    let flat = instance("acme", "rent", "flat-1");
    let view = until(&rig, &flat, |view| view["phase"] == "running").await;
    assert_eq!(view["input"], json!({"months": 3}));
    assert_eq!(view["state"], json!({"left": 3}));
    // The same request is recognised; another one for the same key is refused.
    assert_eq!(post(&rig, path, body).await.status, 202);
    let other = json!({"key": "flat-1", "input": {"months": 4}}).to_string();
    post(&rig, path, other).await.is_problem(409, "SR0503");
    let bad = json!({"key": "flat-2", "input": {"months": "many"}}).to_string();
    let problem = post(&rig, path, bad).await.json();
    assert!(
        problem["detail"]
            .as_str()
            .is_some_and(|text| text.contains("months")),
        "{problem}"
    );
    let events_only = "/v1/tenants/acme/sagas/order/instances";
    assert_eq!(post(&rig, events_only, "{}").await.status, 400);
    assert_eq!(
        post(&rig, "/v1/tenants/acme/sagas/nope/instances", "{}")
            .await
            .status,
        404
    );

    let made = post(&rig, path, json!({"input": {"months": 1}}).to_string())
        .await
        .json();
    let key = made["key"].as_str().expect("a key");
    until(&rig, &instance("acme", "rent", key), |view| {
        view["state"]["left"] == 1
    })
    .await;
    assert_eq!(get(&rig, &flat).await.json()["state"], json!({"left": 3}));

    let output = std::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args([
            "start",
            "rent",
            "--tenant",
            "acme",
            "--key",
            "flat-9",
            "--input",
            "{\"months\": 9}",
        ])
        .args(["--url", &rig.url("")])
        .output()
        .expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "flat-9\n", "{output:?}");
    until(&rig, &instance("acme", "rent", "flat-9"), |view| {
        view["state"]["left"] == 9
    })
    .await;
}
