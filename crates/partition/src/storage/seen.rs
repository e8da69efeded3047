//! What people see of an instance: all of it as of one commit, so that what blocks it belongs to the record beside it.

use saga_runner_kernel::ids::InstanceId;
use saga_runner_kernel::view::Kept;

use super::read::{self, Found, Reader};
use super::rows::HistoryRow;
use super::{StorageError, history};

/// An instance, and what is known of it beside its record.
#[derive(Debug)]
pub struct Seen {
    /// None where there is no such instance; events may wait for one.
    pub found: Option<Found>,
    /// The newest rows of its history, newest first.
    pub history: Vec<(u64, HistoryRow)>,
    pub kept: Kept,
}

impl Reader {
    /// Everything that is shown of an instance, with at most `history` rows.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn seen(&self, id: &InstanceId, history: usize) -> Result<Seen, StorageError> {
        self.view(|view| {
            let found = read::instance(view, id)?;
            let last = match &found {
                Some(Found::Live(record)) => record.last_history,
                Some(Found::Ended(summary)) => summary.record.last_history,
                None => None,
            };
            Ok(Seen {
                history: history::history(view, last, history)?,
                kept: read::kept(view, id)?,
                found,
            })
        })
    }
}
