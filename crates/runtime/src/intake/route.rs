//! From what a message says to the inputs of each shard.
//!
//! The key rules belong to the saga: every distinct rule of its live versions is evaluated, the active
//! version's first, and each key that comes of it gets the event. The version that an instance runs under has
//! the last word, in its shard.

use bytes::Bytes;

use super::decode::{Decoded, Decoder, Defect, Refusal};
use super::versions::Versions;
use crate::kernel::definition::Definition;
use crate::kernel::definition::keys::KeyError;
use crate::kernel::definition::set::Interest;
use crate::kernel::expr::{Root, Scope};
use crate::kernel::ids::{InstanceId, Key, SagaName, TenantId, TimeMs, shard_of};
use crate::kernel::input::{DomainEvent, Input, InputBody, Origin, SourceStream, WorkResult};
use crate::ports::broker::Message;
use crate::shard::mailbox::{Applied, Arrival, Unreadable};

/// Largest part of an unreadable payload that is kept.
const EXCERPT_BYTES_MAX: usize = 1_024;

/// Turns messages into the inputs of shards.
#[derive(Debug)]
pub struct Router {
    pub decoder: Decoder,
    pub definitions: Versions,
    /// How many shards the cluster has.
    pub shards: u16,
}

/// An arrival and the shard that owns it.
pub type Routed = (u16, Arrival);

/// A saga that reacts to an event, and the key of its instance or why there is none.
type Addressee = (SagaName, Result<Key, Defect>);

/// The outcome of a message.
#[derive(Debug)]
pub enum Outcome {
    /// Everything it yields was appended.
    Routed,
    /// It is an event that no saga reacts to.
    Unclaimed,
    /// The instance is known only to the command of this result.
    Unaddressed { tenant: TenantId, result: WorkResult },
}

impl Router {
    /// Appends what `message` yields, for each shard in the order of the sagas.
    pub fn route(&self, stream: SourceStream, message: &Message, out: &mut Vec<Routed>) -> Outcome {
        match self.decoder.decode(stream, message) {
            Ok(Decoded::Event { tenant, event }) => {
                return self.route_event(stream, &tenant, event, message, out);
            }
            Ok(Decoded::Result {
                instance,
                result,
                applied,
            }) => match applied {
                Some(time) => out.push(self.applied(instance, result, time, message)),
                None => self.route_result(stream, instance, result, message, out),
            },
            Ok(Decoded::Unaddressed { tenant, result }) => return Outcome::Unaddressed { tenant, result },
            Ok(Decoded::Control {
                instance,
                id,
                control,
            }) => {
                let body = InputBody::Control(control);
                self.push(stream, message, instance, id, body, out);
            }
            Ok(Decoded::Forwarded {
                instance,
                event,
                time,
            }) => {
                let id = event.event_id.as_str().to_owned();
                let message = &Message {
                    time,
                    ..message.clone()
                };
                self.push(stream, message, instance, id, InputBody::Event(event), out);
            }
            Ok(Decoded::Known) => {}
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

    /// A result that its shard had applied without a message, at `time`: the same input once more.
    fn applied(&self, instance: InstanceId, result: WorkResult, time: TimeMs, message: &Message) -> Routed {
        let shard = shard_of(&instance.tenant, &instance.key, self.shards);
        let input = Input {
            id: result.command_id.to_string(),
            instance,
            time,
            origin: Origin::Local,
            body: InputBody::Result(result),
        };
        let applied = Applied {
            input,
            stored: message.time,
            sequence: message.stream_sequence,
        };
        (shard, Arrival::Applied(applied))
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

    /// Appends an event for each instance that it finds.
    pub fn route_event(
        &self,
        stream: SourceStream,
        tenant: &TenantId,
        event: DomainEvent,
        message: &Message,
        out: &mut Vec<Routed>,
    ) -> Outcome {
        let definitions = self.definitions.now();
        let interested = definitions.interested(&event.event_type);
        if interested.is_empty() {
            tracing::debug!(
                tenant = tenant.as_str(),
                event_type = event.event_type,
                event_id = event.event_id.as_str(),
                sequence = message.stream_sequence,
                "no saga reacts to an event of this type"
            );
            return Outcome::Unclaimed;
        }
        let addressed = match self.addressees(interested, &event, message) {
            Ok(addressed) => addressed,
            Err(defect) => {
                self.refuse((tenant.clone(), defect), message, out);
                return Outcome::Routed;
            }
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
            let Some(event) = event else { break };
            let id = event.event_id.as_str().to_owned();
            let instance = InstanceId {
                tenant: tenant.clone(),
                saga,
                key,
            };
            self.push(stream, message, instance, id, InputBody::Event(event), out);
        }
        Outcome::Routed
    }

    /// The sagas that react, each with its keys or why it has none. The payload is parsed here, once.
    fn addressees(
        &self,
        interested: &[Interest],
        event: &DomainEvent,
        message: &Message,
    ) -> Result<Vec<Addressee>, Defect> {
        let data = self.decoder.check(&event.payload)?;
        let root = event.root(message.time, data);
        let scope = Scope::default().bind(Root::Event, &root);
        let mut found: Vec<Addressee> = Vec::with_capacity(interested.len());
        for interest in interested {
            self.keys(interest, &scope, event, &mut found);
        }
        Ok(found)
    }

    /// The key that one version gives to an event, whether it hears it or not.
    ///
    /// # Errors
    /// [`Defect`] where there is none.
    pub fn key_of(&self, version: &Definition, event: &DomainEvent, time: TimeMs) -> Result<Key, Defect> {
        let data = self.decoder.check(&event.payload)?;
        let root = event.root(time, data);
        let scope = Scope::default().bind(Root::Event, &root);
        let steps = self.decoder.limits.expression_steps;
        let key = version.key_in(&scope, &event.event_type, steps);
        key.map_err(no_key)
    }

    /// Appends the keys that the versions of one saga find, each once. An event for the instances of one version
    /// need not have a key for those of another: only if no version finds one there is something to tell.
    fn keys(&self, interest: &Interest, scope: &Scope<'_>, event: &DomainEvent, found: &mut Vec<Addressee>) {
        let first = found.len();
        let mut defect = None;
        for version in interest.versions.iter().filter(|version| version.hears(event)) {
            match version.key_in(scope, &event.event_type, self.decoder.limits.expression_steps) {
                Ok(key) => {
                    let known = found[first..].iter().any(|(_, other)| other.as_ref() == Ok(&key));
                    if !known {
                        found.push((interest.saga.clone(), Ok(key)));
                    }
                }
                Err(error) => {
                    defect.get_or_insert(error);
                }
            }
        }
        if let (Some(error), true) = (defect, found.len() == first) {
            found.push((interest.saga.clone(), Err(no_key(error))));
        }
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

fn no_key(error: KeyError) -> Defect {
    let (reason, message) = match error {
        KeyError::Missing(message) => ("correlation.missing", message),
        KeyError::Invalid(message) => ("correlation.invalid", message),
    };
    Defect::new(reason, message)
}
