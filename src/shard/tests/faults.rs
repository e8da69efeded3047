//! Full disks, flipped bits, and inputs that kill the process.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::time::Duration;

use serde_json::json;

use super::world::{EVENTS, Shard, World, added, event, list, named, opened};
use crate::kernel::input::Input;
use crate::shard::ShardState;
use crate::shard::mailbox::{Arrival, Delivery, Mail};
use crate::storage::StorageError;
use crate::storage::rows::Suspect;
use saga_runner_partition::machine::careful::fingerprint;

const DAY: Duration = Duration::from_hours(24);

const MARK: &str = "a text that is found in the file";

fn filled(key: &str, sequence: u64, text: &str) -> Input {
    event(list(key), "List.Filled", sequence, &json!({"text": text}))
}

fn delivery(sequence: u64, inputs: Vec<Input>) -> Mail {
    Mail::Delivery(Delivery {
        stream: EVENTS,
        lane: 0,
        after: sequence - 1,
        sequence,
        stamp: None,
        inputs: inputs.into_iter().map(Arrival::Input).collect(),
    })
}

fn told(key: &str, sequence: u64, text: &str) -> Input {
    event(list(key), "List.Told", sequence, &json!({"text": text}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_disk_loses_nothing_and_deletions_make_room() {
    let mut world = World::new();
    world.storage.max_bytes = 16 << 20;
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    let text = "x".repeat(200_000);
    let mut sequence = 1;
    while shard.handle.status.state() == ShardState::Running && sequence < 200 {
        sequence += 1;
        shard
            .deliver(EVENTS, sequence, vec![told("a", sequence, &text)])
            .await;
        // Either this delivery is committed or it found no room.
        let committed = async {
            while shard.position(EVENTS) < sequence && shard.handle.status.state() == ShardState::Running {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), committed)
            .await
            .expect("it is tried");
    }
    assert!(matches!(shard.handle.status.state(), ShardState::Full(_)));
    assert_eq!(shard.position(EVENTS), sequence - 1);
    let version = shard.record(&list("a")).unwrap().version;
    assert_eq!(version, sequence - 1, "nothing of the failed batch is there");
    let rows = shard.handle.reader.work_after(None, 1_000).unwrap();
    assert_eq!(rows.len() as u64, sequence - 2);
    shard
        .deliver(EVENTS, sequence + 1, vec![added("a", sequence + 1, 7)])
        .await;
    shard
        .mail(Mail::Delivered(rows.iter().map(|(row, _)| *row).collect()))
        .await;
    shard.until(|state| *state == ShardState::Running).await;
    assert_eq!(shard.outbox().await.len(), 1, "the one that had found no room");
    assert_eq!(shard.items("a"), json!([7]));
    assert_eq!(shard.position(EVENTS), sequence + 1);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stop_is_heard_while_the_disk_is_full() {
    let mut world = World::new();
    world.storage.max_bytes = 16 << 20;
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    let text = "x".repeat(200_000);
    for sequence in 2..=100 {
        shard
            .deliver(EVENTS, sequence, vec![told("a", sequence, &text)])
            .await;
    }
    shard.until(|state| matches!(state, ShardState::Full(_))).await;
    let status = std::sync::Arc::clone(&shard.handle.status);
    let position = shard.position(EVENTS);
    shard.stop().await;
    assert_eq!(status.state(), ShardState::Stopped);
    let again = world.start();
    assert!(again.position(EVENTS) >= position);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stop_is_heard_while_the_disk_is_full_and_the_mailbox_takes_no_more() {
    let mut world = World::new();
    world.storage.max_bytes = 16 << 20;
    world.settings.mailbox = 2;
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    let text = "x".repeat(200_000);
    let (mut sequence, mut refused) = (2, 0);
    // Full for good: for so long it takes nothing from the mailbox.
    while refused < 100 {
        let delivery = delivery(sequence, vec![told("a", sequence, &text)]);
        if shard.handle.mail.try_send(delivery).is_ok() {
            (sequence, refused) = (sequence + 1, 0);
        } else {
            let full = matches!(shard.handle.status.state(), ShardState::Full(_));
            refused += u32::from(full);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let status = std::sync::Arc::clone(&shard.handle.status);
    tokio::time::timeout(Duration::from_secs(20), shard.stop())
        .await
        .expect("it stops");
    assert_eq!(status.state(), ShardState::Stopped);
}

/// An instance that has come and gone, and leaves much behind.
fn lived(key: &str, sequence: u64, text: &str) -> Mail {
    let closed = named(key, "List.Closed", sequence);
    delivery(
        sequence,
        vec![opened(key, sequence), filled(key, sequence, text), closed],
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_disk_that_is_full_of_what_may_be_forgotten_heals_by_itself() {
    let mut world = World::new();
    world.storage.max_bytes = 16 << 20;
    let shard = world.start();
    let text = "x".repeat(200_000);
    let mut sequence = 0;
    while shard.handle.status.state() == ShardState::Running && sequence < 200 {
        sequence += 1;
        shard.mail(lived(&format!("l{sequence}"), sequence, &text)).await;
        let tried = async {
            while shard.position(EVENTS) < sequence && shard.handle.status.state() == ShardState::Running {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), tried)
            .await
            .expect("it is tried");
    }
    assert!(matches!(shard.handle.status.state(), ShardState::Full(_)));
    world.clock.advance_wall(DAY * 8);
    shard.until(|state| *state == ShardState::Running).await;
    shard.settle().await;
    assert_eq!(shard.position(EVENTS), sequence);
    assert!(shard.ended(&list("l1")).is_none(), "it is forgotten");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_shard_without_inputs_forgets_what_is_old() {
    let world = World::new();
    let shard = world.start();
    shard.mail(lived("l1", 1, "text")).await;
    shard.settle().await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_flipped_bit_on_the_disk_halts_the_shard_and_is_never_used() {
    let world = World::new();
    let shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![opened("a", 1), filled("a", 1, MARK)])
        .await;
    shard.stop().await;
    let flipped = flip_every(&world.path().join("mdbx.dat"), MARK.as_bytes());
    assert!(flipped > 0);
    let shard = world.start();
    shard.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    let state = shard
        .until(|state| matches!(state, ShardState::Halted { .. }))
        .await;
    assert!(
        matches!(&state, ShardState::Halted { reason: "data.corrupt", message } if message.contains("SR0206")),
        "{state:?}"
    );
    assert_eq!(shard.position(EVENTS), 1);
    assert!(shard.handle.reader.instance(&list("a")).is_err());
    shard.stop().await;
}

/// Flips a bit in every occurrence of `needle`; returns their number.
fn flip_every(path: &std::path::Path, needle: &[u8]) -> usize {
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    let found: Vec<usize> = bytes
        .windows(needle.len())
        .enumerate()
        .filter(|(_, window)| *window == needle)
        .map(|(at, _)| at)
        .collect();
    for at in &found {
        file.seek(SeekFrom::Start(*at as u64)).unwrap();
        file.write_all(&[needle[0] ^ 1]).unwrap();
    }
    found.len()
}

/// Leaves the state as a process does that dies while it applies `input` for the last of `attempts` times.
pub fn die_with(world: &World, input: &Input, attempts: u32) {
    let store = world.store();
    store
        .write::<_, StorageError>(|batch| {
            batch.put_closed(false)?;
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
    shard.settle().await;
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
    shard.settle().await;
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
    shard.settle().await;
    assert_eq!(shard.items("a"), json!([2, 3, 4, 5]));
    assert_eq!(shard.items("b"), json!([-2, -3, -4, -5]));
    let versions = ["a", "b"].map(|key| shard.record(&list(key)).unwrap().version);
    assert_eq!(versions, [5, 5]);
    assert_eq!(shard.dead_letters(), []);
    shard.stop().await;
}
