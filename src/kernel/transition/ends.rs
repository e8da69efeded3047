//! Ends of a step: done, failed, abandoned, and results that come after.

use serde_bytes::ByteBuf;

use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, TIMEOUT_CLASS, compensation, errors, items};
use crate::kernel::definition::model::{FAIL_IF_CLASS, Step};
use crate::kernel::expr::Root;
use crate::kernel::input::WorkOutcome;
use crate::kernel::patch::Note;
use crate::kernel::record::{StepStatus, Stray};

/// Why a step failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defeat<'a> {
    /// Error class, which `retry` and `on_error` name.
    pub class: &'a str,
    pub message: &'a str,
}

/// The step has succeeded with `payload`.
pub(super) fn done<'a>(run: &mut Run<'a>, slot: Slot, payload: &'a [u8]) -> Result<(), Rejection> {
    let step = slot.step(run);
    let state = run.slot_mut(slot);
    state.error = None;
    // What is unknown of earlier attempts is known now: all of them are the same work.
    state.tries.unknown = false;
    let input = state.take_input();
    let fails = take_result(run, step, payload)?;
    compensation::push(run, slot, input, Some(payload));
    if fails {
        let defeat = Defeat {
            class: FAIL_IF_CLASS,
            message: "fail_if holds",
        };
        return failed(run, slot, defeat);
    }
    run.fresh.push((slot, payload));
    items::keep_result(run, slot, payload);
    run.slot_mut(slot).status = StepStatus::Done;
    run.note(Note::StepDone {
        step: step.name.clone(),
    });
    Ok(())
}

/// The step has failed for good. It goes on the ledger if nobody knows whether one of its attempts happened.
pub(super) fn failed(run: &mut Run<'_>, slot: Slot, defeat: Defeat<'_>) -> Result<(), Rejection> {
    let step = slot.step(run);
    let state = run.slot_mut(slot);
    state.status = StepStatus::Failed;
    state.error = Some(defeat.class.to_owned());
    let input = state.take_input();
    let unknown = state.tries.unknown;
    run.note(Note::StepFailed {
        step: step.name.clone(),
        class: defeat.class.to_owned(),
    });
    if unknown && undone_when_unknown(step) {
        compensation::push(run, slot, input, None);
    }
    errors::answer(run, slot, defeat)
}

/// Stops waiting for the step. What is outstanding becomes a stray, since a late success must be undone.
pub(super) fn abandon(run: &mut Run<'_>, slot: Slot) {
    let step = slot.step(run);
    let timer = slot.timer(run, super::attempts::RETRY);
    run.clear_timer(&timer);
    let state = run.slot_mut(slot);
    state.status = StepStatus::Abandoned;
    let input = state.take_input();
    let unknown = state.tries.unknown;
    let outstanding = state.outstanding.take();
    let iteration = state.iteration;
    run.note(Note::StepAbandoned {
        step: step.name.clone(),
    });
    match outstanding {
        Some(outstanding) => run.record.strays.push(Stray {
            step: slot.step,
            item: slot.item,
            iteration,
            outstanding,
            input,
            unknown,
        }),
        None if unknown && undone_when_unknown(step) => {
            compensation::push(run, slot, input, None);
        }
        None => {}
    }
}

/// The result of a stray: what happened must be undone.
pub(super) fn late(run: &mut Run<'_>, at: usize, outcome: &WorkOutcome) -> Result<(), Rejection> {
    let stray = run.record.strays.remove(at);
    run.settled.push(stray.outstanding.row);
    let slot = Slot {
        step: stray.step,
        item: stray.item,
    };
    let step = slot.step(run);
    let may_have_happened = match outcome {
        WorkOutcome::Succeeded { .. } => false,
        WorkOutcome::Failed { .. } => stray.unknown,
        WorkOutcome::TimedOut { .. } => true,
    };
    let word = match outcome {
        WorkOutcome::Succeeded { payload } => {
            compensation::push_late(run, slot, stray.iteration, stray.input, Some(payload));
            "succeeded"
        }
        WorkOutcome::Failed { .. } | WorkOutcome::TimedOut { .. } => {
            if may_have_happened && undone_when_unknown(step) {
                compensation::push_late(run, slot, stray.iteration, stray.input, None);
            }
            match outcome {
                WorkOutcome::Failed { class, .. } => class,
                WorkOutcome::Succeeded { .. } | WorkOutcome::TimedOut { .. } => TIMEOUT_CLASS,
            }
        }
    };
    run.note(Note::LateResult {
        step: step.name.clone(),
        outcome: word.to_owned(),
    });
    compensation::proceed(run)
}

/// Reads the result into the state, and says whether `fail_if` holds. It is parsed only if something reads it.
fn take_result<'a>(run: &mut Run<'a>, step: &Step, payload: &'a [u8]) -> Result<bool, Rejection> {
    let read_later = step
        .compensate
        .as_ref()
        .is_some_and(|compensation| compensation::reads(compensation, Root::Result));
    if step.set.is_empty() && step.fail_if.is_none() && !read_later {
        return Ok(false);
    }
    let place = Place::Step { name: &step.name };
    let result = run.parse(payload, &format!("the result of {place}"))?;
    let locals = Locals {
        result: Some(result),
        ..Locals::default()
    };
    run.set(&step.set, locals, place)?;
    match &step.fail_if {
        Some(condition) => run.test(condition, locals, || format!("{place}.fail_if")),
        None => Ok(false),
    }
}

fn undone_when_unknown(step: &Step) -> bool {
    step.compensate
        .as_ref()
        .is_some_and(|compensation| compensation.on_unknown)
}

impl crate::kernel::record::StepState {
    /// What was sent, which the record then no longer keeps here.
    fn take_input(&mut self) -> Option<ByteBuf> {
        self.sent.take().map(|sent| sent.payload)
    }
}
