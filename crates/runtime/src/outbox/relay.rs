//! The relay of one shard: a single task that takes what commits release and hands it over.
//!
//! It never makes the shard wait: releases are taken at any time, mail to the shard is sent when there is room,
//! and whatever does not fit into memory stays in the outbox and is asked for later.
//!
//! Here are its loop and what it begins; `finished` has what happens to that, `mail` what the shard is told and asked for.

mod finished;
mod mail;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::backlog::{Backlog, Destination, Row, Scope};
use super::fact::FactKey;
use super::fence::Fence;
use super::handover::{Done, publish, submit};
use super::local::{Called, LocalFirst, Way};
use super::publish::Publisher;
use super::refused::RefusedRows;
use super::settings::Settings;
use super::submitter::{Earlier, Submitter};
use super::sweeper::Swept;
use crate::kernel::envelope::EffectProgress;
use crate::kernel::ids::{ClusterId, EffectName};
use crate::kernel::limits::Limits;
use crate::kernel::work::{WorkKind, WorkRef};
use crate::ports::broker::{Broker, WorkflowStreams};
use crate::ports::clock::Clock;
use crate::shard::mailbox::{Mail, Relayed, Released};
use crate::tasks::{Task, Tasks};
use crate::telemetry::Metrics;
use mail::{Letter, Permit, answer, room};

const TICK: Duration = Duration::from_millis(250);
/// Ticks between two looks at whether places are taken by commands that completed long ago.
const RESYNC_TICKS: u32 = 240;
/// Overdue rows that wait for the sweeper; more are reported again by the shard.
const OVERDUE_MAX: usize = 1_000;

/// What a relay needs.
pub struct RelaySpec {
    pub shard: u16,
    pub broker: Arc<dyn Broker>,
    /// Absent where no gateway is configured: aggregate commands then wait for their deadline.
    pub submitter: Option<Arc<Submitter>>,
    pub released: mpsc::Receiver<Released>,
    pub mailbox: mpsc::Sender<Mail>,
    pub relayed: Arc<Relayed>,
    /// Says (and forgets) whether the shard could not hand over a release since the last question.
    pub take_spilled: Box<dyn Fn() -> bool + Send>,
    pub streams: WorkflowStreams,
    /// The worker of this process, where commands go to it directly.
    pub local: Option<LocalFirst>,
    /// Whether each call of an effect is recorded before it is made, as the definition says that is in force now: then its commands are
    /// marked. `false` for an effect that this process does not know.
    pub announces: Arc<dyn Fn(&EffectName) -> bool + Send + Sync>,
    /// The shard's log ended here when this life of the process began: work up to it may have been handed over before.
    pub began_after: u64,
    /// Whether this process may send for the shard.
    pub fence: Arc<Fence>,
    /// Id of the cluster, the secret part of message ids.
    pub cluster: ClusterId,
    pub settings: Settings,
    /// By which results are read.
    pub limits: Limits,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    pub tasks: Tasks,
}

/// A running relay. Dropped, it stops at once; what it had in progress is handed over after the next start.
pub struct Relay {
    task: JoinHandle<()>,
    draining: CancellationToken,
    questions: mpsc::Sender<Question>,
}

/// Answered once what it asks for holds.
struct Question {
    rest: Rest,
    reply: oneshot::Sender<()>,
}

/// What a relay comes to while nothing new is given to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// The outcomes of all calls made here are in the shard's mailbox.
    NoCalls,
    /// Besides, all that was released and may go now has been published.
    Nothing,
}

impl Relay {
    /// Starts behind the stored floor. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(spec: RelaySpec) -> Self {
        let draining = CancellationToken::new();
        let (questions, asked) = mpsc::channel(1);
        let (tasks, of) = (spec.tasks.clone(), format!("of shard {}", spec.shard));
        let relay = RelayLoop::new(spec, draining.clone(), asked);
        // Its end closes the channel of releases, by which the shard learns of it.
        let task = tasks.spawn(Task::Relay, of, relay.run());
        Self {
            task,
            draining,
            questions,
        }
    }

    /// Waits until it has come to this rest, or has ended. From now on it makes no calls itself.
    pub async fn until(&self, rest: Rest) {
        let (reply, answer) = oneshot::channel();
        if self.questions.send(Question { rest, reply }).await.is_ok() {
            // An error: it has ended.
            let _ended = answer.await;
        }
    }

    /// Takes no new work and finishes what is in flight, for at most `timeout`.
    pub async fn drain(mut self, timeout: Duration) {
        self.draining.cancel();
        match tokio::time::timeout(timeout, &mut self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "relay ended abnormally"),
            Err(_) => {
                tracing::info!("relay stopped with work in flight; it is sent after the next start");
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State of the relay's task.
struct RelayLoop {
    shard: u16,
    publisher: Arc<Publisher>,
    submitter: Option<Arc<Submitter>>,
    released: mpsc::Receiver<Released>,
    mailbox: mpsc::Sender<Mail>,
    relayed: Arc<Relayed>,
    take_spilled: Box<dyn Fn() -> bool + Send>,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
    asked: mpsc::Receiver<Question>,
    /// Not answered yet.
    questions: Vec<Question>,
    /// Not any more, once it was asked to come to rest: commands then go by the broker.
    makes_calls: bool,
    backlog: Backlog,
    publishing: FuturesUnordered<BoxFuture<'static, Done>>,
    submitting: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Calls that the worker of this process makes, each on a task of its own.
    calling: JoinSet<Called>,
    sweeping: FuturesUnordered<BoxFuture<'static, (WorkRef, Swept)>>,
    refused: RefusedRows,
    overdue: VecDeque<Row>,
    overdue_known: BTreeSet<WorkRef>,
    delivered: Vec<(WorkRef, Destination)>,
    letters: VecDeque<Letter>,
    permit: Option<BoxFuture<'static, Permit>>,
    refill: Option<(Scope, oneshot::Receiver<Vec<Row>>)>,
    /// The shard could not read its outbox: not asked again before the next tick.
    refill_paused: bool,
    ticks: u32,
}

impl RelayLoop {
    fn new(spec: RelaySpec, draining: CancellationToken, asked: mpsc::Receiver<Question>) -> Self {
        let floor = WorkRef::at_position(spec.relayed.floor.load(Ordering::Acquire));
        let settings = &spec.settings;
        Self {
            shard: spec.shard,
            backlog: Backlog::new(floor, settings.per_tenant_in_flight, settings.rows_in_memory),
            publisher: Arc::new(Publisher {
                broker: spec.broker,
                streams: spec.streams,
                fact_key: FactKey::of(spec.cluster),
                began_after: spec.began_after,
                fence: spec.fence,
                limits: spec.limits,
                settings: spec.settings,
                clock: spec.clock,
                local: spec.local,
                announces: spec.announces,
                mailbox: spec.mailbox.clone(),
                tasks: spec.tasks,
            }),
            submitter: spec.submitter,
            released: spec.released,
            mailbox: spec.mailbox,
            relayed: spec.relayed,
            take_spilled: spec.take_spilled,
            metrics: spec.metrics,
            draining,
            asked,
            questions: Vec::new(),
            makes_calls: true,
            publishing: FuturesUnordered::new(),
            submitting: FuturesUnordered::new(),
            calling: JoinSet::new(),
            sweeping: FuturesUnordered::new(),
            refused: RefusedRows::default(),
            overdue: VecDeque::new(),
            overdue_known: BTreeSet::new(),
            delivered: Vec::new(),
            letters: VecDeque::new(),
            permit: None,
            refill: None,
            refill_paused: false,
            ticks: 0,
        }
    }

    async fn run(mut self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.draining.is_cancelled() {
            self.start_work();
            if self.take_mail().is_break() {
                return;
            }
            self.answer_questions();
            let draining = self.draining.clone();
            tokio::select! {
                biased;
                () = draining.cancelled() => break,
                released = self.released.recv() => match released {
                    Some(released) => self.take(released),
                    None => break,
                },
                Some(done) = self.publishing.next() => {
                    self.finish(done);
                    while let Some(Some(done)) = self.publishing.next().now_or_never() {
                        self.finish(done);
                    }
                }
                Some(called) = self.calling.join_next() => {
                    self.called(called);
                    while let Some(called) = self.calling.try_join_next() {
                        self.called(called);
                    }
                }
                Some(done) = self.submitting.next() => self.finish(done),
                Some((row, swept)) = self.sweeping.next() => self.swept(row, swept),
                Some(permit) = room(&mut self.permit) => {
                    self.permit = None;
                    match permit {
                        Ok(permit) => self.post(|mail| { permit.send(mail); }),
                        Err(_) => return,
                    }
                }
                Some(rows) = answer(&mut self.refill) => self.refilled(rows),
                Some(question) = self.asked.recv() => {
                    self.makes_calls = false;
                    self.questions.push(question);
                }
                _ = tick.tick() => self.tick(),
            }
        }
        self.finish_in_flight().await;
    }

    fn answer_questions(&mut self) {
        let no_calls = self.calling.is_empty() && self.letters.is_empty();
        let nothing = no_calls && self.publishing.is_empty() && self.released.is_empty();
        let holds = |question: &mut Question| match question.rest {
            Rest::NoCalls => no_calls,
            Rest::Nothing => nothing,
        };
        for question in self.questions.extract_if(.., holds) {
            // Whoever asked may have stopped waiting.
            let _gone = question.reply.send(());
        }
    }

    /// Starts whatever may be started.
    fn start_work(&mut self) {
        if (self.take_spilled)() {
            self.backlog.spill();
        }
        // What is held is read once it is released, as the outbox has it then: some of it may be discarded.
        if self.publisher.fence.is_held() {
            return;
        }
        // Whoever may not send goes on to read rows; with the next tick at the latest it looks again.
        if self.publisher.fence.is_open() {
            self.start_handing_over();
        }
        self.ask_for_more();
    }

    fn start_handing_over(&mut self) {
        let room = self.publisher.settings.publish_in_flight.max(1);
        while self.publishing.len() < room {
            let Some(row) = self.backlog.next_publication() else {
                break;
            };
            let publisher = Arc::clone(&self.publisher);
            let may_call = self.makes_calls && self.calling.len() < publisher.settings.local_in_flight;
            match publisher.way(&row, may_call) {
                Way::Here(local) => {
                    // Before it begins: the shard may end at any time.
                    self.relayed.calls(row.0);
                    drop(self.calling.spawn(publisher.call(local, row)));
                }
                Way::Broker(progress) => self.publish(row, progress),
            }
        }
        while let Some(row) = self.backlog.next_submission() {
            let earlier = if self.publisher.is_of_earlier_life(row.0) {
                Earlier::Perhaps
            } else {
                Earlier::Never
            };
            let (publisher, submitter) = (Arc::clone(&self.publisher), self.submitter.clone());
            self.submitting.push(submit(publisher, submitter, row, earlier));
        }
        while self.sweeping.len() < self.publisher.settings.sweep_in_flight.max(1) {
            let Some((row, item)) = self.overdue.pop_front() else {
                break;
            };
            let publisher = Arc::clone(&self.publisher);
            self.sweeping
                .push(async move { (row, publisher.sweep(&item).await) }.boxed());
        }
    }

    fn publish(&mut self, row: Row, progress: Option<EffectProgress>) {
        let (publisher, metrics) = (Arc::clone(&self.publisher), Arc::clone(&self.metrics));
        self.publishing.push(publish(publisher, metrics, row, progress));
    }

    fn take(&mut self, released: Released) {
        // The flag is set before anything behind the lost release can be sent, so it must be read first.
        if (self.take_spilled)() {
            self.backlog.spill();
        }
        self.backlog.release(released.work);
        self.backlog.complete(&released.completed);
        for row in released.overdue {
            self.look_after(row);
        }
    }

    fn look_after(&mut self, row: Row) {
        // The shard reports it again.
        let is_held = self.publisher.fence.is_held();
        if is_held || self.backlog.holds(row.0) || self.overdue.len() >= OVERDUE_MAX {
            return;
        }
        match &row.1.kind {
            WorkKind::Effect { .. } | WorkKind::Saga { awaited: true, .. } => {
                if self.overdue_known.insert(row.0) {
                    self.overdue.push_back(row);
                }
            }
            // The shard stopped before it learned its outcome: handed over once more, with the same id.
            WorkKind::Command { .. }
            | WorkKind::Fact { .. }
            | WorkKind::Saga { .. }
            | WorkKind::Result { .. }
            | WorkKind::Cancel { .. } => {
                self.metrics
                    .overdue_commands_checked
                    .with_label_values(&["resubmitted"])
                    .inc();
                self.backlog.again(row);
            }
        }
    }

    fn tick(&mut self) {
        self.refill_paused = false;
        self.retry_refused();
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(RESYNC_TICKS) {
            self.backlog.resync();
        }
        let now = self.publisher.clock.now();
        let age_ms = self
            .backlog
            .oldest()
            .map_or(0, |oldest| (now.0 - oldest.0).max(0));
        self.metrics
            .outbox_oldest_seconds
            .with_label_values(&[&self.shard.to_string()])
            .set(age_ms / 1_000);
    }

    /// The end of a drain: nothing new is started.
    async fn finish_in_flight(mut self) {
        loop {
            let idle = self.publishing.is_empty() && self.submitting.is_empty() && self.calling.is_empty();
            if self.take_mail().is_break() || (idle && self.letters.is_empty()) {
                return;
            }
            tokio::select! {
                biased;
                Some(done) = self.publishing.next() => self.finish(done),
                Some(done) = self.submitting.next() => self.finish(done),
                Some(called) = self.calling.join_next() => self.called(called),
                Some(permit) = room(&mut self.permit) => {
                    self.permit = None;
                    match permit {
                        Ok(permit) => self.post(|mail| { permit.send(mail); }),
                        Err(_) => return,
                    }
                }
                else => return,
            }
        }
    }
}
