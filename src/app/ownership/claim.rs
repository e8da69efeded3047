//! Claiming the shards: before this is done, nothing is read or sent.
//!
//! What is done with each shard in turn is here; `candidate` is one of them, `refusal` what is said if it may not be claimed.

mod candidate;
mod refusal;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use saga_runner_partition::machine::held::continue_copy;

use super::adoption::Adoption;
use super::record::{Entries, OwnerRecord, ReadError, Token};
use super::verdict::{Folder, How, Question, Verdict, decide};
use crate::app::adapters::Adapters;
use crate::app::{StartError, cluster, shards};
use crate::config::{BrokerKind, Manifest};
use crate::kernel::ids::ClusterId;
use crate::outbox::Fence;
use crate::ports::broker::{Broker, BrokerError, PutError};
use crate::ports::clock::Clock;
use crate::ports::randomness::Randomness;
use crate::storage::{HeldRow, OpenOptions, Reader, StorageError, Store};
use candidate::Candidate;
use refusal::refused;

/// How long the claim waits before it asks the broker again.
const AGAIN: Duration = Duration::from_secs(1);
/// Pause before a folder is tried again that is still open.
const LOCKED_AGAIN: Duration = Duration::from_millis(50);
/// Longest pause between two looks at a record that is watched.
const LOOK: Duration = Duration::from_millis(500);

/// What claiming needs.
pub struct Claiming<'c> {
    pub broker: &'c dyn Broker,
    pub manifest: &'c Manifest,
    pub adapters: &'c dyn Adapters,
    pub randomness: &'c dyn Randomness,
    pub clock: &'c Arc<dyn Clock>,
    pub cluster: ClusterId,
    /// The shards that have had state.
    pub existed: &'c BTreeSet<u16>,
    pub adoption: &'c Adoption,
    /// How long a folder may still be open: whoever reads in a shard that was closed just now keeps it open.
    pub locked_for: Duration,
    /// Hears what the start waits for.
    pub waiting_for: &'c (dyn Fn(String) + Send + Sync),
}

/// A shard that this process owns.
pub struct Claimed {
    pub shard: u16,
    pub store: Store,
    pub record: OwnerRecord,
    /// Of the record.
    pub revision: u64,
    pub fence: Arc<Fence>,
}

/// What is done where a shard has no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Refuse,
    Create,
}

enum Trouble {
    /// Waiting may help.
    Unavailable(String),
    /// The broker has lost the bucket since the start has made it.
    NoBucket(String),
    Refused(StartError),
}

impl From<ReadError> for Trouble {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Broker(BrokerError::Unavailable(message)) => Self::Unavailable(message),
            ReadError::Broker(error @ BrokerError::NoStream(_)) => Self::NoBucket(error.to_string()),
            ReadError::Broker(error) => Self::Refused(StartError::Broker(error.to_string())),
            error @ ReadError::Unreadable { .. } => Self::Refused(StartError::Identity(error.to_string())),
        }
    }
}

impl From<StorageError> for Trouble {
    fn from(error: StorageError) -> Self {
        Self::Refused(StartError::Storage(error.to_string()))
    }
}

impl Claiming<'_> {
    /// Claims all of these shards, or none is worked with.
    ///
    /// # Errors
    /// [`StartError`] where one of them may not be claimed.
    pub async fn claim(&self, shards: &[u16]) -> Result<Vec<Claimed>, StartError> {
        let mut candidates = Vec::with_capacity(shards.len());
        for shard in shards {
            candidates.push(self.look(*shard).await?);
        }
        loop {
            match self.round(&mut candidates).await {
                Ok(None) => break,
                Ok(Some(pause)) => tokio::time::sleep(pause).await,
                Err(Trouble::Unavailable(message)) => {
                    tracing::warn!(message, "waiting for the broker");
                    (self.waiting_for)(format!("broker: {message}"));
                    tokio::time::sleep(AGAIN).await;
                }
                Err(Trouble::NoBucket(message)) => {
                    tracing::warn!(message, "bucket of owner records does not exist");
                    (self.waiting_for)(format!("broker: {message}"));
                    match cluster::prepare_bucket(self.broker, self.manifest).await {
                        Ok(()) => {}
                        Err(BrokerError::Unavailable(_)) => tokio::time::sleep(AGAIN).await,
                        Err(error) => return Err(StartError::Broker(error.to_string())),
                    }
                }
                Err(Trouble::Refused(error)) => return Err(error),
            }
        }
        self.tell_unused(&candidates);
        Ok(candidates
            .into_iter()
            .filter_map(|candidate| candidate.claimed)
            .collect())
    }

    /// Opens what there is of a shard, which keeps every other process of this host from it.
    async fn look(&self, shard: u16) -> Result<Candidate, StartError> {
        let storage = |error: StorageError| StartError::Storage(error.to_string());
        let dir = shards::dir(self.manifest, shard);
        let (mut store, mut folder) = (None, None);
        match self.open_unlocked(shard).await {
            Ok(found) => {
                let log_sequence = found.reader().progress().map_err(storage)?.log_sequence;
                let ownership = found.ownership().map_err(storage)?;
                folder = ownership.map(|ownership| Folder {
                    owner: Token(ownership.owner),
                    epoch: ownership.epoch,
                    claim: Token(ownership.claim),
                    log_sequence,
                });
                store = Some(found);
            }
            Err(StorageError::Missing(_)) => {}
            Err(error) => return Err(storage(error)),
        }
        Ok(Candidate {
            shard,
            place: self.adapters.place(&dir),
            dir,
            store,
            folder,
            found: None,
            missed_since: None,
            looked: None,
            how: None,
            claimed: None,
        })
    }

    /// Opens what there is, as soon as nobody else has it open.
    async fn open_unlocked(&self, shard: u16) -> Result<Store, StorageError> {
        let begun = self.clock.monotonic();
        loop {
            match self.open(shard, Missing::Refuse) {
                Err(StorageError::Locked(_))
                    if self.clock.monotonic().saturating_sub(begun) < self.locked_for =>
                {
                    tokio::time::sleep(LOCKED_AGAIN).await;
                }
                opened => return opened,
            }
        }
    }

    fn open(&self, shard: u16, missing: Missing) -> Result<Store, StorageError> {
        let options = OpenOptions {
            cluster: self.manifest.cluster.clone(),
            cluster_id: self.cluster,
            shard,
            shards: self.manifest.shards,
            create: missing == Missing::Create,
        };
        let dir = shards::dir(self.manifest, shard);
        self.adapters.store(&dir, &self.manifest.storage, &options)
    }

    /// Looks at all records, and claims the shards once all of them may be. How long to wait before the next round, none
    /// after the last.
    async fn round(&self, candidates: &mut [Candidate]) -> Result<Option<Duration>, Trouble> {
        let (mut claims, mut refusals, mut watched) = (Vec::new(), Vec::new(), None);
        for candidate in candidates.iter_mut().filter(|one| one.claimed.is_none()) {
            match self.verdict(candidate).await? {
                Verdict::Claim { epoch, how } => claims.push((candidate, epoch, how)),
                Verdict::Refuse(refusal) => refusals.push((&*candidate, refusal)),
                Verdict::Watch => watched = Some(&*candidate),
            }
        }
        if let Some(error) = refused(&refusals) {
            return Err(Trouble::Refused(error));
        }
        if let Some(candidate) = watched {
            (self.waiting_for)(candidate.watches());
            let patience = self.patience(candidate.record());
            return Ok(Some(LOOK.min(patience / 16)));
        }
        let mut again = None;
        for (candidate, epoch, how) in claims {
            if !self.try_claim(candidate, epoch, how).await? {
                again = Some(Duration::ZERO);
            }
        }
        Ok(again)
    }

    async fn verdict(&self, candidate: &mut Candidate) -> Result<Verdict, Trouble> {
        let entries = Entries::of(self.manifest);
        let found = entries.read(self.broker, candidate.shard).await?;
        let now = self.clock.monotonic();
        // An owner may have come and its record be lost again while nobody looked.
        let blind = self.patience(None) / 2;
        let was_away = |looked| now.saturating_sub(looked) > blind;
        if candidate.looked.replace(now).is_some_and(was_away) {
            candidate.missed_since = None;
        }
        candidate.watch(found, now);
        let verdict = decide(&Question {
            record: candidate.record(),
            existed: self.existed.contains(&candidate.shard),
            folder: candidate.folder.as_ref(),
            place: &candidate.place,
            adopted: self.adoption.of(candidate.shard),
            quiet: candidate.quiet(now),
            patience: self.patience(candidate.record()),
        });
        if verdict == Verdict::Watch && candidate.is_news(now) {
            tracing::warn!(shard = candidate.shard, "{}", candidate.watches());
        }
        Ok(verdict)
    }

    /// How long the owner of a record has to be quiet. It may have been told other times than this process.
    fn patience(&self, record: Option<&OwnerRecord>) -> Duration {
        // The embedded broker lies in the same folder, and its lock keeps everybody else away.
        if self.manifest.broker.kind == BrokerKind::Embedded {
            return Duration::ZERO;
        }
        let settings = &self.manifest.ownership;
        let sends = record.map_or(0, |record| record.sends_ms);
        let theirs = Duration::from_millis(sends).saturating_add(settings.margin());
        settings.take_over_after.duration().max(theirs)
    }

    /// Writes the claim into the folder, then into the broker. False where the record was changed meanwhile.
    async fn try_claim(&self, candidate: &mut Candidate, epoch: u64, how: How) -> Result<bool, Trouble> {
        // Its own first write may be what it then finds.
        let how = *candidate.how.get_or_insert(how);
        // The id lies in the folder before a shard does that has it: the broker may lose its record before the claim is over.
        shards::note(self.manifest, self.cluster, &[]).map_err(Trouble::Refused)?;
        let store = match candidate.store.take() {
            Some(store) => store,
            None => self.open(candidate.shard, Missing::Create)?,
        };
        match how {
            How::New | How::Again => {}
            How::Elsewhere | How::RecordLost => store.write(continue_copy)?,
            How::Adopted { given_up, fresh } => {
                let held = HeldRow {
                    since: self.clock.now(),
                    given_up,
                    read: None,
                    released: None,
                };
                candidate.adopt(&store, held, fresh, self.adoption.reason())?;
            }
        }
        let log_sequence = candidate.put_ownership(&store, epoch, self.randomness)?;
        candidate.place = self.adapters.place(&candidate.dir);
        let record = self.record(candidate, &store, epoch, log_sequence)?;
        let begun = self.clock.monotonic();
        let expected = candidate.found.as_ref().map(|found| found.revision);
        let entries = Entries::of(self.manifest);
        let written = entries
            .write(self.broker, candidate.shard, &record, expected)
            .await;
        let revision = match written {
            Ok(revision) => revision,
            Err(error) => {
                candidate.store = Some(store);
                return match error {
                    PutError::Conflict => Ok(false),
                    PutError::Unavailable(message) | PutError::Unknown(message) => {
                        Err(Trouble::Unavailable(message))
                    }
                    error @ PutError::Refused(_) => {
                        Err(Trouble::Refused(StartError::Broker(error.to_string())))
                    }
                };
            }
        };
        self.tell(candidate, &record, how);
        let fence = Fence::closed(Arc::clone(self.clock));
        resume(&fence, &store.reader())?;
        fence.renew(begun + self.manifest.ownership.send_within.duration());
        candidate.claimed = Some(Claimed {
            shard: candidate.shard,
            store,
            record,
            revision,
            fence,
        });
        Ok(true)
    }

    fn record(
        &self,
        candidate: &Candidate,
        store: &Store,
        epoch: u64,
        log_floor: u64,
    ) -> Result<OwnerRecord, StorageError> {
        let folder = candidate.folder.as_ref().expect("it was written just now");
        let now = self.clock.now();
        let positions = store.reader().progress()?.positions;
        Ok(OwnerRecord {
            owner: folder.owner,
            epoch,
            claim: folder.claim,
            place: candidate.place.clone(),
            stopped: false,
            since: now,
            renewed: now,
            sends_ms: self.manifest.ownership.send_within.0,
            log_floor,
            positions,
            unneeded: positions,
        })
    }

    fn tell(&self, candidate: &Candidate, record: &OwnerRecord, how: How) {
        let (shard, epoch) = (candidate.shard, record.epoch);
        match how {
            How::New => tracing::info!(shard, "new shard"),
            How::Again => tracing::debug!(shard, epoch, "shard continues"),
            How::Elsewhere => tracing::info!(
                shard,
                epoch,
                "shard continues; its last owner did not stop cleanly, so the folder may be a copy"
            ),
            How::RecordLost => {
                tracing::warn!(
                    shard,
                    epoch,
                    "broker has no owner record of this shard; writing it again"
                );
            }
            How::Adopted { given_up, fresh } => {
                let owner = candidate.record().map(OwnerRecord::whose);
                tracing::warn!(
                    target: "audit",
                    cluster = self.manifest.cluster,
                    shard,
                    given_up,
                    epoch,
                    owner = owner.as_deref().unwrap_or("unknown"),
                    reason = self.adoption.reason(),
                    "{}",
                    if fresh {
                        "a loss was adopted: the shard begins anew; its instances, timers and ledgers are forgotten, and work of theirs that was under way is neither finished nor undone"
                    } else {
                        "an older or another folder was adopted: the shard goes on from its state; what happened behind that is known only as far as the streams still tell"
                    }
                );
            }
        }
    }

    /// A flag that was left in a unit file does no harm, and is of no use at the next loss.
    fn tell_unused(&self, candidates: &[Candidate]) {
        for loss in self.adoption.losses() {
            let candidate = candidates.iter().find(|candidate| candidate.shard == loss.shard);
            if candidate.is_none() && loss.shard < self.manifest.shards {
                // It is not opened now.
                continue;
            }
            let used = candidate.and_then(|candidate| candidate.how);
            if !matches!(used, Some(How::Adopted { .. })) {
                tracing::warn!(
                    shard = loss.shard,
                    epoch = loss.epoch,
                    "--adopt-loss is ignored: nothing of this shard is lost; remove the flag"
                );
            }
        }
    }
}

/// Holds the fence of a shard that goes on from an adopted state, until what that would send is decided about. Later it
/// tells which work that is, as long as there is some.
fn resume(fence: &Fence, reader: &Reader) -> Result<(), StorageError> {
    let Some(held) = reader.held()? else {
        return Ok(());
    };
    let Some((read, at)) = held.read.filter(|_| !held.holds()) else {
        fence.hold();
        return Ok(());
    };
    let first = reader.work_after(None, 1)?;
    if first.iter().any(|(row, _)| row.log_sequence <= read) {
        fence.release(read, at);
    }
    Ok(())
}
