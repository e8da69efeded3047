//! Sagas that start by the clock.
//!
//! The schedule of a saga belongs to one shard, which keeps durably up to where its planned times were handled.
//! A planned time becomes a row of the outbox, the message by which sagas start sagas, in the transaction that
//! moves that mark: so none is lost, and none is started twice. Where the end of a run matters, the row lives until
//! the run has told its end, as that of a step does which waits for a saga.

use std::collections::BTreeSet;

use bytes::Bytes;
use saga_runner_kernel::children::SagaMessage;
use saga_runner_kernel::envelope::Principal;
use saga_runner_kernel::ids::{ClusterId, CommandId, DefinitionHash, InstanceId, SagaName, TenantId, TimeMs};
use saga_runner_kernel::input::{Control, Input, InputBody};
use saga_runner_kernel::patch::{IgnoreReason, Outcome, TimerRow};
use saga_runner_kernel::record::Paused;
use saga_runner_kernel::schedule::{self, Cron, Overlap, QUEUE_MAX, Schedule, Skip, Zone};
use saga_runner_kernel::work::{Attempt, Piece, WorkItem, WorkKind, WorkRef};

use super::apply::Turn;
use super::message::{Answer, Refused};
use super::staging::Run;
use crate::storage::StorageError;
use crate::storage::rows::{PlannedRow, RunRow, ScheduleRow};

/// Name of the timer, and path of the messages.
const SCHEDULE: &str = "schedule";
/// Longest time that the end of a run is waited for: ten years, in milliseconds.
const RUN_MS_MAX: i64 = 10 * 366 * 24 * 3_600_000;

impl Run<'_> {
    /// Takes what is addressed to a schedule.
    pub fn take_scheduled(&mut self, input: &Input) -> Result<(), StorageError> {
        if let Some(poison) = self.poison(input) {
            return self
                .dead_letter_poison(input, None, poison, Turn::FIRST)
                .map(drop);
        }
        let outcome = match &input.body {
            InputBody::Timer { .. } => self.planned(input)?,
            InputBody::Result(result) => self.run_ended(input, result.command_id)?,
            InputBody::Control(Control::Start { parent: Some(_), .. } | Control::CancelChild { .. }) => {
                let message = format!("the key {} is that of the schedule", schedule::SCHEDULE_KEY);
                self.refuse(input, 1, &message)?;
                return Ok(());
            }
            InputBody::Event(_) | InputBody::Control(_) => Outcome::Ignored(IgnoreReason::NoInstance),
        };
        self.staged.counts.input(input, outcome);
        Ok(())
    }

    /// Planned times have come.
    fn planned(&mut self, input: &Input) -> Result<Outcome, StorageError> {
        let (tenant, saga) = (&input.instance.tenant, &input.instance.saga);
        let stale = Outcome::Ignored(IgnoreReason::Stale);
        let Some(mut row) = self.batch.schedule(tenant, saga)? else {
            return Ok(stale);
        };
        if row.next.is_none_or(|next| next.at != input.time) {
            return Ok(stale);
        }
        row.next = None;
        let definitions = self.ground.definitions;
        let Some(schedule) = definitions.active(saga).and_then(|saga| saga.schedule.as_ref()) else {
            self.batch.put_schedule(tenant, saga, &row)?;
            return Ok(stale);
        };
        let now = self.ground.now.max(input.time);
        // What was planned before a change is still by the schedule before it.
        let due = as_planned(&row, schedule).due(schedule.catch_up, row.handled, now);
        if let Some(last) = due.last_missed {
            self.skip(&input.instance, &mut row, last, Skip::Missed, due.missed);
        }
        for planned in due.runs {
            self.admit(&input.instance, &mut row, schedule, planned);
            self.start_waiting(&input.instance, &mut row, schedule.overlap, planned)?;
        }
        row.handled = now;
        self.plan(&input.instance, &mut row, schedule)?;
        self.batch.put_schedule(tenant, saga, &row)?;
        Ok(Outcome::Applied)
    }

    /// An operator does without the planned times that a timer was for. The next ones come.
    pub fn forgo(&mut self, input: &Input) -> Result<(), StorageError> {
        let id = &input.instance;
        let Some(mut row) = self.batch.schedule(&id.tenant, &id.saga)? else {
            return Ok(());
        };
        if row.next.is_none_or(|next| next.at != input.time) {
            return Ok(());
        }
        let active = self.ground.definitions.active(&id.saga);
        match active.and_then(|saga| saga.schedule.as_ref()) {
            Some(schedule) => {
                self.skip(id, &mut row, input.time, Skip::Missed, 1);
                row.handled = self.ground.now.max(input.time);
                self.plan(id, &mut row, schedule)?;
            }
            None => row.next = None,
        }
        self.batch.put_schedule(&id.tenant, &id.saga, &row)
    }

    /// Puts a planned time that is due among those that are to start, or skips it.
    fn admit(&mut self, id: &InstanceId, row: &mut ScheduleRow, schedule: &Schedule, planned: TimeMs) {
        let late = self.ground.now.0.saturating_sub(planned.0).max(0);
        self.staged.counts.run_late(late);
        let busy = !row.running.is_empty() || !row.queue.is_empty();
        let queued_max = schedule.catch_up.most().max(QUEUE_MAX);
        let skip = match schedule.overlap {
            Overlap::Skip | Overlap::Queue | Overlap::Allow if row.paused => Some(Skip::Paused),
            Overlap::Skip if busy => Some(Skip::Overlap),
            Overlap::Queue if row.queue.len() >= queued_max => Some(Skip::QueueFull),
            Overlap::Skip | Overlap::Queue | Overlap::Allow => None,
        };
        match skip {
            Some(skip) => self.skip(id, row, planned, skip, 1),
            None => row.queue.push(planned),
        }
    }

    /// Starts what may start of what waits; `fresh` has just come.
    fn start_waiting(
        &mut self,
        id: &InstanceId,
        row: &mut ScheduleRow,
        overlap: Overlap,
        fresh: TimeMs,
    ) -> Result<(), StorageError> {
        while let Some(planned) = row.queue.first().copied() {
            let awaited = overlap != Overlap::Allow;
            if awaited && !row.running.is_empty() {
                if row.queue.last() == Some(&fresh) {
                    self.staged.counts.run(&id.saga, "queued", 1);
                }
                return Ok(());
            }
            row.queue.remove(0);
            self.start_run(id, row, planned, awaited)?;
        }
        Ok(())
    }

    /// Asks the shard of the run to start it.
    fn start_run(
        &mut self,
        id: &InstanceId,
        row: &mut ScheduleRow,
        planned: TimeMs,
        awaited: bool,
    ) -> Result<(), StorageError> {
        let work = WorkRef {
            log_sequence: self.next_sequence(),
            index: 0,
        };
        let item = message(self.ground.cluster, id, planned, awaited, self.ground.now);
        if awaited {
            row.running.push(RunRow {
                planned,
                command: item.command_id,
                row: work,
            });
        }
        self.put_work(work, item)?;
        row.started = row.started.saturating_add(1);
        row.last_started = Some(planned);
        self.staged.counts.run(&id.saga, "started", 1);
        tracing::info!(tenant = %id.tenant, saga = %id.saga, %planned, "a planned run starts");
        Ok(())
    }

    fn skip(&mut self, id: &InstanceId, row: &mut ScheduleRow, planned: TimeMs, skip: Skip, count: u64) {
        row.skipped = row.skipped.saturating_add(count);
        row.last_skipped = Some((planned, skip));
        self.staged.counts.run(&id.saga, skipped(skip), count);
        tracing::warn!(
            tenant = %id.tenant, saga = %id.saga, %planned, reason = skip.as_str(), count,
            "planned runs are skipped"
        );
    }

    /// A run has told its end.
    fn run_ended(&mut self, input: &Input, command: CommandId) -> Result<Outcome, StorageError> {
        let id = &input.instance;
        let orphan = Outcome::Ignored(IgnoreReason::Orphan);
        let Some(mut row) = self.batch.schedule(&id.tenant, &id.saga)? else {
            return Ok(orphan);
        };
        let Some(at) = row.running.iter().position(|run| run.command == command) else {
            return Ok(orphan);
        };
        let run = row.running.remove(at);
        if self.delete_work(run.row)? {
            self.staged.completed.push(run.row);
        }
        let schedule = self.ground.definitions.active(&id.saga);
        if let Some(schedule) = schedule.and_then(|saga| saga.schedule.as_ref()) {
            // It was admitted when it came, so it is not put aside once more.
            self.start_waiting(id, &mut row, schedule.overlap, TimeMs(i64::MIN))?;
        }
        if row.next.is_none() && row.running.is_empty() && row.queue.is_empty() {
            self.batch.delete_schedule(&id.tenant, &id.saga)?;
        } else {
            self.batch.put_schedule(&id.tenant, &id.saga, &row)?;
        }
        Ok(Outcome::Applied)
    }

    /// Brings the schedules that are kept in line with the definitions in force.
    pub fn reconcile_schedules(&mut self) -> Result<(), StorageError> {
        let definitions = self.ground.definitions;
        let scheduled = |tenant: &TenantId, saga: &SagaName| {
            let served = self.ground.scheduled_tenants.contains(tenant);
            let schedule = definitions.active(saga)?.schedule.as_ref();
            schedule.filter(|_| served)
        };
        let kept = self.batch.schedules()?;
        let mut known = BTreeSet::new();
        for (tenant, saga, row) in kept {
            let id = schedule::address(&tenant, &saga);
            match scheduled(&tenant, &saga) {
                Some(schedule) => self.renew(&id, row, schedule)?,
                None => self.retire(&id, row)?,
            }
            known.insert((tenant, saga));
        }
        for tenant in self.ground.scheduled_tenants {
            for definition in definitions.iter_active() {
                let Some(schedule) = &definition.schedule else {
                    continue;
                };
                if known.contains(&(tenant.clone(), definition.name.clone())) {
                    continue;
                }
                let row = ScheduleRow::new(self.ground.now);
                self.renew(&schedule::address(tenant, &definition.name), row, schedule)?;
            }
        }
        Ok(())
    }

    /// A schedule goes on, as it was or as it is now.
    fn renew(
        &mut self,
        id: &InstanceId,
        mut row: ScheduleRow,
        schedule: &Schedule,
    ) -> Result<(), StorageError> {
        let same = row.cron == schedule.cron.text() && row.zone == schedule.zone.name();
        match row.next {
            Some(_) if same => return Ok(()),
            // What is due fires as it was planned, and then the schedule is the new one.
            Some(next) if next.at <= self.ground.now => return Ok(()),
            Some(_) | None => {}
        }
        // The times of a schedule count from when it was there.
        self.count_from(id, &mut row, schedule, self.ground.now)?;
        tracing::info!(
            tenant = %id.tenant, saga = %id.saga, cron = row.cron, zone = row.zone,
            "the saga starts by the clock"
        );
        self.batch.put_schedule(&id.tenant, &id.saga, &row)
    }

    /// The planned times up to `since` are none of the schedule's: its next one is behind that.
    fn count_from(
        &mut self,
        id: &InstanceId,
        row: &mut ScheduleRow,
        schedule: &Schedule,
        since: TimeMs,
    ) -> Result<(), StorageError> {
        if let Some(next) = row.next.take() {
            self.batch.delete_timer(next.at, next.set_by)?;
        }
        row.handled = row.handled.max(since);
        self.plan(id, row, schedule)
    }

    /// Makes `planned` the next time of a schedule, whatever lies between: a case says which planned times come. False, and nothing
    /// changes, where the saga has no schedule or has handled that time.
    pub fn plan_as_told(&mut self, id: &InstanceId, planned: TimeMs) -> Result<bool, StorageError> {
        let active = self.ground.definitions.active(&id.saga);
        let Some(schedule) = active.and_then(|saga| saga.schedule.as_ref()) else {
            return Ok(false);
        };
        let since = planned.plus_ms(-1);
        let row = self.batch.schedule(&id.tenant, &id.saga)?;
        let mut row = row.unwrap_or_else(|| ScheduleRow::new(since));
        if row.handled >= planned {
            return Ok(false);
        }
        self.count_from(id, &mut row, schedule, since)?;
        self.batch.put_schedule(&id.tenant, &id.saga, &row)?;
        Ok(true)
    }

    /// Nothing starts by the clock any more; what runs is still waited for.
    fn retire(&mut self, id: &InstanceId, mut row: ScheduleRow) -> Result<(), StorageError> {
        let Some(next) = row.next.take() else {
            return Ok(());
        };
        self.batch.delete_timer(next.at, next.set_by)?;
        if let Some(last) = row.queue.last().copied() {
            let count = row.queue.len() as u64;
            row.queue.clear();
            self.skip(id, &mut row, last, Skip::Removed, count);
        }
        tracing::info!(tenant = %id.tenant, saga = %id.saga, "the saga no longer starts by the clock");
        if row.running.is_empty() {
            return self.batch.delete_schedule(&id.tenant, &id.saga);
        }
        self.batch.put_schedule(&id.tenant, &id.saga, &row)
    }

    /// An operator pauses a schedule, or lets it go on; the outer result is storage's, the inner one the operator's.
    pub fn pause_schedule(
        &mut self,
        tenant: &TenantId,
        saga: &SagaName,
        paused: bool,
        principal: &Principal,
    ) -> Result<Answer, StorageError> {
        let row = self.batch.schedule(tenant, saga)?;
        let Some(mut row) = row.filter(|row| row.next.is_some()) else {
            return Ok(Err(Refused::NotFound("schedule")));
        };
        if row.paused == paused {
            let why = if paused {
                "the schedule is paused already"
            } else {
                "the schedule is not paused"
            };
            return Ok(Err(Refused::Conflict(why.into())));
        }
        row.paused = paused;
        row.pause = paused.then(|| Paused {
            by: principal.who.clone(),
            reason: principal.reason.clone(),
            since: self.ground.now,
        });
        self.batch.put_schedule(tenant, saga, &row).map(Ok)
    }

    /// Sets the timer of the next planned time.
    fn plan(
        &mut self,
        id: &InstanceId,
        row: &mut ScheduleRow,
        schedule: &Schedule,
    ) -> Result<(), StorageError> {
        schedule.cron.text().clone_into(&mut row.cron);
        schedule.zone.name().clone_into(&mut row.zone);
        row.next = None;
        let Some(at) = schedule.next(row.handled) else {
            return Ok(());
        };
        let set_by = WorkRef {
            log_sequence: self.next_sequence(),
            index: 0,
        };
        row.next = Some(PlannedRow { at, set_by });
        let timer = TimerRow {
            due: at,
            set_by,
            name: SCHEDULE.to_owned(),
            fired: 0,
        };
        self.set_timer(id, &timer)
    }
}

/// The schedule by which the next time was found.
fn as_planned(row: &ScheduleRow, schedule: &Schedule) -> Schedule {
    let before = Cron::parse(&row.cron).ok().zip(Zone::named(&row.zone).ok());
    let (cron, zone) = before.unwrap_or_else(|| (schedule.cron.clone(), schedule.zone.clone()));
    Schedule {
        cron,
        zone,
        catch_up: schedule.catch_up,
        overlap: schedule.overlap,
    }
}

const fn skipped(skip: Skip) -> &'static str {
    match skip {
        Skip::Missed => "skipped_missed",
        Skip::Overlap => "skipped_overlap",
        Skip::QueueFull => "skipped_queue_full",
        Skip::Paused => "skipped_paused",
        Skip::Removed => "skipped_removed",
    }
}

/// The message that starts a run: the same for the same planned time, whoever makes it.
fn message(cluster: ClusterId, id: &InstanceId, planned: TimeMs, awaited: bool, now: TimeMs) -> WorkItem {
    let input_id = format!("{SCHEDULE}@{}", planned.0);
    let path = format!("{SCHEDULE}.{planned}");
    let command = Attempt {
        cluster,
        instance: id,
        generation: 1,
        // It is not the doing of any definition.
        definition: &DefinitionHash([0; 32]),
        input_id: &input_id,
        input_time: planned,
        path: &path,
        index: 0,
        attempt: 1,
    };
    let piece = Piece {
        cluster,
        instance: id,
        life: &input_id,
        path: &path,
        iteration: 0,
        round: 0,
        item: 0,
    };
    WorkItem {
        instance: id.clone(),
        command_id: command.command_id(),
        idempotency_key: piece.idempotency_key(),
        path: path.clone(),
        attempt: 1,
        created: now,
        deadline: now.plus_ms(RUN_MS_MAX),
        waited_ms: 0,
        causation_id: input_id,
        root_correlation_id: None,
        traceparent: None,
        hops: 0,
        kind: WorkKind::Saga {
            saga: id.saga.clone(),
            key: schedule::run_key(planned),
            message: SagaMessage::Start {
                input: Bytes::from(schedule::run_input(planned)),
                depth: 0,
                undoable: false,
            },
            awaited,
        },
    }
}
