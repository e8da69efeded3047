//! What others may know of a shard at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::kernel::input::SourceStream;

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

/// Written by the shard's thread after each commit, read by everyone.
#[derive(Debug)]
pub struct ShardStatus {
    positions: [AtomicU64; 3],
    state: RwLock<ShardState>,
    spilled: AtomicBool,
    outbox_rows: AtomicU64,
    commits: AtomicU64,
}

impl ShardStatus {
    pub(super) fn new(positions: [u64; 3]) -> Self {
        Self {
            positions: positions.map(AtomicU64::new),
            state: RwLock::new(ShardState::Running),
            spilled: AtomicBool::new(false),
            outbox_rows: AtomicU64::new(0),
            commits: AtomicU64::new(0),
        }
    }

    /// The sequence of `stream` up to which everything is stored.
    #[must_use]
    pub fn position(&self, stream: SourceStream) -> u64 {
        self.positions[stream.index()].load(Ordering::Acquire)
    }

    #[must_use]
    pub fn state(&self) -> ShardState {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a release found no room since the last call.
    #[must_use]
    pub fn take_spilled(&self) -> bool {
        self.spilled.swap(false, Ordering::AcqRel)
    }

    /// Rows in the outbox.
    #[must_use]
    pub fn outbox_rows(&self) -> u64 {
        self.outbox_rows.load(Ordering::Relaxed)
    }

    /// Commits since the start.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub(super) fn set_state(&self, state: ShardState) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    pub(super) fn set_spilled(&self) {
        self.spilled.store(true, Ordering::Release);
    }

    pub(super) fn committed(&self, positions: [u64; 3], outbox_rows: u64) {
        for (shown, position) in self.positions.iter().zip(positions) {
            shown.store(position, Ordering::Release);
        }
        self.outbox_rows.store(outbox_rows, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }
}
