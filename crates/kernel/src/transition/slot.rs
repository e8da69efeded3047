//! Where a step runs: the part of the record that one run of a step changes.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Foreach, Group, Step};

use super::Rejection;
use super::run::Run;
use crate::items::{Item, Items};
use crate::record::{Record, StepState};

/// Names the state of a step in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    /// Index into the steps of the definition.
    pub step: u16,
    /// Index of the item, for the steps of a loop over a list.
    pub item: Option<u32>,
}

impl Slot {
    pub(super) const fn of(step: u16) -> Self {
        Self { step, item: None }
    }

    /// The slots of a record, in the order in which they are looked at.
    pub(super) fn all(record: &Record) -> impl Iterator<Item = (Self, &StepState)> {
        record
            .step_states()
            .map(|(step, item, state)| (Self { step, item }, state))
    }

    /// The slot of another step, as seen from this one: for the same item if it is in the same loop.
    pub(super) fn peer(self, run: &Run<'_>, step: u16) -> Self {
        let inside = self.item.is_some()
            && self
                .foreach(run)
                .is_some_and(|(_, foreach)| foreach.steps.contains(&step));
        Self {
            step,
            item: self.item.filter(|_| inside),
        }
    }

    /// The loop over a list around the step, and its index.
    pub(super) fn foreach<'a>(self, run: &Run<'a>) -> Option<(u16, &'a Foreach)> {
        let definition = run.ground.definition;
        let mut around = self.step(run).within;
        while let Some(group) = around {
            if let Some(Group::Foreach(foreach)) = definition.group(group) {
                return Some((group, foreach));
            }
            around = definition.steps.get(usize::from(group))?.within;
        }
        None
    }

    /// The definition of the step.
    pub(super) fn step<'a>(self, run: &Run<'a>) -> &'a Step {
        &run.ground.definition.steps[usize::from(self.step)]
    }

    /// Name of the timer `kind` of this slot, e.g. `retry:charge`.
    pub(super) fn timer(self, run: &Run<'_>, kind: &str) -> String {
        self.timer_in(run.ground.definition, kind)
    }

    /// The same without a transition.
    pub(super) fn timer_in(self, definition: &Definition, kind: &str) -> String {
        let name = &definition.steps[usize::from(self.step)].name;
        match self.item {
            None => format!("{kind}:{name}"),
            Some(item) => format!("{kind}:{name}#{item}"),
        }
    }

    /// What a timer name that [`Slot::timer`] made is for.
    pub(super) fn of_timer<'t>(run: &Run<'_>, timer: &'t str) -> Option<(&'t str, Self)> {
        let (kind, step) = timer.split_once(':')?;
        let (step, item) = match step.split_once('#') {
            None => (step, None),
            Some((step, item)) => (step, Some(item.parse().ok()?)),
        };
        let mut steps = (0..=u16::MAX).zip(&run.ground.definition.steps);
        let (index, _) = steps.find(|(_, candidate)| candidate.name == step)?;
        let slot = Self { step: index, item };
        run.has_slot(slot).then_some((kind, slot))
    }

    /// What a record says that no transition can have made.
    pub(super) fn mismatch(self, run: &Run<'_>, what: &str) -> Rejection {
        Rejection {
            reason: "definition.mismatch",
            message: format!("step {} {what}", self.step(run).name),
        }
    }
}

impl Run<'_> {
    pub(super) fn slot(&self, slot: Slot) -> &StepState {
        if slot.item.is_none() {
            return &self.record.steps[usize::from(slot.step)];
        }
        self.find_slot(slot).expect(RUNS)
    }

    /// The state of a slot, if the record has one.
    pub(super) fn find_slot(&self, slot: Slot) -> Option<&StepState> {
        if slot.item.is_none() {
            return self.record.steps.get(usize::from(slot.step));
        }
        let (items, at) = self.item(slot)?;
        items.running[at].steps.get(usize::from(slot.step - items.first))
    }

    /// A state to change; what expressions see of the steps is built again.
    pub(super) fn slot_mut(&mut self, slot: Slot) -> &mut StepState {
        self.parsed.steps = None;
        if slot.item.is_none() {
            return &mut self.record.steps[usize::from(slot.step)];
        }
        let first = self.item(slot).expect(RUNS).0.first;
        let item = self.item_mut(slot).expect(RUNS);
        &mut item.steps[usize::from(slot.step - first)]
    }

    /// Whether the record has a state for the slot: that of an item is there while the item runs.
    pub(super) fn has_slot(&self, slot: Slot) -> bool {
        self.find_slot(slot).is_some()
    }

    /// The item of a slot, by its loop and its position among those that run.
    pub(super) fn item(&self, slot: Slot) -> Option<(&Items, usize)> {
        let (group, _) = slot.foreach(self)?;
        let items = self.record.steps.get(usize::from(group))?.items.as_deref()?;
        let at = items.position(slot.item?)?;
        let steps = &items.running.get(at)?.steps;
        let step = usize::from(slot.step.checked_sub(items.first)?);
        (step < steps.len()).then_some((items, at))
    }

    pub(super) fn item_mut(&mut self, slot: Slot) -> Option<&mut Item> {
        let (_, at) = self.item(slot)?;
        let (group, _) = slot.foreach(self)?;
        let items = self
            .record
            .steps
            .get_mut(usize::from(group))?
            .items
            .as_deref_mut()?;
        items.running.get_mut(at)
    }

    /// From now on `item` and `index` are those of the slot. Returns what they were those of before.
    pub(super) fn focus(&mut self, slot: Option<Slot>) -> Option<Slot> {
        let slot = slot.filter(|slot| slot.item.is_some());
        let before = std::mem::replace(&mut self.focus, slot);
        if before.map(|slot| slot.item) != slot.map(|slot| slot.item) {
            self.parsed.steps = None;
            self.parsed.item = None;
            self.parsed.index = None;
        }
        before
    }
}

/// Why the state of an item is there.
const RUNS: &str = "a slot with an item is only made of one that runs";
