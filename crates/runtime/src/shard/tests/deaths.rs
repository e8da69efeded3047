//! What is blamed when the process dies again and again: an input in whose application it dies, and no other one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;

use saga_runner_partition::storage::tables::INSTANCES;
use saga_runner_partition::storage::{
    Decision, Memory, ReadRows, ReadWork, Snapshots, TableIndex, Take, Transactions, WriteRows, WriteWork,
};

use super::world::{EVENTS, World, added, opened};
use crate::kernel::input::Input;
use crate::shard::ShardState;
use crate::storage::rows::Suspect;
use crate::storage::{StorageError, Store};

/// Part of the key of the list with which processes die.
const VICTIM: &[u8] = b"bad";

/// When the process dies that writes that list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    Never,
    /// As a crash of its own makes it die.
    WhileApplying,
    /// While it waits for the disk, as anybody kills it.
    WhileCommitting,
}

/// A disk in the hands of one process, which outlives it.
#[derive(Debug)]
struct Mount {
    disk: Memory,
    death: Arc<Mutex<Death>>,
    is_dead: AtomicBool,
}

impl Mount {
    fn check(&self) -> Result<(), StorageError> {
        if self.is_dead.load(Ordering::SeqCst) {
            return Err(StorageError::Failed("the process is dead".to_owned()));
        }
        Ok(())
    }

    /// Whether it dies now.
    fn dies(&self, death: Death) -> bool {
        let dies = *self.death.lock().unwrap() == death;
        self.is_dead.fetch_or(dies, Ordering::SeqCst);
        dies
    }
}

impl Snapshots for Mount {
    fn read(&self, work: &mut ReadWork<'_>) -> Result<(), StorageError> {
        self.disk.read(work)
    }
}

impl Transactions for Mount {
    fn transact(&self, work: &mut WriteWork<'_>) -> Result<(), StorageError> {
        self.check()?;
        self.disk.transact(&mut |rows| {
            let written = Written {
                rows,
                mount: self,
                instances: AtomicBool::new(false),
            };
            let decision = work(&written);
            if written.instances.into_inner() && decision == Decision::Commit {
                self.dies(Death::WhileCommitting);
            }
            match self.check() {
                Ok(()) => decision,
                Err(_) => Decision::Abort,
            }
        })?;
        self.check()
    }

    fn note_applying(&self, applying: Option<Suspect>) -> Result<(), StorageError> {
        self.check()?;
        self.disk.note_applying(applying)
    }

    fn applying(&self) -> Option<Suspect> {
        self.disk.applying()
    }
}

struct Written<'r> {
    rows: &'r dyn WriteRows,
    mount: &'r Mount,
    /// An instance was written.
    instances: AtomicBool,
}

impl ReadRows for Written<'_> {
    fn get(&self, table: TableIndex, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.rows.get(table, key)
    }

    fn count(&self, table: TableIndex) -> Result<u64, StorageError> {
        self.rows.count(table)
    }

    fn scan(&self, table: TableIndex, from: &[u8], take: &mut Take<'_>) -> Result<(), StorageError> {
        self.rows.scan(table, from, take)
    }
}

impl WriteRows for Written<'_> {
    fn put(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError> {
        if table == INSTANCES && key.windows(VICTIM.len()).any(|part| part == VICTIM) {
            self.instances.store(true, Ordering::SeqCst);
            self.mount.dies(Death::WhileApplying);
        }
        self.mount.check()?;
        self.rows.put(table, key, value)
    }

    fn append(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError> {
        self.rows.append(table, key, value)
    }

    fn delete(&self, table: TableIndex, key: &[u8]) -> Result<bool, StorageError> {
        self.rows.delete(table, key)
    }
}

/// What comes next: one input of that list alone, or between those of another one.
fn next(alone: bool) -> Vec<Input> {
    let of_victim = added("bad", 2, 2);
    if alone {
        return vec![of_victim];
    }
    vec![added("good", 2, 2), of_victim, added("good", 3, 3)]
}

/// A world with two lists, whose processes have died of the next delivery `deaths` times, at such a moment.
async fn after(deaths: usize, death: Death, alone: bool) -> World {
    let (disk, when) = (Memory::default(), Arc::new(Mutex::new(Death::Never)));
    let dies = Arc::clone(&when);
    let world = World::over(move |settings, options| {
        let mount = Mount {
            disk: disk.clone(),
            death: Arc::clone(&dies),
            is_dead: AtomicBool::new(false),
        };
        Store::over(Arc::new(mount), Path::new("shard-0003"), settings, options).unwrap()
    });
    let shard = world.start();
    let lists = vec![opened("good", 1), opened("bad", 1)];
    shard.deliver(EVENTS, 1, lists).await;
    shard.until_idle().await;
    shard.stop().await;
    *when.lock().unwrap() = death;
    for _ in 0..deaths {
        let shard = world.start();
        shard.deliver(EVENTS, 2, next(alone)).await;
        shard
            .until(|state| matches!(state, ShardState::Halted { .. }))
            .await;
        shard.stop().await;
    }
    *when.lock().unwrap() = Death::Never;
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_input_is_applied_however_often_the_process_was_killed_while_it_was_committed() {
    for alone in [true, false] {
        let world = after(12, Death::WhileCommitting, alone).await;
        let shard = world.start();
        shard.deliver(EVENTS, 2, next(alone)).await;
        shard.until_idle().await;
        assert_eq!(shard.items("bad"), json!([2]), "alone: {alone}");
        assert_eq!(shard.dead_letters(), []);
        shard.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_input_of_whose_application_the_process_died_often_enough_is_set_aside_and_no_other_one() {
    // The first process has not looked at inputs one by one: it was started after a clean stop.
    for (deaths, is_set_aside) in [(3, false), (4, true)] {
        for alone in [true, false] {
            let world = after(deaths, Death::WhileApplying, alone).await;
            let shard = world.start();
            shard.deliver(EVENTS, 2, next(alone)).await;
            shard.until_idle().await;
            let letters: Vec<_> = shard
                .dead_letters()
                .into_iter()
                .map(|(_, letter)| (letter.reason, letter.attempts, letter.input.map(|input| input.id)))
                .collect();
            if is_set_aside {
                let expected = ("poison.crash".to_owned(), 3, Some(added("bad", 2, 2).id));
                assert_eq!(letters, [expected], "alone: {alone}");
                assert_eq!(shard.items("bad"), json!([]));
            } else {
                assert_eq!(letters, [], "alone: {alone}");
                assert_eq!(shard.items("bad"), json!([2]));
            }
            let others = if alone { json!([]) } else { json!([2, 3]) };
            assert_eq!(shard.items("good"), others);
            shard.stop().await;
        }
    }
}
