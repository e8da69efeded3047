//! Jobs about dead letters. A letter is decided once: with the decision it is gone, and one that a failed retry leaves has another number.

use std::mem::size_of;

use super::carry::Carried;
use super::record::{ChosenLetter, Chunk, Ended, Progress, Trouble};
use super::select::{CHUNK_BYTES_MAX, PAGE, SHOWN_MAX};
use super::send::{DEFERRED, NO_TRACE};
use crate::api::queries::LetterParameters;
use crate::app::control::blocking;
use crate::app::letters::is_wanted;
use crate::app::node::Node;
use crate::app::pages::{letter_id, read_letter_id};
use crate::app::shards::Shown;
use crate::kernel::ids::{InstanceId, TenantId};
use crate::kernel::letters::LetterOrder;
use crate::kernel::patch::Note;
use crate::kernel::recorded::LetterDecision;
use crate::ports::control::{
    ControlError, DeadLetters as _, JobLetter, JobOrder, JobPlan, JobVerb, LetterFilter, PageRequest,
};
use crate::storage::read::{Bound, Found};
use crate::storage::rows::{DeadLetter, HistoryOutcome, HistoryRow};

/// Bytes of dead letters that one page of the selection reads.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// Rows of the history of an instance among which the decision of a job is sought: behind it stands all that had waited.
const HISTORY_ROWS: usize = 4_096;
/// What was decided by somebody else, or is forgotten.
const NO_LETTER: &str = "no_letter";
/// Its input waits to be applied.
const WAITING: &str = "waiting";

/// Counts what a job would be about, and names the first.
pub(super) async fn plan(
    node: &Node,
    tenant: &TenantId,
    mut plan: JobPlan,
    filter: LetterFilter,
) -> Result<JobPlan, ControlError> {
    let most = u64::from(node.manifest.jobs.instances_max);
    let mut after = None;
    loop {
        let page = PageRequest::new(after, PAGE);
        let found = node.dead_letters(tenant, filter.clone(), page).await?;
        plan.absent_shards = found.absent_shards;
        for letter in found.items {
            plan.selected += 1;
            if plan.letters.len() < SHOWN_MAX {
                plan.letters.push(JobLetter {
                    id: letter.id,
                    saga: letter.saga,
                    key: letter.key,
                    reason: letter.reason,
                    subject: letter.subject,
                });
            }
        }
        after = found.next;
        plan.too_many = plan.selected > most;
        if plan.too_many || after.is_none() {
            plan.selected = plan.selected.min(most);
            return Ok(plan);
        }
    }
}

/// The filter of a stored order, read by the code that reads the query of a list.
fn filter_of(order: &JobOrder) -> Result<LetterFilter, ControlError> {
    let filter = LetterParameters::read(&order.filter).and_then(|parameters| parameters.filter());
    filter.map_err(|problem| ControlError::Invalid(problem.detail))
}

/// What the history says of a letter.
enum Came {
    Applied,
    Ignored(String),
    Dead(String),
}

impl Carried<'_> {
    /// Takes one page of the selection. Whether the job goes on here.
    pub(super) async fn select_letters(&mut self) -> Result<bool, Trouble> {
        self.renew().await?;
        let index = self.record.selection.shard;
        if index >= self.node.manifest.shards {
            self.record.selection.is_whole = true;
            self.save().await?;
            return Ok(true);
        }
        let running = self.node.running_or_unavailable()?;
        let Some(shard) = running.shards.get(index) else {
            self.leave(Some(index)).await?;
            return Ok(false);
        };
        let after = self.record.selection.after.as_deref().and_then(read_letter_id);
        let (reader, tenant) = (shard.reader.clone(), self.record.tenant.clone());
        // Ages count from when the job was asked for, whatever happens to its process.
        let (filter, now) = (filter_of(&self.record.order)?, self.record.created);
        let (chosen, next) = blocking(&self.node.tasks, move || {
            let bound = Bound {
                items: PAGE,
                bytes: PAGE_BYTES,
            };
            let after = after.map(|(_, number)| number);
            let (found, next) =
                reader.dead_letters_of(&tenant, after, bound, |letter| is_wanted(&filter, now, letter))?;
            let chosen: Vec<ChosenLetter> = found
                .into_iter()
                .map(|(number, letter)| choose(letter_id(index, number), letter))
                .collect();
            Ok((chosen, next))
        })
        .await?;
        let most = u64::from(self.node.manifest.jobs.instances_max);
        let selected = self.record.selection.selected + chosen.len() as u64;
        if selected > most {
            let message = format!(
                "the filter selects more than {most} dead letters (jobs.instances_max); nothing was decided"
            );
            self.end(Ended::Failed, message).await?;
            return Ok(false);
        }
        for letters in split(chosen) {
            let chunk = Chunk {
                job: self.record.id.clone(),
                letters,
                ..Chunk::default()
            };
            let number = self.record.selection.chunks;
            self.entries().put_chunk(self.slot, number, &chunk).await?;
            self.record.selection.chunks += 1;
        }
        let selection = &mut self.record.selection;
        selection.selected = selected;
        selection.after = next.map(|number| letter_id(index, number));
        if next.is_none() {
            selection.shard = index + 1;
        }
        self.save().await?;
        Ok(true)
    }

    /// Decides about the next letters and counts the outcomes. Whether the job goes on here.
    pub(super) async fn decide_batch(&mut self) -> Result<bool, Trouble> {
        self.renew().await?;
        if !self.load_chunk().await? {
            self.end(Ended::Completed, String::new()).await?;
            return Ok(false);
        }
        let all = self.chunk.as_ref().map_or(&[][..], |chunk| &chunk.letters);
        let (batch, next) = self.batch_of(all);
        let letters = batch.to_vec();
        let first = letters.first().and_then(|letter| read_letter_id(&letter.id));
        let Some((index, _)) = first else {
            return Err(Trouble::Unreadable(format!(
                "a chunk of job {} is empty",
                self.record.id
            )));
        };
        let running = self.node.running_or_unavailable()?;
        let Some(shard) = running.shards.get(index) else {
            self.leave(Some(index)).await?;
            return Ok(false);
        };
        let mut progress = self.record.progress.clone();
        (progress.chunk, progress.next) = next;
        for letter in letters {
            self.renew().await?;
            self.decide(&shard, &letter, &mut progress).await?;
            progress.handled += 1;
        }
        if progress.chunk != self.record.progress.chunk {
            self.chunk = None;
        }
        let before = std::mem::replace(&mut self.record.progress, progress);
        self.save().await?;
        self.count_handled(&before);
        Ok(true)
    }

    async fn decide(
        &mut self,
        shard: &Shown,
        letter: &ChosenLetter,
        progress: &mut Progress,
    ) -> Result<(), Trouble> {
        let Some((index, number)) = read_letter_id(&letter.id) else {
            return Err(Trouble::Unreadable(format!("{} is no dead letter", letter.id)));
        };
        let reader = shard.reader.clone();
        let is_there = blocking(&self.node.tasks, move || {
            Ok(reader.dead_letter(number)?.is_some())
        })
        .await?;
        if is_there {
            self.await_turn().await?;
            let (tenant, order) = (self.record.tenant.clone(), self.order());
            match self.node.decide_letter(&tenant, (index, number), order).await {
                // Where it is gone, somebody else has decided meanwhile.
                Ok(()) | Err(ControlError::NotFound(_)) => {}
                Err(ControlError::Unavailable(message)) => return Err(Trouble::Broker(message)),
                Err(error) => {
                    progress.fail_letter(letter, &error.to_string());
                    return Ok(());
                }
            }
        }
        // It is there no more: this job has decided, now or before its process was killed, or somebody else has.
        match self.came(shard, letter, (number, is_there)).await? {
            Some(came) => {
                progress.sent += 1;
                match came {
                    Came::Applied => progress.applied += 1,
                    Came::Ignored(reason) => progress.ignore(&reason),
                    Came::Dead(reason) => {
                        progress.fail_letter(letter, &format!("it is a dead letter again: {reason}"));
                    }
                }
            }
            // No instance tells of it.
            None if is_there => {
                progress.sent += 1;
                match self.record.order.verb {
                    JobVerb::DiscardLetters => progress.applied += 1,
                    _ => progress.ignore(NO_TRACE),
                }
            }
            None => progress.ignore(NO_LETTER),
        }
        Ok(())
    }

    fn order(&self) -> LetterOrder {
        let decision = match self.record.order.verb {
            JobVerb::DiscardLetters => LetterDecision::Discard,
            _ => LetterDecision::Retry,
        };
        LetterOrder {
            principal: self.record.order.principal.clone(),
            job: self.record.id.clone(),
            ..LetterOrder::from(decision)
        }
    }

    /// The outcome of the decision of this job, as the history of the instance tells it; `None`: it tells of none.
    async fn came(
        &self,
        shard: &Shown,
        letter: &ChosenLetter,
        (number, just_now): (u64, bool),
    ) -> Result<Option<Came>, Trouble> {
        let Some((saga, key)) = letter.instance.clone() else {
            return Ok(None);
        };
        let id = InstanceId {
            tenant: self.record.tenant.clone(),
            saga,
            key,
        };
        let (reader, job, input) = (shard.reader.clone(), self.record.id.clone(), letter.input.clone());
        let found = blocking(&self.node.tasks, move || {
            let newest = reader.instance(&id)?.and_then(|found| match found {
                Found::Live(record) => record.last_history,
                Found::Ended(summary) => summary.record.last_history,
            });
            let rows = reader.history(newest, HISTORY_ROWS)?;
            let rows: Vec<HistoryRow> = rows.into_iter().map(|(_, row)| row).collect();
            Ok(decided(&rows, &job, &input, (number, just_now)))
        });
        Ok(found.await?)
    }
}

/// What rows of a history, newest first, tell of the decision of a job about a letter. A letter that had no instance has no row of its
/// decision: the rows of its input tell, where it was made `just_now`.
fn decided(rows: &[HistoryRow], job: &str, input: &str, (number, just_now): (u64, bool)) -> Option<Came> {
    let is_of_job = |note: &Note| matches!(note, Note::LetterDecided { job: by, .. } if by == job);
    let is_it = |row: &HistoryRow| {
        let about = match row.outcome {
            HistoryOutcome::Retried { number } | HistoryOutcome::Discarded { number } => Some(number),
            _ => None,
        };
        about == Some(number) && row.notes.iter().any(is_of_job)
    };
    let decision = rows.iter().position(is_it);
    if let Some(HistoryOutcome::Discarded { .. }) = decision.map(|at| &rows[at].outcome) {
        return Some(Came::Applied);
    }
    let at = decision.or_else(|| just_now.then_some(rows.len()))?;
    let next = rows[..at].iter().rev().find(|row| row.input_id == input);
    if decision.is_none() && next.is_none() {
        return None;
    }
    Some(match next.map(|row| &row.outcome) {
        Some(HistoryOutcome::Applied) => Came::Applied,
        Some(HistoryOutcome::Dead { reason, .. }) => Came::Dead(reason.clone()),
        Some(HistoryOutcome::Ignored(reason)) => Came::Ignored(reason.as_str().to_owned()),
        Some(HistoryOutcome::Deferred) => Came::Ignored(DEFERRED.to_owned()),
        Some(
            HistoryOutcome::Retried { .. }
            | HistoryOutcome::Discarded { .. }
            | HistoryOutcome::Edited { .. }
            | HistoryOutcome::Cut { .. },
        ) => Came::Ignored(NO_TRACE.to_owned()),
        // Behind another letter, or a pause.
        None => Came::Ignored(WAITING.to_owned()),
    })
}

fn choose(id: String, letter: DeadLetter) -> ChosenLetter {
    let input = letter.input;
    ChosenLetter {
        id,
        input: input.as_ref().map(|input| input.id.clone()).unwrap_or_default(),
        instance: input.map(|input| (input.instance.saga, input.instance.key)),
    }
}

/// Chunks that fit an entry.
fn split(letters: Vec<ChosenLetter>) -> Vec<Vec<ChosenLetter>> {
    let (mut chunks, mut bytes) = (Vec::new(), CHUNK_BYTES_MAX);
    for letter in letters {
        let instance = letter.instance.as_ref();
        let named = instance.map_or(0, |(saga, key)| saga.as_str().len() + key.as_str().len());
        let more = letter.id.len() + letter.input.len() + named + size_of::<[u64; 6]>();
        if bytes + more > CHUNK_BYTES_MAX {
            chunks.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(last) = chunks.last_mut() {
            last.push(letter);
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::ids::{Key, SagaName};

    #[test]
    fn a_chunk_of_letters_fits_an_entry_and_nothing_is_left_out() {
        let saga = SagaName::parse("order").expect("legal");
        let letter = |n: usize| ChosenLetter {
            id: format!("3-{n}"),
            input: format!("{n:0200}"),
            instance: Some((saga.clone(), Key::parse(&format!("{n:0200}")).expect("legal"))),
        };
        let letters: Vec<_> = (0..500).map(letter).collect();
        let chunks = split(letters.clone());
        assert!(chunks.len() > 1);
        for letters in &chunks {
            let chunk = Chunk {
                job: "job-1".to_owned(),
                letters: letters.clone(),
                ..Chunk::default()
            };
            let bytes = serde_json::to_vec(&chunk).expect("JSON").len();
            assert!(bytes < crate::ports::broker::ENTRY_VALUE_BYTES_MAX, "{bytes}");
        }
        assert_eq!(chunks.concat(), letters);
    }
}
