//! The graph of an instance: that of its definition, with where each part of it stands.

use std::collections::BTreeMap;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::graph::{Graph, Kind, Link, Places};
use saga_runner_language::ids::InstanceId;
use serde::Serialize;

use super::pending::{awaited, hears};
use super::{ItemsView, is_zero};
use crate::ledger::LedgerStatus;
use crate::record::{Record, StepState, StepStatus};
use crate::work::{WorkItem, WorkRef};

/// Longest text about what a part waits for, in characters; more is cut.
const WAITS_CHARS_MAX: usize = 160;

/// The state of a timer that is set, and of the machine state in which the instance is. Steps and compensations have those of
/// [`StepStatus`] and [`LedgerStatus`].
const SET: &str = "set";
const CURRENT: &str = "current";

/// The graph of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceGraph {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    pub saga: String,
    pub key: String,
    pub generation: u32,
    /// `sha256:...` of the definition that is drawn: the one that the instance runs under.
    pub definition: String,
    pub phase: &'static str,
    /// In the order of the definition.
    pub nodes: Vec<NodeView>,
    pub edges: Vec<EdgeView>,
    /// There are more timers, events or edges than the bounds of a graph allow.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// A part of the definition, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeView {
    /// Unique in the graph: `step:charge`, `undo:charge`, `state:open`, `timer:remind`, `event:Order.Paid`, `start`, `program`.
    pub id: String,
    pub kind: Kind,
    pub name: String,
    /// What it does, in lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub does: Vec<String>,
    /// Of a step its status, of a compensation that of its entry in the ledger, of a machine state `current`, of a timer `set`.
    /// Absent where there is nothing to tell: a compensation with nothing to undo, a timer that is not set, any other machine state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// Attempts so far.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Error class of the last attempt that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// In a few words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// When it goes on by itself; of a timer when it fires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// Number of the turn of the loops of and around it, where it is not the first, which is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub iteration: u32,
    /// Of a loop over a list, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<ItemsView>,
    /// By state how many there are: of a step in a loop over a list the items in progress, of a compensation the entries of the
    /// ledger where there are several. `state` is then the one that asks most for attention.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub states: BTreeMap<&'static str, u32>,
}

/// How two nodes belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EdgeView {
    /// Id of a node.
    pub from: String,
    /// Id of a node.
    pub to: String,
    pub kind: Link,
    /// The condition, the error class or the event, where there is one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
}

/// The graph of an instance. `work` has the rows of the outbox whose outcomes are to come; one that has ended has none, and waits for
/// nothing.
#[must_use]
pub fn graph(
    id: &InstanceId,
    record: &Record,
    definition: &Definition,
    work: Option<&BTreeMap<WorkRef, WorkItem>>,
) -> InstanceGraph {
    let (drawn, at) = Graph::placed(definition);
    let id_of = |vertex: usize| drawn.vertices[vertex].id.clone();
    let edges = drawn.edges.iter().map(|edge| EdgeView {
        from: id_of(edge.from),
        to: id_of(edge.to),
        kind: edge.link,
        label: edge.label.clone(),
    });
    let edges: Vec<EdgeView> = edges.collect();
    let nodes: Vec<NodeView> = drawn
        .vertices
        .into_iter()
        .map(|vertex| NodeView {
            id: vertex.id,
            kind: vertex.kind,
            name: vertex.name,
            does: vertex.does,
            state: None,
            attempt: 0,
            error: None,
            waits_for: None,
            due: None,
            iteration: 0,
            items: None,
            states: BTreeMap::new(),
        })
        .collect();
    let mut standing = Standing {
        record,
        definition,
        nodes,
        at,
    };
    let start = standing.at.start;
    standing.nodes[start].state = Some(StepStatus::Done.as_str());
    standing.steps();
    standing.compensations();
    standing.machine(work.is_some());
    standing.timers();
    if let Some(work) = work {
        standing.waits(work);
    }
    InstanceGraph {
        tenant: id.tenant.as_str().to_owned(),
        saga: id.saga.as_str().to_owned(),
        key: id.key.as_str().to_owned(),
        generation: record.generation,
        definition: record.definition.to_string(),
        phase: record.phase.as_str(),
        nodes: standing.nodes,
        edges,
        more: drawn.more,
    }
}

/// Tells of each node where it stands.
struct Standing<'a> {
    record: &'a Record,
    definition: &'a Definition,
    nodes: Vec<NodeView>,
    at: Places,
}

impl Standing<'_> {
    fn step(&mut self, index: u16) -> Option<&mut NodeView> {
        let at = *self.at.steps.get(usize::from(index))?;
        self.nodes.get_mut(at)
    }

    fn steps(&mut self) {
        let record = self.record;
        let mut in_items: BTreeMap<u16, Vec<&StepState>> = BTreeMap::new();
        for (index, item, state) in record.step_states() {
            if item.is_some() {
                in_items.entry(index).or_default().push(state);
            } else if let Some(node) = self.step(index) {
                node.stands(state);
            }
        }
        for (index, states) in in_items {
            let first = states.iter().min_by_key(|state| step_rank(state.status));
            let (Some(node), Some(first)) = (self.step(index), first) else {
                continue;
            };
            node.stands(first);
            for state in states {
                *node.states.entry(state.status.as_str()).or_default() += 1;
            }
        }
    }

    fn compensations(&mut self) {
        let record = self.record;
        let mut told: BTreeMap<usize, u8> = BTreeMap::new();
        for entry in record.ledger.iter() {
            let Some(at) = self.at.compensations.get(&entry.step) else {
                continue;
            };
            let (node, status) = (&mut self.nodes[*at], entry.status);
            *node.states.entry(status.as_str()).or_default() += 1;
            let rank = entry_rank(status);
            if told.get(at).is_none_or(|before| rank < *before) {
                told.insert(*at, rank);
                node.state = Some(status.as_str());
                node.attempt = entry.attempt;
                node.error = entry.tries.failures.last().map(|failed| failed.class.clone());
            }
        }
        for at in told.into_keys() {
            let states = &mut self.nodes[at].states;
            if states.values().sum::<u32>() == 1 {
                states.clear();
            }
        }
    }

    fn machine(&mut self, is_live: bool) {
        let Some(machine) = self.record.machine else {
            return;
        };
        let Some(at) = self.at.states.get(usize::from(machine.state)) else {
            return;
        };
        let heard = if is_live {
            hears(self.record, self.definition)
        } else {
            Vec::new()
        };
        let node = &mut self.nodes[*at];
        node.state = Some(CURRENT);
        node.waits_for = (!heard.is_empty()).then(|| short(&heard.join(" or ")));
    }

    fn timers(&mut self) {
        for (name, at) in &self.at.timers {
            if let Some(timer) = self.record.timers.get(name) {
                let node = &mut self.nodes[*at];
                node.state = Some(SET);
                node.due = Some(timer.due.rfc3339());
            }
        }
    }

    /// What each waits for, of several the first.
    fn waits(&mut self, work: &BTreeMap<WorkRef, WorkItem>) {
        let steps = (0..=u16::MAX).zip(&self.definition.steps);
        let by_name: BTreeMap<&str, u16> = steps.map(|(index, step)| (step.name.as_str(), index)).collect();
        for awaited in awaited(self.record, Some(self.definition), work) {
            if awaited.abandoned {
                continue;
            }
            let step = by_name.get(awaited.step.as_str());
            let at = match step {
                Some(step) if awaited.compensates => self.at.compensations.get(step).copied(),
                Some(step) => self.at.steps.get(usize::from(*step)).copied(),
                None => self.at.program,
            };
            let Some(node) = at.and_then(|at| self.nodes.get_mut(at)) else {
                continue;
            };
            if node.waits_for.is_none() {
                node.waits_for = Some(short(&awaited.object()));
                node.due = awaited.due;
            }
            if node.kind == Kind::Program {
                node.state = Some(StepStatus::Running.as_str());
            }
        }
    }
}

impl NodeView {
    fn stands(&mut self, state: &StepState) {
        self.state = Some(state.status.as_str());
        self.attempt = state.attempt;
        self.error.clone_from(&state.error);
        self.iteration = state.turn.max(state.iteration);
        self.items = state.items.as_deref().map(ItemsView::of);
    }
}

/// The order in which one of several is shown, the lowest first: what needs somebody comes before what goes on by itself, and that
/// before what is over.
const fn step_rank(status: StepStatus) -> u8 {
    match status {
        StepStatus::Stuck => 0,
        StepStatus::BackingOff => 1,
        StepStatus::Running => 2,
        StepStatus::Waiting => 3,
        StepStatus::Delayed => 4,
        StepStatus::Pending => 5,
        StepStatus::Failed => 6,
        StepStatus::Abandoned => 7,
        StepStatus::Done => 8,
        StepStatus::Skipped => 9,
    }
}

/// The same for entries of the ledger.
const fn entry_rank(status: LedgerStatus) -> u8 {
    match status {
        LedgerStatus::Stuck => 0,
        LedgerStatus::BackingOff => 1,
        LedgerStatus::Undoing => 2,
        LedgerStatus::Due => 3,
        LedgerStatus::Held => 4,
        LedgerStatus::Kept => 5,
        LedgerStatus::Undone => 6,
    }
}

fn short(text: &str) -> String {
    if text.chars().nth(WAITS_CHARS_MAX).is_none() {
        return text.to_owned();
    }
    let kept = text.chars().take(WAITS_CHARS_MAX - 1);
    kept.chain(std::iter::once('\u{2026}')).collect()
}
