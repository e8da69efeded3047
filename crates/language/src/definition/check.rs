//! Checks that take a saga as a whole: routing, order of steps, reachable states, timers, ends.

use std::collections::BTreeMap;
use std::ops::Range;

use super::actions::Reading;
use super::codes;
use super::endings;
use super::findings::Findings;
use super::groups::{self, Outlined};
use super::left_done::{self, Acting};
use super::model::{Actions, Definition, Machine, Step, Then};
use super::saga::{handled_types, member};
use super::yaml::{Node, Value};
use crate::expr::nearest;

/// Checks a definition that may be incomplete because of errors that are reported already. Which effects are
/// `acting` is not known of a definition from the archive.
pub fn saga(
    definition: &Definition,
    root: &Node<'_>,
    outline: &[Outlined<'_, '_>],
    acting: Option<&Acting>,
    findings: &mut Findings<'_>,
) {
    key_rules(definition, root, outline, findings);
    events(definition, root, findings);
    let steps = Steps::of(definition, outline);
    if steps.is_complete() {
        groups::reach(definition, outline, findings);
    }
    if !steps.cycles(findings) && steps.is_complete() && !findings.has(codes::UNKNOWN_STEP) {
        let before = ancestors(&steps.after, &[]);
        let certain = ancestors(&groups::order(definition, true), &groups::joins(definition));
        steps.parallel_sets(&certain, findings);
        steps.answers(&before, outline, findings);
        if let Some(acting) = acting {
            let before = |step: usize, other: usize| certain[step].has(other);
            left_done::check(steps.list, outline, acting, before, findings);
        }
    }
    // A way whose end is unknown may have been meant to lead to any state.
    if let Some(machine) = &definition.machine
        && !findings.has(codes::UNKNOWN_STATE)
    {
        unreachable_states(machine, definition, root, findings);
    }
    ends(definition, root, findings);
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
    let mut handled = handled_types(root);
    for step in outline {
        let event = member(&step.entry.value, "wait").and_then(|wait| member(&wait.value, "event"));
        if let Some(event) = event
            && let Value::Scalar(scalar) = &event.value.value
        {
            handled.entry(&scalar.text).or_insert(event.value.span.clone());
        }
    }
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

/// What is said about an event must be about one that comes.
fn events(definition: &Definition, root: &Node<'_>, findings: &mut Findings<'_>) {
    let types = definition.event_types();
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

fn ends(definition: &Definition, root: &Node<'_>, findings: &mut Findings<'_>) {
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
    if endings::completes(definition) {
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

/// The steps of a definition with the places of their parts.
struct Steps<'d, 'n> {
    list: &'d [Step],
    spans: Vec<Range<usize>>,
    set_spans: Vec<BTreeMap<&'n str, Range<usize>>>,
    /// For each step, those that are over before it is: its needs, those of the groups around it, and the
    /// members of a group.
    after: Vec<Vec<u16>>,
    /// All entries became steps, so indices are those of the file.
    complete: bool,
}

impl<'d, 'n> Steps<'d, 'n> {
    fn of(definition: &'d Definition, outline: &[Outlined<'n, '_>]) -> Self {
        let mut spans = Vec::new();
        let mut set_spans = Vec::new();
        for step in outline.iter().map(|step| step.entry) {
            let needs = member(&step.value, "needs");
            spans.push(needs.map_or(&step.key_span, |needs| &needs.key_span).clone());
            let mut places = BTreeMap::new();
            if let Some(set) = member(&step.value, "set")
                && let super::yaml::Value::Map(entries) = &set.value.value
            {
                places.extend(entries.iter().map(|entry| (&*entry.key, entry.key_span.clone())));
            }
            set_spans.push(places);
        }
        // Effects of the machine stand behind the steps, and have no order.
        let own = definition.steps.iter().filter(|step| step.is_own()).count();
        let complete = spans.len() == own;
        Self {
            list: &definition.steps[..own],
            after: if complete {
                groups::order(definition, false)
            } else {
                Vec::new()
            },
            complete,
            spans,
            set_spans,
        }
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    /// Reports each cycle once, by its path.
    fn cycles(&self, findings: &mut Findings<'_>) -> bool {
        if !self.complete {
            return false;
        }
        let mut found = false;
        let mut marks = vec![Mark::New; self.list.len()];
        for start in 0..self.list.len() {
            found |= self.visit(start, &mut marks, findings);
        }
        found
    }

    /// Depth-first along `needs`, without recursion.
    fn visit(&self, start: usize, marks: &mut [Mark], findings: &mut Findings<'_>) -> bool {
        if marks[start] != Mark::New {
            return false;
        }
        let mut found = false;
        let mut path: Vec<(usize, usize)> = vec![(start, 0)];
        marks[start] = Mark::OnPath;
        while let Some((step, at)) = path.last_mut() {
            let Some(need) = self.after[*step].get(*at).map(|need| usize::from(*need)) else {
                marks[*step] = Mark::Done;
                path.pop();
                continue;
            };
            *at += 1;
            match marks.get(need) {
                Some(Mark::New) => {
                    marks[need] = Mark::OnPath;
                    path.push((need, 0));
                }
                Some(Mark::OnPath) => {
                    found = true;
                    let begin = path.iter().position(|(step, _)| *step == need).unwrap_or(0);
                    let names: Vec<&str> = path[begin..]
                        .iter()
                        .map(|(step, _)| *step)
                        .chain([need])
                        .map(|step| self.list[step].name.as_str())
                        .collect();
                    let message = format!("steps wait for each other: {}", names.join(" -> "));
                    findings
                        .error(codes::CYCLE, self.spans[need].clone(), message)
                        .help(Some("an arrow reads \"needs\"; take one of them out".to_owned()));
                }
                Some(Mark::Done) | None => {}
            }
        }
        found
    }

    /// Warns where two steps without an order between them set one field. There is no cycle.
    fn parallel_sets(&self, before: &[StepSet], findings: &mut Findings<'_>) {
        let mut writers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, step) in self.list.iter().enumerate() {
            for (field, _) in &step.set {
                writers.entry(field).or_default().push(index);
            }
        }
        if writers.values().all(|writers| writers.len() < 2) {
            return;
        }
        for (field, writers) in writers {
            for (at, second) in writers.iter().enumerate() {
                let first = writers[..at].iter().find(|first| {
                    let ordered = before[*second].has(**first) || before[**first].has(*second);
                    !ordered && !groups::exclude_each_other(self.list, **first, *second)
                });
                let Some(first) = first else { continue };
                let span = self.set_spans[*second].get(field).unwrap_or(&self.spans[*second]);
                let message = format!(
                    "steps \"{}\" and \"{}\" may run at the same time and both set \"{field}\"",
                    self.list[*first].name, self.list[*second].name
                );
                findings
                    .warning(codes::PARALLEL_SET, span.clone(), message)
                    .help(Some(
                        "the last result wins; use two fields, or let one step need the other".to_owned(),
                    ));
            }
        }
    }

    /// What follows an error leads back, and undoes what can be undone.
    fn answers(&self, before: &[StepSet], outline: &[Outlined<'_, '_>], findings: &mut Findings<'_>) {
        for (index, step) in self.list.iter().enumerate() {
            let node = outline.get(index).map(|outlined| &outlined.entry.value);
            for (class, answer) in &step.on_error {
                let written = node.and_then(|node| {
                    let by_class = member(node, "on_error").and_then(|answers| member(&answers.value, class));
                    by_class.or_else(|| member(node, "on_timeout"))
                });
                let span = |key: &str| {
                    let entry = written.and_then(|written| member(&written.value, key));
                    entry.map_or(0..0, |entry| entry.value.span.clone())
                };
                if let Then::GoTo(target) = answer.then
                    && !self.leads_back(before, index, usize::from(target))
                {
                    let message = format!(
                        "\"{}\" cannot go to \"{}\", which does not come before it",
                        step.name,
                        self.list[usize::from(target)].name
                    );
                    findings
                        .error(codes::WRONG_VALUE, span("goto"), message)
                        .help(Some(
                            "goto leads back to the step itself, or to one that it needs and that is in no other group; what comes after it may ask steps.<name>.error"
                                .to_owned(),
                        ));
                }
                self.undoable(&answer.undo, &span("undo"), findings);
            }
        }
    }

    /// Whether `target` is the step itself or comes before it, and is in no group that the step is not in.
    fn leads_back(&self, before: &[StepSet], step: usize, target: usize) -> bool {
        let around = |step: usize| {
            std::iter::successors(self.list[step].within, |group| {
                self.list[usize::from(*group)].within
            })
        };
        let group = self.list[target].within;
        let comes_before = target == step || before[step].has(target);
        comes_before && group.is_none_or(|group| around(step).any(|around| around == group))
    }

    fn undoable(&self, steps: &[u16], span: &Range<usize>, findings: &mut Findings<'_>) {
        for undone in steps {
            let undone = &self.list[usize::from(*undone)];
            if undone.compensate.is_none() {
                let message = format!("the step \"{}\" has no \"compensate\"", undone.name);
                findings.error(codes::WRONG_VALUE, span.clone(), message);
            }
        }
    }
}

/// For each step, all that come before it, directly or not. There is no cycle. Of each list of `joins` only some
/// steps come before it, so only what is before all of them is.
fn ancestors(after: &[Vec<u16>], joins: &[Vec<&[u16]>]) -> Vec<StepSet> {
    let joins = |step: usize| joins.get(step).into_iter().flatten();
    let mut sets = vec![StepSet::default(); after.len()];
    let mut done = vec![false; after.len()];
    for start in 0..after.len() {
        let mut stack = vec![start];
        while let Some(step) = stack.last().copied() {
            let needs = after[step].iter().map(|need| usize::from(*need));
            let some = joins(step).flat_map(|join| join.iter().map(|need| usize::from(*need)));
            let open: Vec<usize> = needs.clone().chain(some).filter(|need| !done[*need]).collect();
            if done[step] || open.is_empty() {
                stack.pop();
                if !done[step] {
                    let mut set = StepSet::default();
                    for need in needs {
                        set.add(need);
                        set.unite(&sets[need]);
                    }
                    for join in joins(step) {
                        let each = join.iter().map(|need| {
                            let mut set = sets[usize::from(*need)];
                            set.add(usize::from(*need));
                            set
                        });
                        set.unite(&each.reduce(StepSet::shared).unwrap_or_default());
                    }
                    sets[step] = set;
                    done[step] = true;
                }
            } else {
                stack.extend(open);
            }
        }
    }
    sets
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    OnPath,
    Done,
}

/// A set of step indices below [`super::steps::STEPS_MAX`].
#[derive(Debug, Clone, Copy, Default)]
struct StepSet([u64; super::steps::STEPS_MAX / 64]);

impl StepSet {
    fn add(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn has(&self, index: usize) -> bool {
        self.0[index / 64] & (1 << (index % 64)) != 0
    }

    /// What is in both.
    fn shared(mut self, other: Self) -> Self {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine &= theirs;
        }
        self
    }

    fn unite(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }
}

fn unreachable_states(
    machine: &Machine,
    definition: &Definition,
    root: &Node<'_>,
    findings: &mut Findings<'_>,
) {
    let anywhere = definition
        .handlers
        .values()
        .flatten()
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
