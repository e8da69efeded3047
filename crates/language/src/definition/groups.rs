//! Groups of steps: nodes of `steps` that hold steps of their own.
//!
//! All steps of a file, nested ones included, become one list in the order of the file. A group comes right
//! before its members, so all that is nested in it is one range of indices.

use std::ops::Range;

use super::actions::Reading;
use super::certain;
use super::codes;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::loops;
use super::model::{Action, Branch, Definition, Foreach, Group, Join, Repeat, Step, Stragglers};
use super::saga::member;
use super::steps::START_ROOTS;
use super::texts::EventParts;
use super::yaml::{Entry, Node, Value};
use crate::expr::Expr;

/// Deepest nesting of groups of steps, in levels.
pub const GROUP_DEPTH_MAX: usize = 4;

/// A step of the file with the group that it stands in.
#[derive(Debug)]
pub struct Outlined<'n, 't> {
    pub entry: &'n Entry<'t>,
    /// Index of the group.
    pub within: Option<u16>,
    /// Number of the alternative of the group.
    pub branch: usize,
    /// Groups around it.
    pub depth: usize,
    /// It is the one step that the loop of the same entry is around.
    pub is_body: bool,
}

impl<'n> Outlined<'n, '_> {
    /// What other steps call it.
    pub fn name(&self) -> &'n str {
        if self.is_body { UNNAMED } else { &self.entry.key }
    }
}

/// Stands for the name of a step that nobody can name.
const UNNAMED: &str = "(the step that a loop is around)";

/// All steps of a file in their final order, without any finding. What is nested too deep is left out.
pub fn outline<'n, 't>(root: &'n Node<'t>) -> Vec<Outlined<'n, 't>> {
    let mut list = Vec::new();
    if let Some(steps) = member(root, "steps") {
        nested(steps, None, 0, 0, &mut list);
    }
    list
}

fn nested<'n, 't>(
    steps: &'n Entry<'t>,
    within: Option<u16>,
    branch: usize,
    depth: usize,
    list: &mut Vec<Outlined<'n, 't>>,
) {
    let Value::Map(entries) = &steps.value.value else {
        return;
    };
    for entry in entries {
        let index = u16::try_from(list.len()).ok();
        list.push(Outlined {
            entry,
            within,
            branch,
            depth,
            is_body: false,
        });
        if depth == GROUP_DEPTH_MAX || index.is_none() {
            continue;
        }
        let is_choice = member(&entry.value, "choice").is_some();
        match member(&entry.value, "steps") {
            // Steps that stand where none may are read, too, so that all that is wrong is told.
            Some(steps) if !is_choice => nested(steps, index, 0, depth + 1, list),
            None if !is_choice && loops::kind(entry).is_some() => list.push(Outlined {
                entry,
                within: index,
                branch: 0,
                depth: depth + 1,
                is_body: true,
            }),
            Some(_) | None => {}
        }
        for (branch, steps) in branches(entry).enumerate() {
            if let Some(steps) = steps {
                nested(steps, index, branch, depth + 1, list);
            }
        }
    }
}

/// The `steps` of each alternative of a choice.
fn branches<'n, 't>(entry: &'n Entry<'t>) -> impl Iterator<Item = Option<&'n Entry<'t>>> + use<'n, 't> {
    let items = match member(&entry.value, "choice").map(|choice| &choice.value.value) {
        Some(Value::List(items)) => items.as_slice(),
        Some(Value::Scalar(_) | Value::Map(_)) | None => &[],
    };
    items.iter().map(|item| {
        let otherwise = member(item, "else").map_or(item, |entry| &entry.value);
        member(otherwise, "steps")
    })
}

impl<'r> Reading<'r, '_> {
    /// Reads a node that holds alternatives of steps. `at` is its index in `outline`.
    pub fn choice(&mut self, at: usize, outline: &[Outlined<'r, '_>]) -> Option<Step> {
        let Outlined { entry, depth, .. } = outline[at];
        self.name_of_step(entry);
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::steps::CHOICE,
            self.findings,
        )?;
        let needs = fields
            .get("needs")
            .map(|needs| self.needs(needs))
            .unwrap_or_default();
        let join = self.join(&fields, &needs);
        self.assume_needs(&needs, &join);
        let condition = fields.get("if").map(|condition| self.start_condition(condition));
        let choice = fields.require("choice", self.findings)?;
        if depth == GROUP_DEPTH_MAX {
            let message = format!("groups of steps are nested deeper than {GROUP_DEPTH_MAX} levels");
            self.findings
                .error(codes::LIMIT, choice.key_span.clone(), message);
        }
        let items: &[Node<'_>] = if let Value::List(items) = &choice.value.value {
            if items.is_empty() {
                let message = "a choice without an alternative";
                self.findings
                    .error(codes::WRONG_VALUE, choice.key_span.clone(), message);
            }
            items
        } else {
            let what = "a list of alternatives";
            fields::expected(&choice.value, &choice.key_span, what, self.findings);
            &[]
        };
        let branches = self.branches(items, &choice.key_span, at, outline);
        let group = Group::Choice(branches);
        Some(Step {
            join,
            ..Step::group(entry.key.clone().into_owned(), needs, condition, group)
        })
    }

    fn branches(
        &mut self,
        items: &'r [Node<'_>],
        span: &Range<usize>,
        at: usize,
        outline: &[Outlined<'r, '_>],
    ) -> Vec<Branch> {
        let mut branches = Vec::new();
        let mut always_taken = false;
        let mut conditions = std::collections::BTreeSet::new();
        for (branch, item) in items.iter().enumerate() {
            if always_taken && self.types.is_some() {
                let span = fields::visible(item, span, self.findings.text());
                let message = "this alternative is never taken: one before it always is";
                self.findings.error(codes::UNREACHABLE_HANDLER, span, message);
            }
            let steps = members(at, branch, outline);
            let Some(fields) = Fields::item(item, span, &grammar::steps::ALTERNATIVE, self.findings) else {
                branches.push(Branch { when: None, steps });
                continue;
            };
            let when = match fields.chosen(self.findings) {
                Some(entry) if entry.key == "when" => {
                    let steps = fields.require("steps", self.findings);
                    self.member_steps(steps, "an alternative");
                    let when = self.expr(entry, START_ROOTS, EventParts::Moment);
                    let text = when.text().trim();
                    let same = !text.is_empty() && !conditions.insert(text.to_owned());
                    if same && !always_taken && self.types.is_some() {
                        let span = fields::visible(&entry.value, &entry.key_span, self.findings.text());
                        let message = "this alternative is never taken: one before it has the same condition";
                        self.findings.error(codes::UNREACHABLE_HANDLER, span, message);
                    }
                    always_taken |= self.certain(entry, &when, certain::ALTERNATIVE);
                    Some(when)
                }
                Some(entry) => {
                    let inner = Fields::read(
                        &entry.value,
                        &entry.key_span,
                        &grammar::steps::ELSE,
                        self.findings,
                    );
                    if let Some(inner) = inner {
                        let steps = inner.require("steps", self.findings);
                        self.member_steps(steps, "an alternative");
                    }
                    if let Some(steps) = fields.get("steps") {
                        let message = "the steps of an \"else\" stand under it";
                        self.findings
                            .error(codes::CONTRADICTION, steps.key_span.clone(), message);
                    }
                    always_taken = true;
                    None
                }
                None => None,
            };
            branches.push(Branch { when, steps });
        }
        branches
    }

    /// The steps themselves are read as members of the outline.
    pub fn member_steps(&mut self, steps: Option<&Entry<'_>>, what: &str) {
        let Some(steps) = steps else { return };
        let entries = fields::entries(&steps.value, &steps.key_span, "steps", self.findings);
        if entries.is_some_and(<[Entry<'_>]>::is_empty) {
            let message = format!("{what} without steps");
            self.findings
                .error(codes::WRONG_VALUE, steps.key_span.clone(), message);
        }
    }

    /// A condition that is tested when a step would start.
    pub fn start_condition(&mut self, entry: &Entry<'_>) -> Expr {
        let condition = self.expr(entry, START_ROOTS, EventParts::Moment);
        self.certain(entry, &condition, certain::STEP);
        condition
    }
}

/// Everything nested in one alternative of the group `at`.
pub fn members(at: usize, branch: usize, outline: &[Outlined<'_, '_>]) -> Range<u16> {
    let group = u16::try_from(at).ok();
    let own = |index: &usize| {
        let mut index = *index;
        // Up to the member of the group itself.
        while let Some(within) = outline[index].within {
            if Some(within) == group {
                return outline[index].branch == branch;
            }
            index = usize::from(within);
        }
        false
    };
    let index = |index: usize| u16::try_from(index).unwrap_or(u16::MAX);
    let mut inside = (at + 1..outline.len()).filter(own);
    let Some(first) = inside.next() else {
        return 0..0;
    };
    let last = inside.next_back().unwrap_or(first);
    index(first)..index(last + 1)
}

/// For each step, the steps that come before it; where it is `certain`, only those that are over before it is.
pub fn order(definition: &Definition, certain: bool) -> Vec<Vec<u16>> {
    let needs = |step: &Step| match &step.join {
        Join::AtLeast { .. } if certain => Vec::new(),
        Join::AtLeast { .. } | Join::All => step.needs.clone(),
    };
    let mut order: Vec<Vec<u16>> = Vec::with_capacity(definition.steps.len());
    for (index, step) in (0..=u16::MAX).zip(&definition.steps) {
        let mut after = needs(step);
        // A group comes before its members, so what it waits for is known.
        let mut around = step.within.map(|group| &definition.steps[usize::from(group)]);
        while let Some(group) = around {
            after.extend(needs(group));
            around = group.within.map(|group| &definition.steps[usize::from(group)]);
        }
        if let Some(group) = definition.group(index) {
            after.extend(group.members());
        }
        after.sort_unstable();
        after.dedup();
        order.push(after);
    }
    order
}

/// The needs of a step of which some suffice.
#[derive(Debug, Clone)]
pub struct Enough {
    pub needs: Vec<u16>,
    /// Those that it does not wait for are given up when it begins.
    pub cancels: bool,
}

/// For each step, the needs of which some suffice: its own, and those of the groups around it.
pub fn joins(definition: &Definition) -> Vec<Vec<Enough>> {
    let steps = &definition.steps;
    let mut joins = Vec::with_capacity(steps.len());
    for step in steps {
        let mut own = Vec::new();
        let mut at = Some(step);
        while let Some(step) = at {
            if let Join::AtLeast { stragglers, .. } = &step.join {
                own.push(Enough {
                    needs: step.needs.clone(),
                    cancels: *stragglers == Stragglers::Cancel,
                });
            }
            at = step.within.map(|group| &steps[usize::from(group)]);
        }
        joins.push(own);
    }
    joins
}

/// Whether two steps stand in different alternatives of one choice, so that only one of them can run.
pub fn exclude_each_other(steps: &[Step], left: usize, right: usize) -> bool {
    let index = |at: usize| u16::try_from(at).unwrap_or(u16::MAX);
    let (left, right) = (index(left), index(right));
    steps.iter().any(|step| match &step.action {
        Action::Group(Group::Choice(branches)) => {
            let branch = |index: u16| branches.iter().position(|branch| branch.steps.contains(&index));
            matches!((branch(left), branch(right)), (Some(left), Some(right)) if left != right)
        }
        Action::Group(Group::Repeat(_) | Group::Foreach(_))
        | Action::Effect { .. }
        | Action::Command(_)
        | Action::Publish(_)
        | Action::Saga(_)
        | Action::UndoSaga(_)
        | Action::Nothing
        | Action::Decide(_) => false,
    })
}

/// The loop that runs `step` again and again while `from`, which is outside of it, runs once.
fn loop_around(steps: &[Step], step: usize, from: usize) -> Option<usize> {
    let from = u16::try_from(from).unwrap_or(u16::MAX);
    let mut around = steps[step].within;
    while let Some(group) = around {
        let group = usize::from(group);
        if let Action::Group(
            Group::Repeat(Repeat { steps: members, .. }) | Group::Foreach(Foreach { steps: members, .. }),
        ) = &steps[group].action
            && !members.contains(&from)
            && usize::from(from) != group
        {
            return Some(group);
        }
        around = steps[group].within;
    }
    None
}

/// Reports needs that cannot be met in the way that they look: of steps of another alternative, or of one turn
/// of a loop.
pub fn reach(definition: &Definition, outline: &[Outlined<'_, '_>], findings: &mut Findings<'_>) {
    for (at, (step, outlined)) in definition.steps.iter().zip(outline).enumerate() {
        for need in &step.needs {
            let need = usize::from(*need);
            if let Some(around) = loop_around(&definition.steps, need, at) {
                let span =
                    member(&outlined.entry.value, "needs").map_or(0..0, |needs| needs.key_span.clone());
                let (need, around) = (&definition.steps[need].name, &definition.steps[around].name);
                let message = format!(
                    "\"{}\" needs \"{need}\", which runs again and again in \"{around}\"",
                    step.name
                );
                findings
                    .error(codes::OUT_OF_REACH, span, message)
                    .help(Some(format!("write needs: [{around}]")));
                continue;
            }
            if !exclude_each_other(&definition.steps, at, need) {
                continue;
            }
            let span = member(&outlined.entry.value, "needs").map_or(0..0, |needs| needs.key_span.clone());
            let message = format!(
                "\"{}\" needs \"{}\" of another alternative: only one of them is ever taken",
                step.name, definition.steps[need].name
            );
            findings.error(codes::OUT_OF_REACH, span, message).help(Some(
                "take it out, or let the choice as a whole need what both wait for".to_owned(),
            ));
        }
    }
}

/// Reports steps of one name in different groups.
pub fn unique_names(outline: &[Outlined<'_, '_>], findings: &mut Findings<'_>) {
    let mut seen = std::collections::BTreeMap::new();
    for (at, step) in outline.iter().enumerate().filter(|(_, step)| !step.is_body) {
        let first = *seen.entry(&*step.entry.key).or_insert(at);
        if first == at {
            continue;
        }
        let line = findings.line(outline[first].entry.key_span.start);
        let message = format!(
            "step \"{}\" is there already, in line {line}; names are unique across groups",
            step.entry.key.escape_debug()
        );
        findings.error(codes::DUPLICATE_NAME, step.entry.key_span.clone(), message);
    }
}

impl Step {
    /// A step that holds others and does nothing itself.
    pub fn group(name: String, needs: Vec<u16>, condition: Option<Expr>, group: Group) -> Self {
        Self {
            needs,
            join: Join::All,
            condition,
            ..Self::doing(name, Action::Group(group))
        }
    }

    /// A step with nothing but its action.
    pub fn doing(name: String, action: Action) -> Self {
        Self {
            name,
            within: None,
            state: None,
            emitted: false,
            at_end: false,
            needs: Vec::new(),
            join: Join::All,
            condition: None,
            delay: None,
            action,
            wait: None,
            retry: Vec::new(),
            on_error: std::collections::BTreeMap::new(),
            set: Vec::new(),
            keeps_result: false,
            fail_if: None,
            aliases: Vec::new(),
            compensate: None,
            stays_done: false,
            timeout_ms: super::model::EFFECT_TIMEOUT_MS,
            deadline: None,
        }
    }
}
