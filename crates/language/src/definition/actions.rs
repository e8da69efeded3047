//! Handlers and what they do: state fields, timers, emissions, failure, the way to another state.

mod timers;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::aliases::Aliases;
use super::certain;
use super::codes;
use super::conversation::Sagas;
use super::effect::Effects;
use super::fields::{self, Fields, NameRule};
use super::findings::Findings;
use super::grammar::{self, Shape};
use super::model::{Actions, EffectContract, Fail, Handler, Interrupt, Step};
use super::schema_files::Schemas;
use super::state_effects::Emitter;
use super::step_errors::ERROR_ROOTS;
use super::steps::RESULT_ROOTS;
use super::texts::{self, EventParts};
use super::typing::{self, Types};
use super::yaml::{Entry, Node, Value};
use crate::expr::{Expr, Root, Template, nearest};
use crate::ids::EffectName;

/// What the readers of one saga share.
#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says something else about the file"
)]
pub struct Reading<'r, 'c> {
    pub findings: &'r mut Findings<'c>,
    /// The effects there are; `None` where they are not looked up.
    pub effects: Option<&'r Effects>,
    /// The sagas there are; `None` where they are not looked up.
    pub sagas: Option<&'r Sagas>,
    /// Whether there are no others, so that an unknown name is a mistake.
    pub all_effects: bool,
    pub all_sagas: bool,
    pub schemas: &'r mut Schemas<'c>,
    /// What is known about what expressions read; `None` where that is not checked again.
    pub types: Option<Types>,
    /// The contracts of the effects in use.
    pub contracts: BTreeMap<EffectName, EffectContract>,
    /// Event types that start instances.
    pub starts: Vec<String>,
    pub steps: Vec<&'r str>,
    /// What expressions call the item of the loop around, where there is one.
    pub item: Option<&'r str>,
    /// Whether a loop is around the step that is read.
    pub in_loop: bool,
    /// Whether the saga takes an input.
    pub takes_input: bool,
    pub states: Vec<&'r str>,
    /// Index of the state whose entry is read.
    pub entered: Option<u16>,
    /// Name of the timer that is read.
    pub timer: Option<&'r str>,
    /// What the handler of the saga that is read handles.
    pub handled: Option<&'r str>,
    /// The effects that timers and handlers emit, by their names.
    pub emitted_effects: BTreeMap<&'r str, &'r str>,
    /// Handlers of how they end: whether of a result, and of which.
    pub of_effects: Vec<(bool, String, Vec<Handler>)>,
    /// Effects that states, timers and handlers emit, which become steps behind those of the saga.
    pub emitted: Vec<Step>,
    pub timers: Timers<'r>,
    pub aliases: Aliases<'r>,
    /// Whether anything ends an instance early.
    pub completes: bool,
    /// Steps that a failure keeps, with their places.
    pub kept: Vec<(&'r str, Range<usize>)>,
    /// The step that is read needs something that is not known.
    pub lost_need: bool,
    /// Steps of which not all is known that they need.
    pub uncertain: BTreeSet<usize>,
    /// The state that is read emits an effect whose name is not known.
    pub nameless: bool,
    /// Handlers of what is not known.
    pub strays: Vec<Handler>,
    /// Somewhere the way leads to a state that is not known.
    pub lost_way: bool,
}

/// The timers that a saga names, with their places.
#[derive(Debug, Default)]
pub struct Timers<'r> {
    /// Declared under `timers`.
    pub declared: BTreeSet<&'r str>,
    /// Set by a handler, a state or a timer.
    pub set: BTreeMap<&'r str, Range<usize>>,
    /// Cleared, or handled by a state.
    pub named: Vec<(&'r str, Range<usize>)>,
    pub handled: BTreeSet<&'r str>,
    /// Declared without anything to do.
    pub idle: Vec<(&'r str, Range<usize>)>,
}

impl Timers<'_> {
    /// Whether the saga has a timer of this name.
    pub fn is_known(&self, name: &str) -> bool {
        self.declared.contains(name) || self.set.contains_key(name) || self.handled.contains(name)
    }
}

/// Where actions stand, which decides what they may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    Handler,
    StateHandler,
    StateTimer,
    StateResult,
    StateError,
    Entry,
    Timer,
    AfterEnd,
    Signal,
    StateSignal,
    SignalAfterEnd,
}

impl Site {
    const fn shape(self) -> &'static Shape {
        match self {
            Self::Handler => &grammar::saga::HANDLER,
            Self::StateHandler => &grammar::saga::STATE_HANDLER,
            Self::StateTimer => &grammar::saga::TIMER_HANDLER,
            Self::StateResult => &grammar::saga::RESULT_HANDLER,
            Self::StateError => &grammar::saga::ERROR_HANDLER,
            Self::Entry => &grammar::saga::ENTRY,
            Self::Timer => &grammar::saga::TIMER,
            Self::Signal => &grammar::saga::SIGNAL_HANDLER,
            Self::StateSignal => &grammar::saga::STATE_SIGNAL_HANDLER,
            Self::AfterEnd | Self::SignalAfterEnd => &grammar::saga::AFTER_END,
        }
    }

    pub const fn event(self) -> EventParts {
        match self {
            // A state may be entered by an event as well as by a timer.
            Self::Handler | Self::StateHandler | Self::Entry | Self::AfterEnd => EventParts::Whole,
            Self::StateTimer
            | Self::StateResult
            | Self::StateError
            | Self::Timer
            | Self::Signal
            | Self::StateSignal
            | Self::SignalAfterEnd => EventParts::Moment,
        }
    }
}

impl Site {
    pub const fn roots(self) -> &'static [Root] {
        match self {
            Self::StateResult => RESULT_ROOTS,
            Self::StateError => ERROR_ROOTS,
            Self::AfterEnd => AFTER_END_ROOTS,
            Self::Signal | Self::StateSignal => SIGNAL_ROOTS,
            Self::SignalAfterEnd => SIGNAL_AFTER_END_ROOTS,
            Self::Handler | Self::StateHandler | Self::StateTimer | Self::Entry | Self::Timer => ROOTS,
        }
    }
}

/// Roots when the instance has ended.
const AFTER_END_ROOTS: &[Root] = &[
    Root::Event,
    Root::Outcome,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Record,
];

/// The same with a signal.
const SIGNAL_AFTER_END_ROOTS: &[Root] = &[
    Root::Signal,
    Root::Event,
    Root::Outcome,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Record,
];

/// Roots of handlers of signals.
const SIGNAL_ROOTS: &[Root] = &[
    Root::Signal,
    Root::Event,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Record,
];

/// Roots of handlers, states and timers.
const ROOTS: &[Root] = &[Root::Event, Root::State, Root::Key, Root::Steps, Root::Record];

impl<'r> Reading<'r, '_> {
    /// The alternatives under one event type or timer.
    pub fn handlers(&mut self, entry: &'r Entry<'_>, site: Site) -> Vec<Handler> {
        let known = self.types.clone();
        if let (EventParts::Whole, Some(types)) = (site.event(), &mut self.types) {
            types.enter_event(&entry.key);
        }
        let handlers = self.alternatives(entry, site);
        self.types = known;
        handlers
    }

    fn alternatives(&mut self, entry: &'r Entry<'_>, site: Site) -> Vec<Handler> {
        let mut handlers = Vec::new();
        let mut always_taken = false;
        let mut conditions = BTreeSet::new();
        for item in fields::one_or_many(&entry.value) {
            if always_taken {
                let span = fields::visible(item, &entry.key_span, self.findings.text());
                let message = "this alternative is never taken: one before it always is";
                self.findings.warning(codes::UNREACHABLE_HANDLER, span, message);
            }
            let Some(fields) = Fields::item(item, &entry.key_span, site.shape(), self.findings) else {
                continue;
            };
            let written = fields.get("when");
            let when = written.map(|when| self.expr(when, site.roots(), site.event()));
            always_taken |= match (written, &when) {
                (Some(written), Some(when)) => {
                    let text = when.text().trim();
                    let same = !text.is_empty() && !conditions.insert(text.to_owned());
                    if same && !always_taken {
                        self.never_taken(written, "one before it has the same condition");
                    }
                    self.certain(written, when, certain::HANDLER)
                }
                _ => true,
            };
            let outside = self.assume(when.as_ref(), true);
            let actions = self.actions(&fields, site);
            self.types = outside;
            // Those behind it are taken where this one is not.
            self.assume(when.as_ref(), false);
            handlers.push(Handler { when, actions });
        }
        handlers
    }

    fn never_taken(&mut self, when: &Entry<'_>, why: &str) {
        let span = fields::visible(&when.value, &when.key_span, self.findings.text());
        let message = format!("this alternative is never taken: {why}");
        self.findings.warning(codes::UNREACHABLE_HANDLER, span, message);
    }

    /// Adds what a condition tells, and returns what was known before.
    pub fn assume(&mut self, condition: Option<&Expr>, holds: bool) -> Option<Types> {
        let before = self.types.clone();
        if let (Some(types), Some(condition)) = (&mut self.types, condition) {
            types.env = condition.narrowed(&types.env, holds);
        }
        before
    }

    /// The entry of a state.
    pub fn entry(&mut self, entry: &'r Entry<'_>) -> Actions {
        let site = Site::Entry;
        Fields::read(&entry.value, &entry.key_span, site.shape(), self.findings)
            .map(|fields| self.actions(&fields, site))
            .unwrap_or_default()
    }

    pub fn actions(&mut self, fields: &Fields<'r, '_>, site: Site) -> Actions {
        let mut actions = Actions::default();
        if let Some(set) = fields.get("set") {
            actions.set = self.set(set, site.roots(), site.event());
        }
        if let Some(clear) = fields.get("clear_timer") {
            actions.clear_timers = self.clear_timers(clear);
        }
        if let Some(timers) = fields.get("timer") {
            actions.timers = self.set_timers(timers, site.event());
        }
        actions.aliases = self.aliases(fields, site.roots(), site.event());
        if let Some(emit) = fields.get("emit") {
            actions.emit = match (site, self.entered, self.timer) {
                (Site::Entry, Some(state), _) => self.effect_emits(emit, Emitter::State(state)),
                (Site::Timer, _, Some(timer)) => self.effect_emits(emit, Emitter::Timer(timer)),
                (Site::Handler | Site::Signal, _, _) => {
                    let handled = self.handled.unwrap_or_default();
                    self.effect_emits(emit, Emitter::Handler(handled, site))
                }
                _ => self.emits(emit, site.roots(), site.event()),
            };
        }
        actions.interrupt = fields
            .get("interrupt")
            .and_then(|interrupt| self.interrupt(interrupt));
        actions.complete = fields
            .get("complete")
            .and_then(|complete| self.complete(complete, site.roots(), site.event()));
        self.ends_here(fields, &["cancel", "fail", "to"]);
        actions.cancel = fields
            .get("cancel")
            .and_then(|cancel| self.cancel(cancel, site.roots(), site.event()));
        self.cancelled_here(fields, &["fail", "to"]);
        actions.fail = fields
            .get("fail")
            .and_then(|fail| self.fail(fail, site.roots(), site.event()));
        actions.to = fields.get("to").and_then(|to| self.state(to));
        if let (Some(_), Some(to)) = (fields.get("fail"), fields.get("to")) {
            self.findings.error(
                codes::CONTRADICTION,
                to.key_span.clone(),
                "a saga that fails goes to no other state: \"fail\" and \"to\" exclude each other",
            );
        }
        if let Some(defer) = fields.get("defer") {
            actions.defer = fields::boolean(defer, self.findings).unwrap_or(false);
            let others = [
                "set",
                "clear_timer",
                "timer",
                "alias",
                "emit",
                "interrupt",
                "complete",
                "cancel",
                "fail",
                "to",
            ];
            if actions.defer && others.iter().any(|key| fields.get(key).is_some()) {
                self.findings.error(
                    codes::CONTRADICTION,
                    defer.key_span.clone(),
                    "\"defer\" keeps the event for later and does nothing else; only \"when\" may stand beside it",
                );
            }
        }
        actions
    }

    /// `interrupt: {step, class}`
    fn interrupt(&mut self, entry: &'r Entry<'_>) -> Option<Interrupt> {
        let shape = &grammar::saga::INTERRUPTION;
        let fields = Fields::read(&entry.value, &entry.key_span, shape, self.findings)?;
        let step = fields.require("step", self.findings);
        let step = step.and_then(|step| self.step_name(&step.value, step));
        let class = fields.require("class", self.findings)?;
        let text = fields::text(&class.value, &class.key_span, "an error class", self.findings)?;
        let span = &class.value.span;
        let legal = fields::is_name(text, span, "error class", NameRule::Dotted, self.findings);
        Some(Interrupt {
            step: step?,
            class: legal.then(|| text.to_owned())?,
        })
    }

    /// State fields, in code-point order.
    pub fn set(
        &mut self,
        entry: &Entry<'_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Vec<(String, Template)> {
        let Some(entries) = fields::entries(&entry.value, &entry.key_span, "set", self.findings) else {
            return Vec::new();
        };
        for field in entries {
            if field.key.is_empty() {
                self.findings.error(
                    codes::NAME,
                    field.key_span.clone(),
                    "a field of the state has no name",
                );
            }
        }
        let (readable, findings) = self.readable(roots, event);
        let set = texts::fields(entries, readable, findings);
        if let Some(types) = &self.types {
            typing::state_fields(entry, &set, types, self.findings);
        }
        set
    }

    pub fn fail(&mut self, entry: &'r Entry<'_>, roots: &'static [Root], event: EventParts) -> Option<Fail> {
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::FAILURE,
            self.findings,
        )?;
        let keep = fields.get("keep").map(|keep| self.kept(keep));
        let drain = fields
            .get("drain")
            .and_then(|drain| fields::boolean(drain, self.findings));
        let code = fields.require("code", self.findings)?;
        let text = fields::text(&code.value, &code.key_span, "a code", self.findings)?;
        let legal = fields::is_name(text, &code.value.span, "code", NameRule::Dotted, self.findings);
        let message = fields
            .get("message")
            .map(|message| self.text(message, "a message", roots, event));
        legal.then(|| Fail {
            code: text.to_owned(),
            message,
            keep: keep.unwrap_or_default(),
            drain: drain.unwrap_or_default(),
        })
    }

    /// The index of the state that `entry` names.
    pub fn state(&mut self, entry: &Entry<'_>) -> Option<u16> {
        let found = self.state_named(entry);
        self.lost_way |= found.is_none();
        found
    }

    fn state_named(&mut self, entry: &Entry<'_>) -> Option<u16> {
        let name = fields::text(
            &entry.value,
            &entry.key_span,
            "the name of a state",
            self.findings,
        )?;
        let index = self.states.iter().position(|state| *state == name);
        if index.is_none() {
            let help = if self.states.is_empty() {
                Some("the saga has no machine".to_owned())
            } else {
                nearest(name, self.states.iter().copied()).map(|near| format!("did you mean \"{near}\"?"))
            };
            let message = format!("unknown state \"{}\"", name.escape_debug());
            self.findings
                .error(codes::UNKNOWN_STATE, entry.value.span.clone(), message)
                .help(help);
        }
        index.and_then(|index| u16::try_from(index).ok())
    }
}

/// The keys of a map below `key`, without any finding: names that other parts refer to.
pub fn names_under<'n>(node: &'n Node<'_>, path: &[&str]) -> Vec<&'n str> {
    let mut at = node;
    for key in path {
        let Value::Map(entries) = &at.value else {
            return Vec::new();
        };
        let Some(entry) = entries.iter().find(|entry| entry.key == *key) else {
            return Vec::new();
        };
        at = &entry.value;
    }
    match &at.value {
        Value::Map(entries) => entries.iter().map(|entry| &*entry.key).collect(),
        Value::Scalar(_) | Value::List(_) => Vec::new(),
    }
}
