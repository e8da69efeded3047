//! Hears what the machine says of each input, for the case that gave it.

use std::cell::RefCell;

use saga_runner_partition::machine::watch::{Told, Watch};

use super::again::Taken;
use super::given::Given;
use crate::kernel::alias::Alias;
use crate::kernel::ids::{InstanceId, SagaName};
use crate::kernel::input::{Control, Input, InputBody};
use crate::kernel::patch::{Note, Outcome};
use crate::kernel::transition::Trace;
use crate::offline::coverage::Listener;

/// Hears what the machine says of each input.
pub(super) struct Ear<'w> {
    pub(super) instance: &'w InstanceId,
    /// Saga of the first input, and the notes of all.
    pub(super) heard: RefCell<(Option<SagaName>, Vec<Note>)>,
    pub(super) listener: Listener,
    pub(super) given: RefCell<Given>,
    /// Events that were applied.
    pub(super) events: RefCell<Vec<Taken>>,
}

impl Watch for Ear<'_> {
    fn told(&self, input: &Input, what: Told<'_>) {
        let mut given = self.given.borrow_mut();
        match what {
            Told::Outcome(outcome, notes) => {
                let is_alias = Alias::of(&input.instance.key).is_some();
                if let (InputBody::Event(event), Outcome::Applied, false) = (&input.body, outcome, is_alias) {
                    let (instance, event) = (input.instance.clone(), event.clone());
                    self.events.borrow_mut().push(Taken { instance, event });
                }
                if let (InputBody::Control(control), Outcome::Applied) = (&input.body, outcome)
                    && matches!(control, Control::Cancel { .. } | Control::CancelChild { .. })
                {
                    self.listener.cancelled();
                }
                let mut heard = self.heard.borrow_mut();
                heard.0.get_or_insert_with(|| input.instance.saga.clone());
                heard.1.extend(notes.iter().cloned());
                if input.instance == *self.instance {
                    given.outcome = given.outcome.or(Some(outcome));
                    given.notes.extend(notes.iter().cloned());
                } else if is_alias {
                    given.at_alias = given.at_alias.or(Some(outcome));
                } else {
                    given.elsewhere = given.elsewhere.or(Some(outcome));
                }
            }
            Told::Dead { reason, message } => {
                let dead = || (reason.to_owned(), message.to_owned());
                given.rejection.get_or_insert_with(dead);
            }
            Told::Waits => given.waits = true,
        }
    }

    fn trace(&self) -> Option<&dyn Trace> {
        Some(&self.listener)
    }
}
