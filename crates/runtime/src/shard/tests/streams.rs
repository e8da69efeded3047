//! Positions: nothing twice, nothing skipped, nothing in part.

use serde_json::json;

use super::world::{CONTROLS, EVENTS, RESULTS, World, added, list, named, opened};
use crate::kernel::ids::TimeMs;
use crate::shard::mailbox::{Arrival, Delivery, Mail, Notice, Stamp};
use crate::shard::{ShardState, Standing};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_repetition_is_dropped_and_a_gap_is_refused_until_it_is_filled() {
    let world = World::new();
    let mut shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    shard.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    shard.deliver(EVENTS, 4, vec![added("a", 4, 3)]).await;
    shard.deliver(EVENTS, 5, vec![added("a", 5, 4)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1]));
    assert_eq!(shard.position(EVENTS), 2);
    let gap = Notice::Gap {
        shard: 3,
        stream: EVENTS,
        position: 2,
    };
    assert_eq!(shard.noticed.try_recv(), Ok(gap));
    assert!(shard.noticed.try_recv().is_err(), "one notice for one gap");
    shard
        .deliver_after(EVENTS, 2, 4, vec![added("a", 3, 2), added("a", 4, 3)])
        .await;
    shard.deliver(EVENTS, 5, vec![added("a", 5, 4)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1, 2, 3, 4]));
    assert_eq!(shard.position(EVENTS), 5);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_delivery_is_never_split_over_commits() {
    let mut world = World::new();
    world.settings.batch_inputs = 2;
    let mut shard = world.start();
    shard.until_idle().await;
    let before = shard.handle.status.commits();
    let inputs = vec![
        opened("a", 1),
        opened("b", 1),
        added("a", 1, 1),
        added("b", 1, 2),
        added("a", 1, 3),
    ];
    shard.deliver(EVENTS, 1, inputs).await;
    shard.until_idle().await;
    assert_eq!(shard.handle.status.commits() - before, 1);
    // All inputs of one message have one position, and each is an input of its own.
    assert_eq!(shard.position(EVENTS), 1);
    assert_eq!(shard.items("b"), json!([2]));
    assert!(shard.drain_released().is_empty());
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn two_inputs_of_one_instance_in_one_commit_are_applied_in_order() {
    let world = World::new();
    let shard = world.start();
    let inputs = vec![
        opened("a", 1),
        added("a", 2, 1),
        added("a", 3, 2),
        named("a", "List.Closed", 4),
        added("a", 5, 3),
    ];
    shard.deliver_after(EVENTS, 0, 5, inputs).await;
    shard.until_idle().await;
    let ended = shard.ended(&list("a")).expect("it has ended");
    assert_eq!(ended.version, 4);
    assert_eq!(shard.items("a"), json!([1, 2]));
    let kinds: Vec<_> = shard
        .history(&list("a"))
        .into_iter()
        .map(|row| row.kind)
        .collect();
    assert_eq!(
        kinds,
        [
            "event List.Closed",
            "event List.Added",
            "event List.Added",
            "event List.Opened"
        ]
    );
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_shard_goes_on_where_it_stopped() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    shard.deliver(RESULTS, 1, Vec::new()).await;
    shard.stop().await;
    let shard = world.start();
    assert_eq!(
        [EVENTS, RESULTS, CONTROLS].map(|stream| shard.position(stream)),
        [2, 1, 0]
    );
    shard.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    shard.deliver(EVENTS, 3, vec![added("a", 3, 2)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1, 2]));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_watermark_is_shown_once_it_is_durable_and_no_later_than_promised() {
    let world = World::new();
    let shard = world.start();
    shard.until_idle().await;
    let before = shard.handle.status.commits();
    shard.deliver(EVENTS, 7, Vec::new()).await;
    shard.deliver_after(EVENTS, 0, 7, Vec::new()).await;
    let wait = async {
        while shard.position(EVENTS) < 7 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), wait)
        .await
        .expect("it is committed though nothing else comes");
    assert_eq!(shard.handle.status.commits() - before, 1);
    // Stopping stores no positions: what was shown must have been there before.
    let position = shard.position(EVENTS);
    shard.stop().await;
    assert_eq!(world.start().position(EVENTS), position);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn another_stream_under_the_same_name_a_rollback_and_lost_messages_halt() {
    let mut world = World::new();
    let shard = world.start();
    let stamp = Stamp {
        time: TimeMs(5),
        content: Some(7),
    };
    let delivery = Delivery {
        stream: EVENTS,
        after: 0,
        sequence: 50,
        stamp: Some(stamp),
        routed_by: 0,
        inputs: vec![Arrival::Input(opened("a", 50))],
    };
    shard.mail(Mail::Delivery(delivery)).await;
    shard.stop().await;
    let halts = async |world: &World, expected: &str| {
        let shard = world.start();
        let state = shard
            .until(|state| matches!(state, ShardState::Halted { .. }))
            .await;
        let ShardState::Halted { reason, .. } = state else {
            unreachable!("waited for it");
        };
        assert_eq!(reason, expected);
        shard.deliver_after(EVENTS, 50, 51, vec![added("a", 51, 1)]).await;
        shard.stop().await;
    };
    let good = world.streams.clone();
    world.streams[0].identity.created_ns = 2;
    halts(&world, "stream.identity").await;
    world.streams = good.clone();
    world.streams[0].identity.name = "OTHER".to_owned();
    halts(&world, "stream.identity").await;
    world.streams = good.clone();
    world.streams[0].last_sequence = 49;
    halts(&world, "stream.identity").await;
    world.streams = good.clone();
    world.streams[0].first_sequence = 52;
    halts(&world, "stream.gap").await;
    world.streams = good;
    let standing = |time, content| {
        let stamp = Stamp { time, content };
        [Some(Standing { sequence: 50, stamp }), None, None]
    };
    for other in [standing(TimeMs(6), Some(7)), standing(TimeMs(5), Some(8))] {
        world.standing = other;
        halts(&world, "stream.identity").await;
    }
    world.standing = standing(TimeMs(5), Some(7));
    world.streams[0].first_sequence = 51;
    let shard = world.start();
    shard.deliver_after(EVENTS, 50, 51, vec![added("a", 51, 1)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1]));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_late_duplicate_of_a_start_is_ignored_until_its_tombstone_expires() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![named("a", "List.Closed", 2)]).await;
    shard.deliver(EVENTS, 3, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    assert!(shard.record(&list("a")).is_none());
    let mut late = opened("a", 4);
    late.time = late.time.plus_ms(world.storage.keep_ended.as_i64() + 60_000);
    shard.deliver(EVENTS, 4, vec![late]).await;
    shard.until_idle().await;
    let record = shard.record(&list("a")).expect("the key is free again");
    assert_eq!(record.generation, 2);
    shard.stop().await;
}
