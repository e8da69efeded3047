//! What the instances of a world tell each other: messages to aliases and from there, and where a case is about several
//! instances, from saga to saga.

use std::collections::VecDeque;

use saga_runner_partition::machine::apply::Turn;
use saga_runner_partition::machine::message::{Applied, Arrival};
use saga_runner_partition::storage::read::Found;

use super::transactions::Carried;
use super::wire::Stored;
use super::{Given, World};
use crate::kernel::alias::Alias;
use crate::kernel::children::SagaMessage;
use crate::kernel::definition::Definition;
use crate::kernel::ids::{InstanceId, Key, SagaName};
use crate::kernel::input::{Control, DomainEvent, Input, InputBody, Owner, SourceStream};
use crate::kernel::record::Record;
use crate::kernel::schedule;
use crate::kernel::work::{WorkItem, WorkKind, WorkRef};

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

    /// Gives an event from outside, or a fact of somebody who does not play along, to everyone of the cast who hears it; `None`
    /// where nobody does.
    pub fn give_all(&mut self, event: &DomainEvent) -> Option<Given> {
        let tenant = self.instance.tenant.clone();
        let found = self
            .wire
            .event(&tenant, event.clone(), self.stored(self.messages));
        let mut given: Option<Given> = None;
        for arrival in found {
            let more = match arrival {
                Arrival::Input(input) | Arrival::Applied(Applied { input, .. }) => {
                    self.lives_at(&input.instance);
                    self.give(&input)
                }
                Arrival::Unreadable(message) => Given {
                    rejection: Some((message.reason.to_owned(), message.message)),
                    ..Given::default()
                },
            };
            given.get_or_insert_default().add(more);
        }
        given
    }

    /// The instance that the key rules of the saga give to an event.
    ///
    /// # Errors
    /// Reason and sentence, where it has no key.
    pub fn key_of(&self, event: &DomainEvent) -> Result<Key, (&'static str, String)> {
        let key = self.wire.key_of(&self.definition, event, self.now);
        key.map_err(|defect| (defect.reason, defect.message))
    }

    /// An alias refuses the instance, removes it if it had it, and tells it so.
    pub fn refuse_alias(&mut self, alias: &Alias) -> Given {
        let (owner, input) = self.registration(alias);
        self.transact(|run| run.refuse_owner(alias, &input, &owner))
    }

    /// An operator retries the registration that an alias has refused.
    pub fn accept_alias(&mut self, alias: &Alias) -> Given {
        let (_, input) = self.registration(alias);
        let again = Turn {
            attempts: 2,
            ..Turn::FIRST
        };
        self.transact(|run| run.take(&input, again))
    }

    /// The instance as an owner of an alias, and what it says to become one.
    fn registration(&mut self, alias: &Alias) -> (Owner, Input) {
        let owner = Owner {
            key: self.instance.key.clone(),
            generation: self.last().map_or(1, |record| record.generation),
        };
        self.messages += 1;
        let input = self.message(
            alias.address(&self.instance.tenant, &self.instance.saga),
            SourceStream::WorkflowCommands,
            format!("request-{}", self.messages),
            InputBody::Control(Control::RegisterAlias { owner: owner.clone() }),
        );
        (owner, input)
    }

    fn stored(&self, sequence: u64) -> Stored {
        let time = self.now;
        Stored { sequence, time }
    }

    /// An alias and a schedule have an address and no life.
    pub(super) fn lives_at(&mut self, instance: &InstanceId) {
        if Alias::of(&instance.key).is_none() && !schedule::is_address(&instance.key) {
            self.lives.insert(instance.clone());
        }
    }

    /// What a piece of work tells others of this world is input of theirs.
    pub(super) fn tell(
        &mut self,
        row: WorkRef,
        item: &WorkItem,
        given: &mut Given,
        inputs: &mut VecDeque<Carried>,
    ) {
        if !self.is_heard(item) {
            return;
        }
        self.carried += 1;
        let found = match self.wire.carry(row, item, self.stored(self.carried)) {
            Ok(found) => found,
            Err(error) => {
                let message = format!("{} cannot be sent: {error}", item.path);
                given.unsteady.get_or_insert(message);
                return;
            }
        };
        for arrival in found {
            match arrival {
                Arrival::Input(input) | Arrival::Applied(Applied { input, .. }) => {
                    self.lives_at(&input.instance);
                    // What awaits the end of another instance is done with when that is told.
                    let row = (!item.kind.awaits_result()).then_some(row);
                    inputs.push_back(Carried { row, input });
                }
                Arrival::Unreadable(message) => {
                    let dead = (message.reason.to_owned(), message.message);
                    given.rejection.get_or_insert(dead);
                }
            }
        }
        if matches!(item.kind, WorkKind::Saga { .. }) {
            self.delivered.insert(item.command_id);
        }
    }

    /// Whether it is for somebody who is there: an alias, an owner of one, or who plays along.
    fn is_heard(&self, item: &WorkItem) -> bool {
        match &item.kind {
            WorkKind::Saga { saga, message, .. } => {
                let of_alias = item.kind.is_incidental() || matches!(message, SagaMessage::Forward(_));
                of_alias || self.cast.contains_key(saga)
            }
            WorkKind::Fact { .. } => self.is_together(),
            WorkKind::Effect { .. }
            | WorkKind::Command { .. }
            | WorkKind::Result { .. }
            | WorkKind::Cancel { .. } => false,
        }
    }
}
