//! Compensations without a further attempt: they are kept or become stuck, operators are told, and an operator decides.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{COMMAND_TIMEOUT_MS, OnExhausted, Step};

use super::compensation::{positions, proceed, resume, step};
use super::emission::Repetition;
use super::place::Place;
use super::run::Run;
use super::undo_attempt::WORK_LEFT;
use super::{Rejection, flight};
use crate::input::{StuckDecision, Verdict};
use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::patch::Note;
use crate::record::{Phase, Record};
use crate::work::WorkKind;

/// Fact that tells operators of an entry that is stuck.
pub(super) const COMPENSATION_FAILED_FACT: &str = "saga.compensation_failed";

/// Fact that asks operators whether there is something to undo.
pub(super) const COMPENSATION_ASKED_FACT: &str = "saga.compensation_asked";

/// Gives every stuck entry its attempts again. The caller has checked that there is one.
pub(super) fn retry_all(run: &mut Run<'_>) -> Result<(), Rejection> {
    for at in positions(run, LedgerStatus::Stuck, |_| true) {
        run.record.ledger.entry(at).begin_anew();
    }
    resume(run)
}

/// Does what an operator says about stuck entries. The caller has checked that there is one.
pub(super) fn decide(run: &mut Run<'_>, decision: &StuckDecision) -> Result<(), Rejection> {
    let definition = run.ground.definition;
    for at in positions(run, LedgerStatus::Stuck, |entry| {
        is_meant(definition, entry, decision)
    }) {
        let entry = run.record.ledger.entry(at);
        let step = &definition.steps[usize::from(entry.step)];
        match decision.verdict {
            Verdict::Retry => entry.begin_anew(),
            Verdict::Skip => entry.end(LedgerStatus::Kept),
            Verdict::Resolve => entry.undone(),
        }
        run.notes.push(Note::StuckDecided {
            step: step.name.clone(),
            verdict: decision.verdict.as_str().to_owned(),
            by: decision.by.clone(),
            reason: decision.reason.clone(),
        });
    }
    resume(run)
}

/// Whether there is a stuck entry that an operator speaks of.
pub(super) fn concerns(definition: &Definition, record: &Record, decision: &StuckDecision) -> bool {
    let mut stuck = record.ledger.having(|status| status == LedgerStatus::Stuck);
    stuck.any(|(_, entry)| is_meant(definition, &entry, decision))
}

/// Whether an operator speaks of this stuck entry.
fn is_meant(definition: &Definition, entry: &LedgerEntry, decision: &StuckDecision) -> bool {
    let Some(step) = definition.steps.get(usize::from(entry.step)) else {
        return false;
    };
    decision.found.is_none()
        && decision.result.is_none()
        && decision.step.as_ref().is_none_or(|name| step.is_named(name))
        && decision.item.is_none_or(|item| entry.item == Some(item))
}

pub(super) fn any_stuck(record: &Record) -> bool {
    record.ledger.has(|status| status == LedgerStatus::Stuck)
}

/// Tells who listens that a compensation has used up its attempts.
fn trace_exhausted(run: &Run<'_>, step: &Step) {
    let place = Place::Compensation { step: &step.name };
    run.trace(format_args!("{place}.on_exhausted"));
}

/// The compensation cannot be made from what the step was given and gave: as after its last attempt.
pub(super) fn impossible(
    run: &mut Run<'_>,
    at: usize,
    step: &Step,
    rejection: &Rejection,
) -> Result<(), Rejection> {
    run.note(Note::CompensationFailed {
        step: step.name.clone(),
        class: rejection.reason.to_owned(),
    });
    trace_exhausted(run, step);
    let goes_on = goes_on(step);
    if goes_on {
        keep(run, at, step);
    } else {
        stop(run, at);
    }
    // Many may stand on the ledger, and the phase tells of them, too.
    if run.work_room() <= WORK_LEFT {
        return Ok(());
    }
    let mut payload = serde_json::json!({
        "class": rejection.reason,
        "message": rejection.message,
        "step": step.name,
    });
    if goes_on {
        payload["kept"] = true.into();
    }
    alert(run, at, COMPENSATION_FAILED_FACT, &payload)
}

/// Whether the step stays done where it cannot be undone.
fn goes_on(step: &Step) -> bool {
    step.compensate
        .as_ref()
        .is_some_and(|compensation| compensation.on_exhausted == OnExhausted::Continue)
}

/// The step has nothing to undo, or it is given up.
pub(super) fn keep(run: &mut Run<'_>, at: usize, step: &Step) {
    run.record.ledger.entry(at).end(LedgerStatus::Kept);
    run.note(Note::CompensationSkipped {
        step: step.name.clone(),
    });
}

pub(super) fn exhausted(run: &mut Run<'_>, at: usize, step: &Step, class: &str) -> Result<(), Rejection> {
    trace_exhausted(run, step);
    if goes_on(step) {
        keep(run, at, step);
        let payload = serde_json::json!({"class": class, "kept": true, "step": step.name});
        alert(run, at, COMPENSATION_FAILED_FACT, &payload)?;
        return proceed(run);
    }
    stop(run, at);
    let payload = serde_json::json!({"class": class, "step": step.name});
    alert(run, at, COMPENSATION_FAILED_FACT, &payload)
}

/// Leaves it to an operator whether there is something to undo, or still is.
pub(super) fn ask(run: &mut Run<'_>, at: usize) -> Result<(), Rejection> {
    let index = run.record.ledger.entry(at).step;
    let step = step(run, index);
    stop(run, at);
    run.note(Note::CompensationAsked {
        step: step.name.clone(),
    });
    let payload = serde_json::json!({"step": step.name});
    alert(run, at, COMPENSATION_ASKED_FACT, &payload)
}

/// From now on an operator must act.
fn stop(run: &mut Run<'_>, at: usize) {
    run.record.ledger.entry(at).status = LedgerStatus::Stuck;
    await_operator(run);
}

/// Tells by the phase that an operator must act, unless what is in flight is to come to its end before. After the end the
/// outcome stands; the entry alone asks for an operator then.
pub(super) fn await_operator(run: &mut Run<'_>) {
    if run.record.phase == Phase::Compensating && !flight::is_open(&run.record) && any_stuck(&run.record) {
        run.record.phase = Phase::CompensationFailed;
    }
}

/// Tells operators.
fn alert(run: &mut Run<'_>, at: usize, fact: &str, payload: &serde_json::Value) -> Result<(), Rejection> {
    let entry = run.record.ledger.entry(at);
    let (index, item) = (entry.step, entry.item.unwrap_or(0));
    let kind = WorkKind::Fact {
        fact_type: fact.to_owned(),
        payload: payload.to_string().into(),
    };
    let step = step(run, index);
    let end = if fact == COMPENSATION_ASKED_FACT {
        "asked"
    } else {
        "exhausted"
    };
    let path = format!("{}.{end}", Place::Compensation { step: &step.name });
    let repetition = Repetition {
        item,
        ..Repetition::once(run.record.version)
    };
    run.note(Note::Emitted { work: path.clone() });
    run.push_work(path, repetition, COMMAND_TIMEOUT_MS, kind)?;
    Ok(())
}
