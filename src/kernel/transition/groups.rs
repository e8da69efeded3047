//! Groups of steps: what starts and ends with them.
//!
//! ```text
//! pending ──needs met──▶ running ──all members done or skipped──▶ done
//!    │ `if` false, or no alternative holds
//!    ▼
//! skipped, and all its members with it
//! ```

use std::ops::Range;

use super::Rejection;
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use crate::kernel::definition::model::{Branch, Group, Step};
use crate::kernel::patch::Note;
use crate::kernel::record::{Record, StepStatus};

/// Whether the group around `step`, if there is one, lets its members start.
pub(super) fn lets_start(record: &Record, step: &Step) -> bool {
    step.within.is_none_or(|group| {
        let group = record.steps.get(usize::from(group));
        group.is_some_and(|group| group.status == StepStatus::Running)
    })
}

/// Starts a group whose needs are met.
pub(super) fn start(run: &mut Run<'_>, index: u16, step: &Step, group: &Group) -> Result<(), Rejection> {
    match group {
        Group::Choice(branches) => {
            let Some(chosen) = choose(run, step, branches)? else {
                skip(run, index);
                return Ok(());
            };
            run.slot_mut(Slot::of(index)).status = StepStatus::Running;
            run.note(Note::BranchTaken {
                step: step.name.clone(),
                branch: u16::try_from(chosen).unwrap_or(u16::MAX),
            });
            for (at, branch) in branches.iter().enumerate() {
                if at != chosen {
                    skip_all(run, branch.steps.clone());
                }
            }
            Ok(())
        }
    }
}

/// Skips a step, and all that is nested in it.
pub(super) fn skip(run: &mut Run<'_>, index: u16) {
    let nested = run.ground.definition.group(index).map(Group::members);
    skip_all(run, index..index.saturating_add(1));
    if let Some(nested) = nested {
        skip_all(run, nested);
    }
}

/// Ends the groups whose members are all over, inner ones first. Tells whether there was one.
pub(super) fn conclude(run: &mut Run<'_>) -> bool {
    let definition = run.ground.definition;
    let mut concluded = false;
    for (index, step) in (0..=u16::MAX).zip(&definition.steps).rev() {
        let running = run.record.steps[usize::from(index)].status == StepStatus::Running;
        let Some(group) = definition.group(index).filter(|_| running) else {
            continue;
        };
        if !all_over(&run.record, group.members()) {
            continue;
        }
        run.slot_mut(Slot::of(index)).status = StepStatus::Done;
        run.note(Note::StepDone {
            step: step.name.clone(),
        });
        concluded = true;
    }
    concluded
}

fn choose(run: &mut Run<'_>, step: &Step, branches: &[Branch]) -> Result<Option<usize>, Rejection> {
    for (at, branch) in branches.iter().enumerate() {
        let holds = match &branch.when {
            None => true,
            Some(when) => {
                let place = || format!("{}.choice[{at}].when", Place::Step { name: &step.name });
                run.test(when, Locals::default(), place)?
            }
        };
        if holds {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

fn all_over(record: &Record, members: Range<u16>) -> bool {
    let members = usize::from(members.start)..usize::from(members.end);
    let members = record.steps.get(members).unwrap_or_default();
    members.iter().all(|member| member.status.satisfies_needs())
}

fn skip_all(run: &mut Run<'_>, steps: Range<u16>) {
    let definition = run.ground.definition;
    for index in steps {
        run.slot_mut(Slot::of(index)).status = StepStatus::Skipped;
        run.note(Note::StepSkipped {
            step: definition.steps[usize::from(index)].name.clone(),
        });
    }
}
