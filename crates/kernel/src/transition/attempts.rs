//! Attempts of a step: sending its work, and what the end of an attempt means.
//!
//! ```text
//! pending ──▶ running ──succeeded──▶ done
//!              │   ▲
//!       failed │   │ timer `retry:<step>`
//!              ▼   │
//!          backing off        running ──no retry left──▶ failed
//! ```
//!
//! All attempts send the same input, under one idempotency key until the upstream has refused it: an upstream that
//! recognises keys may have stored the refusal under it. After an attempt that was not done the key stays, since
//! another one says nothing about the world; after an unknown outcome it stays, since that attempt may still happen.
//! Where the effect says that an operator is asked then, the step is stuck until there is an answer
//! ([`super::questions`]).

use bytes::Bytes;
use saga_runner_language::definition::model::{Action, COMMAND_TIMEOUT_MS, Decision, Step, Telling};
use saga_runner_language::expr::Root;
use saga_runner_language::ids::CommandId;
use serde_bytes::ByteBuf;

use super::emission::{KnownBy, Repetition};
use super::ends::{self, Defeat};
use super::place::Place;
use super::results::Told;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, children, deadlines, doubts, flight, questions, waits};
use crate::input::WorkOutcome;
use crate::patch::Note;
use crate::record::{ClassFailures, Sent, StepStatus, Tries};
use crate::work::WorkKind;

/// Result of an action that has none.
pub(super) const NO_RESULT: &[u8] = b"null";
/// Timer of the next attempt of a step.
pub(super) const RETRY: &str = "retry";
/// Most error classes whose failures one run of a step counts; a failure of one more class is not retried.
const CLASSES_MAX: usize = 16;

/// Starts the first attempt of a run.
pub(super) fn start(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    let step = slot.step(run);
    let path = Place::Step { name: &step.name }.to_string();
    let state = run.slot_mut(slot);
    state.attempt = 0;
    state.error = None;
    state.tries = Tries::default();
    if !deadlines::begin(run, slot)? {
        return Ok(());
    }
    match &step.action {
        Action::Nothing => return ends::acted(run, slot, NO_RESULT),
        Action::Decide(decision) => return decide(run, slot, decision),
        Action::Publish(telling) => return tell(run, slot, telling, path),
        Action::Saga(child) => return children::start(run, slot, child, path),
        Action::Effect { .. } | Action::Command(_) | Action::UndoSaga(_) | Action::Group(_) => {}
    }
    let kind = run.action(&step.action, Locals::default(), &path)?;
    let is_kept = is_kept(step) || questions::asks(run.ground.definition, &step.action);
    run.slot_mut(slot).sent = is_kept.then(|| sent(&kind));
    send(run, slot, path, kind)
}

/// Sets fields, and ends the instance where the step says so. There is nothing to undo.
fn decide(run: &mut Run<'_>, slot: Slot, decision: &Decision) -> Result<(), Rejection> {
    let step = slot.step(run);
    ends::complete(run, slot, Some(NO_RESULT), Locals::default())?;
    let place = Place::Step { name: &step.name };
    if let Some(complete) = &decision.complete
        && run.complete(complete, Locals::default(), place)?
    {
        return Ok(());
    }
    if let Some(cancel) = &decision.cancel {
        return run.cancel(cancel, Locals::default(), place, Some(step.title()));
    }
    match &decision.fail {
        Some(fail) => run.fail(fail, Locals::default(), place, Some(step.title())),
        None => Ok(()),
    }
}

/// Publishes a fact or sends a signal, which is done with that.
fn tell(run: &mut Run<'_>, slot: Slot, telling: &Telling, path: String) -> Result<(), Rejection> {
    let kind = run.telling(telling, Locals::default(), &path)?;
    let repetition = Repetition::once(u64::from(run.slot(slot).iteration));
    run.push_work(path, repetition, COMMAND_TIMEOUT_MS, kind)?;
    run.slot_mut(slot).attempt = 1;
    run.note(Note::StepStarted {
        step: slot.step(run).name.clone(),
        attempt: 1,
    });
    ends::acted(run, slot, NO_RESULT)
}

/// Starts the attempt for which the step has waited.
pub(super) fn retry_due(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    let state = run.slot(slot);
    if state.status != StepStatus::BackingOff {
        return Ok(());
    }
    let step = slot.step(run);
    let kind = state
        .sent
        .as_ref()
        .and_then(|sent| again(run, &step.action, sent));
    let Some(kind) = kind else {
        return Err(slot.mismatch(run, "backs off without an input"));
    };
    let path = Place::Step { name: &step.name }.to_string();
    send(run, slot, path, kind)
}

/// Sends the work of the step once more, for an operator.
pub(super) fn send_again(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    let step = slot.step(run);
    let path = Place::Step { name: &step.name }.to_string();
    let sent = run.slot(slot).sent.as_ref();
    let kind = match sent.and_then(|sent| again(run, &step.action, sent)) {
        Some(kind) => kind,
        // It was sent under a version that did not keep it.
        None => run.action(&step.action, Locals::default(), &path)?,
    };
    send(run, slot, path, kind)
}

/// Takes the outcome of `command`, the attempt that the step waits for.
pub(super) fn ended<'a>(
    run: &mut Run<'a>,
    slot: Slot,
    command: CommandId,
    told: Told<'a, '_>,
) -> Result<(), Rejection> {
    if let WorkOutcome::TimedOut { .. } = told.outcome {
        doubts::remember(run, slot, command);
    }
    let defeat = match told.outcome {
        WorkOutcome::Succeeded { payload } | WorkOutcome::Unusable { payload, .. } => {
            return match told.flaw {
                None => ends::acted(run, slot, payload),
                Some(flaw) => ends::unusable(run, slot, payload, flaw),
            };
        }
        // The message says why the instance fails, the class the outcome of the attempt.
        WorkOutcome::Failed { class, .. } if run.is_failing() => Defeat {
            class,
            message: told.flaw.map_or("", |flaw| flaw.message),
        },
        WorkOutcome::TimedOut { class, .. } if run.is_failing() => Defeat {
            class: class.as_str(),
            message: told.flaw.map_or("", |flaw| flaw.message),
        },
        // What the step waits for proves that the action has happened, and nobody asks for its result.
        WorkOutcome::TimedOut { .. }
            if !ends::reads_result(slot.step(run)) && waits::buffered(run, slot)?.is_some() =>
        {
            return ends::acted(run, slot, NO_RESULT);
        }
        WorkOutcome::TimedOut { class, message }
            if questions::asks(run.ground.definition, &slot.step(run).action)
                && !flight::drains(&run.record) =>
        {
            return questions::ask(run, slot, command, *class, message);
        }
        WorkOutcome::Failed { class, message, .. } => Defeat { class, message },
        WorkOutcome::TimedOut { class, message } => Defeat {
            class: class.as_str(),
            message,
        },
    };
    let ending = Ending::of(told.outcome);
    run.slot_mut(slot).tries.end(ending);
    defeated(run, slot, defeat, ending)
}

/// An attempt has ended without success: the step backs off, or has failed.
pub(super) fn defeated(
    run: &mut Run<'_>,
    slot: Slot,
    defeat: Defeat<'_>,
    ending: Ending,
) -> Result<(), Rejection> {
    if run.is_failing() || flight::drains(&run.record) {
        return ends::failed(run, slot, defeat);
    }
    let step = slot.step(run);
    let state = run.slot_mut(slot);
    let failures = count(&mut state.tries.failures, defeat.class);
    let pause = failures.and_then(|failures| pause(step, defeat.class, failures));
    if let Some(due) = deadlines::due(run, slot) {
        let now = run.record.updated;
        // Nobody waits for an attempt that could not begin any more. One whose outcome is unknown has taken all
        // the time there was.
        if pause.is_some_and(|pause_ms| now.plus_ms(pause_ms) >= due)
            || (ending == Ending::Unknown && now >= due)
        {
            let message = format!(
                "no time is left for another attempt; the last one: {}: {}",
                defeat.class, defeat.message
            );
            return ends::failed(run, slot, deadlines::missed(&message));
        }
    }
    let Some(pause_ms) = pause else {
        return ends::failed(run, slot, defeat);
    };
    let state = run.slot_mut(slot);
    state.status = StepStatus::BackingOff;
    state.error = Some(defeat.class.to_owned());
    let attempt = state.attempt;
    run.note(Note::AttemptFailed {
        step: step.name.clone(),
        attempt,
        class: defeat.class.to_owned(),
    });
    let timer = slot.timer(run, RETRY);
    run.set_retry_timer(&timer, pause_ms)
}

/// What a step waited for has come to nothing: the attempt has, too, where `retry` says so. The next one is other work, of
/// another key and another token; what was done before stays on the ledger under the iteration that ends with this.
pub(super) fn wait_defeated(run: &mut Run<'_>, slot: Slot, defeat: Defeat<'_>) -> Result<(), Rejection> {
    let mut tables = slot.step(run).retry.iter();
    if !tables.any(|table| table.is_for_wait(defeat.class)) {
        return ends::failed(run, slot, defeat);
    }
    let state = run.slot_mut(slot);
    state.result = None;
    state.callback = None;
    state.iteration = state.iteration.saturating_add(1);
    state.tries.round = 0;
    state.tries.has_failed = false;
    defeated(run, slot, defeat, Ending::NotDone)
}

/// What the end of an attempt without success says about the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The upstream has refused it.
    Refused,
    /// It has not happened, and no upstream has stored anything about it.
    NotDone,
    Unknown,
}

impl Ending {
    /// That of an outcome that is not a success.
    pub(super) const fn of(outcome: &WorkOutcome) -> Self {
        match outcome {
            WorkOutcome::Failed { refused: true, .. } => Self::Refused,
            WorkOutcome::Failed { refused: false, .. } => Self::NotDone,
            WorkOutcome::TimedOut { .. } | WorkOutcome::Succeeded { .. } | WorkOutcome::Unusable { .. } => {
                Self::Unknown
            }
        }
    }
}

impl Tries {
    /// An attempt has ended without success.
    ///
    /// Only a refusal begins another round, which has another idempotency key: an upstream that recognises keys would
    /// answer the old one with the refusal that it stored. What is unknown stays so until the step is over, because an
    /// upstream that does not recognise keys may have refused for want of what the attempt before has taken.
    pub(super) const fn end(&mut self, ending: Ending) {
        match ending {
            Ending::Refused => self.round = self.round.saturating_add(1),
            Ending::NotDone => {}
            Ending::Unknown => {
                self.unknown = true;
                return;
            }
        }
        self.has_failed = true;
    }
}

/// The attempt that the step would make next.
fn next(run: &Run<'_>, slot: Slot) -> Repetition {
    let state = run.slot(slot);
    Repetition {
        iteration: u64::from(state.iteration),
        round: state.tries.round,
        attempt: state.attempt.saturating_add(1),
        item: slot.item.unwrap_or(0),
    }
}

/// The key of the attempt that was made last, before it is known how it has ended.
pub(super) fn idempotency_key(run: &Run<'_>, slot: Slot) -> String {
    let path = Place::Step {
        name: &slot.step(run).name,
    };
    let known_as = run.slot(slot).known_as.clone();
    let path = known_as.unwrap_or_else(|| path.to_string());
    run.idempotency_key(None, &path, next(run, slot))
}

pub(super) fn send(run: &mut Run<'_>, slot: Slot, path: String, kind: WorkKind) -> Result<(), Rejection> {
    let step = slot.step(run);
    let repetition = next(run, slot);
    let state = run.slot(slot);
    let known_as = state.known_as.clone();
    let left_ms = deadlines::due(run, slot).map(|due| due.0.saturating_sub(run.record.updated.0));
    let timeout_ms = left_ms.map_or(step.timeout_ms, |left_ms| step.timeout_ms.min(left_ms));
    let known_by = KnownBy {
        path: known_as.as_deref(),
        life: None,
    };
    let outstanding = run.push_work_as(path, known_by, repetition, timeout_ms, kind)?;
    let called_back = run.work.last().filter(|_| step.is_called_back());
    let callback = called_back.map(|item| item.idempotency_key.clone());
    let state = run.slot_mut(slot);
    state.status = StepStatus::Running;
    state.attempt = outstanding.attempt;
    state.outstanding = Some(outstanding);
    state.callback = callback;
    run.note(Note::StepStarted {
        step: step.name.clone(),
        attempt: outstanding.attempt,
    });
    Ok(())
}

/// Counts a failure of `class`, and says how many there are; `None` beyond the bound on classes.
pub(super) fn count(failures: &mut Vec<ClassFailures>, class: &str) -> Option<u32> {
    if let Some(found) = failures.iter_mut().find(|failures| failures.class == class) {
        found.count = found.count.saturating_add(1);
        return Some(found.count);
    }
    if failures.len() >= CLASSES_MAX {
        return None;
    }
    failures.push(ClassFailures {
        class: class.to_owned(),
        count: 1,
    });
    Some(1)
}

/// The pause before the attempt that follows failure number `failures` of `class`, in milliseconds.
fn pause(step: &Step, class: &str, failures: u32) -> Option<i64> {
    let retry = step.retry.iter().find(|retry| retry.is_for(class))?;
    let pause_ms = retry.policy.delay_before(failures.checked_add(1)?)?;
    Some(i64::try_from(pause_ms).unwrap_or(i64::MAX))
}

/// Whether what is sent is read again: by another attempt, or by the compensation.
fn is_kept(step: &Step) -> bool {
    let undo_reads = step
        .compensate
        .as_ref()
        .is_some_and(|compensation| compensation.reads(Root::Input));
    !step.retry.is_empty() || undo_reads
}

fn sent(kind: &WorkKind) -> Sent {
    let (payload, target) = match kind {
        WorkKind::Effect { .. }
        | WorkKind::Fact { .. }
        | WorkKind::Saga { .. }
        | WorkKind::Result { .. }
        | WorkKind::Cancel { .. } => (kind.payload(), None),
        WorkKind::Command {
            payload,
            aggregate_id,
            ..
        } => (payload.as_ref(), Some(aggregate_id.clone())),
    };
    Sent {
        payload: ByteBuf::from(payload),
        target,
    }
}

/// The work of a further attempt, from what was sent before.
fn again(run: &Run<'_>, action: &Action, sent: &Sent) -> Option<WorkKind> {
    let payload = Bytes::copy_from_slice(&sent.payload);
    match action {
        Action::Effect { effect, .. } => Some(WorkKind::Effect {
            effect: effect.clone(),
            payload,
        }),
        Action::Command(command) => Some(WorkKind::Command {
            aggregate_type: command.aggregate_type.clone(),
            aggregate_id: sent.target.clone().unwrap_or_default(),
            command_type: command.command_type.clone(),
            payload,
            token: run.token_mark(command),
            awaited: true,
        }),
        Action::Publish(_)
        | Action::Saga(_)
        | Action::UndoSaga(_)
        | Action::Nothing
        | Action::Decide(_)
        | Action::Group(_) => None,
    }
}
