//! Dead letters, and what an operator decides about them.

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;

use super::{ControlError, Page, PageRequest};
use crate::kernel::duration::Millis;
use crate::kernel::ids::TenantId;
use crate::kernel::input::SourceStream;
pub use crate::kernel::letters::LetterOrder;
use crate::kernel::patch::Note;
pub use crate::kernel::recorded::LetterDecision;
use crate::kernel::recorded::RecordedBody;

/// Questions to the partitions about their dead letters.
#[async_trait]
pub trait DeadLetters: Send + Sync + 'static {
    /// Dead letters of a tenant that a filter wants, oldest first. A page may be short, or empty, although the list goes on.
    async fn dead_letters(
        &self,
        tenant: &TenantId,
        filter: LetterFilter,
        page: PageRequest,
    ) -> Result<Page<DeadLetterView>, ControlError>;

    /// How many dead letters of a tenant a filter wants, by something that they have in common.
    async fn count_letters(
        &self,
        tenant: &TenantId,
        filter: LetterFilter,
        by: LetterTrait,
    ) -> Result<LetterCount, ControlError>;

    /// One dead letter, named as its view names it, with its whole input and what a retry would come to now.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] where the tenant has none of this name.
    async fn dead_letter(&self, tenant: &TenantId, id: &str) -> Result<DeadLetterDetail, ControlError>;

    /// Decides on a dead letter, named as its view names it.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without it, [`ControlError::Conflict`] where that cannot be decided, [`ControlError::Unfit`] where
    /// edited data could not be applied, [`ControlError::Forbidden`] where it takes another role.
    async fn decide(&self, tenant: &TenantId, id: &str, order: LetterOrder) -> Result<(), ControlError>;
}

/// Which dead letters are wanted: those that have all that is named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LetterFilter {
    pub saga: Option<String>,
    pub key: Option<String>,
    /// What the key begins with.
    pub key_prefix: Option<String>,
    pub reason: Option<String>,
    pub kind: Option<LetterKind>,
    /// The stream that brought the input.
    pub stream: Option<SourceStream>,
    /// What `subject` begins with.
    pub subject_prefix: Option<String>,
    /// The input came so long ago or longer.
    pub older_than: Option<Millis>,
    /// The input came no longer ago.
    pub newer_than: Option<Millis>,
}

/// What has become a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterKind {
    Event,
    Result,
    Timer,
    Control,
    /// It never became an input.
    Message,
}

impl LetterKind {
    pub const ALL: [Self; 5] = [
        Self::Event,
        Self::Result,
        Self::Timer,
        Self::Control,
        Self::Message,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Result => "result",
            Self::Timer => "timer",
            Self::Control => "control",
            Self::Message => "message",
        }
    }
}

/// By what dead letters are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterTrait {
    Reason,
    Saga,
    Kind,
    Subject,
}

impl LetterTrait {
    pub const ALL: [Self; 4] = [Self::Reason, Self::Saga, Self::Kind, Self::Subject];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reason => "reason",
            Self::Saga => "saga",
            Self::Kind => "kind",
            Self::Subject => "subject",
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct DeadLetterView {
    /// `<shard>-<number>`.
    pub id: String,
    /// `event`, `result`, `timer`, `control` or `message`.
    pub kind: &'static str,
    pub reason: String,
    pub message: String,
    pub subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saga: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub time: String,
    pub attempts: u32,
    /// The first KiB of the payload, control characters escaped.
    pub excerpt: String,
}

/// A dead letter with all that a decision about it needs.
#[derive(Debug, Clone, Serialize)]
pub struct DeadLetterDetail {
    #[serde(flatten)]
    pub letter: DeadLetterView,
    /// Id of the input: that of the event, the command, the timer or the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_id: Option<String>,
    /// The stream that has brought it, and the sequence there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// An operator has edited its data before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub edited: bool,
    /// Absent where the message never became one, and where it is larger than a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<RecordedBody>,
    /// The input is larger than a page (`http.page_bytes_max`): its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_bytes: Option<usize>,
    /// It blocks its instance, and so many inputs wait behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<usize>,
    pub definition: LetterVersions,
    /// JSON Schema of the data, where the version that a retry meets says what they have to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Value>,
    /// Where the data break it; at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<LetterViolation>,
    pub retry: LetterRetry,
}

/// Versions of the saga of a dead letter.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LetterVersions {
    /// That the input met when it became a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<String>,
    /// That its instance runs under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// That new instances get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct LetterViolation {
    /// Names of members and numbers of items, e.g. `order.items.[0].price`; empty for the data as a whole.
    pub at: String,
    pub message: String,
}

/// What a retry would come to, as the transition says that would be made now. Nothing was changed to find out.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LetterRetry {
    /// `applied`, `deferred`, `ignored`, `dead_letter`; `refused`: a retry is not possible; `unknown`: it was not tried.
    pub outcome: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// Dead letters, counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LetterCount {
    /// `reason`, `saga`, `kind` or `subject`.
    pub by: &'static str,
    pub letters: u64,
    /// The largest first, at most 1,000.
    pub groups: Vec<LetterGroup>,
    /// There are more letters or groups than are looked at.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Shards of which nothing is counted, because they are not open in this process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent_shards: Vec<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LetterGroup {
    /// Empty for those that have none.
    pub value: String,
    pub letters: u64,
}
