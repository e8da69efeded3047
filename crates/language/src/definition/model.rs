//! A compiled saga definition: names resolved to indices, expressions compiled, defaults filled in.

mod actions;
mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::actions::{
    Actions, CommandTemplate, Emission, Emit, Fail, Handler, PublishTemplate, SignalTemplate, Telling,
    TimerSet,
};
pub(super) use self::step::includes;
pub use self::step::{Action, ChildTemplate, Join, OnError, Step, StepRetry, Stragglers, Then};
pub use super::awaited::{Awaited, Awaiting, Early, Wait};
pub use super::contract::{EffectContract, PinnedSchema};
pub use super::lifecycle::{
    Cancel, Complete, Decision, Interrupt, KeepEnded, Lifecycle, NoInstance, OnRunning, Reuse, StartRule,
};
pub use super::migration::{Dropped, Migration, Places};
pub use super::nested::{
    Branch, Count, Foreach, Group, ItemJoin, OnItemError, Pause, Repeat, RepeatCondition, Tolerance,
};
pub use super::program::ProgramDefinition;
pub use super::undo::{Compensation, Late, OnExhausted, OnLate, OnUnknown, UndoOrder, UndoRetry};
use crate::expr::{Expr, Template};
use crate::ids::{DefinitionHash, EffectName, SagaName};
use crate::retry::RetryPolicy;
use crate::schedule::Schedule;
use crate::schema::Schema;

/// One version of a saga, ready to run.
#[derive(Debug)]
pub struct Definition {
    pub name: SagaName,
    /// SHA-256 of the canonical form: formatting and comments do not change it.
    pub hash: DefinitionHash,
    /// What is archived with the hash, so that running instances outlive the file: its text, or an archive with
    /// the schemas and the program that it names.
    pub source: Arc<str>,
    /// What an instance is given that is started by a request or the clock and not by an event; absent where none
    /// is.
    pub input: Option<Arc<Schema>>,
    /// When instances start by themselves.
    pub schedule: Option<Schedule>,
    /// Event types that create an instance.
    pub start: Vec<String>,
    pub lifecycle: Lifecycle,
    /// First match wins.
    pub keys: Vec<KeyRule>,
    /// Event types that find their instances by an alias; no key rule is asked for them.
    pub by: BTreeMap<String, ByRule>,
    /// What is said about event types.
    pub events: BTreeMap<String, EventDefinition>,
    /// What the state is after every input that is applied.
    pub state_schema: Option<Arc<Schema>>,
    /// The schemas of the effects in use, pinned; effects without any are not among them.
    pub effects: BTreeMap<EffectName, EffectContract>,
    /// Initial state: a map template without roots.
    pub init: Template,
    /// Handlers at any time, by event type, those of signals by [`SIGNAL_PREFIX`] and their name.
    pub handlers: BTreeMap<String, Vec<Handler>>,
    /// Handlers of effects that timers emit, by index of the step (`result.<name>` in the file).
    pub result_handlers: BTreeMap<u16, Vec<Handler>>,
    /// The same (`error.<name>` in the file).
    pub error_handlers: BTreeMap<u16, Vec<Handler>>,
    pub machine: Option<Machine>,
    /// What decides in place of everything else.
    pub program: Option<ProgramDefinition>,
    /// In the order of the file; records refer to steps by index.
    pub steps: Vec<Step>,
    /// Timers that are set when the instance starts, the one of the deadline among them.
    pub timers: Vec<TimerDefinition>,
    /// Tested with every input: true cancels the instance.
    pub cancel_when: Option<Expr>,
    pub finally: Finally,
    pub undo_order: UndoOrder,
    /// Most events and signals that one instance keeps for steps that will wait for them.
    pub buffer: usize,
    /// How instances of earlier versions come over. Not part of the hash: it says nothing about what the saga
    /// does, and a version can so be given a way back to it later.
    pub migration: Migration,
}

impl Definition {
    /// The group at `index`, where that step is one.
    #[must_use]
    pub fn group(&self, index: u16) -> Option<&Group> {
        match &self.steps.get(usize::from(index))?.action {
            Action::Group(group) => Some(group),
            Action::Effect { .. }
            | Action::Command(_)
            | Action::Publish(_)
            | Action::Saga(_)
            | Action::UndoSaga(_)
            | Action::Nothing
            | Action::Decide(_) => None,
        }
    }

    /// Every event type that this saga can react to, in code-point order.
    #[must_use]
    pub fn event_types(&self) -> Vec<&str> {
        let machine = self
            .machine
            .iter()
            .flat_map(|machine| machine.states.iter().flat_map(|state| state.handlers.keys()));
        let mut types: Vec<&str> = self
            .start
            .iter()
            .chain(self.handlers.keys())
            .chain(self.lifecycle.after_end.keys())
            .chain(machine)
            .chain(self.steps.iter().flat_map(Step::expected_events))
            .chain(self.program.iter().flat_map(|program| &program.events))
            .map(String::as_str)
            .filter(|event_type| !event_type.starts_with(SIGNAL_PREFIX))
            .collect();
        types.sort_unstable();
        types.dedup();
        types
    }

    /// Whether a command of a step hands out the callback token of its work.
    #[must_use]
    pub fn hands_out_tokens(&self) -> bool {
        let mut actions = self.steps.iter().map(|step| &step.action);
        actions.any(|action| matches!(action, Action::Command(command) if command.hands_out_token()))
    }

    /// The effects that its steps, their compensations and its program may call, in code-point order. What handlers, timers and
    /// the end emit are steps, too.
    #[must_use]
    pub fn called_effects(&self) -> BTreeSet<&EffectName> {
        let actions = self.steps.iter().flat_map(|step| {
            let undo = step.compensate.as_ref().map(|compensate| &compensate.action);
            std::iter::once(&step.action).chain(undo)
        });
        let in_steps = actions.filter_map(|action| match action {
            Action::Effect { effect, .. } => Some(effect),
            Action::Group(_)
            | Action::Command(_)
            | Action::Publish(_)
            | Action::Saga(_)
            | Action::UndoSaga(_)
            | Action::Nothing
            | Action::Decide(_) => None,
        });
        let in_program = self.program.iter().flat_map(|program| &program.effects);
        in_steps.chain(in_program).collect()
    }

    /// All handlers of the saga itself, while it runs.
    pub fn own_handlers(&self) -> impl Iterator<Item = &Vec<Handler>> {
        let of_effects = self.result_handlers.values().chain(self.error_handlers.values());
        self.handlers.values().chain(of_effects)
    }

    /// Whether any part of the saga sends commands to aggregates, for which a gateway is needed.
    #[must_use]
    pub fn sends_commands(&self) -> bool {
        let in_steps = self.steps.iter().any(|step| {
            let undo = step.compensate.as_ref().map(|compensate| &compensate.action);
            std::iter::once(&step.action)
                .chain(undo)
                .any(|action| matches!(action, Action::Command(_)))
        });
        let states = self.machine.iter().flat_map(|machine| &machine.states);
        let in_states = states.clone().map(|state| &state.entry);
        let of_states = states.flat_map(State::all_handlers);
        let after_end = self.lifecycle.after_end.values();
        let handlers = self.own_handlers().chain(after_end).chain(of_states).flatten();
        let in_actions = handlers
            .map(|handler| &handler.actions)
            .chain(in_states)
            .chain(self.timers.iter().map(|timer| &timer.actions))
            .flat_map(|actions| &actions.emit);
        let at_end = [
            &self.finally.completed,
            &self.finally.failed,
            &self.finally.cancelled,
        ];
        let in_program = self
            .program
            .as_ref()
            .is_some_and(|program| !program.commands.is_empty());
        in_steps
            || in_program
            || in_actions
                .chain(at_end.into_iter().flatten())
                .any(|emission| matches!(emission.emit, Emit::Command(_)))
    }
}

/// What a saga says about an event type.
#[derive(Debug)]
pub struct EventDefinition {
    /// The sagas whose fact it is, in code-point order; an event of aggregates where there are none.
    pub from: Vec<SagaName>,
    /// Of `event.data`, as it is after the upcast.
    pub schema: Option<Arc<Schema>>,
    /// Versions that are taken as they are, ascending; empty for all.
    pub versions: Vec<u32>,
    /// How the data of other versions becomes that of the present one. Reads `event`.
    pub upcast: BTreeMap<u32, Template>,
}

/// How an event finds its instance: `pattern` is an event type, or `<AggregateType>.*`, or `*`.
#[derive(Debug)]
pub struct KeyRule {
    pub pattern: String,
    pub key: Expr,
}

/// How an event finds the instances that have registered a value.
#[derive(Debug)]
pub struct ByRule {
    pub alias: String,
    /// Reads `event`.
    pub value: Expr,
}

impl KeyRule {
    /// Whether the rule is for `event_type`.
    #[must_use]
    pub fn matches(&self, event_type: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(prefix) => event_type.starts_with(prefix),
            None => self.pattern == event_type,
        }
    }
}

/// The state machine of a saga.
#[derive(Debug)]
pub struct Machine {
    pub initial: u16,
    pub states: Vec<State>,
}

#[derive(Debug)]
pub struct State {
    pub name: String,
    pub entry: Actions,
    /// By event type.
    pub handlers: BTreeMap<String, Vec<Handler>>,
    /// By timer name (`timer.<name>` in the file).
    pub timer_handlers: BTreeMap<String, Vec<Handler>>,
    /// By index of the step of an effect that the entry emits (`result.<name>` in the file).
    pub result_handlers: BTreeMap<u16, Vec<Handler>>,
    /// The same (`error.<name>` in the file).
    pub error_handlers: BTreeMap<u16, Vec<Handler>>,
    /// Entering it completes the instance.
    pub is_final: bool,
}

impl State {
    /// All handlers of the state.
    pub fn all_handlers(&self) -> impl Iterator<Item = &Vec<Handler>> {
        let of_effects = self.result_handlers.values().chain(self.error_handlers.values());
        self.handlers
            .values()
            .chain(self.timer_handlers.values())
            .chain(of_effects)
    }
}

/// How long something takes, or when it is over.
#[derive(Debug, Clone)]
pub enum Delay {
    /// In milliseconds.
    Fixed(i64),
    /// Gives a duration, or an instant as RFC 3339; one that is past is now.
    Rendered(Template),
}

/// What handlers of signals begin with, before the name of the signal.
pub const SIGNAL_PREFIX: &str = "signal.";

/// Error class of a step whose work was given up for want of a heartbeat.
pub const HEARTBEAT_CLASS: &str = "heartbeat";
/// Error class of a step whose `fail_if` holds.
pub const FAIL_IF_CLASS: &str = "fail_if";
/// Stands for every error class.
pub const ANY_CLASS: &str = "*";

/// What follows the name of a loop over a list in the name of the one step that it is around. No file can name
/// a step so.
pub const BODY_OF_FOREACH: &str = ".item";
/// The same for a loop with a condition.
pub const BODY_OF_REPEAT: &str = ".turn";

/// What the names of steps begin with that are effects of a machine state; the state and the effect follow.
pub const OF_MACHINE: &str = "machine.";

/// The same for effects of a timer; the timer and the effect follow.
pub const OF_TIMERS: &str = "timers.";

/// The same for effects of handlers of the saga; what is handled and the effect follow.
pub const OF_HANDLERS: &str = "handlers.";

/// The same for effects of the end; the outcome and the effect follow.
pub const OF_FINALLY: &str = "finally.";

/// A timer of the whole instance.
#[derive(Debug)]
pub struct TimerDefinition {
    pub name: String,
    /// From when it is set to when it fires first.
    pub after: Delay,
    /// From then on, again and again.
    pub every: Option<Delay>,
    /// How often it fires, where that is bounded.
    pub max: Option<u32>,
    /// Index of the step with which it is set and cleared; absent: set with the instance.
    pub during: Option<u16>,
    /// Tested after every input; true clears the timer.
    pub cancel_when: Option<Expr>,
    pub actions: Actions,
}

/// What happens at the end, by outcome, after all compensations.
#[derive(Debug, Default)]
pub struct Finally {
    pub completed: Vec<Emission>,
    pub failed: Vec<Emission>,
    pub cancelled: Vec<Emission>,
}

/// Name of the timer that the deadline of a saga is, and the code of what it fails; the error class of a step
/// whose deadline has passed.
pub const DEADLINE: &str = "deadline";
/// Shortest time between two times that a timer fires, in milliseconds.
pub const EVERY_MS_MIN: i64 = 10_000;
/// Default of [`Definition::buffer`].
pub const BUFFER: usize = 32;
/// Default timeout of an attempt of an effect: 15 minutes.
pub const EFFECT_TIMEOUT_MS: i64 = 15 * 60_000;
/// Default timeout of an instance of another saga: 30 days.
pub const CHILD_TIMEOUT_MS: i64 = 30 * 24 * 3_600_000;
/// Default timeout of an aggregate command: 24 hours.
pub const COMMAND_TIMEOUT_MS: i64 = 24 * 3_600_000;
/// Default durable retry of a step that has `retry`.
pub const STEP_RETRY: RetryPolicy = RetryPolicy {
    attempts: 3,
    initial_ms: 1_000,
    factor: 2.0,
    max_ms: 60_000,
};
/// Error classes that are tried again where `retry` names none.
pub const RETRY_CLASSES: [&str; 3] = ["transient", "throttled", "timeout"];
/// Default durable retry of a compensation.
pub const COMPENSATION_RETRY: RetryPolicy = RetryPolicy {
    attempts: 10,
    initial_ms: 1_000,
    factor: 2.0,
    max_ms: 60_000,
};
