//! Rows that the broker does not take: messages that are too large for their stream, or that it refuses for a reason that is not
//! known to pass. Nothing but the message tells what they tell, so they stay in the outbox and are tried again now and then; the
//! rows of their instance wait behind them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::backlog::Row;
use crate::kernel::work::{WorkItem, WorkRef};

/// The refused rows of one shard. There are no more than the backlog keeps in memory.
#[derive(Default)]
pub struct RefusedRows(BTreeMap<WorkRef, Waiting>);

struct Waiting {
    due: Duration,
    /// Absent while it is tried again.
    item: Option<WorkItem>,
}

impl RefusedRows {
    /// Keeps a row until `due`. Whether it was not refused before.
    pub fn keep(&mut self, (row, item): Row, due: Duration) -> bool {
        let item = Some(item);
        self.0.insert(row, Waiting { due, item }).is_none()
    }

    /// The row was taken at last, or is gone. Whether it had been refused.
    pub fn forget(&mut self, row: WorkRef) -> bool {
        !self.0.is_empty() && self.0.remove(&row).is_some()
    }

    /// At most so many rows that are due for another attempt.
    pub fn due(&mut self, now: Duration, room: usize) -> Vec<Row> {
        let due = self.0.iter_mut().filter(|(_, waiting)| waiting.due <= now);
        due.filter_map(|(row, waiting)| Some((*row, waiting.item.take()?)))
            .take(room)
            .collect()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
