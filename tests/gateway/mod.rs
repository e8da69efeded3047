//! Aggregate commands of the real binary, submitted to gateways of each kind, which are not the runner's code: what a
//! gateway is told, what its answers do to the saga, and that a SIGKILL changes neither.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

mod peers;
mod tokens;
mod webhooks;

use std::time::{Duration, Instant};

use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT};
use peers::Books;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(1);

/// Two commands, the first of which can be undone. The payload says that it is somebody else's.
const PARCEL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Ordered
key: {"Parcel.*": event.data.parcel}
steps:
  reserve:
    command: {aggregate: Stock, id: "${key}", type: Stock.Reserve, payload: {parcel: "${key}", tenant_id: globex}}
    compensate: {command: {aggregate: Stock, id: "${key}", type: Stock.Release}}
  ship:
    needs: [reserve]
    command: {aggregate: Shipment, id: "shp/${key}", type: Shipment.Create, payload: {parcel: "${key}"}}
    compensate: none
"#;

async fn ordered(rig: &Rig, parcel: &str) {
    rig.send("Parcel", parcel, "Parcel.Ordered", json!({"parcel": parcel}))
        .await;
}

async fn ended(rig: &Rig, parcel: &str) -> Value {
    let over = |view: &Value| ["completed", "failed"].contains(&view["phase"].as_str().unwrap_or_default());
    rig.wait_for("parcel", parcel, over).await
}

/// What the runner answers.
async fn told(rig: &Rig, path: &str) -> String {
    let answer = reqwest::get(rig.url(path)).await.expect("answers");
    answer.text().await.expect("a text")
}

/// Where the runner's breaker of the gateway stands.
async fn breaker(rig: &Rig) -> String {
    let info: Value = serde_json::from_str(&told(rig, "/info").await).expect("JSON");
    info["gateway_breaker"]
        .as_str()
        .expect("there is a gateway")
        .to_owned()
}

/// Waits until the gateway has seen so many submissions of a command.
async fn seen(books: &Books, command: &str, parcel: &str, count: usize) {
    let begin = Instant::now();
    while books.of(command, parcel).len() < count {
        assert!(begin.elapsed() < PATIENCE, "{command} of {parcel} never came");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The whole story, with a gateway that `manifest` leads to.
async fn commands_arrive(nats: Option<String>, books: Books, gateway: Value) {
    let mut rig = Rig::new(nats, "30m", Duration::ZERO, json!({"gateway": gateway})).await;
    rig.add_saga("parcel", PARCEL);
    rig.start().await;

    // The gateway takes a command and says nothing; then the runner dies.
    books.be_mute_about("Shipment.Create");
    ordered(&rig, "p-1").await;
    seen(&books, "Shipment.Create", "p-1", 1).await;
    rig.kill();
    books.speak();
    rig.start().await;
    let view = ended(&rig, "p-1").await;
    assert_eq!(view["phase"], "completed", "{view}");
    let submitted = books.of("Shipment.Create", "p-1");
    assert!(submitted.len() >= 2, "{submitted:?}");
    for again in &submitted {
        assert_eq!(
            again.command, submitted[0].command,
            "the same command, the same ids"
        );
        assert_eq!(again.key, submitted[0].key);
    }

    // A gateway that asks for patience gets the same command again.
    books.be_busy("Stock.Reserve", 3);
    ordered(&rig, "p-3").await;
    let view = ended(&rig, "p-3").await;
    assert_eq!(view["phase"], "completed", "{view}");
    let submitted = books.of("Stock.Reserve", "p-3");
    assert_eq!(submitted.len(), 4, "{submitted:?}");
    assert!(
        submitted
            .iter()
            .all(|again| again.command == submitted[0].command)
    );

    // A refusal reaches the saga, which undoes what was done.
    books.refuse("Shipment.Create", "no such street");
    ordered(&rig, "p-2").await;
    let view = ended(&rig, "p-2").await;
    assert_eq!(view["phase"], "failed", "{view}");
    assert_eq!(view["failure"]["code"], "rejected", "{view}");
    assert!(view.to_string().contains("no such street"), "{view}");
    assert!(!books.of("Stock.Release", "p-2").is_empty(), "{:?}", books.all());
    assert_eq!(books.of("Shipment.Create", "p-2").len(), 1, "a refusal is final");
    assert!(books.of("Stock.Release", "p-1").is_empty());

    for submitted in books.all() {
        let command = &submitted.command;
        assert_eq!(command["tenant_id"], TENANT, "{submitted:?}");
        assert_eq!(submitted.tenant.as_deref(), Some(TENANT), "{submitted:?}");
        assert_eq!(command["metadata"]["idempotency_key"], submitted.key.as_str());
        assert_eq!(command["metadata"]["saga"], "parcel");
        let deadline = command["metadata"]["deadline_ms"].as_i64();
        assert!(
            deadline.is_some_and(|deadline| submitted.at_ms < deadline),
            "{submitted:?}"
        );
    }
    let reserved = &books.of("Stock.Reserve", "p-1")[0].command;
    assert_eq!(
        reserved["payload_json"],
        json!({"parcel": "p-1", "tenant_id": "globex"})
    );
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_arrive_over_http_despite_crashes() {
    let books = Books::default();
    let gateway = peers::http(&books).await;
    commands_arrive(None, books, gateway).await;
}

#[cfg(feature = "gateway-grpc")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_arrive_over_grpc_despite_crashes() {
    let books = Books::default();
    let gateway = peers::grpc(&books).await;
    commands_arrive(None, books, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_arrive_over_nats_despite_crashes() {
    let server = NatsServer::start();
    let books = Books::default();
    let (gateway, _serving) = peers::nats(&books, &server.url()).await;
    commands_arrive(Some(server.url()), books, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_fails_is_left_alone_for_a_while_and_operators_see_it() {
    let books = Books::default();
    let gateway = peers::http(&books).await;
    let relay = json!({
        "retry_initial": "20ms", "retry_max": "100ms",
        "breaker": {"calls_min": 4, "open_ms": 3_000, "probes": 1},
    });
    let extra = json!({"gateway": gateway, "relay": relay});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    rig.add_saga("parcel", PARCEL);
    rig.start().await;
    books.be_busy("Stock.Reserve", 5);
    ordered(&rig, "p-1").await;
    let begin = Instant::now();
    while breaker(&rig).await != "open" {
        assert!(begin.elapsed() < PATIENCE, "the breaker never opens");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let metrics = told(&rig, "/metrics").await;
    assert!(
        metrics.contains("saga_runner_gateway_breaker{state=\"open\"} 1"),
        "{metrics}"
    );
    let view = ended(&rig, "p-1").await;
    assert_eq!(view["phase"], "completed", "{view}");
    assert_eq!(books.of("Stock.Reserve", "p-1").len(), 6);
    assert_eq!(breaker(&rig).await, "closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_nobody_serves_yet_is_waited_for_and_a_broker_that_dies_loses_nothing() {
    let mut server = NatsServer::start();
    let books = Books::default();
    let (gateway, serving) = peers::nats(&books, &server.url()).await;
    serving.abort();
    assert!(
        serving.await.is_err_and(|error| error.is_cancelled()),
        "nobody listens"
    );
    let extra = json!({"gateway": gateway});
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.add_saga("parcel", PARCEL);
    rig.start().await;
    ordered(&rig, "p-1").await;
    let waits = |view: &Value| view["phase"] == "running";
    rig.wait_for("parcel", "p-1", waits).await;
    let (_, serving) = peers::nats(&books, &server.url()).await;
    let view = ended(&rig, "p-1").await;
    assert_eq!(view["phase"], "completed", "{view}");

    // The broker takes the request with it, and the gateway comes back after it.
    books.be_mute_about("Shipment.Create");
    ordered(&rig, "p-2").await;
    seen(&books, "Shipment.Create", "p-2", 1).await;
    serving.abort();
    server.kill();
    books.speak();
    server.launch();
    let (_, _serving) = peers::nats(&books, &server.url()).await;
    let view = ended(&rig, "p-2").await;
    assert_eq!(view["phase"], "completed", "{view}");
    let submitted = books.of("Shipment.Create", "p-2");
    assert!(submitted.len() >= 2, "{submitted:?}");
    assert!(
        submitted
            .iter()
            .all(|again| again.command == submitted[0].command)
    );
}
