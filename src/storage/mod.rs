//! REMEMBERS. One MDBX environment per shard: tables by noun, a checksum on every value, one transaction across
//! all of them.
//!
//! Synchronous, and it decides nothing: what a row means is the shard's business.

pub mod environment;
pub mod keys;
pub mod read;
pub mod rows;
pub mod store;
pub mod tables;
pub mod write;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use read::Reader;
pub use store::{OpenOptions, Store};
pub use write::Batch;

/// Bounds of the stored state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Largest size of one shard's file, in bytes. Default 64 GiB; the file grows by 16 MiB at a time.
    pub max_bytes: u64,
    /// How long ended instances and the tombstones of their keys are kept. Default 7 days.
    pub keep_ended: crate::kernel::duration::Millis,
    /// Most ended instances that a shard keeps. Default 1,000,000.
    pub keep_ended_count: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_bytes: 64 << 30,
            keep_ended: crate::kernel::duration::Millis(7 * 24 * 3_600_000),
            keep_ended_count: 1_000_000,
        }
    }
}

/// Why storage cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("{}: locked by another process [SR0201]", .0.display())]
    Locked(PathBuf),
    #[error("{}: belongs to {found}, expected {expected} [SR0202]", path.display())]
    Foreign {
        path: PathBuf,
        found: String,
        expected: String,
    },
    #[error("{}: has format {found}, this binary reads up to {newest} [SR0203]", path.display())]
    Newer { path: PathBuf, found: u8, newest: u8 },
    #[error(
        "{}: no data, but the cluster knows this shard; restore it, or remove cluster.json to start anew [SR0204]",
        .0.display()
    )]
    Missing(PathBuf),
    /// A checksum does not match, or pages are damaged. Never retried.
    #[error("stored data is corrupt: {0} [SR0205]")]
    Corrupt(String),
    /// No room. Reads and deletes still work; writes work again once there is room.
    #[error("storage is full: {0} [SR0206]")]
    Full(String),
    #[error("storage failed: {0} [SR0207]")]
    Failed(String),
}

impl From<libmdbx::Error> for StorageError {
    fn from(error: libmdbx::Error) -> Self {
        use libmdbx::Error as Mdbx;
        /// ENOSPC.
        const NO_SPACE: i32 = 28;
        match error {
            Mdbx::MapFull | Mdbx::UnableExtendMapsize | Mdbx::TxnFull | Mdbx::Other(NO_SPACE) => {
                Self::Full(error.to_string())
            }
            Mdbx::Corrupted
            | Mdbx::PageNotFound
            | Mdbx::CursorFull
            | Mdbx::Panic
            | Mdbx::Problem
            | Mdbx::Invalid => Self::Corrupt(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}
