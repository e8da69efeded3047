//! Ends of a step: done, failed, abandoned, and results that come after.

use saga_runner_language::definition::model::{Action, BODY_OF_REPEAT, FAIL_IF_CLASS, Step};
use saga_runner_language::expr::Root;
use serde_bytes::ByteBuf;

use super::attempts::NO_RESULT;
use super::entries::Remains;
use super::place::Place;
use super::results::Mode;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{
    Rejection, attempts, children, compensation, deadlines, doubts, entries, errors, heartbeats,
    item_results, machine, waits,
};
use crate::children::CHILD_STUCK;
use crate::input::WorkOutcome;
use crate::patch::Note;
use crate::record::{StepStatus, Stray};

/// Why a step failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defeat<'a> {
    /// Error class, which `retry` and `on_error` name.
    pub class: &'a str,
    pub message: &'a str,
}

/// The action of the step has succeeded with `payload`; what is left is to wait, or nothing.
pub(super) fn acted<'a>(run: &mut Run<'a>, slot: Slot, payload: &'a [u8]) -> Result<(), Rejection> {
    let step = slot.step(run);
    let state = run.slot_mut(slot);
    state.error = None;
    // What is unknown of earlier attempts is known now: all of them are the same work.
    state.tries.unknown = false;
    state.tries.has_failed = false;
    let (iteration, round) = (state.iteration, state.tries.round);
    doubts::clear(run, slot, iteration, round);
    let state = run.slot_mut(slot);
    // Where the work may be given up, it is sent once more.
    let is_silent = step.wait.as_ref().is_some_and(|wait| wait.heartbeat_ms.is_some());
    let again = step.wait.is_some() && step.retry.iter().any(|table| table.named || is_silent);
    let input = if again {
        state.sent.as_ref().map(|sent| sent.payload.clone())
    } else {
        state.take_input()
    };
    let read_at_end = end_reads_result(step);
    // It is parsed only if something reads it, and then at once, so that what is not JSON is told here.
    let result = if reads_result(step) {
        Some(run.result(payload, &step.name)?)
    } else {
        None
    };
    // A step that only waits has done nothing before what it waits for has come.
    if !step.waits_alone() {
        entries::push(run, slot, input, payload);
    }
    if let Some(wait) = &step.wait {
        // Loops read the results of their steps, too.
        let kept = read_at_end || step.within.is_some();
        run.slot_mut(slot).result = kept.then(|| ByteBuf::from(payload));
        return waits::wait(run, slot, wait);
    }
    let locals = Locals {
        result,
        ..Locals::default()
    };
    complete(run, slot, Some(payload), locals)
}

/// The action of the step has succeeded, and what came back cannot be used: it is done, so it stands on the ledger, and
/// the step has failed. Another attempt would do it again, so there is none.
pub(super) fn unusable(
    run: &mut Run<'_>,
    slot: Slot,
    payload: &[u8],
    defeat: Defeat<'_>,
) -> Result<(), Rejection> {
    let state = run.slot_mut(slot);
    state.tries.unknown = false;
    state.tries.has_failed = false;
    let (iteration, round) = (state.iteration, state.tries.round);
    doubts::clear(run, slot, iteration, round);
    let input = run.slot_mut(slot).take_input();
    let result = kept(run, payload);
    entries::push_unusable(run, slot, input, result);
    failed(run, slot, defeat)
}

/// What the ledger keeps of a result.
pub(super) fn kept<'p>(run: &Run<'_>, payload: &'p [u8]) -> &'p [u8] {
    if run.mode == Mode::FailingWithoutResult {
        NO_RESULT
    } else {
        payload
    }
}

/// Nothing is left to wait for: the fields are set, and the step is done unless `fail_if` holds.
pub(super) fn complete<'a>(
    run: &mut Run<'a>,
    slot: Slot,
    payload: Option<&'a [u8]>,
    locals: Locals<'a>,
) -> Result<(), Rejection> {
    let step = slot.step(run);
    let place = Place::Step { name: &step.name };
    run.set(&step.set, locals, place)?;
    let fails = match &step.fail_if {
        Some(condition) => run.test(condition, locals, || format!("{place}.fail_if"))?,
        None => false,
    };
    if fails {
        let defeat = Defeat {
            class: FAIL_IF_CLASS,
            message: "fail_if holds",
        };
        return failed(run, slot, defeat);
    }
    run.register(&step.aliases, locals, place)?;
    let state = run.slot_mut(slot);
    state.status = StepStatus::Done;
    state.sent = None;
    if let Some(payload) = payload {
        keep(run, slot, payload);
    }
    deadlines::clear(run, slot);
    run.note(Note::StepDone {
        step: step.name.clone(),
    });
    machine::effect_done(run, slot, payload)
}

/// Sets the fields of a step that is skipped with a result which an operator gives. Nothing fails it any more.
pub(super) fn given<'a>(run: &mut Run<'a>, slot: Slot, payload: &'a [u8]) -> Result<(), Rejection> {
    let step = slot.step(run);
    let result = if reads_result(step) {
        Some(run.result(payload, &step.name)?)
    } else {
        None
    };
    let locals = Locals {
        result,
        ..Locals::default()
    };
    let place = Place::Step { name: &step.name };
    run.set(&step.set, locals, place)?;
    run.register(&step.aliases, locals, place)?;
    keep(run, slot, payload);
    Ok(())
}

/// Keeps a result that others read, in this input or later. Of the one step of a loop it is that of the loop, whose turns begin
/// again.
fn keep<'a>(run: &mut Run<'a>, slot: Slot, payload: &'a [u8]) {
    let step = slot.step(run);
    run.fresh.push((slot, payload));
    item_results::keep(run, slot, payload);
    if !step.keeps_result {
        return;
    }
    let group = step.within.filter(|_| step.name.ends_with(BODY_OF_REPEAT));
    let kept_by = Slot {
        step: group.unwrap_or(slot.step),
        ..slot
    };
    run.slot_mut(kept_by).result = Some(ByteBuf::from(payload));
}

/// Whether the end of the step, its compensation or somebody later reads its result.
pub(super) fn reads_result(step: &Step) -> bool {
    let undo_reads = step
        .compensate
        .as_ref()
        .is_some_and(|compensation| compensation.reads(Root::Result));
    undo_reads || end_reads_result(step)
}

fn end_reads_result(step: &Step) -> bool {
    let at_end = step
        .set
        .iter()
        .chain(&step.aliases)
        .chain(step.waits_for().flat_map(|awaiting| &awaiting.set))
        .any(|(_, value)| value.reads(Root::Result));
    let condition = step.fail_if.as_ref();
    at_end || step.keeps_result || condition.is_some_and(|condition| condition.reads(Root::Result))
}

/// The step has failed for good. It goes on the ledger if one of its attempts has an unknown outcome.
pub(super) fn failed(run: &mut Run<'_>, slot: Slot, defeat: Defeat<'_>) -> Result<(), Rejection> {
    let step = slot.step(run);
    deadlines::clear(run, slot);
    let state = run.slot_mut(slot);
    state.status = StepStatus::Failed;
    state.error = Some(defeat.class.to_owned());
    state.result = None;
    let input = state.take_input();
    let (unknown, iteration) = (state.tries.unknown, state.iteration);
    let failed = state.tries.has_failed;
    doubts::keep_input(run, slot, iteration, input.as_ref());
    run.note(Note::StepFailed {
        step: step.name.clone(),
        class: defeat.class.to_owned(),
    });
    if step.at_end {
        // The outcome stands.
        run.note(Note::FinallyFailed {
            step: step.name.clone(),
            class: defeat.class.to_owned(),
        });
        return Ok(());
    }
    if defeat.class == CHILD_STUCK && matches!(step.action, Action::Saga(_)) {
        children::hold(run, slot, iteration, input);
    } else {
        if unknown {
            children::cancel(run, slot.step, input.as_ref())?;
        }
        entries::push_remains(run, slot, input, Remains { unknown, failed });
    }
    errors::answer(run, slot, defeat)
}

/// Stops waiting for the step. What is outstanding becomes a stray, since a late success must be undone.
pub(super) fn abandon(run: &mut Run<'_>, slot: Slot) {
    run.note(Note::StepAbandoned {
        step: slot.step(run).name.clone(),
    });
    leave(run, slot, StepStatus::Abandoned);
}

/// The same for a step that ends with this status.
pub(super) fn leave(run: &mut Run<'_>, slot: Slot, status: StepStatus) {
    for kind in [attempts::RETRY, waits::DELAY, waits::WAIT, heartbeats::HEARTBEAT] {
        let timer = slot.timer(run, kind);
        run.clear_timer(&timer);
    }
    deadlines::clear(run, slot);
    let state = run.slot_mut(slot);
    state.status = status;
    // Its outcome is as unknown as ever; what that means is up to the compensation.
    state.question = None;
    let input = state.take_input();
    let (unknown, failed) = (state.tries.unknown, state.tries.has_failed);
    state.result = None;
    let outstanding = state.outstanding.take();
    let iteration = state.iteration;
    doubts::keep_input(run, slot, iteration, input.as_ref());
    match outstanding.filter(|outstanding| !run.unsend(outstanding.row)) {
        Some(outstanding) => run.record.strays.push(Stray {
            step: slot.step,
            item: slot.item,
            iteration,
            outstanding,
            input,
            unknown,
            failed,
            late: entries::why_late(&run.record),
        }),
        None => entries::push_remains(run, slot, input, Remains { unknown, failed }),
    }
}

/// The result of a stray: what happened must be undone.
pub(super) fn late(run: &mut Run<'_>, at: usize, outcome: &WorkOutcome) -> Result<(), Rejection> {
    let stray = run.record.strays.remove(at);
    run.completed.push(stray.outstanding.row);
    let slot = Slot {
        step: stray.step,
        item: stray.item,
    };
    if let WorkOutcome::TimedOut { .. } = outcome {
        doubts::remember_stray(run, &stray);
    } else if outcome.has_happened() {
        doubts::clear(run, slot, stray.iteration, stray.outstanding.round);
    }
    let step = slot.step(run);
    let (unknown, failed) = (stray.unknown, stray.failed);
    let (word, result) = match outcome {
        WorkOutcome::Succeeded { payload } | WorkOutcome::Unusable { payload, .. } => {
            ("succeeded", Ok(kept(run, payload)))
        }
        WorkOutcome::Failed { class, .. } => {
            let failed = true;
            (class.as_str(), Err(Remains { unknown, failed }))
        }
        WorkOutcome::TimedOut { class, .. } => {
            let unknown = true;
            (class.as_str(), Err(Remains { unknown, failed }))
        }
    };
    run.note(Note::LateResult {
        step: step.name.clone(),
        outcome: word.to_owned(),
    });
    if word == CHILD_STUCK && matches!(step.action, Action::Saga(_)) {
        children::hold_late(run, slot, stray.iteration, stray.input)?;
    } else {
        entries::push_late(run, slot, stray.iteration, stray.input, result, stray.late);
    }
    compensation::proceed(run)
}

impl crate::record::StepState {
    /// What was sent, which the record then no longer keeps here.
    fn take_input(&mut self) -> Option<ByteBuf> {
        self.sent.take().map(|sent| sent.payload)
    }
}
