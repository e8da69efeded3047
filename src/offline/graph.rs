//! A saga as a graph: steps with what they need, how they are undone and what ends them from outside, timers that do work, and
//! the states of its machine.

use std::fmt::Write as _;

use crate::kernel::definition::Definition;
use crate::kernel::definition::model::{
    Action, Actions, Count, Decision, Delay, Emission, Emit, Group, Join, RepeatCondition, Step, Telling,
    Then,
};

use crate::kernel::duration::Millis;

/// What a node stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The event that starts an instance.
    Start,
    Step,
    /// A group of steps, such as a choice.
    Group,
    Compensation,
    State,
    FinalState,
    /// A timer that begins effects or ends a step.
    Timer,
    /// An event or signal that ends a step.
    Event,
}

/// What an edge stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The second comes after the first.
    Flow,
    /// The second is a part of the first.
    Part,
    /// The second undoes the first.
    Undo,
    /// Something went wrong in the first, and the second begins again.
    Back,
    /// From state to state.
    Transition,
    /// The first ends the second while that is under way.
    Interrupt,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vertex {
    pub kind: Kind,
    /// Name and, in a second line, what it does.
    pub lines: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    pub from: usize,
    pub to: usize,
    pub link: Link,
    pub label: String,
}

/// Vertices and edges in the order of the definition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    pub title: String,
    pub vertices: Vec<Vertex>,
    pub edges: Vec<Edge>,
}

impl Graph {
    /// Draws what there is of `definition`; every vertex is named in it.
    #[must_use]
    pub fn of(definition: &Definition) -> Self {
        let mut graph = Self {
            title: definition.name.to_string(),
            ..Self::default()
        };
        let mut starts = Vec::new();
        if !definition.start.is_empty() || definition.schedule.is_none() {
            starts.push(definition.start.join(", "));
        }
        if let Some(schedule) = &definition.schedule {
            starts.push(format!("{} {}", schedule.cron.text(), schedule.zone.name()));
        }
        let start = graph.add(Kind::Start, starts);
        let steps = graph.steps(definition, start);
        graph.timers(definition, start, &steps);
        graph.interrupts(definition, &steps);
        graph.machine(definition, start, &steps);
        if let Some(program) = &definition.program {
            let mut lines = vec![program.file.clone()];
            lines.extend(program.effects.iter().map(ToString::to_string));
            lines.extend(program.commands.iter().cloned());
            let program = graph.add(Kind::Group, lines);
            graph.link(start, program, Link::Flow, "");
        }
        graph
    }

    fn add(&mut self, kind: Kind, lines: Vec<String>) -> usize {
        self.vertices.push(Vertex { kind, lines });
        self.vertices.len() - 1
    }

    fn link(&mut self, from: usize, to: usize, link: Link, label: impl Into<String>) {
        let label = label.into();
        // Two reasons to go from one state to another share an edge.
        let mut edges = self.edges.iter_mut();
        match edges.find(|edge| (edge.from, edge.to, edge.link) == (from, to, link)) {
            Some(edge) if edge.label != label => {
                let _ = write!(edge.label, ", {label}");
            }
            Some(_) => {}
            None => self.edges.push(Edge {
                from,
                to,
                link,
                label,
            }),
        }
    }

    /// Tells where each step is.
    fn steps(&mut self, definition: &Definition, start: usize) -> Vec<usize> {
        let at: Vec<usize> = definition
            .steps
            .iter()
            .map(|step| {
                let kind = match step.action {
                    Action::Group(_) => Kind::Group,
                    _ => Kind::Step,
                };
                self.add(kind, lines(step))
            })
            .collect();
        let condition = |step: &Step| {
            let condition = step.condition.as_ref();
            condition.map_or_else(String::new, |condition| format!("if {}", condition.text()))
        };
        for (step, to) in definition.steps.iter().zip(&at) {
            let label = condition(step);
            for need in &step.needs {
                self.link(at[usize::from(*need)], *to, Link::Flow, label.clone());
            }
            match step.within {
                Some(group) if step.needs.is_empty() => {
                    self.link(at[usize::from(group)], *to, Link::Part, label);
                }
                None if step.needs.is_empty() && step.is_own() => {
                    self.link(start, *to, Link::Flow, label);
                }
                Some(_) | None => {}
            }
            for (class, answers) in &step.on_error {
                for answer in answers {
                    if let Then::GoTo(target) = answer.then {
                        self.link(*to, at[usize::from(target)], Link::Back, class.clone());
                    }
                }
            }
            if let Some(compensation) = &step.compensate {
                let undo = self.add(Kind::Compensation, vec![action(&compensation.action)]);
                self.link(*to, undo, Link::Undo, "");
            }
        }
        at
    }

    /// Timers that begin effects or end a step, with the step that they run along with.
    fn timers(&mut self, definition: &Definition, start: usize, steps: &[usize]) {
        for timer in &definition.timers {
            let actions = &timer.actions;
            let has_effects = actions.emit.iter().any(|emission| effect(emission).is_some());
            if !has_effects && actions.interrupt.is_none() {
                continue;
            }
            let mut lines = vec![timer.name.clone()];
            match &timer.every {
                Some(every) => lines.push(format!("every {}", span(every))),
                None => lines.push(format!("after {}", span(&timer.after))),
            }
            let at = self.add(Kind::Timer, lines);
            match timer.during {
                Some(step) => self.link(steps[usize::from(step)], at, Link::Part, "during"),
                None => self.link(start, at, Link::Flow, ""),
            }
            self.effects(at, &actions.emit, steps);
            self.interrupt(at, actions, steps, "");
        }
    }

    /// The effects that are emitted from `from`.
    fn effects(&mut self, from: usize, emits: &[Emission], steps: &[usize]) {
        for emission in emits {
            let Some(step) = effect(emission) else { continue };
            let when = emission.when.as_ref();
            let label = when.map_or_else(String::new, |when| format!("if {}", when.text()));
            self.link(from, steps[usize::from(step)], Link::Flow, label);
        }
    }

    /// The step that is ended from `from`, because of `what` if that says more.
    fn interrupt(&mut self, from: usize, actions: &Actions, steps: &[usize], what: &str) {
        if let Some(interrupt) = &actions.interrupt {
            let label = match what {
                "" => interrupt.class.clone(),
                what => format!("{what}: {}", interrupt.class),
            };
            self.link(from, steps[usize::from(interrupt.step)], Link::Interrupt, label);
        }
    }

    /// What ends steps and is heard by the whole saga.
    fn interrupts(&mut self, definition: &Definition, steps: &[usize]) {
        let of_effects = [&definition.result_handlers, &definition.error_handlers];
        for (step, handlers) in of_effects.into_iter().flatten() {
            for handler in handlers {
                self.interrupt(steps[usize::from(*step)], &handler.actions, steps, "");
            }
        }
        for (event, handlers) in &definition.handlers {
            if handlers.iter().all(|handler| handler.actions.interrupt.is_none()) {
                continue;
            }
            let at = self.add(Kind::Event, vec![event.clone()]);
            for handler in handlers {
                self.interrupt(at, &handler.actions, steps, "");
            }
        }
    }

    fn machine(&mut self, definition: &Definition, start: usize, steps: &[usize]) {
        let Some(machine) = &definition.machine else {
            return;
        };
        let at: Vec<usize> = machine
            .states
            .iter()
            .map(|state| {
                let kind = if state.is_final {
                    Kind::FinalState
                } else {
                    Kind::State
                };
                self.add(kind, vec![state.name.clone()])
            })
            .collect();
        self.link(start, at[usize::from(machine.initial)], Link::Flow, "");
        for (state, from) in machine.states.iter().zip(&at) {
            let to = |actions: &Actions| actions.to.map(|to| at[usize::from(to)]);
            if let Some(to) = to(&state.entry) {
                self.link(*from, to, Link::Transition, "entry");
            }
            self.effects(*from, &state.entry.emit, steps);
            let events = state
                .handlers
                .iter()
                .map(|(event, handlers)| (event.clone(), handlers));
            let timers = state.timer_handlers.iter();
            let timers = timers.map(|(timer, handlers)| (format!("timer.{timer}"), handlers));
            let ends = [
                ("result", &state.result_handlers),
                ("error", &state.error_handlers),
            ];
            let ends = ends.into_iter().flat_map(|(end, by_step)| {
                by_step.iter().map(move |(step, handlers)| {
                    let step = definition.steps.get(usize::from(*step));
                    let name = step.map_or("", |step| step.name.as_str());
                    let effect = name.rsplit_once('.').map_or(name, |(_, effect)| effect);
                    (format!("{end}.{effect}"), handlers)
                })
            });
            for (what, handlers) in events.chain(timers).chain(ends) {
                for handler in handlers {
                    if let Some(to) = to(&handler.actions) {
                        self.link(*from, to, Link::Transition, what.clone());
                    }
                    self.interrupt(*from, &handler.actions, steps, &what);
                }
            }
        }
        for timer in &definition.timers {
            if let Some(to) = timer.actions.to {
                let to = at[usize::from(to)];
                for from in at.iter().filter(|from| **from != to) {
                    self.link(*from, to, Link::Transition, format!("timer.{}", timer.name));
                }
            }
        }
    }

    /// The graph as a Mermaid flowchart.
    #[must_use]
    pub fn mermaid(&self) -> String {
        let mut out = format!("---\ntitle: {}\n---\nflowchart TD\n", self.title);
        for (index, vertex) in self.vertices.iter().enumerate() {
            let text: Vec<String> = vertex.lines.iter().map(|line| mermaid_text(line)).collect();
            let text = text.join("<br/>");
            let (open, close) = match vertex.kind {
                Kind::Start => ("([", "])"),
                Kind::Step => ("[", "]"),
                Kind::Group => ("{{", "}}"),
                Kind::Compensation => ("[/", "/]"),
                Kind::State => ("(", ")"),
                Kind::FinalState => ("(((", ")))"),
                Kind::Timer => ("[\\", "/]"),
                Kind::Event => (">", "]"),
            };
            let _ = writeln!(out, "  n{index}{open}\"{text}\"{close}");
        }
        for edge in &self.edges {
            let arrow = match edge.link {
                Link::Flow | Link::Transition => "-->",
                Link::Part => "---",
                Link::Undo | Link::Back => "-.->",
                Link::Interrupt => "--x",
            };
            let label = if edge.label.is_empty() {
                String::new()
            } else {
                format!("|\"{}\"|", mermaid_text(&edge.label))
            };
            let _ = writeln!(out, "  n{} {arrow}{label} n{}", edge.from, edge.to);
        }
        out
    }
}

/// The step that stands for an effect which is emitted.
fn effect(emission: &Emission) -> Option<u16> {
    match emission.emit {
        Emit::Effect(step) => Some(step),
        Emit::Command(_) | Emit::Publish(_) => None,
    }
}

fn span(delay: &Delay) -> String {
    match delay {
        Delay::Fixed(ms) => Millis(u64::try_from(*ms).unwrap_or(0)).to_string(),
        Delay::Rendered(_) => "as an expression says".to_owned(),
    }
}

fn lines(step: &Step) -> Vec<String> {
    let name = step.title().to_owned();
    let second = match &step.action {
        Action::Group(Group::Choice(_)) => "choice".to_owned(),
        Action::Group(Group::Repeat(repeat)) => match &repeat.condition {
            RepeatCondition::Until(condition) => format!("until {}", condition.text()),
            RepeatCondition::While(condition) => format!("while {}", condition.text()),
        },
        Action::Group(Group::Foreach(foreach)) => format!("for each of {}", foreach.over.text()),
        other => action(other),
    };
    let join = match &step.join {
        Join::All => None,
        Join::AtLeast { count, .. } => {
            let count = match count {
                Count::Fixed(number) => number.to_string(),
                Count::Computed(expr) => expr.text().to_owned(),
            };
            Some(format!("needs {count} of {}", step.needs.len()))
        }
    };
    [name, second].into_iter().chain(join).collect()
}

fn action(action: &Action) -> String {
    match action {
        Action::Effect { effect, .. } => effect.to_string(),
        Action::Command(command) => command.command_type.clone(),
        Action::Publish(Telling::Fact(publish)) => publish.fact_type.clone(),
        Action::Publish(Telling::Signal(signal)) => format!("signal {}", signal.name),
        Action::Saga(child) => format!("saga {}", child.saga),
        Action::UndoSaga(saga) => format!("undo saga {saga}"),
        Action::Decide(decision) => decided(decision),
        Action::Nothing | Action::Group(_) => String::new(),
    }
}

fn decided(decision: &Decision) -> String {
    let complete = decision
        .complete
        .iter()
        .map(|end| format!("complete {}", end.outcome));
    let fail = decision.fail.iter().map(|fail| format!("fail {}", fail.code));
    let cancel = decision.cancel.iter().map(|_| "cancel".to_owned());
    let ends: Vec<String> = complete.chain(cancel).chain(fail).collect();
    if ends.is_empty() {
        "set".to_owned()
    } else {
        ends.join(" or ")
    }
}

/// Text within the quotes of a Mermaid label.
fn mermaid_text(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' | '<' | '>' | '&' | '#' | '`' | '|' => {
                let _ = write!(out, "#{};", u32::from(c));
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
