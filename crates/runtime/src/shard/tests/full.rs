//! What comes while there is no room on the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use saga_runner_partition::storage::{Memory, ReadWork, Snapshots, Transactions, WriteWork};

use super::world::{CONTROLS, EVENTS, RESULTS, World, event, opened, pay, pay_opened};
use crate::kernel::duration::Millis;
use crate::kernel::record::Phase;
use crate::ports::clock::Clock as _;
use crate::shard::ShardState;
use crate::storage::rows::Suspect;
use crate::storage::{StorageError, Store};

/// A store in memory that commits nothing while its disk is full.
#[derive(Debug, Clone, Default)]
struct Disk {
    memory: Memory,
    is_full: Arc<AtomicBool>,
}

impl Snapshots for Disk {
    fn read(&self, work: &mut ReadWork<'_>) -> Result<(), StorageError> {
        self.memory.read(work)
    }
}

impl Transactions for Disk {
    fn transact(&self, work: &mut WriteWork<'_>) -> Result<(), StorageError> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(StorageError::Full("the disk".to_owned()));
        }
        self.memory.transact(work)
    }

    fn note_applying(&self, applying: Option<Suspect>) -> Result<(), StorageError> {
        self.memory.note_applying(applying)
    }

    fn applying(&self) -> Option<Suspect> {
        self.memory.applying()
    }
}

/// The barriers that came last went past the payment, and the timer won over it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn messages_from_the_time_of_a_full_disk_are_applied_before_later_ones() {
    let disk = Disk::default();
    let is_full = Arc::clone(&disk.is_full);
    let mut world = World::over(move |settings, options| {
        let store = Arc::new(disk.clone());
        Store::over(store, Path::new("shard-0003"), settings, options).expect("a store")
    });
    // Two watermarks fill a commit, and nobody waits for it.
    (world.settings.batch_inputs, world.settings.mailbox) = (1, 3);
    world.settings.idle_commit = Millis(60_000);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    shard.until_idle().await;
    world.clock.advance(Duration::from_mins(2));

    is_full.store(true, Ordering::SeqCst);
    shard.deliver(EVENTS, 2, vec![opened("a", 2)]).await;
    shard.until(|state| matches!(state, ShardState::Full(_))).await;
    let full = world.metrics.storage.full.with_label_values(&["3"]);
    assert_eq!(full.get(), 1);
    shard.deliver(RESULTS, 1, Vec::new()).await;
    shard.deliver(CONTROLS, 1, Vec::new()).await;
    let paid = event(pay("p"), "Pay.Settled", 3, &json!({"id": "p"}));
    shard.deliver(EVENTS, 3, vec![paid]).await;
    shard.barrier(world.clock.now()).await;
    is_full.store(false, Ordering::SeqCst);
    shard.until_idle().await;
    let record = shard.record(&pay("p")).expect("its charge is under way");
    let timers = record.timers.len();
    assert_eq!((record.phase, timers), (Phase::Running, 0), "it is paid");
    assert_eq!(world.metrics.timers_fired.get(), 0);
    assert_eq!(full.get(), 0);
    shard.stop().await;
}
