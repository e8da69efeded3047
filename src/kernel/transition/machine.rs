//! The state machine of a saga: its handlers, and going from state to state.

use super::Rejection;
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use crate::kernel::definition::Definition;
use crate::kernel::definition::model::{Handler, State};
use crate::kernel::patch::Note;
use crate::kernel::record::{MachineState, Phase, Record};

/// Most states that one input may pass through.
pub(super) const HOPS_MAX: u8 = 16;

/// The state in which an instance stands, where its definition has a machine.
pub(super) fn present<'a>(definition: &'a Definition, record: &Record) -> Option<&'a State> {
    let at = record.machine?.state;
    definition.machine.as_ref()?.states.get(usize::from(at))
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
