//! A store in memory: transactions as MDBX has them, with its bounds, and nothing that outlives the process.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Bound, Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::rows::Suspect;
use super::tables::NAMES;
use super::{
    Batch, ReadRows, ReadWork, Reader, Row, Snapshots, StorageError, TableIndex, Take, Transactions, Undone,
    WriteRows, WriteWork,
};

/// Longest key, in bytes: that of MDBX with pages of 4 KiB.
const KEY_BYTES_MAX: usize = 2_022;

type Table = BTreeMap<Vec<u8>, Vec<u8>>;

/// Rows in memory. Clones are other handles of the same rows.
#[derive(Debug, Clone)]
pub struct Memory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    tables: Mutex<Tables>,
    /// The thread that has the lock, 0 where none has.
    holder: AtomicUsize,
    applying: Mutex<Option<Suspect>>,
}

impl Shared {
    const fn of(tables: Tables, applying: Option<Suspect>) -> Self {
        Self {
            tables: Mutex::new(tables),
            holder: AtomicUsize::new(0),
            applying: Mutex::new(applying),
        }
    }
}

#[derive(Debug)]
struct Tables {
    by_index: Vec<Table>,
    /// Bytes of all keys and values.
    bytes: usize,
    bytes_max: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self::bounded(usize::MAX)
    }
}

impl Memory {
    /// A store for at most `bytes_max` bytes of keys and values.
    #[must_use]
    pub fn bounded(bytes_max: usize) -> Self {
        let tables = Tables {
            by_index: vec![Table::new(); NAMES.len()],
            bytes: 0,
            bytes_max,
        };
        Self(Arc::new(Shared::of(tables, None)))
    }

    /// A store of its own with the same rows.
    #[must_use]
    pub fn copy(&self) -> Self {
        let held = self.lock().expect("nobody copies a store within a transaction");
        let tables = Tables {
            by_index: held.by_index.clone(),
            bytes: held.bytes,
            bytes_max: held.bytes_max,
        };
        Self(Arc::new(Shared::of(tables, self.applying())))
    }

    /// Every row, by table and key.
    #[must_use]
    pub fn rows(&self) -> Vec<(TableIndex, Row)> {
        super::rows_of(self).expect("rows in memory are whole")
    }

    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::new(self.clone()))
    }

    /// Runs `work` in one transaction; an error, or a panic, leaves nothing.
    ///
    /// # Errors
    /// What `work` gives; [`StorageError::Failed`] within another transaction of the same thread.
    pub fn write<R, E: From<StorageError>>(
        &self,
        work: impl FnOnce(&Batch<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.write_rows(|rows| work(&Batch::new(rows)))
    }

    /// As [`Memory::write`], by rows.
    ///
    /// # Errors
    /// What `work` gives.
    pub fn write_rows<R, E: From<StorageError>>(
        &self,
        work: impl FnOnce(&dyn WriteRows) -> Result<R, E>,
    ) -> Result<R, E> {
        let transaction = Transaction {
            tables: RefCell::new(self.lock()?),
            undo: RefCell::default(),
        };
        let result = work(&transaction)?;
        // What was written stays.
        transaction.undo.borrow_mut().clear();
        Ok(result)
    }

    /// Waits for other threads. MDBX lets a thread read within its transaction what was committed before; here that would be a
    /// wait without end, so it is refused.
    fn lock(&self) -> Result<Held<'_>, StorageError> {
        let Shared { tables, holder, .. } = &*self.0;
        // Whoever panicked with it has given up its transaction.
        let guard = match tables.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) if holder.load(Ordering::Relaxed) == this_thread() => {
                return Err(StorageError::Failed(
                    "a thread reads or writes a store in memory within its own transaction".to_owned(),
                ));
            }
            Err(TryLockError::WouldBlock) => tables.lock().unwrap_or_else(PoisonError::into_inner),
        };
        holder.store(this_thread(), Ordering::Relaxed);
        Ok(Held { guard, holder })
    }
}

/// What no other thread that lives has, and is not 0.
fn this_thread() -> usize {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| ptr::from_ref(here).addr())
}

/// The tables, locked.
struct Held<'m> {
    guard: MutexGuard<'m, Tables>,
    holder: &'m AtomicUsize,
}

impl Deref for Held<'_> {
    type Target = Tables;

    fn deref(&self) -> &Tables {
        &self.guard
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Tables {
        &mut self.guard
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Before it is unlocked.
        self.holder.store(0, Ordering::Relaxed);
    }
}

impl Snapshots for Memory {
    fn read(&self, work: &mut ReadWork<'_>) -> Result<(), StorageError> {
        work(&*self.lock()?)
    }
}

impl Transactions for Memory {
    fn transact(&self, work: &mut WriteWork<'_>) -> Result<(), StorageError> {
        Undone::answer(self.write_rows(|rows| work(rows).carried_out()))
    }

    fn note_applying(&self, applying: Option<Suspect>) -> Result<(), StorageError> {
        *self.0.applying.lock().unwrap_or_else(PoisonError::into_inner) = applying;
        Ok(())
    }

    fn applying(&self) -> Option<Suspect> {
        *self.0.applying.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadRows for Tables {
    fn get(&self, table: TableIndex, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.by_index[table].get(key).cloned())
    }

    fn count(&self, table: TableIndex) -> Result<u64, StorageError> {
        Ok(self.by_index[table].len() as u64)
    }

    fn scan(&self, table: TableIndex, from: &[u8], take: &mut Take<'_>) -> Result<(), StorageError> {
        let range = (Bound::Included(from), Bound::Unbounded);
        for (key, value) in self.by_index[table].range::<[u8], _>(range) {
            if !take(key, value.clone())? {
                break;
            }
        }
        Ok(())
    }
}

/// An open transaction that writes; dropped before its rows are accepted, it takes them back.
struct Transaction<'m> {
    tables: RefCell<Held<'m>>,
    /// What stood there before, the first change first.
    undo: RefCell<Vec<Changed>>,
}

/// Table, key, and the value before.
type Changed = (TableIndex, Vec<u8>, Option<Vec<u8>>);

impl Tables {
    fn set(&mut self, table: TableIndex, key: &[u8], value: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let size = |value: &Vec<u8>| key.len() + value.len();
        self.bytes += value.as_ref().map_or(0, size);
        let before = match value {
            Some(value) => self.by_index[table].insert(key.to_vec(), value),
            None => self.by_index[table].remove(key),
        };
        self.bytes -= before.as_ref().map_or(0, size);
        before
    }
}

impl ReadRows for Transaction<'_> {
    fn get(&self, table: TableIndex, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.tables.borrow().get(table, key)
    }

    fn count(&self, table: TableIndex) -> Result<u64, StorageError> {
        self.tables.borrow().count(table)
    }

    fn scan(&self, table: TableIndex, from: &[u8], take: &mut Take<'_>) -> Result<(), StorageError> {
        self.tables.borrow().scan(table, from, take)
    }
}

impl WriteRows for Transaction<'_> {
    fn put(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(StorageError::Failed(format!("a key of {} bytes", key.len())));
        }
        let mut tables = self.tables.borrow_mut();
        let more = key.len() + value.len();
        let before = tables.by_index[table]
            .get(key)
            .map_or(0, |before| key.len() + before.len());
        if tables.bytes.saturating_sub(before).saturating_add(more) > tables.bytes_max {
            return Err(StorageError::Full(format!("at most {} bytes", tables.bytes_max)));
        }
        let before = tables.set(table, key, Some(value));
        self.undo.borrow_mut().push((table, key.to_vec(), before));
        Ok(())
    }

    fn append(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError> {
        let is_last = match self.tables.borrow().by_index[table].last_key_value() {
            Some((last, _)) => last.as_slice() <= key,
            None => true,
        };
        if !is_last {
            return Err(StorageError::Failed("the key is not the last one".to_owned()));
        }
        self.put(table, key, value)
    }

    fn delete(&self, table: TableIndex, key: &[u8]) -> Result<bool, StorageError> {
        let before = self.tables.borrow_mut().set(table, key, None);
        let existed = before.is_some();
        if existed {
            self.undo.borrow_mut().push((table, key.to_vec(), before));
        }
        Ok(existed)
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        let undo = self.undo.take();
        let tables = self.tables.get_mut();
        for (table, key, before) in undo.into_iter().rev() {
            tables.set(table, &key, before);
        }
    }
}
