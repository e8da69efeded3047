//! An operator has edited the data of a dead letter: they are taken only where the input can be applied with them.

use std::borrow::Cow;

use saga_runner_kernel::alias::Alias;
use saga_runner_kernel::envelope::Role;
use saga_runner_kernel::input::{Input, InputBody};
use saga_runner_kernel::letters::{self, NotEdited};
use saga_runner_kernel::outcome::{RESULT_EXPRESSION, RESULT_SCHEMA};
use saga_runner_kernel::patch::{Note, Outcome, Patch};
use saga_runner_kernel::record::Record;
use saga_runner_kernel::transition::{Context, Last, Meets, awaits, reaches_ended, rehearse};

use super::apply::Tombstone;
use super::letters::blocked;
use super::message::{LetterOrder, Refused};
use super::staging::Run;
use crate::storage::StorageError;

/// Reason of data that are none of the kind that is wanted.
const DATA: &str = "input.data";
/// Reason of an event that would find another instance.
const OTHER_INSTANCE: &str = "input.instance";
/// Reason of an input that would change nothing.
const OF_NO_USE: &str = "input.ignored";

impl Run<'_> {
    /// The input as an operator has edited it; `None`: it was not edited. Refused: nothing has changed.
    pub(super) fn edited(
        &mut self,
        came: &Input,
        order: &LetterOrder,
        may_apply: bool,
    ) -> Result<Result<Option<Input>, Refused>, StorageError> {
        let Some(data) = &order.edited else {
            return Ok(Ok(None));
        };
        let id = &came.instance;
        if Alias::of(&id.key).is_some() {
            return Ok(Err(Refused::Conflict(
                "no instance has got this event yet: discard it, and publish it again, corrected".into(),
            )));
        }
        let edited = match letters::edited(came, data, self.ground.limits) {
            Ok(edited) => edited,
            Err(NotEdited::NoData(why)) => return Ok(Err(Refused::Conflict(why.into()))),
            Err(NotEdited::Unfit(message)) => return Ok(Err(unfit(DATA, message))),
        };
        if matches!(came.body, InputBody::Result(_)) && order.principal.role < Role::Admin {
            return Ok(Err(Refused::Forbidden(
                "an admin decides what an effect has given",
            )));
        }
        if !may_apply {
            return Ok(Err(Refused::Conflict(blocked(self.waiting(id)).into())));
        }
        Ok(self.tried(&edited)?.map(|()| Some(edited)))
    }

    /// Tries what an edited input would come to.
    fn tried(&mut self, edited: &Input) -> Result<Result<(), Refused>, StorageError> {
        let id = &edited.instance;
        let record = self.staged.records.take(self.batch, id)?;
        let tried = self.tried_on(edited, record.as_ref());
        self.staged.records.give_back(id, record);
        tried
    }

    fn tried_on(&self, edited: &Input, record: Option<&Record>) -> Result<Result<(), Refused>, StorageError> {
        let (id, definitions) = (&edited.instance, self.ground.definitions);
        if self.poison(edited).is_some() {
            return Ok(Err(Refused::Conflict(
                "the process has died of this input: it is not applied again before the next start".into(),
            )));
        }
        let nothing_waits = matches!(edited.body, InputBody::Result(_))
            && !record.is_some_and(|record| awaits(record, edited));
        if nothing_waits {
            return Ok(Err(Refused::Conflict(
                "nothing waits for it any more: it can be discarded only".into(),
            )));
        }
        let version = match record {
            Some(record) => definitions.by_hash(&record.definition),
            None => definitions.active(&id.saga),
        };
        if let (InputBody::Event(event), Some(version)) = (&edited.body, version)
            && event.via.is_none()
            && !version.addresses(&id.key, event, edited.time, self.ground.limits)
        {
            let message = format!(
                "the edited event would not find the instance {} of saga {}",
                id.key, id.saga
            );
            return Ok(Err(unfit(OTHER_INSTANCE, message)));
        }
        let mut generation = 1;
        let mut ended = None;
        if record.is_none() && reaches_ended(edited) {
            match self.tombstone(edited)? {
                Tombstone::None => {}
                Tombstone::Expired { generation: last } => generation = last.saturating_add(1),
                Tombstone::Counts(found) => {
                    generation = found.generation;
                    let last = self.batch.ended(id, found.summary)?;
                    ended = Some((found, last, self.batch.deleted(id)?));
                }
            }
        }
        let meets = match (record, &ended) {
            (Some(record), _) => Meets::Live(record),
            (None, None) => Meets::Nobody,
            (None, Some((found, last, deleted))) => Meets::Ended(Last {
                generation: found.generation,
                phase: found.phase,
                ended: found.ended,
                start: found.start,
                record: last.as_ref(),
                deleted: deleted.as_ref().map(|deleted| &deleted.known),
            }),
        };
        let context = Context {
            limits: self.ground.limits,
            cluster: self.ground.cluster,
            log_sequence: self.staged.counters.log_sequence.saturating_add(1),
            generation,
            again: true,
        };
        Ok(match rehearse(definitions, meets, edited, &context) {
            Some(Ok(patch)) => fits(
                &patch,
                record.is_some(),
                ended.map(|(found, ..)| found.generation),
            ),
            Some(Err(rejection)) => Err(unfit(rejection.reason, rejection.message)),
            None => Err(Refused::Conflict(
                "it would replace the instance that runs: start it anew instead".into(),
            )),
        })
    }
}

/// Whether an edited input changes something, and where it has no instance, begins one.
fn fits(patch: &Patch, is_live: bool, ended: Option<u32>) -> Result<(), Refused> {
    if let Outcome::Ignored(reason) = patch.outcome {
        return Err(unfit(
            OF_NO_USE,
            format!("it would change nothing: {}", reason.as_str()),
        ));
    }
    let flaw = patch.notes.iter().find_map(|note| match note {
        Note::StepFailed { class, .. } | Note::AttemptFailed { class, .. } => {
            [RESULT_SCHEMA, RESULT_EXPRESSION]
                .into_iter()
                .find(|flaw| class == flaw)
        }
        _ => None,
    });
    if let Some(flaw) = flaw {
        let message =
            "the step would fail, because the result is not as its effect gives it, or cannot be used";
        return Err(unfit(flaw, message.to_owned()));
    }
    let summary = patch.ended.as_ref().map(|summary| &summary.record);
    let begins = patch.record.as_ref().or(summary).map(|record| record.generation);
    if !is_live && (begins.is_none() || begins == ended) {
        return Err(unfit(OF_NO_USE, "it would begin no instance".to_owned()));
    }
    Ok(())
}

fn unfit(reason: impl Into<Cow<'static, str>>, message: String) -> Refused {
    Refused::Unfit {
        reason: reason.into(),
        message,
    }
}
