//! Whether an instance may be deleted before its time: not while something of it goes on, and not while what is known of it may
//! still be needed to undo something.
//!
//! The deletion itself is the partition's, which has the rows.

use saga_runner_language::definition::Definition;

use super::rerun;
use crate::ids::DefinitionHash;
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
            "instance {} of saga {} has started it, and may still undo it or ask for its outcome, or what has started another \
             generation of its key may: it has not ended, or its shard is not open in the process that was asked",
            parent.key, parent.saga
        )
    })
}

/// Why an instance may not be deleted with what is kept of earlier generations of its key, if that is so: [`delete_obstacle`] of
/// each. `parent_over`: whoever asks has seen that the instances that have started them have ended, or are gone.
#[must_use]
pub fn delete_obstacle_of_all<'r, 'd>(
    definition: impl Fn(&DefinitionHash) -> Option<&'d Definition>,
    newest: &Record,
    earlier: impl IntoIterator<Item = &'r Record>,
    parent_over: bool,
) -> Option<String> {
    delete_obstacle(definition(&newest.definition), newest, parent_over).or_else(|| {
        earlier.into_iter().find_map(|record| {
            let obstacle = delete_obstacle(definition(&record.definition), record, parent_over)?;
            Some(format!("generation {} of its key: {obstacle}", record.generation))
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{CommandId, Key, SagaName, TimeMs};
    use crate::record::{Parent, Phase};

    fn ended(generation: u32, parent: Option<&str>) -> Record {
        let parent = parent.map(|key| Parent {
            saga: SagaName::parse("trip").expect("legal"),
            key: Key::parse(key).expect("legal"),
            command: CommandId(uuid::Uuid::from_u128(12)),
            depth: 1,
            waits: true,
            undoable: false,
            answered: true,
            undo: None,
        });
        Record {
            phase: Phase::Completed,
            parent: parent.map(Box::new),
            ..Record::opened(generation, DefinitionHash([7; 32]), "e-1", TimeMs(1))
        }
    }

    fn obstacle(newest: &Record, earlier: &[Record], parent_over: bool) -> Option<String> {
        delete_obstacle_of_all(|_| None, newest, earlier, parent_over)
    }

    #[test]
    fn an_earlier_generation_whose_parent_runs_keeps_the_last_one() {
        let earlier = [ended(1, Some("t-1")), ended(2, None)];
        let newest = ended(3, None);
        let told = obstacle(&newest, &earlier, false).expect("its parent runs");
        assert!(
            told.starts_with("generation 1 of its key: instance t-1 of saga trip has started it"),
            "{told}"
        );
        assert_eq!(obstacle(&newest, &earlier, true), None);
        assert_eq!(obstacle(&newest, &earlier[1..], false), None);
        let told = obstacle(&ended(3, Some("t-3")), &earlier, false).expect("its own parent runs");
        assert!(told.starts_with("instance t-3"), "{told}");
    }
}
