//! The series of the archive.

use prometheus::{IntGauge, Registry};

use super::register::gauge;

/// Ended instances whose time is over and that the archive has not got, as far as the last look has counted them.
#[derive(Debug)]
pub struct ArchiveSeries {
    pub waiting: IntGauge,
    /// How long the oldest of them has waited.
    pub oldest_seconds: IntGauge,
}

impl ArchiveSeries {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            waiting: gauge(r, "archive_waiting_instances", "Instances not yet archived."),
            oldest_seconds: gauge(
                r,
                "archive_oldest_waiting_seconds",
                "How long the oldest instance that is not yet archived has waited.",
            ),
        }
    }
}
