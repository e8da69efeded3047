//! What one batch changes in memory. It counts only once the transaction has committed, so that a batch that
//! found no room can be applied again from the start.

use std::collections::HashMap;

use saga_runner_kernel::definition::DefinitionSet;
use saga_runner_kernel::duration::Millis;
use saga_runner_kernel::ids::{ClusterId, InstanceId, TenantId, TimeMs};
use saga_runner_kernel::input::Input;
use saga_runner_kernel::limits::Limits;
use saga_runner_kernel::patch::TimerRow;
use saga_runner_kernel::record::Record;
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::counts::Counts;
use super::crash_isolation::{Fingerprint, PoisonInput};
use super::watch::{Told, Watch};
use crate::storage::rows::{Stamp, UseChanges, Waiting};
use crate::storage::write::Counters;
use crate::storage::{Batch, HeldRow, StorageError};

/// What applying inputs needs besides the batch.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub definitions: &'a DefinitionSet,
    /// The tenants whose schedules this shard looks after.
    pub scheduled_tenants: &'a [TenantId],
    pub limits: &'a Limits,
    pub cluster: ClusterId,
    pub now: TimeMs,
    /// How long a tombstone counts, if the saga does not say.
    pub keep_ended: Millis,
    /// How long a timer waits for streams that cannot be read.
    pub timer_hold: Millis,
    /// Instances with something in the inbox, as of the last commit.
    pub waiting: &'a HashMap<InstanceId, Waiting>,
    /// Inputs that killed the process too often.
    pub poison: &'a HashMap<Fingerprint, PoisonInput>,
    /// What waits behind a dead letter is not applied together with the decision about it.
    pub isolates: bool,
    /// Whoever wants to hear what becomes of each input.
    pub watch: Option<&'a dyn Watch>,
}

/// A batch under way.
pub struct Run<'a> {
    pub ground: Ground<'a>,
    pub batch: &'a Batch<'a>,
    pub staged: &'a mut Staged,
}

/// Changes of a batch.
#[derive(Default)]
pub struct Staged {
    pub counters: Counters,
    pub positions: [u64; 3],
    pub stamps: [Option<Stamp>; 3],
    pub records: Records,
    /// Instances for which something else waits than before.
    pub waiting: HashMap<InstanceId, Waiting>,
    pub work: Vec<(WorkRef, WorkItem)>,
    pub completed: Vec<WorkRef>,
    /// No timer is due before this; none: there is none.
    pub next_due: Option<TimeMs>,
    /// What the partition holds back.
    pub held: Option<HeldRow>,
    /// Timers that have fired between the inputs of the batch.
    pub fired_between: usize,
    /// The batch is to end before the next delivery in stored order.
    pub stopped: bool,
    /// Who refers to which version.
    pub uses: UseChanges,
    /// Instances that ended.
    pub ended: usize,
    /// Rows deleted because they are old.
    pub pruned: usize,
    /// Inputs applied, set aside or refused so far.
    pub inputs: usize,
    pub counts: Counts,
}

impl Run<'_> {
    /// Log sequence for the next input.
    pub fn next_sequence(&mut self) -> u64 {
        self.staged.counters.log_sequence += 1;
        self.staged.counters.log_sequence
    }

    /// Tells what became of an input.
    pub fn tell(&mut self, input: &Input, what: Told<'_>) {
        match what {
            Told::Outcome(outcome, _) => self.staged.counts.input(input, outcome),
            Told::Dead { reason, .. } => self.staged.counts.dead(Some(input), reason),
            Told::Waits => self.staged.counts.waiting(input),
        }
        if let Some(watch) = self.ground.watch {
            watch.told(input, what);
        }
    }

    /// Sets a timer.
    pub fn set_timer(&mut self, id: &InstanceId, timer: &TimerRow) -> Result<(), StorageError> {
        let next_due = self.staged.next_due.map_or(timer.due, |due| due.min(timer.due));
        self.staged.next_due = Some(next_due);
        self.batch.put_timer(id, timer)
    }

    /// Puts a row into the outbox, which is handed over behind the commit.
    pub fn put_work(&mut self, row: WorkRef, item: WorkItem) -> Result<(), StorageError> {
        self.batch.put_work(row, &item)?;
        self.staged.counters.awaited_sagas += u64::from(item.kind.awaits_saga());
        self.staged.work.push((row, item));
        Ok(())
    }

    /// Deletes a row of the outbox; whether it was there.
    pub fn delete_work(&mut self, row: WorkRef) -> Result<bool, StorageError> {
        // Most sagas await no other one, and their rows need not be looked at.
        if self.staged.counters.awaited_sagas > 0 {
            let item = self.batch.work(row)?;
            let awaited = item.is_some_and(|item| item.kind.awaits_saga());
            let count = &mut self.staged.counters.awaited_sagas;
            *count = count.saturating_sub(u64::from(awaited));
        }
        self.batch.delete_work(row)
    }

    /// What waits for an instance, as this batch sees it.
    pub fn waiting(&self, id: &InstanceId) -> Waiting {
        let changed = self.staged.waiting.get(id);
        changed
            .or_else(|| self.ground.waiting.get(id))
            .copied()
            .unwrap_or_default()
    }

    pub fn set_waiting(&mut self, id: &InstanceId, waiting: Waiting) {
        self.staged.waiting.insert(id.clone(), waiting);
    }
}

/// Records read or changed by a batch: each is decoded once and written once.
#[derive(Default)]
pub struct Records(HashMap<InstanceId, Slot>);

struct Slot {
    record: Option<Record>,
    dirty: bool,
}

impl Records {
    /// Takes the record of a live instance out, to be given back by one of the functions below.
    pub fn take(&mut self, batch: &Batch<'_>, id: &InstanceId) -> Result<Option<Record>, StorageError> {
        match self.0.get_mut(id) {
            Some(slot) => Ok(slot.record.take()),
            None => batch.record(id),
        }
    }

    /// Gives back a record that was not changed.
    pub fn give_back(&mut self, id: &InstanceId, record: Option<Record>) {
        if let Some(slot) = self.0.get_mut(id) {
            slot.record = record;
        } else {
            let slot = Slot { record, dirty: false };
            self.0.insert(id.clone(), slot);
        }
    }

    /// Gives back a changed record.
    pub fn change(&mut self, id: &InstanceId, record: Record) {
        let slot = Slot {
            record: Some(record),
            dirty: true,
        };
        self.0.insert(id.clone(), slot);
    }

    /// The instance has left the live ones, and its row is gone.
    pub fn forget(&mut self, id: &InstanceId) {
        let slot = Slot {
            record: None,
            dirty: false,
        };
        self.0.insert(id.clone(), slot);
    }

    /// Writes every record that changed, in key order, so that neighbours are on pages already at hand.
    pub fn write(&self, batch: &Batch<'_>) -> Result<(), StorageError> {
        let mut changed: Vec<_> = self
            .0
            .iter()
            .filter(|(_, slot)| slot.dirty)
            .filter_map(|(id, slot)| Some((id, slot.record.as_ref()?)))
            .collect();
        changed.sort_unstable_by_key(|(id, _)| *id);
        changed
            .into_iter()
            .try_for_each(|(id, record)| batch.put_record(id, record))
    }
}
