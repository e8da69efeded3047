//! Inputs that cannot be applied become dead letters. What an operator decides about them is in [`super::letters`].

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use saga_runner_kernel::alias::Alias;
use saga_runner_kernel::definition::Definition;
use saga_runner_kernel::ids::{DefinitionHash, InstanceId};
use saga_runner_kernel::input::{Control, Input, InputBody, SourceStream, WorkOutcome, WorkResult};
use saga_runner_kernel::patch::Patch;
use saga_runner_kernel::record::Record;
use saga_runner_kernel::schedule;
use saga_runner_kernel::transition::{Context, Rejection, apply, awaits};

use super::aliases::OwnerAnswer;
use super::apply::{Fate, Turn, passes};
use super::crash_isolation::{PoisonInput, fingerprint};
use super::fault::{Fault, OVERFLOW, is_of_process};
use super::letters::Decided;
use super::message::Unreadable;
use super::recording::{HistoryEntry, kind_in_full, source};
use super::staging::Run;
use super::watch::Told;
use crate::storage::StorageError;
use crate::storage::rows::{DeadLetter, EXCERPT_BYTES, HistoryOutcome};

impl Run<'_> {
    /// What happens to an input that killed the process too often.
    pub fn poison(&self, input: &Input) -> Option<PoisonInput> {
        let poison = &self.ground.isolation.poison;
        if poison.is_empty() {
            return None;
        }
        poison.get(&fingerprint(input)).copied()
    }

    /// Writes an input to the dead letters that killed the process too often.
    pub fn dead_letter_poison(
        &mut self,
        input: &Input,
        record: Option<Record>,
        poison: PoisonInput,
        turn: Turn,
    ) -> Result<Fate, StorageError> {
        let turn = Turn {
            attempts: poison.attempts,
            ..turn
        };
        let fault = Fault::crash(input, poison);
        let fault = Fault {
            // The inputs of a schedule do not depend on each other.
            parks: fault.parks && !schedule::is_address(&input.instance.key),
            ..fault
        };
        self.dead_letter(input, record, fault, turn)
    }

    /// Writes an input to the dead letters. What comes later for its instance waits behind it, unless it is a
    /// control, which has no place in the order of the instance, or a result: what waits for that goes on with an
    /// unknown outcome, where one can be applied.
    pub fn dead_letter(
        &mut self,
        input: &Input,
        record: Option<Record>,
        fault: Fault,
        turn: Turn,
    ) -> Result<Fate, StorageError> {
        let id = &input.instance;
        let number = self.next_sequence();
        let Fault {
            reason,
            message,
            parks,
            completes,
        } = fault;
        let mut letter = self.letter(input, record.as_ref(), (reason, message), turn);
        self.batch.put_dead_letter(number, &letter)?;
        let story = &mut self.staged.story;
        story.dead(input, record.as_ref(), &letter.reason, number);
        if let (InputBody::Control(Control::RegisterAlias { owner }), Some(alias)) =
            (&input.body, Alias::of(&id.key))
        {
            self.answer_owner(&alias, input, owner, turn, OwnerAnswer::Refused)?;
        }
        match record {
            Some(mut record) => {
                let previous = record.last_history;
                let entry = HistoryEntry {
                    outcome: HistoryOutcome::Dead {
                        number,
                        reason: letter.reason.clone(),
                    },
                    notes: Vec::new(),
                    late_source: turn.late_source,
                    work: Vec::new(),
                };
                self.write_history(input, previous, &mut record, entry, number)?;
                self.change(id, record);
            }
            None => self.staged.records.give_back(id, None),
        }
        self.tell(
            input,
            Told::Dead {
                reason: &letter.reason,
                message: &letter.message,
            },
        );
        // What has passed a dead letter does not take its place.
        let has_passed = passes(input) && self.waiting(id).behind.is_some();
        if !parks || has_passed || matches!(input.body, InputBody::Control(_)) {
            return Ok(Fate::Done);
        }
        if let InputBody::Result(result) = &input.body
            && completes
        {
            match self.complete_as_unknown(input, None, result, &letter.message)? {
                Ok(fate) => return Ok(fate),
                Err(next) => {
                    letter.message = format!(
                        "{}; nor can an unknown outcome be applied in its place: {}: {}",
                        letter.message, next.reason, next.message
                    );
                    self.batch.put_dead_letter(number, &letter)?;
                }
            }
        }
        let mut waiting = self.waiting(id);
        waiting.behind = Some(number);
        self.batch.put_blocked(id, Some(number))?;
        self.set_waiting(id, waiting);
        self.staged.story.blocked(id, number);
        Ok(Fate::Poison)
    }

    /// Applies an unknown outcome in the place of a result, to whatever waits for the result; `decided`: an operator has said
    /// so. A fault: that cannot be applied either, and nothing has changed.
    pub(super) fn complete_as_unknown(
        &mut self,
        input: &Input,
        decided: Option<Decided>,
        result: &WorkResult,
        reason: &str,
    ) -> Result<Result<Fate, Fault>, StorageError> {
        let id = &input.instance;
        let result = WorkResult {
            outcome: WorkOutcome::not_applied(reason),
            ..result.clone()
        };
        let input = Input {
            body: InputBody::Result(result.clone()),
            ..input.clone()
        };
        self.instead(&input, decided, |definition, record, context| {
            apply(definition, id, Some(record), &input, context)
        })
    }

    /// Writes what `transition` makes of the instance of an input, where something in it waits for the input, behind what was
    /// `decided`. A fault: nothing has changed.
    pub(super) fn instead(
        &mut self,
        input: &Input,
        decided: Option<Decided>,
        transition: impl Fn(&Definition, &Record, &Context<'_>) -> Result<Patch, Rejection>,
    ) -> Result<Result<Fate, Fault>, StorageError> {
        let id = &input.instance;
        let record = match self.staged.records.take(self.batch, id)? {
            Some(record) if awaits(&record, input) => record,
            record => {
                self.staged.records.give_back(id, record);
                return Ok(Ok(Fate::Done));
            }
        };
        let Some(definition) = self.ground.definitions.by_hash(&record.definition) else {
            let fault = Fault::without_definition(&record.definition);
            self.staged.records.give_back(id, Some(record));
            return Ok(Err(fault));
        };
        let decided = decided.map(|decided| (self.next_sequence(), decided));
        let log_sequence = self.next_sequence();
        let context = Context {
            limits: self.ground.limits,
            cluster: self.ground.cluster,
            log_sequence,
            generation: record.generation,
            again: false,
        };
        let applied = catch_unwind(AssertUnwindSafe(|| transition(definition, &record, &context)));
        let fault = match applied {
            Ok(Ok(patch)) => {
                let mut record = record;
                if let Some((number, decided)) = decided {
                    self.write_decision(input, &mut record, decided, number)?;
                }
                let written = self.write(input, Some(record), patch, log_sequence, Turn::FIRST);
                return written.map(Ok);
            }
            Ok(Err(rejection)) => rejection.into(),
            Err(_) => Fault::panic(),
        };
        self.staged.records.give_back(id, Some(record));
        Ok(Err(fault))
    }

    fn letter(
        &self,
        input: &Input,
        record: Option<&Record>,
        (reason, message): (&str, String),
        turn: Turn,
    ) -> DeadLetter {
        let id = &input.instance;
        DeadLetter {
            tenant: id.tenant.clone(),
            reason: reason.to_owned(),
            message,
            subject: kind_in_full(input),
            time: input.time,
            source: source(input),
            attempts: turn.attempts,
            input: Some(input.clone()),
            excerpt: excerpt(input),
            payload_hash: None,
            about: refused_owner(input),
            met: self.met(id, record),
        }
    }

    /// The version of its saga that an input meets.
    fn met(&self, id: &InstanceId, record: Option<&Record>) -> Option<DefinitionHash> {
        let active = || self.ground.definitions.active(&id.saga);
        let of_record = record.map(|record| record.definition);
        of_record.or_else(|| active().map(|definition| definition.hash))
    }

    /// Writes a message that never became an input to the dead letters.
    pub fn unreadable(&mut self, stream: SourceStream, message: &Unreadable) -> Result<(), StorageError> {
        self.staged.inputs += 1;
        let number = self.next_sequence();
        let letter = DeadLetter {
            tenant: message.tenant.clone(),
            reason: message.reason.to_owned(),
            message: message.message.clone(),
            subject: message.subject.clone(),
            time: message.time,
            source: Some((stream, message.sequence)),
            attempts: 0,
            input: None,
            excerpt: message.excerpt.clone(),
            payload_hash: Some(message.payload_hash),
            about: None,
            met: None,
        };
        self.staged.counts.unreadable(&message.tenant, message.reason);
        self.staged.story.unreadable(message, stream, number);
        self.batch.put_dead_letter(number, &letter)
    }

    /// Makes an input the dead letter that it was when its instance was recorded, for a reason that does not lie in the input:
    /// the process died of it, or there was no room. `in_place_too`: nor could an unknown outcome be applied in its place.
    /// False: for another reason, which comes about by itself.
    ///
    /// # Errors
    /// [`StorageError`]: nothing of the transaction is to remain.
    pub fn dead_letter_as_recorded(
        &mut self,
        input: &Input,
        reason: &str,
        in_place_too: bool,
    ) -> Result<bool, StorageError> {
        let id = &input.instance;
        let record = self.staged.records.take(self.batch, id)?;
        let fate = match reason {
            reason if is_of_process(reason) => {
                let poison = PoisonInput {
                    attempts: 1,
                    in_place_too,
                };
                self.dead_letter_poison(input, record, poison, Turn::FIRST)?
            }
            OVERFLOW => {
                let fault = Fault::overflow(self.ground.limits);
                self.dead_letter(input, record, fault, Turn::FIRST)?
            }
            _ => {
                self.staged.records.give_back(id, record);
                return Ok(false);
            }
        };
        self.follow(input, fate)?;
        Ok(true)
    }
}

/// The instance that an alias was refused to.
fn refused_owner(input: &Input) -> Option<InstanceId> {
    match &input.body {
        InputBody::Control(Control::RegisterAlias { owner }) => Some(InstanceId {
            key: owner.key.clone(),
            ..input.instance.clone()
        }),
        InputBody::Event(_) | InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => None,
    }
}

fn excerpt(input: &Input) -> Bytes {
    match &input.body {
        InputBody::Event(event) => event.payload.slice(..event.payload.len().min(EXCERPT_BYTES)),
        InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => Bytes::new(),
    }
}
