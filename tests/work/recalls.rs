//! Commands that are taken back before, between and during their calls.

use std::sync::Arc;
use std::time::Duration;

use saga_runner::kernel::definition::effect::OnRecall;
use saga_runner::kernel::work::{WorkItem, WorkKind};
use serde_json::Value;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::rig::{self, RelayOptions, Rig, at, definition, effect, effect_name, enqueue, until};

/// The outbox row that takes `item` back, handed to the broker by a relay.
async fn take_back(rig: &Rig, item: &WorkItem) {
    let kind = WorkKind::Recall {
        effect: effect_name(),
        command: item.command_id,
    };
    let mut row = rig::item(rig, "o-1", 900, kind);
    "steps.charge.recall".clone_into(&mut row.path);
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    shard.release(vec![(at(9, 0), row)]).await;
    shard.until(|shard| shard.delivered.contains(&at(9, 0))).await;
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

fn recalled(rig: &Rig) -> u64 {
    rig.metrics.effects_recalled.with_label_values(&["charge"]).get()
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
    assert_eq!(said(&result), ("Failed", "recalled"), "{result}");
    assert_eq!(rig.result(&first).await["result_type"], "Succeeded");
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
    assert_eq!(recalled(&rig), 1);
}

#[tokio::test]
async fn a_worker_that_comes_later_knows_what_was_taken_back() {
    comes_later(Rig::new().await).await;
}

#[tokio::test]
async fn a_worker_that_comes_later_knows_what_was_taken_back_on_nats() {
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
    assert_eq!(said(&result), ("Failed", "recalled"), "{result}");
    assert_eq!(rig.result(&kept).await["result_type"], "Succeeded");
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}

#[tokio::test]
async fn no_attempt_follows_a_recall() {
    let rig = Rig::new().await;
    let item = effect(&rig, "o-1", 1);
    let slow = ResponseTemplate::new(503).set_delay(Duration::from_secs(4));
    let server = upstream(slow).await;
    let _worker = rig.worker(definition(20), &server.uri());
    enqueue(&rig, &item).await;
    called(&server, 1).await;
    take_back(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(said(&result), ("Failed", "recalled"), "{result}");
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
    hasty.on_recall = OnRecall::Interrupt;
    let _worker = rig.worker(hasty, &server.uri());
    enqueue(&rig, &item).await;
    called(&server, 1).await;
    take_back(&rig, &item).await;
    let result = rig.result(&item).await;
    assert_eq!(said(&result), ("TimedOut", "recalled"), "{result}");
}
