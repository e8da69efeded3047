//! Messages that a stream gives up before they were read: reading ends there, and says which.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use saga_runner::app::SystemClock;
use saga_runner::intake::Halt;
use saga_runner::kernel::duration::Millis;
use saga_runner::outbox::{self, Retention, RetentionSpec};
use saga_runner::ports::broker::{Broker, Expect, Publication, WorkflowStreams};
use saga_runner::ports::clock::Clock;
use saga_runner::tasks::Tasks;
use saga_runner::telemetry::Metrics;
use serde_json::{Value, json};

use super::{EVENTS, Plan, Shard, Stage, place, streams};
use crate::broker::nats::{api, connect};
use crate::broker::suite::eventually;
use crate::support::nats_server::NatsServer;

const PATIENCE: Duration = Duration::from_secs(10);

/// Reads a few events into a shard that takes none, lets `remove` do its work on unread ones, and lets the shard go on. What
/// reading ended with, and the events that the shard got.
async fn after(events: Value, orders: u64, remove: impl AsyncFn(&str)) -> (Halt, Vec<u64>) {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    streams(&*broker, &server.url(), events).await;
    let mut plan = Plan::new(&[0]);
    plan.mailbox = 1;
    plan.settings.buffer = 16;
    plan.settings.batch_messages = 4;
    plan.settings.delivery_inputs = 1;
    let mut stage = plan.start(broker.clone());
    place(&*broker, 0..100).await;
    stuck(&stage).await;
    place(&*broker, 100..orders).await;
    remove(&server.url()).await;
    let shard = stage.shard(0);
    let halt = stage.halted().await;
    let seen = shard.seen.borrow().clone();
    stage.intake.drain().await;
    (halt, seen.applied)
}

/// Waits until the reader stands, because the shard takes nothing.
async fn stuck(stage: &Stage) {
    let read = || stage.intake.status()[0].read;
    eventually("the mailbox is full", || async {
        let before = read();
        tokio::time::sleep(Duration::from_millis(50)).await;
        before > 0 && before == read()
    })
    .await;
}

/// The first sequence that the text of a gap names.
fn first_lost(halt: &Halt) -> u64 {
    assert_eq!(halt.reason, "stream.gap", "{halt:?}");
    let number = halt.message.split(' ').nth(1).expect("a sentence");
    number.parse().expect("a sequence")
}

/// Of what stood before the gap the shard got a part without a gap. (A reader that did not know that it was behind may go on for a
/// second; where it knew, `nothing_behind_a_gap_in_a_backlog_is_mailed`.)
fn unbroken(applied: &[u64], lost: u64) {
    let before: Vec<u64> = applied
        .iter()
        .copied()
        .filter(|sequence| *sequence < lost)
        .collect();
    let expected: Vec<u64> = (1..=before.len() as u64).collect();
    assert_eq!(before, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_the_limit_of_the_stream_drops_unread_end_reading() {
    let limits = json!({"max_msgs": 500});
    let (halt, applied) = after(limits, 3_000, async |_| {}).await;
    let lost = first_lost(&halt);
    assert!(lost < 2_501 && halt.message.contains("to 2500"), "{halt:?}");
    unbroken(&applied, lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_an_operator_purges_unread_end_reading() {
    let purge = async |url: &str| {
        let answer = api(url, &format!("STREAM.PURGE.{EVENTS}"), json!({"seq": 900})).await;
        assert_eq!(answer["success"], true, "{answer}");
    };
    let (halt, applied) = after(json!({}), 1_000, purge).await;
    let lost = first_lost(&halt);
    assert!(lost < 900 && halt.message.contains("to 899"), "{halt:?}");
    unbroken(&applied, lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_is_removed_by_itself_unread_ends_reading() {
    let remove = async |url: &str| {
        let answer = api(url, &format!("STREAM.MSG.DELETE.{EVENTS}"), json!({"seq": 500})).await;
        assert_eq!(answer["success"], true, "{answer}");
    };
    let (halt, _) = after(json!({}), 1_000, remove).await;
    assert_eq!(first_lost(&halt), 500);
}

/// An application may clean up behind the runner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_were_read_may_go() {
    let server = NatsServer::start();
    let broker = connect(&server.url()).await;
    streams(&*broker, &server.url(), json!({"max_msgs": 50})).await;
    let mut stage = Plan::new(&[0]).start(broker.clone());
    let shard = stage.shard(0);
    for round in 0..40_u64 {
        place(&*broker, round * 20..(round + 1) * 20).await;
        shard
            .until(PATIENCE, "it is fed", |seen| seen.position == (round + 1) * 20)
            .await;
    }
    let removed = api(
        &server.url(),
        &format!("STREAM.MSG.DELETE.{EVENTS}"),
        json!({"seq": 770}),
    )
    .await;
    assert_eq!(removed["success"], true, "{removed}");
    // Two looks at the stream behind that.
    stage.want_barrier(0).await;
    let barriers = shard
        .until(PATIENCE, "a barrier", |seen| seen.barriers[0] > 0)
        .await
        .barriers[0];
    stage.want_barrier(0).await;
    shard
        .until(PATIENCE, "a barrier", |seen| seen.barriers[0] > barriers)
        .await;
    assert_eq!(stage.intake.status()[0].halted, None);
    place(&*broker, 800..810).await;
    shard
        .until(PATIENCE, "it is fed", |seen| seen.position == 810)
        .await;
    stage.intake.drain().await;
}

/// Trims what the shard has read, at once.
fn trimmed(stage: &Stage, shard: &Shard, broker: &Arc<dyn Broker>) -> Retention {
    let (seen, marks) = (shard.seen.clone(), stage.marks.clone());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    Retention::start(RetentionSpec {
        broker: Arc::clone(broker),
        streams: WorkflowStreams {
            cluster: "test".to_owned(),
            commands: "WORKFLOW_COMMANDS".to_owned(),
            events: "WORKFLOW_EVENTS".to_owned(),
        },
        events: Some(EVENTS.to_owned()),
        durables: Box::new(Vec::new),
        positions: Box::new(move || {
            let unneeded = marks.unneeded([seen.borrow().position, 0, 0]);
            async move { Some(unneeded) }.boxed()
        }),
        may_trim: Box::new(|| true),
        settings: outbox::Settings {
            trim_interval: Millis(1),
            events_horizon: Millis(0),
            ..outbox::Settings::default()
        },
        tasks: Tasks::new(&Arc::new(Metrics::new()), &clock),
        clock,
    })
}

/// What no saga reacts to is jumped over, and looked for later. The runner had trimmed it by then, and halted for its own doing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trimming_by_the_runner_itself_ends_no_reading() {
    let server = NatsServer::start();
    let broker: Arc<dyn Broker> = connect(&server.url()).await;
    streams(&*broker, &server.url(), json!({})).await;
    let mut stage = Plan::new(&[0]).start(Arc::clone(&broker));
    let shard = stage.shard(0);
    let _retention = trimmed(&stage, &shard, &broker);
    let first = async || broker.stream_state(EVENTS).await.expect("there").first_sequence;
    for round in 1..=10_u64 {
        for other in 0..3 {
            let event = Publication {
                stream: EVENTS.to_owned(),
                subject: format!("tenant.acme.aggregate.Other.{other}"),
                headers: Vec::new(),
                payload: "{}".into(),
                expect: Expect::Nothing,
            };
            broker.publish(event).await.expect("stored");
        }
        place(&*broker, round..round + 1).await;
        shard
            .until(PATIENCE, "it is fed", |seen| seen.position == round * 4)
            .await;
    }
    eventually(
        "the looks have found nothing, and all but the last is trimmed",
        async || {
            assert_eq!(stage.intake.status()[0].halted, None);
            first().await >= 39
        },
    )
    .await;
    stage.intake.drain().await;
}
