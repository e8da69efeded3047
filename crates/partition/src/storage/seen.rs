//! What people see of an instance: all of it as of one commit, so that what blocks it belongs to the record beside it.

use std::collections::BTreeMap;

use saga_runner_kernel::ids::InstanceId;
use saga_runner_kernel::record::Record;
use saga_runner_kernel::view::Kept;
use saga_runner_kernel::view::pending::PENDING_MAX;
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::read::{self, Found, Reader};
use super::rows::{HistoryRow, decode};
use super::tables::OUTBOX;
use super::{ReadRows, StorageError, history, keys};

/// An instance, and what is known of it beside its record.
#[derive(Debug)]
pub struct Seen {
    /// None where there is no such instance; events may wait for one.
    pub found: Option<Found>,
    /// The newest rows of its history, newest first.
    pub history: Vec<(u64, HistoryRow)>,
    pub kept: Kept,
    /// Rows of the outbox whose outcomes a live one awaits, as many as are shown.
    pub work: BTreeMap<WorkRef, WorkItem>,
}

/// Some of a history, newest first, and the log sequence behind which it goes on.
pub type HistoryPage = (Vec<(u64, HistoryRow)>, Option<u64>);

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
            let work = match &found {
                Some(Found::Live(record)) => work(view, record)?,
                Some(Found::Ended(_)) | None => BTreeMap::new(),
            };
            Ok(Seen {
                work,
                history: history::history(view, last, history)?,
                kept: read::kept(view, id)?,
                found,
            })
        })
    }
    /// The history of an instance, newest first: from its newest row, or behind the row `after`. `None`: there is no such
    /// instance, or no such row of it.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn history_page(
        &self,
        id: &InstanceId,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Option<HistoryPage>, StorageError> {
        self.view(|view| {
            let from = match after {
                Some(after) => match history::history(view, Some(after), 1)?.pop() {
                    Some((_, row)) if row.instance == *id => row.previous,
                    Some(_) | None => return Ok(None),
                },
                None => match read::instance(view, id)? {
                    Some(Found::Live(record)) => record.last_history,
                    Some(Found::Ended(summary)) => summary.record.last_history,
                    None => return Ok(None),
                },
            };
            let rows = history::history(view, from, limit)?;
            let last = rows.last().filter(|(_, row)| row.previous.is_some());
            let next = last.map(|(sequence, _)| *sequence);
            Ok(Some((rows, next)))
        })
    }
}

fn work(view: &dyn ReadRows, record: &Record) -> Result<BTreeMap<WorkRef, WorkItem>, StorageError> {
    let mut rows = BTreeMap::new();
    for outstanding in record.outstanding().take(PENDING_MAX) {
        if let Some(bytes) = view.get(OUTBOX, &keys::work(outstanding.row))? {
            rows.insert(outstanding.row, decode(&bytes, "a work item")?);
        }
    }
    Ok(rows)
}
