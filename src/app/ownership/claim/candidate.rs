//! One shard on the way to its claim: its folder, its owner record, and since when the record has not been renewed.

use std::path::PathBuf;
use std::time::Duration;

use saga_runner_partition::machine::held::adopt;

use super::Claimed;
use crate::app::ownership::record::{OwnerRecord, Place, Token};
use crate::app::ownership::verdict::{Folder, How};
use crate::ports::randomness::Randomness;
use crate::storage::{Decided, HeldRow, Ownership, StorageError, Store};

/// One shard on the way to its claim.
pub(super) struct Candidate {
    pub shard: u16,
    pub dir: PathBuf,
    pub place: Place,
    pub store: Option<Store>,
    pub folder: Option<Folder>,
    pub found: Option<Found>,
    /// Since when the broker has no record.
    pub missed_since: Option<Duration>,
    /// When the record was looked for last.
    pub looked: Option<Duration>,
    pub how: Option<How>,
    pub claimed: Option<Claimed>,
}

/// A record, and since when it is watched.
pub(super) struct Found {
    pub record: OwnerRecord,
    pub revision: u64,
    pub since: Duration,
    /// Its owner has written it meanwhile.
    pub is_renewed: bool,
    /// It was found in this round.
    pub is_new: bool,
}

impl Candidate {
    pub(super) fn record(&self) -> Option<&OwnerRecord> {
        self.found.as_ref().map(|found| &found.record)
    }

    pub(super) fn watch(&mut self, found: Option<(OwnerRecord, u64)>, now: Duration) {
        self.missed_since = match &found {
            Some(_) => None,
            None => self.missed_since.or(Some(now)),
        };
        self.found = found.map(|(record, revision)| match self.found.take() {
            Some(before) if before.revision == revision => Found {
                is_new: false,
                ..before
            },
            before => Found {
                // One of before comes back where the broker loses its newest writes.
                is_renewed: before
                    .is_some_and(|before| before.record.is_claim_of(&record) && revision > before.revision),
                record,
                revision,
                since: now,
                is_new: true,
            },
        });
    }

    /// How long the record was seen unrenewed, or missing.
    pub(super) fn quiet(&self, now: Duration) -> Option<Duration> {
        match &self.found {
            Some(found) if found.is_renewed => None,
            Some(found) => Some(now.saturating_sub(found.since)),
            // That was decided before it was to be written for the first time.
            None if self.how.is_some() => Some(Duration::MAX),
            None => Some(now.saturating_sub(self.missed_since.unwrap_or(now))),
        }
    }

    /// Whether this look is the first one at what it is to wait for.
    pub(super) fn is_news(&self, now: Duration) -> bool {
        match &self.found {
            Some(found) => found.is_new,
            None => self.missed_since == Some(now),
        }
    }

    pub(super) fn watches(&self) -> String {
        let shard = self.shard;
        self.record().map_or_else(
            || format!("shard {shard}: the broker has no owner record of it; waiting to see whether an owner at work writes it again"),
            |record| format!("shard {shard}: waiting to see whether its owner still renews it ({})", record.whose()),
        )
    }

    /// Holds back what the state would send that is gone on from in place of the owner who is given up.
    pub(super) fn adopt(
        &self,
        store: &Store,
        held: HeldRow,
        fresh: bool,
        reason: &str,
    ) -> Result<(), StorageError> {
        let floor = self.record().map_or(0, |record| record.log_floor);
        let adopted = Decided::Adopted {
            given_up: held.given_up,
            fresh,
        };
        store.write(|batch| adopt(batch, &held, adopted, floor, reason))
    }

    /// Writes the claim into the folder, and gives its log sequence.
    pub(super) fn put_ownership(
        &mut self,
        store: &Store,
        epoch: u64,
        randomness: &dyn Randomness,
    ) -> Result<u64, StorageError> {
        let log_sequence = store.reader().progress()?.log_sequence;
        let folder = Folder {
            owner: self
                .folder
                .map_or_else(|| Token::draw(randomness), |folder| folder.owner),
            epoch,
            claim: Token::draw(randomness),
            log_sequence,
        };
        store.put_ownership(&Ownership {
            owner: folder.owner.0,
            epoch,
            claim: folder.claim.0,
        })?;
        self.folder = Some(folder);
        Ok(log_sequence)
    }
}
