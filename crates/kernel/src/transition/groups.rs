//! Groups of steps: what starts and ends with them.
//!
//! ```text
//! pending ──needs met──▶ running ──all members done or skipped──▶ done
//!    │ `if` false, or no alternative holds
//!    ▼
//! skipped, and all its members with it
//! ```
//!
//! This module has what all groups share, and choices. Loops are in [`super::turns`] and [`super::items`].

use std::ops::Range;

use saga_runner_language::definition::model::{Branch, Group, Step};

use super::ends::Defeat;
use super::failure::Cause;
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, deadlines, failure, items, joins, loop_start, machine, pieces, turns, waits};
use crate::patch::Note;
use crate::record::{Phase, StepStatus};

/// Whether the group around a step, if there is one, lets it start.
pub(super) fn lets_start(run: &Run<'_>, slot: Slot) -> bool {
    let Some(group) = slot.step(run).within else {
        return true;
    };
    // The steps of a loop over a list run for items only.
    let for_item = matches!(run.ground.definition.group(group), Some(Group::Foreach(_)));
    let around = if for_item {
        Slot::of(group)
    } else {
        slot.peer(run, group)
    };
    (!for_item || slot.item.is_some()) && run.slot(around).status == StepStatus::Running
}

/// Starts a group whose needs are met.
pub(super) fn start<'a>(run: &mut Run<'a>, slot: Slot, group: &'a Group) -> Result<(), Rejection> {
    if !deadlines::begin(run, slot)? {
        return Ok(());
    }
    match group {
        Group::Choice(branches) => start_choice(run, slot, branches),
        Group::Repeat(repeat) => turns::start(run, slot, repeat),
        Group::Foreach(foreach) => loop_start::start(run, slot, foreach),
    }
}

/// Skips a step, and all that is nested in it.
pub(super) fn skip(run: &mut Run<'_>, slot: Slot) {
    deadlines::clear(run, slot);
    let nested = run.ground.definition.group(slot.step).map(Group::members);
    skip_all(run, slot, slot.step..slot.step.saturating_add(1));
    if let Some(nested) = nested {
        skip_all(run, slot, nested);
    }
}

/// Ends, or leads on, the groups among `steps` whose members are all over, inner ones first. Tells whether
/// there was one. `item` is that of the loop around.
pub(super) fn conclude(run: &mut Run<'_>, steps: Range<u16>, item: Option<u32>) -> Result<bool, Rejection> {
    let definition = run.ground.definition;
    let mut changed = false;
    for step in steps.rev() {
        let Some(group) = definition.group(step) else {
            continue;
        };
        let slot = Slot { step, item };
        // Inside a loop over a list there is nothing outside of its items.
        if slot.foreach(run).is_some() != item.is_some() || !run.has_slot(slot) {
            continue;
        }
        if run.record.phase != Phase::Running || run.slot(slot).status != StepStatus::Running {
            continue;
        }
        changed |= match group {
            Group::Choice(_) if all_over(run, slot, group.members()) => {
                done(run, slot);
                true
            }
            Group::Choice(_) => false,
            Group::Repeat(repeat) => turns::conclude(run, slot, repeat)?,
            Group::Foreach(foreach) => items::conclude(run, slot, foreach)?,
        };
    }
    Ok(changed)
}

/// A group has come to its end.
pub(super) fn done(run: &mut Run<'_>, slot: Slot) {
    let step = slot.step(run);
    run.slot_mut(slot).status = StepStatus::Done;
    deadlines::clear(run, slot);
    close(run, slot);
    run.note(Note::StepDone {
        step: step.name.clone(),
    });
}

/// Leaves nothing of a group that is over for which the instance would wait.
pub(super) fn close(run: &mut Run<'_>, slot: Slot) {
    let group = run.ground.definition.group(slot.step);
    match group {
        Some(Group::Foreach(foreach)) => {
            run.slot_mut(slot).items = None;
            // They have run for the items; what is around looks at them once.
            for member in foreach.steps.clone() {
                run.slot_mut(Slot::of(member)).status = StepStatus::Done;
            }
        }
        // It may have failed before it began.
        Some(Group::Choice(_) | Group::Repeat(_)) => joins::give_up(run, slot),
        None => {}
    }
    if let Some(Group::Foreach(_) | Group::Repeat(_)) = group {
        waits::forget_early(run);
    }
}

/// Stops waiting for what only a group knows of: its items, and its timers.
pub(super) fn abandon(run: &mut Run<'_>, slot: Slot) {
    match run.ground.definition.group(slot.step) {
        Some(Group::Foreach(_)) => items::give_up(run, slot),
        Some(Group::Repeat(_)) => {
            let timer = slot.timer(run, turns::REPEAT);
            run.clear_timer(&timer);
        }
        Some(Group::Choice(_)) | None => {}
    }
}

/// A step has failed, and nothing but what is around it can make good for that.
pub(super) fn failed(run: &mut Run<'_>, slot: Slot, defeat: Defeat<'_>) -> Result<(), Rejection> {
    if joins::goes_on_without(run, slot, defeat)? {
        return Ok(());
    }
    if machine::effect_failed(run, slot, defeat)? {
        pieces::forget(run, slot);
        return Ok(());
    }
    if slot.item.is_some() {
        return items::failed(run, slot, defeat);
    }
    let name = slot.step(run).title();
    failure::fail(run, Cause::step(name, defeat.class, defeat.message))
}

pub(super) fn all_over(run: &Run<'_>, slot: Slot, members: Range<u16>) -> bool {
    let mut members = members.map(|step| Slot { step, ..slot });
    members.all(|member| run.slot(member).status.is_over())
}

fn start_choice(run: &mut Run<'_>, slot: Slot, branches: &[Branch]) -> Result<(), Rejection> {
    let step = slot.step(run);
    let Some(chosen) = choose(run, step, branches)? else {
        skip(run, slot);
        return Ok(());
    };
    run.slot_mut(slot).status = StepStatus::Running;
    run.note(Note::BranchTaken {
        step: step.name.clone(),
        branch: u16::try_from(chosen).unwrap_or(u16::MAX),
    });
    for (at, branch) in branches.iter().enumerate() {
        if at != chosen {
            skip_all(run, slot, branch.steps.clone());
        }
    }
    Ok(())
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

fn skip_all(run: &mut Run<'_>, slot: Slot, steps: Range<u16>) {
    let definition = run.ground.definition;
    for step in steps {
        run.slot_mut(Slot { step, ..slot }).status = StepStatus::Skipped;
        run.note(Note::StepSkipped {
            step: definition.steps[usize::from(step)].name.clone(),
        });
    }
}
