//! `foreach`: the steps of a loop run once for each item of a list, some items at a time.
//!
//! Items begin as others end, so that no input makes more work than one transition may have. What an item did
//! is on the ledger under its index. Items that are given up leave strays, whose late successes are undone.

use std::ops::Range;

use saga_runner_language::definition::loops::TOO_MANY_FAILED;
use saga_runner_language::definition::model::{Foreach, Group, OnItemError};
use saga_runner_language::json::write_string;
use serde_bytes::ByteBuf;

use super::ends::{self, Defeat};
use super::joins::JOIN_UNREACHABLE;
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::turns::SOON_MS;
use super::{Rejection, advance, entries, groups, item_results, turns, waits};
use crate::items::{Item, Items};
use crate::patch::Note;
use crate::record::{StepState, StepStatus};

/// Timer with which a loop goes on that had no room for more work.
pub(super) const FOREACH: &str = "foreach";

/// Leads every item on, starts others as there is room, and ends the loop. Tells whether anything has changed.
pub(super) fn conclude<'a>(run: &mut Run<'a>, slot: Slot, foreach: &'a Foreach) -> Result<bool, Rejection> {
    let mut changed = false;
    // Nothing begins any more in a loop that cannot have enough.
    for index in running(run, slot) {
        if out_of_reach(run, slot)? {
            return Ok(true);
        }
        changed |= lead(run, slot, foreach, index)?;
        if run.slot(slot).status != StepStatus::Running {
            return Ok(true);
        }
    }
    changed |= fill(run, slot, foreach)?;
    if run.slot(slot).status != StepStatus::Running {
        return Ok(true);
    }
    Ok(end(run, slot, foreach)? || changed)
}

/// An item has failed: what that means for the loop.
pub(super) fn failed(run: &mut Run<'_>, slot: Slot, defeat: Defeat<'_>) -> Result<(), Rejection> {
    let (Some((group, foreach)), Some(index)) = (slot.foreach(run), slot.item) else {
        return Err(slot.mismatch(run, "is not a step of an item"));
    };
    let around = Slot::of(group);
    let ledger_before = ledger_before(run, around, index);
    abandon(run, around, index);
    if foreach.on_item_error == OnItemError::Fail {
        for index in running(run, around) {
            abandon(run, around, index);
        }
        return ends::failed(run, around, defeat);
    }
    // An instance that completes would keep it otherwise.
    entries::give_back_item(run, foreach.steps.clone(), index, ledger_before)?;
    let error = (foreach.on_item_error == OnItemError::Collect).then(|| {
        let mut json = b"{\"error\":{\"class\":".to_vec();
        write_string(defeat.class, &mut json);
        json.extend_from_slice(b",\"message\":");
        write_string(defeat.message, &mut json);
        json.extend_from_slice(b"}}");
        json
    });
    let reads_result = item_results::are_read(around.step(run));
    let step = around.step(run);
    if let Some(items) = &mut run.slot_mut(around).items {
        items.failed = items.failed.saturating_add(1);
        if let Some(error) = error.filter(|_| reads_result) {
            items.keep_result(index, &error);
        }
    }
    run.note(Note::ItemFailed {
        step: step.name.clone(),
        item: index,
        class: defeat.class.to_owned(),
    });
    let Some((failed, tolerated)) = run
        .slot(around)
        .items
        .as_ref()
        .and_then(|items| Some((items.failed, items.bounds.tolerated?)))
    else {
        return Ok(());
    };
    if failed <= tolerated {
        return Ok(());
    }
    let message = format!(
        "{failed} items have failed, {tolerated} may; the last one: {}: {}",
        defeat.class, defeat.message
    );
    run.trace(format_args!(
        "{}.foreach.tolerate",
        Place::Step {
            name: &around.step(run).name
        }
    ));
    give_up(run, around);
    let defeat = Defeat {
        class: TOO_MANY_FAILED,
        message: &message,
    };
    ends::failed(run, around, defeat)
}

/// Whether something of an item may start or end now: not where all that is open waits for its outcome, as in most items of a
/// loop when a result comes for one of them.
fn may_change(run: &Run<'_>, slot: Slot, steps: Range<u16>, index: u32) -> bool {
    let items = run.slot(slot).items.as_ref();
    let item = items.and_then(|items| items.running.get(items.position(index)?));
    let Some(item) = item else {
        return false;
    };
    let mut is_over = true;
    for (step, state) in steps.zip(&item.steps) {
        let is_group = || run.ground.definition.group(step).is_some();
        if state.status == StepStatus::Pending || (state.status == StepStatus::Running && is_group()) {
            return true;
        }
        is_over &= state.status.is_over();
    }
    is_over
}

fn running(run: &Run<'_>, slot: Slot) -> Vec<u32> {
    let items = run.slot(slot).items.as_ref();
    items.map_or_else(Vec::new, |items| {
        items.running.iter().map(|item| item.index).collect()
    })
}

/// Starts what can start of an item, and ends it where all is over.
fn lead(run: &mut Run<'_>, slot: Slot, foreach: &Foreach, index: u32) -> Result<bool, Rejection> {
    let steps = foreach.steps.clone();
    let present = |run: &Run<'_>| {
        let items = run.slot(slot).items.as_ref();
        items.is_some_and(|items| items.position(index).is_some())
    };
    if !may_change(run, slot, steps.clone(), index) {
        return Ok(false);
    }
    let mut changed = false;
    while present(run) && advance::frame(run, steps.clone(), Some(index))? {
        changed = true;
    }
    let item = Slot {
        step: steps.start,
        item: Some(index),
    };
    if !present(run) || !groups::all_over(run, item, steps) {
        return Ok(changed);
    }
    let result = item_results::of_item(run, slot, foreach, index);
    let Some(item) = take(run, slot, index) else {
        return Ok(changed);
    };
    remember_iterations(run, foreach, &item);
    if let Some(items) = &mut run.slot_mut(slot).items {
        items.done = items.done.saturating_add(1);
        if let Some(result) = result {
            items.keep_result(index, &result);
        }
    }
    let step = slot.step(run);
    run.note(Note::ItemDone {
        step: step.name.clone(),
        item: index,
    });
    Ok(true)
}

/// Starts items while there is room for them among those that run, and for their work in this transition.
fn fill<'a>(run: &mut Run<'a>, slot: Slot, foreach: &'a Foreach) -> Result<bool, Rejection> {
    let mut changed = false;
    loop {
        if out_of_reach(run, slot)? {
            return Ok(true);
        }
        let Some(items) = &run.slot(slot).items else {
            return Ok(changed);
        };
        let window = usize::try_from(items.bounds.parallel).unwrap_or(usize::MAX);
        if items.running.len() >= window || items.waiting() == 0 || is_enough(items) {
            return Ok(changed);
        }
        // Half of the work is left to whatever else this input starts.
        if run.work.len() * 2 >= run.ground.context.limits.work_items
            || run.items_started >= ITEMS_PER_INPUT_MAX
        {
            let timer = slot.timer(run, FOREACH);
            if !run.record.timers.contains_key(&timer) {
                run.set_retry_timer(&timer, SOON_MS)?;
            }
            return Ok(changed);
        }
        run.items_started += 1;
        let (since, ledger_before) = (run.record.version, entries::count(run));
        let iterations: Vec<u32> = foreach
            .steps
            .clone()
            .map(|step| run.slot(Slot::of(step)).iteration)
            .collect();
        let Some(items) = &mut run.slot_mut(slot).items else {
            return Ok(changed);
        };
        let Some((index, value)) = items.take() else {
            return Ok(changed);
        };
        let steps = iterations.into_iter().map(|iteration| StepState {
            iteration,
            since,
            ledger_before,
            ..StepState::pending()
        });
        items.running.push(Item {
            index,
            value,
            steps: steps.collect(),
            results: Vec::new(),
        });
        changed = true;
        waits::forget_early(run);
        lead(run, slot, foreach, index)?;
        if run.slot(slot).status != StepStatus::Running {
            return Ok(true);
        }
    }
}

/// Most items that one input starts, should they have no work.
const ITEMS_PER_INPUT_MAX: u32 = 128;

/// Fails a loop that cannot have enough items done any more. Tells whether it is one.
fn out_of_reach(run: &mut Run<'_>, slot: Slot) -> Result<bool, Rejection> {
    let Some(items) = &run.slot(slot).items else {
        return Ok(false);
    };
    let Some(count) = items.bounds.at_least else {
        return Ok(false);
    };
    let at_most = items.done.saturating_add(open(items));
    if at_most >= count {
        return Ok(false);
    }
    let message = format!("only {at_most} of {} items can be done", items.total);
    give_up(run, slot);
    let defeat = Defeat {
        class: JOIN_UNREACHABLE,
        message: &message,
    };
    ends::failed(run, slot, defeat)?;
    Ok(true)
}

/// How many items run or wait.
fn open(items: &Items) -> u32 {
    let running = u32::try_from(items.running.len()).unwrap_or(u32::MAX);
    items.waiting().saturating_add(running)
}

fn end<'a>(run: &mut Run<'a>, slot: Slot, foreach: &'a Foreach) -> Result<bool, Rejection> {
    if out_of_reach(run, slot)? {
        return Ok(true);
    }
    let Some(items) = &run.slot(slot).items else {
        return Ok(false);
    };
    let waits = if is_enough(items) {
        foreach.let_run && !items.running.is_empty()
    } else {
        open(items) > 0
    };
    if waits {
        return Ok(false);
    }
    let left = running(run, slot).into_iter();
    let left: Vec<(u32, u32)> = left
        .map(|index| (index, ledger_before(run, slot, index)))
        .collect();
    give_up(run, slot);
    for (index, ledger_before) in left {
        entries::give_back_item(run, foreach.steps.clone(), index, ledger_before)?;
    }
    let step = slot.step(run);
    if item_results::are_read(step)
        && let Some(items) = &run.slot(slot).items
    {
        let place = Place::Step { name: &step.name };
        let result = items.result();
        if step.keeps_result {
            run.slot_mut(slot).result = Some(ByteBuf::from(result.clone()));
        }
        let result = run.parse_owned(result, &format!("the result of {place}"))?;
        let locals = Locals {
            result: Some(result),
            ..Locals::default()
        };
        run.set(&step.set, locals, place)?;
    } else {
        run.set(&step.set, Locals::default(), Place::Step { name: &step.name })?;
    }
    groups::done(run, slot);
    Ok(true)
}

/// How many entries the ledger had when an item began. Loops in it have turns of their own.
fn ledger_before(run: &Run<'_>, slot: Slot, index: u32) -> u32 {
    let items = run.slot(slot).items.as_ref();
    let item = items.and_then(|items| items.running.get(items.position(index)?));
    let steps = item.into_iter().flat_map(|item| &item.steps);
    steps.map(|state| state.ledger_before).min().unwrap_or(0)
}

/// Stops waiting for the items that are left.
pub(super) fn give_up(run: &mut Run<'_>, slot: Slot) {
    for index in running(run, slot) {
        abandon(run, slot, index);
    }
    let timer = slot.timer(run, FOREACH);
    run.clear_timer(&timer);
    if let Some(items) = &mut run.slot_mut(slot).items {
        items.drop_waiting();
    }
}

fn is_enough(items: &Items) -> bool {
    items.bounds.at_least.is_some_and(|count| items.done >= count)
}

/// Stops waiting for an item: what is outstanding becomes a stray.
fn abandon(run: &mut Run<'_>, slot: Slot, index: u32) {
    let Some(Group::Foreach(foreach)) = run.ground.definition.group(slot.step) else {
        return;
    };
    for step in foreach.steps.clone() {
        let member = Slot {
            step,
            item: Some(index),
        };
        if run.has_slot(member) && run.slot(member).status.is_under_way() {
            ends::abandon(run, member);
            let timer = member.timer(run, turns::REPEAT);
            run.clear_timer(&timer);
        }
    }
    if let Some(item) = take(run, slot, index) {
        remember_iterations(run, foreach, &item);
    }
}

pub(super) fn take(run: &mut Run<'_>, slot: Slot, index: u32) -> Option<Item> {
    let items = run.slot_mut(slot).items.as_mut()?;
    let at = items.position(index)?;
    Some(items.running.remove(at))
}

/// The next items of the same step, should the loop come again, count on from the highest iteration.
fn remember_iterations(run: &mut Run<'_>, foreach: &Foreach, item: &Item) {
    for (step, state) in foreach.steps.clone().zip(&item.steps) {
        let common = run.slot_mut(Slot::of(step));
        common.iteration = common.iteration.max(state.iteration);
    }
}
