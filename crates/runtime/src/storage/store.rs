//! The stored state of one shard.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use saga_runner_partition::storage::{
    Captured, Decision, Log, Row, Snapshots, TableIndex, Transactions, WriteRows, WriteSet, in_transaction,
    rows_of,
};

use super::read::Reader;
use super::rows::{self, ROW_FORMAT, Suspect};
use super::write::Batch;
use super::{Settings, StorageError, tables};
use crate::kernel::ids::ClusterId;

/// Format level of the whole environment.
const FORMAT_LEVEL: u8 = 1;

/// Whose data is expected, and whether it may be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    pub cluster: String,
    pub cluster_id: ClusterId,
    pub shard: u16,
    pub shards: u16,
    /// Whether an empty folder may become this shard. False where the cluster already knows the shard: an empty
    /// folder has then lost its data.
    pub create: bool,
}

/// Who a folder says it is, and which claim to the shard it has made last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ownership {
    /// Random name of the folder.
    pub owner: [u8; 16],
    pub epoch: u64,
    /// Random name of the claim.
    pub claim: [u8; 16],
}

/// Key of [`Ownership`].
const OWNERSHIP: &[u8] = b"ownership";

/// The state of one shard, opened exclusively.
#[derive(Debug)]
pub struct Store {
    transactions: Arc<dyn Transactions>,
    settings: Settings,
    cluster_id: ClusterId,
    created: bool,
    /// Whether an input may be noted as being applied.
    is_noted: AtomicBool,
}

impl Store {
    /// The shard in `transactions`; `dir` is what its owner calls it.
    ///
    /// # Errors
    /// [`StorageError`] says why it is refused: foreign, newer, or unexpectedly empty.
    pub fn over(
        transactions: Arc<dyn Transactions>,
        dir: &Path,
        settings: &Settings,
        options: &OpenOptions,
    ) -> Result<Self, StorageError> {
        let mut identified = Err(StorageError::Missing(dir.to_owned()));
        transactions.transact(&mut |rows| {
            identified = identify(rows, dir, options);
            match identified {
                Ok(_) => Decision::Commit,
                Err(_) => Decision::Abort,
            }
        })?;
        Ok(Self {
            transactions,
            settings: settings.clone(),
            cluster_id: options.cluster_id,
            created: identified?,
            is_noted: AtomicBool::new(true),
        })
    }

    /// The same store, whose write sets go to `log`.
    #[must_use]
    pub fn logged(self, log: Arc<dyn Log>) -> Self {
        let transactions = Arc::new(Captured::new(self.transactions, log));
        Self { transactions, ..self }
    }

    /// Every row, by table and key.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] where one is damaged.
    pub fn rows(&self) -> Result<Vec<(TableIndex, Row)>, StorageError> {
        rows_of(&*self.transactions)
    }

    /// Who the folder is; none where it has made no claim yet.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn ownership(&self) -> Result<Option<Ownership>, StorageError> {
        let mut found = None;
        self.transactions.read(&mut |view| {
            found = match view.get(tables::LOCAL, OWNERSHIP)? {
                Some(bytes) => Some(rows::decode(&bytes, "the ownership")?),
                None => None,
            };
            Ok(())
        })?;
        Ok(found)
    }

    /// Stores which claim the folder makes.
    ///
    /// # Errors
    /// Where the disk does not take it.
    pub fn put_ownership(&self, ownership: &Ownership) -> Result<(), StorageError> {
        let mut put = Ok(());
        self.transactions.transact(&mut |view| {
            put = view.put(tables::LOCAL, OWNERSHIP, rows::encode(ownership));
            match put {
                Ok(()) => Decision::Commit,
                Err(_) => Decision::Abort,
            }
        })?;
        put
    }

    /// Whether it was made by being opened.
    #[must_use]
    pub const fn was_created(&self) -> bool {
        self.created
    }

    /// The cluster whose state this is a part of.
    #[must_use]
    pub const fn cluster_id(&self) -> ClusterId {
        self.cluster_id
    }

    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Makes the changes of a write set, in one transaction.
    ///
    /// # Errors
    /// What the commit meets: nothing has changed then.
    pub fn apply(&self, set: &WriteSet) -> Result<(), StorageError> {
        let mut applied = Ok(());
        self.transactions.transact(&mut |rows| {
            applied = set.apply(rows);
            match applied {
                Ok(()) => Decision::Commit,
                Err(_) => Decision::Abort,
            }
        })?;
        applied
    }

    /// How long the last commit waited for the disk: see [`Transactions::last_sync`].
    #[must_use]
    pub fn last_sync(&self) -> Option<Duration> {
        self.transactions.last_sync()
    }

    /// Notes which input is being applied: see [`Transactions::note_applying`].
    ///
    /// # Errors
    /// Where the disk does not take it.
    pub fn note_applying(&self, applying: Suspect) -> Result<(), StorageError> {
        self.is_noted.store(true, Ordering::Relaxed);
        self.transactions.note_applying(Some(applying))
    }

    /// Notes that no input is being applied, if one was.
    ///
    /// # Errors
    /// Where the disk does not take it.
    pub fn note_applied(&self) -> Result<(), StorageError> {
        if self.is_noted.load(Ordering::Relaxed) {
            self.transactions.note_applying(None)?;
            self.is_noted.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The input that was noted last as being applied, and not as applied.
    #[must_use]
    pub fn applying(&self) -> Option<Suspect> {
        self.transactions.applying()
    }

    /// A view for other threads.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.transactions) as Arc<dyn Snapshots>)
    }

    /// Runs `work` in one transaction; an error leaves nothing.
    ///
    /// # Errors
    /// What `work` gives, or what the commit meets.
    pub fn write<R, E: From<StorageError>>(
        &self,
        work: impl FnOnce(&Batch<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        in_transaction(&*self.transactions, work)
    }
}

/// Checks whose rows these are, and marks an empty store where it may be created; whether it was.
fn identify(rows: &dyn WriteRows, dir: &Path, options: &OpenOptions) -> Result<bool, StorageError> {
    let identity = Identity::of(options);
    match rows.get(tables::LOCAL, b"identity")? {
        Some(bytes) => {
            check_format(dir, &bytes)?;
            identity.check(dir, &rows::decode(&bytes, "identity")?)?;
            Ok(false)
        }
        None if options.create => {
            rows.put(tables::LOCAL, b"identity", rows::encode(&identity))?;
            Ok(true)
        }
        None => Err(StorageError::Missing(dir.to_owned())),
    }
}

/// What an environment says it is.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Identity {
    level: u8,
    cluster: String,
    cluster_id: ClusterId,
    shard: u16,
    shards: u16,
}

impl Identity {
    fn of(options: &OpenOptions) -> Self {
        Self {
            level: FORMAT_LEVEL,
            cluster: options.cluster.clone(),
            cluster_id: options.cluster_id,
            shard: options.shard,
            shards: options.shards,
        }
    }

    fn check(&self, dir: &Path, found: &Self) -> Result<(), StorageError> {
        if found.level > FORMAT_LEVEL {
            return Err(newer(dir.to_owned(), found.level));
        }
        if (&found.cluster, found.cluster_id) != (&self.cluster, self.cluster_id) {
            return Err(StorageError::Foreign {
                path: dir.to_owned(),
                found: found.whose(),
                expected: self.whose(),
            });
        }
        if (found.shard, found.shards) != (self.shard, self.shards) {
            return Err(StorageError::OtherShard {
                path: dir.to_owned(),
                found: found.place(),
                expected: self.place(),
            });
        }
        Ok(())
    }

    fn whose(&self) -> String {
        format!("{:?} ({})", self.cluster, self.cluster_id)
    }

    fn place(&self) -> String {
        format!("{} of {}", self.shard, self.shards)
    }
}

fn check_format(dir: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    match bytes.first() {
        Some(&found) if found > ROW_FORMAT => Err(newer(dir.to_owned(), found)),
        _ => Ok(()),
    }
}

const fn newer(path: PathBuf, found: u8) -> StorageError {
    StorageError::Newer {
        path,
        found,
        newest: FORMAT_LEVEL,
    }
}

#[cfg(test)]
mod tests {
    use saga_runner_partition::storage::Memory;

    use super::*;

    fn open(memory: &Memory, cluster: &str, create: bool) -> Result<Store, StorageError> {
        let options = OpenOptions {
            cluster: cluster.to_owned(),
            cluster_id: ClusterId([7; 16]),
            shard: 0,
            shards: 4,
            create,
        };
        let rows = Arc::new(memory.clone());
        Store::over(rows, Path::new("shard-0000"), &Settings::default(), &options)
    }

    #[test]
    fn data_of_others_is_refused_and_an_empty_store_becomes_a_shard_only_where_it_may() {
        let memory = Memory::default();
        let refusal = |cluster: &str| open(&memory, cluster, false).expect_err("refused").to_string();
        assert!(refusal("shop").contains("SR0205"));
        assert!(memory.rows().is_empty());
        assert!(open(&memory, "shop", true).expect("created").was_created());
        assert!(refusal("else").contains("SR0202"));
        assert!(!open(&memory, "shop", false).expect("opens").was_created());
    }

    #[test]
    fn a_newer_format_is_refused() {
        let memory = Memory::default();
        open(&memory, "shop", true).expect("created");
        memory
            .write_rows(|rows| rows.put(tables::LOCAL, b"identity", vec![ROW_FORMAT + 1, 9, 9]))
            .expect("there is room");
        let message = open(&memory, "shop", false).expect_err("refused").to_string();
        assert!(message.contains("SR0203"), "{message}");
    }
}
