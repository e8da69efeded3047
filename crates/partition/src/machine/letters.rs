//! What an operator decides about a dead letter: it is applied again or discarded, and its instance goes on.

use saga_runner_kernel::ids::TenantId;
use saga_runner_kernel::input::{Input, InputBody, Origin};
use saga_runner_kernel::planted::{Bug, is_planted};
use saga_runner_kernel::record::Record;
use saga_runner_kernel::schedule;
use saga_runner_kernel::transition::{awaits, discard_timer};

use super::apply::{Fate, Turn};
use super::fault::Fault;
use super::message::{Answer, LetterDecision, Refused};
use super::recording::HistoryEntry;
use super::staging::Run;
use crate::storage::StorageError;
use crate::storage::rows::{HistoryOutcome, WaitReason, Waiting};

impl Run<'_> {
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
        let waiting = self.waiting(id);
        let stood_in_the_way = waiting.behind == Some(number);
        let may_apply = stood_in_the_way || !waiting.is_blocked();
        let fate = match self.decide_awaited(&input, number, decision, may_apply)? {
            Ok(fate) => fate,
            Err(refused) => return Ok(Err(refused)),
        };
        self.batch.delete_dead_letter(number)?;
        if stood_in_the_way {
            let mut waiting = self.waiting(id);
            waiting.behind = None;
            self.batch.put_blocked(id, None)?;
            self.set_waiting(id, waiting);
        }
        let turn = Turn {
            attempts: letter.attempts.saturating_add(1),
            behind_aliases: true,
            // Should it have to wait once more, that is before what waits behind it.
            deferred_as: stood_in_the_way.then_some(number),
            ..Turn::FIRST
        };
        let fate = match decision {
            LetterDecision::Retry if may_apply => self.apply_now(&input, turn)?,
            LetterDecision::Retry => {
                self.wait(&input, WaitReason::Blocked)?;
                Fate::Done
            }
            LetterDecision::Discard => self.follow(&input, fate)?,
        };
        // With care they are begun one by one, each behind its own note.
        if stood_in_the_way && fate != Fate::Poison && !self.ground.isolation.is_needed_at_all() {
            self.drain(id, usize::MAX)?;
        }
        Ok(Ok(()))
    }

    /// Notes the decision, and completes what waits for an input that is discarded. Refused: nothing has changed.
    fn decide_awaited(
        &mut self,
        input: &Input,
        number: u64,
        decision: LetterDecision,
        may_apply: bool,
    ) -> Result<Result<Fate, Refused>, StorageError> {
        let decided = match decision {
            LetterDecision::Retry => HistoryOutcome::Retried { number },
            LetterDecision::Discard => HistoryOutcome::Discarded { number },
        };
        let is_retry = decision == LetterDecision::Retry;
        let is_awaited = self.is_awaited(input)?;
        if is_awaited && !is_retry && !is_planted(Bug::DiscardForgets) {
            if !may_apply {
                let waiting = self.waiting(&input.instance);
                return Ok(Err(Refused::Conflict(blocked(waiting).into())));
            }
            let given_up = self.give_up(input, decided)?;
            return Ok(given_up.map_err(|fault| Refused::Conflict(fault.told().into())));
        }
        if !is_awaited && is_retry && may_apply && matches!(input.body, InputBody::Result(_)) {
            return Ok(Err(Refused::Conflict(
                "nothing waits for it any more: it can be discarded only".into(),
            )));
        }
        self.note_decision(input, decided)?;
        Ok(Ok(Fate::Done))
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
        self.change(id, record);
        Ok(())
    }

    pub(super) fn write_decision(
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
