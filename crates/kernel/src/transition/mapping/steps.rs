//! The steps of an instance in another version: their states, the groups around them, the items of loops.

use std::mem::discriminant;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Action, Group, Step};
use saga_runner_language::expr::Root;

use super::super::children;
use super::super::place::Place;
use super::Mapping;
use crate::items::Items;
use crate::record::{Record, StepState, StepStatus};

impl Mapping<'_> {
    pub(super) fn steps(&mut self, record: &Record) -> Vec<StepState> {
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
                // An effect of a state begins again whenever the state is entered.
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
}

/// Further attempts of what is under way are the same work as those before, whatever the step is called now.
fn keep_name(from: &Step, to: &Step, state: &mut StepState) {
    if from.name != to.name && state.status.is_under_way() && state.known_as.is_none() {
        state.known_as = Some(Place::Step { name: &from.name }.to_string());
    }
}
