//! The real clock: the one place that reads the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::kernel::ids::TimeMs;
use crate::ports::clock::Clock;

#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
    /// Where the machine has a clock that goes on while it sleeps: what it told at the start.
    booted: Option<Duration>,
}

impl SystemClock {
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one legal site")]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            booted: since_boot(),
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
        // A machine that sleeps, or is moved to another one, owns its shards no longer than others believe.
        match (self.booted, since_boot()) {
            (Some(start), Some(now)) => now.saturating_sub(start),
            _ => self.start.elapsed(),
        }
    }
}

/// Time since the machine was started, time asleep included.
#[cfg(target_os = "linux")]
fn since_boot() -> Option<Duration> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).ok()?;
    Some(now.into())
}

#[cfg(not(target_os = "linux"))]
const fn since_boot() -> Option<Duration> {
    None
}
