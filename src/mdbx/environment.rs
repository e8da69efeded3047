//! One MDBX environment: opened exclusively, durable commits, named tables, values with checksums.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libmdbx::TableFlags;

use saga_runner_partition::storage::rows::Suspect;
use saga_runner_partition::storage::{
    ReadRows, ReadWork, Snapshots, StorageError, TableIndex, Take, Transactions, Undone, WriteRows, WriteWork,
};

use super::applying::Applying;
use super::from_mdbx;
use super::opening::{self, Bounds, Error, File, Refusal};
use super::raw::{Cursor, Handle, Put, Read, Transaction, Write};

/// Bytes of the checksum behind every value.
const CHECKSUM_BYTES: usize = 4;
/// Readers at the same time.
const READERS_MAX: u32 = 126;
const TABLES_MAX: u64 = 32;

/// An open environment.
#[derive(Debug)]
pub struct Environment {
    database: File,
    tables: &'static [&'static str],
    handles: Vec<Handle>,
    /// Held while a transaction writes; has how long the last commit waited for the disk.
    writer: Mutex<Option<Duration>>,
    applying: Applying,
}

impl Environment {
    /// Opens or creates the environment in `dir` and its tables.
    ///
    /// # Errors
    /// [`StorageError::Locked`] where any process (this one included) has it open.
    pub fn open(dir: &Path, tables: &'static [&'static str], max_bytes: u64) -> Result<Self, StorageError> {
        let bounds = Bounds {
            bytes_max: max_bytes,
            tables_max: TABLES_MAX,
            readers_max: READERS_MAX,
        };
        let database = opening::open(dir, bounds).map_err(|refusal| match refusal {
            Refusal::Folder(error) => StorageError::Failed(format!("{}: {error}", dir.display())),
            Refusal::Locked => StorageError::Locked(dir.to_owned()),
            Refusal::Store(error) => from_mdbx(error),
        })?;
        create_tables(&database, tables).map_err(from_mdbx)?;
        Ok(Self {
            handles: permanent_handles(&database, tables).map_err(from_mdbx)?,
            database,
            tables,
            writer: Mutex::default(),
            applying: Applying::open(dir)?,
        })
    }

    /// Runs `work` in one write transaction and commits it durably; an error aborts it and nothing remains.
    ///
    /// # Errors
    /// What `work` gives, or what the commit meets.
    pub fn write<R, E: From<StorageError>>(
        &self,
        work: impl FnOnce(&Writing<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        // Whoever panicked with it has given up its transaction.
        let mut waited = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = Transaction::begin(&self.database).map_err(from_mdbx)?;
        let result = work(&View::of(self, &transaction))?;
        *waited = Some(transaction.commit_measured().map_err(from_mdbx)?);
        Ok(result)
    }

    /// Runs `work` on one consistent view. Keep it short: a long reader makes the file grow.
    ///
    /// # Errors
    /// What `work` gives.
    pub fn read<R>(
        &self,
        work: impl FnOnce(&Reading<'_>) -> Result<R, StorageError>,
    ) -> Result<R, StorageError> {
        let transaction = Transaction::begin(&self.database).map_err(from_mdbx)?;
        work(&View::of(self, &transaction))
    }
}

fn create_tables(database: &File, names: &[&str]) -> Result<(), Error> {
    let transaction = database.begin_rw_txn()?;
    for name in names {
        transaction.create_table(Some(name), TableFlags::default())?;
    }
    transaction.commit()?;
    Ok(())
}

/// Handles of the tables that stay valid as long as the environment is open.
fn permanent_handles(database: &File, names: &[&str]) -> Result<Vec<Handle>, Error> {
    let transaction = database.begin_ro_txn()?;
    let mut handles = Vec::with_capacity(names.len());
    for name in names {
        let table = transaction.open_table(Some(name))?;
        handles.push(table.dbi());
        transaction.prime_for_permaopen(table);
    }
    transaction.commit_and_rebind_open_dbs()?;
    Ok(handles)
}

/// A view inside a transaction.
pub struct View<'t, K> {
    environment: &'t Environment,
    transaction: &'t Transaction<'t, K>,
}

pub type Writing<'t> = View<'t, Write>;
pub type Reading<'t> = View<'t, Read>;

impl<'t, K> View<'t, K> {
    const fn of(environment: &'t Environment, transaction: &'t Transaction<'t, K>) -> Self {
        Self {
            environment,
            transaction,
        }
    }

    fn cursor(&self, table: TableIndex) -> Result<Cursor<'_, K>, StorageError> {
        self.transaction.cursor(self.handle(table)).map_err(from_mdbx)
    }

    fn handle(&self, table: TableIndex) -> Handle {
        self.environment.handles[table]
    }

    fn checked(&self, table: TableIndex, key: &[u8], mut framed: Vec<u8>) -> Result<Vec<u8>, StorageError> {
        let corrupt =
            || StorageError::Corrupt(format!("a value of table {}", self.environment.tables[table]));
        let at = framed.len().checked_sub(CHECKSUM_BYTES).ok_or_else(corrupt)?;
        let stored = framed.split_off(at);
        if checksum(key, &framed).to_le_bytes() == stored.as_slice() {
            Ok(framed)
        } else {
            Err(corrupt())
        }
    }
}

impl<K> ReadRows for View<'_, K> {
    fn get(&self, table: TableIndex, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        match self.transaction.get(self.handle(table), key).map_err(from_mdbx)? {
            Some(framed) => self.checked(table, key, framed).map(Some),
            None => Ok(None),
        }
    }

    fn count(&self, table: TableIndex) -> Result<u64, StorageError> {
        self.transaction.rows(self.handle(table)).map_err(from_mdbx)
    }

    fn scan(&self, table: TableIndex, from: &[u8], take: &mut Take<'_>) -> Result<(), StorageError> {
        let mut cursor = self.cursor(table)?;
        let mut row = if from.is_empty() {
            cursor.first()
        } else {
            cursor.at_or_behind(from)
        }
        .map_err(from_mdbx)?;
        while let Some((key, framed)) = row {
            let value = self.checked(table, &key, framed)?;
            if !take(&key, value)? {
                return Ok(());
            }
            row = cursor.next().map_err(from_mdbx)?;
        }
        Ok(())
    }
}

impl Writing<'_> {
    fn write_row(
        &self,
        table: TableIndex,
        key: &[u8],
        mut value: Vec<u8>,
        how: Put,
    ) -> Result<(), StorageError> {
        let sum = checksum(key, &value);
        value.extend_from_slice(&sum.to_le_bytes());
        self.transaction
            .put(self.handle(table), key, &value, how)
            .map_err(from_mdbx)
    }
}

impl WriteRows for Writing<'_> {
    fn put(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError> {
        self.write_row(table, key, value, Put::Upsert)
    }

    /// The pages that it fills stay full.
    fn append(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError> {
        self.write_row(table, key, value, Put::Append)
    }

    fn delete(&self, table: TableIndex, key: &[u8]) -> Result<bool, StorageError> {
        self.transaction
            .delete(self.handle(table), key)
            .map_err(from_mdbx)
    }
}

impl Snapshots for Environment {
    fn read(&self, work: &mut ReadWork<'_>) -> Result<(), StorageError> {
        Self::read(self, |view| work(view))
    }
}

impl Transactions for Environment {
    fn transact(&self, work: &mut WriteWork<'_>) -> Result<(), StorageError> {
        Undone::answer(self.write(|view| work(view).carried_out()))
    }

    fn note_applying(&self, applying: Option<Suspect>) -> Result<(), StorageError> {
        self.applying.note(applying)
    }

    fn applying(&self) -> Option<Suspect> {
        self.applying.read()
    }

    fn last_sync(&self) -> Option<Duration> {
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// MDBX has no page checksums, so every value carries one over its key and itself.
fn checksum(key: &[u8], value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &[&str] = &["a", "b"];

    fn open(dir: &Path) -> Environment {
        Environment::open(dir, TABLES, 1 << 30).expect("opens")
    }

    #[test]
    fn committed_rows_are_there_after_reopening_and_failed_ones_are_not() {
        let dir = tempfile::tempdir().expect("folder");
        let environment = open(dir.path());
        environment
            .write::<_, StorageError>(|view| view.put(0, b"k", b"v".to_vec()))
            .expect("commits");
        let failed: Result<(), StorageError> = environment.write(|view| {
            view.put(0, b"k", b"other".to_vec())?;
            view.put(1, b"x", b"y".to_vec())?;
            Err(StorageError::Failed("no".to_owned()))
        });
        assert!(failed.is_err());
        drop(environment);
        let seen = open(dir.path())
            .read(|view| Ok((view.get(0, b"k")?, view.get(1, b"x")?, view.count(0)?)))
            .expect("reads");
        assert_eq!(seen, (Some(b"v".to_vec()), None, 1));
    }

    #[test]
    fn a_commit_tells_how_long_it_waited_for_the_disk_and_an_aborted_transaction_does_not() {
        let dir = tempfile::tempdir().expect("folder");
        let environment = open(dir.path());
        assert_eq!(environment.last_sync(), None);
        let aborted: Result<(), StorageError> = environment.write(|view| {
            view.put(0, b"k", b"v".to_vec())?;
            Err(StorageError::Failed("no".to_owned()))
        });
        assert!(aborted.is_err());
        assert_eq!(environment.last_sync(), None);
        environment
            .write::<_, StorageError>(|view| view.put(0, b"k", vec![7; 1 << 20]))
            .expect("commits");
        let waited = environment.last_sync().expect("it has committed");
        let plausible = Duration::from_micros(15)..Duration::from_mins(1);
        assert!(plausible.contains(&waited), "{waited:?}");
    }

    #[test]
    fn a_second_opener_is_refused() {
        let dir = tempfile::tempdir().expect("folder");
        let _first = open(dir.path());
        let second = Environment::open(dir.path(), TABLES, 1 << 30);
        assert!(matches!(second, Err(StorageError::Locked(_))), "{second:?}");
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let dir = tempfile::tempdir().expect("folder");
        let environment = open(dir.path());
        environment
            .write::<_, StorageError>(|view| {
                let mut framed = b"value".to_vec();
                framed.extend_from_slice(&checksum(b"k", b"value").to_le_bytes());
                framed[1] ^= 4;
                view.transaction
                    .put(view.handle(0), b"k", &framed, Put::Upsert)
                    .map_err(from_mdbx)
            })
            .expect("commits");
        let read = environment.read(|view| view.get(0, b"k"));
        assert!(matches!(read, Err(StorageError::Corrupt(_))), "{read:?}");
    }

    #[test]
    fn a_full_environment_says_so_and_works_again_after_deletes() {
        let dir = tempfile::tempdir().expect("folder");
        let environment = Environment::open(dir.path(), TABLES, 16 << 20).expect("opens");
        let chunk = vec![7_u8; 1 << 20];
        let mut written = 0_u32;
        let full = loop {
            let outcome: Result<(), StorageError> =
                environment.write(|view| view.put(0, &written.to_be_bytes(), chunk.clone()));
            match outcome {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, StorageError::Full(_)), "{full}");
        for number in 0..written / 2 {
            environment
                .write::<_, StorageError>(|view| view.delete(0, &number.to_be_bytes()).map(drop))
                .expect("deletes");
        }
        environment
            .write::<_, StorageError>(|view| view.put(0, b"again", chunk.clone()))
            .expect("there is room again");
    }
}
