//! What the broker keeps of jobs: a list of all, a record of each, and its selection in chunks.
//!
//! The keys are those of slots, of which there are as many as jobs are kept. A new job takes the slot of the oldest that has ended,
//! so nothing has to be deleted, and nothing grows.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::Manifest;
use crate::kernel::ids::{InstanceId, Key, SagaName, TenantId, TimeMs};
use crate::ports::broker::{Broker, BrokerError, PutError};
use crate::ports::control::{ControlError, JobCommand, JobFailure, JobOrder, JobView};

/// Failures that a record names.
const FAILURES_MAX: usize = 20;
/// Reasons that a record counts apart.
const REASONS_MAX: usize = 32;
/// Under which all further reasons are counted.
const OTHER_REASONS: &str = "other";
/// Longest message of a failure, in bytes.
const MESSAGE_BYTES_MAX: usize = 300;

/// All jobs that are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobList {
    pub jobs: Vec<Listed>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listed {
    pub id: String,
    pub slot: u16,
    pub tenant: TenantId,
    pub created: TimeMs,
    pub ended: bool,
}

/// One job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobRecord {
    pub id: String,
    pub tenant: TenantId,
    pub order: JobOrder,
    pub created: TimeMs,
    /// What was said last. Written by whoever is asked; all else by the process that has the lease.
    pub command: JobCommand,
    /// Who said it and why, for people.
    pub said: String,
    pub lease: Option<Lease>,
    pub waits_for_shard: Option<u16>,
    pub selection: Selection,
    pub progress: Progress,
    pub end: Option<End>,
}

/// The right of one process to carry on a job, until it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lease {
    /// Random name of the process.
    pub holder: String,
    pub until: TimeMs,
}

/// How far the selection is taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selection {
    /// The shard whose index is walked, and the cursor of its next page.
    pub shard: u16,
    pub after: Option<String>,
    pub is_whole: bool,
    pub chunks: u32,
    pub selected: u64,
}

/// How far the parts are done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    /// The chunk, and the first of its instances whose part is not finished.
    pub chunk: u32,
    pub next: u32,
    pub handled: u64,
    pub sent: u64,
    pub applied: u64,
    pub ignored: BTreeMap<String, u64>,
    pub failed: u64,
    pub failures: Vec<JobFailure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    pub how: Ended,
    pub message: String,
    pub time: TimeMs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ended {
    Completed,
    Stopped,
    Failed,
}

impl Ended {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// Some of the instances or dead letters of a job, all of one shard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Chunk {
    pub job: String,
    pub instances: Vec<(SagaName, Key)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub letters: Vec<ChosenLetter>,
}

/// A dead letter of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChosenLetter {
    /// `<shard>-<number>`.
    pub id: String,
    /// Of its input, where it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub input: String,
    /// The instance whose history tells what was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<(SagaName, Key)>,
}

impl Progress {
    pub fn ignore(&mut self, reason: &str) {
        let known = self.ignored.contains_key(reason) || self.ignored.len() < REASONS_MAX;
        let reason = if known { reason } else { OTHER_REASONS };
        *self.ignored.entry(reason.to_owned()).or_insert(0) += 1;
    }

    pub fn fail(&mut self, instance: &InstanceId, message: &str) {
        let named = (instance.saga.to_string(), instance.key.as_str().to_owned());
        self.fail_named(named, None, message);
    }

    pub fn fail_letter(&mut self, letter: &ChosenLetter, message: &str) {
        let of_instance = letter.instance.as_ref();
        let named = of_instance.map(|(saga, key)| (saga.to_string(), key.as_str().to_owned()));
        self.fail_named(named.unwrap_or_default(), Some(letter.id.clone()), message);
    }

    fn fail_named(&mut self, (saga, key): (String, String), letter: Option<String>, message: &str) {
        self.failed += 1;
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(JobFailure {
                saga,
                key,
                letter,
                message: message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)].to_owned(),
            });
        }
    }
}

impl JobRecord {
    pub const fn state(&self) -> &'static str {
        match (&self.end, self.command) {
            (Some(end), _) => end.how.as_str(),
            (None, JobCommand::Pause) => "paused",
            (None, JobCommand::Resume | JobCommand::Stop) if !self.selection.is_whole => "selecting",
            (None, JobCommand::Resume | JobCommand::Stop) => "running",
        }
    }

    pub fn view(self) -> JobView {
        let state = self.state();
        let message = match &self.end {
            Some(end) => end.message.clone(),
            None => self.said,
        };
        let Progress {
            handled,
            sent,
            applied,
            ignored,
            failed,
            failures,
            ..
        } = self.progress;
        JobView {
            id: self.id,
            state,
            order: self.order,
            created: self.created.rfc3339(),
            ended: self.end.map(|end| end.time.rfc3339()),
            message,
            selected: self.selection.selected,
            handled,
            sent,
            applied,
            ignored,
            failed,
            failures,
            waits_for_shard: self.waits_for_shard,
        }
    }
}

/// The entries of the jobs of one cluster.
#[derive(Clone, Copy)]
pub(super) struct Entries<'b> {
    pub broker: &'b dyn Broker,
    pub manifest: &'b Manifest,
}

impl Entries<'_> {
    pub async fn list(&self) -> Result<(JobList, Option<u64>), Trouble> {
        let found = self.read(&self.list_key()).await?;
        Ok(found.map_or_else(
            || (JobList::default(), None),
            |(list, revision)| (list, Some(revision)),
        ))
    }

    pub async fn put_list(&self, list: &JobList, expected: Option<u64>) -> Result<u64, PutError> {
        self.put(&self.list_key(), list, expected).await
    }

    /// What lies in a slot: a job, or nothing yet.
    pub async fn record(&self, slot: u16) -> Result<Option<(JobRecord, u64)>, Trouble> {
        self.read(&self.record_key(slot)).await
    }

    pub async fn put_record(
        &self,
        slot: u16,
        record: &JobRecord,
        expected: Option<u64>,
    ) -> Result<u64, PutError> {
        self.put(&self.record_key(slot), record, expected).await
    }

    /// The chunk of a job, unless another job has the slot.
    pub async fn chunk(&self, slot: u16, number: u32, job: &str) -> Result<Option<Chunk>, Trouble> {
        let found: Option<(Chunk, u64)> = self.read(&self.chunk_key(slot, number)).await?;
        Ok(found.map(|(chunk, _)| chunk).filter(|chunk| chunk.job == job))
    }

    /// Writes a chunk over whatever lies there.
    pub async fn put_chunk(&self, slot: u16, number: u32, chunk: &Chunk) -> Result<(), Trouble> {
        let key = self.chunk_key(slot, number);
        let found = self.broker.entry(self.bucket(), &key).await?;
        let revision = found.map(|entry| entry.revision);
        self.put(&key, chunk, revision).await?;
        Ok(())
    }

    fn bucket(&self) -> &str {
        &self.manifest.streams.cluster_bucket
    }

    fn list_key(&self) -> String {
        format!("{}.jobs", self.manifest.cluster)
    }

    fn record_key(&self, slot: u16) -> String {
        format!("{}.jobs.{slot}", self.manifest.cluster)
    }

    fn chunk_key(&self, slot: u16, number: u32) -> String {
        format!("{}.jobs.{slot}.{number}", self.manifest.cluster)
    }

    async fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<(T, u64)>, Trouble> {
        let Some(entry) = self.broker.entry(self.bucket(), key).await? else {
            return Ok(None);
        };
        let read = serde_json::from_slice(&entry.value);
        let value = read.map_err(|error| Trouble::Unreadable(format!("entry {key}: {error}")))?;
        Ok(Some((value, entry.revision)))
    }

    async fn put<T: Serialize + Sync>(
        &self,
        key: &str,
        value: &T,
        expected: Option<u64>,
    ) -> Result<u64, PutError> {
        let value = serde_json::to_vec(value).map_err(|error| PutError::Refused(error.to_string()))?;
        let value = Bytes::from(value);
        self.broker.put_entry(self.bucket(), key, value, expected).await
    }
}

/// Why a job cannot be carried on here and now.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error("another process carries it on")]
    Lost,
    #[error("the process drains")]
    Drains,
    #[error("{0}")]
    Unreadable(String),
    #[error("{0}")]
    Broker(String),
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl From<BrokerError> for Trouble {
    fn from(error: BrokerError) -> Self {
        Self::Broker(error.to_string())
    }
}

impl From<PutError> for Trouble {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Conflict => Self::Lost,
            error => Self::Broker(error.to_string()),
        }
    }
}

impl From<Trouble> for ControlError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Control(error) => error,
            trouble => Self::Unavailable(trouble.to_string()),
        }
    }
}
