//! The state machine of a saga: its handlers, and going from state to state.

use std::borrow::Cow;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Handler, State, Step};
use saga_runner_language::json::Json;

use super::ends::{self, Defeat};
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, attempts};
use crate::patch::Note;
use crate::record::{MachineState, Phase, Record, StepState, StepStatus};

/// Most states that one input may pass through.
pub(super) const HOPS_MAX: u8 = 16;

/// The state in which an instance stands, where its definition has a machine.
pub(super) fn present<'a>(definition: &'a Definition, record: &Record) -> Option<&'a State> {
    let at = record.machine?.state;
    definition.machine.as_ref()?.states.get(usize::from(at))
}

/// Ends of an effect, as handlers and places name them.
const RESULT: &str = "result";
const ERROR: &str = "error";

/// Whether a state, a timer or a handler emits the step, so that handlers hear how it ends.
const fn is_emitted(step: &Step) -> bool {
    step.state.is_some() || step.emitted
}

/// An effect of a state, a timer or a handler has succeeded.
pub(super) fn effect_done<'a>(
    run: &mut Run<'a>,
    slot: Slot,
    payload: Option<&'a [u8]>,
) -> Result<(), Rejection> {
    let step = slot.step(run);
    let Some(payload) = payload.filter(|_| is_emitted(step)) else {
        return Ok(());
    };
    let result = run.result(payload, &step.name)?;
    let ambient = Locals {
        result: Some(result),
        ..Locals::default()
    };
    run.handle_effect(slot, RESULT, ambient).map(|_| ())
}

/// Such an effect has failed for good. Tells whether a handler makes good for it.
pub(super) fn effect_failed(run: &mut Run<'_>, slot: Slot, defeat: Defeat<'_>) -> Result<bool, Rejection> {
    if !is_emitted(slot.step(run)) {
        return Ok(false);
    }
    let text = |text: &str| Json::Str(Cow::Owned(text.to_owned()));
    let error = run.ground.values.keep(Json::Map(vec![
        (Cow::Borrowed("class"), text(defeat.class)),
        (Cow::Borrowed("message"), text(defeat.message)),
    ]));
    let ambient = Locals {
        error: Some(error),
        ..Locals::default()
    };
    run.handle_effect(slot, ERROR, ambient)
}

impl<'a> Run<'a> {
    /// Enters the initial state, where the definition has a machine.
    pub(super) fn start_machine(&mut self) -> Result<(), Rejection> {
        let definition = self.ground.definition;
        match &definition.machine {
            Some(machine) => self.enter(machine.initial),
            None => Ok(()),
        }
    }

    /// Leaves the present state for `to`. An instance that has begun to fail goes nowhere.
    pub(super) fn go_to(&mut self, to: u16) -> Result<(), Rejection> {
        if self.record.phase != Phase::Running {
            return Ok(());
        }
        self.readmit_deferred();
        self.enter(to)
    }

    /// Inputs that the state deferred are to come again.
    pub(super) fn readmit_deferred(&mut self) {
        if self.record.deferred > 0 {
            self.record.deferred = 0;
            self.readmit = true;
        }
    }

    /// The first alternative whose condition holds.
    pub(super) fn choose(
        &mut self,
        handlers: &'a [Handler],
        place: impl Fn(usize) -> Place<'a>,
    ) -> Result<Option<(Place<'a>, &'a Handler)>, Rejection> {
        for (index, handler) in handlers.iter().enumerate() {
            let place = place(index);
            let holds = match &handler.when {
                None => true,
                Some(when) => self.test(when, Locals::default(), || format!("{place}.when"))?,
            };
            if holds {
                self.trace(place);
                return Ok(Some((place, handler)));
            }
        }
        Ok(None)
    }

    /// Runs the handlers of the present state for a timer that fired.
    pub(super) fn machine_timer(&mut self, name: &str) -> Result<(), Rejection> {
        let definition = self.ground.definition;
        let Some(state) = present(definition, &self.record) else {
            return Ok(());
        };
        let Some((timer, handlers)) = state.timer_handlers.get_key_value(name) else {
            return Ok(());
        };
        let chosen = self.choose(handlers, |index| Place::StateTimer {
            state: &state.name,
            timer,
            index,
        })?;
        match chosen {
            Some((place, handler)) => self.handle(handler, place),
            None => Ok(()),
        }
    }

    /// Does what a handler says, then goes where it says.
    pub(super) fn handle(&mut self, handler: &Handler, place: Place<'_>) -> Result<(), Rejection> {
        let iteration = self.record.version;
        self.act(&handler.actions, place, iteration)?;
        match handler.actions.to {
            Some(to) => self.go_to(to),
            None => Ok(()),
        }
    }

    /// Starts an effect that the entry of a state emits.
    pub(super) fn start_effect(&mut self, step: u16, entries: u64) -> Result<(), Rejection> {
        let slot = Slot::of(step);
        *self.slot_mut(slot) = StepState {
            iteration: u32::try_from(entries).unwrap_or(u32::MAX),
            ..StepState::pending()
        };
        attempts::start(self, slot)
    }

    /// Whether an effect that a timer emits is under way; those of a state were given up when it was left.
    pub(super) fn is_at_work(&self, step: u16) -> bool {
        let slot = Slot::of(step);
        slot.step(self).emitted && self.slot(slot).status.is_under_way()
    }

    /// Does without an effect that the entry of a state, a timer or the end would emit.
    pub(super) fn leave_out_effect(&mut self, step: u16, entries: u64) {
        let slot = Slot::of(step);
        if self.is_at_work(step) {
            return;
        }
        *self.slot_mut(slot) = StepState {
            iteration: u32::try_from(entries).unwrap_or(u32::MAX),
            status: StepStatus::Skipped,
            ..StepState::pending()
        };
        self.note(Note::StepSkipped {
            step: slot.step(self).name.clone(),
        });
    }

    /// Stops waiting for the effects of the present state. A late success of one is undone.
    fn leave(&mut self) {
        let definition = self.ground.definition;
        let Some(present) = self.record.machine.map(|machine| machine.state) else {
            return;
        };
        for (index, step) in (0..=u16::MAX).zip(&definition.steps) {
            let slot = Slot::of(index);
            if step.state == Some(present) && self.slot(slot).status.is_under_way() {
                ends::abandon(self, slot);
            }
        }
    }

    /// Runs the handlers of the present state for the end of one of its effects. Tells whether one was taken.
    fn handle_effect(
        &mut self,
        slot: Slot,
        end: &'static str,
        ambient: Locals<'a>,
    ) -> Result<bool, Rejection> {
        let definition = self.ground.definition;
        let (state, results, errors) = if slot.step(self).emitted {
            (None, &definition.result_handlers, &definition.error_handlers)
        } else {
            let Some(state) = present(definition, &self.record) else {
                return Ok(false);
            };
            (Some(state), &state.result_handlers, &state.error_handlers)
        };
        let handlers = if end == RESULT { results } else { errors };
        let of = slot.step(self).within.unwrap_or(slot.step);
        let handlers = handlers.get(&of).filter(|_| self.is_running());
        let Some(handlers) = handlers else {
            return Ok(false);
        };
        let name = slot.step(self).title();
        let effect = name.rsplit_once('.').map_or(name, |(_, effect)| effect);
        self.ambient = ambient;
        let chosen = self.choose(handlers, |index| match state {
            Some(state) => Place::StateEffect {
                state: &state.name,
                end,
                effect,
                index,
            },
            None => Place::EmittedEffect { end, effect, index },
        })?;
        let taken = chosen.is_some();
        if let Some((place, handler)) = chosen {
            self.handle(handler, place)?;
        }
        self.ambient = Locals::default();
        Ok(taken)
    }

    fn enter(&mut self, first: u16) -> Result<(), Rejection> {
        let definition = self.ground.definition;
        let mut next = Some(first);
        while let Some(at) = next {
            let state = definition
                .machine
                .as_ref()
                .and_then(|machine| machine.states.get(usize::from(at)))
                .ok_or_else(|| Rejection {
                    reason: "definition.mismatch",
                    message: format!("the definition has no machine state {at}"),
                })?;
            self.entry_hops += 1;
            if self.entry_hops > HOPS_MAX {
                return Err(Rejection {
                    reason: "machine.loop",
                    message: format!(
                        "machine.{}: one input may enter at most {HOPS_MAX} states",
                        state.name
                    ),
                });
            }
            let entries = self.record.machine.map_or(0, |machine| machine.entries);
            let entries = entries.saturating_add(1);
            self.leave();
            self.record.machine = Some(MachineState { state: at, entries });
            self.note(Note::StateEntered {
                state: state.name.clone(),
            });
            self.act(&state.entry, Place::Entry { state: &state.name }, entries)?;
            let running = self.record.phase == Phase::Running;
            next = state.entry.to.filter(|_| running);
        }
        Ok(())
    }
}
