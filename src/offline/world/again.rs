//! Events that come again: published once more with the same id, long after they were taken.

use saga_runner_partition::storage::rows::Waiting;

use super::World;
use super::transactions::plain;
use crate::kernel::ids::InstanceId;
use crate::kernel::input::DomainEvent;

/// An event and the instance that has taken it.
#[derive(Debug, Clone)]
pub struct Taken {
    pub instance: InstanceId,
    pub event: DomainEvent,
}

impl World {
    /// The events that instances have applied, in order.
    #[must_use]
    pub fn taken_events(&self) -> &[Taken] {
        &self.events
    }

    /// Gives an event once more to the instance that has taken it; what is wrong, if that changes anything. An instance that is
    /// forgotten by now may rightly begin again, and what waits behind a dead letter, or until an operator resumes the instance, is not
    /// looked at, so these get nothing.
    pub fn repeat(&mut self, taken: &Taken) -> Option<String> {
        let Taken { instance, event } = taken;
        let before = self.read(instance).as_ref().map(plain)?;
        if before.paused.is_some() {
            return None;
        }
        let waiting = self.partition.waiting.get(instance);
        if waiting.is_some_and(Waiting::is_blocked) {
            return None;
        }
        let sent = self.sent.len();
        let given = self.give_to(instance.clone(), event.clone());
        if let Some((reason, message)) = given.rejection {
            return Some(format!("is rejected ({reason}: {message})"));
        }
        let is_same = self.read(instance).as_ref().map(plain) == Some(before) && self.sent.len() == sent;
        (!is_same).then(|| "is applied again".to_owned())
    }
}
