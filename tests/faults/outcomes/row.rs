//! What a row of the table says about the calls of a step.

use saga_runner::effects::certainty::{Ending, SideEffects};
use saga_runner::effects::provider::Certainty;

use super::COMMANDS;

/// What workers try again by default.
const REPEATED: [&str; 4] = ["transient", "throttled", "timeout", "ambiguous"];

/// How an effect calls its peer, and for how long. Each has effects and sagas of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Via {
    /// Without haste, on connections that nobody breaks.
    Peer,
    /// On connections that break with the call.
    Fragile,
    /// It waits for a short time only.
    Slow,
    /// The same, and the peer does not get as far as the call.
    Mute,
    /// Nobody is there.
    Gone,
    /// There is somebody, who does not take such a thing.
    Stranger,
    /// The peer has a certificate that nobody trusts.
    Untrusted,
    /// The peer is trusted, speaks HTTP/2 and begins nothing.
    Refusing,
    /// The same, and it goes away.
    Leaving,
    /// An address that may not be called.
    Forbidden,
    /// The result is larger than what is recorded.
    Large,
    /// The call is broken off when nobody waits for it.
    Interrupted,
    /// The runner is killed in the call.
    Killed,
}

impl Via {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Fragile => "fragile",
            Self::Slow => "slow",
            Self::Mute => "mute",
            Self::Gone => "gone",
            Self::Stranger => "stranger",
            Self::Untrusted => "untrusted",
            Self::Refusing => "refusing",
            Self::Leaving => "leaving",
            Self::Forbidden => "forbidden",
            Self::Large => "large",
            Self::Interrupted => "interrupted",
            Self::Killed => "killed",
        }
    }

    /// Calls of a command that may be made again, as the effect says.
    pub const fn attempts(self) -> usize {
        match self {
            Self::Slow | Self::Mute => 2,
            Self::Peer
            | Self::Fragile
            | Self::Gone
            | Self::Stranger
            | Self::Untrusted
            | Self::Refusing
            | Self::Leaving
            | Self::Forbidden
            | Self::Large
            | Self::Interrupted
            | Self::Killed => 3,
        }
    }

    /// `timeout.total`.
    pub const fn patience(self) -> &'static str {
        match self {
            Self::Slow => "6s",
            Self::Mute => "2s",
            Self::Interrupted => "1m",
            Self::Peer
            | Self::Fragile
            | Self::Gone
            | Self::Stranger
            | Self::Untrusted
            | Self::Refusing
            | Self::Leaving
            | Self::Forbidden
            // So much later the outcome of a call that was cut off is declared unknown.
            | Self::Killed
            | Self::Large => "20s",
        }
    }
}

/// What is known after a peer did what a row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    Done,
    Refused,
    NotDone,
    Unknown,
}

/// Whether all calls of a row end alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    Alike,
    /// The second one finds that the first one did it.
    FoundOut,
    /// The first one ends as `transient`, not done, and then the row holds.
    Behind,
}

/// A row of the table with one provider.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its first cell in the table.
    pub happened: &'static str,
    /// What it names in the provider's cell there.
    pub shows: &'static str,
    /// What the peer is told to do. No other row of the provider has it.
    pub conduct: &'static str,
    pub via: Via,
    /// Absent where no call fails.
    pub ending: Option<Ending>,
    pub known: Known,
    /// The worker's word for it.
    pub class: &'static str,
    pub course: Course,
    /// Whether the peer gets to see the idempotency key.
    pub is_seen: bool,
    pub note: Note,
}

/// What the input of the effect holds besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    Short,
    /// With the end of a line, which no header may hold.
    TwoLines,
    /// A part of a result that nobody takes.
    Large,
}

impl Row {
    /// A row that a variant of [`Ending`] stands for.
    pub const fn of(
        happened: &'static str,
        shows: &'static str,
        conduct: &'static str,
        ending: Ending,
    ) -> Self {
        let meaning = ending.meaning(SideEffects::Possible);
        Self {
            ending: Some(ending),
            ..Self::told(happened, shows, conduct, meaning.class).known(match meaning.certainty {
                Certainty::Refused => Known::Refused,
                Certainty::NotDone => Known::NotDone,
                Certainty::Unknown => Known::Unknown,
            })
        }
    }

    /// A row whose peer did it.
    pub const fn told(
        happened: &'static str,
        shows: &'static str,
        conduct: &'static str,
        class: &'static str,
    ) -> Self {
        Self {
            happened,
            shows,
            conduct,
            via: Via::Peer,
            ending: None,
            known: Known::Done,
            class,
            course: Course::Alike,
            is_seen: true,
            note: Note::Short,
        }
    }

    pub const fn known(self, known: Known) -> Self {
        Self { known, ..self }
    }

    pub const fn via(self, via: Via) -> Self {
        Self { via, ..self }
    }

    /// With another class than the one that the ending has.
    pub const fn class(self, class: &'static str) -> Self {
        Self { class, ..self }
    }

    pub const fn course(self, course: Course) -> Self {
        Self { course, ..self }
    }

    /// The peer does not get to see it.
    pub const fn unseen(self) -> Self {
        Self {
            is_seen: false,
            ..self
        }
    }

    pub const fn note(self, note: Note) -> Self {
        Self { note, ..self }
    }

    /// Calls of one command.
    pub fn calls(&self, policy: &str) -> usize {
        let may_repeat = match self.known {
            Known::NotDone => true,
            Known::Unknown => policy == "retry",
            Known::Done | Known::Refused => false,
        };
        if may_repeat && REPEATED.contains(&self.class) {
            self.via.attempts()
        } else {
            1
        }
    }

    pub fn asks(&self, policy: &str) -> bool {
        // Of an instance that fails nobody is asked.
        self.known == Known::Unknown && policy == "ask" && self.via != Via::Interrupted
    }

    /// Commands of the step.
    pub fn commands(&self, policy: &str) -> usize {
        let is_once = matches!(self.via, Via::Interrupted | Via::Killed);
        if is_once || self.known == Known::Done || self.asks(policy) {
            1
        } else {
            COMMANDS
        }
    }

    /// How the step ends: the code of the failure, `None` for success.
    pub fn code(&self) -> Option<&'static str> {
        if self.via == Via::Interrupted {
            return Some("stopped");
        }
        match (self.course, self.known, self.class) {
            (Course::FoundOut, ..) | (_, Known::Done, "succeeded") => None,
            (_, Known::Unknown, "response.malformed" | "response.size" | "result.refused") => {
                Some(self.class)
            }
            (_, Known::Unknown, _) => Some("timeout"),
            _ => Some(self.class),
        }
    }

    /// How many calls end with which class, in all.
    pub fn classes(&self, policy: &str) -> Vec<(&'static str, usize)> {
        // What cannot be recorded has been done, as the worker has it.
        let class = match self.class {
            "result.refused" | "result.schema" => "succeeded",
            class => class,
        };
        let (calls, commands) = (self.calls(policy), self.commands(policy));
        match self.course {
            Course::Alike => vec![(class, calls * commands)],
            Course::FoundOut if self.asks(policy) => vec![(class, 1)],
            Course::FoundOut => vec![(class, 1), ("succeeded", 1)],
            Course::Behind => vec![("transient", 1), (class, calls * commands)],
        }
    }

    /// How many calls the peer sees of the attempt of the step.
    pub fn seen(&self, policy: &str, attempt: usize) -> usize {
        match self.course {
            _ if !self.is_seen || attempt > self.commands(policy) => 0,
            Course::Alike => self.calls(policy),
            Course::FoundOut | Course::Behind => usize::from(attempt == 1),
        }
    }

    /// Whether what was done, or may have been, is undone.
    pub fn undoes(&self, policy: &str) -> bool {
        let may_be_done = matches!(self.known, Known::Done | Known::Unknown);
        may_be_done && self.code().is_some() && !self.asks(policy)
    }
}
