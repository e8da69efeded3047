//! Reading what a step does besides its work: what it waits for, and when it starts.

mod decisions;

use std::ops::Range;

use self::decisions::{ENDS, only_decides};
use super::actions::Reading;
use super::certain;
use super::codes;
use super::fields::{self, Fields};
use super::grammar;
use super::model::{Action, Awaited, Awaiting, Decision, Delay, Early, Wait};
use super::steps::{RESULT_ROOTS, START_ROOTS};
use super::texts::EventParts;
use super::yaml::{Entry, Node, Value};
use crate::expr::Root;
use crate::expr::types::Type;
use crate::limits::Limits;

/// Shortest silence that a `heartbeat` allows, in milliseconds.
pub const HEARTBEAT_MS_MIN: u64 = 1_000;

/// Roots when a step starts and there is a signal.
const SIGNAL_ROOTS: &[Root] = &[
    Root::Signal,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Event,
    Root::Record,
];
/// Roots when a step is done and there is a signal.
const RESULT_SIGNAL_ROOTS: &[Root] = &[
    Root::Result,
    Root::Signal,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Event,
    Root::Record,
];

/// Most alternatives of one wait.
pub const AWAITED_MAX: u32 = 16;

/// What may be readable at the end of a step of which it is not known what it waits for.
pub const ANY_END_ROOTS: (&[Root], EventParts) = (RESULT_SIGNAL_ROOTS, EventParts::Whole);

/// Roots when a step is done that has waited for one of several.
const LISTED_ROOTS: [&[Root]; 4] = [
    &[
        Root::Wait,
        Root::State,
        Root::Key,
        Root::Steps,
        Root::Event,
        Root::Record,
    ],
    &[
        Root::Wait,
        Root::Signal,
        Root::State,
        Root::Key,
        Root::Steps,
        Root::Event,
        Root::Record,
    ],
    &[
        Root::Wait,
        Root::Result,
        Root::State,
        Root::Key,
        Root::Steps,
        Root::Event,
        Root::Record,
    ],
    &[
        Root::Wait,
        Root::Result,
        Root::Signal,
        Root::State,
        Root::Key,
        Root::Steps,
        Root::Event,
        Root::Record,
    ],
];

fn has_result(action: Option<&Action>) -> bool {
    !matches!(
        action,
        Some(Action::Nothing | Action::Publish(_) | Action::Decide(_))
    )
}

/// What can be read at the end of a step.
pub fn end_roots(action: Option<&Action>, wait: Option<&Wait>) -> (&'static [Root], EventParts) {
    let has_result = has_result(action);
    let Some(wait) = wait else {
        let roots = if has_result { RESULT_ROOTS } else { START_ROOTS };
        return (roots, EventParts::Moment);
    };
    match wait.any.as_slice() {
        [one] if !wait.is_list => roots_behind(&one.on, has_result),
        several => {
            // What each of them gives.
            let events = several.iter().all(|one| matches!(one.on, Awaited::Event(_)));
            let signals = several.iter().all(|one| !matches!(one.on, Awaited::Event(_)));
            let roots = LISTED_ROOTS[usize::from(signals) + 2 * usize::from(has_result)];
            let parts = if events {
                EventParts::Whole
            } else {
                EventParts::Moment
            };
            (roots, parts)
        }
    }
}

/// What can be read when this has come.
const fn roots_behind(on: &Awaited, has_result: bool) -> (&'static [Root], EventParts) {
    match (on, has_result) {
        (Awaited::Event(_), true) => (RESULT_ROOTS, EventParts::Whole),
        (Awaited::Event(_), false) => (START_ROOTS, EventParts::Whole),
        (Awaited::Signal(_) | Awaited::Callback, true) => (RESULT_SIGNAL_ROOTS, EventParts::Moment),
        (Awaited::Signal(_) | Awaited::Callback, false) => (SIGNAL_ROOTS, EventParts::Moment),
    }
}

impl<'r> Reading<'r, '_> {
    /// What the step does. One that only waits or lets time pass does nothing itself.
    pub fn step_action(&mut self, fields: &Fields<'r, '_>) -> Option<Action> {
        let acts = ["effect", "command", "publish", "signal", "saga"];
        if ENDS.iter().any(|key| fields.get(key).is_some()) {
            return Some(Action::Decide(self.decision(fields)));
        }
        if !acts.iter().any(|key| fields.get(key).is_some())
            && ["wait", "delay"].iter().any(|key| fields.get(key).is_some())
        {
            self.only_with_an_outcome(fields, &["with", "retry", "timeout"]);
            return Some(Action::Nothing);
        }
        if let Some(entry) = fields.get("saga") {
            fields.one_of(&acts, self.findings);
            self.only_with_an_outcome(fields, &["with"]);
            return self.child(entry, fields);
        }
        let Some(entry) = fields.get("publish").or_else(|| fields.get("signal")) else {
            if acts.iter().all(|key| fields.get(key).is_none()) {
                if only_decides(fields) {
                    self.only_with_an_outcome(fields, &["with", "retry", "timeout"]);
                    self.nothing_to_undo(fields);
                    return Some(Action::Decide(Decision::default()));
                }
                self.nothing_to_do(fields);
                if let Some(with) = fields.get("with") {
                    self.object(with, START_ROOTS, EventParts::Moment);
                }
                return None;
            }
            return self.own_action(fields);
        };
        fields.one_of(&acts, self.findings);
        self.only_with_an_outcome(fields, &["with", "retry", "timeout"]);
        self.telling(entry, START_ROOTS, EventParts::Moment)
            .map(Action::Publish)
    }

    /// `wait: {event | signal | callback | any, when, timeout}` of a step that does `action`.
    pub fn wait(&mut self, entry: &'r Entry<'_>, action: Option<&Action>) -> Option<Wait> {
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::steps::WAIT,
            self.findings,
        )?;
        let Some(awaited) = fields.chosen(self.findings) else {
            // What it waits for may be anything, so that nothing but mistakes of their own is found in the others.
            if let Some(when) = fields.get("when") {
                self.expr(when, ANY_END_ROOTS.0, ANY_END_ROOTS.1);
            }
            self.heartbeat(&fields);
            self.wait_timeout(&fields, &entry.key_span);
            self.early(&fields, &[]);
            return None;
        };
        let is_list = awaited.key == "any";
        let any = if is_list {
            if let Some(when) = fields.get("when") {
                let message = "each of several has a \"when\" of its own";
                self.findings
                    .error(codes::CONTRADICTION, when.key_span.clone(), message);
            }
            self.several(awaited, action)
        } else {
            self.awaited(&fields, awaited, action).map(|one| vec![one])
        };
        let called_back = any
            .iter()
            .flatten()
            .any(|awaiting| matches!(awaiting.on, Awaited::Callback));
        if let Some(heartbeat) = fields.get("heartbeat").filter(|_| !called_back) {
            let message = "only who was given a token can tell that it is alive";
            self.findings
                .error(codes::CONTRADICTION, heartbeat.key_span.clone(), message)
                .help(Some("a \"heartbeat\" stands beside `callback: true`".to_owned()));
        }
        let heartbeat_ms = self.heartbeat(&fields).filter(|_| called_back);
        let timeout = self.wait_timeout(&fields, &entry.key_span);
        let early = self.early(&fields, any.as_deref().unwrap_or_default());
        Some(Wait {
            any: any?,
            is_list,
            early,
            timeout,
            heartbeat_ms,
        })
    }

    /// `early: keep | turn | ignore`
    fn early(&mut self, fields: &Fields<'_, '_>, any: &[Awaiting]) -> Early {
        let default = if self.in_loop { Early::Turn } else { Early::Keep };
        let Some(entry) = fields.get("early") else {
            return default;
        };
        if !any.is_empty() && any.iter().all(|one| matches!(one.on, Awaited::Callback)) {
            let message = "a callback is for one piece of work, and is kept for it in any case";
            self.findings
                .error(codes::CONTRADICTION, entry.key_span.clone(), message);
        }
        match self.one_word(entry, &["keep", "turn", "ignore"]) {
            Some("keep") => Early::Keep,
            Some("ignore") => Early::Ignore,
            Some(_) if !self.in_loop => {
                let message = "the step stands in no loop, so there are no turns";
                let help = "write keep, or ignore";
                self.findings
                    .error(codes::CONTRADICTION, entry.value.span.clone(), message)
                    .help(Some(help.to_owned()));
                default
            }
            Some(_) | None => default,
        }
    }

    /// `any: [{event | signal | callback, when, set}]`
    fn several(&mut self, entry: &'r Entry<'_>, action: Option<&Action>) -> Option<Vec<Awaiting>> {
        let Value::List(items) = &entry.value.value else {
            fields::expected(&entry.value, &entry.key_span, "a list", self.findings);
            return None;
        };
        let most = AWAITED_MAX as usize;
        if items.is_empty() || items.len() > most {
            let message = format!("a wait is for 1 to {most}, found {}", items.len());
            self.findings
                .error(codes::WRONG_VALUE, entry.key_span.clone(), message);
        }
        let known = self.types.clone();
        let mut all = Some(Vec::with_capacity(items.len()));
        let mut events = Vec::new();
        for item in items {
            let shape = &grammar::steps::AWAITED;
            let fields = Fields::item(item, &entry.key_span, shape, self.findings);
            let awaiting = fields.and_then(|fields| {
                let awaited = fields.chosen(self.findings)?;
                let mut awaiting = self.awaited(&fields, awaited, action)?;
                let (roots, event) = roots_behind(&awaiting.on, has_result(action));
                if let Some(set) = fields.get("set") {
                    awaiting.set = self.set(set, roots, event);
                }
                Some(awaiting)
            });
            self.types.clone_from(&known);
            if let (Some(awaiting), Some(before)) = (&awaiting, &all) {
                self.taken_before(item, awaiting, before);
            }
            if let Some(Awaited::Event(event_type)) = awaiting.as_ref().map(|awaiting| &awaiting.on) {
                events.push(event_type.clone());
            }
            all = all.zip(awaiting).map(|(mut all, awaiting)| {
                all.push(awaiting);
                all
            });
        }
        events.dedup();
        if let (Some(types), [event_type, others @ ..]) = (&mut self.types, events.as_slice()) {
            if others.is_empty() {
                types.enter_event(event_type);
            } else {
                types.env.bind(Root::Event, Type::dynamic());
            }
        }
        all.filter(|all| !all.is_empty())
    }

    /// Reports an alternative before which there always is another one.
    fn taken_before(&mut self, item: &Node<'_>, awaiting: &Awaiting, before: &[Awaiting]) {
        let is_same = |other: &&Awaiting| match (&other.on, &awaiting.on) {
            (Awaited::Event(one), Awaited::Event(other)) | (Awaited::Signal(one), Awaited::Signal(other)) => {
                one == other
            }
            (Awaited::Callback, Awaited::Callback) => true,
            (Awaited::Event(_) | Awaited::Signal(_) | Awaited::Callback, _) => false,
        };
        if before.iter().filter(is_same).any(|other| other.when.is_none()) {
            let span = item.span.clone();
            let message = "this alternative is never taken: one before it always is";
            self.findings.warning(codes::UNREACHABLE_HANDLER, span, message);
        }
    }

    /// What `awaited` of `fields` says that a step waits for.
    fn awaited(
        &mut self,
        fields: &Fields<'r, '_>,
        awaited: &'r Entry<'_>,
        action: Option<&Action>,
    ) -> Option<Awaiting> {
        if awaited.key == "callback" {
            self.callback(fields, awaited, action);
            return Some(Awaiting {
                on: Awaited::Callback,
                when: None,
                set: Vec::new(),
            });
        }
        let what = if awaited.key == "event" {
            "an event type"
        } else {
            "the name of a signal"
        };
        let name = fields::text(&awaited.value, &awaited.key_span, what, self.findings);
        let span = &awaited.value.span;
        let (on, roots, event) = if awaited.key == "event" {
            let legal = name.filter(|name| fields::is_event_type(name, span, self.findings));
            let on = legal.map(|name| Awaited::Event(name.to_owned()));
            (on, START_ROOTS, EventParts::Whole)
        } else {
            let legal = name.filter(|name| fields::is_word(name, span, "signal", self.findings));
            let on = legal.map(|name| Awaited::Signal(name.to_owned()));
            (on, SIGNAL_ROOTS, EventParts::Moment)
        };
        // Read from here to the end of the step, whose types are forgotten then.
        if let (Some(types), Some(Awaited::Event(event_type))) = (&mut self.types, &on) {
            types.enter_event(event_type);
        }
        if let Some(Awaited::Event(event_type)) = &on
            && self.starts.contains(event_type)
            && fields.get("when").is_none()
        {
            let message = format!("the {event_type} that starts the instance does not end this wait");
            self.findings.warning(codes::SURPRISE, span.clone(), message).help(Some(
                "it waits for the next one; ask under \"if\" for what the start has set, or say with \"when\" which one is meant"
                    .to_owned(),
            ));
        }
        let when = fields.get("when").map(|when| {
            let condition = self.expr(when, roots, event);
            self.certain(when, &condition, certain::WAIT);
            condition
        });
        self.assume(when.as_ref(), true);
        Some(Awaiting {
            on: on?,
            when,
            set: Vec::new(),
        })
    }

    /// `callback: true`
    fn callback(&mut self, fields: &Fields<'r, '_>, entry: &Entry<'_>, action: Option<&Action>) {
        let span = entry.key_span.clone();
        if fields::boolean(entry, self.findings).unwrap_or(true) {
            let hands_out = action.is_none_or(|action| match action {
                Action::Effect { .. } => true,
                Action::Command(command) => command.hands_out_token(),
                _ => false,
            });
            if !hands_out {
                let message = if matches!(action, Some(Action::Command(_))) {
                    "the command hands out no token, so nobody can call back"
                } else {
                    "a callback belongs to an effect or a command, and the step has none"
                };
                self.findings
                    .error(codes::CONTRADICTION, span, message)
                    .help(Some(
                        "an effect hands out the token of its work as ${command.token}, and so does the payload of a command"
                            .to_owned(),
                    ));
            }
        } else {
            let message = "\"callback\" is true or not there";
            self.findings.error(codes::WRONG_VALUE, span, message);
        }
        if let Some(when) = fields.get("when") {
            let message = "a callback ends the wait with any content";
            self.findings
                .error(codes::CONTRADICTION, when.key_span.clone(), message)
                .help(Some("say with fail_if what is not good enough".to_owned()));
        }
    }

    /// Longest silence of the holder of the token, in milliseconds.
    fn heartbeat(&mut self, fields: &Fields<'_, '_>) -> Option<i64> {
        let longest = Limits::default().timer_ms.unsigned_abs();
        let entry = fields.get("heartbeat")?;
        let ms = fields::duration(
            entry,
            HEARTBEAT_MS_MIN..=longest,
            codes::WRONG_VALUE,
            self.findings,
        )?;
        Some(i64::try_from(ms).unwrap_or(i64::MAX))
    }

    /// How long a wait lasts at most; `at` is where it begins.
    fn wait_timeout(&mut self, fields: &Fields<'r, '_>, at: &Range<usize>) -> Option<Delay> {
        let Some(timeout) = fields.get("timeout") else {
            if fields.is_meant("timeout") {
                return None;
            }
            self.findings
                .warning(codes::ENDLESS_WAIT, at.clone(), "the wait may never end")
                .help(Some(
                    "give it a timeout, and say with on_timeout what follows".to_owned(),
                ));
            return None;
        };
        self.delay(timeout, START_ROOTS, EventParts::Moment)
    }
}
