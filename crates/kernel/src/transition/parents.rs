//! What an instance that another saga has started owes to that saga: it tells how it has ended, and undoes itself when asked.
//!
//! The side of the step that starts it is in [`super::children`].

use bytes::Bytes;
use saga_runner_language::definition::model::COMMAND_TIMEOUT_MS;
use saga_runner_language::ids::{DefinitionHash, InstanceId};
use saga_runner_language::json::write_string;

use super::emission::Repetition;
use super::run::{Ground, Run};
use super::{Context, Rejection, failure, requests, seen, stuck};
use crate::children::{
    CHILD_CANCELLED, CHILD_DEPTH_MAX, CHILD_EXISTS, CHILD_FAILED, CHILD_GONE, CHILD_REFUSED, CHILD_STUCK,
    ParentRef, SagaMessage,
};
use crate::input::{CancelMode, Control, Input, InputBody, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Outcome, Patch};
use crate::record::{Parent, Phase, Record};
use crate::work::{Attempt, Piece, WorkItem, WorkKind};

/// Path of what an instance tells its parent.
const OUTCOME: &str = "outcome";

/// Why an instance is cancelled that its parent undoes.
const TAKEN_BACK: &str = "cancelled by the saga that started it";

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
        Phase::Failed | Phase::Cancelled => run.record.has_nothing_open() || stuck::any_stuck(&run.record),
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
        Phase::Failed | Phase::Cancelled if is_left(record) => CHILD_STUCK,
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
    if is_left(record) {
        failed(CHILD_STUCK, &reason(record))
    } else {
        nothing_left()
    }
}

/// Whether something that an instance did was not undone, and nobody has decided that it stays: its compensation needs an
/// operator, or the instance was killed.
fn is_left(record: &Record) -> bool {
    let ends = matches!(record.phase, Phase::Failed | Phase::Cancelled);
    stuck::any_stuck(record) || (ends && record.ledger.has(|status| status == LedgerStatus::Held))
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
        let known = requests::repeated(record, ground.input);
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

/// What a parent asks of an instance that its step has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeBack {
    /// To stop, if it still runs. Nobody waits for the answer.
    Cancel,
    /// To undo what it did, also after it has completed.
    Undo,
    /// The same, and the parent knows that it was there.
    UndoKnown,
}

impl TakeBack {
    /// What a control message asks: [`Control::CancelChild`] says it.
    pub(super) const fn of(control: &Control) -> Self {
        match control {
            Control::CancelChild {
                undo: true,
                known: true,
                ..
            } => Self::UndoKnown,
            Control::CancelChild {
                undo: true,
                known: false,
                ..
            } => Self::Undo,
            _ => Self::Cancel,
        }
    }
}

/// The parent takes the instance back.
pub(super) fn taken_back<'a>(
    ground: Ground<'a>,
    record: &'a Record,
    asks: &ParentRef,
    take_back: TakeBack,
) -> Result<Patch, Rejection> {
    let undo = take_back != TakeBack::Cancel;
    let is_parent = record
        .parent
        .as_ref()
        .is_some_and(|parent| parent.saga == asks.saga && parent.key == asks.key);
    let nothing = |reason| {
        if undo {
            let outcome = if is_parent {
                undoing_of(record)
            } else {
                nothing_left()
            };
            answer(ground.instance, ground.input, ground.context, asks, outcome)
        } else {
            Patch::ignored(reason)
        }
    };
    if !is_parent && take_back == TakeBack::UndoKnown && record.generation > 1 {
        // Another generation has taken its place.
        let gone = failed(CHILD_GONE, "its key was used again");
        return Ok(answer(ground.instance, ground.input, ground.context, asks, gone));
    }
    if !is_parent {
        // What the parent asked for has never begun, since the key was taken.
        return Ok(nothing(IgnoreReason::NoInstance));
    }
    if !(record.phase.is_terminal() && record.has_nothing_open())
        && seen::find_control(record, ground.input).is_some()
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
    seen::remember_event(&mut run.record, seen::control(ground.input));
    run.unpause();
    if let (true, Some(parent)) = (undo, &mut run.record.parent) {
        parent.undo = Some(asks.command_id);
    }
    match record.phase {
        Phase::CompensationFailed | Phase::Failed | Phase::Cancelled => {
            stuck::retry_all(&mut run)?;
        }
        Phase::Running => failure::cancel(&mut run, TAKEN_BACK, CancelMode::Compensate)?,
        // What has completed is undone as this input is concluded, what is under way ends first.
        Phase::Completed | Phase::Compensating | Phase::Finishing => {}
    }
    run.conclude(Outcome::Applied)
}

/// The same where there is no such instance any more, or never was.
pub(super) fn not_there(ground: Ground<'_>, asks: &ParentRef, take_back: TakeBack) -> Patch {
    let outcome = match take_back {
        TakeBack::Cancel => return Patch::ignored(IgnoreReason::NoInstance),
        TakeBack::Undo => nothing_left(),
        TakeBack::UndoKnown => failed(CHILD_GONE, "it ended so long ago that nothing is known of it"),
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
