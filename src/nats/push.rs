//! Messages that a consumer pushes to the members of a group, each to one of them.
//!
//! The server sends no heartbeats to a group, so a quiet consumer is looked at from time to time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tracing::debug;

use crate::ports::broker::{BrokerError, ReaderBroken};

use super::error::ApiError;
use super::link::{Link, Status};

/// Time between two looks at a consumer that sends nothing, in heartbeats.
const LOOK_HEARTBEATS: u32 = 2;

pub(super) struct Push {
    link: Arc<Link>,
    status: watch::Receiver<Status>,
    generation: u64,
    stream: String,
    consumer: String,
    subscriber: Subscriber,
    /// Messages drawn from the subscription and not yet taken.
    ahead: VecDeque<Message>,
    quiet_max: Duration,
    quiet: Pin<Box<Sleep>>,
    broken: Option<String>,
}

impl Push {
    /// Joins the group at the subject to which the consumer pushes.
    pub async fn open(
        link: Arc<Link>,
        (stream, consumer): (&str, &str),
        (subject, group): (String, String),
        heartbeat: Duration,
    ) -> Result<Self, BrokerError> {
        let generation = link.generation().map_err(BrokerError::Unavailable)?;
        let subscriber = link
            .client
            .queue_subscribe(subject, group)
            .await
            .map_err(|error| BrokerError::Unavailable(error.to_string()))?;
        let quiet_max = heartbeat * LOOK_HEARTBEATS;
        Ok(Self {
            status: link.status(),
            link,
            generation,
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            subscriber,
            ahead: VecDeque::new(),
            quiet_max,
            quiet: Box::pin(tokio::time::sleep(quiet_max)),
            broken: None,
        })
    }

    /// Waits for the next message.
    ///
    /// # Cancel safety
    /// Safe: a message is either returned or still in its queue.
    pub async fn next(&mut self) -> Result<Message, ReaderBroken> {
        loop {
            if let Some(message) = self.ahead.pop_front() {
                return Ok(message);
            }
            if let Some(why) = &self.broken {
                return Err(ReaderBroken(why.clone()));
            }
            // Marked before the look, so that a change after it wakes.
            self.status.mark_unchanged();
            if !self.link.holds(self.generation) {
                self.leave().await;
                continue;
            }
            tokio::select! {
                biased;
                arrival = self.subscriber.next() => self.admit(arrival),
                _ = self.status.changed() => {}
                () = &mut self.quiet => self.look().await,
            }
        }
    }

    /// Takes what has arrived, without waiting.
    pub fn ready(&mut self) -> Option<Result<Message, ReaderBroken>> {
        self.draw();
        if let Some(message) = self.ahead.pop_front() {
            return Some(Ok(message));
        }
        let broken = self.broken.clone()?;
        Some(Err(ReaderBroken(broken)))
    }

    /// Leaves the group and returns what was on its way, as far as it comes in time.
    pub async fn close(&mut self, patience: Duration) -> Vec<Message> {
        self.draw();
        // Over a connection that is gone nothing more will come.
        if self.link.holds(self.generation) && self.subscriber.drain().await.is_ok() {
            let deadline = Instant::now() + patience;
            while let Ok(Some(message)) = tokio::time::timeout_at(deadline, self.subscriber.next()).await {
                self.admit(Some(message));
            }
        }
        self.broken = Some("closed".to_owned());
        self.ahead.drain(..).collect()
    }

    /// Leaves the group of a connection that is gone. What has arrived is as good as before: each is answered for by
    /// itself. The client would join again for this subscription, and the group's messages would come to nobody.
    async fn leave(&mut self) {
        if let Err(error) = self.subscriber.unsubscribe().await {
            debug!(%error, consumer = self.consumer, "the client has ended");
        }
        self.draw();
        self.broken = Some("connection lost".to_owned());
    }

    fn draw(&mut self) {
        while self.broken.is_none() {
            let Some(arrival) = self.subscriber.next().now_or_never() else {
                return;
            };
            self.admit(arrival);
        }
    }

    fn admit(&mut self, arrival: Option<Message>) {
        self.quiet.as_mut().reset(Instant::now() + self.quiet_max);
        match arrival {
            None => self.broken = Some("subscription ended".to_owned()),
            Some(message) if matches!(message.status, None | Some(StatusCode::OK)) => {
                self.ahead.push_back(message);
            }
            // Signs of life that others have asked for.
            Some(_) => {}
        }
    }

    /// Whether the consumer is still there, and still sends to somebody.
    async fn look(&mut self) {
        self.quiet.as_mut().reset(Instant::now() + self.quiet_max);
        match self.link.consumer_info(&self.stream, &self.consumer).await {
            Ok(info) if info.push_bound => {}
            Ok(_) => self.broken = Some("the consumer sends to nobody".to_owned()),
            Err(ApiError::Failed(failure)) => self.broken = Some(failure.description),
            // Without an answer nothing is known; the next look may have one.
            Err(ApiError::Unavailable(_)) => {}
        }
    }
}
