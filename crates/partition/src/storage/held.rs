//! What a partition holds back that goes on from an adopted state, and what operators have decided about it.

use saga_runner_kernel::ids::{CommandId, TimeMs};
use saga_runner_kernel::work::{WorkItem, WorkRef};
use serde::{Deserialize, Serialize};

use super::read::Reader;
use super::rows::{decode, encode};
use super::tables::{META, OUTBOX};
use super::{Batch, ReadRows, StorageError, keys, newest};

/// The hold of the newest state that was adopted.
const HELD: &[u8] = b"held";
/// Begins the keys of the decisions.
const DECIDED: &[u8] = b"decided/";

/// Until when nothing is sent, and which work an owner who was given up may have carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRow {
    /// When the state was adopted.
    pub since: TimeMs,
    /// Epoch of the owner who was given up.
    pub given_up: u64,
    /// Log sequence and time at which the streams had been read to the ends that they had behind that.
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

    /// Whether its streams are to be read first.
    #[must_use]
    pub const fn reads(&self) -> bool {
        self.holds() && self.read.is_none()
    }

    /// Whether it waits for a decision.
    #[must_use]
    pub const fn waits(&self) -> bool {
        self.holds() && self.read.is_some()
    }
}

/// Something that an operator has decided about a shard. New decisions come last, so that those that are stored stay readable.
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
    /// The folder was made from the backup that was taken then, under the owner of this epoch.
    Restored { taken: String, epoch: u64 },
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

    /// Keeps a decision beside the newest ones before it.
    ///
    /// # Errors
    /// Where the store does not take it.
    pub fn put_decided(&self, row: &DecidedRow) -> Result<(), StorageError> {
        newest::add(self, DECIDED, row)
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
        self.view(|view| newest::all(view, DECIDED, "a decision"))
    }
}

fn held(view: &dyn ReadRows) -> Result<Option<HeldRow>, StorageError> {
    view.get(META, HELD)?
        .map(|bytes| decode(&bytes, "what is held back"))
        .transpose()
}
