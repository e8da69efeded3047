//! Readers: the messages of a stream, in its order, to one owner.

use async_trait::async_trait;
use bytes::Bytes;

use crate::kernel::ids::TimeMs;

/// A reader of one stream in stream order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderSpec {
    pub stream: String,
    /// At least one.
    pub filters: Vec<String>,
    /// First sequence to deliver.
    pub start_sequence: u64,
    /// Name of the consumer: new for each reader, one token.
    pub name: String,
    /// Messages that the adapter may hold before [`Reader::next`] takes them.
    pub buffer: usize,
}

/// A contiguous view of a stream, one owner, one task.
///
/// It does not check contiguity: it hands over `consumer_sequence` and `delivered` as they are, and its owner
/// throws it away on a gap.
#[async_trait]
pub trait Reader: Send {
    /// Waits for the next message.
    ///
    /// # Errors
    /// [`ReaderBroken`] where the view can no longer be trusted (connection lost, heartbeats missed, consumer
    /// gone): the owner opens a new reader.
    ///
    /// # Cancel safety
    /// No message is lost when the future is dropped.
    async fn next(&mut self) -> Result<Message, ReaderBroken>;

    /// Takes a message that has already arrived, without waiting.
    fn ready(&mut self) -> Option<Result<Message, ReaderBroken>>;

    /// How far silence reaches. `Ok(Some(horizon))` says: once the message at `horizon.after` was taken (or
    /// at once, if it is 0 or was taken before), every matching message up to `horizon.covered` has been
    /// taken. `Ok(None)`: more messages are on their way, ask again later.
    async fn horizon(&mut self) -> Result<Option<Horizon>, ReaderBroken>;

    /// The same for an end of the stream that the owner has asked for. `Ok(Some(after))`: `covered` is covered. To be
    /// called where nothing is [`Reader::ready`]; it returns as soon as a message arrives.
    ///
    /// # Cancel safety
    /// No message is lost when the future is dropped.
    async fn silent_up_to(&mut self, covered: u64) -> Result<Option<u64>, ReaderBroken>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// Stream sequence of the last matching message delivered, 0 if none was.
    pub after: u64,
    /// The stream's last sequence at some instant after the call.
    pub covered: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("reader is broken: {0}")]
pub struct ReaderBroken(pub String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub subject: String,
    pub headers: Vec<(String, String)>,
    pub payload: Bytes,
    pub stream_sequence: u64,
    /// 1 for the first delivery of a consumer, rising by one with each.
    pub consumer_sequence: u64,
    /// How often this message was delivered, this time included.
    pub delivered: u64,
    /// Matching messages behind this one.
    pub pending: u64,
    /// When the broker stored it.
    pub time: TimeMs,
}
