//! Results that are read later: `steps.<name>.result`.
//!
//! The record keeps a result only where some expression may read it. It is there for the steps that come after its step for
//! certain, and may be null for everybody else.

use std::collections::{BTreeMap, BTreeSet};

use super::effect::Effects;
use super::fields;
use super::findings::Findings;
use super::grammar;
use super::groups::Outlined;
use super::loops;
use super::model::{Action, BODY_OF_FOREACH, BODY_OF_REPEAT, Group, Step};
use super::saga::member;
use super::yaml::{Node, Value};
use crate::expr::types::Type;
use crate::status::StepStatus;

/// Marks the steps whose results the record keeps. Of a loop around one step, both are marked: the step gives the result of
/// each turn, and the loop keeps that of the last one.
pub fn keep(steps: &mut [Step], findings: &Findings<'_>) {
    let bodies = steps
        .iter()
        .filter_map(|step| step.name.strip_suffix(BODY_OF_REPEAT));
    let around_one: BTreeSet<String> = bodies.map(str::to_owned).collect();
    for step in steps {
        let gives = match &step.action {
            Action::Effect { .. } | Action::Command(_) | Action::Saga(_) => {
                !step.name.ends_with(BODY_OF_FOREACH)
            }
            Action::Group(Group::Foreach(_)) => true,
            Action::Group(Group::Repeat(_)) => around_one.contains(&step.name),
            Action::Group(_)
            | Action::Publish(_)
            | Action::UndoSaga(_)
            | Action::Nothing
            | Action::Decide(_) => false,
        };
        step.keeps_result = gives && findings.reads_result_of(step.title());
    }
}

/// What expressions read of all steps.
pub fn of_steps(root: &Node<'_>, outline: &[Outlined<'_, '_>], effects: Option<&Effects>) -> Type {
    // What came over from another version may have what no step of this one can have.
    let is_open = is_open(root);
    let sequence = outline.iter().filter(|step| !step.is_body);
    Type::object(sequence.map(|step| (step.name(), step_type(step, is_open, effects))))
}

/// For each step the results that are there when it begins, by the steps that gave them.
pub fn given(
    root: &Node<'_>,
    outline: &[Outlined<'_, '_>],
    effects: Option<&Effects>,
) -> Vec<Vec<(String, Type)>> {
    if is_open(root) {
        // What came over from another version may have begun without them.
        return Vec::new();
    }
    let before = before(outline);
    let around = |at: usize| {
        let within = |at: usize| outline[at].within.map(usize::from);
        std::iter::successors(within(at), move |group| within(*group))
    };
    let of = |at: usize| {
        let groups: BTreeSet<usize> = around(at).collect();
        let mut seen = BTreeSet::new();
        let mut open = before[at].clone();
        let mut given = Vec::new();
        while let Some(one) = open.pop() {
            if !seen.insert(one) {
                continue;
            }
            open.extend(before[one].iter().copied());
            let step = &outline[one];
            let is_beside = step
                .within
                .is_none_or(|group| groups.contains(&usize::from(group)));
            if is_beside && !groups.contains(&one) && succeeds(step) {
                given.extend(result(step, effects).map(|result| (step.name().to_owned(), result)));
            }
        }
        given
    };
    (0..outline.len()).map(of).collect()
}

/// Whether a step that others come after has run and has not failed.
fn succeeds(step: &Outlined<'_, '_>) -> bool {
    let has = |key: &str| member(&step.entry.value, key).is_some();
    let may_run_never =
        member(&step.entry.value, "repeat").is_some_and(|repeat| member(&repeat.value, "while").is_some());
    !has("if") && !has("on_error") && !may_run_never
}

/// What stands before each step: the steps that it needs, all of them, and the groups around it.
pub fn before(outline: &[Outlined<'_, '_>]) -> Vec<Vec<usize>> {
    let index: BTreeMap<&str, usize> = outline
        .iter()
        .enumerate()
        .map(|(at, step)| (step.name(), at))
        .collect();
    let of = |step: &Outlined<'_, '_>| {
        // Of those that may fail or come later, nothing is certain.
        let join = member(&step.entry.value, "join").map(|join| &join.value.value);
        let all = match join {
            None => true,
            Some(Value::Scalar(word)) => word.text == "all",
            Some(Value::List(_) | Value::Map(_)) => false,
        };
        let needs = member(&step.entry.value, "needs").filter(|_| all);
        let named = needs
            .map(|needs| fields::one_or_many(&needs.value))
            .unwrap_or_default();
        let named = named.iter().filter_map(|item| match &item.value {
            Value::Scalar(scalar) => index.get(&*scalar.text).copied(),
            Value::List(_) | Value::Map(_) => None,
        });
        named.chain(step.within.map(usize::from)).collect()
    };
    outline.iter().map(of).collect()
}

fn is_open(root: &Node<'_>) -> bool {
    ["migrate", "on_change"]
        .iter()
        .any(|key| member(root, key).is_some())
}

/// What a step gives when it succeeds; none where it gives nothing.
fn result(step: &Outlined<'_, '_>, effects: Option<&Effects>) -> Option<Type> {
    let key = |key: &str| member(&step.entry.value, key);
    match loops::kind(step.entry) {
        Some("foreach") => return Some(Type::list(Type::dynamic())),
        Some(_) if key("steps").is_some() => return None,
        Some(_) | None => {}
    }
    if let Some(effect) = key("effect") {
        let output = match &effect.value.value {
            Value::Scalar(name) => effects.and_then(|effects| effects.get(&*name.text)?.output.as_ref()),
            Value::List(_) | Value::Map(_) => None,
        };
        return Some(output.map_or_else(Type::dynamic, |output| Type::of_schema(output)));
    }
    (key("command").is_some() || key("saga").is_some()).then(Type::dynamic)
}

/// What expressions read of a step; where it is not `open`, its status is one that a step like this can have.
fn step_type(step: &Outlined<'_, '_>, is_open: bool, effects: Option<&Effects>) -> Type {
    let has = |key: &str| member(&step.entry.value, key).is_some();
    let is_plain = !has("choice") && !has("repeat") && !has("foreach") && is_read(&step.entry.value);
    let can_be = |status: StepStatus| match status {
        StepStatus::Skipped => has("if") || step.within.is_some(),
        StepStatus::Delayed => has("delay"),
        StepStatus::Waiting => has("wait"),
        StepStatus::BackingOff => has("retry"),
        StepStatus::Pending
        | StepStatus::Running
        | StepStatus::Done
        | StepStatus::Failed
        | StepStatus::Abandoned
        | StepStatus::Stuck => true,
    };
    let all = std::iter::successors(Some(StepStatus::Pending), |status| status.next());
    let words = all.filter(|status| is_open || !is_plain || can_be(*status));
    let words: Vec<&str> = words.map(StepStatus::as_str).collect();
    let mut members = vec![
        ("status", Type::one_of(words)),
        ("error", Type::string().or(&Type::null())),
        ("attempt", Type::integer()),
        ("iteration", Type::integer()),
    ];
    members.extend(result(step, effects).map(|result| ("result", result.or(&Type::null()))));
    Type::object(members)
}

/// Whether a step has the keys of steps only, so that what it has not is not meant by another.
fn is_read(step: &Node<'_>) -> bool {
    match &step.value {
        Value::Map(entries) => entries
            .iter()
            .all(|entry| grammar::steps::STEP.key(&entry.key).is_some()),
        Value::Scalar(_) | Value::List(_) => false,
    }
}
