//! Whether messages were removed before they were read.
//!
//! A reader's deliveries stay numbered without a gap where the stream drops messages that it had not delivered yet:
//! limits, age, an operator's purge. What shows is that the stream's sequence jumps, as it also does over messages that
//! do not matter. A jump is innocent if all of the stream from before it on was still there when the stream was asked
//! behind it.

use std::sync::Arc;

use super::context::Halt;
use super::identity::{Place, Seen, look_up};
use super::marks::Mark;
use crate::broker_clock::BrokerClock;
use crate::kernel::ids::TimeMs;
use crate::kernel::input::SourceStream;
use crate::kernel::planted::{Bug, is_planted};
use crate::ports::broker::{Broker, BrokerError, StreamState};

/// Messages removed one by one that are looked at. With more of them the answer would take the place of the messages.
const REMOVED_MAX: u64 = 100_000;

/// What a look at a stream has found.
#[derive(Debug)]
pub(super) struct Survey {
    pub state: StreamState,
    /// All that was stored up to this instant of the broker's time lies within the state.
    pub as_of: TimeMs,
    pub removed: Removed,
    pub seen: Vec<Seen>,
}

/// Messages that are missing between the first and the last.
#[derive(Debug)]
pub(super) enum Removed {
    /// Those that were known before.
    AsKnown,
    /// All of them, ascending.
    Listed(Arc<[u64]>),
    /// Too many to be listed.
    Many(u64),
}

/// Looks at the stream `name`. `known`: what the last look found missing. `places`: what is looked up besides.
pub(super) async fn survey(
    (broker, clock): (Arc<dyn Broker>, Arc<BrokerClock>),
    (stream, name): (SourceStream, String),
    known: Option<Arc<[u64]>>,
    places: Vec<Place>,
) -> Result<Survey, BrokerError> {
    let asked = clock.ask();
    let state = broker.stream_state(&name).await?;
    let as_of = clock.told(stream, asked, state.told);
    let count = state.removed();
    let is_known = known.is_some_and(|known| {
        let still = known.iter().filter(|sequence| **sequence >= state.first_sequence);
        still.count() as u64 == count
    });
    let removed = if is_known {
        Removed::AsKnown
    } else if count == 0 {
        Removed::Listed(Arc::from([]))
    } else if count > REMOVED_MAX {
        Removed::Many(count)
    } else {
        Removed::Listed(broker.removed(&name).await?.into())
    };
    let seen = look_up(&broker, &state, &places).await?;
    Ok(Survey {
        state,
        as_of,
        removed,
        seen,
    })
}

/// Messages that are gone and were not read, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    pub from: u64,
    pub to: u64,
    /// Messages behind it that are known to be removed one by one, too, where this is one of them.
    pub others: Option<usize>,
}

impl Lost {
    /// Whether it tells that this message was removed, which was removed by itself.
    pub const fn tells_of(self, sequence: u64) -> bool {
        self.others.is_some() || sequence <= self.to
    }

    /// Why the stream is not read on.
    pub fn halt(self, name: &str) -> Halt {
        let Self { from, to, others } = self;
        let messages = match (from == to, others.unwrap_or(0)) {
            (true, 0) => {
                format!("message {from} of stream {name} was removed before it was known that it was read")
            }
            (true, others) => format!(
                "message {from} of stream {name} and {others} behind it were removed before it was known that they were read"
            ),
            (false, _) => format!(
                "messages {from} to {to} of stream {name} were removed before it was known that they were read"
            ),
        };
        Halt {
            reason: "stream.gap",
            lost_from: Some(from),
            message: messages,
        }
    }
}

/// The jumps of one reader.
///
/// # Invariants
/// `asked` lies before `jump`.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// The position before the oldest jump that no look at the stream has answered for.
    jump: Option<u64>,
    /// The same for the look that is under way.
    asked: Option<u64>,
    /// Keeps the runner itself from trimming what a look has still to find there.
    mark: Mark,
}

impl Guard {
    pub fn new(mark: Mark) -> Self {
        Self {
            mark,
            ..Self::default()
        }
    }

    /// Nothing came between `from` and `to`; whether that is a jump.
    pub fn passed(&mut self, from: u64, to: u64) -> bool {
        let jumped = to > from + 1;
        if jumped {
            self.jump.get_or_insert(from);
            self.tell();
        }
        jumped
    }

    /// Whether there are jumps for which no look was begun.
    pub const fn has_unasked(&self) -> bool {
        self.jump.is_some()
    }

    /// Whether there are jumps for which no look has answered.
    pub const fn is_open(&self) -> bool {
        self.jump.is_some() || self.asked.is_some()
    }

    /// A look at the stream begins. It answers for all jumps so far.
    pub fn ask(&mut self) {
        let jump = self.jump.take();
        self.asked = self.asked.or(jump);
        self.tell();
    }

    /// The look failed.
    pub fn unanswered(&mut self) {
        self.jump = self.asked.take().or(self.jump);
        self.tell();
    }

    /// The look has found the stream to begin at `first`. `removed`: messages that were removed one by one since reading
    /// began, ascending. `read`: everything up to here was read, or was jumped over.
    pub fn answered(&mut self, first: u64, removed: &[u64], read: u64) -> Option<Lost> {
        let asked = self.asked.take();
        self.tell();
        if is_planted(Bug::RemovedUnread) {
            return None;
        }
        if let Some(from) = asked
            && first > from + 1
        {
            return Some(Lost {
                from: from + 1,
                to: first - 1,
                others: None,
            });
        }
        // Whether a message behind that was read before it was removed is not known any more.
        let surely_read = asked.or(self.jump).map_or(read, |from| from.min(read));
        let unread = removed.partition_point(|sequence| *sequence <= surely_read);
        removed.get(unread).map(|sequence| Lost {
            from: *sequence,
            to: *sequence,
            others: Some(removed.len() - unread - 1),
        })
    }

    fn tell(&self) {
        self.mark.set(self.asked.or(self.jump));
    }
}

#[cfg(test)]
mod tests {
    use super::super::marks::Marks;
    use super::*;
    use crate::kernel::input::SourceStream;

    fn lost(from: u64, to: u64) -> Lost {
        let others = None;
        Lost { from, to, others }
    }

    fn look(guard: &mut Guard, first: u64, read: u64) -> Option<Lost> {
        guard.ask();
        guard.answered(first, &[], read)
    }

    #[test]
    fn a_jump_is_innocent_while_the_stream_begins_before_it() {
        let mut guard = Guard::default();
        assert!(!guard.passed(10, 11));
        assert!(guard.passed(11, 20));
        assert!(guard.passed(20, 30));
        assert_eq!(look(&mut guard, 12, 30), None);
        assert_eq!(look(&mut guard, 25, 30), None, "it was answered for");
    }

    #[test]
    fn messages_removed_inside_a_jump_are_named() {
        let mut guard = Guard::default();
        guard.passed(11, 20);
        assert_eq!(look(&mut guard, 18, 20), Some(lost(12, 17)));
    }

    #[test]
    fn messages_read_without_a_jump_may_be_removed() {
        let mut guard = Guard::default();
        for sequence in 1..100 {
            assert!(!guard.passed(sequence, sequence + 1));
        }
        assert_eq!(look(&mut guard, 101, 100), None);
    }

    #[test]
    fn a_jump_behind_the_question_waits_for_the_next_one_and_a_failed_one_is_repeated() {
        let mut guard = Guard::default();
        guard.passed(5, 9);
        guard.ask();
        guard.passed(20, 30);
        guard.unanswered();
        assert_eq!(look(&mut guard, 7, 30), Some(lost(6, 6)));

        let mut guard = Guard::default();
        guard.passed(5, 9);
        guard.ask();
        guard.passed(20, 30);
        assert_eq!(guard.answered(6, &[], 30), None);
        assert_eq!(look(&mut guard, 22, 30), Some(lost(21, 21)));
    }

    #[test]
    fn a_jump_waits_until_its_check_is_answered() {
        let marks = Marks::default();
        let stream = SourceStream::WorkflowEvents;
        let mut guard = Guard::new(marks.mark(stream));
        let mut other = Guard::new(marks.mark(stream));
        guard.passed(5, 6);
        assert_eq!(marks.behind(stream), None);
        guard.passed(9, 12);
        other.passed(20, 30);
        assert_eq!(marks.behind(stream), Some(9));
        assert_eq!(marks.behind(SourceStream::WorkflowCommands), None);
        guard.ask();
        guard.passed(15, 17);
        assert_eq!(marks.behind(stream), Some(9), "the question is under way");
        guard.unanswered();
        guard.ask();
        assert_eq!(guard.answered(1, &[], 17), None);
        assert_eq!(marks.behind(stream), Some(20), "of the other reader");
        drop(other);
        assert_eq!(marks.behind(stream), None);
    }

    #[test]
    fn a_message_removed_by_itself_is_missed_where_it_was_not_surely_read() {
        let one = |sequence| {
            let others = Some(0);
            Some(Lost {
                others,
                ..lost(sequence, sequence)
            })
        };
        let mut guard = Guard::default();
        guard.ask();
        assert_eq!(guard.answered(1, &[3, 7], 7), None);
        guard.ask();
        assert_eq!(guard.answered(1, &[3, 7, 9], 8), one(9), "not yet reached");
        guard.passed(4, 8);
        guard.ask();
        assert_eq!(guard.answered(1, &[3, 7], 8), one(7), "jumped over");
        guard.passed(4, 8);
        guard.ask();
        let all = guard.answered(1, &[3, 7, 9, 11], 8).expect("lost");
        assert_eq!(
            (all.from, all.to, all.others),
            (7, 7, Some(2)),
            "and what else is known"
        );
    }
}
