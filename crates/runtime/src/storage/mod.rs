//! The stored state of a shard, in whatever store its rows lie: whose it is, and what of it is kept.
//!
//! What the rows are, and how they are read and written by noun, is the partition's (`crates/partition/`). Synchronous,
//! and it decides nothing.

pub mod store;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::kernel::ids::TenantId;

use saga_runner_partition::machine::Keep;
pub use saga_runner_partition::machine::TenantKeep;
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
    /// How long ended instances, their history and the tombstones of their keys are kept, where neither their saga (`keep_ended`)
    /// nor their tenant says it. Default 7 days.
    pub keep_ended: crate::kernel::duration::Millis,
    /// Most ended instances that a shard keeps with their history, whatever their sagas say; tombstones stay for their time. Default
    /// 1,000,000.
    pub keep_ended_count: u64,
    /// Most dead letters that a shard keeps; beyond it the oldest are forgotten for which no instance waits.
    /// Default 100,000.
    pub keep_dead_letters: u64,
    /// What tenants have in place of `keep_ended` and within `keep_ended_count`, by their names. Default: nothing.
    pub tenants: BTreeMap<TenantId, TenantKeep>,
}

impl Default for Settings {
    fn default() -> Self {
        let keep = Keep::default();
        Self {
            max_bytes: 64 << 30,
            keep_ended: keep.ended,
            keep_ended_count: keep.ended_count,
            keep_dead_letters: keep.dead_letters,
            tenants: keep.tenants,
        }
    }
}

impl Settings {
    /// What is kept of what has ended.
    #[must_use]
    pub fn keep(&self) -> Keep {
        Keep {
            ended: self.keep_ended,
            ended_count: self.keep_ended_count,
            dead_letters: self.keep_dead_letters,
            tenants: self.tenants.clone(),
        }
    }
}
