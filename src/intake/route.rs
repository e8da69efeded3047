//! From what a message says to the inputs of each shard.
//!
//! The key rules belong to the saga: of all its live versions the first rule that matches the event type
//! decides, the active version's rules first, and it is evaluated once for each message and saga.

use std::sync::Arc;

use bytes::Bytes;

use super::decode::{Decoded, Decoder, Defect, Refusal};
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::expr::{Budget, Expr, Root, Scope};
use crate::kernel::ids::{InstanceId, Key, SagaName, TenantId, shard_of};
use crate::kernel::input::{DomainEvent, Input, InputBody, Origin, SourceStream, WorkResult};
use crate::kernel::json::Json;
use crate::ports::broker::Message;
use crate::shard::mailbox::{Arrival, Unreadable};

/// Largest part of an unreadable payload that is kept.
const EXCERPT_BYTES_MAX: usize = 1_024;

/// Turns messages into the inputs of shards.
#[derive(Debug)]
pub struct Router {
    pub decoder: Decoder,
    pub definitions: Arc<DefinitionSet>,
    /// How many shards the cluster has.
    pub shards: u16,
}

/// An arrival and the shard that owns it.
pub type Routed = (u16, Arrival);

/// A saga that reacts to an event, and the key of its instance or why there is none.
type Addressee = (SagaName, Result<Key, Defect>);

/// What became of a message.
#[derive(Debug)]
pub enum Outcome {
    /// Everything it yields was appended.
    Routed,
    /// The instance is known only to the command of this result.
    Unaddressed { tenant: TenantId, result: WorkResult },
}

impl Router {
    /// Appends what `message` yields, for each shard in the order of the sagas.
    pub fn route(&self, stream: SourceStream, message: &Message, out: &mut Vec<Routed>) -> Outcome {
        match self.decoder.decode(stream, message) {
            Ok(Decoded::Event { tenant, event }) => self.route_event(stream, &tenant, event, message, out),
            Ok(Decoded::Result { instance, result }) => {
                self.route_result(stream, instance, result, message, out);
            }
            Ok(Decoded::Unaddressed { tenant, result }) => return Outcome::Unaddressed { tenant, result },
            Ok(Decoded::Control {
                instance,
                id,
                control,
            }) => {
                let body = InputBody::Control(control);
                self.push(stream, message, instance, id, body, out);
            }
            Err(refusal) => self.refuse(refusal, message, out),
        }
        Outcome::Routed
    }

    /// Appends a result whose instance is known.
    pub fn route_result(
        &self,
        stream: SourceStream,
        instance: InstanceId,
        result: WorkResult,
        message: &Message,
        out: &mut Vec<Routed>,
    ) {
        let id = result.command_id.to_string();
        self.push(stream, message, instance, id, InputBody::Result(result), out);
    }

    /// Appends a message that can never become an input.
    pub fn refuse(&self, (tenant, defect): Refusal, message: &Message, out: &mut Vec<Routed>) {
        let hash = blake3::hash(message.subject.as_bytes()).to_hex();
        let key = Key::parse(&hash[..32]).expect("hex digits are a legal key");
        let shard = shard_of(&tenant, &key, self.shards);
        let excerpt = &message.payload[..message.payload.len().min(EXCERPT_BYTES_MAX)];
        out.push((
            shard,
            Arrival::Unreadable(Unreadable {
                tenant,
                subject: message.subject.clone(),
                reason: defect.reason,
                message: defect.message,
                time: message.time,
                excerpt: Bytes::copy_from_slice(excerpt),
                payload_hash: *blake3::hash(&message.payload).as_bytes(),
                sequence: message.stream_sequence,
            }),
        ));
    }

    fn route_event(
        &self,
        stream: SourceStream,
        tenant: &TenantId,
        event: DomainEvent,
        message: &Message,
        out: &mut Vec<Routed>,
    ) {
        let interested = self.definitions.interested(&event.event_type);
        if interested.is_empty() {
            return;
        }
        let addressed = match self.addressees(interested, &event, message) {
            Ok(addressed) => addressed,
            Err(defect) => return self.refuse((tenant.clone(), defect), message, out),
        };
        let mut keys = Vec::with_capacity(addressed.len());
        for (saga, key) in addressed {
            match key {
                Ok(key) => keys.push((saga, key)),
                Err(defect) => self.refuse((tenant.clone(), defect), message, out),
            }
        }
        let mut event = Some(event);
        let last = keys.len().saturating_sub(1);
        for (at, (saga, key)) in keys.into_iter().enumerate() {
            let event = if at == last { event.take() } else { event.clone() };
            let Some(event) = event else { return };
            let id = event.event_id.as_str().to_owned();
            let instance = InstanceId {
                tenant: tenant.clone(),
                saga,
                key,
            };
            self.push(stream, message, instance, id, InputBody::Event(event), out);
        }
    }

    /// The sagas that react, each with its key or why it has none. The payload is parsed here, once.
    fn addressees(
        &self,
        interested: &[Arc<Definition>],
        event: &DomainEvent,
        message: &Message,
    ) -> Result<Vec<Addressee>, Defect> {
        let data = self.decoder.check(&event.payload)?;
        let root = event.root(message.time, data);
        let scope = Scope::default().bind(Root::Event, &root);
        let mut found: Vec<Addressee> = Vec::with_capacity(interested.len());
        for definition in interested {
            let saga = &definition.name;
            if found.iter().any(|(name, _)| name == saga) {
                continue;
            }
            let rule = self.key_rule(saga, interested, &event.event_type);
            found.push((saga.clone(), self.key(saga, rule, &scope, event)));
        }
        Ok(found)
    }

    fn key_rule<'a>(
        &'a self,
        saga: &SagaName,
        interested: &'a [Arc<Definition>],
        event_type: &str,
    ) -> Option<&'a Expr> {
        let active = self.definitions.active(saga);
        let others = interested.iter().filter(|other| other.name == *saga);
        active
            .into_iter()
            .chain(others)
            .flat_map(|version| &version.keys)
            .find(|rule| rule.matches(event_type))
            .map(|rule| &rule.key)
    }

    fn key(
        &self,
        saga: &SagaName,
        rule: Option<&Expr>,
        scope: &Scope<'_>,
        event: &DomainEvent,
    ) -> Result<Key, Defect> {
        let missing = |why: String| Defect::new("correlation.missing", format!("saga {saga}: {why}"));
        let invalid = |why: String| Defect::new("correlation.invalid", format!("saga {saga}: {why}"));
        let rule = rule.ok_or_else(|| missing(format!("no key rule for {}", event.event_type)))?;
        let mut budget = Budget {
            steps: self.decoder.limits.expression_steps,
        };
        let value = rule
            .eval(scope, &mut budget)
            .map_err(|error| missing(format!("key {}: {error}", rule.text())))?;
        let text = match value {
            Json::Str(text) => text,
            Json::Int(number) => number.to_string().into(),
            Json::Null => return Err(missing(format!("key {} is null", rule.text()))),
            Json::Bool(_) | Json::Double(_) | Json::List(_) | Json::Map(_) => {
                let why = format!("key {} is neither a string nor an integer", rule.text());
                return Err(invalid(why));
            }
        };
        Key::parse(&text).map_err(|error| invalid(error.to_string()))
    }

    fn push(
        &self,
        stream: SourceStream,
        message: &Message,
        instance: InstanceId,
        id: String,
        body: InputBody,
        out: &mut Vec<Routed>,
    ) {
        let shard = shard_of(&instance.tenant, &instance.key, self.shards);
        let origin = Origin::Stream {
            stream,
            sequence: message.stream_sequence,
        };
        out.push((
            shard,
            Arrival::Input(Input {
                instance,
                id,
                time: message.time,
                origin,
                body,
            }),
        ));
    }
}
