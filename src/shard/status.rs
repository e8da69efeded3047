//! What a shard shows of itself to other threads, without being asked by mail.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};

use super::mailbox::SentFloor;
use crate::kernel::ids::TimeMs;
use crate::kernel::input::SourceStream;

/// Life of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardState {
    Starting,
    Running,
    /// No space: nothing is acknowledged, and the same batch is tried again every second.
    StorageFull,
    /// It will do nothing more in this process.
    Halted(Halt),
    Stopped,
}

/// Why a shard halted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halt {
    /// Stable reason code, e.g. `stream.gap`, `data.corrupt`.
    pub reason: &'static str,
    pub message: String,
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

/// Figures of one shard. Positions and counts are those of the last commit.
#[derive(Debug, Default)]
pub struct ShardStatus {
    /// Written by the relay, stored by the shard with its next commit.
    pub sent_floor: std::sync::Arc<SentFloor>,
    phase: AtomicU8,
    halt: OnceLock<Halt>,
    positions: [AtomicU64; 3],
    progress: AtomicI64,
    pub(super) outbox_rows: AtomicU64,
    pub(super) timers_overdue: AtomicU64,
    pub(super) deliveries_held: AtomicU64,
    pub(super) instances_waiting: AtomicU64,
    spilled: AtomicBool,
}

const STARTING: u8 = 0;
const RUNNING: u8 = 1;
const STORAGE_FULL: u8 = 2;
const STOPPED: u8 = 3;

impl ShardStatus {
    #[must_use]
    pub fn state(&self) -> ShardState {
        if let Some(halt) = self.halt.get() {
            return ShardState::Halted(halt.clone());
        }
        match self.phase.load(Ordering::Acquire) {
            STARTING => ShardState::Starting,
            RUNNING => ShardState::Running,
            STORAGE_FULL => ShardState::StorageFull,
            _ => ShardState::Stopped,
        }
    }

    /// Sequence up to which the shared lane of `stream` is applied and durable.
    #[must_use]
    pub fn position(&self, stream: SourceStream) -> u64 {
        self.positions[stream.index()].load(Ordering::Acquire)
    }

    /// When the shard last committed something or found that there was nothing to do.
    #[must_use]
    pub fn last_progress(&self) -> TimeMs {
        TimeMs(self.progress.load(Ordering::Acquire))
    }

    #[must_use]
    pub fn outbox_rows(&self) -> u64 {
        self.outbox_rows.load(Ordering::Relaxed)
    }

    /// Timers that are due and did not fire, counted up to a bound.
    #[must_use]
    pub fn timers_overdue(&self) -> u64 {
        self.timers_overdue.load(Ordering::Relaxed)
    }

    /// Deliveries that are set aside until the outbox has room.
    #[must_use]
    pub fn deliveries_held(&self) -> u64 {
        self.deliveries_held.load(Ordering::Relaxed)
    }

    /// Instances with inputs in the inbox, or behind a dead letter.
    #[must_use]
    pub fn instances_waiting(&self) -> u64 {
        self.instances_waiting.load(Ordering::Relaxed)
    }

    /// Says, and forgets, whether a release was lost because the relay's channel was full. Its rows are in the
    /// outbox, and [`super::mailbox::Mail::Refill`] brings them.
    #[must_use]
    pub fn take_spilled(&self) -> bool {
        // A plain load first: this is asked often and is nearly always false.
        self.spilled.load(Ordering::Acquire) && self.spilled.swap(false, Ordering::AcqRel)
    }

    pub(super) fn set_spilled(&self) {
        self.spilled.store(true, Ordering::Release);
    }

    pub(super) fn set_running(&self) {
        self.phase.store(RUNNING, Ordering::Release);
    }

    pub(super) fn set_storage_full(&self) {
        self.phase.store(STORAGE_FULL, Ordering::Release);
    }

    pub(super) fn set_stopped(&self) {
        self.phase.store(STOPPED, Ordering::Release);
    }

    /// Keeps the first reason.
    pub(super) fn set_halted(&self, halt: Halt) {
        let _ = self.halt.set(halt);
    }

    pub(super) fn set_position(&self, stream: SourceStream, sequence: u64) {
        self.positions[stream.index()].store(sequence, Ordering::Release);
    }

    pub(super) fn set_progress(&self, now: TimeMs) {
        self.progress.store(now.0, Ordering::Release);
    }
}
