//! What operators have accepted of the streams, and what the history knows of their messages.

use std::collections::BTreeMap;

use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::input::SourceStream;

use super::StorageError;
use super::keys;
use super::newest;
use super::read::Reader;
use super::rows::{AcceptedRow, HaltRow, HistoryRow, decode};
use super::tables::{HISTORY, META};
use super::write::{ACCEPTED, COUNTERS, Counters, halt_key};

impl Reader {
    /// What operators have accepted, oldest first.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn accepted(&self) -> Result<Vec<AcceptedRow>, StorageError> {
        self.view(|view| newest::all(view, ACCEPTED, "an accepted loss"))
    }

    /// Why a stream must not be read on before an operator says so.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn halt(&self, stream: SourceStream) -> Result<Option<HaltRow>, StorageError> {
        self.view(|view| {
            view.get(META, &halt_key(stream))?
                .map(|bytes| decode(&bytes, "a halt"))
                .transpose()
        })
    }

    /// The messages of a stream that the newest rows of the history are about, by sequence and stored time, ascending.
    /// `rows`: so many are looked at, of whatever stream.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn last_inputs(&self, stream: SourceStream, rows: u64) -> Result<Vec<(u64, TimeMs)>, StorageError> {
        self.view(|view| {
            let counters: Counters = match view.get(META, COUNTERS)? {
                Some(bytes) => decode(&bytes, "the counters")?,
                None => Counters::default(),
            };
            let last = counters.log_sequence;
            let mut inputs = BTreeMap::new();
            for log_sequence in (last.saturating_sub(rows)..=last).rev() {
                let Some(bytes) = view.get(HISTORY, &keys::number(log_sequence))? else {
                    continue;
                };
                let row: HistoryRow = decode(&bytes, "a history row")?;
                if let Some((of, sequence)) = row.source
                    && of == stream
                {
                    // Of two messages under one sequence the newer one counts.
                    inputs.entry(sequence).or_insert(row.time);
                }
            }
            Ok(inputs.into_iter().collect())
        })
    }
}
