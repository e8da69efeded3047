//! The state of a shard: it outlives its process, may be full, and may be copied. A process has it by a mount, and dies at a
//! commit, in the middle of one, or lives on. It lies in memory, or in MDBX.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use saga_runner::kernel::work::WorkRef;
use saga_runner::mdbx::environment::Environment;
use saga_runner::storage::rows::{EndedRow, HistoryRow, Suspect, decode};
use saga_runner::storage::{keys, tables};
use saga_runner_partition::storage::{
    Batch, Capture, Decision, Memory, ReadRows, ReadWork, Reader, Row, Snapshots, StorageError, TableIndex,
    Take, Transactions, WriteRows, WriteSet, WriteWork, in_transaction, rows_of,
};

use super::process::Process;
use super::world::World;

/// A process dies where it writes an instance that has this in it.
pub const POISON: &str = "poison!";
/// Largest file of a shard in MDBX, in bytes.
const FILE_MAX: u64 = 1 << 30;

/// The rows of a disk, wherever they lie.
#[derive(Debug, Clone)]
pub struct Rows {
    store: Arc<dyn Transactions>,
    /// Where MDBX has them.
    dir: Option<PathBuf>,
}

impl Rows {
    fn of(dir: Option<PathBuf>) -> Self {
        let store: Arc<dyn Transactions> = match &dir {
            None => Arc::new(Memory::default()),
            Some(dir) => Arc::new(Environment::open(dir, tables::NAMES, FILE_MAX).expect("an environment")),
        };
        Self { store, dir }
    }

    /// As they are now, at another place.
    fn copy(&self, parent: &Path) -> Self {
        let name = self.dir.as_ref().and_then(|dir| dir.file_name());
        let copy = Self::of(name.map(|name| parent.join(name)));
        let rows = self.rows();
        let put = |view: &dyn WriteRows| {
            for (table, (key, value)) in &rows {
                view.put(*table, key, value.clone()).expect("there is room");
            }
            Decision::Commit
        };
        copy.store.transact(&mut |view| put(view)).expect("it is stored");
        copy.store
            .note_applying(self.store.applying())
            .expect("it is noted");
        copy
    }

    pub fn rows(&self) -> Vec<(TableIndex, Row)> {
        rows_of(&*self.store).expect("rows are whole")
    }

    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.store) as Arc<dyn Snapshots>)
    }

    /// Of the newest input that was stored.
    pub fn log_sequence(&self) -> u64 {
        let newest = self.write::<_, StorageError>(|batch| Ok(batch.counters()?.log_sequence));
        newest.expect("a store in memory can be read")
    }

    /// Runs `work` in one transaction.
    ///
    /// # Errors
    /// What `work` gives.
    pub fn write<R, E: From<StorageError>>(
        &self,
        work: impl FnOnce(&Batch<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        in_transaction(&*self.store, work)
    }
}

/// What outlives the process.
#[derive(Clone)]
pub struct Disk {
    shard: u16,
    pub rows: Rows,
    /// Nothing can be committed.
    is_full: Arc<AtomicBool>,
    /// No row can be put.
    is_map_full: Arc<AtomicBool>,
    /// The newest row of the outbox that was ever committed.
    newest: Arc<Mutex<Option<WorkRef>>>,
    /// What the write sets of all commits give, where they are captured.
    replica: Option<Memory>,
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
    /// An empty one, in MDBX below `dir` where there is one.
    pub fn new(shard: u16, dir: Option<&Path>, is_captured: bool, world: &Arc<World>) -> Self {
        Self {
            shard,
            rows: Rows::of(dir.map(|dir| dir.join(format!("rows-{shard}")))),
            is_full: Arc::default(),
            is_map_full: Arc::default(),
            newest: Arc::default(),
            replica: is_captured.then(Memory::default),
            world: Arc::clone(world),
        }
    }

    /// As it is now, in another folder.
    pub fn copy(&self, dir: &Path) -> Self {
        Self {
            shard: self.shard,
            rows: self.rows.copy(dir),
            is_full: Arc::default(),
            is_map_full: Arc::default(),
            newest: Arc::new(Mutex::new(*self.newest())),
            replica: self.replica.as_ref().map(Memory::copy),
            world: Arc::clone(&self.world),
        }
    }

    /// How the write sets of all commits differ from what they were captured of, if they do.
    pub fn differs_from_its_write_sets(&self) -> Option<String> {
        let replica = self.replica.as_ref()?.rows();
        let mut rows = self.rows.rows();
        rows.retain(|(table, _)| *table != tables::LOCAL);
        let table = |(table, (key, _)): &(TableIndex, Row)| format!("{} {key:02x?}", tables::NAMES[*table]);
        let (here, there) = (rows.len(), replica.len());
        let other = rows.iter().zip(&replica).find(|(here, there)| here != there);
        let at = match other {
            Some((row, _)) => table(row),
            None if here == there => return None,
            None => "the end".to_owned(),
        };
        Some(format!(
            "shard {} has {here} row(s), its write sets give {there}: they differ at {at}",
            self.shard
        ))
    }

    pub fn mount(&self, process: &Arc<Process>) -> Mount {
        Mount {
            disk: self.clone(),
            process: Arc::clone(process),
        }
    }

    fn newest(&self) -> MutexGuard<'_, Option<WorkRef>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells what work has become true.
    fn note_work(&self) -> Result<(), StorageError> {
        let mut newest = self.newest();
        for (row, item) in self.rows.reader().work_after(*newest, usize::MAX)? {
            self.world.committed(self.shard, item.command_id.to_string());
            *newest = Some(row);
        }
        Ok(())
    }

    /// Tells which ended instances were deleted. What goes on, or is written anew, keeps its history.
    fn note_deleted(&self, gone: &[(TableIndex, u64, Vec<u8>)]) {
        let history: BTreeMap<u64, HistoryRow> = gone
            .iter()
            .filter(|(table, ..)| *table == tables::HISTORY)
            .map(|(_, number, row)| (*number, decode(row, "a history row").expect("whole")))
            .collect();
        for (_, _, row) in gone.iter().filter(|(table, ..)| *table == tables::ENDED) {
            let row: EndedRow = decode(row, "an ended instance").expect("whole");
            let mut next = row.summary.record.last_history;
            let mut rows = Vec::new();
            while let Some(found) = next.and_then(|number| history.get(&number)) {
                next = found.previous;
                rows.push(found.clone());
            }
            if !rows.is_empty() {
                self.world.deleted(row, rows);
            }
        }
    }

    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    pub fn set_map_full(&self, is_full: bool) {
        self.is_map_full.store(is_full, Ordering::Relaxed);
    }
}

/// Does what a commit did in the store of its write sets.
fn apply(set: WriteSet, replica: &Memory) {
    let set = WriteSet::decode(&set.encode()).expect("it was encoded just now");
    replica
        .write_rows::<_, StorageError>(|rows| set.apply(rows))
        .expect("there is room");
}

fn died() -> StorageError {
    StorageError::Failed("the process is dead".to_owned())
}

/// A disk in the hands of one process.
#[derive(Debug)]
pub struct Mount {
    disk: Disk,
    process: Arc<Process>,
}

impl Snapshots for Mount {
    fn read(&self, work: &mut ReadWork<'_>) -> Result<(), StorageError> {
        self.disk.rows.store.read(work)
    }
}

impl Transactions for Mount {
    fn transact(&self, work: &mut WriteWork<'_>) -> Result<(), StorageError> {
        if !self.process.call() {
            return Err(died());
        }
        let disk = &self.disk;
        let is_full = disk.is_full.load(Ordering::Relaxed);
        let is_map_full = disk.is_map_full.load(Ordering::Relaxed);
        let (mut decision, mut set, mut gone) = (Decision::Abort, None, Vec::new());
        disk.rows.store.transact(&mut |rows| {
            let process = &*self.process;
            let capture = disk.replica.is_some().then(|| Capture::new(rows));
            let written = Written {
                rows: capture.as_ref().map_or(rows, |capture| capture as &dyn WriteRows),
                is_map_full,
                process,
                gone: RefCell::default(),
            };
            decision = work(&written);
            gone = written.gone.into_inner();
            set = capture.map(Capture::into_set);
            if is_full || process.is_dead() {
                Decision::Abort
            } else {
                decision
            }
        })?;
        if self.process.is_dead() {
            return Err(died());
        }
        if is_full && decision == Decision::Commit {
            return Err(StorageError::Full("the simulated disk".to_owned()));
        }
        if decision == Decision::Commit {
            if let (Some(set), Some(replica)) = (set, &disk.replica) {
                apply(set, replica);
            }
            disk.world.note(format_args!(
                "shard {} commits in process {}",
                disk.shard, self.process.number
            ));
            disk.note_work()?;
            disk.note_deleted(&gone);
        }
        // It is stored, and whoever has stored it may not live to know.
        if self.process.call() { Ok(()) } else { Err(died()) }
    }

    fn note_applying(&self, applying: Option<Suspect>) -> Result<(), StorageError> {
        if self.process.is_dead() {
            return Err(died());
        }
        self.disk.rows.store.note_applying(applying)
    }

    fn applying(&self) -> Option<Suspect> {
        self.disk.rows.store.applying()
    }
}

/// Rows in a transaction that may find no room, or kill its process.
struct Written<'r> {
    rows: &'r dyn WriteRows,
    is_map_full: bool,
    process: &'r Process,
    /// Rows of ended instances and of histories that were deleted.
    gone: RefCell<Vec<(TableIndex, u64, Vec<u8>)>>,
}

impl Written<'_> {
    fn check(&self, table: TableIndex, value: &[u8]) -> Result<(), StorageError> {
        if self.is_map_full {
            return Err(StorageError::Full("the simulated map".to_owned()));
        }
        let poison = POISON.as_bytes();
        let is_instance = table == tables::INSTANCES || table == tables::ENDED;
        if is_instance && value.windows(poison.len()).any(|part| part == poison) {
            self.process.world.poisoned();
            self.process.die();
            return Err(died());
        }
        Ok(())
    }
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
        self.check(table, &value)?;
        self.rows.put(table, key, value)
    }

    fn append(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError> {
        self.check(table, &value)?;
        self.rows.append(table, key, value)
    }

    fn delete(&self, table: TableIndex, key: &[u8]) -> Result<bool, StorageError> {
        let is_kept = table == tables::ENDED || table == tables::HISTORY;
        if is_kept && let (Some(row), Some(number)) = (self.rows.get(table, key)?, keys::read_number(key)) {
            self.gone.borrow_mut().push((table, number, row));
        }
        self.rows.delete(table, key)
    }
}
