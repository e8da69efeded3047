//! Instances as people and the HTTP API see them: names instead of indices, times as text.
//!
//! A view is derived and never stored. Without its definition an instance is still shown, with indices for
//! names.

mod blocked;
mod command;
pub mod graph;
pub mod instance_status;
pub mod pending;
mod stuck;
pub mod why;

pub use blocked::{BlockedView, Kept, LetterView, PausedView};
pub use command::{CommandState, CommandView, QueueView};
pub use stuck::{StuckIn, StuckView};

use std::collections::BTreeMap;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::Late;
use saga_runner_language::ids::{InstanceId, TimeMs};
use serde::Serialize;
use serde_json::value::RawValue;

use super::items::Items;
use super::ledger::LedgerEntry;
use super::patch::TimerRow;
use super::record::{Buffered, Failure, Pending, Record, Registered, StepState, Stray, Summary};
use super::transition::started_by;

/// One instance.
#[derive(Debug, Clone, Serialize)]
pub struct InstanceView {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    pub saga: String,
    pub key: String,
    pub generation: u32,
    /// `sha256:...` of the definition that it runs under.
    pub definition: String,
    pub phase: &'static str,
    /// Number of inputs applied.
    pub version: u64,
    pub started: String,
    pub updated: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    pub start_event: String,
    /// Name of the machine state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The instance whose step has started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentView>,
    /// What it was given if a request started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Box<RawValue>>,
    /// The user's state.
    pub state: Box<RawValue>,
    pub steps: Vec<StepView>,
    /// What was or will be undone, oldest first.
    pub ledger: Vec<LedgerView>,
    /// What waits for an operator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<StuckView>,
    /// Work that nothing waits for any more and whose outcome is still to come.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strays: Vec<StrayView>,
    /// Work of a program whose outcome is to come.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<PendingView>,
    /// Events and signals that came before the step that waits for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buffer: Vec<BufferedView>,
    pub timers: Vec<TimerView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureView>,
    /// The word for how it has completed, where it did so early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// What keeps it, or a part of it, from going on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<BlockedView>,
    /// Inputs that wait for the present machine state to be left.
    pub deferred: u32,
    /// By name the values that it has registered for events to find it beside its key, oldest first.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub aliases: BTreeMap<String, Vec<AliasView>>,
}

/// A value that an instance has registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum AliasView {
    /// Events find the instance by it.
    Has(String),
    /// They do not: the alias already has as many instances as it may have.
    Refused {
        value: String,
        /// Always true.
        refused: bool,
    },
}

/// Who has started an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ParentView {
    pub saga: String,
    pub key: String,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepView {
    pub name: String,
    pub status: &'static str,
    pub attempt: u32,
    /// Error class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The command whose outcome is awaited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    /// Number of the turn of the loops of and around the step, where it is not the first, which is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub iteration: u32,
    /// Of a loop over a list, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<ItemsView>,
}

/// How far a loop over a list has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ItemsView {
    pub total: u32,
    pub done: u32,
    pub failed: u32,
    /// Indices of the items that run.
    pub running: Vec<u32>,
}

/// One entry of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LedgerView {
    pub step: String,
    /// Index of the item, in a loop over a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// Number of the turn of the loops around, where it is not the first.
    #[serde(skip_serializing_if = "is_zero")]
    pub iteration: u32,
    pub status: &'static str,
    /// Attempts of its compensation.
    pub attempt: u32,
    /// Why nobody waited for it any more when it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
}

/// Work of a step that the instance stopped waiting for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StrayView {
    pub step: String,
    /// Index of the item, in a loop over a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    pub command_id: String,
}

/// Work of a program, under the name that the program gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PendingView {
    pub name: String,
    pub command_id: String,
}

/// Something that came early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BufferedView {
    /// The event type, or the name of the signal.
    pub name: String,
    pub time: String,
}

/// One timer that is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TimerView {
    pub name: String,
    pub due: String,
    /// The same, to compare with.
    #[serde(skip)]
    pub at: TimeMs,
}

/// Why an instance failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureView {
    pub code: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    pub time: String,
}

impl InstanceView {
    /// Shows a live instance.
    #[must_use]
    pub fn new(id: &InstanceId, record: &Record, definition: Option<&Definition>) -> Self {
        let step_name = |index: usize| {
            definition
                .and_then(|definition| definition.steps.get(index))
                .map_or_else(|| format!("#{index}"), |step| step.name.clone())
        };
        let state_name = |index: u16| {
            definition
                .and_then(|definition| definition.machine.as_ref())
                .and_then(|machine| machine.states.get(usize::from(index)))
                .map_or_else(|| format!("#{index}"), |state| state.name.clone())
        };
        Self {
            tenant: id.tenant.as_str().to_owned(),
            saga: id.saga.as_str().to_owned(),
            key: id.key.as_str().to_owned(),
            generation: record.generation,
            definition: record.definition.to_string(),
            phase: record.phase.as_str(),
            version: record.version,
            started: record.started.rfc3339(),
            updated: record.updated.rfc3339(),
            ended: None,
            start_event: started_by(&record.start_event).to_owned(),
            machine: record.machine.map(|machine| state_name(machine.state)),
            parent: record.parent.as_ref().map(|parent| ParentView {
                saga: parent.saga.to_string(),
                key: parent.key.as_str().to_owned(),
            }),
            input: record.input.as_ref().map(|input| raw(input)),
            state: raw(&record.data),
            steps: record
                .steps
                .iter()
                .enumerate()
                .map(|(index, step)| StepView::new(step_name(index), step))
                .collect(),
            ledger: record
                .ledger
                .iter()
                .map(|entry| LedgerView::new(step_name(usize::from(entry.step)), &entry))
                .collect(),
            stuck: stuck::stuck(record, &step_name),
            strays: record
                .strays
                .iter()
                .map(|stray| StrayView::new(step_name(usize::from(stray.step)), stray))
                .collect(),
            work: record
                .program
                .iter()
                .flat_map(|program| &program.pending)
                .map(PendingView::new)
                .collect(),
            buffer: record.buffer.iter().map(BufferedView::new).collect(),
            timers: record.timers.values().map(TimerView::of).collect(),
            failure: record.failure.as_ref().map(FailureView::new),
            outcome: record.early.as_ref().map(|early| early.outcome.clone()),
            blocked_by: None,
            deferred: record.deferred,
            aliases: AliasView::by_name(&record.aliases),
        }
    }

    /// Shows an instance that has ended.
    #[must_use]
    pub fn ended(id: &InstanceId, summary: &Summary, definition: Option<&Definition>) -> Self {
        let ended: TimeMs = summary.ended;
        Self {
            ended: Some(ended.rfc3339()),
            ..Self::new(id, &summary.record, definition)
        }
    }
}

impl StepView {
    fn new(name: String, step: &StepState) -> Self {
        Self {
            name,
            status: step.status.as_str(),
            attempt: step.attempt,
            error: step.error.clone(),
            command_id: step
                .outstanding
                .map(|outstanding| outstanding.command.to_string()),
            iteration: step.turn.max(step.iteration),
            items: step.items.as_deref().map(ItemsView::of),
        }
    }
}

impl ItemsView {
    fn of(items: &Items) -> Self {
        Self {
            total: items.total,
            done: items.done,
            failed: items.failed,
            running: items.running.iter().map(|item| item.index).collect(),
        }
    }
}

impl StrayView {
    fn new(step: String, stray: &Stray) -> Self {
        Self {
            step,
            item: stray.item,
            command_id: stray.outstanding.command.to_string(),
        }
    }
}

impl PendingView {
    fn new(pending: &Pending) -> Self {
        Self {
            name: pending.name.clone(),
            command_id: pending.outstanding.command.to_string(),
        }
    }
}

impl BufferedView {
    fn new(entry: &Buffered) -> Self {
        Self {
            name: entry.name.clone(),
            time: entry.time.rfc3339(),
        }
    }
}

impl AliasView {
    /// The registered values by the name of their alias.
    fn by_name(registered: &[Registered]) -> BTreeMap<String, Vec<Self>> {
        let mut by_name: BTreeMap<String, Vec<Self>> = BTreeMap::new();
        for registered in registered {
            let values = by_name.entry(registered.alias.name.clone()).or_default();
            values.push(Self::of(registered));
        }
        by_name
    }

    fn of(registered: &Registered) -> Self {
        let value = registered.alias.value.clone();
        if registered.refused {
            return Self::Refused { value, refused: true };
        }
        Self::Has(value)
    }
}

impl LedgerView {
    fn new(step: String, entry: &LedgerEntry) -> Self {
        Self {
            step,
            item: entry.item,
            iteration: entry.iteration,
            status: entry.status.as_str(),
            attempt: entry.attempt,
            late: entry.late.map(Late::as_str),
            command_id: entry
                .outstanding
                .map(|outstanding| outstanding.command.to_string()),
        }
    }
}

impl TimerView {
    fn of(timer: &TimerRow) -> Self {
        Self {
            name: timer.name.clone(),
            due: timer.due.rfc3339(),
            at: timer.due,
        }
    }
}

impl FailureView {
    fn new(failure: &Failure) -> Self {
        Self {
            code: failure.code.clone(),
            message: failure.message.clone(),
            step: failure.step.clone(),
            time: failure.time.rfc3339(),
        }
    }
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
const fn is_nothing(number: &usize) -> bool {
    *number == 0
}

/// Stored state is JSON by construction; should it not be, the view says null rather than fail.
fn raw(bytes: &[u8]) -> Box<RawValue> {
    serde_json::from_slice(bytes).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_bytes::ByteBuf;

    use super::*;
    use crate::record::MachineState;
    use saga_runner_language::ids::{DefinitionHash, Key, SagaName, TenantId};

    fn id() -> InstanceId {
        InstanceId {
            tenant: TenantId::none(),
            saga: SagaName::parse("order").expect("legal"),
            key: Key::parse("o-1").expect("legal"),
        }
    }

    fn record() -> Record {
        Record {
            version: 2,
            updated: TimeMs(1_767_261_600_250),
            data: ByteBuf::from(r#"{"b":9007199254740993}"#),
            machine: Some(MachineState { state: 3, entries: 1 }),
            steps: vec![StepState::pending()],
            ..Record::opened(1, DefinitionHash([0; 32]), "e-1", TimeMs(1_767_261_600_000))
        }
    }

    #[test]
    fn an_instance_is_shown_even_without_its_definition() {
        let view = serde_json::to_value(InstanceView::new(&id(), &record(), None)).expect("encodes");
        assert_eq!(view["steps"][0]["name"], "#0");
        assert_eq!(view["machine"], "#3");
        assert_eq!(view["started"], "2026-01-01T10:00:00.000Z");
        assert_eq!(view["updated"], "2026-01-01T10:00:00.250Z");
        assert_eq!(view["phase"], "running");
        assert!(view.get("tenant").is_none() && view.get("ended").is_none());
    }

    #[test]
    fn the_state_is_shown_as_it_is_stored() {
        let text = serde_json::to_string(&InstanceView::new(&id(), &record(), None)).expect("encodes");
        assert!(text.contains(r#""state":{"b":9007199254740993}"#), "{text}");
    }

    #[test]
    fn an_ended_instance_says_when() {
        let summary = Summary {
            record: record(),
            ended: TimeMs(1_767_261_601_000),
        };
        let view = InstanceView::ended(&id(), &summary, None);
        assert_eq!(view.ended.as_deref(), Some("2026-01-01T10:00:01.000Z"));
    }
}
