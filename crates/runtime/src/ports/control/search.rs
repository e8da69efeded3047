//! Lists and counts of instances across sagas.

use std::sync::Arc;

use serde::Serialize;

use crate::kernel::duration::Millis;
use crate::kernel::expr::Expr;
use crate::kernel::ids::SagaName;
use crate::kernel::instance_status::{BlockedCause, InstanceStatus, Waits};
use crate::kernel::record::Phase;

/// Which instances are asked for. What is empty or absent asks for nothing in particular.
#[derive(Debug, Clone, Default)]
pub struct InstanceFilter {
    pub saga: Option<SagaName>,
    pub phases: Vec<Phase>,
    pub blocked_by: Vec<BlockedCause>,
    pub waits_for: Vec<Waits>,
    /// Error class, or the code with which an instance fails or has failed.
    pub error: Option<String>,
    /// What the key begins with.
    pub key_prefix: Option<String>,
    /// It started so long ago or longer.
    pub older_than: Option<Millis>,
    /// No input was applied for so long or longer.
    pub idle_for: Option<Millis>,
    /// A condition over `state` and `key`.
    pub condition: Option<Arc<Expr>>,
    /// What it is in, calls or waits for: of each, one of the values by which instances are counted under it.
    pub having: Vec<(InstanceTrait, String)>,
    /// No later generation of its key has begun.
    pub last_generation: bool,
}

impl InstanceFilter {
    /// Whether instances of this saga and status are asked for.
    #[must_use]
    pub fn wants(&self, saga: &SagaName, status: &InstanceStatus) -> bool {
        fn has<T: PartialEq>(wanted: &[T], one: &T) -> bool {
            wanted.is_empty() || wanted.contains(one)
        }
        self.saga.as_ref().is_none_or(|wanted| wanted == saga)
            && has(&self.phases, &status.phase)
            && has(&self.blocked_by, &status.blocked_by)
            && has(&self.waits_for, &status.waits_for)
            && self.error.as_ref().is_none_or(|wanted| *wanted == status.error)
    }

    /// Whether the index alone answers it, so that no record is looked at.
    #[must_use]
    pub const fn is_of_statuses(&self) -> bool {
        self.key_prefix.is_none()
            && self.having.is_empty()
            && self.older_than.is_none()
            && self.idle_for.is_none()
            && self.condition.is_none()
            && !self.last_generation
    }
}

/// An instance in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceSummary {
    pub saga: String,
    pub key: String,
    pub phase: &'static str,
    /// `nothing`, `paused`, `dead_letter`, `definition` or `operator`.
    pub blocked_by: &'static str,
    /// What `why` names first: `effect`, `command`, `child`, `retry`, `message`, `delay`, `operator`, `handlers`, `timer` or
    /// `nothing`.
    pub waits_for: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// The step that has failed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_step: Option<String>,
    pub generation: u32,
    /// No later generation of its key has begun.
    pub last_generation: bool,
    pub started: String,
    pub updated: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    pub definition: String,
}

/// How many instances are in a status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StatusView {
    pub saga: String,
    pub phase: &'static str,
    pub blocked_by: &'static str,
    pub waits_for: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    pub instances: u64,
}

/// How many instances there are, in all and by status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceCount {
    pub instances: u64,
    /// The largest first.
    pub statuses: Vec<StatusView>,
    /// There are more statuses than are looked at: codes of failures that authors compute may be many.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Instances whose records were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<usize>,
    /// Behind which the count goes on: what is counted there is not in this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Shards of which nothing is counted, because they are not open in this process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent_shards: Vec<u16>,
}

/// What instances are counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceTrait {
    Phase,
    Saga,
    Error,
    Waiting,
    BlockedBy,
    /// The steps in progress, and of an ended instance the one that has failed it.
    Step,
    /// Those that the effects in progress call.
    Upstream,
    /// The types of the events that it waits for.
    Event,
    /// The signals that it waits for.
    Signal,
}

impl InstanceTrait {
    pub const ALL: [Self; 9] = [
        Self::Phase,
        Self::Saga,
        Self::Error,
        Self::Waiting,
        Self::BlockedBy,
        Self::Step,
        Self::Upstream,
        Self::Event,
        Self::Signal,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Phase => "phase",
            Self::Saga => "saga",
            Self::Error => "error",
            Self::Waiting => "waiting",
            Self::BlockedBy => "blocked_by",
            Self::Step => "step",
            Self::Upstream => "upstream",
            Self::Event => "event",
            Self::Signal => "signal",
        }
    }

    /// Whether the index tells it, so that no record is looked at.
    #[must_use]
    pub const fn is_of_status(self) -> bool {
        matches!(
            self,
            Self::Phase | Self::Saga | Self::Error | Self::Waiting | Self::BlockedBy
        )
    }
}

/// Instances, counted by something that they have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceGroups {
    /// `phase`, `saga`, `error`, `waiting`, `blocked_by`, `step`, `upstream`, `event` or `signal`.
    pub by: &'static str,
    /// Each once, also where it is in several groups or in none.
    pub instances: u64,
    /// The largest first, at most 1,000.
    pub groups: Vec<InstanceGroup>,
    /// There are more statuses or groups than are looked at.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Instances whose records were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<usize>,
    /// Behind which the count goes on: what is counted there is not in this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Shards of which nothing is counted, because they are not open in this process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent_shards: Vec<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceGroup {
    /// Empty for no error.
    pub value: String,
    pub instances: u64,
}
