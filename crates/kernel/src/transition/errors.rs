//! What follows when a step has failed: `on_error`, and going back to an earlier step.

use std::borrow::Cow;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{OnError, Step, Then};
use saga_runner_language::json::Json;

use super::ends::{self, Defeat};
use super::failure::{self, Cause};
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, compensation, entries, groups};
use crate::patch::Note;
use crate::record::{StepState, StepStatus};

/// How often a step may begin again because something went back to it or before it.
pub(super) const RETURNS_MAX: u32 = 100;
/// How often one input may make an instance go back.
pub(super) const RETURNS_OF_INPUT_MAX: u8 = 16;
/// Code of an instance that went back too often.
const TOO_OFTEN: &str = "goto_limit";

/// Does what the step says about an error of this class. By default the instance fails.
pub(super) fn answer(run: &mut Run<'_>, slot: Slot, defeat: Defeat<'_>) -> Result<(), Rejection> {
    let step = slot.step(run);
    if !run.is_running() {
        // It was waited for, and nothing follows.
        return Ok(());
    }
    if run.is_failing() {
        return failure::fail(run, Cause::step(step.title(), defeat.class, defeat.message));
    }
    let owned = |text: &str| Json::Str(Cow::Owned(text.to_owned()));
    let locals = Locals {
        error: Some(run.ground.values.keep(Json::Map(vec![
            (Cow::Borrowed("class"), owned(defeat.class)),
            (Cow::Borrowed("message"), owned(defeat.message)),
        ]))),
        ..Locals::default()
    };
    let Some((place, answer)) = choose(run, step, defeat.class, locals)? else {
        return groups::failed(run, slot, defeat);
    };
    run.trace(place);
    run.set(&answer.set, locals, place)?;
    compensation::undo(run, slot, &answer.undo)?;
    if let Some(complete) = &answer.complete
        && run.complete(complete, locals, place)?
    {
        return Ok(());
    }
    match &answer.then {
        Then::Fail(None) => groups::failed(run, slot, defeat),
        Then::Fail(Some(fail)) => run.fail(fail, locals, place, Some(step.title())),
        Then::Cancel(cancel) => run.cancel(cancel, locals, place, Some(step.title())),
        Then::Continue => {
            run.slot_mut(slot).status = StepStatus::Done;
            entries::count_as_done(run, slot);
            groups::close(run, slot);
            run.note(Note::StepContinued {
                step: step.name.clone(),
                class: defeat.class.to_owned(),
            });
            Ok(())
        }
        Then::GoTo(target) => go_back(run, slot, slot.peer(run, *target)),
    }
}

/// The first answer that holds: of those to the class, then of those to any other.
fn choose<'a>(
    run: &mut Run<'a>,
    step: &'a Step,
    class: &str,
    locals: Locals<'a>,
) -> Result<Option<(Place<'a>, &'a OnError)>, Rejection> {
    for (class, index, answer) in step.answers(class) {
        let alone = step.on_error.get(class).is_some_and(|answers| answers.len() == 1);
        let place = Place::OnError {
            step: &step.name,
            class,
            index: (!alone).then_some(index),
        };
        let holds = match &answer.when {
            None => true,
            Some(when) => run.test(when, locals, || format!("{place}.when"))?,
        };
        if holds {
            return Ok(Some((place, answer)));
        }
    }
    Ok(None)
}

/// Lets `target` begin again, and all steps that need it.
fn go_back(run: &mut Run<'_>, from: Slot, target: Slot) -> Result<(), Rejection> {
    let name = &target.step(run).name;
    run.returns = run.returns.saturating_add(1);
    if run.slot(target).iteration >= RETURNS_MAX || run.returns > RETURNS_OF_INPUT_MAX {
        let message = format!("went back to step {name} too often");
        return failure::fail(run, Cause::step(from.step(run).title(), TOO_OFTEN, &message));
    }
    run.note(Note::WentBack { step: name.clone() });
    for slot in with_dependents(run.ground.definition, target) {
        if run.slot(slot).status.is_under_way() {
            groups::abandon(run, slot);
            ends::abandon(run, slot);
        }
        let state = run.slot_mut(slot);
        *state = StepState {
            iteration: state.iteration.saturating_add(1),
            since: state.since,
            ledger_before: state.ledger_before,
            ..StepState::pending()
        };
    }
    Ok(())
}

/// The step and all that need it, directly or not, with the groups that must choose again.
fn with_dependents(definition: &Definition, target: Slot) -> Vec<Slot> {
    let within = |step: u16| definition.steps[usize::from(step)].within;
    let around: Vec<u16> = std::iter::successors(within(target.step), |group| within(*group)).collect();
    let mut found = vec![target.step];
    loop {
        let before = found.len();
        for (index, step) in (0..=u16::MAX).zip(&definition.steps) {
            let needs = step.needs.iter().any(|need| found.contains(need));
            let nested = step.within.is_some_and(|group| found.contains(&group));
            let chooses = definition
                .group(index)
                .is_some_and(|group| group.members().any(|member| found.contains(&member)));
            let again = needs || nested || (chooses && !around.contains(&index));
            if again && !found.contains(&index) {
                found.push(index);
            }
        }
        if found.len() == before {
            found.sort_unstable();
            return found.into_iter().map(|step| Slot { step, ..target }).collect();
        }
    }
}
