//! What must hold of a partition whenever it is idle: nothing waits for something that will never come.

use std::collections::{BTreeMap, BTreeSet};

use saga_runner_kernel::definition::model::Action;
use saga_runner_kernel::definition::{Definition, DefinitionSet};
use saga_runner_kernel::ids::{CommandId, InstanceId, TimeMs};
use saga_runner_kernel::input::{Input, InputBody};
use saga_runner_kernel::instance_status::Waits;
use saga_runner_kernel::ledger::LedgerStatus;
use saga_runner_kernel::record::{Record, StepStatus};
use saga_runner_kernel::schedule;
use saga_runner_kernel::view::pending::{PENDING_MAX, pending};
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::read::{Found, Reader};
use super::rows::decode;
use super::tables::{OUTBOX, TIMERS};
use super::{StorageError, keys};

/// Instances, or rows of the outbox, of one read.
const PAGE: usize = 500;
/// Inputs of one instance that are looked at.
const INPUTS_MAX: usize = 10_000;

impl Reader {
    /// Every part of an instance that is open without a row, a timer, an input or a question that ends it, every awaited row of
    /// the outbox that no instance waits for, and what differs in the index of instances; one line each.
    ///
    /// Changes nothing, and belongs to no commit: nobody may write meanwhile. Reads everything, in pages; only the comparison of
    /// the index keeps something for each instance, about 200 bytes. `tell` hears after each page how many instances and rows
    /// were looked at.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn orphans(
        &self,
        definitions: &DefinitionSet,
        tell: &mut dyn FnMut(u64),
    ) -> Result<Vec<String>, StorageError> {
        let mut found = Vec::new();
        let mut looked = 0;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let (page, next) = self.live(after.as_deref(), PAGE, |_, _| true)?;
            for (id, record) in &page {
                self.open_parts(id, record, definitions, &mut found)?;
            }
            looked += u64::try_from(page.len()).unwrap_or(u64::MAX);
            tell(looked);
            match next {
                Some(key) => after = Some(key),
                None => break,
            }
        }
        self.unawaited(looked, tell, &mut found)?;
        found.extend(self.index_faults(definitions)?);
        Ok(found)
    }

    fn open_parts(
        &self,
        id: &InstanceId,
        record: &Record,
        definitions: &DefinitionSet,
        found: &mut Vec<String>,
    ) -> Result<(), StorageError> {
        let inputs = self.held_inputs(id)?;
        let held: BTreeSet<_> = inputs.iter().filter_map(timer).collect();
        let answered: BTreeSet<_> = inputs.iter().filter_map(command).collect();
        for (name, row) in &record.timers {
            if !held.contains(&(name.clone(), row.due)) && !self.has_timer(row.due, row.set_by)? {
                found.push(format!("{id}: timer {name} is set and has no row"));
            }
        }
        let mut work: BTreeMap<WorkRef, WorkItem> = BTreeMap::new();
        for outstanding in record.outstanding() {
            let row = self.row_of_outbox(outstanding.row)?;
            let is_there = row
                .as_ref()
                .is_some_and(|item| item.command_id == outstanding.command);
            if !is_there && !answered.contains(&outstanding.command) {
                found.push(format!("{id}: command {} has no row", outstanding.command));
            }
            work.extend(row.map(|item| (outstanding.row, item)));
        }
        if let Some(definition) = definitions.by_hash(&record.definition) {
            found.extend(idle_parts(id, record, definition));
            found.extend(named_otherwise(id, record, definition, &work));
        }
        Ok(())
    }

    /// Awaited rows of the outbox for which nobody waits.
    fn unawaited(
        &self,
        mut looked: u64,
        tell: &mut dyn FnMut(u64),
        found: &mut Vec<String>,
    ) -> Result<(), StorageError> {
        let schedules = self.schedules()?;
        let runs = schedules.iter().flat_map(|(_, _, schedule)| &schedule.running);
        let of_schedules: BTreeSet<WorkRef> = runs.map(|run| run.row).collect();
        let mut after = None;
        loop {
            let page = self.work_after(after, PAGE)?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            after = Some(*last);
            looked += u64::try_from(page.len()).unwrap_or(u64::MAX);
            for (row, item) in page {
                let id = &item.instance;
                let is_own = schedule::is_address(&id.key) || of_schedules.contains(&row);
                if is_own || !item.kind.awaits_result() {
                    continue;
                }
                let waits = match self.instance(id)? {
                    Some(Found::Live(record)) => {
                        record.outstanding().any(|outstanding| outstanding.row == row)
                    }
                    Some(Found::Ended(_)) | None => false,
                };
                if !waits {
                    let command = item.command_id;
                    found.push(format!("{id}: nothing waits for the result of command {command}"));
                }
            }
            tell(looked);
        }
    }

    fn row_of_outbox(&self, row: WorkRef) -> Result<Option<WorkItem>, StorageError> {
        self.view(|view| {
            let bytes = view.get(OUTBOX, &keys::work(row))?;
            bytes.map(|bytes| decode(&bytes, "a work item")).transpose()
        })
    }

    fn has_timer(&self, due: TimeMs, set_by: WorkRef) -> Result<bool, StorageError> {
        self.view(|view| Ok(view.get(TIMERS, &keys::timer(due, set_by))?.is_some()))
    }

    /// Inputs that wait: in the inbox, or as the dead letter before it.
    fn held_inputs(&self, id: &InstanceId) -> Result<Vec<Input>, StorageError> {
        let (behind, inbox) = self.inbox(id, INPUTS_MAX)?;
        let letter = match behind {
            Some(number) => self.dead_letter(number)?,
            None => None,
        };
        let rows = inbox.into_iter().map(|(_, row)| row.input);
        Ok(rows.chain(letter.and_then(|letter| letter.input)).collect())
    }
}

/// Where the index says that an instance waits for something else than `why` names, which looks at the outbox as well. Programs say
/// what they wait for in their work only.
fn named_otherwise(
    id: &InstanceId,
    record: &Record,
    definition: &Definition,
    work: &BTreeMap<WorkRef, WorkItem>,
) -> Option<String> {
    let is_whole = record
        .outstanding()
        .all(|outstanding| work.contains_key(&outstanding.row));
    let pending = pending(record, Some(definition), work);
    if !is_whole || definition.program.is_some() || pending.len() == PENDING_MAX {
        return None;
    }
    let named = pending.iter().filter(|one| !one.abandoned);
    let named = named
        .min_by_key(|one| one.waits_for.rank())
        .or_else(|| pending.first());
    let (named, listed) = (
        Waits::from(named?.waits_for),
        record.listing.as_ref()?.status.waits_for,
    );
    (named != listed).then(|| format!("{id} is listed as waiting for {listed:?}, and why names {named:?}"))
}

fn timer(input: &Input) -> Option<(String, TimeMs)> {
    match &input.body {
        InputBody::Timer { name } => Some((name.clone(), input.time)),
        InputBody::Event(_) | InputBody::Result(_) | InputBody::Control(_) => None,
    }
}

/// The command that has its result in an input.
fn command(input: &Input) -> Option<CommandId> {
    match &input.body {
        InputBody::Result(result) => Some(result.command_id),
        InputBody::Timer { .. } | InputBody::Event(_) | InputBody::Control(_) => None,
    }
}

/// Steps and entries of the ledger that are under way and wait for nothing.
fn idle_parts(id: &InstanceId, record: &Record, definition: &Definition) -> Vec<String> {
    let mut found = Vec::new();
    for (index, item, state) in record.step_states() {
        let step = &definition.steps[usize::from(index)];
        let has_timer = |kind: &str| {
            let name = match item {
                None => format!("{kind}:{}", step.name),
                Some(item) => format!("{kind}:{}#{item}", step.name),
            };
            record.timers.contains_key(&name)
        };
        let goes_on = match state.status {
            StepStatus::Running => state.outstanding.is_some() || matches!(step.action, Action::Group(_)),
            StepStatus::BackingOff => has_timer("retry"),
            StepStatus::Delayed => has_timer("delay"),
            StepStatus::Stuck => state.question.is_some(),
            StepStatus::Pending
            | StepStatus::Done
            | StepStatus::Skipped
            | StepStatus::Failed
            | StepStatus::Abandoned
            | StepStatus::Waiting => true,
        };
        if !goes_on {
            found.push(format!("{id}: step {} is {}", step.name, state.status.as_str()));
        }
    }
    for entry in record.ledger.iter() {
        let step = &definition.steps[usize::from(entry.step)].name;
        let retry = format!("retry:{step}.compensate");
        let goes_on = match entry.status {
            LedgerStatus::Undoing => entry.outstanding.is_some(),
            LedgerStatus::BackingOff => record.timers.keys().any(|name| name.starts_with(&retry)),
            LedgerStatus::Held
            | LedgerStatus::Undone
            | LedgerStatus::Stuck
            | LedgerStatus::Due
            | LedgerStatus::Kept => true,
        };
        if !goes_on {
            found.push(format!("{id}: the undoing of step {step} waits for nothing"));
        }
    }
    found
}
