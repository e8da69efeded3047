//! The canonical form of steps: what they do, wait for, and how they are undone.

use std::borrow::Cow;

use super::super::model::{
    Action, Awaited, Awaiting, Compensation, Count, Decision, Definition, Early, Group, ItemJoin, Join,
    OnError, OnExhausted, OnItemError, OnLate, OnUnknown, RepeatCondition, Step, StepRetry, Stragglers, Then,
    Tolerance, UndoRetry, Wait,
};
use super::{
    cancel, command, complete, delay, expression, fail, list, members, object, publish, step_name, template,
    text,
};
use crate::json::Json;
use crate::retry::RetryPolicy;

fn wait(wait: &Wait) -> Json<'_> {
    let mut alternatives = wait.any.iter().map(awaiting);
    let mut form = match (wait.is_list, alternatives.next()) {
        (false, Some(one)) => one,
        (_, first) => object([("any", list(first.into_iter().chain(alternatives)))]),
    };
    let early = match wait.early {
        Early::Keep => Json::Null,
        Early::Turn => text("turn"),
        Early::Ignore => text("ignore"),
    };
    let bounds = object([
        ("timeout", wait.timeout.as_ref().map_or(Json::Null, delay)),
        ("heartbeat", wait.heartbeat_ms.map_or(Json::Null, Json::Int)),
        ("early", early),
    ]);
    if let (Json::Map(members), Json::Map(bounds)) = (&mut form, bounds) {
        members.extend(bounds);
    }
    form
}

fn awaiting(awaiting: &Awaiting) -> Json<'_> {
    let (kind, what) = match &awaiting.on {
        Awaited::Event(event_type) => ("event", text(event_type)),
        Awaited::Signal(name) => ("signal", text(name)),
        Awaited::Callback => ("callback", Json::Bool(true)),
    };
    object([
        (kind, what),
        ("when", awaiting.when.as_ref().map_or(Json::Null, expression)),
        ("set", members(&awaiting.set)),
    ])
}

/// A unit of work, and the groups that hold some.
pub(super) fn step<'d>(step: &'d Step, definition: &'d Definition) -> Json<'d> {
    let needs = step.needs.iter().map(|need| step_name(definition, *need));
    let state = step.state.map_or(Json::Null, |state| Json::Int(i64::from(state)));
    let join = match &step.join {
        Join::All => Json::Null,
        Join::AtLeast { count, stragglers } => object([
            ("at_least", self::count(count)),
            ("cancel", Json::Bool(*stragglers == Stragglers::Cancel)),
        ]),
    };
    object([
        ("join", join),
        ("name", text(&step.name)),
        (
            "within",
            step.within
                .map_or(Json::Null, |group| step_name(definition, group)),
        ),
        ("needs", list(needs)),
        ("if", step.condition.as_ref().map_or(Json::Null, expression)),
        ("delay", step.delay.as_ref().map_or(Json::Null, delay)),
        ("action", action(&step.action)),
        ("wait", step.wait.as_ref().map_or(Json::Null, wait)),
        ("retry", list(step.retry.iter().map(step_retry))),
        ("on_error", on_errors(step, definition)),
        ("set", members(&step.set)),
        ("fail_if", step.fail_if.as_ref().map_or(Json::Null, expression)),
        ("alias", members(&step.aliases)),
        (
            "compensate",
            match &step.compensate {
                None if step.stays_done => text("none"),
                undoing => undoing.as_ref().map_or(Json::Null, compensation),
            },
        ),
        // Of an attempt. The form has the name that the key had before.
        ("deadline_ms", Json::Int(step.timeout_ms)),
        ("deadline", step.deadline.as_ref().map_or(Json::Null, delay)),
        ("state", state),
        ("at_end", Json::Bool(step.at_end)),
        ("emitted", Json::Bool(step.emitted)),
    ])
}

fn group(group: &Group) -> Json<'_> {
    match group {
        Group::Choice(branches) => {
            let branches = branches.iter().map(|branch| {
                object([
                    ("when", branch.when.as_ref().map_or(Json::Null, expression)),
                    ("from", Json::Int(i64::from(branch.steps.start))),
                    ("to", Json::Int(i64::from(branch.steps.end))),
                ])
            });
            object([("choice", list(branches))])
        }
        Group::Repeat(repeat) => {
            let (word, condition) = match &repeat.condition {
                RepeatCondition::Until(condition) => ("until", condition),
                RepeatCondition::While(condition) => ("while", condition),
            };
            let pause = repeat.pause.map_or(Json::Null, |pause| {
                object([
                    ("first_ms", whole(pause.first_ms)),
                    ("factor", Json::Double(pause.factor)),
                    ("max_ms", whole(pause.max_ms)),
                ])
            });
            object([
                ("repeat", text(word)),
                ("condition", expression(condition)),
                ("from", Json::Int(i64::from(repeat.steps.start))),
                ("to", Json::Int(i64::from(repeat.steps.end))),
                ("max", Json::Int(i64::from(repeat.max))),
                ("pause", pause),
            ])
        }
        Group::Foreach(foreach) => {
            let join = match &foreach.join {
                ItemJoin::All => Json::Null,
                ItemJoin::AtLeast(number) => count(number),
            };
            let tolerate = match &foreach.tolerate {
                None => Json::Null,
                Some(Tolerance::Items(number)) => count(number),
                Some(Tolerance::Percent(percent)) => object([("percent", Json::Int(i64::from(*percent)))]),
            };
            let on_item_error = match foreach.on_item_error {
                OnItemError::Fail => "fail",
                OnItemError::Continue => "continue",
                OnItemError::Collect => "collect",
            };
            object([
                ("foreach", expression(&foreach.over)),
                ("as", text(&foreach.item)),
                ("from", Json::Int(i64::from(foreach.steps.start))),
                ("to", Json::Int(i64::from(foreach.steps.end))),
                ("parallel", count(&foreach.parallel)),
                ("max", count(&foreach.max)),
                (
                    "chunk",
                    foreach
                        .chunk
                        .map_or(Json::Null, |size| Json::Int(i64::from(size))),
                ),
                ("at_least", join),
                ("tolerate", tolerate),
                ("let_run", Json::Bool(foreach.let_run)),
                ("on_item_error", text(on_item_error)),
            ])
        }
    }
}

fn count(count: &Count) -> Json<'_> {
    match count {
        Count::Fixed(number) => Json::Int(i64::from(*number)),
        Count::Computed(expr) => expression(expr),
    }
}

/// Steps by name.
fn names<'d>(steps: &[u16], definition: &'d Definition) -> Json<'d> {
    list(steps.iter().map(|index| step_name(definition, *index)))
}

fn on_errors<'d>(step: &'d Step, definition: &'d Definition) -> Json<'d> {
    let members = step.on_error.iter().map(|(class, answers)| {
        let mut forms = answers.iter().map(|answer| on_error(answer, definition));
        // One answer is a list of one.
        let form = match (forms.next(), answers.len()) {
            (Some(form), 1) => form,
            (first, _) => list(first.into_iter().chain(forms)),
        };
        (Cow::Borrowed(class.as_str()), form)
    });
    Json::Map(members.collect())
}

fn on_error<'d>(answer: &'d OnError, definition: &'d Definition) -> Json<'d> {
    let then = match &answer.then {
        Then::Fail(failure) => object([("fail", failure.as_ref().map_or(Json::Null, fail))]),
        Then::Continue => text("continue"),
        Then::Cancel(cancel) => object([("cancel", self::cancel(cancel))]),
        Then::GoTo(target) => object([("goto", step_name(definition, *target))]),
    };
    object([
        ("when", answer.when.as_ref().map_or(Json::Null, expression)),
        ("set", self::members(&answer.set)),
        ("undo", names(&answer.undo, definition)),
        ("complete", answer.complete.as_ref().map_or(Json::Null, complete)),
        ("then", then),
    ])
}

fn step_retry(table: &StepRetry) -> Json<'_> {
    object([
        ("errors", list(table.classes.iter().map(|class| text(class)))),
        ("named", Json::Bool(table.named)),
        ("policy", retry(&table.policy)),
    ])
}

fn action(action: &Action) -> Json<'_> {
    match action {
        Action::Effect { effect, with } => {
            object([("effect", text(effect.as_str())), ("with", template(with))])
        }
        Action::Command(template) => command(template),
        Action::Publish(template) => publish(template),
        Action::Saga(child) => object([
            ("saga", text(child.saga.as_str())),
            ("key", template(&child.key)),
            ("input", template(&child.input)),
            ("waits", Json::Bool(child.waits)),
        ]),
        Action::UndoSaga(saga) => object([("undo_saga", text(saga.as_str()))]),
        Action::Nothing => Json::Null,
        Action::Decide(decision) => object([("decide", self::decision(decision))]),
        Action::Group(steps) => group(steps),
    }
}

fn decision(decision: &Decision) -> Json<'_> {
    object([
        (
            "complete",
            decision.complete.as_ref().map_or(Json::Null, complete),
        ),
        ("cancel", decision.cancel.as_ref().map_or(Json::Null, cancel)),
        ("fail", decision.fail.as_ref().map_or(Json::Null, fail)),
    ])
}

fn compensation(compensation: &Compensation) -> Json<'_> {
    let on_unknown = match compensation.on_unknown {
        OnUnknown::Compensate => Json::Null,
        OnUnknown::Ask => text("ask"),
        OnUnknown::Ignore => text("ignore"),
    };
    let on_late = match compensation.on_late {
        OnLate::Compensate => Json::Null,
        OnLate::Accept => text("accept"),
        OnLate::Ignore => text("ignore"),
    };
    let on_exhausted = match compensation.on_exhausted {
        OnExhausted::Stop => Json::Null,
        OnExhausted::Continue => text("continue"),
    };
    object([
        ("when", compensation.when.as_ref().map_or(Json::Null, expression)),
        ("action", action(&compensation.action)),
        ("on_unknown", on_unknown),
        ("undoes_failed", Json::Bool(compensation.undoes_failed)),
        ("on_late", on_late),
        ("on_exhausted", on_exhausted),
        (
            "retry",
            Json::List(compensation.retry.iter().map(undo_retry).collect()),
        ),
        ("deadline_ms", Json::Int(compensation.timeout_ms)),
    ])
}

fn undo_retry(table: &UndoRetry) -> Json<'_> {
    let classes = table.classes.iter().map(|class| text(class));
    object([
        ("classes", Json::List(classes.collect())),
        ("policy", retry(&table.policy)),
    ])
}

fn retry(retry: &RetryPolicy) -> Json<'static> {
    object([
        ("attempts", Json::Int(i64::from(retry.attempts))),
        ("initial_ms", whole(retry.initial_ms)),
        ("factor", Json::Double(retry.factor)),
        ("max_ms", whole(retry.max_ms)),
    ])
}

fn whole(number: u64) -> Json<'static> {
    Json::Int(i64::try_from(number).unwrap_or(i64::MAX))
}
