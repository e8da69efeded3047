//! Work items as messages.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::kernel::children::{Forwarded, ParentRef, SagaMessage};
use crate::kernel::envelope::{
    ANNOUNCED_HEADER, APPLIED_HEADER, APPLIED_TIME_HEADER, AggregateCommand, AggregateEvent, CommandMetadata,
    ConflictPolicy, ControlMessage, ControlVerb, DEADLINE_HEADER, EffectCancellation, EffectCommand,
    EffectProgress, EventMetadata, FORWARD, ForwardedEvent, ResultType, WorkflowEvent,
};
use crate::kernel::ids::{CommandId, EffectName, Key, SagaName};
use crate::kernel::input::{Question, WorkOutcome};
use crate::kernel::subject::Subject;
use crate::kernel::trace::is_traceparent;
use crate::kernel::work::WorkItem;
use crate::ports::broker::{Expect, Publication, WorkflowStreams};

/// Why an item is not a message; no repetition will change that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("payload is not JSON: {0}")]
pub struct Unsendable(pub String);

pub fn effect_subject(item: &WorkItem, effect: &EffectName) -> String {
    Subject::Effect {
        tenant: item.instance.tenant.clone(),
        effect: effect.clone(),
        command: item.command_id,
    }
    .render()
}

pub fn result_subject(item: &WorkItem, effect: &EffectName) -> String {
    Subject::EffectResult {
        tenant: item.instance.tenant.clone(),
        effect: effect.clone(),
        command: item.command_id,
    }
    .render()
}

/// What a worker is told, whichever way.
pub fn command<'a>(
    item: &WorkItem,
    effect: &EffectName,
    payload: &'a [u8],
    progress: Option<EffectProgress>,
) -> Result<EffectCommand<'a>, Unsendable> {
    Ok(EffectCommand {
        tenant_id: item.instance.tenant.clone(),
        command_id: item.command_id,
        effect_name: effect.clone(),
        payload: raw(payload)?,
        metadata: metadata(item),
        progress,
    })
}

/// The message of a command. `announced`: each of its calls is to be recorded before it is made.
pub fn effect_command(
    stream: &str,
    item: &WorkItem,
    effect: &EffectName,
    payload: &[u8],
    progress: Option<EffectProgress>,
    announced: bool,
) -> Result<Publication, Unsendable> {
    let command = command(item, effect, payload, progress)?;
    let mut headers = headers(item);
    if item.waited_ms > 0 {
        headers.push((DEADLINE_HEADER.to_owned(), item.ends().0.to_string()));
    }
    if announced {
        headers.push((ANNOUNCED_HEADER.to_owned(), "true".to_owned()));
    }
    Ok(Publication {
        stream: stream.to_owned(),
        subject: effect_subject(item, effect),
        headers,
        payload: encode(&command, payload.len()),
        expect: Expect::FirstOnSubject,
    })
}

pub fn aggregate_command<'a>(
    item: &WorkItem,
    aggregate_type: &str,
    aggregate_id: &str,
    command_type: &str,
    payload: &'a [u8],
) -> Result<AggregateCommand<'a>, Unsendable> {
    Ok(AggregateCommand {
        tenant_id: item.instance.tenant.clone(),
        command_id: item.command_id,
        aggregate_id: aggregate_id.to_owned(),
        aggregate_type: aggregate_type.to_owned(),
        command_type: command_type.to_owned(),
        payload_json: raw(payload)?,
        metadata: metadata(item),
    })
}

/// The result of an effect that was carried out here.
pub fn result(stream: &str, item: &WorkItem, effect: &EffectName, body: &Bytes) -> Publication {
    let mut headers = headers(item);
    headers.push((APPLIED_HEADER.to_owned(), "true".to_owned()));
    headers.push((APPLIED_TIME_HEADER.to_owned(), item.created.0.to_string()));
    Publication {
        stream: stream.to_owned(),
        subject: result_subject(item, effect),
        headers,
        payload: body.clone(),
        expect: Expect::FirstOnSubject,
    }
}

/// Word to the workers that nobody waits for the result of `command` any longer.
pub fn cancellation(stream: &str, item: &WorkItem, effect: &EffectName, command: CommandId) -> Publication {
    let tenant = &item.instance.tenant;
    let cancellation = EffectCancellation {
        tenant_id: tenant.clone(),
        command_id: command,
        effect_name: effect.clone(),
    };
    let subject = Subject::EffectCancellation {
        tenant: tenant.clone(),
        effect: effect.clone(),
        command,
    };
    Publication {
        stream: stream.to_owned(),
        subject: subject.render(),
        headers: headers(item),
        payload: encode(&cancellation, 0),
        expect: Expect::FirstOnSubject,
    }
}

/// A fact without the id that makes its repetition recognisable.
pub fn fact(
    stream: &str,
    item: &WorkItem,
    fact_type: &str,
    payload: &[u8],
) -> Result<Publication, Unsendable> {
    let event = WorkflowEvent {
        tenant_id: item.instance.tenant.clone(),
        event_id: item.command_id,
        event_type: fact_type.to_owned(),
        saga: item.instance.saga.clone(),
        key: item.instance.key.clone(),
        payload: raw(payload)?,
        metadata: EventMetadata {
            correlation_id: Some(item.instance.key.as_str().to_owned()),
            causation_id: Some(item.causation_id.clone()),
            traceparent: traceparent(item),
            hops: item.hops,
        },
    };
    let subject = Subject::WorkflowEvent {
        tenant: item.instance.tenant.clone(),
        saga: item.instance.saga.clone(),
        key: item.instance.key.clone(),
    };
    Ok(Publication {
        stream: stream.to_owned(),
        subject: subject.render(),
        headers: headers(item),
        payload: encode(&event, payload.len()),
        expect: Expect::Nothing,
    })
}

/// Where an instance is told something by another one: a subject of the runners, so that nobody else can speak for it.
pub fn saga_subject(cluster: &str, item: &WorkItem, saga: &SagaName, key: &Key) -> String {
    Subject::Control {
        cluster: cluster.to_owned(),
        tenant: item.instance.tenant.clone(),
        saga: saga.clone(),
        key: key.clone(),
    }
    .render()
}

/// A message to another saga without the id that makes its repetition recognisable.
///
/// # Errors
/// [`Unsendable`] where it is not a message.
pub fn saga(
    streams: &WorkflowStreams,
    item: &WorkItem,
    saga: &SagaName,
    key: &Key,
    message: &SagaMessage,
) -> Result<Publication, Unsendable> {
    Ok(Publication {
        stream: streams.commands.clone(),
        subject: saga_subject(&streams.cluster, item, saga, key),
        headers: headers(item),
        payload: saga_message(item, message)?,
        expect: Expect::Nothing,
    })
}

/// What another saga is told, as the bytes of its message.
fn saga_message(item: &WorkItem, message: &SagaMessage) -> Result<Bytes, Unsendable> {
    let verb = match message {
        SagaMessage::Start {
            input,
            depth,
            undoable,
        } => ControlVerb::Start {
            input: serde_json::from_slice(input).map_err(|error| Unsendable(error.to_string()))?,
            parent: Some(ParentRef {
                depth: *depth,
                undoable: *undoable,
                ..parent(item)
            }),
            on_conflict: ConflictPolicy::Fail,
        },
        SagaMessage::CancelChild { undo, known } => ControlVerb::CancelChild {
            parent: parent(item),
            undo: *undo,
            known: *known,
        },
        SagaMessage::RegisterAlias { generation } => ControlVerb::RegisterAlias {
            key: item.instance.key.clone(),
            generation: *generation,
        },
        SagaMessage::ReleaseAlias { generation, hears } => ControlVerb::ReleaseAlias {
            key: item.instance.key.clone(),
            generation: *generation,
            hears: *hears,
        },
        SagaMessage::AskAlias(Question { due, number, slot }) => ControlVerb::AskAlias {
            key: item.instance.key.clone(),
            due_ms: due.0,
            number: *number,
            slot: *slot,
        },
        SagaMessage::AliasRead {
            question: Question { due, number, slot },
            late,
        } => ControlVerb::AliasRead {
            due_ms: due.0,
            number: *number,
            slot: *slot,
            late: *late,
        },
        SagaMessage::AliasAnswered { via, refused } => ControlVerb::AliasAnswered {
            alias: via.alias.clone(),
            generation: via.generation,
            refused: *refused,
        },
        SagaMessage::Signal { name, data } => ControlVerb::Signal {
            name: name.clone(),
            data: serde_json::from_slice(data).map_err(|error| Unsendable(error.to_string()))?,
            by: format!("{}/{}", item.instance.saga, item.instance.key),
            hops: item.hops,
        },
        SagaMessage::Forward(forwarded) => return self::forwarded(item, forwarded),
        SagaMessage::Outcome { command, outcome } => {
            let (result_type, payload) = told(outcome)?;
            ControlVerb::Outcome {
                command_id: *command,
                result_type,
                payload,
            }
        }
    };
    let envelope = ControlMessage {
        request_id: item.command_id.to_string(),
        principal: None,
        verb,
    };
    Ok(encode(&envelope, item.kind.payload().len()))
}

/// Who tells it.
fn parent(item: &WorkItem) -> ParentRef {
    ParentRef {
        saga: item.instance.saga.clone(),
        key: item.instance.key.clone(),
        command_id: item.command_id,
        depth: 0,
        waits: item.kind.awaits_result(),
        undoable: false,
        hops: item.hops,
        traceparent: traceparent(item),
    }
}

/// An event for an owner of the alias that has found it.
fn forwarded(item: &WorkItem, forwarded: &Forwarded) -> Result<Bytes, Unsendable> {
    let event = &forwarded.event;
    let Some(via) = &event.via else {
        return Err(Unsendable(
            "the event does not say by which alias it goes".to_owned(),
        ));
    };
    let envelope = ForwardedEvent {
        request_id: item.command_id.to_string(),
        control: FORWARD,
        alias: via.alias.clone(),
        generation: via.generation,
        fact: event.fact,
        time_ms: forwarded.time.0,
        event: AggregateEvent {
            tenant_id: item.instance.tenant.as_str().to_owned(),
            event_id: Some(event.event_id.as_str().to_owned()),
            event_type: event.event_type.clone(),
            aggregate_type: event.aggregate_type.clone(),
            aggregate_id: event.aggregate_id.clone(),
            sequence: event.sequence,
            schema_version: event.schema_version,
            payload: raw(&event.payload)?,
            metadata: EventMetadata {
                correlation_id: event.correlation_id.clone(),
                causation_id: event.causation_id.clone(),
                traceparent: event.traceparent.clone(),
                hops: event.hops,
            },
            timestamp: None,
        },
    };
    Ok(encode(&envelope, event.payload.len()))
}

fn told(outcome: &WorkOutcome) -> Result<(ResultType, serde_json::Value), Unsendable> {
    let error = |class: &str, message: &str| serde_json::json!({"class": class, "message": message});
    Ok(match outcome {
        // A saga never tells of a result that cannot be used.
        WorkOutcome::Succeeded { payload } | WorkOutcome::Unusable { payload, .. } => {
            let payload = serde_json::from_slice(payload).map_err(|error| Unsendable(error.to_string()))?;
            (ResultType::Succeeded, payload)
        }
        WorkOutcome::Failed { class, message, .. } => (ResultType::Failed, error(class, message)),
        WorkOutcome::TimedOut { class, message } => (ResultType::TimedOut, error(class.as_str(), message)),
    })
}

/// Whether a stored control message is that of `item`.
pub fn is_request(stored: &[u8], item: &WorkItem) -> bool {
    #[derive(serde::Deserialize)]
    struct Request {
        request_id: String,
    }
    serde_json::from_slice::<Request>(stored)
        .is_ok_and(|stored| stored.request_id == item.command_id.to_string())
}

fn metadata(item: &WorkItem) -> CommandMetadata {
    CommandMetadata {
        saga: item.instance.saga.clone(),
        key: item.instance.key.clone(),
        correlation_id: item.instance.key.as_str().to_owned(),
        root_correlation_id: item.root_correlation_id.clone(),
        causation_id: item.causation_id.clone(),
        idempotency_key: item.idempotency_key.clone(),
        path: item.path.clone(),
        attempt: item.attempt,
        deadline_ms: item.deadline.0,
        traceparent: traceparent(item),
        hops: item.hops,
    }
}

/// Producers write it, so it may be anything; only a well-formed one travels on.
fn traceparent(item: &WorkItem) -> Option<String> {
    item.traceparent.clone().filter(|text| is_traceparent(text))
}

fn headers(item: &WorkItem) -> Vec<(String, String)> {
    traceparent(item)
        .map(|text| ("traceparent".to_owned(), text))
        .into_iter()
        .collect()
}

fn raw(payload: &[u8]) -> Result<&RawValue, Unsendable> {
    serde_json::from_slice(payload).map_err(|error| Unsendable(error.to_string()))
}

fn encode(envelope: &impl Serialize, payload_bytes: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(payload_bytes + 640);
    serde_json::to_writer(&mut bytes, envelope).expect("an envelope holds only what JSON can hold");
    Bytes::from(bytes)
}
