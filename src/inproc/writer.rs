//! The one thread that changes the store.
//!
//! It takes whatever has gathered while the last commit was on its way to the disk, stores it in one
//! transaction, and answers once that is durable. So a lone publication never waits for company, and batches
//! grow with the load.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tracing::{error, warn};

use crate::ports::broker::{BrokerError, PublishAck, PublishError};
use crate::ports::clock::Clock;

use super::change::Trim;
use super::env::{self, Env, StoreError, StreamTables};
use super::inbox::{Expected, Inbox, Job, Stop, Work};
use super::record::Entry;
use super::registry::Registry;
use super::settings::Settings;
use super::stream::Stream;
use crate::mdbx::opening::Error;
use crate::mdbx::raw::Put;

pub(super) struct Writer {
    pub(super) env: Arc<Env>,
    pub(super) registry: Arc<Registry>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) settings: Settings,
    /// Trims that are not finished, done in stretches between batches.
    pub(super) trims: VecDeque<Trim>,
    floors_stored: Duration,
    failed: bool,
    /// The last transaction found no room.
    full: bool,
}

type Outcome = Result<PublishAck, PublishError>;

/// What a batch has done to one stream, shown to others only behind the commit.
struct Extension {
    stream: Arc<Stream>,
    last: u64,
    total: u64,
    stored_bytes: u64,
    entries: Vec<Entry>,
    /// Ids remembered on the way.
    ids: usize,
}

struct Batch {
    extensions: Vec<Extension>,
    outcomes: Vec<Outcome>,
}

/// Why a transaction did not come about.
pub(super) enum Failed {
    /// Nothing of it was stored.
    Before(StoreError),
    /// The disk may hold it or not.
    Unclear(StoreError),
}

impl<E: Into<StoreError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Before(error.into())
    }
}

impl Writer {
    pub fn new(
        env: Arc<Env>,
        registry: Arc<Registry>,
        inbox: Arc<Inbox>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Self {
        Self {
            floors_stored: clock.monotonic(),
            env,
            registry,
            inbox,
            clock,
            settings,
            trims: VecDeque::new(),
            failed: false,
            full: false,
        }
    }

    pub fn run(mut self) {
        let patience = self.settings.floor_interval.duration();
        let stop = loop {
            match self.inbox.take(!self.trims.is_empty(), patience) {
                Work::Store(jobs) => self.store(jobs),
                Work::Change(change) => self.change(change),
                Work::Idle if self.trims.is_empty() => self.store_floors(),
                Work::Idle => {}
                Work::Stop(stop) => break stop,
            }
            self.trim_on();
        };
        if stop == Stop::Finish && !self.failed {
            self.store_floors();
        }
    }

    /// Ends all readers and queues and takes nothing any more.
    fn end(&mut self, reason: &str) {
        self.inbox.close(reason);
        for trim in self.trims.drain(..) {
            trim.answer(Err(BrokerError::Unavailable(reason.to_owned())));
        }
        for stream in self.registry.streams() {
            stream.break_off(reason);
        }
    }

    /// The store cannot be trusted any more.
    fn fail(&mut self, reason: &str) {
        error!(reason, "the embedded broker has failed");
        self.failed = true;
        self.end(reason);
    }

    fn store(&mut self, jobs: Vec<Job>) {
        match self.try_store(&jobs) {
            Ok(batch) => {
                self.full = false;
                for extension in batch
                    .extensions
                    .into_iter()
                    .filter(|done| !done.entries.is_empty())
                {
                    extension.stream.extend(extension.entries);
                    extension.stream.announce();
                }
                for (job, outcome) in jobs.into_iter().zip(batch.outcomes) {
                    let _ = job.answer.send(outcome);
                }
            }
            Err(failed) => {
                let outcome = self.refusal(failed);
                for job in jobs {
                    let _ = job.answer.send(Err(outcome.clone()));
                }
            }
        }
    }

    /// What publishers are told, after the broker has ended itself where that is due.
    fn refusal(&mut self, failed: Failed) -> PublishError {
        match failed {
            Failed::Before(error) if error.is_full() => {
                if !std::mem::replace(&mut self.full, true) {
                    warn!(%error, "the embedded broker has no room left on the disk");
                }
                PublishError::Unavailable("the broker store is full".to_owned())
            }
            Failed::Before(error) => {
                self.fail(&error.to_string());
                PublishError::Unavailable(error.to_string())
            }
            Failed::Unclear(error) => {
                self.fail(&error.to_string());
                PublishError::Unknown(error.to_string())
            }
        }
    }

    /// The same for those who asked for a change.
    pub(super) fn change_refused(&mut self, failed: Failed) -> BrokerError {
        BrokerError::Unavailable(self.refusal(failed).to_string())
    }

    fn try_store(&mut self, jobs: &[Job]) -> Result<Batch, Failed> {
        let mut extensions = Vec::new();
        match self.write_batch(jobs, &mut extensions) {
            Ok(outcomes) => Ok(Batch { extensions, outcomes }),
            Err(failed) => {
                for extension in extensions {
                    let mut window = extension
                        .stream
                        .window
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner);
                    window.take_back(extension.ids);
                }
                Err(failed)
            }
        }
    }

    fn write_batch(&mut self, jobs: &[Job], extensions: &mut Vec<Extension>) -> Result<Vec<Outcome>, Failed> {
        let env = Arc::clone(&self.env);
        let txn = env.write()?;
        let mut tables: Vec<StreamTables> = Vec::new();
        let mut outcomes = Vec::with_capacity(jobs.len());
        for job in jobs {
            let known = extensions
                .iter()
                .position(|known| known.stream.id == job.stream.id);
            let at = match known {
                Some(at) => at,
                None if job.stream.tail().check().is_err() => {
                    outcomes.push(Err(no_stream(job.stream.name())));
                    continue;
                }
                None => {
                    tables.push(env::stream_tables(&txn, job.stream.id)?);
                    extensions.push(self.extension(&job.stream));
                    extensions.len() - 1
                }
            };
            outcomes.push(self.write_job(&txn, &tables[at], &mut extensions[at], job)?);
        }
        let floors = self.write_floors(&txn)?;
        match txn.commit() {
            Ok(()) => {
                floors.stored();
                Ok(outcomes)
            }
            Err(error) => {
                floors.lost();
                Err(commit_failed(error))
            }
        }
    }

    fn extension(&self, stream: &Arc<Stream>) -> Extension {
        let mut window = stream.window.lock().unwrap_or_else(PoisonError::into_inner);
        window.forget(self.clock.now());
        let tail = stream.tail();
        Extension {
            stream: Arc::clone(stream),
            last: tail.last(),
            total: tail.total(),
            stored_bytes: tail.stored_bytes(),
            entries: Vec::new(),
            ids: 0,
        }
    }

    fn write_job(
        &self,
        txn: &env::Rw<'_>,
        tables: &StreamTables,
        extension: &mut Extension,
        job: &Job,
    ) -> Result<Outcome, Failed> {
        let size = job.body.bytes.len() as u64;
        let sequence = extension.last + 1;
        let now = self.clock.now();
        if extension.stored_bytes + size > self.settings.stream_bytes_max {
            let full = format!("stream {} is full", extension.stream.name());
            return Ok(Err(PublishError::Unavailable(full)));
        }
        if let Expected::Id(id) = job.expected {
            let mut window = extension
                .stream
                .window
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(sequence) = window.sequence(id) {
                return Ok(Ok(PublishAck {
                    sequence,
                    duplicate: true,
                }));
            }
            window.remember(id, sequence, now);
            extension.ids += 1;
        }
        let subject = super::record::subject(&job.body.bytes);
        let key = sequence.to_be_bytes();
        match job.expected {
            Expected::FirstOnSubject => {
                if !txn.insert(tables.subjects, subject, &key)? {
                    return Ok(Err(PublishError::AlreadyThere));
                }
            }
            Expected::Nothing | Expected::Id(_) => txn.put(tables.subjects, subject, &key, Put::Upsert)?,
        }
        let total = extension.total + size;
        let head = job.body.row_head(sequence, now, total);
        txn.put_parts(tables.messages, &key, [&head, &job.body.bytes], Put::Append)?;
        extension.last = sequence;
        extension.total = total;
        extension.stored_bytes += size;
        extension.entries.push(Entry {
            sequence,
            time: now,
            total,
            body: job.body.bytes.clone(),
        });
        Ok(Ok(PublishAck {
            sequence,
            duplicate: false,
        }))
    }

    /// Takes the floors along where they have waited long enough.
    fn write_floors(&mut self, txn: &env::Rw<'_>) -> Result<Floors, Failed> {
        let now = self.clock.monotonic();
        if now.saturating_sub(self.floors_stored) < self.settings.floor_interval.duration() {
            return Ok(Floors::default());
        }
        self.floors_stored = now;
        self.write_all_floors(txn)
    }

    fn write_all_floors(&self, txn: &env::Rw<'_>) -> Result<Floors, Failed> {
        let mut floors = Floors::default();
        if !self.inbox.take_floors() {
            return Ok(floors);
        }
        for queue in self.registry.queues() {
            if let Some(row) = queue.unstored() {
                let written = env::put_queue(txn, queue.stream().id, queue.durable(), &row);
                floors.0.push((queue, row));
                if let Err(error) = written {
                    floors.lost();
                    return Err(error.into());
                }
            }
        }
        Ok(floors)
    }

    /// Stores the floors of all queues in a transaction of their own.
    pub(super) fn try_store_floors(&mut self) -> Result<(), Failed> {
        self.floors_stored = self.clock.monotonic();
        let env = Arc::clone(&self.env);
        let txn = env.write()?;
        let floors = self.write_all_floors(&txn)?;
        match txn.commit() {
            Ok(()) => {
                floors.stored();
                Ok(())
            }
            Err(error) => {
                floors.lost();
                Err(commit_failed(error))
            }
        }
    }

    fn store_floors(&mut self) {
        if let Err(failed) = self.try_store_floors() {
            // A later commit takes them along; without one they are delivered again.
            let error = self.refusal(failed);
            warn!(%error, "floors of queues are not stored");
        }
    }
}

impl Drop for Writer {
    /// Whatever ends the thread, a panic included, nobody waits for it in vain.
    fn drop(&mut self) {
        self.end("the broker has stopped");
    }
}

/// Floors that are part of a transaction.
#[derive(Default)]
struct Floors(Vec<(Arc<super::queue::QueueShared>, env::QueueRow)>);

impl Floors {
    fn stored(self) {
        for (queue, row) in self.0 {
            queue.stored(Some(row));
        }
    }

    fn lost(self) {
        for (queue, _) in self.0 {
            queue.stored(None);
        }
    }
}

pub(super) fn no_stream(name: &str) -> PublishError {
    PublishError::Unavailable(BrokerError::NoStream(name.to_owned()).to_string())
}

/// Running out of room is found before anything is final; any other failure leaves open what the disk holds.
pub(super) fn commit_failed(error: Error) -> Failed {
    let error = StoreError::from(error);
    if error.is_full() {
        Failed::Before(error)
    } else {
        Failed::Unclear(error)
    }
}
