//! The event with which an instance is begun again.

use saga_runner_language::event::DomainEvent;
use saga_runner_language::ids::EventId;
use saga_runner_language::json::Json;
use saga_runner_language::limits::Limits;
use serde::{Deserialize, Serialize};

/// The event that has started an instance, to start it once more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartedBy {
    pub event_id: EventId,
    pub event_type: String,
    pub aggregate_type: String,
    pub aggregate_id: String,
    #[serde(default)]
    pub sequence: u64,
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(default)]
    pub hops: u32,
    #[serde(default)]
    pub fact: bool,
    /// JSON as a text: what an event says is compared byte by byte.
    pub payload: String,
}

impl StartedBy {
    /// `None`: it came by an alias, or its data are no text.
    #[must_use]
    pub fn of(event: &DomainEvent) -> Option<Self> {
        let payload = std::str::from_utf8(&event.payload).ok()?;
        event.via.is_none().then(|| Self {
            event_id: event.event_id.clone(),
            event_type: event.event_type.clone(),
            aggregate_type: event.aggregate_type.clone(),
            aggregate_id: event.aggregate_id.clone(),
            sequence: event.sequence,
            schema_version: event.schema_version,
            correlation_id: event.correlation_id.clone(),
            causation_id: event.causation_id.clone(),
            traceparent: event.traceparent.clone(),
            hops: event.hops,
            fact: event.fact,
            payload: payload.to_owned(),
        })
    }

    /// As the instance takes it. Its data are read as those of any event.
    ///
    /// # Errors
    /// A sentence, where they are no JSON, or nested too deep.
    pub fn event(self, limits: &Limits) -> Result<DomainEvent, String> {
        Json::parse(self.payload.as_bytes(), limits.json_depth).map_err(|error| error.to_string())?;
        Ok(DomainEvent {
            event_id: self.event_id,
            event_type: self.event_type,
            aggregate_type: self.aggregate_type,
            aggregate_id: self.aggregate_id,
            sequence: self.sequence,
            fact: self.fact,
            schema_version: self.schema_version,
            correlation_id: self.correlation_id,
            causation_id: self.causation_id,
            traceparent: self.traceparent,
            hops: self.hops,
            payload: self.payload.into(),
            via: None,
        })
    }
}
