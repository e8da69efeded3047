//! The parts of a job: a message to each instance, and the outcome of it.

use std::time::Duration;

use super::carry::Carried;
use super::record::{Ended, Progress, Trouble};
use crate::app::control::blocking;
use crate::app::shards::Shown;
use crate::app::{migration, streams};
use crate::kernel::envelope::{ControlMessage, ControlVerb, Sender, Stuck};
use crate::kernel::ids::{DefinitionHash, InstanceId, shard_of};
use crate::kernel::input::SourceStream;
use crate::ports::control::{ControlError, JobOrder, JobVerb};
use crate::storage::read::Found;
use crate::storage::rows::{HistoryOutcome, HistoryRow};

/// Parts whose outcome is looked up together.
const BATCH_MAX: usize = 100;
/// Rows of the history of an instance among which the part of a job is sought.
const HISTORY_ROWS: usize = 64;
/// How long the shard may take to apply what was sent, before the job tries again later.
const APPLY_MAX: Duration = Duration::from_mins(1);
/// How often its position is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What an instance ignores without a row in its history: one that has ended, one that is gone, and a migration that is refused.
const ENDED: &str = "ended";
/// An instance that has ended and must not be deleted: `instance delete` says why.
const REFUSED: &str = "refused";
const NO_INSTANCE: &str = "no_instance";
pub(super) const NO_TRACE: &str = "no_trace";
pub(super) const DEFERRED: &str = "deferred";

/// A part that was sent, or whose outcome the history has already.
struct Part {
    instance: InstanceId,
    is_new: bool,
}

/// The message of a job to one instance. Its id derives from the job, and the broker and the instance take it together with the
/// name of the instance.
pub(super) fn message(order: &JobOrder, id: &str) -> Result<ControlMessage, ControlError> {
    let options = &order.options;
    let stuck = Stuck {
        step: options.step.clone(),
        item: None,
        found: options.found,
        result: None,
    };
    let verb = match order.verb {
        JobVerb::Cancel => ControlVerb::Cancel {
            reason: order.principal.reason.clone(),
            mode: options.mode.unwrap_or_default(),
        },
        JobVerb::Kill => ControlVerb::Kill {},
        JobVerb::Pause => ControlVerb::Pause {},
        JobVerb::Resume => ControlVerb::Resume {},
        JobVerb::Retry if options.ended => ControlVerb::Rerun { found: Vec::new() },
        JobVerb::Retry => ControlVerb::Retry(stuck),
        JobVerb::Skip => ControlVerb::Skip(stuck),
        JobVerb::Delete => ControlVerb::Delete { parent_over: false },
        JobVerb::Migrate | JobVerb::RetryLetters | JobVerb::DiscardLetters => {
            return Err(ControlError::Invalid(
                "it is no message to an instance".to_owned(),
            ));
        }
    };
    let principal = (verb.sender() == Sender::Operator).then(|| order.principal.clone());
    Ok(ControlMessage {
        request_id: id.to_owned(),
        principal,
        verb,
    })
}

/// The version to which a job migrates.
pub(super) fn target(order: &JobOrder) -> Option<DefinitionHash> {
    let to = order
        .options
        .to
        .as_deref()
        .filter(|_| order.verb == JobVerb::Migrate)?;
    DefinitionHash::parse(to)
}

impl Carried<'_> {
    /// Sends the next parts and counts their outcomes. Whether the job goes on here.
    pub async fn send_batch(&mut self) -> Result<bool, Trouble> {
        self.renew().await?;
        let Some((instances, next)) = self.next_batch().await? else {
            let message = String::new();
            self.end(Ended::Completed, message).await?;
            return Ok(false);
        };
        let Some(first) = instances.first() else {
            return Err(Trouble::Unreadable(format!(
                "a chunk of job {} is empty",
                self.record.id
            )));
        };
        let index = shard_of(&first.tenant, &first.key, self.node.manifest.shards);
        let running = self.node.running_or_unavailable()?;
        let Some(shard) = running.shards.get(index) else {
            self.leave(Some(index)).await?;
            return Ok(false);
        };
        self.catch_up(&shard).await?;
        let mut progress = self.record.progress.clone();
        (progress.chunk, progress.next) = next;
        let (mut parts, mut sequence) = (Vec::with_capacity(instances.len()), 0);
        for instance in instances {
            self.renew().await?;
            let is_new = self.outcome(&shard, &instance).await?.is_none();
            if is_new {
                self.await_turn().await?;
                match self.send(&shard, &instance).await {
                    Ok(sent) => {
                        progress.sent += 1;
                        sequence = sequence.max(sent);
                    }
                    Err(ControlError::Unavailable(message)) => return Err(Trouble::Broker(message)),
                    Err(error) => {
                        progress.handled += 1;
                        progress.fail(&instance, &error.to_string());
                        continue;
                    }
                }
            }
            parts.push(Part { instance, is_new });
        }
        self.applied(&shard, sequence).await?;
        for part in parts {
            progress.handled += 1;
            let found = self.outcome(&shard, &part.instance).await?;
            // Another process has sent it and was killed before it could say so.
            progress.sent += u64::from(!part.is_new);
            match found {
                Some(outcome) => count(&mut progress, &part.instance, outcome),
                None => progress.ignore(self.without_trace(&shard, &part.instance).await?),
            }
        }
        if progress.chunk != self.record.progress.chunk {
            self.chunk = None;
        }
        let before = std::mem::replace(&mut self.record.progress, progress);
        self.save().await?;
        self.count_handled(&before);
        Ok(true)
    }

    /// Adds to the figures what a batch has come to, which is saved.
    pub(super) fn count_handled(&self, before: &Progress) {
        let (now, verb) = (&self.record.progress, self.record.order.verb.as_str());
        let ignored = |progress: &Progress| progress.ignored.values().sum::<u64>();
        for (outcome, count) in [
            ("applied", now.applied.saturating_sub(before.applied)),
            ("ignored", ignored(now).saturating_sub(ignored(before))),
            ("failed", now.failed.saturating_sub(before.failed)),
        ] {
            let counter = &self.node.metrics.jobs.instances;
            counter.with_label_values(&[verb, outcome]).inc_by(count);
        }
    }

    /// The next instances of the selection, at most as many as go in a second, and the place behind them; `None` behind the last.
    async fn next_batch(&mut self) -> Result<Option<(Vec<InstanceId>, (u32, u32))>, Trouble> {
        if !self.load_chunk().await? {
            return Ok(None);
        }
        let all = self.chunk.as_ref().map_or(&[][..], |chunk| &chunk.instances);
        let (batch, behind) = self.batch_of(all);
        let batch = batch.iter().map(|(saga, key)| InstanceId {
            tenant: self.record.tenant.clone(),
            saga: saga.clone(),
            key: key.clone(),
        });
        Ok(Some((batch.collect(), behind)))
    }

    /// Reads the chunk that is worked on. False: the last one is done.
    pub(super) async fn load_chunk(&mut self) -> Result<bool, Trouble> {
        let number = self.record.progress.chunk;
        if number >= self.record.selection.chunks {
            return Ok(false);
        }
        if self.chunk.is_none() {
            let found = self.entries().chunk(self.slot, number, &self.record.id).await?;
            let lost = || Trouble::Unreadable(format!("chunk {number} of job {} is gone", self.record.id));
            self.chunk = Some(found.ok_or_else(lost)?);
        }
        Ok(true)
    }

    /// The next of a chunk, at most as many as go in a second, and the place behind them.
    pub(super) fn batch_of<'c, T>(&self, all: &'c [T]) -> (&'c [T], (u32, u32)) {
        let (number, next) = (self.record.progress.chunk, self.record.progress.next as usize);
        let most = (self.record.order.rate as usize).clamp(1, BATCH_MAX);
        let end = (next + most).min(all.len());
        let behind = if end >= all.len() {
            (number + 1, 0)
        } else {
            (number, u32::try_from(end).unwrap_or(u32::MAX))
        };
        (all.get(next..end).unwrap_or_default(), behind)
    }

    /// Waits as the rate says, and for as long as the lease is renewed.
    pub(super) async fn await_turn(&mut self) -> Result<(), Trouble> {
        let wait = self.pace.wait(self.node.clock.monotonic());
        tokio::select! {
            biased;
            () = self.node.drain.cancelled() => return Err(Trouble::Drains),
            () = tokio::time::sleep(wait) => {}
        }
        Ok(())
    }

    /// Sends one part. The sequence of its message; 0 where it is none.
    async fn send(&self, shard: &Shown, instance: &InstanceId) -> Result<u64, ControlError> {
        if let Some(to) = target(&self.record.order) {
            let id = self.input_id();
            migration::ask(shard, instance, to, false, id).await?;
            return Ok(0);
        }
        let message = message(&self.record.order, &self.record.id)?;
        let message = self.node.with_parent(instance, message).await?;
        let published = self.node.send(instance, &message).await?.published;
        Ok(published.sequence)
    }

    /// The id of the input that an instance gets.
    fn input_id(&self) -> String {
        match target(&self.record.order) {
            Some(to) => format!("migrate:{to}:{}", self.record.id),
            None => self.record.id.clone(),
        }
    }

    /// Waits until the shard has applied what earlier holders of the lease may have sent, so that its history tells of it.
    async fn catch_up(&mut self, shard: &Shown) -> Result<(), Trouble> {
        if self.caught_up == Some(shard.index) {
            return Ok(());
        }
        let name = streams::name(&self.node.manifest, SourceStream::WorkflowCommands);
        let broker = self
            .node
            .broker()
            .ok_or_else(|| Trouble::Broker(self.node.waiting_for()))?;
        let state = broker.stream_state(name).await?;
        self.applied(shard, state.last_sequence).await?;
        self.caught_up = Some(shard.index);
        Ok(())
    }

    /// Waits until the shard has applied everything up to a sequence of the stream of commands, and everything in its mailbox.
    async fn applied(&mut self, shard: &Shown, sequence: u64) -> Result<(), Trouble> {
        let begun = self.node.clock.monotonic();
        migration::flush(shard).await?;
        loop {
            let reader = shard.reader.clone();
            let stream = SourceStream::WorkflowCommands;
            let position = blocking(&self.node.tasks, move || reader.position(stream)).await?;
            if position.is_some_and(|position| position.sequence >= sequence) {
                return Ok(());
            }
            let waited = self.node.clock.monotonic().saturating_sub(begun);
            if waited > APPLY_MAX {
                let message = format!("shard {} does not apply what was sent", shard.index);
                return Err(Trouble::Broker(message));
            }
            self.renew().await?;
            tokio::select! {
                biased;
                () = self.node.drain.cancelled() => return Err(Trouble::Drains),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// The outcome of the part of this job, where the instance has had it.
    async fn outcome(&self, shard: &Shown, instance: &InstanceId) -> Result<Option<HistoryOutcome>, Trouble> {
        let (reader, owned, id) = (shard.reader.clone(), instance.clone(), self.input_id());
        let is_deletion = self.record.order.verb == JobVerb::Delete;
        let is_it = move |row: &HistoryRow| row.input_id == id;
        let found = blocking(&self.node.tasks, move || {
            let page = reader.history_page(&owned, None, HISTORY_ROWS)?;
            let rows = page.map_or_else(Vec::new, |(rows, _)| rows);
            Ok(rows.into_iter().map(|(_, row)| row).find(is_it))
        });
        let told = found.await?.map(|row| row.outcome);
        if told.is_some() || !is_deletion {
            return Ok(told);
        }
        // Its history is gone with it.
        let (reader, owned) = (shard.reader.clone(), instance.clone());
        let deleted = blocking(&self.node.tasks, move || reader.deleted(&owned)).await?;
        let is_this = deleted.is_some_and(|deleted| deleted.request == self.record.id);
        Ok(is_this.then_some(HistoryOutcome::Applied))
    }

    /// Why an instance has had its part, and its history does not tell.
    async fn without_trace(&self, shard: &Shown, instance: &InstanceId) -> Result<&'static str, Trouble> {
        let (reader, owned) = (shard.reader.clone(), instance.clone());
        let found = blocking(&self.node.tasks, move || reader.instance(&owned)).await?;
        Ok(match found {
            None => NO_INSTANCE,
            Some(Found::Ended(_)) if self.record.order.verb == JobVerb::Delete => REFUSED,
            Some(Found::Ended(_)) => ENDED,
            Some(Found::Live(_)) => NO_TRACE,
        })
    }
}

/// Counts the outcome of a part.
fn count(progress: &mut Progress, instance: &InstanceId, outcome: HistoryOutcome) {
    match outcome {
        HistoryOutcome::Applied => progress.applied += 1,
        HistoryOutcome::Ignored(reason) => progress.ignore(reason.as_str()),
        HistoryOutcome::Deferred => progress.ignore(DEFERRED),
        HistoryOutcome::Dead { reason, .. } => {
            progress.fail(instance, &format!("it is a dead letter: {reason}"));
        }
        HistoryOutcome::Retried { .. }
        | HistoryOutcome::Discarded { .. }
        | HistoryOutcome::Edited { .. }
        | HistoryOutcome::Cut { .. } => {
            progress.ignore(NO_TRACE);
        }
    }
}
