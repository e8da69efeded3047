//! What waits for its time, and what is to be done or is under way: timers and the outbox.

use async_trait::async_trait;
use serde::Serialize;

use super::{ControlError, Page, PageRequest};
use crate::kernel::duration::Millis;
use crate::kernel::ids::{CommandId, SagaName, TenantId};

/// Lists of the timers and of the outbox, of one shard after the other.
#[async_trait]
pub trait PendingWork: Send + Sync + 'static {
    /// Timers of the instances of a tenant; of each shard those first that are due first. Those of schedules are not among them.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a forged cursor.
    async fn timers(
        &self,
        tenant: &TenantId,
        filter: TimerFilter,
        page: PageRequest,
    ) -> Result<Page<DueTimer>, ControlError>;

    /// Rows of the outbox of a tenant; of each shard the oldest first.
    ///
    /// # Errors
    /// As [`Self::timers`].
    async fn outbox(
        &self,
        tenant: &TenantId,
        filter: OutboxFilter,
        page: PageRequest,
    ) -> Result<Page<OutboxItem>, ControlError>;
}

/// Which timers are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimerFilter {
    pub saga: Option<SagaName>,
    /// Due within this time from now, or overdue.
    pub due_within: Option<Millis>,
}

/// A timer of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DueTimer {
    pub due: String,
    /// It is due, and has not fired: its streams are not read up to then. That of an instance that is blocked or paused is in its
    /// inbox instead.
    pub overdue: bool,
    pub name: String,
    pub saga: String,
    pub key: String,
}

/// Which rows of the outbox are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutboxFilter {
    pub saga: Option<SagaName>,
    /// `effect`, `command`, `fact`, `start` or `message`.
    pub kind: Option<String>,
    /// Of the effect, the command, the fact or the saga.
    pub name: Option<String>,
    /// Only those that the broker or the gateway has taken, or that it has not.
    pub sent: Option<bool>,
    /// Committed so long ago or longer.
    pub older_than: Option<Millis>,
}

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutboxItem {
    /// Id of the command, or of the fact.
    pub id: CommandId,
    /// `effect`, `command`, `fact`, `start` or `message`.
    pub kind: &'static str,
    /// Of the effect, the command, the fact or the saga.
    pub name: String,
    pub saga: String,
    pub key: String,
    /// Place in the definition, e.g. `steps.charge.compensate`.
    pub path: String,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// The same for all attempts of a piece of work.
    pub idempotency_key: String,
    /// When the input was stored that it follows from.
    pub since: String,
    /// The broker or the gateway has taken it; what it has taken out of order is told a moment later.
    pub sent: bool,
    /// It stays until its result is applied. The others go when they are sent.
    pub awaited: bool,
    /// When its outcome counts as timed out; absent where none is awaited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
}
