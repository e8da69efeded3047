//! The streams by role, and where a new cluster begins to read them.

use serde::{Deserialize, Serialize};

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
