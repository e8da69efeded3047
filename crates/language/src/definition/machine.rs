//! Reading the state machine of a saga.

use std::collections::BTreeMap;

use super::actions::{Reading, Site};
use super::codes;
use super::fields::{self, Fields, NameRule};
use super::grammar;
use super::model::{Actions, Emit, Handler, Machine, SIGNAL_PREFIX, State};
use super::yaml::Entry;

/// Most states of a machine.
pub const STATES_MAX: usize = 256;

const TIMER_PREFIX: &str = "timer.";
const RESULT_PREFIX: &str = "result.";
const ERROR_PREFIX: &str = "error.";

impl<'r> Reading<'r, '_> {
    pub fn machine(&mut self, entry: &'r Entry<'_>) -> Option<Machine> {
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::MACHINE,
            self.findings,
        )?;
        let initial = fields.require("initial", self.findings);
        let initial = initial.and_then(|initial| self.state(initial));
        self.lost_way |= initial.is_none();
        let states = fields.require("states", self.findings)?;
        let entries = fields::entries(&states.value, &states.key_span, "states", self.findings)?;
        if entries.is_empty() {
            self.findings.error(
                codes::MISSING_KEY,
                states.key_span.clone(),
                "a machine needs a state",
            );
        }
        if entries.len() > STATES_MAX {
            let message = format!("{} states, at most {STATES_MAX} are allowed", entries.len());
            self.findings
                .error(codes::TOO_MANY, states.key_span.clone(), message);
            return None;
        }
        let states = entries.iter().map(|entry| self.machine_state(entry)).collect();
        Some(Machine {
            // Where it is not known, that has been told.
            initial: initial.unwrap_or(0),
            states,
        })
    }

    fn machine_state(&mut self, entry: &'r Entry<'_>) -> State {
        fields::is_name(
            &entry.key,
            &entry.key_span,
            "state",
            NameRule::Dashed,
            self.findings,
        );
        let mut state = State {
            name: entry.key.clone().into_owned(),
            entry: Actions::default(),
            handlers: BTreeMap::new(),
            timer_handlers: BTreeMap::new(),
            result_handlers: BTreeMap::new(),
            error_handlers: BTreeMap::new(),
            is_final: false,
        };
        let Some(fields) = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::MACHINE_STATE,
            self.findings,
        ) else {
            return state;
        };
        self.nameless = false;
        if let Some(actions) = fields.get("entry") {
            self.entered = self
                .states
                .iter()
                .position(|name| *name == entry.key)
                .and_then(|index| u16::try_from(index).ok());
            state.entry = self.entry(actions);
            self.entered = None;
        }
        if let Some(answer) = fields.get("final") {
            state.is_final = fields::boolean(answer, self.findings).unwrap_or(false);
        }
        let waits = state
            .entry
            .emit
            .iter()
            .any(|emission| matches!(emission.emit, Emit::Effect(_)));
        if let (true, true, Some(entry)) = (waits, state.is_final, fields.get("final")) {
            let message = "a final state waits for nothing, and its entry emits an effect";
            self.findings
                .error(codes::CONTRADICTION, entry.key_span.clone(), message);
        }
        let Some(handlers) = fields.get("handlers") else {
            return state;
        };
        if state.is_final && self.types.is_some() {
            let message = "these handlers never run: the instance ends when it enters a final state";
            self.findings
                .error(codes::NEVER_STARTS, handlers.key_span.clone(), message)
                .help(Some("what comes later is handled under \"after_end\"".to_owned()));
        }
        let entries = fields::entries(&handlers.value, &handlers.key_span, "handlers", self.findings);
        for entry in entries.unwrap_or_default() {
            self.state_handlers(entry, &mut state);
        }
        state
    }

    /// Handlers of a state for one event, signal, timer, result or error.
    fn state_handlers(&mut self, entry: &'r Entry<'_>, state: &mut State) {
        if let Some(name) = entry.key.strip_prefix(TIMER_PREFIX) {
            self.timers.named.push((name, entry.key_span.clone()));
            self.timers.handled.insert(name);
            let handlers = self.handlers(entry, Site::StateTimer);
            state.timer_handlers.insert(name.to_owned(), handlers);
        } else if let Some(name) = entry.key.strip_prefix(RESULT_PREFIX) {
            let step = self.emitted_step(&state.name, name, entry);
            let known = self.types.clone();
            self.know_result(step);
            let handlers = self.handlers(entry, Site::StateResult);
            self.types = known;
            match step {
                Some(step) => drop(state.result_handlers.insert(step, handlers)),
                None => self.strays.extend(handlers),
            }
        } else if let Some(name) = entry.key.strip_prefix(ERROR_PREFIX) {
            let handlers = self.handlers(entry, Site::StateError);
            let step = self.emitted_step(&state.name, name, entry);
            match step {
                Some(step) => drop(state.error_handlers.insert(step, handlers)),
                None => self.strays.extend(handlers),
            }
        } else {
            let (site, is_legal) = self.heard(entry, Site::StateHandler, Site::StateSignal);
            let handlers = self.handlers(entry, site);
            if is_legal {
                state.handlers.insert(entry.key.clone().into_owned(), handlers);
            } else {
                self.strays.extend(handlers);
            }
        }
    }

    /// What handlers are for, an event or a signal, and whether there can be one of this name.
    pub fn heard(&mut self, entry: &Entry<'_>, event: Site, signal: Site) -> (Site, bool) {
        let span = &entry.key_span;
        if let Some(name) = entry.key.strip_prefix(SIGNAL_PREFIX) {
            return (signal, fields::is_word(name, span, "signal", self.findings));
        }
        // What stands here by mistake is read as where it belongs, so that nothing else is found in it.
        let site = match entry.key.split_once('.') {
            Some(("result", _)) => Site::StateResult,
            Some(("error", _)) => Site::StateError,
            Some(_) | None => event,
        };
        (site, fields::is_event_type(&entry.key, span, self.findings))
    }

    /// Handlers of the whole saga, by event type or signal.
    pub fn saga_handlers(&mut self, entry: &'r Entry<'_>) -> BTreeMap<String, Vec<Handler>> {
        let mut by_type = BTreeMap::new();
        let entries = fields::entries(&entry.value, &entry.key_span, "handlers", self.findings);
        for entry in entries.unwrap_or_default() {
            if entry.key.starts_with(TIMER_PREFIX) {
                self.findings
                    .error(
                        codes::UNKNOWN_KEY,
                        entry.key_span.clone(),
                        "timers are not handled here",
                    )
                    .help(Some(
                        "write what the timer does under \"timers\", or handle it in a state of the machine"
                            .to_owned(),
                    ));
                let stray = self.handlers(entry, Site::Handler);
                self.strays.extend(stray);
                continue;
            }
            if self.effect_handlers(entry) {
                continue;
            }
            let (site, is_legal) = self.heard(entry, Site::Handler, Site::Signal);
            self.handled = Some(&entry.key);
            let handlers = self.handlers(entry, site);
            self.handled = None;
            if is_legal {
                by_type.insert(entry.key.clone().into_owned(), handlers);
            } else {
                self.strays.extend(handlers);
            }
        }
        by_type
    }
}
