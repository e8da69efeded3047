//! Inputs that wait for an instance, and how they are let in again: always in the order in which they came.

use saga_runner_kernel::alias::Alias;
use saga_runner_kernel::ids::{InstanceId, TimeMs};
use saga_runner_kernel::input::Input;
use saga_runner_kernel::patch::{IgnoreReason, Outcome, TimerRow};
use saga_runner_kernel::work::WorkRef;

use super::apply::{Fate, Turn};
use super::fault::Fault;
use super::staging::Run;
use super::watch::Told;
use crate::storage::StorageError;
use crate::storage::rows::{InboxRow, WaitReason, Waiting, early_timer, encode_waiting};

impl Run<'_> {
    /// Lets an input wait behind the earlier ones of its instance, or for its definition.
    pub fn wait(&mut self, input: &Input, reason: WaitReason) -> Result<(), StorageError> {
        let id = &input.instance;
        let row = encode_waiting(reason, input);
        let mut waiting = self.waiting(id);
        if !self.fits(waiting, row.len()) {
            let record = self.staged.records.take(self.batch, id)?;
            let fault = Fault::overflow(self.ground.limits);
            return self.dead_letter(input, record, fault, Turn::FIRST).map(drop);
        }
        waiting.add(reason, row.len());
        let number = self.next_sequence();
        self.batch.put_inbox(id, number, row)?;
        self.set_waiting(id, waiting);
        self.tell(input, Told::Waits);
        Ok(())
    }

    /// Whether one more input of this size may wait.
    pub fn fits(&self, waiting: Waiting, bytes: usize) -> bool {
        let limits = self.ground.limits;
        waiting.inputs() < limits.inbox_inputs && waiting.bytes.saturating_add(bytes) <= limits.inbox_bytes
    }

    /// Applies what waited for the definition of the instance, now that it is there, up to so many inputs.
    pub fn resume(&mut self, id: &InstanceId, at_most: usize) -> Result<(), StorageError> {
        if self.waiting(id).behind.is_some() {
            return Ok(());
        }
        self.drain(id, at_most)
    }

    /// Applies what waits and has nothing in its way any more, up to so many inputs, until one of it is poison.
    pub fn drain(&mut self, id: &InstanceId, at_most: usize) -> Result<(), StorageError> {
        if self.waiting(id).asks.is_some() {
            // Behind the answer of its aliases.
            return Ok(());
        }
        let mut rows = self.batch.inbox(id)?;
        rows.retain(|(_, row, _)| row.reason.is_in_order());
        let mut rows = rows.into_iter();
        for (number, row, bytes) in rows.by_ref().take(at_most) {
            self.leave(id, number, row.reason, bytes)?;
            let turn = Turn {
                deferred_as: Some(number),
                ..Turn::FIRST
            };
            if self.apply_now(&row.input, turn)? == Fate::Poison {
                break;
            }
            if self.waiting(id).asks.is_some() {
                return self.wait_as(id, rows, WaitReason::Behind);
            }
        }
        Ok(())
    }

    /// Keeps an event for an instance that may begin, up to `until`.
    pub fn keep_early(
        &mut self,
        input: &Input,
        until: TimeMs,
        log_sequence: u64,
        turn: Turn,
    ) -> Result<Fate, StorageError> {
        let (id, limits) = (&input.instance, self.ground.limits);
        let reason = WaitReason::Early { until };
        let row = encode_waiting(reason, input);
        let mut waiting = self.waiting(id);
        let counters = &mut self.staged.counters;
        let bytes = counters.early_bytes.saturating_add(row.len() as u64);
        let full = counters.early_inputs >= limits.early_inputs as u64 || bytes > limits.early_bytes as u64;
        if full || !self.fits(waiting, row.len()) {
            return self.dead_letter(input, None, Fault::early(limits), turn);
        }
        let counters = &mut self.staged.counters;
        counters.early_inputs += 1;
        counters.early_bytes = bytes;
        waiting.add(reason, row.len());
        self.set_waiting(id, waiting);
        // It keeps its place before those that came later.
        let number = turn.deferred_as.unwrap_or(log_sequence);
        self.batch.put_inbox(id, number, row)?;
        self.set_timer(id, &end_of_wait(number, until))?;
        self.tell(input, Told::Outcome(Outcome::Deferred, &[]));
        self.staged.records.give_back(id, None);
        Ok(Fate::Done)
    }

    /// The time is over in which the instance of an event could begin.
    pub fn expire(&mut self, id: &InstanceId, number: u64) -> Result<(), StorageError> {
        let rows = self.batch.inbox(id)?;
        let Some((_, row, bytes)) = rows.into_iter().find(|(found, ..)| *found == number) else {
            return Ok(());
        };
        if let WaitReason::Asked { .. } = row.reason {
            return self.proceed(id, number, &row, bytes, true);
        }
        if let WaitReason::Early { .. } = row.reason {
            self.leave(id, number, row.reason, bytes)?;
            if let Some(alias) = Alias::of(&id.key) {
                return self.unmatched(&alias, &row.input);
            }
            let gone = Outcome::Ignored(IgnoreReason::NoInstance);
            self.tell(&row.input, Told::Outcome(gone, &[]));
        }
        Ok(())
    }

    /// Gives the deferred inputs of an instance again, oldest first. Whenever one of them lets deferred inputs
    /// in, the oldest is next again; each time around one of them is used up, so this ends.
    pub fn readmit(&mut self, id: &InstanceId) -> Result<Fate, StorageError> {
        loop {
            let rows = self.deferred(id)?;
            let mut again = false;
            let mut rows = rows.into_iter();
            for (number, row, bytes) in rows.by_ref() {
                self.leave(id, number, row.reason, bytes)?;
                let turn = Turn {
                    deferred_as: Some(number),
                    ..Turn::FIRST
                };
                match self.execute(&row.input, turn)? {
                    Fate::Done => {}
                    Fate::Begins => {
                        if self.admit_early(id)? == Fate::Poison {
                            self.wait_as(id, rows, WaitReason::Blocked)?;
                            return Ok(Fate::Poison);
                        }
                    }
                    Fate::Readmits => {
                        again = true;
                        break;
                    }
                    Fate::Poison => {
                        self.wait_as(id, rows, WaitReason::Blocked)?;
                        return Ok(Fate::Poison);
                    }
                }
            }
            if !again {
                return Ok(Fate::Done);
            }
        }
    }

    /// Gives an instance that has begun what came too early for it, oldest first.
    pub fn admit_early(&mut self, id: &InstanceId) -> Result<Fate, StorageError> {
        let mut rows = self.early(id)?.into_iter();
        while let Some((number, row, bytes)) = rows.next() {
            self.leave(id, number, row.reason, bytes)?;
            let turn = Turn {
                deferred_as: Some(number),
                ..Turn::FIRST
            };
            let fate = match self.execute(&row.input, turn)? {
                Fate::Readmits => self.readmit(id)?,
                fate @ (Fate::Done | Fate::Begins | Fate::Poison) => fate,
            };
            if fate == Fate::Poison {
                self.wait_as(id, rows, WaitReason::Blocked)?;
                return Ok(Fate::Poison);
            }
        }
        Ok(Fate::Done)
    }

    /// Gives what an input has let in again to later commits, in which each is begun alone, in the order in which they came.
    pub fn readmit_alone(&mut self, id: &InstanceId, fate: Fate) -> Result<Fate, StorageError> {
        let rows = match fate {
            Fate::Readmits => self.deferred(id)?,
            Fate::Begins => self.early(id)?,
            Fate::Done | Fate::Poison => return Ok(fate),
        };
        if !rows.is_empty() {
            self.wait_as(id, rows.into_iter(), WaitReason::Blocked)?;
            self.staged.resumable.push(id.clone());
        }
        Ok(Fate::Done)
    }

    fn deferred(&self, id: &InstanceId) -> Result<Vec<(u64, InboxRow, usize)>, StorageError> {
        let mut rows = self.batch.inbox(id)?;
        rows.retain(|(_, row, _)| matches!(row.reason, WaitReason::Deferred | WaitReason::Paused));
        Ok(rows)
    }

    fn early(&self, id: &InstanceId) -> Result<Vec<(u64, InboxRow, usize)>, StorageError> {
        let mut rows = self.batch.inbox(id)?;
        rows.retain(|(_, row, _)| matches!(row.reason, WaitReason::Early { .. }));
        Ok(rows)
    }

    /// Inputs that were about to be given again wait behind one among them.
    pub fn wait_as(
        &mut self,
        id: &InstanceId,
        rows: impl Iterator<Item = (u64, InboxRow, usize)>,
        reason: WaitReason,
    ) -> Result<(), StorageError> {
        for (number, row, bytes) in rows {
            let mut waiting = self.waiting(id);
            waiting.remove(row.reason, bytes);
            self.wait_over(number, row.reason, bytes)?;
            let row = encode_waiting(reason, &row.input);
            waiting.add(reason, row.len());
            self.batch.put_inbox(id, number, row)?;
            self.set_waiting(id, waiting);
        }
        Ok(())
    }

    /// An input waits no longer.
    pub fn leave(
        &mut self,
        id: &InstanceId,
        number: u64,
        reason: WaitReason,
        bytes: usize,
    ) -> Result<(), StorageError> {
        self.batch.delete_inbox(id, number)?;
        self.wait_over(number, reason, bytes)?;
        let mut waiting = self.waiting(id);
        waiting.remove(reason, bytes);
        self.set_waiting(id, waiting);
        Ok(())
    }

    /// An input waits no longer for its instance to begin, if it did.
    fn wait_over(&mut self, number: u64, reason: WaitReason, bytes: usize) -> Result<(), StorageError> {
        let until = match reason {
            WaitReason::Early { until } => {
                let counters = &mut self.staged.counters;
                counters.early_inputs = counters.early_inputs.saturating_sub(1);
                counters.early_bytes = counters.early_bytes.saturating_sub(bytes as u64);
                until
            }
            WaitReason::Asked { until, .. } => until,
            WaitReason::Deferred
            | WaitReason::Paused
            | WaitReason::Blocked
            | WaitReason::Unversioned
            | WaitReason::Behind => return Ok(()),
        };
        let row = end_of_wait(number, until);
        self.batch.delete_timer(row.due, row.set_by).map(drop)
    }
}

/// The timer at which an input waits no longer.
pub fn end_of_wait(number: u64, until: TimeMs) -> TimerRow {
    TimerRow {
        due: until,
        set_by: WorkRef {
            log_sequence: number,
            index: 0,
        },
        name: early_timer(number),
        fired: 0,
    }
}
