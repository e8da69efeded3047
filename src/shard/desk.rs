//! The shard's thread: take mail, apply a batch in one transaction, commit, release.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::apply::{Bench, timer_input};
use super::mailbox::{Arrival, DeadLetterDecision, Delivery, Mail, Notice, Released, SentFloor, Verdict};
use super::open::Opening;
use super::staging::{Staging, Tally};
use super::status::{ShardState, ShardStatus};
use super::timers::Barriers;
use super::{Settings, ShardSpec};
use crate::kernel::definition::DefinitionSet;
use crate::kernel::ids::{InstanceId, TimeMs};
use crate::kernel::input::{Input, InputBody, Origin, SourceStream};
use crate::kernel::limits::Limits;
use crate::kernel::work::WorkRef;
use crate::ports::clock::Clock;
use crate::storage::rows::{PositionRow, Suspect};
use crate::storage::write::Counters;
use crate::storage::{Batch, StorageError, Store};
use crate::telemetry::Metrics;

/// Longest sleep of a shard that has nothing to do.
const IDLE: Duration = Duration::from_millis(1_000);
/// Rows of the outbox that one look for overdue work reads.
const OVERDUE_ROWS: usize = 256;
/// Ended instances that one commit forgets at most, besides as many as it ended.
const PRUNE_ROWS: usize = 64;

/// State of the thread.
pub(super) struct Desk {
    index: u16,
    store: Store,
    definitions: Arc<DefinitionSet>,
    limits: Limits,
    settings: Settings,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    release: mpsc::Sender<Released>,
    notices: mpsc::Sender<Notice>,
    mailbox: mpsc::Receiver<Mail>,
    status: Arc<ShardStatus>,
    floor: Arc<SentFloor>,
    stream_identities: [(String, i64); 3],
    positions: [u64; 3],
    counters: Counters,
    parked: BTreeMap<InstanceId, u64>,
    barriers: Barriers,
    /// Lanes whose next mail is behind a gap: refused until a delivery fits.
    refused: [bool; 3],
    /// Domain events were held back and are to be fed again once the outbox has room.
    held_back: bool,
    outbox_rows: u64,
    next_due: Option<TimeMs>,
    next_sweep: TimeMs,
    next_prune: TimeMs,
    sweep_after_row: Option<WorkRef>,
    /// Inputs still to be applied with care after an unclean stop.
    careful: usize,
    /// Notices that found no room.
    unsent: Vec<Notice>,
    /// Dead letters that may be cured since the last start.
    again: Vec<Mail>,
}

/// Why a batch was not committed.
enum Trouble {
    Full(String),
    Halt(Halt),
}

/// Why the thread must not go on: reason code and sentence.
type Halt = (&'static str, String);

/// What is to be answered once the batch has committed.
type Answer = (oneshot::Sender<Result<(), String>>, Result<(), String>);

/// Mail of one batch.
#[derive(Default)]
struct Post {
    mail: Vec<Mail>,
    stop: bool,
}

impl Desk {
    pub fn new(
        spec: ShardSpec,
        opening: Opening,
        mailbox: mpsc::Receiver<Mail>,
        status: Arc<ShardStatus>,
        floor: Arc<SentFloor>,
    ) -> Self {
        if let Some((reason, message)) = opening.halt {
            status.set_state(ShardState::Halted { reason, message });
        }
        Self {
            index: spec.index,
            careful: if opening.suspicious {
                spec.settings.batch_inputs
            } else {
                0
            },
            store: spec.store,
            definitions: spec.definitions,
            limits: spec.limits,
            settings: spec.settings,
            clock: spec.clock,
            metrics: spec.metrics,
            release: spec.release,
            notices: spec.notices,
            mailbox,
            status,
            floor,
            stream_identities: spec
                .streams
                .map(|state| (state.identity.name, state.identity.created_ns)),
            positions: opening.positions,
            counters: opening.counters,
            parked: opening.parked,
            barriers: Barriers::new(),
            refused: [false; 3],
            held_back: false,
            outbox_rows: 0,
            next_due: Some(TimeMs(i64::MIN)),
            next_sweep: TimeMs(i64::MIN),
            next_prune: TimeMs(i64::MIN),
            sweep_after_row: None,
            unsent: Vec::new(),
            again: opening
                .curable
                .into_iter()
                .map(|(tenant, number)| Mail::DeadLetter {
                    tenant,
                    number,
                    decision: DeadLetterDecision::Retry,
                    reply: oneshot::channel().0,
                })
                .collect(),
        }
    }

    /// Runs until told to stop.
    pub fn run(mut self, runtime: &Handle) {
        if let ShardState::Halted { reason, message } = self.status.state() {
            self.halted(reason, &message, runtime);
            return;
        }
        tracing::info!(shard = self.index, positions = ?self.positions, "shard works");
        let again = std::mem::take(&mut self.again);
        if let Err((reason, message)) = self.work(again) {
            self.halted(reason, &message, runtime);
            return;
        }
        loop {
            let post = self.gather(runtime);
            match self.work(post.mail) {
                Ok(()) if post.stop => break,
                Ok(()) => {}
                Err((reason, message)) => {
                    self.halted(reason, &message, runtime);
                    return;
                }
            }
        }
        self.close();
    }

    /// Marks the stop as a clean one.
    fn close(&mut self) {
        self.counters.clean = true;
        let counters = self.counters;
        let closed = self.store.write(|batch| batch.put_counters(&counters));
        if let Err(error) = closed {
            tracing::warn!(shard = self.index, %error, "the stop could not be marked as clean");
        }
        self.status.set_state(ShardState::Stopped);
    }

    /// Keeps the mailbox so that nobody blocks on it, and does nothing, until told to stop.
    fn halted(&mut self, reason: &'static str, message: &str, runtime: &Handle) {
        tracing::error!(
            shard = self.index,
            reason,
            message,
            "shard halted: a person must act"
        );
        self.status.set_state(ShardState::Halted {
            reason,
            message: message.to_owned(),
        });
        self.metrics
            .shards_halted
            .with_label_values(&[self.index.to_string().as_str(), reason])
            .set(1);
        while let Some(mail) = runtime.block_on(self.mailbox.recv()) {
            match mail {
                Mail::Stop => return,
                Mail::DeadLetter { reply, .. } => {
                    let _gone = reply.send(Err(format!("shard {} is halted: {message}", self.index)));
                }
                // Dropped unanswered: an empty answer would say that there is no work.
                Mail::Refill { .. }
                | Mail::Delivery(_)
                | Mail::Barrier { .. }
                | Mail::Verdict(_)
                | Mail::Delivered(_) => {}
            }
        }
    }

    /// Waits for mail or the next thing to do, then takes what is there up to the bound.
    fn gather(&mut self, runtime: &Handle) -> Post {
        let mut post = Post::default();
        let mut inputs = 0;
        let mut next = match self.mailbox.try_recv() {
            Ok(mail) => Some(mail),
            Err(_) => {
                let pause = self.pause();
                match runtime.block_on(async { tokio::time::timeout(pause, self.mailbox.recv()).await }) {
                    Ok(Some(mail)) => Some(mail),
                    Ok(None) => Some(Mail::Stop),
                    Err(_) => None,
                }
            }
        };
        while let Some(mail) = next {
            match mail {
                Mail::Stop => {
                    post.stop = true;
                    return post;
                }
                Mail::Refill { after, limit, reply } => self.refill(after, limit, reply),
                mail => {
                    inputs += match &mail {
                        Mail::Delivery(delivery) => delivery.inputs.len(),
                        _ => 1,
                    };
                    post.mail.push(mail);
                }
            }
            let enough = inputs >= self.settings.batch_inputs || (self.careful > 0 && inputs > 0);
            next = if enough {
                None
            } else {
                self.mailbox.try_recv().ok()
            };
        }
        post
    }

    fn pause(&self) -> Duration {
        if !self.unsent.is_empty() {
            return Duration::from_millis(10);
        }
        let now = self.clock.now();
        let until = |at: TimeMs| at.0.saturating_sub(now.0);
        let ms = match self.next_due {
            Some(_) if self.may_fire(now) => 0,
            // A due timer waits for its barrier, which comes as mail.
            Some(due) if due <= now => 100,
            Some(due) => until(due),
            None => i64::MAX,
        };
        Duration::from_millis(u64::try_from(ms.min(until(self.next_sweep))).unwrap_or(0)).min(IDLE)
    }

    /// Whether the next timer is due and nothing that could come before it is missing.
    fn may_fire(&self, now: TimeMs) -> bool {
        let until = self.barriers.fire_until(now, self.settings.timer_hold_max);
        self.next_due.is_some_and(|due| due <= until)
    }

    fn ask_for_barrier(&mut self) {
        let now = self.clock.now();
        if let Some(due) = self.next_due
            && let Some(notice) = self.barriers.wanted(self.index, due, now)
        {
            self.unsent.push(notice);
        }
    }

    fn refill(
        &self,
        after: Option<WorkRef>,
        limit: usize,
        reply: oneshot::Sender<Vec<(WorkRef, crate::kernel::work::WorkItem)>>,
    ) {
        match self.store.reader().work_after(after, limit) {
            Ok(rows) => {
                let _gone = reply.send(rows);
            }
            Err(error) => tracing::error!(shard = self.index, %error, "the outbox cannot be read"),
        }
    }

    /// Applies the mail of one batch, again and again while the disk is full.
    fn work(&mut self, mail: Vec<Mail>) -> Result<(), Halt> {
        let mut mail = mail;
        if self.careful > 0 {
            self.suspect(&mail)?;
        }
        loop {
            match self.batch(&mut mail) {
                Ok(()) => {
                    if matches!(self.status.state(), ShardState::Full(_)) {
                        tracing::info!(shard = self.index, "there is room again");
                        self.status.set_state(ShardState::Running);
                    }
                    self.ask_for_barrier();
                    self.send_notices();
                    return Ok(());
                }
                Err(Trouble::Full(message)) => {
                    if self.status.state() == ShardState::Running {
                        tracing::error!(
                            shard = self.index,
                            message,
                            "storage is full; nothing is acknowledged"
                        );
                    }
                    self.status.set_state(ShardState::Full(message));
                    std::thread::sleep(self.settings.full_pause.duration());
                }
                Err(Trouble::Halt(halt)) => return Err(halt),
            }
        }
    }

    fn batch(&mut self, mail: &mut Vec<Mail>) -> Result<(), Trouble> {
        let now = self.clock.now();
        let watermarks_only = mail.iter().all(|mail| match mail {
            Mail::Delivery(delivery) => delivery.inputs.is_empty(),
            Mail::Barrier { .. } => true,
            Mail::Verdict(_)
            | Mail::Delivered(_)
            | Mail::DeadLetter { .. }
            | Mail::Refill { .. }
            | Mail::Stop => false,
        });
        // A fresh shard, a due timer and a sweep need a look at the store although no mail asks for one.
        if watermarks_only && !self.may_fire(now) && now < self.next_sweep {
            self.take_watermarks(mail);
            return Ok(());
        }
        let begin = self.clock.monotonic();
        let mut staging = Staging::new(self.index, self.counters, self.positions);
        let mut barriers = Vec::new();
        let mut answers: Vec<Answer> = Vec::new();
        let mut plan = Plan::default();
        let outcome = {
            let desk = &*self;
            desk.store.write(|batch| {
                desk.fill(batch, &mut staging, mail, now, &mut barriers, &mut plan)?;
                desk.finish(batch, &mut staging, now, &mut plan)
            })
        };
        match outcome {
            Ok(()) => {}
            Err(StorageError::Full(message)) => return Err(Trouble::Full(message)),
            Err(error @ StorageError::Corrupt(_)) => {
                return Err(Trouble::Halt(("storage.corrupt", error.to_string())));
            }
            Err(error) => return Err(Trouble::Halt(("storage.failed", error.to_string()))),
        }
        let took = self.clock.monotonic().saturating_sub(begin);
        self.metrics.commit_seconds.observe(took.as_secs_f64());
        self.adopt(staging, plan, mail, &mut answers);
        for (stream, as_of) in barriers {
            self.barriers.raise(stream, as_of);
        }
        for (reply, answer) in answers {
            // Whoever asked may have gone.
            let _gone = reply.send(answer);
        }
        Ok(())
    }

    /// Moves positions in memory only: they are stored with the next commit, and reading a few messages again
    /// after a crash is harmless.
    fn take_watermarks(&mut self, mail: &mut Vec<Mail>) {
        for mail in mail.drain(..) {
            match mail {
                Mail::Delivery(delivery) => {
                    let verdict = judge(&delivery, self.positions[delivery.stream.index()]);
                    self.note_verdict(&delivery, verdict);
                    if verdict == Acceptance::Fits {
                        self.positions[delivery.stream.index()] = delivery.sequence;
                    }
                }
                Mail::Barrier { stream, as_of } => self.barriers.raise(stream, as_of),
                _ => {}
            }
        }
        self.status.committed(self.positions, self.outbox_rows);
    }

    /// Applies mail, then due timers.
    fn fill(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        mail: &[Mail],
        now: TimeMs,
        barriers: &mut Vec<(SourceStream, TimeMs)>,
        plan: &mut Plan,
    ) -> Result<(), StorageError> {
        let bench = Bench {
            definitions: &self.definitions,
            limits: &self.limits,
            parked: &self.parked,
            now,
        };
        let mut shadow = self.shadow();
        for mail in mail {
            match mail {
                Mail::Delivery(delivery) => {
                    let acceptance = self.accept(delivery, staging, &mut shadow);
                    plan.deliveries.push(acceptance);
                    if acceptance == Acceptance::Fits {
                        self.deliver(&bench, batch, staging, delivery)?;
                    }
                }
                Mail::Barrier { stream, as_of } => {
                    if !shadow.refused[stream.index()]
                        && !(shadow.held_back && *stream == SourceStream::AggregateEvents)
                    {
                        barriers.push((*stream, *as_of));
                    }
                }
                Mail::Verdict(verdict) => {
                    let input = verdict_input(verdict, staging.counters.last_time, now);
                    bench.apply(batch, staging, &input)?;
                }
                Mail::Delivered(rows) => {
                    for row in rows {
                        batch.delete_work(*row)?;
                    }
                }
                Mail::DeadLetter {
                    tenant,
                    number,
                    decision,
                    ..
                } => plan
                    .decisions
                    .push(bench.decide(batch, staging, tenant, *number, *decision)?),
                Mail::Refill { .. } | Mail::Stop => {}
            }
        }
        self.fire(&bench, batch, staging, now)
    }

    fn deliver(
        &self,
        bench: &Bench<'_>,
        batch: &Batch<'_>,
        staging: &mut Staging,
        delivery: &Delivery,
    ) -> Result<(), StorageError> {
        let too_often = self.killed_before(batch, delivery)?;
        for arrival in &delivery.inputs {
            match arrival {
                Arrival::Input(input) => match too_often {
                    Some(attempts) => bench.give_up(batch, staging, input, attempts)?,
                    None => bench.apply(batch, staging, input)?,
                },
                Arrival::Unreadable(message) => bench.unreadable(batch, staging, delivery.stream, message)?,
            }
        }
        staging.positions[delivery.stream.index()] = delivery.sequence;
        Ok(())
    }

    /// How often the process died with this delivery, if that is too often.
    fn killed_before(&self, batch: &Batch<'_>, delivery: &Delivery) -> Result<Option<u32>, StorageError> {
        if self.careful == 0 {
            return Ok(None);
        }
        Ok(batch
            .suspect()?
            .filter(|suspect| suspect.stream == delivery.stream && suspect.sequence == delivery.sequence)
            .map(|suspect| suspect.attempts)
            .filter(|attempts| *attempts > self.settings.attempts))
    }

    fn fire(
        &self,
        bench: &Bench<'_>,
        batch: &Batch<'_>,
        staging: &mut Staging,
        now: TimeMs,
    ) -> Result<(), StorageError> {
        if self.next_due.is_none_or(|due| due > now) {
            return Ok(());
        }
        let until = self.barriers.fire_until(now, self.settings.timer_hold_max);
        let limit = (self.settings.batch_inputs / 2).max(1);
        for (due, set_by, target) in batch.due_timers(until, limit)? {
            batch.delete_timer(due, set_by)?;
            staging.tally.push(Tally::Fired { due });
            let input = timer_input(target.instance, target.name, due);
            bench.apply(batch, staging, &input)?;
        }
        Ok(())
    }

    /// Everything that a commit stores besides the inputs' own rows.
    fn finish(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        now: TimeMs,
        plan: &mut Plan,
    ) -> Result<(), StorageError> {
        staging.write_records(batch)?;
        for stream in SourceStream::ALL {
            let index = stream.index();
            let (name, created_ns) = &self.stream_identities[index];
            let row = PositionRow {
                stream_name: name.clone(),
                stream_created_ns: *created_ns,
                sequence: staging.positions[index],
            };
            batch.put_position(stream, 0, &row)?;
        }
        staging.counters.sent_floor = self.floor.0.load(Ordering::Acquire);
        batch.put_counters(&staging.counters)?;
        if self.careful > 0 {
            batch.put_suspect(None)?;
        }
        let keep = self.store.settings();
        if now >= self.next_prune || staging.ended > 0 {
            let before = now.plus_ms(-keep.keep_ended.as_i64());
            batch.prune_ended(before, keep.keep_ended_count, PRUNE_ROWS + staging.ended)?;
        }
        if now >= self.next_sweep {
            self.sweep(batch, staging, now, plan)?;
        }
        plan.next_due = batch.next_due()?;
        plan.outbox_rows = batch.outbox_rows()?;
        Ok(())
    }

    /// Finds work that was handed over long ago and is still here: it has no result, or the news of its
    /// delivery died with the process.
    fn sweep(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        now: TimeMs,
        plan: &mut Plan,
    ) -> Result<(), StorageError> {
        let rows = batch.work_after(self.sweep_after_row, OVERDUE_ROWS)?;
        plan.swept = true;
        // The next look goes on behind this one, and begins again at the end.
        plan.sweep_after_row = (rows.len() == OVERDUE_ROWS)
            .then(|| rows.last().map(|(row, _)| *row))
            .flatten();
        let floor = staging.counters.sent_floor;
        let old = now.plus_ms(-self.settings.sweep_after.as_i64());
        staging.released.overdue = rows
            .into_iter()
            .filter(|(row, item)| item.created < old && SentFloor::covers(floor, *row))
            .collect();
        Ok(())
    }

    /// Makes a committed batch the state of the thread.
    fn adopt(&mut self, staging: Staging, plan: Plan, mail: &mut Vec<Mail>, answers: &mut Vec<Answer>) {
        self.counters = staging.counters;
        for (id, parked) in staging.parked {
            match parked {
                Some(number) => self.parked.insert(id, number),
                None => self.parked.remove(&id),
            };
        }
        let mut acceptances = plan.deliveries.into_iter();
        let mut decisions = plan.decisions.into_iter();
        for mail in mail.drain(..) {
            match mail {
                Mail::Delivery(delivery) => {
                    if let Some(acceptance) = acceptances.next() {
                        self.note_verdict(&delivery, acceptance);
                    }
                }
                Mail::DeadLetter { reply, .. } => {
                    if let Some(decision) = decisions.next() {
                        answers.push((reply, decision));
                    }
                }
                _ => {}
            }
        }
        self.positions = staging.positions;
        self.careful = self.careful.saturating_sub(staging.inputs);
        self.next_due = plan.next_due;
        self.outbox_rows = plan.outbox_rows;
        let now = self.clock.now();
        if plan.swept {
            self.next_sweep = now.plus_ms(self.settings.sweep_every.as_i64());
            self.sweep_after_row = plan.sweep_after_row;
        }
        self.next_prune = self.next_prune.max(now.plus_ms(1_000));
        if self.held_back && self.outbox_rows < self.settings.outbox_soft {
            self.held_back = false;
            self.refused[SourceStream::AggregateEvents.index()] = true;
            self.unsent.push(self.gap(SourceStream::AggregateEvents));
        }
        self.status.committed(self.positions, self.outbox_rows);
        self.count(&staging.tally, staging.inputs, now);
        self.hand_over(staging.released);
    }

    fn hand_over(&self, released: Released) {
        if released.work.is_empty() && released.settled.is_empty() && released.overdue.is_empty() {
            return;
        }
        match self.release.try_send(released) {
            Ok(()) => {}
            // The rows stay in the outbox, and the relay asks for them.
            Err(TrySendError::Full(_)) => self.status.set_spilled(),
            // The relay has stopped: it finds the rows after the next start.
            Err(TrySendError::Closed(_)) => {}
        }
    }

    fn count(&self, tally: &[Tally], inputs: usize, now: TimeMs) {
        #[allow(clippy::cast_precision_loss, reason = "a small count")]
        self.metrics.commit_inputs.observe(inputs as f64);
        let shard = self.index.to_string();
        #[allow(clippy::cast_possible_wrap, reason = "a count of rows")]
        self.metrics
            .outbox_rows
            .with_label_values(&[shard.as_str()])
            .set(self.outbox_rows as i64);
        for entry in tally {
            match entry {
                Tally::Input { kind, outcome } => {
                    self.metrics.inputs.with_label_values(&[*kind, *outcome]).inc()
                }
                Tally::Started { saga } => self
                    .metrics
                    .instances_started
                    .with_label_values(&[saga.as_str()])
                    .inc(),
                Tally::Ended { saga, phase } => self
                    .metrics
                    .instances_ended
                    .with_label_values(&[saga.as_str(), *phase])
                    .inc(),
                Tally::Dead { reason } => self
                    .metrics
                    .dead_letters
                    .with_label_values(&[reason.as_str()])
                    .inc(),
                Tally::Fired { due } => {
                    self.metrics.timers_fired.inc();
                    #[allow(clippy::cast_precision_loss, reason = "milliseconds of lateness")]
                    let late = now.0.saturating_sub(due.0).max(0) as f64 / 1_000.0;
                    self.metrics.timer_lateness_seconds.observe(late);
                }
            }
        }
    }

    const fn shadow(&self) -> Shadow {
        Shadow {
            refused: self.refused,
            held_back: self.held_back,
        }
    }

    /// Whether a delivery is taken, as the batch so far leaves things.
    fn accept(&self, delivery: &Delivery, staging: &Staging, shadow: &mut Shadow) -> Acceptance {
        let index = delivery.stream.index();
        let mut acceptance = judge(delivery, staging.positions[index]);
        let full = self.outbox_rows + staging.released.work.len() as u64 >= self.settings.outbox_soft;
        if acceptance == Acceptance::Fits
            && full
            && delivery.stream == SourceStream::AggregateEvents
            && !delivery.inputs.is_empty()
        {
            acceptance = Acceptance::HeldBack;
        }
        match acceptance {
            Acceptance::Fits => shadow.refused[index] = false,
            Acceptance::Gap => shadow.refused[index] = true,
            Acceptance::HeldBack => shadow.held_back = true,
            Acceptance::Repeated => {}
        }
        acceptance
    }

    /// Tells the intake of a gap, once.
    fn note_verdict(&mut self, delivery: &Delivery, acceptance: Acceptance) {
        let index = delivery.stream.index();
        match acceptance {
            Acceptance::Fits => {
                self.refused[index] = false;
                self.barriers.mend(delivery.stream);
            }
            Acceptance::Repeated => {}
            Acceptance::HeldBack => {
                self.held_back = true;
                self.barriers.break_off(delivery.stream);
            }
            Acceptance::Gap => {
                self.barriers.break_off(delivery.stream);
                // What is held back comes again when there is room.
                let expected = self.held_back && delivery.stream == SourceStream::AggregateEvents;
                if !expected && !std::mem::replace(&mut self.refused[index], true) {
                    let notice = self.gap(delivery.stream);
                    self.unsent.push(notice);
                }
            }
        }
    }

    const fn gap(&self, stream: SourceStream) -> Notice {
        Notice::Gap {
            shard: self.index,
            stream,
            lane: 0,
            position: self.positions[stream.index()],
        }
    }

    fn send_notices(&mut self) {
        let notices = &self.notices;
        self.unsent.retain(|notice| match notices.try_send(*notice) {
            Err(TrySendError::Full(_)) => true,
            Ok(()) | Err(TrySendError::Closed(_)) => false,
        });
    }

    /// After an unclean stop: writes down which delivery is about to be applied, and how often that was tried.
    fn suspect(&self, mail: &[Mail]) -> Result<(), Halt> {
        let Some(delivery) = mail.iter().find_map(|mail| match mail {
            Mail::Delivery(delivery) if !delivery.inputs.is_empty() => Some(delivery),
            _ => None,
        }) else {
            return Ok(());
        };
        let written = self.store.write(|batch| {
            let same = |suspect: &Suspect| {
                suspect.stream == delivery.stream && suspect.sequence == delivery.sequence
            };
            let attempts = batch
                .suspect()?
                .filter(same)
                .map_or(0, |suspect| suspect.attempts);
            batch.put_suspect(Some(&Suspect {
                stream: delivery.stream,
                sequence: delivery.sequence,
                index: 0,
                attempts: attempts + 1,
            }))
        });
        match written {
            // Without room there is no count, and the batch itself waits for room.
            Ok(()) | Err(StorageError::Full(_)) => Ok(()),
            Err(error) => Err(("storage.failed", error.to_string())),
        }
    }
}

/// What a batch found out besides rows.
#[derive(Default)]
struct Plan {
    deliveries: Vec<Acceptance>,
    decisions: Vec<Result<(), String>>,
    next_due: Option<TimeMs>,
    outbox_rows: u64,
    swept: bool,
    sweep_after_row: Option<WorkRef>,
}

/// Refusals as the batch under way has them.
struct Shadow {
    refused: [bool; 3],
    held_back: bool,
}

/// What becomes of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acceptance {
    Fits,
    /// All of it was taken before.
    Repeated,
    /// Messages before it were not taken.
    Gap,
    /// The outbox is full: it is fed again later.
    HeldBack,
}

/// The one rule that makes overlap harmless and gaps impossible.
const fn judge(delivery: &Delivery, position: u64) -> Acceptance {
    if delivery.sequence <= position {
        Acceptance::Repeated
    } else if delivery.after > position {
        Acceptance::Gap
    } else {
        Acceptance::Fits
    }
}

/// A verdict as an input: its time is the owner's clock, never before the shard's last input.
fn verdict_input(verdict: &Verdict, last: TimeMs, now: TimeMs) -> Input {
    Input {
        instance: verdict.instance.clone(),
        id: verdict.result.command_id.to_string(),
        time: now.max(last),
        origin: Origin::Local,
        body: InputBody::Result(verdict.result.clone()),
    }
}
