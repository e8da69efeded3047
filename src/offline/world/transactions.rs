//! Gives inputs to the partition, each in a transaction of its own, with the messages to aliases and from there.

use std::cell::RefCell;
use std::collections::VecDeque;

use saga_runner_partition::machine::apply::Turn;
use saga_runner_partition::machine::message::{Answer, LetterOrder, Order};
use saga_runner_partition::machine::staging::{Run, Staged};
use saga_runner_partition::storage::read::Found;
use saga_runner_partition::storage::{Batch, StorageError};

use super::ear::Ear;
use super::given::Given;
use super::time::Timer;
use super::{Manner, World};
use crate::kernel::alias::Alias;
use crate::kernel::input::Input;
use crate::kernel::patch::Outcome;
use crate::kernel::record::Record;
use crate::kernel::schedule;
use crate::kernel::work::WorkRef;
use crate::offline::coverage::Listener;
use crate::offline::of::Address;
use crate::offline::work;

/// Most messages that one input may send to aliases and from there, directly or through what it sets free.
const MESSAGES_MAX: usize = 10_000;

/// A message on its way.
pub(super) struct Carried {
    /// Its row in the outbox, where that is gone once the message is stored.
    pub(super) row: Option<WorkRef>,
    pub(super) input: Input,
}

impl World {
    /// An operator decides about the dead letter behind which inputs of the instance wait.
    ///
    /// # Errors
    /// A sentence, where there is none.
    pub fn decide(&mut self, order: impl Into<LetterOrder>) -> Result<Given, String> {
        let order = order.into();
        let waiting = self.partition.waiting.get(&self.instance);
        let number = waiting
            .and_then(|waiting| waiting.behind)
            .ok_or("no dead letter stands before the instance")?;
        let tenant = self.instance.tenant.clone();
        let mut answer: Option<Answer> = None;
        let given = self.transact(|run| {
            answer = run.carry_out(Order::Decision {
                tenant: &tenant,
                number,
                order: &order,
            })?;
            Ok(())
        });
        match answer {
            Some(Err(refused)) => Err(refused.to_string()),
            Some(Ok(())) | None => Ok(given),
        }
    }

    /// Gives an input, and what it sets free.
    pub fn give(&mut self, input: &Input) -> Given {
        let mut given = self.take(input);
        let is_kept = given.shown() == Some(Outcome::Deferred) || given.waits;
        if self.manner == Manner::Twice && given.rejection.is_none() && !is_kept {
            let (before, sent) = (self.last().map(plain), self.sent.len());
            let again = self.take(input);
            if let Some(Outcome::Applied | Outcome::Deferred) = again.outcome {
                given.unsteady = Some("the same message is applied a second time".to_owned());
            } else if before != self.last().map(plain) || sent != self.sent.len() {
                given.unsteady = Some("a message that is ignored changes the instance".to_owned());
            }
        }
        given
    }

    pub(super) fn take(&mut self, input: &Input) -> Given {
        self.transact(|run| run.take(input, Turn::FIRST))
    }

    /// Runs one transaction of the machine, and then those of the messages that it sends to aliases and from there.
    pub(super) fn transact(&mut self, work: impl FnOnce(&mut Run<'_>) -> Result<(), StorageError>) -> Given {
        let mut inputs = VecDeque::new();
        let mut given = self.commit(work, &mut inputs);
        let mut rest = MESSAGES_MAX;
        loop {
            let Some(Carried { row, input }) = inputs.pop_front() else {
                // An alias that was asked answers at a timer of its own, which is due.
                let Some((due, set_by, target)) = self.question() else {
                    break;
                };
                let more = self.commit(|run| run.fire_one(due, set_by, target, false), &mut inputs);
                given.add(more);
                continue;
            };
            if rest == 0 {
                let message = format!("one input sends more than {MESSAGES_MAX} messages to aliases");
                given.unsteady.get_or_insert(message);
                break;
            }
            rest -= 1;
            let more = self.commit(
                |run| {
                    row.map_or(Ok(None), |row| run.carry_out(Order::Delivered(&[row])))?;
                    run.take(&input, Turn::FIRST)
                },
                &mut inputs,
            );
            given.add(more);
        }
        given
    }

    /// A timer of an alias that is due.
    pub(super) fn question(&self) -> Option<Timer> {
        let record = self.record.as_ref();
        let has_aliases = self.is_together() || record.is_some_and(|record| !record.aliases.is_empty());
        let timers = has_aliases.then(|| self.store.reader().timers(None, usize::MAX).ok())??;
        let is_it = |(due, _, target): &Timer| *due <= self.now && Alias::of(&target.instance.key).is_some();
        timers.into_iter().find(is_it)
    }

    /// One transaction; `inputs` gets what it sends to aliases, and from aliases to the instance.
    pub(super) fn commit(
        &mut self,
        work: impl FnOnce(&mut Run<'_>) -> Result<(), StorageError>,
        inputs: &mut VecDeque<Carried>,
    ) -> Given {
        let ear = Ear {
            instance: &self.instance,
            heard: RefCell::default(),
            listener: Listener::default(),
            given: RefCell::default(),
            events: RefCell::default(),
        };
        let mut staged = self.partition.stage();
        let (partition, now) = (&self.partition, self.now);
        let committed = self.store.write::<_, StorageError>(|batch: &Batch<'_>| {
            let mut run = partition.run_in(batch, &mut staged, now);
            run.ground.watch = Some(&ear);
            work(&mut run)?;
            partition.finish(batch, &mut staged, now, false)
        });
        let Ear {
            listener,
            given,
            heard,
            events,
            ..
        } = ear;
        let mut given = given.into_inner();
        let found = match committed {
            Ok(found) => found,
            Err(error) => {
                given.unsteady = Some(error.to_string());
                return given;
            }
        };
        self.partition.adopt(&mut staged, found);
        self.events.append(&mut events.into_inner());
        if given.rejection.is_none() {
            let (saga, notes) = heard.into_inner();
            let saga = saga.unwrap_or_else(|| self.instance.saga.clone());
            let covered = self.covered.entry(saga).or_default();
            covered.append(&mut listener.heard(&notes));
        }
        self.look();
        self.release(staged, &mut given, inputs);
        given
    }

    /// Reads the instance back.
    pub(super) fn look(&mut self) {
        self.lives_at(&self.instance.clone());
        let found = self.store.reader().instance(&self.instance).ok().flatten();
        (self.record, self.ended) = match found {
            Some(Found::Live(record)) => (Some(record), None),
            Some(Found::Ended(summary)) => (None, Some(summary)),
            None => (None, None),
        };
    }

    /// Takes over the work that a commit has made true.
    pub(super) fn release(&mut self, staged: Staged, given: &mut Given, inputs: &mut VecDeque<Carried>) {
        for (row, item) in staged.work {
            self.tell(row, &item, given, inputs);
            if Alias::of(&item.instance.key).is_some() || schedule::is_address(&item.instance.key) {
                continue;
            }
            let read = self.read(&item.instance);
            let record = read.as_ref();
            self.lives_at(&item.instance);
            let repeats = !self.keys.insert(item.idempotency_key.clone());
            let address = Address::of(work::name(&item, record), &item, record, repeats);
            self.addresses.insert(item.command_id, address);
            self.sent.push(item.clone());
            if item.kind.awaits_result() {
                self.outbox.insert(row, item.clone());
            }
            given.work.push(item);
        }
        for row in &staged.completed {
            self.outbox.remove(row);
        }
    }
}

/// A record without where its history stands, which counts ignored inputs, too.
pub(super) fn plain(record: &Record) -> Record {
    Record {
        last_history: None,
        ..record.clone()
    }
}
