//! A durable consumer that workers share, each message answered for by itself.
//!
//! What the consumer has to be is in `consumer`.

mod consumer;

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::{Message, Subject};
use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tracing::debug;

use crate::kernel::ids::TimeMs;
use crate::ports::broker::{BrokerError, KnownQueue, Queue, QueueMessage, QueueSpec, ReaderBroken, Receipt};

use super::api::ConsumerInfo;
use super::error::ApiError;
use super::link::Link;
use super::message;
use super::pull::{Arrived, Pull};
use super::push::Push;
pub(super) use consumer::check;
use consumer::{ensure_consumer, group};

pub(super) struct NatsQueue {
    link: Arc<Link>,
    way: Way,
    created: TimeMs,
}

/// How messages come.
enum Way {
    Pull(Box<Pull>),
    Push(Box<Push>),
}

impl Way {
    async fn next(&mut self) -> Result<Message, ReaderBroken> {
        match self {
            Self::Pull(pull) => pull.next().await,
            Self::Push(push) => push.next().await,
        }
    }

    fn ready(&mut self) -> Option<Result<Message, ReaderBroken>> {
        match self {
            Self::Pull(pull) => pull.ready(),
            Self::Push(push) => push.ready(),
        }
    }

    fn make_room(&mut self, room: usize) {
        match self {
            Self::Pull(pull) => pull.make_room(room),
            Self::Push(_) => {}
        }
    }

    async fn close(&mut self, patience: Duration) -> Vec<Message> {
        match self {
            Self::Pull(pull) => pull.close(patience).await,
            Self::Push(push) => push.close(patience).await,
        }
    }
}

impl NatsQueue {
    pub async fn join(link: Arc<Link>, spec: QueueSpec, heartbeat: Duration) -> Result<Self, BrokerError> {
        if spec.filters.is_empty() {
            let what = format!("consumer {} needs at least one filter", spec.durable);
            return Err(BrokerError::Refused(what));
        }
        let found = ensure_consumer(&link, &spec).await?;
        let created = created(&found)?;
        let names = (&*spec.stream, &*spec.durable);
        let target = found.config.deliver_subject.zip(found.config.deliver_group);
        let way = if let Some(target) = target {
            let push = Push::open(Arc::clone(&link), names, target, heartbeat);
            Way::Push(Box::new(push.await?))
        } else {
            let pull = Pull::open(Arc::clone(&link), names, spec.buffer, heartbeat, Arrived::Use);
            Way::Pull(Box::new(pull.await?))
        };
        Ok(Self { link, way, created })
    }

    fn hand_over(&self, raw: async_nats::Message) -> Result<QueueMessage, ReaderBroken> {
        let receipt = NatsReceipt {
            link: Arc::clone(&self.link),
            // A copy: the original would keep the whole read buffer of the connection alive.
            reply: Subject::from(raw.reply.as_deref().unwrap_or_default().to_owned()),
        };
        Ok(QueueMessage {
            message: message::delivered(raw).map_err(ReaderBroken)?,
            receipt: Box::new(receipt),
        })
    }
}

/// All consumers of a stream that are durable.
pub(super) async fn all(link: &Link, stream: &str) -> Result<Vec<KnownQueue>, BrokerError> {
    let found = link.consumers(stream).await;
    let found = found.map_err(|error| error.into_broker_error(stream))?;
    let durable = found.into_iter().filter(|config| config.durable_name.is_some());
    Ok(durable
        .map(|config| KnownQueue {
            group: group(&config).cloned(),
            durable: config.name,
        })
        .collect())
}

fn created(info: &ConsumerInfo) -> Result<TimeMs, BrokerError> {
    let time = info.created.parse::<Timestamp>();
    let time = time.map_err(|error| BrokerError::Refused(format!("time of a consumer: {error}")))?;
    // Whatever was stored in the same millisecond counts as older.
    Ok(TimeMs(time.as_millisecond()))
}

/// What a durable consumer is, for whoever holds it against something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerView {
    pub filters: Vec<String>,
    pub ack_policy: String,
    pub deliver_policy: String,
    pub ack_wait: Duration,
    pub max_deliver: i64,
    pub max_unacknowledged: usize,
    /// Messages not delivered yet.
    pub pending: u64,
    /// Messages that somebody was given and has not answered for.
    pub unacknowledged: u64,
    /// Requests of workers that wait for messages.
    pub waiting: u64,
    /// Somebody listens where it pushes to.
    pub push_bound: bool,
    /// Sequence of the last message delivered.
    pub delivered: u64,
    /// Sequence up to which all is acknowledged.
    pub floor: u64,
}

/// The consumer of this name, `None` where it does not exist.
pub(super) async fn view(
    link: &Link,
    stream: &str,
    durable: &str,
) -> Result<Option<ConsumerView>, BrokerError> {
    let info = match link.consumer_info(stream, durable).await {
        Ok(info) => info,
        Err(ApiError::Failed(failure)) if failure.no_consumer() => return Ok(None),
        Err(error) => return Err(error.into_broker_error(stream)),
    };
    let config = info.config;
    Ok(Some(ConsumerView {
        filters: config.filters().into_iter().map(str::to_owned).collect(),
        ack_wait: Duration::from_nanos(config.ack_wait),
        max_deliver: config.max_deliver,
        max_unacknowledged: usize::try_from(config.max_ack_pending).unwrap_or(usize::MAX),
        ack_policy: config.ack_policy,
        deliver_policy: config.deliver_policy,
        pending: info.num_pending,
        unacknowledged: info.num_ack_pending,
        waiting: info.num_waiting,
        push_bound: info.push_bound,
        delivered: info.delivered.stream_seq,
        floor: info.ack_floor.stream_seq,
    }))
}

/// Removes a consumer that nobody takes from.
pub(super) async fn delete(link: &Link, stream: &str, durable: &str) -> Result<(), BrokerError> {
    let failed = |error: ApiError| error.into_broker_error(stream);
    let info = link.consumer_info(stream, durable).await.map_err(failed)?;
    if info.num_waiting > 0 || info.push_bound || info.num_ack_pending > 0 {
        let listening = if info.push_bound {
            ", workers listen to it"
        } else {
            ""
        };
        return Err(BrokerError::Refused(format!(
            "consumer {durable} is in use: {} request(s) of workers wait, {} command(s) are not acknowledged{listening}",
            info.num_waiting, info.num_ack_pending
        )));
    }
    let _: Value = link
        .api(&format!("CONSUMER.DELETE.{stream}.{durable}"), &Value::Null)
        .await
        .map_err(failed)?;
    Ok(())
}

/// Up to where all that matches is answered for.
///
/// With messages out, the floor ends at the last answer without a gap. With none out, it reaches to the next
/// message that matches, and where there is none to the end of the stream as it was before anything else was
/// asked.
pub(super) async fn floor(link: &Link, stream: &str, durable: &str) -> Result<Option<u64>, BrokerError> {
    let failed = |error: ApiError| error.into_broker_error(stream);
    let end = link.stream_info(stream).await.map_err(failed)?.state.last_seq;
    let info = match link.consumer_info(stream, durable).await {
        Ok(info) => info,
        Err(ApiError::Failed(failure)) if failure.no_consumer() => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if info.num_ack_pending > 0 {
        return Ok(Some(info.ack_floor.stream_seq));
    }
    let mut floor = end.max(info.delivered.stream_seq);
    let delivered = info.delivered.stream_seq.max(info.ack_floor.stream_seq);
    for filter in info.config.filters() {
        if let Some(next) = link
            .next_matching(stream, filter, delivered + 1)
            .await
            .map_err(failed)?
        {
            floor = floor.min(next - 1);
        }
    }
    Ok(Some(floor))
}

#[async_trait]
impl Queue for NatsQueue {
    async fn next(&mut self) -> Result<QueueMessage, ReaderBroken> {
        let raw = self.way.next().await?;
        self.hand_over(raw)
    }

    fn ready(&mut self) -> Option<Result<QueueMessage, ReaderBroken>> {
        Some(match self.way.ready()? {
            Ok(raw) => self.hand_over(raw),
            Err(broken) => Err(broken),
        })
    }

    fn make_room(&mut self, room: usize) {
        self.way.make_room(room);
    }

    fn created(&self) -> TimeMs {
        self.created
    }

    async fn close(&mut self) {
        for raw in self.way.close(self.link.request_timeout).await {
            let Some(reply) = raw.reply else { continue };
            let given_back = self.link.client.publish(reply, AckKind::Nak(None).into()).await;
            if let Err(error) = given_back {
                // The ack wait gives it back.
                debug!(%error, "cannot give back a message");
            }
        }
    }
}

struct NatsReceipt {
    link: Arc<Link>,
    reply: Subject,
}

impl NatsReceipt {
    /// Hands the answer to the connection. Without one it waits a while: an answer stays good across
    /// connections until the ack wait is over.
    async fn answer(&self, kind: AckKind) -> Result<(), BrokerError> {
        let sent = self.link.client.publish(self.reply.clone(), kind.into());
        match tokio::time::timeout(self.link.request_timeout, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(BrokerError::Unavailable(error.to_string())),
            Err(_) => Err(BrokerError::Unavailable(
                "the connection took no acknowledgement in time".to_owned(),
            )),
        }
    }
}

#[async_trait]
impl Receipt for NatsReceipt {
    async fn ack(&self) -> Result<(), BrokerError> {
        self.answer(AckKind::Ack).await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        self.answer(AckKind::Nak((!delay.is_zero()).then_some(delay)))
            .await
    }

    /// As a request, so that it is known when the server has taken it. It does not tell an old delivery from a new one.
    async fn progress(&self) -> Result<(), BrokerError> {
        self.link.generation().map_err(BrokerError::Unavailable)?;
        let asked = self
            .link
            .client
            .request(self.reply.clone(), AckKind::Progress.into());
        match asked.await {
            Ok(_) => Ok(()),
            Err(error) => Err(BrokerError::Unavailable(error.to_string())),
        }
    }

    async fn term(&self) -> Result<(), BrokerError> {
        self.answer(AckKind::Term).await
    }
}
