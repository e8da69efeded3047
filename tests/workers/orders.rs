//! Orders through `sagas/order.yaml`, with one effect served in Python and one in TypeScript.

use std::sync::Arc;
use std::time::Duration;

use saga_runner::demo::upstream::Deed;
use saga_runner::nats::{NatsBroker, Settings};
use saga_runner::ports::broker::Broker as _;
use serde_json::json;

use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT, order_payload};
use crate::workers::{Language, Worker};

const ORDERS: usize = 24;
/// Kills of each worker.
const KILLS: usize = 3;

/// The shipped effect, carried out by others: its schemas stay.
fn external(effect: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("effects/{effect}.yaml"));
    let text = std::fs::read_to_string(path).expect("a shipped effect");
    let call = text.find("\nhttp:").expect("a call");
    format!("{}\nexternal: {{}}\n", &text[..call])
}

async fn rig(server: &NatsServer, mut extra: serde_json::Value) -> Rig {
    // Workers of other processes have one consumer for each effect.
    extra["worker"]["consumers"] = serde_json::json!({"by": "effect"});
    let rig = Rig::new(Some(server.url()), "30m", Duration::from_secs(1), extra).await;
    for effect in ["payments-charge", "shipping-create"] {
        rig.add_effect(effect, &external(effect));
    }
    rig
}

fn start(language: Language, server: &NatsServer, rig: &Rig) -> Worker {
    let shop = format!("http://{}", rig.upstream.address);
    language.start(&server.url(), "crash", &shop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_complete_despite_kills_of_every_process() {
    let server = NatsServer::start();
    let mut rig = rig(&server, json!({"dispatch": "local"})).await;
    rig.start().await;
    let mut workers = [Language::Python, Language::TypeScript].map(|language| start(language, &server, &rig));
    let kinds = ["happy", "declined", "flaky", "noship"];
    let orders: Vec<String> = (0..ORDERS)
        .map(|number| format!("{}-{number:04}", kinds[number % kinds.len()]))
        .collect();
    let (begin, rest) = orders.split_at(ORDERS / 2);
    for order in begin {
        rig.send("Order", order, "Placed", order_payload(order)).await;
    }
    rig.wait_for("order", &orders[0], |view| view["phase"] == "completed")
        .await;
    for (round, orders) in rest.chunks(ORDERS / 2 / KILLS).enumerate() {
        for order in orders {
            rig.send("Order", order, "Placed", order_payload(order)).await;
        }
        tokio::time::sleep(Duration::from_millis(40 * round as u64)).await;
        for (worker, language) in workers.iter_mut().zip([Language::Python, Language::TypeScript]) {
            // SIGKILL of the old one as it is dropped.
            *worker = start(language, &server, &rig);
        }
    }
    for order in &orders {
        let wanted = match order.split('-').next() {
            Some("happy" | "flaky") => "completed",
            _ => "failed",
        };
        let done = |view: &serde_json::Value| {
            ["completed", "failed"].contains(&view["phase"].as_str().unwrap_or(""))
        };
        let view = rig.wait_for("order", order, done).await;
        assert_eq!(view["phase"], wanted, "{order}: {view}");
    }
    let deeds = rig.upstream.deeds();
    let count = |kind: &str, order: &str| {
        let of = |deed: &&Deed| deed.kind == kind && deed.order == order;
        deeds.iter().filter(of).count()
    };
    for order in &orders {
        // One idempotency key for all calls of a piece of work.
        assert!(
            count("charges", order) <= 1 && count("shipments", order) <= 1,
            "{order}"
        );
        let (charged, shipped) = (count("charges", order), count("shipments", order));
        match order.split('-').next() {
            Some("happy" | "flaky") => assert_eq!((charged, shipped), (1, 1), "{order}"),
            Some("noship") => assert_eq!((charged, count("refunds", order)), (1, 1), "{order}"),
            _ => assert_eq!((charged, shipped), (0, 0), "{order}"),
        }
    }
    // Whoever has made a consumer, it tells its group.
    let queues = connect(&server).await.queues("WORKFLOW_COMMANDS").await;
    let queues = queues.expect("an answer");
    for effect in ["payments-charge", "payments-refund", "shipping-create"] {
        let durable = format!("effect-crash-{effect}");
        let made = queues.iter().find(|queue| queue.durable == durable);
        let group = made.and_then(|queue| queue.group.as_deref());
        assert_eq!(group, Some("crash"), "{effect}: {queues:?}");
    }
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

async fn connect(server: &NatsServer) -> Arc<NatsBroker> {
    let settings: Settings = serde_json::from_value(json!({"urls": [server.url()]})).expect("settings");
    let broker = NatsBroker::connect(settings).await.expect("connected");
    broker.connected().await.expect("connected");
    broker
}

/// Sets the largest message that the stream of results takes, -1 for any.
async fn set_largest(server: &NatsServer, bytes: i32) {
    let client = async_nats::connect(server.url()).await.expect("connected");
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("WORKFLOW_EVENTS").await.expect("the stream");
    let mut config = stream.cached_info().config.clone();
    config.max_message_size = bytes;
    context.update_stream(config).await.expect("altered");
}

/// Each of the two holds a result that the broker takes in no form, longer than a command may be without a sign of life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_the_broker_takes_in_no_form_is_kept_and_its_call_is_not_made_again() {
    let server = NatsServer::start();
    let mut rig = rig(&server, json!({})).await;
    rig.start().await;
    let waits = |step: &'static str| {
        move |view: &serde_json::Value| {
            let mut steps = view["steps"].as_array().into_iter().flatten();
            steps.any(|known| known["name"] == step && known["status"] == "running")
        }
    };
    let python = start(Language::Python, &server, &rig);
    rig.send("Order", "happy-1", "Placed", order_payload("happy-1"))
        .await;
    rig.wait_for("order", "happy-1", waits("ship")).await;
    drop(python);
    rig.send("Order", "happy-2", "Placed", order_payload("happy-2"))
        .await;
    rig.wait_for("order", "happy-2", waits("charge")).await;
    set_largest(&server, 64).await;
    let _workers = [Language::Python, Language::TypeScript].map(|language| start(language, &server, &rig));
    let deed = |kind: &str, order: &str| {
        let deeds = rig.upstream.deeds().into_iter();
        deeds
            .filter(|deed| deed.kind == kind && deed.order == order)
            .collect::<Vec<Deed>>()
    };
    let begin = std::time::Instant::now();
    while deed("charges", "happy-2").is_empty() || deed("shipments", "happy-1").is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{}", rig.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // `ACK_WAIT`, after which the broker gives the commands to whoever asks.
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    set_largest(&server, -1).await;
    let completed = |view: &serde_json::Value| view["phase"] == "completed";
    for order in ["happy-1", "happy-2"] {
        rig.wait_for("order", order, completed).await;
        for kind in ["charges", "shipments"] {
            let deeds = deed(kind, order);
            let calls: Vec<u32> = deeds.iter().map(|deed| deed.calls).collect();
            assert_eq!(calls, [1], "{kind} of {order}");
        }
    }
}

/// saga-runner itself leaves them alone and says so.
#[tokio::test(flavor = "multi_thread")]
async fn external_effects_are_left_to_others() {
    let server = NatsServer::start();
    let mut rig = rig(&server, json!({})).await;
    rig.start().await;
    rig.send("Order", "happy-1", "Placed", order_payload("happy-1"))
        .await;
    let waiting = |view: &serde_json::Value| {
        let mut steps = view["steps"].as_array().into_iter().flatten();
        steps.any(|step| step["name"] == "charge" && step["status"] == "running")
    };
    rig.wait_for("order", "happy-1", waiting).await;
    let answer = rig.client.get(rig.url("/info")).send().await.expect("an answer");
    let info: serde_json::Value =
        serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
    assert_eq!(
        info["external_effects"],
        json!(["payments-charge", "shipping-create"])
    );
    let here = info["effects"].as_array().expect("a list");
    assert!(here.contains(&json!("payments-refund")) && !here.contains(&json!("payments-charge")));
    let broker = connect(&server).await;
    let consumer = async |effect: &str| {
        let durable = format!("effect-crash-{effect}");
        broker
            .consumer("WORKFLOW_COMMANDS", &durable)
            .await
            .expect("an answer")
    };
    assert!(consumer("payments-refund").await.is_some());
    assert_eq!(consumer("payments-charge").await, None);
    let answer = rig
        .client
        .get(rig.url("/metrics"))
        .send()
        .await
        .expect("an answer");
    let metrics = answer.text().await.expect("text");
    assert!(metrics.contains("effect=\"payments-refund\""));
    assert!(!metrics.contains("effect=\"payments-charge\""));
    // Who comes late finds the command.
    let _late = [Language::Python, Language::TypeScript].map(|language| start(language, &server, &rig));
    let completed = |view: &serde_json::Value| view["phase"] == "completed";
    rig.wait_for("order", "happy-1", completed).await;
    assert!(
        rig.upstream.deeds().iter().any(|deed| deed.kind == "charges"),
        "{TENANT}"
    );
}
