//! Transactions on the calling thread: the few calls into libmdbx that shards and the embedded broker need.
//!
//! The binding begins and commits every write transaction on a thread of its own. A shard that commits for every
//! step of a lone saga then waits for four switches of threads per commit, which costs more than its own work. A
//! shard and the writer of the broker have a thread already, so they call the library themselves; all else stays with
//! the binding.
//!
//! The only unsafe code of the project beside an option of the allocator (`src/main.rs`). What makes it sound is said at each call; together it is this: a
//! transaction neither leaves its thread nor outlives its environment, a cursor does not outlive its
//! transaction, and all bytes are copied out before the next call.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::time::Duration;

use mdbx_sys as ffi;

use super::opening::{Error, File};

/// Handle of a table, valid as long as its environment. The library refuses one that it does not know.
pub type Handle = ffi::MDBX_dbi;

/// Bytes of a key or a value, as the library takes and gives them.
type Bytes = ffi::MDBX_val;

/// Kind of a transaction that may write.
#[derive(Debug)]
pub enum Write {}
/// Kind of a transaction that may only read.
#[derive(Debug)]
pub enum Read {}

/// Whether a transaction may write.
pub trait Access {
    const FLAGS: ffi::MDBX_txn_flags_t;
}

impl Access for Read {
    const FLAGS: ffi::MDBX_txn_flags_t = ffi::MDBX_TXN_RDONLY;
}

impl Access for Write {
    const FLAGS: ffi::MDBX_txn_flags_t = ffi::MDBX_TXN_READWRITE;
}

/// How a row is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// Inserted or replaced.
    Upsert,
    /// Inserted behind all others.
    Append,
}

/// An open transaction; dropped, it is given up.
pub struct Transaction<'env, K> {
    raw: NonNull<ffi::MDBX_txn>,
    environment: PhantomData<&'env File>,
    kind: PhantomData<K>,
}

impl<'env, K: Access> Transaction<'env, K> {
    /// Begins a transaction. The caller sees to it that at most one writes at a time: a second one on the same
    /// thread would wait for the first for ever.
    pub fn begin(database: &'env File) -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the environment is open for 'env, and `raw` is written before the call returns success.
        checked(unsafe {
            ffi::mdbx_txn_begin_ex(
                database.ptr().0,
                ptr::null_mut(),
                K::FLAGS,
                &raw mut raw,
                ptr::null_mut(),
            )
        })?;
        let raw = NonNull::new(raw).ok_or(Error::Problem)?;
        Ok(Self {
            raw,
            environment: PhantomData,
            kind: PhantomData,
        })
    }
}

impl<K> Transaction<'_, K> {
    /// The table of this name, which exists.
    pub fn table(&self, name: &str) -> Result<Handle, Error> {
        self.opened(name, ffi::MDBX_DB_DEFAULTS)
    }

    fn opened(&self, name: &str, flags: ffi::MDBX_db_flags_t) -> Result<Handle, Error> {
        let name = CString::new(name).map_err(|_| Error::NotFound)?;
        let mut table = 0;
        // SAFETY: the transaction is open, the name ends with a zero, and `table` is written before the call returns success.
        checked(unsafe { ffi::mdbx_dbi_open(self.raw.as_ptr(), name.as_ptr(), flags, &raw mut table) })?;
        Ok(table)
    }

    /// A copy of the value of a key.
    pub fn get(&self, table: Handle, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut found = NOTHING;
        // SAFETY: the transaction is open; the library only reads the key.
        let code = unsafe { ffi::mdbx_get(self.raw.as_ptr(), table, &borrowed(key), &raw mut found) };
        Ok(if present(code)? {
            // SAFETY: `found` is valid until the next write, which needs the caller to be back.
            Some(unsafe { copied(&found) })
        } else {
            None
        })
    }

    /// Number of rows, which the table's root knows.
    pub fn rows(&self, table: Handle) -> Result<u64, Error> {
        let mut stat = MaybeUninit::<ffi::MDBX_stat>::zeroed();
        // SAFETY: the transaction is open, and the size given is that of what is written to.
        checked(unsafe {
            ffi::mdbx_dbi_stat(
                self.raw.as_ptr(),
                table,
                stat.as_mut_ptr(),
                size_of::<ffi::MDBX_stat>(),
            )
        })?;
        // SAFETY: all of it is numbers, for which zeroes are valid, too.
        Ok(unsafe { stat.assume_init() }.ms_entries)
    }

    pub fn cursor(&self, table: Handle) -> Result<Cursor<'_, K>, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the transaction is open, and `raw` is written before the call returns success.
        checked(unsafe { ffi::mdbx_cursor_open(self.raw.as_ptr(), table, &raw mut raw) })?;
        let raw = NonNull::new(raw).ok_or(Error::Problem)?;
        Ok(Cursor {
            raw,
            transaction: PhantomData,
        })
    }
}

impl Transaction<'_, Write> {
    /// Makes everything written durable at once.
    pub fn commit(self) -> Result<(), Error> {
        self.commit_into(None)
    }

    /// The same; how long it took to write the pages to the disk and to sync them, to 15 µs.
    ///
    /// The library writes the pages of a small commit through to the disk, so that writing them is syncing them: only the sum of both
    /// says how long the disk was waited for.
    pub fn commit_measured(self) -> Result<Duration, Error> {
        let mut latency = MaybeUninit::zeroed();
        self.commit_into(Some(&mut latency))?;
        // SAFETY: all of it is numbers, for which zeroes are valid, too.
        let latency = unsafe { latency.assume_init() };
        Ok(fractions(latency.write) + fractions(latency.sync))
    }

    /// Commits, and writes to `latency` how long the parts of it took.
    fn commit_into(self, latency: Option<&mut MaybeUninit<ffi::MDBX_commit_latency>>) -> Result<(), Error> {
        // The call ends the transaction, whatever it answers; the one exception, a call from another thread,
        // cannot happen, since a transaction cannot be sent to one.
        let raw = self.raw;
        std::mem::forget(self);
        let latency = latency.map_or(ptr::null_mut(), MaybeUninit::as_mut_ptr);
        // SAFETY: `raw` is open, and nothing uses it afterwards; `latency` is null, or has room for what is written.
        checked(unsafe { ffi::mdbx_txn_commit_ex(raw.as_ptr(), latency) })
    }

    /// The table of this name, made where it does not exist. Until the commit it is there for this transaction only.
    pub fn made_table(&self, name: &str) -> Result<Handle, Error> {
        self.opened(name, ffi::MDBX_CREATE)
    }

    /// Deletes all rows of a table.
    pub fn clear(&self, table: Handle) -> Result<(), Error> {
        // SAFETY: the transaction is open; the table is emptied, and its handle stays.
        checked(unsafe { ffi::mdbx_drop(self.raw.as_ptr(), table, false) })
    }

    pub fn put(&self, table: Handle, key: &[u8], value: &[u8], how: Put) -> Result<(), Error> {
        checked(self.put_as(table, key, value, how.flags()))
    }

    /// Inserts a row where the key has none; whether it had none.
    pub fn insert(&self, table: Handle, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        match self.put_as(table, key, value, ffi::MDBX_NOOVERWRITE) {
            ffi::MDBX_KEYEXIST => Ok(false),
            code => checked(code).map(|()| true),
        }
    }

    fn put_as(&self, table: Handle, key: &[u8], value: &[u8], flags: ffi::MDBX_put_flags_t) -> c_int {
        let mut value = borrowed(value);
        // SAFETY: the transaction is open; without RESERVE or MULTIPLE the library only reads key and value, and gives at
        // most the place of another value, which nobody reads.
        unsafe { ffi::mdbx_put(self.raw.as_ptr(), table, &borrowed(key), &raw mut value, flags) }
    }

    /// Puts a value that consists of two parts, each of which is copied once.
    pub fn put_parts(&self, table: Handle, key: &[u8], parts: [&[u8]; 2], how: Put) -> Result<(), Error> {
        let [first, second] = parts;
        let mut room = Bytes {
            iov_base: ptr::null_mut(),
            iov_len: first.len() + second.len(),
        };
        let flags = how.flags() | ffi::MDBX_RESERVE;
        // SAFETY: the transaction is open; with RESERVE the library reads only the length of the value, and writes the place
        // that it has reserved for as many bytes to `room`.
        checked(unsafe { ffi::mdbx_put(self.raw.as_ptr(), table, &borrowed(key), &raw mut room, flags) })?;
        let place = room.iov_base.cast::<u8>();
        // SAFETY: the place has room for both parts and overlaps with neither, which are not of this transaction: it gives
        // copies only. It is valid until the next write, which needs this call to be back.
        unsafe {
            ptr::copy_nonoverlapping(first.as_ptr(), place, first.len());
            ptr::copy_nonoverlapping(second.as_ptr(), place.add(first.len()), second.len());
        }
        Ok(())
    }

    /// Deletes a row; whether there was one.
    pub fn delete(&self, table: Handle, key: &[u8]) -> Result<bool, Error> {
        // SAFETY: the transaction is open; without a value to compare with, the row of the key is deleted.
        present(unsafe { ffi::mdbx_del(self.raw.as_ptr(), table, &borrowed(key), ptr::null()) })
    }
}

impl Put {
    const fn flags(self) -> ffi::MDBX_put_flags_t {
        match self {
            Self::Upsert => ffi::MDBX_UPSERT,
            Self::Append => ffi::MDBX_APPEND,
        }
    }
}

impl<K> Drop for Transaction<'_, K> {
    fn drop(&mut self) {
        // SAFETY: it is open: a commit does not drop. There is nobody to tell of an error; nothing was made durable.
        let _code = unsafe { ffi::mdbx_txn_abort_ex(self.raw.as_ptr(), ptr::null_mut()) };
    }
}

/// A place in a table, in the order of its keys.
pub struct Cursor<'txn, K> {
    raw: NonNull<ffi::MDBX_cursor>,
    transaction: PhantomData<&'txn Transaction<'txn, K>>,
}

/// Copies of a key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

impl<K> Cursor<'_, K> {
    pub fn first(&mut self) -> Result<Option<Row>, Error> {
        self.go(NOTHING, ffi::MDBX_FIRST)
    }

    pub fn next(&mut self) -> Result<Option<Row>, Error> {
        self.go(NOTHING, ffi::MDBX_NEXT)
    }

    pub fn last(&mut self) -> Result<Option<Row>, Error> {
        self.go(NOTHING, ffi::MDBX_LAST)
    }

    pub fn previous(&mut self) -> Result<Option<Row>, Error> {
        self.go(NOTHING, ffi::MDBX_PREV)
    }

    /// The first row at or behind `key`.
    pub fn at_or_behind(&mut self, key: &[u8]) -> Result<Option<Row>, Error> {
        self.go(borrowed(key), ffi::MDBX_SET_RANGE)
    }

    fn go(&mut self, mut key: Bytes, to: ffi::MDBX_cursor_op) -> Result<Option<Row>, Error> {
        let mut value = NOTHING;
        // SAFETY: cursor and transaction are open; the library reads the bytes of the key, and replaces only where
        // `key` and `value` point to.
        let code = unsafe { ffi::mdbx_cursor_get(self.raw.as_ptr(), &raw mut key, &raw mut value, to) };
        Ok(if present(code)? {
            // SAFETY: both are valid until the next write, which needs the caller to be back.
            Some(unsafe { (copied(&key), copied(&value)) })
        } else {
            None
        })
    }
}

impl Cursor<'_, Write> {
    /// Deletes the row where it is.
    pub fn delete(&mut self) -> Result<(), Error> {
        // SAFETY: cursor and transaction are open, and no place in a page is kept by anyone.
        checked(unsafe { ffi::mdbx_cursor_del(self.raw.as_ptr(), ffi::MDBX_CURRENT) })
    }
}

impl<K> Drop for Cursor<'_, K> {
    fn drop(&mut self) {
        // SAFETY: it is open, and its transaction as well, which it borrows.
        unsafe { ffi::mdbx_cursor_close(self.raw.as_ptr()) };
    }
}

const NOTHING: Bytes = Bytes {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

const fn borrowed(bytes: &[u8]) -> Bytes {
    Bytes {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// # Safety
/// `bytes` must be what the library gave, and still be valid.
unsafe fn copied(bytes: &Bytes) -> Vec<u8> {
    if bytes.iov_len == 0 {
        return Vec::new();
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(bytes.iov_base.cast::<u8>(), bytes.iov_len) }.to_vec()
}

/// The library counts time in parts of 1/65,536 s.
fn fractions(count: u32) -> Duration {
    Duration::from_nanos(u64::from(count) * 1_000_000_000 / 65_536)
}

fn checked(code: c_int) -> Result<(), Error> {
    match code {
        // The second one says that there was nothing to commit.
        ffi::MDBX_SUCCESS | ffi::MDBX_RESULT_TRUE => Ok(()),
        code => Err(Error::from_err_code(code)),
    }
}

/// Whether there is what was looked for.
fn present(code: c_int) -> Result<bool, Error> {
    match code {
        ffi::MDBX_NOTFOUND => Ok(false),
        code => checked(code).map(|()| true),
    }
}
