//! The real clock: the one place that reads the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::kernel::ids::TimeMs;
use crate::ports::clock::Clock;

#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one legal site")]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the one legal site")]
    fn now(&self) -> TimeMs {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        TimeMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    #[allow(clippy::disallowed_methods, reason = "the one legal site")]
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}
