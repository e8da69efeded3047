//! A member of a durable queue, and the right to answer for what it was given.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use saga_runner::kernel::ids::TimeMs;
use saga_runner::ports::broker::{BrokerError, Message, Queue, QueueMessage, ReaderBroken, Receipt};
use tokio::sync::Notify;

use super::Server;
use crate::process::Process;

pub struct Member {
    pub server: Arc<Server>,
    pub news: Arc<Notify>,
    pub process: Arc<Process>,
    pub stream: String,
    pub durable: String,
    pub created: TimeMs,
    pub connection: u64,
    /// What it was given and nobody has taken here. The broker's wait for answers runs.
    pub ahead: VecDeque<Message>,
    pub room: usize,
    pub is_closed: bool,
    /// Counts the members.
    pub _membership: Arc<()>,
}

impl Member {
    /// Something to do; else when to ask again.
    fn try_take(&mut self) -> Result<Result<Message, Option<Duration>>, ReaderBroken> {
        let server = Arc::clone(&self.server);
        let mut state = server.lock();
        let connection = state.connection + self.process.broken();
        let stream = state.streams.get(&self.stream);
        let is_there = stream.is_some_and(|stream| stream.queues.contains_key(&self.durable));
        if self.is_closed || connection != self.connection || !is_there {
            return Err(ReaderBroken("the member has left the queue".to_owned()));
        }
        if let Some(message) = self.ahead.pop_front() {
            return Ok(Ok(message));
        }
        if self.room == 0 {
            return Ok(Err(None));
        }
        let ahead = state.faults.ahead;
        let most = state.rng.within(1..=1 + ahead).min(self.room as u64);
        let now = server.passed();
        let stream = state.streams.get_mut(&self.stream).expect("it was looked for");
        for _ in 0..most {
            match stream.take(&self.durable, now) {
                Ok(message) => self.ahead.push_back(message),
                Err(wake) => {
                    if self.ahead.is_empty() {
                        return Ok(Err(wake));
                    }
                    break;
                }
            }
        }
        Ok(self.ahead.pop_front().ok_or(None))
    }

    fn hand_over(&mut self, message: Message) -> QueueMessage {
        if self.room != usize::MAX {
            self.room = self.room.saturating_sub(1);
        }
        let receipt = SimReceipt {
            server: Arc::clone(&self.server),
            process: Arc::clone(&self.process),
            stream: self.stream.clone(),
            durable: self.durable.clone(),
            sequence: message.stream_sequence,
            delivered: message.delivered,
        };
        QueueMessage {
            message,
            receipt: Box::new(receipt),
        }
    }
}

#[async_trait]
impl Queue for Member {
    async fn next(&mut self) -> Result<QueueMessage, ReaderBroken> {
        tokio::task::coop::consume_budget().await;
        loop {
            let (server, topic) = (Arc::clone(&self.server), Arc::clone(&self.news));
            let mut news = std::pin::pin!(topic.notified());
            news.as_mut().enable();
            self.process.moves().await;
            match self.try_take()? {
                Ok(message) => {
                    if !self.process.call() {
                        std::future::pending::<()>().await;
                    }
                    return Ok(self.hand_over(message));
                }
                Err(None) => news.await,
                Err(Some(at)) => {
                    let left = at.saturating_sub(server.passed());
                    tokio::select! {
                        biased;
                        () = news => {}
                        () = tokio::time::sleep(left) => {}
                    }
                }
            }
        }
    }

    fn ready(&mut self) -> Option<Result<QueueMessage, ReaderBroken>> {
        if self.process.is_dead() || self.process.stands_still() {
            return None;
        }
        match self.try_take() {
            Ok(Ok(message)) => Some(Ok(self.hand_over(message))),
            Ok(Err(_)) => None,
            Err(broken) => Some(Err(broken)),
        }
    }

    fn make_room(&mut self, room: usize) {
        self.room = room;
    }

    fn created(&self) -> TimeMs {
        self.created
    }

    async fn close(&mut self) {
        self.process.enter().await;
        self.is_closed = true;
        let now = self.server.passed();
        let mut state = self.server.lock();
        let stream = state.streams.get_mut(&self.stream);
        if let Some(queue) = stream.and_then(|stream| stream.queues.get_mut(&self.durable)) {
            for message in self.ahead.drain(..) {
                if let Some(held) = queue.held.get_mut(&message.stream_sequence) {
                    held.due = now;
                }
            }
        }
        drop(state);
        self.news.notify_waiters();
    }
}

struct SimReceipt {
    server: Arc<Server>,
    process: Arc<Process>,
    stream: String,
    durable: String,
    sequence: u64,
    delivered: u64,
}

impl SimReceipt {
    /// Sends an answer. It may be lost on the way, which nobody is told.
    async fn answer(&self, what: &str, until: Option<Duration>) -> Result<(), BrokerError> {
        if self.process.enter().await {
            return Err(BrokerError::Unavailable("the connection is lost".to_owned()));
        }
        let (latency, outcome) = {
            let mut state = self.server.lock();
            if !state.is_up {
                return Err(BrokerError::Unavailable("not connected".to_owned()));
            }
            let (most, lost) = (state.faults.latency_ms, state.faults.receipts_lost);
            let latency = state.rng.millis(0..=most);
            let is_lost = state.rng.chance(lost);
            let stream = state.streams.get_mut(&self.stream);
            let queue = stream.and_then(|stream| stream.queues.get_mut(&self.durable));
            let held = queue.map(|queue| &mut queue.held);
            let outcome = match (held, until) {
                _ if is_lost => Ok(()),
                (None, _) => Err(BrokerError::Unavailable("the queue is gone".to_owned())),
                (Some(held), None) => {
                    held.remove(&self.sequence);
                    Ok(())
                }
                (Some(held), Some(due)) => match held.get_mut(&self.sequence) {
                    Some(held) if held.delivered == self.delivered => {
                        held.due = due;
                        Ok(())
                    }
                    _ => Err(BrokerError::Refused(
                        "the message was delivered again or is answered for".to_owned(),
                    )),
                },
            };
            (latency, outcome)
        };
        let sequence = self.sequence;
        self.server
            .world
            .note(format_args!("{what} {sequence} of {}", self.durable));
        self.server.news.of_queue(&self.stream, &self.durable);
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        outcome
    }
}

#[async_trait]
impl Receipt for SimReceipt {
    async fn ack(&self) -> Result<(), BrokerError> {
        self.answer("ack", None).await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BrokerError> {
        self.answer("nak", Some(self.server.passed() + delay)).await
    }

    async fn progress(&self) -> Result<(), BrokerError> {
        let ack_wait = {
            let state = self.server.lock();
            let stream = state.streams.get(&self.stream);
            let queue = stream.and_then(|stream| stream.queues.get(&self.durable));
            queue.map_or(Duration::ZERO, |queue| queue.ack_wait)
        };
        self.answer("progress", Some(self.server.passed() + ack_wait))
            .await
    }

    async fn term(&self) -> Result<(), BrokerError> {
        self.answer("term", None).await
    }
}
