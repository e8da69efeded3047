//! Checks that take a saga as a whole: routing, order of steps, reachable states, timers, ends.

mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use self::order::{StepSet, Steps, ancestors};
use super::actions::Reading;
use super::codes;
use super::endings;
use super::fields;
use super::findings::Findings;
use super::groups::{self, Outlined};
use super::model::{Actions, Definition, Handler, Machine};
use super::never;
use super::saga::{handled_types, member};
use super::uncompensated::{self, Acting};
use super::yaml::{Node, Value};
use crate::expr::nearest;

/// What is not known about a file because it is wrong, which has been told: nothing is concluded from its absence.
#[derive(Debug, Default)]
pub struct Unknowns {
    /// Steps of which not all is known that they need.
    pub needs: BTreeSet<usize>,
    /// Handlers of what is not known.
    pub handlers: Vec<Handler>,
    /// Some way leads to a state that is not known.
    pub ways: bool,
    /// Something ends an instance early, as far as it can be read.
    pub completes: bool,
}

/// Checks a definition that may be incomplete because of errors that are reported already. Which effects are
/// `acting` is not known of a definition from the archive.
pub fn saga(
    definition: &Definition,
    root: &Node<'_>,
    outline: &[Outlined<'_, '_>],
    acting: Option<&Acting>,
    unknowns: &Unknowns,
    findings: &mut Findings<'_>,
) {
    key_rules(definition, root, outline, findings);
    events(definition, root, outline, findings);
    if let Some(mut steps) = Steps::of(definition, outline) {
        groups::reach(definition, outline, findings);
        // What was archived has been checked.
        if acting.is_some() {
            never::check(steps.list, outline, findings);
            never::answers(steps.list, outline, findings);
            let (deadline, timers) = (member(root, "deadline"), member(root, "timers"));
            never::bounds(definition, deadline, timers, outline, findings);
        }
        order(&mut steps, definition, outline, acting, unknowns, findings);
    }
    // What was archived has been checked.
    if acting.is_some() {
        never::work(definition, root, findings);
    }
    if let Some(machine) = &definition.machine
        && !unknowns.ways
    {
        unreachable_states(machine, definition, &unknowns.handlers, root, findings);
    }
    ends(definition, root, unknowns, findings);
}

/// What follows from the order of steps.
fn order(
    steps: &mut Steps<'_, '_>,
    definition: &Definition,
    outline: &[Outlined<'_, '_>],
    acting: Option<&Acting>,
    unknowns: &Unknowns,
    findings: &mut Findings<'_>,
) {
    let backward = steps.cycles(findings);
    let mut certain = groups::order(definition, true);
    let mut joins = groups::joins(definition);
    let mut loose = StepSet::default();
    for (step, need) in backward {
        // Without these there is no cycle, and the rest can be told.
        steps.after[step].retain(|after| usize::from(*after) != need);
        certain[step].retain(|after| usize::from(*after) != need);
        for join in &mut joins[step] {
            join.needs.retain(|after| usize::from(*after) != need);
        }
        loose.add(step);
        loose.add(need);
    }
    unknowns.needs.iter().for_each(|step| loose.add(*step));
    let before = ancestors(&steps.after, &[]);
    let certain = ancestors(&certain, &joins);
    // What comes before a step is known if it is of all that come before it.
    let is_known = |step: usize| !loose.has(step) && !before[step].meets(&loose);
    steps.parallel_sets(&certain, &before, &is_known, findings);
    steps.answers(&before, &is_known, outline, findings);
    if let Some(acting) = acting
        && loose.is_empty()
    {
        let before = |step: usize, other: usize| certain[step].has(other);
        uncompensated::check(steps.list, outline, acting, before, findings);
    }
}

/// Timers that are named must be set somewhere, and what is set must be of use.
pub fn timers(reading: &mut Reading<'_, '_>) {
    let timers = &reading.timers;
    let is_set = |name: &str| timers.declared.contains(name) || timers.set.contains_key(name);
    for (name, span) in &timers.named {
        if is_set(name) {
            continue;
        }
        let candidates = timers.declared.iter().chain(timers.set.keys()).copied();
        let help = nearest(name, candidates).map_or_else(
            || "a timer is set by \"timer\" in a handler, or declared under \"timers\"".to_owned(),
            |near| format!("did you mean \"{near}\"?"),
        );
        let message = format!("nothing sets the timer \"{}\"", name.escape_debug());
        reading
            .findings
            .error(codes::UNKNOWN_TIMER, span.clone(), message)
            .help(Some(help));
    }
    let undeclared = timers
        .set
        .iter()
        .filter(|(name, _)| !timers.declared.contains(*name));
    let idle = timers.idle.iter().map(|(name, span)| (name, span));
    for (name, span) in undeclared.chain(idle) {
        if timers.handled.contains(name) {
            continue;
        }
        let message = format!("the timer \"{}\" does nothing when it fires", name.escape_debug());
        reading
            .findings
            .warning(codes::UNUSED_TIMER, span.clone(), message)
            .help(Some(format!(
                "handle it in a state, as \"timer.{name}\", or say under \"timers\" what it does"
            )));
    }
}

/// Every event that the saga reacts to must find its instance.
fn key_rules(
    definition: &Definition,
    root: &Node<'_>,
    outline: &[Outlined<'_, '_>],
    findings: &mut Findings<'_>,
) {
    if member(root, "key").is_none() {
        let instead = member(root, "input").or_else(|| member(root, "schedule"));
        let types = definition.event_types();
        let keyless = types
            .iter()
            .find(|event_type| !definition.by.contains_key(**event_type));
        if let (Some(instead), Some(event_type)) = (instead, keyless) {
            let message = format!("\"key\" is missing: the saga reacts to {event_type}");
            findings.error(codes::MISSING_KEY, instead.key_span.clone(), message);
        }
        return;
    }
    let handled = reacting(root, outline);
    let start = member(root, "start").map_or(0..0, |entry| entry.key_span.clone());
    for event_type in definition.event_types() {
        let by = definition.by.contains_key(event_type);
        if by || definition.keys.iter().any(|rule| rule.matches(event_type)) {
            continue;
        }
        let starts = definition.start.iter().any(|start| start == event_type);
        let span = if starts { None } else { handled.get(event_type) };
        let message = format!("no key rule for the event type \"{event_type}\"");
        let aggregate = event_type.split('.').next().unwrap_or_default();
        findings
            .error(codes::NO_KEY_RULE, span.unwrap_or(&start).clone(), message)
            .help(Some(format!(
                "say which instance it belongs to: key: {{\"{aggregate}.*\": event.data.<field>}}"
            )));
    }
}

/// The event types to which a file reacts, by handlers and waits, with their places.
fn reacting<'n>(root: &'n Node<'_>, outline: &[Outlined<'n, '_>]) -> BTreeMap<&'n str, Range<usize>> {
    let mut handled = handled_types(root);
    for step in outline {
        let Some(wait) = member(&step.entry.value, "wait") else {
            continue;
        };
        let several = member(&wait.value, "any").map(|any| fields::one_or_many(&any.value));
        let all = std::iter::once(&wait.value).chain(several.unwrap_or_default());
        for event in all.filter_map(|awaited| member(awaited, "event")) {
            if let Value::Scalar(scalar) = &event.value.value {
                handled.entry(&scalar.text).or_insert(event.value.span.clone());
            }
        }
    }
    handled
}

/// What is said about an event must be about one that comes.
fn events(
    definition: &Definition,
    root: &Node<'_>,
    outline: &[Outlined<'_, '_>],
    findings: &mut Findings<'_>,
) {
    // As the file has them: what reacts to one may be wrong otherwise.
    let handled = reacting(root, outline);
    let mut types = definition.event_types();
    types.extend(handled.keys());
    let Some(described) = member(root, "events") else {
        return;
    };
    for event_type in definition.events.keys() {
        if types.contains(&event_type.as_str()) {
            continue;
        }
        let entry = member(&described.value, event_type);
        let span = entry.map_or(0..0, |entry| entry.key_span.clone());
        let help = nearest(event_type, types.iter().copied()).map(|near| format!("did you mean \"{near}\"?"));
        findings
            .warning(
                codes::UNUSED_EVENT,
                span,
                format!("nothing reacts to the event type \"{event_type}\""),
            )
            .help(help);
    }
}

fn ends(definition: &Definition, root: &Node<'_>, unknowns: &Unknowns, findings: &mut Findings<'_>) {
    let has = |key: &str| member(root, key);
    let span = has("name").map_or(0..0, |entry| entry.key_span.clone());
    if has("steps").is_some() || has("machine").is_some() || has("program").is_some() {
        return;
    }
    if has("handlers").is_none() {
        findings.error(
            codes::NOTHING_TO_DO,
            span,
            "a saga needs steps, a machine, handlers or a program",
        );
        return;
    }
    if unknowns.completes || endings::completes(definition) {
        return;
    }
    findings
        .warning(
            codes::NEVER_COMPLETES,
            span,
            "instances never complete: without steps and without a machine nothing says when",
        )
        .help(Some(
            "add steps, a machine with a state that is final, or a handler with \"complete\"".to_owned(),
        ));
}

fn unreachable_states(
    machine: &Machine,
    definition: &Definition,
    strays: &[Handler],
    root: &Node<'_>,
    findings: &mut Findings<'_>,
) {
    let anywhere = definition
        .own_handlers()
        .flatten()
        .chain(strays)
        .map(|handler| &handler.actions)
        .chain(definition.timers.iter().map(|timer| &timer.actions));
    let mut open: Vec<u16> = anywhere.filter_map(|actions: &Actions| actions.to).collect();
    open.push(machine.initial);
    let mut reached = vec![false; machine.states.len()];
    while let Some(at) = open.pop() {
        let Some(state) = machine.states.get(usize::from(at)) else {
            continue;
        };
        if std::mem::replace(&mut reached[usize::from(at)], true) {
            continue;
        }
        let handlers = state.all_handlers();
        open.extend(handlers.flatten().filter_map(|handler| handler.actions.to));
        open.extend(state.entry.to);
    }
    let states = member(root, "machine").and_then(|machine| member(&machine.value, "states"));
    for (state, reached) in machine.states.iter().zip(reached) {
        if reached {
            continue;
        }
        let entry = states.and_then(|states| member(&states.value, &state.name));
        let span = entry.map_or(0..0, |entry| entry.key_span.clone());
        let message = format!("nothing leads to the state \"{}\"", state.name);
        findings.warning(codes::UNREACHABLE_STATE, span, message);
    }
}
