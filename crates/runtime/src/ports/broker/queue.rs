//! Queues: the messages of a stream, shared between workers, each acknowledged by itself.

use std::time::Duration;

use async_trait::async_trait;

use super::BrokerError;
use super::reader::{Message, ReaderBroken};
use crate::kernel::ids::TimeMs;

/// A durable queue with explicit acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSpec {
    pub stream: String,
    /// At least one, none of which matches what another one matches.
    pub filters: Vec<String>,
    pub durable: String,
    /// Whose queue it is, where that is to be known: it is written to the queue, and who is of another group is kept off.
    pub group: Option<String>,
    /// After this silence a message is delivered to another worker.
    pub ack_wait: Duration,
    /// Messages that all workers together may hold.
    pub max_unacknowledged: usize,
    /// Messages that this member pulls ahead.
    pub buffer: usize,
    pub manner: Manner,
}

/// Who made a queue, and how its messages come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Manner {
    /// The broker hands messages out as they come, to any of the members, instead of to whoever asks.
    pub push: bool,
    /// Somebody else: it must be there, and it is taken as it is.
    pub bound: bool,
}

/// A durable queue that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownQueue {
    pub durable: String,
    /// As it was written to the queue.
    pub group: Option<String>,
}

/// What a queue holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueState {
    /// Messages that nobody was given yet.
    pub pending: u64,
    /// Messages that somebody was given and has not answered for.
    pub unacknowledged: u64,
    /// Sequence in the stream up to which all that match were given to a member; some may have come back.
    pub delivered: u64,
    /// Sequence in the stream up to which all that match are answered for; at most [`Self::delivered`].
    pub floor: u64,
    /// Some member asks for more messages than it was given, or listens where they are pushed to.
    pub is_asked: bool,
}

/// One member's side of a queue.
#[async_trait]
pub trait Queue: Send {
    /// Waits for work.
    ///
    /// # Errors
    /// [`ReaderBroken`]: the owner joins again.
    ///
    /// # Cancel safety
    /// No message is lost when the future is dropped.
    async fn next(&mut self) -> Result<QueueMessage, ReaderBroken>;

    /// Takes work that has already arrived, without waiting.
    fn ready(&mut self) -> Option<Result<QueueMessage, ReaderBroken>>;

    /// The member can take so much from now on, at most the buffer of its [`QueueSpec`], and asks the broker for no more.
    /// What it asked for before comes nevertheless, and what is pushed always.
    fn make_room(&mut self, room: usize);

    /// When the queue was made. What is older may have come by another one before.
    fn created(&self) -> TimeMs;

    /// Stops pulling and gives back what was pulled and not taken.
    async fn close(&mut self);
}

pub struct QueueMessage {
    pub message: Message,
    pub receipt: Box<dyn Receipt>,
}

/// The right to answer for one delivery.
#[async_trait]
pub trait Receipt: Send + Sync {
    /// Done: never deliver it again.
    async fn ack(&self) -> Result<(), BrokerError>;
    /// Not done: deliver it again, to whoever asks, after `delay`.
    async fn nak(&self, delay: Duration) -> Result<(), BrokerError>;
    /// Still at work: restart the ack wait. Ends when the broker has done so.
    ///
    /// # Errors
    /// [`BrokerError::Refused`] where the message surely was delivered again or is answered for.
    async fn progress(&self) -> Result<(), BrokerError>;
    /// Never deliver it again, though it was not done.
    async fn term(&self) -> Result<(), BrokerError>;
}
