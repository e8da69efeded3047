//! A shard on the disk: full, with flipped bits, and with too many readers.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;

use super::{FILE, open};
use crate::kernel::input::Input;
use crate::shard::ShardState;
use crate::shard::mailbox::Mail;
use world::{EVENTS, World, added, delivery, event, filled, list, lived, opened};

// What the shard's own tests are made of.
#[path = "../../crates/runtime/src/shard/tests/world.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod world;

const DAY: Duration = Duration::from_hours(24);

const MARK: &str = "a text that is found in the file";

/// A shard on the disk, with at most `max_bytes`.
fn on_disk(max_bytes: u64) -> (World, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let mut world = World::over(move |settings, options| open(&path, settings, options).unwrap());
    world.storage.max_bytes = max_bytes;
    (world, dir)
}

fn told(key: &str, sequence: u64, text: &str) -> Input {
    event(list(key), "List.Told", sequence, &json!({"text": text}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_disk_loses_nothing_and_deletions_make_room() {
    let (world, _dir) = on_disk(16 << 20);
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
    let (world, _dir) = on_disk(16 << 20);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    let text = "x".repeat(200_000);
    for sequence in 2..=100 {
        shard
            .deliver(EVENTS, sequence, vec![told("a", sequence, &text)])
            .await;
    }
    shard.until(|state| matches!(state, ShardState::Full(_))).await;
    let status = Arc::clone(&shard.handle.status);
    let position = shard.position(EVENTS);
    shard.stop().await;
    assert_eq!(status.state(), ShardState::Stopped);
    let again = world.start();
    assert!(again.position(EVENTS) >= position);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stop_is_heard_while_the_disk_is_full_and_the_mailbox_takes_no_more() {
    let (mut world, _dir) = on_disk(16 << 20);
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
    let status = Arc::clone(&shard.handle.status);
    tokio::time::timeout(Duration::from_secs(20), shard.stop())
        .await
        .expect("it stops");
    assert_eq!(status.state(), ShardState::Stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_disk_that_is_full_of_what_may_be_forgotten_heals_by_itself() {
    let (world, _dir) = on_disk(16 << 20);
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
    shard.until_idle().await;
    assert_eq!(shard.position(EVENTS), sequence);
    assert!(shard.ended(&list("l1")).is_none(), "it is forgotten");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_flipped_bit_on_the_disk_halts_the_shard_and_is_never_used() {
    let (world, dir) = on_disk(1 << 30);
    let shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![opened("a", 1), filled("a", 1, MARK)])
        .await;
    shard.stop().await;
    let flipped = flip_every(&dir.path().join(FILE), MARK.as_bytes());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_read_that_fails_for_a_moment_does_not_halt_the_shard() {
    let (world, _dir) = on_disk(1 << 30);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.until_idle().await;
    // All that may read at the same time do.
    let (release, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let readers: Vec<_> = (0..400)
        .map(|_| {
            let (reader, release) = (shard.handle.reader.clone(), Arc::clone(&release));
            let refused = Arc::clone(&refused);
            std::thread::spawn(move || {
                let read = reader.live(None, 1, |_, _| {
                    while !release.load(Ordering::Acquire) {
                        std::thread::park_timeout(Duration::from_millis(1));
                    }
                    true
                });
                if read.is_err() {
                    refused.store(true, Ordering::Release);
                }
            })
        })
        .collect();
    while !refused.load(Ordering::Acquire) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let refill = async || {
        let (reply, answer) = oneshot::channel();
        let mail = Mail::Refill {
            after: None,
            limit: 10,
            reply,
        };
        shard.mail(mail).await;
        answer.await
    };
    assert!(refill().await.is_err(), "there is no answer");
    assert!(shard.handle.status.unreadable().is_some());
    assert_eq!(shard.handle.status.state(), ShardState::Running);
    shard.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    release.store(true, Ordering::Release);
    for reader in readers {
        reader.join().expect("it ends");
    }
    assert!(refill().await.is_ok());
    assert_eq!(shard.handle.status.unreadable(), None);
    assert_eq!(shard.items("a"), serde_json::json!([1]));
    assert_eq!(shard.handle.status.state(), ShardState::Running);
}
