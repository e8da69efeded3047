//! What a partition notes outside of the transactions that apply inputs: of which inputs its process has died, what an operator
//! says of a stream, and that it was closed.

use std::collections::BTreeSet;

use saga_runner_kernel::input::SourceStream;
use saga_runner_kernel::work::WorkRef;

use super::Partition;
use crate::storage::rows::{AcceptedRow, HaltRow, PositionRow, Suspect};
use crate::storage::{Batch, StorageError};

impl Partition {
    /// Stores in whose application the process has died, where that has changed.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn note_suspects(batch: &Batch<'_>, suspects: &[Suspect]) -> Result<(), StorageError> {
        batch.put_suspects(suspects)
    }

    /// Keeps why a stream must not be read on: the partition does not work after a restart before an operator has decided.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn keep_halt(batch: &Batch<'_>, stream: SourceStream, halt: &HaltRow) -> Result<(), StorageError> {
        batch.put_halt(stream, Some(halt))
    }

    /// Stores from where on a stream is read, on an operator's word. It counts in memory once it is durable: see
    /// [`Self::moved`].
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn reposition(
        batch: &Batch<'_>,
        stream: SourceStream,
        to: &PositionRow,
        accepted: &AcceptedRow,
    ) -> Result<(), StorageError> {
        batch.put_position(stream, to)?;
        batch.put_halt(stream, None)?;
        batch.put_accepted(accepted)
    }

    /// A stored position of [`Self::reposition`] is the one of the partition from now on.
    pub fn moved(&mut self, stream: SourceStream, to: &PositionRow) {
        let index = stream.index();
        self.positions[index] = to.sequence;
        self.stamps[index] = to.stamp;
        self.streams[index] = to.stream.clone();
    }

    /// Marks the stop as a clean one. `called`: rows whose calls were begun and are not completed. `maybe_called`: log sequence
    /// up to which calls may have been made without a mark.
    ///
    /// # Errors
    /// [`StorageError`]: the next start takes the stop for a crash.
    pub fn close(
        &self,
        batch: &Batch<'_>,
        called: &BTreeSet<WorkRef>,
        maybe_called: u64,
    ) -> Result<(), StorageError> {
        batch.put_counters(&self.counters)?;
        for row in called {
            batch.begin_work(*row)?;
        }
        batch.put_closed(Some(maybe_called))
    }
}
