//! The advance loop, which starts what can start, and the end of an instance.

use std::ops::Range;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Action, Step};

use super::cancellations;
use super::failure::{self, Cause};
use super::joins::{self, Standing};
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{
    Rejection, compensation, early, entries, flight, groups, machine, parents, program, stuck, timers, waits,
};
use crate::input::CancelMode;
use crate::patch::{Note, Outcome, Patch};
use crate::record::{Phase, Record, StepStatus};

impl Run<'_> {
    /// Renders the initial state.
    pub(super) fn open_state(&mut self) -> Result<(), Rejection> {
        self.note(Note::Started);
        let definition = self.ground.definition;
        let data = self.render(&definition.init, Locals::default(), || Place::Init.to_string())?;
        self.replace_data(data);
        Ok(())
    }

    /// Does what follows every input that was applied: advance, cancel timers, end.
    pub(super) fn conclude(mut self, outcome: Outcome) -> Result<Patch, Rejection> {
        if self.record.phase == Phase::Running {
            // Before anything starts that would be given up at once.
            cancel(&mut self)?;
            advance(&mut self)?;
            cancel(&mut self)?;
            timers::cancel(&mut self)?;
        }
        entries::undo_left(&mut self)?;
        if flight::drains(&self.record) && !flight::is_open(&self.record) {
            // This input may have ended what was waited for.
            flight::forget_items(&mut self);
            compensation::proceed(&mut self)?;
        }
        flight::tell_why(&mut self);
        stuck::await_operator(&mut self);
        end(&mut self)?;
        if parents::begin_undo(&mut self)? {
            end(&mut self)?;
        }
        cancellations::children(&mut self)?;
        parents::report(&mut self)?;
        cancellations::effects(&mut self)?;
        self.finish(outcome)
    }
}

/// Cancels the instance where its definition says so.
fn cancel(run: &mut Run<'_>) -> Result<(), Rejection> {
    let definition = run.ground.definition;
    let Some(condition) = definition.cancel_when.as_ref().filter(|_| run.is_running()) else {
        return Ok(());
    };
    if run.test(condition, Locals::default(), || "cancel_when".to_owned())? {
        let cause = Cause::cancel("cancel_when holds", CancelMode::Compensate);
        failure::fail(run, cause)?;
    }
    Ok(())
}

/// Starts every pending step whose needs are met, and leads groups on, until nothing changes. A step leaves
/// `pending` once in a turn of the loops around it, and the turns of one input are bounded, so this ends.
fn advance(run: &mut Run<'_>) -> Result<(), Rejection> {
    let steps = u16::try_from(run.ground.definition.steps.len()).unwrap_or(u16::MAX);
    while run.is_running() && frame(run, 0..steps, None)? {}
    Ok(())
}

/// Starts what can start among `steps` for `item`, and leads their groups on. Tells whether more may start now.
pub(super) fn frame(run: &mut Run<'_>, steps: Range<u16>, item: Option<u32>) -> Result<bool, Rejection> {
    let before = run.focus(Some(Slot {
        step: steps.start,
        item,
    }));
    let mut changed = false;
    // What can never start comes first: nothing is begun beside a step that makes the instance fail.
    for step in steps.clone() {
        let slot = Slot { step, item };
        let needs = &run.ground.definition.steps[usize::from(step)].needs;
        let is_looked_at = !needs.is_empty() && run.is_running() && may_start(run, slot);
        if is_looked_at && joins::compute(run, slot)? {
            changed = true;
        } else if is_looked_at && joins::is_out_of_reach(run, slot) {
            joins::out_of_reach(run, slot)?;
            changed = true;
        }
    }
    for step in steps.clone() {
        let slot = Slot { step, item };
        if !run.is_running() || !may_start(run, slot) {
            continue;
        }
        changed |= match joins::standing(run, slot) {
            // A step before it has given up what it needs; the next look at the frame says so.
            Standing::OutOfReach => true,
            Standing::Open => false,
            Standing::Met => {
                joins::leave_stragglers(run, slot)?;
                begin(run, slot)?
            }
        };
    }
    changed |= groups::conclude(run, steps, item)?;
    run.focus(before);
    Ok(changed && run.record.phase == Phase::Running)
}

/// Starts or skips a step that is ready. Tells whether others may start now.
fn begin(run: &mut Run<'_>, slot: Slot) -> Result<bool, Rejection> {
    let step = slot.step(run);
    let wanted = match &step.condition {
        None => true,
        Some(condition) => {
            let place = || format!("{}.if", Place::Step { name: &step.name });
            run.test(condition, Locals::default(), place)?
        }
    };
    if !wanted {
        groups::skip(run, slot);
        return Ok(true);
    }
    if let Action::Group(group) = &step.action {
        groups::start(run, slot, group)?;
        return Ok(true);
    }
    waits::begin(run, slot)?;
    // What needs it may stand before it. A loop may be over with it.
    Ok(!run.has_slot(slot) || !run.slot(slot).status.is_under_way())
}

/// Whether nothing but its needs keeps a step from starting.
fn may_start(run: &Run<'_>, slot: Slot) -> bool {
    run.find_slot(slot)
        .is_some_and(|state| state.status == StepStatus::Pending)
        && slot.step(run).is_own()
        && groups::lets_start(run, slot)
}

/// Ends an instance whose outcome is reached, or begins what is to be done before.
fn end(run: &mut Run<'_>) -> Result<(), Rejection> {
    let definition = run.ground.definition;
    let reached = match run.record.phase {
        Phase::Running => is_complete(definition, &run.record),
        Phase::Finishing if early::is_ahead(&run.record) => is_undone_on_the_way(&run.record),
        Phase::Compensating => {
            is_undone(&run.record)
                && !flight::is_open(&run.record)
                && !flight::holds_end(definition, &run.record)
        }
        Phase::Finishing if is_finished(definition, &run.record) => {
            return over(run);
        }
        Phase::Finishing
        | Phase::CompensationFailed
        | Phase::Completed
        | Phase::Failed
        | Phase::Cancelled => false,
    };
    if !reached {
        return Ok(());
    }
    let kept = run.record.parent.as_ref().is_some_and(|parent| parent.undoable);
    let completes = matches!(run.record.phase, Phase::Running | Phase::Finishing);
    if completes && !kept {
        // Nothing will be undone any more.
        run.record.ledger.clear();
    }
    let finally = &definition.finally;
    let phase = run.record.end();
    let emits = match phase {
        Phase::Completed => &finally.completed,
        Phase::Cancelled => &finally.cancelled,
        _ => &finally.failed,
    };
    run.record.phase = Phase::Finishing;
    if let Some(early) = &mut run.record.early {
        early.begun = true;
    }
    run.clear_instance_timers();
    run.readmit_deferred();
    let outcome = phase.as_str();
    run.emit_at_end(emits, Place::Finally { outcome })?;
    if is_finished(definition, &run.record) {
        return over(run);
    }
    Ok(())
}

fn over(run: &mut Run<'_>) -> Result<(), Rejection> {
    run.unpause();
    run.record.phase = run.record.end();
    run.note(Note::Ended {
        phase: run.record.phase.as_str().to_owned(),
    });
    run.release_aliases()
}

/// Whether no effect of `finally` is under way.
fn is_finished(definition: &Definition, record: &Record) -> bool {
    let mut steps = definition.steps.iter().zip(&record.steps);
    steps.all(|(step, state)| !step.at_end || !state.status.is_under_way())
}

/// All steps are over and the machine is in a final state; a saga that has neither steps nor a
/// machine only ever ends by failing.
fn is_complete(definition: &Definition, record: &Record) -> bool {
    if let Some(program) = &record.program {
        return program::is_complete(program, record);
    }
    let mut emitted = definition
        .steps
        .iter()
        .zip(&record.steps)
        .filter(|(step, _)| step.emitted);
    emitted.all(|(_, state)| !state.status.is_under_way())
        && is_through(definition, record)
        && is_undone_on_the_way(record)
}

/// Whether nothing but effects of timers and handlers, and what is undone on the way, keeps an instance from its end.
pub(super) fn has_nothing_left(run: &Run<'_>) -> bool {
    is_through(run.ground.definition, &run.record)
}

/// Whether all steps are over and the machine is in a final state.
fn is_through(definition: &Definition, record: &Record) -> bool {
    let mut own = definition
        .steps
        .iter()
        .zip(&record.steps)
        .filter(|(step, _)| step.is_own());
    let steps_over = own.all(|(_, state)| state.status.is_over());
    let machine_over = machine::present(definition, record).is_none_or(|state| state.is_final);
    let has_end = definition.steps.iter().any(Step::is_own) || definition.machine.is_some();
    has_end && steps_over && machine_over
}

/// What is undone while the instance goes forward is part of the way.
fn is_undone_on_the_way(record: &Record) -> bool {
    !record.ledger.has(|status| !status.rests())
}

fn is_undone(record: &Record) -> bool {
    program::is_idle(record) && !record.ledger.has(|status| !status.is_over())
}
