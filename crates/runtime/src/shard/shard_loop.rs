//! The shard's loop: gather mail, commit it, do what is due, wait.
//!
//! It suspends where it waits and nowhere else, so that a commit is never seen half done by whoever shares its thread. What
//! one commit does is in [`super::commit`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};

use saga_runner_partition::machine::Partition;
use saga_runner_partition::machine::opening::{Halts, Opened};
use saga_runner_partition::machine::progress::{Acceptance, Held, HeldMail, StreamProgress, bytes_of};
use saga_runner_partition::machine::timers::{Barriers, Firing};

use super::batch::{Activation, Gathered, Item, Refill, verdict_input};
use super::catch_up::CatchingUp;
use super::mailbox::{Delivery, Mail, Notice, Refused, Relayed, Released};
use super::status::{ShardState, ShardStatus};
use super::sweep::Sweep;
use super::{Settings, ShardSpec};
use crate::kernel::ids::TimeMs;
use crate::kernel::input::{Control, Input, InputBody, Origin, SourceStream};
use crate::kernel::planted::{Bug, is_planted};
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
                _ => self.work().await,
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
        tracing::info!(shard = self.index, positions = ?self.partition.positions, "shard works");
        self.show_blocked();
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

    /// Takes one piece of mail; false: there is none.
    pub fn take_one(&mut self) -> bool {
        self.feed_again_if_room();
        let mail = self.backlog.pop_front().or_else(|| self.mailbox.try_recv().ok());
        mail.map(|mail| self.take(mail)).is_some()
    }

    /// What was refused for want of room is asked for again, once all that was set aside has been taken.
    fn feed_again_if_room(&mut self) {
        if self.held.overflowed && !self.holding && self.held.is_empty() {
            self.held.overflowed = false;
            let notice = self.gap(SourceStream::AggregateEvents);
            self.unsent.push(notice);
        }
    }

    fn take(&mut self, mail: Mail) {
        match mail {
            Mail::Delivery(delivery) => self.take_delivery(delivery),
            Mail::Barrier { stream, as_of } => self.take_barrier(stream, as_of),
            Mail::Opened { stream, again } => self.opened(stream, again),
            Mail::Verdict(verdict) => {
                let verdict = verdict_input(verdict, self.clock.now());
                self.gathered.push(Item::Verdict(Box::new(verdict)));
            }
            Mail::Migrate {
                instance,
                to,
                back,
                id,
            } => {
                let input = Input {
                    instance,
                    id,
                    time: self.clock.now(),
                    origin: Origin::Local,
                    body: InputBody::Control(Control::Migrate { to, back }),
                };
                self.gathered.push(Item::Verdict(Box::new((input, None))));
            }
            Mail::Delivered(rows) => self.gathered.push(Item::Delivered(rows)),
            Mail::CallBegins { row, reply } => self.gathered.push(Item::CallBegins { row, reply }),
            Mail::NotCalled(row) => self.gathered.push(Item::NotCalled(row)),
            Mail::Refill { after, limit, reply } => {
                self.gathered.refills.push(Refill { after, limit, reply });
            }
            Mail::DeadLetter {
                tenant,
                number,
                decision,
                reply,
            } => self.gathered.push(Item::Decision {
                tenant,
                number,
                decision,
                reply,
            }),
            Mail::PauseSchedule {
                tenant,
                saga,
                paused,
                reply,
            } => self.gathered.push(Item::Pause {
                tenant,
                saga,
                paused,
                reply,
            }),
            Mail::Activate {
                definitions,
                revision,
                routed_by,
                reply,
            } => {
                self.gathered.activation = Some(Activation {
                    definitions,
                    revision,
                    routed_by,
                    reply: Some(reply),
                });
            }
            Mail::StreamHalted { stream, halt } => self.keep_halt(stream, &halt),
            Mail::Held {
                decision,
                reason,
                reply,
            } => self.gathered.push(Item::Held {
                decision,
                reason,
                reply,
            }),
            Mail::Reposition(order) => self.gathered.reposition = Some(order),
            Mail::Stop => self.gathered.stop = true,
        }
    }

    fn take_delivery(&mut self, delivery: Delivery) {
        let stream = delivery.stream;
        let aside = stream == SourceStream::AggregateEvents
            && self.catching_up.is_none()
            && (self.holding || !self.held.is_empty());
        let settings = &self.settings;
        if aside && !self.held.has_room(settings.held_deliveries, settings.held_bytes) {
            self.held.overflowed = true;
            self.progress.refuse(stream);
            return;
        }
        match self.progress.offer(&delivery) {
            Acceptance::Fits if aside => {
                if is_planted(Bug::PositionPastHeld) {
                    let inputs = Vec::new();
                    let passed = Delivery {
                        inputs,
                        ..delivery.clone()
                    };
                    self.gathered.push(Item::Delivery(passed, None));
                }
                self.held.push_delivery(delivery);
            }
            Acceptance::Fits => match &mut self.catching_up {
                Some(catching_up) => catching_up.merge.push(delivery),
                None => self.gathered.push(Item::Delivery(delivery, None)),
            },
            Acceptance::Repeated => {}
            Acceptance::Gap { news } => {
                tracing::debug!(
                    shard = self.index,
                    ?stream,
                    after = delivery.after,
                    bytes = bytes_of(&delivery),
                    "delivery begins above the position and is refused"
                );
                if news {
                    let notice = self.gap(stream);
                    self.unsent.push(notice);
                }
            }
        }
    }

    fn take_barrier(&mut self, stream: SourceStream, as_of: TimeMs) {
        if self.progress.refuses(stream) {
            return;
        }
        if let Some(catching_up) = &mut self.catching_up {
            catching_up.merge.push_barrier(stream, as_of);
        } else if self.waits_behind_held(stream) {
            self.held.push_barrier(as_of);
        } else {
            // It counts for timers that fire behind all that was gathered before it.
            self.raise(stream, as_of);
        }
    }

    /// A barrier counts up to now: of its stream's clock more may be known than of the one that is furthest behind, by which it
    /// is now. What lies beyond now would be taken for a time before the clock was put back.
    pub fn raise(&mut self, stream: SourceStream, as_of: TimeMs) {
        let now = self.clock.now();
        self.barriers.raise(stream, as_of.min(now));
    }

    fn waits_behind_held(&self, stream: SourceStream) -> bool {
        stream == SourceStream::AggregateEvents && !self.held.is_empty() && !is_planted(Bug::TimersPassHeld)
    }

    pub const fn gap(&self, stream: SourceStream) -> Notice {
        Notice::Gap {
            shard: self.index,
            stream,
            position: self.progress.taken(stream),
        }
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
        let (Some(overdue), Some(timers)) = (self.read(look)?, self.read(timers)?) else {
            return Ok(());
        };
        self.show_overdue(timers);
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

    /// Waits for room on the disk. Mail is taken meanwhile, since it may say what can be deleted, and as much as the
    /// mailbox holds; the word to stop comes beside it.
    pub async fn wait_for_room(&mut self) -> Result<(), End> {
        let pause = self.settings.full_pause.duration();
        let backlog_max = self.settings.mailbox;
        let (mailbox, backlog, stopping) = (&mut self.mailbox, &mut self.backlog, &mut self.stopping);
        let until = tokio::time::sleep(pause);
        // An error: nobody can tell any more, nor does anybody wait.
        let told = stopping.wait_for(|stopping| *stopping);
        tokio::pin!(until, told);
        let stopped = loop {
            tokio::select! {
                biased;
                _ = &mut told => break true,
                () = &mut until => break false,
                mail = mailbox.recv(), if backlog.len() < backlog_max => match mail {
                    None | Some(Mail::Stop) => break true,
                    Some(mail) => backlog.push_back(mail),
                },
            }
        };
        if stopped { Err(End::Stopped) } else { Ok(()) }
    }

    /// Takes the deletions out of the mail that came while the disk was full.
    pub fn deletions_of_backlog(&mut self) -> Vec<Item> {
        let (deletions, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.backlog)
            .into_iter()
            .partition(|mail| matches!(mail, Mail::Delivered(_)));
        self.backlog = others.into();
        deletions
            .into_iter()
            .filter_map(|mail| match mail {
                Mail::Delivered(rows) => Some(Item::Delivered(rows)),
                _ => None,
            })
            .collect()
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

    /// Takes and drops mail so that nobody blocks on it, and does nothing, until told to stop. True: an operator has
    /// decided what to do with its streams.
    async fn halted(&mut self, reason: &'static str, message: &str) -> bool {
        self.status
            .halt(self.index, reason, message.to_owned(), &self.metrics);
        self.backlog.clear();
        self.catching_up = None;
        self.show_catching_up(false);
        while let Some(mail) = self.mailbox.recv().await {
            match mail {
                Mail::Stop => return false,
                Mail::StreamHalted { stream, halt } => self.keep_halt(stream, &halt),
                Mail::Reposition(order) if self.halts.iter().any(Option::is_some) => {
                    if self.resume_after(*order, reason) {
                        return true;
                    }
                }
                Mail::Reposition(order) => {
                    let _gone = order
                        .reply
                        .send(Err(self.unavailable(&format!("halted: {message}"))));
                }
                Mail::Activate {
                    definitions,
                    revision,
                    routed_by,
                    reply,
                } => {
                    self.gathered.activation = Some(Activation {
                        definitions,
                        revision,
                        routed_by,
                        reply: None,
                    });
                    self.status.set_outdated(true);
                    let later = format!("halted: {message}; it takes the definitions when it goes on");
                    let _gone = reply.send(Err(self.unavailable(&later)));
                }
                Mail::CallBegins { reply, .. }
                | Mail::DeadLetter { reply, .. }
                | Mail::Held { reply, .. }
                | Mail::PauseSchedule { reply, .. } => {
                    let _gone = reply.send(Err(self.unavailable(&format!("halted: {message}"))));
                }
                // A refill is dropped without an answer: an empty one would say that there is no more work.
                Mail::Refill { .. }
                | Mail::Delivery(_)
                | Mail::Barrier { .. }
                | Mail::Opened { .. }
                | Mail::Verdict(_)
                | Mail::Migrate { .. }
                | Mail::NotCalled(_)
                | Mail::Delivered(_) => {}
            }
        }
        false
    }

    pub fn unavailable(&self, message: &str) -> Refused {
        Refused::Unavailable {
            shard: self.index,
            message: message.to_owned(),
        }
    }
}
