//! A broker in memory whose readers fail on command.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::kernel::ids::TimeMs;
use crate::ports::broker::{
    Broker, BrokerError, Horizon, Message, Publication, PublishAck, PublishError, Queue, QueueSpec,
    QueueState, Reader, ReaderBroken, ReaderSpec, StoredMessage, StreamIdentity, StreamSpec, StreamState,
};
use crate::shard::mailbox::Stamp;

/// What happens once, to the reader that first reaches a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The message is lost with its connection, without an error.
    Lost,
    Redelivered,
    Broken,
}

#[derive(Default)]
struct Streams {
    messages: BTreeMap<String, Vec<StoredMessage>>,
    first: BTreeMap<String, u64>,
    created: BTreeMap<String, i64>,
    faults: BTreeMap<u64, Fault>,
    opened: BTreeMap<String, Vec<ReaderSpec>>,
    removed: BTreeSet<u64>,
    /// How often a stream lost its newest messages.
    losses: i64,
    /// Readers get nothing.
    paused: bool,
    /// Questions about the stream of events are not answered.
    mute: bool,
    away: bool,
    connections: u64,
    /// What is dropped when a reader is asked next how far nothing comes: all before this.
    drops: Option<u64>,
    /// How often a reader was asked for the end of the stream although it had messages.
    in_the_way: usize,
}

#[derive(Clone)]
pub(super) struct Scripted {
    streams: Arc<Mutex<Streams>>,
    grown: watch::Sender<()>,
    start: Instant,
}

impl Scripted {
    pub fn new() -> Self {
        Self {
            streams: Arc::default(),
            grown: watch::Sender::new(()),
            start: Instant::now(),
        }
    }

    /// By the broker's clock.
    pub fn time(&self) -> TimeMs {
        TimeMs(1_000_000 + i64::try_from(self.passed().as_millis()).expect("short"))
    }

    pub fn passed(&self) -> Duration {
        self.start.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn store(&self, stream: &str, subject: &str, payload: impl Into<Bytes>) -> u64 {
        let mut streams = self.lock();
        let later = streams.losses * 1_000_000;
        let messages = streams.messages.entry(stream.to_owned()).or_default();
        let sequence = messages.len() as u64 + 1;
        messages.push(StoredMessage {
            subject: subject.to_owned(),
            headers: Vec::new(),
            payload: payload.into(),
            sequence,
            time: TimeMs(i64::try_from(sequence).expect("small") + later),
        });
        drop(streams);
        self.grown.send_replace(());
        sequence
    }

    pub fn fault(&self, sequence: u64, fault: Fault) {
        self.lock().faults.insert(sequence, fault);
    }

    pub fn forget_before(&self, stream: &str, sequence: u64) {
        self.lock().first.insert(stream.to_owned(), sequence);
    }

    /// Forgets what lies before `sequence` of the events, once a reader is asked how far nothing comes.
    pub fn forget_when_asked(&self, sequence: u64) {
        self.lock().drops = Some(sequence);
    }

    /// Loses the newest messages, all behind `sequence`.
    pub fn forget_behind(&self, stream: &str, sequence: usize) {
        let mut streams = self.lock();
        streams.losses += 1;
        streams
            .messages
            .entry(stream.to_owned())
            .or_default()
            .truncate(sequence);
    }

    /// Has another payload in the place of one that was stored.
    pub fn replace(&self, stream: &str, sequence: usize, payload: &'static str) {
        let mut streams = self.lock();
        let messages = streams.messages.entry(stream.to_owned()).or_default();
        messages[sequence - 1].payload = Bytes::from_static(payload.as_bytes());
    }

    pub fn stamp(&self, stream: &str, sequence: usize) -> Stamp {
        crate::intake::stamp_of(&self.lock().messages[stream][sequence - 1])
    }

    /// Removes one message of the events.
    pub fn remove(&self, sequence: u64) {
        self.lock().removed.insert(sequence);
    }

    pub fn pause(&self, paused: bool) {
        self.lock().paused = paused;
        self.grown.send_replace(());
    }

    pub fn mute(&self, mute: bool) {
        self.lock().mute = mute;
        self.grown.send_replace(());
    }

    /// Loses the connection, with it all readers, or has a new one.
    pub fn away(&self, away: bool) {
        let mut streams = self.lock();
        streams.away = away;
        streams.connections += u64::from(!away);
        drop(streams);
        self.grown.send_replace(());
    }

    pub fn in_the_way(&self) -> usize {
        self.lock().in_the_way
    }

    pub fn recreate(&self, stream: &str) {
        let mut streams = self.lock();
        *streams.created.entry(stream.to_owned()).or_default() += 1;
        streams.messages.remove(stream);
    }

    pub fn opened(&self, stream: &str) -> Vec<ReaderSpec> {
        self.lock().opened.get(stream).cloned().unwrap_or_default()
    }
}

#[async_trait]
impl Broker for Scripted {
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BrokerError> {
        self.stream_state(&spec.name).await
    }

    async fn check_stream(&self, _: &StreamSpec) -> Result<Vec<String>, BrokerError> {
        Ok(Vec::new())
    }

    async fn stream_state(&self, stream: &str) -> Result<StreamState, BrokerError> {
        let mut grown = self.grown.subscribe();
        while self.lock().mute && stream == super::world::STREAMS[0] {
            grown.changed().await.expect("the broker lives");
        }
        let streams = self.lock();
        if streams.away {
            return Err(BrokerError::Unavailable("not connected".to_owned()));
        }
        let stored = streams.messages.get(stream).map_or(&[][..], Vec::as_slice);
        let messages = stored.len() as u64;
        let first = streams.first.get(stream).copied().unwrap_or(1);
        let removed = if stream == super::world::STREAMS[0] {
            streams.removed.range(first..).count() as u64
        } else {
            0
        };
        Ok(StreamState {
            identity: StreamIdentity {
                name: stream.to_owned(),
                created_ns: streams.created.get(stream).copied().unwrap_or(0),
            },
            first_sequence: first,
            last_sequence: messages,
            last_time: stored.last().map(|message| message.time),
            messages: (messages + 1).saturating_sub(first + removed),
            bytes: 0,
            told: self.time(),
        })
    }

    async fn removed(&self, _: &str) -> Result<Vec<u64>, BrokerError> {
        Ok(self.lock().removed.iter().copied().collect())
    }

    fn next_connection(&self) -> BoxFuture<'static, ()> {
        let (broker, mut grown) = (self.clone(), self.grown.subscribe());
        let before = self.lock().connections;
        Box::pin(async move {
            while broker.lock().connections == before {
                grown.changed().await.expect("the broker lives");
            }
        })
    }

    async fn publish(&self, _: Publication) -> Result<PublishAck, PublishError> {
        Err(PublishError::Refused("not scripted".to_owned()))
    }

    async fn reader(&self, spec: ReaderSpec) -> Result<Box<dyn Reader>, BrokerError> {
        let mut streams = self.lock();
        if streams.away {
            return Err(BrokerError::Unavailable("not connected".to_owned()));
        }
        let opened = streams.opened.entry(spec.stream.clone()).or_default();
        opened.push(spec.clone());
        Ok(Box::new(ScriptedReader {
            broker: self.clone(),
            grown: self.grown.subscribe(),
            next: spec.start_sequence,
            spec,
            delivered: 0,
            broken: false,
        }))
    }

    async fn queue(&self, _: QueueSpec) -> Result<Box<dyn Queue>, BrokerError> {
        Err(BrokerError::Refused("not scripted".to_owned()))
    }

    async fn last_by_subject(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, BrokerError> {
        let streams = self.lock();
        let messages = streams.messages.get(stream).map_or(&[][..], Vec::as_slice);
        Ok(messages
            .iter()
            .rev()
            .find(|message| message.subject == subject)
            .cloned())
    }

    async fn message_at(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError> {
        let streams = self.lock();
        if streams.away {
            return Err(BrokerError::Unavailable("not connected".to_owned()));
        }
        let first = streams.first.get(stream).copied().unwrap_or(1);
        let stored = streams.messages.get(stream).map_or(&[][..], Vec::as_slice);
        let is_removed = stream == super::world::STREAMS[0] && streams.removed.contains(&sequence);
        let found = stored.iter().find(|message| message.sequence == sequence);
        Ok(found.filter(|_| sequence >= first && !is_removed).cloned())
    }

    async fn trim(&self, _: &str, _: u64) -> Result<(), BrokerError> {
        Err(BrokerError::Refused("not scripted".to_owned()))
    }

    async fn queue_floor(&self, _: &str, _: &str) -> Result<Option<u64>, BrokerError> {
        Err(BrokerError::Refused("not scripted".to_owned()))
    }

    async fn check_queue(&self, _: &QueueSpec) -> Result<Vec<String>, BrokerError> {
        Ok(Vec::new())
    }

    async fn queue_state(&self, _: &str, _: &str) -> Result<Option<QueueState>, BrokerError> {
        Ok(None)
    }

    async fn ping(&self) -> Result<Duration, BrokerError> {
        Ok(Duration::ZERO)
    }

    async fn flush(&self) -> Result<(), BrokerError> {
        Ok(())
    }
}

struct ScriptedReader {
    broker: Scripted,
    grown: watch::Receiver<()>,
    spec: ReaderSpec,
    next: u64,
    delivered: u64,
    broken: bool,
}

impl ScriptedReader {
    fn matches(&self, subject: &str) -> bool {
        self.spec.filters.iter().any(|filter| {
            let mut tokens = subject.split('.');
            for wanted in filter.split('.') {
                match (wanted, tokens.next()) {
                    (">", Some(_)) => return true,
                    ("*", Some(_)) => {}
                    (wanted, Some(token)) if wanted == token => {}
                    _ => return false,
                }
            }
            tokens.next().is_none()
        })
    }

    fn take(&mut self) -> Option<Result<Message, ReaderBroken>> {
        loop {
            if self.broken {
                return Some(Err(ReaderBroken("scripted".to_owned())));
            }
            let mut streams = self.broker.lock();
            if streams.away {
                self.broken = true;
                continue;
            }
            if streams.paused {
                return None;
            }
            let first = streams.first.get(&self.spec.stream).copied().unwrap_or(1);
            let (removed, is_events) = (&streams.removed, self.spec.stream == super::world::STREAMS[0]);
            let messages = streams.messages.get(&self.spec.stream)?;
            let behind = |from: u64| {
                let kept = messages
                    .iter()
                    .filter(move |message| message.sequence >= from.max(first));
                kept.filter(move |message| !is_events || !removed.contains(&message.sequence))
            };
            let found = behind(self.next)
                .find(|message| self.matches(&message.subject))?
                .clone();
            let pending = behind(found.sequence + 1)
                .filter(|message| self.matches(&message.subject))
                .count();
            let fault = streams.faults.remove(&found.sequence);
            drop(streams);
            self.next = found.sequence + 1;
            self.delivered += 1;
            match fault {
                Some(Fault::Lost) => continue,
                Some(Fault::Broken) => {
                    self.broken = true;
                    continue;
                }
                Some(Fault::Redelivered) | None => {}
            }
            return Some(Ok(Message {
                subject: found.subject,
                headers: found.headers,
                payload: found.payload,
                stream_sequence: found.sequence,
                consumer_sequence: self.delivered,
                delivered: if fault.is_some() { 2 } else { 1 },
                pending: pending as u64,
                time: found.time,
            }));
        }
    }
}

#[async_trait]
impl Reader for ScriptedReader {
    async fn next(&mut self) -> Result<Message, ReaderBroken> {
        loop {
            self.grown.borrow_and_update();
            if let Some(taken) = self.take() {
                return taken;
            }
            if self.grown.changed().await.is_err() {
                return Err(ReaderBroken("the broker is gone".to_owned()));
            }
        }
    }

    fn ready(&mut self) -> Option<Result<Message, ReaderBroken>> {
        self.take()
    }

    async fn horizon(&mut self) -> Result<Option<Horizon>, ReaderBroken> {
        let covered = self.broker.stream_state(&self.spec.stream).await;
        let covered = covered.expect("it answers").last_sequence;
        let after = self.silent_up_to(covered).await?;
        Ok(after.map(|after| Horizon { after, covered }))
    }

    /// As a real broker may, it names a message that was not taken yet.
    async fn silent_up_to(&mut self, _: u64) -> Result<Option<u64>, ReaderBroken> {
        let mut streams = self.broker.lock();
        if self.spec.stream == super::world::STREAMS[0]
            && let Some(sequence) = streams.drops.take()
        {
            streams.first.insert(self.spec.stream.clone(), sequence);
        }
        let first = streams.first.get(&self.spec.stream).copied().unwrap_or(1);
        let has_more = streams.messages.get(&self.spec.stream).is_some_and(|messages| {
            let next = self.next.max(first);
            let mut ahead = messages.iter().filter(|message| message.sequence >= next);
            ahead.any(|message| self.matches(&message.subject))
        });
        streams.in_the_way += usize::from(has_more && !streams.paused);
        let Some(messages) = streams.messages.get(&self.spec.stream) else {
            return Ok(Some(0));
        };
        let matching = messages.iter().filter(|message| self.matches(&message.subject));
        let after = matching
            .map(|message| message.sequence)
            .filter(|at| *at >= self.spec.start_sequence && (*at >= first || *at < self.next))
            .max();
        Ok(Some(after.unwrap_or(0)))
    }
}
