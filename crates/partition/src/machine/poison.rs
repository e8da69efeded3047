//! Inputs that cannot be applied: dead letters, and what an operator decides about them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use saga_runner_kernel::alias::Alias;
use saga_runner_kernel::definition::Definition;
use saga_runner_kernel::ids::{DefinitionHash, InstanceId, TenantId};
use saga_runner_kernel::input::{
    Control, Input, InputBody, Origin, Owner, SourceStream, WorkOutcome, WorkResult,
};
use saga_runner_kernel::limits::Limits;
use saga_runner_kernel::patch::Patch;
use saga_runner_kernel::planted::{Bug, is_planted};
use saga_runner_kernel::record::Record;
use saga_runner_kernel::schedule;
use saga_runner_kernel::transition::{Context, NO_INSTANCE, Rejection, apply, awaits, discard_timer};

use super::apply::{Fate, HistoryEntry, Turn, kind_in_full, passes, source};
use super::crash_isolation::{PoisonInput, fingerprint};
use super::message::{Answer, LetterDecision, Refused, Unreadable};
use super::staging::Run;
use super::watch::Told;
use crate::storage::StorageError;
use crate::storage::rows::{DeadLetter, EXCERPT_BYTES, HistoryOutcome, WaitReason, Waiting};

const CRASH: &str = "poison.crash";
const PANIC: &str = "poison.panic";
const OVERFLOW: &str = "inbox.overflow";

/// Why an input becomes a dead letter.
#[derive(Debug)]
pub struct Fault {
    reason: &'static str,
    message: String,
    /// Whether later inputs of the instance wait for an operator's decision.
    parks: bool,
    /// Whether an unknown outcome is applied in the place of a result, instead of that.
    completes: bool,
}

impl Fault {
    fn crash(input: &Input, poison: PoisonInput) -> Self {
        let PoisonInput {
            attempts,
            in_place_too,
        } = poison;
        let what = match &input.body {
            InputBody::Result(_) if in_place_too => "this result, or an unknown outcome in its place",
            InputBody::Result(_) => "this result",
            InputBody::Event(_) | InputBody::Timer { .. } | InputBody::Control(_) => "this input",
        };
        Self {
            reason: CRASH,
            message: format!("the process died {attempts} times while it applied {what}"),
            parks: true,
            completes: !in_place_too,
        }
    }

    pub fn panic() -> Self {
        Self {
            reason: PANIC,
            message: "the transition panicked; please report it".to_owned(),
            parks: true,
            completes: true,
        }
    }

    fn without_definition(definition: &DefinitionHash) -> Self {
        Self {
            reason: "definition.missing",
            message: format!("definition {definition} is not loaded"),
            parks: true,
            completes: false,
        }
    }

    /// What an operator is told where this prevents a decision.
    fn told(self) -> String {
        let Self { reason, message, .. } = self;
        format!("what waits for it cannot be completed, so it stays: {reason}: {message}")
    }

    /// The first one stands, so nothing waits for a decision on this one.
    pub fn conflict(input: &Input) -> Self {
        let (reason, message) = match &input.body {
            InputBody::Result(result) => (
                "result.conflict",
                format!("command {} has another result already", result.command_id),
            ),
            InputBody::Event(_) | InputBody::Timer { .. } | InputBody::Control(_) => (
                "event_id.conflict",
                format!("{} came before under the same id, with other content", input.id),
            ),
        };
        Self {
            reason,
            message,
            parks: false,
            completes: false,
        }
    }

    /// So is the place for events whose instances have not begun.
    pub fn early(limits: &Limits) -> Self {
        Self {
            reason: OVERFLOW,
            message: format!(
                "more than {} inputs or {} bytes of this shard wait for instances to begin, or more than {} inputs or {} bytes for this one",
                limits.early_inputs, limits.early_bytes, limits.inbox_inputs, limits.inbox_bytes
            ),
            parks: false,
            completes: false,
        }
    }

    /// The instance continues without the alias, and is told so.
    pub fn alias_owners(alias: &Alias, owner: &Owner, max: usize) -> Self {
        Self {
            reason: "alias.owners",
            message: format!(
                "at most {max} instances have the alias {} {:?}; instance {} is not among them",
                alias.name, alias.value, owner.key
            ),
            parks: false,
            completes: false,
        }
    }

    pub fn alias_size(bytes: usize, max: usize) -> Self {
        Self {
            reason: "alias.size",
            message: format!(
                "the event has {bytes} bytes and would not fit into a message of {max} bytes with its address"
            ),
            parks: false,
            completes: false,
        }
    }

    /// As for an event without an instance.
    pub fn unmatched(alias: &Alias, input: &Input) -> Self {
        Self {
            reason: NO_INSTANCE,
            message: format!(
                "{}: no instance has the alias {} {:?}",
                kind_in_full(input),
                alias.name,
                alias.value
            ),
            parks: false,
            completes: false,
        }
    }

    /// The inbox is a bounded place; what does not fit is lost to it, but not to the operator.
    pub fn overflow(limits: &Limits) -> Self {
        Self {
            reason: OVERFLOW,
            message: format!(
                "more than {} inputs or {} bytes wait for this instance",
                limits.inbox_inputs, limits.inbox_bytes
            ),
            parks: false,
            completes: false,
        }
    }
}

impl From<Rejection> for Fault {
    fn from(rejection: Rejection) -> Self {
        Self {
            parks: rejection.parks(),
            completes: true,
            reason: rejection.reason,
            message: rejection.message,
        }
    }
}

impl Run<'_> {
    /// What becomes of an input that killed the process too often.
    pub fn poison(&self, input: &Input) -> Option<PoisonInput> {
        if self.ground.poison.is_empty() {
            return None;
        }
        self.ground.poison.get(&fingerprint(input)).copied()
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
        let mut letter = DeadLetter {
            tenant: id.tenant.clone(),
            reason: fault.reason.to_owned(),
            message: fault.message,
            subject: kind_in_full(input),
            time: input.time,
            source: source(input),
            attempts: turn.attempts,
            input: Some(input.clone()),
            excerpt: excerpt(input),
            payload_hash: None,
            about: refused_owner(input),
        };
        self.batch.put_dead_letter(number, &letter)?;
        if let (InputBody::Control(Control::RegisterAlias { owner }), Some(alias)) =
            (&input.body, Alias::of(&id.key))
        {
            self.answer_owner(&alias, input, owner, turn, true)?;
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
                };
                self.write_history(input, previous, &mut record, entry, number)?;
                self.staged.records.change(id, record);
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
        tracing::warn!(
            instance = %id, reason = letter.reason, dead_letter = number,
            "an input cannot be applied and is a dead letter"
        );
        // What has passed a dead letter does not take its place.
        let has_passed = passes(input) && self.waiting(id).behind.is_some();
        if !fault.parks || has_passed || matches!(input.body, InputBody::Control(_)) {
            return Ok(Fate::Done);
        }
        if let InputBody::Result(result) = &input.body
            && fault.completes
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
        Ok(Fate::Poison)
    }

    /// Applies an unknown outcome in the place of a result, to whatever waits for the result; `decided`: an operator has said
    /// so. A fault: that cannot be applied either, and nothing has changed.
    fn complete_as_unknown(
        &mut self,
        input: &Input,
        decided: Option<HistoryOutcome>,
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
    fn instead(
        &mut self,
        input: &Input,
        decided: Option<HistoryOutcome>,
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
        };
        self.staged.counts.dead(None, message.reason);
        self.batch.put_dead_letter(number, &letter)
    }

    /// Carries out an operator's decision; the outer result is storage's, the inner one the operator's.
    pub fn decide(
        &mut self,
        tenant: &TenantId,
        number: u64,
        decision: LetterDecision,
    ) -> Result<Answer, StorageError> {
        let found = self.batch.dead_letter(number)?;
        let Some(letter) = found.filter(|letter| letter.tenant == *tenant) else {
            return Ok(Err(Refused::NotFound("dead letter")));
        };
        let Some(input) = letter.input else {
            return match decision {
                LetterDecision::Discard => self.batch.delete_dead_letter(number).map(Ok),
                LetterDecision::Retry => Ok(Err(Refused::Conflict(
                    "the message could not be read: publish it again, corrected".into(),
                ))),
            };
        };
        self.staged.inputs += 1;
        let id = &input.instance;
        if schedule::is_address(&id.key) {
            self.batch.delete_dead_letter(number)?;
            return match decision {
                LetterDecision::Retry => self.take_scheduled(&input),
                LetterDecision::Discard => self.forgo(&input),
            }
            .map(Ok);
        }
        let mut waiting = self.waiting(id);
        let stood_in_the_way = waiting.behind == Some(number);
        let may_apply = stood_in_the_way || !waiting.is_blocked();
        let decided = match decision {
            LetterDecision::Retry => HistoryOutcome::Retried { number },
            LetterDecision::Discard => HistoryOutcome::Discarded { number },
        };
        let mut fate = Fate::Done;
        if self.is_awaited(&input)? {
            if decision == LetterDecision::Retry || is_planted(Bug::DiscardForgets) {
                self.note_decision(&input, decided)?;
            } else {
                if !may_apply {
                    return Ok(Err(Refused::Conflict(blocked(waiting).into())));
                }
                match self.give_up(&input, decided)? {
                    Ok(applied) => fate = applied,
                    Err(fault) => return Ok(Err(Refused::Conflict(fault.told().into()))),
                }
            }
        } else if decision == LetterDecision::Retry && may_apply && matches!(input.body, InputBody::Result(_))
        {
            return Ok(Err(Refused::Conflict(
                "nothing waits for it any more: it can be discarded only".into(),
            )));
        } else {
            self.note_decision(&input, decided)?;
        }
        self.batch.delete_dead_letter(number)?;
        if stood_in_the_way {
            waiting = self.waiting(id);
            waiting.behind = None;
            self.batch.put_blocked(id, None)?;
            self.set_waiting(id, waiting);
        }
        let turn = Turn {
            attempts: letter.attempts.saturating_add(1),
            behind_aliases: true,
            ..Turn::FIRST
        };
        let fate = match decision {
            LetterDecision::Retry if may_apply => self.apply_now(&input, turn)?,
            LetterDecision::Retry => {
                self.wait(&input, WaitReason::Blocked)?;
                Fate::Done
            }
            LetterDecision::Discard => self.follow(id, fate)?,
        };
        // With care they are begun one by one, each behind its own note.
        if stood_in_the_way && fate != Fate::Poison && !self.ground.isolates {
            self.drain(id, usize::MAX)?;
        }
        Ok(Ok(()))
    }

    /// Whether something in the instance waits for this input and for nothing else, so that it would wait for ever
    /// if the input were forgotten.
    fn is_awaited(&mut self, input: &Input) -> Result<bool, StorageError> {
        let record = self.staged.records.take(self.batch, &input.instance)?;
        let awaited = record.as_ref().is_some_and(|record| awaits(record, input));
        self.staged.records.give_back(&input.instance, record);
        Ok(awaited)
    }

    /// Completes what waits for an input that an operator discards. A fault: that cannot be done, and nothing has
    /// changed.
    fn give_up(
        &mut self,
        input: &Input,
        decided: HistoryOutcome,
    ) -> Result<Result<Fate, Fault>, StorageError> {
        match &input.body {
            InputBody::Result(result) => {
                self.complete_as_unknown(input, Some(decided), result, "an operator has discarded it")
            }
            InputBody::Timer { .. } => self.instead(input, Some(decided), |definition, record, context| {
                discard_timer(definition, &input.instance, record, input, context)
            }),
            InputBody::Event(_) | InputBody::Control(_) => {
                self.note_decision(input, decided)?;
                Ok(Ok(Fate::Done))
            }
        }
    }

    /// Adds to the history of an instance what an operator has decided about one of its dead letters.
    fn note_decision(&mut self, input: &Input, decided: HistoryOutcome) -> Result<(), StorageError> {
        let id = &input.instance;
        let Some(mut record) = self.staged.records.take(self.batch, id)? else {
            self.staged.records.give_back(id, None);
            return Ok(());
        };
        let number = self.next_sequence();
        self.write_decision(input, &mut record, decided, number)?;
        self.staged.records.change(id, record);
        Ok(())
    }

    fn write_decision(
        &self,
        input: &Input,
        record: &mut Record,
        decided: HistoryOutcome,
        number: u64,
    ) -> Result<(), StorageError> {
        // It comes from no stream, and now.
        let decision = Input {
            time: self.ground.now,
            origin: Origin::Local,
            ..input.clone()
        };
        let entry = HistoryEntry {
            outcome: decided,
            notes: Vec::new(),
            late_source: false,
        };
        self.write_history(&decision, record.last_history, record, entry, number)
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
            CRASH | PANIC => {
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
        self.follow(id, fate)?;
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

/// Why a decision has to wait for another one.
fn blocked(waiting: Waiting) -> String {
    match waiting.behind {
        Some(number) => {
            format!("its instance waits behind dead letter {number}: decide about that one first")
        }
        None => "inputs of its instance wait for their definition, which is not loaded".to_owned(),
    }
}

fn excerpt(input: &Input) -> Bytes {
    match &input.body {
        InputBody::Event(event) => event.payload.slice(..event.payload.len().min(EXCERPT_BYTES)),
        InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => Bytes::new(),
    }
}
