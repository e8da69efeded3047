//! Inputs of an instance as they are shown outside: read back from the streams, given to a replay.

use bytes::Bytes;
use saga_runner_language::alias::Via;
use saga_runner_language::ids::{
    ClusterId, CommandId, EffectName, EventId, IdError, InstanceId, Key, SagaName, TenantId, TimeMs,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::children::ParentRef;
use super::envelope::is_default;
use super::input::{
    CallbackOutcome, CancelMode, Control, DomainEvent, Input, InputBody, OnConflict, Operation,
    OperationVerb, Origin, SourceStream, StuckDecision, UnknownClass, WorkOutcome, WorkResult,
};
use super::patch::Note;

/// One input and the outcome of it, in the order in which the instance took it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// The cluster that took it: ids of commands and idempotency keys name it.
    pub cluster: ClusterId,
    pub tenant: String,
    pub saga: String,
    pub key: String,
    pub generation: u32,
    /// Hash of the definition that the instance runs under.
    pub definition: String,
    pub id: String,
    pub time_ms: i64,
    pub input: RecordedBody,
    /// `applied`, `deferred`, `dead`, or why it was ignored; of a decision about a dead letter, `retried`, `edited` or
    /// `discarded`.
    pub outcome: String,
    /// Why it is a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub notes: Vec<Note>,
    /// What it caused to be sent, in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<RecordedWork>,
}

/// A work item as it was when its input was applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedWork {
    /// Id of the command, or of the fact.
    pub id: CommandId,
    /// `effect`, `command`, `fact`, `start` or `message`.
    pub kind: String,
    /// Of the effect, the command, the fact or the saga.
    pub name: String,
    /// Key of the instance of another saga, or id of the aggregate, to which it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Place in the definition, e.g. `steps.charge.compensate`.
    pub path: String,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// The same for all attempts of a piece of work, 32 hex digits.
    pub idempotency_key: String,
    /// What it carries; absent where that was larger than what is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

/// What an operator has decided about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LetterDecision {
    /// To apply the input again, then what waits behind it.
    Retry,
    /// To forget the input and go on with what waits behind it.
    Discard,
}

impl LetterDecision {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Discard => "discard",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedBody {
    Event(RecordedEvent),
    Result {
        command_id: CommandId,
        effect: Option<EffectName>,
        outcome: RecordedOutcome,
    },
    Timer {
        name: String,
    },
    Cancel {
        reason: String,
        #[serde(default)]
        mode: CancelMode,
    },
    Retry {},
    DecideStuck(StuckDecision),
    Operate(Operation),
    Signal {
        name: String,
        data: Value,
        by: String,
        #[serde(default, skip_serializing_if = "is_zero")]
        hops: u32,
    },
    Start {
        input: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<ParentRef>,
        #[serde(default, skip_serializing_if = "is_default")]
        on_conflict: OnConflict,
    },
    CancelChild {
        parent: ParentRef,
        undo: bool,
        known: bool,
    },
    Callback {
        work: String,
        outcome: RecordedOutcome,
    },
    Heartbeat {
        work: String,
    },
    /// An alias has refused the instance, or has accepted it on a retry.
    AliasAnswered {
        via: Via,
        refused: bool,
    },
    /// No input: an operator's decision about the one of this id, which was a dead letter.
    DeadLetter(LetterDecision),
    /// No input: an operator has edited the data of the one of this id, which was a dead letter, and it is applied again.
    EditedLetter {
        original: Value,
        edited: Value,
    },
    /// Its message is no longer in the stream.
    Missing {
        kind: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedEvent {
    pub event_type: String,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub sequence: u64,
    pub schema_version: u32,
    pub correlation_id: Option<String>,
    pub causation_id: Option<String>,
    pub hops: u32,
    /// A saga has published it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fact: bool,
    pub payload: Value,
    /// The alias by which it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Box<Via>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedOutcome {
    Ok(Value),
    /// It happened, and what came back is not a result.
    Unusable {
        result: Value,
        class: String,
        message: String,
    },
    Error {
        class: String,
        message: String,
        /// The upstream has refused it.
        #[serde(default, skip_serializing_if = "is_false")]
        refused: bool,
    },
    Timeout {
        message: String,
        /// Absent where it is no other than `timeout`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<String>,
    },
}

impl RecordedBody {
    /// Shows an input.
    #[must_use]
    #[allow(clippy::too_many_lines, reason = "one list of cases")]
    pub fn of(body: &InputBody) -> Self {
        let json = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap_or(Value::Null);
        match body {
            InputBody::Event(event) => Self::Event(RecordedEvent {
                event_type: event.event_type.clone(),
                aggregate_type: event.aggregate_type.clone(),
                aggregate_id: event.aggregate_id.clone(),
                sequence: event.sequence,
                schema_version: event.schema_version,
                correlation_id: event.correlation_id.clone(),
                causation_id: event.causation_id.clone(),
                hops: event.hops,
                fact: event.fact,
                payload: json(&event.payload),
                via: event.via.clone(),
            }),
            InputBody::Result(result) => Self::Result {
                command_id: result.command_id,
                effect: result.effect.clone(),
                outcome: match &result.outcome {
                    WorkOutcome::Succeeded { payload } => RecordedOutcome::Ok(json(payload)),
                    WorkOutcome::Unusable {
                        payload,
                        class,
                        message,
                    } => RecordedOutcome::Unusable {
                        result: json(payload),
                        class: class.clone(),
                        message: message.clone(),
                    },
                    WorkOutcome::Failed {
                        class,
                        message,
                        refused,
                    } => RecordedOutcome::Error {
                        class: class.clone(),
                        message: message.clone(),
                        refused: *refused,
                    },
                    WorkOutcome::TimedOut { class, message } => RecordedOutcome::Timeout {
                        message: message.clone(),
                        class: (*class != UnknownClass::Timeout).then(|| class.as_str().to_owned()),
                    },
                },
            },
            InputBody::Timer { name } => Self::Timer { name: name.clone() },
            InputBody::Control(Control::Cancel { reason, mode }) => Self::Cancel {
                reason: reason.clone(),
                mode: *mode,
            },
            InputBody::Control(Control::Retry) => Self::Retry {},
            InputBody::Control(Control::DecideStuck(decision)) => Self::DecideStuck(decision.clone()),
            // What began the generation is not replayed.
            InputBody::Control(Control::Operate(
                operation @ Operation {
                    verb: OperationVerb::RestartWith { .. },
                    ..
                },
            )) => Self::Operate(Operation {
                verb: OperationVerb::Restart,
                by: operation.by.clone(),
                reason: operation.reason.clone(),
            }),
            InputBody::Control(Control::Operate(operation)) => Self::Operate(operation.clone()),
            InputBody::Control(Control::Signal { name, data, by, hops }) => Self::Signal {
                name: name.clone(),
                data: json(data),
                by: by.clone(),
                hops: *hops,
            },
            // Of no stream, and a replay runs under one version.
            InputBody::Control(Control::Migrate { to, .. }) => Self::Missing {
                kind: format!("migration to {to}"),
            },
            InputBody::Control(Control::Start {
                input,
                parent,
                on_conflict,
                ..
            }) => Self::Start {
                input: json(input),
                parent: parent.clone(),
                on_conflict: on_conflict.clone(),
            },
            InputBody::Control(Control::CancelChild { parent, undo, known }) => Self::CancelChild {
                parent: parent.clone(),
                undo: *undo,
                known: *known,
            },
            InputBody::Control(Control::Heartbeat { work }) => Self::Heartbeat { work: work.clone() },
            InputBody::Control(Control::AliasAnswered { via, refused }) => Self::AliasAnswered {
                via: via.clone(),
                refused: *refused,
            },
            // To the alias itself, never to an instance.
            InputBody::Control(
                Control::RegisterAlias { .. }
                | Control::ReleaseAlias { .. }
                | Control::AskAlias { .. }
                | Control::AliasRead { .. },
            ) => Self::Missing {
                kind: "alias".to_owned(),
            },
            InputBody::Control(Control::Callback { work, outcome }) => Self::Callback {
                work: work.clone(),
                outcome: match outcome {
                    CallbackOutcome::Done { data } => RecordedOutcome::Ok(json(data)),
                    CallbackOutcome::Failed { class, message } => RecordedOutcome::Error {
                        class: class.clone(),
                        message: message.clone(),
                        refused: false,
                    },
                },
            },
        }
    }
}

impl Recorded {
    /// The instance whose input it is.
    ///
    /// # Errors
    /// [`IdError`] where a name breaks its rules.
    pub fn instance(&self) -> Result<InstanceId, IdError> {
        Ok(InstanceId {
            tenant: TenantId::parse(&self.tenant)?,
            saga: SagaName::parse(&self.saga)?,
            key: Key::parse(&self.key)?,
        })
    }

    /// The input, `None` where it is missing, or is none. Its place in a stream is not kept: no transition reads it.
    ///
    /// # Errors
    /// [`IdError`] where a name breaks its rules.
    pub fn input(&self) -> Result<Option<Input>, IdError> {
        let stream = |stream| Origin::Stream { stream, sequence: 0 };
        let told = |control| {
            (
                stream(SourceStream::WorkflowCommands),
                InputBody::Control(control),
            )
        };
        let (origin, body) = match &self.input {
            RecordedBody::Missing { .. }
            | RecordedBody::DeadLetter(_)
            | RecordedBody::EditedLetter { .. } => return Ok(None),
            RecordedBody::Event(event) => (
                stream(SourceStream::AggregateEvents),
                InputBody::Event(DomainEvent {
                    event_id: EventId::parse(&self.id)?,
                    event_type: event.event_type.clone(),
                    aggregate_type: event.aggregate_type.clone(),
                    aggregate_id: event.aggregate_id.clone(),
                    sequence: event.sequence,
                    schema_version: event.schema_version,
                    correlation_id: event.correlation_id.clone(),
                    causation_id: event.causation_id.clone(),
                    traceparent: None,
                    hops: event.hops,
                    fact: event.fact,
                    payload: Bytes::from(event.payload.to_string()),
                    via: event.via.clone(),
                }),
            ),
            RecordedBody::Result {
                command_id,
                effect,
                outcome,
            } => (
                stream(SourceStream::WorkflowEvents),
                InputBody::Result(WorkResult {
                    command_id: *command_id,
                    effect: effect.clone(),
                    outcome: outcome.outcome(),
                }),
            ),
            RecordedBody::Timer { name } => (Origin::Timer, InputBody::Timer { name: name.clone() }),
            RecordedBody::Cancel { reason, mode } => told(Control::Cancel {
                reason: reason.clone(),
                mode: *mode,
            }),
            RecordedBody::Signal { name, data, by, hops } => told(Control::Signal {
                name: name.clone(),
                data: Bytes::from(data.to_string()),
                by: by.clone(),
                hops: *hops,
            }),
            RecordedBody::Start {
                input,
                parent,
                on_conflict,
            } => told(Control::Start {
                input: Bytes::from(input.to_string()),
                parent: parent.clone(),
                on_conflict: on_conflict.clone(),
                traceparent: None,
            }),
            RecordedBody::CancelChild { parent, undo, known } => told(Control::CancelChild {
                parent: parent.clone(),
                undo: *undo,
                known: *known,
            }),
            RecordedBody::Heartbeat { work } => told(Control::Heartbeat { work: work.clone() }),
            RecordedBody::AliasAnswered { via, refused } => told(Control::AliasAnswered {
                via: via.clone(),
                refused: *refused,
            }),
            RecordedBody::Callback { work, outcome } => told(Control::Callback {
                work: work.clone(),
                outcome: outcome.callback(),
            }),
            RecordedBody::Retry {} => told(Control::Retry),
            RecordedBody::DecideStuck(decision) => told(Control::DecideStuck(decision.clone())),
            RecordedBody::Operate(operation) => told(Control::Operate(operation.clone())),
        };
        Ok(Some(Input {
            instance: self.instance()?,
            id: self.id.clone(),
            time: TimeMs(self.time_ms),
            origin,
            body,
        }))
    }
}

impl RecordedOutcome {
    /// As the kernel takes it from a callback, which never reports an unknown outcome.
    #[must_use]
    pub fn callback(&self) -> CallbackOutcome {
        match self.outcome() {
            WorkOutcome::Succeeded { payload } | WorkOutcome::Unusable { payload, .. } => {
                CallbackOutcome::Done { data: payload }
            }
            WorkOutcome::Failed { class, message, .. } => CallbackOutcome::Failed { class, message },
            WorkOutcome::TimedOut { class, message } => CallbackOutcome::Failed {
                class: class.as_str().to_owned(),
                message,
            },
        }
    }

    /// As the kernel takes it.
    #[must_use]
    pub fn outcome(&self) -> WorkOutcome {
        match self {
            Self::Ok(result) => WorkOutcome::Succeeded {
                payload: Bytes::from(result.to_string()),
            },
            Self::Unusable {
                result,
                class,
                message,
            } => WorkOutcome::Unusable {
                payload: Bytes::from(result.to_string()),
                class: class.clone(),
                message: message.clone(),
            },
            Self::Error {
                class,
                message,
                refused,
            } => WorkOutcome::Failed {
                class: class.clone(),
                message: message.clone(),
                refused: *refused,
            },
            Self::Timeout { message, class } => WorkOutcome::TimedOut {
                class: class
                    .as_deref()
                    .map_or_else(UnknownClass::default, UnknownClass::of),
                message: message.clone(),
            },
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}
