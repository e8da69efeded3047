//! The streams by role, and where a new cluster begins to read them.

use serde::{Deserialize, Serialize};

use crate::kernel::duration::Millis;

/// Least bytes of the audit.
const AUDIT_BYTES_MIN: u64 = 1024 * 1024;
/// Most records that may wait to be stored: one takes a kilobyte, and at most eight.
const AUDIT_QUEUE_MAX: usize = 1_000_000;

/// The streams, by role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamsSettings {
    /// Domain events; belongs to the aggregates. Default name `AGGREGATE_EVENTS`.
    pub aggregate_events: EventsSettings,
    /// Commands of the runner. Default name `WORKFLOW_COMMANDS`.
    pub workflow_commands: StreamSettings,
    /// Results and facts. Default name `WORKFLOW_EVENTS`.
    pub workflow_events: StreamSettings,
    /// Records of the requests for changes. Default name `WORKFLOW_AUDIT`.
    pub audit: AuditSettings,
    /// Key-value bucket of the cluster's record. Default `WORKFLOW_CLUSTER`.
    pub cluster_bucket: String,
    /// Copies of each message that the broker keeps. Default 1.
    pub replicas: u8,
    /// Where a new cluster begins to read the domain events. Default `new`.
    pub start: StartPosition,
    /// Create missing streams and update those of the runner at start. Default true; otherwise they are only
    /// checked.
    pub manage: bool,
}

impl Default for StreamsSettings {
    fn default() -> Self {
        let named = |name: &str| StreamSettings {
            name: name.to_owned(),
        };
        Self {
            aggregate_events: EventsSettings::default(),
            workflow_commands: named("WORKFLOW_COMMANDS"),
            workflow_events: named("WORKFLOW_EVENTS"),
            audit: AuditSettings::default(),
            cluster_bucket: "WORKFLOW_CLUSTER".to_owned(),
            replicas: 1,
            start: StartPosition::New,
            manage: true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSettings {
    pub name: String,
}

/// The stream of the audit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditSettings {
    /// Default `WORKFLOW_AUDIT`.
    pub name: String,
    /// How long records are kept. Default 365 days.
    pub max_age: Millis,
    /// Bytes of records that are kept; the oldest are deleted first. Default 256 MiB.
    pub max_bytes: u64,
    /// Records that are kept, at least 1; the oldest are deleted first. Default 1,000,000.
    pub max_records: u64,
    /// Records of a process that may wait to be stored; further ones are dropped and counted. Default 10,000.
    pub queue_max: usize,
    /// How long an answer to a request for a change waits until its record is stored; `0ms`: not at all. Default 1 s.
    pub wait_max: Millis,
    /// How long a process that stops waits until its last records are stored. Default 3 s.
    pub flush_timeout: Millis,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self {
            name: "WORKFLOW_AUDIT".to_owned(),
            max_age: Millis::seconds(365 * 24 * 60 * 60),
            max_bytes: 256 * 1024 * 1024,
            max_records: 1_000_000,
            queue_max: 10_000,
            wait_max: Millis::seconds(1),
            flush_timeout: Millis::seconds(3),
        }
    }
}

impl AuditSettings {
    /// Whether the numbers are in their ranges.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.max_age.duration().is_zero() {
            return Err("streams.audit.max_age must be longer than 0".to_owned());
        }
        if self.max_bytes < AUDIT_BYTES_MIN {
            return Err(format!(
                "streams.audit.max_bytes must be at least {AUDIT_BYTES_MIN}, found {}",
                self.max_bytes
            ));
        }
        if self.max_records == 0 {
            return Err("streams.audit.max_records must be at least 1".to_owned());
        }
        if !(1..=AUDIT_QUEUE_MAX).contains(&self.queue_max) {
            return Err(format!("streams.audit.queue_max must be 1 to {AUDIT_QUEUE_MAX}"));
        }
        Ok(())
    }
}

/// The stream of domain events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventsSettings {
    /// Default `AGGREGATE_EVENTS`.
    pub name: String,
    /// Limits of the stream that may drop events before they are read. Default: none; with any other the runner does not
    /// start.
    pub accept_limits: Vec<AcceptedLimit>,
}

impl Default for EventsSettings {
    fn default() -> Self {
        Self {
            name: "AGGREGATE_EVENTS".to_owned(),
            accept_limits: Vec::new(),
        }
    }
}

/// A limit by which a stream drops its oldest messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceptedLimit {
    MaxAge,
    MaxMsgs,
    MaxBytes,
}

impl AcceptedLimit {
    /// As the broker calls it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxAge => "max_age",
            Self::MaxMsgs => "max_msgs",
            Self::MaxBytes => "max_bytes",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartPosition {
    /// Only events stored after the cluster was created start sagas.
    New,
    /// Everything that the stream still holds.
    First,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_the_audit_out_of_their_ranges_are_refused() {
        let good = AuditSettings::default();
        assert_eq!(good.check(), Ok(()));
        for bad in [
            AuditSettings {
                max_age: Millis(0),
                ..good.clone()
            },
            AuditSettings {
                max_bytes: AUDIT_BYTES_MIN - 1,
                ..good.clone()
            },
            AuditSettings {
                max_records: 0,
                ..good.clone()
            },
            AuditSettings {
                queue_max: 0,
                ..good.clone()
            },
            AuditSettings {
                queue_max: AUDIT_QUEUE_MAX + 1,
                ..good
            },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
