//! The state of a shard in memory: it outlives its process, and may be full or die with the process at a commit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use saga_runner::kernel::work::WorkRef;
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
    /// The newest row of the outbox that was ever committed.
    newest: Arc<Mutex<Option<WorkRef>>>,
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
            newest: Arc::default(),
            world: Arc::clone(world),
        }
    }

    /// Tells what work has become true.
    fn note_work(&self) -> Result<(), StorageError> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, item) in self.rows.reader().work_after(*newest, usize::MAX)? {
            self.world.committed(item.command_id.to_string());
            *newest = Some(row);
        }
        Ok(())
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
            self.note_work()?;
        }
        // It is stored, and whoever has stored it may not live to know.
        if self.world.call() { Ok(()) } else { Err(died()) }
    }
}
