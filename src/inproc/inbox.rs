//! The bounded hand-over from publishers to the writer.
//!
//! Publications enter in the order in which their futures were first polled, also while publishers wait for
//! room. Changes (streams, queues, trims) are rare and small and do not wait.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use crate::ports::broker::{
    BrokerError, BucketSpec, PublishAck, PublishError, PutError, QueueSpec, StreamSpec, StreamState,
};

use super::entries::EntryPut;
use super::queue::QueueShared;
use super::record::Body;
use super::stream::Stream;
use super::window::IdHash;

/// What the smallest publication counts for.
const UNIT_BYTES: usize = 1_024;
/// Changes that may wait. Their callers are few; more of them is a fault in the caller.
const CHANGES_MAX: usize = 4_096;

pub(super) type Answer<T> = oneshot::Sender<Result<T, BrokerError>>;

/// What a publisher expects, with the id in fixed size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Nothing,
    FirstOnSubject,
    Id(IdHash),
}

/// A publication on its way to the store.
pub(super) struct Job {
    pub stream: Arc<Stream>,
    pub body: Body,
    pub expected: Expected,
    pub answer: oneshot::Sender<Result<PublishAck, PublishError>>,
    units: usize,
}

/// Everything else that changes the store.
pub(super) enum Change {
    Ensure(StreamSpec, Answer<StreamState>),
    Delete(String, Answer<()>),
    Join(Arc<Stream>, QueueSpec, Answer<Arc<QueueShared>>),
    Trim(Arc<Stream>, u64, Answer<()>),
    Bucket(BucketSpec, Answer<()>),
    Put(EntryPut, Answer<Result<u64, PutError>>),
    /// Store the floors of all queues now.
    Floors(Answer<()>),
    /// Only answer.
    Ping(Answer<()>),
}

impl Change {
    pub fn refuse(self, error: BrokerError) {
        match self {
            Self::Ensure(_, answer) => drop(answer.send(Err(error))),
            Self::Join(_, _, answer) => drop(answer.send(Err(error))),
            Self::Put(_, answer) => drop(answer.send(Err(error))),
            Self::Bucket(_, answer)
            | Self::Delete(_, answer)
            | Self::Trim(_, _, answer)
            | Self::Floors(answer)
            | Self::Ping(answer) => drop(answer.send(Err(error))),
        }
    }
}

/// What the writer does next.
pub(super) enum Work {
    Store(Vec<Job>),
    Change(Change),
    /// Nothing is waiting.
    Idle,
    Stop(Stop),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Finish what was handed over, keep the floors.
    Finish,
    /// As if the process had died.
    Abort,
}

enum Slot {
    Job(Job),
    Change(Change),
}

#[derive(Default)]
struct Waiting {
    slots: VecDeque<Slot>,
    stop: Option<Stop>,
    /// Nothing is taken any more; says why.
    closed: Option<String>,
    /// Some queue has a floor that is not stored.
    floors: bool,
}

pub(super) struct Inbox {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    room: Semaphore,
    units_max: usize,
    /// Held from the wait for room until the publication is in. Waiters get it in order; without it two that
    /// wait for room could pass each other.
    order: tokio::sync::Mutex<()>,
    batch_messages: usize,
    batch_bytes: usize,
}

impl Inbox {
    pub fn new(pending_bytes: usize, batch_messages: usize, batch_bytes: usize) -> Self {
        let units_max = (pending_bytes / UNIT_BYTES).clamp(1, u32::MAX as usize / 2);
        Self {
            waiting: Mutex::default(),
            filled: Condvar::new(),
            room: Semaphore::new(units_max),
            units_max,
            order: tokio::sync::Mutex::new(()),
            batch_messages: batch_messages.max(1),
            batch_bytes: batch_bytes.max(1),
        }
    }

    /// Hands a publication over, once there is room, and returns where its answer will come.
    ///
    /// # Cancel safety
    /// A dropped future has handed over nothing.
    pub async fn publish(
        &self,
        stream: Arc<Stream>,
        body: Body,
        expected: Expected,
    ) -> Result<oneshot::Receiver<Result<PublishAck, PublishError>>, PublishError> {
        let units = body.bytes.len().div_ceil(UNIT_BYTES).clamp(1, self.units_max);
        let stopped = || PublishError::Unavailable("the broker has stopped".to_owned());
        let _turn = self.order.lock().await;
        // `units` is at most `units_max`, which fits.
        let permits = u32::try_from(units).map_err(|_| stopped())?;
        let permit = self.room.acquire_many(permits).await.map_err(|_| stopped())?;
        let (answer, outcome) = oneshot::channel();
        let mut waiting = self.lock();
        if let Some(reason) = &waiting.closed {
            return Err(PublishError::Unavailable(reason.clone()));
        }
        permit.forget();
        waiting.slots.push_back(Slot::Job(Job {
            stream,
            body,
            expected,
            answer,
            units,
        }));
        let first = waiting.slots.len() == 1;
        drop(waiting);
        if first {
            self.filled.notify_one();
        }
        Ok(outcome)
    }

    /// Hands over a change and waits for its answer.
    pub async fn change<T>(&self, make: impl FnOnce(Answer<T>) -> Change) -> Result<T, BrokerError> {
        let (answer, outcome) = oneshot::channel();
        {
            let mut waiting = self.lock();
            if let Some(reason) = &waiting.closed {
                return Err(BrokerError::Unavailable(reason.clone()));
            }
            let changes = waiting
                .slots
                .iter()
                .filter(|slot| matches!(slot, Slot::Change(_)))
                .take(CHANGES_MAX);
            if waiting.slots.len() >= CHANGES_MAX && changes.count() == CHANGES_MAX {
                return Err(BrokerError::Unavailable("too many changes at once".to_owned()));
            }
            waiting.slots.push_back(Slot::Change(make(answer)));
            self.filled.notify_one();
        }
        outcome
            .await
            .unwrap_or_else(|_| Err(BrokerError::Unavailable("the broker has stopped".to_owned())))
    }

    /// Tells the writer that some floor should be stored by and by.
    pub fn floor_moved(&self) {
        let mut waiting = self.lock();
        if !waiting.floors {
            waiting.floors = true;
            if waiting.slots.is_empty() {
                self.filled.notify_one();
            }
        }
    }

    /// Whether a floor is waiting to be stored; the next call says no.
    pub fn take_floors(&self) -> bool {
        std::mem::take(&mut self.lock().floors)
    }

    /// Takes what is there: publications up to the bounds of a batch, or one change. Waits while nothing is,
    /// for `patience` if floors wait to be stored, else not at all if `busy`, else for as long as it takes.
    pub fn take(&self, busy: bool, patience: Duration) -> Work {
        let mut waiting = self.lock();
        while waiting.slots.is_empty() && !busy {
            if let Some(stop) = waiting.stop {
                return Work::Stop(stop);
            }
            if waiting.floors {
                let (guard, timeout) = self
                    .filled
                    .wait_timeout(waiting, patience)
                    .unwrap_or_else(PoisonError::into_inner);
                waiting = guard;
                if timeout.timed_out() {
                    return Work::Idle;
                }
            } else {
                waiting = self.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if waiting.stop == Some(Stop::Abort) {
            return Work::Stop(Stop::Abort);
        }
        let work = next_work(&mut waiting.slots, self.batch_messages, self.batch_bytes);
        drop(waiting);
        if let Work::Store(jobs) = &work {
            self.room.add_permits(jobs.iter().map(|job| job.units).sum());
        }
        work
    }

    pub fn stop(&self, stop: Stop) {
        let mut waiting = self.lock();
        waiting.stop.get_or_insert(stop);
        waiting
            .closed
            .get_or_insert_with(|| "the broker has stopped".to_owned());
        drop(waiting);
        self.filled.notify_one();
    }

    /// Takes nothing any more and answers everything that waits.
    pub fn close(&self, reason: &str) {
        let slots = {
            let mut waiting = self.lock();
            waiting.closed.get_or_insert_with(|| reason.to_owned());
            std::mem::take(&mut waiting.slots)
        };
        self.room.close();
        for slot in slots {
            match slot {
                Slot::Job(job) => {
                    let _ = job.answer.send(Err(PublishError::Unavailable(reason.to_owned())));
                }
                Slot::Change(change) => change.refuse(BrokerError::Unavailable(reason.to_owned())),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next_work(slots: &mut VecDeque<Slot>, messages_max: usize, bytes_max: usize) -> Work {
    let mut jobs = Vec::new();
    let mut bytes = 0;
    loop {
        match slots.pop_front() {
            None => break,
            Some(Slot::Change(change)) if jobs.is_empty() => return Work::Change(change),
            Some(Slot::Change(change)) => {
                slots.push_front(Slot::Change(change));
                break;
            }
            Some(Slot::Job(job)) => {
                bytes += job.body.bytes.len();
                jobs.push(job);
                if jobs.len() >= messages_max || bytes >= bytes_max {
                    break;
                }
            }
        }
    }
    if jobs.is_empty() {
        Work::Idle
    } else {
        Work::Store(jobs)
    }
}
