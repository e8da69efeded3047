//! A saga as a graph: steps with what they need, how they are undone and what ends them from outside, timers that do work, and
//! the states of its machine.
//!
//! The one place that says what belongs to the graph of a definition: pictures of files and the graph of an instance are made from it.

mod words;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::words::{action, cut, does, span};
use super::model::{
    Action, Actions, Definition, Emission, Emit, Group, Handler, Machine, OnError, Step, Then,
};

/// Most vertices. Steps, compensations and states are always in the graph, since a definition has at most 256 of each; timers and
/// events have the room that is left.
pub const VERTICES_MAX: usize = 1_024;
/// Most edges.
pub const EDGES_MAX: usize = 4_096;
/// Most bytes of names and labels; when they are used up, no timer, event or edge is added.
pub const TEXT_BYTES_MAX: usize = 512 * 1_024;

/// What a node stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// What starts an instance.
    Start,
    Step,
    /// A step that waits and does nothing else.
    Wait,
    /// A group of steps of which one alternative is taken.
    Choice,
    /// A loop with a condition.
    Repeat,
    /// A loop over a list.
    Foreach,
    Program,
    Compensation,
    State,
    FinalState,
    /// A timer that begins effects or ends a step.
    Timer,
    /// An event or signal that ends a step.
    Event,
}

/// What an edge stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// The second comes after the first.
    Next,
    /// The second is a part of the first.
    Part,
    /// The second undoes the first.
    Undo,
    /// Something went wrong in the first, and the second begins again.
    OnFailure,
    /// From state to state.
    Transition,
    /// The first ends the second while that is under way.
    Interrupt,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vertex {
    pub kind: Kind,
    /// Unique in the graph, and the same for every version that calls the part the same: `step:charge`, `undo:charge`.
    pub id: String,
    pub name: String,
    /// What it does, in lines.
    pub does: Vec<String>,
}

impl Vertex {
    /// What is written into a picture of it.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        // The arrow to a compensation tells what it belongs to.
        let name = (self.kind != Kind::Compensation || self.does.is_empty()).then_some(&self.name);
        name.into_iter().chain(&self.does).map(String::as_str)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    pub from: usize,
    pub to: usize,
    pub link: Link,
    /// The condition, the error class or the event, where there is one.
    pub label: String,
}

/// Vertices and edges in the order of the definition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    pub title: String,
    pub vertices: Vec<Vertex>,
    pub edges: Vec<Edge>,
    /// There are more timers, events or edges than the bounds allow.
    pub more: bool,
}

/// Which vertices the parts of a definition are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    pub start: usize,
    /// By step.
    pub steps: Vec<usize>,
    /// By step.
    pub compensations: BTreeMap<u16, usize>,
    /// By machine state.
    pub states: Vec<usize>,
    /// By name.
    pub timers: BTreeMap<String, usize>,
    pub program: Option<usize>,
}

impl Graph {
    /// What there is of `definition`; every step, compensation and state is named in it.
    #[must_use]
    pub fn of(definition: &Definition) -> Self {
        Self::placed(definition).0
    }

    /// The same, and where in it each part of the definition is.
    #[must_use]
    pub fn placed(definition: &Definition) -> (Self, Places) {
        let mut drawing = Drawing {
            definition,
            graph: Self {
                title: definition.name.to_string(),
                ..Self::default()
            },
            at: Places::default(),
            known: BTreeMap::new(),
            bytes: 0,
        };
        drawing.draw();
        (drawing.graph, drawing.at)
    }
}

struct Drawing<'d> {
    definition: &'d Definition,
    graph: Graph,
    at: Places,
    /// Edges by what they link.
    known: BTreeMap<(usize, usize, Link), usize>,
    /// Of names and labels so far.
    bytes: usize,
}

impl Drawing<'_> {
    fn draw(&mut self) {
        self.start();
        self.steps();
        self.compensations();
        self.order();
        self.errors();
        self.timers();
        self.interrupts();
        if let Some(machine) = &self.definition.machine {
            self.machine(machine);
        }
        self.program();
    }

    fn add(&mut self, kind: Kind, id: String, name: &str, does: &[String]) -> usize {
        let vertex = Vertex {
            kind,
            id,
            name: cut(name),
            does: does
                .iter()
                .filter(|line| !line.is_empty())
                .map(|line| cut(line))
                .collect(),
        };
        self.bytes += vertex.id.len() + vertex.lines().map(str::len).sum::<usize>();
        self.graph.vertices.push(vertex);
        self.graph.vertices.len() - 1
    }

    /// Adds a vertex of which there may be any number, while there is room.
    fn add_more(&mut self, kind: Kind, id: String, name: &str, does: &[String]) -> Option<usize> {
        if self.graph.vertices.len() >= VERTICES_MAX || self.bytes >= TEXT_BYTES_MAX {
            self.graph.more = true;
            return None;
        }
        Some(self.add(kind, id, name, does))
    }

    fn link(&mut self, from: usize, to: usize, link: Link, label: &str) {
        // Two reasons to go from one vertex to another share an edge.
        if let Some(at) = self.known.get(&(from, to, link)) {
            let edge = &mut self.graph.edges[*at];
            let is_told = label.is_empty() || edge.label.split(", ").any(|told| told == label);
            if !is_told {
                let before = edge.label.len();
                if before > 0 {
                    edge.label.push_str(", ");
                }
                edge.label.push_str(label);
                edge.label = cut(&edge.label);
                self.bytes += edge.label.len() - before.min(edge.label.len());
            }
            return;
        }
        if self.graph.edges.len() >= EDGES_MAX || self.bytes >= TEXT_BYTES_MAX {
            self.graph.more = true;
            return;
        }
        let label = cut(label);
        self.bytes += label.len() + self.graph.vertices[from].id.len() + self.graph.vertices[to].id.len();
        self.known.insert((from, to, link), self.graph.edges.len());
        self.graph.edges.push(Edge {
            from,
            to,
            link,
            label,
        });
    }

    fn start(&mut self) {
        let definition = self.definition;
        let mut starts = Vec::new();
        if !definition.start.is_empty() {
            starts.push(definition.start.join(", "));
        }
        if let Some(schedule) = &definition.schedule {
            starts.push(format!("{} {}", schedule.cron.text(), schedule.zone.name()));
        }
        let mut starts = starts.into_iter();
        let name = starts.next().unwrap_or_else(|| "a request".to_owned());
        self.at.start = self.add(
            Kind::Start,
            "start".to_owned(),
            &name,
            &starts.collect::<Vec<_>>(),
        );
    }

    fn steps(&mut self) {
        for step in &self.definition.steps {
            let kind = match &step.action {
                Action::Group(Group::Choice(_)) => Kind::Choice,
                Action::Group(Group::Repeat(_)) => Kind::Repeat,
                Action::Group(Group::Foreach(_)) => Kind::Foreach,
                _ if step.waits_alone() => Kind::Wait,
                _ => Kind::Step,
            };
            let at = self.add(kind, format!("step:{}", step.name), step.title(), &does(step));
            self.at.steps.push(at);
        }
    }

    fn compensations(&mut self) {
        for (index, step) in (0..=u16::MAX).zip(&self.definition.steps) {
            let Some(compensation) = &step.compensate else {
                continue;
            };
            let undoes = vec![action(&compensation.action)];
            let at = self.add(
                Kind::Compensation,
                format!("undo:{}", step.name),
                step.title(),
                &undoes,
            );
            self.at.compensations.insert(index, at);
            self.link(self.step(index), at, Link::Undo, "");
        }
    }

    fn step(&self, index: u16) -> usize {
        self.at.steps[usize::from(index)]
    }

    /// Which steps come after which, and which are a part of which.
    fn order(&mut self) {
        let steps = &self.definition.steps;
        for (index, step) in (0..=u16::MAX).zip(steps) {
            let to = self.step(index);
            let own = step.condition.as_ref();
            let own = own.map_or_else(String::new, |condition| format!("if {}", condition.text()));
            for need in &step.needs {
                self.link(self.step(*need), to, Link::Next, &own);
            }
            let is_beside = |need: &u16| steps[usize::from(*need)].within == step.within;
            match step.within {
                // What it is a part of starts it as well.
                Some(group) if !step.needs.iter().any(is_beside) => {
                    let of_branch = self.branch(group, index).into_iter();
                    let label: Vec<String> = of_branch.chain((!own.is_empty()).then_some(own)).collect();
                    self.link(self.step(group), to, Link::Part, &label.join(", "));
                }
                None if step.needs.is_empty() && step.is_own() => {
                    self.link(self.at.start, to, Link::Next, &own);
                }
                Some(_) | None => {}
            }
        }
    }

    /// When the alternative of a choice is taken in which a step stands.
    fn branch(&self, group: u16, step: u16) -> Option<String> {
        let Some(Group::Choice(branches)) = self.definition.group(group) else {
            return None;
        };
        let branch = branches.iter().find(|branch| branch.steps.contains(&step))?;
        let when = branch.when.as_ref();
        Some(when.map_or_else(|| "otherwise".to_owned(), |when| format!("if {}", when.text())))
    }

    /// What follows where a step fails and the instance goes on.
    fn errors(&mut self) {
        for (index, step) in (0..=u16::MAX).zip(&self.definition.steps) {
            let from = self.step(index);
            for (class, answers) in &step.on_error {
                for OnError { when, undo, then, .. } in answers {
                    let label = match when {
                        Some(when) => format!("{class} if {}", when.text()),
                        None => class.clone(),
                    };
                    for undone in undo {
                        if let Some(at) = self.at.compensations.get(undone) {
                            self.link(from, *at, Link::Undo, &label);
                        }
                    }
                    if let Then::GoTo(target) = then {
                        self.link(from, self.step(*target), Link::OnFailure, &label);
                    }
                }
            }
        }
    }

    /// Timers that begin effects or end a step, with the step that they run along with.
    fn timers(&mut self) {
        for timer in &self.definition.timers {
            let actions = &timer.actions;
            let has_effects = actions.emit.iter().any(|emission| effect(emission).is_some());
            if !has_effects && actions.interrupt.is_none() {
                continue;
            }
            let when = match &timer.every {
                Some(every) => format!("every {}", span(every)),
                None => format!("after {}", span(&timer.after)),
            };
            let id = format!("timer:{}", timer.name);
            let Some(at) = self.add_more(Kind::Timer, id, &timer.name, &[when]) else {
                return;
            };
            self.at.timers.insert(timer.name.clone(), at);
            match timer.during {
                Some(step) => self.link(self.step(step), at, Link::Part, "during"),
                None => self.link(self.at.start, at, Link::Next, ""),
            }
            self.effects(at, &actions.emit);
            self.interrupt(at, actions, "");
        }
    }

    /// The effects that are emitted from `from`.
    fn effects(&mut self, from: usize, emits: &[Emission]) {
        for emission in emits {
            let Some(step) = effect(emission) else { continue };
            let when = emission.when.as_ref();
            let label = when.map_or_else(String::new, |when| format!("if {}", when.text()));
            self.link(from, self.step(step), Link::Next, &label);
        }
    }

    /// The step that is ended from `from`, because of `what` if that says more.
    fn interrupt(&mut self, from: usize, actions: &Actions, what: &str) {
        if let Some(interrupt) = &actions.interrupt {
            let label = match what {
                "" => interrupt.class.clone(),
                what => format!("{what}: {}", interrupt.class),
            };
            self.link(from, self.step(interrupt.step), Link::Interrupt, &label);
        }
    }

    /// What ends steps and is heard by the whole saga.
    fn interrupts(&mut self) {
        let definition = self.definition;
        let of_effects = [&definition.result_handlers, &definition.error_handlers];
        for (step, handlers) in of_effects.into_iter().flatten() {
            for handler in handlers {
                self.interrupt(self.step(*step), &handler.actions, "");
            }
        }
        for (event, handlers) in &definition.handlers {
            if handlers.iter().all(|handler| handler.actions.interrupt.is_none()) {
                continue;
            }
            let id = format!("event:{event}");
            let Some(at) = self.add_more(Kind::Event, id, event, &[]) else {
                return;
            };
            for handler in handlers {
                self.interrupt(at, &handler.actions, "");
            }
        }
    }

    fn machine(&mut self, machine: &Machine) {
        for state in &machine.states {
            let kind = if state.is_final {
                Kind::FinalState
            } else {
                Kind::State
            };
            let at = self.add(kind, format!("state:{}", state.name), &state.name, &[]);
            self.at.states.push(at);
        }
        let at = self.at.states.clone();
        self.link(self.at.start, at[usize::from(machine.initial)], Link::Next, "");
        let to = |actions: &Actions| actions.to.map(|to| at[usize::from(to)]);
        for (state, from) in machine.states.iter().zip(&at) {
            if let Some(to) = to(&state.entry) {
                self.link(*from, to, Link::Transition, "entry");
            }
            self.effects(*from, &state.entry.emit);
            let events = state.handlers.iter();
            let events = events.map(|(event, handlers)| (event.clone(), handlers));
            let timers = state.timer_handlers.iter();
            let timers = timers.map(|(timer, handlers)| (format!("timer.{timer}"), handlers));
            let ends = [
                ("result", &state.result_handlers),
                ("error", &state.error_handlers),
            ];
            let steps = &self.definition.steps;
            let ends = ends
                .into_iter()
                .flat_map(|(end, by_step)| of_effects(steps, end, by_step));
            for (what, handlers) in events.chain(timers).chain(ends) {
                for handler in handlers {
                    if let Some(to) = to(&handler.actions) {
                        self.link(*from, to, Link::Transition, &what);
                    }
                    self.interrupt(*from, &handler.actions, &what);
                }
            }
        }
        for timer in &self.definition.timers {
            if let Some(to) = to(&timer.actions) {
                for from in at.iter().filter(|from| **from != to) {
                    self.link(*from, to, Link::Transition, &format!("timer.{}", timer.name));
                }
            }
        }
    }

    fn program(&mut self) {
        let Some(program) = &self.definition.program else {
            return;
        };
        let effects = program.effects.iter().map(ToString::to_string);
        let does: Vec<String> = effects.chain(program.commands.iter().cloned()).collect();
        let at = self.add(
            Kind::Program,
            "program".to_owned(),
            &program.file,
            &words::few(does),
        );
        self.link(self.at.start, at, Link::Next, "");
        self.at.program = Some(at);
    }
}

/// Handlers of how the effects of a machine state end, with what they are called in the file.
fn of_effects<'d>(
    steps: &'d [Step],
    end: &'static str,
    by_step: &'d BTreeMap<u16, Vec<Handler>>,
) -> impl Iterator<Item = (String, &'d Vec<Handler>)> {
    by_step.iter().map(move |(step, handlers)| {
        let name = steps
            .get(usize::from(*step))
            .map_or("", |step| step.name.as_str());
        let effect = name.rsplit_once('.').map_or(name, |(_, effect)| effect);
        (format!("{end}.{effect}"), handlers)
    })
}

/// The step that stands for an effect which is emitted.
fn effect(emission: &Emission) -> Option<u16> {
    match emission.emit {
        Emit::Effect(step) => Some(step),
        Emit::Command(_) | Emit::Publish(_) => None,
    }
}
