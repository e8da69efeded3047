//! A reader of a stream: what it has not handed over yet is on its way, and may be dropped there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use saga_runner::ports::broker::{Horizon, Message, Reader, ReaderBroken};
use tokio::sync::Notify;

use crate::process::Process;

use super::stream::{Found, delivered};
use super::{Server, State};

pub struct SimReader {
    pub server: Arc<Server>,
    pub news: Arc<Notify>,
    pub process: Arc<Process>,
    pub stream: String,
    pub created_ns: i64,
    pub connection: u64,
    pub dropped: u64,
    pub filters: Vec<String>,
    pub next: u64,
    pub buffer: VecDeque<Message>,
    pub buffer_max: usize,
    pub consumer_sequence: u64,
    /// Stream sequence of the newest message that was sent.
    pub sent: u64,
    pub broken: Option<ReaderBroken>,
}

impl SimReader {
    /// Brings what has arrived into the buffer; when to look again where that is known.
    fn fill(&mut self) -> Result<Option<Duration>, ReaderBroken> {
        let server = Arc::clone(&self.server);
        let now = server.passed();
        let state = server.lock();
        let filled = self.fill_from(&state, now);
        if let Err(broken) = &filled {
            self.broken = Some(broken.clone());
        }
        filled
    }

    fn fill_from(&mut self, state: &State, now: Duration) -> Result<Option<Duration>, ReaderBroken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        if state.connection + self.process.broken() != self.connection {
            return Err(ReaderBroken("the connection is lost".to_owned()));
        }
        let stream = state.streams.get(&self.stream);
        let Some(stream) = stream.filter(|stream| stream.identity.created_ns == self.created_ns) else {
            return Err(ReaderBroken("the stream is gone".to_owned()));
        };
        if state.dropped != self.dropped {
            self.dropped = state.dropped;
            self.buffer.clear();
        }
        while self.buffer.len() < self.buffer_max {
            match stream.next_match(self.next, &self.filters, now) {
                Found::Here(sequence, stored) => {
                    self.next = sequence + 1;
                    self.sent = sequence;
                    self.consumer_sequence += 1;
                    self.buffer
                        .push_back(delivered(stored, self.consumer_sequence, 1, 0));
                }
                Found::At(at) => return Ok(Some(at)),
                Found::Nothing => {
                    // Nothing up to here matches, and nobody looks at it again.
                    self.next = self.next.max(stream.last + 1);
                    break;
                }
            }
        }
        Ok(None)
    }

    fn take(&mut self) -> Option<Message> {
        let mut message = self.buffer.pop_front()?;
        let state = self.server.lock();
        let behind = state
            .streams
            .get(&self.stream)
            .map_or(0, |stream| stream.matching_from(self.next, &self.filters));
        message.pending = self.buffer.len() as u64 + behind;
        Some(message)
    }

    /// How far everything that matches was sent.
    fn silence(&mut self) -> Result<Option<Horizon>, ReaderBroken> {
        self.fill()?;
        let state = self.server.lock();
        let Some(stream) = state.streams.get(&self.stream) else {
            return Err(ReaderBroken("the stream is gone".to_owned()));
        };
        // Something is on its way.
        if self.next <= stream.last && stream.has_match(self.next..=stream.last, &self.filters) {
            return Ok(None);
        }
        Ok(Some(Horizon {
            after: self.sent,
            covered: stream.last,
        }))
    }

    async fn horizon_delay(&self) {
        let delay = {
            let mut state = self.server.lock();
            let most = state.faults.horizon_ms;
            state.rng.millis(0..=most)
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

#[async_trait]
impl Reader for SimReader {
    async fn next(&mut self) -> Result<Message, ReaderBroken> {
        // Whoever asks again and again has to let others run.
        tokio::task::coop::consume_budget().await;
        loop {
            let (server, topic) = (Arc::clone(&self.server), Arc::clone(&self.news));
            let mut news = std::pin::pin!(topic.notified());
            news.as_mut().enable();
            self.process.moves().await;
            let wake = self.fill()?;
            if let Some(message) = self.take() {
                if !self.process.call() {
                    std::future::pending::<()>().await;
                }
                return Ok(message);
            }
            match wake {
                None => news.await,
                Some(at) => {
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

    fn ready(&mut self) -> Option<Result<Message, ReaderBroken>> {
        if self.process.is_dead() || self.process.stands_still() {
            return None;
        }
        match self.fill() {
            Err(broken) => Some(Err(broken)),
            Ok(_) => self.take().map(Ok),
        }
    }

    async fn horizon(&mut self) -> Result<Option<Horizon>, ReaderBroken> {
        tokio::task::coop::consume_budget().await;
        self.process.enter().await;
        self.horizon_delay().await;
        self.silence()
    }

    async fn silent_up_to(&mut self, covered: u64) -> Result<Option<u64>, ReaderBroken> {
        tokio::task::coop::consume_budget().await;
        self.process.enter().await;
        self.horizon_delay().await;
        self.fill()?;
        let state = self.server.lock();
        let Some(stream) = state.streams.get(&self.stream) else {
            return Err(ReaderBroken("the stream is gone".to_owned()));
        };
        let is_open = self.next <= covered && stream.has_match(self.next..=covered, &self.filters);
        Ok((!is_open && stream.last >= covered).then_some(self.sent))
    }
}
