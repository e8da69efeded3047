//! What instances tell each other goes by messages as a broker would carry them: the outbox writes them and the intake reads them,
//! so that a case sees what the wire does.

use std::sync::Arc;

use saga_runner_partition::machine::message::Arrival;

use crate::intake::decode::{Decoder, Defect};
use crate::intake::route::{Outcome, Router};
use crate::intake::versions::Versions;
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::ids::{ClusterId, Key, TenantId, TimeMs};
use crate::kernel::input::{DomainEvent, SourceStream};
use crate::kernel::limits::Limits;
use crate::kernel::subject::{Subject, Tenancy};
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use crate::outbox::{FactKey, Unsendable, fact_message, saga_message};
use crate::ports::broker::{Message, Publication, WorkflowStreams};

/// Streams are told apart by their place in [`SourceStream`], so their names mean nothing here.
const STREAM: &str = "";
/// There is only one, which needs no name either.
const CLUSTER: &str = "offline";

/// The way from one instance to the others of its world.
#[derive(Debug)]
pub struct Wire {
    router: Router,
    facts: FactKey,
    streams: WorkflowStreams,
}

/// When a message is stored, and as which of its stream.
#[derive(Debug, Clone, Copy)]
pub struct Stored {
    pub sequence: u64,
    pub time: TimeMs,
}

impl Wire {
    #[must_use]
    pub fn new(definitions: Arc<DefinitionSet>, tenant: &TenantId) -> Self {
        let tenancy = if tenant.is_none() {
            Tenancy::Single
        } else {
            Tenancy::Multi
        };
        Self {
            router: Router {
                decoder: Decoder {
                    cluster: CLUSTER.to_owned(),
                    tenancy,
                    tenants: None,
                    limits: Limits::default(),
                    takes_applied: Arc::default(),
                    tokens: None,
                    event_id_from: None,
                },
                definitions: Versions::new(definitions),
                shards: 1,
            },
            facts: FactKey::of(ClusterId::OFFLINE),
            streams: WorkflowStreams {
                cluster: CLUSTER.to_owned(),
                commands: STREAM.to_owned(),
                events: STREAM.to_owned(),
            },
        }
    }

    /// What a fact or a message to a saga is to those whom it reaches. Other work reaches nobody.
    ///
    /// # Errors
    /// [`Unsendable`] where it is not a message.
    pub fn carry(&self, row: WorkRef, item: &WorkItem, stored: Stored) -> Result<Vec<Arrival>, Unsendable> {
        let (stream, publication) = match &item.kind {
            WorkKind::Fact { fact_type, payload } => {
                let fact = fact_message(STREAM, &self.facts, row, item, (fact_type, payload))?;
                (SourceStream::WorkflowEvents, fact)
            }
            WorkKind::Saga {
                saga, key, message, ..
            } => {
                let message = saga_message(&self.streams, item, saga, key, message)?;
                (SourceStream::WorkflowCommands, message)
            }
            WorkKind::Effect { .. }
            | WorkKind::Command { .. }
            | WorkKind::Result { .. }
            | WorkKind::Cancel { .. } => return Ok(Vec::new()),
        };
        let Publication {
            subject,
            headers,
            payload,
            ..
        } = publication;
        let message = Message {
            headers,
            payload,
            ..message(subject, stored)
        };
        let mut routed = Vec::new();
        // A result names its instance here: an instance tells it to another one.
        let (Outcome::Routed | Outcome::Unclaimed | Outcome::Unaddressed { .. }) =
            self.router.route(stream, &message, &mut routed);
        Ok(routed.into_iter().map(|(_, arrival)| arrival).collect())
    }

    /// What an event of the aggregates is to those who hear it.
    pub fn event(&self, tenant: &TenantId, event: DomainEvent, stored: Stored) -> Vec<Arrival> {
        let subject = Subject::Aggregate {
            tenant: tenant.clone(),
            aggregate_type: event.aggregate_type.clone(),
            aggregate_id: event.aggregate_id.clone(),
        };
        let message = message(subject.render(), stored);
        let stream = SourceStream::AggregateEvents;
        let mut routed = Vec::new();
        self.router
            .route_event(stream, tenant, event, &message, &mut routed);
        routed.into_iter().map(|(_, arrival)| arrival).collect()
    }

    /// The instance that the key rules of `definition` give to an event, whether it hears it or not.
    ///
    /// # Errors
    /// [`Defect`] where it has no key.
    pub fn key_of(&self, definition: &Definition, event: &DomainEvent, time: TimeMs) -> Result<Key, Defect> {
        self.router.key_of(definition, event, time)
    }
}

/// A message without content.
fn message(subject: String, Stored { sequence, time }: Stored) -> Message {
    Message {
        subject,
        headers: Vec::new(),
        payload: bytes::Bytes::new(),
        stream_sequence: sequence,
        consumer_sequence: sequence,
        delivered: 1,
        pending: 0,
        time,
    }
}
