//! Whether an instance may be deleted before its time: not while something of it goes on, and not while what is known of it may
//! still be needed to undo something.
//!
//! The deletion itself is the partition's, which has the rows.

use saga_runner_language::definition::Definition;

use super::rerun;
use crate::input::{Operation, OperationVerb};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Note, Patch};
use crate::record::Record;

/// Why an instance may not be deleted, if that is so. `definition` is the version that it ran under, where it is at hand.
/// `parent_over`: whoever asks has seen that the instance that has started it has ended, or is gone.
#[must_use]
pub fn delete_obstacle(
    definition: Option<&Definition>,
    record: &Record,
    parent_over: bool,
) -> Option<String> {
    if !record.phase.is_terminal() {
        let phase = record.phase.as_str();
        return Some(format!(
            "it is {phase}: only an instance that has ended can be deleted"
        ));
    }
    if !record.has_nothing_open() {
        return Some("it still undoes what it did, or waits for the outcome of a call".to_owned());
    }
    let unknown = unknown(record);
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.iter().map(|step| name(definition, *step)).collect();
        return Some(format!(
            "the outcome of {} is unknown, and a success that comes late would not be undone",
            names.join(", ")
        ));
    }
    let parent = record
        .parent
        .as_ref()
        .filter(|parent| parent.waits || parent.undoable)?;
    (!parent_over).then(|| {
        format!(
            "instance {} of saga {} has started it, and may still undo it or ask for its outcome: it has not ended, or its shard \
             is not open in the process that was asked",
            parent.key, parent.saga
        )
    })
}

/// Steps of which it is not known whether they, or what undoes them, have happened.
fn unknown(record: &Record) -> Vec<u16> {
    let of_ledger = rerun::of_ledger(record).into_iter();
    let of_ledger = of_ledger.filter(|entry| entry.tries.unknown && entry.status == LedgerStatus::Held);
    let of_ledger = of_ledger.map(|entry| entry.step);
    let mut steps: Vec<u16> = record
        .doubts
        .iter()
        .map(|doubt| doubt.step)
        .chain(of_ledger)
        .collect();
    steps.sort_unstable();
    steps.dedup();
    steps
}

fn name(definition: Option<&Definition>, step: u16) -> String {
    let found = definition.and_then(|definition| definition.steps.get(usize::from(step)));
    found.map_or_else(|| format!("step {step}"), |step| step.name.clone())
}

/// Whether this deletes, and what whoever asks has seen of the parent.
#[must_use]
pub const fn deletes(operation: &Operation) -> Option<bool> {
    match operation.verb {
        OperationVerb::Delete { parent_over } => Some(parent_over),
        _ => None,
    }
}

/// The answer of an instance that is live.
pub(super) fn refuse(definition: &Definition, record: &Record) -> Patch {
    // Whatever the parent says, it has not ended.
    let parent_over = true;
    let message = delete_obstacle(Some(definition), record, parent_over);
    let message = message.unwrap_or_else(|| "it has not ended yet".to_owned());
    Patch {
        notes: vec![Note::Refused { message }],
        ..Patch::ignored(IgnoreReason::Refused)
    }
}
