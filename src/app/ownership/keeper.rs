//! Renewing the records of the shards that this process owns, and leaving them in order at the end.
//!
//! What a record says is read from the last commit, so it is never ahead of what is durable.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::claim::Claimed;
use super::record::{Entries, OwnerRecord};
use super::verdict::{Standing, standing};
use crate::app::cluster;
use crate::app::control::blocking;
use crate::app::shard_map::ShardMap;
use crate::config::Manifest;
use crate::intake::Marks;
use crate::outbox::Fence;
use crate::ports::broker::{Broker, PutError};
use crate::ports::clock::Clock;
use crate::storage::Reader;
use crate::tasks::Tasks;
use crate::telemetry::Metrics;

/// What failed is tried again so often in the time between two renewals.
const TRIES: u32 = 5;
/// How often one renewal looks at what is in its way.
const ROUNDS_MAX: usize = 3;
/// How long the last word to the broker may take.
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// Renews the records of the shards that are open in this process.
pub struct Keeper {
    pub broker: Arc<dyn Broker>,
    pub manifest: Manifest,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    pub tasks: Tasks,
    /// By the readers of this process.
    marks: Marks,
    shards: ShardMap<Arc<Kept>>,
    stop: CancellationToken,
}

/// A shard, and what its record says.
pub struct Kept {
    shard: u16,
    reader: Reader,
    fence: Arc<Fence>,
    /// Held while the record is written.
    state: Mutex<State>,
    /// Milliseconds of the monotonic clock.
    renewed: AtomicU64,
    /// Who has the shard now, where that is somebody else.
    taken: OnceLock<String>,
    /// What it holds back is known, and waits for a decision.
    is_read: AtomicBool,
    /// The shard is closed: its record is not renewed any more.
    closed: AtomicBool,
}

struct State {
    record: OwnerRecord,
    revision: Option<u64>,
    /// When the next renewal is due.
    next: Duration,
    /// The record was written, and the next renewal shows that nobody else has.
    is_doubted: bool,
}

/// How a renewal ended.
enum Renewal {
    Done,
    /// The record was gone, or may have been another one. It is written again, and nothing is sent on the strength of that:
    /// another owner who has it no more either has his next renewal first.
    Rewritten,
    /// To be tried again.
    Failed(String),
    /// By whom.
    Taken(String),
}

impl Kept {
    pub fn of(claimed: &Claimed, reader: Reader, now: Duration) -> Self {
        Self {
            shard: claimed.shard,
            reader,
            fence: Arc::clone(&claimed.fence),
            state: Mutex::new(State {
                record: claimed.record.clone(),
                revision: Some(claimed.revision),
                next: now,
                is_doubted: false,
            }),
            renewed: AtomicU64::new(millis(now)),
            taken: OnceLock::new(),
            is_read: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// When it was renewed last, by the monotonic clock.
    fn renewed(&self) -> Duration {
        Duration::from_millis(self.renewed.load(Ordering::Acquire))
    }
}

impl Keeper {
    pub fn new(
        broker: Arc<dyn Broker>,
        manifest: Manifest,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        tasks: Tasks,
        marks: Marks,
    ) -> Arc<Self> {
        Arc::new(Self {
            broker,
            manifest,
            clock,
            metrics,
            tasks,
            marks,
            shards: ShardMap::default(),
            stop: CancellationToken::new(),
        })
    }

    /// Renews this shard's record, too.
    pub fn add(&self, kept: Kept) {
        self.shards.put(kept.shard, Arc::new(kept));
    }

    /// Renews until [`Self::release`].
    pub async fn run(self: Arc<Self>) {
        let pause = self.manifest.ownership.renew_every.duration() / TRIES;
        loop {
            let shards = self.shards.all();
            let all = join_all(shards.iter().map(|kept| self.renew(kept)));
            tokio::select! {
                biased;
                _ended = all => {}
                () = self.stop.cancelled() => return,
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Whether this process may speak for all shards that it has, and has any.
    pub fn may_send_for_all(&self) -> bool {
        let shards = self.shards.all();
        !shards.is_empty() && shards.iter().all(|kept| kept.fence.is_open())
    }

    /// Whether this process has shards, and no other one may have taken any of them meanwhile. Where shards hold back what they would
    /// send, they may be asked all the same.
    pub fn may_answer(&self) -> bool {
        let shards = self.shards.all();
        !shards.is_empty() && shards.iter().all(|kept| kept.fence.is_renewed())
    }

    /// Says in all records that nothing is under way any more: the next start needs not wait. Nothing is sent behind this.
    pub async fn release(&self) {
        self.stop.cancel();
        let shards = self.shards.all();
        join_all(shards.iter().map(|kept| self.tell_stopped(kept))).await;
    }

    /// The same for one shard, whose record is this process's business no more.
    pub async fn release_one(&self, shard: u16) {
        if let Some(kept) = self.forget(shard) {
            self.tell_stopped(&kept).await;
            self.show(&kept);
        }
    }

    /// Renews the record of a shard no more, and sends nothing for it. The record keeps saying that somebody is at work.
    pub fn forget(&self, shard: u16) -> Option<Arc<Kept>> {
        let kept = self.shards.take(shard)?;
        kept.closed.store(true, Ordering::Release);
        kept.fence.close();
        Some(kept)
    }

    async fn tell_stopped(&self, kept: &Kept) {
        let told = async {
            let mut state = kept.state.lock().await;
            kept.fence.close();
            if kept.taken.get().is_some() {
                return;
            }
            state.record.stopped = true;
            if let Renewal::Failed(message) | Renewal::Taken(message) = self.write(kept, &mut state).await {
                tracing::info!(
                    shard = kept.shard,
                    message,
                    "cannot record in the owner record that this process has stopped"
                );
            }
            kept.fence.close();
        };
        if tokio::time::timeout(RELEASE_MAX, told).await.is_err() {
            kept.fence.close();
            tracing::info!(
                shard = kept.shard,
                "timeout recording in the owner record that this process has stopped"
            );
        }
    }

    /// The epoch of this process's claim to a shard; none where it is not open here.
    pub async fn epoch(&self, shard: u16) -> Option<u64> {
        let kept = self.shards.get(shard)?;
        let state = kept.state.lock().await;
        Some(state.record.epoch)
    }

    /// Why nothing is sent for a shard, if nothing is.
    pub fn trouble(&self, shard: u16) -> Option<String> {
        let kept = self.shards.get(shard)?;
        if let Some(whose) = kept.taken.get() {
            return Some(format!(
                "another process owns it ({whose}), so this one sends nothing; stop this process"
            ));
        }
        if !kept.fence.is_renewed() {
            let ago = self.clock.monotonic().saturating_sub(kept.renewed()).as_secs();
            return Some(format!(
                "its owner record was not renewed for {ago} s, so it sends nothing"
            ));
        }
        kept.fence.is_held().then(|| {
            if kept.is_read.load(Ordering::Acquire) {
                format!(
                    "it goes on from what was adopted and holds back what it would send: look at it with `saga-runner shard pending {shard}`, then let it go with `shard release {shard}`, or give some of it up before with `shard discard {shard}`"
                )
            } else {
                "it goes on from what was adopted: nothing is sent before its streams are read to their ends"
                    .to_owned()
            }
        })
    }

    /// Lets a shard send as soon as its state says so.
    pub async fn released(&self, shard: u16) {
        if let Some(kept) = self.shards.get(shard) {
            self.look_at_hold(&kept).await;
            self.show(&kept);
        }
    }

    /// Where what is held stands, as the last commit has it.
    async fn look_at_hold(&self, kept: &Kept) {
        let reader = kept.reader.clone();
        // Where it cannot be read, it is held.
        let Ok(Some(held)) = blocking(&self.tasks, move || reader.held()).await else {
            return;
        };
        let Some((log_sequence, time)) = held.read else {
            return;
        };
        let shard = kept.shard;
        if !held.holds() && kept.fence.is_held() {
            kept.fence.release(log_sequence, time);
            tracing::info!(shard, "shard starts to send");
        } else if held.holds() && !kept.is_read.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                shard,
                "the streams are read, and the shard holds its work until an operator decides about it (`saga-runner shard pending`)"
            );
        }
    }

    /// Whether any shard has begun from a state behind which it has worked already.
    pub fn is_resumed(&self) -> bool {
        self.shards.all().iter().any(|kept| kept.fence.is_resumed())
    }

    async fn renew(&self, kept: &Kept) {
        let mut state = kept.state.lock().await;
        if kept.closed.load(Ordering::Acquire) {
            return;
        }
        let now = self.clock.monotonic();
        if kept.fence.is_held() {
            self.look_at_hold(kept).await;
        }
        if kept.taken.get().is_none() && now >= state.next {
            match self.write(kept, &mut state).await {
                Renewal::Done => state.next = now + self.manifest.ownership.renew_every.duration(),
                Renewal::Rewritten => {
                    let theirs = self.manifest.ownership.renew_every.duration();
                    state.next = now + theirs + theirs / 2;
                }
                Renewal::Failed(message) => self.failed(kept, &message).await,
                Renewal::Taken(whose) => {
                    kept.fence.close();
                    tracing::error!(
                        shard = kept.shard,
                        whose,
                        "another process owns the shard, so this one sends nothing for it; stop this process"
                    );
                    kept.taken.get_or_init(|| whose);
                }
            }
        }
        // It was closed meanwhile, and the renewal must not have opened its fence again.
        if kept.closed.load(Ordering::Acquire) {
            kept.fence.close();
        }
        self.show(kept);
    }

    async fn failed(&self, kept: &Kept, message: &str) {
        let shard = kept.shard;
        if kept.fence.is_renewed() {
            tracing::debug!(shard, message, "owner record was not renewed");
        } else {
            tracing::warn!(
                shard,
                message,
                "cannot renew the owner record; the shard sends nothing"
            );
        }
        // It may be the bucket that is gone.
        if let Err(error) = cluster::prepare_bucket(&*self.broker, &self.manifest).await {
            tracing::debug!(%error, "cannot read the bucket of owner records");
        }
    }

    /// Writes the record as it is now, as often as it takes to find out what is in the way.
    async fn write(&self, kept: &Kept, state: &mut State) -> Renewal {
        let reader = kept.reader.clone();
        // Where it cannot be read, what was said last still holds.
        if let Ok(progress) = blocking(&self.tasks, move || reader.progress()).await {
            state.record.log_floor = progress.log_sequence;
            state.record.positions = progress.positions;
            // Whoever goes on from there has readers of its own.
            state.record.unneeded = if state.record.stopped {
                progress.positions
            } else {
                self.marks.unneeded(progress.positions)
            };
        }
        let entries = Entries::of(&self.manifest);
        let sends_for = self.manifest.ownership.send_within.duration();
        // After so long another process may have taken the shard over, and the broker may have lost the record of that.
        let quiet = self.clock.monotonic().saturating_sub(kept.renewed());
        let mut is_doubtful =
            !state.is_doubted && quiet >= self.manifest.ownership.take_over_after.duration();
        // Who has not renewed in time may have lost the shard. The revision alone does not tell: where the broker has lost its newest
        // writes, it has given the same one to another owner's.
        let mut is_looked_at = kept.fence.is_renewed();
        for _ in 0..ROUNDS_MAX {
            if !is_looked_at {
                match self.look(kept, state).await {
                    Ok(is_gone) => is_doubtful |= is_gone,
                    Err(renewal) => return renewal,
                }
            }
            is_looked_at = false;
            let begun = self.clock.monotonic();
            state.record.renewed = self.clock.now();
            let written = entries
                .write(&*self.broker, kept.shard, &state.record, state.revision)
                .await;
            match written {
                Ok(revision) => {
                    state.revision = Some(revision);
                    // So much later it may have been another owner's record that was written over.
                    is_doubtful |= self.clock.monotonic().saturating_sub(begun) >= sends_for;
                    state.is_doubted = is_doubtful;
                    if is_doubtful {
                        return Renewal::Rewritten;
                    }
                    kept.renewed.store(millis(begun), Ordering::Release);
                    kept.fence.renew(begun + sends_for);
                    return Renewal::Done;
                }
                Err(PutError::Conflict) => {}
                Err(error) => return Renewal::Failed(error.to_string()),
            }
        }
        Renewal::Failed("the record changes all the time".to_owned())
    }

    /// Reads the record that is to be written over. Tells whether there is none any more.
    async fn look(&self, kept: &Kept, state: &mut State) -> Result<bool, Renewal> {
        let entries = Entries::of(&self.manifest);
        let found = entries.read(&*self.broker, kept.shard).await;
        let found = found.map_err(|error| Renewal::Failed(error.to_string()))?;
        let record = found.as_ref().map(|(record, _)| record);
        let is_gone = match standing(record, &state.record) {
            Standing::Ours => false,
            Standing::Gone => {
                tracing::warn!(
                    shard = kept.shard,
                    "broker has lost the owner record; writing it again"
                );
                true
            }
            Standing::Taken => {
                return Err(Renewal::Taken(
                    record.map_or_else(String::new, OwnerRecord::whose),
                ));
            }
        };
        state.revision = found.map(|(_, revision)| revision);
        Ok(is_gone)
    }

    fn show(&self, kept: &Kept) {
        let shard = kept.shard.to_string();
        let is_here = !kept.closed.load(Ordering::Acquire);
        let is_taken = kept.taken.get().is_some();
        for (reason, holds) in [
            ("taken", is_here && is_taken),
            ("unrenewed", is_here && !is_taken && !kept.fence.is_renewed()),
            ("held", is_here && kept.fence.is_held()),
        ] {
            self.metrics
                .shards_fenced
                .with_label_values(&[shard.as_str(), reason])
                .set(i64::from(holds));
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
