//! A steady pull from one consumer: asks ahead, counts what it asked for, watches for heartbeats.
//!
//! Written on plain requests instead of the client's own stream, because that one carries on after a
//! reconnect as if nothing had been lost. This one ends with the connection that it began on.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use crate::ports::broker::{BrokerError, ReaderBroken};

use super::api::{PREFIX, nanos};
use super::link::{Link, Status};

/// Heartbeats that may stay out.
const HEARTBEATS_MISSED_MAX: u32 = 2;
/// Lifetime of a request for messages, in heartbeats. The server wants at least two.
const REQUEST_HEARTBEATS: u32 = 6;
/// Due as soon as the search is over, and a few times more until the request runs out.
const INQUIRY_HEARTBEAT: Duration = Duration::from_nanos(1);
const INQUIRY_EXPIRES: Duration = Duration::from_millis(5);
/// Far below what the client keeps for a subscription (65,536) before it drops messages.
pub(super) const BUFFER_MAX: usize = 16_384;

/// What a lost connection makes of the messages that have already arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrived {
    /// Worthless: others may be missing among them, and all will be read again.
    Discard,
    /// As good as before: each is answered for by itself.
    Use,
}

/// State of the consumer when it sent a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Searched {
    /// Number of messages delivered.
    pub delivered: u64,
    /// Sequence up to which the stream was searched.
    pub stream_sequence: u64,
}

impl Searched {
    fn read(heartbeat: &Message) -> Option<Self> {
        let headers = heartbeat.headers.as_ref()?;
        let number = |name| headers.get_last(name)?.as_str().parse().ok();
        Some(Self {
            delivered: number("Nats-Last-Consumer")?,
            stream_sequence: number("Nats-Last-Stream")?,
        })
    }
}

pub(super) struct Pull {
    link: Arc<Link>,
    status: watch::Receiver<Status>,
    generation: u64,
    arrived: Arrived,
    subscriber: Subscriber,
    inbox: Subject,
    request_subject: Subject,
    /// Messages drawn from the subscription and not yet taken.
    ahead: VecDeque<Message>,
    buffer: usize,
    /// Messages that may be taken from now on; no more are asked for.
    room: usize,
    /// Messages asked for and not yet taken, on the server, on the wire or here.
    open: usize,
    searched: Searched,
    heartbeat: Duration,
    silence: Pin<Box<Sleep>>,
    broken: Option<String>,
}

impl Pull {
    /// Subscribes to a fresh inbox; the first request goes out with the first look for a message.
    pub async fn open(
        link: Arc<Link>,
        (stream, consumer): (&str, &str),
        buffer: usize,
        heartbeat: Duration,
        arrived: Arrived,
    ) -> Result<Self, BrokerError> {
        let generation = link.generation().map_err(BrokerError::Unavailable)?;
        let inbox = Subject::from(link.client.new_inbox());
        let subscriber = link
            .client
            .subscribe(inbox.clone())
            .await
            .map_err(|error| BrokerError::Unavailable(error.to_string()))?;
        let mut pull = Self {
            status: link.status(),
            link,
            generation,
            arrived,
            subscriber,
            inbox,
            request_subject: format!("{PREFIX}.CONSUMER.MSG.NEXT.{stream}.{consumer}").into(),
            ahead: VecDeque::new(),
            buffer: buffer.clamp(1, BUFFER_MAX),
            room: BUFFER_MAX,
            open: 0,
            searched: Searched::default(),
            heartbeat,
            silence: Box::pin(tokio::time::sleep(Duration::ZERO)),
            broken: None,
        };
        pull.ask()
            .await
            .map_err(|broken| BrokerError::Unavailable(broken.0))?;
        Ok(pull)
    }

    /// Waits for the next message.
    ///
    /// # Cancel safety
    /// Safe: a message is either returned or still in its queue, and a request is counted when it is sent.
    pub async fn next(&mut self) -> Result<Message, ReaderBroken> {
        loop {
            // Before a message is taken, since whoever drops this future while it waits must not lose one.
            self.ask().await?;
            if let Some(message) = self.take_ahead()? {
                return Ok(message);
            }
            // Marked before the look, so that a change after it wakes.
            self.status.mark_unchanged();
            if !self.link.holds(self.generation) {
                self.drain();
                if self.ahead.is_empty() {
                    return Err(self.fail("connection lost"));
                }
                continue;
            }
            let arrival = tokio::select! {
                biased;
                arrival = self.subscriber.next() => arrival,
                _ = self.status.changed() => continue,
                // Who asks for nothing hears nothing.
                () = &mut self.silence, if self.open > 0 => {
                    let limit = self.silence_max();
                    return Err(self.fail(format!("no sign of life from the broker for {limit:?}")));
                }
            };
            self.admit(arrival)?;
        }
    }

    pub fn make_room(&mut self, room: usize) {
        self.room = room;
    }

    /// Takes what has arrived, without waiting.
    pub fn ready(&mut self) -> Option<Result<Message, ReaderBroken>> {
        // Not to send a request now, because the client's queue is full, only puts it off.
        if let Some(Err(broken)) = self.ask().now_or_never() {
            return Some(Err(broken));
        }
        loop {
            match self.take_ahead() {
                Ok(Some(message)) => return Some(Ok(message)),
                Ok(None) => {}
                Err(broken) => return Some(Err(broken)),
            }
            let arrival = self.subscriber.next().now_or_never()?;
            if let Err(broken) = self.admit(arrival) {
                return Some(Err(broken));
            }
        }
    }

    /// Moves all that has arrived to [`Self::ahead`].
    pub fn drain(&mut self) {
        while self.broken.is_none() {
            let Some(arrival) = self.subscriber.next().now_or_never() else {
                return;
            };
            // A failure is kept and reported once the messages before it are taken.
            let _ = self.admit(arrival);
        }
    }

    /// What has arrived and was not taken, oldest first.
    pub fn ahead(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.ahead.iter()
    }

    pub fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// What the newest heartbeat told.
    pub fn searched(&self) -> Searched {
        self.searched
    }

    /// Whether the buffer is full of messages that wait to be taken.
    pub fn is_full(&self) -> bool {
        self.ahead.len() >= self.buffer
    }

    /// Makes the server search the stream at once, as any request for messages does, and tell with heartbeats
    /// how far it came.
    pub async fn inquire(&mut self) -> Result<(), ReaderBroken> {
        self.request(1, INQUIRY_HEARTBEAT, INQUIRY_EXPIRES).await
    }

    /// Waits until something has arrived; false where nothing has until `deadline`.
    pub async fn arrival(&mut self, deadline: Instant) -> Result<bool, ReaderBroken> {
        match tokio::time::timeout_at(deadline, self.subscriber.next()).await {
            Ok(arrival) => self.admit(arrival).map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Stops the deliveries and returns those that were on their way, as far as they come in time.
    pub async fn close(&mut self, patience: Duration) -> Vec<Message> {
        let mut left: Vec<Message> = Vec::new();
        self.drain();
        // Over a connection that is gone nothing more will come.
        if self.link.holds(self.generation) && self.subscriber.drain().await.is_ok() {
            let deadline = Instant::now() + patience;
            while let Ok(Some(message)) = tokio::time::timeout_at(deadline, self.subscriber.next()).await {
                // A failure of the pull does not matter to its end.
                let _ = self.admit(Some(message));
            }
        }
        left.extend(self.ahead.drain(..));
        self.broken = Some("closed".to_owned());
        left
    }

    fn take_ahead(&mut self) -> Result<Option<Message>, ReaderBroken> {
        if self.arrived == Arrived::Discard && self.broken.is_none() && !self.link.holds(self.generation) {
            self.ahead.clear();
            return Err(self.fail("connection lost"));
        }
        if let Some(message) = self.ahead.pop_front() {
            self.open = self.open.saturating_sub(1);
            return Ok(Some(message));
        }
        match &self.broken {
            Some(why) => Err(ReaderBroken(why.clone())),
            None => Ok(None),
        }
    }

    /// Sorts an arrival: a message goes to `ahead`, a status is acted upon.
    fn admit(&mut self, arrival: Option<Message>) -> Result<(), ReaderBroken> {
        let Some(message) = arrival else {
            return Err(self.fail("subscription ended"));
        };
        self.rest();
        match message.status {
            None | Some(StatusCode::OK) => self.ahead.push_back(message),
            Some(StatusCode::IDLE_HEARTBEAT) => {
                self.searched = Searched::read(&message).unwrap_or(self.searched);
            }
            Some(StatusCode::TIMEOUT) => {
                // A request ran out; what it did not bring may be asked for again.
                let unused = message
                    .headers
                    .as_ref()
                    .and_then(|headers| headers.get_last("Nats-Pending-Messages"))
                    .and_then(|count| count.as_str().parse::<usize>().ok());
                match unused {
                    Some(unused) => self.open = self.open.saturating_sub(unused),
                    None => return Err(self.fail("request refused for want of time")),
                }
            }
            Some(StatusCode::NO_RESPONDERS) => {
                return Err(self.fail("the consumer does not answer; it is gone or has no leader"));
            }
            Some(status) => {
                let text = message.description.as_deref().unwrap_or_default();
                return Err(self.fail(format!("{status} {text}")));
            }
        }
        Ok(())
    }

    /// Asks for more once half of what there is room for is used up.
    async fn ask(&mut self) -> Result<(), ReaderBroken> {
        let wanted = self.room.min(self.buffer);
        if self.open > wanted / 2 || self.open >= wanted || self.broken.is_some() {
            return Ok(());
        }
        if !self.link.holds(self.generation) {
            // Found again, with the right consequences, by whoever looks for a message next.
            return Ok(());
        }
        if self.open == 0 {
            // Nothing was asked for, so nothing was to be heard.
            self.rest();
        }
        let batch = wanted - self.open;
        self.request(batch, self.heartbeat, self.heartbeat * REQUEST_HEARTBEATS)
            .await
    }

    async fn request(
        &mut self,
        batch: usize,
        heartbeat: Duration,
        expires: Duration,
    ) -> Result<(), ReaderBroken> {
        let mut body = String::with_capacity(96);
        write!(
            body,
            r#"{{"batch":{batch},"expires":{},"idle_heartbeat":{}}}"#,
            nanos(expires),
            nanos(heartbeat)
        )
        .expect("writing to a string cannot fail");
        let sent = self
            .link
            .client
            .publish_with_reply(
                self.request_subject.clone(),
                self.inbox.clone(),
                Bytes::from(body),
            )
            .await;
        match sent {
            Ok(()) => {
                self.open += batch;
                Ok(())
            }
            Err(error) => Err(self.fail(error.to_string())),
        }
    }

    fn rest(&mut self) {
        let deadline = Instant::now() + self.silence_max();
        self.silence.as_mut().reset(deadline);
    }

    fn silence_max(&self) -> Duration {
        // A little more than the heartbeats take, for a busy machine.
        self.heartbeat * HEARTBEATS_MISSED_MAX + self.heartbeat / 4
    }

    fn fail(&mut self, why: impl Into<String>) -> ReaderBroken {
        let why = self.broken.get_or_insert_with(|| why.into());
        ReaderBroken(why.clone())
    }
}
