//! Writes what the kernel has decided as rows: work, timers, the history, and the record of the instance.

use saga_runner_kernel::duration::Millis;
use saga_runner_kernel::ids::{DefinitionHash, InstanceId, TimeMs};
use saga_runner_kernel::input::Input;
use saga_runner_kernel::patch::{IgnoreReason, Outcome, Patch};
use saga_runner_kernel::record::{Record, Summary};
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::apply::{Fate, Turn};
use super::fault::Fault;
use super::recording::{HistoryEntry, is_told};
use super::staging::Run;
use super::watch::Told;
use crate::storage::StorageError;
use crate::storage::kept::KeptWork;
use crate::storage::rows::{EndedRow, WaitReason, encode_waiting};

impl Run<'_> {
    /// Writes a patch as rows.
    pub fn write(
        &mut self,
        input: &Input,
        before: Option<Record>,
        patch: Patch,
        log_sequence: u64,
        turn: Turn,
    ) -> Result<Fate, StorageError> {
        let id = &input.instance;
        if let Some(until) = patch.early {
            return self.keep_early(input, until, log_sequence, turn);
        }
        let reason = wait_reason(&patch);
        if patch.deferred && !self.defer(input, reason, log_sequence, turn)? {
            return self.dead_letter(input, before, Fault::overflow(self.ground.limits), turn);
        }
        self.tell_decision(input, before.as_ref(), &patch);
        let begins = before.is_none() && (patch.record.is_some() || patch.ended.is_some());
        if begins {
            self.staged.counts.started(id);
        }
        let work = match self.ground.keep.work_bytes {
            0 => Vec::new(),
            _ => patch.work.iter().filter_map(KeptWork::of).collect(),
        };
        self.write_work(patch.completed, patch.work, log_sequence)?;
        for timer in &patch.timers_cleared {
            self.batch.delete_timer(timer.due, timer.set_by)?;
        }
        for timer in &patch.timers_set {
            self.set_timer(id, timer)?;
        }
        let entry = HistoryEntry {
            outcome: patch.outcome.into(),
            notes: patch.notes,
            late_source: turn.late_source,
            work,
        };
        if let Some(summary) = patch.ended {
            let previous = previous(before.as_ref(), turn);
            self.write_ended(input, before.as_ref(), previous, (summary, entry), log_sequence)?;
        } else if let Some(mut record) = patch.record {
            let previous = previous(before.as_ref(), turn);
            self.write_history(input, previous, &mut record, entry, log_sequence)?;
            let was = before.as_ref().map(Refers::of);
            self.moved(was, Some(Refers::of(&record)));
            if begins {
                // The one before of this key has its own place.
                record.listing = None;
            }
            self.change(id, record);
        } else {
            match before {
                // Nothing changed, and yet there is something to tell.
                Some(mut record) if !entry.notes.is_empty() || is_told(input, patch.outcome) => {
                    let previous = record.last_history;
                    self.write_history(input, previous, &mut record, entry, log_sequence)?;
                    self.change(id, record);
                }
                before => self.staged.records.give_back(id, before),
            }
        }
        Ok(if begins && self.waiting(id).early > 0 {
            Fate::Begins
        } else if patch.readmit {
            Fate::Readmits
        } else {
            Fate::Done
        })
    }

    /// Counts and logs what was decided, and tells who listens.
    fn tell_decision(&mut self, input: &Input, before: Option<&Record>, patch: &Patch) {
        self.count(input, Told::Outcome(patch.outcome, &patch.notes));
        self.staged
            .story
            .transition(input, before, patch, self.ground.definitions);
        if let Outcome::Ignored(reason @ (IgnoreReason::SameSequence | IgnoreReason::TooOld)) = patch.outcome
        {
            tracing::warn!(
                instance = %input.instance, event = input.id, reason = reason.as_str(), notes = ?patch.notes,
                "an event is not applied because of its sequence"
            );
        }
        self.staged.counts.notes(&input.instance.saga, &patch.notes);
    }

    /// Removes the work whose outcome has come, and adds what is to be sent.
    fn write_work(
        &mut self,
        completed: Vec<WorkRef>,
        work: Vec<WorkItem>,
        log_sequence: u64,
    ) -> Result<(), StorageError> {
        for row in completed {
            if self.delete_work(row)? {
                self.staged.completed.push(row);
            }
        }
        for (index, mut item) in (0..).zip(work) {
            // Deadlines count from the input's time. What waited in a backlog was not sent meanwhile, so the wait
            // is added; otherwise work of a long outage would be over before it begins.
            let waited_ms = self.ground.now.0.saturating_sub(item.created.0);
            let given_ms = item.deadline.0.saturating_sub(item.created.0);
            // The little that every input waits does not matter.
            if waited_ms > given_ms / BACKLOG_PART {
                item.waited_ms = waited_ms.max(0);
            }
            let row = WorkRef { log_sequence, index };
            self.put_work(row, item)?;
        }
        Ok(())
    }

    /// Stores an instance that has ended, or that something has changed after its end.
    fn write_ended(
        &mut self,
        input: &Input,
        before: Option<&Record>,
        previous: Option<u64>,
        (mut summary, entry): (Summary, HistoryEntry),
        log_sequence: u64,
    ) -> Result<(), StorageError> {
        let id = &input.instance;
        self.write_history(input, previous, &mut summary.record, entry, log_sequence)?;
        self.list_ended(id, &mut summary.record, log_sequence)?;
        if !before.is_some_and(|before| has_ended(before, &summary.record)) {
            self.staged.counts.ended(id, summary.record.phase);
        }
        self.staged.ended += 1;
        if self.ground.keep.tenants.contains_key(&id.tenant) {
            self.staged.tenants_ended.insert(id.tenant.clone());
        }
        self.moved(before.map(Refers::of), None);
        self.staged.uses.ended(summary.record.definition, 1);
        let row = EndedRow {
            instance: id.clone(),
            until: self.kept_until(id, &summary),
            summary,
        };
        self.batch.end(log_sequence, &row)
    }

    /// A live instance came, went, or went over to another version.
    fn moved(&mut self, from: Option<Refers>, to: Option<Refers>) {
        let uses = &mut self.staged.uses;
        for (refers, by) in [(from, -1), (to, 1)] {
            let Some(refers) = refers else { continue };
            uses.live(refers.definition, by);
            if let Some(left) = refers.left {
                uses.left(left, by);
            }
        }
    }

    /// Keeps a deferred input in the inbox; false if it does not fit.
    fn defer(
        &mut self,
        input: &Input,
        reason: WaitReason,
        log_sequence: u64,
        turn: Turn,
    ) -> Result<bool, StorageError> {
        let row = encode_waiting(reason, input);
        let mut waiting = self.waiting(&input.instance);
        if !self.fits(waiting, row.len()) {
            return Ok(false);
        }
        waiting.add(reason, row.len());
        // It keeps its place before those that came later.
        let number = turn.deferred_as.unwrap_or(log_sequence);
        self.batch.put_inbox(&input.instance, number, row)?;
        self.set_waiting(&input.instance, waiting);
        Ok(true)
    }

    /// Until when an instance is kept that has ended, where its saga says so, or else its tenant.
    fn kept_until(&self, id: &InstanceId, summary: &Summary) -> Option<TimeMs> {
        let of_saga = self.kept_by_saga(id, summary);
        let kept = of_saga.or_else(|| self.ground.keep.ended_of(&id.tenant))?;
        Some(summary.ended.plus_ms(kept.as_i64()))
    }

    /// How long the saga keeps it: the definition in force says that, whatever version the instance ran under.
    fn kept_by_saga(&self, id: &InstanceId, summary: &Summary) -> Option<Millis> {
        let definitions = self.ground.definitions;
        let record = &summary.record;
        let definition = definitions
            .active(&id.saga)
            .or_else(|| definitions.by_hash(&record.definition))?;
        definition.lifecycle.keep_ended.after(record.phase)
    }
}

/// Row of the history before that of an input.
fn previous(before: Option<&Record>, turn: Turn) -> Option<u64> {
    match before {
        Some(record) => record.last_history,
        None => turn.opened_behind,
    }
}

/// Part of the time that a command has, which its input may have waited without a longer deadline.
const BACKLOG_PART: i64 = 10;

/// Why an input that is deferred waits.
fn wait_reason(patch: &Patch) -> WaitReason {
    let record = patch.record.as_ref();
    if record.is_some_and(|record| record.paused.is_some()) {
        WaitReason::Paused
    } else {
        WaitReason::Deferred
    }
}

/// Whether an instance had ended like that before.
fn has_ended(before: &Record, after: &Record) -> bool {
    before.phase == after.phase && before.phase.is_terminal() && before.has_nothing_open()
}

/// The versions that a live instance refers to.
#[derive(Clone, Copy)]
struct Refers {
    definition: DefinitionHash,
    /// The one that it may go back to.
    left: Option<DefinitionHash>,
}

impl Refers {
    fn of(record: &Record) -> Self {
        Self {
            definition: record.definition,
            left: record.left.as_ref().map(|left| left.definition),
        }
    }
}
