//! Successes that come behind an unknown outcome: the answer of an attempt that nobody waits for any more.
//!
//! An attempt whose outcome is unknown may still happen, or may have happened. What it says in the end is worth knowing:
//!
//! ```text
//! step runs or backs off ──▶ it is done by that
//! step is over           ──▶ what it did is undone; what has been undone for want of knowledge is undone once more,
//!                            since that undo may have come before the call took effect
//! ```
//!
//! The commands in question are remembered with the instance, as many as [`DOUBTS_MAX`]. The next generation of the key takes
//! them over where it has the same version: none of its steps is done by them, and what they did is undone.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Action, Late, OnLate};
use saga_runner_language::expr::Root;
use saga_runner_language::ids::CommandId;
use serde_bytes::ByteBuf;

use super::ends;
use super::results::Told;
use super::run::Run;
use super::slot::Slot;
use super::{Rejection, attempts, compensation, entries, flight};
use crate::input::{CancelMode, WorkOutcome, WorkResult};
use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::patch::Note;
use crate::record::{DOUBTS_MAX, Doubt, Phase, Record, StepStatus, Stray};

/// The outcome of `command`, an attempt of this slot, is unknown.
pub(super) fn remember(run: &mut Run<'_>, slot: Slot, command: CommandId) {
    let state = run.slot(slot);
    let doubt = Doubt {
        command,
        step: slot.step,
        item: slot.item,
        iteration: state.iteration,
        round: state.tries.round,
        input: None,
        on_ledger: false,
        late: Late::TimedOut,
        undo: false,
        of_before: false,
    };
    put(run, doubt);
}

/// A command that nobody waits for any more, since the instance was killed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost {
    pub command: CommandId,
    pub round: u32,
    /// It was to undo what the step did.
    pub undo: bool,
}

/// The instance is killed while a command is to do what a step does, or to undo it.
pub(super) fn remember_lost(run: &mut Run<'_>, slot: Slot, iteration: u32, lost: Lost) {
    let doubt = Doubt {
        command: lost.command,
        step: slot.step,
        item: slot.item,
        iteration,
        round: lost.round,
        input: None,
        on_ledger: lost.undo,
        late: Late::Cancelled,
        undo: lost.undo,
        of_before: false,
    };
    put(run, doubt);
}

/// The same of an attempt for which nobody waited any more.
pub(super) fn remember_stray(run: &mut Run<'_>, stray: &Stray) {
    let doubt = Doubt {
        command: stray.outstanding.command,
        step: stray.step,
        item: stray.item,
        iteration: stray.iteration,
        round: stray.outstanding.round,
        input: stray.input.clone(),
        on_ledger: false,
        late: stray.late,
        undo: false,
        of_before: false,
    };
    put(run, doubt);
}

/// What the next generation of a key remembers of the one before: a success that comes late is undone by it.
pub(super) fn of_before(definition: &Definition, last: &Record) -> Vec<Doubt> {
    let doubts = last.doubts.iter().filter(|doubt| !doubt.undo);
    let doubts = doubts.map(|doubt| Doubt {
        on_ledger: false,
        of_before: true,
        ..doubt.clone()
    });
    if definition.hash == last.definition {
        doubts.collect()
    } else {
        Vec::new()
    }
}

fn put(run: &mut Run<'_>, doubt: Doubt) {
    let doubts = &mut run.record.doubts;
    let excess = (doubts.len() + 1).saturating_sub(DOUBTS_MAX);
    doubts.drain(..excess);
    doubts.push(doubt);
}

/// The step is over: what was sent is needed to undo it, should it have happened.
pub(super) fn keep_input(run: &mut Run<'_>, slot: Slot, iteration: u32, input: Option<&ByteBuf>) {
    let step = slot.step(run);
    let reads = step
        .compensate
        .as_ref()
        .is_some_and(|compensation| compensation.reads(Root::Input));
    let Some(input) = input.filter(|_| reads) else {
        return;
    };
    for doubt in &mut run.record.doubts {
        if doubt.is_of(slot, iteration) && doubt.input.is_none() {
            doubt.input = Some(input.clone());
        }
    }
}

/// What is unknown of this slot stands on the ledger.
pub(super) fn stand_on_ledger(run: &mut Run<'_>, slot: Slot, iteration: u32) {
    let doubts = run.record.doubts.iter_mut();
    let meant = doubts.filter(|doubt| doubt.is_of(slot, iteration));
    meant.for_each(|doubt| doubt.on_ledger = true);
}

/// An attempt of this slot has succeeded: all that were known by the same key are the same work.
pub(super) fn clear(run: &mut Run<'_>, slot: Slot, iteration: u32, round: u32) {
    let doubts = &mut run.record.doubts;
    doubts.retain(|doubt| !(doubt.is_of(slot, iteration) && doubt.round == round));
}

/// The command of unknown outcome that has succeeded after all.
pub(super) fn waiting(record: &Record, result: &WorkResult) -> Option<usize> {
    let mut doubts = record.doubts.iter();
    doubts
        .position(|doubt| doubt.command == result.command_id)
        .filter(|_| result.outcome.has_happened())
}

impl Doubt {
    fn is_of(&self, slot: Slot, iteration: u32) -> bool {
        let is_of_step = !self.undo && !self.of_before;
        is_of_step && self.is_about(slot, iteration)
    }

    /// Whether it is about what the step did then.
    pub(super) fn is_about(&self, slot: Slot, iteration: u32) -> bool {
        (self.step, self.item, self.iteration) == (slot.step, slot.item, iteration)
    }

    pub(super) const fn slot(&self) -> Slot {
        Slot {
            step: self.step,
            item: self.item,
        }
    }
}

/// Takes the success of a command whose outcome was unknown.
pub(super) fn succeeded<'a>(run: &mut Run<'a>, at: usize, told: Told<'a, '_>) -> Result<(), Rejection> {
    let (WorkOutcome::Succeeded { payload } | WorkOutcome::Unusable { payload, .. }) = told.outcome else {
        return Ok(());
    };
    let doubt = run.record.doubts.remove(at);
    if doubt.undo {
        undone(run, &doubt);
        return Ok(());
    }
    let slot = doubt.slot();
    let is_same = !doubt.of_before && run.has_slot(slot) && run.slot(slot).iteration == doubt.iteration;
    if is_same && still_tries(run, slot) {
        return done(run, slot, &doubt, payload, told);
    }
    run.note(Note::LateResult {
        step: slot.step(run).name.clone(),
        outcome: "succeeded".to_owned(),
    });
    let state = is_same.then(|| run.slot(slot));
    // It went on without this, as if it were done.
    let counts = state.is_some_and(|state| state.status == StepStatus::Done && state.error.is_some());
    let result = ends::kept(run, payload);
    late(run, slot, doubt, result, counts);
    compensation::resume(run)
}

/// Whether the step is still at its action: another attempt is under way, or ahead, or an operator is asked.
fn still_tries(run: &Run<'_>, slot: Slot) -> bool {
    let goes_on = match run.record.phase {
        Phase::Running => true,
        Phase::Finishing => slot.step(run).at_end,
        Phase::Compensating => flight::goes_on(run, slot),
        Phase::CompensationFailed | Phase::Completed | Phase::Failed | Phase::Cancelled => false,
    };
    let status = run.slot(slot).status;
    let tries = matches!(
        status,
        StepStatus::Running | StepStatus::BackingOff | StepStatus::Stuck
    );
    goes_on && tries && run.ground.definition.group(slot.step).is_none()
}

/// The step has done its action by this attempt. Another one that is under way is the same work where it has the same key;
/// else it is one more.
fn done<'a>(
    run: &mut Run<'a>,
    slot: Slot,
    doubt: &Doubt,
    payload: &'a [u8],
    told: Told<'a, '_>,
) -> Result<(), Rejection> {
    let timer = slot.timer(run, attempts::RETRY);
    run.clear_timer(&timer);
    let state = run.slot_mut(slot);
    state.question = None;
    let open = state.outstanding.take();
    let (iteration, unknown) = (state.iteration, state.tries.unknown);
    let failed = state.tries.has_failed;
    let input = state.sent.as_ref().map(|sent| sent.payload.clone());
    state.tries.round = doubt.round;
    if let Some(open) = open {
        if open.round == doubt.round {
            run.completed.push(open.row);
        } else {
            run.record.strays.push(Stray {
                step: slot.step,
                item: slot.item,
                iteration,
                outstanding: open,
                input,
                unknown,
                failed,
                late: Late::TimedOut,
            });
        }
    }
    let before = run.focus(Some(slot));
    match told.flaw {
        None => ends::acted(run, slot, payload)?,
        Some(flaw) => ends::unusable(run, slot, payload, flaw)?,
    }
    run.focus(before);
    Ok(())
}

/// What an instance did was undone by a command that nobody waited for when it was killed.
fn undone(run: &mut Run<'_>, doubt: &Doubt) {
    let mut held = run.record.ledger.having(|status| status == LedgerStatus::Held);
    let found = held.find(|(_, entry)| {
        let slot = Slot {
            step: entry.step,
            item: entry.item,
        };
        doubt.is_about(slot, entry.iteration) && entry.tries.round == doubt.round && entry.tries.unknown
    });
    let found = found.map(|(at, _)| at);
    drop(held);
    let Some(at) = found else {
        return;
    };
    let entry = run.record.ledger.entry(at);
    entry.tries.unknown = false;
    if entry.again {
        // It happened after that, perhaps.
        entry.again = false;
        entry.tries.round = entry.tries.round.saturating_add(1);
        return;
    }
    entry.end(LedgerStatus::Undone);
    run.note(Note::CompensationDone {
        step: doubt.slot().step(run).name.clone(),
    });
}

/// The step is over, and what it did is known now.
fn late(run: &mut Run<'_>, slot: Slot, doubt: Doubt, result: &[u8], counts: bool) {
    if slot.step(run).at_end {
        return;
    }
    let known = if doubt.on_ledger {
        entry_of(&run.record, &doubt)
    } else {
        None
    };
    if let Some(at) = known {
        confirm(run, at, doubt.input, result, doubt.late);
    } else if !counts {
        let before = run.record.ledger.len();
        entries::push_late(run, slot, doubt.iteration, doubt.input, Ok(result), doubt.late);
        if doubt.of_before && run.record.ledger.len() > before {
            // Steps of this generation are undone under rounds of their own, and do what this has done once more.
            let entry = run.record.ledger.entry(before);
            entry.tries.round = entry.tries.round.saturating_add(entries::ROUNDS_OF_BEFORE);
            if entry.status == LedgerStatus::Held {
                entry.status = LedgerStatus::Due;
            }
        }
    } else if run.record.phase != Phase::Completed {
        let is_left = compensation::cancel_mode(&run.record) == Some(CancelMode::Abandon);
        let status = match run.record.phase {
            Phase::Failed | Phase::Cancelled if is_left => LedgerStatus::Kept,
            Phase::Failed | Phase::Cancelled => LedgerStatus::Due,
            _ => LedgerStatus::Held,
        };
        let known = (doubt.input, Some(result));
        entries::put(run, slot, doubt.iteration, status, known, Some(doubt.late));
    }
}

/// The entry that stands for a command of unknown outcome. An entry with a result is of another key if one without a result
/// is of the same step, too, and what a generation before did is no attempt of this one.
fn entry_of(record: &Record, doubt: &Doubt) -> Option<usize> {
    let is_meant = |entry: &LedgerEntry| {
        let (step, item) = (entry.step, entry.item);
        !entry.of_child
            && doubt.is_about(Slot { step, item }, entry.iteration)
            && (doubt.of_before || !entries::is_of_before(entry))
    };
    let mut first = None;
    for (at, entry) in record.ledger.iter().enumerate() {
        if !is_meant(&entry) {
            continue;
        }
        if entry.result.is_none() {
            return Some(at);
        }
        first = first.or(Some(at));
    }
    first
}

/// What is on the ledger with an unknown outcome is known to have happened. What was undone meanwhile may have been undone
/// before it happened, so it is undone once more, as another piece of work.
fn confirm(run: &mut Run<'_>, at: usize, input: Option<ByteBuf>, result: &[u8], late: Late) {
    let index = run.record.ledger.entry(at).step;
    let Some(undo) = run.ground.definition.steps[usize::from(index)]
        .compensate
        .as_ref()
    else {
        return;
    };
    let is_left = undo.on_late != OnLate::Compensate
        || compensation::cancel_mode(&run.record) == Some(CancelMode::Abandon)
        || compensation::is_kept(run.ground.definition, &run.record, index);
    let known = match undo.action {
        Action::UndoSaga(_) => Some(ByteBuf::from(*b"true")),
        _ => undo.reads(Root::Result).then(|| ByteBuf::from(result)),
    };
    let asked = run.record.ledger.entry(at).asks;
    let entry = run.record.ledger.entry(at);
    entry.late = entry.late.or(Some(late));
    match entry.status {
        LedgerStatus::Held | LedgerStatus::Due => {
            entry.asks = false;
            entry.result = known;
            // A kill has left an undo behind that may have come too early.
            entry.again = entry.tries.unknown;
        }
        LedgerStatus::BackingOff => {
            entry.tries.round = entry.tries.round.saturating_add(1);
            entry.result = known;
        }
        LedgerStatus::Stuck => {
            entry.tries.round = entry.tries.round.saturating_add(1);
            entry.result = known;
            // The question is answered.
            if asked {
                entry.begin_anew();
            }
        }
        LedgerStatus::Undoing => {
            entry.result = known;
            entry.again = !is_left;
            if is_left {
                entries::leave_off(run, index);
            }
        }
        LedgerStatus::Undone | LedgerStatus::Kept if is_left => entries::leave_off(run, index),
        LedgerStatus::Undone | LedgerStatus::Kept => {
            entry.tries.round = entry.tries.round.saturating_add(1);
            (entry.input, entry.result) = (input, known);
            entry.begin_anew();
        }
    }
}
