//! A compiled saga definition: names resolved to indices, expressions compiled, defaults filled in.

use std::collections::BTreeMap;
use std::sync::Arc;

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
use crate::expr::{Expr, Root, Template};
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

/// One alternative of a handler list: the first whose `when` holds is taken.
#[derive(Debug)]
pub struct Handler {
    pub when: Option<Expr>,
    pub actions: Actions,
}

/// What a handler, a state entry or a timer does, in this order: `set` (all from the state before),
/// `clear_timer`, `timer`, `alias` and `emit` (from the state after), then `interrupt`, then `complete`, `cancel`, `fail` or `to`.
#[derive(Debug, Default)]
pub struct Actions {
    /// Top-level fields of the state, by name.
    pub set: Vec<(String, Template)>,
    pub clear_timers: Vec<String>,
    pub timers: Vec<TimerSet>,
    /// Values that the instance registers, by alias.
    pub aliases: Vec<(String, Template)>,
    pub emit: Vec<Emission>,
    pub interrupt: Option<Interrupt>,
    pub complete: Option<Complete>,
    pub cancel: Option<Cancel>,
    pub fail: Option<Fail>,
    /// Index of the state to go to.
    pub to: Option<u16>,
    /// Keep the input until the state is left. Excludes everything else.
    pub defer: bool,
}

#[derive(Debug)]
pub struct TimerSet {
    pub name: String,
    pub after: Delay,
    /// Keep the timer if it is already set.
    pub if_absent: bool,
    /// `after` is how much later a timer fires that is set; one that is not stays so.
    pub extend: bool,
}

/// An entry of `emit` or of `finally`.
#[derive(Debug)]
pub struct Emission {
    /// False: nothing is emitted.
    pub when: Option<Expr>,
    pub emit: Emit,
}

impl From<Emit> for Emission {
    fn from(emit: Emit) -> Self {
        Self { when: None, emit }
    }
}

/// Work without a step: nobody waits for it.
#[derive(Debug)]
pub enum Emit {
    Command(CommandTemplate),
    Publish(Telling),
    /// An effect, by the index of its step: of a machine state or a timer, which have handlers for how it ends, or of the end.
    Effect(u16),
}

#[derive(Debug)]
pub struct CommandTemplate {
    pub aggregate_type: String,
    pub aggregate_id: Template,
    pub command_type: String,
    pub payload: Template,
}

impl CommandTemplate {
    /// Whether it hands out the callback token of the work of its step.
    #[must_use]
    pub fn hands_out_token(&self) -> bool {
        self.payload.roots().contains(Root::Command)
    }
}

/// What is said without an answer.
#[derive(Debug)]
pub enum Telling {
    /// To whoever listens.
    Fact(PublishTemplate),
    /// To one instance of another saga.
    Signal(SignalTemplate),
}

impl Telling {
    /// Whether it reads `root`.
    #[must_use]
    pub fn reads(&self, root: Root) -> bool {
        let mut found = false;
        self.for_each_expr(&mut |expr| found |= expr.reads(root));
        found
    }

    /// Calls `visit` for every expression.
    pub fn for_each_expr(&self, visit: &mut dyn FnMut(&Expr)) {
        match self {
            Self::Fact(fact) => fact.payload.for_each_expr(visit),
            Self::Signal(signal) => {
                signal.key.for_each_expr(visit);
                signal.data.for_each_expr(visit);
            }
        }
    }
}

#[derive(Debug)]
pub struct PublishTemplate {
    pub fact_type: String,
    pub payload: Template,
}

#[derive(Debug)]
pub struct SignalTemplate {
    pub saga: SagaName,
    /// Rendered to text.
    pub key: Template,
    pub name: String,
    /// Gives a map.
    pub data: Template,
}

#[derive(Debug)]
pub struct Fail {
    pub code: String,
    pub message: Option<Template>,
    /// Names of steps that this failure does not undo, in code-point order.
    pub keep: Vec<String>,
    /// What is in flight comes to its own end before anything is undone.
    pub drain: bool,
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

/// A unit of work with a result.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each says something of its own")]
pub struct Step {
    pub name: String,
    /// Index of the group that it stands in. A group comes before its members.
    pub within: Option<u16>,
    /// Index of the machine state whose entry starts it; the steps of a saga start by themselves.
    pub state: Option<u16>,
    /// A timer or a handler starts it, each time that it fires or is taken.
    pub emitted: bool,
    /// `finally` starts it; the instance ends when it has.
    pub at_end: bool,
    /// Indices of the steps that come first.
    pub needs: Vec<u16>,
    /// How many of them must be done.
    pub join: Join,
    /// False when the step would start: skipped.
    pub condition: Option<Expr>,
    /// From when the step could start to its first attempt.
    pub delay: Option<Delay>,
    pub action: Action,
    /// What it waits for when its action has succeeded.
    pub wait: Option<Wait>,
    /// Durable retry: the first table that is for the error class counts.
    pub retry: Vec<StepRetry>,
    /// By error class or [`ANY_CLASS`], in code-point order; of the answers to a class the first that holds counts.
    pub on_error: BTreeMap<String, Vec<OnError>>,
    /// State fields from `result`.
    pub set: Vec<(String, Template)>,
    /// Expressions of other steps or handlers read its result, so the record keeps it.
    pub keeps_result: bool,
    /// Tested when the step has succeeded and its fields are set: true makes it fail with
    /// [`FAIL_IF_CLASS`].
    pub fail_if: Option<Expr>,
    /// Values that the instance registers when the step is done, by alias.
    pub aliases: Vec<(String, Template)>,
    pub compensate: Option<Compensation>,
    /// `compensate: none`: what it did is meant to stay done.
    pub stays_done: bool,
    /// How long an attempt may take, in milliseconds.
    pub timeout_ms: i64,
    /// How long the step may take from its first attempt on, with all attempts, pauses and waits. Of a loop: all
    /// that happens in it.
    pub deadline: Option<Delay>,
}

/// How many of the steps that a step needs must be done.
#[derive(Debug)]
pub enum Join {
    /// Each is done or skipped.
    All,
    /// So many are done; one that was skipped does not count.
    AtLeast { count: Count, stragglers: Stragglers },
}

/// What becomes of needs that are not over when so many are done that the others are not waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stragglers {
    LetRun,
    /// The instance stops waiting for them, and those that have not started never do.
    Cancel,
}

/// How long something takes, or when it is over.
#[derive(Debug, Clone)]
pub enum Delay {
    /// In milliseconds.
    Fixed(i64),
    /// Gives a duration, or an instant as RFC 3339; one that is past is now.
    Rendered(Template),
}

impl Step {
    /// The name under which people know it: a step that a loop is around has that of the loop.
    #[must_use]
    pub fn title(&self) -> &str {
        let body = self.name.strip_suffix(BODY_OF_FOREACH);
        body.or_else(|| self.name.strip_suffix(BODY_OF_REPEAT))
            .unwrap_or(&self.name)
    }

    /// Whether an operator means it by `name`.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name || self.title() == name
    }
}

/// Whether an entry of `retry` that names these error classes is for `class`.
pub(super) fn includes(classes: &[String], class: &str) -> bool {
    let mut classes = classes.iter();
    classes.any(|candidate| candidate == class || candidate == ANY_CLASS)
}

/// When a failed attempt of a step is followed by another one.
#[derive(Debug)]
pub struct StepRetry {
    /// Error classes, or [`ANY_CLASS`]. Each class has the attempts of the policy for itself.
    pub classes: Vec<String>,
    /// Whether the file names them. Those that are meant where it names none are about the action, not about what the step
    /// waits for.
    pub named: bool,
    pub policy: RetryPolicy,
}

impl StepRetry {
    #[must_use]
    pub fn is_for(&self, class: &str) -> bool {
        includes(&self.classes, class)
    }

    /// Whether a wait that ends so is followed by another attempt.
    #[must_use]
    pub fn is_for_wait(&self, class: &str) -> bool {
        (self.named || class == HEARTBEAT_CLASS) && self.is_for(class)
    }
}

/// What a step does when it has failed and is not tried again, in this order.
#[derive(Debug)]
pub struct OnError {
    /// Reads `error`. False: the next answer counts.
    pub when: Option<Expr>,
    /// Reads `error`.
    pub set: Vec<(String, Template)>,
    /// Indices of steps that are undone while the instance goes on.
    pub undo: Vec<u16>,
    /// Comes before what follows otherwise.
    pub complete: Option<Complete>,
    pub then: Then,
}

#[derive(Debug)]
pub enum Then {
    /// The instance fails; without a code with the error class.
    Fail(Option<Fail>),
    /// The step counts as done.
    Continue,
    Cancel(Cancel),
    /// The step of this index begins anew, and all that need it.
    GoTo(u16),
}

impl Step {
    /// Whether people mean the step of this index, or a group around it, by `name`. Effects of states are known by
    /// what the state calls them.
    #[must_use]
    pub fn is_called(steps: &[Self], index: u16, name: &str) -> bool {
        let of = |index: u16| steps.get(usize::from(index));
        let mut around = std::iter::successors(Some(index), |index| of(*index)?.within);
        around.any(|index| {
            of(index).is_some_and(|step| {
                let of_state = step.name.strip_prefix(OF_MACHINE);
                let emitted = of_state
                    .or_else(|| step.name.strip_prefix(OF_TIMERS))
                    .or_else(|| step.title().strip_prefix(OF_HANDLERS));
                let effect = emitted.and_then(|effect| effect.rsplit_once('.'));
                step.name == name || step.title() == name || effect.is_some_and(|(_, effect)| effect == name)
            })
        })
    }

    /// Whether it starts as soon as it can, and the instance completes when it is done.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        self.state.is_none() && !self.at_end && !self.emitted
    }

    /// What ends its wait.
    pub fn waits_for(&self) -> impl Iterator<Item = &Awaiting> {
        self.wait.iter().flat_map(|wait| &wait.any)
    }

    /// The event types that it waits for.
    pub fn expected_events(&self) -> impl Iterator<Item = &String> {
        self.waits_for().filter_map(|awaiting| match &awaiting.on {
            Awaited::Event(event_type) => Some(event_type),
            Awaited::Signal(_) | Awaited::Callback => None,
        })
    }

    /// Whether it waits, and does nothing else.
    #[must_use]
    pub const fn waits_alone(&self) -> bool {
        self.wait.is_some() && matches!(self.action, Action::Nothing)
    }

    /// Whether it waits for whoever has the token of its attempt.
    #[must_use]
    pub fn is_called_back(&self) -> bool {
        self.waits_for()
            .any(|awaiting| matches!(awaiting.on, Awaited::Callback))
    }

    /// What is said about failures of `class`, in the order in which it is tried: the class under which it stands, the index
    /// there, and the answer.
    pub fn answers<'s>(
        &'s self,
        class: &str,
    ) -> impl Iterator<Item = (&'s str, usize, &'s OnError)> + use<'s> {
        let own = self.on_error.get_key_value(class).filter(|_| class != ANY_CLASS);
        let any = self.on_error.get_key_value(ANY_CLASS);
        own.into_iter().chain(any).flat_map(|(class, answers)| {
            let answers = answers.iter().enumerate();
            answers.map(move |(index, answer)| (class.as_str(), index, answer))
        })
    }
}

/// What handlers of signals begin with, before the name of the signal.
pub const SIGNAL_PREFIX: &str = "signal.";

/// Error class of a step whose work was given up for want of a sign of life.
pub const HEARTBEAT_CLASS: &str = "heartbeat";
/// Error class of a step whose `fail_if` holds.
pub const FAIL_IF_CLASS: &str = "fail_if";
/// Stands for every error class.
pub const ANY_CLASS: &str = "*";

/// What a step or a compensation does.
#[derive(Debug)]
pub enum Action {
    Effect {
        effect: EffectName,
        with: Template,
    },
    /// Done when the gateway has accepted it.
    Command(CommandTemplate),
    /// Done at once. Never what a compensation does.
    Publish(Telling),
    /// Starts an instance of another saga; done when that has completed, or at once. Never what a compensation
    /// does.
    Saga(ChildTemplate),
    /// Has the instance undone that the step has started. Only what a compensation does.
    UndoSaga(SagaName),
    /// Of a step that only lets time pass or waits. Never what a compensation does.
    Nothing,
    /// Done at once, and nothing outside. Never what a compensation does.
    Decide(Decision),
    /// Done when its members are. Never what a compensation does.
    Group(Group),
}

/// An instance of another saga, of the same tenant.
#[derive(Debug)]
pub struct ChildTemplate {
    pub saga: SagaName,
    /// Rendered to text.
    pub key: Template,
    /// Gives a map.
    pub input: Template,
    /// Whether the step waits for its outcome.
    pub waits: bool,
}

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
