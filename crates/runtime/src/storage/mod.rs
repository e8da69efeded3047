//! The stored state of a shard, in whatever store its rows lie: whose it is, and what of it is kept.
//!
//! What the rows are, and how they are read and written by noun, is the partition's (`crates/partition/`). Synchronous,
//! and it decides nothing.

pub mod store;

use serde::{Deserialize, Serialize};

use saga_runner_partition::machine::Keep;
pub use saga_runner_partition::storage::{
    Batch, Decided, DecidedRow, HeldRow, Outdated, Reader, StorageError, WriteSet, backup, by_key, keys,
    listed, read, rows, tables, write,
};
pub use store::{OpenOptions, Ownership, Store};

/// Bounds of the stored state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Largest size of one shard's file, in bytes. Default 64 GiB; the file grows by 16 MiB at a time.
    pub max_bytes: u64,
    /// How long ended instances, their history and the tombstones of their keys are kept, where their saga does not say it
    /// (`keep_ended`). Default 7 days.
    pub keep_ended: crate::kernel::duration::Millis,
    /// Most ended instances that a shard keeps with their history, whatever their sagas say; tombstones stay for their time. Default
    /// 1,000,000.
    pub keep_ended_count: u64,
    /// Most dead letters that a shard keeps; beyond it the oldest are forgotten for which no instance waits.
    /// Default 100,000.
    pub keep_dead_letters: u64,
    /// Largest input that is kept with the history of its instance, in bytes as it is stored, compressed; 0 keeps none. Of larger ones the
    /// history has what their stream still has. Default 64 KiB.
    pub keep_input_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let keep = Keep::default();
        Self {
            max_bytes: 64 << 30,
            keep_ended: keep.ended,
            keep_ended_count: keep.ended_count,
            keep_dead_letters: keep.dead_letters,
            keep_input_bytes: keep.input_bytes,
        }
    }
}

impl Settings {
    /// What is kept of what has ended.
    #[must_use]
    pub const fn keep(&self) -> Keep {
        Keep {
            ended: self.keep_ended,
            ended_count: self.keep_ended_count,
            dead_letters: self.keep_dead_letters,
            input_bytes: self.keep_input_bytes,
        }
    }
}
