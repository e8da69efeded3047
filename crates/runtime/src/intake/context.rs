//! What all readers of an intake share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Sleep;

use super::feed::Bounds;
use super::identity::Place;
use super::marks::Marks;
use super::route::Router;
use super::settings::Settings;
use crate::broker_clock::BrokerClock;
use crate::kernel::input::SourceStream;
use crate::kernel::subject::{Tenancy, control_filter, filter};
use crate::ports::broker::Broker;
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::{Gates, HaltRow, Mail, Stamp};
use crate::tasks::{Task, Tasks};
use crate::telemetry::Metrics;

/// Time between two looks at the message that was read last, while reading goes on.
const IDENTITY_EVERY: Duration = Duration::from_secs(1);

/// Most filter subjects of a reader: with more, the broker's matching costs more than what it saves.
const FILTERS_MAX: usize = 256;

/// A shard as the intake sees it.
#[derive(Clone)]
pub struct ShardEndpoint {
    pub index: u16,
    pub mail: mpsc::Sender<Mail>,
    pub gates: Arc<Gates>,
    /// The sequence of a stream up to which the shard has stored everything.
    pub position: Arc<dyn Fn(SourceStream) -> u64 + Send + Sync>,
    /// What stood at its positions when it was started, by [`SourceStream::index`].
    pub stamps: [Option<Stamp>; 3],
    /// It takes nothing until an operator has acted and it was started again.
    pub halted: bool,
}

impl fmt::Debug for ShardEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardEndpoint")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

pub(super) struct Context {
    pub broker: Arc<dyn Broker>,
    pub router: Router,
    /// By [`SourceStream::index`].
    pub streams: [String; 3],
    pub reader_prefix: String,
    pub settings: Settings,
    pub clock: Arc<BrokerClock>,
    pub metrics: Arc<Metrics>,
    pub tasks: Tasks,
    /// The shards that are fed, by number: changed by whoever opens and closes them, seldom. Readers have copies of their own.
    pub shards: RwLock<BTreeMap<u16, ShardEndpoint>>,
    pub progress: [Progress; 3],
    pub marks: Marks,
    pub readers_opened: AtomicU64,
    pub draws: AtomicU64,
}

impl Context {
    pub fn name(&self, stream: SourceStream) -> &str {
        &self.streams[stream.index()]
    }

    pub fn progress(&self, stream: SourceStream) -> &Progress {
        &self.progress[stream.index()]
    }

    /// No reader of the stream goes on, and each shard keeps that, so that none does after a restart either.
    /// `told`: what was removed one by one and is not news any more; `None` where it is another stream.
    pub fn halt(&self, stream: SourceStream, halt: Halt, told: Option<Arc<[u64]>>) {
        // While this is held no shard is added: one that comes later finds the halt.
        let shards = self.shards.read().unwrap_or_else(PoisonError::into_inner);
        for shard in shards.values() {
            self.tell_halted(shard, stream, &halt);
        }
        self.progress(stream).halt(halt, told);
    }

    /// Adds a shard. It learns what was found before it came, and otherwise would read on behind that after a restart.
    pub fn add(&self, shard: &ShardEndpoint) {
        let mut shards = self.shards.write().unwrap_or_else(PoisonError::into_inner);
        shards.insert(shard.index, shard.clone());
        for stream in SourceStream::ALL {
            if let Some(halt) = self.progress(stream).halted() {
                self.tell_halted(shard, stream, &halt);
            }
        }
    }

    pub fn remove(&self, shard: u16) {
        let mut shards = self.shards.write().unwrap_or_else(PoisonError::into_inner);
        shards.remove(&shard);
    }

    /// The lowest position of a shard that is fed.
    pub fn lowest(&self, stream: SourceStream) -> Option<u64> {
        let shards = self.shards.read().unwrap_or_else(PoisonError::into_inner);
        shards.values().map(|shard| (shard.position)(stream)).min()
    }

    fn tell_halted(&self, shard: &ShardEndpoint, stream: SourceStream, halt: &Halt) {
        let mail = shard.mail.clone();
        let halt = halt.row();
        let of = format!("of {}", self.name(stream));
        // Not by the reader itself: a shard with a full mailbox would hold up what the others have to be told.
        drop(self.tasks.spawn(Task::Reader, of, async move {
            // A shard that is gone takes nothing from behind the gap.
            drop(mail.send(Mail::StreamHalted { stream, halt }).await);
        }));
    }

    /// Resolves at this time of the monotonic clock.
    pub fn until(&self, at: Duration) -> Sleep {
        tokio::time::sleep(at.saturating_sub(self.clock.monotonic()))
    }

    /// A number by which waits are spread: another one with each call, and in each process.
    pub fn draw(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.reader_prefix.as_bytes());
        hasher.update(&self.draws.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        let mut drawn = [0; 8];
        hasher.finalize_xof().fill(&mut drawn);
        u64::from_le_bytes(drawn)
    }

    pub fn bounds(&self) -> Bounds {
        Bounds {
            inputs: self.settings.delivery_inputs,
            bytes: self.settings.delivery_bytes,
        }
    }

    /// A consumer name that no reader had before.
    pub fn reader_name(&self, stream: SourceStream) -> String {
        let number = self.readers_opened.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.now().0;
        format!("{}-{}-{now:x}-{number}", self.reader_prefix, stream.index())
    }

    /// What of the stream concerns the runner; empty where nothing does.
    pub fn filters(&self, stream: SourceStream) -> Vec<String> {
        let decoder = &self.router.decoder;
        let definitions = self.router.definitions.now();
        let kinds: Vec<(&str, Option<&str>)> = match stream {
            SourceStream::AggregateEvents => {
                let types = definitions.aggregate_types().into_iter();
                types.map(|name| ("aggregate", Some(name))).collect()
            }
            SourceStream::WorkflowEvents => {
                let publishers = definitions.publishers().into_iter();
                let facts = publishers.map(|saga| ("workflow_event", Some(saga.as_str())));
                std::iter::once(("effect_result", None)).chain(facts).collect()
            }
            SourceStream::WorkflowCommands => vec![("workflow", None), ("callbacks", None)],
        };
        let tenants: Vec<_> = match (&decoder.tenants, decoder.tenancy) {
            (Some(tenants), Tenancy::Multi) if tenants.len() * (kinds.len() + 1) <= FILTERS_MAX => {
                tenants.iter().map(Some).collect()
            }
            _ => vec![None],
        };
        // What only the runners say about an instance stands on subjects of their own.
        let own = |tenant| {
            let is_read = stream == SourceStream::WorkflowCommands;
            is_read.then(|| control_filter(&decoder.cluster, tenant))
        };
        if tenants.len() * kinds.len() > FILTERS_MAX {
            let kinds: BTreeSet<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
            let all = kinds.iter().map(|kind| filter(decoder.tenancy, None, kind, None));
            return all.chain(own(None)).collect();
        }
        let pairs = tenants
            .iter()
            .flat_map(|tenant| kinds.iter().map(move |kind| (tenant, kind)));
        pairs
            .map(|(tenant, (kind, name))| filter(decoder.tenancy, *tenant, kind, *name))
            .chain(tenants.iter().filter_map(|tenant| own(*tenant)))
            .collect()
    }
}

/// How far the shared reader of a stream is, for health and metrics.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub connected: AtomicBool,
    /// All up to here was decoded and queued for its shards.
    pub read: AtomicU64,
    /// The newest sequence of the stream that was heard of.
    pub end: AtomicU64,
    pub detached: AtomicU64,
    moved_ms: AtomicU64,
    /// Messages that had been removed one by one before this process looked for the first time.
    removed_before: Mutex<Option<Arc<[u64]>>>,
    mark: Mutex<Mark>,
    /// The furthest place that any reader of this process has come to.
    furthest: Mutex<Place>,
    /// Messages that were removed one by one, as far as the operator is told of them by the halt or they were gone before.
    told: Mutex<Option<Arc<[u64]>>>,
    is_halted: AtomicBool,
    halted: Mutex<Option<Halt>>,
}

/// The furthest place of a stream that is known to stand.
#[derive(Debug, Default)]
struct Mark {
    place: Place,
    /// When it is looked up next.
    next: Duration,
}

/// Why a reader must not go on: it would skip messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halt {
    /// `stream.gap` or `stream.identity`.
    pub reason: &'static str,
    /// Of a gap: the first message that is gone unread.
    pub lost_from: Option<u64>,
    pub message: String,
}

impl Halt {
    /// As a shard keeps it.
    #[must_use]
    pub fn row(&self) -> HaltRow {
        HaltRow {
            is_gap: self.reason == "stream.gap",
            lost_from: self.lost_from,
            message: self.message.clone(),
        }
    }
}

impl Progress {
    pub fn moved(&self, at: Duration) {
        let ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(ms, Ordering::Relaxed);
    }

    pub fn last_moved(&self) -> Duration {
        Duration::from_millis(self.moved_ms.load(Ordering::Relaxed))
    }

    pub fn heard_of(&self, sequence: u64) {
        self.end.fetch_max(sequence, Ordering::Relaxed);
    }

    /// `removed`: those of now, if nobody has looked before.
    pub fn removed_before(&self, removed: &Arc<[u64]>) -> Arc<[u64]> {
        let mut before = self.removed_before.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(before.get_or_insert_with(|| Arc::clone(removed)))
    }

    /// An operator has decided from where on the stream is read. What he was told of counts as removed before; where it is another
    /// stream, all that is removed now.
    pub fn repositioned(&self) {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *self.removed_before.lock().unwrap_or_else(PoisonError::into_inner) = told;
    }

    /// A reader has handed over everything up to `place`.
    pub fn read_to(&self, place: Place) {
        let mut furthest = self.furthest.lock().unwrap_or_else(PoisonError::into_inner);
        if place.sequence > furthest.sequence {
            *furthest = place;
        }
    }

    /// The furthest place that any reader has come to: whoever reads on finds it as it was.
    pub fn furthest(&self) -> Place {
        *self.furthest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything up to `place` was read from the stream as it is.
    pub fn stands(&self, place: Place) {
        let mut mark = self.mark();
        if place.stamp.is_some() && place.sequence > mark.place.sequence {
            mark.place = place;
        }
    }

    /// The place to be looked up, if it is time for that.
    pub fn to_look_up(&self, now: Duration) -> Option<Place> {
        // The lock is free again before it is taken once more.
        let next = self.mark().next;
        (now >= next).then(|| self.to_look_up_now(now))
    }

    /// The same, whether it is time for that or not.
    pub fn to_look_up_now(&self, now: Duration) -> Place {
        let mut mark = self.mark();
        mark.next = now + IDENTITY_EVERY;
        mark.place
    }

    fn mark(&self) -> MutexGuard<'_, Mark> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reading begins again at `place`, wherever it was before.
    pub fn begin_again(&self, place: Place) {
        self.mark().place = place;
        *self.furthest.lock().unwrap_or_else(PoisonError::into_inner) = place;
        self.read.store(place.sequence, Ordering::Relaxed);
        self.end.store(0, Ordering::Relaxed);
        *self.halted.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.is_halted.store(false, Ordering::Release);
    }

    pub fn is_halted(&self) -> bool {
        self.is_halted.load(Ordering::Acquire)
    }

    /// `told`: what was removed one by one and is not news any more; `None` where it is another stream.
    pub fn halt(&self, halt: Halt, told: Option<Arc<[u64]>>) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = told;
        self.is_halted.store(true, Ordering::Release);
        *self.halted.lock().unwrap_or_else(PoisonError::into_inner) = Some(halt);
    }

    pub fn halted(&self) -> Option<Halt> {
        self.halted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
