//! The order of steps: cycles, what comes before what, and what runs at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::super::codes;
use super::super::fields;
use super::super::findings::Findings;
use super::super::groups::{self, Outlined};
use super::super::model::{Definition, Step, Then};
use super::super::saga::member;
use super::super::yaml::Value;

/// The steps of a definition with the places of their parts.
pub(super) struct Steps<'d, 'n> {
    pub(super) list: &'d [Step],
    spans: Vec<Range<usize>>,
    set_spans: Vec<BTreeMap<&'n str, Range<usize>>>,
    /// For each step, those that are over before it is: its needs, those of the groups around it, and the
    /// members of a group.
    pub(super) after: Vec<Vec<u16>>,
}

impl<'d, 'n> Steps<'d, 'n> {
    /// `None` where not all of the file became steps, because there are too many of them.
    pub(super) fn of(definition: &'d Definition, outline: &[Outlined<'n, '_>]) -> Option<Self> {
        let mut spans = Vec::new();
        let mut set_spans = Vec::new();
        for step in outline.iter().map(|step| step.entry) {
            let needs = member(&step.value, "needs");
            spans.push(needs.map_or(&step.key_span, |needs| &needs.key_span).clone());
            let mut places = BTreeMap::new();
            if let Some(set) = member(&step.value, "set")
                && let Value::Map(entries) = &set.value.value
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
    pub(super) fn cycles(&self, findings: &mut Findings<'_>) -> Vec<(usize, usize)> {
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
    pub(super) fn parallel_sets(
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
    pub(super) fn answers(
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
pub(super) fn ancestors(after: &[Vec<u16>], joins: &[Vec<groups::Enough>]) -> Vec<StepSet> {
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

/// A set of step indices below [`crate::definition::steps::STEPS_MAX`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepSet([u64; crate::definition::steps::STEPS_MAX / 64]);

impl StepSet {
    pub(super) fn add(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Whether something is in both.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.0
            .iter()
            .zip(other.0)
            .any(|(mine, theirs)| mine & theirs != 0)
    }

    pub(super) fn has(&self, index: usize) -> bool {
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
