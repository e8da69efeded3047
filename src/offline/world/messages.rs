//! What the instances of a world tell each other: messages to aliases and from there, and where a case is about several
//! instances, from saga to saga.

use std::collections::VecDeque;

use saga_runner_partition::storage::read::Found;

use super::{Given, World};
use crate::kernel::alias::Alias;
use crate::kernel::children::{ParentRef, SagaMessage};
use crate::kernel::definition::Definition;
use crate::kernel::ids::{EventId, InstanceId, Key, SagaName};
use crate::kernel::input::{Control, DomainEvent, Input, InputBody, Origin, Owner, SourceStream, WorkResult};
use crate::kernel::record::Record;
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};
use crate::offline::play::key_of;

impl World {
    /// Whether instances of several sagas, or several of one, hear each other.
    #[must_use]
    pub fn is_together(&self) -> bool {
        !self.cast.is_empty()
    }

    /// Looks at another instance of the cast.
    pub fn look_at(&mut self, instance: InstanceId) {
        if let Some(definition) = self.cast.get(&instance.saga) {
            self.definition = definition.clone();
        }
        self.instance = instance;
        self.look();
    }

    /// The instance that `SAGA/KEY` names, or the only one of `SAGA`.
    ///
    /// # Errors
    /// A sentence, where there is none, or more than one.
    pub fn named(&self, at: &str) -> Result<InstanceId, String> {
        let (saga, key) = at
            .split_once('/')
            .map_or((at, None), |(saga, key)| (saga, Some(key)));
        let saga = SagaName::parse(saga)
            .ok()
            .filter(|saga| self.cast.contains_key(saga));
        let Some(saga) = saga else {
            let names: Vec<&str> = self.cast.keys().map(SagaName::as_str).collect();
            return Err(if names.is_empty() {
                "the case is about one instance: it does not say under \"sagas\" who plays along".to_owned()
            } else {
                format!("no saga of this name plays along, but {}", names.join(", "))
            });
        };
        if let Some(key) = key {
            let key = Key::parse(key).map_err(|error| error.to_string())?;
            let tenant = self.instance.tenant.clone();
            return Ok(InstanceId { tenant, saga, key });
        }
        let mut found = self
            .lives
            .iter()
            .filter(|id| id.saga == saga && self.read(id).is_some());
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(only.clone()),
            (None, _) => Err(format!("there is no instance of {saga} yet")),
            (Some(one), Some(other)) => Err(format!(
                "there are several instances of {saga}: say {saga}/{} or {saga}/{}",
                one.key, other.key
            )),
        }
    }

    /// Whether an instance has begun and not ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.lives.iter().any(|id| self.is_live(id))
    }

    /// Whether this instance has begun and not ended.
    #[must_use]
    pub fn is_live(&self, id: &InstanceId) -> bool {
        matches!(self.store.reader().instance(id), Ok(Some(Found::Live(_))))
    }

    /// The saga of an instance.
    #[must_use]
    pub fn definition_of(&self, id: &InstanceId) -> &Definition {
        self.cast.get(&id.saga).unwrap_or(&self.definition)
    }

    /// The records of all other instances, live or final.
    pub fn others(&self) -> impl Iterator<Item = (&InstanceId, Record)> {
        let others = self.lives.iter().filter(|id| **id != self.instance);
        others.filter_map(|id| Some((id, self.read(id)?)))
    }

    /// The record of an instance, live or final.
    #[must_use]
    pub fn read(&self, id: &InstanceId) -> Option<Record> {
        if *id == self.instance {
            return self.last().cloned();
        }
        match self.store.reader().instance(id).ok().flatten()? {
            Found::Live(record) => Some(record),
            Found::Ended(summary) => Some(summary.record),
        }
    }

    /// An event from outside, or a fact, for everyone of the cast who hears it.
    ///
    /// # Errors
    /// Reason and sentence, where it has no key for one of them.
    pub fn addressees(&self, event: &DomainEvent) -> Result<Vec<InstanceId>, (&'static str, String)> {
        let mut found = Vec::new();
        for definition in self.cast.values() {
            let types = definition.event_types();
            if !types.contains(&event.event_type.as_str()) || !definition.hears(event) {
                continue;
            }
            let key = key_of(definition, event, self.now)?;
            found.push(match Alias::of(&key) {
                Some(alias) => alias.address(&self.instance.tenant, &definition.name),
                None => InstanceId {
                    tenant: self.instance.tenant.clone(),
                    saga: definition.name.clone(),
                    key,
                },
            });
        }
        Ok(found)
    }

    /// What one instance of the cast tells the others by a piece of work.
    pub(super) fn tell_cast(
        &mut self,
        row: WorkRef,
        item: &WorkItem,
        given: &mut Given,
        inputs: &mut VecDeque<(WorkRef, Input)>,
    ) {
        match &item.kind {
            WorkKind::Saga {
                saga, key, message, ..
            } if self.cast.contains_key(saga) => {
                let Some(body) = body_of(item, message) else {
                    return;
                };
                let to = InstanceId {
                    tenant: item.instance.tenant.clone(),
                    saga: saga.clone(),
                    key: key.clone(),
                };
                self.delivered.insert(item.command_id);
                self.lives.insert(to.clone());
                let stream = SourceStream::WorkflowCommands;
                let id = match &body {
                    InputBody::Result(result) => result.command_id,
                    InputBody::Event(_) | InputBody::Control(_) | InputBody::Timer { .. } => item.command_id,
                };
                self.messages += 1;
                inputs.push_back((row, self.message(to, stream, id.to_string(), body)));
            }
            WorkKind::Fact { fact_type, payload } => {
                let id = item.command_id.to_string();
                let event = DomainEvent {
                    event_id: EventId::parse(&id).expect("the id of a command is that of an event"),
                    event_type: fact_type.clone(),
                    aggregate_type: item.instance.saga.to_string(),
                    aggregate_id: item.instance.key.to_string(),
                    sequence: row.position(),
                    schema_version: 1,
                    correlation_id: Some(item.instance.key.as_str().to_owned()),
                    causation_id: Some(item.causation_id.clone()),
                    traceparent: item.traceparent.clone(),
                    hops: item.hops,
                    fact: true,
                    payload: payload.clone(),
                    via: None,
                };
                match self.addressees(&event) {
                    Ok(found) => {
                        for to in found {
                            self.messages += 1;
                            if Alias::of(&to.key).is_none() {
                                self.lives.insert(to.clone());
                            }
                            let body = InputBody::Event(event.clone());
                            let input = self.message(to, SourceStream::WorkflowEvents, id.clone(), body);
                            inputs.push_back((row, input));
                        }
                    }
                    Err((reason, message)) => {
                        let dead = (reason.to_owned(), message);
                        given.rejection.get_or_insert(dead);
                    }
                }
            }
            WorkKind::Saga { .. }
            | WorkKind::Effect { .. }
            | WorkKind::Command { .. }
            | WorkKind::Result { .. }
            | WorkKind::Recall { .. } => {}
        }
    }

    /// A message to an alias, or from one to the instance, as the input that it becomes.
    pub(super) fn input_of(&self, item: &WorkItem) -> Option<Input> {
        let WorkKind::Saga {
            saga, key, message, ..
        } = &item.kind
        else {
            return None;
        };
        let owner = |generation: u32| Owner {
            key: item.instance.key.clone(),
            generation,
        };
        let (id, body) = match message {
            SagaMessage::RegisterAlias { generation } => {
                let owner = owner(*generation);
                let id = item.command_id.to_string();
                (id, InputBody::Control(Control::RegisterAlias { owner }))
            }
            SagaMessage::ReleaseAlias { generation, hears } => {
                let (owner, hears) = (owner(*generation), *hears);
                let id = item.command_id.to_string();
                (id, InputBody::Control(Control::ReleaseAlias { owner, hears }))
            }
            SagaMessage::AskAlias(question) => {
                let (key, question) = (item.instance.key.clone(), *question);
                let id = item.command_id.to_string();
                (id, InputBody::Control(Control::AskAlias { key, question }))
            }
            SagaMessage::AliasRead { question, late } => {
                let (question, late) = (*question, *late);
                let id = item.command_id.to_string();
                (id, InputBody::Control(Control::AliasRead { question, late }))
            }
            SagaMessage::Forward(forwarded) => {
                let id = forwarded.event.event_id.as_str().to_owned();
                (id, InputBody::Event(forwarded.event.clone()))
            }
            SagaMessage::Start { .. }
            | SagaMessage::Recall { .. }
            | SagaMessage::Signal { .. }
            | SagaMessage::Outcome { .. } => {
                return None;
            }
        };
        Some(Input {
            instance: InstanceId {
                tenant: item.instance.tenant.clone(),
                saga: saga.clone(),
                key: key.clone(),
            },
            id,
            time: self.now,
            origin: Origin::Stream {
                stream: SourceStream::WorkflowCommands,
                sequence: self.messages,
            },
            body,
        })
    }
}

/// What a message from saga to saga is to its receiver; none for what goes to aliases and from there.
fn body_of(item: &WorkItem, message: &SagaMessage) -> Option<InputBody> {
    let parent = |depth: u32, undoable: bool| ParentRef {
        saga: item.instance.saga.clone(),
        key: item.instance.key.clone(),
        command_id: item.command_id,
        depth,
        waits: item.kind.awaits_result(),
        undoable,
        hops: item.hops,
        traceparent: item.traceparent.clone(),
    };
    let control = match message {
        SagaMessage::Start {
            input,
            depth,
            undoable,
        } => Control::Start {
            input: input.clone(),
            parent: Some(parent(*depth, *undoable)),
        },
        SagaMessage::Recall { undo, known } => Control::Recall {
            parent: parent(0, false),
            undo: *undo,
            known: *known,
        },
        SagaMessage::Signal { name, data } => Control::Signal {
            name: name.clone(),
            data: data.clone(),
            by: format!("{}/{}", item.instance.saga, item.instance.key),
            hops: item.hops,
        },
        SagaMessage::Outcome { command, outcome } => {
            return Some(InputBody::Result(WorkResult {
                command_id: *command,
                effect: None,
                outcome: outcome.clone(),
            }));
        }
        SagaMessage::RegisterAlias { .. }
        | SagaMessage::ReleaseAlias { .. }
        | SagaMessage::Forward(_)
        | SagaMessage::AskAlias(_)
        | SagaMessage::AliasRead { .. } => return None,
    };
    Some(InputBody::Control(control))
}
