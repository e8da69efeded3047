//! Transactions on the calling thread: the few calls into libmdbx that a [`super::environment::View`] needs.
//!
//! The binding begins and commits every write transaction on a thread of its own. A shard that commits for every
//! step of a lone saga then waits for four switches of threads per commit, which costs more than its own work. A
//! shard has a thread already, so it calls the library itself; all else stays with the binding.
//!
//! The only unsafe code of the project. What makes it sound is said at each call; together it is this: a
//! transaction neither leaves its thread nor outlives its environment, a cursor does not outlive its
//! transaction, and all bytes are copied out before the next call.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use libmdbx::{Database, Error, NoWriteMap};
use mdbx_sys as ffi;

/// Handle of a table, valid as long as its environment.
pub(super) type Handle = ffi::MDBX_dbi;

/// Bytes of a key or a value, as the library takes and gives them.
type Bytes = ffi::MDBX_val;

/// Whether a transaction may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// How a row is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    /// Inserted or replaced.
    Upsert,
    /// Inserted behind all others.
    Append,
}

/// An open transaction; dropped, it is given up.
pub(super) struct Transaction<'env> {
    raw: NonNull<ffi::MDBX_txn>,
    environment: PhantomData<&'env Database<NoWriteMap>>,
}

impl<'env> Transaction<'env> {
    /// Begins a transaction. The caller sees to it that at most one writes at a time: a second one on the same
    /// thread would wait for the first for ever.
    pub fn begin(database: &'env Database<NoWriteMap>, access: Access) -> Result<Self, Error> {
        let flags = match access {
            Access::Read => ffi::MDBX_TXN_RDONLY,
            Access::Write => ffi::MDBX_TXN_READWRITE,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the environment is open for 'env, and `raw` is written before the call returns success.
        checked(unsafe {
            ffi::mdbx_txn_begin_ex(
                database.ptr().0,
                ptr::null_mut(),
                flags,
                &raw mut raw,
                ptr::null_mut(),
            )
        })?;
        let raw = NonNull::new(raw).ok_or(Error::Problem)?;
        Ok(Self {
            raw,
            environment: PhantomData,
        })
    }

    /// Makes everything written durable at once.
    pub fn commit(self) -> Result<(), Error> {
        // The call ends the transaction, whatever it answers; the one exception, a call from another thread,
        // cannot happen, since a transaction cannot be sent to one.
        let raw = self.raw;
        std::mem::forget(self);
        // SAFETY: `raw` is open, and nothing uses it afterwards.
        checked(unsafe { ffi::mdbx_txn_commit_ex(raw.as_ptr(), ptr::null_mut()) })
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

    pub fn put(&self, table: Handle, key: &[u8], value: &[u8], how: Put) -> Result<(), Error> {
        let flags = match how {
            Put::Upsert => ffi::MDBX_UPSERT,
            Put::Append => ffi::MDBX_APPEND,
        };
        let mut value = borrowed(value);
        // SAFETY: the transaction is open; without RESERVE or MULTIPLE the library only reads key and value.
        checked(unsafe { ffi::mdbx_put(self.raw.as_ptr(), table, &borrowed(key), &raw mut value, flags) })
    }

    /// Deletes a row; whether there was one.
    pub fn delete(&self, table: Handle, key: &[u8]) -> Result<bool, Error> {
        // SAFETY: the transaction is open; without a value to compare with, the row of the key is deleted.
        present(unsafe { ffi::mdbx_del(self.raw.as_ptr(), table, &borrowed(key), ptr::null()) })
    }

    /// Number of rows, which the table's root knows.
    pub fn rows(&self, table: Handle) -> Result<u64, Error> {
        let mut stat = std::mem::MaybeUninit::<ffi::MDBX_stat>::zeroed();
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

    pub fn cursor(&self, table: Handle) -> Result<Cursor<'_>, Error> {
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

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // SAFETY: it is open: a commit does not drop. There is nobody to tell of an error; nothing was made durable.
        let _code = unsafe { ffi::mdbx_txn_abort_ex(self.raw.as_ptr(), ptr::null_mut()) };
    }
}

/// A place in a table, in the order of its keys.
pub(super) struct Cursor<'txn> {
    raw: NonNull<ffi::MDBX_cursor>,
    transaction: PhantomData<&'txn Transaction<'txn>>,
}

/// Copies of a key and its value.
pub(super) type Row = (Vec<u8>, Vec<u8>);

impl Cursor<'_> {
    pub fn first(&mut self) -> Result<Option<Row>, Error> {
        self.go(NOTHING, ffi::MDBX_FIRST)
    }

    pub fn next(&mut self) -> Result<Option<Row>, Error> {
        self.go(NOTHING, ffi::MDBX_NEXT)
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

impl Drop for Cursor<'_> {
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
