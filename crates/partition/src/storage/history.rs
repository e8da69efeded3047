//! The history of an instance: rows of which each names the one before.

use std::collections::VecDeque;

use super::read::{Bound, Reader};
use super::rows::{HistoryRow, decode};
use super::tables::HISTORY;
use super::{ReadRows, StorageError, keys};

impl Reader {
    /// History rows of all instances behind the log sequence `after`, oldest first, at most `limit`.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn history_since(&self, after: u64, limit: usize) -> Result<Vec<(u64, HistoryRow)>, StorageError> {
        let corrupt = || StorageError::Corrupt("a key of the history".to_owned());
        self.view(|view| {
            let mut rows = Vec::new();
            let from = keys::number(after.saturating_add(1));
            view.scan(HISTORY, &from, &mut |key, value| {
                let sequence = keys::read_number(key).ok_or_else(corrupt)?;
                rows.push((sequence, decode(&value, "a history row")?));
                Ok(rows.len() < limit)
            })?;
            Ok(rows)
        })
    }

    /// History rows of an instance, newest first, with their log sequences.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn history(&self, last: Option<u64>, limit: usize) -> Result<Vec<(u64, HistoryRow)>, StorageError> {
        self.view(|view| history(view, last, limit))
    }

    /// History rows of an instance behind the row `after`, oldest first, and whether more follow. `last` is its newest row.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn history_behind(
        &self,
        last: Option<u64>,
        after: Option<u64>,
        bound: impl Into<Bound>,
    ) -> Result<(Vec<(u64, HistoryRow)>, bool), StorageError> {
        let bound = bound.into();
        self.view(|view| history_behind(view, last, after, bound))
    }
}

pub(super) fn history(
    view: &dyn ReadRows,
    last: Option<u64>,
    limit: usize,
) -> Result<Vec<(u64, HistoryRow)>, StorageError> {
    let mut rows = Vec::new();
    let mut next = last;
    while let Some(sequence) = next.filter(|_| rows.len() < limit) {
        let Some(bytes) = view.get(HISTORY, &keys::number(sequence))? else {
            break;
        };
        let row: HistoryRow = decode(&bytes, "a history row")?;
        next = row.previous;
        rows.push((sequence, row));
    }
    Ok(rows)
}

/// A row names the one before it, so the way to the oldest is that of all; of what lies on it no more is kept than is given.
fn history_behind(
    view: &dyn ReadRows,
    last: Option<u64>,
    after: Option<u64>,
    mut bound: Bound,
) -> Result<(Vec<(u64, HistoryRow)>, bool), StorageError> {
    let row = |sequence: u64| -> Result<Option<(usize, HistoryRow)>, StorageError> {
        let Some(bytes) = view.get(HISTORY, &keys::number(sequence))? else {
            return Ok(None);
        };
        Ok(Some((bytes.len(), decode(&bytes, "a history row")?)))
    };
    let mut oldest = VecDeque::new();
    let mut count = 0_usize;
    let mut next = last;
    while let Some(sequence) = next.filter(|sequence| after.is_none_or(|after| *sequence > after)) {
        let Some((_, found)) = row(sequence)? else {
            break;
        };
        next = found.previous;
        count += 1;
        oldest.push_front(sequence);
        oldest.truncate(bound.items);
    }
    let mut rows = Vec::new();
    for sequence in oldest {
        let Some((bytes, found)) = row(sequence)? else {
            break;
        };
        rows.push((sequence, found));
        if bound.is_reached_by(bytes) {
            break;
        }
    }
    let more = count > rows.len();
    Ok((rows, more))
}
