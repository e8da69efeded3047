//! The broker port in this process, its streams persisted in one MDBX environment.
//!
//! A publication is answered when its commit is durable; a killed process loses nothing that was answered.
//! What readers and queues take comes from memory while they keep up and from the store when they do not.
//! There is one copy and no network: whoever needs more runs NATS.
//!
//! The way of a publication: [`inbox`] (bounded, ordered) → [`writer`] (one thread, group commit) → the tail of
//! its [`stream`] → [`feed`]s of [`reader`]s and [`queue`]s. [`change`] makes and trims streams, [`entries`] keeps
//! entries; [`mod@env`] and
//! [`record`] say how things lie on the disk.

mod change;
mod entries;
mod env;
mod feed;
mod filter;
mod inbox;
mod member;
mod queue;
mod reader;
mod record;
mod registry;
mod settings;
mod stream;
mod trust;
mod window;
mod writer;

#[cfg(test)]
mod intake_tests;
#[cfg(test)]
mod tests;

pub use env::OpenError;
pub use settings::Settings;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::ports::broker::{
    Broker, BrokerError, BucketSpec, Entry, Expect, Publication, PublishAck, PublishError, PutError, Queue,
    QueueSpec, QueueState, Reader, ReaderSpec, StoredMessage, StreamSpec, StreamState,
};
use crate::ports::clock::Clock;

use entries::EntryPut;
use env::{Env, StoreError};
use inbox::{Change, Expected, Inbox, Stop};
use member::Member;
use queue::QueueShared;
use reader::InprocReader;
use record::Body;
use registry::Registry;
use stream::Stream;
use window::IdHash;
use writer::Writer;

/// Streams, readers and queues in this process. Dropped, it finishes what was handed over and lets go of its
/// folder; readers and queues that are still there break.
pub struct InprocBroker {
    env: Arc<Env>,
    registry: Arc<Registry>,
    inbox: Arc<Inbox>,
    clock: Arc<dyn Clock>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl InprocBroker {
    /// Opens the streams in `dir`, or makes a place for them.
    ///
    /// # Errors
    /// [`OpenError`] where the folder cannot be used, is in use, or holds what this program cannot read.
    pub fn open(dir: &Path, settings: Settings, clock: Arc<dyn Clock>) -> Result<Arc<Self>, OpenError> {
        let env = Arc::new(Env::open(dir, &settings)?);
        let inbox = Arc::new(Inbox::new(
            settings.pending_bytes,
            settings.batch_messages,
            settings.batch_bytes,
        ));
        let registry = load(&env, &settings, &inbox, &clock).map_err(|error| OpenError::Damaged {
            path: dir.to_owned(),
            what: error.to_string(),
        })?;
        let registry = Arc::new(registry);
        let writer = Writer::new(
            Arc::clone(&env),
            Arc::clone(&registry),
            Arc::clone(&inbox),
            Arc::clone(&clock),
            settings,
        );
        let thread = std::thread::Builder::new()
            .name("broker-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(OpenError::Thread)?;
        Ok(Arc::new(Self {
            env,
            registry,
            inbox,
            clock,
            writer: Mutex::new(Some(thread)),
        }))
    }

    /// Removes a stream with its messages and queues; its readers break.
    ///
    /// # Errors
    /// [`BrokerError::NoStream`] where it does not exist.
    pub async fn delete_stream(&self, stream: &str) -> Result<(), BrokerError> {
        let name = stream.to_owned();
        self.inbox.change(|answer| Change::Delete(name, answer)).await
    }

    /// Stops at once, as if the process had died: what is not durable by now is not stored. Blocks until the
    /// commit that is under way, if any, has ended.
    pub fn abort(&self) {
        self.halt(Stop::Abort);
    }

    fn halt(&self, stop: Stop) {
        self.inbox.stop(stop);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!("writer of the embedded broker panicked");
        }
    }

    fn stream(&self, name: &str) -> Result<Arc<Stream>, BrokerError> {
        let stream = self
            .registry
            .stream(name)
            .ok_or_else(|| BrokerError::NoStream(name.to_owned()))?;
        stream
            .tail()
            .check()
            .map_err(|broken| BrokerError::Unavailable(broken.0))?;
        Ok(stream)
    }

    /// Reads what belongs to no stream.
    async fn look<T, F>(&self, look: F) -> Result<T, BrokerError>
    where
        T: Send + 'static,
        F: FnOnce(&Env) -> Result<T, BrokerError> + Send + 'static,
    {
        let env = Arc::clone(&self.env);
        tokio::task::spawn_blocking(move || look(&env))
            .await
            .map_err(|error| BrokerError::Unavailable(error.to_string()))?
    }

    /// Reads the store on a thread that may block.
    async fn read<T, F>(&self, stream: &str, look: F) -> Result<T, BrokerError>
    where
        T: Send + 'static,
        F: FnOnce(&Stream, &Env) -> Result<T, StoreError> + Send + 'static,
    {
        let stream = self.stream(stream)?;
        let env = Arc::clone(&self.env);
        tokio::task::spawn_blocking(move || look(&stream, &env))
            .await
            .map_err(|error| BrokerError::Unavailable(error.to_string()))?
            .map_err(|error| BrokerError::Unavailable(error.to_string()))
    }
}

impl Drop for InprocBroker {
    fn drop(&mut self) {
        self.halt(Stop::Finish);
    }
}

/// Takes up the streams and queues of the store.
fn load(
    env: &Arc<Env>,
    settings: &Settings,
    inbox: &Arc<Inbox>,
    clock: &Arc<dyn Clock>,
) -> Result<Registry, StoreError> {
    let registry = Registry::default();
    let txn = env.read()?;
    for (name, row) in env::streams(&txn)? {
        let stream = Arc::new(Stream::load(env, &name, &row, settings)?);
        stream.load_window(env, clock.now(), settings.duplicate_ids_max)?;
        let suspect_to = stream.tail().last();
        for (durable, row) in env::queues(&txn, stream.id)? {
            let queue = QueueShared::new(
                Arc::clone(&stream),
                &durable,
                row,
                suspect_to,
                Arc::clone(inbox),
                Arc::clone(clock),
                Arc::downgrade(env),
            )
            .map_err(|what| StoreError::Damaged(format!("queue {durable}: {what}")))?;
            registry.put_queue(Arc::new(queue));
        }
        registry.put_stream(stream);
    }
    Ok(registry)
}

/// Checks all that can be checked without the writer.
fn admit(stream: &Stream, message: &Publication) -> Result<(Body, Expected), PublishError> {
    let refused = PublishError::Refused;
    if !filter::is_literal(&message.subject) {
        return Err(refused(format!("subject {:?} is not literal", message.subject)));
    }
    if message.subject.len() > filter::SUBJECT_BYTES_MAX {
        return Err(refused(format!(
            "subject is {} bytes long, at most {} are allowed",
            message.subject.len(),
            filter::SUBJECT_BYTES_MAX
        )));
    }
    record::check_headers(message).map_err(refused)?;
    let config = stream.config();
    if !config.takes(&message.subject) {
        return Err(PublishError::Unavailable(format!(
            "stream {} does not take subject {}",
            message.stream, message.subject
        )));
    }
    let size = record::wire_size(message);
    if size as u64 > config.message_bytes_max {
        return Err(refused(format!(
            "message is {size} bytes long, stream {} allows {}",
            message.stream, config.message_bytes_max
        )));
    }
    let expected = match &message.expect {
        Expect::Nothing => Expected::Nothing,
        Expect::FirstOnSubject => Expected::FirstOnSubject,
        Expect::MessageId(id) => Expected::Id(IdHash::of(id.as_bytes())),
    };
    Ok((Body::encode(message).map_err(refused)?, expected))
}

#[async_trait]
impl Broker for InprocBroker {
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BrokerError> {
        let spec = spec.clone();
        self.inbox.change(|answer| Change::Ensure(spec, answer)).await
    }

    async fn check_stream(&self, spec: &StreamSpec) -> Result<Vec<String>, BrokerError> {
        let stream = self.stream(&spec.name)?;
        Ok(change::differences(spec, &stream.config()))
    }

    /// Behind whatever was handed over before: a message has its time before its commit, and whoever asks what is stored by
    /// now must be told of it.
    async fn stream_state(&self, stream: &str) -> Result<StreamState, BrokerError> {
        let told = self.clock.now();
        let stream = self.stream(stream)?;
        self.inbox.change(Change::Ping).await?;
        Ok(stream.state(told))
    }

    async fn publish(&self, message: Publication) -> Result<PublishAck, PublishError> {
        let Some(stream) = self.registry.stream(&message.stream) else {
            return Err(writer::no_stream(&message.stream));
        };
        let (body, expected) = admit(&stream, &message)?;
        let outcome = self.inbox.publish(stream, body, expected).await?;
        outcome
            .await
            .unwrap_or_else(|_| Err(PublishError::Unknown("the broker has stopped".to_owned())))
    }

    async fn reader(&self, spec: ReaderSpec) -> Result<Box<dyn Reader>, BrokerError> {
        let stream = self.stream(&spec.stream)?;
        Ok(Box::new(InprocReader::open(
            stream,
            Arc::downgrade(&self.env),
            spec,
        )?))
    }

    async fn queue(&self, spec: QueueSpec) -> Result<Box<dyn Queue>, BrokerError> {
        if spec.manner.bound || spec.manner.push {
            return Err(BrokerError::Refused(format!(
                "durable {} is bound or pushes, and this broker has neither",
                spec.durable
            )));
        }
        let stream = self.stream(&spec.stream)?;
        let shared = self
            .inbox
            .change(|answer| Change::Join(stream, spec, answer))
            .await?;
        Ok(Box::new(Member::new(shared)))
    }

    async fn last_by_subject(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<StoredMessage>, BrokerError> {
        if !filter::is_literal(subject) || subject.len() > filter::SUBJECT_BYTES_MAX {
            return Err(BrokerError::Refused(format!(
                "subject {subject:?} is not literal"
            )));
        }
        let subject = subject.to_owned();
        self.read(stream, move |stream, env| stream.last_by_subject(env, &subject))
            .await
    }

    async fn message_at(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, BrokerError> {
        self.read(stream, move |stream, env| stream.message_at(env, sequence))
            .await
    }

    async fn trim(&self, stream: &str, sequence: u64) -> Result<(), BrokerError> {
        let stream = self.stream(stream)?;
        self.inbox
            .change(|answer| Change::Trim(stream, sequence, answer))
            .await
    }

    /// Tells a floor that is stored: what lies below it is never delivered again, not even after a crash.
    async fn queue_floor(&self, stream: &str, durable: &str) -> Result<Option<u64>, BrokerError> {
        let stream = self.stream(stream)?;
        let Some(queue) = self.registry.queue(&stream, durable) else {
            return Ok(None);
        };
        let floor = queue.floor().await?;
        if floor > queue.stored_floor() {
            self.inbox.change(Change::Floors).await?;
        }
        Ok(Some(floor))
    }

    async fn check_queue(&self, spec: &QueueSpec) -> Result<Vec<String>, BrokerError> {
        let stream = self.stream(&spec.stream)?;
        let found = self.registry.queue(&stream, &spec.durable);
        Ok(found.map_or_else(Vec::new, |queue| queue.differences(spec)))
    }

    async fn queue_state(&self, stream: &str, durable: &str) -> Result<Option<QueueState>, BrokerError> {
        let stream = self.stream(stream)?;
        let Some(queue) = self.registry.queue(&stream, durable) else {
            return Ok(None);
        };
        // Looks at what has come since somebody asked for work.
        queue.floor().await?;
        Ok(Some(queue.counts()))
    }

    async fn ensure_bucket(&self, spec: &BucketSpec) -> Result<(), BrokerError> {
        let spec = spec.clone();
        self.inbox.change(|answer| Change::Bucket(spec, answer)).await
    }

    async fn check_bucket(&self, spec: &BucketSpec) -> Result<Vec<String>, BrokerError> {
        let name = spec.name.clone();
        self.look(move |env| entries::check(env, &name)).await?;
        Ok(entries::differences(spec))
    }

    async fn entry(&self, bucket: &str, key: &str) -> Result<Option<Entry>, BrokerError> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.look(move |env| entries::find(env, &bucket, &key)).await
    }

    async fn put_entry(
        &self,
        bucket: &str,
        key: &str,
        value: Bytes,
        expected: Option<u64>,
    ) -> Result<u64, PutError> {
        let put = EntryPut::new(bucket, key, value, expected)?;
        self.inbox
            .change(|answer| Change::Put(put, answer))
            .await
            .unwrap_or_else(|error| Err(PutError::Unavailable(error.to_string())))
    }

    /// The way to the writer and back.
    async fn ping(&self) -> Result<Duration, BrokerError> {
        let begin = self.clock.monotonic();
        self.inbox.change(Change::Ping).await?;
        Ok(self.clock.monotonic().saturating_sub(begin))
    }

    /// Waits until everything handed over so far is durable, the floors of all queues included.
    async fn flush(&self) -> Result<(), BrokerError> {
        self.inbox.change(Change::Floors).await
    }
}
