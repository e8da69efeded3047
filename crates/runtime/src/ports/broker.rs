//! The broker: streams with per-subject expectations, contiguous readers, shared work queues, and entries that are
//! replaced by compare-and-set.
//!
//! Two adapters implement it, `nats` and `inproc`; one conformance suite (`tests/broker`) runs against both.
//! The port names what the runner needs and no more.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
pub use saga_runner_partition::machine::source::{StreamIdentity, StreamState};

use super::messenger::Messenger;
use crate::kernel::ids::TimeMs;

#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// Creates the stream or updates it to `spec`, then reads back what the broker really keeps.
    ///
    /// # Errors
    /// [`BrokerError::Mismatch`] where the broker keeps something else than was asked for.
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BrokerError>;

    /// Compares the stream with `spec` and changes nothing: one line for each difference, none if all is
    /// well.
    ///
    /// # Errors
    /// [`BrokerError::NoStream`] where it does not exist.
    async fn check_stream(&self, spec: &StreamSpec) -> Result<Vec<String>, BrokerError>;

    /// Identity and bounds of a stream.
    async fn stream_state(&self, stream: &str) -> Result<StreamState, BrokerError>;

    /// The messages that were removed one by one, ascending: those that [`StreamState::removed`] counts. Empty where the
    /// broker removes messages from the beginning only.
    async fn removed(&self, _stream: &str) -> Result<Vec<u64>, BrokerError> {
        Ok(Vec::new())
    }

    /// The limits by which the stream drops messages, whether they were read or not. None where the broker has no such
    /// limits.
    ///
    /// # Errors
    /// [`BrokerError::NoStream`] where it does not exist.
    async fn dropping_limits(&self, _stream: &str) -> Result<Vec<DroppingLimit>, BrokerError> {
        Ok(Vec::new())
    }

    /// Stores one message. Safe to run many at a time; messages are stored in the order in which the
    /// futures were first polled, unless the connection is lost in between.
    ///
    /// # Errors
    /// [`PublishError`] tells a definite refusal from an unknown outcome.
    async fn publish(&self, message: Publication) -> Result<PublishAck, PublishError>;

    /// Opens a contiguous reader.
    async fn reader(&self, spec: ReaderSpec) -> Result<Box<dyn Reader>, BrokerError>;

    /// Joins (creating it if need be, and it is not bound) a durable queue that workers share.
    ///
    /// # Errors
    /// [`BrokerError::Mismatch`] where the queue that is there is another one than `spec` describes.
    async fn queue(&self, spec: QueueSpec) -> Result<Box<dyn Queue>, BrokerError>;

    /// The newest message on exactly this subject.
    async fn last_by_subject(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, BrokerError>;

    /// The message at this sequence, `None` where it is gone or not yet there.
    async fn message_at(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError>;

    /// Removes all messages below `sequence`.
    async fn trim(&self, stream: &str, sequence: u64) -> Result<(), BrokerError>;

    /// The sequence up to which a queue's messages are all acknowledged, `None` where it does not exist.
    async fn queue_floor(&self, stream: &str, durable: &str) -> Result<Option<u64>, BrokerError>;

    /// Compares the consumer of a queue with `spec` and changes nothing: one line for each difference that would
    /// keep this process from joining it. One that is not there differs in nothing, unless it is bound.
    async fn check_queue(&self, spec: &QueueSpec) -> Result<Vec<String>, BrokerError>;

    /// What a queue holds, `None` where it does not exist.
    async fn queue_state(&self, stream: &str, durable: &str) -> Result<Option<QueueState>, BrokerError>;

    /// All durable queues of a stream, by name. Empty where only this process could have made some.
    async fn queues(&self, _stream: &str) -> Result<Vec<KnownQueue>, BrokerError> {
        Ok(Vec::new())
    }

    /// Removes a durable queue that nobody takes from. Its messages stay in the stream.
    ///
    /// # Errors
    /// [`BrokerError::Refused`] while somebody takes from it or has not answered.
    async fn delete_queue(&self, _stream: &str, durable: &str) -> Result<(), BrokerError> {
        Err(BrokerError::Refused(format!(
            "durable {durable} cannot be removed from this broker"
        )))
    }

    /// Creates the bucket or updates it to `spec`, then reads back what the broker really keeps.
    ///
    /// # Errors
    /// [`BrokerError::Mismatch`] where the broker keeps something else than was asked for.
    async fn ensure_bucket(&self, spec: &BucketSpec) -> Result<(), BrokerError> {
        Err(no_buckets(&spec.name))
    }

    /// Compares the bucket with `spec` and changes nothing: one line for each difference, none if all is well.
    ///
    /// # Errors
    /// [`BrokerError::NoStream`] where it does not exist.
    async fn check_bucket(&self, spec: &BucketSpec) -> Result<Vec<String>, BrokerError> {
        Err(no_buckets(&spec.name))
    }

    /// What lies under exactly this key, as the last write left it.
    ///
    /// # Errors
    /// [`BrokerError::NoStream`] where the bucket does not exist, [`BrokerError::Refused`] for what is not a key.
    async fn entry(&self, bucket: &str, _key: &str) -> Result<Option<Entry>, BrokerError> {
        Err(no_buckets(bucket))
    }

    /// Replaces the entry that has the revision `expected`, or creates it where that is `None`, and returns the new
    /// revision. An unknown outcome is read back: where the entry then holds exactly `value`, the write has
    /// succeeded. So a value that several may write has to name its writer.
    ///
    /// # Errors
    /// [`PutError`] tells a definite refusal from an unknown outcome. A repetition with the same expectation does no
    /// harm, but may find its own first write as a conflict: read before it.
    async fn put_entry(
        &self,
        bucket: &str,
        _key: &str,
        _value: Bytes,
        _expected: Option<u64>,
    ) -> Result<u64, PutError> {
        Err(PutError::Refused(no_buckets(bucket).to_string()))
    }

    /// Resolves once a connection is made that was not there at the call, so that what failed for want of one need not
    /// wait. Never where the broker is not reached by a connection.
    fn next_connection(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// One round trip.
    async fn ping(&self) -> Result<Duration, BrokerError>;

    /// Waits until everything handed over so far, acknowledgements included, has left the process.
    async fn flush(&self) -> Result<(), BrokerError>;

    /// Messages to others over the same connection; `None` where the broker is not a server that others use.
    fn messenger(self: Arc<Self>) -> Option<Arc<dyn Messenger>> {
        None
    }
}

/// What a stream must be. All streams use limits retention, discard new, file storage, no age and direct
/// get; the runner trims them itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpec {
    pub name: String,
    pub subjects: Vec<String>,
    pub replicas: u8,
    /// Largest message, headers included, in bytes.
    pub message_bytes_max: usize,
    /// Whether the stream belongs to others: then it is only checked, never created or changed, unless it
    /// does not exist.
    pub foreign: bool,
}

/// A setting by which a stream drops its oldest messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppingLimit {
    /// As the broker calls it.
    pub name: &'static str,
    pub value: String,
}

/// A message to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    pub stream: String,
    pub subject: String,
    /// Names and values without control characters.
    pub headers: Vec<(String, String)>,
    pub payload: Bytes,
    pub expect: Expect,
}

/// What makes a repeated publication recognisable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    Nothing,
    /// Nothing was ever stored on this subject. Needs no window.
    FirstOnSubject,
    /// The stream saw no message with this id within its duplicate window.
    MessageId(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishAck {
    /// For a duplicate, the sequence of the message that was stored first.
    pub sequence: u64,
    /// The id was known ([`Expect::MessageId`]).
    pub duplicate: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// [`Expect::FirstOnSubject`] did not hold.
    #[error("the subject already has a message")]
    AlreadyThere,
    /// The broker will not store this message, now or later.
    #[error("refused: {0}")]
    Refused(String),
    /// The broker cannot store messages now (full, no leader, no such stream); it did not store this one.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// It was sent and no answer came: it may be stored.
    #[error("no answer: {0}")]
    Unknown(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    #[error("stream {0} does not exist")]
    NoStream(String),
    #[error("stream {stream} is not as required: {}", differences.join("; "))]
    Mismatch {
        stream: String,
        differences: Vec<String>,
    },
    #[error("broker unavailable: {0}")]
    Unavailable(String),
    #[error("{0}")]
    Refused(String),
}

/// A place for entries, each of which has a key, a value and a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSpec {
    pub name: String,
    pub replicas: u8,
}

/// Longest name of a bucket, in bytes.
pub const BUCKET_NAME_BYTES_MAX: usize = 128;
/// Longest key of an entry, in bytes.
pub const ENTRY_KEY_BYTES_MAX: usize = 256;
/// Largest value of an entry, in bytes.
pub const ENTRY_VALUE_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Rises with every write of the bucket.
    pub revision: u64,
    pub value: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The entry has another revision than was expected, or is there, or is not.
    #[error("the entry is not as expected")]
    Conflict,
    /// The broker will not store this, now or later.
    #[error("refused: {0}")]
    Refused(String),
    /// The broker cannot store it now; it did not.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// It was sent, and neither an answer nor what was read back tells what became of it.
    #[error("no answer: {0}")]
    Unknown(String),
}

/// Says what is wrong with the name of a bucket: letters, digits, `-` and `_`.
///
/// # Errors
/// A sentence.
pub fn check_bucket_name(name: &str) -> Result<(), String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > BUCKET_NAME_BYTES_MAX || !name.bytes().all(is_legal) {
        return Err(format!(
            "{name:?} is not a name of a bucket: 1 to {BUCKET_NAME_BYTES_MAX} letters, digits, `-` and `_`"
        ));
    }
    Ok(())
}

/// Says what is wrong with the key of an entry: tokens of letters, digits and `-/_=`, with dots between them.
///
/// # Errors
/// A sentence.
pub fn check_entry_key(key: &str) -> Result<(), String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/' | b'_' | b'=');
    let is_token = |token: &str| !token.is_empty() && token.bytes().all(is_legal);
    if key.len() > ENTRY_KEY_BYTES_MAX || !key.split('.').all(is_token) {
        return Err(format!(
            "{key:?} is not a key of an entry: at most {ENTRY_KEY_BYTES_MAX} letters, digits, `-/_=` and single dots within"
        ));
    }
    Ok(())
}

/// Says what is wrong with the size of a value.
///
/// # Errors
/// A sentence.
pub fn check_entry_value(value: &[u8]) -> Result<(), String> {
    if value.len() > ENTRY_VALUE_BYTES_MAX {
        return Err(format!(
            "the value is {} bytes long, at most {ENTRY_VALUE_BYTES_MAX} are allowed",
            value.len()
        ));
    }
    Ok(())
}

fn no_buckets(name: &str) -> BrokerError {
    BrokerError::Refused(format!("bucket {name}: this broker keeps no entries"))
}

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    pub subject: String,
    pub headers: Vec<(String, String)>,
    pub payload: Bytes,
    pub sequence: u64,
    pub time: TimeMs,
}

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

/// Names of the two streams that the runner itself writes work and its answers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowStreams {
    /// `WORKFLOW_COMMANDS` unless configured otherwise.
    pub commands: String,
    /// `WORKFLOW_EVENTS` unless configured otherwise.
    pub events: String,
}
