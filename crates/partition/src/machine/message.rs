//! What a partition is told, and what it has made true.

use std::borrow::Cow;

use bytes::Bytes;
use saga_runner_kernel::envelope::Principal;
use saga_runner_kernel::ids::{InstanceId, SagaName, TenantId, TimeMs};
use saga_runner_kernel::input::{Input, InputBody, SourceStream};
pub use saga_runner_kernel::letters::LetterOrder;
pub use saga_runner_kernel::recorded::LetterDecision;
use saga_runner_kernel::work::{WorkItem, WorkRef};

use super::catch_up::InOrder;
use crate::storage::rows::Stamp;

/// One thing that a partition is told; it is taken as a whole.
#[derive(Debug, Clone, Copy)]
pub enum Order<'a> {
    Delivery(&'a Delivery),
    /// One in stored order: due timers fire between its inputs. Its transaction may end before it; the positions tell.
    InOrder(&'a Delivery, InOrder),
    /// An input of this process, and the message that becomes a row with it.
    Local(&'a Input, Option<&'a WorkItem>),
    /// Rows that were delivered, for which nobody waits.
    Delivered(&'a [WorkRef]),
    /// The archive has the ended instances of these numbers.
    Archived(&'a [u64]),
    /// The call of this row begins. Answered.
    CallBegins(WorkRef),
    /// The call of this row was not made after all, or is known to have done nothing.
    NotCalled(WorkRef),
    /// An operator's decision on a dead letter. Answered.
    Decision {
        tenant: &'a TenantId,
        number: u64,
        order: &'a LetterOrder,
    },
    /// The definition of this instance is there again: up to so many inputs that wait for it are applied.
    Resume {
        instance: &'a InstanceId,
        at_most: usize,
    },
    /// Other definitions are in force: bring the schedules in line with them.
    Schedules,
    /// An operator pauses the schedule of a saga, or lets it go on. Answered.
    Pause {
        tenant: &'a TenantId,
        saga: &'a SagaName,
        paused: bool,
        principal: &'a Principal,
    },
    /// The streams of a partition that goes on from an adopted state have been read to their ends.
    CaughtUp,
    /// An operator lets a partition send that goes on from an adopted state. Answered.
    Release {
        reason: &'a str,
    },
    /// An operator gives up work that such a partition would send. Answered.
    Discard {
        rows: &'a [WorkRef],
        reason: &'a str,
    },
    /// Timers may fire.
    Timers(Fire),
}

/// Timers that are to fire.
#[derive(Debug, Clone, Copy)]
pub struct Fire {
    /// Those that are due up to here.
    pub until: TimeMs,
    /// They do not wait for their streams.
    pub late_source: bool,
    /// At most so many.
    pub limit: usize,
}

/// What somebody who asked is told.
pub type Answer = Result<(), Refused>;

/// Why a partition does not do what it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// What it is about does not exist.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// It cannot be done as things are, however often it is asked.
    #[error("{0}")]
    Conflict(Cow<'static, str>),
    /// What is to be applied does not fit: it would be a dead letter again, or be of no use.
    #[error("{reason}: {message}")]
    Unfit {
        reason: Cow<'static, str>,
        message: String,
    },
    /// It takes another role.
    #[error("{0}")]
    Forbidden(&'static str),
    /// It cannot be done now.
    #[error("shard {shard}: {message}")]
    Unavailable { shard: u16, message: String },
}

/// All that the messages in `(after, sequence]` of one stream yield for this shard, one indivisible unit.
///
/// A shard accepts a delivery exactly if `after <= position < sequence`. One at or below its position is a
/// repetition and is dropped; one that begins above it would skip messages, so it is refused and the stream
/// is fed again from the position. So is one that was routed by definitions that hear less than those of the shard. No inputs: a
/// watermark.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub stream: SourceStream,
    pub after: u64,
    pub sequence: u64,
    /// What stands at `sequence`.
    pub stamp: Option<Stamp>,
    /// By which definitions all of it was asked for and routed: how often they had been replaced.
    pub routed_by: u64,
    pub inputs: Vec<Arrival>,
}

/// One thing that a message yields.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrival {
    Input(Input),
    /// A result that an owner of the shard had applied before its message was stored, for one that goes on from an older state.
    Applied(Applied),
    /// The message can never become an input: straight to the dead letters.
    Unreadable(Unreadable),
}

impl Arrival {
    /// Payload bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Input(input) | Self::Applied(Applied { input, .. }) => match &input.body {
                InputBody::Event(event) => event.payload.len(),
                InputBody::Result(result) => result.outcome.bytes(),
                InputBody::Timer { .. } | InputBody::Control(_) => 0,
            },
            Self::Unreadable(message) => message.excerpt.len(),
        }
    }
}

/// A result of which the input is made once more as it was applied: with the time of then, from which the ids of the work are derived
/// that follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// Its origin is [`Origin::Local`](saga_runner_kernel::input::Origin::Local), as it was.
    pub input: Input,
    /// When its message was stored: its place in the order of the streams.
    pub stored: TimeMs,
    /// The sequence of its message.
    pub sequence: u64,
}

/// A message that could not be turned into an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The tenant of the subject, none where that is what is wrong.
    pub tenant: TenantId,
    pub subject: String,
    /// Stable reason code, e.g. `payload.syntax`.
    pub reason: &'static str,
    pub message: String,
    pub time: TimeMs,
    /// At most the first KiB of the payload.
    pub excerpt: Bytes,
    /// BLAKE3 of the whole payload.
    pub payload_hash: [u8; 32],
    pub sequence: u64,
}
