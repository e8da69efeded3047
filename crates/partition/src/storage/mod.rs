//! REMEMBERS. The state of one partition as rows of tables, and what is read and written there, by noun.
//!
//! A store gives transactions over rows: [`ReadRows`] and [`WriteRows`]. The nouns ([`Batch`], [`Reader`]) stand on top of
//! those and are the same for every store. It decides nothing: what a row means is the machine's business.

mod accepted;
pub mod backup;
pub mod by_key;
mod captured;
mod deleted;
mod due;
pub mod earlier;
mod ended;
mod error;
mod held;
mod history;
pub mod kept;
pub mod keys;
pub mod listed;
mod marked;
mod memory;
mod newest;
mod orphans;
pub mod read;
pub mod rows;
mod seen;
pub mod tables;
pub mod write;
mod write_set;

pub use captured::{Captured, Log};
pub use ended::{Forgotten, Outdated};
pub use error::StorageError;
pub use held::{Decided, DecidedRow, HeldRow};
pub use memory::Memory;
pub use read::Reader;
pub use seen::{HistoryPage, Seen};
pub use write::Batch;
pub use write_set::{Capture, WriteSet};

use std::time::Duration;

use rows::Suspect;

/// Index of a table in [`tables::NAMES`].
pub type TableIndex = usize;

/// One row: key and value.
pub type Row = (Vec<u8>, Vec<u8>);

/// Takes the rows of a scan until it answers false.
pub type Take<'t> = dyn FnMut(&[u8], Vec<u8>) -> Result<bool, StorageError> + 't;

/// Rows inside of a transaction. Keys are in the order of their bytes.
pub trait ReadRows {
    /// The value of a key.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] where it is damaged.
    fn get(&self, table: TableIndex, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// Number of rows, without counting them.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] where the table is damaged.
    fn count(&self, table: TableIndex) -> Result<u64, StorageError>;

    /// Calls `take` for the rows from `from` on, in key order, until it answers false.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`], or what `take` gives.
    fn scan(&self, table: TableIndex, from: &[u8], take: &mut Take<'_>) -> Result<(), StorageError>;

    /// The first row at or behind `from`.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] where it is damaged.
    fn first(&self, table: TableIndex, from: &[u8]) -> Result<Option<Row>, StorageError> {
        let mut found = None;
        self.scan(table, from, &mut |key, value| {
            found = Some((key.to_vec(), value));
            Ok(false)
        })?;
        Ok(found)
    }
}

/// Rows inside of a transaction that writes.
pub trait WriteRows: ReadRows {
    /// Inserts or replaces a row.
    ///
    /// # Errors
    /// [`StorageError::Full`] where there is no room: the transaction is to be given up.
    fn put(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError>;

    /// Inserts a row behind all others of its table, or replaces the last one.
    ///
    /// # Errors
    /// [`StorageError::Full`] where there is no room, [`StorageError::Failed`] where rows stand behind it.
    fn append(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError>;

    /// Deletes a row; whether there was one.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] where the table is damaged.
    fn delete(&self, table: TableIndex, key: &[u8]) -> Result<bool, StorageError>;
}

/// A store whose committed rows can be looked at.
pub trait Snapshots: std::fmt::Debug + Send + Sync {
    /// Calls `work` once, with one consistent view. Keep it short: a long reader makes a file grow.
    ///
    /// # Errors
    /// What `work` gives, or why there is no view.
    fn read(&self, work: &mut ReadWork<'_>) -> Result<(), StorageError>;
}

/// Every row of a store, by table and key.
///
/// # Errors
/// [`StorageError::Corrupt`] where one is damaged.
pub fn rows_of(store: &dyn Snapshots) -> Result<Vec<(TableIndex, Row)>, StorageError> {
    let mut rows = Vec::new();
    store.read(&mut |view| {
        (0..tables::NAMES.len()).try_for_each(|table| {
            view.scan(table, &[], &mut |key, value| {
                rows.push((table, (key.to_vec(), value)));
                Ok(true)
            })
        })
    })?;
    Ok(rows)
}

/// What is done with a view.
pub type ReadWork<'w> = dyn FnMut(&dyn ReadRows) -> Result<(), StorageError> + 'w;

/// A store whose rows can be changed, one transaction at a time.
pub trait Transactions: Snapshots {
    /// Calls `work` once, in one transaction: [`Decision::Commit`] makes its rows durable, all at once; after
    /// [`Decision::Abort`], or a panic, nothing of it remains.
    ///
    /// # Errors
    /// Why there is no transaction, or why it could not be committed: nothing has changed then.
    fn transact(&self, work: &mut WriteWork<'_>) -> Result<(), StorageError>;

    /// Notes which input is being applied, none once that is over, beside all transactions: no disk is waited for. The note outlives
    /// the process, not the machine.
    ///
    /// # Errors
    /// [`StorageError::Full`] where there is no room, [`StorageError::Failed`] where the disk does not take it.
    fn note_applying(&self, applying: Option<Suspect>) -> Result<(), StorageError>;

    /// What was noted last; none where that is lost.
    fn applying(&self) -> Option<Suspect>;

    /// How long the last commit waited for the disk to take what it wrote; none where there is no disk, or no commit yet.
    fn last_sync(&self) -> Option<Duration> {
        None
    }
}

/// What is done in a transaction.
pub type WriteWork<'w> = dyn FnMut(&dyn WriteRows) -> Decision + 'w;

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Commit,
    Abort,
}

/// Why nothing of a transaction remains.
#[derive(Debug)]
pub enum Undone {
    /// Its work has decided so.
    Aborted,
    Failed(StorageError),
}

impl From<StorageError> for Undone {
    fn from(error: StorageError) -> Self {
        Self::Failed(error)
    }
}

impl Decision {
    /// The decision as the result of work that leaves nothing on an error.
    ///
    /// # Errors
    /// [`Undone::Aborted`].
    pub const fn carried_out(self) -> Result<(), Undone> {
        match self {
            Self::Commit => Ok(()),
            Self::Abort => Err(Undone::Aborted),
        }
    }
}

impl Undone {
    /// What [`Transactions::transact`] answers for a transaction that ended so.
    ///
    /// # Errors
    /// Why there was no transaction.
    pub fn answer(ended: Result<(), Self>) -> Result<(), StorageError> {
        match ended {
            Ok(()) | Err(Self::Aborted) => Ok(()),
            Err(Self::Failed(error)) => Err(error),
        }
    }
}

/// Runs `work` in one transaction of `store`; an error leaves nothing.
///
/// # Errors
/// What `work` gives, or what the commit meets.
pub fn in_transaction<R, E: From<StorageError>>(
    store: &dyn Transactions,
    work: impl FnOnce(&Batch<'_>) -> Result<R, E>,
) -> Result<R, E> {
    let (mut work, mut outcome) = (Some(work), None);
    store.transact(&mut |rows| {
        let Some(work) = work.take() else {
            return Decision::Abort;
        };
        let result = work(&Batch::new(rows));
        let decision = if result.is_ok() {
            Decision::Commit
        } else {
            Decision::Abort
        };
        outcome = Some(result);
        decision
    })?;
    outcome.expect("a transaction that ended has called its work")
}
