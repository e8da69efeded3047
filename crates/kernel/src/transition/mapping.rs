//! From one version of a saga to another: the place of everything that an instance has, and what has none.

use std::fmt;
use std::mem::discriminant;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{
    Action, Awaited, BODY_OF_FOREACH, BODY_OF_REPEAT, Group, Migration, OF_MACHINE, OF_TIMERS, Step,
};
use saga_runner_language::expr::Root;

use super::place::Place;
use super::{children, events, machine};
use crate::items::Items;
use crate::ledger::{Ledger, LedgerStatus};
use crate::record::{Buffered, Left, MachineState, MessageKind, Phase, Record, StepState, StepStatus};

/// What the timer of a compensation has behind the name of its step.
const UNDO: &str = ".compensate";

/// Something of an instance that has no place in the other version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Where the file would have to say what becomes of it, as `file:line:column`.
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

    /// What the failure keeps goes over by its names.
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

    fn steps(&mut self, record: &Record) -> Vec<StepState> {
        let mut states: Vec<StepState> = self.to.steps.iter().map(|_| StepState::pending()).collect();
        let mut taken: Vec<Option<&str>> = vec![None; states.len()];
        let old: Vec<(u16, &Step, &StepState)> = (0..=u16::MAX)
            .zip(self.from.steps.iter().zip(&record.steps))
            .map(|(index, (step, state))| (index, step, state))
            .collect();
        for (index, step, state) in old {
            let busy = state.status.is_under_way();
            match self.place(index) {
                Some(at) => {
                    let slot = usize::from(at);
                    if let Some(other) = taken[slot] {
                        self.obstacle(
                            "rename_steps",
                            format!("steps {other} and {} would become one", step.name),
                        );
                    }
                    taken[slot] = Some(&step.name);
                    if state.status != StepStatus::Pending {
                        self.compare(step, &self.to.steps[slot], state);
                    }
                    states[slot] = state.clone();
                    keep_name(step, &self.to.steps[slot], &mut states[slot]);
                    if let (Some(items), Action::Group(old), Action::Group(new)) =
                        (&mut states[slot].items, &step.action, &self.to.steps[slot].action)
                    {
                        self.items(&step.name, old, new, items);
                    }
                }
                None if state.status == StepStatus::Pending => {}
                None if busy => {
                    self.obstacle(
                        "rename_steps",
                        format!("step {} is under way and would be gone", step.name),
                    );
                }
                // An effect of a state begins anew whenever the state is entered.
                None if self.is_dropped(step) || !step.is_own() => {}
                None => self.obstacle(
                    "drop",
                    format!(
                        "step {} is {} and has no place: name it under rename_steps or drop.steps",
                        step.name,
                        state.status.as_str()
                    ),
                ),
            }
        }
        let forgotten = record
            .left
            .iter()
            .filter(|_| self.back)
            .flat_map(|left| &left.forgotten);
        for (index, status) in forgotten {
            let slot = usize::from(*index);
            if let (Some(state), Some(None)) = (states.get_mut(slot), taken.get(slot)) {
                // It had ended before the instance went over, and is not to run again.
                state.status = *status;
                taken[slot] = Some(&self.to.steps[slot].name);
            }
        }
        self.taken_names(record, &taken);
        self.join_groups(&mut states, &taken);
        states
    }

    /// What a step does is known outside by its name, so no other step may begin under a name that was used.
    fn taken_names(&mut self, record: &Record, taken: &[Option<&str>]) {
        for (step, state) in self.from.steps.iter().zip(&record.steps) {
            let begun = state.status != StepStatus::Pending || state.iteration > 0;
            let again = self.to.steps.iter().position(|other| other.name == step.name);
            if begun && again.is_some_and(|slot| taken[slot].is_none()) {
                self.obstacle(
                    "rename_steps",
                    format!(
                        "step {} has begun and another one would begin under its name: give that one a new name",
                        step.name
                    ),
                );
            }
        }
    }

    /// A step that has begun must be of the same kind, and in the same group.
    fn compare(&mut self, old: &Step, new: &Step, state: &StepState) {
        let busy = state.status.is_under_way();
        let same = match (&old.action, &new.action) {
            (Action::Group(old), Action::Group(new)) => discriminant(old) == discriminant(new),
            (Action::Group(_), _) | (_, Action::Group(_)) => false,
            (old, new) => !busy || discriminant(old) == discriminant(new),
        };
        if !same {
            self.obstacle(
                "rename_steps",
                format!("step {} is of another kind in the new version", old.name),
            );
        }
        if state.status == StepStatus::Waiting && new.wait.is_none() {
            self.obstacle(
                "rename_steps",
                format!("step {} waits, and in the new version it does not", old.name),
            );
        }
        self.compare_child(old, new, state);
        let reads_input = |step: &Step| {
            let compensation = step.compensate.as_ref();
            compensation.is_some_and(|compensation| compensation.reads(Root::Input))
        };
        if busy
            && state.sent.is_none()
            && state.outstanding.is_some()
            && reads_input(new)
            && !reads_input(old)
        {
            self.obstacle(
                "rename_steps",
                format!(
                    "step {} is under way, and the new version needs its input to undo it, which was not kept",
                    old.name
                ),
            );
        }
        let name = |definition: &Definition, step: &Step| {
            step.within
                .and_then(|within| definition.steps.get(usize::from(within)))
                .map(|group| group.name.clone())
        };
        let before = name(self.from, old).map(|group| self.renamed(&group));
        if before != name(self.to, new) {
            self.obstacle(
                "rename_steps",
                format!("step {} has begun and stands in another group", old.name),
            );
        }
    }

    /// The instance that a step has started stays what it is.
    fn compare_child(&mut self, old: &Step, new: &Step, state: &StepState) {
        let (Action::Saga(before), Action::Saga(after)) = (&old.action, &new.action) else {
            return;
        };
        if !state.status.is_under_way() || state.outstanding.is_none() {
            return;
        }
        if before.saga != after.saga {
            self.obstacle(
                "rename_steps",
                format!(
                    "step {} has started an instance of {}, and in the new version it starts one of {}",
                    old.name, before.saga, after.saga
                ),
            );
        } else if let Err(message) = children::undoing(old, new) {
            self.obstacle("rename_steps", message);
        }
    }

    /// A step that appears in a group which is over is skipped with it. In one that is under way it has no place:
    /// whether it would have to run in this turn, for this item or in this alternative cannot be told.
    fn join_groups(&mut self, states: &mut [StepState], taken: &[Option<&str>]) {
        let to = self.to;
        for (index, step) in to.steps.iter().enumerate() {
            let Some(group) = step.within.map(usize::from).filter(|_| taken[index].is_none()) else {
                continue;
            };
            // A group comes before its members, so its own state is decided here.
            match states[group].status {
                StepStatus::Pending => {}
                now if now.is_under_way() => {
                    let name = &to.steps[group].name;
                    self.obstacle(
                        "rename_steps",
                        format!("step {} appears in {name}, which is under way", step.name),
                    );
                }
                _ => states[index].status = StepStatus::Skipped,
            }
        }
    }

    /// What a loop over a list remembers of its steps stays true if they are the same, in the same order.
    fn items(&mut self, name: &str, old: &Group, new: &Group, items: &mut Items) {
        let moved: Option<Vec<u16>> = old.members().map(|step| self.place(step)).collect();
        if moved.is_some_and(|moved| moved.into_iter().eq(new.members()))
            && items.first == old.members().start
        {
            items.first = new.members().start;
            for item in &mut items.running {
                for ((at, to), state) in old.members().zip(new.members()).zip(&mut item.steps) {
                    let (from, to) = (&self.from.steps[usize::from(at)], &self.to.steps[usize::from(to)]);
                    keep_name(from, to, state);
                }
            }
            for (step, _) in items.running.iter_mut().flat_map(|item| &mut item.results) {
                *step = self.place(*step).unwrap_or(*step);
            }
        } else {
            self.obstacle(
                "rename_steps",
                format!("loop {name} is under way and its steps are others in the new version"),
            );
        }
    }

    /// What the step did is not to be undone any more.
    fn stays_done(&self, old: u16) -> bool {
        let kept = &self.way.dropped.ledger;
        let step = self.from.steps.get(usize::from(old));
        step.is_some_and(|step| kept.contains(&step.name) || kept.contains(step.title()))
    }

    /// Where what an old step did can be undone; why not, otherwise.
    fn undoing(&self, old: u16) -> Result<u16, String> {
        let before = &self.from.steps[usize::from(old)];
        let name = &before.name;
        let place = self.place(old);
        let after = place.and_then(|at| self.to.steps[usize::from(at)].compensate.as_ref());
        let (Some(at), Some(after)) = (place, after) else {
            return Err(format!(
                "what step {name} did may have to be undone, and the new version cannot: give it a step that can, or name it under drop.ledger"
            ));
        };
        let old = before.compensate.as_ref();
        let lacks = |root| after.reads(root) && old.is_none_or(|old| !old.reads(root));
        for (root, what) in [(Root::Result, "result"), (Root::Input, "input")] {
            if lacks(root) {
                return Err(format!(
                    "to undo step {name} the new version reads its {what}, which the old one did not keep: name it under drop.ledger, or do without"
                ));
            }
        }
        children::undoing(before, &self.to.steps[usize::from(at)])
            .map_err(|message| format!("{message}: name it under drop.ledger"))?;
        Ok(at)
    }

    /// Where the instance can be taken back that an old step has started; why not, otherwise.
    fn taking_back(&self, old: u16) -> Result<u16, String> {
        let before = &self.from.steps[usize::from(old)];
        let saga = |step: &Step| match &step.action {
            Action::Saga(child) => Some(child.saga.clone()),
            Action::Effect { .. }
            | Action::Command(_)
            | Action::Publish(_)
            | Action::UndoSaga(_)
            | Action::Nothing
            | Action::Decide(_)
            | Action::Group(_) => None,
        };
        let place = self.place(old);
        place
            .filter(|at| saga(&self.to.steps[usize::from(*at)]) == saga(before))
            .ok_or_else(|| {
                let name = &before.name;
                format!(
                    "the instance that step {name} has started needs an operator, and the new version starts none there: name it under drop.ledger"
                )
            })
    }

    fn ledger(&mut self, moved: &mut Record) {
        let mut ledger = Ledger::default();
        let mut gone = Vec::new();
        for (position, entry) in std::mem::take(&mut moved.ledger).iter().enumerate() {
            let mut entry = entry.into_owned();
            if self.stays_done(entry.step) {
                if entry.status == LedgerStatus::Undoing {
                    let name = self.from.steps[usize::from(entry.step)].name.clone();
                    self.obstacle("drop", format!("step {name} is being undone right now"));
                }
                gone.push(position);
                continue;
            }
            let found = if entry.of_child {
                self.taking_back(entry.step)
            } else {
                self.undoing(entry.step)
            };
            match found {
                Ok(at) => {
                    let (old, new) = (
                        &self.from.steps[usize::from(entry.step)],
                        &self.to.steps[usize::from(at)],
                    );
                    if old.name != new.name && entry.attempt > 0 && entry.known_as.is_none() {
                        entry.known_as = Some(Place::Compensation { step: &old.name }.to_string());
                    }
                    entry.step = at;
                    ledger.push(entry);
                }
                Err(_) if entry.status.is_over() => gone.push(position),
                Err(message) => self.obstacle("drop", message),
            }
        }
        moved.ledger = ledger;
        moved.forget_entries(&gone);
    }

    fn strays(&mut self, moved: &mut Record) {
        let mut strays = Vec::with_capacity(moved.strays.len());
        for mut stray in std::mem::take(&mut moved.strays) {
            if self.stays_done(stray.step) {
                continue;
            }
            let step = &self.from.steps[usize::from(stray.step)];
            let found = match (&step.compensate, self.place(stray.step)) {
                (Some(_), _) => self.undoing(stray.step),
                (None, Some(at)) => children::undoing(step, &self.to.steps[usize::from(at)]).map(|()| at),
                (None, None) => Err(format!(
                    "the outcome of step {} is still to come and it would be gone",
                    step.name
                )),
            };
            match found {
                Ok(at) => {
                    stray.step = at;
                    strays.push(stray);
                }
                Err(message) => self.obstacle("drop", message),
            }
        }
        moved.strays = strays;
        // Nobody waits for them, so they are no obstacle.
        moved.doubts.retain_mut(|doubt| {
            let at = self.place(doubt.step);
            doubt.step = at.unwrap_or(doubt.step);
            at.is_some()
        });
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

    fn timers(&mut self, moved: &mut Record) {
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

    /// What came early must be awaited in the new version, too.
    fn buffer(&mut self, moved: &mut Record) {
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
    fn deferred(&mut self, record: &Record) {
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

/// Further attempts of what is under way are the same work as those before, whatever the step is called now.
fn keep_name(from: &Step, to: &Step, state: &mut StepState) {
    if from.name != to.name && state.status.is_under_way() && state.known_as.is_none() {
        state.known_as = Some(Place::Step { name: &from.name }.to_string());
    }
}
