//! Commands that the worker of the same process gets straight from the outbox.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use saga_runner::effects::Local;
use saga_runner::kernel::definition::EffectDefinition;
use saga_runner::kernel::definition::effect::OnAmbiguous;
use saga_runner::kernel::input::WorkOutcome;
use saga_runner::kernel::work::{WorkItem, WorkKind, WorkRef};
use saga_runner::outbox::{self, LocalFirst, Rest};
use saga_runner::ports::dispatch::Dispatch;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::work::rig::{
    RelayOptions, Rig, ShardSide, at, command_subject, definition, effect, effect_name, result_subject, until,
};

/// A result of more bytes is not recorded.
const RESULT_BYTES: usize = 2_000;

async fn upstream(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

fn options(local: &Arc<Local>, recovered: u64) -> RelayOptions {
    options_after(local, recovered, BTreeSet::new())
}

/// The same where calls had begun before the start.
fn options_after(local: &Arc<Local>, recovered: u64, begun: BTreeSet<WorkRef>) -> RelayOptions {
    RelayOptions {
        local: Some(LocalFirst {
            dispatch: Arc::clone(local) as Arc<dyn Dispatch>,
            recovered,
            maybe_called: recovered,
            begun,
            marked_since: BTreeMap::new(),
        }),
        ..RelayOptions::default()
    }
}

/// An effect of which no call is made twice.
fn once(attempts: u32) -> EffectDefinition {
    let mut once = definition(attempts);
    once.on_ambiguous = OnAmbiguous::Fail;
    once
}

fn local() -> Arc<Local> {
    Arc::new(Local::new(RESULT_BYTES))
}

async fn started(rig: &Rig, options: RelayOptions) -> ShardSide {
    let mut shard = rig.relay(Arc::clone(&rig.broker), options);
    shard.until_started().await;
    shard
}

/// The message of a command, once it is in the queue.
async fn queued(rig: &Rig, item: &WorkItem) -> serde_json::Value {
    let subject = command_subject(item);
    let stored = until(async || {
        let found = rig.broker.last_by_subject(&rig.streams.commands, &subject).await;
        found.unwrap()
    })
    .await;
    serde_json::from_slice(&stored.payload).unwrap()
}

async fn one_verdict(shard: &mut ShardSide) -> (WorkOutcome, Option<Box<WorkItem>>) {
    shard.until(|shard| !shard.verdicts.is_empty()).await;
    assert_eq!(shard.verdicts.len(), 1);
    let verdict = shard.verdicts.remove(0);
    (verdict.result.outcome, verdict.publish)
}

#[tokio::test]
async fn an_effect_is_carried_out_without_a_message_and_its_result_is_published() {
    carried_out(Rig::new().await).await;
}

#[tokio::test]
async fn an_effect_is_carried_out_without_a_message_and_its_result_is_published_on_nats() {
    carried_out(Rig::on_nats().await).await;
}

async fn carried_out(rig: Rig) {
    let server = upstream(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#)).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![definition(3)], &server.uri());
    let mut shard = started(&rig, options(&local, 0)).await;
    let item = effect(&rig, "o-1", 1);
    shard.release(vec![(at(1, 0), item.clone())]).await;
    let (outcome, publish) = one_verdict(&mut shard).await;
    let WorkOutcome::Succeeded { payload } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(&payload[..], br#"{"id":"c-1"}"#);
    assert_eq!(
        rig.messages(&rig.streams.commands).await,
        0,
        "no message was needed"
    );
    let sent = server.received_requests().await.unwrap();
    assert_eq!(sent.len(), 1);
    assert_eq!(
        sent[0].headers["idempotency-key"].to_str().unwrap(),
        item.idempotency_key
    );

    // The shard has applied it: the row is gone, and the result is one of its own.
    let publish = publish.expect("a message");
    assert!(matches!(publish.kind, WorkKind::Result { .. }));
    shard.complete(vec![at(1, 0)]).await;
    let created = publish.created;
    shard.release(vec![(at(2, 0), *publish)]).await;
    shard.until(|shard| shard.delivered == [at(2, 0)]).await;
    let subject = result_subject(&item);
    let stored = rig
        .broker
        .last_by_subject(&rig.streams.events, &subject)
        .await
        .unwrap();
    let stored = stored.expect("the result is for everyone");
    assert!(
        stored
            .headers
            .contains(&("saga-runner-applied".to_owned(), "true".to_owned()))
    );
    let applied_at = ("saga-runner-applied-ms".to_owned(), created.0.to_string());
    assert!(stored.headers.contains(&applied_at), "{:?}", stored.headers);
    let result: serde_json::Value = serde_json::from_slice(&stored.payload).unwrap();
    assert_eq!(result["result_type"], "Succeeded");
    assert_eq!(result["payload"]["id"], "c-1");
    assert_eq!(result["metadata"]["calls"], 1);
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_failed_local_attempt_continues_in_the_queue_with_the_next_attempt_number() {
    let rig = Rig::new().await;
    let server = MockServer::start().await;
    let unwell = Mock::given(any()).respond_with(ResponseTemplate::new(503));
    unwell.up_to_n_times(1).mount(&server).await;
    let well = ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#);
    Mock::given(any()).respond_with(well).mount(&server).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![definition(3)], &server.uri());
    let mut shard = started(&rig, options(&local, 0)).await;
    let item = effect(&rig, "o-1", 1);
    shard.release(vec![(at(1, 0), item.clone())]).await;
    let command = queued(&rig, &item).await;
    assert_eq!(command["progress"]["calls"], 1, "{command}");
    assert_eq!(command["progress"]["error"]["class"], "transient", "{command}");
    let result = rig.result(&item).await;
    assert_eq!(result["result_type"], "Succeeded");
    assert_eq!(result["metadata"]["calls"], 2, "the first call counts");
    assert!(shard.verdicts.is_empty(), "the result comes by its stream");
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn refusals_and_results_that_are_too_large_are_told_as_such() {
    let rig = Rig::new().await;
    let refusing = upstream(ResponseTemplate::new(422).set_body_string("no")).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![definition(3)], &refusing.uri());
    let mut shard = started(&rig, options(&local, 0)).await;
    shard.release(vec![(at(1, 0), effect(&rig, "o-1", 1))]).await;
    let (outcome, _) = one_verdict(&mut shard).await;
    assert!(
        matches!(&outcome, WorkOutcome::Failed { class, .. } if class == "permanent"),
        "{outcome:?}"
    );
    worker.drain(Duration::from_secs(1)).await;

    let long = serde_json::json!({"id": "c".repeat(RESULT_BYTES)}).to_string();
    let talkative = upstream(ResponseTemplate::new(200).set_body_string(long)).await;
    let worker = rig.local_worker(&local, vec![definition(3)], &talkative.uri());
    shard.release(vec![(at(2, 0), effect(&rig, "o-2", 2))]).await;
    let (outcome, publish) = one_verdict(&mut shard).await;
    assert!(
        matches!(&outcome, WorkOutcome::TimedOut { message, .. } if message.contains("cannot be recorded")),
        "it happened, and nobody can know how: {outcome:?}"
    );
    assert!(publish.is_some());
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn work_of_earlier_lives_goes_to_the_queue_and_tells_whether_it_may_have_been_done() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#)).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![definition(3)], &server.uri());
    let (old, later) = (effect(&rig, "o-1", 1), effect(&rig, "o-2", 2));
    let mut options = RelayOptions {
        outbox: vec![(at(7, 3), old.clone()), (at(8, 1), later.clone())],
        ..options(&local, 9)
    };
    // The life behind it ended without a call on its way.
    let first = options.local.as_mut().expect("set");
    first.maybe_called = 7;
    let mut shard = started(&rig, options).await;
    let command = queued(&rig, &old).await;
    assert_eq!(command["progress"]["outcome_unknown"], true, "{command}");
    let command = queued(&rig, &later).await;
    assert_ne!(command["progress"]["outcome_unknown"], true, "{command}");
    assert_eq!(rig.result(&old).await["result_type"], "Succeeded");
    assert_eq!(rig.result(&later).await["result_type"], "Succeeded");

    shard.release(vec![(at(10, 0), effect(&rig, "o-3", 3))]).await;
    let (outcome, _) = one_verdict(&mut shard).await;
    assert!(
        matches!(outcome, WorkOutcome::Succeeded { .. }),
        "new work stays here"
    );
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_command_without_local_room_goes_to_the_queue() {
    let rig = Rig::new().await;
    let slow = ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#);
    let server = upstream(slow.set_delay(Duration::from_millis(500))).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![definition(3)], &server.uri());
    let options = RelayOptions {
        settings: outbox::Settings {
            local_in_flight: 2,
            ..outbox::Settings::default()
        },
        ..options(&local, 0)
    };
    let mut shard = started(&rig, options).await;
    let items: Vec<(WorkRef, WorkItem)> = (1_u16..=4)
        .map(|n| (at(1, n), effect(&rig, &format!("o-{n}"), u128::from(n))))
        .collect();
    shard.release(items.clone()).await;
    shard.until(|shard| shard.verdicts.len() == 2).await;
    for (_, item) in &items[2..] {
        let command = queued(&rig, item).await;
        assert!(
            command.get("progress").is_none(),
            "nothing was done yet: {command}"
        );
        assert_eq!(rig.result(item).await["result_type"], "Succeeded");
    }
    assert_eq!(rig.messages(&rig.streams.commands).await, 2);
    worker.drain(Duration::from_secs(1)).await;

    // A worker that drains makes no new call, and the next one makes those of the effects that it has.
    let after = effect(&rig, "o-9", 9);
    shard.release(vec![(at(2, 0), after.clone())]).await;
    assert!(queued(&rig, &after).await.get("progress").is_none());
}

#[tokio::test]
async fn a_rate_counts_for_all_workers_so_its_effect_takes_the_queue() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#)).await;
    let local = local();
    let mut paced = definition(1);
    paced.limits.rate = saga_runner::kernel::rate::Rate::parse("100/s");
    let worker = rig.local_worker(&local, vec![paced], &server.uri());
    let mut shard = started(&rig, options(&local, 0)).await;
    let item = effect(&rig, "o-1", 1);
    shard.release(vec![(at(1, 0), item.clone())]).await;
    queued(&rig, &item).await;
    assert_eq!(rig.result(&item).await["result_type"], "Succeeded");
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn where_no_call_is_made_twice_the_shard_commits_before_it_that_it_begins() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#)).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![once(3)], &server.uri());
    let mut shard = started(&rig, options(&local, 0)).await;
    shard.release(vec![(at(1, 0), effect(&rig, "o-1", 1))]).await;
    let (outcome, _) = one_verdict(&mut shard).await;
    assert!(matches!(outcome, WorkOutcome::Succeeded { .. }), "{outcome:?}");
    assert_eq!(shard.begun, [at(1, 0)]);
    assert_eq!(shard.not_called, [], "its outcome deletes the row");

    // A row that was completed meanwhile needs no call.
    let gone = effect(&rig, "o-2", 2);
    shard.release(vec![(at(2, 0), gone)]).await;
    shard.outbox.remove(&at(2, 0));
    shard.until_floor(at(2, 0)).await;
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
    assert_eq!(rig.messages(&rig.streams.commands).await, 0);
    worker.drain(Duration::from_secs(1)).await;

    // Others pay nothing for it.
    let worker = rig.local_worker(&local, vec![definition(3)], &server.uri());
    shard.release(vec![(at(3, 0), effect(&rig, "o-3", 3))]).await;
    one_verdict(&mut shard).await;
    assert_eq!(shard.begun, [at(1, 0)]);
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_local_call_that_did_nothing_is_withdrawn_and_continues_in_the_queue() {
    let rig = Rig::new().await;
    let server = MockServer::start().await;
    let unwell = Mock::given(any()).respond_with(ResponseTemplate::new(503));
    unwell.up_to_n_times(1).mount(&server).await;
    let well = ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#);
    Mock::given(any()).respond_with(well).mount(&server).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![once(3)], &server.uri());
    let mut shard = started(&rig, options(&local, 0)).await;
    let item = effect(&rig, "o-1", 1);
    shard.release(vec![(at(1, 0), item.clone())]).await;
    shard.until(|shard| shard.not_called == [at(1, 0)]).await;
    let result = rig.result(&item).await;
    assert_eq!(result["result_type"], "Succeeded");
    assert_eq!(result["metadata"]["calls"], 2);
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn of_an_earlier_life_only_calls_that_had_begun_have_an_unknown_outcome() {
    earlier_life(Rig::new().await).await;
}

#[tokio::test]
async fn of_an_earlier_life_only_calls_that_had_begun_have_an_unknown_outcome_on_nats() {
    earlier_life(Rig::on_nats().await).await;
}

async fn earlier_life(rig: Rig) {
    let server = upstream(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#)).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![once(3)], &server.uri());
    let (begun, waited) = (effect(&rig, "o-1", 1), effect(&rig, "o-2", 2));
    let mut options = RelayOptions {
        outbox: vec![(at(7, 1), begun.clone()), (at(7, 2), waited.clone())],
        ..options_after(&local, 7, BTreeSet::from([at(7, 1)]))
    };
    let first = options.local.as_mut().expect("set");
    first.marked_since = BTreeMap::from([(effect_name(), 6)]);
    let start = Instant::now();
    let _shard = started(&rig, options).await;
    let result = rig.result(&begun).await;
    assert_eq!(
        (&result["result_type"], &result["payload"]["class"]),
        (&"TimedOut".into(), &"ambiguous".into())
    );
    let (took, timeout) = (start.elapsed(), Duration::from_millis(once(3).timeout_ms));
    assert!(took >= timeout, "it may have been under way after {took:?}");
    assert_eq!(rig.result(&waited).await["result_type"], "Succeeded");
    let calls = server.received_requests().await.unwrap();
    assert_eq!(calls.len(), 1, "of the one that had not begun");
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn work_from_before_the_marks_of_an_effect_that_now_forbids_second_calls_may_have_been_called() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#)).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![once(3)], &server.uri());
    let (before, since) = (effect(&rig, "o-1", 1), effect(&rig, "o-2", 2));
    let mut options = RelayOptions {
        outbox: vec![(at(6, 1), before.clone()), (at(7, 1), since.clone())],
        ..options(&local, 7)
    };
    let first = options.local.as_mut().expect("set");
    first.marked_since = BTreeMap::from([(effect_name(), 6)]);
    let _shard = started(&rig, options).await;
    assert_eq!(rig.result(&since).await["result_type"], "Succeeded");
    assert_eq!(rig.result(&before).await["payload"]["class"], "ambiguous");
    let calls = server.received_requests().await.unwrap();
    assert_eq!(calls.len(), 1, "of the one that would have a mark");
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn an_effect_that_began_its_life_with_marks_keeps_them_when_its_definition_allows_second_calls() {
    let rig = Rig::new().await;
    let server = upstream(ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#)).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![definition(3)], &server.uri());
    let mut options = options(&local, 0);
    let first = options.local.as_mut().expect("set");
    first.marked_since = BTreeMap::from([(effect_name(), 0)]);
    let mut shard = started(&rig, options).await;
    shard.release(vec![(at(1, 0), effect(&rig, "o-1", 1))]).await;
    let (outcome, _) = one_verdict(&mut shard).await;
    assert!(matches!(outcome, WorkOutcome::Succeeded { .. }), "{outcome:?}");
    assert_eq!(shard.begun, [at(1, 0)]);
    worker.drain(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_drain_waits_for_the_calls_that_are_made_here() {
    let rig = Rig::new().await;
    let slow = ResponseTemplate::new(200).set_body_string(r#"{"id":"c-1"}"#);
    let server = upstream(slow.set_delay(Duration::from_millis(700))).await;
    let local = local();
    let worker = rig.local_worker(&local, vec![definition(3)], &server.uri());
    let mut shard = started(&rig, options(&local, 0)).await;
    shard.release(vec![(at(1, 0), effect(&rig, "o-1", 1))]).await;
    until(async || (!server.received_requests().await?.is_empty()).then_some(())).await;
    let called = shard.relayed.called();
    assert_eq!(
        called,
        BTreeSet::from([at(1, 0)]),
        "a shard that ends now marks it"
    );
    worker.drain(Duration::from_secs(20)).await;
    shard.come_to_rest(Rest::NoCalls).await;
    assert_eq!(shard.relayed.called(), called, "until it is completed");
    let (outcome, _) = one_verdict(&mut shard).await;
    assert!(matches!(outcome, WorkOutcome::Succeeded { .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_call_that_is_made_here_and_outlasts_the_drain_is_cut_off_and_its_command_says_so() {
    let rig = Rig::new().await;
    let stuck = ResponseTemplate::new(200).set_delay(Duration::from_mins(1));
    let server = upstream(stuck).await;
    let local = local();
    let mut patient = definition(3);
    patient.timeout_ms = 120_000;
    let worker = rig.local_worker(&local, vec![patient], &server.uri());
    let mut shard = started(&rig, options(&local, 0)).await;
    let item = effect(&rig, "o-2", 2);
    shard.release(vec![(at(2, 0), item.clone())]).await;
    until(async || (!server.received_requests().await?.is_empty()).then_some(())).await;
    worker.drain(Duration::from_millis(50)).await;
    shard.come_to_rest(Rest::Nothing).await;
    let command = queued(&rig, &item).await;
    assert_eq!(command["progress"]["outcome_unknown"], true, "{command}");
    // What is known of it is told with its command.
    until(async || shard.relayed.called().is_empty().then_some(())).await;
}
