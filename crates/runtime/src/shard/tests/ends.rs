//! Relays that end, and threads that hang or panic.

use std::time::Duration;

use super::world::{EVENTS, World, added, opened};
use crate::shard::ShardState;
use crate::shard::mailbox::{Delivery, Mail};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_shard_whose_relay_has_ended_halts_and_commits_nothing_more() {
    let world = World::new();
    let mut shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    shard.released.close();
    let state = shard
        .until(|state| matches!(state, ShardState::Halted { .. }))
        .await;
    assert!(
        matches!(&state, ShardState::Halted { reason: "relay.ended", message } if message.contains("relay")),
        "{state:?}"
    );
    shard.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    shard.stop().await;
    let again = world.start();
    assert_eq!(again.position(EVENTS), 1);
    again.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    again.until_idle().await;
    assert_eq!(again.items("a"), serde_json::json!([1]), "the next start goes on");
}

/// A panic outside of what is guarded against poison.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_shard_whose_thread_panics_is_halted_and_counted() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    world.clock.panic_once();
    let state = shard
        .until(|state| matches!(state, ShardState::Halted { .. }))
        .await;
    assert!(
        matches!(&state, ShardState::Halted { reason: "shard.panicked", message } if message == "the clock is broken"),
        "{state:?}"
    );
    let text = world.metrics.render();
    for line in [
        "saga_runner_task_panics_total{task=\"shard\"} 1",
        "saga_runner_shards_halted{reason=\"shard.panicked\",shard=\"3\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{text}");
    }
    let mail = Mail::Delivery(Delivery {
        stream: EVENTS,
        after: 1,
        sequence: 2,
        stamp: None,
        routed_by: 0,
        inputs: Vec::new(),
    });
    assert!(shard.handle.mail.send(mail).await.is_err(), "nobody waits for it");
    assert_eq!(shard.position(EVENTS), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_shard_makes_progress_while_it_idles_and_none_while_it_hangs() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    let progress = || shard.handle.status.last_progress();
    let moved = async |since: Duration| {
        let wait = async {
            while progress() <= since {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .expect("it moves");
    };
    moved(progress()).await;
    let hung = world.clock.hang();
    hung.reached().await;
    let before = progress();
    shard.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    world.clock.advance(Duration::from_mins(1));
    assert_eq!(progress(), before);
    drop(hung);
    moved(before).await;
    shard.until_idle().await;
    assert_eq!(shard.position(EVENTS), 2);
}
