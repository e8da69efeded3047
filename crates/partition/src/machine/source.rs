//! What a source stream is, and whether a position belongs to it.

use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::planted::{Bug, is_planted};

pub use crate::storage::rows::StreamIdentity;
use crate::storage::rows::{HaltRow, PositionRow, Stamp};

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
                "stream {name} is not the one that positions are kept for: it was created again or renamed"
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

/// The same with what a reader has found. It knows of messages before the position that are gone unread: the shard may have been fed
/// what is behind them before the reader knew.
#[must_use]
pub fn with_halt(
    trouble: Option<(&'static str, String)>,
    halt: Option<HaltRow>,
) -> Option<(&'static str, String)> {
    match (trouble, halt.map(HaltRow::reason)) {
        (Some((code, message)), Some((of_reader, told))) if code == of_reader => {
            Some((code, format!("{message}; {told}")))
        }
        (Some(found), _) => Some(found),
        (None, told) => told,
    }
}

/// The messages that are gone unread where a stream begins at `first`, behind the position `at`, both ends included; from the first
/// that a reader misses.
#[must_use]
pub fn gap(at: u64, first: u64, halt: Option<&HaltRow>) -> (u64, u64) {
    let missed = halt.filter(|halt| halt.is_gap).and_then(|halt| halt.lost_from);
    (missed.map_or(at + 1, |missed| missed.min(at + 1)), first - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halt(is_gap: bool, lost_from: Option<u64>) -> HaltRow {
        HaltRow {
            is_gap,
            lost_from,
            message: "38 to 84 are gone".to_owned(),
        }
    }

    fn trouble(code: &'static str) -> (&'static str, String) {
        (code, "it begins at 85".to_owned())
    }

    #[test]
    fn a_gap_begins_with_the_first_message_that_a_reader_misses_also_before_the_position() {
        assert_eq!(gap(39, 85, None), (40, 84));
        assert_eq!(gap(39, 85, Some(&halt(true, Some(38)))), (38, 84));
        assert_eq!(gap(39, 85, Some(&halt(true, Some(50)))), (40, 84));
        assert_eq!(
            gap(39, 85, Some(&halt(false, Some(38)))),
            (40, 84),
            "it was another stream"
        );
    }

    #[test]
    fn a_finding_of_a_reader_is_told_beside_a_finding_of_the_position() {
        let reader = || Some(halt(true, Some(38)));
        let both = with_halt(Some(trouble("stream.gap")), reader()).expect("told");
        assert_eq!(
            both,
            ("stream.gap", "it begins at 85; 38 to 84 are gone".to_owned())
        );
        assert_eq!(
            with_halt(Some(trouble("stream.identity")), reader()),
            Some(trouble("stream.identity"))
        );
        assert_eq!(with_halt(None, reader()), Some(halt(true, None).reason()));
        let alone = with_halt(Some(trouble("stream.gap")), None);
        assert_eq!(alone, Some(trouble("stream.gap")));
    }
}
