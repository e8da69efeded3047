//! A start in place of an instance that runs: the one that runs is killed, and the next generation of its key begins, both or none.
//!
//! A kill undoes nothing. So the next generation would do once more what the one before did, or may have done. That is refused: no
//! step may have done anything outside that was not undone, whether or not it could be, and nothing may be under way. Whoever needs
//! the key all the same cancels the instance, which undoes what it did, or kills it and says with a retry the outcome of its steps.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Action, Step};
use saga_runner_language::ids::InstanceId;

use super::arena::Arena;
use super::run::{Ground, Run};
use super::{Context, Rejection, Trace, check_definition, operations, requests, rerun, seen};
use crate::input::{Control, Input, InputBody, OnConflict};
use crate::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::record::{Record, Summary};

/// What the history calls the end of the instance that was replaced.
const TERMINATE: &str = "terminate";

/// What comes of such a start.
#[derive(Debug, Clone, PartialEq)]
pub enum Replacement {
    /// Nothing of it: the instance stays as it is.
    Stays(Box<Patch>),
    /// The end of the one that ran, and the beginning of the next generation, which are stored together.
    Replaced { ended: Box<Patch>, begun: Box<Patch> },
}

/// Whether an input asks for that, should its instance run.
#[must_use]
pub const fn replaces(input: &Input) -> bool {
    matches!(
        &input.body,
        InputBody::Control(Control::Start {
            on_conflict: OnConflict::TerminateExisting { .. },
            parent: None,
            ..
        })
    )
}

/// Applies a start that replaces to an instance that runs. `active` is the version that new instances get, `own` that of the record;
/// `next` is for the generation that begins.
///
/// # Errors
/// As [`super::apply`]; nothing has changed then.
pub fn replace(
    active: &Definition,
    own: &Definition,
    instance: &InstanceId,
    record: &Record,
    input: &Input,
    [context, next]: [&Context<'_>; 2],
    trace: Option<&dyn Trace>,
) -> Result<Replacement, Rejection> {
    let InputBody::Control(Control::Start {
        input: given,
        on_conflict: OnConflict::TerminateExisting { by, reason },
        ..
    }) = &input.body
    else {
        return Ok(Replacement::Stays(Box::new(Patch::ignored(IgnoreReason::Exists))));
    };
    if let Some(known) = requests::repeated(record, input) {
        return Ok(Replacement::Stays(Box::new(Patch::ignored(known))));
    }
    check_definition(own, record)?;
    let (texts, values) = (Arena::default(), Arena::default());
    let ground = Ground {
        definition: own,
        instance,
        before: Some(record),
        last: None,
        input,
        context,
        texts: &texts,
        values: &values,
        trace,
    };
    let mut run = Run::of(ground, record);
    seen::remember_event(&mut run.record, seen::control(input));
    run.note(Note::Operated {
        verb: TERMINATE.to_owned(),
        by: by.clone(),
        reason: reason.clone(),
    });
    operations::kill(&mut run, reason)?;
    let ended = run.finish(Outcome::Applied)?;
    let Some(Summary { record: last, .. }) = &ended.ended else {
        return Ok(refused("something of it cannot be ended at once".to_owned()));
    };
    if let Some(obstacle) = obstacle(own, record, last) {
        return Ok(refused(obstacle));
    }
    let (texts, values) = (Arena::default(), Arena::default());
    let ground = Ground {
        definition: active,
        instance,
        before: None,
        last: Some(last),
        input,
        context: next,
        texts: &texts,
        values: &values,
        trace,
    };
    let begun = requests::start(ground, given, None)?;
    Ok(Replacement::Replaced {
        ended: Box::new(ended),
        begun: Box::new(begun),
    })
}

fn refused(message: String) -> Replacement {
    Replacement::Stays(Box::new(Patch {
        notes: vec![Note::Refused { message }],
        ..Patch::ignored(IgnoreReason::Refused)
    }))
}

/// Why the instance is not replaced, if that is so; `last` is its record as the kill would leave it.
fn obstacle(definition: &Definition, record: &Record, last: &Record) -> Option<String> {
    if let Some(parent) = &record.parent {
        return Some(format!(
            "instance {} of saga {} has started it and waits for it or may undo it: cancel that one",
            parent.key, parent.saga
        ));
    }
    if definition.program.is_some() {
        return Some(
            "its saga has a program, which does not say what of it is done: cancel it, or kill it, and start again then"
                .to_owned(),
        );
    }
    let standing = standing(definition, last);
    (!standing.is_empty()).then(|| {
        format!(
            "what {} did, or may have done, would stay done and be done once more: cancel the instance, which undoes what it can, and \
             start again when it has ended",
            standing.join(", ")
        )
    })
}

/// The steps that did something outside, or may have, which was not undone. What a beginning without anything kept asks for is not
/// enough: here nobody has seen how the instance failed.
fn standing<'d>(definition: &'d Definition, last: &Record) -> Vec<&'d str> {
    let entries = rerun::of_ledger(last);
    let acts = |index: u16, step: &Step| {
        let is_outside = match &step.action {
            Action::Effect { .. } | Action::Command(_) | Action::Saga(_) => true,
            Action::Publish(_)
            | Action::UndoSaga(_)
            | Action::Nothing
            | Action::Decide(_)
            | Action::Group(_) => false,
        };
        last.off_ledger.contains(&index) || (is_outside && rerun::stays(last, &entries, index))
    };
    let unfinished = rerun::standing(definition, last);
    let steps = (0..=u16::MAX).zip(&definition.steps);
    let standing =
        steps.filter(|(index, step)| unfinished.contains(&step.name.as_str()) || acts(*index, step));
    standing.map(|(_, step)| step.name.as_str()).collect()
}
