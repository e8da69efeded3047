//! Steps that an operator skips: the instance goes on without them.
//!
//! ```text
//! delayed, backing off, waiting ──────────────────────────▶ skipped
//! stuck, backing off with an unknown outcome ──as: done───▶ skipped, on the ledger like a success
//!                                            ──as: not_done▶ skipped; a success that comes late is undone
//! running ──as: not_done──▶ skipped; its command is a stray, as of any step that is given up
//! ```
//!
//! What a late success of a skipped step means is what it means for every step that the instance went on without
//! ([`ends::abandon`], [`super::doubts`]). What the step had done before its wait stays on the ledger.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Action, Step};
use saga_runner_language::expr::Root;
use saga_runner_language::json::Json;
use saga_runner_language::limits::Limits;

use super::questions::Unfit;
use super::results::{effect_of, output_of};
use super::run::Run;
use super::slot::Slot;
use super::{Rejection, doubts, ends, entries, questions, stuck};
use crate::input::{Found, StuckDecision, Verdict};
use crate::patch::Note;
use crate::record::{Phase, Record, StepState, StepStatus};

/// Does what an operator says: about a step that is skipped, unless a stuck entry of the ledger is meant; or about what is stuck.
pub(super) fn decide<'a>(run: &mut Run<'a>, decision: &'a StuckDecision) -> Result<(), Rejection> {
    let of_ledger = stuck::concerns(run.ground.definition, &run.record, decision);
    if decision.verdict == Verdict::Skip && decision.step.is_some() && !of_ledger {
        return skip(run, decision);
    }
    questions::decide(run, decision)?;
    stuck::decide(run, decision)
}

/// Why an operator cannot skip what the decision names, if that is so.
#[must_use]
pub fn skip_obstacle(
    definition: &Definition,
    record: &Record,
    decision: &StuckDecision,
    limits: &Limits,
) -> Option<Unfit> {
    if stuck::concerns(definition, record, decision) {
        return None;
    }
    target(definition, record, decision, limits).err()
}

/// The one step in progress that is meant, where it may be skipped as the decision says.
fn target(
    definition: &Definition,
    record: &Record,
    decision: &StuckDecision,
    limits: &Limits,
) -> Result<Slot, Unfit> {
    let Some(name) = &decision.step else {
        return Err(Unfit::NotStuck);
    };
    let mut meant = Slot::all(record).filter(|(slot, state)| {
        let step = definition.steps.get(usize::from(slot.step));
        state.status.is_under_way()
            && step.is_some_and(|step| step.is_named(name) && !matches!(step.action, Action::Group(_)))
            && decision.item.is_none_or(|item| slot.item == Some(item))
    });
    let Some((slot, state)) = meant.next() else {
        let mut groups = definition.steps.iter();
        let is_group = groups.any(|step| step.is_named(name) && matches!(step.action, Action::Group(_)));
        return Err(if is_group {
            refused(format!(
                "step {name} contains others: skip those that are in progress"
            ))
        } else {
            Unfit::NotStuck
        });
    };
    if meant.next().is_some() {
        return Err(refused(format!(
            "step {name} is in progress for several items: say which (`item`)"
        )));
    }
    let step = &definition.steps[usize::from(slot.step)];
    check_phase(record, step, name)?;
    check_outcome(step, state, decision.found.as_ref(), name)?;
    check_result(definition, slot, decision, limits)?;
    Ok(slot)
}

fn refused(why: impl Into<String>) -> Unfit {
    Unfit::Refused(why.into())
}

fn check_phase(record: &Record, step: &Step, name: &str) -> Result<(), Unfit> {
    let phase = record.phase;
    if step.at_end && phase == Phase::Finishing || step.is_own() && phase == Phase::Running {
        return Ok(());
    }
    Err(refused(if step.is_own() || step.at_end {
        format!(
            "the instance is {}, and goes on without step {name} by itself",
            phase.as_str()
        )
    } else {
        format!(
            "{name} is an effect of a state, a timer or a handler, and handlers wait for its end: resolve it where it is stuck, or cancel the instance"
        )
    }))
}

/// What may have happened must be said by whoever skips the step.
fn check_outcome(step: &Step, state: &StepState, found: Option<&Found>, name: &str) -> Result<(), Unfit> {
    let undo = step.compensate.as_ref();
    let problem = match (state.status, found) {
        (StepStatus::Running, None) => format!(
            "the command of step {name} is with a worker, and its outcome is not known yet: wait for it, or cancel the instance; or skip the step as not_done, then a success that comes late is undone as its `on_late` says"
        ),
        (StepStatus::Running, Some(Found::Done { .. })) => format!(
            "the command of step {name} is with a worker: its result says whether it was done; wait for it, or skip the step as not_done"
        ),
        (StepStatus::Stuck, None) => format!(
            "the outcome of step {name} is unknown: say whether there is something to undo, as done or as not_done"
        ),
        (StepStatus::BackingOff, None) if state.tries.unknown => format!(
            "the outcome of an earlier attempt of step {name} is unknown: say whether there is something to undo, as done or as not_done"
        ),
        (StepStatus::Waiting, Some(_)) if step.waits_alone() => {
            format!("step {name} only waits, so there is nothing that was done: leave out `as`")
        }
        (StepStatus::Waiting, Some(Found::NotDone)) => {
            format!("step {name} has done its action and waits: that stays on the ledger; leave out `as`")
        }
        (_, Some(Found::Done { result }))
            if state.status != StepStatus::Waiting
                && result == NOTHING
                && undo.is_some_and(|undo| undo.reads(Root::Result)) =>
        {
            format!("what undoes step {name} reads its result: give the result")
        }
        (_, Some(Found::Done { .. }))
            if state.status != StepStatus::Waiting
                && state.sent.is_none()
                && undo.is_some_and(|undo| undo.reads(Root::Input)) =>
        {
            format!("what undoes step {name} reads its input, and nothing was sent yet")
        }
        _ => return Ok(()),
    };
    Err(refused(problem))
}

/// Result of a step that was done, where nobody says what it gave.
pub(crate) const NOTHING: &str = "null";

fn check_result(
    definition: &Definition,
    slot: Slot,
    decision: &StuckDecision,
    limits: &Limits,
) -> Result<(), Unfit> {
    let Some(result) = &decision.result else {
        return Ok(());
    };
    let result = Json::parse(result.as_bytes(), limits.json_depth)
        .map_err(|error| Unfit::Result(format!("result: {error}")))?;
    let output = effect_of(definition, slot).and_then(|effect| output_of(definition, effect));
    output.map_or(Ok(()), |output| {
        let checked = output.check(&result);
        checked.map_err(|violation| Unfit::Result(format!("result {violation}")))
    })
}

/// Skips the step; the caller has looked for an obstacle.
fn skip<'a>(run: &mut Run<'a>, decision: &'a StuckDecision) -> Result<(), Rejection> {
    let (definition, limits) = (run.ground.definition, run.ground.context.limits);
    let Ok(slot) = target(definition, &run.record, decision, limits) else {
        return Ok(());
    };
    let step = slot.step(run);
    run.note(Note::StuckDecided {
        step: step.name.clone(),
        verdict: decision.verdict.as_str().to_owned(),
        by: decision.by.clone(),
        reason: decision.reason.clone(),
    });
    let before = run.focus(Some(slot));
    let acted = run.slot(slot).status == StepStatus::Waiting;
    match &decision.found {
        Some(Found::Done { result }) if !acted => happened(run, slot, result.as_bytes()),
        Some(Found::NotDone) => run.slot_mut(slot).tries.unknown = false,
        Some(Found::Done { .. }) | None => {}
    }
    ends::leave(run, slot, StepStatus::Skipped);
    run.note(Note::StepSkipped {
        step: step.name.clone(),
    });
    if let Some(result) = &decision.result {
        ends::given(run, slot, result.as_bytes())?;
    }
    run.focus(before);
    Ok(())
}

/// It has been done, and is on the ledger as after a success.
fn happened(run: &mut Run<'_>, slot: Slot, result: &[u8]) {
    let state = run.slot_mut(slot);
    state.tries.unknown = false;
    state.tries.has_failed = false;
    let (iteration, round) = (state.iteration, state.tries.round);
    let input = state.sent.as_ref().map(|sent| sent.payload.clone());
    doubts::clear(run, slot, iteration, round);
    entries::push(run, slot, input, result);
}
