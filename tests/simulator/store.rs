//! The state of a shard in memory: it outlives its process, and may be full or die with the process at a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use saga_runner_partition::storage::{
    Decision, Memory, ReadWork, Snapshots, StorageError, Transactions, WriteWork,
};

use super::world::World;

/// What outlives the process.
#[derive(Clone)]
pub struct Disk {
    shard: u16,
    pub rows: Memory,
    is_full: Arc<AtomicBool>,
    world: Arc<World>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk")
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

impl Disk {
    pub fn new(shard: u16, world: &Arc<World>) -> Self {
        Self {
            shard,
            rows: Memory::default(),
            is_full: Arc::default(),
            world: Arc::clone(world),
        }
    }

    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }
}

fn died() -> StorageError {
    StorageError::Failed("the process is dead".to_owned())
}

impl Snapshots for Disk {
    fn read(&self, work: &mut ReadWork<'_>) -> Result<(), StorageError> {
        self.rows.read(work)
    }
}

impl Transactions for Disk {
    fn transact(&self, work: &mut WriteWork<'_>) -> Result<(), StorageError> {
        if !self.world.call() {
            return Err(died());
        }
        let is_full = self.is_full.load(Ordering::Relaxed);
        let mut decision = Decision::Abort;
        self.rows.transact(&mut |rows| {
            decision = work(rows);
            if is_full { Decision::Abort } else { decision }
        })?;
        if is_full && decision == Decision::Commit {
            return Err(StorageError::Full("the simulated disk".to_owned()));
        }
        if decision == Decision::Commit {
            self.world.note(format_args!("shard {} commits", self.shard));
        }
        // It is stored, and whoever has stored it may not live to know.
        if self.world.call() { Ok(()) } else { Err(died()) }
    }
}
