//! Aliases that this shard stores: who has them, and events on their way to those.
//!
//! What owners tell, and the events that are matched, are inputs of the alias's address. Each event becomes one row
//! of the outbox for each owner, in the transaction that takes it, so none is lost and none is forwarded twice. An
//! event that finds no owner waits for one as an event waits for its instance to begin; see `inbox`.

use saga_runner_kernel::alias::{Alias, Via};
use saga_runner_kernel::children::{Forwarded, SagaMessage};
use saga_runner_kernel::definition::model::{COMMAND_TIMEOUT_MS, NoInstance};
use saga_runner_kernel::duration::Millis;
use saga_runner_kernel::ids::{ClusterId, DefinitionHash, InstanceId, Key, TimeMs};
use saga_runner_kernel::input::{Control, DomainEvent, Input, InputBody, Origin, Owner};
use saga_runner_kernel::patch::{IgnoreReason, Outcome, TimerRow};
use saga_runner_kernel::record::Record;
use saga_runner_kernel::work::{Attempt, Piece, WorkItem, WorkKind, WorkRef};

use super::apply::{Fate, Turn};
use super::asking;
use super::fault::Fault;
use super::staging::Run;
use super::watch::Told;
use crate::storage::StorageError;
use crate::storage::rows::{RELEASED_TIMER, Released};

/// What a forwarded event has around its payload, in bytes, besides its own texts.
const ENVELOPE_BYTES: usize = 2_048;

/// What an alias answers an instance that registers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerAnswer {
    Accepted,
    Refused,
}

impl Run<'_> {
    /// Takes what is addressed to an alias.
    pub fn take_aliased(&mut self, alias: &Alias, input: &Input, turn: Turn) -> Result<Fate, StorageError> {
        let outcome = match &input.body {
            InputBody::Event(event) if event.via.is_none() => {
                return self.take_matched(alias, input, event, turn);
            }
            InputBody::Control(Control::RegisterAlias { owner }) => {
                return self.register_alias(alias, input, owner, turn);
            }
            InputBody::Control(Control::ReleaseAlias { owner, hears }) => {
                self.release_alias(input, owner, *hears)?
            }
            InputBody::Control(Control::Start { parent: Some(_), .. } | Control::CancelChild { .. }) => {
                let message = format!("the key {} is that of an alias", input.instance.key);
                return self.refuse(input, 1, &message);
            }
            InputBody::Control(Control::AskAlias { key, question }) => self.asked(input, key, *question)?,
            InputBody::Timer { name } if name == RELEASED_TIMER => return self.forget_releases(input),
            InputBody::Timer { name } => match asking::read_timer(name, input.time) {
                Some((key, question)) => self.answer(input, &key, question, turn)?,
                None => Outcome::Ignored(IgnoreReason::NoInstance),
            },
            InputBody::Event(_) | InputBody::Result(_) | InputBody::Control(_) => {
                Outcome::Ignored(IgnoreReason::NoInstance)
            }
        };
        self.tell(input, Told::Outcome(outcome, &[]));
        Ok(Fate::Done)
    }

    /// An event that is matched by the alias.
    fn take_matched(
        &mut self,
        alias: &Alias,
        input: &Input,
        event: &DomainEvent,
        turn: Turn,
    ) -> Result<Fate, StorageError> {
        let max = self.ground.limits.payload_bytes;
        if size_at_most(alias, event) > max {
            let fault = Fault::alias_size(event.payload.len(), max);
            return self.dead_letter(input, None, fault, turn);
        }
        let row = self.batch.alias(&input.instance)?;
        if row.owners.is_empty() {
            let wait_ms = match self.no_instance(input) {
                NoInstance::Park(ms) => ms,
                NoInstance::Ignore | NoInstance::DeadLetter => self.ground.limits.alias_wait_ms,
            };
            // What comes out of a backlog waits as long as what has just come.
            let until = self.ground.now.max(input.time).plus_ms(wait_ms);
            let log_sequence = self.next_sequence();
            return self.keep_early(input, until, log_sequence, turn);
        }
        self.forward(alias, &row.owners, input, event)?;
        self.tell(input, Told::Outcome(Outcome::Applied, &[]));
        Ok(Fate::Done)
    }

    /// Puts an event into the outbox for each of `owners`.
    fn forward(
        &mut self,
        alias: &Alias,
        owners: &[Owner],
        input: &Input,
        event: &DomainEvent,
    ) -> Result<(), StorageError> {
        let log_sequence = self.next_sequence();
        for (index, owner) in (0..=u16::MAX).zip(owners) {
            let row = WorkRef { log_sequence, index };
            let item = message(self.ground.cluster, alias, owner, input, event, self.ground.now);
            self.put_work(row, item)?;
        }
        Ok(())
    }

    /// An instance has the alias from now on, and gets what has waited for one.
    fn register_alias(
        &mut self,
        alias: &Alias,
        input: &Input,
        owner: &Owner,
        turn: Turn,
    ) -> Result<Fate, StorageError> {
        let id = &input.instance;
        let mut row = self.batch.alias(id)?;
        let max = self.ground.limits.alias_owners;
        let full = row.owners.len() >= max;
        if row.was_released_by(owner) {
            let late = Outcome::Ignored(IgnoreReason::Stale);
            self.tell(input, Told::Outcome(late, &[]));
            return Ok(Fate::Done);
        }
        match row.owners.iter_mut().find(|known| known.key == owner.key) {
            Some(known) if known.generation >= owner.generation => {
                self.tell(
                    input,
                    Told::Outcome(Outcome::Ignored(IgnoreReason::Duplicate), &[]),
                );
                return Ok(Fate::Done);
            }
            Some(known) => known.generation = owner.generation,
            None => {
                // Who has ended makes room first.
                if full && let Some(ended) = row.ended_owner() {
                    row.owners.remove(ended);
                } else if full {
                    return self.dead_letter(input, None, Fault::alias_owners(alias, owner, max), turn);
                }
                row.owners.push(owner.clone());
            }
        }
        self.batch.put_alias(id, &row)?;
        self.tell(input, Told::Outcome(Outcome::Applied, &[]));
        // It was refused before, and an operator has retried it. The answer goes out before the events that are forwarded.
        if turn.attempts > 1 {
            self.answer_owner(alias, input, owner, turn, OwnerAnswer::Accepted)?;
        }
        for (number, waiting, bytes) in self.batch.inbox(id)? {
            self.leave(id, number, waiting.reason, bytes)?;
            if let InputBody::Event(event) = &waiting.input.body {
                self.forward(alias, std::slice::from_ref(owner), &waiting.input, event)?;
            }
        }
        Ok(Fate::Done)
    }

    /// Tells an instance that the alias has refused it, or has accepted it on a retry.
    pub fn answer_owner(
        &mut self,
        alias: &Alias,
        input: &Input,
        owner: &Owner,
        turn: Turn,
        answer: OwnerAnswer,
    ) -> Result<(), StorageError> {
        let log_sequence = self.next_sequence();
        let row = WorkRef {
            log_sequence,
            index: 0,
        };
        // An operator may retry any number of times: each answer is a message of its own.
        let path = format!("aliases.answer.{}", turn.attempts);
        let message = SagaMessage::AliasAnswered {
            via: Via {
                alias: alias.clone(),
                generation: owner.generation,
            },
            refused: answer == OwnerAnswer::Refused,
        };
        let cluster = self.ground.cluster;
        self.tell_now(
            row,
            told(cluster, input, owner.generation, path, &owner.key, message),
        )
    }

    /// Refuses an instance however many have the alias: a test case says so.
    pub fn refuse_owner(&mut self, alias: &Alias, input: &Input, owner: &Owner) -> Result<(), StorageError> {
        let id = &input.instance;
        let mut row = self.batch.alias(id)?;
        row.owners.retain(|known| known != owner);
        self.batch.put_alias(id, &row)?;
        self.answer_owner(alias, input, owner, Turn::FIRST, OwnerAnswer::Refused)
    }

    /// Releases an alias that has accepted a generation which no longer has it: the registration was retried so late that the
    /// alias has forgotten the release. False: the generation has it.
    pub fn give_up_alias(&mut self, input: &Input, via: &Via) -> Result<bool, StorageError> {
        if self.has_alias(&input.instance, via)? {
            return Ok(false);
        }
        let log_sequence = self.next_sequence();
        let row = WorkRef {
            log_sequence,
            index: 0,
        };
        let path = "aliases.release".to_owned();
        let message = SagaMessage::ReleaseAlias {
            generation: via.generation,
            hears: false,
        };
        let cluster = self.ground.cluster;
        let key = via.alias.key();
        self.tell_now(row, told(cluster, input, via.generation, path, &key, message))?;
        let gone = Outcome::Ignored(IgnoreReason::NoInstance);
        self.tell(input, Told::Outcome(gone, &[]));
        Ok(true)
    }

    /// Whether this generation of an instance has the alias, live or after its end.
    fn has_alias(&mut self, id: &InstanceId, via: &Via) -> Result<bool, StorageError> {
        let has = |record: &Record| record.generation == via.generation && record.has_alias(&via.alias);
        if let Some(record) = self.staged.records.take(self.batch, id)? {
            let found = has(&record);
            self.staged.records.give_back(id, Some(record));
            return Ok(found);
        }
        self.staged.records.give_back(id, None);
        let Some(ended) = self.batch.tombstone(id)? else {
            return Ok(false);
        };
        let record = self.batch.ended(id, ended.summary)?;
        Ok(record.as_ref().is_some_and(has))
    }

    /// An instance has ended. It has the alias no more, or as long as it is kept.
    fn release_alias(&mut self, input: &Input, owner: &Owner, hears: bool) -> Result<Outcome, StorageError> {
        let id = &input.instance;
        let mut row = self.batch.alias(id)?;
        let had_it = row.owners.contains(owner);
        if !hears {
            row.owners.retain(|known| known != owner);
        }
        // Its registration may come later, or again: an instance that has ended must not be an owner for ever.
        if !row.was_released_by(owner) {
            let kept = self.keeps_releases(id, hears).as_i64();
            let until = self.ground.now.max(input.time).plus_ms(kept);
            if row.released.len() >= self.ground.limits.alias_owners {
                let oldest = row.released.remove(0);
                row.owners.retain(|known| *known != oldest.owner);
            }
            row.released.push(Released {
                owner: owner.clone(),
                until,
            });
            let log_sequence = self.next_sequence();
            let timer = TimerRow {
                due: until,
                set_by: WorkRef {
                    log_sequence,
                    index: 0,
                },
                name: RELEASED_TIMER.to_owned(),
                fired: 0,
            };
            self.set_timer(id, &timer)?;
        }
        self.batch.put_alias(id, &row)?;
        Ok(if had_it {
            Outcome::Applied
        } else {
            Outcome::Ignored(IgnoreReason::Stale)
        })
    }

    /// How long is known that somebody gave an alias up: one who hears by it, as long as he may be kept; one who does not, not
    /// less than others, because his registration may come again.
    fn keeps_releases(&self, id: &InstanceId, hears: bool) -> Millis {
        let keep = self.ground.keep;
        let default = keep.ended_of(&id.tenant).unwrap_or(keep.ended);
        let said = self.ground.definitions.active(&id.saga);
        let longest = said.map_or(default, |said| said.lifecycle.keep_ended.longest(default));
        if hears { longest } else { longest.max(default) }
    }

    /// The time is over in which the registration of somebody could come who has given the alias up.
    fn forget_releases(&mut self, timer: &Input) -> Result<Fate, StorageError> {
        let id = &timer.instance;
        let mut row = self.batch.alias(id)?;
        let (kept, over): (Vec<_>, Vec<_>) = std::mem::take(&mut row.released)
            .into_iter()
            .partition(|released| released.until > timer.time);
        row.released = kept;
        row.owners
            .retain(|known| over.iter().all(|released| released.owner != *known));
        self.batch.put_alias(id, &row)?;
        self.tell(timer, Told::Outcome(Outcome::Applied, &[]));
        Ok(Fate::Done)
    }

    /// What happens to an event for which no instance is there.
    fn no_instance(&self, input: &Input) -> NoInstance {
        let active = self.ground.definitions.active(&input.instance.saga);
        active.map_or(NoInstance::Ignore, |saga| saga.lifecycle.no_instance)
    }

    /// No instance has registered the alias in the time that the event has waited for one.
    pub fn unmatched(&mut self, alias: &Alias, input: &Input) -> Result<(), StorageError> {
        match self.no_instance(input) {
            NoInstance::DeadLetter => {
                let fault = Fault::unmatched(alias, input);
                self.dead_letter(input, None, fault, Turn::FIRST).map(drop)
            }
            NoInstance::Ignore | NoInstance::Park(_) => {
                let gone = Outcome::Ignored(IgnoreReason::NoInstance);
                self.tell(input, Told::Outcome(gone, &[]));
                Ok(())
            }
        }
    }
}

/// At least as many bytes as the message takes that forwards the event.
fn size_at_most(alias: &Alias, event: &DomainEvent) -> usize {
    let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let texts = event.event_id.as_str().len()
        + event.event_type.len()
        + event.aggregate_type.len()
        + event.aggregate_id.len()
        + optional(&event.correlation_id)
        + optional(&event.causation_id)
        + optional(&event.traceparent)
        + alias.name.len()
        + alias.value.len();
    // As JSON a byte becomes six at most.
    event.payload.len() + 6 * texts + ENVELOPE_BYTES
}

/// The message that brings an event to an owner: the same for the same event, whoever makes it.
fn message(
    cluster: ClusterId,
    alias: &Alias,
    owner: &Owner,
    input: &Input,
    event: &DomainEvent,
    now: TimeMs,
) -> WorkItem {
    let sequence = match input.origin {
        Origin::Stream { sequence, .. } => sequence,
        Origin::Timer | Origin::Local | Origin::Edited { .. } => 0,
    };
    // Two messages with one id are two for the owner, who knows what to make of that.
    let path = format!("forward.{sequence}.{}", owner.key);
    let via = Via {
        alias: alias.clone(),
        generation: owner.generation,
    };
    let forwarded = SagaMessage::Forward(Box::new(Forwarded {
        event: DomainEvent {
            via: Some(Box::new(via)),
            ..event.clone()
        },
        time: input.time,
    }));
    WorkItem {
        created: now,
        deadline: now.plus_ms(COMMAND_TIMEOUT_MS),
        traceparent: event.traceparent.clone(),
        hops: event.hops,
        ..told(cluster, input, owner.generation, path, &owner.key, forwarded)
    }
}

/// A message of whoever an input is for, about that input. It is not the doing of any definition.
pub fn told(
    cluster: ClusterId,
    input: &Input,
    generation: u32,
    path: String,
    to: &Key,
    message: SagaMessage,
) -> WorkItem {
    let id = &input.instance;
    let command = Attempt {
        cluster,
        instance: id,
        generation,
        definition: &DefinitionHash([0; 32]),
        input_id: &input.id,
        input_time: input.time,
        path: &path,
        index: 0,
        attempt: 1,
    };
    let piece = Piece {
        cluster,
        instance: id,
        life: &input.id,
        path: &path,
        iteration: 0,
        round: 0,
        item: 0,
    };
    WorkItem {
        instance: id.clone(),
        command_id: command.command_id(),
        idempotency_key: piece.idempotency_key(),
        attempt: 1,
        created: input.time,
        deadline: input.time.plus_ms(COMMAND_TIMEOUT_MS),
        waited_ms: 0,
        causation_id: input.id.clone(),
        root_correlation_id: None,
        traceparent: None,
        hops: 0,
        kind: WorkKind::Saga {
            saga: id.saga.clone(),
            key: to.clone(),
            message,
            awaited: false,
        },
        path,
    }
}
