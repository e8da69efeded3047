//! What operators ask of a runner, so that the HTTP API knows neither shards nor tables.
//!
//! By noun. What a process answers for itself is [`NodeControl`] and [`ShardControl`]; everything else is answered from the state of
//! partitions, by whoever has them open ([`PartitionControl`]).

mod actions;
mod aliases;
mod audit;
mod instances;
mod jobs;
mod letters;
mod node;
mod pending;
mod rates;
mod requests;
mod schedules;
mod search;
mod shards;
mod versions;

pub use actions::{Action, Actions, RefusedAction};
pub use aliases::{AliasView, Aliases, OwnerView};
pub use audit::{Audit, AuditFilter, AuditOutcome, AuditRecord};
pub use instances::{ArchivedInstance, HistoryView, InstanceDetail, Instances, RecordedInputs};
pub use jobs::{
    JobCommand, JobFailure, JobFilter, JobInstance, JobLetter, JobOptions, JobOrder, JobPlan, JobRequest,
    JobVerb, JobView, Jobs,
};
pub use letters::{
    DeadLetterDetail, DeadLetterView, DeadLetters, LetterCount, LetterDecision, LetterFilter, LetterGroup,
    LetterKind, LetterOrder, LetterRetry, LetterTrait, LetterVersions, LetterViolation,
};
pub use node::{
    BreakerForce, BreakerView, Check, ConsumerInfo, DefinitionInfo, DrainStarted, Forced, Health, Info,
    LastReload, MetricsFormat, NodeControl, Readiness, ReloadError, Reloaded, SagaChange, Tenants,
};
pub use pending::{DueTimer, OutboxFilter, OutboxItem, PendingWork, TimerFilter};
pub use rates::{CallRates, EffectRates, InputRates, MinuteView, RatesView, UpstreamRates};
pub use requests::{
    Awaited, Happened, InstanceBrief, Patience, Reached, RequestOutcome, RequestState, Requested,
    StartRequest,
};
pub use schedules::{ScheduleOrder, ScheduleView, Schedules, SkippedView};
pub use search::{
    InstanceCount, InstanceFilter, InstanceGroup, InstanceGroups, InstanceSummary, InstanceTrait, StatusView,
};
pub use shards::{
    AcceptReport, AcceptRequest, AcceptVerb, AcceptedView, Backup, Sequences, ShardControl, ShardView,
};
pub use versions::{
    DefinitionDetail, DefinitionView, Destination, InstanceMigration, InstanceMigrationRequest,
    MigrationReport, MigrationRequest, Problem, Refusal, Versions,
};

use serde::Serialize;

/// What is answered from the state of partitions.
pub trait PartitionControl: Instances + DeadLetters + Versions + Schedules + Aliases + PendingWork {}

impl<T: Instances + DeadLetters + Versions + Schedules + Aliases + PendingWork> PartitionControl for T {}

/// All that the API asks.
pub trait Control: NodeControl + ShardControl + PartitionControl + Jobs + Audit {}

impl<T: NodeControl + ShardControl + PartitionControl + Jobs + Audit> Control for T {}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Conflict(String),
    /// The id of the request was used for another one.
    #[error("{0}")]
    Mismatch(String),
    /// What is to be applied could not be.
    #[error("{reason}: {message}")]
    Unfit { reason: String, message: String },
    /// It takes another role.
    #[error("{0}")]
    Forbidden(String),
    /// What it is for was given up, or is over: it never will be of use again.
    #[error("{0}")]
    Gone(String),
    #[error("{0}")]
    Unavailable(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Published {
    pub stream: String,
    pub sequence: u64,
    pub duplicate: bool,
}

/// A slice of a longer list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// What the page before called `next`.
    pub after: Option<String>,
    /// 1 to 500.
    pub limit: usize,
    /// Most bytes of its items as JSON, where these are fewer than a page may have (`http.page_bytes_max`). The item that passes them is on
    /// it.
    pub bytes: Option<usize>,
    /// How many were looked at for what came before on the same page.
    pub looked_at: usize,
}

impl PageRequest {
    /// A whole page, with as many bytes as a page may have.
    #[must_use]
    pub const fn new(after: Option<String>, limit: usize) -> Self {
        Self {
            after,
            limit,
            bytes: None,
            looked_at: 0,
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Cursor of the next page, absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Shards of which nothing is in the list, because they are not open in this process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent_shards: Vec<u16>,
    /// How many were looked at, where not all of them are wanted: a page may be short, or empty, although the list goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<usize>,
}
