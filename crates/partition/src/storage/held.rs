//! What a partition holds back that goes on from an adopted state, and what operators have decided about it.

use saga_runner_kernel::ids::{CommandId, TimeMs};
use saga_runner_kernel::work::{WorkItem, WorkRef};
use serde::{Deserialize, Serialize};

use super::read::Reader;
use super::rows::{decode, encode};
use super::tables::{META, OUTBOX};
use super::{Batch, ReadRows, StorageError, keys};

/// The hold of the newest state that was adopted.
const HELD: &[u8] = b"held";
/// Begins the keys of the decisions.
const DECIDED: &[u8] = b"decided/";
/// Decisions that are kept.
const DECIDED_MAX: usize = 100;

/// Until when nothing is sent, and which work an owner who was given up may have carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRow {
    /// When the state was adopted.
    pub since: TimeMs,
    /// Epoch of the owner who was given up.
    pub given_up: u64,
    /// Sequences up to which the streams are to be read, by `SourceStream::index`.
    pub ends: [u64; 3],
    /// Log sequence and time at which they were.
    pub read: Option<(u64, TimeMs)>,
    /// Since when the shard sends again.
    pub released: Option<TimeMs>,
}

impl HeldRow {
    /// Whether nothing is sent.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.released.is_none()
    }

    /// Notes how far the streams are read.
    pub fn advance(&mut self, positions: [u64; 3], log_sequence: u64, now: TimeMs) {
        let is_read = || {
            positions
                .iter()
                .zip(self.ends)
                .all(|(position, end)| *position >= end)
        };
        if self.read.is_none() && is_read() {
            self.read = Some((log_sequence, now));
        }
    }
}

/// Something that an operator has decided about a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedRow {
    pub time: TimeMs,
    pub what: Decided,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decided {
    /// The owner of this epoch was given up, and the shard goes on from what the folder holds.
    Adopted { given_up: u64, fresh: bool },
    /// The shard sends from here on; so many rows were in its outbox.
    Released { rows: u64 },
    /// Work is not sent any more: commands whose steps have an unknown outcome, and rows for which nobody waits.
    Discarded {
        commands: u64,
        others: u64,
        /// Ids of the first of both.
        first: Vec<CommandId>,
    },
}

impl Batch<'_> {
    /// The hold of the newest state that was adopted.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn held(&self) -> Result<Option<HeldRow>, StorageError> {
        held(self.view)
    }

    /// Replaces it.
    ///
    /// # Errors
    /// Where the store does not take it.
    pub fn put_held(&self, row: &HeldRow) -> Result<(), StorageError> {
        self.view.put(META, HELD, encode(row))
    }

    /// Keeps a decision, and the newest 100 with it.
    ///
    /// # Errors
    /// Where the store does not take it.
    pub fn put_decided(&self, row: &DecidedRow) -> Result<(), StorageError> {
        let mut kept = Vec::new();
        self.view.scan(META, DECIDED, &mut |key, _| {
            let number = key.strip_prefix(DECIDED).and_then(keys::read_number);
            kept.extend(number);
            Ok(number.is_some())
        })?;
        let too_many = (kept.len() + 1).saturating_sub(DECIDED_MAX);
        for number in &kept[..too_many] {
            self.view.delete(META, &decided_key(*number))?;
        }
        let number = kept.last().map_or(0, |last| last + 1);
        self.view.put(META, &decided_key(number), encode(row))
    }

    /// A row of the outbox.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn work(&self, row: WorkRef) -> Result<Option<WorkItem>, StorageError> {
        self.view
            .get(OUTBOX, &keys::work(row))?
            .map(|bytes| decode(&bytes, "a work item"))
            .transpose()
    }
}

impl Reader {
    /// The hold of the newest state that was adopted.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn held(&self) -> Result<Option<HeldRow>, StorageError> {
        self.view(held)
    }

    /// What operators have decided about the shard, oldest first.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn decided(&self) -> Result<Vec<DecidedRow>, StorageError> {
        self.view(|view| {
            let mut rows = Vec::new();
            view.scan(META, DECIDED, &mut |key, bytes| {
                let is_one = key.starts_with(DECIDED);
                if is_one {
                    rows.push(decode(&bytes, "a decision")?);
                }
                Ok(is_one)
            })?;
            Ok(rows)
        })
    }
}

fn held(view: &dyn ReadRows) -> Result<Option<HeldRow>, StorageError> {
    view.get(META, HELD)?
        .map(|bytes| decode(&bytes, "what is held back"))
        .transpose()
}

fn decided_key(number: u64) -> Vec<u8> {
    [DECIDED, &keys::number(number)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_count_as_read_once_all_are_at_their_ends_and_from_then_on() {
        let mut held = HeldRow {
            since: TimeMs(0),
            given_up: 1,
            ends: [3, 0, 5],
            read: None,
            released: None,
        };
        held.advance([9, 9, 4], 7, TimeMs(1));
        assert_eq!(held.read, None);
        held.advance([3, 0, 5], 8, TimeMs(2));
        held.advance([4, 0, 5], 9, TimeMs(3));
        assert_eq!(held.read, Some((8, TimeMs(2))));
        assert!(held.holds(), "that does not release it");
    }
}
