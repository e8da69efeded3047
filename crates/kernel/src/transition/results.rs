//! Results of commands: of steps, of strays, of compensations, of programs, of nobody.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::Action;
use saga_runner_language::ids::EffectName;
use saga_runner_language::json::Json;
use saga_runner_language::schema::Schema;

use super::ends::Defeat;
use super::failure::{self, Cause};
use super::run::{Ground, Run};
use super::slot::Slot;
use super::{Rejection, attempts, compensation, doubts, ends, program, questions, seen};
use crate::input::{WorkOutcome, WorkResult};
use crate::outcome::{RESULT_EXPRESSION, RESULT_SCHEMA};
use crate::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::record::{Outstanding, Record, StepStatus};

/// What waits for a result.
#[derive(Debug, Clone, Copy)]
pub(super) enum Waiting {
    Step(Slot),
    /// A step that is stuck.
    Question(Slot),
    /// Index into the ledger.
    Compensation(usize),
    /// Index into the strays.
    Stray(usize),
    /// Index into the pending work of the program.
    Program(usize),
    /// Index into the commands of unknown outcome.
    Doubt(usize),
}

/// Finds what waits for a result.
pub(super) fn waiting(record: &Record, result: &WorkResult) -> Option<Waiting> {
    let command = result.command_id;
    let is = |outstanding: &Outstanding| outstanding.command == command;
    let step = Slot::all(record).find(|(_, state)| state.outstanding.as_ref().is_some_and(is));
    if let Some((slot, _)) = step {
        return Some(Waiting::Step(slot));
    }
    let stray = record.strays.iter().position(|stray| is(&stray.outstanding));
    stray
        .map(Waiting::Stray)
        .or_else(|| compensation::waiting(record, is).map(Waiting::Compensation))
        .or_else(|| program::waiting(record, |pending| is(&pending.outstanding)).map(Waiting::Program))
        .or_else(|| questions::waiting(record, result).map(Waiting::Question))
        .or_else(|| compensation::asked(record, result).map(Waiting::Compensation))
        .or_else(|| doubts::waiting(record, result).map(Waiting::Doubt))
}

/// A result for which no part of the instance waits: the second one for a command, or one for nothing.
pub(super) fn without_step(record: &Record, result: &WorkResult) -> Patch {
    match seen::result(result).and_then(|seen| seen::find_result(record, seen)) {
        Some(reason) => Patch::ignored(reason),
        None => orphan(result),
    }
}

/// A result of nothing that this instance awaits. The refusal of a command without a step is worth a note.
pub(super) fn orphan(result: &WorkResult) -> Patch {
    let mut patch = Patch::ignored(IgnoreReason::Orphan);
    if let (None, WorkOutcome::Failed { class, .. }) = (&result.effect, &result.outcome) {
        patch.notes.push(Note::CommandRefused {
            command: result.command_id.to_string(),
            class: class.clone(),
        });
    }
    patch
}

/// A result as it is applied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told<'a, 'f> {
    pub outcome: &'a WorkOutcome,
    /// Why a success counts as the failure of its step.
    pub flaw: Option<Defeat<'f>>,
}

/// How much a transition leaves out, so that a result never stands in the way of its instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Whole,
    /// The instance fails, whatever `on_error` says, and entries of `finally` that cannot be evaluated are left out.
    Failing,
    /// Nor does the ledger keep the result.
    FailingWithoutResult,
}

/// Takes a result. Where it cannot be applied as what it is, it is applied as a failure of its step; where what
/// follows that failure cannot be done either, the instance fails. An event that cannot be applied waits for an
/// operator instead, but behind a result there is work that was done: it must reach the ledger.
pub(super) fn take<'a>(
    ground: Ground<'a>,
    record: &'a Record,
    result: &'a WorkResult,
    waiting: Waiting,
) -> Result<Patch, Rejection> {
    let (mut flaw, parsed) = judge(ground, waiting, result);
    let attempt = |flaw: Option<&Flaw>, mode| {
        let mut run = Run::of(ground, record);
        run.parsed.result = parsed;
        run.mode = mode;
        if let Some(seen) = seen::result(result) {
            seen::remember_result(&mut run.record, seen);
        }
        let told = Told {
            outcome: &result.outcome,
            flaw: flaw.map(Flaw::defeat),
        };
        apply(&mut run, waiting, told)?;
        run.conclude(Outcome::Applied)
    };
    let mut rejection = match attempt(flaw.as_ref(), Mode::Whole) {
        Err(rejection) if rejection.is_of_content() => rejection,
        settled => return settled,
    };
    if flaw.is_none() && result.outcome.has_happened() {
        flaw = Some(Flaw {
            class: RESULT_EXPRESSION.to_owned(),
            message: rejection.message.clone(),
        });
        match attempt(flaw.as_ref(), Mode::Whole) {
            Err(next) if next.is_of_content() => rejection = next,
            settled => return settled,
        }
    }
    // What has not happened fails with its own class; the instance fails because of this.
    let flaw = flaw.unwrap_or_else(|| Flaw {
        class: RESULT_EXPRESSION.to_owned(),
        message: rejection.message,
    });
    match attempt(Some(&flaw), Mode::Failing) {
        Err(next) if next.is_of_content() => attempt(Some(&flaw), Mode::FailingWithoutResult),
        settled => settled,
    }
}

/// What is wrong with a result.
#[derive(Debug)]
struct Flaw {
    class: String,
    message: String,
}

impl Flaw {
    fn defeat(&self) -> Defeat<'_> {
        Defeat {
            class: &self.class,
            message: &self.message,
        }
    }
}

type Parsed<'a> = Option<(&'a [u8], &'a Json<'a>)>;

/// Holds a success against what the effect gives. It is parsed for that once; expressions read the same value.
///
/// Only where something goes on with the result: what undoes a step has undone it, whatever it says.
fn judge<'a>(ground: Ground<'a>, waiting: Waiting, result: &'a WorkResult) -> (Option<Flaw>, Parsed<'a>) {
    let payload = match &result.outcome {
        WorkOutcome::Succeeded { payload } => payload,
        WorkOutcome::Unusable { class, message, .. } => {
            let flaw = Flaw {
                class: class.clone(),
                message: message.clone(),
            };
            return (Some(flaw), None);
        }
        WorkOutcome::Failed { .. } | WorkOutcome::TimedOut { .. } => return (None, None),
    };
    let Some(output) = output(ground, result, waiting) else {
        return (None, None);
    };
    let told = |message: String| {
        Some(Flaw {
            class: RESULT_SCHEMA.to_owned(),
            message,
        })
    };
    match Json::parse(payload, ground.context.limits.json_depth) {
        Err(error) => (told(format!("the result: {error}")), None),
        Ok(value) => match output.check(&value) {
            Err(violation) => (told(format!("the result {violation}")), None),
            Ok(()) => (None, Some((payload, ground.values.keep(value)))),
        },
    }
}

/// The schema of what is waited for.
fn output<'a>(ground: Ground<'a>, result: &WorkResult, waiting: Waiting) -> Option<&'a Schema> {
    let definition = ground.definition;
    let effect = match waiting {
        Waiting::Step(slot) | Waiting::Question(slot) => effect_of(definition, slot)?,
        Waiting::Doubt(at) => effect_of(definition, ground.before?.doubts.get(at)?.slot())?,
        Waiting::Program(_) => result.effect.as_ref()?,
        Waiting::Compensation(_) | Waiting::Stray(_) => return None,
    };
    output_of(definition, effect)
}

/// The effect of a step.
pub(super) fn effect_of(definition: &Definition, slot: Slot) -> Option<&EffectName> {
    match &definition.steps.get(usize::from(slot.step))?.action {
        Action::Effect { effect, .. } => Some(effect),
        Action::Command(_)
        | Action::Publish(_)
        | Action::Saga(_)
        | Action::UndoSaga(_)
        | Action::Nothing
        | Action::Decide(_)
        | Action::Group(_) => None,
    }
}

/// The schema of what an effect gives, where it has one.
pub(super) fn output_of<'d>(definition: &'d Definition, effect: &EffectName) -> Option<&'d Schema> {
    let contract = definition.effects.get(effect)?;
    contract.output.as_ref().map(|output| &*output.schema)
}

/// Applies a result to what waits for it.
fn apply<'a>(run: &mut Run<'a>, waiting: Waiting, told: Told<'a, '_>) -> Result<(), Rejection> {
    let outcome = told.outcome;
    match waiting {
        Waiting::Compensation(at) => {
            let step = run.record.ledger.entry(at).step;
            compensation::result(run, at, outcome)?;
            give_up(run, step, told)
        }
        Waiting::Stray(at) => {
            let step = run.record.strays[at].step;
            ends::late(run, at, outcome)?;
            give_up(run, step, told)
        }
        Waiting::Program(at) => program::ended(run, at, told),
        Waiting::Doubt(at) => {
            let step = run.record.doubts[at].step;
            doubts::succeeded(run, at, told)?;
            give_up(run, step, told)
        }
        Waiting::Question(slot) => questions::answer_by_result(run, slot, told),
        Waiting::Step(slot) => {
            let state = run.slot_mut(slot);
            if state.status != StepStatus::Running {
                return Err(slot.mismatch(run, "waits for a result and does not run"));
            }
            let Some(outstanding) = state.outstanding.take() else {
                return Err(slot.mismatch(run, "waits for no result"));
            };
            run.completed.push(outstanding.row);
            let before = run.focus(Some(slot));
            attempts::ended(run, slot, outstanding.command, told)?;
            run.focus(before);
            Ok(())
        }
    }
}

/// The instance fails because what follows a result cannot be done, though the result itself is welcome.
fn give_up(run: &mut Run<'_>, step: u16, told: Told<'_, '_>) -> Result<(), Rejection> {
    let (Some(flaw), true) = (told.flaw, run.is_failing()) else {
        return Ok(());
    };
    let step = run.ground.definition.steps[usize::from(step)].title();
    failure::fail(run, Cause::step(step, flaw.class, flaw.message))
}
