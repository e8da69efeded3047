//! Events and signals that an instance holds, in another version: it must have a use for them.

use saga_runner_language::definition::model::{Awaited, Step};

use super::super::{events, machine};
use super::Mapping;
use crate::record::{Buffered, MessageKind, Phase, Record};

impl Mapping<'_> {
    /// What came early must be awaited in the new version, too.
    pub(super) fn buffer(&mut self, moved: &mut Record) {
        let running = moved.phase == Phase::Running;
        let mut kept = Vec::with_capacity(moved.buffer.len());
        for message in std::mem::take(&mut moved.buffer) {
            let dropped = &self.way.dropped;
            let (what, key, names, name) = match message.kind {
                MessageKind::Event => ("event", "events", &dropped.events, message.name.as_str()),
                MessageKind::Signal => ("signal", "signals", &dropped.signals, message.name.as_str()),
                // Named by a key of its work, which no file can write.
                MessageKind::Callback | MessageKind::CallbackFailed => {
                    ("signal", "signals", &dropped.signals, "callback")
                }
            };
            if names.contains(name) {
                continue;
            }
            if running && !self.will_wait_for(&message) {
                self.obstacle(
                    "drop",
                    format!(
                        "{what} {name} came early and no step of the new version waits for it: name it under drop.{key}"
                    ),
                );
            }
            kept.push(message);
        }
        let (count, max) = (kept.len(), self.to.buffer);
        if count > max {
            self.obstacle(
                "drop",
                format!("{count} events and signals came early, and buffer is {max} in the new version"),
            );
        }
        moved.buffer = kept;
    }

    fn will_wait_for(&self, message: &Buffered) -> bool {
        let is_awaited = |on: &Awaited| match (on, message.kind) {
            (Awaited::Event(name), MessageKind::Event) | (Awaited::Signal(name), MessageKind::Signal) => {
                *name == message.name
            }
            (Awaited::Callback, MessageKind::Callback | MessageKind::CallbackFailed) => true,
            (Awaited::Event(_) | Awaited::Signal(_) | Awaited::Callback, _) => false,
        };
        let mut awaited = self.to.steps.iter().flat_map(Step::waits_for);
        awaited.any(|awaiting| is_awaited(&awaiting.on))
    }

    /// What the present state defers is given to the new version, which must have a use for it.
    pub(super) fn deferred(&mut self, record: &Record) {
        if record.deferred == 0 || record.phase != Phase::Running {
            return;
        }
        let Some(state) = machine::present(self.from, record) else {
            return;
        };
        let deferred = state
            .handlers
            .iter()
            .filter(|(_, handlers)| handlers.iter().any(|handler| handler.actions.defer));
        let unknown: Vec<&String> = deferred
            .map(|(event_type, _)| event_type)
            .filter(|event_type| {
                !self.way.dropped.events.contains(*event_type) && !events::handles(self.to, event_type)
            })
            .collect();
        for event_type in unknown {
            self.obstacle(
                "drop",
                format!(
                    "state {} has deferred events, perhaps {event_type}, which the new version does not handle: name it under drop.events",
                    state.name
                ),
            );
        }
    }
}
