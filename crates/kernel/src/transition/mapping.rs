//! From one version of a saga to another: the place of everything that an instance has, and what has none.

mod ledger;
mod messages;
mod steps;
mod timers;

use std::fmt;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{
    BODY_OF_FOREACH, BODY_OF_REPEAT, Migration, OF_MACHINE, OF_TIMERS, Step,
};

use crate::record::{Left, MachineState, Record, StepStatus};

/// Something of an instance that has no place in the other version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Where the file would have to say what happens to it, as `file:line:column`.
    pub at: String,
    pub message: String,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)
    }
}

/// From one version to the other, with everything that has no place.
pub(super) struct Mapping<'d> {
    from: &'d Definition,
    to: &'d Definition,
    way: &'d Migration,
    back: bool,
    obstacles: Vec<Obstacle>,
}

impl<'d> Mapping<'d> {
    pub(super) const fn new(
        from: &'d Definition,
        to: &'d Definition,
        way: &'d Migration,
        back: bool,
    ) -> Self {
        Self {
            from,
            to,
            way,
            back,
            obstacles: Vec::new(),
        }
    }

    /// The record under the new version, and what has no place there. With anything among that the record is of
    /// no use.
    pub(super) fn moved(mut self, record: &Record) -> (Record, Vec<Obstacle>) {
        self.origin(record);
        let mut moved = record.clone();
        moved.definition = self.to.hash;
        moved.left = (!self.back).then(|| self.left(record));
        moved.steps = self.steps(record);
        self.ledger(&mut moved);
        self.kept(&mut moved);
        self.strays(&mut moved);
        moved.machine = self.machine(record);
        self.timers(&mut moved);
        self.buffer(&mut moved);
        self.deferred(record);
        self.program();
        (moved, self.obstacles)
    }

    /// What a program has asked for goes to the program of the new version, whatever its name.
    fn program(&mut self) {
        let (before, after) = (&self.from.program, &self.to.program);
        let message = match (before, after) {
            (Some(_), None) => "the new version has no program",
            (None, Some(_)) => "the new version has a program and the old one had none",
            (None, None) | (Some(_), Some(_)) => return,
        };
        self.obstacle("migrate", message.to_owned());
    }

    /// Whether instances of the old version may come to the new one at all.
    fn origin(&mut self, record: &Record) {
        let (from, to) = (self.from, self.to);
        if from.name != to.name {
            self.obstacle("migrate", format!("{} is another saga", to.name));
        }
        if self.back {
            if record.left.as_ref().is_none_or(|left| left.definition != to.hash) {
                self.obstacle("undo", format!("it was not brought over from {}", to.hash));
            }
        } else if !self.way.from.is_empty() && !self.way.from.contains(&from.hash) {
            self.obstacle("from", format!("migrate.from does not name {}", from.hash));
        }
    }

    /// What is remembered for the way back.
    fn left(&self, record: &Record) -> Left {
        let ended = (0..=u16::MAX)
            .zip(&record.steps)
            .filter(|(_, state)| state.status != StepStatus::Pending && !state.status.is_under_way())
            .map(|(index, state)| (index, state.status));
        Left {
            definition: self.from.hash,
            forgotten: ended.filter(|(index, _)| self.place(*index).is_none()).collect(),
        }
    }

    /// `key` of `migrate` would have to say something about it.
    fn obstacle(&mut self, key: &str, message: String) {
        let places = if self.back && self.from.migration.undo.is_none() {
            &self.from.migration.places
        } else {
            &self.way.places
        };
        self.obstacles.push(Obstacle {
            at: places.of(key).to_owned(),
            message,
        });
    }

    /// What a step of the old version is called in the new one. A step that a loop is around goes with it, the
    /// effect of a state with the state.
    fn renamed(&self, name: &str) -> String {
        let names = &self.way.steps;
        if let Some(renamed) = names.get(name) {
            return renamed.clone();
        }
        let effect = name
            .strip_prefix(OF_MACHINE)
            .and_then(|effect| effect.rsplit_once('.'));
        if let Some((state, effect)) = effect {
            let state = self.way.states.get(state).map_or(state, String::as_str);
            return format!("{OF_MACHINE}{state}.{effect}");
        }
        let of_timer = name
            .strip_prefix(OF_TIMERS)
            .and_then(|effect| effect.rsplit_once('.'));
        if let Some((timer, effect)) = of_timer {
            let timer = self.way.timers.get(timer).map_or(timer, String::as_str);
            return format!("{OF_TIMERS}{timer}.{effect}");
        }
        for suffix in [BODY_OF_FOREACH, BODY_OF_REPEAT] {
            if let Some(title) = name.strip_suffix(suffix) {
                let title = names.get(title).map_or(title, String::as_str);
                return format!("{title}{suffix}");
            }
        }
        name.to_owned()
    }

    /// What the failure keeps is migrated by its names.
    fn kept(&self, moved: &mut Record) {
        for name in moved.failure.iter_mut().flat_map(|failure| &mut failure.keep) {
            *name = self.renamed(name);
        }
    }

    fn is_dropped(&self, step: &Step) -> bool {
        let dropped = &self.way.dropped.steps;
        dropped.contains(&step.name) || dropped.contains(step.title())
    }

    /// Index of an old step in the new version.
    fn place(&self, old: u16) -> Option<u16> {
        let step = self.from.steps.get(usize::from(old))?;
        if self.is_dropped(step) {
            return None;
        }
        let name = self.renamed(&step.name);
        let mut steps = (0..=u16::MAX).zip(&self.to.steps);
        steps.find_map(|(index, step)| (step.name == name).then_some(index))
    }

    fn machine(&mut self, record: &Record) -> Option<MachineState> {
        let (from, to) = (self.from, self.to);
        let (before, after) = match (&record.machine, &from.machine, &to.machine) {
            (None, _, None) => return None,
            (Some(before), Some(machine), Some(after)) => {
                let state = machine.states.get(usize::from(before.state))?;
                ((before, &state.name), after)
            }
            (Some(_), _, _) => {
                self.obstacle("fsm", "the new version has no machine".to_owned());
                return None;
            }
            (None, _, Some(_)) => {
                self.obstacle(
                    "fsm",
                    "the new version has a machine and the old one had none".to_owned(),
                );
                return None;
            }
        };
        let (at, old) = before;
        let name = self.way.states.get(old).unwrap_or(old);
        let mut states = (0..=u16::MAX).zip(&after.states);
        match states.find(|(_, state)| state.name == *name) {
            Some((_, state)) if state.is_final => {
                self.obstacle("fsm", format!("state {old} would become {name}, which is final"));
                None
            }
            Some((index, _)) => Some(MachineState { state: index, ..*at }),
            None => {
                self.obstacle("fsm", format!("state {old} has no place: name it under fsm"));
                None
            }
        }
    }
}
