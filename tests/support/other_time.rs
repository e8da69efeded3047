//! A server in another time: whatever it tells of its clock is told as a clock shows it that goes otherwise.
//!
//! The clock of a real server cannot be set for a test. So the clock of the runner is another one, and its broker's with it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use saga_runner::app::{self, Adapters, StartError};
use saga_runner::config::{BrokerKind, Manifest};
use saga_runner::kernel::ids::TimeMs;
use saga_runner::ports::broker::{
    Broker, BrokerError, BucketSpec, DroppingLimit, Entry, Horizon, KnownQueue, Message, Publication,
    PublishAck, PublishError, PutError, Queue, QueueMessage, QueueSpec, QueueState, Reader, ReaderBroken,
    ReaderSpec, StoredMessage, StreamSpec, StreamState,
};
use saga_runner::ports::clock::Clock;
use saga_runner::ports::messenger::Messenger;

/// What the other clock shows at a time of the machine.
pub type Shift = Arc<dyn Fn(TimeMs) -> TimeMs + Send + Sync>;

/// The adapters of a node in another time. The embedded broker goes by the clock of its process anyway.
pub struct OtherTime(pub Shift);

#[async_trait]
impl Adapters for OtherTime {
    async fn broker(
        &self,
        manifest: &Manifest,
        clock: Arc<dyn Clock>,
        tell: &(dyn Fn(String) + Send + Sync),
    ) -> Result<Arc<dyn Broker>, StartError> {
        let broker = app::connect_broker(manifest, clock, tell).await?;
        if manifest.broker.kind == BrokerKind::Embedded {
            return Ok(broker);
        }
        let shift = Arc::clone(&self.0);
        Ok(Arc::new(Shifted { broker, shift }))
    }
}

struct Shifted<B> {
    broker: B,
    shift: Shift,
}

impl<B> Shifted<B> {
    fn message(&self, message: Message) -> Message {
        let time = (self.shift)(message.time);
        Message { time, ..message }
    }

    fn stored(&self, message: Option<StoredMessage>) -> Option<StoredMessage> {
        message.map(|message| {
            let time = (self.shift)(message.time);
            StoredMessage { time, ..message }
        })
    }

    fn state(&self, state: StreamState) -> StreamState {
        StreamState {
            last_time: state.last_time.map(|time| (self.shift)(time)),
            told: (self.shift)(state.told),
            ..state
        }
    }
}

#[async_trait]
impl Broker for Shifted<Arc<dyn Broker>> {
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BrokerError> {
        Ok(self.state(self.broker.ensure_stream(spec).await?))
    }

    async fn check_stream(&self, spec: &StreamSpec) -> Result<Vec<String>, BrokerError> {
        self.broker.check_stream(spec).await
    }

    async fn stream_state(&self, stream: &str) -> Result<StreamState, BrokerError> {
        Ok(self.state(self.broker.stream_state(stream).await?))
    }

    async fn removed(&self, stream: &str) -> Result<Vec<u64>, BrokerError> {
        self.broker.removed(stream).await
    }

    async fn dropping_limits(&self, stream: &str) -> Result<Vec<DroppingLimit>, BrokerError> {
        self.broker.dropping_limits(stream).await
    }

    async fn publish(&self, message: Publication) -> Result<PublishAck, PublishError> {
        self.broker.publish(message).await
    }

    async fn reader(&self, spec: ReaderSpec) -> Result<Box<dyn Reader>, BrokerError> {
        let shift = Arc::clone(&self.shift);
        let broker = self.broker.reader(spec).await?;
        Ok(Box::new(Shifted { broker, shift }))
    }

    async fn queue(&self, spec: QueueSpec) -> Result<Box<dyn Queue>, BrokerError> {
        let shift = Arc::clone(&self.shift);
        let broker = self.broker.queue(spec).await?;
        Ok(Box::new(Shifted { broker, shift }))
    }

    async fn last_by_subject(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, BrokerError> {
        Ok(self.stored(self.broker.last_by_subject(stream, subject).await?))
    }

    async fn message_at(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError> {
        Ok(self.stored(self.broker.message_at(stream, sequence).await?))
    }

    async fn trim(&self, stream: &str, sequence: u64) -> Result<(), BrokerError> {
        self.broker.trim(stream, sequence).await
    }

    async fn queue_floor(&self, stream: &str, durable: &str) -> Result<Option<u64>, BrokerError> {
        self.broker.queue_floor(stream, durable).await
    }

    async fn check_queue(&self, spec: &QueueSpec) -> Result<Vec<String>, BrokerError> {
        self.broker.check_queue(spec).await
    }

    async fn queue_state(&self, stream: &str, durable: &str) -> Result<Option<QueueState>, BrokerError> {
        self.broker.queue_state(stream, durable).await
    }

    async fn queues(&self, stream: &str) -> Result<Vec<KnownQueue>, BrokerError> {
        self.broker.queues(stream).await
    }

    async fn delete_queue(&self, stream: &str, durable: &str) -> Result<(), BrokerError> {
        self.broker.delete_queue(stream, durable).await
    }

    async fn ensure_bucket(&self, spec: &BucketSpec) -> Result<(), BrokerError> {
        self.broker.ensure_bucket(spec).await
    }

    async fn check_bucket(&self, spec: &BucketSpec) -> Result<Vec<String>, BrokerError> {
        self.broker.check_bucket(spec).await
    }

    async fn entry(&self, bucket: &str, key: &str) -> Result<Option<Entry>, BrokerError> {
        self.broker.entry(bucket, key).await
    }

    async fn put_entry(
        &self,
        bucket: &str,
        key: &str,
        value: Bytes,
        expected: Option<u64>,
    ) -> Result<u64, PutError> {
        self.broker.put_entry(bucket, key, value, expected).await
    }

    fn next_connection(&self) -> BoxFuture<'static, ()> {
        self.broker.next_connection()
    }

    async fn ping(&self) -> Result<Duration, BrokerError> {
        self.broker.ping().await
    }

    async fn flush(&self) -> Result<(), BrokerError> {
        self.broker.flush().await
    }

    fn messenger(self: Arc<Self>) -> Option<Arc<dyn Messenger>> {
        Arc::clone(&self.broker).messenger()
    }
}

#[async_trait]
impl Reader for Shifted<Box<dyn Reader>> {
    async fn next(&mut self) -> Result<Message, ReaderBroken> {
        let message = self.broker.next().await?;
        Ok(self.message(message))
    }

    fn ready(&mut self) -> Option<Result<Message, ReaderBroken>> {
        let found = self.broker.ready()?;
        Some(found.map(|message| self.message(message)))
    }

    async fn horizon(&mut self) -> Result<Option<Horizon>, ReaderBroken> {
        self.broker.horizon().await
    }

    async fn silent_up_to(&mut self, covered: u64) -> Result<Option<u64>, ReaderBroken> {
        self.broker.silent_up_to(covered).await
    }
}

#[async_trait]
impl Queue for Shifted<Box<dyn Queue>> {
    async fn next(&mut self) -> Result<QueueMessage, ReaderBroken> {
        let QueueMessage { message, receipt } = self.broker.next().await?;
        let message = self.message(message);
        Ok(QueueMessage { message, receipt })
    }

    fn ready(&mut self) -> Option<Result<QueueMessage, ReaderBroken>> {
        let found = self.broker.ready()?;
        Some(found.map(|QueueMessage { message, receipt }| {
            let message = self.message(message);
            QueueMessage { message, receipt }
        }))
    }

    fn make_room(&mut self, room: usize) {
        self.broker.make_room(room);
    }

    fn created(&self) -> TimeMs {
        (self.shift)(self.broker.created())
    }

    async fn close(&mut self) {
        self.broker.close().await;
    }
}
