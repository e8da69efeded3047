//! The series of what shards store.

use prometheus::{Histogram, IntGauge, IntGaugeVec, Registry};

use super::register::{SECONDS, gauge, gauges, histogram};

/// The files of the shards, and the disk under them.
#[derive(Debug)]
pub struct StorageSeries {
    /// Size of the file in which a shard stores its state, by `shard`.
    pub bytes: IntGaugeVec,
    /// Largest size that the file of a shard may have.
    pub limit_bytes: IntGauge,
    /// 1 for each shard that found no room to store something and takes no input until it does, else 0, by `shard`.
    pub full: IntGaugeVec,
    /// The part of a commit in which the store waits for the disk: it writes pages and syncs them.
    pub commit_sync_seconds: Histogram,
}

impl StorageSeries {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            bytes: gauges(
                r,
                "storage_bytes",
                "Size of the file in which a shard stores its state.",
                &["shard"],
            ),
            limit_bytes: gauge(
                r,
                "storage_limit_bytes",
                "Largest size that the file of a shard may have (storage.max_bytes).",
            ),
            full: gauges(
                r,
                "storage_full",
                "1 for each shard that finds no room to store inputs and takes none until there is some, else 0.",
                &["shard"],
            ),
            commit_sync_seconds: histogram(
                r,
                "commit_sync_seconds",
                "Part of a commit in which pages are written to the disk and synced.",
                &SECONDS,
            ),
        }
    }
}
