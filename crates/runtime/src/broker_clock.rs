//! The broker's time, as far as this process knows it.
//!
//! When a timer is due comes from the times of messages, which the broker gives. So whatever is held against them is told by
//! the broker's clock as well. It is known from what the broker tells with the states of streams, and from the monotonic
//! clock since then; the wall clock of the machine counts only until the broker has told its time for the first time.
//! Where the two differ, [`BrokerClock::ahead_ms`] says so (ADR 77).

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::kernel::ids::TimeMs;
use crate::kernel::input::SourceStream;
use crate::ports::clock::Clock;

/// What was told so long before the last word counts no more: the monotonic clocks of two machines drift apart.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);
/// In place of an offset that is not known.
const UNKNOWN: i64 = i64::MIN;

/// A clock that shows the broker's time. Until that is known it shows the machine's.
pub struct BrokerClock {
    own: Arc<dyn Clock>,
    /// By [`SourceStream::index`]: each stream is kept, and its messages are given their times, by a server of its own.
    told: Mutex<[Option<Told>; 3]>,
    /// The broker's time less the monotonic clock, in microseconds, at least: of the stream whose clock is the furthest
    /// behind.
    offset: AtomicI64,
}

/// A question was asked at this time of the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Asked(Duration);

/// What is known of the clock of a server: its time less the monotonic clock, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Told {
    least: i64,
    most: i64,
    at: Duration,
}

impl BrokerClock {
    #[must_use]
    pub fn new(own: Arc<dyn Clock>) -> Self {
        Self {
            own,
            told: Mutex::default(),
            offset: AtomicI64::new(UNKNOWN),
        }
    }

    /// The clock of the machine.
    #[must_use]
    pub const fn own(&self) -> &Arc<dyn Clock> {
        &self.own
    }

    /// To be called right before the broker is asked.
    #[must_use]
    pub fn ask(&self) -> Asked {
        Asked(self.own.monotonic())
    }

    /// To be called right after it has answered that its time was `time`. The result is what its time was when it was
    /// asked, at least: whatever it stored up to then lies within its answer.
    pub fn told(&self, stream: SourceStream, asked: Asked, time: TimeMs) -> TimeMs {
        let Asked(asked) = asked;
        let heard = self.own.monotonic();
        let micros = time.0.saturating_mul(1_000);
        // Its clock has shown that time at some instant between the two, and times are rounded down.
        let mut news = Told {
            least: micros.saturating_sub(us(heard)),
            most: micros.saturating_add(999).saturating_sub(us(asked)),
            at: heard,
        };
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut all[stream.index()];
        // Unless the server's clock was set, both are true. The answer that took the shortest time tells most.
        if let Some(before) = known.filter(|before| before.least <= news.most && news.least <= before.most) {
            news.least = news.least.max(before.least);
            news.most = news.most.min(before.most);
        }
        *known = Some(news);
        let offset = recent(&all).map(|told| told.least).min();
        self.offset.store(offset.unwrap_or(UNKNOWN), Ordering::Relaxed);
        shown(news.least, asked)
    }

    /// How far the clock of the machine is surely ahead of the broker's, in milliseconds; below 0: behind. `None`: the
    /// broker has not told its time yet.
    #[must_use]
    pub fn ahead_ms(&self) -> Option<i64> {
        let all = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (own, monotonic) = (self.own.now().0.saturating_mul(1_000), us(self.own.monotonic()));
        let ahead = recent(&all).map(|told| {
            let most = told.most.saturating_add(monotonic);
            let least = told.least.saturating_add(monotonic);
            if own > most {
                own.saturating_sub(most)
            } else {
                own.saturating_add(999).saturating_sub(least).min(0)
            }
        });
        ahead.max_by_key(|ahead| ahead.abs()).map(|ahead| ahead / 1_000)
    }
}

/// What is not much older than the newest.
fn recent(all: &[Option<Told>; 3]) -> impl Iterator<Item = &Told> {
    let newest = all.iter().flatten().map(|told| told.at).max();
    let since = newest.unwrap_or_default().saturating_sub(FORGOTTEN_AFTER);
    all.iter().flatten().filter(move |told| told.at >= since)
}

/// What the clock shows at this time of the monotonic one.
const fn shown(offset: i64, monotonic: Duration) -> TimeMs {
    TimeMs(offset.saturating_add(us(monotonic)).div_euclid(1_000))
}

#[allow(clippy::cast_possible_truncation, reason = "292,000 years")]
const fn us(duration: Duration) -> i64 {
    duration.as_micros() as i64
}

impl Clock for BrokerClock {
    /// The broker's time, at least.
    fn now(&self) -> TimeMs {
        match self.offset.load(Ordering::Relaxed) {
            UNKNOWN => self.own.now(),
            offset => shown(offset, self.own.monotonic()),
        }
    }

    fn monotonic(&self) -> Duration {
        self.own.monotonic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: SourceStream = SourceStream::AggregateEvents;
    const RESULTS: SourceStream = SourceStream::WorkflowEvents;
    /// The broker's time when the monotonic clock begins.
    const BEGIN: i64 = 1_000_000;

    /// The machine's clock, which is ahead of the broker's by so much.
    #[derive(Default)]
    struct Machine {
        passed_ms: AtomicI64,
        ahead_ms: AtomicI64,
    }

    impl Machine {
        fn pass(&self, ms: i64) {
            self.passed_ms.fetch_add(ms, Ordering::Relaxed);
        }

        fn passed(&self) -> i64 {
            self.passed_ms.load(Ordering::Relaxed)
        }
    }

    impl Clock for Machine {
        fn now(&self) -> TimeMs {
            TimeMs(BEGIN + self.passed() + self.ahead_ms.load(Ordering::Relaxed))
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(u64::try_from(self.passed()).expect("not before the begin"))
        }
    }

    struct Scene {
        machine: Arc<Machine>,
        clock: BrokerClock,
        /// How far the clock of the server was set since.
        server_ms: i64,
    }

    impl Scene {
        fn new(ahead_ms: i64) -> Self {
            let machine = Arc::new(Machine::default());
            machine.ahead_ms.store(ahead_ms, Ordering::Relaxed);
            Self {
                clock: BrokerClock::new(Arc::clone(&machine) as Arc<dyn Clock>),
                machine,
                server_ms: 0,
            }
        }

        /// Asks; the server answers after `there`, and the answer takes `back`. Gives what is known of its time when it was
        /// asked, as its distance from what that was.
        fn ask(&self, stream: SourceStream, there: i64, back: i64) -> i64 {
            let asked = self.clock.ask();
            let at_asking = self.server();
            self.machine.pass(there);
            let time = TimeMs(self.server());
            self.machine.pass(back);
            self.clock.told(stream, asked, time).0 - at_asking
        }

        fn server(&self) -> i64 {
            BEGIN + self.machine.passed() + self.server_ms
        }

        fn behind(&self) -> i64 {
            self.server() - self.clock.now().0
        }
    }

    #[test]
    fn the_clock_shows_the_machines_time_until_the_broker_has_told_its_own() {
        let scene = Scene::new(3_600_000);
        assert_eq!(scene.behind(), -3_600_000);
        assert_eq!(scene.clock.ahead_ms(), None);
        assert_eq!(scene.ask(EVENTS, 0, 0), 0);
        assert_eq!(scene.behind(), 0);
        scene.machine.pass(10_000);
        assert_eq!(scene.behind(), 0, "it goes on between two answers");
        scene.machine.ahead_ms.store(-3_600_000, Ordering::Relaxed);
        assert_eq!(scene.behind(), 0, "whatever the machine's clock is set to");
    }

    #[test]
    fn the_broker_clock_is_never_ahead_of_the_broker() {
        for (there, back) in [(0, 0), (5, 0), (0, 5), (40, 60), (2_000, 3_000)] {
            let scene = Scene::new(0);
            assert_eq!(scene.ask(EVENTS, there, back), -back);
            assert_eq!(scene.behind(), back, "never ahead of the broker");
            assert_eq!(
                scene.ask(EVENTS, 1, 1),
                -back.min(1),
                "the shorter answer tells more"
            );
            assert_eq!(scene.ask(EVENTS, 30, 40), -back.min(1), "and is not forgotten");
        }
    }

    #[test]
    fn a_server_whose_clock_was_set_is_believed() {
        for set in [-60_000, 60_000] {
            let mut scene = Scene::new(0);
            scene.ask(EVENTS, 1, 1);
            scene.server_ms = set;
            assert_eq!(scene.ask(EVENTS, 3, 4), -4);
            assert_eq!(scene.behind(), 4);
        }
    }

    #[test]
    fn of_several_servers_the_one_that_is_the_furthest_behind_counts() {
        let mut scene = Scene::new(0);
        scene.ask(EVENTS, 0, 0);
        scene.server_ms = -500;
        scene.ask(RESULTS, 0, 0);
        assert_eq!(scene.behind(), 0);
        scene.server_ms = 0;
        assert_eq!(scene.ask(EVENTS, 0, 0), 0, "each stream is read by its own clock");
        assert_eq!(scene.behind(), 500);
        scene.machine.pass(31_000);
        scene.ask(EVENTS, 0, 0);
        assert_eq!(scene.behind(), 0, "what is not asked any more is forgotten");
    }

    #[test]
    fn a_difference_is_told_as_far_as_it_is_certain() {
        let scene = Scene::new(3_600_000);
        scene.ask(EVENTS, 100, 0);
        assert_eq!(scene.clock.ahead_ms(), Some(3_599_899));
        scene.ask(EVENTS, 0, 1);
        assert_eq!(scene.clock.ahead_ms(), Some(3_599_999));
        scene.machine.ahead_ms.store(-3_600_000, Ordering::Relaxed);
        assert_eq!(scene.clock.ahead_ms(), Some(-3_599_999));
        scene.machine.ahead_ms.store(0, Ordering::Relaxed);
        assert_eq!(scene.clock.ahead_ms(), Some(0));
        let slow = Scene::new(2_000);
        slow.ask(EVENTS, 3_000, 0);
        assert_eq!(slow.clock.ahead_ms(), Some(0), "the answer took longer");
    }
}
