//! A saga as a graph: steps with what they need and how they are undone, and the states of its machine.

use std::fmt::Write as _;

use crate::kernel::definition::Definition;
use crate::kernel::definition::model::{
    Action, Actions, Count, Decision, Group, Join, RepeatCondition, Step, Telling, Then,
};

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
    /// Something went wrong in the first, and the second begins anew.
    Back,
    /// From state to state.
    Transition,
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
        graph.steps(definition, start);
        graph.machine(definition, start);
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

    fn steps(&mut self, definition: &Definition, start: usize) {
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
                None if step.needs.is_empty() && !step.at_end && !step.of_timer => {
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
    }

    fn machine(&mut self, definition: &Definition, start: usize) {
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
            for (event, handlers) in &state.handlers {
                for to in handlers.iter().filter_map(|handler| to(&handler.actions)) {
                    self.link(*from, to, Link::Transition, event.clone());
                }
            }
            for (timer, handlers) in &state.timer_handlers {
                for to in handlers.iter().filter_map(|handler| to(&handler.actions)) {
                    self.link(*from, to, Link::Transition, format!("timer.{timer}"));
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
            };
            let _ = writeln!(out, "  n{index}{open}\"{text}\"{close}");
        }
        for edge in &self.edges {
            let arrow = match edge.link {
                Link::Flow | Link::Transition => "-->",
                Link::Part => "---",
                Link::Undo | Link::Back => "-.->",
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
