//! What an instance did, in another version: the ledger, and work whose outcome is still to come.

use saga_runner_language::definition::model::{Action, Step};
use saga_runner_language::expr::Root;

use super::super::children;
use super::super::place::Place;
use super::Mapping;
use crate::ledger::{Ledger, LedgerStatus};
use crate::record::Record;

impl Mapping<'_> {
    pub(super) fn ledger(&mut self, moved: &mut Record) {
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
                    let has_begun = entry.attempt > 0 || entry.life.is_some();
                    if old.name != new.name && has_begun && entry.known_as.is_none() {
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

    /// What the step did is not to be undone any more.
    pub(super) fn stays_done(&self, old: u16) -> bool {
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

    /// Where the instance can be undone that an old step has started; why not, otherwise.
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

    pub(super) fn strays(&mut self, moved: &mut Record) {
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
        let off_ledger = moved.off_ledger.iter().filter_map(|step| self.place(*step));
        moved.off_ledger = off_ledger.collect();
        moved.off_ledger.sort_unstable();
        moved.off_ledger.dedup();
    }
}
