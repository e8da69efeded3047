//! Warns of what would stay done: a step that nothing undoes, and after which the instance may fail.
//!
//! Only failures of steps count. Handlers, timers and operators may end an instance at any time, and a warning that
//! no order of steps could fix would say nothing.

use std::collections::BTreeSet;

use super::codes;
use super::findings::Findings;
use super::groups::{self, Outlined};
use super::loops::{EXHAUSTED, JOIN_UNREACHABLE, TOO_MANY_FAILED};
use super::model::{
    ANY_CLASS, Action, DEADLINE, FAIL_IF_CLASS, Group, ItemJoin, Join, OnError, OnItemError, Step, Then,
};
use super::saga::member;
use crate::classes::TIMEOUT_CLASS;

/// Names of the effects that change something outside.
pub type Acting = BTreeSet<String>;

/// `before` tells whether the second step is certainly over before the first begins.
pub fn check(
    steps: &[Step],
    outline: &[Outlined<'_, '_>],
    acting: &Acting,
    before: impl Fn(usize, usize) -> bool,
    findings: &mut Findings<'_>,
) {
    let says = |index: usize| member(&outline[index].entry.value, "compensate").is_some();
    let failing: Vec<usize> = (0..steps.len())
        .filter(|index| may_fail(steps, *index, Part::Whole))
        .collect();
    let left: Vec<(usize, Cause)> = (0..steps.len())
        .filter(|index| !says(*index) && acts(&steps[*index], acting))
        .filter_map(|index| Some((index, cause(steps, index, &failing, &before)?)))
        .collect();
    // An author who undoes nothing is asked once; one who undoes something may have forgotten a step.
    let told = if (0..steps.len()).any(says) { left.len() } else { 1 };
    for (index, cause) in left.iter().take(told) {
        let title = steps[*index].title();
        let when = match cause {
            Cause::Other(other) if steps[*other].title() == title => "the loop around it fails".to_owned(),
            Cause::Other(other) => format!("\"{}\" fails", steps[*other].title()),
            Cause::AnotherRound => "another turn or item of it fails".to_owned(),
            Cause::Afterwards => "it fails after it has acted".to_owned(),
        };
        let others = match left.len() - told {
            0 => "",
            _ => ", and so do others, since this saga undoes nothing",
        };
        let message = format!("what \"{title}\" has done stays done when {when}{others}");
        findings
            .warning(
                codes::UNCOMPENSATED,
                outline[*index].entry.key_span.clone(),
                message,
            )
            .help(Some(
                "say under \"compensate\" how it is undone, or \"compensate: none\" if it may stay done"
                    .to_owned(),
            ));
    }
}

/// Why an instance may fail when a step has acted.
enum Cause {
    Other(usize),
    AnotherRound,
    Afterwards,
}

fn cause(
    steps: &[Step],
    index: usize,
    failing: &[usize],
    before: impl Fn(usize, usize) -> bool,
) -> Option<Cause> {
    if repeats(steps, index, index) && failing.contains(&index) {
        return Some(Cause::AnotherRound);
    }
    let is_later = |other: &&usize| {
        let apart = || before(index, **other) || groups::exclude_each_other(steps, index, **other);
        **other != index && (repeats(steps, **other, index) || !apart())
    };
    // One that comes after it says more than one that runs beside it.
    let after = failing.iter().find(|other| before(**other, index));
    if let Some(other) = after.or_else(|| failing.iter().find(is_later)) {
        return Some(Cause::Other(*other));
    }
    may_fail(steps, index, Part::AfterAction).then_some(Cause::Afterwards)
}

/// Whether the step changes something outside.
fn acts(step: &Step, acting: &Acting) -> bool {
    match &step.action {
        Action::Effect { effect, .. } => acting.contains(effect.as_str()),
        Action::Command(_) | Action::Saga(_) => true,
        Action::Publish(_) | Action::UndoSaga(_) | Action::Nothing | Action::Decide(_) | Action::Group(_) => {
            false
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// What comes when the action has succeeded.
    AfterAction,
}

/// Whether the instance may fail because the step does.
fn may_fail(steps: &[Step], index: usize, part: Part) -> bool {
    let step = &steps[index];
    let any = part == Part::Whole
        && matches!(
            step.action,
            Action::Effect { .. } | Action::Command(_) | Action::Saga(_)
        );
    if let Action::Decide(decision) = &step.action
        && part == Part::Whole
        && (decision.fail.is_some() || decision.cancel.is_some())
    {
        return true;
    }
    let called_back = step.is_called_back();
    let mut end = if any || called_back {
        answers(step)
    } else {
        End::Well
    };
    for class in classes(step, part) {
        end = end.max(answered(step, class));
    }
    match end {
        End::Well => false,
        End::Unanswered => reaches_instance(steps, index),
        End::Failure => true,
    }
}

/// Error classes of a step other than those of its action and of the party that calls back.
fn classes(step: &Step, part: Part) -> Vec<&'static str> {
    let mut classes = Vec::new();
    if step.wait.as_ref().is_some_and(|wait| wait.timeout.is_some()) {
        classes.push(TIMEOUT_CLASS);
    }
    if step.fail_if.is_some() {
        classes.push(FAIL_IF_CLASS);
    }
    if step.deadline.is_some() && (part == Part::Whole || step.wait.is_some()) {
        classes.push(DEADLINE);
    }
    let some_suffice = matches!(step.join, Join::AtLeast { .. });
    match &step.action {
        Action::Group(Group::Foreach(foreach)) => {
            if let ItemJoin::AtLeast(_) = foreach.join {
                classes.push(JOIN_UNREACHABLE);
            }
            if foreach.tolerate.is_some() {
                classes.push(TOO_MANY_FAILED);
            }
        }
        Action::Group(Group::Repeat(_)) => classes.push(EXHAUSTED),
        _ if some_suffice && part == Part::Whole => classes.push(JOIN_UNREACHABLE),
        _ => {}
    }
    classes
}

/// What follows a failure, the worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The instance goes on, or completes.
    Well,
    /// What is around the step decides.
    Unanswered,
    /// The instance fails.
    Failure,
}

/// What follows a failure of any class.
fn answers(step: &Step) -> End {
    let listed = step.on_error.keys().map(String::as_str);
    let ends = listed.chain([ANY_CLASS]).map(|class| answered(step, class));
    ends.max().unwrap_or(End::Unanswered)
}

/// What follows a failure of `class`, whichever answer holds.
fn answered(step: &Step, class: &str) -> End {
    let mut end = End::Well;
    for (_, _, answer) in step.answers(class) {
        end = end.max(follows(answer));
        if answer.when.is_none() {
            return end;
        }
    }
    end.max(End::Unanswered)
}

fn follows(answer: &OnError) -> End {
    let completes = answer
        .complete
        .as_ref()
        .is_some_and(|complete| complete.when.is_none());
    match answer.then {
        _ if completes => End::Well,
        Then::Continue => End::Well,
        Then::Fail(None) => End::Unanswered,
        // What it goes back to may fail.
        Then::Fail(Some(_)) | Then::GoTo(_) | Then::Cancel(_) => End::Failure,
    }
}

/// Whether a failure that the step does not answer is one of the instance: neither do joins go on without it, nor
/// does a loop over a list bear it.
fn reaches_instance(steps: &[Step], index: usize) -> bool {
    let mut at = index;
    while !Step::is_spare(steps, at) {
        let Some(around) = steps[at].within.map(usize::from) else {
            return true;
        };
        if let Action::Group(Group::Foreach(foreach)) = &steps[around].action {
            if foreach.on_item_error != OnItemError::Fail {
                return false;
            }
            match answers(&steps[around]) {
                End::Well => return false,
                End::Unanswered => {}
                End::Failure => return true,
            }
        }
        at = around;
    }
    false
}

/// Whether there is a loop around both steps, so that one runs again when the other is done.
fn repeats(steps: &[Step], left: usize, right: usize) -> bool {
    let is_loop = |group: &usize| {
        matches!(
            steps[*group].action,
            Action::Group(Group::Foreach(_) | Group::Repeat(_))
        )
    };
    around(steps, left)
        .filter(is_loop)
        .any(|group| around(steps, right).any(|other| other == group))
}

/// Indices of the groups around a step.
fn around(steps: &[Step], index: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(steps[index].within, |group| steps[usize::from(*group)].within).map(usize::from)
}
