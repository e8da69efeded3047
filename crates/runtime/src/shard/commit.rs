//! One commit: items and due timers applied in one transaction, and what it makes true once it is durable.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use saga_runner_partition::machine::apply::Turn;
use saga_runner_partition::machine::message::{Answer, Fire, Order};
use saga_runner_partition::machine::staging::Staged;
use saga_runner_partition::machine::timers::{Firing, timer_input};
use saga_runner_partition::machine::watch::Watch;
use saga_runner_partition::machine::{Found, Partition};

use super::batch::{Gathered, Item};
use super::figures;
use super::mailbox::{Applied, Arrival, Released};
use super::shard_loop::{End, ShardLoop};
use super::spans::{self, Taken};
use super::status::{Figures, ShardState};
use super::watchers::Touched;
use crate::kernel::ids::InstanceId;
use crate::kernel::input::{Input, Origin};
use crate::kernel::planted::{Bug, is_planted};
use crate::storage::StorageError;
use crate::storage::rows::InboxRow;
use crate::telemetry::CONTROL_REFUSALS;
use crate::telemetry::metrics::IntGauge;

/// Rows that a commit forgets at most which does nothing else: as many as find room for their deletion.
const PRUNE_ALONE: [usize; 3] = [1_024, 64, 4];

/// How often a commit forgets what is old although it ended nothing.
const PRUNE_EVERY: Duration = Duration::from_secs(1);

/// How often a shard that commits nothing looks for what is old.
const PRUNE_IDLE: Duration = Duration::from_mins(1);

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

/// What was committed and is not released yet.
struct Committed {
    staged: Staged,
    found: Found,
    /// For each item, where somebody waits for one.
    answers: Vec<Option<Answer>>,
    /// What it has to do with, where somebody watches instances.
    touched: Option<Touched>,
    taken: Taken,
}

impl ShardLoop {
    /// Commits all that was gathered, in as many commits as it takes, then answers.
    ///
    /// Most often that is one. Without room on the disk ever smaller parts are tried, since deletions and small
    /// writes may still succeed; after an unclean stop inputs are begun one by one.
    pub async fn commit_all(&mut self, gathered: Gathered, firing: Firing) -> Result<(), End> {
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
                self.commit_one_by_one(&mut part)
            } else {
                self.commit(&mut part, None)
            };
            match committed {
                Ok(()) => {
                    self.put_back(part, &mut items);
                    at_most = items.len();
                }
                Err(StorageError::Full(message)) => {
                    for item in part.into_iter().rev() {
                        items.push_front(item);
                    }
                    at_most = (size / 2).max(1);
                    self.storage_full(message);
                    self.wait_for_room().await?;
                    self.make_room(&mut items)?;
                    self.prune()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        // What an instance goes on with was stored before its next timer is due: that one comes in the next turn.
        if !self.gathered.resumes() {
            self.fire(firing).await?;
        }
        refills.into_iter().try_for_each(|refill| self.refill(refill))
    }

    /// Fires due timers, behind all that was gathered.
    async fn fire(&mut self, firing: Firing) -> Result<(), End> {
        let Firing::Fire { until, late_source } = firing else {
            return Ok(());
        };
        let care = self.partition.isolation.is_needed(Origin::Timer);
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
            self.fire_one_by_one(fire)
        } else {
            self.commit(&mut Vec::new(), Some(fire))
        };
        match committed {
            Ok(()) => Ok(()),
            // They stay due, and mail that makes room comes first.
            Err(StorageError::Full(message)) => {
                self.storage_full(message);
                self.wait_for_room().await?;
                self.prune()
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

    /// Forgets what is old in a commit of its own: behind inputs that find no room there is none for that either, and
    /// a shard without inputs commits nothing else.
    pub fn prune(&mut self) -> Result<(), End> {
        let now = self.clock.now();
        for rows in PRUNE_ALONE {
            let mut staged = self.partition.stage();
            let pruned = self
                .store
                .write::<_, StorageError>(|batch| self.partition.prune(batch, &mut staged, now, rows));
            match pruned {
                Ok(()) => {
                    self.pruned(staged.pruned);
                    figures::count(&staged.counts, &self.metrics, now);
                    return Ok(());
                }
                Err(StorageError::Full(message)) => {
                    tracing::debug!(shard = self.index, rows, message, "no room to forget what is old");
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.pruned(0);
        Ok(())
    }

    /// When to look again for what is old.
    fn pruned(&mut self, rows: usize) {
        let now = self.clock.monotonic();
        self.next_prune = now + PRUNE_EVERY;
        self.next_idle_prune = now + if rows > 0 { PRUNE_EVERY } else { PRUNE_IDLE };
    }

    pub fn show_blocked(&self) {
        let shard = self.index.to_string();
        let gauge = self.metrics.instances_blocked.with_label_values(&[&shard]);
        gauge.set(i64::try_from(self.partition.blocked).unwrap_or(i64::MAX));
    }

    /// Shows how many timers are due and have not fired, and how late the earliest is.
    pub fn show_overdue(&self, timers: usize) {
        let shard = self.index.to_string();
        let gauge = self.metrics.timers_overdue.with_label_values(&[&shard]);
        gauge.set(i64::try_from(timers).unwrap_or(i64::MAX));
        let (now, due) = (self.clock.now().0, self.partition.next_due);
        let late_ms = due.map_or(0, |due| now.saturating_sub(due.0).max(0));
        let gauge = self.metrics.timers_overdue_seconds.with_label_values(&[&shard]);
        gauge.set(late_ms / 1_000);
    }

    /// 1 while the storage is full.
    pub fn full_gauge(&self) -> IntGauge {
        let shard = self.index.to_string();
        self.metrics.storage.full.with_label_values(&[&shard])
    }

    fn storage_full(&self, message: String) {
        self.full_gauge().set(1);
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
            Item::Delivery(delivery, _) => delivery.inputs.iter().any(|arrival| match arrival {
                Arrival::Input(input) => self.partition.isolation.is_needed(input.origin),
                // It comes one by one as long as the other messages of its stream do.
                Arrival::Applied(Applied { sequence, .. }) => {
                    self.partition.isolation.is_needed(Origin::Stream {
                        stream: delivery.stream,
                        sequence: *sequence,
                    })
                }
                Arrival::Unreadable(_) => false,
            }),
            Item::Verdict(verdict) => self.partition.isolation.is_needed(verdict.0.origin),
            Item::Resume(_) | Item::Decision { .. } => self.partition.isolation.is_needed_at_all(),
            Item::Delivered(_)
            | Item::CallBegins { .. }
            | Item::NotCalled(_)
            | Item::Archived { .. }
            | Item::ResumeFirst(_)
            | Item::Schedules(_)
            | Item::Pause { .. }
            | Item::CaughtUp
            | Item::Held { .. } => false,
        }
    }

    /// Commits one item, each of whose inputs is noted while it is applied.
    ///
    /// A delivery of several inputs cannot be split over commits, so they are rehearsed one by one first.
    fn commit_one_by_one(&mut self, part: &mut Vec<Item>) -> Result<(), StorageError> {
        if let [Item::Resume(id)] = part.as_slice() {
            self.resume_one_by_one(&id.clone())?;
            part.clear();
            return Ok(());
        }
        if let [Item::Decision { number, .. }] = part.as_slice() {
            let letter = self
                .store
                .write::<_, StorageError>(|batch| batch.dead_letter(*number))?;
            self.commit(part, None)?;
            // From here on it is decided, and what waited behind it has still to go on.
            part.extend(letter.and_then(|letter| Some(Item::Resume(letter.input?.instance))));
            if let [Item::Resume(id)] = part.as_slice() {
                self.resume_one_by_one(&id.clone())?;
            }
            part.clear();
            return Ok(());
        }
        let inputs: Vec<Input> = part.iter().flat_map(Item::inputs).cloned().collect();
        for (at, input) in inputs.iter().enumerate() {
            if self.begin(input)? && inputs.len() > 1 {
                self.rehearse(&inputs[..=at])?;
            }
        }
        self.commit(part, None)?;
        inputs.iter().try_for_each(|input| self.done(input))
    }

    /// Applies what waited and has nothing in its way any more, each input in a commit of its own, and noted meanwhile.
    fn resume_one_by_one(&mut self, id: &InstanceId) -> Result<(), StorageError> {
        loop {
            let (behind, rows) = self.reader.inbox(id, usize::MAX)?;
            if rows.iter().any(|(_, row)| row.reason.asks()) {
                // They come behind the answer that a timer before them waits for.
                return Ok(());
            }
            let mut rows = rows.into_iter().map(|(_, row)| row);
            let first = rows.find(|row| row.reason.is_in_order());
            let Some(InboxRow { input, .. }) = first.filter(|_| behind.is_none()) else {
                return Ok(());
            };
            self.begin(&input)?;
            self.commit(&mut vec![Item::ResumeFirst(id.clone())], None)?;
            self.done(&input)?;
        }
    }

    /// Fires one timer, which is noted meanwhile.
    fn fire_one_by_one(&mut self, fire: Fire) -> Result<(), StorageError> {
        let due = self
            .store
            .write::<_, StorageError>(|batch| batch.due_timers(fire.until, 1))?;
        let Some((due, _, target)) = due.into_iter().next() else {
            return self.commit(&mut Vec::new(), Some(fire));
        };
        let input = timer_input(target.instance, target.name, due);
        self.begin(&input)?;
        self.commit(&mut Vec::new(), Some(fire))?;
        self.done(&input)
    }

    /// Notes that `input` is being applied, from here on until it is; whether it may be.
    fn begin(&mut self, input: &Input) -> Result<bool, StorageError> {
        let Some(suspect) = self.partition.isolation.begin(input, self.settings.attempts) else {
            return Ok(false);
        };
        self.store.note_applying(suspect)?;
        Ok(true)
    }

    /// It was committed.
    fn done(&mut self, input: &Input) -> Result<(), StorageError> {
        match self.partition.isolation.done(input) {
            Some(others) => self.store.write(|batch| Partition::note_suspects(batch, others)),
            None => Ok(()),
        }
    }

    /// Applies the last of `inputs`, and those of the same instance before it, and lets nothing of it remain.
    fn rehearse(&self, inputs: &[Input]) -> Result<(), StorageError> {
        let Some(last) = inputs.last() else {
            return Ok(());
        };
        let mut staged = self.partition.stage();
        let now = self.clock.now();
        let outcome: Result<(), Rehearsal> = self.store.write(|batch| {
            let mut run = self.partition.run_in(batch, &mut staged, now);
            inputs
                .iter()
                .filter(|input| input.instance == last.instance)
                .try_for_each(|input| run.take(input, Turn::FIRST))?;
            let prune = false;
            self.partition.finish(batch, &mut staged, now, prune)?;
            Err(Rehearsal::Over)
        });
        match outcome {
            // It stays noted until another one is, or all of them are applied.
            Ok(()) | Err(Rehearsal::Over) => Ok(()),
            Err(Rehearsal::Failed(error)) => {
                self.store.note_applied()?;
                Err(error)
            }
        }
    }

    /// Applies items and timers in one commit, and releases it; what it leaves in `items` comes in a later one. On an error
    /// nothing has changed.
    fn commit(&mut self, items: &mut Vec<Item>, fire: Option<Fire>) -> Result<(), StorageError> {
        let committed = self.apply(items, fire)?;
        // Here a commit is durable, and nobody but the shard knows of it.
        self.release(items, committed);
        Ok(())
    }

    /// Applies items and timers in one transaction and makes it the state of the shard.
    fn apply(&mut self, items: &[Item], fire: Option<Fire>) -> Result<Committed, StorageError> {
        let begin = self.clock.monotonic();
        let now = self.clock.now();
        let prune = begin >= self.next_prune;
        let mut staged = self.partition.stage();
        staged.story.is_detailed |= self.metrics.spans.is_on();
        let touched = self.status.watchers.listen();
        let applied = self.store.write::<_, StorageError>(|batch| {
            let mut run = self.partition.run_in(batch, &mut staged, now);
            run.ground.watch = touched.as_ref().map(|touched| touched as &dyn Watch);
            let mut answers: Vec<Option<Answer>> = Vec::with_capacity(items.len());
            for item in items {
                answers.push(run.carry_out(item.order())?);
            }
            if let Some(fire) = fire {
                run.carry_out(Order::Timers(fire))?;
            }
            staged.counters.sent_floor = self.relayed.floor.load(Ordering::Acquire);
            let found = self.partition.finish(batch, &mut staged, now, prune)?;
            if is_planted(Bug::ReleaseBeforeCommit) {
                self.hand_over(Released {
                    shard: self.index,
                    work: staged.work.clone(),
                    completed: Vec::new(),
                    overdue: Vec::new(),
                });
            }
            // A process that dies from here on has not died of an input.
            self.store.note_applied()?;
            Ok((answers, found))
        });
        self.store.note_applied()?;
        let (answers, found) = applied?;
        let took = self.clock.monotonic().saturating_sub(begin);
        self.metrics.commit_seconds.observe(took.as_secs_f64());
        let synced = self.store.last_sync().map(|synced| synced.as_secs_f64());
        synced.inspect(|synced| self.metrics.storage.commit_sync_seconds.observe(*synced));
        if prune || staged.ended > 0 {
            self.pruned(staged.pruned);
        }
        self.partition.adopt(&mut staged, found);
        let (rows, soft) = (
            self.partition.pressing_rows(),
            self.settings.outbox_soft(self.partition.held),
        );
        // Some distance between the two bounds, so that it does not flicker.
        self.holding = rows > if self.holding { soft / 4 * 3 } else { soft };
        Ok(Committed {
            staged,
            found,
            answers,
            touched,
            taken: Taken { began: now, took },
        })
    }

    /// Lets the outside world know of a commit: positions, work, answers.
    fn release(&mut self, items: &mut Vec<Item>, committed: Committed) {
        let Committed {
            staged,
            found,
            answers,
            touched,
            taken,
        } = committed;
        for id in staged.resumable {
            self.gathered.push(Item::Resume(id));
        }
        if self.status.state() != ShardState::Running {
            tracing::info!(shard = self.index, "there is room again");
            self.full_gauge().set(0);
            self.status.set_state(ShardState::Running);
        }
        let figures = Figures {
            outbox_rows: found.outbox_rows,
            deliveries_held: self.held.deliveries(),
            instances_waiting: self.partition.waiting.len(),
            instances_unversioned: self.partition.unversioned,
            instances_blocked: self.partition.blocked,
        };
        self.status.committed(self.partition.positions, figures);
        self.status.set_progress(self.clock.monotonic());
        if let Some(touched) = touched {
            self.status.watchers.wake(touched);
        }
        let now = self.clock.now();
        #[allow(clippy::cast_precision_loss, reason = "a small count")]
        self.metrics.commit_inputs.observe(staged.inputs as f64);
        #[allow(clippy::cast_possible_wrap, reason = "a count of rows")]
        self.metrics
            .outbox_rows
            .with_label_values(&[self.index.to_string().as_str()])
            .set(found.outbox_rows as i64);
        self.show_blocked();
        staged.story.tell(self.index);
        spans::record(&self.metrics.spans, &staged.story, self.index, taken);
        figures::count(&staged.counts, &self.metrics, now);
        if staged
            .counts
            .dead
            .keys()
            .any(|reason| CONTROL_REFUSALS.contains(&reason.as_str()))
        {
            figures::audit(self.index, items.iter().filter_map(Item::delivery));
        }
        self.relayed.forget(&staged.completed);
        if !staged.work.is_empty() || !staged.completed.is_empty() {
            self.hand_over(Released {
                shard: self.index,
                work: staged.work,
                completed: staged.completed,
                overdue: Vec::new(),
            });
        }
        for (item, answer) in std::mem::take(items).into_iter().zip(answers) {
            match &item {
                // Behind where the transaction was to end.
                Item::Delivery(delivery, Some(_))
                    if staged.stopped
                        && delivery.sequence > self.partition.positions[delivery.stream.index()] =>
                {
                    items.push(item);
                }
                _ => item.answer(answer),
            }
        }
    }
}
