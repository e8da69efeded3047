//! Results of commands: of steps, of abandoned steps, of compensations, of nobody.

use serde_bytes::ByteBuf;

use super::failure::Cause;
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::{Rejection, TIMEOUT_CLASS, compensation, failure, seen};
use crate::kernel::definition::model::Step;
use crate::kernel::expr::Root;
use crate::kernel::ids::CommandId;
use crate::kernel::input::{WorkOutcome, WorkResult};
use crate::kernel::patch::{IgnoreReason, Note, Patch};
use crate::kernel::record::{Record, StepStatus};

/// What waits for a result.
#[derive(Debug, Clone, Copy)]
pub(super) enum Waiting {
    Step(u16),
    /// Index into the ledger.
    Compensation(usize),
}

/// Finds what waits for the result of `command`.
pub(super) fn waiting(record: &Record, command: CommandId) -> Option<Waiting> {
    let step = (0..=u16::MAX).zip(&record.steps).find(|(_, step)| {
        step.outstanding
            .is_some_and(|outstanding| outstanding.command == command)
    });
    match step {
        Some((index, _)) => Some(Waiting::Step(index)),
        None => compensation::waiting(record, |outstanding| outstanding.command == command)
            .map(Waiting::Compensation),
    }
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
        Waiting::Step(index) => {
            let state = &mut run.record.steps[usize::from(index)];
            let status = state.status;
            let input = state.input.take();
            if let Some(outstanding) = state.outstanding.take() {
                run.settled.push(outstanding.row);
            }
            match status {
                StepStatus::Running => current(run, index, input, outcome),
                StepStatus::Abandoned => late(run, index, input, outcome),
                StepStatus::Pending | StepStatus::Done | StepStatus::Skipped | StepStatus::Failed => {
                    Err(Rejection {
                        reason: "definition.mismatch",
                        message: format!("step {index} is {} and yet waits for a result", status.as_str()),
                    })
                }
            }
        }
    }
}

/// The result of a step that the instance waits for.
fn current<'a>(
    run: &mut Run<'a>,
    index: u16,
    input: Option<ByteBuf>,
    outcome: &'a WorkOutcome,
) -> Result<(), Rejection> {
    let definition = run.ground.definition;
    let step = &definition.steps[usize::from(index)];
    match outcome {
        WorkOutcome::Succeeded { payload } => {
            take_result(run, step, payload)?;
            run.step_mut(index).status = StepStatus::Done;
            run.note(Note::StepDone {
                step: step.name.clone(),
            });
            compensation::push(run, index, input, Some(payload));
            Ok(())
        }
        WorkOutcome::Failed { class, message } => fail_step(run, index, class, message),
        WorkOutcome::TimedOut { message } => {
            if undone_when_unknown(step) {
                compensation::push(run, index, input, None);
            }
            fail_step(run, index, TIMEOUT_CLASS, message)
        }
    }
}

/// The result of a step that the instance no longer waits for: what happened must be undone.
fn late(
    run: &mut Run<'_>,
    index: u16,
    input: Option<ByteBuf>,
    outcome: &WorkOutcome,
) -> Result<(), Rejection> {
    let definition = run.ground.definition;
    let step = &definition.steps[usize::from(index)];
    let word = match outcome {
        WorkOutcome::Succeeded { payload } => {
            compensation::push(run, index, input, Some(payload));
            "succeeded"
        }
        WorkOutcome::Failed { class, .. } => class,
        WorkOutcome::TimedOut { .. } => {
            if undone_when_unknown(step) {
                compensation::push(run, index, input, None);
            }
            TIMEOUT_CLASS
        }
    };
    run.note(Note::LateResult {
        step: step.name.clone(),
        outcome: word.to_owned(),
    });
    compensation::proceed(run)
}

/// Reads the result into the state. It is parsed only if something reads it.
fn take_result<'a>(run: &mut Run<'a>, step: &Step, payload: &'a [u8]) -> Result<(), Rejection> {
    let read_later = step
        .compensate
        .as_ref()
        .is_some_and(|compensation| compensation::reads(compensation, Root::Result));
    if step.set.is_empty() && !read_later {
        return Ok(());
    }
    let place = Place::Step { name: &step.name };
    let result = run.parse(payload, &format!("the result of {place}"))?;
    let locals = Locals {
        result: Some(result),
        input: None,
    };
    run.set(&step.set, locals, place)
}

fn fail_step(run: &mut Run<'_>, index: u16, class: &str, message: &str) -> Result<(), Rejection> {
    let definition = run.ground.definition;
    let step = &definition.steps[usize::from(index)];
    let state = run.step_mut(index);
    state.status = StepStatus::Failed;
    state.error = Some(class.to_owned());
    run.note(Note::StepFailed {
        step: step.name.clone(),
        class: class.to_owned(),
    });
    failure::fail(run, Cause::step(&step.name, class, message))
}

fn undone_when_unknown(step: &Step) -> bool {
    step.compensate
        .as_ref()
        .is_some_and(|compensation| compensation.on_unknown)
}
