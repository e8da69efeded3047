//! What a shard holds back that goes on from an adopted state: told to an operator, who lets it go or gives it up.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use super::control::blocking;
use super::node::Node;
use super::running::Running;
use super::shards::Shown;
use crate::kernel::ids::{InstanceId, SagaName, TenantId, TimeMs};
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use crate::ports::control::{ControlError, PageRequest};
use crate::ports::held::{
    AdoptedView, DecidedView, HeldReport, HeldRequest, HeldVerb, PendingReport, PendingRow, PendingSaga,
};
use crate::shard::mailbox::{HeldDecision, Mail, Refused, may_be_discarded};
use crate::storage::read::Bound;
use crate::storage::{Decided, DecidedRow, HeldRow, Reader, StorageError};

/// Rows of the outbox, and timers, that one report looks at.
const ROWS_MAX: usize = 100_000;
/// What is read at a time: rows have the payloads of what they send.
const READ: Bound = Bound {
    items: 1_000,
    bytes: 4 * 1024 * 1024,
};
/// Rows that one commit gives up.
const DISCARD_MAX: usize = 500;
/// Rows that the report of a decision shows.
const SHOWN_MAX: usize = 100;
/// Longest reason.
const REASON_BYTES_MAX: usize = 1_024;

/// What a shard holds back, or would send next.
pub(super) async fn pending(
    node: &Node,
    shard: u16,
    page: PageRequest,
) -> Result<PendingReport, ControlError> {
    let shown = shown(node, shard).await?;
    let after = page.after.as_deref().map(read_cursor).transpose()?;
    let (reader, now) = (shown.reader.clone(), node.clock.now());
    let bound = Bound {
        items: page.limit,
        bytes: node.manifest.http.page_bytes_max,
    };
    blocking(&node.tasks, move || {
        let held = reader.held()?;
        let mut summary = Summary::default();
        let is_whole = each_row(&reader, |_, item| summary.count(item))?;
        let all_timers = summary.count_timers(&reader, now)?;
        let rows = reader.work_after(after, bound)?;
        let goes_on = match rows.last() {
            Some((last, _)) => !reader.work_after(Some(*last), 1)?.is_empty(),
            None => false,
        };
        Ok(PendingReport {
            shard,
            state: state(held),
            adopted: held.map(adopted),
            rows: reader.check()?.outbox,
            sagas: summary.0.into_values().collect(),
            more: !is_whole || !all_timers,
            items: rows.iter().map(|(row, item)| view(held, *row, item)).collect(),
            next: rows.last().filter(|_| goes_on).map(|(row, _)| write_cursor(*row)),
            decisions: reader.decided()?.into_iter().map(decided).collect(),
        })
    })
    .await
}

/// Carries a decision out, or tells what it would mean.
pub(super) async fn decide(
    node: &Node,
    shard: u16,
    verb: HeldVerb,
    request: HeldRequest,
) -> Result<HeldReport, ControlError> {
    let shown = shown(node, shard).await?;
    check(verb, &request)?;
    let plan = plan(node, &shown.reader, verb, &request).await?;
    let mut report = HeldReport {
        shard,
        verb: verb.as_str(),
        done: false,
        rows: plan.rows.len() as u64,
        unknown: plan.unknown,
        items: plan.items,
        sends: false,
    };
    if !request.dry_run {
        match verb {
            HeldVerb::Release => order(&shown, HeldDecision::Release, &request.reason).await?,
            HeldVerb::Discard => {
                for rows in plan.rows.chunks(DISCARD_MAX) {
                    order(&shown, HeldDecision::Discard(rows.to_vec()), &request.reason).await?;
                }
            }
        }
        tracing::warn!(
            target: "audit",
            verb = verb.as_str(),
            shard,
            rows = report.rows,
            unknown = report.unknown,
            reason = request.reason,
            "operator decision about held work of an adopted shard"
        );
        report.done = true;
    }
    if let Some(keeper) = node.running().and_then(Running::keeper) {
        keeper.released(shard).await;
    }
    let reader = shown.reader.clone();
    let held = blocking(&node.tasks, move || reader.held()).await?;
    report.sends = held.is_none_or(|held| !held.holds());
    Ok(report)
}

async fn shown(node: &Node, shard: u16) -> Result<Shown, ControlError> {
    let running = node.running_or_unavailable()?;
    if shard >= node.manifest.shards {
        return Err(ControlError::NotFound(format!("no shard {shard}")));
    }
    running.shard(shard).await
}

fn check(verb: HeldVerb, request: &HeldRequest) -> Result<(), ControlError> {
    let invalid = |message: &str| Err(ControlError::Invalid(message.to_owned()));
    if request.reason.len() > REASON_BYTES_MAX {
        return Err(ControlError::Invalid(format!(
            "the reason may have at most {REASON_BYTES_MAX} bytes"
        )));
    }
    if !request.dry_run && request.reason.trim().is_empty() {
        return invalid("say why: the reason is missing");
    }
    match (verb, request.commands.is_empty(), request.all) {
        (HeldVerb::Release, true, false)
        | (HeldVerb::Discard, true, true)
        | (HeldVerb::Discard, false, false) => Ok(()),
        (HeldVerb::Release, ..) => {
            invalid("a release is one of everything: discard what is not to be sent before")
        }
        (HeldVerb::Discard, ..) => invalid("say what is given up: its ids in `commands`, or `all`"),
    }
}

/// What a decision is about.
#[derive(Default)]
struct Plan {
    rows: Vec<WorkRef>,
    unknown: u64,
    items: Vec<PendingRow>,
}

async fn plan(
    node: &Node,
    reader: &Reader,
    verb: HeldVerb,
    request: &HeldRequest,
) -> Result<Plan, ControlError> {
    let (reader, wanted, all) = (reader.clone(), request.commands.clone(), request.all);
    let (held, plan, named) = blocking(&node.tasks, move || {
        let held = reader.held()?;
        let (mut plan, mut named) = (Plan::default(), 0);
        each_row(&reader, |row, item| {
            let is_meant = match verb {
                HeldVerb::Release => true,
                HeldVerb::Discard if all => may_be_discarded(&item.kind) && may_be_done(held, row, item),
                HeldVerb::Discard => wanted.contains(&item.command_id) && may_be_discarded(&item.kind),
            };
            if !is_meant {
                return;
            }
            named += 1;
            plan.rows.push(row);
            plan.unknown += u64::from(verb == HeldVerb::Discard && item.kind.awaits_result());
            if plan.items.len() < SHOWN_MAX {
                plan.items.push(view(held, row, item));
            }
        })?;
        Ok((held, plan, named))
    })
    .await?;
    if state(held) != "held" {
        let message = match state(held) {
            "reading" => {
                "its streams are not read to their ends yet: what is done already is not known before that"
            }
            _ => "it holds nothing back",
        };
        return Err(ControlError::Conflict(message.to_owned()));
    }
    if named < request.commands.len() {
        return Err(ControlError::NotFound(format!(
            "{} of {} ids are not in the outbox, or cannot be discarded: look again",
            request.commands.len() - named,
            request.commands.len()
        )));
    }
    Ok(plan)
}

async fn order(shown: &Shown, decision: HeldDecision, reason: &str) -> Result<(), ControlError> {
    let stopped = || ControlError::Unavailable(format!("shard {} has stopped", shown.index));
    let (reply, answer) = oneshot::channel();
    let mail = Mail::Held {
        decision,
        reason: reason.to_owned(),
        reply,
    };
    shown.mail.send(mail).await.map_err(|_| stopped())?;
    match answer.await.map_err(|_| stopped())? {
        Ok(()) => Ok(()),
        Err(refused @ Refused::Unavailable { .. }) => Err(ControlError::Unavailable(refused.to_string())),
        Err(refused) => Err(ControlError::Conflict(refused.to_string())),
    }
}

/// Gives the first [`ROWS_MAX`] rows of the outbox; whether these are all.
fn each_row(reader: &Reader, mut take: impl FnMut(WorkRef, &WorkItem)) -> Result<bool, StorageError> {
    let (mut after, mut seen) = (None, 0);
    while seen < ROWS_MAX {
        let rows = reader.work_after(after, READ)?;
        for (row, item) in &rows {
            take(*row, item);
        }
        seen += rows.len();
        match rows.last() {
            Some((row, _)) => after = Some(*row),
            None => return Ok(true),
        }
    }
    Ok(false)
}

/// Counts by tenant and saga.
#[derive(Default)]
struct Summary(BTreeMap<(TenantId, SagaName), PendingSaga>);

impl Summary {
    fn of(&mut self, id: &InstanceId) -> &mut PendingSaga {
        let saga = (id.tenant.clone(), id.saga.clone());
        self.0.entry(saga).or_insert_with(|| PendingSaga {
            tenant: id.tenant.clone(),
            saga: id.saga.to_string(),
            effects: 0,
            commands: 0,
            facts: 0,
            starts: 0,
            messages: 0,
            timers_due: 0,
            timers: 0,
            next_timer: None,
        })
    }

    fn count(&mut self, item: &WorkItem) {
        let saga = self.of(&item.instance);
        let count = match &item.kind {
            WorkKind::Effect { .. } => &mut saga.effects,
            WorkKind::Command { .. } => &mut saga.commands,
            WorkKind::Fact { .. } => &mut saga.facts,
            WorkKind::Saga { message, .. } if message.starts() => &mut saga.starts,
            WorkKind::Saga { .. } | WorkKind::Result { .. } | WorkKind::Cancel { .. } => &mut saga.messages,
        };
        *count += 1;
    }

    /// Counts the first [`ROWS_MAX`] timers; whether these are all.
    fn count_timers(&mut self, reader: &Reader, now: TimeMs) -> Result<bool, StorageError> {
        let (mut after, mut seen) = (None, 0);
        while seen < ROWS_MAX {
            let timers = reader.timers(after, READ.items)?;
            for (due, _, target) in &timers {
                let saga = self.of(&target.instance);
                saga.timers += 1;
                saga.timers_due += u64::from(*due <= now);
                saga.next_timer.get_or_insert_with(|| due.rfc3339());
            }
            seen += timers.len();
            match timers.last() {
                Some((due, set_by, _)) if timers.len() == READ.items => after = Some((*due, *set_by)),
                _ => return Ok(true),
            }
        }
        Ok(false)
    }
}

fn state(held: Option<HeldRow>) -> &'static str {
    match held {
        None => "none",
        Some(held) if !held.holds() => "released",
        Some(held) if held.read.is_none() => "reading",
        Some(_) => "held",
    }
}

fn adopted(held: HeldRow) -> AdoptedView {
    AdoptedView {
        since: held.since.rfc3339(),
        given_up: held.given_up,
        read: held.read.map(|(_, time)| time.rfc3339()),
        released: held.released.map(TimeMs::rfc3339),
    }
}

fn may_be_done(held: Option<HeldRow>, row: WorkRef, item: &WorkItem) -> bool {
    let read = held.and_then(|held| held.read);
    read.is_some_and(|(log_sequence, time)| row.log_sequence <= log_sequence || item.created < time)
}

fn view(held: Option<HeldRow>, row: WorkRef, item: &WorkItem) -> PendingRow {
    let (kind, name) = item.kind.named();
    PendingRow {
        id: item.command_id,
        kind,
        name: name.to_owned(),
        tenant: item.instance.tenant.clone(),
        saga: item.instance.saga.to_string(),
        key: item.instance.key.to_string(),
        path: item.path.clone(),
        since: item.created.rfc3339(),
        awaited: item.kind.awaits_result(),
        may_be_done: may_be_done(held, row, item),
        may_be_discarded: may_be_discarded(&item.kind),
    }
}

fn decided(row: DecidedRow) -> DecidedView {
    let (what, detail) = match row.what {
        Decided::Adopted { given_up, fresh } => (
            "adopted",
            format!(
                "the loss of the owner with epoch {given_up} was adopted, and the shard {}",
                if fresh {
                    "began empty"
                } else {
                    "went on from its folder"
                }
            ),
        ),
        Decided::Restored { taken, epoch } => (
            "restored",
            format!(
                "the backup that was taken {taken} from the owner with epoch {epoch} was restored to the folder"
            ),
        ),
        Decided::Released { rows } => ("released", format!("{rows} row(s) were in the outbox")),
        Decided::Discarded {
            commands,
            others,
            first,
        } => {
            let ids: Vec<String> = first.iter().map(ToString::to_string).collect();
            (
                "discarded",
                format!(
                    "{commands} command(s) have an unknown outcome, {others} other(s) are not sent: {}",
                    ids.join(", ")
                ),
            )
        }
    };
    DecidedView {
        time: row.time.rfc3339(),
        what,
        detail,
        reason: row.reason,
    }
}

fn write_cursor(row: WorkRef) -> String {
    format!("{}-{}", row.log_sequence, row.index)
}

fn read_cursor(text: &str) -> Result<WorkRef, ControlError> {
    let row = text.split_once('-').and_then(|(log_sequence, index)| {
        Some(WorkRef {
            log_sequence: log_sequence.parse().ok()?,
            index: index.parse().ok()?,
        })
    });
    row.ok_or_else(|| ControlError::Invalid("after is not a cursor of this list".to_owned()))
}
