//! Effect commands that the worker of this process gets without the broker: their first attempt only.
//!
//! The row stays in the outbox until the result is applied, so a call that a crash cuts off is made again. Rows of
//! an earlier life of the process take the way of the queue. Those of a life that was killed may have been called, and say so;
//! one that is stopped in order marks the calls that are on their way. Where an effect makes no call twice, the shard commits
//! that a call begins before it does: rows that have no such mark were not called, if all lives that may have had them kept to that.
//! So an effect that makes no call twice when a life begins leaves marks for as long as that life, also when its definition changes.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use tokio::sync::{mpsc, oneshot};

use super::backlog::Row;
use super::envelope;
use super::fence::Fence;
use super::handover::{Completion, Done, done};
use super::publish::Publisher;
use super::sweeper;
use crate::kernel::envelope::EffectProgress;
use crate::kernel::ids::{EffectName, TimeMs};
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use crate::ports::dispatch::{Attempted, Dispatch, Intent, LocalEffect};
use crate::shard::mailbox::{Mail, Refused};
use crate::tasks::Task;

/// How long a call waits for the commit before it; then its command takes the way of the queue.
const RECORD_MAX: Duration = Duration::from_secs(5);

/// The worker of this process.
pub struct LocalFirst {
    pub dispatch: Arc<dyn Dispatch>,
    /// Log sequence of the last commit of the process's earlier life.
    pub recovered: u64,
    /// Log sequence up to which its calls, or those of a life before it, may have been made without a mark.
    pub maybe_called: u64,
    /// Rows of earlier lives that have the mark of a call.
    pub begun: BTreeSet<WorkRef>,
    /// The effects of which this life makes no call without a mark, and the log sequence behind which no other life did either.
    pub marked_since: BTreeMap<EffectName, u64>,
}

impl LocalFirst {
    /// Whether a row of an earlier life has a mark if it was called.
    fn would_be_marked(&self, row: WorkRef, effect: &EffectName) -> bool {
        let since = self.marked_since.get(effect);
        row.log_sequence > self.maybe_called || since.is_some_and(|since| row.log_sequence > *since)
    }
}

/// Which way a row goes.
pub enum Way {
    /// To the worker of this process.
    Here(Arc<dyn LocalEffect>),
    /// To the broker, with what is known about a command.
    Broker(Option<EffectProgress>),
}

/// How the call for a row ended.
pub enum Called {
    Done(Done),
    /// Its command goes to the queue.
    Queue {
        row: Row,
        progress: EffectProgress,
        /// The shard may have committed that its call begins, and it was not made or did nothing.
        not_called: bool,
    },
}

/// The shard's record that the call of a row begins.
struct Record<'p> {
    mailbox: &'p mpsc::Sender<Mail>,
    row: WorkRef,
    fence: &'p Fence,
    is_needed: bool,
    state: AtomicU8,
}

/// Nobody asked for the record.
const UNASKED: u8 = 0;
/// It may stand, and the call was not begun.
const ASKED: u8 = 1;
/// It stands, and the call begins.
const STANDS: u8 = 2;
/// The row is gone: nobody waits for its call.
const COMPLETED: u8 = 3;

impl<'p> Record<'p> {
    const fn new(mailbox: &'p mpsc::Sender<Mail>, row: WorkRef, fence: &'p Fence, is_needed: bool) -> Self {
        Self {
            mailbox,
            row,
            fence,
            is_needed,
            state: AtomicU8::new(UNASKED),
        }
    }

    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::Acquire) == state
    }

    async fn ask(&self) -> Option<Result<(), Refused>> {
        let (reply, answer) = oneshot::channel();
        let row = self.row;
        self.mailbox.send(Mail::CallBegins { row, reply }).await.ok()?;
        answer.await.ok()
    }
}

#[async_trait]
impl Intent for Record<'_> {
    fn is_needed(&self) -> bool {
        self.is_needed
    }

    async fn record(&self) -> bool {
        self.state.store(ASKED, Ordering::Release);
        let state = match tokio::time::timeout(RECORD_MAX, self.ask()).await {
            Ok(Some(Ok(()))) => STANDS,
            Ok(Some(Err(
                reason @ (Refused::NotFound(_)
                | Refused::Conflict(_)
                | Refused::Unfit { .. }
                | Refused::Forbidden(_)),
            ))) => {
                tracing::debug!(row = ?self.row, %reason, "call not made");
                COMPLETED
            }
            // A shard that is halted does not answer for the row.
            Ok(Some(Err(Refused::Unavailable { .. })) | None) | Err(_) => {
                tracing::debug!(row = ?self.row, "shard did not commit the start of a call in time");
                ASKED
            }
        };
        self.state.store(state, Ordering::Release);
        state == STANDS
    }

    fn may_begin(&self) -> bool {
        self.fence.is_open()
    }
}

/// A command that may have been executed before `now`, by a process that left no word.
pub fn maybe_called(now: TimeMs) -> EffectProgress {
    EffectProgress {
        outcome_unknown: true,
        begun_ms: now.0,
        ..EffectProgress::default()
    }
}

impl Publisher {
    /// The way of a row; `room` says whether the worker of this process may get more.
    pub fn way(&self, (row, item): &Row, room: bool) -> Way {
        let WorkKind::Effect { effect, .. } = &item.kind else {
            return Way::Broker(None);
        };
        let maybe_called = || maybe_called(self.clock.now());
        // The one behind whose state this life has begun may have called, and nobody here knows.
        if self.fence.is_resumed() {
            let may_be = self.fence.may_be_done(row.log_sequence, item.created);
            return Way::Broker(may_be.then(maybe_called));
        }
        let Some(local) = &self.local else {
            return Way::Broker(None);
        };
        if row.log_sequence <= local.recovered {
            let may_be = local.begun.contains(row) || !local.would_be_marked(*row, effect);
            return Way::Broker(may_be.then(maybe_called));
        }
        match local.dispatch.local(effect).filter(|_| room) {
            Some(effect) => Way::Here(effect),
            None => Way::Broker(None),
        }
    }

    /// Has the first attempt made here.
    pub async fn call(self: Arc<Self>, to: Arc<dyn LocalEffect>, (row, item): Row) -> Called {
        let attempted = AssertUnwindSafe(self.attempt(&*to, row, &item))
            .catch_unwind()
            .await;
        match attempted {
            Ok(Ok(done)) => Called::Done(done),
            Ok(Err((progress, not_called))) => Called::Queue {
                row: (row, item),
                progress,
                not_called,
            },
            Err(panic) => {
                tracing::error!(instance = %item.instance, command = %item.command_id, "a call panicked; its command goes to the queue");
                self.tasks.panicked(Task::Call, Task::Call.as_str(), &*panic);
                Called::Queue {
                    row: (row, item),
                    progress: maybe_called(self.clock.now()),
                    not_called: false,
                }
            }
        }
    }

    async fn attempt(
        &self,
        to: &dyn LocalEffect,
        row: WorkRef,
        item: &WorkItem,
    ) -> Result<Done, (EffectProgress, bool)> {
        let WorkKind::Effect { effect, payload } = &item.kind else {
            return Err((EffectProgress::default(), false));
        };
        let local = self.local.as_ref();
        let is_needed = local.is_some_and(|local| local.marked_since.contains_key(effect));
        let record = Record::new(&self.mailbox, row, &self.fence, is_needed);
        let command = envelope::command(item, effect, payload, None).map(|mut command| {
            command.metadata.deadline_ms = item.ends().0;
            command
        });
        let body = match command {
            Ok(command) => match to.first_attempt(&command, &record).await {
                Attempted::Answered(body) => body,
                Attempted::Elsewhere(_) if record.is(COMPLETED) => {
                    return Ok(done(row, item, None, Completion::Nothing, "completed"));
                }
                Attempted::Elsewhere(progress) if record.is(ASKED) => {
                    let not_called = EffectProgress {
                        outcome_unknown: false,
                        begun_ms: 0,
                        ..progress
                    };
                    return Err((not_called, true));
                }
                Attempted::Elsewhere(progress) => {
                    let did_nothing = record.is(STANDS) && !progress.outcome_unknown;
                    return Err((progress, did_nothing));
                }
            },
            Err(error) => {
                let verdict = sweeper::unsendable(item, effect, error.to_string(), self.clock.now());
                return Ok(done(row, item, Some(verdict), Completion::Nothing, "unsendable"));
            }
        };
        let mut verdict = sweeper::verdict_of(item, effect, &body, &self.limits, self.clock.now());
        verdict.publish = Some(Box::new(WorkItem {
            kind: WorkKind::Result {
                effect: effect.clone(),
                body,
            },
            ..item.clone()
        }));
        Ok(done(row, item, Some(verdict), Completion::Nothing, "executed"))
    }
}
