//! What others may know of a shard at any time, without asking by mail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::mailbox::Gates;
use super::watchers::Watchers;
use crate::kernel::input::SourceStream;
use crate::telemetry::Metrics;

/// State of a shard's thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardState {
    Running,
    /// No room on the disk: the batch is tried again.
    Full(String),
    /// It does nothing until an operator acts; reason code and sentence.
    Halted {
        reason: &'static str,
        message: String,
    },
    Stopped,
}

/// Written by the shard's thread, read by everyone. Positions and counts are those of the last commit, so what
/// they say survives a crash.
#[derive(Debug)]
pub struct ShardStatus {
    /// Which streams it wants no more of for now.
    pub gates: Arc<Gates>,
    /// Who waits for what happens to instances.
    pub watchers: Arc<Watchers>,
    positions: [AtomicU64; 3],
    state: RwLock<ShardState>,
    spilled: AtomicBool,
    commits: AtomicU64,
    /// Milliseconds of the monotonic clock.
    progress: AtomicU64,
    unreadable: RwLock<Option<String>>,
    outdated: AtomicBool,
    catching_up: AtomicBool,
    outbox_rows: AtomicU64,
    deliveries_held: AtomicU64,
    instances_waiting: AtomicU64,
    instances_unversioned: AtomicU64,
    instances_blocked: AtomicU64,
}

/// Counts of one commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    pub outbox_rows: u64,
    pub deliveries_held: usize,
    pub instances_waiting: usize,
    pub instances_unversioned: usize,
    pub instances_blocked: usize,
}

impl ShardStatus {
    pub(super) fn new(positions: [u64; 3], now: Duration) -> Self {
        Self {
            gates: Arc::default(),
            watchers: Arc::default(),
            catching_up: AtomicBool::new(false),
            positions: positions.map(AtomicU64::new),
            state: RwLock::new(ShardState::Running),
            spilled: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            progress: AtomicU64::new(millis(now)),
            unreadable: RwLock::new(None),
            outdated: AtomicBool::new(false),
            outbox_rows: AtomicU64::new(0),
            deliveries_held: AtomicU64::new(0),
            instances_waiting: AtomicU64::new(0),
            instances_unversioned: AtomicU64::new(0),
            instances_blocked: AtomicU64::new(0),
        }
    }

    /// The sequence of `stream` up to which everything is stored.
    #[must_use]
    pub fn position(&self, stream: SourceStream) -> u64 {
        self.positions[stream.index()].load(Ordering::Acquire)
    }

    /// The same of all streams, by [`SourceStream::index`].
    #[must_use]
    pub fn positions(&self) -> [u64; 3] {
        std::array::from_fn(|stream| self.positions[stream].load(Ordering::Acquire))
    }

    #[must_use]
    pub fn state(&self) -> ShardState {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a release found no room since the last call. Its rows are in the outbox, and
    /// [`super::mailbox::Mail::Refill`] brings them.
    #[must_use]
    pub fn take_spilled(&self) -> bool {
        // A plain load first: this is asked often and is nearly always false.
        self.spilled.load(Ordering::Acquire) && self.spilled.swap(false, Ordering::AcqRel)
    }

    /// Commits since the start.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// When the shard last committed something, or found that there was nothing to do, by the monotonic clock. A thread
    /// that hangs does neither.
    #[must_use]
    pub fn last_progress(&self) -> Duration {
        Duration::from_millis(self.progress.load(Ordering::Acquire))
    }

    /// Why the shard's state could not be read when it was tried last, `None` where it could.
    #[must_use]
    pub fn unreadable(&self) -> Option<String> {
        self.unreadable
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether the shard had no room for the definitions of the last reload and works under those from before it.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Acquire)
    }

    /// Whether the shard takes what its streams hold in stored order, after its start or a break.
    #[must_use]
    pub fn is_catching_up(&self) -> bool {
        self.catching_up.load(Ordering::Acquire)
    }

    /// Rows in the outbox.
    #[must_use]
    pub fn outbox_rows(&self) -> u64 {
        self.outbox_rows.load(Ordering::Relaxed)
    }

    /// Deliveries that are set aside until the outbox has room.
    #[must_use]
    pub fn deliveries_held(&self) -> u64 {
        self.deliveries_held.load(Ordering::Relaxed)
    }

    /// Instances that have inputs in the inbox or stand behind a dead letter.
    #[must_use]
    pub fn instances_waiting(&self) -> u64 {
        self.instances_waiting.load(Ordering::Relaxed)
    }

    /// Instances whose inputs wait because the definition is not loaded.
    #[must_use]
    pub fn instances_unversioned(&self) -> u64 {
        self.instances_unversioned.load(Ordering::Relaxed)
    }

    /// Instances that wait behind a dead letter or for their definition.
    #[must_use]
    pub fn instances_blocked(&self) -> u64 {
        self.instances_blocked.load(Ordering::Relaxed)
    }

    pub(super) fn set_state(&self, state: ShardState) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// The shard does nothing any more.
    pub(super) fn halt(&self, shard: u16, reason: &'static str, message: String, metrics: &Metrics) {
        tracing::error!(shard, reason, message, "shard halted: a person must act");
        self.set_state(ShardState::Halted { reason, message });
        metrics
            .shards_halted
            .with_label_values(&[shard.to_string().as_str(), reason])
            .set(1);
    }

    /// An operator has decided about why it was halted.
    pub(super) fn resume(&self, shard: u16, reason: &'static str, metrics: &Metrics) {
        tracing::info!(shard, reason, "shard goes on");
        self.set_state(ShardState::Running);
        metrics
            .shards_halted
            .with_label_values(&[shard.to_string().as_str(), reason])
            .set(0);
    }

    pub(super) fn moved(&self, positions: [u64; 3]) {
        for (shown, position) in self.positions.iter().zip(positions) {
            shown.store(position, Ordering::Release);
        }
    }

    pub(super) fn set_spilled(&self) {
        self.spilled.store(true, Ordering::Release);
    }

    pub(super) fn set_progress(&self, now: Duration) {
        self.progress.store(millis(now), Ordering::Release);
    }

    pub(super) fn set_unreadable(&self, reason: Option<String>) {
        *self.unreadable.write().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    pub(super) fn set_outdated(&self, outdated: bool) {
        self.outdated.store(outdated, Ordering::Release);
    }

    pub(super) fn set_catching_up(&self, catching_up: bool) {
        self.catching_up.store(catching_up, Ordering::Release);
    }

    pub(super) fn committed(&self, positions: [u64; 3], figures: Figures) {
        self.outbox_rows.store(figures.outbox_rows, Ordering::Relaxed);
        self.deliveries_held
            .store(figures.deliveries_held as u64, Ordering::Relaxed);
        self.instances_waiting
            .store(figures.instances_waiting as u64, Ordering::Relaxed);
        self.instances_unversioned
            .store(figures.instances_unversioned as u64, Ordering::Relaxed);
        self.instances_blocked
            .store(figures.instances_blocked as u64, Ordering::Relaxed);
        self.moved(positions);
        self.commits.fetch_add(1, Ordering::Release);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
