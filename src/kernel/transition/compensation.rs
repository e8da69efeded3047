//! Undoing: the ledger, last entry first, one at a time.
//!
//! ```text
//! held ──▶ undoing ──succeeded──▶ undone
//!            │  ▲
//!     failed │  │ timer `retry:<step>.compensate`
//!            ▼  │
//!        backing off          undoing ──attempts used up──▶ stuck ──operator's retry──▶ due
//! ```

use serde_bytes::ByteBuf;

use super::Rejection;
use super::emission::Repetition;
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use crate::kernel::definition::model::{COMMAND_DEADLINE_MS, Compensation, Step};
use crate::kernel::expr::Root;
use crate::kernel::input::WorkOutcome;
use crate::kernel::json::Json;
use crate::kernel::patch::Note;
use crate::kernel::record::{LedgerEntry, LedgerStatus, Outstanding, Phase, Record, Tries};
use crate::kernel::work::WorkKind;

/// Fact that tells operators of an entry that is stuck.
pub(super) const COMPENSATION_FAILED_FACT: &str = "saga.compensation_failed";

const RETRY_PREFIX: &str = "retry:";
const RETRY_SUFFIX: &str = ".compensate";

/// Puts a step that succeeded, or may have, on the ledger, if it can be undone.
pub(super) fn push(run: &mut Run<'_>, slot: Slot, input: Option<ByteBuf>, result: Option<&[u8]>) {
    let iteration = run.slot(slot).iteration;
    put(run, slot, iteration, LedgerStatus::Held, input, result);
}

/// The same for what nothing waits for any more: it is undone although the instance may go on.
pub(super) fn push_late(
    run: &mut Run<'_>,
    slot: Slot,
    iteration: u32,
    input: Option<ByteBuf>,
    result: Option<&[u8]>,
) {
    put(run, slot, iteration, LedgerStatus::Due, input, result);
}

/// Undoes steps while the instance goes on.
pub(super) fn undo(run: &mut Run<'_>, slot: Slot, steps: &[u16]) -> Result<(), Rejection> {
    for entry in &mut run.record.ledger {
        // An item undoes nothing of another one.
        let is_other = slot.item.is_some() && entry.item.is_some() && entry.item != slot.item;
        if entry.status == LedgerStatus::Held && steps.contains(&entry.step) && !is_other {
            entry.status = LedgerStatus::Due;
        }
    }
    proceed(run)
}

fn put(
    run: &mut Run<'_>,
    slot: Slot,
    iteration: u32,
    status: LedgerStatus,
    input: Option<ByteBuf>,
    result: Option<&[u8]>,
) {
    let Some(compensation) = slot.step(run).compensate.as_ref() else {
        return;
    };
    let reads_result = reads(compensation, Root::Result);
    let reads_input = reads(compensation, Root::Input);
    run.record.ledger.push(LedgerEntry {
        step: slot.step,
        item: slot.item,
        iteration,
        input: input.filter(|_| reads_input),
        result: result.filter(|_| reads_result).map(ByteBuf::from),
        status,
        attempt: 0,
        tries: Tries::default(),
        outstanding: None,
    });
}

/// Whether the compensation of a step reads `root`.
pub(super) fn reads(compensation: &Compensation, root: Root) -> bool {
    use crate::kernel::definition::model::Action;
    match &compensation.action {
        Action::Effect { with, .. } => with.reads(root),
        Action::Command(command) => command.aggregate_id.reads(root) || command.payload.reads(root),
        Action::Publish(_) | Action::Nothing | Action::Group(_) => false,
    }
}

/// Starts the next compensation, unless one is under way, stuck in front, or nothing is left.
pub(super) fn proceed(run: &mut Run<'_>) -> Result<(), Rejection> {
    let all = match run.record.phase {
        Phase::Running => false,
        // What was held at the completion is no longer there.
        Phase::Completed
        | Phase::Compensating
        | Phase::CompensationFailed
        | Phase::Failed
        | Phase::Cancelled => true,
    };
    let mut next = None;
    for (at, entry) in run.record.ledger.iter().enumerate() {
        match entry.status {
            LedgerStatus::Undoing | LedgerStatus::BackingOff => return Ok(()),
            LedgerStatus::Held if !all => {}
            LedgerStatus::Held | LedgerStatus::Due => next = Some(at),
            LedgerStatus::Stuck => next = None,
            LedgerStatus::Undone => {}
        }
    }
    match next {
        Some(at) => start(run, at),
        None => Ok(()),
    }
}

/// The entry that waits for the result of `outstanding`.
pub(super) fn waiting(record: &Record, is: impl Fn(&Outstanding) -> bool) -> Option<usize> {
    record
        .ledger
        .iter()
        .position(|entry| entry.outstanding.as_ref().is_some_and(&is))
}

/// Applies the result of a compensation.
pub(super) fn result(run: &mut Run<'_>, at: usize, outcome: &WorkOutcome) -> Result<(), Rejection> {
    let entry = &mut run.record.ledger[at];
    let step = &run.ground.definition.steps[usize::from(entry.step)];
    if let Some(outstanding) = entry.outstanding.take() {
        run.settled.push(outstanding.row);
    }
    let class = match outcome {
        WorkOutcome::Succeeded { .. } => {
            entry.status = LedgerStatus::Undone;
            entry.input = None;
            entry.result = None;
            run.notes.push(Note::CompensationDone {
                step: step.name.clone(),
            });
            return proceed(run);
        }
        WorkOutcome::Failed { class, .. } => {
            entry.tries.end(true);
            class.as_str()
        }
        WorkOutcome::TimedOut { .. } => {
            entry.tries.end(false);
            super::TIMEOUT_CLASS
        }
    };
    run.notes.push(Note::CompensationFailed {
        step: step.name.clone(),
        class: class.to_owned(),
    });
    match delay(step, entry.attempt) {
        Some(delay_ms) => {
            entry.status = LedgerStatus::BackingOff;
            let timer = timer_name(step, entry.iteration);
            run.set_retry_timer(&timer, delay_ms)
        }
        None => exhausted(run, at, step, class),
    }
}

/// The retry timer of a step has fired.
pub(super) fn retry_due(run: &mut Run<'_>, timer: &str) -> Result<(), Rejection> {
    let definition = run.ground.definition;
    let due = run.record.ledger.iter().position(|entry| {
        entry.status == LedgerStatus::BackingOff
            && timer_name(&definition.steps[usize::from(entry.step)], entry.iteration) == timer
    });
    match due {
        Some(at) => start(run, at),
        None => Ok(()),
    }
}

/// Whether a timer of this name is for the next attempt of a compensation.
pub(super) fn is_timer(name: &str) -> bool {
    name.strip_prefix(RETRY_PREFIX)
        .is_some_and(|step| step.contains(RETRY_SUFFIX))
}

/// `retry:charge.compensate`, and of a step that began anew `retry:charge.compensate#1`.
fn timer_name(step: &Step, iteration: u32) -> String {
    match iteration {
        0 => format!("{RETRY_PREFIX}{}{RETRY_SUFFIX}", step.name),
        iteration => format!("{RETRY_PREFIX}{}{RETRY_SUFFIX}#{iteration}", step.name),
    }
}

/// Gives every stuck entry its attempts anew. The caller has checked that there is one.
pub(super) fn operator_retry(run: &mut Run<'_>) -> Result<(), Rejection> {
    for entry in &mut run.record.ledger {
        if entry.status == LedgerStatus::Stuck {
            entry.status = LedgerStatus::Due;
            entry.attempt = 0;
        }
    }
    if run.record.phase == Phase::CompensationFailed {
        run.record.phase = Phase::Compensating;
    }
    proceed(run)
}

/// Goes on after something was taken off the ledger.
pub(super) fn resume(run: &mut Run<'_>) -> Result<(), Rejection> {
    if run.record.phase == Phase::CompensationFailed && !any_stuck(&run.record) {
        run.record.phase = Phase::Compensating;
    }
    proceed(run)
}

pub(super) fn any_stuck(record: &Record) -> bool {
    record
        .ledger
        .iter()
        .any(|entry| entry.status == LedgerStatus::Stuck)
}

fn start(run: &mut Run<'_>, at: usize) -> Result<(), Rejection> {
    let entry = &mut run.record.ledger[at];
    entry.attempt = entry.attempt.saturating_add(1);
    let (index, iteration) = (entry.step, u64::from(entry.iteration));
    let (attempt, round) = (entry.attempt, entry.tries.round);
    let item = entry.item.unwrap_or(0);
    let (input, result) = (entry.input.clone(), entry.result.clone());
    let step = step(run, index);
    let Some(compensation) = step.compensate.as_ref() else {
        return Err(Rejection {
            reason: "definition.mismatch",
            message: format!("step {} is on the ledger without a compensation", step.name),
        });
    };
    let path = Place::Compensation { step: &step.name }.to_string();
    let mut locals = Locals {
        result: Some(run.ground.values.keep(Json::Null)),
        ..Locals::default()
    };
    if let Some(result) = result {
        locals.result = Some(run.parse_owned(result.into_vec(), &path)?);
    }
    if let Some(input) = input {
        locals.input = Some(run.parse_owned(input.into_vec(), &path)?);
    }
    let kind = run.action(&compensation.action, locals, &path)?;
    let repetition = Repetition {
        iteration,
        round,
        attempt,
        item,
    };
    let outstanding = run.push_work(path, repetition, compensation.deadline_ms, kind)?;
    let entry = &mut run.record.ledger[at];
    entry.status = LedgerStatus::Undoing;
    entry.outstanding = Some(outstanding);
    run.note(Note::CompensationStarted {
        step: step.name.clone(),
        attempt,
    });
    Ok(())
}

fn exhausted(run: &mut Run<'_>, at: usize, step: &Step, class: &str) -> Result<(), Rejection> {
    run.record.ledger[at].status = LedgerStatus::Stuck;
    // After the end the outcome stands; the entry alone asks for an operator then.
    if run.record.phase == Phase::Compensating {
        run.record.phase = Phase::CompensationFailed;
    }
    let payload = serde_json::json!({"class": class, "step": step.name}).to_string();
    let kind = WorkKind::Fact {
        fact_type: COMPENSATION_FAILED_FACT.to_owned(),
        payload: payload.into(),
    };
    let path = format!("{}.exhausted", Place::Compensation { step: &step.name });
    let iteration = run.record.version;
    run.note(Note::Emitted { work: path.clone() });
    run.push_work(path, Repetition::once(iteration), COMMAND_DEADLINE_MS, kind)?;
    Ok(())
}

fn delay(step: &Step, attempt: u32) -> Option<i64> {
    let retry = step.compensate.as_ref()?.retry;
    let delay_ms = retry.delay_before(attempt.checked_add(1)?)?;
    Some(i64::try_from(delay_ms).unwrap_or(i64::MAX))
}

fn step<'a>(run: &Run<'a>, index: u16) -> &'a Step {
    &run.ground.definition.steps[usize::from(index)]
}
