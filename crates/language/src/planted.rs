//! Bugs that a simulation has to find, each at its place in production code: the simulator has to show that it
//! finds them.
//!
//! They are in builds with the feature `planted` alone, which a release refuses, and there only on a thread that has chosen one.

/// A bug. None of them is there unless it was planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Work is released before the commit that makes it true.
    ReleaseBeforeCommit,
    /// The position passes events that are only held back.
    PositionPastHeld,
    /// Ids of commands are random.
    RandomId,
    /// Timers fire over events that the shard itself holds back.
    TimersPassHeld,
    /// A fact is published again although later ones stand behind it.
    FactsAgain,
    /// An effect whose calls must not be repeated is called again after a crash.
    SecondCall,
    /// What a stream dropped unread is passed over.
    RemovedUnread,
    /// A drain does not wait for calls of commands that came straight from the outbox.
    CallsCutOff,
    /// What waits for an input goes on waiting after an operator has discarded that.
    DiscardForgets,
    /// A command in progress is not claimed, and another delivery of it is begun beside the first.
    TwiceInHand,
    /// Sequences of a stream that has gone back and grown again are taken for the messages that were read.
    ReusedSequence,
    /// Who has lost a shard to another process goes on sending for it.
    NoFence,
    /// The archive is said to have an instance although the broker has not acknowledged its entry.
    ArchivedUnacknowledged,
    /// The outcome of a call that a crash cut off is unknown at once, although the call may yet arrive.
    HastyUnknown,
}

impl Bug {
    pub const ALL: [Self; 14] = [
        Self::ReleaseBeforeCommit,
        Self::PositionPastHeld,
        Self::RandomId,
        Self::TimersPassHeld,
        Self::FactsAgain,
        Self::SecondCall,
        Self::RemovedUnread,
        Self::CallsCutOff,
        Self::DiscardForgets,
        Self::TwiceInHand,
        Self::ReusedSequence,
        Self::NoFence,
        Self::ArchivedUnacknowledged,
        Self::HastyUnknown,
    ];
}

#[cfg(all(feature = "planted", not(debug_assertions)))]
compile_error!("the feature `planted` is for tests: it puts bugs into the program");

#[cfg(feature = "planted")]
mod chosen {
    use std::cell::Cell;
    use std::hash::BuildHasher as _;

    use super::Bug;

    thread_local! {
        static CHOSEN: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug on this thread, or takes it out.
    pub fn plant(bug: Option<Bug>) {
        CHOSEN.set(bug);
    }

    #[must_use]
    pub fn is_planted(bug: Bug) -> bool {
        CHOSEN.get() == Some(bug)
    }

    /// What a bug needs that must not be repeatable.
    #[must_use]
    pub fn unrepeatable() -> u64 {
        std::hash::RandomState::new().hash_one(0)
    }
}

#[cfg(feature = "planted")]
pub use chosen::{is_planted, plant, unrepeatable};

/// Never, without the feature `planted`.
#[cfg(not(feature = "planted"))]
#[must_use]
pub const fn is_planted(_: Bug) -> bool {
    false
}
