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
    Batch, Decided, DecidedRow, HeldRow, Outdated, Reader, StorageError, WriteSet, backup, by_key, earlier,
    kept, keys, listed, read, rows, tables, write,
};
pub use store::{OpenOptions, Ownership, Store};

/// Least entries that a history may be cut to: requests and jobs look for their own among so many.
pub const HISTORY_COUNT_MIN: u64 = 1_000;

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
    /// Most entries in the history of one instance; beyond it the oldest are deleted but the first, with what they carried. At least 1,000, and
    /// 0 keeps all. Default 10,000.
    pub keep_history_count: u64,
    /// Most dead letters that a shard keeps; beyond it the oldest are forgotten for which no instance waits.
    /// Default 100,000.
    pub keep_dead_letters: u64,
    /// Largest input that is kept with the history of its instance, in bytes as it is stored, compressed; 0 keeps none. Of larger ones the
    /// history has what their stream still has. Default 64 KiB.
    pub keep_input_bytes: u64,
    /// Work that one input has caused and that is kept with the history, in bytes as it is stored, compressed; 0 keeps none. Of more the
    /// history does not have what it carried. Default 64 KiB.
    pub keep_work_bytes: u64,
    /// What tenants have in place of `keep_ended` and within `keep_ended_count`, by their names. Default: nothing.
    pub tenants: BTreeMap<TenantId, TenantKeep>,
    /// Where ended instances are kept before they are deleted. Default: nowhere.
    pub archive: Option<ArchiveSettings>,
}

/// The archive of ended instances: a stream of the broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ArchiveSettings {
    /// Name of the stream. Default `WORKFLOW_ARCHIVE`.
    pub stream: String,
    /// How long an entry is kept. Default: without end.
    pub max_age: Option<crate::kernel::duration::Millis>,
    /// Size of the stream, in bytes, at which nothing more is archived, and so nothing deleted. Default: none.
    pub max_bytes: Option<u64>,
    /// Largest entry, in bytes, compressed: of a longer history the oldest part is left out. 16 KiB to 8 MiB. Default 768 KiB.
    pub entry_bytes_max: usize,
    /// Inputs in one entry, in bytes of JSON before compression: of more, the newest are without what they carried. 0, or nothing is kept of
    /// inputs: none. At most 64 MiB. Default 4 MiB.
    pub inputs_bytes_max: usize,
}

impl Default for ArchiveSettings {
    fn default() -> Self {
        Self {
            stream: "WORKFLOW_ARCHIVE".to_owned(),
            max_age: None,
            max_bytes: None,
            entry_bytes_max: 768 * 1024,
            inputs_bytes_max: 4 * 1024 * 1024,
        }
    }
}

impl ArchiveSettings {
    /// # Errors
    /// A sentence that begins with the key that is wrong.
    pub fn check(&self) -> Result<(), String> {
        let (least, most) = (16 * 1024, 8 * 1024 * 1024);
        if !(least..=most).contains(&self.entry_bytes_max) {
            return Err(format!(
                "storage.archive.entry_bytes_max must be between {least} and {most}, found {}",
                self.entry_bytes_max
            ));
        }
        let most = 64 * 1024 * 1024;
        if self.inputs_bytes_max > most {
            return Err(format!(
                "storage.archive.inputs_bytes_max must be at most {most}, found {}",
                self.inputs_bytes_max
            ));
        }
        let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if self.stream.is_empty() || !self.stream.chars().all(is_legal) {
            return Err(format!(
                "storage.archive.stream is a name of letters, digits, '_' and '-', found {:?}",
                self.stream
            ));
        }
        Ok(())
    }
}

impl Default for Settings {
    fn default() -> Self {
        let keep = Keep::default();
        Self {
            max_bytes: 64 << 30,
            keep_ended: keep.ended,
            keep_ended_count: keep.ended_count,
            keep_history_count: keep.history_count,
            keep_dead_letters: keep.dead_letters,
            tenants: keep.tenants,
            archive: None,
            keep_input_bytes: keep.input_bytes,
            keep_work_bytes: keep.work_bytes,
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
            history_count: self.keep_history_count,
            dead_letters: self.keep_dead_letters,
            tenants: self.tenants.clone(),
            archive: self.archive.is_some(),
            input_bytes: self.keep_input_bytes,
            work_bytes: self.keep_work_bytes,
        }
    }
}
