//! What is in flight when an instance has failed or was cancelled.
//!
//! As a rule nothing is waited for any more: what is outstanding becomes a stray, and what succeeds late is undone behind what
//! is known. An instance that **drains** lets what has happened, or may be happening, come to its own end first: the steps
//! whose outcome is outstanding, and those that wait for what their action has asked for. Nothing begins meanwhile, not even
//! another attempt.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Action, DEADLINE, Late, OnLate};

use super::heartbeats::HEARTBEAT;
use super::run::Run;
use super::slot::Slot;
use super::waits::WAIT;
use super::{Rejection, compensation, entries, failure};
use crate::input::CancelMode;
use crate::record::{Phase, Record, StepState, StepStatus};

/// Whether an instance undoes nothing before what is in flight has come to its end.
pub(super) fn drains(record: &Record) -> bool {
    record.phase == Phase::Compensating && record.failure.as_ref().is_some_and(|failure| failure.drain)
}

/// Whether such an instance still waits.
pub(super) fn is_open(record: &Record) -> bool {
    drains(record)
        && (!record.strays.is_empty() || Slot::all(record).any(|(_, state)| state.status.is_under_way()))
}

/// Whether waits of the instance are still to end: it goes forward, or lets what runs come to its end.
pub(super) fn hears(record: &Record) -> bool {
    record.phase == Phase::Running || drains(record)
}

/// Whether a step goes on although its instance drains: it may have done something, and has not come to its end.
pub(super) fn goes_on(run: &Run<'_>, slot: Slot) -> bool {
    drains(&run.record) && may_have_acted(run, slot, run.slot(slot))
}

fn may_have_acted(run: &Run<'_>, slot: Slot, state: &StepState) -> bool {
    match state.status {
        StepStatus::Running => state.outstanding.is_some(),
        StepStatus::Waiting => !slot.step(run).waits_alone(),
        StepStatus::Pending
        | StepStatus::BackingOff
        | StepStatus::Delayed
        | StepStatus::Stuck
        | StepStatus::Done
        | StepStatus::Skipped
        | StepStatus::Failed
        | StepStatus::Abandoned => false,
    }
}

/// Whether the end, and `finally` with it, waits for a late outcome: what is outstanding would be undone if it succeeded.
/// Each is outstanding for no longer than its timeout, after which its outcome is unknown.
pub(super) fn holds_end(definition: &Definition, record: &Record) -> bool {
    compensation::cancel_mode(record) != Some(CancelMode::Abandon)
        && record.strays.iter().any(|stray| {
            let step = &definition.steps[usize::from(stray.step)];
            let is_undone_late = match &step.compensate {
                Some(compensation) => compensation.on_late == OnLate::Compensate,
                // An instance that its parent undoes undoes what it did by itself, and says when it has.
                None => matches!(step.action, Action::Saga(_)),
            };
            is_undone_late && !compensation::is_kept(definition, record, stray.step)
        })
}

/// The timers of the steps that go on.
pub(super) fn timers(run: &Run<'_>) -> Vec<String> {
    let going = Slot::all(&run.record).filter(|(slot, _)| goes_on(run, *slot));
    let kinds = [WAIT, HEARTBEAT, DEADLINE];
    going
        .flat_map(|(slot, _)| kinds.map(|kind| slot.timer(run, kind)))
        .collect()
}

/// Forgets the items of all loops in which nothing goes on.
pub(super) fn forget_items(run: &mut Run<'_>) {
    let drains = drains(&run.record);
    for state in &mut run.record.steps {
        let Some(items) = &mut state.items else {
            continue;
        };
        items.drop_waiting();
        items.running.retain(|item| {
            let mut steps = item.steps.iter();
            drains && steps.any(|state| state.status.is_under_way())
        });
        if items.running.is_empty() {
            state.items = None;
        }
    }
}

/// Why what this input has given up is late: where the instance does not go on, that is the reason.
pub(super) fn tell_why(run: &mut Run<'_>) {
    if run.is_running() {
        return;
    }
    let why = entries::why_late(&run.record);
    let before = run
        .ground
        .before
        .map_or(&[][..], |before| before.strays.as_slice());
    for stray in &mut run.record.strays {
        let command = stray.outstanding.command;
        let was = before.iter().any(|stray| stray.outstanding.command == command);
        if stray.late == Late::Enough && !was {
            stray.late = why;
        }
    }
}

/// Lets an instance that drains wait no longer: what is in flight is undone as soon as it succeeds.
pub(super) fn hurry(run: &mut Run<'_>) -> Result<(), Rejection> {
    if let Some(failure) = &mut run.record.failure {
        failure.drain = false;
        failure.cancelled = failure.cancelled.map(|_| CancelMode::Compensate);
    }
    failure::abandon_steps(run);
    run.clear_instance_timers();
    compensation::proceed(run)
}
