//! Heartbeats: whoever was given the token of a step's work tells that it is still at it.
//!
//! A durable timer counts from the last heartbeat. When it fires, the work is given up: the step fails with the
//! class `heartbeat`, or does its action again where `retry` says so. That is other work than before, of another key
//! and another token, and what was done before stays on the ledger.

use saga_runner_language::definition::model::{HEARTBEAT_CLASS, Wait};

use super::Rejection;
use super::attempts;
use super::ends::Defeat;
use super::run::{Ground, Run};
use super::slot::Slot;
use super::waits::WAIT;
use crate::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::record::{Record, StepStatus};

/// Timer of the next heartbeat.
pub(super) const HEARTBEAT: &str = "heartbeat";

/// A step begins to wait for whoever has its token.
pub(super) fn begin(run: &mut Run<'_>, slot: Slot, wait: &Wait) -> Result<(), Rejection> {
    let Some(within_ms) = wait.heartbeat_ms else {
        return Ok(());
    };
    let timer = slot.timer(run, HEARTBEAT);
    run.set_timer(&timer, within_ms, || timer.clone())
}

/// A heartbeat. One that changes nothing, because it was repeated, is ignored.
pub(super) fn beat<'a>(ground: Ground<'a>, record: &'a Record, work: &str) -> Result<Patch, Rejection> {
    let found = Slot::all(record)
        .find(|(_, state)| state.status == StepStatus::Waiting && state.callback.as_deref() == Some(work));
    let Some((slot, _)) = found else {
        return Ok(Patch::ignored(IgnoreReason::Stale));
    };
    let mut run = Run::of(ground, record);
    let step = slot.step(&run);
    let Some(within_ms) = step.wait.as_ref().and_then(|wait| wait.heartbeat_ms) else {
        return Ok(Patch::ignored(IgnoreReason::NoHandler));
    };
    let timer = slot.timer(&run, HEARTBEAT);
    let due = run.record.updated.plus_ms(within_ms);
    if run.record.timers.get(&timer).is_some_and(|row| row.due >= due) {
        return Ok(Patch::ignored(IgnoreReason::Duplicate));
    }
    run.note(Note::Heartbeat {
        step: step.name.clone(),
    });
    run.set_timer(&timer, within_ms, || timer.clone())?;
    run.conclude(Outcome::Applied)
}

/// There was no heartbeat in time.
pub(super) fn missed(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    if run.slot(slot).status != StepStatus::Waiting {
        return Ok(());
    }
    let timer = slot.timer(run, WAIT);
    run.clear_timer(&timer);
    let defeat = Defeat {
        class: HEARTBEAT_CLASS,
        message: "no sign of life came in time",
    };
    attempts::wait_defeated(run, slot, defeat)
}
