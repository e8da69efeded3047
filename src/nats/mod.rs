//! The broker on NATS JetStream: the only place that names `async_nats`.
//!
//! Translates and reports; it decides nothing about sagas and repeats no publication by itself. A reader or
//! queue ends with the connection that it began on, and its owner opens a new one.
//!
//! [`settings`] says how to connect, [`context`] reads contexts of the `nats` command, [`identity`] proves who we are, [`link`] keeps the connection, [`api`] asks the server, [`batch`] gathers what is
//! published at the same time, [`buckets`] keeps entries, [`forwarding`] carries requests between processes; the rest is one file for each promise of the port.

mod api;
mod batch;
mod buckets;
mod context;
mod error;
mod forwarding;
mod identity;
mod link;
mod message;
mod messenger;
mod publish;
mod pull;
mod push;
mod queue;
mod reader;
mod settings;
mod streams;
mod version;

pub use error::ConnectError;
pub use link::Status;
pub use queue::ConsumerView;
pub use settings::{Secret, ServerUrl, Settings};
pub use version::SERVER_VERSIONS;

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::LastRawMessageErrorKind;
use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::ports::broker::{
    Broker, BrokerError, BucketSpec, DroppingLimit, Entry, KnownQueue, Publication, PublishAck, PublishError,
    PutError, Queue, QueueSpec, QueueState, Reader, ReaderSpec, StoredMessage, StreamSpec, StreamState,
};
use crate::ports::forwarding::Forwarding;
use crate::ports::messenger::Messenger;

use api::DirectError;
use batch::Batches;
use error::ApiError;
use link::Link;
use publish::Publisher;
use queue::NatsQueue;
use reader::NatsReader;

/// A connection to NATS with all that the runner needs of it.
pub struct NatsBroker {
    link: Arc<Link>,
    publisher: Arc<Publisher>,
    /// Absent where each message goes by itself.
    batches: Option<Batches>,
    heartbeat: Duration,
}

impl NatsBroker {
    /// Starts to connect and returns at once; the connection is made, and made again whenever it breaks, in
    /// the background. Until then every operation fails as unavailable.
    ///
    /// # Errors
    /// [`ConnectError::Settings`] where the settings cannot be used.
    pub async fn connect(settings: Settings) -> Result<Arc<Self>, ConnectError> {
        let link = Arc::new(Link::open(&settings).await?);
        let in_flight_max = settings.publish_in_flight_max;
        let publisher = Arc::new(Publisher::new(link.publish_context(in_flight_max)));
        let batches = (settings.publish_batch_max > 1).then(|| {
            let (publisher, link) = (Arc::clone(&publisher), Arc::clone(&link));
            Batches::new(publisher, link, settings.publish_batch_max, in_flight_max)
        });
        Ok(Arc::new(Self {
            publisher,
            batches,
            link,
            heartbeat: settings.heartbeat.duration(),
        }))
    }

    /// A durable consumer as the server has it, `None` where it does not exist.
    ///
    /// # Errors
    /// [`BrokerError`] where the server cannot be asked.
    pub async fn consumer(&self, stream: &str, durable: &str) -> Result<Option<ConsumerView>, BrokerError> {
        queue::view(&self.link, stream, durable).await
    }

    /// What is known of the connection now, and each change of it.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.link.status()
    }

    /// Waits for the first usable connection and returns the server's version.
    ///
    /// # Errors
    /// [`ConnectError::Unsupported`] as soon as a server turns out to be too old.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn connected(&self) -> Result<String, ConnectError> {
        self.connected_telling(&|_| {}).await
    }

    /// As [`Self::connected`]; `tell` is told what is waited for, with the servers and why they were not reached.
    ///
    /// # Errors
    /// As [`Self::connected`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn connected_telling(
        &self,
        tell: &(dyn Fn(String) + Send + Sync),
    ) -> Result<String, ConnectError> {
        let mut status = self.link.status();
        loop {
            match status.borrow_and_update().clone() {
                Status::Ready { version } => return Ok(version),
                Status::Unsupported { version } => return Err(ConnectError::Unsupported { version }),
                Status::Connecting { last_error } => {
                    let why = last_error.map_or_else(String::new, |error| format!(": {error}"));
                    tell(format!("waits for the broker at {}{why}", self.link.servers));
                }
            }
            if status.changed().await.is_err() {
                return Err(ConnectError::Closed("the connection has ended".to_owned()));
            }
        }
    }

    /// Waits for the first usable connection, for at most `patience`, and returns the server's version.
    ///
    /// # Errors
    /// [`ConnectError::Unsupported`] as [`Self::connected`], [`ConnectError::Unreached`] with the servers and the reason once the
    /// time is over.
    pub async fn connected_within(&self, patience: Duration) -> Result<String, ConnectError> {
        let Ok(outcome) = tokio::time::timeout(patience, self.connected()).await else {
            let last_error = match &*self.link.status().borrow() {
                Status::Connecting { last_error } => last_error.clone(),
                Status::Ready { .. } | Status::Unsupported { .. } => None,
            };
            return Err(ConnectError::Unreached {
                servers: self.link.servers.clone(),
                patience,
                why: last_error.unwrap_or_else(|| "no answer".to_owned()),
            });
        };
        outcome
    }

    /// Whether the account has JetStream.
    ///
    /// # Errors
    /// [`BrokerError`] where it has none, or nobody answers.
    pub async fn has_jetstream(&self) -> Result<(), BrokerError> {
        let asked: Result<Value, ApiError> = self.link.api("INFO", &json!({})).await;
        asked
            .map(drop)
            .map_err(|error| error.into_broker_error("JetStream"))
    }

    async fn get(&self, stream: &str, which: &Value) -> Result<Option<StoredMessage>, BrokerError> {
        match self.link.direct_get(stream, which).await {
            Ok(Some(raw)) => message::stored(raw).map(Some).map_err(BrokerError::Refused),
            Ok(None) => Ok(None),
            Err(DirectError::NotOffered) => self.get_from_leader(stream, which).await,
            Err(error) => Err(error.into()),
        }
    }

    /// The way for streams of others that do not allow direct gets.
    async fn get_from_leader(
        &self,
        stream: &str,
        which: &Value,
    ) -> Result<Option<StoredMessage>, BrokerError> {
        let handle = self
            .publisher
            .context()
            .get_stream_no_info(stream)
            .await
            .map_err(|error| BrokerError::Refused(error.to_string()))?;
        let answer = match (
            which.get("last_by_subj").and_then(Value::as_str),
            which.get("seq"),
        ) {
            (Some(subject), _) => handle.get_last_raw_message_by_subject(subject).await,
            (None, sequence) => {
                handle
                    .get_raw_message(sequence.and_then(Value::as_u64).unwrap_or_default())
                    .await
            }
        };
        match answer {
            Ok(raw) => Ok(Some(message::from_leader(raw))),
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok(None),
                LastRawMessageErrorKind::JetStream(failure) => {
                    Err(ApiError::from(failure).into_broker_error(stream))
                }
                LastRawMessageErrorKind::InvalidSubject => Err(BrokerError::Refused(error.to_string())),
                LastRawMessageErrorKind::Other => Err(BrokerError::Unavailable(error.to_string())),
            },
        }
    }
}

#[async_trait]
impl Broker for NatsBroker {
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BrokerError> {
        streams::ensure(&self.link, spec, self.batches.is_some()).await
    }

    async fn check_stream(&self, spec: &StreamSpec) -> Result<Vec<String>, BrokerError> {
        streams::check(&self.link, spec, self.batches.is_some()).await
    }

    async fn stream_state(&self, stream: &str) -> Result<StreamState, BrokerError> {
        streams::read_state(&self.link, stream).await
    }

    async fn dropping_limits(&self, stream: &str) -> Result<Vec<DroppingLimit>, BrokerError> {
        streams::dropping_limits(&self.link, stream).await
    }

    async fn removed(&self, stream: &str) -> Result<Vec<u64>, BrokerError> {
        let removed = self.link.removed(stream).await;
        removed.map_err(|error| error.into_broker_error(stream))
    }

    async fn publish(&self, message: Publication) -> Result<PublishAck, PublishError> {
        match &self.batches {
            Some(batches) => batches.publish(message).await,
            None => self.publisher.publish(&self.link, message).await,
        }
    }

    async fn reader(&self, spec: ReaderSpec) -> Result<Box<dyn Reader>, BrokerError> {
        let reader = NatsReader::open(Arc::clone(&self.link), spec, self.heartbeat).await?;
        Ok(Box::new(reader))
    }

    async fn queue(&self, spec: QueueSpec) -> Result<Box<dyn Queue>, BrokerError> {
        let queue = NatsQueue::join(Arc::clone(&self.link), spec, self.heartbeat).await?;
        Ok(Box::new(queue))
    }

    async fn last_by_subject(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, BrokerError> {
        // The server takes wildcards here, and would answer with another subject's message.
        if !publish::is_literal(subject) {
            return Err(BrokerError::Refused(format!(
                "subject {subject:?} is not literal"
            )));
        }
        self.get(stream, &json!({ "last_by_subj": subject })).await
    }

    async fn message_at(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError> {
        if sequence == 0 {
            return Ok(None);
        }
        self.get(stream, &json!({ "seq": sequence })).await
    }

    async fn trim(&self, stream: &str, sequence: u64) -> Result<(), BrokerError> {
        streams::trim(&self.link, stream, sequence).await
    }

    async fn queue_floor(&self, stream: &str, durable: &str) -> Result<Option<u64>, BrokerError> {
        queue::floor(&self.link, stream, durable).await
    }

    async fn check_queue(&self, spec: &QueueSpec) -> Result<Vec<String>, BrokerError> {
        queue::check(&self.link, spec).await
    }

    async fn queue_state(&self, stream: &str, durable: &str) -> Result<Option<QueueState>, BrokerError> {
        let found = queue::view(&self.link, stream, durable).await?;
        Ok(found.map(|found| QueueState {
            pending: found.pending,
            unacknowledged: found.unacknowledged,
            delivered: found.delivered,
            floor: found.floor,
            is_asked: found.waiting > 0 || found.push_bound,
        }))
    }

    async fn queues(&self, stream: &str) -> Result<Vec<KnownQueue>, BrokerError> {
        queue::all(&self.link, stream).await
    }

    async fn delete_queue(&self, stream: &str, durable: &str) -> Result<(), BrokerError> {
        queue::delete(&self.link, stream, durable).await
    }

    async fn ensure_bucket(&self, spec: &BucketSpec) -> Result<(), BrokerError> {
        buckets::ensure(&self.link, spec).await
    }

    async fn check_bucket(&self, spec: &BucketSpec) -> Result<Vec<String>, BrokerError> {
        buckets::check(&self.link, spec).await
    }

    async fn entry(&self, bucket: &str, key: &str) -> Result<Option<Entry>, BrokerError> {
        buckets::entry(&self.link, bucket, key).await
    }

    async fn put_entry(
        &self,
        bucket: &str,
        key: &str,
        value: Bytes,
        expected: Option<u64>,
    ) -> Result<u64, PutError> {
        buckets::put(&self.link, &self.publisher, bucket, key, value, expected).await
    }

    fn next_connection(&self) -> BoxFuture<'static, ()> {
        self.link.next_connection().boxed()
    }

    /// Asks the API for the account, so an answer says that JetStream is up, too.
    async fn ping(&self) -> Result<Duration, BrokerError> {
        let begin = Instant::now();
        let _: Value = self
            .link
            .api("INFO", &Value::Null)
            .await
            .map_err(|error| error.into_broker_error(""))?;
        Ok(begin.elapsed())
    }

    async fn flush(&self) -> Result<(), BrokerError> {
        let generation = self.link.generation().map_err(BrokerError::Unavailable)?;
        tokio::select! {
            biased;
            flushed = self.link.client.flush() => {
                flushed.map_err(|error| BrokerError::Unavailable(error.to_string()))
            }
            () = self.link.lost(generation) => {
                Err(BrokerError::Unavailable("connection lost before all was sent".to_owned()))
            }
            () = tokio::time::sleep(self.link.request_timeout) => {
                Err(BrokerError::Unavailable("the connection takes no data".to_owned()))
            }
        }
    }

    fn messenger(self: Arc<Self>) -> Option<Arc<dyn Messenger>> {
        Some(self)
    }

    fn forwarding(self: Arc<Self>) -> Option<Arc<dyn Forwarding>> {
        Some(self)
    }
}
