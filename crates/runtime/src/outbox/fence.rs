//! Whether this process may send for a shard: it is asked right before each publication, submission, local call and trim.
//!
//! The owner of a shard renews its record in the broker (`src/app/ownership/`), and each renewal lets it send for a while by
//! the monotonic clock. Where renewals stay out, because the broker is away, the process stood still or another one has the
//! shard, the fence closes by itself, without anybody having to act.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::kernel::ids::TimeMs;
use crate::kernel::planted::{Bug, is_planted};
use crate::ports::clock::Clock;

/// The right to send for one shard.
pub struct Fence {
    clock: Arc<dyn Clock>,
    /// Milliseconds of the monotonic clock at which it closes.
    closes: AtomicU64,
    /// Nothing is sent before the streams have been read to their ends, and what is left was decided about.
    held: AtomicBool,
    /// It was held at some time.
    resumed: AtomicBool,
    /// Log sequence up to which work may have been handed over by an earlier life of the shard, as far as the fence knows.
    earlier: AtomicU64,
    /// Milliseconds of the wall clock when the streams had been read.
    read: AtomicI64,
    opened: Notify,
}

impl Fence {
    /// One that is closed until it is renewed.
    #[must_use]
    pub fn closed(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            clock,
            closes: AtomicU64::new(0),
            held: AtomicBool::new(false),
            resumed: AtomicBool::new(false),
            earlier: AtomicU64::new(0),
            read: AtomicI64::new(i64::MAX),
            opened: Notify::new(),
        })
    }

    /// One that never closes, where there can be no other owner.
    #[must_use]
    pub fn open(clock: Arc<dyn Clock>) -> Arc<Self> {
        let fence = Self::closed(clock);
        fence.closes.store(u64::MAX, Ordering::Release);
        fence
    }

    /// Whether the process may send now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_held() && self.is_renewed()
    }

    /// Whether its time is not over.
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        millis(self.clock.monotonic()) < self.closes.load(Ordering::Acquire) || is_planted(Bug::NoFence)
    }

    /// Waits until the process may send.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn passed(&self) {
        loop {
            let opened = self.opened.notified();
            if self.is_open() {
                return;
            }
            opened.await;
        }
    }

    /// It closes at this instant of the monotonic clock.
    pub fn renew(&self, closes: Duration) {
        self.closes.store(millis(closes), Ordering::Release);
        self.opened.notify_waiters();
    }

    /// It is closed at once.
    pub fn close(&self) {
        self.closes.store(0, Ordering::Release);
    }

    /// Nothing is sent until [`Self::release`]: the shard goes on from a state behind which it has worked already.
    pub fn hold(&self) {
        self.resumed.store(true, Ordering::Release);
        self.earlier.store(u64::MAX, Ordering::Release);
        self.held.store(true, Ordering::Release);
    }

    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Whether this life of the shard has begun from such a state. What was done behind it, only the streams can tell.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.resumed.load(Ordering::Acquire)
    }

    /// Whether work of such a life may have been carried out behind the state that it has begun from. Its place in the log
    /// tells of the time of the hold; later steps of what was caught up have the times of what they follow from.
    #[must_use]
    pub fn may_be_done(&self, log_sequence: u64, created: TimeMs) -> bool {
        log_sequence <= self.earlier() || created.0 < self.read.load(Ordering::Acquire)
    }

    /// What it was held for is done; work up to this log sequence, and what follows from inputs before this time, may have
    /// been carried out before.
    pub fn release(&self, earlier: u64, read: TimeMs) {
        self.resumed.store(true, Ordering::Release);
        self.earlier.store(earlier, Ordering::Release);
        self.read.store(read.0, Ordering::Release);
        self.held.store(false, Ordering::Release);
        self.opened.notify_waiters();
    }

    /// Log sequence up to which work may have been handed over by an earlier life of the shard.
    #[must_use]
    pub fn earlier(&self) -> u64 {
        self.earlier.load(Ordering::Acquire)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    struct At(AtomicU64);

    impl Clock for At {
        fn now(&self) -> TimeMs {
            TimeMs(0)
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::Acquire))
        }
    }

    #[test]
    fn the_fence_closes_when_its_time_is_over() {
        let clock = Arc::new(At(AtomicU64::new(1_000)));
        let fence = Fence::closed(Arc::clone(&clock) as Arc<dyn Clock>);
        assert!(!fence.is_open(), "before the first renewal");
        fence.renew(Duration::from_secs(2));
        assert!(fence.is_open());
        clock.0.store(1_999, Ordering::Release);
        assert!(fence.is_open());
        clock.0.store(2_000, Ordering::Release);
        assert!(!fence.is_open());
        fence.renew(Duration::from_secs(3));
        fence.close();
        assert!(!fence.is_open());
    }

    #[test]
    fn a_waiting_send_passes_with_the_renewal_and_not_before_the_hold_is_over() {
        let clock = Arc::new(At(AtomicU64::new(1_000)));
        let fence = Fence::closed(clock);
        fence.hold();
        let mut waiting = pin!(fence.passed());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        fence.renew(Duration::from_secs(2));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(fence.earlier(), u64::MAX);
        fence.release(7, TimeMs(50));
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        assert_eq!(fence.earlier(), 7);
        assert!(fence.is_resumed() && !fence.is_held());
        assert!(fence.may_be_done(7, TimeMs(60)) && fence.may_be_done(8, TimeMs(49)));
        assert!(!fence.may_be_done(8, TimeMs(50)), "asked for by what came later");
    }
}
