//! One commit: items and due timers applied in one transaction, and what it makes true once it is durable.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;

use super::apply::Turn;
use super::batch::{Gathered, Item};
use super::desk::{Desk, End};
use super::mailbox::{Arrival, Released};
use super::staging::{Ground, Run, Staged};
use super::status::{Figures, ShardState};
use super::timers::{Firing, timer_input};
use crate::kernel::ids::TimeMs;
use crate::kernel::input::{Input, Origin, SourceStream};
use crate::kernel::work::{WorkItem, WorkRef};
use crate::storage::rows::{PositionRow, Suspect};
use crate::storage::{Batch, StorageError};

/// Rows that one commit forgets at most, besides twice as many as it ended.
const PRUNE_ROWS: usize = 64;

/// How often a commit forgets what is old although it ended nothing.
const PRUNE_EVERY: Duration = Duration::from_secs(1);

/// Timers that a commit is to fire.
#[derive(Debug, Clone, Copy)]
struct Fire {
    until: TimeMs,
    late_source: bool,
    limit: usize,
}

/// What a transaction found out besides rows.
#[derive(Default)]
struct Found {
    /// One per decision, in order.
    answers: Vec<Result<(), String>>,
    next_due: Option<TimeMs>,
    outbox_rows: u64,
}

/// What happens in a rehearsal: everything, and then nothing of it remains.
enum Rehearsal {
    Over,
    Failed(StorageError),
}

impl From<StorageError> for Rehearsal {
    fn from(error: StorageError) -> Self {
        Self::Failed(error)
    }
}

impl Desk {
    /// Commits all that was gathered, in as many commits as it takes, then answers.
    ///
    /// Most often that is one. Without room on the disk ever smaller parts are tried, since deletions and small
    /// writes may still succeed; after an unclean stop inputs are begun one by one.
    pub fn commit_all(&mut self, gathered: Gathered, firing: Firing, runtime: &Handle) -> Result<(), End> {
        let Gathered {
            mut items, refills, ..
        } = gathered;
        let mut at_most = items.len();
        while !items.is_empty() {
            let careless = items.iter().take_while(|item| !self.needs_care(item)).count();
            let size = careless.min(at_most).max(1);
            let rest = items.split_off(size);
            let mut part: Vec<Item> = std::mem::replace(&mut items, rest).into();
            let committed = if careless == 0 {
                self.commit_carefully(&mut part)
            } else {
                self.commit(&mut part, None)
            };
            match committed {
                Ok(()) => at_most = items.len(),
                Err(StorageError::Full(message)) => {
                    for item in part.into_iter().rev() {
                        items.push_front(item);
                    }
                    at_most = (size / 2).max(1);
                    self.storage_full(message);
                    self.wait_for_room(runtime)?;
                    self.make_room(&mut items)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.fire(firing, runtime)?;
        refills.into_iter().try_for_each(|refill| self.refill(refill))
    }

    /// Fires due timers, behind all that was gathered.
    fn fire(&mut self, firing: Firing, runtime: &Handle) -> Result<(), End> {
        let Firing::Fire { until, late_source } = firing else {
            return Ok(());
        };
        let care = self.careful.is_needed(Origin::Timer);
        let limit = if care {
            1
        } else {
            (self.settings.batch_inputs / 2).max(1)
        };
        let fire = Fire {
            until,
            late_source,
            limit,
        };
        let committed = if care {
            self.fire_carefully(fire)
        } else {
            self.commit(&mut Vec::new(), Some(fire))
        };
        match committed {
            Ok(()) => Ok(()),
            // They stay due, and mail that makes room comes first.
            Err(StorageError::Full(message)) => {
                self.storage_full(message);
                self.wait_for_room(runtime)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Commits the deletions among what waits, wherever they stand: they depend on nothing before them.
    fn make_room(&mut self, items: &mut VecDeque<Item>) -> Result<(), End> {
        let (mut deletions, others): (Vec<_>, Vec<_>) = std::mem::take(items)
            .into_iter()
            .partition(|item| matches!(item, Item::Delivered(_)));
        *items = others.into();
        deletions.extend(self.deletions_of_backlog());
        if deletions.is_empty() {
            return Ok(());
        }
        match self.commit(&mut deletions, None) {
            Ok(()) => Ok(()),
            Err(StorageError::Full(_)) => {
                items.extend(deletions);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn storage_full(&self, message: String) {
        if self.status.state() == ShardState::Running {
            tracing::error!(
                shard = self.index,
                message,
                "storage is full; nothing is acknowledged"
            );
        }
        self.status.set_state(ShardState::Full(message));
    }

    fn needs_care(&self, item: &Item) -> bool {
        match item {
            Item::Delivery(delivery) => delivery.inputs.iter().any(|arrival| match arrival {
                Arrival::Input(input) => self.careful.is_needed(input.origin),
                Arrival::Unreadable(_) => false,
            }),
            Item::Verdict(verdict) => self.careful.is_needed(verdict.0.origin),
            Item::Delivered(_)
            | Item::CallBegins { .. }
            | Item::NotCalled(_)
            | Item::Decision { .. }
            | Item::Resume(_)
            | Item::Schedules(_)
            | Item::Pause { .. } => false,
        }
    }

    /// Commits one item, each of whose inputs was noted as begun before it is.
    ///
    /// A delivery of several inputs cannot be split over commits, so they are rehearsed one by one first.
    fn commit_carefully(&mut self, part: &mut Vec<Item>) -> Result<(), StorageError> {
        let inputs: Vec<Input> = part.iter().flat_map(Item::inputs).cloned().collect();
        for (at, input) in inputs.iter().enumerate() {
            let Some(suspect) = self.careful.begin(input, self.settings.attempts) else {
                continue;
            };
            self.note_begun(Some(&suspect))?;
            if inputs.len() > 1 {
                self.rehearse(&inputs[..=at])?;
            }
        }
        self.commit(part, None)?;
        for input in &inputs {
            self.careful.done(input);
        }
        Ok(())
    }

    /// Fires one timer, which was noted as begun before.
    fn fire_carefully(&mut self, fire: Fire) -> Result<(), StorageError> {
        let due = self
            .store
            .write::<_, StorageError>(|batch| batch.due_timers(fire.until, 1))?;
        let Some((due, _, target)) = due.into_iter().next() else {
            return self.commit(&mut Vec::new(), Some(fire));
        };
        let input = timer_input(target.instance, target.name, due);
        if let Some(suspect) = self.careful.begin(&input, self.settings.attempts) {
            self.note_begun(Some(&suspect))?;
        }
        self.commit(&mut Vec::new(), Some(fire))?;
        self.careful.done(&input);
        Ok(())
    }

    fn note_begun(&self, suspect: Option<&Suspect>) -> Result<(), StorageError> {
        self.store.write(|batch| batch.put_suspect(suspect))
    }

    /// Applies the last of `inputs`, and those of the same instance before it, and lets nothing of it remain.
    fn rehearse(&self, inputs: &[Input]) -> Result<(), StorageError> {
        let Some(last) = inputs.last() else {
            return Ok(());
        };
        let mut staged = self.stage();
        let outcome: Result<(), Rehearsal> = self.store.write(|batch| {
            let mut run = self.run_in(batch, &mut staged);
            inputs
                .iter()
                .filter(|input| input.instance == last.instance)
                .try_for_each(|input| run.take(input, Turn::FIRST))?;
            Err(Rehearsal::Over)
        });
        match outcome {
            Ok(()) | Err(Rehearsal::Over) => Ok(()),
            Err(Rehearsal::Failed(error)) => Err(error),
        }
    }

    fn stage(&self) -> Staged {
        Staged {
            counters: self.counters,
            positions: self.positions,
            ..Staged::default()
        }
    }

    fn run_in<'a>(&'a self, batch: &'a Batch<'a>, staged: &'a mut Staged) -> Run<'a> {
        Run {
            ground: Ground {
                definitions: &self.definitions,
                scheduled_tenants: &self.scheduled_tenants,
                limits: &self.limits,
                cluster: self.store.cluster_id(),
                now: self.clock.now(),
                keep_ended: self.store.settings().keep_ended,
                waiting: &self.waiting,
                condemned: &self.careful.condemned,
            },
            batch,
            staged,
        }
    }

    /// Applies items and timers in one transaction. On an error nothing has changed.
    fn commit(&mut self, items: &mut Vec<Item>, fire: Option<Fire>) -> Result<(), StorageError> {
        let begin = self.clock.monotonic();
        let mut staged = self.stage();
        let mut found = Found::default();
        {
            let desk = &*self;
            desk.store.write::<_, StorageError>(|batch| {
                let mut run = desk.run_in(batch, &mut staged);
                for item in items.iter() {
                    run.apply(item, &mut found)?;
                }
                if let Some(fire) = fire {
                    run.fire(fire)?;
                }
                run.staged.records.write(batch)?;
                desk.finish(batch, &mut staged, &mut found)
            })?;
        }
        let took = self.clock.monotonic().saturating_sub(begin);
        self.metrics.commit_seconds.observe(took.as_secs_f64());
        self.adopt(staged, &found);
        let mut answers = found.answers.into_iter();
        for item in items.drain(..) {
            if let Item::CallBegins { reply, .. }
            | Item::Decision { reply, .. }
            | Item::Pause { reply, .. }
            | Item::Schedules(Some(reply)) = item
                && let Some(answer) = answers.next()
            {
                // Whoever asked may have gone.
                let _gone = reply.send(answer);
            }
        }
        Ok(())
    }

    /// Everything that a commit stores besides the inputs' own rows.
    fn finish(&self, batch: &Batch<'_>, staged: &mut Staged, found: &mut Found) -> Result<(), StorageError> {
        for stream in SourceStream::ALL {
            let index = stream.index();
            if staged.positions[index] == self.positions[index] {
                continue;
            }
            let (name, created_ns) = &self.stream_identities[index];
            let row = PositionRow {
                stream_name: name.clone(),
                stream_created_ns: *created_ns,
                sequence: staged.positions[index],
            };
            batch.put_position(stream, 0, &row)?;
        }
        staged.counters.sent_floor = self.floor.0.load(Ordering::Acquire);
        batch.put_counters(&staged.counters)?;
        if staged.ended > 0 || self.clock.monotonic() >= self.next_prune {
            let keep = self.store.settings();
            let before = self.clock.now().plus_ms(-keep.keep_ended.as_i64());
            let forgotten =
                batch.prune_dead_letters(keep.keep_dead_letters, PRUNE_ROWS + 2 * staged.inputs)?;
            staged.tally.forgotten(forgotten);
            let rows = PRUNE_ROWS + 2 * staged.ended;
            for hash in batch.prune_ended(before, keep.keep_ended_count, rows)? {
                staged.uses.ended(hash, -1);
            }
        }
        batch.change_uses(&staged.uses, |hash| self.definitions.is_active(hash))?;
        found.next_due = batch.next_due()?;
        found.outbox_rows = batch.outbox_rows()?;
        Ok(())
    }

    /// Makes a committed batch the state of the thread, and tells everyone.
    fn adopt(&mut self, staged: Staged, found: &Found) {
        if self.status.state() != ShardState::Running {
            tracing::info!(shard = self.index, "there is room again");
            self.status.set_state(ShardState::Running);
        }
        self.counters = staged.counters;
        self.positions = staged.positions;
        for (id, waiting) in staged.waiting {
            let before = self.waiting.get(&id).is_some_and(|before| before.unversioned > 0);
            self.unversioned += usize::from(waiting.unversioned > 0);
            self.unversioned -= usize::from(before);
            if waiting.is_empty() {
                self.waiting.remove(&id);
            } else {
                self.waiting.insert(id, waiting);
            }
        }
        self.next_due = found.next_due;
        self.outbox_rows = found.outbox_rows;
        let soft = self.settings.outbox_soft;
        // Some distance between the two bounds, so that it does not flicker.
        self.holding = found.outbox_rows > if self.holding { soft / 4 * 3 } else { soft };
        let monotonic = self.clock.monotonic();
        if staged.ended > 0 || monotonic >= self.next_prune {
            self.next_prune = monotonic + PRUNE_EVERY;
        }
        let figures = Figures {
            outbox_rows: self.outbox_rows,
            deliveries_held: self.held.deliveries(),
            instances_waiting: self.waiting.len(),
            instances_unversioned: self.unversioned,
        };
        self.status.committed(self.positions, figures);
        let now = self.clock.now();
        self.status.set_progress(now);
        #[allow(clippy::cast_precision_loss, reason = "a small count")]
        self.metrics.commit_inputs.observe(staged.inputs as f64);
        #[allow(clippy::cast_possible_wrap, reason = "a count of rows")]
        self.metrics
            .outbox_rows
            .with_label_values(&[self.index.to_string().as_str()])
            .set(self.outbox_rows as i64);
        staged.tally.count(&self.metrics, now);
        if !staged.work.is_empty() || !staged.settled.is_empty() {
            self.hand_over(Released {
                shard: self.index,
                work: staged.work,
                settled: staged.settled,
                overdue: Vec::new(),
            });
        }
    }
}

impl Run<'_> {
    fn apply(&mut self, item: &Item, found: &mut Found) -> Result<(), StorageError> {
        match item {
            Item::Delivery(delivery) => {
                for arrival in &delivery.inputs {
                    match arrival {
                        Arrival::Input(input) => self.take(input, Turn::FIRST)?,
                        Arrival::Unreadable(message) => self.unreadable(delivery.stream, message)?,
                    }
                }
                self.staged.positions[delivery.stream.index()] = delivery.sequence;
                Ok(())
            }
            Item::Verdict(verdict) => {
                let (input, publish) = &**verdict;
                self.verdict(input)?;
                publish.as_ref().map_or(Ok(()), |item| self.publish(item))
            }
            Item::Delivered(rows) => {
                for row in rows {
                    self.batch.delete_work(*row)?;
                }
                Ok(())
            }
            Item::CallBegins { row, .. } => {
                let stands = self.batch.begin_work(*row)?;
                let settled = || "the command is settled".to_owned();
                found.answers.push(stands.then_some(()).ok_or_else(settled));
                Ok(())
            }
            Item::NotCalled(row) => self.batch.forget_begun(*row),
            Item::Decision {
                tenant,
                number,
                decision,
                ..
            } => {
                let answer = self.decide(tenant, *number, *decision)?;
                found.answers.push(answer);
                Ok(())
            }
            Item::Resume(id) => self.resume(id),
            Item::Schedules(asked) => {
                self.reconcile_schedules()?;
                found.answers.extend(asked.is_some().then_some(Ok(())));
                Ok(())
            }
            Item::Pause {
                tenant, saga, paused, ..
            } => {
                let answer = self.pause_schedule(tenant, saga, *paused)?;
                found.answers.push(answer);
                Ok(())
            }
        }
    }

    fn verdict(&mut self, input: &Input) -> Result<(), StorageError> {
        let last = self.staged.counters.last_time;
        if input.time >= last {
            return self.take(input, Turn::FIRST);
        }
        // Local time never runs behind what the shard has seen.
        let input = Input {
            time: last,
            ..Input::clone(input)
        };
        self.take(&input, Turn::FIRST)
    }

    /// Puts a message into the outbox that no transition has asked for.
    fn publish(&mut self, item: &WorkItem) -> Result<(), StorageError> {
        let log_sequence = self.next_sequence();
        let row = WorkRef {
            log_sequence,
            index: 0,
        };
        self.batch.put_work(row, item)?;
        self.staged.work.push((row, item.clone()));
        Ok(())
    }

    fn fire(&mut self, fire: Fire) -> Result<(), StorageError> {
        let turn = Turn {
            late_source: fire.late_source,
            ..Turn::FIRST
        };
        for (due, set_by, target) in self.batch.due_timers(fire.until, fire.limit)? {
            // Cleared by a timer of the same instance that fired just before.
            if !self.batch.delete_timer(due, set_by)? {
                continue;
            }
            self.staged.tally.fired(due, fire.late_source);
            self.take(&timer_input(target.instance, target.name, due), turn)?;
        }
        Ok(())
    }
}
