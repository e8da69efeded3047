//! Steps that start instances of other sagas, and what those tell the instance that started them.
//!
//! ```text
//! parent: step running ──start──▶ child: running ──▶ completed, failed, cancelled ──outcome──▶ parent: step over
//!         step abandoned ─cancel─▶ child: compensating
//!         ledger, undo ───cancel─▶ child: completed ──▶ compensating ──▶ cancelled ──outcome──▶ parent: undone
//! ```

use bytes::Bytes;
use saga_runner_language::definition::model::{Action, COMMAND_TIMEOUT_MS, ChildTemplate, Step};
use saga_runner_language::ids::{Key, SagaName};
use saga_runner_language::json::{Json, write_string};
use serde_bytes::ByteBuf;

use super::attempts::{self, NO_RESULT};
use super::emission::Repetition;
use super::ends::{self, Defeat};
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, compensation, entries, stuck};
use crate::children::{CHILD_DEPTH_MAX, CHILD_EXISTS, CHILD_REFUSED, CHILD_STUCK, SagaMessage};
use crate::input::CancelMode;
use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::patch::Note;
use crate::record::{Sent, Tries};
use crate::work::WorkKind;

/// Starts the instance that a step is about.
pub(super) fn start(
    run: &mut Run<'_>,
    slot: Slot,
    child: &ChildTemplate,
    path: String,
) -> Result<(), Rejection> {
    let key = run.render_text(&child.key, Locals::default(), || format!("{path}.saga.key"))?;
    let input = run.render(&child.input, Locals::default(), || format!("{path}.saga.input"))?;
    let depth = run.record.parent.as_ref().map_or(0, |parent| parent.depth) + 1;
    let own = run.ground.instance;
    let refused = match Key::parse(&key) {
        Err(error) => Some((CHILD_REFUSED, error.to_string())),
        Ok(_) if depth > CHILD_DEPTH_MAX => {
            let message = format!("at most {CHILD_DEPTH_MAX} sagas may be above one that a saga starts");
            Some((CHILD_REFUSED, message))
        }
        Ok(key) if child.saga == own.saga && key == own.key => {
            Some((CHILD_EXISTS, "an instance cannot start itself".to_owned()))
        }
        Ok(_) => None,
    };
    if let Some((class, message)) = refused {
        return ends::failed(
            run,
            slot,
            Defeat {
                class,
                message: &message,
            },
        );
    }
    let step = slot.step(run);
    let undoable = step
        .compensate
        .as_ref()
        .is_some_and(|compensation| matches!(compensation.action, Action::UndoSaga(_)));
    run.slot_mut(slot).sent = Some(Sent {
        payload: sent(&key, &input),
        target: None,
    });
    let kind = WorkKind::Saga {
        saga: child.saga.clone(),
        key: Key::parse(&key).expect("parsed above"),
        message: SagaMessage::Start {
            input: Bytes::from(input),
            depth,
            undoable,
        },
        awaited: child.waits,
    };
    if child.waits {
        return attempts::send(run, slot, path, kind);
    }
    let repetition = Repetition::once(u64::from(run.slot(slot).iteration));
    run.push_work(path, repetition, step.timeout_ms, kind)?;
    run.slot_mut(slot).attempt = 1;
    run.note(Note::StepStarted {
        step: step.name.clone(),
        attempt: 1,
    });
    ends::acted(run, slot, NO_RESULT)
}

/// What the record keeps of a child: `{"input": ..., "key": ...}`.
fn sent(key: &str, input: &[u8]) -> ByteBuf {
    let mut bytes = Vec::with_capacity(input.len() + key.len() + 24);
    bytes.extend_from_slice(b"{\"input\":");
    bytes.extend_from_slice(input);
    bytes.extend_from_slice(b",\"key\":");
    write_string(key, &mut bytes);
    bytes.push(b'}');
    ByteBuf::from(bytes)
}

/// The key in what [`sent`] wrote.
fn key_of(sent: &Json<'_>) -> Option<Key> {
    match sent.get("key") {
        Some(Json::Str(key)) => Key::parse(key).ok(),
        _ => None,
    }
}

/// The message that has the child undone which a step has started.
pub(super) fn undo(saga: &SagaName, locals: Locals<'_>, path: &str) -> Result<WorkKind, Rejection> {
    let key = locals.input.and_then(key_of).ok_or_else(|| Rejection {
        reason: "definition.mismatch",
        message: format!("{path}: the ledger does not say which instance the step has started"),
    })?;
    Ok(WorkKind::Saga {
        saga: saga.clone(),
        key,
        message: SagaMessage::CancelChild {
            undo: true,
            known: !matches!(locals.result, None | Some(Json::Null)),
        },
        awaited: true,
    })
}

/// Cancels the child of a step that no longer waits for it. `sent` is what the record kept of it.
pub(super) fn cancel(run: &mut Run<'_>, step: u16, sent: Option<&ByteBuf>) -> Result<(), Rejection> {
    let step = &run.ground.definition.steps[usize::from(step)];
    let (Action::Saga(child), Some(sent)) = (&step.action, sent) else {
        return Ok(());
    };
    let parsed = run.parse_owned(sent.to_vec(), "what the step sent")?;
    let Some(key) = key_of(parsed) else {
        return Ok(());
    };
    let kind = WorkKind::Saga {
        saga: child.saga.clone(),
        key,
        message: SagaMessage::CancelChild {
            undo: false,
            known: false,
        },
        awaited: false,
    };
    let path = format!("steps.{}.cancel", step.name);
    let iteration = run.record.version;
    run.note(Note::Emitted { work: path.clone() });
    run.push_work(path, Repetition::once(iteration), COMMAND_TIMEOUT_MS, kind)?;
    Ok(())
}

/// The message that takes the instance back which a step has started.
pub(super) fn take_back(
    run: &Run<'_>,
    saga: &SagaName,
    sent: Option<ByteBuf>,
    path: &str,
) -> Result<WorkKind, Rejection> {
    let sent = sent.map_or_else(|| b"null".to_vec(), ByteBuf::into_vec);
    let locals = Locals {
        input: Some(run.parse_owned(sent, path)?),
        result: Some(run.ground.values.keep(Json::Bool(true))),
        ..Locals::default()
    };
    undo(saga, locals, path)
}

/// Puts on the ledger that the instance which a step has started has not come to its end: one of its compensations needs an
/// operator. To undo it is to take that instance back once more.
pub(super) fn hold(run: &mut Run<'_>, slot: Slot, iteration: u32, sent: Option<ByteBuf>) -> usize {
    run.record.ledger.push(LedgerEntry {
        step: slot.step,
        item: slot.item,
        iteration,
        input: sent,
        // It is known to have been there.
        result: Some(ByteBuf::from(*b"true")),
        status: LedgerStatus::Held,
        attempt: 0,
        tries: Tries::default(),
        outstanding: None,
        asks: false,
        known_as: None,
        life: None,
        of_child: true,
        again: false,
        late: None,
        question: None,
    });
    run.record.ledger.len() - 1
}

/// The same for one that was undone, for which nobody waits but the end.
pub(super) fn hold_late(
    run: &mut Run<'_>,
    slot: Slot,
    iteration: u32,
    sent: Option<ByteBuf>,
) -> Result<(), Rejection> {
    let is_left = compensation::cancel_mode(&run.record) == Some(CancelMode::Abandon);
    if is_left || compensation::is_kept(run.ground.definition, &run.record, slot.step) {
        entries::leave_off(run, slot.step);
        return Ok(());
    }
    let at = hold(run, slot, iteration, sent);
    let step = slot.step(run);
    stuck::exhausted(run, at, step, CHILD_STUCK)
}

/// The saga whose instance is undone to undo the step.
fn undone_saga(step: &Step) -> Option<&SagaName> {
    match &step.compensate.as_ref()?.action {
        Action::UndoSaga(saga) => Some(saga),
        _ => None,
    }
}

/// Whether the new version can undo the instance that a step of the old one has started; why not, otherwise. An
/// instance keeps what it did only for who said from the beginning that it may be undone.
pub(super) fn undoing(old: &Step, new: &Step) -> Result<(), String> {
    match (undone_saga(old), undone_saga(new)) {
        (_, None) => Ok(()),
        (Some(before), Some(after)) if before == after => Ok(()),
        (Some(before), Some(after)) => Err(format!(
            "step {} has started an instance of {before}, and the new version would undo one of {after}",
            old.name
        )),
        (None, Some(_)) => Err(format!(
            "step {} has started an instance that keeps nothing to undo, and the new version would undo it",
            old.name
        )),
    }
}
