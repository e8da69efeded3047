//! Steps that start instances of other sagas, and what those tell the instance that started them.
//!
//! ```text
//! parent: step running ──start──▶ child: running ──▶ completed, failed, cancelled ──outcome──▶ parent: step over
//!         step abandoned ─cancel─▶ child: compensating
//!         ledger, undo ───cancel─▶ child: completed ──▶ compensating ──▶ cancelled ──outcome──▶ parent: undone
//! ```

use bytes::Bytes;
use saga_runner_language::definition::model::{Action, COMMAND_TIMEOUT_MS, ChildTemplate, Step};
use saga_runner_language::ids::{DefinitionHash, InstanceId, Key, SagaName};
use saga_runner_language::json::{Json, write_string};
use serde_bytes::ByteBuf;

use super::attempts::{self, NO_RESULT};
use super::emission::Repetition;
use super::ends::{self, Defeat};
use super::failure;
use super::run::{Ground, Run};
use super::scope::Locals;
use super::slot::Slot;
use super::{Context, Rejection, compensation, seen};
use crate::children::{
    CHILD_CANCELLED, CHILD_DEPTH_MAX, CHILD_EXISTS, CHILD_FAILED, CHILD_GONE, CHILD_REFUSED, CHILD_STUCK,
    ParentRef, SagaMessage,
};
use crate::input::{CancelMode, Control, Input, InputBody, WorkOutcome};
use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::record::{Parent, Phase, Record, Sent, Tries};
use crate::work::{Attempt, Piece, WorkItem, WorkKind};

/// Path of what an instance tells its parent.
const OUTCOME: &str = "outcome";
/// Why an instance is cancelled that its parent takes back.
const TAKEN_BACK: &str = "taken back by the saga that started it";

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
        of_child: true,
        again: false,
        late: None,
        question: None,
    });
    run.record.ledger.len() - 1
}

/// The same for one that was taken back, for which nobody waits but the end.
pub(super) fn hold_late(
    run: &mut Run<'_>,
    slot: Slot,
    iteration: u32,
    sent: Option<ByteBuf>,
) -> Result<(), Rejection> {
    let is_left = compensation::cancel_mode(&run.record) == Some(CancelMode::Abandon);
    if is_left || compensation::is_kept(run.ground.definition, &run.record, slot.step) {
        return Ok(());
    }
    let at = hold(run, slot, iteration, sent);
    let step = slot.step(run);
    compensation::exhausted(run, at, step, CHILD_STUCK)
}

/// Turns an instance that has completed to compensation, if its parent has asked for that. Tells whether it has.
pub(super) fn begin_undo(run: &mut Run<'_>) -> Result<bool, Rejection> {
    let parent = run.record.parent.as_ref();
    let asked = run.record.phase == Phase::Completed && parent.is_some_and(|parent| parent.undo.is_some());
    if asked {
        run.record.phase = Phase::Running;
        failure::cancel(run, TAKEN_BACK, CancelMode::Compensate)?;
    }
    Ok(asked)
}

/// Tells the parent what there is to tell: the outcome, and that the instance is undone. An instance that failed
/// has nothing to tell while an outcome may still come that it has to undo.
pub(super) fn report(run: &mut Run<'_>) -> Result<(), Rejection> {
    let is_over = match run.record.phase {
        Phase::Completed | Phase::CompensationFailed => true,
        Phase::Failed | Phase::Cancelled => {
            run.record.has_nothing_open() || compensation::any_stuck(&run.record)
        }
        Phase::Running | Phase::Compensating | Phase::Finishing => false,
    };
    if !is_over {
        return Ok(());
    }
    let Some(parent) = run.record.parent.as_deref() else {
        return Ok(());
    };
    let outcome = (parent.waits && !parent.answered).then_some(parent.command);
    let undone = parent.undo;
    let (saga, key) = (parent.saga.clone(), parent.key.clone());
    if let Some(parent) = &mut run.record.parent {
        parent.answered = true;
        parent.undo = None;
    }
    let told = [
        outcome.map(|command| (command, outcome_of(&run.record, run.ground.instance, run.data))),
        undone.map(|command| (command, undoing_of(&run.record))),
    ];
    for (command, outcome) in told.into_iter().flatten() {
        let kind = WorkKind::Saga {
            saga: saga.clone(),
            key: key.clone(),
            message: SagaMessage::Outcome { command, outcome },
            awaited: false,
        };
        let iteration = run.record.version;
        run.push_work(
            OUTCOME.to_owned(),
            Repetition::once(iteration),
            COMMAND_TIMEOUT_MS,
            kind,
        )?;
    }
    Ok(())
}

/// How an instance has ended, as its parent's step takes it.
fn outcome_of(record: &Record, instance: &InstanceId, data: &[u8]) -> WorkOutcome {
    let class = match record.phase {
        Phase::Failed | Phase::Cancelled if compensation::any_stuck(record) => CHILD_STUCK,
        Phase::Failed => CHILD_FAILED,
        Phase::Cancelled => CHILD_CANCELLED,
        Phase::CompensationFailed => CHILD_STUCK,
        Phase::Completed | Phase::Running | Phase::Compensating | Phase::Finishing => {
            let mut payload = b"{\"key\":".to_vec();
            write_string(instance.key.as_str(), &mut payload);
            payload.extend_from_slice(b",\"outcome\":");
            write_string(record.outcome(), &mut payload);
            payload.extend_from_slice(b",\"saga\":");
            write_string(instance.saga.as_str(), &mut payload);
            payload.extend_from_slice(b",\"state\":");
            payload.extend_from_slice(data);
            payload.push(b'}');
            return WorkOutcome::Succeeded {
                payload: Bytes::from(payload),
            };
        }
    };
    failed(class, &reason(record))
}

/// How undoing an instance has gone.
fn undoing_of(record: &Record) -> WorkOutcome {
    if compensation::any_stuck(record) {
        failed(CHILD_STUCK, &reason(record))
    } else {
        nothing_left()
    }
}

fn reason(record: &Record) -> String {
    record.failure.as_ref().map_or_else(String::new, |failure| {
        format!("{}: {}", failure.code, failure.message)
    })
}

fn nothing_left() -> WorkOutcome {
    WorkOutcome::Succeeded {
        payload: Bytes::from_static(b"{}"),
    }
}

fn failed(class: &str, message: &str) -> WorkOutcome {
    WorkOutcome::failed(class, message)
}

/// What the record keeps of who asks for the instance.
pub(super) fn parent(parent: &ParentRef) -> Parent {
    Parent {
        saga: parent.saga.clone(),
        key: parent.key.clone(),
        command: parent.command_id,
        depth: parent.depth,
        waits: parent.waits,
        undoable: parent.undoable,
        answered: false,
        undo: None,
    }
}

/// Why no child may be started so deep, if that is so.
pub(super) fn too_deep(parent: &ParentRef, context: &Context<'_>) -> Option<String> {
    let hops = context.limits.hops;
    if parent.depth > CHILD_DEPTH_MAX {
        return Some(format!(
            "at most {CHILD_DEPTH_MAX} sagas may be above one that a saga starts"
        ));
    }
    (parent.hops >= hops)
        .then(|| format!("a chain of messages that cause each other has at most {hops} hops"))
}

/// A request to start an instance that is there or was there.
pub(super) fn start_again(ground: Ground<'_>, record: &Record, asks: Option<&ParentRef>) -> Patch {
    let Some(asks) = asks else {
        let known = seen::find_event(record, seen::control(&ground.input.id));
        return Patch::ignored(known.unwrap_or(IgnoreReason::Exists));
    };
    let is_own = record
        .parent
        .as_ref()
        .is_some_and(|parent| parent.command == asks.command_id);
    if !is_own {
        let message = format!(
            "instance {} of saga {} is there",
            ground.instance.key, ground.instance.saga
        );
        return answer(
            ground.instance,
            ground.input,
            ground.context,
            asks,
            failed(CHILD_EXISTS, &message),
        );
    }
    // The parent would not ask again if the answer had come.
    match &record.parent {
        Some(parent) if parent.answered && parent.waits => {
            let outcome = outcome_of(record, ground.instance, &record.data);
            answer(ground.instance, ground.input, ground.context, asks, outcome)
        }
        _ => Patch::ignored(IgnoreReason::Duplicate),
    }
}

/// The parent takes the instance back.
pub(super) fn taken_back<'a>(
    ground: Ground<'a>,
    record: &'a Record,
    asks: &ParentRef,
    undo: bool,
    known: bool,
) -> Result<Patch, Rejection> {
    let is_parent = record
        .parent
        .as_ref()
        .is_some_and(|parent| parent.saga == asks.saga && parent.key == asks.key);
    let nothing = |reason| {
        if undo {
            answer(
                ground.instance,
                ground.input,
                ground.context,
                asks,
                nothing_left(),
            )
        } else {
            Patch::ignored(reason)
        }
    };
    if !is_parent && undo && known && record.generation > 1 {
        // Another generation has taken its place.
        let gone = failed(CHILD_GONE, "its key was used again");
        return Ok(answer(ground.instance, ground.input, ground.context, asks, gone));
    }
    if !is_parent {
        // What the parent asked for has never begun, since the key was taken.
        return Ok(nothing(IgnoreReason::NoInstance));
    }
    let seen = seen::control(&ground.input.id);
    if !(record.phase.is_terminal() && record.has_nothing_open()) && seen::find_event(record, seen).is_some()
    {
        return Ok(Patch::ignored(IgnoreReason::Duplicate));
    }
    match record.phase {
        Phase::Failed | Phase::Cancelled if !undo || record.has_nothing_open() => {
            return Ok(nothing(IgnoreReason::Ended));
        }
        Phase::Completed if !undo => return Ok(Patch::ignored(IgnoreReason::Ended)),
        Phase::Compensating | Phase::CompensationFailed | Phase::Finishing if !undo => {
            return Ok(Patch::ignored(IgnoreReason::NoHandler));
        }
        Phase::Running
        | Phase::Completed
        | Phase::Compensating
        | Phase::CompensationFailed
        | Phase::Finishing
        | Phase::Failed
        | Phase::Cancelled => {}
    }
    let mut run = Run::of(ground, record);
    seen::remember_event(&mut run.record, seen);
    if let (true, Some(parent)) = (undo, &mut run.record.parent) {
        parent.undo = Some(asks.command_id);
    }
    match record.phase {
        Phase::CompensationFailed | Phase::Failed | Phase::Cancelled => {
            compensation::retry_all(&mut run)?;
        }
        Phase::Running => failure::cancel(&mut run, TAKEN_BACK, CancelMode::Compensate)?,
        // What has completed is undone as this input is concluded, what is under way ends first.
        Phase::Completed | Phase::Compensating | Phase::Finishing => {}
    }
    run.conclude(Outcome::Applied)
}

/// The same where there is no such instance any more, or never was.
pub(super) fn not_there(ground: Ground<'_>, asks: &ParentRef, undo: bool, known: bool) -> Patch {
    if !undo {
        return Patch::ignored(IgnoreReason::NoInstance);
    }
    let outcome = if known {
        failed(CHILD_GONE, "it ended so long ago that nothing is known of it")
    } else {
        nothing_left()
    };
    answer(ground.instance, ground.input, ground.context, asks, outcome)
}

/// The answer to a message of a parent for which there is no definition or no room; `None` where `input` is no such
/// message or nobody waits for its answer.
#[must_use]
pub fn refusal(instance: &InstanceId, input: &Input, context: &Context<'_>, message: &str) -> Option<Patch> {
    let (asks, class) = match &input.body {
        InputBody::Control(Control::Start {
            parent: Some(parent), ..
        }) => (parent, CHILD_REFUSED),
        InputBody::Control(Control::CancelChild {
            parent, undo: true, ..
        }) => (parent, CHILD_GONE),
        _ => return None,
    };
    let patch = answer(instance, input, context, asks, failed(class, message));
    (patch.outcome == Outcome::Applied).then_some(patch)
}

/// Tells the parent without an instance that could.
pub(super) fn refuse(ground: Ground<'_>, asks: &ParentRef, message: &str) -> Patch {
    answer(
        ground.instance,
        ground.input,
        ground.context,
        asks,
        failed(CHILD_REFUSED, message),
    )
}

fn answer(
    instance: &InstanceId,
    input: &Input,
    context: &Context<'_>,
    asks: &ParentRef,
    outcome: WorkOutcome,
) -> Patch {
    if !asks.waits {
        return Patch::ignored(IgnoreReason::Exists);
    }
    let command = Attempt {
        cluster: context.cluster,
        instance,
        generation: context.generation,
        // It is not the doing of any definition.
        definition: &DefinitionHash([0; 32]),
        input_id: &input.id,
        input_time: input.time,
        path: OUTCOME,
        index: 0,
        attempt: 1,
    };
    let piece = Piece {
        cluster: context.cluster,
        instance,
        life: &input.id,
        path: OUTCOME,
        iteration: 0,
        round: 0,
        item: 0,
    };
    let item = WorkItem {
        instance: instance.clone(),
        command_id: command.command_id(),
        idempotency_key: piece.idempotency_key(),
        path: OUTCOME.to_owned(),
        attempt: 1,
        created: input.time,
        deadline: input.time.plus_ms(COMMAND_TIMEOUT_MS),
        waited_ms: 0,
        causation_id: input.id.clone(),
        root_correlation_id: None,
        traceparent: asks.traceparent.clone(),
        hops: asks.hops.saturating_add(1),
        kind: WorkKind::Saga {
            saga: asks.saga.clone(),
            key: asks.key.clone(),
            message: SagaMessage::Outcome {
                command: asks.command_id,
                outcome,
            },
            awaited: false,
        },
    };
    Patch {
        outcome: Outcome::Applied,
        work: vec![item],
        ..Patch::ignored(IgnoreReason::Exists)
    }
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
