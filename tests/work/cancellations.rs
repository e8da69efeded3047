//! Commands that are taken back before, between and during their calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use saga_runner::effects::{Settings, Worker};
use saga_runner::kernel::definition::effect::{OnAmbiguous, OnCancel};
use saga_runner::kernel::duration::Millis;
use saga_runner::kernel::work::{WorkItem, WorkKind};
use saga_runner::ports::broker::Broker;
use serde_json::Value;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::work::faults::{Fault, Faulty};
use crate::work::grouping::enqueue_all;
use crate::work::rig::{self, RelayOptions, Rig, at, definition, effect, effect_name, enqueue, until};

/// The outbox rows that take `items` back, handed to the broker by a relay.
async fn take_all_back(rig: &Rig, items: &[WorkItem]) {
    let row = |(n, item): (usize, &WorkItem)| {
        let kind = WorkKind::Cancel {
            effect: effect_name(),
            command: item.command_id,
        };
        let mut row = rig::item(rig, "o-1", 900_000 + n as u128, kind);
        "steps.charge.cancel".clone_into(&mut row.path);
        (at(9, u16::try_from(n).unwrap()), row)
    };
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    shard.release(items.iter().enumerate().map(row).collect()).await;
    shard.until(|shard| shard.delivered.len() == items.len()).await;
}

async fn take_back(rig: &Rig, item: &WorkItem) {
    take_all_back(rig, std::slice::from_ref(item)).await;
}

async fn upstream(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

async fn called(server: &MockServer, times: usize) {
    until(async || (server.received_requests().await.unwrap().len() >= times).then_some(())).await;
}

fn said(result: &Value) -> (&str, &str) {
    let class = result["payload"]["class"].as_str().unwrap_or_default();
    (result["result_type"].as_str().unwrap_or_default(), class)
}

fn cancelled(rig: &Rig) -> u64 {
    rig.metrics
        .effect_commands_cancelled
        .with_label_values(&["charge"])
        .get()
}

#[tokio::test]
async fn a_command_that_waits_in_the_queue_is_not_carried_out() {
    waits_in_the_queue(Rig::new().await).await;
}

#[tokio::test]
async fn a_command_that_waits_in_the_queue_is_not_carried_out_on_nats() {
    waits_in_the_queue(Rig::on_nats().await).await;
}

/// The effect makes one call at a time: the second command waits behind the first.
async fn waits_in_the_queue(rig: Rig) {
    let (first, second) = (effect(&rig, "o-1", 1), effect(&rig, "o-1", 2));
    let server = upstream(ResponseTemplate::new(200).set_delay(Duration::from_secs(4))).await;
    let mut one_by_one = definition(1);
    one_by_one.limits.concurrency = 1;
    let _worker = rig.worker(one_by_one, &server.uri());
    enqueue(&rig, &first).await;
    called(&server, 1).await;
    enqueue(&rig, &second).await;
    take_back(&rig, &second).await;
    let result = rig.result(&second).await;
    assert_eq!(said(&result), ("Failed", "cancelled"), "{result}");
    assert_eq!(rig.result(&first).await["result_type"], "Succeeded");
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
    assert_eq!(cancelled(&rig), 1);
}

#[tokio::test]
async fn a_worker_that_starts_later_knows_the_cancelled_commands() {
    comes_later(Rig::new().await).await;
}

#[tokio::test]
async fn a_worker_that_starts_later_knows_the_cancelled_commands_on_nats() {
    comes_later(Rig::on_nats().await).await;
}

async fn comes_later(rig: Rig) {
    let (taken, kept) = (effect(&rig, "o-1", 1), effect(&rig, "o-1", 2));
    let server = upstream(ResponseTemplate::new(200)).await;
    enqueue(&rig, &taken).await;
    enqueue(&rig, &kept).await;
    take_back(&rig, &taken).await;
    let _worker = rig.worker(definition(1), &server.uri());
    let result = rig.result(&taken).await;
    assert_eq!(said(&result), ("Failed", "cancelled"), "{result}");
    assert_eq!(rig.result(&kept).await["result_type"], "Succeeded");
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}

/// Its outcome is unknown no sooner than the call would have ended if its worker had lived, so that nothing is undone before.
#[tokio::test]
async fn a_cancelled_command_whose_worker_died_in_its_call_is_answered_once_that_call_is_over() {
    let rig = Rig::new().await;
    for (n, on_ambiguous) in (1..).zip([OnAmbiguous::Fail, OnAmbiguous::Ask]) {
        let stuck = upstream(ResponseTemplate::new(200).set_delay(Duration::from_mins(1))).await;
        let once = || {
            let mut once = definition(5);
            once.on_ambiguous = on_ambiguous;
            once
        };
        let item = effect(&rig, "o-1", n);
        let begun = Instant::now();
        let first = rig.worker(once(), &stuck.uri());
        enqueue(&rig, &item).await;
        called(&stuck, 1).await;
        drop(first);
        take_back(&rig, &item).await;
        let timeout = Duration::from_millis(once().timeout_ms);
        let second = rig.worker(once(), &stuck.uri());
        let result = rig.result(&item).await;
        assert_eq!(said(&result), ("TimedOut", "cancelled"), "{result}");
        let waited = begun.elapsed();
        assert!(waited >= timeout, "it may have been under way after {waited:?}");
        assert_eq!(
            stuck.received_requests().await.unwrap().len(),
            1,
            "no second call"
        );
        second.drain(Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn no_attempt_follows_a_cancellation() {
    let rig = Rig::new().await;
    let item = effect(&rig, "o-1", 1);
    let slow = ResponseTemplate::new(503).set_delay(Duration::from_secs(4));
    let server = upstream(slow).await;
    let _worker = rig.worker(definition(20), &server.uri());
    enqueue(&rig, &item).await;
    called(&server, 1).await;
    take_back(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(said(&result), ("Failed", "cancelled"), "{result}");
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_call_comes_to_its_end_unless_it_may_be_interrupted() {
    let rig = Rig::new().await;
    let item = effect(&rig, "o-1", 1);
    let server = upstream(
        ResponseTemplate::new(200)
            .set_delay(Duration::from_secs(4))
            .set_body_string(r#"{"id":"c-1"}"#),
    )
    .await;
    let worker = rig.worker(definition(1), &server.uri());
    enqueue(&rig, &item).await;
    called(&server, 1).await;
    take_back(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(
        (&result["result_type"], &result["payload"]["id"]),
        (&"Succeeded".into(), &"c-1".into()),
        "what is known of a call is worth having"
    );
    worker.drain(Duration::from_secs(5)).await;

    let item = effect(&rig, "o-2", 2);
    let server = upstream(ResponseTemplate::new(200).set_delay(Duration::from_mins(5))).await;
    let mut hasty = definition(1);
    hasty.timeout_ms = 600_000;
    hasty.on_cancel = OnCancel::Interrupt;
    let _worker = rig.worker(hasty, &server.uri());
    enqueue(&rig, &item).await;
    called(&server, 1).await;
    take_back(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(said(&result), ("TimedOut", "cancelled"), "{result}");
}

/// 275 of 300 commands were taken back while no worker was there.
async fn none_of_a_backlog_is_called(rig: Rig, settings: Settings) {
    let work: Vec<_> = (1..=300).map(|n| effect(&rig, "o-1", n)).collect();
    let (taken, kept) = work.split_at(275);
    let server = upstream(ResponseTemplate::new(200)).await;
    enqueue_all(&rig, &work).await;
    take_all_back(&rig, taken).await;
    let mut spec = rig.spec(
        "test",
        vec![definition(1)],
        &server.uri(),
        Arc::clone(&rig.metrics),
    );
    spec.settings = settings;
    let worker = Worker::start(&spec).unwrap();
    until(async || (rig.messages(&rig.streams.events).await == 300).then_some(())).await;
    assert_eq!(server.received_requests().await.unwrap().len(), kept.len());
    assert_eq!(cancelled(&rig), 275);
    for item in [&taken[0], &taken[274]] {
        let result = rig.result(item).await;
        assert_eq!(said(&result), ("Failed", "cancelled"), "{result}");
    }
    worker.drain(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_command_cancelled_while_no_worker_runs_is_never_called() {
    none_of_a_backlog_is_called(Rig::new().await, Settings::default()).await;
}

#[tokio::test]
async fn a_command_cancelled_while_no_worker_runs_is_never_called_on_nats() {
    none_of_a_backlog_is_called(Rig::on_nats().await, Settings::default()).await;
}

/// The worker waits for nothing and remembers next to nothing.
#[tokio::test]
async fn cancellations_that_were_missed_or_forgotten_are_looked_up() {
    let settings = || Settings {
        cancellations_wait: Millis(0),
        cancellations_max: 5,
        ..Settings::default()
    };
    none_of_a_backlog_is_called(Rig::new().await, settings()).await;
    none_of_a_backlog_is_called(Rig::on_nats().await, settings()).await;
}

#[tokio::test]
async fn no_call_is_made_while_cancellations_cannot_be_read() {
    let rig = Rig::new().await;
    let item = effect(&rig, "o-1", 1);
    let server = upstream(ResponseTemplate::new(200)).await;
    enqueue(&rig, &item).await;
    take_back(&rig, &item).await;
    let broker = Faulty::new(Arc::clone(&rig.broker), |_| Fault::None);
    broker.hides_cancellations.store(true, Ordering::Relaxed);
    let mut spec = rig.spec(
        "test",
        vec![definition(1)],
        &server.uri(),
        Arc::clone(&rig.metrics),
    );
    spec.broker = Arc::clone(&broker) as Arc<dyn Broker>;
    spec.settings.cancellations_wait = Millis(50);
    let _worker = Worker::start(&spec).unwrap();
    let given_back = rig
        .metrics
        .effect_commands_returned
        .with_label_values(&["charge", "broker"]);
    until(async || (given_back.get() > 0).then_some(())).await;
    broker.hides_cancellations.store(false, Ordering::Relaxed);
    let result = rig.result(&item).await;
    assert_eq!(said(&result), ("Failed", "cancelled"), "{result}");
    assert!(server.received_requests().await.unwrap().is_empty());
}
