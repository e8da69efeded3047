//! A real broker whose answers can be lost on the way back.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
    /// Nobody can read which commands were taken back.
    pub hides_cancellations: AtomicBool,
    /// Claims on deliveries do not reach it.
    pub loses_claims: Arc<AtomicBool>,
    /// Deliveries that were not the first of their message.
    pub delivered_again: Arc<AtomicUsize>,
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
            hides_cancellations: AtomicBool::new(false),
            loses_claims: Arc::default(),
            delivered_again: Arc::default(),
            published: Mutex::default(),
        })
    }

    fn tells(&self, subject: &str) -> Result<(), BrokerError> {
        if self.hides_cancellations.load(Ordering::Relaxed) && subject.contains("effect_cancel") {
            return Err(BrokerError::Unavailable("planted".to_owned()));
        }
        Ok(())
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
        spec.filters.iter().try_for_each(|filter| self.tells(filter))?;
        self.inner.reader(spec).await
    }

    async fn queue(&self, spec: QueueSpec) -> Result<Box<dyn Queue>, BrokerError> {
        Ok(Box::new(FaultyQueue {
            inner: self.inner.queue(spec).await?,
            loses_claims: Arc::clone(&self.loses_claims),
            delivered_again: Arc::clone(&self.delivered_again),
        }))
    }

    async fn last_by_subject(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, BrokerError> {
        self.tells(subject)?;
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

struct FaultyQueue {
    inner: Box<dyn Queue>,
    loses_claims: Arc<AtomicBool>,
    delivered_again: Arc<AtomicUsize>,
}

impl FaultyQueue {
    fn hand_over(&self, delivery: QueueMessage) -> QueueMessage {
        if delivery.message.delivered > 1 {
            self.delivered_again.fetch_add(1, Ordering::Relaxed);
        }
        let receipt = FaultyReceipt {
            inner: delivery.receipt,
            loses_claims: Arc::clone(&self.loses_claims),
        };
        QueueMessage {
            message: delivery.message,
            receipt: Box::new(receipt),
        }
    }
}

#[async_trait]
impl Queue for FaultyQueue {
    async fn next(&mut self) -> Result<QueueMessage, ReaderBroken> {
        let delivery = self.inner.next().await?;
        Ok(self.hand_over(delivery))
    }

    fn ready(&mut self) -> Option<Result<QueueMessage, ReaderBroken>> {
        let delivery = self.inner.ready()?;
        Some(delivery.map(|delivery| self.hand_over(delivery)))
    }

    fn make_room(&mut self, room: usize) {
        self.inner.make_room(room);
    }

    fn created(&self) -> saga_runner::kernel::ids::TimeMs {
        self.inner.created()
    }

    async fn close(&mut self) {
        self.inner.close().await;
    }
}

struct FaultyReceipt {
    inner: Box<dyn Receipt>,
    loses_claims: Arc<AtomicBool>,
}

#[async_trait]
impl Receipt for FaultyReceipt {
    async fn ack(&self) -> Result<(), BrokerError> {
        self.inner.ack().await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        self.inner.nak(delay).await
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        if self.loses_claims.load(Ordering::Relaxed) {
            return Err(BrokerError::Unavailable("planted".to_owned()));
        }
        self.inner.progress().await
    }

    async fn term(&self) -> Result<(), BrokerError> {
        self.inner.term().await
    }
}
