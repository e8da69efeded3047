//! The timers of an instance in another version.

use super::Mapping;
use crate::record::Record;

/// What the timer of a compensation has behind the name of its step.
const UNDO: &str = ".compensate";

impl Mapping<'_> {
    pub(super) fn timers(&mut self, moved: &mut Record) {
        for (name, mut row) in std::mem::take(&mut moved.timers) {
            let to = match name.split_once(':') {
                Some((kind, step)) => self.step_timer(&name, kind, step),
                None => self.timer(&name),
            };
            let Some(to) = to else { continue };
            row.name.clone_from(&to);
            if moved.timers.insert(to.clone(), row).is_some() {
                self.obstacle("rename_timers", format!("two timers would become {to}"));
            }
        }
    }

    /// The timer of a step, or of its compensation, goes with the step: `retry:charge`, `retry:charge#2`,
    /// `retry:charge.compensate`.
    fn step_timer(&mut self, timer: &str, kind: &str, rest: &str) -> Option<String> {
        let found = (0..=u16::MAX).zip(&self.from.steps).find_map(|(index, step)| {
            let rest = rest.strip_prefix(step.name.as_str())?;
            let is_step = rest.is_empty() || rest.starts_with('#') || rest.starts_with(UNDO);
            is_step.then_some((index, rest))
        });
        if found.is_some_and(|(index, rest)| rest.starts_with(UNDO) && self.stays_done(index)) {
            return None;
        }
        let place = found.and_then(|(index, rest)| Some((self.place(index)?, rest)));
        let Some((at, rest)) = place else {
            self.obstacle(
                "rename_steps",
                format!("timer {timer} belongs to a step that has no place"),
            );
            return None;
        };
        let name = &self.to.steps[usize::from(at)].name;
        Some(format!("{kind}:{name}{rest}"))
    }

    fn timer(&mut self, name: &str) -> Option<String> {
        if self.way.dropped.timers.contains(name) {
            return None;
        }
        let to = self.way.timers.get(name).map_or(name, String::as_str);
        let states = self.to.machine.iter().flat_map(|machine| &machine.states);
        let known = self.to.program.is_some()
            || self.to.timers.iter().any(|timer| timer.name == to)
            || states
                .into_iter()
                .any(|state| state.timer_handlers.contains_key(to));
        if known {
            return Some(to.to_owned());
        }
        self.obstacle(
            "drop",
            format!("timer {name} is set and has no place: name it under rename_timers or drop.timers"),
        );
        None
    }
}
