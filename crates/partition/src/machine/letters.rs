//! What an operator decides about a dead letter: it is applied again or discarded, and its instance goes on.

use saga_runner_kernel::ids::TenantId;
use saga_runner_kernel::input::{Input, InputBody, SourceStream};
use saga_runner_kernel::letters;
use saga_runner_kernel::patch::Note;
use saga_runner_kernel::planted::{Bug, is_planted};
use saga_runner_kernel::record::Record;
use saga_runner_kernel::schedule;
use saga_runner_kernel::transition::{awaits, discard_timer};

use super::apply::{Fate, Turn};
use super::fault::Fault;
use super::message::{Answer, LetterDecision, LetterOrder, Refused};
use super::recording::{kind_in_full, source};
use super::staging::Run;
use crate::storage::StorageError;
use crate::storage::rows::{HistoryOutcome, HistoryRow, WaitReason, Waiting};

/// A decision as the history tells it.
#[derive(Debug, Clone)]
pub(super) struct Decided {
    outcome: HistoryOutcome,
    notes: Vec<Note>,
    /// Of an edit: where the message is that was edited.
    source: Option<(SourceStream, u64)>,
}

impl Decided {
    fn of(number: u64, came: &Input, order: &LetterOrder) -> Self {
        let outcome = match (order.decision, &order.edited) {
            (LetterDecision::Retry, None) => HistoryOutcome::Retried { number },
            (LetterDecision::Retry, Some(edited)) => HistoryOutcome::Edited {
                number,
                original: letters::data(came).cloned().unwrap_or_default(),
                edited: edited.clone(),
            },
            (LetterDecision::Discard, _) => HistoryOutcome::Discarded { number },
        };
        let LetterOrder { principal, job, .. } = order;
        let note = Note::LetterDecided {
            by: principal.who.clone(),
            reason: principal.reason.clone(),
            job: job.clone(),
        };
        let is_said = !principal.is_silent() || !job.is_empty();
        Self {
            outcome,
            notes: is_said.then_some(note).into_iter().collect(),
            source: order.edited.as_ref().and(source(came)),
        }
    }
}

/// A dead letter about which is decided.
struct Case<'c> {
    number: u64,
    /// The input as it is applied: that of the letter, or the edited one.
    input: &'c Input,
    order: &'c LetterOrder,
    decided: Decided,
    /// Nothing else has to be decided before.
    may_apply: bool,
}

impl Run<'_> {
    /// Carries out an operator's decision; the outer result is storage's, the inner one the operator's.
    pub fn decide(
        &mut self,
        tenant: &TenantId,
        number: u64,
        order: &LetterOrder,
    ) -> Result<Answer, StorageError> {
        let found = self.batch.dead_letter(number)?;
        let Some(letter) = found.filter(|letter| letter.tenant == *tenant) else {
            return Ok(Err(Refused::NotFound("dead letter")));
        };
        let Some(came) = letter.input else {
            return match order.decision {
                LetterDecision::Discard => self.batch.delete_dead_letter(number).map(Ok),
                LetterDecision::Retry => Ok(Err(Refused::Conflict(
                    "the message could not be read: publish it again, corrected".into(),
                ))),
            };
        };
        self.staged.inputs += 1;
        let id = &came.instance;
        if schedule::is_address(&id.key) {
            if order.edited.is_some() {
                return Ok(Err(Refused::Conflict(
                    "a run of a schedule has no data to edit".into(),
                )));
            }
            self.batch.delete_dead_letter(number)?;
            return match order.decision {
                LetterDecision::Retry => self.take_scheduled(&came),
                LetterDecision::Discard => self.forgo(&came),
            }
            .map(Ok);
        }
        let waiting = self.waiting(id);
        let stood_in_the_way = waiting.behind == Some(number);
        let may_apply = stood_in_the_way || !waiting.is_blocked();
        let edited = match self.edited(&came, order, may_apply)? {
            Ok(edited) => edited,
            Err(refused) => return Ok(Err(refused)),
        };
        let matter = Case {
            number,
            input: edited.as_ref().unwrap_or(&came),
            order,
            decided: Decided::of(number, &came, order),
            may_apply,
        };
        let attempts = letter.attempts.saturating_add(1);
        self.carry_out_decision(matter, attempts, stood_in_the_way)
    }

    fn carry_out_decision(
        &mut self,
        case: Case<'_>,
        attempts: u32,
        stood_in_the_way: bool,
    ) -> Result<Answer, StorageError> {
        let Case { number, input, .. } = case;
        let (id, decision, may_apply) = (&input.instance, case.order.decision, case.may_apply);
        let (fate, opened_behind) = match self.decide_awaited(case)? {
            Ok(decided) => decided,
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
            attempts,
            behind_aliases: true,
            // Should it have to wait once more, that is before what waits behind it.
            deferred_as: stood_in_the_way.then_some(number),
            opened_behind,
            ..Turn::FIRST
        };
        let fate = match decision {
            LetterDecision::Retry if may_apply => self.apply_now(input, turn)?,
            LetterDecision::Retry => {
                self.wait(input, WaitReason::Blocked)?;
                Fate::Done
            }
            LetterDecision::Discard => self.follow(input, fate)?,
        };
        // With care they are begun one by one, each behind its own note.
        if stood_in_the_way && fate != Fate::Poison && !self.ground.isolation.is_needed_at_all() {
            self.drain(id, usize::MAX)?;
        }
        Ok(Ok(()))
    }

    /// Notes the decision, and completes what waits for an input that is discarded; gives the row of the history that stands before
    /// an instance which an edited input begins. Refused: nothing has changed.
    fn decide_awaited(
        &mut self,
        case: Case<'_>,
    ) -> Result<Result<(Fate, Option<u64>), Refused>, StorageError> {
        let Case {
            input,
            order,
            decided,
            may_apply,
            ..
        } = case;
        let is_retry = order.decision == LetterDecision::Retry;
        let is_awaited = self.is_awaited(input)?;
        if is_awaited && !is_retry && !is_planted(Bug::DiscardForgets) {
            if !may_apply {
                let waiting = self.waiting(&input.instance);
                return Ok(Err(Refused::Conflict(blocked(waiting).into())));
            }
            let given_up = self.give_up(input, decided)?;
            let given_up = given_up.map(|fate| (fate, None));
            return Ok(given_up.map_err(|fault| Refused::Conflict(fault.told().into())));
        }
        if !is_awaited && is_retry && may_apply && matches!(input.body, InputBody::Result(_)) {
            return Ok(Err(Refused::Conflict(
                "nothing waits for it any more: it can be discarded only".into(),
            )));
        }
        let opened_behind = self.note_decision(input, decided)?;
        Ok(Ok((Fate::Done, opened_behind)))
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
    fn give_up(&mut self, input: &Input, decided: Decided) -> Result<Result<Fate, Fault>, StorageError> {
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

    /// Adds to the history of an instance what an operator has decided about one of its dead letters. An edited input that is about
    /// to begin an instance has its decision before that: gives the row.
    fn note_decision(&mut self, input: &Input, decided: Decided) -> Result<Option<u64>, StorageError> {
        let id = &input.instance;
        let is_edited = matches!(decided.outcome, HistoryOutcome::Edited { .. });
        let record = self.staged.records.take(self.batch, id)?;
        if record.is_none() && !is_edited {
            self.staged.records.give_back(id, None);
            return Ok(None);
        }
        let number = self.next_sequence();
        let Some(mut record) = record else {
            self.staged.records.give_back(id, None);
            self.put_decision(input, None, decided, number)?;
            return Ok(Some(number));
        };
        self.write_decision(input, &mut record, decided, number)?;
        self.change(id, record);
        Ok(None)
    }

    pub(super) fn write_decision(
        &self,
        input: &Input,
        record: &mut Record,
        decided: Decided,
        number: u64,
    ) -> Result<(), StorageError> {
        self.put_decision(input, record.last_history, decided, number)?;
        record.last_history = Some(number);
        Ok(())
    }

    fn put_decision(
        &self,
        input: &Input,
        previous: Option<u64>,
        decided: Decided,
        number: u64,
    ) -> Result<(), StorageError> {
        let row = HistoryRow {
            instance: input.instance.clone(),
            input_id: input.id.clone(),
            kind: kind_in_full(input),
            time: self.ground.now,
            source: decided.source,
            outcome: decided.outcome,
            notes: decided.notes,
            late_source: false,
            previous,
        };
        self.batch.put_history(number, &row)
    }
}

/// Why a decision has to wait for another one.
pub(super) fn blocked(waiting: Waiting) -> String {
    match waiting.behind {
        Some(number) => {
            format!("its instance waits behind dead letter {number}: decide about that one first")
        }
        None => "inputs of its instance wait for their definition, which is not loaded".to_owned(),
    }
}
