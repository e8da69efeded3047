//! REMEMBERS. One MDBX environment per shard: tables by noun, a checksum on every value, one transaction across
//! all of them.
//!
//! Synchronous, and it decides nothing: what a row means is the shard's business.

pub mod environment;
pub mod keys;
mod raw;
pub mod read;
pub mod rows;
pub mod store;
pub mod tables;
#[cfg(test)]
mod tests;
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
    /// How long ended instances, their history and the tombstones of their keys are kept. Default 7 days.
    pub keep_ended: crate::kernel::duration::Millis,
    /// Most ended instances that a shard keeps with their history; tombstones stay for their time. Default
    /// 1,000,000.
    pub keep_ended_count: u64,
    /// Most dead letters that a shard keeps; beyond it the oldest are forgotten for which no instance waits.
    /// Default 100,000.
    pub keep_dead_letters: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_bytes: 64 << 30,
            keep_ended: crate::kernel::duration::Millis(7 * 24 * 3_600_000),
            keep_ended_count: 1_000_000,
            keep_dead_letters: 100_000,
        }
    }
}

/// Why storage cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("{}: in use by another process; stop it, or choose another data_dir [SR0201]", .0.display())]
    Locked(PathBuf),
    #[error(
        "{}: belongs to cluster {found}, this is {expected}; correct `cluster` or `data_dir` [SR0202]",
        path.display()
    )]
    Foreign {
        path: PathBuf,
        found: String,
        expected: String,
    },
    #[error(
        "{}: has format {found}, this binary reads up to {newest}; use a newer saga-runner [SR0203]",
        path.display()
    )]
    Newer { path: PathBuf, found: u8, newest: u8 },
    #[error(
        "{}: is shard {found}, expected shard {expected}; the number of shards is fixed when the data is \
         created [SR0204]",
        path.display()
    )]
    OtherShard {
        path: PathBuf,
        found: String,
        expected: String,
    },
    #[error(
        "{}: no data, but the cluster knows this shard; restore it, or remove cluster.json to start anew [SR0205]",
        .0.display()
    )]
    Missing(PathBuf),
    /// A checksum does not match, or pages are damaged. Never retried.
    #[error("stored data is corrupt: {0} [SR0206]")]
    Corrupt(String),
    /// No room. Reads and deletes still work; writes work again once there is room.
    #[error("storage is full: {0} [SR0207]")]
    Full(String),
    #[error("storage failed: {0} [SR0208]")]
    Failed(String),
}

impl StorageError {
    /// The stable reason code, as halted shards and metrics show it.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Locked(_) => "data.locked",
            Self::Foreign { .. } => "data.cluster",
            Self::Newer { .. } => "data.format",
            Self::OtherShard { .. } => "data.shard",
            Self::Missing(_) => "data.missing",
            Self::Corrupt(_) => "data.corrupt",
            Self::Full(_) => "data.full",
            Self::Failed(_) => "data.failed",
        }
    }
}

impl From<libmdbx::Error> for StorageError {
    fn from(error: libmdbx::Error) -> Self {
        use libmdbx::Error as Mdbx;
        const ENOSPC: i32 = 28;
        const EDQUOT: i32 = 122;
        match error {
            Mdbx::MapFull | Mdbx::UnableExtendMapsize | Mdbx::TxnFull | Mdbx::Other(ENOSPC | EDQUOT) => {
                Self::Full(error.to_string())
            }
            Mdbx::Corrupted
            | Mdbx::PageNotFound
            | Mdbx::CursorFull
            | Mdbx::Panic
            | Mdbx::Problem
            | Mdbx::Invalid
            | Mdbx::VersionMismatch
            | Mdbx::BadSign => Self::Corrupt(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}
