//! What a source stream is, and whether a position belongs to it.

use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::planted::{Bug, is_planted};

pub use crate::storage::rows::StreamIdentity;
use crate::storage::rows::{PositionRow, Stamp};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    pub identity: StreamIdentity,
    /// Sequence of the oldest message, or one more than `last_sequence` where the stream is empty.
    pub first_sequence: u64,
    /// Sequence of the newest message ever stored, 0 if none was.
    pub last_sequence: u64,
    /// When that message was stored; `None` where the stream is empty.
    pub last_time: Option<TimeMs>,
    pub messages: u64,
    pub bytes: u64,
    /// The broker's clock when it told this.
    pub told: TimeMs,
}

impl StreamState {
    /// Of a stream in which nothing was stored yet.
    #[must_use]
    pub const fn empty(name: String) -> Self {
        Self {
            identity: StreamIdentity { name, created_ns: 0 },
            first_sequence: 1,
            last_sequence: 0,
            last_time: None,
            messages: 0,
            bytes: 0,
            told: TimeMs(0),
        }
    }

    /// How many messages are missing between the first and the last.
    #[must_use]
    pub const fn removed(&self) -> u64 {
        (self.last_sequence + 1).saturating_sub(self.first_sequence + self.messages)
    }
}

/// A message that was looked up.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    pub sequence: u64,
    pub stamp: Stamp,
}

/// Why a position does not belong to a stream, if it does not: reason code and sentence.
#[must_use]
pub fn stream_trouble(
    row: &PositionRow,
    state: &StreamState,
    standing: Option<Standing>,
) -> Option<(&'static str, String)> {
    let name = &state.identity.name;
    if row.stream != state.identity {
        return Some((
            "stream.identity",
            format!(
                "stream {name} is not the one that positions are kept for: it was created anew or renamed"
            ),
        ));
    }
    if row.sequence > state.last_sequence {
        return Some((
            "stream.identity",
            format!(
                "stream {name} ends at {}, and {} was applied already: it was rolled back",
                state.last_sequence, row.sequence
            ),
        ));
    }
    if let (Some(known), Some(found)) = (row.stamp, standing.filter(|found| found.sequence == row.sequence))
        && !known.matches(&found.stamp)
        && !is_planted(Bug::ReusedSequence)
    {
        let message = Stamp::mismatch(name, row.sequence, &known, &found.stamp);
        return Some(("stream.identity", message));
    }
    if row.sequence + 1 < state.first_sequence {
        return Some((
            "stream.gap",
            format!(
                "stream {name} begins at {}, and only {} was applied: messages between are gone",
                state.first_sequence, row.sequence
            ),
        ));
    }
    None
}
