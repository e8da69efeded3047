//! Steps that are stuck: the outcome of their action is unknown, and their effect says that an operator is
//! asked then (`on_ambiguous: ask`).
//!
//! ```text
//! running ──outcome unknown──▶ stuck ──done; its result or what the step waits for comes──▶ as after a success
//!    ▲                           │  │
//!    └───────retry, same key─────┘  └──not done; its failure comes──▶ as after a failure: retry, on_error
//! ```
//!
//! Nothing is tried again meanwhile. Deadlines run on, and whatever gives the step up gives the question up with
//! it: the outcome is unknown then as it is without a question.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Action, COMMAND_TIMEOUT_MS};
use saga_runner_language::ids::CommandId;
use saga_runner_language::json::Json;
use saga_runner_language::limits::Limits;

use super::attempts::Ending;
use super::attempts::{self, NO_RESULT};
use super::emission::Repetition;
use super::ends::{self, Defeat};
use super::place::Place;
use super::results::{Told, effect_of, output_of};
use super::run::Run;
use super::slot::Slot;
use super::{Rejection, TIMEOUT_CLASS, waits};
use crate::input::{Found, StuckDecision, UnknownClass, Verdict, WorkOutcome, WorkResult};
use crate::outcome::RESULT_SCHEMA;
use crate::patch::Note;
use crate::record::{Question, Record, StepState, StepStatus};
use crate::work::WorkKind;

/// Fact that asks operators whether a step has happened.
pub(super) const STEP_ASKED_FACT: &str = "saga.step_asked";
/// Longest reason that is kept with a question, in bytes.
const MESSAGE_BYTES_MAX: usize = 1_024;

/// Whether an operator is asked about an unknown outcome of the action.
pub(super) fn asks(definition: &Definition, action: &Action) -> bool {
    let Action::Effect { effect, .. } = action else {
        return false;
    };
    definition
        .effects
        .get(effect)
        .is_some_and(|contract| contract.asks)
}

/// The outcome of `command` is unknown: the step is stuck until an operator states it.
pub(super) fn ask(
    run: &mut Run<'_>,
    slot: Slot,
    command: CommandId,
    class: UnknownClass,
    message: &str,
) -> Result<(), Rejection> {
    let step = slot.step(run);
    let since = run.record.updated;
    let idempotency_key = attempts::idempotency_key(run, slot);
    let state = run.slot_mut(slot);
    state.question = Some(Box::new(Question {
        command,
        idempotency_key,
        message: short(message),
        since,
        doubted: state.tries.unknown,
    }));
    state.tries.end(Ending::Unknown);
    state.status = StepStatus::Stuck;
    state.error = Some(class.as_str().to_owned());
    run.note(Note::StepAsked {
        step: step.name.clone(),
    });
    let payload = match slot.item {
        None => serde_json::json!({"step": step.name}),
        Some(item) => serde_json::json!({"item": item, "step": step.name}),
    };
    let kind = WorkKind::Fact {
        fact_type: STEP_ASKED_FACT.to_owned(),
        payload: payload.to_string().into(),
    };
    let path = format!("{}.asked", Place::Step { name: &step.name });
    let repetition = Repetition {
        item: slot.item.unwrap_or(0),
        ..Repetition::once(run.record.version)
    };
    run.note(Note::Emitted { work: path.clone() });
    run.push_work(path, repetition, COMMAND_TIMEOUT_MS, kind)?;
    Ok(())
}

/// The step that is stuck because of the command of `result`, where that answers the question.
pub(super) fn waiting(record: &Record, result: &WorkResult) -> Option<Slot> {
    let is_meant = |question: &Question| question.is_answered_by(result);
    let (slot, _) = Slot::all(record).find(|(_, state)| state.question.as_deref().is_some_and(is_meant))?;
    Some(slot)
}

/// The reason as it is kept with a question.
pub(super) fn short(message: &str) -> String {
    message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)].to_owned()
}

impl Question {
    /// Whether the result is that of its command, and says more than that the outcome is unknown.
    pub(super) fn is_answered_by(&self, result: &WorkResult) -> bool {
        self.command == result.command_id && !matches!(result.outcome, WorkOutcome::TimedOut { .. })
    }
}

/// The result that nobody expected any more has come, and says more than an operator could.
pub(super) fn answer_by_result<'a>(
    run: &mut Run<'a>,
    slot: Slot,
    told: Told<'a, '_>,
) -> Result<(), Rejection> {
    let (class, message) = match told.outcome {
        WorkOutcome::Succeeded { payload } | WorkOutcome::Unusable { payload, .. } => {
            return done(run, slot, payload, told.flaw);
        }
        WorkOutcome::Failed { class, message, .. } => (class, message),
        WorkOutcome::TimedOut { .. } => return Ok(()),
    };
    let before = run.focus(Some(slot));
    let state = run.slot_mut(slot);
    // It says nothing about attempts before.
    state.tries.unknown = state.question.take().is_some_and(|question| question.doubted);
    state.tries.end(Ending::of(told.outcome));
    attempts::defeated(run, slot, Defeat { class, message }, Ending::of(told.outcome))?;
    run.focus(before);
    Ok(())
}

/// Something that a step waits for has come. Where its result is not read, that is proof enough that the action
/// has happened.
pub(super) fn answer_by_proof(run: &mut Run<'_>) -> Result<(), Rejection> {
    for slot in stuck(&run.record).collect::<Vec<_>>() {
        if is_stuck(run, slot) && !ends::reads_result(slot.step(run)) {
            let before = run.focus(Some(slot));
            let is_proved = waits::buffered(run, slot)?.is_some();
            run.focus(before);
            if is_proved {
                done(run, slot, NO_RESULT, None)?;
            }
        }
    }
    Ok(())
}

/// Whether an operator is asked about a step.
pub(super) fn any(record: &Record) -> bool {
    stuck(record).next().is_some()
}

/// Whether there is a step that is stuck and of which an operator speaks.
pub(super) fn concerns(definition: &Definition, record: &Record, decision: &StuckDecision) -> bool {
    !meant(definition, record, decision).is_empty()
}

/// Sends the work of every step that is stuck once more.
pub(super) fn retry_all(run: &mut Run<'_>) -> Result<(), Rejection> {
    for slot in stuck(&run.record).collect::<Vec<_>>() {
        again(run, slot)?;
    }
    Ok(())
}

/// Does what an operator says about steps that are stuck.
pub(super) fn decide<'a>(run: &mut Run<'a>, decision: &'a StuckDecision) -> Result<(), Rejection> {
    let (definition, limits) = (run.ground.definition, run.ground.context.limits);
    if let Err(Unfit::Result(message)) = check_answer(definition, &run.record, decision, limits) {
        let reason = RESULT_SCHEMA;
        return Err(Rejection { reason, message });
    }
    for slot in meant(definition, &run.record, decision) {
        // What was said about another one may have given it up.
        if !is_stuck(run, slot) {
            continue;
        }
        let said = decision.found.as_ref().map_or("retry", Found::as_str);
        run.note(Note::StuckDecided {
            step: slot.step(run).name.clone(),
            verdict: said.to_owned(),
            by: decision.by.clone(),
            reason: decision.reason.clone(),
        });
        match &decision.found {
            None => again(run, slot)?,
            Some(Found::Done { result }) => done(run, slot, result.as_bytes(), None)?,
            Some(Found::NotDone) => not_done(run, slot)?,
        }
    }
    Ok(())
}

/// Steps that are stuck and of which an operator speaks. Only `retry` says enough without what was found.
fn meant(definition: &Definition, record: &Record, decision: &StuckDecision) -> Vec<Slot> {
    let is_about_steps = match decision.verdict {
        Verdict::Retry => decision.found.is_none(),
        Verdict::Resolve => decision.found.is_some(),
        Verdict::Skip => false,
    };
    if !is_about_steps {
        return Vec::new();
    }
    let is_named = |slot: &Slot| {
        let step = definition.steps.get(usize::from(slot.step));
        let name = decision.step.as_ref();
        step.is_some_and(|step| name.is_none_or(|name| step.is_named(name)))
            && decision.item.is_none_or(|item| slot.item == Some(item))
    };
    stuck(record).filter(is_named).collect()
}

fn stuck(record: &Record) -> impl Iterator<Item = Slot> {
    let is_stuck = |(_, state): &(Slot, &StepState)| state.status == StepStatus::Stuck;
    Slot::all(record).filter(is_stuck).map(|(slot, _)| slot)
}

fn is_stuck(run: &Run<'_>, slot: Slot) -> bool {
    run.has_slot(slot) && run.slot(slot).status == StepStatus::Stuck
}

/// It has happened, with this result.
fn done<'a>(
    run: &mut Run<'a>,
    slot: Slot,
    result: &'a [u8],
    flaw: Option<Defeat<'_>>,
) -> Result<(), Rejection> {
    let before = run.focus(Some(slot));
    run.slot_mut(slot).question = None;
    match flaw {
        None => ends::acted(run, slot, result)?,
        Some(flaw) => ends::unusable(run, slot, result, flaw)?,
    }
    run.focus(before);
    Ok(())
}

/// It has not happened: no attempt so far has, since all have one key.
fn not_done(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    let before = run.focus(Some(slot));
    let state = run.slot_mut(slot);
    let question = state.question.take();
    state.tries.unknown = false;
    state.tries.end(Ending::NotDone);
    let message = question.map_or_else(String::new, |question| question.message);
    let defeat = Defeat {
        class: TIMEOUT_CLASS,
        message: &message,
    };
    attempts::defeated(run, slot, defeat, Ending::NotDone)?;
    run.focus(before);
    Ok(())
}

/// It is sent again, under the key that it had.
fn again(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    let before = run.focus(Some(slot));
    run.slot_mut(slot).question = None;
    attempts::send_again(run, slot)?;
    run.focus(before);
    Ok(())
}

/// Holds what an operator says against the steps of which he speaks: they have to be stuck, and a result has to be as their
/// effects give it, since it would not be applied.
///
/// # Errors
/// What is wrong with it.
pub fn check_answer(
    definition: &Definition,
    record: &Record,
    decision: &StuckDecision,
    limits: &Limits,
) -> Result<(), Unfit> {
    let meant = meant(definition, record, decision);
    if meant.is_empty() {
        return Err(Unfit::NotStuck);
    }
    let Some(Found::Done { result }) = &decision.found else {
        return Ok(());
    };
    let result = Json::parse(result.as_bytes(), limits.json_depth)
        .map_err(|error| Unfit::Result(format!("result: {error}")))?;
    meant.into_iter().try_for_each(|slot| {
        let output = effect_of(definition, slot).and_then(|effect| output_of(definition, effect));
        output.map_or(Ok(()), |output| {
            let checked = output.check(&result);
            checked.map_err(|violation| Unfit::Result(format!("result {violation}")))
        })
    })
}

/// Why an answer cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// Nothing that it names is stuck, or in progress where it is to be skipped.
    NotStuck,
    /// It may not be done as things are, as this sentence says.
    Refused(String),
    /// The result is not what the effect gives.
    Result(String),
}
