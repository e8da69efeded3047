//! A contiguous view of a stream: a consumer of its own, in memory, that delivers each message once.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use tokio::time::Instant;

use crate::ports::broker::{BrokerError, Horizon, Message, Reader, ReaderBroken, ReaderSpec};

use super::api::{ConsumerAction, ConsumerConfig, PREFIX, nanos};
use super::error::ApiError;
use super::link::Link;
use super::message::{self, Delivery};
use super::pull::{Arrived, Pull};

/// After this time without its reader the server drops the consumer.
const INACTIVE_MAX: Duration = Duration::from_mins(5);
/// How long to wait for the sign that an inquiry asks for; it takes about one round trip.
const HORIZON_WAIT: Duration = Duration::from_millis(100);

pub(super) struct NatsReader {
    link: Arc<Link>,
    stream: String,
    consumer: String,
    pull: Pull,
    /// Place of the newest message taken; all zero before the first.
    taken: Place,
}

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    stream_sequence: u64,
    consumer_sequence: u64,
}

impl NatsReader {
    pub async fn open(link: Arc<Link>, spec: ReaderSpec, heartbeat: Duration) -> Result<Self, BrokerError> {
        if spec.filters.is_empty() {
            return Err(BrokerError::Refused(
                "a reader needs at least one filter".to_owned(),
            ));
        }
        let mut config = ConsumerConfig {
            name: spec.name.clone(),
            deliver_policy: "by_start_sequence".to_owned(),
            opt_start_seq: Some(spec.start_sequence.max(1)),
            // The owner's position is the progress. What waits for an acknowledgement would be delivered again, or keep the
            // server from delivering more.
            ack_policy: "none".to_owned(),
            replay_policy: "instant".to_owned(),
            inactive_threshold: nanos(INACTIVE_MAX),
            num_replicas: 1,
            mem_storage: true,
            ..ConsumerConfig::default()
        };
        config.set_filters(&spec.filters);
        let info = link
            .put_consumer(&spec.stream, &config, ConsumerAction::Create)
            .await
            .map_err(|error| error.into_broker_error(&spec.stream))?;
        if info.config.filters() != config.filters() || info.config.ack_policy != config.ack_policy {
            return Err(BrokerError::Mismatch {
                stream: spec.stream,
                differences: vec![format!(
                    "consumer {} filters {:?}, expected {:?}",
                    spec.name,
                    info.config.filters(),
                    config.filters()
                )],
            });
        }
        let pull = Pull::open(
            Arc::clone(&link),
            (&spec.stream, &spec.name),
            spec.buffer,
            heartbeat,
            Arrived::Discard,
        )
        .await?;
        Ok(Self {
            link,
            stream: spec.stream,
            consumer: spec.name,
            pull,
            taken: Place::default(),
        })
    }

    fn hand_over(&mut self, raw: async_nats::Message) -> Result<Message, ReaderBroken> {
        let message = message::delivered(raw).map_err(ReaderBroken)?;
        self.taken = Place {
            stream_sequence: message.stream_sequence,
            consumer_sequence: message.consumer_sequence,
        };
        Ok(message)
    }

    /// Place of the newest message that has arrived, taken or not.
    fn newest(&self) -> Place {
        self.pull
            .ahead()
            .next_back()
            .and_then(|raw| raw.reply.as_deref().and_then(Delivery::parse))
            .map_or(self.taken, |delivery| Place {
                stream_sequence: delivery.stream_sequence,
                consumer_sequence: delivery.consumer_sequence,
            })
    }

    /// The last message up to `covered`, if what has arrived so far tells it.
    fn seen_up_to(&mut self, covered: u64) -> Option<u64> {
        self.pull.drain();
        let newest = self.newest();
        let searched = self.pull.searched();
        let complete = newest.consumer_sequence >= searched.delivered;
        let reached = newest.stream_sequence.max(searched.stream_sequence) >= covered;
        (complete && reached).then_some(newest.stream_sequence)
    }
}

/// Lets a failed request of the horizon end the reader only where the consumer is surely gone.
fn horizon_failed(error: ApiError) -> Result<Option<Horizon>, ReaderBroken> {
    match error {
        ApiError::Failed(failure) if failure.no_stream() || failure.no_consumer() => {
            Err(ReaderBroken(failure.description))
        }
        ApiError::Failed(_) | ApiError::Unavailable(_) => Ok(None),
    }
}

#[async_trait]
impl Reader for NatsReader {
    async fn next(&mut self) -> Result<Message, ReaderBroken> {
        let raw = self.pull.next().await?;
        self.hand_over(raw)
    }

    fn ready(&mut self) -> Option<Result<Message, ReaderBroken>> {
        Some(match self.pull.ready()? {
            Ok(raw) => self.hand_over(raw),
            Err(broken) => Err(broken),
        })
    }

    /// First the stream's last sequence L is read; then the consumer has to show that it searched the stream
    /// up to L. Two things show it: a delivery at or behind L, and a heartbeat, which tells how far the stream
    /// was searched and how many messages were delivered. The server sends both through one queue and moves
    /// both numbers under one lock, held from the search to the delivery. So whatever matches up to L has
    /// arrived here before the sign has, and the newest arrival is the last of it.
    ///
    /// The numbers of pending and of delivered messages in the consumer's state show nothing: the first is
    /// raised some time after a message is stored, the second leaves out what was searched without a match.
    ///
    /// A request for messages makes the server search again; one with a tiny heartbeat has the result told.
    async fn horizon(&mut self) -> Result<Option<Horizon>, ReaderBroken> {
        let covered = match self.link.stream_info(&self.stream).await {
            Ok(info) => info.state.last_seq,
            Err(error) => return horizon_failed(error),
        };
        let after = self.silent_up_to(covered).await?;
        Ok(after.map(|after| Horizon { after, covered }))
    }

    async fn silent_up_to(&mut self, covered: u64) -> Result<Option<u64>, ReaderBroken> {
        if let Some(after) = self.seen_up_to(covered) {
            return Ok(Some(after));
        }
        if self.pull.is_full() {
            return Ok(None);
        }
        self.pull.inquire().await?;
        let deadline = Instant::now() + HORIZON_WAIT;
        while self.pull.arrival(deadline).await? {
            if let Some(after) = self.seen_up_to(covered) {
                return Ok(Some(after));
            }
            if self.pull.has_ahead() {
                return Ok(None);
            }
        }
        Ok(None)
    }
}

impl Drop for NatsReader {
    /// Spares the server the consumer until it would be dropped for inactivity.
    fn drop(&mut self) {
        let operation = format!("{PREFIX}.CONSUMER.DELETE.{}.{}", self.stream, self.consumer);
        let inbox = self.link.client.new_inbox();
        let _ = self
            .link
            .client
            .publish_with_reply(operation, inbox, Bytes::new())
            .now_or_never();
    }
}
