//! The broker: streams with per-subject expectations, contiguous readers, shared work queues, and entries that are
//! replaced by compare-and-set.
//!
//! Two adapters implement it, `nats` and `inproc`; one conformance suite (`tests/broker`) runs against both.
//! The port names what the runner needs and no more.
//!
//! Here are the broker itself, its streams and publications; `reader`, `queue` and `bucket` have the rest by noun.

mod bucket;
mod queue;
mod reader;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
pub use saga_runner_partition::machine::source::{StreamIdentity, StreamState};

use super::forwarding::Forwarding;
use super::messenger::Messenger;
use crate::kernel::ids::TimeMs;
use bucket::no_buckets;
pub use bucket::{
    BUCKET_NAME_BYTES_MAX, BucketSpec, ENTRY_KEY_BYTES_MAX, ENTRY_VALUE_BYTES_MAX, Entry, PutError,
    check_bucket_name, check_entry_key, check_entry_value,
};
pub use queue::{KnownQueue, Manner, Queue, QueueMessage, QueueSpec, QueueState, Receipt};
pub use reader::{Horizon, Message, Reader, ReaderBroken, ReaderSpec};

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

    /// The way to the other processes of the cluster; `None` where the broker has room for one process only.
    fn forwarding(self: Arc<Self>) -> Option<Arc<dyn Forwarding>> {
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    pub subject: String,
    pub headers: Vec<(String, String)>,
    pub payload: Bytes,
    pub sequence: u64,
    pub time: TimeMs,
}

/// Where the runner itself writes work, its answers, and what instances tell each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowStreams {
    /// Name of the cluster, which the subjects have by which its runners talk to instances.
    pub cluster: String,
    /// `WORKFLOW_COMMANDS` unless configured otherwise.
    pub commands: String,
    /// `WORKFLOW_EVENTS` unless configured otherwise.
    pub events: String,
}
