//! An operator decides from where on a stream is read.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::oneshot;

use super::world::{EVENTS, RESULTS, Shard, World, added, opened};
use crate::kernel::ids::TimeMs;
use crate::kernel::input::SourceStream;
use crate::shard::ShardState;
use crate::shard::mailbox::{HaltRow, Mail, Refused, Reposition};
use crate::storage::rows::{AcceptedRow, PositionRow};

pub async fn reposition(
    world: &World,
    shard: &Shard,
    stream: SourceStream,
    expected: u64,
    to: u64,
) -> Result<(), Refused> {
    let (reply, answer) = oneshot::channel();
    let identity = &world.streams[stream.index()].identity;
    let order = Reposition {
        stream,
        expected,
        to: PositionRow {
            stream: identity.clone(),
            sequence: to,
            stamp: None,
        },
        accepted: AcceptedRow {
            stream,
            time: TimeMs(1),
            from: expected,
            to,
            lost: None,
            reason: "restored".to_owned(),
        },
        reply,
    };
    shard.mail(Mail::Reposition(Box::new(order))).await;
    answer.await.expect("the shard answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_halted_shard_goes_on_once_each_of_its_streams_is_decided() {
    let mut world = World::new();
    let shard = world.start();
    shard.deliver_after(EVENTS, 0, 50, vec![opened("a", 50)]).await;
    shard.deliver_after(RESULTS, 0, 20, Vec::new()).await;
    shard.stop().await;
    world.streams[EVENTS.index()].last_sequence = 40;
    world.streams[RESULTS.index()].identity.created_ns = 2;
    let shard = world.start();
    let halted = |state: &ShardState| matches!(state, ShardState::Halted { .. });
    shard.until(halted).await;
    let moved = reposition(&world, &shard, EVENTS, 49, 30).await;
    assert!(matches!(moved, Err(Refused::Conflict(_))), "{moved:?}");
    assert_eq!(reposition(&world, &shard, EVENTS, 50, 30).await, Ok(()));
    assert!(
        halted(&shard.handle.status.state()),
        "the results are another stream"
    );
    assert_eq!(reposition(&world, &shard, RESULTS, 20, 0).await, Ok(()));
    shard.until(|state| *state == ShardState::Running).await;
    assert_eq!((shard.position(EVENTS), shard.position(RESULTS)), (30, 0));
    shard.deliver_after(EVENTS, 30, 31, vec![added("a", 31, 1)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1]));
    let accepted = shard.handle.reader.accepted().expect("readable");
    assert_eq!(accepted.len(), 2);
    assert_eq!((accepted[0].from, accepted[0].to), (50, 30));
    shard.stop().await;
    let shard = world.start();
    shard.until_idle().await;
    assert_eq!((shard.position(EVENTS), shard.position(RESULTS)), (31, 0));
    assert_eq!(shard.handle.status.state(), ShardState::Running);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_shard_that_is_halted_during_a_reload_takes_the_definitions_when_it_goes_on() {
    let mut world = World::new();
    let shard = world.start();
    shard.deliver_after(EVENTS, 0, 50, vec![opened("a", 50)]).await;
    shard.stop().await;
    world.streams[EVENTS.index()].last_sequence = 40;
    let shard = world.start();
    shard
        .until(|state| matches!(state, ShardState::Halted { .. }))
        .await;
    let (reply, answer) = oneshot::channel();
    let definitions = super::added::with_audit();
    shard
        .mail(Mail::Activate {
            definitions: Arc::clone(&definitions),
            revision: 2,
            routed_by: 2,
            reply,
        })
        .await;
    let answer = answer.await.expect("the shard answers");
    let Err(Refused::Unavailable { message, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert!(message.contains("when it goes on"), "{message}");
    assert!(shard.handle.status.is_outdated());
    assert_eq!(reposition(&world, &shard, EVENTS, 50, 30).await, Ok(()));
    shard.until(|state| *state == ShardState::Running).await;
    shard.until_idle().await;
    let active = shard.handle.reader.active_definitions().expect("readable");
    assert_eq!(active.revision, 2);
    assert!(active.sagas.contains_key("audit"), "{active:?}");
    assert!(!shard.handle.status.is_outdated());
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_shard_at_work_moves_behind_what_was_mailed_before() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    let moved = reposition(&world, &shard, EVENTS, 0, 7).await;
    assert!(matches!(moved, Err(Refused::Conflict(_))), "{moved:?}");
    assert_eq!(reposition(&world, &shard, EVENTS, 1, 7).await, Ok(()));
    shard.deliver_after(EVENTS, 7, 8, vec![added("a", 8, 1)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1]));
    assert_eq!(shard.position(EVENTS), 8);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_gap_that_a_reader_found_halts_the_shard_after_a_restart_until_an_operator_decides() {
    let world = World::new();
    let shard = world.start();
    shard.deliver_after(EVENTS, 0, 50, vec![opened("a", 50)]).await;
    let halt = HaltRow {
        is_gap: true,
        lost_from: Some(20),
        message: "messages 20 to 30 are gone".to_owned(),
    };
    shard
        .mail(Mail::StreamHalted {
            stream: EVENTS,
            halt: halt.clone(),
        })
        .await;
    // What was read before is applied all the same.
    shard.deliver_after(EVENTS, 50, 51, vec![added("a", 51, 1)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1]));
    shard.stop().await;
    for _ in 0..2 {
        let shard = world.start();
        let state = shard
            .until(|state| matches!(state, ShardState::Halted { .. }))
            .await;
        let (reason, message) = halt.clone().reason();
        assert_eq!(state, ShardState::Halted { reason, message });
        shard.stop().await;
    }
    let shard = world.start();
    assert_eq!(reposition(&world, &shard, EVENTS, 51, 51).await, Ok(()));
    shard.until(|state| *state == ShardState::Running).await;
    shard.stop().await;
    let shard = world.start();
    shard.until_idle().await;
    assert_eq!(shard.handle.status.state(), ShardState::Running);
    shard.stop().await;
}
