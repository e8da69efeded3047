//! Instances, as the partition shows them that has them.

use async_trait::async_trait;
use serde::Serialize;

use super::{ControlError, Page, PageRequest, Published};
use crate::kernel::envelope::ControlVerb;
use crate::kernel::ids::{InstanceId, SagaName, TenantId};
use crate::kernel::patch::Note;
use crate::kernel::recorded::Recorded;
use crate::kernel::view::InstanceView;

/// Questions to the partition of an instance, or to all.
#[async_trait]
pub trait Instances: Send + Sync + 'static {
    /// Starts an instance with an input, a JSON object.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a saga, [`ControlError::Invalid`] for an input that it does not
    /// take, [`ControlError::Conflict`] where the instance is there already, by another request.
    async fn start(
        &self,
        instance: &InstanceId,
        request_id: &str,
        input: serde_json::Map<String, serde_json::Value>,
    ) -> Result<Published, ControlError>;

    /// Sends a control message to an instance.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] for a message that would change
    /// nothing as things are.
    async fn control(
        &self,
        instance: &InstanceId,
        request_id: &str,
        verb: ControlVerb,
    ) -> Result<Published, ControlError>;

    /// Instances of a saga: of each shard the live ones by key, then the ended ones, oldest first; only those that something
    /// keeps from going on, or that nothing does, where `blocked` says so.
    async fn instances(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        blocked: Option<bool>,
        page: PageRequest,
    ) -> Result<Page<InstanceView>, ControlError>;

    /// One instance with its history, newest entry first.
    async fn instance(&self, id: &InstanceId, history: usize) -> Result<InstanceDetail, ControlError>;

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

#[derive(Debug, Clone, Serialize)]
pub struct InstanceDetail {
    #[serde(flatten)]
    pub instance: InstanceView,
    pub history: Vec<HistoryView>,
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
