//! A broker in memory that does what faults do: it means what the real ones mean (it passes their conformance suite) and
//! answers late, loses answers, cuts connections and forgets what it has sent, as a seed decides.
//!
//! Requests are decided when they are made, and answered later; what readers get arrives later still. So every order that
//! a network can make is there, and the same seed makes the same one.

mod client;
mod losses;
mod queue;
mod reader;
pub mod stream;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use saga_runner::kernel::ids::TimeMs;
use saga_runner::ports::broker::{Entry, Expect, Publication, StoredMessage};
use tokio::sync::Notify;

pub use client::Client;

use crate::random::Rng;
use crate::world::World;
use stream::{Stream, matches_any};

/// What goes wrong, in thousandths of all calls, and how long things take.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Refused, and nothing has happened.
    pub unavailable: u64,
    /// Sent and lost on the way; the caller waits for an answer in vain.
    pub lost: u64,
    /// It has happened, and its answer is lost.
    pub unanswered: u64,
    /// Answered seconds later.
    pub late: u64,
    /// An acknowledgement of a delivery that does not arrive.
    pub receipts_lost: u64,
    /// Longest time to an answer, and until a stored message arrives at a reader.
    pub latency_ms: u64,
    /// Longest time until a reader says how far silence reaches.
    pub horizon_ms: u64,
    /// Messages of a queue that a member may get ahead.
    pub ahead: u64,
}

/// How long a caller waits for an answer that does not come.
const PATIENCE: Duration = Duration::from_secs(5);

/// The broker itself, which outlives all its clients.
pub struct Server {
    state: Mutex<State>,
    news: News,
    world: Arc<World>,
}

/// Something has changed that others may wait for. Who waits is told of nothing else: to poll everybody with each request
/// would take more time than all that a simulation does.
#[derive(Default)]
struct News(Mutex<BTreeMap<Topic, Arc<Notify>>>);

/// A stream, with one of its queues or for its readers; none: the connection.
type Topic = (Option<String>, Option<String>);

impl News {
    fn topics(&self) -> MutexGuard<'_, BTreeMap<Topic, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, stream: Option<&str>, durable: Option<&str>) -> Arc<Notify> {
        let topic = (stream.map(str::to_owned), durable.map(str::to_owned));
        Arc::clone(self.topics().entry(topic).or_default())
    }

    fn of_queue(&self, stream: &str, durable: &str) {
        self.of(Some(stream), Some(durable)).notify_waiters();
    }

    /// A stream has one more message.
    fn of_message(&self, stream: &Stream, subject: &str) {
        let name = &stream.identity.name;
        self.of(Some(name), None).notify_waiters();
        for (durable, queue) in &stream.queues {
            if matches_any(&queue.filters, subject) {
                self.of_queue(name, durable);
            }
        }
    }

    fn of_all(&self) {
        self.topics().values().for_each(|topic| topic.notify_waiters());
    }
}

pub struct State {
    pub streams: BTreeMap<String, Stream>,
    buckets: BTreeMap<String, BTreeMap<String, Entry>>,
    revision: u64,
    /// Bucket and key of all that was put, and what was there before.
    puts: Vec<(String, String, Option<Entry>)>,
    created_ns: i64,
    /// Number of the connection. Another one breaks whatever was opened by this one.
    connection: u64,
    is_up: bool,
    /// How often messages on their way to readers were dropped without anybody being told.
    dropped: u64,
    pub faults: Faults,
    /// How long streams remember message ids.
    pub window_ms: i64,
    rng: Rng,
}

/// What becomes of a request.
enum Fate {
    Done(Duration),
    Refused(Duration),
    Lost,
    Unanswered,
}

impl Server {
    pub fn new(seed: u64, world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                streams: BTreeMap::new(),
                buckets: BTreeMap::new(),
                revision: 0,
                puts: Vec::new(),
                created_ns: 0,
                connection: 1,
                is_up: true,
                dropped: 0,
                faults: Faults::default(),
                window_ms: 120_000,
                rng: Rng::new(seed, "broker"),
            }),
            news: News::default(),
            world: Arc::clone(world),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// The connection is lost: everything that was opened breaks, and nothing can be asked.
    pub fn cut(&self) {
        self.world.note(format_args!("connection lost"));
        let mut state = self.lock();
        state.connection += 1;
        state.is_up = false;
        drop(state);
        self.news.of_all();
    }

    pub fn reconnect(&self) {
        self.world.note(format_args!("connected again"));
        self.lock().is_up = true;
        self.news.of_all();
    }

    /// What is on its way to the readers is dropped, and they go on behind it.
    pub fn drop_on_the_way(&self) {
        self.world.note(format_args!("deliveries dropped"));
        self.lock().dropped += 1;
        self.news.of_all();
    }

    /// Whoever waits looks again.
    pub fn wake(&self) {
        self.news.of_all();
    }

    pub fn delete_stream(&self, stream: &str) {
        self.lock().streams.remove(stream);
        self.news.of_all();
    }

    /// Stores what somebody else publishes, with an acknowledgement that is never lost: its sequence.
    pub fn append(&self, stream: &str, subject: String, payload: Vec<u8>) -> u64 {
        self.append_with(stream, subject, Vec::new(), Bytes::from(payload))
    }

    /// The same with the headers of a message.
    pub fn append_message(&self, stream: &str, message: StoredMessage) -> u64 {
        self.append_with(stream, message.subject, message.headers, message.payload)
    }

    fn append_with(
        &self,
        stream: &str,
        subject: String,
        headers: Vec<(String, String)>,
        payload: Bytes,
    ) -> u64 {
        let publication = Publication {
            stream: stream.to_owned(),
            subject,
            headers,
            payload,
            expect: Expect::Nothing,
        };
        let mut state = self.lock();
        let visible = state.arrival(self.world.clock.passed());
        let now = self.world.clock.true_now();
        let stream = state
            .streams
            .get_mut(stream)
            .expect("the stream was made at the start");
        let stored = stream.store(&publication, now, visible);
        self.news.of_message(stream, &publication.subject);
        drop(state);
        stored.expect("nothing was expected").sequence
    }

    /// Every message that a stream ever had.
    pub fn archive(&self, stream: &str) -> Vec<StoredMessage> {
        self.archived(stream, |_| true)
    }

    /// The same without those that are gone without the runner's doing.
    pub fn kept(&self, stream: &str) -> Vec<StoredMessage> {
        self.archived(stream, |is_gone| !is_gone)
    }

    /// Those that are.
    pub fn gone(&self, stream: &str) -> Vec<StoredMessage> {
        self.archived(stream, |is_gone| is_gone)
    }

    fn archived(&self, stream: &str, is_wanted: impl Fn(bool) -> bool) -> Vec<StoredMessage> {
        let state = self.lock();
        let archive = state.streams.get(stream).map(|stream| &stream.archive);
        let wanted = archive
            .into_iter()
            .flatten()
            .filter(|(_, is_gone)| is_wanted(*is_gone));
        wanted.map(|(message, _)| message.clone()).collect()
    }

    pub fn last(&self, stream: &str) -> u64 {
        self.lock().streams.get(stream).map_or(0, |stream| stream.last)
    }

    fn now(&self) -> TimeMs {
        self.world.clock.true_now()
    }

    fn passed(&self) -> Duration {
        self.world.clock.passed()
    }
}

impl State {
    /// What becomes of a request that is made now.
    fn fate(&mut self) -> Fate {
        let faults = self.faults;
        let latency = self.rng.millis(0..=faults.latency_ms);
        if !self.is_up {
            return Fate::Refused(latency);
        }
        let drawn = self.rng.below(1_000);
        let refused = faults.unavailable;
        let lost = refused + faults.lost;
        let unanswered = lost + faults.unanswered;
        if drawn < refused {
            Fate::Refused(latency)
        } else if drawn < lost {
            Fate::Lost
        } else if drawn < unanswered {
            Fate::Unanswered
        } else if drawn < unanswered + faults.late {
            Fate::Done(latency + self.rng.millis(500..=4_000))
        } else {
            Fate::Done(latency)
        }
    }

    /// When a message that is stored now arrives at readers.
    fn arrival(&mut self, now: Duration) -> Duration {
        let latency = self.faults.latency_ms;
        now + self.rng.millis(0..=latency)
    }
}

impl Server {
    /// Makes the streams before anybody is connected, as their owners do.
    pub fn prepare(&self, manifest: &saga_runner::config::Manifest) {
        let mut state = self.lock();
        for spec in saga_runner::app::streams::specs(manifest) {
            state.created_ns += 1;
            let (created, window_ms) = (state.created_ns, state.window_ms);
            state
                .streams
                .insert(spec.name.clone(), Stream::new(&spec, created, window_ms));
        }
    }
}
