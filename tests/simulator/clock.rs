//! Virtual time: tokio's paused clock, which goes on to the next timer where nothing else is to be done.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use saga_runner::kernel::ids::TimeMs;
use saga_runner::ports::clock::Clock;
use tokio::time::Instant;

/// When a simulation begins: 2026-01-01T00:00:00Z.
pub const BEGIN: TimeMs = TimeMs(1_767_225_600_000);

/// Time that goes on over all lives of a process. The wall clock of the process may be wrong, that of the broker is right.
pub struct VirtualClock(Mutex<State>);

struct State {
    /// What has passed before this life.
    before: Duration,
    /// When this life began, by the clock of its runtime; none between two lives.
    began: Option<Instant>,
    /// How far the process's wall clock is ahead.
    step_ms: i64,
}

impl VirtualClock {
    pub fn new() -> Self {
        Self(Mutex::new(State {
            before: Duration::ZERO,
            began: None,
            step_ms: 0,
        }))
    }

    /// A life begins on the runtime of the caller.
    pub fn begin_life(&self) {
        self.lock().began = Some(Instant::now());
    }

    /// The life is over; what still asks sees no time pass.
    pub fn end_life(&self) {
        let mut state = self.lock();
        state.before = state.passed();
        state.began = None;
    }

    /// Time since the simulation began.
    pub fn passed(&self) -> Duration {
        self.lock().passed()
    }

    /// The broker's wall clock.
    pub fn true_now(&self) -> TimeMs {
        BEGIN.plus_ms(ms(self.passed()))
    }

    /// Sets the process's wall clock ahead of the broker's, or behind it.
    pub fn step(&self, step_ms: i64) {
        self.lock().step_ms = step_ms;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn passed(&self) -> Duration {
        self.before + self.began.map_or(Duration::ZERO, |began| began.elapsed())
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> TimeMs {
        let state = self.lock();
        BEGIN.plus_ms(ms(state.passed()) + state.step_ms)
    }

    fn monotonic(&self) -> Duration {
        self.passed()
    }
}

pub fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
