//! By what instances are listed and counted: phase, what blocks them, what they wait for, error class. A partition keeps an index by
//! it; [`crate::view::instance_status`] computes it.

use saga_runner_language::status::Phase;
use serde::{Deserialize, Serialize};

/// Bytes of an error class that a status keeps; a code that an author computes may be longer.
pub const ERROR_BYTES: usize = 64;

/// Instances of one status look alike from a distance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceStatus {
    pub phase: Phase,
    pub blocked_by: BlockedCause,
    pub waits_for: Waits,
    /// Error class of what it waits for, else the code with which it fails or has failed; empty: there is none. At most
    /// [`ERROR_BYTES`].
    pub error: String,
}

impl InstanceStatus {
    /// Whether an instance that has ended may have it. One that undoes something after its end waits for that.
    #[must_use]
    pub const fn is_of_ended(&self) -> bool {
        let is_quiet =
            matches!(self.blocked_by, BlockedCause::Nothing) && matches!(self.waits_for, Waits::Nothing);
        is_quiet && self.phase.is_terminal()
    }
}

/// What keeps an instance from proceeding that does not end by itself: the first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockedCause {
    Nothing,
    /// An operator has paused it.
    Paused,
    DeadLetter,
    /// Its definition is not loaded.
    Definition,
    /// A step or a compensation is stuck.
    Operator,
}

/// What an instance waits for: of several things the one that `why` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waits {
    /// It has ended, or is about to proceed.
    Nothing,
    /// A decision of an operator.
    Operator,
    /// The next attempt.
    Retry,
    /// The end of an instance of another saga.
    Child,
    /// The result of an effect.
    Effect,
    /// The gateway's verdict on a command.
    Command,
    /// An event, a signal or a callback for a step.
    Message,
    /// Time to pass before the first attempt.
    Delay,
    /// Events and signals that it has handlers for.
    Handlers,
    /// A timer.
    Timer,
}

impl BlockedCause {
    pub const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Paused,
        Self::DeadLetter,
        Self::Definition,
        Self::Operator,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Paused => "paused",
            Self::DeadLetter => "dead_letter",
            Self::Definition => "definition",
            Self::Operator => "operator",
        }
    }
}

impl Waits {
    pub const ALL: [Self; 10] = [
        Self::Nothing,
        Self::Operator,
        Self::Retry,
        Self::Child,
        Self::Effect,
        Self::Command,
        Self::Message,
        Self::Delay,
        Self::Handlers,
        Self::Timer,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Operator => "operator",
            Self::Retry => "retry",
            Self::Child => "child",
            Self::Effect => "effect",
            Self::Command => "command",
            Self::Message => "message",
            Self::Delay => "delay",
            Self::Handlers => "handlers",
            Self::Timer => "timer",
        }
    }
}

/// Where an instance stands in the index, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    pub status: InstanceStatus,
    /// Log sequence of the input that brought it there; of an ended instance the number of its row.
    pub sequence: u64,
}

impl Listing {
    /// At least as many bytes as the encoding takes.
    #[must_use]
    pub const fn bytes_at_most(&self) -> usize {
        30 + self.status.error.len()
    }
}
