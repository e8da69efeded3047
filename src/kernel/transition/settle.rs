//! The settle loop, which starts what can start, and the end of an instance.

use std::ops::Range;

use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, compensation, groups, machine, timers, waits};
use crate::kernel::definition::Definition;
use crate::kernel::definition::model::Action;
use crate::kernel::patch::{Note, Outcome, Patch};
use crate::kernel::record::{LedgerStatus, Phase, Record, StepStatus};

impl Run<'_> {
    /// Renders the initial state.
    pub(super) fn open_state(&mut self) -> Result<(), Rejection> {
        self.note(Note::Started);
        let definition = self.ground.definition;
        let data = self.render(&definition.init, Locals::default(), || Place::Init.to_string())?;
        self.replace_data(data);
        Ok(())
    }

    /// Does what follows every input that was applied: settle, cancel timers, end.
    pub(super) fn conclude(mut self, outcome: Outcome) -> Result<Patch, Rejection> {
        if self.record.phase == Phase::Running {
            settle(&mut self)?;
            timers::cancel(&mut self)?;
        }
        end(&mut self)?;
        self.finish(outcome)
    }
}

/// Starts every pending step whose needs are met, and leads groups on, until nothing changes. A step leaves
/// `pending` once in a turn of the loops around it, and the turns of one input are bounded, so this ends.
fn settle(run: &mut Run<'_>) -> Result<(), Rejection> {
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
    for step in steps.clone() {
        let slot = Slot { step, item };
        if run.is_running() && is_ready(run, slot) {
            changed |= begin(run, slot)?;
        }
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

fn is_ready(run: &Run<'_>, slot: Slot) -> bool {
    run.has_slot(slot)
        && slot.step(run).state.is_none()
        && run.slot(slot).status == StepStatus::Pending
        && groups::lets_start(run, slot)
        && slot
            .step(run)
            .needs
            .iter()
            .all(|need| run.slot(slot.peer(run, *need)).status.satisfies_needs())
}

/// Ends an instance whose outcome is reached.
fn end(run: &mut Run<'_>) -> Result<(), Rejection> {
    let definition = run.ground.definition;
    let (phase, finally) = match run.record.phase {
        Phase::Running if is_complete(definition, &run.record) => {
            // Nothing will be undone any more.
            run.record.ledger.clear();
            (Phase::Completed, &definition.finally.completed)
        }
        Phase::Compensating if is_undone(&run.record) && !compensation::drains(&run.record) => {
            let cancelled = run
                .record
                .failure
                .as_ref()
                .is_some_and(|failure| failure.cancelled.is_some());
            if cancelled {
                (Phase::Cancelled, &definition.finally.cancelled)
            } else {
                (Phase::Failed, &definition.finally.failed)
            }
        }
        Phase::Running
        | Phase::Compensating
        | Phase::CompensationFailed
        | Phase::Completed
        | Phase::Failed
        | Phase::Cancelled => return Ok(()),
    };
    run.record.phase = phase;
    run.clear_instance_timers();
    run.readmit_deferred();
    let outcome = phase.as_str();
    run.emit(finally, Place::Finally { outcome }, 0)?;
    run.note(Note::Ended {
        phase: outcome.to_owned(),
    });
    Ok(())
}

/// All steps are done or skipped and the machine is in a final state; a saga that has neither steps nor a
/// machine only ever ends by failing.
fn is_complete(definition: &Definition, record: &Record) -> bool {
    let mut own = definition
        .steps
        .iter()
        .zip(&record.steps)
        .filter(|(step, _)| step.state.is_none());
    let steps_over = own.all(|(_, state)| state.status.satisfies_needs());
    let machine_over = machine::present(definition, record).is_none_or(|state| state.is_final);
    let has_end = !definition.steps.is_empty() || definition.machine.is_some();
    // What is undone on the way is part of the way.
    let undone = record.ledger.iter().all(|entry| match entry.status {
        LedgerStatus::Held | LedgerStatus::Undone | LedgerStatus::Kept => true,
        LedgerStatus::Undoing | LedgerStatus::BackingOff | LedgerStatus::Stuck | LedgerStatus::Due => false,
    });
    has_end && steps_over && machine_over && undone
}

fn is_undone(record: &Record) -> bool {
    record.ledger.iter().all(|entry| entry.status.is_over())
}
