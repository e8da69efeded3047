//! Schedules as operators see them.

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::node::Node;
use super::shards::Shown;
use crate::kernel::alias;
use crate::kernel::envelope::Principal;
use crate::kernel::ids::{Key, SagaName, TenantId, TimeMs};
use crate::kernel::schedule::{self, SCHEDULE_KEY, Zone};
use crate::kernel::view::PausedView;
use crate::ports::control::{ControlError, ScheduleOrder, ScheduleView, Schedules, SkippedView};
use crate::shard::mailbox::{Mail, Refused};
use crate::storage::rows::ScheduleRow;

#[async_trait]
impl Schedules for Node {
    async fn schedules(&self, tenant: &TenantId) -> Result<Vec<ScheduleView>, ControlError> {
        list(self, tenant).await
    }

    async fn order_schedule(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        order: ScheduleOrder,
        principal: Principal,
    ) -> Result<(), ControlError> {
        self::order(self, tenant, saga, order, principal).await
    }
}

/// The schedules of a tenant, by saga.
async fn list(node: &Node, tenant: &TenantId) -> Result<Vec<ScheduleView>, ControlError> {
    let reader = owner(node, tenant).await?.reader;
    let rows = node.read(move || reader.schedules()).await?;
    let of_tenant = rows.into_iter().filter(|(owner, ..)| owner == tenant);
    Ok(of_tenant.map(|(_, saga, row)| view(node, &saga, &row)).collect())
}

/// Lets a schedule rest, or go on.
async fn order(
    node: &Node,
    tenant: &TenantId,
    saga: &SagaName,
    order: ScheduleOrder,
    principal: Principal,
) -> Result<(), ControlError> {
    principal
        .check()
        .map_err(|message| ControlError::Invalid(message.to_owned()))?;
    let shard = owner(node, tenant).await?;
    let (reply, answer) = oneshot::channel();
    let mail = Mail::PauseSchedule {
        tenant: tenant.clone(),
        saga: saga.clone(),
        paused: order == ScheduleOrder::Pause,
        principal,
        reply,
    };
    let stopped = || ControlError::Unavailable(format!("shard {} has stopped", shard.index));
    shard.mail.send(mail).await.map_err(|_| stopped())?;
    match answer.await.map_err(|_| stopped())? {
        Ok(()) => Ok(()),
        Err(Refused::NotFound(_)) => Err(ControlError::NotFound(format!("saga {saga} has no schedule"))),
        Err(refused @ (Refused::Conflict(_) | Refused::Unfit { .. } | Refused::Forbidden(_))) => {
            Err(ControlError::Conflict(refused.to_string()))
        }
        Err(refused @ Refused::Unavailable { .. }) => Err(ControlError::Unavailable(refused.to_string())),
    }
}

/// Refuses the key that no instance may have.
pub(super) fn check_key(key: &Key) -> Result<(), ControlError> {
    if schedule::is_address(key) {
        let message = format!("the key {SCHEDULE_KEY} is that of schedules");
        return Err(ControlError::Invalid(message));
    }
    if alias::is_address(key) {
        let message = format!("the key {key} is that of an alias");
        return Err(ControlError::Invalid(message));
    }
    Ok(())
}

async fn owner(node: &Node, tenant: &TenantId) -> Result<Shown, ControlError> {
    let running = node.running_or_unavailable()?;
    let index = schedule::owner(tenant, node.manifest.shards);
    running.shard(index).await
}

fn view(node: &Node, saga: &SagaName, row: &ScheduleRow) -> ScheduleView {
    let sagas = &node.catalog.now().sagas;
    let schedule = sagas.active(saga).and_then(|saga| saga.schedule.as_ref());
    let schedule = schedule.filter(|_| row.next.is_some());
    let zone = Zone::named(&row.zone).ok();
    let next = row.next.map(|next| next.at);
    ScheduleView {
        saga: saga.to_string(),
        cron: row.cron.clone(),
        zone: row.zone.clone(),
        catch_up: schedule.map(|schedule| schedule.catch_up),
        overlap: schedule.map(|schedule| schedule.overlap),
        paused: row.paused,
        pause: row.pause.as_ref().map(|pause| PausedView {
            by: pause.by.clone(),
            reason: pause.reason.clone(),
            since: pause.since.rfc3339(),
        }),
        next: next.map(TimeMs::rfc3339),
        next_local: next.and_then(|next| Some(zone?.shown(next))),
        last_started: row.last_started.map(TimeMs::rfc3339),
        last_skipped: row.last_skipped.map(|(time, reason)| SkippedView {
            time: time.rfc3339(),
            reason,
        }),
        running: row
            .running
            .iter()
            .map(|run| schedule::run_key(run.planned).to_string())
            .collect(),
        queued: row
            .queue
            .iter()
            .map(|planned| schedule::run_key(*planned).to_string())
            .collect(),
        started: row.started,
        skipped: row.skipped,
    }
}
