//! The history of an instance: rows of which each names the one before.

use std::collections::VecDeque;

use super::read::{Bound, Reader};
use super::rows::{HistoryOutcome, HistoryRow, decode, encode};
use super::tables::HISTORY;
use super::write::Batch;
use super::{ReadRows, StorageError, keys};

/// Most rows that one transaction deletes of one history.
const CUT_ROWS_MAX: usize = 10_000;

impl Batch<'_> {
    /// Deletes what an instance has of history rows behind its newest `keep` ones, with what they are about, except the first, which has
    /// what began it. One row in their place tells how many there were. `newest` is the newest row.
    ///
    /// It reads all rows that stay, so it is not for every input.
    pub fn cut_history(&self, newest: u64, keep: u64) -> Result<(), StorageError> {
        let row = |sequence: u64| -> Result<Option<HistoryRow>, StorageError> {
            let bytes = self.view.get(HISTORY, &keys::number(sequence))?;
            bytes.map(|bytes| decode(&bytes, "a history row")).transpose()
        };
        let mut next = Some(newest);
        for _ in 0..keep {
            let Some(kept) = next.map(row).transpose()?.flatten() else {
                return Ok(());
            };
            next = kept.previous;
        }
        let (mut doomed, mut rows, mut newest_of_them) = (Vec::new(), 0_u64, None);
        while let Some(sequence) = next.filter(|_| doomed.len() < CUT_ROWS_MAX) {
            let Some(found) = row(sequence)?.filter(|found| found.previous.is_some()) else {
                break;
            };
            next = found.previous;
            rows += match found.outcome {
                HistoryOutcome::Cut { rows } => rows,
                _ => 1,
            };
            doomed.push(sequence);
            newest_of_them.get_or_insert(found);
        }
        let Some(in_place) = newest_of_them.filter(|_| doomed.len() > 1) else {
            return Ok(());
        };
        for sequence in &doomed {
            self.view.delete(HISTORY, &keys::number(*sequence))?;
            self.delete_kept(*sequence)?;
        }
        let cut = HistoryRow {
            input_id: String::new(),
            kind: format!("{rows} earlier entries"),
            source: None,
            outcome: HistoryOutcome::Cut { rows },
            notes: Vec::new(),
            late_source: false,
            previous: next,
            ..in_place
        };
        self.view.put(HISTORY, &keys::number(doomed[0]), encode(&cut))
    }
}

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
