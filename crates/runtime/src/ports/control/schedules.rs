//! Schedules, in the partition of their tenant.

use async_trait::async_trait;
use serde::Serialize;

use super::ControlError;
use crate::kernel::envelope::Principal;
use crate::kernel::ids::{SagaName, TenantId};
use crate::kernel::schedule::{CatchUp, Overlap, Skip};
use crate::kernel::view::PausedView;

/// Questions to the partition of a tenant's schedules.
#[async_trait]
pub trait Schedules: Send + Sync + 'static {
    /// The schedules of a tenant, by the name of their sagas.
    async fn schedules(&self, tenant: &TenantId) -> Result<Vec<ScheduleView>, ControlError>;

    /// Lets a schedule rest, or go on. By whom and why it rests is shown.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] where the saga has none.
    async fn order_schedule(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        order: ScheduleOrder,
        principal: Principal,
    ) -> Result<(), ControlError>;
}

/// What an operator says about a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleOrder {
    /// Nothing starts by it.
    Pause,
    Resume,
}

/// Where the schedule of a saga stands: why something ran, or did not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScheduleView {
    pub saga: String,
    pub cron: String,
    pub zone: String,
    /// Absent where the saga has no schedule any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    pub paused: bool,
    /// By whom, since when and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<PausedView>,
    /// The next planned time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The same by the clocks of the zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_local: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_started: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_skipped: Option<SkippedView>,
    /// Keys of the runs whose end is awaited.
    pub running: Vec<String>,
    /// Planned times that wait for these to end.
    pub queued: Vec<String>,
    pub started: u64,
    pub skipped: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedView {
    pub time: String,
    pub reason: Skip,
}
