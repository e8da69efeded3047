//! What must hold of a shard's state whenever it stands still: nothing waits for something that will never come.

use std::collections::{BTreeMap, BTreeSet};

use crate::kernel::definition::model::Action;
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::ids::{CommandId, InstanceId, TimeMs};
use crate::kernel::input::{Input, InputBody};
use crate::kernel::ledger::LedgerStatus;
use crate::kernel::record::{Record, StepStatus};
use crate::kernel::schedule;
use crate::kernel::work::WorkRef;
use crate::storage::{Reader, StorageError};

/// Rows of one read.
const PAGE: usize = 10_000;

/// Every part of an instance that is open without a row, a timer, an input or a question that ends it, and every
/// awaited row of the outbox that no instance waits for; one line each.
pub fn orphans(reader: &Reader, definitions: &DefinitionSet) -> Result<Vec<String>, StorageError> {
    let mut found = Vec::new();
    let mut rows: BTreeMap<WorkRef, (CommandId, InstanceId)> = BTreeMap::new();
    let mut after = None;
    loop {
        let page = reader.work_after(after, PAGE)?;
        after = page.last().map(|(row, _)| *row);
        if page.is_empty() {
            break;
        }
        let awaited = page.into_iter().filter(|(_, item)| item.kind.awaits_result());
        rows.extend(awaited.map(|(row, item)| (row, (item.command_id, item.instance))));
    }
    for (_, _, schedule) in reader.schedules()? {
        for run in schedule.running {
            rows.remove(&run.row);
        }
    }
    let timers: BTreeSet<(TimeMs, WorkRef)> = reader
        .timers(None, PAGE)?
        .into_iter()
        .map(|(due, set_by, _)| (due, set_by))
        .collect();
    let (live, _) = reader.live(None, PAGE, |_, _| true)?;
    for (id, record) in &live {
        let inputs = held_inputs(reader, id)?;
        let held: BTreeSet<_> = inputs.iter().filter_map(timer).collect();
        let answered: BTreeSet<_> = inputs.iter().filter_map(command).collect();
        let has_row = |name: &str| {
            let row = &record.timers[name];
            timers.contains(&(row.due, row.set_by)) || held.contains(&(name.to_owned(), row.due))
        };
        for name in record.timers.keys().filter(|name| !has_row(name)) {
            found.push(format!("{id}: timer {name} is set and has no row"));
        }
        for outstanding in record.outstanding() {
            let row = rows.remove(&outstanding.row);
            let is_answered = answered.contains(&outstanding.command);
            if row.is_none_or(|(command, _)| command != outstanding.command) && !is_answered {
                found.push(format!("{id}: command {} has no row", outstanding.command));
            }
        }
        if let Some(definition) = definitions.by_hash(&record.definition) {
            found.extend(idle_parts(id, record, definition));
        }
    }
    found.extend(
        rows.into_values()
            .filter(|(_, id)| !schedule::is_address(&id.key))
            .map(|(command, id)| format!("{id}: nothing waits for the result of command {command}")),
    );
    Ok(found)
}

/// Inputs that wait: in the inbox, or as the dead letter before it.
fn held_inputs(reader: &Reader, id: &InstanceId) -> Result<Vec<Input>, StorageError> {
    let (behind, inbox) = reader.inbox(id, PAGE)?;
    let (letters, _) = reader.dead_letters(&id.tenant, None, PAGE)?;
    let letters = letters
        .into_iter()
        .filter(|(number, _)| Some(*number) == behind)
        .filter_map(|(_, letter)| letter.input);
    Ok(inbox
        .into_iter()
        .map(|(_, row)| row.input)
        .chain(letters)
        .collect())
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
