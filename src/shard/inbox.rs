//! Inputs that wait for an instance, and how they are let in again: always in the order in which they came.

use super::apply::{Fate, Turn};
use super::poison::Fault;
use super::staging::Run;
use crate::kernel::ids::InstanceId;
use crate::kernel::input::Input;
use crate::storage::StorageError;
use crate::storage::rows::{InboxRow, WaitReason, Waiting, encode_waiting};

impl Run<'_> {
    /// Lets an input wait behind the earlier ones of its instance, or for its definition.
    pub fn wait(&mut self, input: &Input, reason: WaitReason) -> Result<(), StorageError> {
        let id = &input.instance;
        let row = encode_waiting(reason, input);
        let mut waiting = self.waiting(id);
        if !self.fits(waiting, row.len()) {
            let record = self.staged.records.take(self.batch, id)?;
            let fault = Fault::overflow(self.ground.limits);
            return self.bury(input, record, fault, Turn::FIRST).map(drop);
        }
        waiting.add(reason, row.len());
        let number = self.next_sequence();
        self.batch.put_inbox(id, number, row)?;
        self.set_waiting(id, waiting);
        self.staged.tally.waiting(input);
        Ok(())
    }

    /// Whether one more input of this size may wait.
    pub fn fits(&self, waiting: Waiting, bytes: usize) -> bool {
        let limits = self.ground.limits;
        waiting.inputs() < limits.inbox_inputs && waiting.bytes.saturating_add(bytes) <= limits.inbox_bytes
    }

    /// Applies what waited for the definition of the instance, now that it is there.
    pub fn resume(&mut self, id: &InstanceId) -> Result<(), StorageError> {
        if self.waiting(id).behind.is_some() {
            return Ok(());
        }
        self.drain(id)
    }

    /// Applies what waits and has nothing in its way any more, until one of it is poison.
    pub fn drain(&mut self, id: &InstanceId) -> Result<(), StorageError> {
        for (number, row, bytes) in self.batch.inbox(id)? {
            if row.reason == WaitReason::Deferred {
                continue;
            }
            self.leave(id, number, row.reason, bytes)?;
            if self.settle(&row.input, Turn::FIRST)? == Fate::Poison {
                break;
            }
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
                    Fate::Settled => {}
                    Fate::Readmits => {
                        again = true;
                        break;
                    }
                    Fate::Poison => {
                        self.park(id, rows)?;
                        return Ok(Fate::Poison);
                    }
                }
            }
            if !again {
                return Ok(Fate::Settled);
            }
        }
    }

    fn deferred(&self, id: &InstanceId) -> Result<Vec<(u64, InboxRow, usize)>, StorageError> {
        let mut rows = self.batch.inbox(id)?;
        rows.retain(|(_, row, _)| row.reason == WaitReason::Deferred);
        Ok(rows)
    }

    /// Inputs that were about to be given again wait behind the poison among them.
    fn park(
        &mut self,
        id: &InstanceId,
        rows: impl Iterator<Item = (u64, InboxRow, usize)>,
    ) -> Result<(), StorageError> {
        for (number, row, bytes) in rows {
            let mut waiting = self.waiting(id);
            waiting.remove(row.reason, bytes);
            let row = encode_waiting(WaitReason::Parked, &row.input);
            waiting.add(WaitReason::Parked, row.len());
            self.batch.put_inbox(id, number, row)?;
            self.set_waiting(id, waiting);
        }
        Ok(())
    }

    fn leave(
        &mut self,
        id: &InstanceId,
        number: u64,
        reason: WaitReason,
        bytes: usize,
    ) -> Result<(), StorageError> {
        self.batch.delete_inbox(id, number)?;
        let mut waiting = self.waiting(id);
        waiting.remove(reason, bytes);
        self.set_waiting(id, waiting);
        Ok(())
    }
}
