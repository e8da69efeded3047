//! Work that is tried again until it succeeds, and since when it has not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ports::clock::Clock;

/// What does not get on. Clones are the same.
#[derive(Clone)]
pub struct Stuck(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    failing: Mutex<Failing>,
}

#[derive(Default)]
struct Failing {
    last: u64,
    /// As many at most as there is work in flight.
    work: BTreeMap<u64, Failure>,
}

struct Failure {
    with: String,
    since: Duration,
    reason: String,
}

impl Stuck {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            clock,
            failing: Mutex::default(),
        }))
    }

    /// Work that begins now; `with` names whom it depends on, a stream most often. Dropped, it is forgotten.
    #[must_use]
    pub fn begin<'w>(&'w self, with: &'w str) -> Attempts<'w> {
        Attempts {
            stuck: self,
            with,
            since: self.0.clock.monotonic(),
            number: None,
        }
    }

    /// What has not got on for so long, one line for each that it depends on.
    #[must_use]
    pub fn longer_than(&self, patience: Duration) -> Vec<String> {
        let now = self.0.clock.monotonic();
        // How many, and the one that has waited longest.
        let mut found: BTreeMap<String, (usize, Duration, String)> = BTreeMap::new();
        for failure in self.failing().work.values() {
            let waits = now.saturating_sub(failure.since);
            if waits < patience {
                continue;
            }
            let line = found.entry(failure.with.clone()).or_default();
            line.0 += 1;
            if waits > line.1 {
                (line.1, line.2) = (waits, failure.reason.clone());
            }
        }
        let lines = found.into_iter();
        lines
            .map(|(with, (number, waits, reason))| {
                let seconds = waits.as_secs();
                format!("{with}: {number} message(s) could not be stored for up to {seconds} s: {reason}")
            })
            .collect()
    }

    fn failing(&self) -> MutexGuard<'_, Failing> {
        self.0.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The attempts at one piece of work.
pub struct Attempts<'w> {
    stuck: &'w Stuck,
    with: &'w str,
    since: Duration,
    number: Option<u64>,
}

impl Attempts<'_> {
    /// One has failed, and another one follows.
    pub fn failed(&mut self, reason: &str) {
        let mut failing = self.stuck.failing();
        let number = *self.number.get_or_insert_with(|| {
            failing.last += 1;
            failing.last
        });
        let failure = Failure {
            with: self.with.to_owned(),
            since: self.since,
            reason: reason.to_owned(),
        };
        failing.work.insert(number, failure);
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.stuck.failing().work.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::kernel::ids::TimeMs;

    #[derive(Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now(&self) -> TimeMs {
            TimeMs(0)
        }

        fn monotonic(&self) -> Duration {
            Duration::from_secs(self.0.load(Ordering::SeqCst))
        }
    }

    #[test]
    fn only_what_has_failed_for_long_is_told_and_no_longer_than_it_is_tried() {
        let clock = Arc::new(Hand::default());
        let stuck = Stuck::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let long = Duration::from_secs(10);
        let mut first = stuck.begin("A");
        let _never_failed = stuck.begin("B");
        clock.0.store(6, Ordering::SeqCst);
        first.failed("full");
        let mut second = stuck.begin("A");
        second.failed("denied");
        assert_eq!(stuck.longer_than(long), Vec::<String>::new());
        clock.0.store(12, Ordering::SeqCst);
        first.failed("full still");
        let line = |number, seconds, reason| {
            vec![format!(
                "A: {number} message(s) could not be stored for up to {seconds} s: {reason}"
            )]
        };
        assert_eq!(stuck.longer_than(long), line(1, 12, "full still"));
        clock.0.store(17, Ordering::SeqCst);
        assert_eq!(stuck.longer_than(long), line(2, 17, "full still"));
        drop(first);
        assert_eq!(stuck.longer_than(long), line(1, 11, "denied"));
        drop(second);
        assert_eq!(stuck.longer_than(long), Vec::<String>::new());
    }
}
