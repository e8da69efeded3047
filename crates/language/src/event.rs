//! Domain events, as expressions and key rules see them.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::alias::Via;
use crate::ids::{EventId, TimeMs};
use crate::json::Json;

/// A domain event, its payload still in the bytes of the message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DomainEvent {
    pub event_id: EventId,
    /// `<AggregateType>.<EventType>`, the name that definitions use; of a fact the type under which it was published.
    pub event_type: String,
    /// Of a fact the saga that has published it.
    pub aggregate_type: String,
    /// Of a fact the key of the instance.
    pub aggregate_id: String,
    /// Sequence within the aggregate, 0 where the producer gives none.
    pub sequence: u64,
    /// A saga has published it, and no aggregate.
    pub fact: bool,
    pub schema_version: u32,
    pub correlation_id: Option<String>,
    pub causation_id: Option<String>,
    pub traceparent: Option<String>,
    /// Hops of the chain of messages that led here, 0 for an event from outside.
    pub hops: u32,
    /// JSON, checked for syntax, depth and number ranges.
    pub payload: Bytes,
    /// The alias by which it was forwarded to this instance; none where a key rule has found it.
    pub via: Option<Box<Via>>,
}

impl DomainEvent {
    /// What expressions see as `event`; `data` is the parsed payload.
    #[must_use]
    pub fn root<'a>(&'a self, time: TimeMs, data: Json<'a>) -> Json<'a> {
        let text = |text: &'a str| Json::Str(Cow::Borrowed(text));
        let optional = |value: &'a Option<String>| value.as_deref().map_or(Json::Null, text);
        let members = [
            ("time", Json::Str(Cow::Owned(time.to_string()))),
            ("id", text(self.event_id.as_str())),
            ("type", text(&self.event_type)),
            ("version", Json::Int(i64::from(self.schema_version))),
            (
                "sequence",
                Json::Int(i64::try_from(self.sequence).unwrap_or(i64::MAX)),
            ),
            ("aggregate_id", text(&self.aggregate_id)),
            ("aggregate_type", text(&self.aggregate_type)),
            ("correlation_id", optional(&self.correlation_id)),
            ("causation_id", optional(&self.causation_id)),
            ("data", data),
        ];
        Json::Map(members.map(|(name, value)| (Cow::Borrowed(name), value)).into())
    }
}
