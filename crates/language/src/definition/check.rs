//! Checks that take a saga as a whole: routing, order of steps, reachable states, timers, ends.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::actions::Reading;
use super::codes;
use super::endings;
use super::fields;
use super::findings::Findings;
use super::groups::{self, Outlined};
use super::model::{Actions, Definition, Handler, Machine, Step, Then};
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

/// The steps of a definition with the places of their parts.
struct Steps<'d, 'n> {
    list: &'d [Step],
    spans: Vec<Range<usize>>,
    set_spans: Vec<BTreeMap<&'n str, Range<usize>>>,
    /// For each step, those that are over before it is: its needs, those of the groups around it, and the
    /// members of a group.
    after: Vec<Vec<u16>>,
}

impl<'d, 'n> Steps<'d, 'n> {
    /// `None` where not all of the file became steps, because there are too many of them.
    fn of(definition: &'d Definition, outline: &[Outlined<'n, '_>]) -> Option<Self> {
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
        (spans.len() == own).then(|| Self {
            list: &definition.steps[..own],
            after: groups::order(definition, false),
            spans,
            set_spans,
        })
    }

    /// Reports each cycle once, by its path, and returns what closes them: a step, and what comes before it.
    fn cycles(&self, findings: &mut Findings<'_>) -> Vec<(usize, usize)> {
        let mut backward = Vec::new();
        let mut told = BTreeSet::new();
        let mut marks = vec![Mark::New; self.list.len()];
        for start in 0..self.list.len() {
            self.visit(start, &mut marks, &mut |path, need| {
                backward.extend(path.last().map(|step| (*step, need)));
                let begin = path.iter().position(|step| *step == need).unwrap_or(0);
                let written = self.written(&path[begin..]);
                if !told.insert(written.iter().copied().collect::<BTreeSet<_>>()) {
                    return;
                }
                let mut names: Vec<&str> = Vec::new();
                for step in written.iter().flat_map(|(step, need)| [*step, *need]) {
                    let name = self.list[step].title();
                    if names.last() != Some(&name) {
                        names.push(name);
                    }
                }
                if names.len() > 1 && names.first() == names.last() {
                    names.pop();
                }
                names.extend(names.first().copied());
                let at = written.last().map_or(need, |(_, need)| *need);
                let message = format!("steps wait for each other: {}", names.join(" -> "));
                findings
                    .error(codes::CYCLE, self.spans[at].clone(), message)
                    .help(Some("an arrow reads \"needs\"; take one of them out".to_owned()));
            });
        }
        backward
    }

    /// The needs of the file that make a cycle: a step waits for what a group around it needs, and a group for its
    /// members.
    fn written(&self, cycle: &[usize]) -> Vec<(usize, usize)> {
        let mut written = Vec::new();
        for (at, step) in cycle.iter().enumerate() {
            let need = cycle[(at + 1) % cycle.len()];
            let around = std::iter::successors(Some(*step), |step| self.list[*step].within.map(usize::from));
            let needs = |step: &usize| {
                self.list[*step]
                    .needs
                    .iter()
                    .any(|other| usize::from(*other) == need)
            };
            written.extend(around.into_iter().find(needs).map(|owner| (owner, need)));
        }
        written
    }

    /// Depth-first along `needs`, without recursion; `found` hears of every step on the way, and of one of them that
    /// the last needs.
    fn visit(&self, start: usize, marks: &mut [Mark], found: &mut dyn FnMut(&[usize], usize)) {
        if marks[start] != Mark::New {
            return;
        }
        let mut path: Vec<usize> = vec![start];
        let mut next: Vec<usize> = vec![0];
        marks[start] = Mark::OnPath;
        while let (Some(step), Some(at)) = (path.last(), next.last_mut()) {
            let Some(need) = self.after[*step].get(*at).map(|need| usize::from(*need)) else {
                marks[*step] = Mark::Done;
                path.pop();
                next.pop();
                continue;
            };
            *at += 1;
            match marks.get(need) {
                Some(Mark::New) => {
                    marks[need] = Mark::OnPath;
                    path.push(need);
                    next.push(0);
                }
                Some(Mark::OnPath) => found(&path, need),
                Some(Mark::Done) | None => {}
            }
        }
    }

    /// Warns where two steps without an order between them set one field. There is no cycle.
    fn parallel_sets(
        &self,
        certain: &[StepSet],
        before: &[StepSet],
        is_known: &dyn Fn(usize) -> bool,
        findings: &mut Findings<'_>,
    ) {
        let mut writers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, step) in self.list.iter().enumerate() {
            let own: BTreeSet<&str> = step
                .set
                .iter()
                .chain(step.waits_for().flat_map(|awaiting| &awaiting.set))
                .map(|(field, _)| field.as_str())
                .collect();
            for field in own {
                writers.entry(field).or_default().push(index);
            }
        }
        if writers.values().all(|writers| writers.len() < 2) {
            return;
        }
        for (field, writers) in writers {
            for (at, second) in writers.iter().enumerate() {
                let first = writers[..at].iter().find(|first| {
                    let ordered = certain[*second].has(**first) || certain[**first].has(*second);
                    let known = is_known(**first) && is_known(*second);
                    known && !ordered && !groups::exclude_each_other(self.list, **first, *second)
                });
                let Some(first) = first else { continue };
                let span = self.set_spans[*second].get(field).unwrap_or(&self.spans[*second]);
                let (one, other) = (self.list[*first].title(), self.list[*second].title());
                let begins_early = |step: usize, other: usize| before[step].has(other);
                let message = if begins_early(*second, *first) {
                    format!("\"{other}\" may begin before \"{one}\" is over, and both set \"{field}\"")
                } else if begins_early(*first, *second) {
                    format!("\"{one}\" may begin before \"{other}\" is over, and both set \"{field}\"")
                } else {
                    format!(
                        "steps \"{one}\" and \"{other}\" may run at the same time and both set \"{field}\""
                    )
                };
                findings
                    .warning(codes::PARALLEL_SET, span.clone(), message)
                    .help(Some(
                        "the last result wins; use two fields, or let one step need the other".to_owned(),
                    ));
            }
        }
    }

    /// What follows an error leads back, and undoes what can be undone.
    fn answers(
        &self,
        before: &[StepSet],
        is_known: &dyn Fn(usize) -> bool,
        outline: &[Outlined<'_, '_>],
        findings: &mut Findings<'_>,
    ) {
        for (index, step) in self.list.iter().enumerate() {
            let node = outline.get(index).map(|outlined| &outlined.entry.value);
            let of_classes = step.on_error.iter().flat_map(|(class, answers)| {
                let answers = answers.iter().enumerate();
                answers.map(move |(at, answer)| (class, at, answer))
            });
            for (class, at, answer) in of_classes {
                let written = node.and_then(|node| {
                    let by_class = member(node, "on_error").and_then(|answers| member(&answers.value, class));
                    by_class.or_else(|| member(node, "on_timeout"))
                });
                let written = written.and_then(|written| fields::one_or_many(&written.value).get(at));
                let span = |key: &str| {
                    let entry = written.and_then(|written| member(written, key));
                    entry.map_or(0..0, |entry| entry.value.span.clone())
                };
                if let Then::GoTo(target) = answer.then
                    && is_known(index)
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
fn ancestors(after: &[Vec<u16>], joins: &[Vec<groups::Enough>]) -> Vec<StepSet> {
    let joins = |step: usize| joins.get(step).into_iter().flatten();
    let mut sets = vec![StepSet::default(); after.len()];
    let mut done = vec![false; after.len()];
    for start in 0..after.len() {
        let mut stack = vec![start];
        while let Some(step) = stack.last().copied() {
            let needs = after[step].iter().map(|need| usize::from(*need));
            let some = joins(step).flat_map(|join| join.needs.iter().map(|need| usize::from(*need)));
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
                        let each = join.needs.iter().map(|need| {
                            let mut set = sets[usize::from(*need)];
                            set.add(usize::from(*need));
                            set
                        });
                        set.unite(&each.reduce(StepSet::shared).unwrap_or_default());
                        // What is given up is over; what that waited for need not be.
                        let given_up = join.needs.iter().filter(|_| join.cancels);
                        given_up.for_each(|need| set.add(usize::from(*need)));
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

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Whether something is in both.
    fn meets(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(other.0)
            .any(|(mine, theirs)| mine & theirs != 0)
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
