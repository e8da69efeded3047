//! Which fields of the state are certainly set, by the start or by earlier steps.

use std::collections::{BTreeMap, BTreeSet};

use super::super::fields;
use super::super::groups::Outlined;
use super::super::results;
use super::super::saga::member;
use super::super::yaml::{Entry, Node, Value};

/// For each start event the fields that its starts set, whichever of them is taken.
pub(super) fn set_by_starts(root: &Node<'_>, start: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let rules = member(root, "start").map(|entry| fields::one_or_many(&entry.value));
    let rules = rules.unwrap_or_default();
    let is_of = |rule: &Node<'_>, event_type: &str| {
        let event = member(rule, "event").map_or(rule, |event| &event.value);
        matches!(&event.value, Value::Scalar(scalar) if scalar.text == event_type)
    };
    let of_type = |event_type: &String| {
        let rules = rules.iter().filter(|rule| is_of(rule, event_type));
        let sets = rules.map(|rule| member(rule, "set").map(names_of).unwrap_or_default());
        let common = sets.reduce(|left, right| left.intersection(&right).cloned().collect());
        (event_type.clone(), common.unwrap_or_default())
    };
    start.iter().map(of_type).collect()
}

/// Fields that the start by an event, or the handler of it, sets whichever of the alternatives is taken.
pub(super) fn always_set(
    root: &Node<'_>,
    start: &[String],
    opened: &BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<String> {
    let of_type = |event_type: &String| -> BTreeSet<String> {
        let handlers = member(root, "handlers").and_then(|handlers| member(&handlers.value, event_type));
        let Some(handlers) = handlers else {
            return BTreeSet::new();
        };
        let alternatives = fields::one_or_many(&handlers.value);
        let complete = alternatives
            .iter()
            .any(|alternative| member(alternative, "when").is_none());
        let sets = alternatives.iter().map(|alternative| {
            let set = member(alternative, "set");
            set.map(names_of).unwrap_or_default()
        });
        let common = sets.reduce(|left, right| left.intersection(&right).cloned().collect());
        common.filter(|_| complete).unwrap_or_default()
    };
    let with_start = |event_type: &String| {
        let mut fields = of_type(event_type);
        fields.extend(opened.get(event_type).cloned().unwrap_or_default());
        fields
    };
    start
        .iter()
        .map(with_start)
        .reduce(|left, right| left.intersection(&right).cloned().collect())
        .unwrap_or_default()
}

/// Fields that a step sets when it is done, for everything that it may wait for.
pub(super) fn set_by(step: &Node<'_>) -> BTreeSet<String> {
    let own = member(step, "set").map(names_of).unwrap_or_default();
    let any = member(step, "wait").and_then(|wait| member(&wait.value, "any"));
    let alternatives = any.map(|any| fields::one_or_many(&any.value)).unwrap_or_default();
    let sets = alternatives
        .iter()
        .map(|one| member(one, "set").map(names_of).unwrap_or_default());
    let common = sets.reduce(|left, right| left.intersection(&right).cloned().collect());
    own.into_iter().chain(common.unwrap_or_default()).collect()
}

fn names_of(entry: &Entry<'_>) -> BTreeSet<String> {
    match &entry.value.value {
        Value::Map(entries) => entries
            .iter()
            .map(|entry| entry.key.clone().into_owned())
            .collect(),
        Value::Scalar(_) | Value::List(_) => BTreeSet::new(),
    }
}

/// For each step the fields that those before it set. One that was skipped has set nothing; it is counted
/// nevertheless, since what reads its fields mostly is skipped with it.
pub(super) fn reached(outline: &[Outlined<'_, '_>]) -> Vec<BTreeSet<String>> {
    let before = results::before(outline);
    let sets: Vec<BTreeSet<String>> = outline.iter().map(|step| set_by(&step.entry.value)).collect();
    let mut reached = Vec::with_capacity(outline.len());
    for at in 0..outline.len() {
        let mut seen = BTreeSet::new();
        let mut open = before[at].clone();
        let mut fields = BTreeSet::new();
        while let Some(one) = open.pop() {
            if seen.insert(one) {
                fields.extend(sets[one].iter().cloned());
                open.extend(before[one].iter().copied());
                // A group has done what its members did.
                open.extend(
                    outline
                        .iter()
                        .enumerate()
                        .filter(|(_, step)| step.within.map(usize::from) == Some(one))
                        .map(|(member, _)| member)
                        .filter(|member| *member != at && outline[at].within.map(usize::from) != Some(one)),
                );
            }
        }
        reached.push(fields);
    }
    reached
}

/// Whether the expressions under a key are conditions.
pub(super) fn is_condition(key: &str) -> bool {
    matches!(key, "when" | "if" | "cancel_when" | "fail_if" | "until" | "while")
}
