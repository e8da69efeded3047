//! The series of the audit.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use super::register::{counter, counters, gauge};

/// What happens to the records of the audit.
#[derive(Debug)]
pub struct AuditSeries {
    /// Records that the broker has stored.
    pub stored: IntCounter,
    /// Records that were not stored, by `reason` ([`super::AUDIT_DROPS`]).
    pub dropped: IntCounterVec,
    /// Records that are not stored yet.
    pub waiting: IntGauge,
}

impl AuditSeries {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            stored: counter(r, "audit_records_stored_total", "Audit records stored."),
            dropped: counters(
                r,
                "audit_records_dropped_total",
                "Audit records that were not stored, by reason.",
                &["reason"],
            ),
            waiting: gauge(r, "audit_records_waiting", "Audit records not stored yet."),
        }
    }
}
