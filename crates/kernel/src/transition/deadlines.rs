//! What runs along with a step: the timers of the saga that remind of it, and its deadline, that is how long it may take with all its attempts, the pauses between them, and its wait; of a
//! loop, with all that happens in it.
//!
//! A durable timer counts from the first attempt on. When it fires, the attempt under way becomes a stray, whose
//! late success is undone, and the step fails with the class `deadline`.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{DEADLINE, Interrupt, TimerDefinition};
use saga_runner_language::ids::TimeMs;

use super::ends::{self, Defeat};
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, joins, timers};

/// Sets the timers of a step that starts. Tells whether it may: a deadline that is past already fails it.
pub(super) fn begin(run: &mut Run<'_>, slot: Slot) -> Result<bool, Rejection> {
    let step = slot.step(run);
    for timer in along(run.ground.definition, slot) {
        timers::begin(run, timer)?;
    }
    let Some(deadline) = &step.deadline else {
        return Ok(true);
    };
    let place = || format!("{}.deadline", Place::Step { name: &step.name });
    let after_ms = run.delay_ms(deadline, Locals::default(), place)?;
    if after_ms == 0 {
        if run.ground.definition.group(slot.step).is_some() {
            joins::give_up(run, slot);
        }
        ends::failed(run, slot, missed("it had passed before the step started"))?;
        return Ok(false);
    }
    let timer = slot.timer(run, DEADLINE);
    run.set_timer(&timer, after_ms, place)?;
    Ok(true)
}

/// When the deadline of a step that has started passes.
pub(super) fn due(run: &Run<'_>, slot: Slot) -> Option<TimeMs> {
    slot.step(run).deadline.as_ref()?;
    let row = run.record.timers.get(&slot.timer(run, DEADLINE))?;
    Some(row.due)
}

/// The step is over.
pub(super) fn clear(run: &mut Run<'_>, slot: Slot) {
    if slot.step(run).deadline.is_some() {
        let timer = slot.timer(run, DEADLINE);
        run.clear_timer(&timer);
    }
    for timer in along(run.ground.definition, slot) {
        run.clear_timer(&timer.name);
    }
}

/// Timers of the saga that begin and end with the step.
fn along(definition: &Definition, slot: Slot) -> impl Iterator<Item = &TimerDefinition> {
    let step = slot.item.is_none().then_some(slot.step);
    definition
        .timers
        .iter()
        .filter(move |timer| timer.during.is_some() && timer.during == step)
}

/// The deadline has passed.
pub(super) fn passed(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    if !run.slot(slot).status.is_under_way() {
        return Ok(());
    }
    give_up(run, slot, missed("the step has taken too long"))
}

/// A handler or timer wants a step to be over: it fails wherever it is under way.
pub(super) fn interrupt(run: &mut Run<'_>, interrupt: &Interrupt, place: Place<'_>) -> Result<(), Rejection> {
    let under_way: Vec<Slot> = Slot::all(&run.record)
        .filter(|(slot, state)| slot.step == interrupt.step && state.status.is_under_way())
        .map(|(slot, _)| slot)
        .collect();
    if !under_way.is_empty() {
        run.trace(format_args!("{place}.interrupt"));
    }
    for slot in under_way {
        // What followed for one item may have ended the others.
        if !run.is_running() || !run.has_slot(slot) || !run.slot(slot).status.is_under_way() {
            continue;
        }
        let before = run.focus(Some(slot));
        let defeat = Defeat {
            class: &interrupt.class,
            message: "it was interrupted",
        };
        give_up(run, slot, defeat)?;
        run.focus(before);
    }
    Ok(())
}

/// Fails a step although it is under way; what is outstanding becomes a stray.
fn give_up(run: &mut Run<'_>, slot: Slot, defeat: Defeat<'_>) -> Result<(), Rejection> {
    joins::give_up(run, slot);
    // What its attempts may have left is on the ledger, or will be when the stray comes back.
    let tries = &mut run.slot_mut(slot).tries;
    tries.unknown = false;
    tries.has_failed = false;
    ends::failed(run, slot, defeat)
}

/// That there is no time left.
pub(super) const fn missed(message: &str) -> Defeat<'_> {
    Defeat {
        class: DEADLINE,
        message,
    }
}
