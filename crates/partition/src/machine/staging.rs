//! What one batch changes in memory. It counts only once the transaction has committed, so that a batch that
//! found no room can be applied again from the start.

use std::collections::{BTreeSet, HashMap};

use saga_runner_kernel::definition::DefinitionSet;
use saga_runner_kernel::duration::Millis;
use saga_runner_kernel::ids::{ClusterId, InstanceId, TenantId, TimeMs};
use saga_runner_kernel::input::Input;
use saga_runner_kernel::instance_status::{InstanceStatus, Listing};
use saga_runner_kernel::limits::Limits;
use saga_runner_kernel::patch::TimerRow;
use saga_runner_kernel::record::Record;
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::Keep;
use super::counts::Counts;
use super::crash_isolation::CrashIsolation;
use super::story::Story;
use super::watch::{Told, Watch};
use crate::storage::listed::StatusChanges;
use crate::storage::rows::{Stamp, UseChanges, Waiting};
use crate::storage::write::Counters;
use crate::storage::{Batch, HeldRow, StorageError};

/// What applying inputs needs besides the batch.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub definitions: &'a DefinitionSet,
    /// The tenants whose schedules this shard runs.
    pub scheduled_tenants: &'a [TenantId],
    pub limits: &'a Limits,
    pub cluster: ClusterId,
    pub now: TimeMs,
    /// How long what has ended is kept.
    pub keep: &'a Keep,
    /// How long a timer waits for streams that cannot be read.
    pub timer_hold: Millis,
    /// Instances with something in the inbox, as of the last commit.
    pub waiting: &'a HashMap<InstanceId, Waiting>,
    /// Inputs that killed the process too often, and which inputs are to be begun alone.
    pub isolation: &'a CrashIsolation,
    /// Whoever wants to hear what happens to each input.
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
    /// How many instances more or fewer there are of each status.
    pub statuses: StatusChanges,
    /// Instances whose inputs have nothing in their way any more and are to be begun one by one, each in a commit of its own.
    pub resumable: Vec<InstanceId>,
    /// Instances that ended.
    pub ended: usize,
    /// Whose they were, of the tenants that may have only so many.
    pub tenants_ended: BTreeSet<TenantId>,
    /// Rows deleted because they are old.
    pub pruned: usize,
    /// Inputs applied, set aside or refused so far.
    pub inputs: usize,
    pub counts: Counts,
    /// What is logged.
    pub story: Story,
}

impl Run<'_> {
    /// Log sequence for the next input.
    pub fn next_sequence(&mut self) -> u64 {
        self.staged.counters.log_sequence += 1;
        self.staged.counters.log_sequence
    }

    /// Tells the outcome of an input for which no transition is written.
    pub fn tell(&mut self, input: &Input, what: Told<'_>) {
        self.staged.story.input(input, what.as_str());
        self.count(input, what);
    }

    /// Counts the outcome of an input, and tells who listens.
    pub fn count(&mut self, input: &Input, what: Told<'_>) {
        match what {
            Told::Outcome(outcome, _) => self.staged.counts.input(input, outcome),
            Told::Dead { reason, .. } => self.staged.counts.dead(input, reason),
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

    /// Gives back a record that was changed.
    pub fn change(&mut self, id: &InstanceId, mut record: Record) {
        let definitions = self.ground.definitions;
        self.staged.list(definitions, &mut record, self.waiting(id));
        self.staged.records.change(id, record);
    }

    /// An ended instance leaves the index of the live ones, and is listed under the number of its row.
    pub fn list_ended(
        &mut self,
        id: &InstanceId,
        record: &mut Record,
        number: u64,
    ) -> Result<(), StorageError> {
        let statuses = &mut self.staged.statuses;
        if let Some(before) = self.staged.records.forget(id) {
            self.batch.delist(id, &before, statuses)?;
        }
        let listing = Listing {
            status: InstanceStatus::ended(record),
            sequence: number,
        };
        self.batch.enlist_ended(id, &listing, statuses)?;
        record.listing = Some(Box::new(listing));
        Ok(())
    }
}

impl Staged {
    /// Says in a record where it is listed; where that is another status than before, as of now.
    fn list(&self, definitions: &DefinitionSet, record: &mut Record, waiting: Waiting) {
        let definition = definitions.by_hash(&record.definition).map(AsRef::as_ref);
        let status = InstanceStatus::of(record, definition, waiting.inbox_status());
        if record
            .listing
            .as_ref()
            .is_none_or(|listing| listing.status != status)
        {
            record.listing = Some(Box::new(Listing {
                status,
                sequence: self.counters.log_sequence,
            }));
        }
    }

    /// Lists again the instances that a dead letter or a missing definition blocks since this batch, or no more.
    pub fn list_blocked(
        &mut self,
        batch: &Batch<'_>,
        definitions: &DefinitionSet,
        before: &HashMap<InstanceId, Waiting>,
    ) -> Result<(), StorageError> {
        let beside = |waiting: Option<&Waiting>| waiting.map(Waiting::inbox_status).unwrap_or_default();
        let changed = self.waiting.iter();
        // A record that has changed was listed by what was beside it at that time.
        let changed = changed.filter(|(id, waiting)| {
            waiting.inbox_status() != beside(before.get(*id)) || self.records.has_changed(id)
        });
        let changed: Vec<(InstanceId, Waiting)> =
            changed.map(|(id, waiting)| (id.clone(), *waiting)).collect();
        for (id, waiting) in changed {
            match self.records.take(batch, &id)? {
                Some(mut record) => {
                    self.list(definitions, &mut record, waiting);
                    self.records.change(&id, record);
                }
                None => self.records.give_back(&id, None),
            }
        }
        Ok(())
    }
}

/// Records read or changed by a batch: each is decoded once and written once.
#[derive(Default)]
pub struct Records(HashMap<InstanceId, Slot>);

#[derive(Default)]
struct Slot {
    record: Option<Record>,
    dirty: bool,
    /// Where the index has it.
    listed: Option<Box<Listing>>,
}

impl Records {
    /// Takes the record of a live instance out, to be given back by one of the functions below.
    pub fn take(&mut self, batch: &Batch<'_>, id: &InstanceId) -> Result<Option<Record>, StorageError> {
        if let Some(slot) = self.0.get_mut(id) {
            return Ok(slot.record.take());
        }
        let record = batch.record(id)?;
        let listed = record.as_ref().and_then(|record| record.listing.clone());
        let slot = Slot {
            listed,
            ..Slot::default()
        };
        self.0.insert(id.clone(), slot);
        Ok(record)
    }

    /// Gives back a record that was not changed.
    pub fn give_back(&mut self, id: &InstanceId, record: Option<Record>) {
        self.slot(id).record = record;
    }

    /// Gives back a changed record.
    fn change(&mut self, id: &InstanceId, record: Record) {
        let slot = self.slot(id);
        slot.record = Some(record);
        slot.dirty = true;
    }

    /// The instance has left the live ones, and its row is gone; where the index still has it.
    fn forget(&mut self, id: &InstanceId) -> Option<Box<Listing>> {
        std::mem::take(self.slot(id)).listed
    }

    fn has_changed(&self, id: &InstanceId) -> bool {
        self.0.get(id).is_some_and(|slot| slot.dirty)
    }

    fn slot(&mut self, id: &InstanceId) -> &mut Slot {
        if !self.0.contains_key(id) {
            self.0.insert(id.clone(), Slot::default());
        }
        self.0.get_mut(id).expect("it was put there")
    }

    /// Writes every record that changed, in key order, so that neighbours are on pages already at hand, and where it is listed.
    pub fn write(&self, batch: &Batch<'_>, statuses: &mut StatusChanges) -> Result<(), StorageError> {
        let mut changed: Vec<_> = self
            .0
            .iter()
            .filter(|(_, slot)| slot.dirty)
            .filter_map(|(id, slot)| Some((id, slot.record.as_ref()?, slot.listed.as_ref())))
            .collect();
        changed.sort_unstable_by_key(|(id, ..)| *id);
        for (id, record, before) in changed {
            batch.put_record(id, record)?;
            if record.listing.as_ref() == before {
                continue;
            }
            if let Some(before) = before {
                batch.delist(id, before, statuses)?;
            }
            if let Some(listing) = &record.listing {
                batch.enlist_live(id, listing, statuses)?;
            }
        }
        Ok(())
    }
}
