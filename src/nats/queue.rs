//! A durable consumer that workers share, each message answered for by itself.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::AckKind;
use async_trait::async_trait;
use tracing::debug;

use crate::ports::broker::{BrokerError, Queue, QueueMessage, QueueSpec, ReaderBroken, Receipt};

use super::api::{ConsumerAction, ConsumerConfig, ConsumerInfo, nanos};
use super::error::ApiError;
use super::link::Link;
use super::message;
use super::pull::{Arrived, Pull};

pub(super) struct NatsQueue {
    link: Arc<Link>,
    pull: Pull,
}

impl NatsQueue {
    pub async fn join(link: Arc<Link>, spec: QueueSpec, heartbeat: Duration) -> Result<Self, BrokerError> {
        ensure_consumer(&link, &spec).await?;
        let pull = Pull::open(
            Arc::clone(&link),
            (&spec.stream, &spec.durable),
            spec.buffer,
            heartbeat,
            Arrived::Use,
        )
        .await?;
        Ok(Self { link, pull })
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

/// Creates the consumer, or takes the one that is there, with the waits and bounds of `spec`.
async fn ensure_consumer(link: &Link, spec: &QueueSpec) -> Result<(), BrokerError> {
    let mut config = ConsumerConfig {
        name: spec.durable.clone(),
        durable_name: Some(spec.durable.clone()),
        deliver_policy: "all".to_owned(),
        ack_policy: "explicit".to_owned(),
        ack_wait: nanos(spec.ack_wait),
        max_deliver: -1,
        max_ack_pending: i64::try_from(spec.max_unacknowledged).unwrap_or(i64::MAX),
        replay_policy: "instant".to_owned(),
        ..ConsumerConfig::default()
    };
    config.set_filters(std::slice::from_ref(&spec.filter));
    let failed = |error: ApiError| error.into_broker_error(&spec.stream);
    let found = match link.consumer_info(&spec.stream, &spec.durable).await {
        Ok(info) => Some(info),
        Err(ApiError::Failed(failure)) if failure.no_consumer() => {
            match link
                .put_consumer(&spec.stream, &config, ConsumerAction::Create)
                .await
            {
                Ok(_) => None,
                // Another member was faster.
                Err(ApiError::Failed(failure)) if failure.consumer_exists() => Some(
                    link.consumer_info(&spec.stream, &spec.durable)
                        .await
                        .map_err(failed)?,
                ),
                Err(error) => return Err(failed(error)),
            }
        }
        Err(error) => return Err(failed(error)),
    };
    let Some(found) = found else { return Ok(()) };
    refuse_foreign(spec, &config, &found)?;
    if found.config.ack_wait == config.ack_wait && found.config.max_ack_pending == config.max_ack_pending {
        return Ok(());
    }
    let update = ConsumerConfig {
        num_replicas: found.config.num_replicas,
        ..config
    };
    link.put_consumer(&spec.stream, &update, ConsumerAction::Update)
        .await
        .map(drop)
        .map_err(failed)
}

fn refuse_foreign(
    spec: &QueueSpec,
    wanted: &ConsumerConfig,
    found: &ConsumerInfo,
) -> Result<(), BrokerError> {
    let mut differences = Vec::new();
    if found.config.filters() != wanted.filters() {
        differences.push(format!(
            "durable {} filters {:?}, expected {:?}",
            spec.durable,
            found.config.filters(),
            wanted.filters()
        ));
    }
    if found.config.ack_policy != wanted.ack_policy {
        differences.push(format!(
            "durable {} has ack_policy {}, expected {}",
            spec.durable, found.config.ack_policy, wanted.ack_policy
        ));
    }
    if found.config.max_deliver > 0 {
        differences.push(format!(
            "durable {} delivers at most {} times, expected without limit",
            spec.durable, found.config.max_deliver
        ));
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(BrokerError::Mismatch {
        stream: spec.stream.clone(),
        differences,
    })
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
    /// Messages that nobody was given yet.
    pub pending: u64,
    /// Messages that somebody was given and has not answered for.
    pub unacknowledged: u64,
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
    }))
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
        let raw = self.pull.next().await?;
        self.hand_over(raw)
    }

    fn ready(&mut self) -> Option<Result<QueueMessage, ReaderBroken>> {
        Some(match self.pull.ready()? {
            Ok(raw) => self.hand_over(raw),
            Err(broken) => Err(broken),
        })
    }

    async fn close(&mut self) {
        for raw in self.pull.close(self.link.request_timeout).await {
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

    async fn progress(&self) -> Result<(), BrokerError> {
        self.answer(AckKind::Progress).await
    }

    async fn term(&self) -> Result<(), BrokerError> {
        self.answer(AckKind::Term).await
    }
}
