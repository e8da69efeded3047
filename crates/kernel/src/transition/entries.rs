//! What comes on the ledger: steps that have succeeded, those of unknown outcome, and late successes.

use std::ops::Range;

use saga_runner_language::definition::model::{
    Action, Compensation, DEADLINE, Group, Late, OnLate, OnUnknown, Step,
};
use saga_runner_language::expr::Root;
use serde_bytes::ByteBuf;

use super::compensation::{cancel_mode, is_kept};
use super::place::Place;
use super::run::Run;
use super::slot::Slot;
use super::{Rejection, compensation, doubts, early, flight};
use crate::input::CancelMode;
use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::record::{Phase, Record, Tries};

/// How far apart the rounds of entries begin that one iteration of a step has left.
const TWIN_ROUNDS: u32 = 1 << 16;
/// How far between those the rounds of entries begin that a generation before has left.
pub(super) const ROUNDS_OF_BEFORE: u32 = TWIN_ROUNDS / 2;

/// Puts a step that succeeded on the ledger, if it can be undone.
pub(super) fn push(run: &mut Run<'_>, slot: Slot, input: Option<ByteBuf>, result: &[u8]) {
    let iteration = run.slot(slot).iteration;
    put(
        run,
        slot,
        iteration,
        LedgerStatus::Held,
        (input, Some(result)),
        None,
    );
}

/// What attempts without a success say about the world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remains {
    /// The outcome of one is unknown.
    pub unknown: bool,
    /// One has failed for certain.
    pub failed: bool,
}

impl Remains {
    /// Whether there may be something to undo, as the step says.
    pub(super) fn may_be_undone(self, step: &Step) -> bool {
        step.compensate.as_ref().is_some_and(|compensation| {
            (self.unknown && compensation.on_unknown != OnUnknown::Ignore)
                || (self.failed && compensation.undoes_failed)
        })
    }

    /// Whether an operator says so: not where a failure is to be undone in any case.
    fn asks(self, compensation: &Compensation) -> bool {
        self.unknown
            && compensation.on_unknown == OnUnknown::Ask
            && !(self.failed && compensation.undoes_failed)
    }
}

/// The same for one without a success, where its compensation says that there may be something to undo.
pub(super) fn push_remains(run: &mut Run<'_>, slot: Slot, input: Option<ByteBuf>, remains: Remains) {
    if !remains.may_be_undone(slot.step(run)) {
        if remains.unknown {
            leave_off(run, slot.step);
        }
        return;
    }
    let iteration = run.slot(slot).iteration;
    put(run, slot, iteration, LedgerStatus::Held, (input, None), None);
    leave_remains(run, slot, iteration, remains);
    leave(run, slot);
}

/// The newest entry, which is of this slot, is of a step that is over without success.
fn leave(run: &mut Run<'_>, slot: Slot) {
    if let Some(at) = run.record.ledger.len().checked_sub(1) {
        run.left.push((slot, at));
    }
}

/// The step has succeeded, but nobody can use the outcome of it.
pub(super) fn push_unusable(run: &mut Run<'_>, slot: Slot, input: Option<ByteBuf>, result: &[u8]) {
    let before = run.record.ledger.len();
    push(run, slot, input, result);
    if run.record.ledger.len() > before {
        leave(run, slot);
    }
}

/// The step counts as done although it has failed, so what it may have done stays as long as the instance is well.
pub(super) fn count_as_done(run: &mut Run<'_>, slot: Slot) {
    run.left.retain(|(of, _)| *of != slot);
}

/// What this input has left of steps that the instance goes on without is undone at once: who completes would keep it, and who
/// does the step again would do it twice.
pub(super) fn undo_left(run: &mut Run<'_>) -> Result<(), Rejection> {
    let left = std::mem::take(&mut run.left);
    let goes_on = run.is_running() || early::is_ahead(&run.record);
    if left.is_empty() || !goes_on {
        return Ok(());
    }
    let steps = &run.ground.definition.steps;
    for (slot, at) in left {
        let undo = steps[usize::from(slot.step)].compensate.as_ref();
        let entry = run.record.ledger.entry(at);
        if entry.status == LedgerStatus::Held && undo.is_some_and(|undo| undo.on_late == OnLate::Compensate) {
            entry.status = LedgerStatus::Due;
        }
    }
    compensation::proceed(run)
}

/// The newest entry, which is of this slot, has no result.
fn leave_remains(run: &mut Run<'_>, slot: Slot, iteration: u32, remains: Remains) {
    let asks = slot
        .step(run)
        .compensate
        .as_ref()
        .is_some_and(|compensation| remains.asks(compensation));
    if let Some(at) = run.record.ledger.len().checked_sub(1) {
        run.record.ledger.entry(at).asks = asks;
    }
    let step = &slot.step(run).name;
    let place = Place::Compensation { step };
    if remains.unknown {
        doubts::stand_on_ledger(run, slot, iteration);
        run.trace(format_args!("{place}.on_unknown"));
    } else {
        run.trace(format_args!("{place}.on_failed"));
    }
}

/// Why nobody waits any more for what a step does, now that it is given up.
pub(super) fn why_late(record: &Record) -> Late {
    match &record.failure {
        None if record.phase == Phase::Running => Late::Enough,
        None => Late::Ended,
        Some(failure) if failure.cancelled.is_some() => Late::Cancelled,
        Some(failure) if failure.code == DEADLINE && failure.step.is_none() => Late::Deadline,
        Some(_) => Late::Failed,
    }
}

/// The same for what nothing waits for any more, which is undone although the instance may go on: its result, or what its
/// attempts without one say.
pub(super) fn push_late(
    run: &mut Run<'_>,
    slot: Slot,
    iteration: u32,
    input: Option<ByteBuf>,
    result: Result<&[u8], Remains>,
    late: Late,
) {
    let Some(status) = status_of_late(run, slot, result.err()) else {
        if result.err().is_none_or(|remains| remains.unknown) {
            leave_off(run, slot.step);
        }
        return;
    };
    let twins = run.record.ledger.iter();
    let is_twin = |entry: &LedgerEntry| {
        (entry.step, entry.item, entry.iteration) == (slot.step, slot.item, iteration) && !entry.of_child
    };
    let twins = twins.filter(|entry| is_twin(entry)).count();
    put(run, slot, iteration, status, (input, result.ok()), Some(late));
    if let Err(remains) = result {
        leave_remains(run, slot, iteration, remains);
    }
    // The step did it under another key before; what undoes that is other work, too.
    if let Some(round) = u32::try_from(twins).ok().filter(|twins| *twins > 0) {
        let at = run.record.ledger.len() - 1;
        run.record.ledger.entry(at).tries.round = round.saturating_mul(TWIN_ROUNDS);
    }
}

/// How what nothing waits for any more comes on the ledger, if it does: a success, or what attempts without one say.
fn status_of_late(run: &Run<'_>, slot: Slot, remains: Option<Remains>) -> Option<LedgerStatus> {
    let step = slot.step(run);
    let compensation = step.compensate.as_ref()?;
    if is_kept(run.ground.definition, &run.record, slot.step) {
        return None;
    }
    let is_left = cancel_mode(&run.record) == Some(CancelMode::Abandon);
    match (remains, compensation.on_late) {
        (Some(_), _) if is_left => None,
        // It is known, should somebody have another go at the instance.
        (None, _) if is_left => Some(LedgerStatus::Kept),
        (Some(remains), _) if !remains.may_be_undone(step) => None,
        // It was waited for.
        _ if flight::drains(&run.record) => Some(LedgerStatus::Held),
        (Some(_), _) | (None, OnLate::Compensate) => Some(LedgerStatus::Due),
        (None, OnLate::Accept) if run.record.phase == Phase::Running => Some(LedgerStatus::Held),
        (None, OnLate::Accept | OnLate::Ignore) => None,
    }
}

/// The step has done something, or may have, and the ledger does not tell of it: whoever has another go at the instance has to.
pub(super) fn leave_off(run: &mut Run<'_>, step: u16) {
    let found = &run.ground.definition.steps[usize::from(step)];
    let acts = matches!(
        found.action,
        Action::Effect { .. } | Action::Command(_) | Action::Saga(_)
    );
    if !acts || !found.is_own() {
        return;
    }
    let steps = &mut run.record.off_ledger;
    if let Err(at) = steps.binary_search(&step) {
        steps.insert(at, step);
    }
}

/// Puts an entry on the ledger, if the step can be undone.
pub(super) fn put(
    run: &mut Run<'_>,
    slot: Slot,
    iteration: u32,
    status: LedgerStatus,
    (input, result): (Option<ByteBuf>, Option<&[u8]>),
    late: Option<Late>,
) {
    let Some(compensation) = slot.step(run).compensate.as_ref() else {
        leave_off(run, slot.step);
        return;
    };
    let reads_result = compensation.reads(Root::Result);
    let reads_input = compensation.reads(Root::Input);
    run.record.ledger.push(LedgerEntry {
        step: slot.step,
        item: slot.item,
        iteration,
        input: input.filter(|_| reads_input),
        result: match compensation.action {
            // Whether it is known to have been there.
            Action::UndoSaga(_) => result.map(|_| ByteBuf::from(*b"true")),
            _ => result.filter(|_| reads_result).map(ByteBuf::from),
        },
        status,
        attempt: 0,
        tries: Tries::default(),
        outstanding: None,
        asks: false,
        known_as: None,
        life: None,
        of_child: false,
        again: false,
        late,
        question: None,
    });
}

/// Whether an entry is of an attempt for which nobody waited any more, beside what its step did under another key.
pub(super) fn is_twin(entry: &LedgerEntry) -> bool {
    entry.tries.round >= ROUNDS_OF_BEFORE
}

/// Whether an entry is of a command of a generation before that has succeeded late.
pub(super) const fn is_of_before(entry: &LedgerEntry) -> bool {
    entry.tries.round % TWIN_ROUNDS >= ROUNDS_OF_BEFORE
}

/// How many entries the ledger has.
pub(super) fn count(run: &Run<'_>) -> u32 {
    u32::try_from(run.record.ledger.len()).unwrap_or(u32::MAX)
}

/// What `slot` and all that is nested in it have done, or may have, is undone although the instance goes on: it was given up, or
/// has failed, and is of no use to whoever needs it. What earlier turns of the loop around have done stays.
pub(super) fn give_back(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    let nested = run
        .ground
        .definition
        .group(slot.step)
        .map_or(0..0, Group::members);
    let ledger_before = run.slot(slot).ledger_before;
    give_back_behind(run, ledger_before, |entry| {
        (entry.step == slot.step || nested.contains(&entry.step))
            && (slot.item.is_none() || entry.item == slot.item)
    })
}

/// The same of an item that the loop goes on without.
pub(super) fn give_back_item(
    run: &mut Run<'_>,
    steps: Range<u16>,
    item: u32,
    ledger_before: u32,
) -> Result<(), Rejection> {
    give_back_behind(run, ledger_before, |entry| {
        steps.contains(&entry.step) && entry.item == Some(item)
    })
}

fn give_back_behind(
    run: &mut Run<'_>,
    ledger_before: u32,
    is_of_it: impl Fn(&LedgerEntry) -> bool,
) -> Result<(), Rejection> {
    let steps = &run.ground.definition.steps;
    let first = usize::try_from(ledger_before).unwrap_or(usize::MAX);
    let held = run.record.ledger.having(|status| status == LedgerStatus::Held);
    let is_meant = |entry: &LedgerEntry| {
        let undo = steps[usize::from(entry.step)].compensate.as_ref();
        is_of_it(entry) && undo.is_some_and(|undo| undo.on_late == OnLate::Compensate)
    };
    let meant: Vec<usize> = held
        .filter(|(at, entry)| *at >= first && is_meant(entry))
        .map(|(at, _)| at)
        .collect();
    for at in meant {
        run.record.ledger.entry(at).status = LedgerStatus::Due;
    }
    compensation::proceed(run)
}
