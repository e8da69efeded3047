//! Where a step runs: the part of the record that one run of a step changes.

use super::Rejection;
use super::run::Run;
use crate::kernel::definition::model::Step;
use crate::kernel::record::{Record, StepState};

/// Names the state of a step in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    /// Index into the steps of the definition.
    pub step: u16,
}

impl Slot {
    pub(super) const fn of(step: u16) -> Self {
        Self { step }
    }

    /// The slots of a record, in the order in which they are looked at.
    pub(super) fn all(record: &Record) -> impl Iterator<Item = (Self, &StepState)> {
        (0..=u16::MAX)
            .zip(&record.steps)
            .map(|(step, state)| (Self::of(step), state))
    }

    /// The definition of the step.
    pub(super) fn step<'a>(self, run: &Run<'a>) -> &'a Step {
        &run.ground.definition.steps[usize::from(self.step)]
    }

    /// Name of the timer `kind` of this slot, e.g. `retry:charge`.
    pub(super) fn timer(self, run: &Run<'_>, kind: &str) -> String {
        format!("{kind}:{}", self.step(run).name)
    }

    /// What a timer name that [`Slot::timer`] made is for.
    pub(super) fn of_timer<'t>(run: &Run<'_>, timer: &'t str) -> Option<(&'t str, Self)> {
        let (kind, step) = timer.split_once(':')?;
        let mut steps = (0..=u16::MAX).zip(&run.ground.definition.steps);
        let (index, _) = steps.find(|(_, candidate)| candidate.name == step)?;
        Some((kind, Self::of(index)))
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
        &self.record.steps[usize::from(slot.step)]
    }

    /// A state to change; what expressions see of the steps is built anew.
    pub(super) fn slot_mut(&mut self, slot: Slot) -> &mut StepState {
        self.parsed.steps = None;
        &mut self.record.steps[usize::from(slot.step)]
    }
}
