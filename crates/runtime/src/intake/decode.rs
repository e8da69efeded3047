//! From a message of a source stream to what it says, or why it cannot be read.
//!
//! Pure. The payload of a domain event stays in the bytes of the message and is checked only when a saga wants
//! it (see [`super::route`]). The subject decides whose message it is, for the broker's permissions guard it;
//! what the body says about the tenant may only agree.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cloudevents;
use super::headers::Headers;
use crate::kernel::envelope::{AggregateEvent, WorkflowEvent};
use crate::kernel::ids::{CommandId, EventId, IdError, InstanceId, Key, SagaName, TenantId, TimeMs};
use crate::kernel::input::{Control, DomainEvent, SourceStream, WorkResult};
use crate::kernel::json::{Json, JsonError};
use crate::kernel::limits::Limits;
use crate::kernel::outcome::{self, Expected, RecordedResult, slice};
use crate::kernel::subject::{Subject, SubjectError, Tenancy};
use crate::kernel::token::TokenKey;
use crate::kernel::trace;
use crate::kernel::work::caused_at;
use crate::ports::broker::Message;
use bytes::Bytes;

/// So far a runner's clock, by which results are applied, may be ahead of the broker's, by which their messages are stored.
const CLOCKS_DIFFER_MS: i64 = 5 * 60 * 1_000;

/// The rules by which messages are read.
#[derive(Debug)]
pub struct Decoder {
    /// Name of the cluster, whose runners alone publish on the subjects that name it.
    pub cluster: String,
    pub tenancy: Tenancy,
    /// The only tenants that are served, all where `None`.
    pub tenants: Option<BTreeSet<TenantId>>,
    pub limits: Limits,
    /// Whether results are taken that their shard had applied before they were published.
    pub takes_applied: Arc<AtomicBool>,
    /// Reads callback tokens, where the manifest has a key for them.
    pub tokens: Option<TokenKey>,
    /// Name of the stream of domain events, where an event without id gets one of stream and sequence.
    pub event_id_from: Option<String>,
}

/// What a message says.
#[derive(Debug, PartialEq)]
pub enum Decoded {
    Event {
        tenant: TenantId,
        event: DomainEvent,
    },
    Result {
        instance: InstanceId,
        result: WorkResult,
        /// The time of the input that has applied it, where an owner of the shard had applied it before it was stored.
        applied: Option<TimeMs>,
    },
    /// A result that does not name its instance; its command does.
    Unaddressed {
        tenant: TenantId,
        result: WorkResult,
    },
    Control {
        instance: InstanceId,
        id: String,
        control: Control,
    },
    /// An event that an alias has forwarded to this instance.
    Forwarded {
        instance: InstanceId,
        event: DomainEvent,
        /// When the message of the event was stored.
        time: TimeMs,
    },
    /// Nothing that is new to anyone here.
    Known,
}

/// Why a message can never become an input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Defect {
    pub reason: &'static str,
    pub message: String,
}

impl Defect {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// A defect and the tenant to whom it belongs, none where the tenant is what is wrong.
pub type Refusal = (TenantId, Defect);

impl Decoder {
    /// Reads one message.
    ///
    /// # Errors
    /// [`Refusal`] with a stable reason code.
    pub fn decode(&self, stream: SourceStream, message: &Message) -> Result<Decoded, Refusal> {
        let subject = Subject::parse(&message.subject, self.tenancy)
            .map_err(|error| (TenantId::none(), subject_defect(&error)))?;
        let tenant = subject.tenant().clone();
        self.decode_body(stream, subject, message)
            .map_err(|defect| (tenant, defect))
    }

    fn decode_body(
        &self,
        stream: SourceStream,
        subject: Subject,
        message: &Message,
    ) -> Result<Decoded, Defect> {
        if let Some(tenants) = &self.tenants
            && !tenants.contains(subject.tenant())
        {
            let text = format!("tenant {} is not served here", subject.tenant());
            return Err(Defect::new("tenant.unknown", text));
        }
        let headers = Headers::pick(&message.headers)?;
        if let Some(named) = headers.tenant {
            self.same_tenant(subject.tenant(), named, "header x-tenant-id")?;
        }
        // A result that is invalid completes its command nevertheless.
        let is_result = matches!(subject, Subject::EffectResult { .. });
        if message.payload.is_empty() && !is_result {
            return Err(json_defect(&JsonError::Empty));
        }
        if !is_result && message.payload.len() > self.limits.payload_bytes {
            let (found, max) = (message.payload.len(), self.limits.payload_bytes);
            let text = format!("payload has {found} bytes, at most {max} are allowed");
            return Err(Defect::new("payload.size", text));
        }
        match (stream, subject) {
            (
                SourceStream::AggregateEvents,
                Subject::Aggregate {
                    tenant,
                    aggregate_type,
                    aggregate_id,
                },
            ) => {
                let place = Place {
                    tenant: &tenant,
                    aggregate_type,
                    aggregate_id,
                };
                let event = self.event(place, &headers, message)?;
                Ok(Decoded::Event { tenant, event })
            }
            (SourceStream::WorkflowEvents, Subject::EffectResult { .. })
                if headers.applied.is_some() && !self.takes_applied.load(Ordering::Acquire) =>
            {
                Ok(Decoded::Known)
            }
            (SourceStream::WorkflowEvents, subject @ Subject::EffectResult { .. }) => {
                self.result(subject, &headers, message)
            }
            (SourceStream::WorkflowEvents, Subject::WorkflowEvent { tenant, saga, key }) => {
                let event = self.fact(&tenant, &saga, &key, &headers, message)?;
                Ok(Decoded::Event { tenant, event })
            }
            (SourceStream::WorkflowCommands, Subject::Workflow { tenant, saga, key }) => {
                self.asked(InstanceId { tenant, saga, key }, message)
            }
            (
                SourceStream::WorkflowCommands,
                Subject::Control {
                    cluster,
                    tenant,
                    saga,
                    key,
                },
            ) if cluster == self.cluster => self.told(InstanceId { tenant, saga, key }, message),
            (SourceStream::WorkflowCommands, Subject::Callback { tenant, saga, key }) => {
                self.callback(InstanceId { tenant, saga, key }, message)
            }
            _ => Err(Defect::new(
                "subject.shape",
                "a subject of this kind does not belong into this stream",
            )),
        }
    }

    fn event(
        &self,
        place: Place<'_>,
        headers: &Headers<'_>,
        message: &Message,
    ) -> Result<DomainEvent, Defect> {
        let raw = if headers.is_structured() {
            cloudevents::structured(self, place, message)?
        } else if headers.cloud_event.specversion.is_some() {
            cloudevents::binary(place, headers, message)?
        } else {
            self.native(place.tenant, message)?
        };
        if let Some(named) = &raw.tenant {
            self.same_tenant(raw.place.tenant, named, "the body")?;
        }
        let event_id = self.event_id(raw.event_id.as_deref(), message.stream_sequence)?;
        let traceparent = raw
            .traceparent
            .as_deref()
            .and_then(trace::of_header)
            .or_else(|| headers.traceparent.and_then(trace::of_header));
        Ok(DomainEvent {
            event_id,
            event_type: raw.event_type,
            aggregate_type: raw.place.aggregate_type,
            aggregate_id: raw.place.aggregate_id,
            sequence: raw.sequence,
            schema_version: raw.schema_version,
            correlation_id: raw.correlation_id,
            causation_id: raw.causation_id,
            traceparent,
            hops: raw.hops,
            fact: false,
            payload: raw.payload,
            via: None,
        })
    }

    /// A fact. Whose it is its subject says, which the broker's permissions guard.
    fn fact(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        key: &Key,
        headers: &Headers<'_>,
        message: &Message,
    ) -> Result<DomainEvent, Defect> {
        // Not in the body: a shard that goes on from an older state may tell the same fact at another place of its log.
        let position = headers
            .position
            .and_then(|said| said.split_once('-')?.0.parse().ok());
        let envelope: WorkflowEvent<'_> = self.read(&message.payload)?;
        if !envelope.tenant_id.is_none() {
            self.same_tenant(tenant, envelope.tenant_id.as_str(), "the body")?;
        }
        let metadata = envelope.metadata;
        Ok(DomainEvent {
            event_id: self.event_id(Some(&envelope.event_id.to_string()), message.stream_sequence)?,
            event_type: envelope.event_type,
            aggregate_type: saga.to_string(),
            aggregate_id: key.to_string(),
            sequence: position.unwrap_or(0),
            fact: true,
            schema_version: 1,
            correlation_id: metadata.correlation_id,
            causation_id: metadata.causation_id,
            traceparent: metadata.traceparent.filter(|text| trace::is_traceparent(text)),
            hops: metadata.hops,
            payload: slice(&message.payload, envelope.payload),
            via: None,
        })
    }

    fn native<'a>(&self, tenant: &'a TenantId, message: &Message) -> Result<RawEvent<'a>, Defect> {
        let envelope: AggregateEvent<'_> = self.read(&message.payload)?;
        let metadata = envelope.metadata;
        let prefixed = envelope
            .event_type
            .strip_prefix(envelope.aggregate_type.as_str())
            .is_some_and(|rest| rest.starts_with('.'));
        let event_type = if prefixed {
            envelope.event_type
        } else {
            format!("{}.{}", envelope.aggregate_type, envelope.event_type)
        };
        Ok(RawEvent {
            place: Place {
                tenant,
                aggregate_type: envelope.aggregate_type,
                aggregate_id: envelope.aggregate_id,
            },
            tenant: Some(envelope.tenant_id).filter(|text| !text.is_empty()),
            event_id: envelope.event_id,
            event_type,
            sequence: envelope.sequence,
            schema_version: envelope.schema_version,
            correlation_id: metadata.correlation_id,
            causation_id: metadata.causation_id,
            traceparent: metadata.traceparent,
            hops: metadata.hops,
            payload: slice(&message.payload, envelope.payload),
        })
    }

    fn result(&self, subject: Subject, headers: &Headers<'_>, message: &Message) -> Result<Decoded, Defect> {
        let Subject::EffectResult {
            tenant,
            effect,
            command,
        } = subject
        else {
            return Err(Defect::new("subject.shape", "not the subject of a result"));
        };
        let expected = Expected {
            tenant: (self.tenancy == Tenancy::Multi).then_some(&tenant),
            effect: &effect,
            command,
        };
        let RecordedResult { address, outcome } = outcome::read(expected, &message.payload, &self.limits);
        let result = WorkResult {
            command_id: command,
            effect: Some(effect),
            outcome,
        };
        Ok(match address {
            Some((saga, key)) => Decoded::Result {
                instance: InstanceId { tenant, saga, key },
                result,
                applied: applied_at(headers, command, message.time),
            },
            None => Decoded::Unaddressed { tenant, result },
        })
    }

    /// Without multi-tenancy there is nothing to keep apart, and a tenant that a producer names is only data.
    fn same_tenant(&self, subject: &TenantId, named: &str, place: &str) -> Result<(), Defect> {
        if self.tenancy == Tenancy::Single || subject.as_str() == named {
            return Ok(());
        }
        let text = format!("{place} names tenant {named:?}, the subject {subject}");
        Err(Defect::new("tenant.mismatch", text))
    }

    pub(super) fn event_id(&self, text: Option<&str>, sequence: u64) -> Result<EventId, Defect> {
        let parsed = match (text, &self.event_id_from) {
            (None | Some(""), None) => {
                return Err(Defect::new("event_id.missing", "the event has no id"));
            }
            (None | Some(""), Some(stream)) => EventId::parse(&format!("{stream}:{sequence}")),
            (Some(text), _) => EventId::parse(text),
        };
        parsed.map_err(|error| Defect::new("event_id.invalid", error.to_string()))
    }

    /// Reads an envelope; only where that fails is the text read again to tell why.
    pub(super) fn read<'a, T: serde::Deserialize<'a>>(&self, text: &'a [u8]) -> Result<T, Defect> {
        serde_json::from_slice(text).map_err(|error| {
            // The envelope is a level of its own.
            if let Err(error) = Json::parse(text, self.limits.json_depth + 1) {
                return json_defect(&error);
            }
            let message = error.to_string();
            let reason = if message.starts_with("duplicate field") {
                "payload.duplicate_key"
            } else {
                "payload.schema"
            };
            Defect::new(reason, message)
        })
    }

    /// Checks payload bytes: syntax, depth, repeated keys, ranges of numbers.
    ///
    /// # Errors
    /// [`Defect`] with a stable reason code.
    pub fn check<'a>(&self, text: &'a [u8]) -> Result<Json<'a>, Defect> {
        Json::parse(text, self.limits.json_depth).map_err(|error| json_defect(&error))
    }
}

/// The time of the input that had applied a result before its message was stored at `stored`. `None` where the message does not say
/// so, or says what cannot be: it is applied behind the input that has caused its command, and before it is published.
fn applied_at(headers: &Headers<'_>, command: CommandId, stored: TimeMs) -> Option<TimeMs> {
    headers.applied?;
    let said = TimeMs(headers.applied_ms?.parse().ok()?);
    let possible = caused_at(command)?..=stored.plus_ms(CLOCKS_DIFFER_MS);
    possible.contains(&said).then_some(said)
}

/// Where an event was published.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub tenant: &'a TenantId,
    pub aggregate_type: String,
    pub aggregate_id: String,
}

/// An event of any envelope, its ids not yet checked.
#[derive(Debug)]
pub(super) struct RawEvent<'a> {
    pub place: Place<'a>,
    pub tenant: Option<String>,
    pub event_id: Option<String>,
    pub event_type: String,
    pub sequence: u64,
    pub schema_version: u32,
    pub correlation_id: Option<String>,
    pub causation_id: Option<String>,
    pub traceparent: Option<String>,
    pub hops: u32,
    pub payload: Bytes,
}

fn subject_defect(error: &SubjectError) -> Defect {
    let reason = match error {
        SubjectError::Tenant(_) => "tenant.invalid",
        SubjectError::Token(
            IdError::TooLong { what, .. } | IdError::Character { what, .. } | IdError::Dots { what },
        ) if *what == "correlation id" => "correlation.invalid",
        SubjectError::Shape | SubjectError::Token(_) | SubjectError::Escape | SubjectError::CommandId => {
            "subject.shape"
        }
    };
    Defect::new(reason, error.to_string())
}

pub(super) fn json_defect(error: &JsonError) -> Defect {
    let reason = match error {
        JsonError::Empty => "payload.empty",
        JsonError::Syntax(_) => "payload.syntax",
        JsonError::Depth { .. } => "payload.depth",
        JsonError::DuplicateKey { .. } => "payload.duplicate_key",
        JsonError::NumberRange { .. } => "number.range",
    };
    Defect::new(reason, error.to_string())
}
