//! A stream that lost its newest messages and has grown again is not read on.

use std::time::Duration;

use super::broker::Scripted;
use super::world::{Mood, Plan, STREAMS, Shard, World, place};
use super::*;
use crate::intake::Halt;
use crate::shard::mailbox::Stamp;

/// Messages of no use to the orders.
fn noise(broker: &Scripted, messages: u64) {
    for _ in 0..messages {
        broker.store(STREAMS[0], "tenant.acme.aggregate.Noise.n", "{}");
    }
}

fn orders(broker: &Scripted, numbers: std::ops::Range<u64>) {
    for number in numbers {
        place(broker, &format!("o-{number}"), 1);
    }
}

/// Waits until a stream is not read on, and says why.
async fn halted(world: &World, stream: SourceStream) -> Halt {
    let halt = async {
        loop {
            if let Some(halt) = world.intake.status()[stream.index()].halted.clone() {
                return halt;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), halt)
        .await
        .expect("it is not read on")
}

async fn read_up_to(world: &World, stream: SourceStream, sequence: u64) {
    let reads = async {
        while world.intake.status()[stream.index()].read < sequence {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reads)
        .await
        .expect("it is read");
}

/// Loses the connection, and waits until the reader has noticed.
async fn cut(world: &World, stream: SourceStream) {
    world.broker.away(true);
    let noticed = async {
        while world.intake.status()[stream.index()].connected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), noticed)
        .await
        .expect("the reader breaks");
}

/// A shard that has read so many orders, and has lost the connection.
async fn fed_and_cut(count: u64) -> (Scripted, World, Shard) {
    let broker = Scripted::new();
    orders(&broker, 0..count);
    let mut world = Plan::new(1).start(broker.clone());
    let mut shard = world.shard(0, Mood::default());
    shard.knows(count).await;
    cut(&world, SourceStream::AggregateEvents).await;
    (broker, world, shard)
}

#[tokio::test]
async fn messages_of_a_stream_that_grew_again_during_a_disconnection_are_not_delivered() {
    let (broker, world, shard) = fed_and_cut(10).await;
    broker.forget_behind(STREAMS[0], 5);
    orders(&broker, 100..107);
    broker.away(false);
    let halt = halted(&world, SourceStream::AggregateEvents).await;
    assert_eq!(halt.reason, "stream.identity");
    assert!(
        halt.message
            .starts_with("message 10 of stream AGGREGATE_EVENTS was stored at"),
        "{halt:?}"
    );
    world.intake.drain().await;
    assert_eq!(shard.applied(), (1..=10).collect::<Vec<u64>>());
}

#[tokio::test]
async fn another_message_stored_in_the_same_millisecond_is_seen_too() {
    let (broker, world, _shard) = fed_and_cut(3).await;
    broker.replace(STREAMS[0], 3, "other");
    broker.away(false);
    let halt = halted(&world, SourceStream::AggregateEvents).await;
    assert!(halt.message.contains("another subject or payload"), "{halt:?}");
}

/// The last match at 100, the position at 10,000, and the stream back at 5,000.
fn roll_back(broker: &Scripted) {
    broker.forget_behind(STREAMS[0], 5_000);
    noise(broker, 999);
    orders(broker, 1_000..1_010);
    noise(broker, 12_000 - 6_009);
}

fn with_a_quiet_end() -> Scripted {
    let broker = Scripted::new();
    orders(&broker, 0..100);
    noise(&broker, 9_900);
    broker
}

#[tokio::test]
async fn a_watermark_is_held_against_the_stream_though_no_reader_broke() {
    let broker = with_a_quiet_end();
    let mut world = Plan::new(1).start(broker.clone());
    let mut shard = world.shard(0, Mood::default());
    shard.knows(10_000).await;
    broker.pause(true);
    roll_back(&broker);
    broker.pause(false);
    let halt = halted(&world, SourceStream::AggregateEvents).await;
    assert_eq!(halt.reason, "stream.identity");
    assert!(halt.message.starts_with("message 10000 of"), "{halt:?}");
    world.intake.drain().await;
    assert_eq!(shard.applied(), (1..=100).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_watermark_is_held_against_the_stream_before_reading_begins() {
    let broker = with_a_quiet_end();
    let stored = crate::ports::broker::Broker::stream_state(&broker, STREAMS[0])
        .await
        .expect("it answers");
    roll_back(&broker);
    let mut plan = Plan::new(1);
    plan.starts = vec![10_000];
    plan.stamps = vec![stored.last_time.map(Stamp::at)];
    let mut world = plan.start(broker);
    let shard = world.shard(0, Mood::default());
    let halt = halted(&world, SourceStream::AggregateEvents).await;
    assert!(halt.message.starts_with("message 10000 of"), "{halt:?}");
    assert!(shard.applied().is_empty());
}

/// Two shards, of which one is so far behind that it has a reader of its own.
#[tokio::test]
async fn a_reader_of_one_shard_does_not_read_on_either() {
    let broker = Scripted::new();
    orders(&broker, 0..300);
    let stamp = broker.stamp(STREAMS[0], 290);
    broker.forget_behind(STREAMS[0], 100);
    orders(&broker, 1_000..1_300);
    let mut plan = Plan::new(2);
    plan.settings.detach_behind = 50;
    plan.starts = vec![10, 290];
    plan.stamps = vec![None, Some(stamp)];
    let mut world = plan.start(broker);
    let shards = [world.shard(0, Mood::default()), world.shard(1, Mood::default())];
    let halt = halted(&world, SourceStream::AggregateEvents).await;
    assert!(halt.message.starts_with("message 290 of"), "{halt:?}");
    world.intake.drain().await;
    for shard in shards {
        assert!(shard.applied().is_empty(), "{:?}", shard.applied());
    }
}

#[tokio::test]
async fn results_and_commands_are_known_again_too() {
    for (stream, subject) in [
        (
            SourceStream::WorkflowEvents,
            "tenant.acme.effect_result.charge.c-1",
        ),
        (
            SourceStream::WorkflowCommands,
            "tenant.acme.workflow.order.start.o-1",
        ),
    ] {
        let name = STREAMS[stream.index()];
        let broker = Scripted::new();
        for _ in 0..10 {
            broker.store(name, subject, "not readable");
        }
        let mut world = Plan::new(1).start(broker.clone());
        let _shard = world.shard(0, Mood::default());
        read_up_to(&world, stream, 10).await;
        cut(&world, stream).await;
        broker.forget_behind(name, 5);
        for _ in 0..7 {
            broker.store(name, subject, "not readable");
        }
        broker.away(false);
        let halt = halted(&world, stream).await;
        assert_eq!(halt.reason, "stream.identity");
        assert!(halt.message.contains("message 10 of"), "{halt:?}");
    }
}

#[tokio::test]
async fn a_message_that_was_trimmed_is_not_missed() {
    let (broker, _world, mut shard) = fed_and_cut(10).await;
    orders(&broker, 10..12);
    broker.forget_before(STREAMS[0], 11);
    broker.away(false);
    shard.knows(12).await;
    assert_eq!(shard.applied(), (1..=12).collect::<Vec<u64>>());
}

/// What an operator does about a stream, once the position of the shard is moved.
async fn decide(world: &World, shard: u16, position: u64) {
    let events = SourceStream::AggregateEvents;
    world.positions[usize::from(shard)][events.index()].store(position, std::sync::atomic::Ordering::SeqCst);
    world.intake.fed().read_on(events, shard, position, None).await;
}

#[tokio::test]
async fn a_stream_with_a_gap_is_read_on_once_every_shard_has_its_place() {
    let broker = Scripted::new();
    orders(&broker, 0..6);
    let mut world = Plan::new(2).start(broker.clone());
    let mut shards = [world.shard(0, Mood::default()), world.shard(1, Mood::default())];
    for shard in &mut shards {
        shard.knows(6).await;
    }
    broker.pause(true);
    orders(&broker, 6..40);
    broker.forget_before(STREAMS[0], 20);
    broker.pause(false);
    let halt = halted(&world, SourceStream::AggregateEvents).await;
    assert_eq!(halt.reason, "stream.gap");
    let opened = broker.opened(STREAMS[0]).len();
    // A reader that did not know that it was behind has read what was left.
    decide(&world, 0, 40).await;
    orders(&broker, 40..50);
    assert!(
        world.intake.status()[0].halted.is_some(),
        "the other shard has no place yet"
    );
    assert_eq!(broker.opened(STREAMS[0]).len(), opened);
    decide(&world, 1, 40).await;
    for shard in &mut shards {
        shard.knows(50).await;
    }
    assert_eq!(world.intake.status()[0].halted, None);
    let mut applied: Vec<u64> = shards.iter().flat_map(Shard::applied).collect();
    applied.sort_unstable();
    assert!(applied.ends_with(&(41..=50).collect::<Vec<u64>>()), "{applied:?}");
}

#[tokio::test]
async fn a_stream_that_went_back_is_read_on_from_where_it_stands() {
    let (broker, world, mut shard) = fed_and_cut(10).await;
    broker.forget_behind(STREAMS[0], 5);
    orders(&broker, 100..107);
    broker.away(false);
    halted(&world, SourceStream::AggregateEvents).await;
    decide(&world, 0, 5).await;
    shard.knows(12).await;
    let expected: Vec<u64> = (1..=10).chain(6..=12).collect();
    assert_eq!(shard.applied(), expected);
}

#[tokio::test]
async fn a_shard_that_was_halted_at_the_start_is_fed_once_it_has_its_place() {
    for others in [0, 1] {
        let broker = Scripted::new();
        orders(&broker, 0..30);
        let mut plan = Plan::new(1 + others);
        plan.starts = vec![20; usize::from(1 + others)];
        plan.halted = vec![0];
        let mut world = plan.start(broker);
        let mut shards: Vec<_> = (0..=others)
            .map(|index| world.shard(index, Mood::default()))
            .collect();
        for shard in &mut shards[1..] {
            shard.knows(30).await;
        }
        decide(&world, 0, 10).await;
        shards[0].knows(30).await;
        let first = shards[0].applied();
        assert!(
            first.iter().all(|sequence| *sequence > 10) && first.len() > 1,
            "{first:?}"
        );
    }
}
