//! Sagas that start sagas: what parent and child tell each other.
//!
//! A parent's step starts a child by a message; the child remembers its parent and tells it the outcome, once. The
//! parent may take a child back: cancel it while it runs, or have it undone after it has completed.

use bytes::Bytes;
use saga_runner_language::alias::Via;
use saga_runner_language::ids::{CommandId, Key, SagaName, TimeMs};
use serde::{Deserialize, Serialize};

use super::input::{DomainEvent, Question, WorkOutcome};

/// Most sagas above an instance. A deeper child is refused, so that a saga that starts itself comes to an end.
pub const CHILD_DEPTH_MAX: u32 = 8;

/// Error class of a child that cannot be started: there is no such saga, or it does not take the input.
pub const CHILD_REFUSED: &str = "child_refused";
/// Error class of a child whose key is taken.
pub const CHILD_EXISTS: &str = "child_exists";
/// Error class of a child that has failed and undone what it did.
pub const CHILD_FAILED: &str = "child_failed";
/// Error class of a child that was cancelled and has undone what it did.
pub const CHILD_CANCELLED: &str = "child_cancelled";
/// Error class of a child whose compensation needs an operator.
pub const CHILD_STUCK: &str = "child_compensation_failed";
/// Error class of a child that is to be undone and ended so long ago that nothing is known of it.
pub const CHILD_GONE: &str = "child_gone";

/// The instance that asks, as its message says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentRef {
    pub saga: SagaName,
    pub key: Key,
    /// The command that asks; the answer names it.
    pub command_id: CommandId,
    /// How many sagas are above the child: 1 below an instance without a parent.
    #[serde(default)]
    pub depth: u32,
    /// Whether an answer is awaited.
    #[serde(default)]
    pub waits: bool,
    /// Whether the child may be undone after it has completed.
    #[serde(default)]
    pub undoable: bool,
    /// Hops of the chain of messages that led here.
    #[serde(default)]
    pub hops: u32,
    #[serde(default)]
    pub traceparent: Option<String>,
}

/// A message from saga to saga.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum SagaMessage {
    /// Begin.
    Start {
        /// A JSON object.
        input: Bytes,
        depth: u32,
        undoable: bool,
    },
    /// The parent takes its child back: cancel it if it runs.
    CancelChild {
        /// Undo it as well if it has completed, and tell how that went.
        undo: bool,
        /// The child was there, as far as the parent knows.
        known: bool,
    },
    /// A signal.
    Signal {
        name: String,
        /// A JSON object.
        data: Bytes,
    },
    /// How what `command` asked for has ended.
    Outcome {
        command: CommandId,
        outcome: WorkOutcome,
    },
    /// To an alias: the sender has it from now on.
    RegisterAlias { generation: u32 },
    /// To an alias: the sender has ended.
    ReleaseAlias {
        generation: u32,
        /// It hears events that are matched by the alias as long as it is kept.
        hears: bool,
    },
    /// From an alias to one of its owners.
    Forward(Box<Forwarded>),
    /// To an alias: have all events up to an instant been forwarded?
    AskAlias(Question),
    /// From an alias: they have.
    AliasRead { question: Question, late: bool },
    /// From an alias to an instance: it has refused its registration, or has accepted it on a retry.
    AliasAnswered {
        /// The alias, and the generation that has registered it.
        via: Via,
        refused: bool,
    },
}

impl SagaMessage {
    /// Whether it asks for something to begin.
    #[must_use]
    pub const fn starts(&self) -> bool {
        matches!(self, Self::Start { .. })
    }
}

/// An event on its way to an owner of the alias that has found it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forwarded {
    /// With the alias, and the generation of the owner.
    pub event: DomainEvent,
    /// When its message was stored.
    pub time: TimeMs,
}
