//! The process that carries on a job: its lease, and the order of what it does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::pace::Pace;
use super::record::{Chunk, End, Ended, Entries, JobRecord, Lease, Listed, Trouble};
use crate::app::node::Node;
use crate::kernel::ids::{Key, SagaName, TimeMs};
use crate::ports::broker::{Broker, PutError};
use crate::ports::control::JobCommand;

/// How long a lease lasts, unless it is renewed. What it covers ends well before.
const LEASE: Duration = Duration::from_secs(15);
/// A lease with less left than this is renewed before something is sent.
const LEASE_MARGIN: Duration = Duration::from_secs(8);
/// How often a write of the record is tried where somebody else has written it.
const TRIES: usize = 5;
/// A job whose record was never written: whoever has reserved its slot was killed.
const RESERVED_MAX: Duration = Duration::from_mins(1);

/// A job whose lease this process has.
pub(super) struct Carried<'n> {
    pub node: &'n Node,
    broker: Arc<dyn Broker>,
    holder: &'n str,
    pub slot: u16,
    pub record: JobRecord,
    revision: u64,
    pub pace: Pace,
    /// What was selected of the shard that is walked: an instance that changes meanwhile may be met twice.
    pub met: BTreeSet<(SagaName, Key)>,
    /// The chunk that is worked on.
    pub chunk: Option<Chunk>,
    /// The shard that was seen to have applied everything that earlier holders of the lease have sent.
    pub caught_up: Option<u16>,
}

impl<'n> Carried<'n> {
    /// Takes the lease, where it is free and there is something to do here.
    pub async fn take(node: &'n Node, holder: &'n str, listed: &Listed) -> Result<Option<Self>, Trouble> {
        let broker = node.broker().ok_or_else(|| Trouble::Broker(node.waiting_for()))?;
        let entries = Entries {
            broker: broker.as_ref(),
            manifest: &node.manifest,
        };
        let now = node.clock.now();
        let found = entries.record(listed.slot).await?;
        let Some((mut record, revision)) = found.filter(|(record, _)| record.id == listed.id) else {
            if now >= listed.created.plus_ms(millis(RESERVED_MAX)) {
                close(&entries, &listed.id).await?;
            }
            return Ok(None);
        };
        if record.end.is_some() {
            close(&entries, &listed.id).await?;
            return Ok(None);
        }
        let is_taken = |lease: &Lease| lease.holder != holder && now < lease.until;
        let is_elsewhere = |shard: u16| {
            node.running()
                .is_none_or(|running| running.shards.get(shard).is_none())
        };
        if record.command == JobCommand::Pause
            || record.lease.as_ref().is_some_and(is_taken)
            || (record.command != JobCommand::Stop && record.waits_for_shard.is_some_and(is_elsewhere))
        {
            return Ok(None);
        }
        record.lease = Some(lease(holder, now));
        record.waits_for_shard = None;
        let revision = match entries.put_record(listed.slot, &record, Some(revision)).await {
            Ok(revision) => revision,
            Err(PutError::Conflict) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        tracing::info!(
            job = record.id,
            verb = record.order.verb.as_str(),
            "job is carried on by this process"
        );
        Ok(Some(Self {
            node,
            broker,
            holder,
            slot: listed.slot,
            pace: Pace::new(record.order.rate),
            record,
            revision,
            met: BTreeSet::new(),
            chunk: None,
            caught_up: None,
        }))
    }

    /// Goes on until the job ends, is paused, or waits for another process.
    pub async fn run(&mut self) -> Result<(), Trouble> {
        loop {
            match self.record.command {
                JobCommand::Stop => return self.end(Ended::Stopped, self.record.said.clone()).await,
                JobCommand::Pause => return self.leave(None).await,
                JobCommand::Resume => {}
            }
            if self.node.drain.is_cancelled() {
                self.leave(None).await?;
                return Err(Trouble::Drains);
            }
            let of_letters = self.record.order.verb.is_about_letters();
            let goes_on = match (self.record.selection.is_whole, of_letters) {
                (true, false) => self.send_batch().await,
                (true, true) => self.decide_batch().await,
                (false, false) => self.select_page().await,
                (false, true) => self.select_letters().await,
            };
            match goes_on {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Trouble::Drains) => {
                    self.leave(None).await?;
                    return Err(Trouble::Drains);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub fn entries(&self) -> Entries<'_> {
        Entries {
            broker: self.broker.as_ref(),
            manifest: &self.node.manifest,
        }
    }

    /// Writes the record, which renews the lease. What was said meanwhile is taken over.
    pub async fn save(&mut self) -> Result<(), Trouble> {
        let now = self.node.clock.now();
        if self.record.lease.is_some() {
            self.record.lease = Some(lease(self.holder, now));
        }
        for _ in 0..TRIES {
            let entries = self.entries();
            match entries
                .put_record(self.slot, &self.record, Some(self.revision))
                .await
            {
                Ok(revision) => {
                    self.revision = revision;
                    return Ok(());
                }
                Err(PutError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
            let Some((stored, revision)) = entries.record(self.slot).await? else {
                return Err(Trouble::Lost);
            };
            let is_mine = stored
                .lease
                .as_ref()
                .is_some_and(|lease| lease.holder == self.holder);
            if stored.id != self.record.id || !is_mine {
                return Err(Trouble::Lost);
            }
            (self.record.command, self.record.said) = (stored.command, stored.said);
            self.revision = revision;
        }
        Err(Trouble::Broker("the record changes all the time".to_owned()))
    }

    /// Makes sure that the lease covers what is sent next.
    pub async fn renew(&mut self) -> Result<(), Trouble> {
        let now = self.node.clock.now();
        let until = self.record.lease.as_ref().map(|lease| lease.until);
        if until.is_some_and(|until| now.plus_ms(millis(LEASE_MARGIN)) < until) {
            return Ok(());
        }
        self.save().await
    }

    /// Gives the lease back; where a shard is named, to a process that has it.
    pub async fn leave(&mut self, shard: Option<u16>) -> Result<(), Trouble> {
        self.record.waits_for_shard = shard;
        self.record.lease = None;
        // A lease that is not mine any more is nobody's business here.
        self.save().await
    }

    /// The job is over.
    pub async fn end(&mut self, how: Ended, message: String) -> Result<(), Trouble> {
        self.record.end = Some(End {
            how,
            message,
            time: self.node.clock.now(),
        });
        self.save().await?;
        let (record, progress) = (&self.record, &self.record.progress);
        tracing::info!(
            target: "audit",
            job = record.id,
            verb = record.order.verb.as_str(),
            tenant = %record.tenant,
            by = record.order.principal.who,
            reason = record.order.principal.reason,
            ended = how.as_str(),
            selected = record.selection.selected,
            sent = progress.sent,
            applied = progress.applied,
            ignored = ?progress.ignored,
            failed = progress.failed,
            "job ended"
        );
        let ended = &self.node.metrics.jobs.ended;
        ended.with_label_values(&[how.as_str()]).inc();
        let entries = self.entries();
        for number in 0..record.selection.chunks {
            entries.put_chunk(self.slot, number, &Chunk::default()).await?;
        }
        close(&entries, &record.id).await
    }
}

fn lease(holder: &str, now: TimeMs) -> Lease {
    Lease {
        holder: holder.to_owned(),
        until: now.plus_ms(millis(LEASE)),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Says in the list that a job has ended.
async fn close(entries: &Entries<'_>, id: &str) -> Result<(), Trouble> {
    for _ in 0..TRIES {
        let (mut list, revision) = entries.list().await?;
        let Some(listed) = list.jobs.iter_mut().find(|job| job.id == id && !job.ended) else {
            return Ok(());
        };
        listed.ended = true;
        match entries.put_list(&list, revision).await {
            Ok(_) => return Ok(()),
            Err(PutError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // The next look at the record does it.
    Ok(())
}
