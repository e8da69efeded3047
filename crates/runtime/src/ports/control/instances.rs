//! Instances, as the partition shows them that has them.

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde::Serialize;

use super::actions::Actions;
use super::{
    Awaited, ControlError, Happened, InstanceCount, InstanceFilter, InstanceGroups, InstanceSummary,
    InstanceTrait, Page, PageRequest, Patience, Reached, Requested, StartRequest,
};
use crate::kernel::envelope::ControlMessage;
use crate::kernel::ids::{InstanceId, SagaName, TenantId};
use crate::kernel::patch::Note;
use crate::kernel::recorded::Recorded;
use crate::kernel::view::InstanceView;
use crate::kernel::view::graph::InstanceGraph;
use crate::kernel::view::pending::AwaitedView;
use crate::kernel::view::why::Why;

/// Questions to the partition of an instance, or to all.
#[async_trait]
pub trait Instances: Send + Sync + 'static {
    /// Starts an instance with an input, and waits for what happens to that as `patience` says. What happens to it is decided where
    /// the instance is, in the order of its inputs, and not before.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a saga, [`ControlError::Invalid`] for an input that it does not
    /// take, [`ControlError::Mismatch`] where another request had its id, [`ControlError::Unavailable`] where waiting is asked for
    /// and this process does not work on the shard; nothing is stored then.
    async fn start(
        &self,
        instance: &InstanceId,
        request: StartRequest,
        patience: Patience,
    ) -> Result<Requested, ControlError>;

    /// Sends a control message to an instance, by the subject that its verb belongs to, and waits for what happens to it where
    /// `patience` says so. In a process that does not work on its shard it is not checked, and the instance has the only word.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] for a message that would change
    /// nothing as things are, and the others as of [`Self::start`].
    async fn control(
        &self,
        instance: &InstanceId,
        message: ControlMessage,
        patience: Option<Patience>,
    ) -> Result<Requested, ControlError>;

    /// Waits until an instance has got somewhere, at most as long as `time`.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance, [`ControlError::Unavailable`] where this process does not work on its
    /// shard.
    async fn reach(
        &self,
        instance: &InstanceId,
        generation: Option<u32>,
        awaited: Awaited,
        time: Duration,
    ) -> Result<Reached, ControlError>;

    /// What happens to an instance, beginning behind the entry `after`; without one, with its newest `newest` entries. It ends when
    /// the instance has ended and everything is told, or with the process.
    ///
    /// # Errors
    /// As [`Self::reach`].
    async fn happenings(
        &self,
        instance: &InstanceId,
        after: Option<u64>,
        newest: usize,
    ) -> Result<BoxStream<'static, Happened>, ControlError>;

    /// Instances of a saga: of each shard the live ones by key, then the ended ones, oldest first; only those that something
    /// keeps from going on, or that nothing does, where `blocked` says so.
    async fn instances(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        blocked: Option<bool>,
        page: PageRequest,
    ) -> Result<Page<InstanceView>, ControlError>;

    /// Instances across sagas that a filter asks for, from the index that their partitions keep.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a cursor that is none of this list.
    async fn search(
        &self,
        tenant: &TenantId,
        filter: InstanceFilter,
        page: PageRequest,
    ) -> Result<Page<InstanceSummary>, ControlError>;

    /// How many instances a filter asks for, by category. Where records are looked at, those of one page, behind `after`.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a cursor that is none of this count.
    async fn count(
        &self,
        tenant: &TenantId,
        filter: InstanceFilter,
        after: Option<String>,
    ) -> Result<InstanceCount, ControlError>;

    /// How many instances a filter asks for, by something that they have in common.
    ///
    /// # Errors
    /// As [`Self::count`].
    async fn group(
        &self,
        tenant: &TenantId,
        filter: InstanceFilter,
        by: InstanceTrait,
        after: Option<String>,
    ) -> Result<InstanceGroups, ControlError>;

    /// One instance with its history, newest entry first.
    async fn instance(&self, id: &InstanceId, history: usize) -> Result<InstanceDetail, ControlError>;

    /// What can be done to an instance as it is now.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] where its definition is not loaded.
    async fn actions(&self, id: &InstanceId) -> Result<Actions, ControlError>;

    /// Why an instance does not go on. What workers have said about its calls is part of the answer, for which the broker is
    /// asked at most twice.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance.
    async fn why(&self, id: &InstanceId) -> Result<Why, ControlError>;

    /// The graph of an instance: that of the version which it runs under, with where each part of it stands.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] where its definition is not loaded.
    async fn graph(&self, id: &InstanceId) -> Result<InstanceGraph, ControlError>;

    /// The history of an instance, newest entry first.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance, [`ControlError::Invalid`] for a cursor that is none of its history.
    async fn history(&self, id: &InstanceId, page: PageRequest) -> Result<Page<HistoryView>, ControlError>;

    /// What the archive has of an instance that is not kept here any more, the newest of its key; `None` without an archive.
    ///
    /// # Errors
    /// [`ControlError::Unavailable`] where the archive does not answer.
    async fn archived(&self, id: &InstanceId) -> Result<Option<ArchivedInstance>, ControlError>;

    /// The inputs that an instance has taken, oldest first, as far as the streams still have them.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] where the key was used again since the page
    /// before.
    async fn inputs(&self, id: &InstanceId, page: PageRequest) -> Result<RecordedInputs, ControlError>;
}

/// Some of what an instance has taken.
#[derive(Debug, Clone, Serialize)]
pub struct RecordedInputs {
    pub inputs: Vec<Recorded>,
    /// Cursor of the next page, absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl From<RecordedInputs> for Page<Recorded> {
    fn from(recorded: RecordedInputs) -> Self {
        Self {
            items: recorded.inputs,
            next: recorded.next,
            absent_shards: Vec::new(),
            looked_at: None,
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct InstanceDetail {
    #[serde(flatten)]
    pub instance: InstanceView,
    /// What it waits for; [`Instances::why`] tells of the calls as well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<AwaitedView>,
    pub history: Vec<HistoryView>,
}

/// An instance as the archive has it.
#[derive(Debug, Clone)]
pub struct ArchivedInstance {
    /// An [`InstanceView`], and when it was archived.
    pub instance: serde_json::Map<String, serde_json::Value>,
    /// Each a [`HistoryView`], the newest first.
    pub history: Vec<serde_json::Value>,
    /// Each a [`Recorded`], the oldest first; `None`: they were not archived.
    pub inputs: Option<Vec<Box<serde_json::value::RawValue>>>,
    /// How many of the newest inputs do not say what they carried.
    pub inputs_left_out: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct HistoryView {
    pub input: String,
    pub kind: String,
    pub time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    pub outcome: String,
    pub notes: Vec<Note>,
    /// It was taken although a stream could not be read that may hold what comes before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub late_source: bool,
}
