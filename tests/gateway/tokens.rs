//! Commands that hand out the token of their work, and services that answer with it by a message, on a real nats-server.

use std::time::Duration;

use async_nats::jetstream;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::peers::{self, Books};
use super::seen;
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT};

const LOAN: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: loan
start: Loan.Asked
key: {"Loan.*": event.data.loan}
state: {init: {rate: 0}}
steps:
  check:
    command: {aggregate: Credit, id: "${key}", type: Credit.Check, payload: {loan: "${key}", answer: {to: "token ${command.token}"}}}
    wait: {callback: true, timeout: 1h}
    set: {rate: "${signal.rate}"}
    on_error: {denied: {fail: {code: denied}}}
"#;

async fn store(stream: &jetstream::Context, subject: String, body: &Value) {
    let stored = stream
        .publish(subject, body.to_string().into())
        .await
        .expect("sent");
    stored.await.expect("stored");
}

/// The token that the newest command for a loan has brought, whole and at its place.
fn token(books: &Books, loan: &str) -> String {
    let submitted = books.of("Credit.Check", loan);
    let payload = &submitted.last().expect("it came").command["payload_json"];
    assert_eq!(payload["loan"], loan);
    let said = payload["answer"]["to"].as_str().expect("a text");
    said.strip_prefix("token ")
        .expect("what stands around it")
        .to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_told_a_token_by_a_command_answers_by_a_message() {
    let server = NatsServer::start();
    let stream = jetstream::new(async_nats::connect(server.url()).await.expect("connects"));
    let books = Books::default();
    let (gateway, _serving) = peers::nats(&books, &server.url()).await;
    let key = NamedTempFile::new().expect("a file");
    std::fs::write(key.path(), "a key for the callbacks of a test\n").expect("written");
    let extra = json!({"gateway": gateway, "callbacks": {"key": {"file": key.path()}}});
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.clear_definitions();
    rig.add_saga("loan", LOAN);
    rig.start().await;
    for loan in ["l-1", "l-2"] {
        rig.send("Loan", loan, "Loan.Asked", json!({"loan": loan})).await;
        seen(&books, "Credit.Check", loan, 1).await;
    }
    let waits = |view: &Value| view["steps"][0]["status"] == "waiting";
    let view = rig.wait_for("loan", "l-1", waits).await;
    let (first, second) = (token(&books, "l-1"), token(&books, "l-2"));
    assert_ne!(first, second);
    assert!(!view.to_string().contains(&first), "the token is in no history");

    let to = |loan: &str| format!("tenant.{TENANT}.callbacks.loan.{loan}");
    // A token is worth nothing for another instance, and what is none is a dead letter.
    store(&stream, to("l-1"), &json!({"token": second, "ok": {"rate": 9}})).await;
    store(&stream, to("l-1"), &json!({"token": first, "heartbeat": true})).await;
    rig.kill();
    store(&stream, to("l-1"), &json!({"token": first, "ok": {"rate": 3}})).await;
    let denied = json!({"class": "denied", "message": "too poor"});
    store(&stream, to("l-2"), &json!({"token": second, "error": denied})).await;
    rig.start().await;
    let view = rig
        .wait_for("loan", "l-1", |view| view["phase"] != "running")
        .await;
    assert_eq!(
        (&view["phase"], &view["state"]["rate"]),
        (&json!("completed"), &json!(3)),
        "{view}"
    );
    let view = rig
        .wait_for("loan", "l-2", |view| view["phase"] != "running")
        .await;
    assert_eq!(view["failure"]["code"], "denied", "{view}");
    let letters = rig
        .client
        .get(rig.url(&format!("/v1/tenants/{TENANT}/dead-letters")))
        .send()
        .await;
    let letters = letters.expect("an answer").text().await.expect("a text");
    assert!(
        letters.contains("callback.token") && letters.matches("\"reason\"").count() == 1,
        "{letters}"
    );
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}
