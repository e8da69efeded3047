//! What a store cannot do.

use std::path::PathBuf;

/// Why storage cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("{}: in use by another process; stop it: a shard has one owner [SR0201]", .0.display())]
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
        "{}: no data, but the cluster knows this shard; mount or restore it [SR0205]",
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
