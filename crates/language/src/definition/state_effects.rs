//! Effects that the states of a machine, timers and handlers emit by name, and the handlers of how they end.

use std::collections::BTreeMap;

use super::actions::{Reading, Site};
use super::children::Child;
use super::codes;
use super::fields::{self, Fields, NameRule};
use super::grammar::{self, Shape};
use super::model::{
    Action, BODY_OF_FOREACH, Emission, Emit, Foreach, Group, Handler, OF_HANDLERS, OF_MACHINE, OF_TIMERS,
    Step,
};
use super::saga::member;
use super::steps::{START_ROOTS, STEPS_MAX};
use super::texts::EventParts;
use super::yaml::{Entry, Node, Value};
use crate::expr::types::Type;
use crate::expr::{Root, nearest};

/// Roots of what the entry of a state emits for which nobody waits.
const ENTRY_ROOTS: &[Root] = &[Root::Event, Root::State, Root::Key, Root::Steps, Root::Record];

/// Whose the names of effects are that no state emits.
const EMITS: &str = "a timer or a handler emits";

/// What emits effects with a name.
#[derive(Debug, Clone, Copy)]
pub enum Emitter<'r> {
    /// The entry of the state of this index.
    State(u16),
    /// The timer of this name.
    Timer(&'r str),
    /// A handler of the saga of this event or signal.
    Handler(&'r str, Site),
}

impl Emitter<'_> {
    const fn shape(self) -> &'static Shape {
        match self {
            Self::State(_) => &grammar::steps::STATE_EMISSION,
            Self::Timer(_) => &grammar::steps::TIMER_EMISSION,
            Self::Handler(..) => &grammar::steps::HANDLER_EMISSION,
        }
    }

    const fn event(self) -> EventParts {
        match self {
            Self::State(_) => EventParts::Whole,
            Self::Timer(_) => EventParts::Moment,
            Self::Handler(_, site) => site.event(),
        }
    }

    /// Roots of what is emitted for which nobody waits.
    const fn roots(self) -> &'static [Root] {
        match self {
            Self::State(_) | Self::Timer(_) => ENTRY_ROOTS,
            Self::Handler(_, site) => site.roots(),
        }
    }
}

/// The effects that timers and handlers emit: what they are, by their names.
pub fn by_name<'n>(root: &'n Node<'_>) -> BTreeMap<&'n str, &'n str> {
    let text = |item: &'n Node<'_>, key: &str| match &member(item, key)?.value.value {
        Value::Scalar(scalar) => Some(&*scalar.text),
        Value::List(_) | Value::Map(_) => None,
    };
    let emitting = ["timers", "handlers"]
        .into_iter()
        .filter_map(|key| member(root, key));
    let entries = emitting.flat_map(|entry| match &entry.value.value {
        Value::Map(entries) => entries.as_slice(),
        Value::Scalar(_) | Value::List(_) => &[],
    });
    let alternatives = entries.flat_map(|entry| fields::one_or_many(&entry.value));
    let emits = alternatives.filter_map(|alternative| member(alternative, "emit"));
    let items = emits.flat_map(|emit| fields::one_or_many(&emit.value));
    items
        .filter_map(|item| Some((text(item, "name")?, text(item, "effect")?)))
        .collect()
}

impl<'r> Reading<'r, '_> {
    /// The emissions of the entry of a state, or of a timer: commands and facts, and effects with a name.
    pub fn effect_emits(&mut self, entry: &'r Entry<'_>, emitter: Emitter<'r>) -> Vec<Emission> {
        let mut emits = Vec::new();
        for item in fields::one_or_many(&entry.value) {
            let Some(fields) = Fields::item(item, &entry.key_span, emitter.shape(), self.findings) else {
                self.nameless = true;
                continue;
            };
            let (when, outside) = self.emitted_when(&fields, emitter.roots(), emitter.event());
            let chosen = fields.chosen(self.findings);
            let work = chosen
                .filter(|chosen| chosen.key == "effect")
                .map(|_| self.work(&fields, emitter));
            let sending = self.types.clone();
            self.know_outcome(work.as_ref().map(|step| &step.action), sending.as_ref());
            // Read in any case, so that all that is wrong is told.
            let retry = fields
                .get("retry")
                .map(|retry| self.step_retry(retry, None))
                .unwrap_or_default();
            let compensate = fields
                .get("compensate")
                .map(|compensate| self.compensation(compensate, Child::None));
            self.types = sending;
            let emit = match chosen {
                Some(effect) if effect.key == "effect" => {
                    let work = work.unwrap_or_else(|| Step::doing(String::new(), Action::Nothing));
                    let step = Step {
                        retry,
                        compensate,
                        ..work
                    };
                    self.named_effect(&fields, step, emitter).map(Emit::Effect)
                }
                Some(other) => {
                    for key in ["name", "with", "retry", "compensate", "timeout", "deadline"] {
                        if let Some(stray) = fields.get(key) {
                            let message =
                                format!("\"{key}\" belongs to an effect; nobody waits for a {}", other.key);
                            self.findings
                                .error(codes::CONTRADICTION, stray.key_span.clone(), message);
                        }
                    }
                    if other.key == "command" {
                        self.command(other, emitter.roots(), emitter.event())
                            .map(Emit::Command)
                    } else {
                        self.telling(other, emitter.roots(), emitter.event())
                            .map(Emit::Publish)
                    }
                }
                None if fields.is_meant("effect") => {
                    let step = Step::doing(String::new(), Action::Nothing);
                    self.named_effect(&fields, step, emitter).map(Emit::Effect)
                }
                None => None,
            };
            self.types = outside;
            emits.extend(emit.map(|emit| Emission { when, emit }));
        }
        self.fits_one_transition(entry, emits.len());
        emits
    }

    /// Reads an effect as a step behind those of the saga, and returns its index.
    fn named_effect(&mut self, fields: &Fields<'r, '_>, step: Step, emitter: Emitter<'r>) -> Option<u16> {
        let text = self.state_effect_name(fields);
        self.nameless |= text.is_none();
        let (name, text) = (fields.get("name")?, text?);
        let (full, state, who, is_there) = match emitter {
            Emitter::State(state) => {
                let place = self.states.get(usize::from(state)).copied().unwrap_or_default();
                let full = step_name(place, text);
                let is_there = self.emitted.iter().any(|step| step.name == full);
                (full, Some(state), "the state emits", is_there)
            }
            Emitter::Timer(timer) => {
                let is_there = self.emitted_by_name(text).is_some();
                (format!("{OF_TIMERS}{timer}.{text}"), None, EMITS, is_there)
            }
            Emitter::Handler(handled, _) => {
                let is_there = self.emitted_by_name(text).is_some();
                (format!("{OF_HANDLERS}{handled}.{text}"), None, EMITS, is_there)
            }
        };
        if is_there {
            let message = format!("{who} an effect \"{text}\" already");
            self.findings
                .error(codes::DUPLICATE_NAME, name.value.span.clone(), message);
            return None;
        }
        let index = self.steps.len() + self.emitted.len();
        if index >= STEPS_MAX {
            let message = format!("steps and effects are more than {STEPS_MAX}");
            self.findings
                .error(codes::TOO_MANY, name.key_span.clone(), message);
            return None;
        }
        let at = u16::try_from(index).ok()?;
        let work = match emitter {
            Emitter::State(_) | Emitter::Timer(_) => Step { name: full, ..step },
            Emitter::Handler(..) => {
                // Each time that the handler is taken is work of its own, beside what is under way.
                let name = format!("{full}{BODY_OF_FOREACH}");
                let pieces = Group::Foreach(Foreach::of_pieces(at + 1..at + 2));
                self.emitted.push(Step {
                    emitted: true,
                    ..Step::group(full, Vec::new(), None, pieces)
                });
                Step {
                    name,
                    within: Some(at),
                    ..step
                }
            }
        };
        self.emitted.push(Step {
            state,
            emitted: state.is_none(),
            ..work
        });
        Some(at)
    }

    /// The step of the effect that a timer or a handler emits under this name.
    fn emitted_by_name(&self, name: &str) -> Option<u16> {
        let is_it = |step: &Step| {
            let effect = step.name.strip_prefix(OF_TIMERS);
            let effect = effect.or_else(|| step.title().strip_prefix(OF_HANDLERS));
            let effect = effect.and_then(|effect| effect.rsplit_once('.'));
            effect.is_some_and(|(_, effect)| effect == name)
        };
        let found = self.emitted.iter().position(is_it)?;
        u16::try_from(self.steps.len() + found).ok()
    }

    /// Handlers of the saga for the end of an effect that a timer or a handler emits, where `key` is one of them.
    pub fn effect_handlers(&mut self, entry: &'r Entry<'_>) -> bool {
        let (end, name) = match entry.key.split_once('.') {
            Some(("result", name)) => (Site::StateResult, name),
            Some(("error", name)) => (Site::StateError, name),
            Some(_) | None => return false,
        };
        let Some(effect) = self.emitted_effects.get(name).copied() else {
            return false;
        };
        let known = self.types.clone();
        if let (Site::StateResult, Some(types)) = (end, &mut self.types) {
            let schemas = self.effects.and_then(|effects| effects.get(effect));
            let output = schemas.and_then(|schemas| schemas.output.as_ref());
            let result = output.map_or_else(Type::dynamic, |schema| Type::of_schema(schema));
            types.env.bind(Root::Result, result);
        }
        let handlers = self.handlers(entry, end);
        self.types = known;
        self.of_effects
            .push((end == Site::StateResult, name.to_owned(), handlers));
        true
    }

    /// The handlers of results and of errors of such effects, by their steps, when all is read.
    pub fn by_effect(&mut self) -> [BTreeMap<u16, Vec<Handler>>; 2] {
        let (mut results, mut errors) = (BTreeMap::new(), BTreeMap::new());
        for (is_result, name, handlers) in std::mem::take(&mut self.of_effects) {
            match self.emitted_by_name(&name) {
                Some(step) if is_result => drop(results.insert(step, handlers)),
                Some(step) => drop(errors.insert(step, handlers)),
                None => self.strays.extend(handlers),
            }
        }
        [results, errors]
    }

    fn state_effect_name(&mut self, fields: &Fields<'r, '_>) -> Option<&'r str> {
        let name = fields.require("name", self.findings)?;
        let (span, what) = (&name.value.span, "the name of an effect");
        let text = fields::text(&name.value, &name.key_span, what, self.findings)?;
        let legal = fields::is_name(text, span, "effect", NameRule::Identifier, self.findings);
        legal.then_some(text)
    }

    fn work(&mut self, fields: &Fields<'r, '_>, emitter: Emitter<'r>) -> Step {
        let action = match emitter {
            Emitter::State(_) | Emitter::Timer(_) => self.action(fields, START_ROOTS),
            Emitter::Handler(_, site) => self.action_of_event(fields, site.roots(), site.event()),
        };
        // One that is wrong stays an effect of its name, whose end is handled.
        let action = action.unwrap_or(Action::Nothing);
        let timeout_ms = self.timeout(fields);
        let deadline = self.deadline(fields, START_ROOTS);
        Step {
            timeout_ms,
            deadline,
            ..Step::doing(String::new(), action)
        }
    }

    /// Binds `result` to what the effect of an emitted step says about it.
    pub fn know_result(&mut self, step: Option<u16>) {
        let emitted = step.and_then(|step| {
            let behind = usize::from(step).checked_sub(self.steps.len())?;
            self.emitted.get(behind)
        });
        let (Some(types), Some(Action::Effect { effect, .. })) =
            (&mut self.types, emitted.map(|step| &step.action))
        else {
            return;
        };
        let schemas = self.effects.and_then(|effects| effects.get(effect.as_str()));
        let output = schemas.and_then(|schemas| schemas.output.as_ref());
        let result = output.map_or_else(Type::dynamic, |schema| Type::of_schema(schema));
        types.env.bind(Root::Result, result);
    }

    /// The step of the effect `name` that the entry of `state` emits.
    pub fn emitted_step(&mut self, state: &str, name: &str, handler: &Entry<'_>) -> Option<u16> {
        let wanted = step_name(state, name);
        let found = self.emitted.iter().position(|step| step.name == wanted);
        if let Some(found) = found {
            return u16::try_from(self.steps.len() + found).ok();
        }
        let own = step_name(state, "");
        let candidates = self
            .emitted
            .iter()
            .filter_map(|step| step.name.strip_prefix(&own));
        let near = nearest(name, candidates);
        if near.is_none() && self.nameless {
            return None;
        }
        let help = near.map_or_else(
            || format!("entry: {{emit: [{{effect: ..., name: {name}}}]}}"),
            |near| format!("did you mean \"{near}\"?"),
        );
        let message = format!(
            "the entry of the state emits no effect \"{}\"",
            name.escape_debug()
        );
        self.findings
            .error(codes::UNKNOWN_STEP, handler.key_span.clone(), message)
            .help(Some(help));
        None
    }
}

/// The name of the step of an effect of a state. No file can name a step so.
fn step_name(state: &str, effect: &str) -> String {
    format!("{OF_MACHINE}{state}.{effect}")
}
