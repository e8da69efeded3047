//! A contiguous view of a stream, for one owner.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};

use async_trait::async_trait;
use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::ports::broker::{BrokerError, Horizon, Message, Reader, ReaderBroken, ReaderSpec};

use super::env::Env;
use super::feed::{Feed, Reach};
use super::filter::Filter;
use super::record::Entry;
use super::stream::{Page, Stream};
use super::trust::Trust;

/// Messages that a reader holds at most, whatever its owner asks for.
const BUFFER_MAX: usize = 16_384;
/// Pages that one question for the horizon may read.
const HORIZON_PAGES_MAX: usize = 4;

pub(super) struct InprocReader {
    feed: Feed,
    env: Weak<Env>,
    runtime: Handle,
    news: watch::Receiver<u64>,
    name: String,
    buffer: VecDeque<Entry>,
    buffer_max: usize,
    /// A page on its way. It stays here when a future is dropped, so that nothing is lost.
    page: Option<JoinHandle<Result<Page, ReaderBroken>>>,
    /// Stream sequence of the newest message taken, and how many were.
    taken: u64,
    consumer_sequence: u64,
    trust: Trust,
}

impl InprocReader {
    pub fn open(stream: Arc<Stream>, env: Weak<Env>, spec: ReaderSpec) -> Result<Self, BrokerError> {
        let filters = spec
            .filters
            .iter()
            .map(|filter| Filter::parse(filter))
            .collect::<Result<Vec<_>, _>>()
            .map_err(BrokerError::Refused)?;
        if filters.is_empty() {
            return Err(BrokerError::Refused(
                "a reader needs at least one filter".to_owned(),
            ));
        }
        {
            let mut readers = stream.readers.lock().unwrap_or_else(PoisonError::into_inner);
            if !readers.insert(spec.name.clone()) {
                return Err(BrokerError::Refused(format!(
                    "reader {} is open already",
                    spec.name
                )));
            }
        }
        Ok(Self {
            env,
            runtime: Handle::current(),
            news: stream.news(),
            feed: Feed::from_what_is_there(stream, filters, spec.start_sequence),
            name: spec.name,
            buffer: VecDeque::new(),
            buffer_max: spec.buffer.clamp(1, BUFFER_MAX),
            page: None,
            taken: 0,
            consumer_sequence: 0,
            trust: Trust::default(),
        })
    }

    /// Walks on as far as the buffer has room, without waiting.
    fn advance(&mut self) -> Result<Reach, ReaderBroken> {
        if self.page.is_some() {
            return Ok(Reach::Store);
        }
        let room = self.buffer_max.saturating_sub(self.buffer.len());
        let reach = self.feed.advance(&mut self.buffer, room);
        self.check_nothing_removed()?;
        match reach {
            Ok(Reach::Store) => {
                let fetch = self.feed.fetch(room);
                let env = Weak::clone(&self.env);
                self.page = Some(self.runtime.spawn_blocking(move || fetch.run(&env)));
                Ok(Reach::Store)
            }
            reach => reach,
        }
    }

    fn page_came(
        &mut self,
        page: Result<Result<Page, ReaderBroken>, tokio::task::JoinError>,
    ) -> Result<(), ReaderBroken> {
        self.page = None;
        let page = page.map_err(|error| ReaderBroken(format!("reading the store: {error}")))??;
        self.feed.fetched(page, &mut self.buffer);
        self.check_nothing_removed()
    }

    /// Going on would skip messages.
    fn check_nothing_removed(&self) -> Result<(), ReaderBroken> {
        match self.feed.removed() {
            None => Ok(()),
            Some((from, to)) => Err(ReaderBroken(format!(
                "messages {from} to {to} were removed before they were read"
            ))),
        }
    }

    fn hand_over(&mut self, entry: &Entry) -> Result<Message, ReaderBroken> {
        let stored = entry.message().map_err(|error| ReaderBroken(error.to_string()))?;
        self.taken = entry.sequence;
        self.consumer_sequence += 1;
        Ok(Message {
            subject: stored.subject,
            headers: stored.headers,
            payload: stored.payload,
            stream_sequence: entry.sequence,
            consumer_sequence: self.consumer_sequence,
            delivered: 1,
            pending: self.buffer.len() as u64 + self.feed.behind(),
            time: stored.time,
        })
    }

    async fn try_next(&mut self) -> Result<Message, ReaderBroken> {
        loop {
            if let Some(entry) = self.buffer.pop_front() {
                return self.hand_over(&entry);
            }
            // Marked as seen before the look, so that no news can fall between the look and the wait.
            self.news.mark_unchanged();
            match self.advance()? {
                _ if !self.buffer.is_empty() => {}
                Reach::End(_) | Reach::Full => {
                    if self.news.changed().await.is_err() {
                        return Err(ReaderBroken("the stream is gone".to_owned()));
                    }
                }
                Reach::Store => {
                    if let Some(page) = &mut self.page {
                        let page = page.await;
                        self.page_came(page)?;
                    }
                }
            }
        }
    }

    fn try_ready(&mut self) -> Result<Option<Message>, ReaderBroken> {
        if self.buffer.is_empty() {
            self.advance()?;
            if let Some(page) = self.page.as_mut().and_then(FutureExt::now_or_never) {
                self.page_came(page)?;
            }
        }
        match self.buffer.pop_front() {
            Some(entry) => self.hand_over(&entry).map(Some),
            None => Ok(None),
        }
    }

    /// Walks on to the end, or at least beyond `covered`; the last matching message up to there, and where it came to.
    async fn try_horizon(&mut self, covered: Option<u64>) -> Result<Option<Horizon>, ReaderBroken> {
        for _ in 0..HORIZON_PAGES_MAX {
            let reach = self.advance()?;
            let reached = match (reach, covered) {
                (Reach::End(last), _) => Some(last),
                (_, Some(covered)) if self.feed.position() > covered => Some(covered),
                _ => None,
            };
            if let Some(covered) = reached {
                let after = self.buffer.back().map_or(self.taken, |entry| entry.sequence);
                return Ok(Some(Horizon { after, covered }));
            }
            if let Reach::Full = reach {
                return Ok(None);
            }
            if let Some(page) = &mut self.page {
                let page = page.await;
                self.page_came(page)?;
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl Reader for InprocReader {
    async fn next(&mut self) -> Result<Message, ReaderBroken> {
        self.trust.check()?;
        tokio::task::coop::consume_budget().await;
        let result = self.try_next().await;
        self.trust.keep(result)
    }

    fn ready(&mut self) -> Option<Result<Message, ReaderBroken>> {
        if let Err(broken) = self.trust.check() {
            return Some(Err(broken));
        }
        let result = self.try_ready();
        self.trust.keep(result).transpose()
    }

    /// The walk has seen every message up to the stream's last sequence, under the lock that guards both, and
    /// the matching ones are in the buffer or taken.
    async fn horizon(&mut self) -> Result<Option<Horizon>, ReaderBroken> {
        self.trust.check()?;
        // Whoever asks again and again has to let others run.
        tokio::task::coop::consume_budget().await;
        let result = self.try_horizon(None).await;
        self.trust.keep(result)
    }

    async fn silent_up_to(&mut self, covered: u64) -> Result<Option<u64>, ReaderBroken> {
        self.trust.check()?;
        tokio::task::coop::consume_budget().await;
        let result = self.try_horizon(Some(covered)).await;
        let horizon = self.trust.keep(result)?;
        Ok(horizon
            .filter(|horizon| horizon.covered >= covered)
            .map(|horizon| horizon.after))
    }
}

impl Drop for InprocReader {
    fn drop(&mut self) {
        let stream = self.feed.stream();
        let mut readers = stream.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.remove(&self.name);
    }
}
