use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt as _;
use saga_runner::effects::{self, source};
use saga_runner::kernel::duration::Millis;
use saga_runner::kernel::input::SourceStream;
use saga_runner::outbox::retention::Positions;
use saga_runner::outbox::{self, Retention, RetentionSpec};
use saga_runner::ports::broker::{Expect, Publication, Queue, StreamSpec};

use crate::work::grouping::{commands, named, theirs};
use crate::work::rig::{self, RelayOptions, Rig, at, effect, until};

#[tokio::test]
async fn a_command_goes_only_when_it_is_answered_for_and_read() {
    goes_when_answered_for_and_read(Rig::new().await, "{}").await;
}

#[tokio::test]
async fn trimming_waits_for_a_category_that_is_pushed() {
    let consumers = "{by: category, delivery: push, categories: {pay: [charge]}}";
    goes_when_answered_for_and_read(Rig::on_nats().await, consumers).await;
}

#[tokio::test]
async fn trimming_waits_for_a_consumer_that_is_bound() {
    let rig = Rig::on_nats().await;
    commands(&rig).await.create_consumer(theirs()).await.unwrap();
    goes_when_answered_for_and_read(rig, "{by: effect, bind: {charge: theirs}}").await;
}

/// The positions of shards that have read nothing but this stream.
fn of(stream: SourceStream, read: Arc<AtomicU64>) -> Positions {
    Box::new(move || {
        let mut lowest = [0; 3];
        lowest[stream.index()] = read.load(Ordering::Acquire);
        async move { Some(lowest) }.boxed()
    })
}

/// The queue of the effect `charge`, and its name.
async fn joined(rig: &Rig, consumers: &str) -> (String, Box<dyn Queue>) {
    let plan = rig::plan(consumers, "test", &[Arc::new(named("charge", 4))]);
    let settings = effects::Settings::default();
    let spec = source::queue_spec(&plan[0], &rig.streams.commands, &settings, 4);
    (plan[0].name.clone(), rig.broker.queue(spec).await.unwrap())
}

/// Trims the streams of commands and results, however young their messages are.
fn trimming(rig: &Rig, durables: Vec<String>, positions: Positions) -> Retention {
    Retention::start(RetentionSpec {
        broker: Arc::clone(&rig.broker),
        streams: rig.streams.clone(),
        events: None,
        durables: Box::new(move || durables.clone()),
        positions,
        may_trim: Box::new(|| true),
        settings: outbox::Settings {
            trim_interval: Millis(5),
            gate_horizon: Millis(0),
            ..outbox::Settings::default()
        },
        clock: Arc::clone(&rig.clock) as _,
        tasks: rig.tasks(),
    })
}

async fn goes_when_answered_for_and_read(rig: Rig, consumers: &str) {
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    let rows = (1..=4)
        .map(|n| (at(n, 0), effect(&rig, "o-1", u128::from(n))))
        .collect();
    shard.release(rows).await;
    shard.until_floor(at(4, 0)).await;
    let (durable, mut queue) = joined(&rig, consumers).await;
    let position = Arc::new(AtomicU64::new(2));
    let read = Arc::clone(&position);
    let _retention = trimming(&rig, vec![durable], of(SourceStream::WorkflowCommands, read));
    let first = || async {
        rig.broker
            .stream_state(&rig.streams.commands)
            .await
            .unwrap()
            .first_sequence
    };
    let mut acknowledge = async || queue.next().await.unwrap().receipt.ack().await.unwrap();
    acknowledge().await;
    until(async || (first().await == 2).then_some(())).await;
    acknowledge().await;
    acknowledge().await;
    position.store(3, Ordering::Release);
    // Three are answered for and read; the last of them stays, by which the stream is known again.
    until(async || (first().await == 3).then_some(())).await;
    position.store(5, Ordering::Release);
    // All are read, three are answered for.
    until(async || (first().await == 4).then_some(())).await;
    acknowledge().await;
    until(async || (rig.messages(&rig.streams.commands).await == 0).then_some(())).await;
}

#[tokio::test]
async fn domain_events_of_the_embedded_broker_go_once_they_are_read_and_too_old_or_too_many() {
    let rig = Rig::new().await;
    let name = "AGGREGATE_EVENTS";
    let spec = StreamSpec {
        name: name.to_owned(),
        subjects: vec!["tenant.*.aggregate.>".to_owned()],
        replicas: 1,
        message_bytes_max: 4_096,
        foreign: true,
    };
    rig.broker.ensure_stream(&spec).await.unwrap();
    let store = async |events: u64| {
        for _ in 0..events {
            let event = Publication {
                stream: name.to_owned(),
                subject: "tenant.acme.aggregate.Order.o-1".to_owned(),
                headers: Vec::new(),
                payload: vec![7; 1_000].into(),
                expect: Expect::Nothing,
            };
            rig.broker.publish(event).await.unwrap();
        }
    };
    let first = || async { rig.broker.stream_state(name).await.unwrap().first_sequence };
    store(100).await;
    let position = Arc::new(AtomicU64::new(30));
    let start = |horizon: Millis, bytes: u64| {
        let read = Arc::clone(&position);
        Retention::start(RetentionSpec {
            broker: Arc::clone(&rig.broker),
            streams: rig.streams.clone(),
            events: Some(name.to_owned()),
            durables: Box::new(Vec::new),
            positions: of(SourceStream::AggregateEvents, read),
            may_trim: Box::new(|| true),
            settings: outbox::Settings {
                trim_interval: Millis(10),
                events_horizon: horizon,
                events_bytes: bytes,
                ..outbox::Settings::default()
            },
            clock: Arc::clone(&rig.clock) as _,
            tasks: rig.tasks(),
        })
    };
    let by_bytes = start(Millis(3_600_000), 50_000);
    // Half of it is too much; the last one that is read stays.
    until(async || (first().await == 30).then_some(())).await;
    position.store(100, Ordering::Release);
    let bytes = || async { rig.broker.stream_state(name).await.unwrap().bytes };
    until(async || (bytes().await <= 50_000).then_some(())).await;
    assert!(bytes().await > 40_000, "no more than that");
    drop(by_bytes);
    let _by_age = start(Millis(0), u64::MAX);
    until(async || (first().await == 100).then_some(())).await;
}

/// A shard that is not open anywhere, and has no record, may need everything.
#[tokio::test]
async fn nothing_goes_while_it_is_not_known_what_a_shard_has_read() {
    let rig = Rig::new().await;
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    let rows = (1..=2).map(|n| (at(n, 0), effect(&rig, "o-1", u128::from(n))));
    shard.release(rows.collect()).await;
    shard.until_floor(at(2, 0)).await;
    let asked = Arc::new(AtomicU64::new(0));
    let is_known = Arc::new(AtomicU64::new(0));
    let (count, known) = (Arc::clone(&asked), Arc::clone(&is_known));
    let positions = Box::new(move || {
        count.fetch_add(1, Ordering::AcqRel);
        let positions = (known.load(Ordering::Acquire) > 0).then_some([9; 3]);
        async move { positions }.boxed()
    });
    let _retention = trimming(&rig, Vec::new(), positions);
    until(async || (asked.load(Ordering::Acquire) > 8).then_some(())).await;
    assert_eq!(rig.messages(&rig.streams.commands).await, 2);
    is_known.store(1, Ordering::Release);
    until(async || (rig.messages(&rig.streams.commands).await == 0).then_some(())).await;
}

/// A worker died between result and acknowledgement, and its fellows were away for as long as the horizon: the command came
/// again, its result was trimmed, and the call was made a second time.
#[tokio::test]
async fn a_result_stays_until_its_command_is_acknowledged_and_a_command_until_its_result_is_read() {
    let rig = Rig::new().await;
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    let rows = (1..=2).map(|n| (at(n, 0), effect(&rig, "o-1", u128::from(n))));
    shard.release(rows.collect()).await;
    shard.until_floor(at(2, 0)).await;
    let (durable, mut queue) = joined(&rig, "{}").await;
    for number in 1..=2 {
        let result = Publication {
            stream: rig.streams.events.clone(),
            subject: format!("tenant.acme.effect_result.charge.{number}"),
            headers: Vec::new(),
            payload: "{}".into(),
            expect: Expect::Nothing,
        };
        rig.broker.publish(result).await.unwrap();
    }
    let (asked, results_read) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
    let (count, read) = (Arc::clone(&asked), Arc::clone(&results_read));
    let positions = Box::new(move || {
        count.fetch_add(1, Ordering::AcqRel);
        let mut positions = [9; 3];
        positions[SourceStream::WorkflowEvents.index()] = read.load(Ordering::Acquire);
        async move { Some(positions) }.boxed()
    });
    let _retention = trimming(&rig, vec![durable], positions);
    let rounds = async || {
        let enough = asked.load(Ordering::Acquire) + 4;
        until(async || (asked.load(Ordering::Acquire) >= enough).then_some(())).await;
        [
            rig.messages(&rig.streams.commands).await,
            rig.messages(&rig.streams.events).await,
        ]
    };
    let mut acknowledge = async || queue.next().await.unwrap().receipt.ack().await.unwrap();
    acknowledge().await;
    assert_eq!(
        rounds().await,
        [2, 2],
        "one result is not read, one command not acknowledged"
    );
    results_read.store(3, Ordering::Release);
    until(async || (rig.messages(&rig.streams.commands).await == 1).then_some(())).await;
    assert_eq!(rounds().await, [1, 2], "the second command may come again");
    acknowledge().await;
    until(async || (rounds().await == [0, 0]).then_some(())).await;
}
