//! The runner and its broker are killed with SIGKILL under load; afterwards everything must be as if nothing had
//! happened.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

mod backups;
mod begin;
mod books;
mod calls;
mod controls;
mod held;
mod lost;
mod owners;
mod shards;
mod suspended;
mod unstored;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::faults::setting;
use crate::support::nats_server::{NatsServer, Options};
use crate::support::rig::{Rig, TENANT, event_body, order_payload};
use saga_runner::nats::{NatsBroker, Settings};
use saga_runner::ports::broker::{Broker, Expect, Publication, PublishError};
use serde_json::json;

const KINDS: [&str; 8] = [
    "happy", "declined", "happy", "flaky", "noship", "happy", "nostock", "happy",
];
/// `make crash` sets another number by `CRASH_KILLS`.
const RUNNER_KILLS: usize = 30;
/// So many that orders are placed from the first kill to the last.
const ORDERS_PER_KILL: usize = 40;
const KILLS_PER_SERVER_KILL: usize = 6;
const FEWER_ORDERS: usize = 400;
const FEWER_RUNNER_KILLS: usize = 12;

/// Pauses between kills: a fixed sequence, so that a failure can be looked at again.
fn pause(step: usize) -> Duration {
    Duration::from_millis(150 + (step as u64 * 7_919) % 900)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_done_twice_when_runner_and_broker_are_killed_under_load() {
    let kills = setting("CRASH_KILLS", RUNNER_KILLS);
    let begin = Instant::now();
    let orders = kills * ORDERS_PER_KILL;
    let (mut rig, nats, endings) =
        killed_under_load(NatsServer::start(), quick_redelivery(), orders, kills).await;
    books::check(&rig, nats.broker.as_ref(), &endings).await;
    println!(
        "{kills} SIGKILLs of the runner, {} of the server, {orders} orders, all ended and the books balanced after {} s",
        server_kills(kills),
        begin.elapsed().as_secs()
    );
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_done_twice_where_commands_go_straight_to_the_worker() {
    let (mut rig, nats, endings) = killed_under_load(
        NatsServer::start(),
        local_dispatch(),
        FEWER_ORDERS,
        FEWER_RUNNER_KILLS,
    )
    .await;
    books::check_local(&rig, nats.broker.as_ref(), &endings).await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_done_twice_where_a_server_that_syncs_takes_batches() {
    let server = NatsServer::start_with(&Options {
        sync_interval: Some("always"),
        ..Options::default()
    });
    let url = server.url();
    let (mut rig, nats, endings) =
        killed_under_load(server, batches(&url), FEWER_ORDERS, FEWER_RUNNER_KILLS).await;
    books::check(&rig, nats.broker.as_ref(), &endings).await;
    assert!(came_by_batch(&url).await > 0, "no result came by a batch");
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}

/// How many messages of the stream of results were stored by a batch.
async fn came_by_batch(url: &str) -> usize {
    let raw = async_nats::jetstream::new(async_nats::connect(url).await.expect("connects"));
    let stream = raw.get_stream("WORKFLOW_EVENTS").await.expect("is there");
    let mut batched = 0;
    for sequence in 1..=stream.cached_info().state.last_sequence {
        let message = stream
            .get_raw_message(sequence)
            .await
            .expect("nothing is trimmed yet");
        batched += usize::from(message.headers.get("Nats-Batch-Id").is_some());
    }
    batched
}

/// Kills the runner so often, and the server every sixth time, while so many orders are placed; then waits until all
/// have ended as they should.
async fn killed_under_load(
    mut server: NatsServer,
    extra: serde_json::Value,
    orders: usize,
    kills: usize,
) -> (Rig, Nats, BTreeMap<String, serde_json::Value>) {
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::from_secs(1), extra).await;
    rig.start().await;
    let broker = connect(&server.url()).await;
    let placing = tokio::spawn(place(Arc::clone(&broker), orders));
    for step in 0..kills {
        tokio::time::sleep(pause(step)).await;
        rig.kill();
        if kills_server(step) {
            server.kill();
            server.launch();
        }
        rig.launch();
    }
    rig.kill();
    rig.start().await;
    let placed = placing.await.expect("all orders are placed");
    assert_eq!(placed.len(), orders);
    let endings = wait_for_ends(&rig, &placed).await;
    for (order, view) in &endings {
        assert_eq!(view["phase"], expected_phase(order), "{order}: {view}");
    }
    let nats = Nats {
        broker,
        _server: server,
    };
    (rig, nats, endings)
}

fn kills_server(step: usize) -> bool {
    step % KILLS_PER_SERVER_KILL == 2
}

fn server_kills(kills: usize) -> usize {
    (0..kills).filter(|step| kills_server(*step)).count()
}

/// A connection to a server that lives as long.
struct Nats {
    broker: Arc<dyn Broker>,
    _server: NatsServer,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_broker_survives_kills_as_well() {
    embedded(quick_redelivery()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_broker_survives_kills_with_local_dispatch_as_well() {
    embedded(local_dispatch()).await;
}

async fn embedded(extra: serde_json::Value) {
    let mut rig = Rig::new(None, "30m", Duration::from_secs(1), extra).await;
    rig.start().await;
    let mut orders = Vec::new();
    for number in 0..120 {
        let order = format!("{}-{number:04}", KINDS[number % KINDS.len()]);
        rig.send("Order", &order, "Placed", order_payload(&order)).await;
        orders.push(order);
        if number % 15 == 14 {
            rig.kill();
            rig.launch();
        }
    }
    rig.kill();
    rig.start().await;
    let endings = wait_for_ends(&rig, &orders).await;
    for (order, view) in &endings {
        assert_eq!(view["phase"], expected_phase(order), "{order}: {view}");
    }
    books::check_upstream(&rig, &endings);
}

/// What a killed worker held comes to the next one soon.
fn quick_redelivery() -> serde_json::Value {
    json!({"worker": {"ack_wait": "4s"}})
}

fn local_dispatch() -> serde_json::Value {
    json!({"worker": {"ack_wait": "4s"}, "dispatch": "local"})
}

fn batches(url: &str) -> serde_json::Value {
    let nats = json!({"urls": [url], "publish_batch_max": 400});
    json!({"worker": {"ack_wait": "4s"}, "broker": {"kind": "nats", "nats": nats}})
}

fn expected_phase(order: &str) -> &'static str {
    match order.split('-').next() {
        Some("happy" | "flaky") => "completed",
        _ => "failed",
    }
}

pub async fn connect(url: &str) -> Arc<dyn Broker> {
    let settings: Settings = serde_json::from_value(json!({"urls": [url]})).expect("settings");
    let broker = NatsBroker::connect(settings).await.expect("settings are good");
    broker.connected().await.expect("connects");
    broker
}

/// Places every order, each again until the broker has it: the message id makes that harmless.
async fn place(broker: Arc<dyn Broker>, count: usize) -> Vec<String> {
    let mut orders = Vec::new();
    for number in 0..count {
        let order = format!("{}-{number:04}", KINDS[number % KINDS.len()]);
        let message = Publication {
            stream: "AGGREGATE_EVENTS".to_owned(),
            subject: format!("tenant.{TENANT}.aggregate.Order.{order}"),
            headers: Vec::new(),
            payload: event_body("Order", &order, "Placed", &order_payload(&order)).into(),
            expect: Expect::MessageId(format!("placed-{order}")),
        };
        while let Err(error) = broker.publish(message.clone()).await {
            assert!(!matches!(error, PublishError::Refused(_)), "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        orders.push(order);
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    orders
}

async fn wait_for_ends(rig: &Rig, orders: &[String]) -> BTreeMap<String, serde_json::Value> {
    let begin = Instant::now();
    let patience = Duration::from_mins(3)
        + Duration::from_millis(10) * u32::try_from(orders.len()).expect("not so many");
    let mut ended = BTreeMap::new();
    while ended.len() < orders.len() {
        for order in orders {
            if ended.contains_key(order) {
                continue;
            }
            if let Some(view) = rig.instance("order", order).await
                && matches!(view["phase"].as_str(), Some("completed" | "failed" | "cancelled"))
                && view["ended"].is_string()
            {
                ended.insert(order.clone(), view);
            }
        }
        if begin.elapsed() > patience {
            let open: Vec<&String> = orders
                .iter()
                .filter(|order| !ended.contains_key(*order))
                .collect();
            let view = rig.instance("order", open[0]).await;
            panic!(
                "{} of {} orders did not end, among them {view:?}\n{}",
                open.len(),
                orders.len(),
                rig.log_tail()
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ended
}
