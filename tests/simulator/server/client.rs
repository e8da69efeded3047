//! The broker port over the simulated server.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use saga_runner::ports::broker::{
    self, Broker, BrokerError, BucketSpec, Entry, Expect, KnownQueue, Publication, PublishAck, PublishError,
    PutError, Queue, QueueSpec, QueueState, Reader, ReaderSpec, StoredMessage, StreamSpec, StreamState,
};

use crate::process::Process;
use crate::run::EVENTS;

use super::queue::Member;
use super::reader::SimReader;
use super::stream::{Durable, Stream, differences, overlap};
use super::{Fate, PATIENCE, Server, State};

/// The connection of one process.
pub struct Client {
    pub server: Arc<Server>,
    pub process: Arc<Process>,
}

impl Client {
    /// Asks the server; what it says comes later, or never.
    async fn ask<T>(
        &self,
        what: &str,
        act: impl FnOnce(&mut State) -> Result<T, BrokerError>,
    ) -> Result<T, BrokerError> {
        let world = &self.server.world;
        if self.process.enter().await {
            return Err(BrokerError::Unavailable("the connection is lost".to_owned()));
        }
        let (delay, outcome) = {
            let mut state = self.server.lock();
            match state.fate() {
                Fate::Refused(delay) => (delay, Err(BrokerError::Unavailable("not connected".to_owned()))),
                Fate::Done(delay) => (delay, act(&mut state)),
                Fate::Lost => (PATIENCE, Err(BrokerError::Unavailable("no answer".to_owned()))),
                Fate::Unanswered => {
                    let _unknown = act(&mut state);
                    (PATIENCE, Err(BrokerError::Unavailable("no answer".to_owned())))
                }
            }
        };
        world.note(format_args!(
            "{what}: {}",
            if outcome.is_ok() { "done" } else { "failed" }
        ));
        wait(delay).await;
        self.process.enter().await;
        outcome
    }

    /// Another number than before once what was opened is broken.
    fn connection(&self, state: &State) -> u64 {
        state.connection + self.process.broken()
    }
}

async fn wait(delay: Duration) {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}

fn stream<'s>(state: &'s mut State, name: &str) -> Result<&'s mut Stream, BrokerError> {
    let stream = state.streams.get_mut(name);
    stream.ok_or_else(|| BrokerError::NoStream(name.to_owned()))
}

/// The id of the work that a message carries out of the runner.
fn work_of(message: &Publication) -> Option<String> {
    if message.subject.contains(".effect.") {
        return message.subject.rsplit('.').next().map(str::to_owned);
    }
    if message.subject.contains(".workflow_event.") {
        let body: serde_json::Value = serde_json::from_slice(&message.payload).ok()?;
        return body["event_id"].as_str().map(str::to_owned);
    }
    None
}

/// The shard whose owner record has this key.
fn owned(key: &str) -> Option<u16> {
    let (_, shard) = key.split_once(".shard.")?;
    shard.parse().ok()
}

/// The epoch that an owner record claims.
fn epoch_of(record: &[u8]) -> u64 {
    let record: serde_json::Value = serde_json::from_slice(record).expect("an owner record is JSON");
    record["epoch"].as_u64().expect("an owner record has an epoch")
}

fn is_token(token: &str) -> bool {
    let illegal = |byte: u8| byte.is_ascii_whitespace() || byte.is_ascii_control();
    !token.is_empty() && !token.bytes().any(illegal)
}

/// Says what is wrong with a message, before anything is sent.
fn check(message: &Publication, bytes_max: usize) -> Result<(), PublishError> {
    let literal = |token: &str| is_token(token) && token != "*" && token != ">";
    if !message.subject.split('.').all(literal) {
        return Err(PublishError::Refused("the subject is not literal".to_owned()));
    }
    let has_control = |text: &str| text.bytes().any(|byte| byte.is_ascii_control());
    let mut texts: Vec<&str> = Vec::new();
    for (name, value) in &message.headers {
        texts.extend([name.as_str(), value.as_str()]);
    }
    if let Expect::MessageId(id) = &message.expect {
        texts.push(id);
    }
    if texts.into_iter().any(has_control) {
        return Err(PublishError::Refused(
            "a header has control characters".to_owned(),
        ));
    }
    if message.payload.len() > bytes_max {
        return Err(PublishError::Refused("the message is too long".to_owned()));
    }
    Ok(())
}

#[async_trait]
impl Broker for Client {
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BrokerError> {
        let now = self.server.now();
        self.ask("ensure stream", |state| {
            if !state.streams.contains_key(&spec.name) {
                let taken = |other: &Stream| {
                    let mut pairs = other
                        .spec
                        .subjects
                        .iter()
                        .flat_map(|a| spec.subjects.iter().map(move |b| (a, b)));
                    pairs.any(|(a, b)| overlap(a, b))
                };
                if state.streams.values().any(taken) {
                    return Err(BrokerError::Refused(
                        "another stream has these subjects".to_owned(),
                    ));
                }
                state.created_ns = (state.created_ns + 1).max(now.0 * 1_000_000);
                let (created, window_ms) = (state.created_ns, state.window_ms);
                state
                    .streams
                    .insert(spec.name.clone(), Stream::new(spec, created, window_ms));
            }
            let stream = stream(state, &spec.name)?;
            if !spec.foreign {
                stream.spec = spec.clone();
            }
            let differences = differences(spec, &stream.spec);
            if differences.is_empty() {
                return Ok(stream.state(now));
            }
            Err(BrokerError::Mismatch {
                stream: spec.name.clone(),
                differences,
            })
        })
        .await
    }

    async fn check_stream(&self, spec: &StreamSpec) -> Result<Vec<String>, BrokerError> {
        self.ask("check stream", |state| {
            Ok(differences(spec, &stream(state, &spec.name)?.spec))
        })
        .await
    }

    async fn stream_state(&self, name: &str) -> Result<StreamState, BrokerError> {
        let now = self.server.now();
        let told = self
            .ask("state", |state| Ok(stream(state, name)?.state(now)))
            .await;
        if let Ok(told) = &told {
            let (first, last) = (told.first_sequence, told.last_sequence);
            self.server
                .world
                .note(format_args!("{name} has {first} to {last}"));
        }
        told
    }

    async fn publish(&self, message: Publication) -> Result<PublishAck, PublishError> {
        let world = &self.server.world;
        if self.process.enter().await {
            return Err(PublishError::Unavailable("the connection is lost".to_owned()));
        }
        if let Some(id) = work_of(&message) {
            world.sent(self.process.number, &id, &message.subject);
        }
        let now = self.server.now();
        let (delay, outcome) = {
            let mut state = self.server.lock();
            let fate = state.fate();
            let visible = state.arrival(self.server.passed());
            let mut store = || {
                let none = || PublishError::Unavailable(format!("no stream takes {}", message.subject));
                let stream = state.streams.get_mut(&message.stream).ok_or_else(none)?;
                check(&message, stream.spec.message_bytes_max)?;
                if !stream.takes(&message.subject) {
                    return Err(none());
                }
                let stored = stream.store(&message, now, visible);
                self.server.news.of_message(stream, &message.subject);
                stored
            };
            let unknown = || PublishError::Unknown("no answer".to_owned());
            match fate {
                Fate::Refused(delay) => (delay, Err(PublishError::Unavailable("not connected".to_owned()))),
                Fate::Done(delay) => (delay, store()),
                Fate::Lost => (PATIENCE, Err(unknown())),
                Fate::Unanswered => (PATIENCE, store().and_then(|_| Err(unknown()))),
            }
        };
        match &outcome {
            Ok(ack) => world.note(format_args!(
                "publish {}: {} {}",
                message.subject, ack.sequence, ack.duplicate
            )),
            Err(error) => world.note(format_args!("publish {}: {error}", message.subject)),
        }
        wait(delay).await;
        self.process.enter().await;
        outcome
    }

    async fn reader(&self, spec: ReaderSpec) -> Result<Box<dyn Reader>, BrokerError> {
        let (server, process) = (Arc::clone(&self.server), Arc::clone(&self.process));
        self.ask("reader", move |state| {
            let (connection, dropped) = (self.connection(state), state.dropped);
            let stream = stream(state, &spec.stream)?;
            if spec.stream == EVENTS {
                process.begins_to_read_events();
            }
            let reader = SimReader {
                news: server.news.of(Some(&spec.stream), None),
                server,
                process,
                created_ns: stream.identity.created_ns,
                connection,
                dropped,
                stream: spec.stream,
                filters: spec.filters,
                next: spec.start_sequence.max(1),
                buffer: VecDeque::new(),
                buffer_max: spec.buffer.max(1),
                consumer_sequence: 0,
                sent: 0,
                broken: None,
            };
            Ok(Box::new(reader) as Box<dyn Reader>)
        })
        .await
    }

    async fn queue(&self, spec: QueueSpec) -> Result<Box<dyn Queue>, BrokerError> {
        let (server, process) = (Arc::clone(&self.server), Arc::clone(&self.process));
        let now = self.server.now();
        self.ask("queue", move |state| {
            if spec.manner.push || spec.manner.bound {
                return Err(BrokerError::Refused(
                    "queues here neither push nor are bound".to_owned(),
                ));
            }
            let connection = self.connection(state);
            let stream = stream(state, &spec.stream)?;
            let queue = stream
                .queues
                .entry(spec.durable.clone())
                .or_insert_with(|| Durable {
                    filters: spec.filters.clone(),
                    group: spec.group.clone(),
                    created: now,
                    ack_wait: spec.ack_wait,
                    unacknowledged_max: spec.max_unacknowledged,
                    next: 1,
                    seen: 0,
                    held: BTreeMap::new(),
                    consumer_sequence: 0,
                    members: Arc::default(),
                });
            if queue.filters != spec.filters || queue.group != spec.group {
                return Err(BrokerError::Mismatch {
                    stream: spec.stream.clone(),
                    differences: vec!["the queue is another one".to_owned()],
                });
            }
            queue.ack_wait = spec.ack_wait;
            queue.unacknowledged_max = spec.max_unacknowledged;
            server.news.of_queue(&spec.stream, &spec.durable);
            Ok(Box::new(Member {
                news: server.news.of(Some(&spec.stream), Some(&spec.durable)),
                server,
                process,
                created: queue.created,
                stream: spec.stream,
                durable: spec.durable,
                connection,
                ahead: VecDeque::new(),
                room: usize::MAX,
                is_closed: false,
                _membership: Arc::clone(&queue.members),
            }) as Box<dyn Queue>)
        })
        .await
    }

    async fn last_by_subject(&self, name: &str, subject: &str) -> Result<Option<StoredMessage>, BrokerError> {
        if !subject
            .split('.')
            .all(|token| is_token(token) && token != "*" && token != ">")
        {
            return Err(BrokerError::Refused(format!(
                "subject {subject:?} is not literal"
            )));
        }
        self.ask("last by subject", |state| {
            Ok(stream(state, name)?.last_by_subject(subject))
        })
        .await
    }

    async fn message_at(&self, name: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError> {
        self.ask("message", |state| {
            let stored = stream(state, name)?.messages.get(&sequence);
            Ok(stored.map(|stored| stored.message.clone()))
        })
        .await
    }

    async fn trim(&self, name: &str, sequence: u64) -> Result<(), BrokerError> {
        self.ask("trim", |state| {
            self.server.world.trimmed(self.process.number, name);
            stream(state, name)?.trim(sequence);
            // What members hold may be gone.
            self.server.news.of_all();
            Ok(())
        })
        .await
    }

    async fn removed(&self, name: &str) -> Result<Vec<u64>, BrokerError> {
        self.ask("removed", |state| Ok(stream(state, name)?.removed()))
            .await
    }

    async fn queue_floor(&self, name: &str, durable: &str) -> Result<Option<u64>, BrokerError> {
        self.ask("floor", |state| Ok(stream(state, name)?.floor(durable)))
            .await
    }

    async fn check_queue(&self, spec: &QueueSpec) -> Result<Vec<String>, BrokerError> {
        self.ask("check queue", |state| {
            let queue = stream(state, &spec.stream)?.queues.get(&spec.durable);
            let differs =
                queue.is_some_and(|queue| queue.filters != spec.filters || queue.group != spec.group);
            Ok(differs
                .then(|| "filters or group differ".to_owned())
                .into_iter()
                .collect())
        })
        .await
    }

    async fn queue_state(&self, name: &str, durable: &str) -> Result<Option<QueueState>, BrokerError> {
        self.ask("queue state", |state| {
            Ok(stream(state, name)?.queue_state(durable))
        })
        .await
    }

    async fn queues(&self, name: &str) -> Result<Vec<KnownQueue>, BrokerError> {
        self.ask("queues", |state| {
            let queues = stream(state, name)?.queues.iter();
            Ok(queues
                .map(|(durable, queue)| KnownQueue {
                    durable: durable.clone(),
                    group: queue.group.clone(),
                })
                .collect())
        })
        .await
    }

    async fn ensure_bucket(&self, spec: &BucketSpec) -> Result<(), BrokerError> {
        broker::check_bucket_name(&spec.name).map_err(BrokerError::Refused)?;
        self.ask("ensure bucket", |state| {
            state.buckets.entry(spec.name.clone()).or_default();
            Ok(())
        })
        .await
    }

    async fn check_bucket(&self, spec: &BucketSpec) -> Result<Vec<String>, BrokerError> {
        self.ask("check bucket", |state| {
            if state.buckets.contains_key(&spec.name) {
                Ok(Vec::new())
            } else {
                Err(BrokerError::NoStream(spec.name.clone()))
            }
        })
        .await
    }

    async fn entry(&self, bucket: &str, key: &str) -> Result<Option<Entry>, BrokerError> {
        broker::check_entry_key(key).map_err(BrokerError::Refused)?;
        self.ask("entry", |state| match state.buckets.get(bucket) {
            Some(entries) => Ok(entries.get(key).cloned()),
            None => Err(BrokerError::NoStream(bucket.to_owned())),
        })
        .await
    }

    async fn put_entry(
        &self,
        bucket: &str,
        key: &str,
        value: Bytes,
        expected: Option<u64>,
    ) -> Result<u64, PutError> {
        broker::check_entry_key(key).map_err(PutError::Refused)?;
        broker::check_entry_value(&value).map_err(PutError::Refused)?;
        let put = self.ask("put entry", |state| {
            let Some(entries) = state.buckets.get_mut(bucket) else {
                return Ok(Err(PutError::Unavailable(format!(
                    "bucket {bucket} does not exist"
                ))));
            };
            if entries.get(key).map(|entry| entry.revision) != expected {
                return Ok(Err(PutError::Conflict));
            }
            state.revision += 1;
            let revision = state.revision;
            let owned = owned(key).map(|shard| (shard, epoch_of(&value)));
            let before = entries.insert(key.to_owned(), Entry { revision, value });
            state.puts.push((bucket.to_owned(), key.to_owned(), before));
            if let Some((shard, epoch)) = owned {
                self.server.world.owns(self.process.number, shard, epoch);
            }
            Ok(Ok(revision))
        });
        // Whether it was stored is not known where nobody answers.
        put.await
            .unwrap_or_else(|error| Err(PutError::Unknown(error.to_string())))
    }

    fn next_connection(&self) -> BoxFuture<'static, ()> {
        let (server, process) = (Arc::clone(&self.server), Arc::clone(&self.process));
        let (seen, was_up) = {
            let state = server.lock();
            (self.connection(&state), state.is_up)
        };
        async move {
            let connection = server.news.of(None, None);
            loop {
                let mut news = std::pin::pin!(connection.notified());
                news.as_mut().enable();
                {
                    let state = server.lock();
                    if state.is_up && (!was_up || state.connection + process.broken() != seen) {
                        return;
                    }
                }
                news.await;
            }
        }
        .boxed()
    }

    async fn ping(&self) -> Result<Duration, BrokerError> {
        self.ask("ping", |_| Ok(Duration::from_millis(1))).await
    }

    async fn flush(&self) -> Result<(), BrokerError> {
        self.ask("flush", |_| Ok(())).await
    }
}
