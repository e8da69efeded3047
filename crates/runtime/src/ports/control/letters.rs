//! Dead letters, and what an operator decides about them.

use async_trait::async_trait;
use serde::Serialize;

use super::{ControlError, Page, PageRequest};
use crate::kernel::ids::TenantId;
pub use crate::kernel::recorded::LetterDecision;

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

    /// One dead letter, named as its view names it.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] where the tenant has none of this name.
    async fn dead_letter(&self, tenant: &TenantId, id: &str) -> Result<DeadLetterView, ControlError>;

    /// Decides on a dead letter, named as its view names it.
    async fn decide(&self, tenant: &TenantId, id: &str, decision: LetterDecision)
    -> Result<(), ControlError>;
}

/// Which dead letters are wanted: those that have all that is named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LetterFilter {
    pub saga: Option<String>,
    pub key: Option<String>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct DeadLetterView {
    /// `<shard>-<number>`.
    pub id: String,
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
