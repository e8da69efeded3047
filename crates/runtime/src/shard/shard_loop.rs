//! The shard's loop: gather mail, commit it, do what is due, wait.
//!
//! It suspends where it waits and nowhere else, so that a commit is never seen half done by whoever shares its thread. What
//! one commit does is in [`super::commit`], what a piece of mail means in `mail`. A shard that cannot work is in `halted`, one
//! that waits for room in `full_disk`.

mod full_disk;
mod halted;
mod mail;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};

use saga_runner_partition::machine::Partition;
use saga_runner_partition::machine::opening::{Halts, Opened};
use saga_runner_partition::machine::progress::{Held, HeldMail, StreamProgress};
use saga_runner_partition::machine::timers::{Barriers, Firing};

use super::batch::{Gathered, Item, Refill};
use super::catch_up::CatchingUp;
use super::mailbox::{Mail, Notice, Relayed, Released};
use super::status::{ShardState, ShardStatus};
use super::sweep::Sweep;
use super::{Settings, ShardSpec};
use crate::kernel::input::SourceStream;
use crate::ports::clock::Clock;
use crate::storage::{Reader, StorageError, Store};
use crate::telemetry::Metrics;

/// Longest sleep of a shard that has nothing to do.
pub const IDLE: Duration = Duration::from_secs(1);
/// Pause before a notice that found no room is sent again.
const NOTICE_PAUSE: Duration = Duration::from_millis(10);
/// Timers that are counted as overdue at most.
const OVERDUE_MAX: usize = 1_000;

/// State of the thread.
pub(super) struct ShardLoop {
    pub index: u16,
    pub store: Store,
    pub reader: Reader,
    pub partition: Partition,
    pub settings: Settings,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    release: mpsc::Sender<Released>,
    notices: mpsc::Sender<Notice>,
    mailbox: mpsc::Receiver<Mail>,
    /// Whether the shard is to stop although it cannot take its mail.
    stopping: watch::Receiver<bool>,
    /// Mail that was taken from the mailbox while the disk was full.
    backlog: VecDeque<Mail>,
    pub status: Arc<ShardStatus>,
    pub relayed: Arc<Relayed>,
    /// What is wrong with the streams.
    pub halts: Halts,
    /// Revision of the active definitions.
    pub revision: u64,
    /// Calls of rows up to here may have been made by earlier lives, without a mark.
    maybe_called: u64,
    pub progress: StreamProgress,
    pub held: Held,
    /// Domain events are set aside.
    pub holding: bool,
    /// What comes is taken in stored order.
    pub catching_up: Option<Box<CatchingUp>>,
    pub barriers: Barriers,
    pub sweep: Sweep,
    pub next_prune: Duration,
    pub next_idle_prune: Duration,
    pub gathered: Gathered,
    /// Since when something that is not urgent has been waiting for its commit.
    gathered_since: Option<Duration>,
    /// Notices that found no room.
    pub unsent: Vec<Notice>,
}

/// Why the thread ends: reason code and sentence.
pub(super) enum End {
    Halt(&'static str, String),
    /// Told to stop while the disk was full.
    Stopped,
}

impl From<StorageError> for End {
    fn from(error: StorageError) -> Self {
        Self::Halt(error.reason(), error.to_string())
    }
}

impl ShardLoop {
    pub fn new(
        spec: ShardSpec,
        opened: Opened,
        mailbox: mpsc::Receiver<Mail>,
        stopping: watch::Receiver<bool>,
        status: Arc<ShardStatus>,
        relayed: Arc<Relayed>,
    ) -> Self {
        if let Some((reason, message)) = opened.halts.iter().flatten().next().cloned() {
            status.set_state(ShardState::Halted { reason, message });
        }
        let now = spec.clock.monotonic();
        let settings = spec.settings;
        let mut gathered = Gathered::default();
        for id in opened.resumable {
            gathered.push(Item::Resume(id));
        }
        if opened.has_schedules {
            gathered.push(Item::Schedules(None));
        }
        let partition = opened.partition;
        if partition.held.is_some_and(|held| held.holds()) {
            // A commit finds out whether there is anything to decide about, and one comes although its streams are silent.
            gathered.push(Item::Delivered(Vec::new()));
        }
        Self {
            index: spec.index,
            reader: spec.store.reader(),
            store: spec.store,
            clock: spec.clock,
            metrics: spec.metrics,
            release: spec.release,
            notices: spec.notices,
            mailbox,
            stopping,
            backlog: VecDeque::new(),
            status,
            relayed,
            halts: opened.halts,
            revision: spec.revision,
            maybe_called: opened.maybe_called,
            progress: StreamProgress::new(partition.positions),
            held: Held::default(),
            holding: partition.pressing_rows() > settings.outbox_soft(partition.held),
            partition,
            catching_up: None,
            barriers: Barriers::new(),
            sweep: Sweep::new(
                settings.sweep_every.duration(),
                settings.sweep_after.duration(),
                now,
            ),
            next_prune: now,
            next_idle_prune: now,
            gathered,
            gathered_since: None,
            unsent: Vec::new(),
            settings,
        }
    }

    /// Runs until told to stop.
    pub async fn run(mut self) {
        loop {
            let worked = match self.status.state() {
                ShardState::Halted { reason, message } => Err(End::Halt(reason, message)),
                ShardState::Running | ShardState::Full(_) | ShardState::Stopped => self.work().await,
            };
            match worked {
                Ok(()) => return self.close(),
                Err(End::Stopped) => return self.status.set_state(ShardState::Stopped),
                Err(End::Halt(reason, message)) => {
                    if !self.halted(reason, &message).await {
                        return;
                    }
                }
            }
        }
    }

    async fn work(&mut self) -> Result<(), End> {
        let [aggregate_events, workflow_events, workflow_commands] = self.partition.positions;
        tracing::info!(
            shard = self.index,
            aggregate_events,
            workflow_events,
            workflow_commands,
            "shard works"
        );
        self.show_blocked();
        super::figures::begin(&self.metrics);
        self.full_gauge().set(0);
        self.begin_catching_up();
        loop {
            // Shards stop before their relays do.
            if self.release.is_closed() {
                let message = "the relay that empties its outbox has ended; close and open the shard, or restart the process";
                return Err(End::Halt("relay.ended", message.to_owned()));
            }
            self.note_caught_up();
            self.gather();
            let now = self.clock.monotonic();
            let firing = self.look_at_timers(now);
            self.look_after_work(now)?;
            self.send_notices();
            let patience = self.settings.idle_commit.duration();
            let impatient = self
                .gathered_since
                .is_some_and(|since| now.saturating_sub(since) >= patience);
            let is_whole = self.is_gathered() && !self.gathered.is_empty();
            let is_due = self.gathered.is_urgent() || is_whole || impatient;
            if is_due || matches!(firing, Firing::Fire { .. }) {
                let mut gathered = std::mem::take(&mut self.gathered);
                let activation = gathered.activation.take();
                let reposition = gathered.reposition.take();
                self.gathered_since = None;
                let stop = gathered.stop;
                self.commit_all(gathered, firing).await?;
                if let Some(activation) = activation {
                    self.activate(activation)?;
                }
                if let Some(order) = reposition {
                    self.reposition(*order)?;
                }
                if stop {
                    return Ok(());
                }
                continue;
            }
            // It came before what the mailbox has.
            if let Some(mail) = self.backlog.pop_front() {
                self.take(mail);
                continue;
            }
            if now >= self.next_idle_prune {
                self.prune()?;
            }
            if self.gathered.is_empty() {
                self.status.set_progress(now);
            } else {
                self.gathered_since.get_or_insert(now);
            }
            let pause = self.pause(firing, now);
            match tokio::time::timeout(pause, self.mailbox.recv()).await {
                Ok(Some(mail)) => self.take(mail),
                Ok(None) => self.gathered.stop = true,
                Err(_) => {}
            }
        }
    }

    /// Takes what is there, up to the bound of a commit. A delivery is taken as a whole.
    fn gather(&mut self) {
        if self.catching_up.is_some() {
            return self.gather_in_order();
        }
        while !self.is_gathered() && self.catching_up.is_none() {
            if !self.holding
                && let Some(mail) = self.held.pop()
            {
                match mail {
                    HeldMail::Delivery(delivery) => self.gathered.push(Item::Delivery(delivery, None)),
                    HeldMail::Barrier(as_of) => self.raise(SourceStream::AggregateEvents, as_of),
                }
                continue;
            }
            if !self.take_one() {
                return;
            }
        }
    }

    /// Whether a commit should take no more.
    pub fn is_gathered(&self) -> bool {
        let (inputs_max, bytes_max) = (self.settings.batch_inputs, self.settings.batch_bytes);
        self.gathered.stop || self.gathered.is_full(inputs_max, bytes_max)
    }

    /// Whether domain events that were read, or could be, wait for the outbox to shrink.
    fn holds_back(&self) -> bool {
        self.holding || !self.held.is_empty() || self.held.overflowed
    }

    fn look_at_timers(&mut self, monotonic: Duration) -> Firing {
        let now = self.clock.now();
        let holds_back = self.holds_back();
        let hold_max = self.hold_in_order().filter(|_| !holds_back);
        let firing = self
            .barriers
            .decide(self.partition.next_due, now, monotonic, hold_max);
        let is_wanted = self.reads_first() && self.barriers.are_wanted(monotonic);
        if firing == Firing::Ask || is_wanted {
            self.barriers.asked(now, monotonic);
            self.unsent.push(Notice::BarrierWanted { shard: self.index });
        }
        self.timers_in_order(firing)
    }

    /// Now and then: work without a result, and the figures that no commit brings.
    fn look_after_work(&mut self, now: Duration) -> Result<(), End> {
        if now < self.sweep.next() {
            return Ok(());
        }
        let floor = self.relayed.floor.load(Ordering::Acquire);
        let waiting = &self.partition.waiting;
        let look = self.sweep.look(&self.reader, floor, now, waiting);
        let timers = self.reader.timers_due(self.clock.now(), OVERDUE_MAX);
        let letters = self.reader.dead_letter_count();
        let (Some(overdue), Some(timers), Some(letters)) =
            (self.read(look)?, self.read(timers)?, self.read(letters)?)
        else {
            return Ok(());
        };
        self.show_overdue(timers);
        let shard = self.index.to_string();
        let present = self.metrics.dead_letters_present.with_label_values(&[&shard]);
        present.set(i64::try_from(letters).unwrap_or(i64::MAX));
        if !overdue.is_empty() {
            self.hand_over(Released {
                shard: self.index,
                work: Vec::new(),
                completed: Vec::new(),
                overdue,
            });
        }
        Ok(())
    }

    /// How long nothing has to be done without mail.
    fn pause(&self, firing: Firing, now: Duration) -> Duration {
        if !self.unsent.is_empty() {
            return NOTICE_PAUSE;
        }
        let timer = match firing {
            Firing::Idle => self.partition.next_due.map_or(IDLE, |due| {
                let ms = due.0.saturating_sub(self.clock.now().0);
                Duration::from_millis(u64::try_from(ms).unwrap_or(0))
            }),
            Firing::Wait(pause) => pause,
            // The request is on its way.
            Firing::Ask | Firing::Fire { .. } => IDLE,
        };
        let commit = self.gathered_since.map_or(IDLE, |since| {
            (since + self.settings.idle_commit.duration()).saturating_sub(now)
        });
        let sweep = self.sweep.next().saturating_sub(now);
        let prune = self.next_idle_prune.saturating_sub(now);
        timer.min(commit).min(sweep).min(prune).min(IDLE)
    }

    /// Hands a release to the relay. The shard never waits for it: a release that finds no room is dropped, its
    /// rows stay in the outbox, and the relay asks for them.
    pub fn hand_over(&self, released: Released) {
        match self.release.try_send(released) {
            Err(TrySendError::Full(_)) => self.status.set_spilled(),
            // A relay that has stopped finds the rows after the next start.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
        }
    }

    fn send_notices(&mut self) {
        let notices = &self.notices;
        self.unsent.retain(|notice| match notices.try_send(*notice) {
            Err(TrySendError::Full(_)) => true,
            Ok(()) | Err(TrySendError::Closed(_)) => false,
        });
    }

    /// Answers a refill from what is durable.
    pub fn refill(&self, refill: Refill) -> Result<(), End> {
        let rows = self.reader.work_after(refill.after, refill.limit);
        // Without an answer the relay asks again, and an empty one would say that there is no more work.
        if let Some(rows) = self.read(rows)? {
            // Whoever asked may have gone.
            let _gone = refill.reply.send(rows);
        }
        Ok(())
    }

    /// What was read, `None` where another attempt may succeed: too many may be reading at the same time.
    fn read<T>(&self, read: Result<T, StorageError>) -> Result<Option<T>, End> {
        match read {
            Ok(found) => {
                self.status.set_unreadable(None);
                Ok(Some(found))
            }
            Err(error @ StorageError::Corrupt(_)) => Err(error.into()),
            Err(error) => {
                tracing::warn!(shard = self.index, %error, "the shard's state could not be read, trying again");
                self.status.set_unreadable(Some(error.to_string()));
                Ok(None)
            }
        }
    }

    /// Marks the stop as a clean one.
    fn close(&mut self) {
        self.partition.counters.sent_floor = self.relayed.floor.load(Ordering::Acquire);
        let called = self.relayed.called();
        let closed = self
            .store
            .write::<_, StorageError>(|batch| self.partition.close(batch, &called, self.maybe_called));
        if let Err(error) = closed {
            tracing::warn!(shard = self.index, %error, "the stop could not be marked as clean");
        }
        self.status.set_state(ShardState::Stopped);
    }
}
