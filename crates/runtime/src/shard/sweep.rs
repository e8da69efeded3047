//! Looks for work that was handed over long ago and still stands in the outbox: its result, or the message that
//! it was delivered, got lost.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::mailbox::Relayed;
use crate::kernel::ids::InstanceId;
use crate::kernel::work::{WorkItem, WorkRef};
use crate::storage::rows::Waiting;
use crate::storage::{Reader, StorageError};

/// Overdue rows that one look finds at most.
const FOUND_MAX: usize = 256;
/// Rows that it reads at a time, and how often.
const ROWS: usize = 256;
const READS_MAX: usize = 8;

/// Progress of the sweep through the outbox. It goes round at most once in `after`, so a row is left alone for
/// at least that long.
#[derive(Debug)]
pub(super) struct Sweep {
    every: Duration,
    after: Duration,
    next: Duration,
    /// The floor as it was at some instants of the last `after`.
    floors: VecDeque<(Duration, u64)>,
    round_began: Option<Duration>,
    /// Where the round goes on; none between two rounds.
    cursor: Option<WorkRef>,
}

impl Sweep {
    pub const fn new(every: Duration, after: Duration, now: Duration) -> Self {
        Self {
            every,
            after,
            next: now,
            floors: VecDeque::new(),
            round_began: None,
            cursor: None,
        }
    }

    /// Makes everything that was handed over count as overdue.
    pub fn at_once(&mut self, floor: u64, now: Duration) {
        *self = Self::new(self.every, self.after, now);
        self.floors.push_back((now.saturating_sub(self.after), floor));
    }

    /// When the next look is due.
    pub const fn next(&self) -> Duration {
        self.next
    }

    /// Finds rows that were handed over at least `after` ago. Rows of instances whose inputs wait are left out:
    /// their results may be among what waits.
    pub fn look(
        &mut self,
        reader: &Reader,
        floor: u64,
        now: Duration,
        waiting: &HashMap<InstanceId, Waiting>,
    ) -> Result<Vec<(WorkRef, WorkItem)>, StorageError> {
        self.next = now + self.every;
        self.floors.push_back((now, floor));
        let Some(old_floor) = self.old_floor(now) else {
            return Ok(Vec::new());
        };
        let mut cursor = self.cursor;
        if cursor.is_none() && self.rests(now) {
            return Ok(Vec::new());
        }
        let old = |row: WorkRef| Relayed::covers(old_floor, row);
        let waits = |waiting: &Waiting| waiting.is_blocked() || waiting.paused > 0 || waiting.asks.is_some();
        let blocked = |item: &WorkItem| waiting.get(&item.instance).is_some_and(waits);
        let mut found = Vec::new();
        for _ in 0..READS_MAX {
            let rows = reader.work_after(cursor, ROWS.min(FOUND_MAX - found.len()))?;
            if cursor.is_none() && rows.first().is_some_and(|(row, _)| old(*row)) {
                self.round_began = Some(now);
            }
            cursor = rows.last().map(|(row, _)| *row).filter(|row| old(*row));
            found.extend(rows.into_iter().filter(|(row, item)| old(*row) && !blocked(item)));
            if cursor.is_none() || found.len() >= FOUND_MAX {
                break;
            }
        }
        self.cursor = cursor;
        Ok(found)
    }

    /// Whether the last round is too near.
    fn rests(&self, now: Duration) -> bool {
        self.round_began
            .is_some_and(|began| now.saturating_sub(began) < self.after)
    }

    /// The floor as it was `after` ago, if it is known.
    fn old_floor(&mut self, now: Duration) -> Option<u64> {
        let old = |at: Duration| now.saturating_sub(at) >= self.after;
        while self.floors.get(1).is_some_and(|(at, _)| old(*at)) {
            self.floors.pop_front();
        }
        self.floors
            .front()
            .filter(|(at, _)| old(*at))
            .map(|(_, floor)| *floor)
    }
}
