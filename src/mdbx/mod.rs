//! REMEMBERS on disk. One MDBX environment per shard: a checksum on every value, one transaction across all tables.
//!
//! Whose the rows are is said by [`crate::storage`]; what they are, by the partition (`crates/partition/`). Synchronous,
//! and it decides nothing.

mod applying;
pub mod environment;
#[cfg(test)]
mod open_tests;
pub mod opening;
pub(crate) mod raw;
#[cfg(test)]
mod shard_tests;
#[cfg(test)]
mod stores_tests;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use environment::Environment;
use opening::Meaning;

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

/// Bytes of the file of the shard in `dir`, none where there is none.
#[must_use]
pub fn size(dir: &Path) -> Option<u64> {
    Some(std::fs::metadata(dir.join(FILE)).ok()?.len())
}

#[allow(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn from_mdbx(error: opening::Error) -> StorageError {
    let text = error.to_string();
    match opening::meaning(&error) {
        Meaning::Full => StorageError::Full(text),
        Meaning::Corrupt => StorageError::Corrupt(text),
        Meaning::Other => StorageError::Failed(text),
    }
}
