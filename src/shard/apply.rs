//! One input in one batch: looked up, applied by the kernel, written as rows; or parked, or dead.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use super::mailbox::{DeadLetterDecision, Unreadable};
use super::staging::{Staging, Tally};
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::ids::{InstanceId, TenantId, TimeMs};
use crate::kernel::input::{Input, InputBody, Origin};
use crate::kernel::limits::Limits;
use crate::kernel::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::kernel::record::Record;
use crate::kernel::transition::{Context, Rejection, apply};
use crate::kernel::work::WorkRef;
use crate::storage::rows::{DeadLetter, EndedRow, HistoryRow, InboxRow, WaitReason};
use crate::storage::{Batch, StorageError};

/// Bytes of a payload that a dead letter shows.
const EXCERPT_BYTES: usize = 1024;
/// Most inputs that one input may set free at once; the rest follows with the next one.
const READMITTED_MAX: usize = 1_000;

/// Reason of an input whose instance runs under a definition that is not loaded.
pub(super) const UNKNOWN_DEFINITION: &str = "version.unsupported";

/// What applying needs besides the batch.
pub(super) struct Bench<'a> {
    pub definitions: &'a DefinitionSet,
    pub limits: &'a Limits,
    /// Instances behind a dead letter, as of the last commit.
    pub parked: &'a BTreeMap<InstanceId, u64>,
    pub now: TimeMs,
}

impl Bench<'_> {
    /// Applies an input and whatever it sets free.
    pub fn apply(&self, batch: &Batch<'_>, staging: &mut Staging, input: &Input) -> Result<(), StorageError> {
        staging.inputs += 1;
        staging.counters.last_time = staging.counters.last_time.max(input.time);
        if self.dead_letter_before(staging, &input.instance).is_some()
            && !matches!(input.body, InputBody::Control(_))
        {
            return self.wait(batch, staging, input, WaitReason::Parked);
        }
        self.run(batch, staging, input)
    }

    /// Writes a message that never became an input to the dead letters.
    pub fn unreadable(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        stream: crate::kernel::input::SourceStream,
        message: &Unreadable,
    ) -> Result<(), StorageError> {
        staging.inputs += 1;
        let number = staging.next_sequence();
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
        };
        batch.put_dead_letter(number, &letter)?;
        staging.tally.push(Tally::Dead {
            reason: letter.reason,
        });
        Ok(())
    }

    /// Gives up on an input before it is begun: it has killed the process too often.
    pub fn give_up(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        input: &Input,
        attempts: u32,
    ) -> Result<(), StorageError> {
        staging.inputs += 1;
        let rejection = Rejection {
            reason: "poison.crash",
            message: format!("the process died {attempts} times while it applied this input"),
        };
        self.bury(batch, staging, input, &rejection, attempts)
    }

    /// Carries out an operator's decision; the outer result is storage's, the inner one the operator's.
    pub fn decide(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        tenant: &TenantId,
        number: u64,
        decision: DeadLetterDecision,
    ) -> Result<Result<(), String>, StorageError> {
        let Some(letter) = batch
            .dead_letter(number)?
            .filter(|letter| letter.tenant == *tenant)
        else {
            return Ok(Err("no such dead letter".to_owned()));
        };
        let Some(input) = letter.input else {
            return match decision {
                DeadLetterDecision::Discard => batch.delete_dead_letter(number).map(Ok),
                DeadLetterDecision::Retry => Ok(Err(
                    "the message could not be read: publish it again, corrected".to_owned(),
                )),
            };
        };
        let id = input.instance.clone();
        match self.dead_letter_before(staging, &id) {
            Some(first) if first != number => {
                return Ok(Err(format!(
                    "dead letter {first} of the same instance comes first"
                )));
            }
            _ => {}
        }
        batch.delete_dead_letter(number)?;
        staging.parked.insert(id.clone(), None);
        staging.inputs += 1;
        if decision == DeadLetterDecision::Retry {
            self.run(batch, staging, &input)?;
        }
        self.drain_inbox(batch, staging, &id)?;
        // Inputs that overflowed the inbox came later than all that waited there.
        if self.dead_letter_before(staging, &id).is_none()
            && let Some(next) = batch.dead_letter_of(&id)?
        {
            staging.parked.insert(id, Some(next));
        }
        Ok(Ok(()))
    }

    /// The dead letter that an instance waits behind, as this batch sees it.
    fn dead_letter_before(&self, staging: &Staging, id: &InstanceId) -> Option<u64> {
        match staging.parked.get(id) {
            Some(changed) => *changed,
            None => self.parked.get(id).copied(),
        }
    }

    /// Applies what waits for an instance, oldest first, until one of them is poison.
    fn drain_inbox(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        id: &InstanceId,
    ) -> Result<(), StorageError> {
        for (number, row, _) in batch.inbox(id)?.into_iter().take(READMITTED_MAX) {
            if self.dead_letter_before(staging, id).is_some() {
                return Ok(());
            }
            if row.reason == WaitReason::Deferred {
                continue;
            }
            batch.delete_inbox(id, number)?;
            self.run(batch, staging, &row.input)?;
        }
        Ok(())
    }

    /// Applies an input, then those that it readmits, in order.
    fn run(&self, batch: &Batch<'_>, staging: &mut Staging, first: &Input) -> Result<(), StorageError> {
        let mut queue = VecDeque::new();
        self.run_one(batch, staging, first, &mut queue)?;
        let mut readmitted = 0;
        while let Some(input) = queue.pop_front() {
            readmitted += 1;
            if readmitted > READMITTED_MAX || self.dead_letter_before(staging, &input.instance).is_some() {
                self.wait(batch, staging, &input, WaitReason::Parked)?;
            } else {
                self.run_one(batch, staging, &input, &mut queue)?;
            }
        }
        Ok(())
    }

    fn run_one(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        input: &Input,
        queue: &mut VecDeque<Input>,
    ) -> Result<(), StorageError> {
        let id = &input.instance;
        let record = staging.record(batch, id)?;
        let definition = match &record {
            Some(record) => self.definitions.by_hash(&record.definition),
            None => self.definitions.active(&id.saga),
        };
        let Some(definition) = definition else {
            return match record {
                Some(record) => {
                    let rejection = Rejection {
                        reason: UNKNOWN_DEFINITION,
                        message: format!("definition {} is not loaded", record.definition),
                    };
                    self.bury(batch, staging, input, &rejection, 0)
                }
                None => {
                    tally(staging, input, Outcome::Ignored(IgnoreReason::NoInstance));
                    Ok(())
                }
            };
        };
        let mut generation = 1;
        if record.is_none()
            && starts(definition, input)
            && let Some(tombstone) = batch.tombstone(id)?
        {
            generation = tombstone.generation.saturating_add(1);
            if generation > 1 {
                // A finished key is not opened again.
                tally(staging, input, Outcome::Ignored(IgnoreReason::Ended));
                return Ok(());
            }
        }
        let log_sequence = staging.next_sequence();
        let context = Context {
            limits: self.limits,
            log_sequence,
            generation,
        };
        let applied = catch_unwind(AssertUnwindSafe(|| {
            apply(definition, id, record.as_ref(), input, &context)
        }));
        match applied {
            Ok(Ok(patch)) => self.write(batch, staging, input, record.as_ref(), patch, log_sequence, queue),
            Ok(Err(rejection)) => self.bury(batch, staging, input, &rejection, 1),
            Err(_) => {
                let rejection = Rejection {
                    reason: "panic",
                    message: "the transition panicked; please report it".to_owned(),
                };
                self.bury(batch, staging, input, &rejection, 1)
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "all of one transition, used once")]
    fn write(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        input: &Input,
        before: Option<&Record>,
        patch: Patch,
        log_sequence: u64,
        queue: &mut VecDeque<Input>,
    ) -> Result<(), StorageError> {
        let id = &input.instance;
        tally(staging, input, patch.outcome);
        for row in &patch.settled {
            if batch.delete_work(*row)? {
                staging.released.settled.push(*row);
            }
        }
        if patch.deferred {
            let row = InboxRow {
                reason: WaitReason::Deferred,
                input: input.clone(),
            };
            if !self.fits_inbox(batch, id, &row)? {
                return self.overflow(batch, staging, input);
            }
            batch.put_inbox(id, log_sequence, &row)?;
        }
        for (index, mut item) in patch.work.into_iter().enumerate() {
            // Deadlines count from the input's time. What waited in a backlog was not sent meanwhile, so the wait
            // is added; otherwise work of a long outage would be over before it begins.
            item.deadline = item
                .deadline
                .plus_ms(self.now.0.saturating_sub(item.created.0).max(0));
            let row = WorkRef {
                log_sequence,
                index: u16::try_from(index).expect("the kernel bounds the work of an input"),
            };
            batch.put_work(row, &item)?;
            staging.released.work.push((row, item));
        }
        for timer in &patch.timers_cleared {
            batch.delete_timer(timer.due, timer.set_by)?;
        }
        for timer in &patch.timers_set {
            batch.put_timer(id, timer)?;
        }
        if before.is_none() && (patch.record.is_some() || patch.ended.is_some()) {
            staging.tally.push(Tally::Started {
                saga: id.saga.to_string(),
            });
        }
        let previous = before.and_then(|record| record.last_history);
        let mut kept = previous;
        if patch.outcome != Outcome::Ignored(IgnoreReason::Duplicate)
            && (patch.record.is_some() || patch.ended.is_some() || !patch.notes.is_empty())
        {
            self.write_history(batch, input, patch.outcome, patch.notes, previous, log_sequence)?;
            kept = Some(log_sequence);
        }
        if let Some(mut record) = patch.record {
            record.last_history = kept;
            staging.put_record(id, record);
        } else if let Some(mut summary) = patch.ended {
            summary.record.last_history = kept;
            staging.tally.push(Tally::Ended {
                saga: id.saga.to_string(),
                phase: summary.record.phase.as_str(),
            });
            let row = EndedRow {
                instance: id.clone(),
                summary,
            };
            batch.end(log_sequence, &row)?;
            staging.forget_record(id);
            staging.ended += 1;
        }
        if patch.readmit {
            for (number, row, _) in batch.inbox(id)? {
                if row.reason == WaitReason::Deferred {
                    batch.delete_inbox(id, number)?;
                    queue.push_back(row.input);
                }
            }
        }
        Ok(())
    }

    fn write_history(
        &self,
        batch: &Batch<'_>,
        input: &Input,
        outcome: Outcome,
        notes: Vec<Note>,
        previous: Option<u64>,
        log_sequence: u64,
    ) -> Result<(), StorageError> {
        let row = HistoryRow {
            instance: input.instance.clone(),
            input_id: input.id.clone(),
            kind: kind_in_full(input),
            time: input.time,
            source: source(input),
            outcome,
            notes,
            previous,
        };
        batch.put_history(log_sequence, &row)
    }

    fn wait(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        input: &Input,
        reason: WaitReason,
    ) -> Result<(), StorageError> {
        let row = InboxRow {
            reason,
            input: input.clone(),
        };
        if !self.fits_inbox(batch, &input.instance, &row)? {
            return self.overflow(batch, staging, input);
        }
        let number = staging.next_sequence();
        batch.put_inbox(&input.instance, number, &row)?;
        staging.tally.push(Tally::Input {
            kind: kind(input),
            outcome: "waiting",
        });
        Ok(())
    }

    fn fits_inbox(&self, batch: &Batch<'_>, id: &InstanceId, row: &InboxRow) -> Result<bool, StorageError> {
        let waiting = batch.inbox(id)?;
        let bytes: usize = waiting.iter().map(|(_, _, bytes)| bytes).sum();
        let more = match &row.input.body {
            InputBody::Event(event) => event.payload.len(),
            InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => 0,
        };
        Ok(waiting.len() < self.limits.inbox_inputs && bytes + more < self.limits.inbox_bytes)
    }

    fn overflow(&self, batch: &Batch<'_>, staging: &mut Staging, input: &Input) -> Result<(), StorageError> {
        let rejection = Rejection {
            reason: "inbox.overflow",
            message: format!(
                "more than {} inputs or {} bytes wait for this instance",
                self.limits.inbox_inputs, self.limits.inbox_bytes
            ),
        };
        self.bury(batch, staging, input, &rejection, 0)
    }

    /// Writes an input to the dead letters; what comes later for its instance waits behind it.
    fn bury(
        &self,
        batch: &Batch<'_>,
        staging: &mut Staging,
        input: &Input,
        rejection: &Rejection,
        attempts: u32,
    ) -> Result<(), StorageError> {
        let number = staging.next_sequence();
        let excerpt = match &input.body {
            InputBody::Event(event) => event.payload.slice(..event.payload.len().min(EXCERPT_BYTES)),
            InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => Bytes::new(),
        };
        let letter = DeadLetter {
            tenant: input.instance.tenant.clone(),
            reason: rejection.reason.to_owned(),
            message: rejection.message.clone(),
            subject: kind_in_full(input),
            time: input.time,
            source: source(input),
            attempts,
            input: Some(input.clone()),
            excerpt,
        };
        tracing::warn!(
            instance = %input.instance, reason = rejection.reason, dead_letter = number,
            "an input cannot be applied; what comes later for its instance waits"
        );
        batch.put_dead_letter(number, &letter)?;
        if self.dead_letter_before(staging, &input.instance).is_none() {
            staging.parked.insert(input.instance.clone(), Some(number));
        }
        staging.tally.push(Tally::Input {
            kind: kind(input),
            outcome: "dead",
        });
        staging.tally.push(Tally::Dead {
            reason: rejection.reason.to_owned(),
        });
        Ok(())
    }
}

fn starts(definition: &Definition, input: &Input) -> bool {
    match &input.body {
        InputBody::Event(event) => definition.start.contains(&event.event_type),
        InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => false,
    }
}

fn tally(staging: &mut Staging, input: &Input, outcome: Outcome) {
    let outcome = match outcome {
        Outcome::Applied => "applied",
        Outcome::Deferred => "deferred",
        Outcome::Ignored(reason) => reason.as_str(),
    };
    staging.tally.push(Tally::Input {
        kind: kind(input),
        outcome,
    });
}

const fn kind(input: &Input) -> &'static str {
    match input.body {
        InputBody::Event(_) => "event",
        InputBody::Result(_) => "result",
        InputBody::Timer { .. } => "timer",
        InputBody::Control(_) => "control",
    }
}

/// What an input is called in histories and dead letters.
fn kind_in_full(input: &Input) -> String {
    match &input.body {
        InputBody::Event(event) => format!("event {}", event.event_type),
        InputBody::Result(result) => match &result.effect {
            Some(effect) => format!("result of {effect}"),
            None => "verdict of the gateway".to_owned(),
        },
        InputBody::Timer { name } => format!("timer {name}"),
        InputBody::Control(_) => "control".to_owned(),
    }
}

const fn source(input: &Input) -> Option<(crate::kernel::input::SourceStream, u64)> {
    match input.origin {
        Origin::Stream { stream, sequence } => Some((stream, sequence)),
        Origin::Timer | Origin::Local => None,
    }
}

/// A timer as an input: its time is the instant it was due.
pub(super) fn timer_input(instance: InstanceId, name: String, due: TimeMs) -> Input {
    Input {
        id: format!("{name}@{}", due.0),
        instance,
        time: due,
        origin: Origin::Timer,
        body: InputBody::Timer { name },
    }
}
