//! Steps in the record, and the work whose outcome they wait for.

use saga_runner_language::definition::model::Late;
use saga_runner_language::ids::{CommandId, TimeMs};
use saga_runner_language::status::StepStatus;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::items::Items;
use crate::work::WorkRef;

/// One step of an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepState {
    pub status: StepStatus,
    /// How often the step began again, by `goto` or as the loops around came to it again; part of the idempotency
    /// keys of its work.
    pub iteration: u32,
    /// Work in the outside world whose outcome the step waits for.
    pub outstanding: Option<Outstanding>,
    /// What was sent; kept until the outcome is known, and only where another attempt or the compensation
    /// reads it.
    pub sent: Option<Sent>,
    /// Attempts of this iteration so far.
    pub attempt: u32,
    /// Error class of the latest attempt that failed, until one succeeds.
    pub error: Option<String>,
    pub tries: Tries,
    /// How many of its needs must be done, where that was computed.
    pub needed: Option<u32>,
    /// Of a loop with a condition: the turn, the first being 0.
    pub turn: u32,
    /// Of a loop over a list, while it runs.
    pub items: Option<Box<Items>>,
    /// JSON result of the action of a step that waits; only where it is read at the end.
    pub result: Option<ByteBuf>,
    /// Idempotency key of the work of a step that waits for a callback: whoever has its token ends the wait.
    pub callback: Option<String>,
    /// Path under which its work began, where a migration has given the step another name since: attempts of the
    /// same work are known outside by one key.
    pub known_as: Option<String>,
    /// Of a step that is stuck: what an operator is asked.
    pub question: Option<Box<Question>>,
    /// Of a step in a loop: the record's version with which its turn or item began.
    pub since: u64,
    /// Of a step in a loop: how many entries the ledger had then. What stands behind them is of this turn or item.
    pub ledger_before: u32,
}

/// Work of unknown outcome; an operator has to state it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Its result answers the question by itself, should it come after all.
    pub command: CommandId,
    /// With which its upstream was called, and with which the next attempt would be.
    pub idempotency_key: String,
    /// Why the outcome is not known, for people.
    pub message: String,
    pub since: TimeMs,
    /// The outcome of an attempt before was not known either.
    pub doubted: bool,
}

/// What a step sent, so that every attempt sends the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// JSON.
    pub payload: ByteBuf,
    /// Id of the aggregate that a command is for.
    pub target: Option<String>,
}

/// What the attempts of a piece of work came to so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tries {
    /// Rises when the upstream has refused an attempt, unless the outcome of one under the same key is unknown.
    pub round: u32,
    /// The outcome of one of the attempts under the present key is unknown.
    pub unknown: bool,
    /// One of the attempts has failed for certain.
    pub has_failed: bool,
    /// In the order in which the classes first occurred.
    pub failures: Vec<ClassFailures>,
}

/// How often attempts failed with one error class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassFailures {
    pub class: String,
    pub count: u32,
}

/// Work of a step that the instance stopped waiting for. A late success must be undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stray {
    /// Index of the step.
    pub step: u16,
    /// Index of the item, for the steps of a loop over a list.
    pub item: Option<u32>,
    pub iteration: u32,
    pub outstanding: Outstanding,
    /// What was sent, as JSON; absent where the compensation does not read it.
    pub input: Option<ByteBuf>,
    /// The outcome of an earlier attempt is unknown.
    pub unknown: bool,
    /// An attempt before has failed.
    pub failed: bool,
    /// Why nobody waits for it.
    pub late: Late,
}

/// A command of a step whose outcome is unknown. A success that comes after all says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    pub command: CommandId,
    /// Index of the step.
    pub step: u16,
    /// Index of the item, for the steps of a loop over a list.
    pub item: Option<u32>,
    pub iteration: u32,
    /// As [`Tries::round`]: commands of one round have one idempotency key.
    pub round: u32,
    /// What was sent, as JSON; only once the step is over, and where the compensation reads it.
    pub input: Option<ByteBuf>,
    /// The step is over, and was put on the ledger with an unknown outcome.
    pub on_ledger: bool,
    /// Why nobody waits for it, once the step is over.
    pub late: Late,
    /// It was to undo what the step did, and was given up when the instance was killed.
    pub undo: bool,
    /// A generation before sent it, so no step of this one is done by it.
    pub of_before: bool,
}

/// A command that was sent and whose result has not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outstanding {
    pub command: CommandId,
    pub row: WorkRef,
    pub attempt: u32,
    pub round: u32,
}

impl StepState {
    /// A step that has not started.
    #[must_use]
    pub const fn pending() -> Self {
        Self {
            status: StepStatus::Pending,
            iteration: 0,
            outstanding: None,
            sent: None,
            attempt: 0,
            error: None,
            tries: Tries {
                round: 0,
                unknown: false,
                has_failed: false,
                failures: Vec::new(),
            },
            needed: None,
            turn: 0,
            items: None,
            result: None,
            callback: None,
            known_as: None,
            question: None,
            since: 0,
            ledger_before: 0,
        }
    }
}
