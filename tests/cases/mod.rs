//! Stories of failures that once cost others their data, told again to the real binary on a real nats-server.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

mod aliases;
mod bounds;
mod figures;
mod generations;
mod inputs;
mod job_letters;
mod job_verbs;
mod jobs;
mod log;
mod rolling;
mod spans;
mod traces;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::nats_server::NatsServer;
use crate::support::proxy::Proxy;
use crate::support::rig::{Rig, TENANT, event_body, order_payload};
use saga_runner::nats::{NatsBroker, Settings};
use saga_runner::ports::broker::{Broker, Expect, Publication};
use serde_json::{Value, json};

async fn connect(url: &str) -> Arc<dyn Broker> {
    let settings: Settings = serde_json::from_value(json!({"urls": [url]})).expect("settings");
    let broker = NatsBroker::connect(settings).await.expect("settings are good");
    broker.connected().await.expect("connects");
    broker
}

async fn publish(broker: &dyn Broker, aggregate: &str, id: &str, body: String) {
    let message = Publication {
        stream: "AGGREGATE_EVENTS".to_owned(),
        subject: format!("tenant.{TENANT}.aggregate.{aggregate}.{id}"),
        headers: Vec::new(),
        payload: body.into(),
        expect: Expect::Nothing,
    };
    broker.publish(message).await.expect("published");
}

fn phase_is(phase: &'static str) -> impl Fn(&Value) -> bool {
    move |view| view["phase"] == phase
}

/// How long [`PAYMENT`] waits for the money.
const UNPAID_MS: i64 = 2_000;

/// A saga that gives up on an order that is not paid in two seconds.
const PAYMENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: payment
start: Invoice.Issued
key: {"Invoice.*": event.data.invoice}
state: {init: {paid: false}}
handlers:
  Invoice.Paid: {set: {paid: true}}
timers:
  unpaid: {after: 2s, cancel_when: state.paid, fail: {code: unpaid}}
"#;

/// Sends events of other invoices until the broker has stored one after the timers of both invoices are due.
async fn until_due(broker: &dyn Broker) {
    const STREAM: &str = "AGGREGATE_EVENTS";
    let time_of = async |sequence| {
        let message = broker.message_at(STREAM, sequence).await.expect("asked");
        message.expect("stored").time.0
    };
    // The second invoice was issued last.
    let due = time_of(2).await + UNPAID_MS;
    for number in 500.. {
        let id = format!("other-{number}");
        let body = event_body("Invoice", &id, "Paid", &json!({"invoice": id}));
        publish(broker, "Invoice", &id, body).await;
        let last = broker.stream_state(STREAM).await.expect("a stream").last_sequence;
        if time_of(last).await > due {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The runner is away when the payment comes and when the timer falls due. When it is back, the timer is overdue and
/// the payment waits in the backlog: the payment was stored first, so it must count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_that_fell_due_in_an_outage_does_not_overtake_the_event_that_cancels_it() {
    let server = NatsServer::start();
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await;
    rig.add_saga("payment", PAYMENT);
    rig.start().await;
    let broker = connect(&server.url()).await;
    for id in ["paid", "unpaid"] {
        let body = event_body("Invoice", id, "Issued", &json!({"invoice": id}));
        publish(broker.as_ref(), "Invoice", id, body).await;
        rig.wait_for("payment", id, phase_is("running")).await;
    }
    rig.kill();
    let body = event_body("Invoice", "paid", "Paid", &json!({"invoice": "paid"}));
    publish(broker.as_ref(), "Invoice", "paid", body).await;
    // A backlog in front of what matters, of the same stream.
    for number in 0..500 {
        let id = format!("other-{number}");
        let body = event_body("Invoice", &id, "Paid", &json!({"invoice": id}));
        publish(broker.as_ref(), "Invoice", &id, body).await;
    }
    until_due(broker.as_ref()).await;
    rig.start().await;
    let failed = rig.wait_for("payment", "unpaid", phase_is("failed")).await;
    assert_eq!(failed["failure"]["code"], "unpaid");
    let paid = rig.instance("payment", "paid").await.expect("still there");
    assert_eq!(paid["phase"], "running", "{paid}");
    assert_eq!(paid["state"]["paid"], true);
    assert_eq!(paid["timers"], json!([]));
}

/// The connection breaks with deliveries on their way, again and again. A reader that went on behind them would
/// dead-letter them for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_loses_no_delivery() {
    let server = NatsServer::start();
    let proxy = Proxy::start(server.address()).await;
    let mut rig = Rig::new(
        Some(proxy.url()),
        "30m",
        Duration::ZERO,
        json!({"worker": {"ack_wait": "3s"}}),
    )
    .await;
    rig.start().await;
    let broker = connect(&server.url()).await;
    let mut orders = Vec::new();
    for number in 0..200 {
        let order = format!("happy-{number:03}");
        let body = event_body("Order", &order, "Placed", &order_payload(&order));
        publish(broker.as_ref(), "Order", &order, body).await;
        orders.push(order);
        if number % 25 == 20 {
            proxy.cut();
        }
    }
    for order in &orders {
        rig.wait_for("order", order, phase_is("completed")).await;
    }
}

/// The broker has acknowledged a command and lost it with its power. The instance would wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_the_broker_forgot_is_published_again_under_its_id() {
    let server = NatsServer::start();
    let mut rig = Rig::new(
        Some(server.url()),
        "30m",
        Duration::ZERO,
        json!({"shard": {"sweep_after": "1s", "sweep_every": "500ms"}}),
    )
    .await;
    rig.start_as("saga").await;
    let broker = connect(&server.url()).await;
    let body = event_body("Order", "happy-1", "Placed", &order_payload("happy-1"));
    publish(broker.as_ref(), "Order", "happy-1", body).await;
    let view = rig.wait_for("order", "happy-1", phase_is("running")).await;
    let command = view["steps"][0]["command_id"]
        .as_str()
        .expect("under way")
        .to_owned();
    let subject = format!("tenant.{TENANT}.effect.inventory-reserve.{command}");
    while broker
        .last_by_subject("WORKFLOW_COMMANDS", &subject)
        .await
        .expect("asked")
        .is_none()
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let end = broker.stream_state("WORKFLOW_COMMANDS").await.expect("a stream");
    // What is trimmed before the shards have read it is a gap to them.
    rig.until_read("WORKFLOW_COMMANDS", end.last_sequence).await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let state = broker.stream_state("WORKFLOW_COMMANDS").await.expect("a stream");
    broker
        .trim("WORKFLOW_COMMANDS", state.last_sequence + 1)
        .await
        .expect("everything is forgotten");
    rig.start().await;
    let view = rig.wait_for("order", "happy-1", phase_is("completed")).await;
    let results = view["history"].as_array().expect("a history");
    assert!(
        results.iter().any(|entry| entry["input"] == command.as_str()),
        "the same command was carried out: {view}"
    );
}

/// The same work in two rounds of a machine must reach an upstream that remembers idempotency keys twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_rounds_of_the_same_work_have_two_idempotency_keys() {
    let server = NatsServer::start();
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await;
    rig.start().await;
    for line in 0..10 {
        let payload = json!({"warehouse": "w-1", "line_id": format!("line-{line}"), "grams": 4_500});
        rig.send("Line", &format!("line-{line}"), "Ready", payload).await;
        if line == 4 {
            rig.wait_for("consolidate", "w-1", |view| view["state"]["batch"] == 2)
                .await;
        }
    }
    rig.wait_for("consolidate", "w-1", |view| view["state"]["batch"] == 3)
        .await;
    let commands = rig.upstream.commands();
    let keys: BTreeSet<&str> = commands
        .iter()
        .filter_map(|command| command["metadata"]["idempotency_key"].as_str())
        .collect();
    assert_eq!((commands.len(), keys.len()), (2, 2), "{commands:?}");
}

/// A producer sends the first event of an order again, long after the order has ended and beyond every duplicate
/// window of the broker: with another message id, once with the same event id and once with another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_duplicate_of_a_start_starts_nothing() {
    let server = NatsServer::start();
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await;
    rig.start().await;
    let broker = connect(&server.url()).await;
    let body = event_body("Order", "happy-1", "Placed", &order_payload("happy-1"));
    publish(broker.as_ref(), "Order", "happy-1", body.clone()).await;
    let first = rig
        .wait_for("order", "happy-1", |view| view["ended"].is_string())
        .await;
    let deeds = rig.upstream.deeds();
    publish(broker.as_ref(), "Order", "happy-1", body.clone()).await;
    let other = body.replace("Order-Placed-happy-1", "another-id");
    publish(broker.as_ref(), "Order", "happy-1", other).await;
    // What comes behind them has been applied, so they have been, too.
    let probe = event_body("Order", "happy-2", "Placed", &order_payload("happy-2"));
    publish(broker.as_ref(), "Order", "happy-2", probe).await;
    rig.wait_for("order", "happy-2", phase_is("completed")).await;
    rig.kill();
    rig.start().await;
    let again = rig.instance("order", "happy-1").await.expect("still there");
    assert_eq!(again, first);
    let same: Vec<_> = rig
        .upstream
        .deeds()
        .into_iter()
        .filter(|deed| deed.order == "happy-1")
        .collect();
    assert_eq!(same, deeds);
}
