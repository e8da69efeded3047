//! What is old, and inputs that kill the process. Full disks and flipped bits are tried on the store that has them.

use std::time::Duration;

use serde_json::json;

use super::world::{EVENTS, Shard, World, added, list, lived, opened};
use crate::kernel::input::Input;
use crate::storage::StorageError;
use crate::storage::rows::Suspect;
use saga_runner_partition::machine::crash_isolation::fingerprint;

const DAY: Duration = Duration::from_hours(24);

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_shard_without_inputs_forgets_what_is_old() {
    let world = World::new();
    let shard = world.start();
    shard.mail(lived("l1", 1, "text")).await;
    shard.until_idle().await;
    assert!(shard.ended(&list("l1")).is_some());
    world.clock.advance(DAY * 8);
    let forgotten = async {
        while shard.ended(&list("l1")).is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), forgotten)
        .await
        .expect("it is forgotten");
    shard.stop().await;
}

/// Leaves the state as a process does that dies while it applies `input` for the last of `attempts` times.
pub fn die_with(world: &World, input: &Input, attempts: u32) {
    let store = world.store();
    store
        .write::<_, StorageError>(|batch| {
            batch.put_closed(None)?;
            batch.put_suspects(&[Suspect {
                input: fingerprint(input),
                attempts,
            }])
        })
        .unwrap();
}

async fn with_two_lists(world: &World) -> Shard {
    let shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![opened("a", 1), opened("b", 1)])
        .await;
    shard.until_idle().await;
    shard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_input_that_kills_the_process_is_set_aside_and_its_neighbours_are_not() {
    let world = World::new();
    with_two_lists(&world).await.stop().await;
    die_with(&world, &added("a", 2, 13), 3);
    let shard = world.start();
    // The intake cuts deliveries differently each time.
    let inputs = vec![
        added("b", 2, 2),
        added("a", 2, 13),
        added("a", 3, 3),
        added("b", 3, 3),
    ];
    shard.deliver_after(EVENTS, 1, 3, inputs).await;
    shard.deliver(EVENTS, 4, vec![added("b", 4, 4)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("b"), json!([2, 3, 4]));
    assert_eq!(shard.items("a"), json!([]));
    let letters = shard.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.reason, "poison.crash");
    assert_eq!(letters[0].1.attempts, 3);
    assert_eq!(letters[0].1.input.as_ref().unwrap().id, added("a", 2, 13).id);
    assert_eq!(shard.inbox("a").1, ["List.Added/a/3"]);
    shard.stop().await;
}

/// A commit takes a delivery as a whole, however few inputs it is to have.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_input_that_kills_the_process_is_set_aside_wherever_it_stands_in_a_delivery() {
    let mut world = World::new();
    world.settings.batch_inputs = 1;
    with_two_lists(&world).await.stop().await;
    die_with(&world, &added("a", 5, 13), 3);
    let shard = world.start();
    let before = (2..5).map(|n| added("b", n, n.cast_signed()));
    let inputs = before.chain([added("a", 5, 13), added("b", 6, 6)]).collect();
    shard.deliver_after(EVENTS, 1, 6, inputs).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([]));
    assert_eq!(shard.items("b"), json!([2, 3, 4, 6]));
    let letters = shard.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.reason, "poison.crash");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_input_that_kills_the_process_before_its_shard_has_committed_anything_is_set_aside() {
    let world = World::new();
    world.start().stop().await;
    die_with(&world, &opened("a", 1), 3);
    let shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![opened("a", 1), opened("b", 1)])
        .await;
    shard.until_idle().await;
    let letters = shard.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.reason, "poison.crash");
    assert_eq!(shard.items("b"), json!([]));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn care_after_a_crash_changes_no_outcome() {
    let world = World::new();
    with_two_lists(&world).await.stop().await;
    die_with(&world, &added("other", 1, 1), 3);
    let shard = world.start();
    for sequence in 2..=5 {
        let n = i64::try_from(sequence).unwrap();
        shard
            .deliver(
                EVENTS,
                sequence,
                vec![added("a", sequence, n), added("b", sequence, -n)],
            )
            .await;
    }
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([2, 3, 4, 5]));
    assert_eq!(shard.items("b"), json!([-2, -3, -4, -5]));
    let versions = ["a", "b"].map(|key| shard.record(&list(key)).unwrap().version);
    assert_eq!(versions, [5, 5]);
    assert_eq!(shard.dead_letters(), []);
    shard.stop().await;
}
