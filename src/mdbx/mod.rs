//! REMEMBERS on disk. One MDBX environment per shard: a checksum on every value, one transaction across all tables.
//!
//! Whose the rows are is said by [`crate::storage`]; what they are, by the partition (`crates/partition/`). Synchronous,
//! and it decides nothing.

pub mod environment;
#[cfg(test)]
mod open_tests;
mod raw;
#[cfg(test)]
mod shard_tests;
#[cfg(test)]
mod stores_tests;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use environment::Environment;

use crate::storage::{OpenOptions, Settings, StorageError, Store, tables};

/// The file of a shard, in its folder.
const FILE: &str = "mdbx.dat";

/// Opens the shard in `dir`.
///
/// # Errors
/// [`StorageError`] says why the folder is refused: locked, foreign, newer, or unexpectedly empty.
pub fn open(dir: &Path, settings: &Settings, options: &OpenOptions) -> Result<Store, StorageError> {
    let empty = !dir.join(FILE).exists();
    if empty && !options.create {
        return Err(StorageError::Missing(dir.to_owned()));
    }
    let environment = Environment::open(dir, tables::NAMES, settings.max_bytes)?;
    Store::over(Arc::new(environment), dir, settings, options)
}

/// Device and inode of the file of the shard in `dir`, none where there is none.
#[must_use]
pub fn file(dir: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(dir.join(FILE)).ok()?;
    Some((found.dev(), found.ino()))
}

/// What an error of MDBX means.
fn from_mdbx(error: libmdbx::Error) -> StorageError {
    use libmdbx::Error as Mdbx;
    const ENOSPC: i32 = 28;
    const EDQUOT: i32 = 122;
    match error {
        Mdbx::MapFull | Mdbx::UnableExtendMapsize | Mdbx::TxnFull | Mdbx::Other(ENOSPC | EDQUOT) => {
            StorageError::Full(error.to_string())
        }
        Mdbx::Corrupted
        | Mdbx::PageNotFound
        | Mdbx::CursorFull
        | Mdbx::Panic
        | Mdbx::Problem
        | Mdbx::Invalid
        | Mdbx::VersionMismatch
        | Mdbx::BadSign => StorageError::Corrupt(error.to_string()),
        other => StorageError::Failed(other.to_string()),
    }
}
