//! Many publications, one write: what waits for the same stream goes to the server as one atomic batch.
//!
//! A server with `sync_interval: always` syncs each message that comes alone, and a batch once. A batch is stored whole or
//! not at all; where the server refuses one, its messages go each by itself, and each has a verdict of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::HeaderMap;
use async_nats::header::{NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL, NATS_BATCH_ID, NATS_BATCH_SEQUENCE};
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use futures::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio::task::coop::unconstrained;
use tracing::{debug, warn};

use crate::ports::broker::{Publication, PublishAck, PublishError};

use super::link::Link;
use super::publish::{Failure, Publisher, check_subject, describe, expecting, server_error};

/// Messages from which on a batch costs the server less than so many syncs: it stages a batch in files of its own first.
pub(super) const WORTH_A_BATCH: usize = 8;
/// Payloads of one batch in bytes; a single message may be larger.
const BATCH_BYTES: usize = 1024 * 1024;

type Verdict = Result<PublishAck, PublishError>;

/// A publication, and who waits for its verdict.
struct Entry {
    message: Publication,
    asker: oneshot::Sender<Verdict>,
}

/// One queue of publications for each stream.
pub(super) struct Batches {
    publisher: Arc<Publisher>,
    link: Arc<Link>,
    /// Messages of one batch.
    messages_max: usize,
    /// Publications that wait in one queue; more wait outside.
    queue_max: usize,
    queues: Mutex<BTreeMap<String, mpsc::Sender<Entry>>>,
}

impl Batches {
    pub fn new(publisher: Arc<Publisher>, link: Arc<Link>, messages_max: usize, queue_max: usize) -> Self {
        Self {
            publisher,
            link,
            messages_max,
            queue_max,
            queues: Mutex::default(),
        }
    }

    /// Stores the message: with others that wait for the same stream, or by itself where there are few.
    pub async fn publish(&self, message: Publication) -> Verdict {
        let queue = self.queue(&message.stream);
        let (asker, verdict) = oneshot::channel();
        let ended = "the connection has ended";
        // A task that has used up its turn would otherwise not take its place in line at the first poll, but later, in
        // any order.
        let queued = unconstrained(queue.send(Entry { message, asker })).await;
        if queued.is_err() {
            return Err(PublishError::Unavailable(ended.to_owned()));
        }
        verdict
            .await
            .unwrap_or_else(|_| Err(PublishError::Unknown(ended.to_owned())))
    }

    fn queue(&self, stream: &str) -> mpsc::Sender<Entry> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        // A publisher that ended by a panic has left what it had without a verdict, which is looked up; another one goes on.
        if let Some(queue) = queues.get(stream).filter(|queue| !queue.is_closed()) {
            return queue.clone();
        }
        let (queue, waiting) = mpsc::channel(self.queue_max);
        let publisher = StreamPublisher {
            publisher: Arc::clone(&self.publisher),
            link: Arc::clone(&self.link),
            stream: stream.to_owned(),
            messages_max: self.messages_max,
            waiting,
        };
        tokio::spawn(publisher.run());
        queues.insert(stream.to_owned(), queue.clone());
        queue
    }
}

/// How a batch ended.
enum Batched {
    /// All are stored, the first at this sequence.
    Stored(u64),
    /// None is stored.
    Refused(String),
    /// None is stored, and the stream takes no batches at all.
    Disabled,
    /// All are stored, or none is.
    Unknown(String),
}

/// Stores what waits for one stream, one batch at a time: what comes meanwhile makes the next one.
struct StreamPublisher {
    publisher: Arc<Publisher>,
    link: Arc<Link>,
    stream: String,
    messages_max: usize,
    waiting: mpsc::Receiver<Entry>,
}

impl StreamPublisher {
    /// Ends when nobody can publish any more.
    async fn run(mut self) {
        let mut takes_batches = true;
        while let Some(first) = self.waiting.recv().await {
            let entries = self.gather(first);
            if !takes_batches || entries.len() < WORTH_A_BATCH {
                self.each(entries).await;
                continue;
            }
            match self.together(&entries).await {
                Batched::Stored(first) => {
                    for (entry, sequence) in entries.into_iter().zip(first..) {
                        let duplicate = false;
                        answer(entry.asker, Ok(PublishAck { sequence, duplicate }));
                    }
                }
                Batched::Refused(why) => {
                    debug!(stream = %self.stream, messages = entries.len(), %why, "batch refused");
                    self.each(entries).await;
                }
                Batched::Disabled => {
                    warn!(stream = %self.stream, "the stream takes no atomic batches; each message goes by itself");
                    takes_batches = false;
                    self.each(entries).await;
                }
                Batched::Unknown(why) => {
                    for entry in entries {
                        answer(entry.asker, Err(PublishError::Unknown(why.clone())));
                    }
                }
            }
        }
    }

    fn gather(&mut self, first: Entry) -> Vec<Entry> {
        let mut bytes = first.message.payload.len();
        let mut entries = vec![first];
        while entries.len() < self.messages_max && bytes < BATCH_BYTES {
            let Ok(entry) = self.waiting.try_recv() else {
                break;
            };
            bytes += entry.message.payload.len();
            entries.push(entry);
        }
        entries
    }

    /// Stores each by itself, in their order, all under way at the same time.
    async fn each(&self, entries: Vec<Entry>) {
        join_all(entries.into_iter().map(|Entry { message, asker }| async {
            answer(asker, self.publisher.publish(&self.link, message).await);
        }))
        .await;
    }

    /// Stores all or none.
    async fn together(&self, entries: &[Entry]) -> Batched {
        let generation = match self.link.generation() {
            Ok(generation) => generation,
            Err(why) => return Batched::Refused(why),
        };
        // Before the first is sent: a batch that breaks off stays with the server until it runs out of patience.
        let messages: Result<Vec<_>, PublishError> = entries.iter().map(outgoing).collect();
        let mut messages = match messages {
            Ok(messages) => messages,
            Err(error) => return Batched::Refused(error.to_string()),
        };
        let Some((subject, mut headers, payload)) = messages.pop() else {
            return Batched::Refused("no messages".to_owned());
        };
        let client = &self.link.client;
        let id = client.new_inbox();
        let mark = |headers: &mut HeaderMap, number: usize| {
            headers.insert(NATS_BATCH_ID, id.as_str());
            headers.insert(NATS_BATCH_SEQUENCE, number.to_string());
        };
        for (number, (subject, mut headers, payload)) in (1..).zip(messages) {
            mark(&mut headers, number);
            if let Err(error) = client.publish_with_headers(subject, headers, payload).await {
                return Batched::Refused(error.to_string());
            }
        }
        mark(&mut headers, entries.len());
        headers.insert(NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL);
        let commit = PublishMessage::build().payload(payload).headers(headers);
        let answer = self
            .publisher
            .exchange(&self.link, generation, subject, commit)
            .await;
        match answer {
            Ok(ack) if ack.batch_id.as_deref() == Some(&id) && ack.stream == self.stream => {
                // They stand side by side, and the answer has the sequence of the last.
                Batched::Stored((ack.sequence + 1).saturating_sub(entries.len() as u64))
            }
            Ok(ack) => Batched::Unknown(format!("stream {} took no batch", ack.stream)),
            Err(failure) => judge(&failure),
        }
    }
}

/// The parts of a message, with what it expects of the stream among its headers.
fn outgoing(entry: &Entry) -> Result<(String, HeaderMap, Bytes), PublishError> {
    let message = &entry.message;
    check_subject(&message.subject)?;
    let headers = expecting(message)?.unwrap_or_default();
    Ok((message.subject.clone(), headers, message.payload.clone()))
}

fn judge(failure: &Failure) -> Batched {
    let error = match failure {
        Failure::NotSent(error) => return Batched::Refused(describe(error)),
        Failure::Lost => return Batched::Unknown(Failure::LOST.to_owned()),
        Failure::Answered(error) => error,
    };
    let why = describe(error);
    if error.kind() == PublishErrorKind::StreamNotFound {
        return Batched::Refused(why);
    }
    match server_error(error) {
        Some(failure) if failure.error_code() == ErrorCode::ATOMIC_PUBLISH_DISABLED => Batched::Disabled,
        // What the server checks before it stores the first of them.
        Some(failure) if failure.code() < 500 => Batched::Refused(why),
        Some(_) | None => Batched::Unknown(why),
    }
}

fn answer(asker: oneshot::Sender<Verdict>, verdict: Verdict) {
    // Without an asker nobody relies on it: whoever published the message finds out as after a lost answer.
    let _ = asker.send(verdict);
}
