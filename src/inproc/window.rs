//! The message ids that a stream remembers.

use std::collections::{HashMap, VecDeque};

use crate::kernel::duration::Millis;
use crate::kernel::ids::TimeMs;

/// A message id in fixed size, so that memory depends on the number of ids alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct IdHash([u8; 16]);

impl IdHash {
    pub fn of(id: &[u8]) -> Self {
        let mut out = [0; 16];
        blake3::Hasher::new().update(id).finalize_xof().fill(&mut out);
        Self(out)
    }
}

/// Ids with the sequence of the message that brought them, oldest first.
#[derive(Debug)]
pub(super) struct Window {
    span: Millis,
    ids_max: usize,
    sequences: HashMap<IdHash, u64>,
    order: VecDeque<(TimeMs, IdHash)>,
}

impl Window {
    pub fn new(span: Millis, ids_max: usize) -> Self {
        Self {
            span,
            ids_max: ids_max.max(1),
            sequences: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Whether an id of this time is still remembered.
    pub fn reaches(&self, time: TimeMs, now: TimeMs) -> bool {
        now.0.saturating_sub(time.0) < self.span.as_i64()
    }

    /// Forgets what is too old or too much.
    pub fn forget(&mut self, now: TimeMs) {
        while let Some((time, id)) = self.order.front().copied() {
            if self.reaches(time, now) && self.order.len() <= self.ids_max {
                break;
            }
            self.order.pop_front();
            self.sequences.remove(&id);
        }
    }

    pub fn sequence(&self, id: IdHash) -> Option<u64> {
        self.sequences.get(&id).copied()
    }

    pub fn remember(&mut self, id: IdHash, sequence: u64, time: TimeMs) {
        self.sequences.insert(id, sequence);
        self.order.push_back((time, id));
    }

    /// Removes the newest `count` ids, whose messages were not stored after all.
    pub fn take_back(&mut self, count: usize) {
        for _ in 0..count {
            if let Some((_, id)) = self.order.pop_back() {
                self.sequences.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_remembered_for_the_span_and_up_to_the_bound() {
        let mut window = Window::new(Millis(100), 3);
        let ids: Vec<IdHash> = (0..5_u8).map(|n| IdHash::of(&[n])).collect();
        window.remember(ids[0], 1, TimeMs(1_000));
        window.remember(ids[1], 2, TimeMs(1_050));
        window.forget(TimeMs(1_099));
        assert_eq!(window.sequence(ids[0]), Some(1));
        window.forget(TimeMs(1_100));
        assert_eq!(
            (window.sequence(ids[0]), window.sequence(ids[1])),
            (None, Some(2))
        );
        for (n, id) in ids.iter().enumerate().skip(2) {
            window.remember(*id, n as u64 + 1, TimeMs(1_100));
        }
        window.forget(TimeMs(1_100));
        assert_eq!(
            (window.sequence(ids[1]), window.sequence(ids[2])),
            (None, Some(3))
        );
        window.take_back(2);
        assert_eq!(
            (window.sequence(ids[4]), window.sequence(ids[2])),
            (None, Some(3))
        );
    }
}
