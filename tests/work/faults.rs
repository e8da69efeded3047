//! A real broker whose answers can be lost on the way back.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use saga_runner::ports::broker::*;

type Hook = Box<dyn Fn(&Publication) -> Fault + Send + Sync>;

/// What becomes of a publication.
pub enum Fault {
    None,
    /// It is stored, and nobody hears of it.
    AnswerLost,
    /// It is neither stored nor answered.
    Lost,
    /// The broker is away.
    Away,
    /// This message is stored first.
    After(Publication),
}

pub struct Faulty {
    inner: Arc<dyn Broker>,
    hook: Hook,
    pub published: Mutex<Vec<Publication>>,
}

impl Faulty {
    pub fn new(
        inner: Arc<dyn Broker>,
        hook: impl Fn(&Publication) -> Fault + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner,
            hook: Box::new(hook),
            published: Mutex::default(),
        })
    }
}

#[async_trait]
impl Broker for Faulty {
    async fn publish(&self, message: Publication) -> Result<PublishAck, PublishError> {
        self.published.lock().unwrap().push(message.clone());
        match (self.hook)(&message) {
            Fault::None => self.inner.publish(message).await,
            Fault::Lost => Err(PublishError::Unknown("planted".to_owned())),
            Fault::Away => Err(PublishError::Unavailable("planted".to_owned())),
            Fault::AnswerLost => {
                self.inner.publish(message).await?;
                Err(PublishError::Unknown("planted".to_owned()))
            }
            Fault::After(other) => {
                self.inner.publish(other).await?;
                self.inner.publish(message).await
            }
        }
    }

    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BrokerError> {
        self.inner.ensure_stream(spec).await
    }

    async fn check_stream(&self, spec: &StreamSpec) -> Result<Vec<String>, BrokerError> {
        self.inner.check_stream(spec).await
    }

    async fn stream_state(&self, stream: &str) -> Result<StreamState, BrokerError> {
        self.inner.stream_state(stream).await
    }

    async fn reader(&self, spec: ReaderSpec) -> Result<Box<dyn Reader>, BrokerError> {
        self.inner.reader(spec).await
    }

    async fn queue(&self, spec: QueueSpec) -> Result<Box<dyn Queue>, BrokerError> {
        self.inner.queue(spec).await
    }

    async fn last_by_subject(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, BrokerError> {
        self.inner.last_by_subject(stream, subject).await
    }

    async fn message_at(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError> {
        self.inner.message_at(stream, sequence).await
    }

    async fn trim(&self, stream: &str, sequence: u64) -> Result<(), BrokerError> {
        self.inner.trim(stream, sequence).await
    }

    async fn queue_floor(&self, stream: &str, durable: &str) -> Result<Option<u64>, BrokerError> {
        self.inner.queue_floor(stream, durable).await
    }

    async fn check_queue(&self, spec: &QueueSpec) -> Result<Vec<String>, BrokerError> {
        self.inner.check_queue(spec).await
    }

    async fn queue_state(&self, stream: &str, durable: &str) -> Result<Option<QueueState>, BrokerError> {
        self.inner.queue_state(stream, durable).await
    }

    async fn ping(&self) -> Result<Duration, BrokerError> {
        self.inner.ping().await
    }

    async fn flush(&self) -> Result<(), BrokerError> {
        self.inner.flush().await
    }
}
