//! Jobs: one verb for many instances or dead letters, which a filter has selected.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{ControlError, InstanceFilter, LetterFilter};
use crate::kernel::envelope::{FoundAs, Principal};
use crate::kernel::ids::TenantId;
use crate::kernel::input::CancelMode;

/// What a job does to each instance, or to each dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobVerb {
    Cancel,
    Kill,
    Pause,
    Resume,
    /// What is stuck; or, with `ended`, an instance that has ended.
    Retry,
    /// One step, or the stuck compensations.
    Skip,
    /// To one version of the saga.
    Migrate,
    /// Those that have ended, with their history. Needs the role admin.
    Delete,
    /// Dead letters are applied again, as they came.
    RetryLetters,
    /// Dead letters are given up.
    DiscardLetters,
}

impl JobVerb {
    pub const ALL: [Self; 10] = [
        Self::Cancel,
        Self::Kill,
        Self::Pause,
        Self::Resume,
        Self::Retry,
        Self::Skip,
        Self::Migrate,
        Self::Delete,
        Self::RetryLetters,
        Self::DiscardLetters,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Migrate => "migrate",
            Self::Delete => "delete",
            Self::RetryLetters => "retry_letters",
            Self::DiscardLetters => "discard_letters",
        }
    }

    /// Whether it is about dead letters, not about instances.
    #[must_use]
    pub const fn is_about_letters(self) -> bool {
        matches!(self, Self::RetryLetters | Self::DiscardLetters)
    }
}

/// What some verbs need.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobOptions {
    /// Of `cancel`; compensates where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<CancelMode>,
    /// Of `retry`: the instances have ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// Of `retry` and `skip`: only this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Of `skip`: the outcome of the step.
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub found: Option<FoundAs>,
    /// Of `migrate`: the hash of the version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Of `retry_letters` and `discard_letters`: all dead letters of the tenant, without a filter.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// A job that somebody asks for.
#[derive(Debug, Clone)]
pub struct JobRequest {
    pub order: JobOrder,
    /// The filter of the order, read.
    pub filter: JobFilter,
    /// Names the request: its repetition finds the job that the first one has started.
    pub key: Option<String>,
}

/// What a job selects.
#[derive(Debug, Clone)]
pub enum JobFilter {
    Instances(InstanceFilter),
    Letters(LetterFilter),
}

/// What is to be done to which instances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobOrder {
    pub verb: JobVerb,
    pub options: JobOptions,
    /// As the list of instances takes it, or that of dead letters, by name.
    pub filter: BTreeMap<String, String>,
    pub principal: Principal,
    /// Instances or dead letters a second, 1 to 1,000; 0 where the request says nothing.
    pub rate: u32,
}

/// What a job would be about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobPlan {
    pub dry_run: bool,
    pub verb: JobVerb,
    /// How many instances or dead letters the filter selects.
    pub selected: u64,
    /// There are more than a job may have, and they were not counted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub too_many: bool,
    /// The first of them.
    pub instances: Vec<JobInstance>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub letters: Vec<JobLetter>,
    /// Shards of which nothing is counted, because they are not open in this process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent_shards: Vec<u16>,
}

/// An instance that a job would be about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobInstance {
    pub saga: String,
    pub key: String,
    pub phase: &'static str,
}

/// A dead letter that a job would be about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobLetter {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saga: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub reason: String,
    pub subject: String,
}

/// An instance to which nothing could be sent, or a dead letter about which could not be decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobFailure {
    pub saga: String,
    pub key: String,
    /// Id of the dead letter; `saga` and `key` are empty where it has no instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letter: Option<String>,
    pub message: String,
}

/// A job, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JobView {
    pub id: String,
    /// `selecting`, `running`, `paused`, or how it has ended: `completed`, `stopped` or `failed`.
    pub state: &'static str,
    #[serde(flatten)]
    pub order: JobOrder,
    pub created: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Why it has failed, or who paused or stopped it and why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Instances of the selection, as far as it is taken.
    pub selected: u64,
    /// Instances of the selection whose part is finished.
    pub handled: u64,
    /// Messages that were stored.
    pub sent: u64,
    pub applied: u64,
    /// Parts that changed nothing, by reason.
    pub ignored: BTreeMap<String, u64>,
    /// Parts that could not be sent, or that have become dead letters.
    pub failed: u64,
    /// The first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<JobFailure>,
    /// It goes on in a process that has this shard open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for_shard: Option<u16>,
}

/// What somebody says to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobCommand {
    Pause,
    Resume,
    /// For good: what was sent stands.
    Stop,
}

impl JobCommand {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Stop => "stop",
        }
    }
}

/// The jobs of a cluster, which any of its processes that runs sagas carries on.
#[async_trait]
pub trait Jobs: Send + Sync + 'static {
    /// What a job would be about. Changes nothing.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for an order that cannot be carried out.
    async fn plan_job(&self, tenant: &TenantId, request: JobRequest) -> Result<JobPlan, ControlError>;

    /// Stores a job; it begins within seconds.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for an order that cannot be carried out, [`ControlError::Conflict`] where as many jobs are in
    /// progress as may be, [`ControlError::Mismatch`] where another order had this key.
    async fn start_job(&self, tenant: &TenantId, request: JobRequest) -> Result<JobView, ControlError>;

    /// The jobs of a tenant that are kept, the newest first.
    async fn jobs(&self, tenant: &TenantId) -> Result<Vec<JobView>, ControlError>;

    /// # Errors
    /// [`ControlError::NotFound`] without such a job of the tenant.
    async fn job(&self, tenant: &TenantId, id: &str) -> Result<JobView, ControlError>;

    /// # Errors
    /// [`ControlError::NotFound`] without such a job, [`ControlError::Conflict`] for what would change nothing.
    async fn command_job(
        &self,
        tenant: &TenantId,
        id: &str,
        command: JobCommand,
        principal: Principal,
    ) -> Result<JobView, ControlError>;
}
