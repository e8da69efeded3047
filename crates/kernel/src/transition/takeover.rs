//! What the next generation of an instance takes over from the one before: what is done, what stands on the ledger, and the commands
//! of unknown outcome.
//!
//! ```text
//! done, not undone ──▶ its state, its result and its entries
//! not done ──────────▶ entries of former iterations; that of the last one is what the operator has said
//! undone ────────────▶ nothing
//! ```

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Group, OnLate};

use super::rerun::{in_loop, is_of_now, is_undone, loop_stays, loops, of_ledger, stays};
use super::run::Run;
use super::slot::Slot;
use super::{compensation, entries};
use crate::input::{CancelMode, Found};
use crate::ledger::{Ledger, LedgerEntry, LedgerStatus};
use crate::record::{Doubt, MessageKind, Record, StepState, StepStatus, Tries};

/// Takes over what stands; `said` is what an operator has found out about steps. Tells which steps stay as they are.
pub(super) fn take_over(run: &mut Run<'_>, last: &Record, said: &[(u16, &Found)]) -> Vec<bool> {
    let entries = of_ledger(last);
    // Versions go on, so what is done again has other keys than what stands.
    run.record.version = last.version.saturating_add(1);
    run.record.parent.clone_from(&last.parent);
    run.record.buffer.clone_from(&last.buffer);
    let of_token = [MessageKind::Callback, MessageKind::CallbackFailed];
    // Nothing of this generation has the tokens of the one before.
    run.record.buffer.retain(|entry| !of_token.contains(&entry.kind));
    for entry in &mut run.record.buffer {
        entry.version = 0;
    }
    let mut kept = kept(run.ground.definition, last, &entries, said);
    for (at, kept) in kept.iter().enumerate() {
        if *kept {
            run.record.steps[at] = StepState {
                items: None,
                ..last.steps[at].clone()
            };
        }
    }
    keep_choices(run, last, &mut kept, said);
    take_ledger(run, last, entries, &kept, said);
    take_doubts(run, last, &kept, said);
    let off_ledger = last.off_ledger.iter().copied();
    run.record.off_ledger = off_ledger.filter(|step| kept[usize::from(*step)]).collect();
    kept
}

fn is_done(said: &[(u16, &Found)], index: u16) -> bool {
    let mut said = said.iter();
    said.any(|(step, found)| *step == index && matches!(found, Found::Done { .. }))
}

/// Which steps stay as they are.
fn kept(
    definition: &Definition,
    last: &Record,
    entries: &[LedgerEntry],
    said: &[(u16, &Found)],
) -> Vec<bool> {
    let is_denied = |index: u16| {
        let mut said = said.iter();
        said.any(|(step, found)| *step == index && matches!(found, Found::NotDone))
    };
    let mut kept = vec![false; last.steps.len()];
    for (index, step) in (0..=u16::MAX).zip(&definition.steps) {
        if step.at_end {
            continue;
        }
        // What an event or a timer began does not begin by itself.
        kept[usize::from(index)] = if step.emitted {
            true
        } else if in_loop(definition, index) {
            false
        } else {
            match definition.group(index) {
                None => stays(last, entries, index) && !is_denied(index),
                Some(group @ (Group::Repeat(_) | Group::Foreach(_))) => {
                    loop_stays(last, entries, index, group)
                }
                Some(Group::Choice(_)) => false,
            }
        };
    }
    for (index, group) in loops(definition) {
        if kept[usize::from(index)] {
            group
                .members()
                .for_each(|member| kept[usize::from(member)] = true);
        }
    }
    kept
}

/// A choice of which something stays done is not made again.
fn keep_choices(run: &mut Run<'_>, last: &Record, kept: &mut [bool], said: &[(u16, &Found)]) {
    let definition = run.ground.definition;
    // Inner ones stand behind those around them.
    let steps = u16::try_from(definition.steps.len()).unwrap_or(u16::MAX);
    for index in (0..steps).rev() {
        let Some(Group::Choice(branches)) = definition.group(index) else {
            continue;
        };
        if in_loop(definition, index) {
            continue;
        }
        let is_kept = |step: u16, kept: &[bool]| {
            is_done(said, step)
                || (kept[usize::from(step)] && last.steps[usize::from(step)].status != StepStatus::Skipped)
        };
        let taken = branches
            .iter()
            .position(|branch| branch.steps.clone().any(|step| is_kept(step, kept)));
        let Some(taken) = taken else {
            continue;
        };
        kept[usize::from(index)] = true;
        run.record.steps[usize::from(index)].status = StepStatus::Running;
        for (at, branch) in branches.iter().enumerate() {
            if at != taken {
                for step in branch.steps.clone() {
                    run.record.steps[usize::from(step)].status = StepStatus::Skipped;
                }
            }
        }
    }
}

/// What stands is undone by this generation if it fails, with all attempts again, under the key that it would have had before: what
/// was undone already, whether that is known or not, is not undone twice.
fn take_ledger(
    run: &mut Run<'_>,
    last: &Record,
    entries: Vec<LedgerEntry>,
    kept: &[bool],
    said: &[(u16, &Found)],
) {
    let is_abandoned = compensation::cancel_mode(last) == Some(CancelMode::Abandon);
    let mut ledger = Ledger::default();
    for entry in entries.into_iter().filter(|entry| !is_undone(entry)) {
        let at = usize::from(entry.step);
        let is_told = !kept[at] && !entry.of_child && is_of_now(&entry, &last.steps[at]);
        // An operator has said whether it happened. Where it may have been undone, it is, to be sure.
        if is_told && (!entry.tries.unknown || is_done(said, entry.step)) {
            continue;
        }
        if !kept[at] && !is_done(said, entry.step) {
            // What the step does now is another iteration than what stands.
            let state = &mut run.record.steps[at];
            state.iteration = last.steps[at].iteration.saturating_add(1);
        }
        // Nobody has waited for it.
        let is_late = entries::is_twin(&entry)
            && (is_abandoned || entry.status != LedgerStatus::Kept)
            && undoes_late(run.ground.definition, entry.step);
        ledger.push(LedgerEntry {
            status: if is_late || is_told {
                LedgerStatus::Due
            } else {
                LedgerStatus::Held
            },
            life: entry.life.clone().or_else(|| Some(last.start_event.clone())),
            attempt: 0,
            tries: Tries {
                // It happened after it was undone, perhaps.
                round: entry.tries.round.saturating_add(u32::from(entry.again)),
                ..Tries::default()
            },
            outstanding: None,
            again: false,
            question: None,
            ..entry
        });
    }
    run.record.ledger = ledger;
}

fn undoes_late(definition: &Definition, step: u16) -> bool {
    let undo = definition.steps[usize::from(step)].compensate.as_ref();
    undo.is_some_and(|undo| undo.on_late == OnLate::Compensate)
}

/// A success that comes late is undone, unless it is of a step that counts as done by it.
fn take_doubts(run: &mut Run<'_>, last: &Record, kept: &[bool], said: &[(u16, &Found)]) {
    let stands = |doubt: &Doubt| {
        let mut entries = run.record.ledger.iter();
        entries.any(|entry| {
            let slot = Slot {
                step: entry.step,
                item: entry.item,
            };
            doubt.is_about(slot, entry.iteration)
        })
    };
    // Whoever says that a step is done has looked at all that it may have done.
    let is_open = |doubt: &&Doubt| !doubt.undo && !is_done(said, doubt.step);
    let doubts = last.doubts.iter().filter(is_open);
    let doubts = doubts.map(|doubt| Doubt {
        on_ledger: doubt.on_ledger && kept[usize::from(doubt.step)] && stands(doubt),
        of_before: doubt.of_before || !kept[usize::from(doubt.step)],
        ..doubt.clone()
    });
    run.record.doubts = doubts.collect();
}
