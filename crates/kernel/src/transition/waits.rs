//! Steps that let time pass, and steps that wait for an event, a signal or a callback.
//!
//! What comes before its step waits is kept in the buffer of the record. One event or signal ends every wait
//! that it fits at that moment; from the buffer the first step that comes takes it.

use std::borrow::Cow;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Awaited, Awaiting, BODY_OF_REPEAT, Early, Group, Step, Wait};
use saga_runner_language::expr::write_sorted;
use saga_runner_language::json::Json;
use serde_bytes::ByteBuf;

use super::attempts::NO_RESULT;
use super::ends::{self, Defeat};
use super::heartbeats::HEARTBEAT;
use super::messages::{self, Message};
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{BUFFER_FULL, Rejection, TIMEOUT_CLASS, attempts, entries, flight, heartbeats, questions};
use crate::patch::Note;
use crate::record::{Buffered, MessageKind, Phase, Record, StepState, StepStatus};

/// Timer of the first attempt of a step.
pub(super) const DELAY: &str = "delay";
/// Timer of the end of a wait.
pub(super) const WAIT: &str = "wait";

/// Begins a step: lets its delay pass, then does what it does.
pub(super) fn begin(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    let step = slot.step(run);
    let Some(delay) = step.delay.as_ref().filter(|_| !is_later_turn(run, slot)) else {
        return attempts::start(run, slot);
    };
    let place = || format!("{}.delay", Place::Step { name: &step.name });
    let after_ms = run.delay_ms(delay, Locals::default(), place)?;
    if after_ms == 0 {
        return attempts::start(run, slot);
    }
    run.slot_mut(slot).status = StepStatus::Delayed;
    run.note(Note::StepDelayed {
        step: step.name.clone(),
    });
    let timer = slot.timer(run, DELAY);
    run.set_timer(&timer, after_ms, place)
}

/// Whether a loop is at this step for another time: what stands beside the loop comes once, before its first turn.
fn is_later_turn(run: &Run<'_>, slot: Slot) -> bool {
    let step = slot.step(run);
    let around = step.within.filter(|_| step.name.ends_with(BODY_OF_REPEAT));
    around.is_some_and(|group| run.slot(slot.peer(run, group)).turn > 0)
}

/// The delay of a step is over.
pub(super) fn delay_over(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    if run.slot(slot).status != StepStatus::Delayed {
        return Ok(());
    }
    attempts::start(run, slot)
}

/// Begins to wait, or takes what is in the buffer.
pub(super) fn wait(run: &mut Run<'_>, slot: Slot, wait: &Wait) -> Result<(), Rejection> {
    if let Some((at, which)) = buffered(run, slot)? {
        let found = run.record.buffer.remove(at);
        let message = messages::buffered(run, &found)?;
        return over(run, slot, message, which);
    }
    let step = slot.step(run);
    run.slot_mut(slot).status = StepStatus::Waiting;
    run.note(Note::StepWaits {
        step: step.name.clone(),
    });
    heartbeats::begin(run, slot, wait)?;
    let Some(timeout) = &wait.timeout else {
        return Ok(());
    };
    let place = || format!("{}.wait.timeout", Place::Step { name: &step.name });
    let after_ms = run.delay_ms(timeout, Locals::default(), place)?;
    let timer = slot.timer(run, WAIT);
    run.set_timer(&timer, after_ms, place)
}

/// Nothing came in time.
pub(super) fn timed_out(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    if run.slot(slot).status != StepStatus::Waiting {
        return Ok(());
    }
    let timer = slot.timer(run, HEARTBEAT);
    run.clear_timer(&timer);
    let defeat = Defeat {
        class: TIMEOUT_CLASS,
        message: "nothing came in time",
    };
    attempts::wait_defeated(run, slot, defeat)
}

/// Whether the buffer holds what the step waits for: where, and which of several it is.
pub(super) fn buffered(run: &mut Run<'_>, slot: Slot) -> Result<Option<(usize, usize)>, Rejection> {
    let step = slot.step(run);
    let Some(wait) = &step.wait else {
        return Ok(None);
    };
    for at in 0..run.record.buffer.len() {
        let entry = &run.record.buffer[at];
        let state = run.slot(slot);
        if !takes(wait, state, entry) {
            continue;
        }
        let named = naming(wait, state, entry.kind, &entry.name);
        if named.is_empty() {
            continue;
        }
        let locals = messages::buffered(run, entry)?.locals();
        if let Some(which) = fitting(run, step, wait, &named, locals)? {
            return Ok(Some((at, which)));
        }
    }
    Ok(None)
}

/// Whether a step of the definition waits for events of this type.
pub(super) fn awaits_event(definition: &Definition, event_type: &str) -> bool {
    let mut steps = definition.steps.iter();
    steps.any(|step| step.expected_events().any(|expected| expected == event_type))
}

/// The outcome of an event or a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offered {
    /// A step has taken it, or it is kept for one.
    Used,
    /// A step will wait for such a one, and does not keep what comes before.
    TooEarly,
    Unknown,
}

/// Gives an event or a signal to the steps that wait for it, or keeps it for one that will.
pub(super) fn offer<'a>(run: &mut Run<'a>, message: Message<'a>) -> Result<Offered, Rejection> {
    let (waiting, ahead) = interested(run, message);
    let mut taken = false;
    for slot in waiting {
        // The end of another wait may have changed everything.
        if !flight::hears(&run.record) || !run.has_slot(slot) || run.slot(slot).status != StepStatus::Waiting
        {
            continue;
        }
        let before = run.focus(Some(slot));
        let step = slot.step(run);
        let Some(wait) = &step.wait else { continue };
        let named = naming(wait, run.slot(slot), message.kind, message.name);
        if let Some(which) = fitting(run, step, wait, &named, message.locals())? {
            taken = true;
            over(run, slot, message, which)?;
        }
        run.focus(before);
    }
    match ahead {
        _ if taken => return Ok(Offered::Used),
        Ahead::Nobody => return Ok(Offered::Unknown),
        Ahead::DoesNotKeep => {
            run.note(Note::TooEarly {
                name: message.name.to_owned(),
            });
            return Ok(Offered::TooEarly);
        }
        Ahead::Keeps => {}
    }
    let max = run.ground.definition.buffer;
    if run.record.buffer.len() >= max {
        return Err(Rejection {
            reason: BUFFER_FULL,
            message: format!(
                "{} came early, and {max} others already wait for their step",
                message.name
            ),
        });
    }
    let mut value = Vec::with_capacity(256);
    write_sorted(message.value, &mut value);
    run.record.buffer.push(Buffered {
        kind: message.kind,
        name: message.name.to_owned(),
        time: run.record.updated,
        version: run.record.version,
        value: ByteBuf::from(value),
    });
    run.note(Note::Buffered {
        name: message.name.to_owned(),
    });
    questions::answer_by_proof(run)?;
    Ok(Offered::Used)
}

/// Whether a step will wait for a message, and keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ahead {
    Nobody,
    DoesNotKeep,
    Keeps,
}

/// The steps that wait for a message of this name, and whether one will.
fn interested(run: &Run<'_>, message: Message<'_>) -> (Vec<Slot>, Ahead) {
    let mut waiting = Vec::new();
    let mut ahead = Ahead::Nobody;
    for (slot, state) in Slot::all(&run.record) {
        let wait = slot.step(run).wait.as_ref();
        let Some(wait) = wait.filter(|wait| !naming(wait, state, message.kind, message.name).is_empty())
        else {
            continue;
        };
        if state.status == StepStatus::Waiting {
            waiting.push(slot);
        } else if is_to_wait(&run.record, state) || (wait.early == Early::Keep && comes_again(run, slot)) {
            let is_kept = match wait.early {
                _ if message.is_callback() => true,
                Early::Keep => true,
                Early::Turn => has_begun(run, slot),
                Early::Ignore => false,
            };
            ahead = ahead.max(if is_kept { Ahead::Keeps } else { Ahead::DoesNotKeep });
        }
    }
    (waiting, ahead)
}

/// Whether a step in this state has still to wait, as far as that is known.
fn is_to_wait(record: &Record, state: &StepState) -> bool {
    match state.status {
        StepStatus::Running => true,
        // They begin no more in an instance that has failed.
        StepStatus::Pending | StepStatus::BackingOff | StepStatus::Delayed | StepStatus::Stuck => {
            record.phase == Phase::Running
        }
        StepStatus::Waiting
        | StepStatus::Done
        | StepStatus::Skipped
        | StepStatus::Failed
        | StepStatus::Abandoned => false,
    }
}

/// Whether a loop around the step may begin another turn.
fn comes_again(run: &Run<'_>, slot: Slot) -> bool {
    let definition = run.ground.definition;
    let within = |step: u16| definition.steps[usize::from(step)].within;
    let mut around = std::iter::successors(within(slot.step), |group| within(*group));
    run.is_running()
        && around.any(|group| {
            matches!(definition.group(group), Some(Group::Repeat(_)))
                && run.slot(slot.peer(run, group)).status == StepStatus::Running
        })
}

/// Whether the turn or the item has begun in which the step stands, of the innermost loop around.
fn has_begun(run: &Run<'_>, slot: Slot) -> bool {
    let definition = run.ground.definition;
    let mut around = slot.step(run).within;
    while let Some(group) = around {
        match definition.group(group) {
            Some(Group::Foreach(_)) => return slot.item.is_some(),
            Some(Group::Repeat(_)) => {
                return run.slot(slot.peer(run, group)).status == StepStatus::Running;
            }
            Some(Group::Choice(_)) | None => around = definition.steps[usize::from(group)].within,
        }
    }
    true
}

/// Whether a step in this state may take what came when the message in the buffer did.
fn takes(wait: &Wait, state: &StepState, entry: &Buffered) -> bool {
    match wait.early {
        _ if matches!(entry.kind, MessageKind::Callback | MessageKind::CallbackFailed) => true,
        Early::Keep => true,
        Early::Turn => entry.version > state.since,
        Early::Ignore => false,
    }
}

/// Lets go of what came early for a turn or an item that is over, and that nobody else waits for.
pub(super) fn forget_early(run: &mut Run<'_>) {
    let mut at = 0;
    while at < run.record.buffer.len() {
        if is_still_awaited(run, &run.record.buffer[at]) {
            at += 1;
            continue;
        }
        let entry = run.record.buffer.remove(at);
        run.note(Note::TooEarly { name: entry.name });
    }
}

fn is_still_awaited(run: &Run<'_>, entry: &Buffered) -> bool {
    if matches!(entry.kind, MessageKind::Callback | MessageKind::CallbackFailed) {
        return true;
    }
    let mut is_scoped = false;
    for (slot, state) in Slot::all(&run.record) {
        let wait = slot.step(run).wait.as_ref();
        let Some(wait) = wait.filter(|wait| !naming(wait, state, entry.kind, &entry.name).is_empty()) else {
            continue;
        };
        is_scoped = true;
        let may_take = takes(wait, state, entry) && is_to_wait(&run.record, state) && has_begun(run, slot);
        if wait.early == Early::Keep || may_take {
            return true;
        }
    }
    !is_scoped
}

/// Which of what a step in this state waits for a message of this name may be.
fn naming(wait: &Wait, state: &StepState, kind: MessageKind, name: &str) -> Vec<usize> {
    let names = |awaiting: &Awaiting| match (&awaiting.on, kind) {
        (Awaited::Event(awaited), MessageKind::Event) | (Awaited::Signal(awaited), MessageKind::Signal) => {
            awaited == name
        }
        (Awaited::Callback, MessageKind::Callback | MessageKind::CallbackFailed) => {
            state.callback.as_deref() == Some(name)
        }
        (Awaited::Event(_) | Awaited::Signal(_) | Awaited::Callback, _) => false,
    };
    let all = wait.any.iter().enumerate();
    all.filter(|(_, awaiting)| names(awaiting))
        .map(|(at, _)| at)
        .collect()
}

/// The first of these alternatives whose condition holds.
fn fitting<'a>(
    run: &mut Run<'a>,
    step: &Step,
    wait: &Wait,
    named: &[usize],
    locals: Locals<'a>,
) -> Result<Option<usize>, Rejection> {
    for at in named.iter().copied() {
        let place = || format!("{}.when", place(step, wait, at));
        let holds = match &wait.any[at].when {
            None => true,
            Some(when) => run.test(when, locals, place)?,
        };
        if holds {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

fn place<'s>(step: &'s Step, wait: &Wait, at: usize) -> Place<'s> {
    Place::Awaited {
        step: &step.name,
        index: wait.is_list.then_some(at),
    }
}

/// What the step waited for has come: number `which` of it.
fn over<'a>(run: &mut Run<'a>, slot: Slot, message: Message<'a>, which: usize) -> Result<(), Rejection> {
    for kind in [WAIT, HEARTBEAT] {
        let timer = slot.timer(run, kind);
        run.clear_timer(&timer);
    }
    if message.kind == MessageKind::CallbackFailed {
        let text = |member| match message.value.get(member) {
            Some(Json::Str(text)) => text.as_ref(),
            _ => "",
        };
        let defeat = Defeat {
            class: text("class"),
            message: text("message"),
        };
        return attempts::wait_defeated(run, slot, defeat);
    }
    if slot.step(run).waits_alone() {
        entries::push(run, slot, None, NO_RESULT);
    }
    let kept = run.slot_mut(slot).result.take();
    let payload = kept.map(|kept| run.ground.texts.keep(kept.into_vec()).as_slice());
    let result = match payload {
        Some(payload) => Some(run.parse(payload, "the result of the step")?),
        None => None,
    };
    let mut locals = Locals {
        result,
        ..message.locals()
    };
    let step = slot.step(run);
    if let Some(wait) = step.wait.as_ref().filter(|wait| wait.is_list) {
        let place = place(step, wait, which);
        run.trace(place);
        if let Some(awaiting) = wait.any.get(which) {
            run.set(&awaiting.set, locals, place)?;
        }
        let index = Json::Int(i64::try_from(which).unwrap_or(i64::MAX));
        let members = vec![(Cow::Borrowed("index"), index)];
        locals.wait = Some(run.ground.values.keep(Json::Map(members)));
    }
    ends::complete(run, slot, payload, locals)
}
