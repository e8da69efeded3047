//! The branches of a definition: everything that may or may not happen in an instance, with its line.
//!
//! A branch is named by its place and what happens there, as [`super::coverage`] hears it from the kernel.

use std::collections::BTreeMap;

use crate::kernel::definition::fields;
use crate::kernel::definition::findings::Findings;
use crate::kernel::definition::model::{
    Action, Actions, Compensation, Complete, DEADLINE, Emission, Finally, Group, Handler, OF_FINALLY,
    OF_HANDLERS, OF_MACHINE, OF_TIMERS, OnUnknown, RepeatCondition, State, Step, TimerDefinition,
};
use crate::kernel::definition::yaml::{self, Entry, Node, Value};
use crate::kernel::definition::{Definition, SourceFile};
use crate::kernel::expr::Root;

use super::suite::position;

/// Something that a case can make happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// `steps.approve.if is false`
    pub name: String,
    /// 1-based line in the file of the saga.
    pub line: usize,
}

/// An operator, or the parent, cancels an instance that has something to undo.
pub const CANCELLED: &str = "a cancel is taken";

/// Part of the way to a place in the file.
#[derive(Debug, Clone, Copy)]
enum Part<'p> {
    Key(&'p str),
    Index(usize),
    /// A step of this name, in whatever group it stands.
    Step(&'p str),
    /// What has this `name` in a list.
    Named(&'p str),
}

use Part::{Index, Key};

/// All branches, in the order of the definition.
#[must_use]
pub fn all(definition: &Definition, file: &SourceFile) -> Vec<Branch> {
    let mut findings = Findings::new(&file.path, &file.text);
    let mut lister = Lister {
        root: yaml::parse(&file.text, &mut findings),
        text: &file.text,
        found: Vec::new(),
    };
    lister.starts_and_handlers(definition);
    // Of an effect of a handler, the work itself is counted.
    let is_counted = |step: &&Step| !(step.emitted && matches!(step.action, Action::Group(_)));
    for step in definition.steps.iter().filter(is_counted) {
        lister.step(definition, step);
    }
    if definition.steps.iter().any(|step| step.compensate.is_some()) {
        lister.add(CANCELLED.to_owned(), &[Key("name")]);
    }
    for state in definition.machine.iter().flat_map(|machine| &machine.states) {
        lister.state(definition, state);
    }
    for timer in &definition.timers {
        lister.timer(timer);
    }
    if definition.cancel_when.is_some() {
        lister.condition("cancel_when", &[Key("cancel_when")]);
    }
    lister.finally(&definition.finally);
    lister.found
}

/// Handlers of the ends of effects, as the file names them: `result.charge`, `error.charge`.
fn of_effects<'d>(
    definition: &'d Definition,
    results: &'d BTreeMap<u16, Vec<Handler>>,
    errors: &'d BTreeMap<u16, Vec<Handler>>,
) -> impl Iterator<Item = (String, &'d [Handler])> {
    let ends = [("result", results), ("error", errors)].into_iter();
    ends.flat_map(move |(end, by_step)| {
        by_step.iter().map(move |(step, handlers)| {
            let step = definition.steps.get(usize::from(*step));
            let name = step.map_or("", |step| step.name.as_str());
            let effect = name.rsplit_once('.').map_or(name, |(_, effect)| effect);
            (format!("{end}.{effect}"), handlers.as_slice())
        })
    })
}

/// What the names of steps begin with that a state, a timer or a handler emits: their places begin so, too.
const EMITTED: [&str; 3] = [OF_MACHINE, OF_TIMERS, OF_HANDLERS];

struct Lister<'t> {
    root: Option<Node<'t>>,
    text: &'t str,
    found: Vec<Branch>,
}

impl Lister<'_> {
    /// The rules of the start, and the handlers of the saga.
    fn starts_and_handlers(&mut self, definition: &Definition) {
        for (index, rule) in definition.lifecycle.rules.iter().enumerate() {
            if rule.when.is_some() {
                let at = [Key("start"), Index(index), Key("when")];
                self.condition(&format!("start[{index}].when"), &at);
            }
        }
        for (event, handlers) in &definition.handlers {
            self.handlers(
                &format!("handlers.{event}"),
                &[Key("handlers"), Key(event)],
                handlers,
            );
        }
        for (key, handlers) in of_effects(
            definition,
            &definition.result_handlers,
            &definition.error_handlers,
        ) {
            self.handlers(
                &format!("handlers.{key}"),
                &[Key("handlers"), Key(&key)],
                handlers,
            );
        }
        for (event, handlers) in &definition.lifecycle.after_end {
            let at = [Key("after_end"), Key(event)];
            self.handlers(&format!("after_end.{event}"), &at, handlers);
        }
    }

    /// A state of the machine: that it is entered, what its entry does, and its handlers.
    fn state(&mut self, definition: &Definition, state: &State) {
        let at = [Key("machine"), Key("states"), Key(&state.name)];
        self.add(format!("machine.{} is entered", state.name), &at);
        let place = format!("machine.{}.entry", state.name);
        let entry = [&at[..], &[Key("entry")]].concat();
        self.complete(&place, state.entry.complete.as_ref(), &entry);
        let emit = [&entry[..], &[Key("emit")]].concat();
        self.emissions(&place, &state.entry.emit, &emit);
        for (event, handlers) in &state.handlers {
            let at = [&at[..], &[Key("handlers"), Key(event)]].concat();
            self.handlers(&format!("machine.{}.handlers.{event}", state.name), &at, handlers);
        }
        for (timer, handlers) in &state.timer_handlers {
            let key = format!("timer.{timer}");
            let at = [&at[..], &[Key("handlers"), Key(&key)]].concat();
            self.handlers(&format!("machine.{}.timer.{timer}", state.name), &at, handlers);
        }
        for (key, handlers) in of_effects(definition, &state.result_handlers, &state.error_handlers) {
            let at = [&at[..], &[Key("handlers"), Key(&key)]].concat();
            self.handlers(&format!("machine.{}.{key}", state.name), &at, handlers);
        }
    }

    /// A timer of the saga.
    fn timer(&mut self, timer: &TimerDefinition) {
        let at = match timer.name.as_str() {
            DEADLINE if self.has(DEADLINE) => vec![Key(DEADLINE)],
            name => vec![Key("timers"), Key(name)],
        };
        self.add(format!("timers.{} fires", timer.name), &at);
        let place = format!("timers.{}", timer.name);
        self.complete(&place, timer.actions.complete.as_ref(), &at);
        self.interrupt(&place, &timer.actions, &at);
        let emit = [&at[..], &[Key("emit")]].concat();
        self.emissions(&format!("{place}.emit"), &timer.actions.emit, &emit);
        if timer.cancel_when.is_some() {
            let at = [&at[..], &[Key("cancel_when")]].concat();
            self.condition(&format!("timers.{}.cancel_when", timer.name), &at);
        }
    }

    /// What follows the end, by outcome.
    fn finally(&mut self, finally: &Finally) {
        for (outcome, emits) in [
            ("completed", &finally.completed),
            ("failed", &finally.failed),
            ("cancelled", &finally.cancelled),
        ] {
            if !emits.is_empty() {
                self.add(
                    format!("finally.{outcome} is reached"),
                    &[Key("finally"), Key(outcome)],
                );
            }
            let place = format!("finally.{outcome}");
            self.emissions(&place, emits, &[Key("finally"), Key(outcome)]);
        }
    }

    fn handlers(&mut self, place: &str, at: &[Part<'_>], handlers: &[Handler]) {
        for (index, handler) in handlers.iter().enumerate() {
            let place = format!("{place}[{index}]");
            let at = [at, &[Index(index)]].concat();
            self.add(format!("{place} is taken"), &at);
            if handler.when.is_some() {
                let at = [&at[..], &[Key("when")]].concat();
                self.add(format!("{place}.when is false"), &at);
            }
            self.complete(&place, handler.actions.complete.as_ref(), &at);
            self.interrupt(&place, &handler.actions, &at);
            let at = [&at[..], &[Key("emit")]].concat();
            self.emissions(&format!("{place}.emit"), &handler.actions.emit, &at);
        }
    }

    /// Emissions that have a condition.
    fn emissions(&mut self, place: &str, emits: &[Emission], at: &[Part<'_>]) {
        for (index, emission) in emits.iter().enumerate() {
            if emission.when.is_some() {
                let at = [at, &[Index(index), Key("when")]].concat();
                self.condition(&format!("{place}[{index}].when"), &at);
            }
        }
    }

    /// A step that is ended from here, where it is under way.
    fn interrupt(&mut self, place: &str, actions: &Actions, at: &[Part<'_>]) {
        if actions.interrupt.is_some() {
            let at = [at, &[Key("interrupt")]].concat();
            self.add(format!("{place}.interrupt is taken"), &at);
        }
    }

    /// An early end that has a condition.
    fn complete(&mut self, place: &str, complete: Option<&Complete>, at: &[Part<'_>]) {
        if complete.is_some_and(|complete| complete.when.is_some()) {
            let at = [at, &[Key("complete"), Key("when")]].concat();
            self.condition(&format!("{place}.complete.when"), &at);
        }
    }

    fn step(&mut self, definition: &Definition, step: &Step) {
        let name = &step.name;
        let at = way(step);
        let under = |key| [&at[..], &[Key(key)]].concat();
        let in_choice = step.within.is_some_and(|group| {
            let group = definition.group(group);
            matches!(group, Some(Group::Choice(_)))
        });
        if step.condition.is_some() {
            self.condition(&format!("steps.{name}.if"), &under("if"));
        }
        if step.condition.is_some() || in_choice {
            self.add(format!("steps.{name} is skipped"), &at);
        }
        self.add(format!("steps.{name} is done"), &at);
        if let Action::Group(group) = &step.action {
            self.group(definition, name, group);
        } else if can_fail(step) {
            self.add(format!("steps.{name} fails"), &at);
        }
        if let Action::Decide(decision) = &step.action {
            self.complete(&format!("steps.{name}"), decision.complete.as_ref(), &at);
        }
        if step.fail_if.is_some() {
            self.condition(&format!("steps.{name}.fail_if"), &under("fail_if"));
        }
        if let Some(wait) = &step.wait {
            self.add(format!("steps.{name} waits"), &under("wait"));
            for (index, awaiting) in wait.any.iter().enumerate() {
                let (place, at) = if wait.is_list {
                    let at = [&at[..], &[Key("wait"), Key("any"), Index(index)]].concat();
                    let place = format!("steps.{name}.wait.any[{index}]");
                    self.add(format!("{place} is taken"), &at);
                    (place, at)
                } else {
                    (format!("steps.{name}.wait"), under("wait"))
                };
                if awaiting.when.is_some() {
                    self.condition(&format!("{place}.when"), &[&at[..], &[Key("when")]].concat());
                }
            }
        }
        if !step.retry.is_empty() {
            self.add(format!("steps.{name}.retry is used"), &under("retry"));
        }
        for (class, answers) in &step.on_error {
            for (index, answer) in answers.iter().enumerate() {
                let at = [&at[..], &[Key("on_error"), Key(class), Index(index)]].concat();
                let place = match answers.len() {
                    1 => format!("steps.{name}.on_error.{class}"),
                    _ => format!("steps.{name}.on_error.{class}[{index}]"),
                };
                self.add(format!("{place} is taken"), &at);
                if answer.when.is_some() {
                    let at = [&at[..], &[Key("when")]].concat();
                    self.add(format!("{place}.when is false"), &at);
                }
                self.complete(&place, answer.complete.as_ref(), &at);
            }
        }
        if let Some(compensation) = &step.compensate {
            self.compensation(definition, step, compensation, &under("compensate"));
        }
    }

    fn compensation(
        &mut self,
        definition: &Definition,
        step: &Step,
        compensation: &Compensation,
        at: &[Part<'_>],
    ) {
        let name = &step.name;
        self.add(format!("steps.{name}.compensate is run"), at);
        let place = if EMITTED.iter().any(|of| name.starts_with(of)) {
            format!("{name}.compensate")
        } else {
            format!("steps.{name}.compensate")
        };
        let under = |key| [at, &[Key(key)]].concat();
        if compensation.when.is_some() {
            self.condition(&format!("{place}.when"), &under("when"));
        }
        if compensation.undoes_failed {
            self.add(format!("{place}.on_failed is taken"), &under("on_failed"));
        }
        if compensation.on_unknown != OnUnknown::Ignore && may_be_unknown(definition, step) {
            self.add(format!("{place}.on_unknown is taken"), &under("on_unknown"));
        }
        if !matches!(compensation.action, Action::Publish(_)) {
            self.add(format!("{place}.on_exhausted is taken"), &under("on_exhausted"));
        }
        if compensation.reads(Root::Late) {
            self.add(format!("{place}.late is taken"), at);
        }
    }

    fn group(&mut self, definition: &Definition, name: &str, group: &Group) {
        match group {
            Group::Choice(branches) => {
                for (index, _) in branches.iter().enumerate() {
                    let at = [Part::Step(name), Key("choice"), Index(index)];
                    self.add(format!("steps.{name}.choice[{index}] is taken"), &at);
                }
            }
            Group::Repeat(repeat) => {
                let word = match repeat.condition {
                    RepeatCondition::Until(_) => "until",
                    RepeatCondition::While(_) => "while",
                };
                let at = [Part::Step(name), Key("repeat"), Key(word)];
                self.condition(&format!("steps.{name}.repeat.{word}"), &at);
                self.add(format!("steps.{name} fails"), &at[..2]);
            }
            Group::Foreach(foreach) => {
                let at = [Part::Step(name), Key("foreach")];
                self.add(format!("steps.{name}.foreach item is done"), &at);
                let own = group.members();
                let members = &definition.steps[usize::from(own.start)..usize::from(own.end)];
                if members.iter().any(can_fail) {
                    self.add(format!("steps.{name}.foreach item fails"), &at);
                }
                if foreach.tolerate.is_some() {
                    let at = [&at[..], &[Key("tolerate")]].concat();
                    self.add(format!("steps.{name}.foreach.tolerate is taken"), &at);
                }
                self.add(format!("steps.{name} fails"), &at);
            }
        }
    }

    /// Whether the file has this key.
    fn has(&self, key: &str) -> bool {
        let entries = match self.root.as_ref().map(|root| &root.value) {
            Some(Value::Map(entries)) => entries.as_slice(),
            Some(Value::Scalar(_) | Value::List(_)) | None => &[],
        };
        entries.iter().any(|entry| entry.key == key)
    }

    fn condition(&mut self, place: &str, at: &[Part<'_>]) {
        for held in [true, false] {
            self.add(format!("{place} is {held}"), at);
        }
    }

    fn add(&mut self, name: String, at: &[Part<'_>]) {
        let offset = self.root.as_ref().map_or(0, |root| place(root, at));
        let line = position(self.text, offset).0;
        self.found.push(Branch { name, line });
    }
}

/// What says a fact or lets time pass does not fail by itself, and a choice fails with what it has chosen.
fn can_fail(step: &Step) -> bool {
    let asks = match &step.action {
        Action::Publish(_) | Action::Nothing | Action::Decide(_) | Action::Group(Group::Choice(_)) => false,
        Action::Effect { .. }
        | Action::Command(_)
        | Action::Saga(_)
        | Action::UndoSaga(_)
        | Action::Group(Group::Repeat(_) | Group::Foreach(_)) => true,
    };
    asks || step.wait.is_some() || step.fail_if.is_some()
}

/// Whether nobody may know whether the step has happened. Of an effect that asks then an operator knows.
fn may_be_unknown(definition: &Definition, step: &Step) -> bool {
    match &step.action {
        Action::Effect { effect, .. } => {
            let contract = definition.effects.get(effect);
            !contract.is_some_and(|contract| contract.asks)
        }
        Action::Command(_) | Action::Saga(_) => true,
        Action::Publish(_) | Action::UndoSaga(_) | Action::Nothing | Action::Decide(_) | Action::Group(_) => {
            false
        }
    }
}

/// Where a place begins, as far as the way to it can be followed.
fn place(root: &Node<'_>, at: &[Part<'_>]) -> usize {
    let (mut node, mut offset) = (root, root.span.start);
    for part in at {
        let next = match (part, &node.value) {
            (Part::Key(key), Value::Map(entries)) => entries
                .iter()
                .find(|entry| entry.key == *key)
                .map(|entry| (&entry.value, entry.key_span.start)),
            (Part::Index(index), Value::List(items)) => items.get(*index).map(|item| (item, item.span.start)),
            // One handler that stands for a list of one.
            (Part::Index(_), _) => Some((node, offset)),
            (Part::Step(name), _) => step(node, name, false),
            (Part::Named(name), _) => named(node, name),
            _ => None,
        };
        let Some((found, start)) = next else {
            return offset;
        };
        (node, offset) = (found, start);
    }
    offset
}

/// The way to a step: of the file, of the entry of a state, or of the end.
fn way(step: &Step) -> Vec<Part<'_>> {
    let named = |prefix: &str| step.name.strip_prefix(prefix)?.rsplit_once('.');
    if let Some((state, name)) = named(OF_MACHINE) {
        let entry = [
            Key("machine"),
            Key("states"),
            Key(state),
            Key("entry"),
            Key("emit"),
        ];
        return [&entry[..], &[Part::Named(name)]].concat();
    }
    let of_handler = step.title().strip_prefix(OF_HANDLERS);
    if let Some((handled, name)) = of_handler.and_then(|name| name.rsplit_once('.')) {
        return vec![Key("handlers"), Key(handled), Key("emit"), Part::Named(name)];
    }
    if let Some((timer, name)) = named(OF_TIMERS) {
        return vec![Key("timers"), Key(timer), Key("emit"), Part::Named(name)];
    }
    match named(OF_FINALLY) {
        Some((outcome, name)) => vec![Key("finally"), Key(outcome), Part::Named(name)],
        None => vec![Part::Step(step.title())],
    }
}

/// The item of a list, or the one that stands for a list, that has this `name`.
fn named<'n, 't>(node: &'n Node<'t>, name: &str) -> Option<(&'n Node<'t>, usize)> {
    let items = fields::one_or_many(node).iter();
    let mut names = items.filter_map(|item| Some((item, member(item, "name")?)));
    let is_it = |(_, entry): &(&Node<'_>, &Entry<'_>)| matches!(&entry.value.value, Value::Scalar(scalar) if scalar.text == name);
    names
        .find(is_it)
        .map(|(item, entry)| (item, entry.key_span.start))
}

fn member<'n, 't>(node: &'n Node<'t>, key: &str) -> Option<&'n Entry<'t>> {
    match &node.value {
        Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
        Value::Scalar(_) | Value::List(_) => None,
    }
}

/// The step `name`: a key of a map that is called `steps`, at any depth.
fn step<'n, 't>(node: &'n Node<'t>, name: &str, in_steps: bool) -> Option<(&'n Node<'t>, usize)> {
    match &node.value {
        Value::Scalar(_) => None,
        Value::List(items) => items.iter().find_map(|item| step(item, name, false)),
        Value::Map(entries) => entries
            .iter()
            .find(|entry| in_steps && entry.key == name)
            .map(|entry| (&entry.value, entry.key_span.start))
            .or_else(|| {
                let mut entries = entries.iter();
                entries.find_map(|entry| step(&entry.value, name, entry.key == "steps"))
            }),
    }
}
