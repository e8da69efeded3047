//! Results of commands: of steps, of strays, of compensations, of programs, of nobody.

use super::run::Run;
use super::slot::Slot;
use super::{Rejection, attempts, compensation, ends, program, questions, seen};
use crate::kernel::input::{WorkOutcome, WorkResult};
use crate::kernel::patch::{IgnoreReason, Note, Patch};
use crate::kernel::record::{Outstanding, Record, StepStatus};

/// What waits for a result.
#[derive(Debug, Clone, Copy)]
pub(super) enum Waiting {
    Step(Slot),
    /// A step that is stuck.
    Question(Slot),
    /// Index into the ledger.
    Compensation(usize),
    /// Index into the strays.
    Stray(usize),
    /// Index into the pending work of the program.
    Program(usize),
}

/// Finds what waits for a result.
pub(super) fn waiting(record: &Record, result: &WorkResult) -> Option<Waiting> {
    let command = result.command_id;
    let is = |outstanding: &Outstanding| outstanding.command == command;
    let step = Slot::all(record).find(|(_, state)| state.outstanding.as_ref().is_some_and(is));
    if let Some((slot, _)) = step {
        return Some(Waiting::Step(slot));
    }
    let stray = record.strays.iter().position(|stray| is(&stray.outstanding));
    stray
        .map(Waiting::Stray)
        .or_else(|| compensation::waiting(record, is).map(Waiting::Compensation))
        .or_else(|| program::waiting(record, |pending| is(&pending.outstanding)).map(Waiting::Program))
        .or_else(|| questions::waiting(record, result).map(Waiting::Question))
        .or_else(|| compensation::asked(record, result).map(Waiting::Compensation))
}

/// A result for which no part of the instance waits: the second one for a command, or one for nothing.
pub(super) fn without_step(record: &Record, result: &WorkResult) -> Patch {
    match seen::result(result).and_then(|seen| seen::find_result(record, seen)) {
        Some(reason) => Patch::ignored(reason),
        None => orphan(result),
    }
}

/// A result of nothing that this instance awaits. The refusal of a command without a step is worth a note.
pub(super) fn orphan(result: &WorkResult) -> Patch {
    let mut patch = Patch::ignored(IgnoreReason::Orphan);
    if let (None, WorkOutcome::Failed { class, .. }) = (&result.effect, &result.outcome) {
        patch.notes.push(Note::CommandRefused {
            command: result.command_id.to_string(),
            class: class.clone(),
        });
    }
    patch
}

/// Applies a result to what waits for it.
pub(super) fn apply<'a>(
    run: &mut Run<'a>,
    waiting: Waiting,
    outcome: &'a WorkOutcome,
) -> Result<(), Rejection> {
    match waiting {
        Waiting::Compensation(at) => compensation::result(run, at, outcome),
        Waiting::Stray(at) => ends::late(run, at, outcome),
        Waiting::Program(at) => program::ended(run, at, outcome),
        Waiting::Question(slot) => questions::settle_by_result(run, slot, outcome),
        Waiting::Step(slot) => {
            let state = run.slot_mut(slot);
            if state.status != StepStatus::Running {
                return Err(slot.mismatch(run, "waits for a result and does not run"));
            }
            let Some(outstanding) = state.outstanding.take() else {
                return Err(slot.mismatch(run, "waits for no result"));
            };
            run.settled.push(outstanding.row);
            let before = run.focus(Some(slot));
            attempts::ended(run, slot, outstanding.command, outcome)?;
            run.focus(before);
            Ok(())
        }
    }
}
