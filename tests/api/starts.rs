//! Instances that a request starts.

use std::time::Duration;

use serde_json::json;

use crate::api::caller::{get, instance, items, letters, post, runner, send, until};

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
    assert_eq!((answer.status, &answer.json()["key"]), (201, &json!("flat-1")));
    let flat = instance("acme", "rent", "flat-1");
    let view = until(&rig, &flat, |view| view["phase"] == "running").await;
    assert_eq!(view["input"], json!({"months": 3}));
    assert_eq!(view["state"], json!({"left": 3}));
    // The same request is recognised; another one for the same key is refused.
    assert_eq!(post(&rig, path, body).await.status, 201);
    let other = json!({"key": "flat-1", "input": {"months": 4}}).to_string();
    post(&rig, path, other).await.is_problem(409, "SR0515");
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
            "instance",
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

/// Rents out a flat again after the last tenant has moved out.
const FLAT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: flat
input: {type: object}
start: {event: Flat.Let, when: event.data.months > 0, set: {months: "${event.data.months}"}}
key: {"Flat.*": event.data.flat}
reuse: {after: [completed]}
on_running: fail
no_instance: {park: 1h}
after_end:
  Flat.Cleaned: {set: {clean: true}, emit: {publish: {type: flat.ready}}}
state: {init: {months: 0, painted: false, clean: false}}
handlers:
  Flat.Left: {complete: {outcome: moved_out}}
  Flat.Burnt: {fail: {code: burnt}}
  Flat.Painted: {set: {painted: true}}
steps:
  live: {wait: {signal: over, timeout: 1000h}}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_used_again_where_the_saga_says_so() {
    let rig = runner(Duration::ZERO).await;
    rig.add_saga("flat", FLAT);
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    let flat = instance("acme", "flat", "f-1");
    let let_to = json!({"flat": "f-1", "months": 3});
    // It comes before anybody lives there, and waits.
    send(&rig, "acme", "e-0", "Flat.Painted", json!({"flat": "f-1"})).await;
    // Whoever asks for it learns that.
    let waits = async {
        loop {
            let answer = rig.client.get(rig.url(&flat)).send().await.expect("an answer");
            assert_eq!(answer.status().as_u16(), 404);
            let said = answer.text().await.expect("text");
            if said.contains("1 event(s) wait for it to begin, the first of them since ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waits)
        .await
        .expect("told in time");
    send(&rig, "acme", "e-1", "Flat.Let", let_to.clone()).await;
    let view = until(&rig, &flat, |view| view["state"]["painted"] == true).await;
    assert_eq!(view["state"]["months"], 3);
    // It is let already.
    send(&rig, "acme", "e-2", "Flat.Let", let_to.clone()).await;
    let page = until(&rig, &letters("acme"), |page| !items(page).is_empty()).await;
    assert_eq!(items(&page)[0]["reason"], "start.running");
    send(&rig, "acme", "e-3", "Flat.Left", json!({"flat": "f-1"})).await;
    let left = until(&rig, &flat, |view| view["phase"] == "completed").await;
    assert_eq!(
        (&left["outcome"], &left["generation"]),
        (&json!("moved_out"), &json!(1))
    );
    send(&rig, "acme", "e-3b", "Flat.Cleaned", json!({"flat": "f-1"})).await;
    let cleaned = until(&rig, &flat, |view| view["state"]["clean"] == true).await;
    assert_eq!(
        (&cleaned["phase"], &cleaned["ended"]),
        (&left["phase"], &left["ended"])
    );
    send(&rig, "acme", "e-4", "Flat.Let", let_to.clone()).await;
    let second = until(&rig, &flat, |view| view["generation"] == 2).await;
    assert_eq!(
        (&second["phase"], &second["state"]["months"]),
        (&json!("running"), &json!(3))
    );
    // A request does the same, but not while the flat is let.
    let path = "/v1/tenants/acme/sagas/flat/instances";
    let body = json!({"key": "f-1", "input": {}}).to_string();
    post(&rig, path, body.clone()).await.is_problem(409, "SR0515");
    send(&rig, "acme", "e-5", "Flat.Left", json!({"flat": "f-1"})).await;
    until(&rig, &flat, |view| view["phase"] == "completed").await;
    assert_eq!(post(&rig, path, body.clone()).await.status, 201);
    until(&rig, &flat, |view| view["generation"] == 3).await;
    send(&rig, "acme", "e-6", "Flat.Burnt", json!({"flat": "f-1"})).await;
    until(&rig, &flat, |view| view["phase"] == "failed").await;
    post(&rig, path, body).await.is_problem(409, "SR0503");
}
