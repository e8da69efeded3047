//! Inputs: anything that can advance an instance.

use bytes::Bytes;
use saga_runner_language::alias::Via;
use saga_runner_language::ids::{CommandId, DefinitionHash, EffectName, InstanceId, Key, TimeMs};
use serde::{Deserialize, Serialize};

use super::children::ParentRef;
pub use super::outcome::{UnknownClass, WorkOutcome};
pub use saga_runner_language::event::DomainEvent;
pub use saga_runner_language::status::CancelMode;

/// One input of one instance, routed and checked.
///
/// It is stored as it is (inbox, dead letters), so its encoding is a stored format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Input {
    pub instance: InstanceId,
    /// Text that identifies this input for good: it goes into the ids of all work that the input causes,
    /// so a redelivered, blocked or retried input keeps it. The event id for events, `<command id>` for
    /// results, `<timer id>@<due ms>` for timers, the request id for controls.
    pub id: String,
    /// The only clock that a transition sees: the broker's stored time of the message, the due time of a
    /// timer, for local verdicts the owner's clock, never before the shard's last input.
    pub time: TimeMs,
    pub origin: Origin,
    pub body: InputBody,
}

/// Where an input came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A message of a source stream.
    Stream { stream: SourceStream, sequence: u64 },
    /// A durable timer of the shard.
    Timer,
    /// A verdict of the shard's own relay or sweeper.
    Local,
    /// A dead letter whose data an operator has edited. `content` is the hash of what came first: a repetition of that is
    /// recognised by it.
    Edited { content: u32 },
}

/// The streams that shards read, in the order of their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SourceStream {
    /// Domain events of the aggregates.
    AggregateEvents,
    /// Results of effects.
    WorkflowEvents,
    /// Control messages (start, cancel, retry, ...).
    WorkflowCommands,
}

impl SourceStream {
    pub const ALL: [Self; 3] = [
        Self::AggregateEvents,
        Self::WorkflowEvents,
        Self::WorkflowCommands,
    ];

    /// Index of this stream in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::AggregateEvents => 0,
            Self::WorkflowEvents => 1,
            Self::WorkflowCommands => 2,
        }
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum InputBody {
    Event(DomainEvent),
    Result(WorkResult),
    Timer { name: String },
    Control(Control),
}

/// The one recorded outcome of a command of this instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkResult {
    pub command_id: CommandId,
    /// The effect, or `None` for the gateway's verdict on an aggregate command.
    pub effect: Option<EffectName>,
    pub outcome: WorkOutcome,
}

/// What happens to a request to start an instance that runs already.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnConflict {
    /// It is refused.
    #[default]
    Fail,
    /// It is taken as a request for the one that runs, in which nothing changes.
    UseExisting,
    /// The one that runs is killed, and the next generation of the key begins; refused where something that it did, or may have
    /// done, would stay done and be done once more.
    TerminateExisting { by: String, reason: String },
}

/// A request of an operator or another saga, valid in every phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// Stop and compensate what was done.
    Cancel { reason: String, mode: CancelMode },
    /// Try again what stands in the way: compensations that exhausted their attempts, and steps that are stuck.
    Retry,
    /// What an operator says about what is stuck.
    DecideStuck(StuckDecision),
    /// What an operator does to the instance as a whole, or to one of its timers.
    Operate(Operation),
    /// Something that a step waits for, told by a person or a system.
    Signal {
        name: String,
        /// A JSON object.
        data: Bytes,
        /// Who says so.
        by: String,
        /// Hops of the chain of messages that led here, 0 for a signal from outside.
        hops: u32,
    },
    /// Migrate to another version of the saga.
    Migrate {
        to: DefinitionHash,
        /// It is the version that an earlier migration came from: go back the way it came.
        back: bool,
    },
    /// Begin the instance without an event.
    Start {
        /// A JSON object.
        input: Bytes,
        /// The instance whose step asks for it.
        parent: Option<ParentRef>,
        on_conflict: OnConflict,
        /// Of whoever asks, where no parent does. Two requests that differ in nothing else are the same.
        traceparent: Option<String>,
    },
    /// The parent takes the instance back.
    CancelChild {
        parent: ParentRef,
        /// Undo it as well if it has completed, and tell how that went.
        undo: bool,
        /// The instance was there, as far as the parent knows.
        known: bool,
    },
    /// Whoever was given the token of a piece of work says how it went.
    Callback {
        /// Its idempotency key, which all attempts share.
        work: String,
        outcome: CallbackOutcome,
    },
    /// Whoever was given the token of a piece of work is still at it.
    Heartbeat {
        /// Its idempotency key.
        work: String,
    },
    /// To an alias: an instance has it from now on.
    RegisterAlias { owner: Owner },
    /// To an alias: an instance has ended, and has it no more; or as long as it is kept, where it hears what comes then.
    ReleaseAlias { owner: Owner, hears: bool },
    /// To an alias: the owner of this key has a timer that waits for the events of before.
    AskAlias { key: Key, question: Question },
    /// From an alias: these events stand before this message.
    AliasRead {
        question: Question,
        /// The streams could not be read that far.
        late: bool,
    },
    /// From an alias: it has refused the registration of the instance, or has accepted it on a retry.
    AliasAnswered {
        /// The alias, and the generation that has registered it.
        via: Via,
        refused: bool,
    },
}

/// What the owner of an alias asks before a timer of it fires: whether all events up to an instant are forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub due: TimeMs,
    /// Of the input that waits.
    pub number: u64,
    /// Tells the aliases of one question apart.
    pub slot: u8,
}

/// An instance of the saga of an alias, of the same tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub key: Key,
    pub generation: u32,
}

/// What a callback says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CallbackOutcome {
    /// `data` is a JSON object, read as `signal`.
    Done { data: Bytes },
    /// `class` is what `on_error` names.
    Failed { class: String, message: String },
}

/// Something that an operator does to an instance, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    pub verb: OperationVerb,
    /// Who does it.
    pub by: String,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationVerb {
    /// Keep inputs until the instance is resumed.
    Pause,
    /// Apply what was kept, in order, and go on.
    Resume,
    /// End the instance at once and undo nothing.
    Kill,
    /// Fire a timer now.
    FireTimer { timer: String },
    /// Clear a timer.
    CancelTimer { timer: String },
    /// Make the next attempt of what backs off now: of this step and its compensation, or of all.
    TryNow { step: Option<String> },
    /// Of an instance that has ended without success: begin the next generation with what is done and was not undone.
    Rerun {
        /// What operators found out about steps of unknown outcome.
        found: Vec<Finding>,
    },
    /// The same with nothing kept but what it was given.
    Restart,
    /// The same of an instance that this event has started.
    RestartWith { event: Box<DomainEvent> },
    /// Of an instance that has ended: delete it, with its history.
    Delete {
        /// Whoever asks has seen that the instance that has started it has ended, or is gone.
        parent_over: bool,
    },
}

/// What an operator has found out about a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub step: String,
    pub found: Found,
}

impl OperationVerb {
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Kill => "kill",
            Self::FireTimer { .. } => "fire_timer",
            Self::CancelTimer { .. } => "cancel_timer",
            Self::TryNow { .. } => "try_now",
            Self::Rerun { .. } => "retry",
            Self::Restart | Self::RestartWith { .. } => "restart",
            Self::Delete { .. } => "delete",
        }
    }
}

/// What an operator says about what is stuck: steps, and entries of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckDecision {
    pub verdict: Verdict,
    /// Only what this step did; all that is stuck otherwise.
    pub step: Option<String>,
    /// Only what it did for this item of a loop over a list.
    pub item: Option<u32>,
    /// Who says so.
    pub by: String,
    pub reason: String,
    /// It is about steps, and this is their outcome. Not with [`Verdict::Retry`].
    pub found: Option<Found>,
    /// With [`Verdict::Skip`]: JSON that others read as the result of the step that is skipped.
    pub result: Option<String>,
}

/// What an operator has found out about an action of which nobody knew whether it had happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// It has happened.
    Done {
        /// Its result, as JSON.
        result: String,
    },
    /// It has not happened and never will.
    NotDone,
}

impl Found {
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Done { .. } => "done",
            Self::NotDone => "not_done",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Undo it, with all attempts again; do what the step does once more.
    Retry,
    /// It stays done, where it is an undo that is stuck; a step in progress is left out.
    Skip,
    /// It has been undone by other means.
    Resolve,
}

impl Verdict {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Resolve => "resolve",
        }
    }
}

impl Control {
    /// Cancels and undoes.
    #[must_use]
    pub fn cancel(reason: impl Into<String>) -> Self {
        Self::Cancel {
            reason: reason.into(),
            mode: CancelMode::Compensate,
        }
    }
}
