//! What operators do to an instance as a whole, and to its timers.
//!
//! A **paused** instance keeps its inputs for later: events, results, timers, signals and callbacks are deferred, in the order in
//! which they came, and given again when it is resumed. Nothing that is under way is stopped. What operators say passes, and so does
//! what other instances must be answered: a parent that takes the instance back, an alias. Whoever cancels a paused instance wants
//! it to go on, so that ends the pause.
//!
//! A **killed** instance ends at once: nothing is undone, `finally` does not run, and what was under way counts as unknown. A
//! success that comes after all is noted on the ledger.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Action, COMMAND_TIMEOUT_MS, DEADLINE};
use saga_runner_language::ids::CommandId;
use serde_bytes::ByteBuf;

use super::emission::Repetition;
use super::entries::{self, Remains};
use super::heartbeats::HEARTBEAT;
use super::run::Run;
use super::slot::Slot;
use super::waits::WAIT;
use super::{Rejection, attempts, children, compensation, doubts, parents, timers};
use crate::input::{CancelMode, Control, Input, InputBody, Operation, OperationVerb};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::record::{Failure, Paused, Phase, Record, StepStatus};
use crate::work::WorkKind;

/// Code of the failure of an instance that was killed.
pub(super) const KILLED: &str = "killed";
/// Work items of one input that a kill leaves for the aliases and the parent.
const WORK_LEFT: usize = 2;

/// Whether a paused instance keeps this input for later.
pub(super) fn holds(record: &Record, input: &Input) -> bool {
    let has_order = match &input.body {
        InputBody::Event(_) | InputBody::Result(_) | InputBody::Timer { .. } => true,
        InputBody::Control(control) => {
            matches!(control, Control::Signal { .. } | Control::Callback { .. })
        }
    };
    has_order && record.paused.is_some()
}

/// Why an operation changes nothing, if that is so.
pub(super) fn refusal(
    definition: &Definition,
    record: &Record,
    operation: &Operation,
) -> Option<IgnoreReason> {
    let is_paused = record.paused.is_some();
    let does = match &operation.verb {
        OperationVerb::Pause if record.phase.is_terminal() => return Some(IgnoreReason::Ended),
        OperationVerb::Pause => !is_paused,
        OperationVerb::Resume => is_paused,
        // What has ended and is here undoes something late.
        OperationVerb::Kill => true,
        OperationVerb::FireTimer { timer } => record.timers.contains_key(timer),
        OperationVerb::CancelTimer { timer } => {
            record.timers.contains_key(timer) && may_be_cancelled(definition, timer)
        }
        // Only of what has ended.
        OperationVerb::Rerun { .. }
        | OperationVerb::Restart
        | OperationVerb::RestartWith { .. }
        | OperationVerb::Delete { .. } => false,
        OperationVerb::TryNow { step } => !backing_off(definition, record, step.as_deref()).is_empty(),
    };
    (!does).then_some(IgnoreReason::NothingToDo)
}

/// Whether an operator may cancel a timer of this name: something else can end what it is for. A step that waits for its next
/// attempt, its first one or its next turn, and a compensation, wait for their timer alone; only a program knows what its timers are for.
#[must_use]
pub fn may_be_cancelled(definition: &Definition, timer: &str) -> bool {
    let of_step = timer.split_once(':').map(|(kind, _)| kind);
    definition.program.is_none()
        && !compensation::is_timer(timer)
        && of_step.is_none_or(|kind| [WAIT, HEARTBEAT, DEADLINE].contains(&kind))
}

/// The timers of the next attempts of what backs off: of this step and its compensation, or of all.
#[must_use]
pub fn backing_off(definition: &Definition, record: &Record, step: Option<&str>) -> Vec<String> {
    let is_meant = |index: u16| {
        let found = definition.steps.get(usize::from(index));
        found.is_some_and(|found| step.is_none_or(|name| found.is_named(name)))
    };
    let of_steps = Slot::all(record)
        .filter(|(slot, state)| state.status == StepStatus::BackingOff && is_meant(slot.step))
        .map(|(slot, _)| slot.timer_in(definition, attempts::RETRY));
    let of_ledger = record.ledger.having(|status| status == LedgerStatus::BackingOff);
    let of_ledger = of_ledger
        .filter(|(_, entry)| is_meant(entry.step))
        .map(|(_, entry)| compensation::timer_name(&definition.steps[usize::from(entry.step)], &entry));
    let mut names: Vec<String> = of_steps.chain(of_ledger).collect();
    names.retain(|name| record.timers.contains_key(name));
    names.sort();
    names.dedup();
    names
}

/// Does what an operator asks for; the caller has looked for a reason not to.
pub(super) fn operate(mut run: Run<'_>, operation: &Operation) -> Result<Patch, Rejection> {
    run.note(Note::Operated {
        verb: operation.verb.as_str().to_owned(),
        by: operation.by.clone(),
        reason: operation.reason.clone(),
    });
    match &operation.verb {
        OperationVerb::Pause => {
            run.record.paused = Some(Box::new(Paused {
                by: operation.by.clone(),
                reason: operation.reason.clone(),
                since: run.record.updated,
            }));
            return run.finish(Outcome::Applied);
        }
        OperationVerb::Resume => run.unpause(),
        OperationVerb::Kill => {
            kill(&mut run, &operation.reason)?;
            return run.finish(Outcome::Applied);
        }
        OperationVerb::FireTimer { timer } => timers::fire(&mut run, timer)?,
        OperationVerb::CancelTimer { timer } => run.clear_timer(timer),
        OperationVerb::Rerun { .. }
        | OperationVerb::Restart
        | OperationVerb::RestartWith { .. }
        | OperationVerb::Delete { .. } => {}
        OperationVerb::TryNow { step } => {
            for timer in backing_off(run.ground.definition, &run.record, step.as_deref()) {
                timers::fire(&mut run, &timer)?;
            }
        }
    }
    run.conclude(Outcome::Applied)
}

impl Run<'_> {
    /// Ends a pause, if there is one: what was kept is given again.
    pub(super) fn unpause(&mut self) {
        if self.record.paused.take().is_some() {
            self.readmit_deferred();
        }
    }
}

/// A command whose outcome will not be known.
struct Lost {
    slot: Slot,
    /// Undoes something, where it is not what a step does.
    of_ledger: bool,
    command: CommandId,
    /// What was sent for a step.
    sent: Option<ByteBuf>,
}

/// Ends the instance where it stands.
pub(super) fn kill(run: &mut Run<'_>, reason: &str) -> Result<(), Rejection> {
    run.record.paused = None;
    let lost = give_up(run);
    let phase = run.record.phase;
    if matches!(
        phase,
        Phase::Running | Phase::Compensating | Phase::CompensationFailed
    ) {
        let before = run.record.failure.take();
        let message = match &before {
            None => reason.to_owned(),
            Some(before) => format!("{reason} (it was failing: {}: {})", before.code, before.message),
        };
        run.record.failure = Some(Failure {
            code: KILLED.to_owned(),
            message,
            step: before.and_then(|before| before.step),
            time: run.record.updated,
            cancelled: Some(CancelMode::Abandon),
            drain: false,
            keep: Vec::new(),
        });
    }
    if !phase.is_terminal() {
        // An outcome that was decided stands.
        run.record.phase = run.record.end();
        run.note(Note::Ended {
            phase: run.record.phase.as_str().to_owned(),
        });
    }
    let names: Vec<String> = run.record.timers.keys().cloned().collect();
    for name in names {
        run.clear_timer(&name);
    }
    let room = |run: &Run<'_>| {
        run.work_room()
            .saturating_sub(run.record.aliases.len() + WORK_LEFT)
    };
    for lost in lost.iter().filter(|lost| !lost.of_ledger) {
        if room(run) > 0 {
            children::cancel(run, lost.slot.step, lost.sent.as_ref())?;
        }
    }
    run.release_aliases()?;
    parents::report(run)?;
    for lost in &lost {
        if run.work_room() > 0 {
            tell_worker(run, lost)?;
        }
    }
    Ok(())
}

/// Waits for nothing any more: what is outstanding counts as unknown, and what is not undone stays on the ledger as it is. Its
/// success is remembered should it come: whoever has another go at the instance has to know.
fn give_up(run: &mut Run<'_>) -> Vec<Lost> {
    let mut lost = Vec::new();
    give_up_steps(run, &mut lost);
    give_up_strays(run, &mut lost);
    give_up_undoing(run, &mut lost);
    for pending in run
        .record
        .program
        .iter_mut()
        .flat_map(|program| program.pending.drain(..))
    {
        run.completed.push(pending.outstanding.row);
    }
    for state in &mut run.record.steps {
        state.items = None;
    }
    lost
}

fn give_up_steps(run: &mut Run<'_>, lost: &mut Vec<Lost>) {
    let open: Vec<Slot> = Slot::all(&run.record)
        .filter(|(_, state)| state.status.is_under_way())
        .map(|(slot, _)| slot)
        .collect();
    for slot in open {
        let name = slot.step(run).name.clone();
        let state = run.slot_mut(slot);
        state.status = StepStatus::Abandoned;
        state.question = None;
        state.result = None;
        let sent = state.sent.take().map(|sent| sent.payload);
        let outstanding = state.outstanding.take();
        state.tries.unknown |= outstanding.is_some();
        let iteration = state.iteration;
        if let Some(outstanding) = outstanding {
            let command = doubts::Lost {
                command: outstanding.command,
                round: outstanding.round,
                undo: false,
            };
            doubts::remember_lost(run, slot, iteration, command);
        }
        doubts::keep_input(run, slot, iteration, sent.as_ref());
        let state = run.slot(slot);
        let remains = Remains {
            unknown: state.tries.unknown,
            failed: state.tries.has_failed,
        };
        run.note(Note::StepAbandoned { step: name });
        entries::push_remains(run, slot, sent.clone(), remains);
        if let Some(outstanding) = outstanding {
            run.completed.push(outstanding.row);
            lost.push(Lost {
                slot,
                of_ledger: false,
                command: outstanding.command,
                sent,
            });
        }
    }
}

fn give_up_strays(run: &mut Run<'_>, lost: &mut Vec<Lost>) {
    for stray in std::mem::take(&mut run.record.strays) {
        doubts::remember_stray(run, &stray);
        let slot = Slot {
            step: stray.step,
            item: stray.item,
        };
        let remains = Remains {
            unknown: true,
            failed: stray.failed,
        };
        entries::push_late(
            run,
            slot,
            stray.iteration,
            stray.input.clone(),
            Err(remains),
            stray.late,
        );
        run.completed.push(stray.outstanding.row);
        lost.push(Lost {
            slot,
            of_ledger: false,
            command: stray.outstanding.command,
            sent: stray.input,
        });
    }
}

/// What is being undone, or is to be, stays on the ledger.
fn give_up_undoing(run: &mut Run<'_>, lost: &mut Vec<Lost>) {
    let unfinished: Vec<usize> = run
        .record
        .ledger
        .having(|status| !status.rests())
        .map(|(at, _)| at)
        .collect();
    for at in unfinished {
        let entry = run.record.ledger.entry(at);
        entry.status = LedgerStatus::Held;
        let slot = Slot {
            step: entry.step,
            item: entry.item,
        };
        let (iteration, round) = (entry.iteration, entry.tries.round);
        let asked = entry.question.take().map(|question| question.command);
        let outstanding = entry.outstanding.take();
        entry.tries.unknown |= outstanding.is_some();
        if let Some(command) = asked.or(outstanding.map(|outstanding| outstanding.command)) {
            let lost = doubts::Lost {
                command,
                round,
                undo: true,
            };
            doubts::remember_lost(run, slot, iteration, lost);
        }
        if let Some(outstanding) = outstanding {
            run.completed.push(outstanding.row);
            lost.push(Lost {
                slot,
                of_ledger: true,
                command: outstanding.command,
                sent: None,
            });
        }
    }
}

/// Tells the workers that an effect need not be carried out.
fn tell_worker(run: &mut Run<'_>, lost: &Lost) -> Result<(), Rejection> {
    let step = lost.slot.step(run);
    let action = match &step.compensate {
        Some(compensation) if lost.of_ledger => &compensation.action,
        _ if lost.of_ledger => return Ok(()),
        _ => &step.action,
    };
    let Action::Effect { effect, .. } = action else {
        return Ok(());
    };
    let kind = WorkKind::Cancel {
        effect: effect.clone(),
        command: lost.command,
    };
    let undo = if lost.of_ledger { ".compensate" } else { "" };
    let path = format!("steps.{}{undo}.cancel", step.name);
    let repetition = Repetition {
        item: lost.slot.item.unwrap_or(0),
        ..Repetition::once(run.record.version)
    };
    run.note(Note::Emitted { work: path.clone() });
    run.push_work(path, repetition, COMMAND_TIMEOUT_MS, kind)?;
    Ok(())
}
