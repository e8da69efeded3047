//! Inputs that cannot be applied: dead letters, and what an operator decides about them.

use bytes::Bytes;

use super::apply::{Fate, HistoryEntry, Turn, kind_in_full, source};
use super::message::{DeadLetterDecision, Unreadable};
use super::staging::Run;
use super::watch::Told;
use crate::storage::StorageError;
use crate::storage::rows::{DeadLetter, HistoryOutcome, WaitReason};
use saga_runner_kernel::alias::Alias;
use saga_runner_kernel::ids::TenantId;
use saga_runner_kernel::input::{Control, Input, InputBody, Owner, SourceStream, WorkResult};
use saga_runner_kernel::limits::Limits;
use saga_runner_kernel::record::Record;
use saga_runner_kernel::transition::{NO_INSTANCE, Rejection};
use saga_runner_kernel::work::WorkRef;

/// Bytes of a payload that a dead letter shows.
const EXCERPT_BYTES: usize = 1024;

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
}

impl Fault {
    pub fn crash(attempts: u32) -> Self {
        Self {
            reason: CRASH,
            message: format!("the process died {attempts} times while it applied this input"),
            parks: true,
        }
    }

    pub fn panic() -> Self {
        Self {
            reason: PANIC,
            message: "the transition panicked; please report it".to_owned(),
            parks: true,
        }
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
        }
    }

    /// The instance goes on without the alias, and its owner is told here.
    pub fn alias_owners(owner: &Owner, max: usize) -> Self {
        Self {
            reason: "alias.owners",
            message: format!(
                "at most {max} instances have one alias; instance {} is not among them",
                owner.key
            ),
            parks: false,
        }
    }

    pub fn alias_size(bytes: usize, max: usize) -> Self {
        Self {
            reason: "alias.size",
            message: format!(
                "the event has {bytes} bytes and would not fit into a message of {max} bytes with its address"
            ),
            parks: false,
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
        }
    }
}

impl From<Rejection> for Fault {
    fn from(rejection: Rejection) -> Self {
        Self {
            parks: rejection.parks(),
            reason: rejection.reason,
            message: rejection.message,
        }
    }
}

impl Run<'_> {
    /// Writes an input to the dead letters. What comes later for its instance waits behind it, unless it is a
    /// control, which has no place in the order of the instance.
    pub fn bury(
        &mut self,
        input: &Input,
        record: Option<Record>,
        fault: Fault,
        turn: Turn,
    ) -> Result<Fate, StorageError> {
        let id = &input.instance;
        let number = self.next_sequence();
        let letter = DeadLetter {
            tenant: id.tenant.clone(),
            reason: fault.reason.to_owned(),
            message: fault.message,
            subject: kind_in_full(input),
            time: input.time,
            source: source(input),
            attempts: turn.attempts,
            input: may_come_again(input).then(|| input.clone()),
            excerpt: excerpt(input),
            payload_hash: None,
        };
        self.batch.put_dead_letter(number, &letter)?;
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
        if !fault.parks || matches!(input.body, InputBody::Control(_)) {
            return Ok(Fate::Settled);
        }
        let mut waiting = self.waiting(id);
        waiting.behind = Some(number);
        self.batch.put_parked(id, Some(number))?;
        self.set_waiting(id, waiting);
        Ok(Fate::Poison)
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
        };
        self.staged.tally.dead(None, message.reason);
        self.batch.put_dead_letter(number, &letter)
    }

    /// Carries out an operator's decision; the outer result is storage's, the inner one the operator's.
    pub fn decide(
        &mut self,
        tenant: &TenantId,
        number: u64,
        decision: DeadLetterDecision,
    ) -> Result<Result<(), String>, StorageError> {
        let found = self.batch.dead_letter(number)?;
        let Some(letter) = found.filter(|letter| letter.tenant == *tenant) else {
            return Ok(Err("no such dead letter".to_owned()));
        };
        let Some(input) = letter.input else {
            return match decision {
                DeadLetterDecision::Discard => self.batch.delete_dead_letter(number).map(Ok),
                DeadLetterDecision::Retry => Ok(Err(
                    "the message could not be read: publish it again, corrected".to_owned(),
                )),
            };
        };
        self.staged.inputs += 1;
        self.batch.delete_dead_letter(number)?;
        let id = &input.instance;
        let mut waiting = self.waiting(id);
        let stood_in_the_way = waiting.behind == Some(number);
        if stood_in_the_way {
            waiting.behind = None;
            self.batch.put_parked(id, None)?;
            self.set_waiting(id, waiting);
        }
        let turn = Turn {
            attempts: letter.attempts.saturating_add(1),
            ..Turn::FIRST
        };
        let fate = match decision {
            DeadLetterDecision::Retry if stood_in_the_way || !waiting.is_blocked() => {
                self.settle(&input, turn)?
            }
            DeadLetterDecision::Retry => {
                self.wait(&input, WaitReason::Parked)?;
                Fate::Settled
            }
            DeadLetterDecision::Discard => {
                if let InputBody::Result(result) = &input.body {
                    self.drop_work(&input, result)?;
                }
                Fate::Settled
            }
        };
        if stood_in_the_way && fate != Fate::Poison {
            self.drain(id)?;
        }
        Ok(Ok(()))
    }

    /// Deletes the outbox row whose result is discarded: as long as it stood there, the result would be looked
    /// up and applied again.
    fn drop_work(&mut self, input: &Input, result: &WorkResult) -> Result<(), StorageError> {
        let record = self.staged.records.take(self.batch, &input.instance)?;
        if let Some(row) = record.as_ref().and_then(|record| awaited_row(record, result))
            && self.batch.delete_work(row)?
        {
            self.staged.settled.push(row);
        }
        self.staged.records.give_back(&input.instance, record);
        Ok(())
    }
}

/// Whether an operator may have it applied later. An instance that has ended meanwhile would keep its alias for
/// ever.
const fn may_come_again(input: &Input) -> bool {
    !matches!(input.body, InputBody::Control(Control::RegisterAlias { .. }))
}

/// The outbox row of the command that a result is for.
fn awaited_row(record: &Record, result: &WorkResult) -> Option<WorkRef> {
    record
        .outstanding()
        .find(|outstanding| outstanding.command == result.command_id)
        .map(|outstanding| outstanding.row)
}

fn excerpt(input: &Input) -> Bytes {
    match &input.body {
        InputBody::Event(event) => event.payload.slice(..event.payload.len().min(EXCERPT_BYTES)),
        InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => Bytes::new(),
    }
}
