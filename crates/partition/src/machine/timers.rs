//! When timers may fire: behind a barrier of every source stream, or after they have waited too long for a stream that
//! cannot be read.

use std::time::Duration;

use saga_runner_kernel::ids::{InstanceId, TimeMs};
use saga_runner_kernel::input::{Input, InputBody, Origin, SourceStream};

/// Time between two requests for a barrier that does not come.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// What a shard knows of its streams' barriers.
#[derive(Debug)]
pub struct Barriers {
    /// Everything that each stream held at this instant has been taken.
    as_of: [TimeMs; 3],
    /// Streams of which one has come since this began, whatever was done to the clock since.
    raised: [bool; 3],
    /// The barrier that was asked for: it has to cover this instant; and when it was asked for.
    asked: Option<(TimeMs, Duration)>,
    /// Since when due timers have been waiting in this process without a break, by both clocks. The time before the
    /// start does not count: after an outage the streams hold what came meanwhile.
    held_since: Option<(Duration, TimeMs)>,
}

/// What to do about the next timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firing {
    /// Nothing is due.
    Idle,
    /// Fire what is due up to `until`; `late_source` where that is not covered by barriers.
    Fire { until: TimeMs, late_source: bool },
    /// Ask for a barrier, then wait.
    Ask,
    /// A barrier is on its way; look again after this time at the latest.
    Wait(Duration),
}

/// Whether a due timer still waits for its streams.
enum Hold {
    Lasts(Duration),
    /// Whatever was due up to `until` has waited long enough.
    Over {
        until: TimeMs,
    },
}

impl Default for Barriers {
    fn default() -> Self {
        Self::new()
    }
}

impl Barriers {
    pub const fn new() -> Self {
        Self {
            as_of: [TimeMs(i64::MIN); 3],
            raised: [false; 3],
            asked: None,
            held_since: None,
        }
    }

    /// A barrier arrived, and everything before it was taken.
    pub fn raise(&mut self, stream: SourceStream, as_of: TimeMs) {
        // The newest one counts, not the highest: the clock may have been put back between the two.
        self.as_of[stream.index()] = as_of;
        self.raised[stream.index()] = true;
        let covered = self.covered();
        if self.asked.is_some_and(|(asked, _)| covered >= asked) {
            self.asked = None;
        }
    }

    /// A stream is read from another place: what was proven of it is not any more.
    pub const fn forget(&mut self, stream: SourceStream) {
        self.as_of[stream.index()] = TimeMs(i64::MIN);
        self.raised[stream.index()] = false;
    }

    /// Whether each stream was read to an end that it had since this began.
    pub fn are_raised(&self) -> bool {
        self.raised == [true; 3]
    }

    /// Whether to ask for barriers at once although no timer is due.
    pub fn are_wanted(&self, monotonic: Duration) -> bool {
        let since_asked = self.asked.map(|(_, at)| monotonic.saturating_sub(at));
        !self.are_raised() && since_asked.is_none_or(|since| since >= ASK_AGAIN)
    }

    /// Timers due up to this instant may fire.
    fn covered(&self) -> TimeMs {
        self.as_of.into_iter().min().unwrap_or(TimeMs(i64::MIN))
    }

    /// Decides about the earliest timer, which waits for its streams no longer than `hold_max`; `None`: for as long
    /// as it takes, since the shard itself holds back what it has read of them.
    pub fn decide(
        &mut self,
        next_due: Option<TimeMs>,
        now: TimeMs,
        monotonic: Duration,
        hold_max: Option<Duration>,
    ) -> Firing {
        self.forget_the_future(now);
        let Some(due) = next_due.filter(|due| *due <= now) else {
            self.held_since = None;
            return Firing::Idle;
        };
        let covered = self.covered();
        if due <= covered {
            self.held_since = None;
            return Firing::Fire {
                until: covered.min(now),
                late_source: false,
            };
        }
        let left = match hold_max.map(|hold_max| self.hold(due, now, monotonic, hold_max)) {
            Some(Hold::Over { until }) => {
                return Firing::Fire {
                    until,
                    late_source: true,
                };
            }
            Some(Hold::Lasts(left)) => left,
            None => {
                self.held_since = None;
                ASK_AGAIN
            }
        };
        let since_asked = self.asked.map(|(_, at)| monotonic.saturating_sub(at));
        match since_asked {
            Some(since) if since < ASK_AGAIN => Firing::Wait(ASK_AGAIN.saturating_sub(since).min(left)),
            Some(_) | None => Firing::Ask,
        }
    }

    /// How much longer a due timer waits for its streams. Each waits as long, those that were due when the wait began
    /// and those that have become due since.
    fn hold(&mut self, due: TimeMs, now: TimeMs, monotonic: Duration, hold_max: Duration) -> Hold {
        let (since, began) = *self.held_since.get_or_insert((monotonic, now));
        let held = monotonic.saturating_sub(since);
        let late = u64::try_from(due.0.saturating_sub(began.0)).unwrap_or(0);
        let needed = hold_max.saturating_add(Duration::from_millis(late));
        if held < needed {
            return Hold::Lasts(needed.saturating_sub(held));
        }
        let over = held.saturating_sub(hold_max).as_millis();
        let until = began.plus_ms(i64::try_from(over).unwrap_or(i64::MAX));
        Hold::Over {
            until: until.min(now),
        }
    }

    /// Forgets what was proven by a clock that has been put back since: the same times come again, and with them inputs
    /// that no barrier covers.
    fn forget_the_future(&mut self, now: TimeMs) {
        for as_of in &mut self.as_of {
            if *as_of > now {
                *as_of = TimeMs(i64::MIN);
            }
        }
        self.asked = self.asked.filter(|(asked, _)| *asked <= now);
    }

    /// A barrier was asked for.
    pub const fn asked(&mut self, now: TimeMs, monotonic: Duration) {
        self.asked = Some((now, monotonic));
    }
}

/// A timer as an input: its time is the instant it was due.
pub fn timer_input(instance: InstanceId, name: String, due: TimeMs) -> Input {
    Input {
        id: format!("{name}@{}", due.0),
        instance,
        time: due,
        origin: Origin::Timer,
        body: InputBody::Timer { name },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Option<Duration> = Some(Duration::from_mins(10));
    const DUE: TimeMs = TimeMs(1_000_000);
    const NOW: TimeMs = TimeMs(1_000_005);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_timer_waits_for_the_barrier_of_every_stream() {
        let mut barriers = Barriers::new();
        assert_eq!(
            barriers.decide(Some(DUE), TimeMs(999_999), at(1), HOLD),
            Firing::Idle
        );
        assert_eq!(barriers.decide(Some(DUE), NOW, at(1), HOLD), Firing::Ask);
        barriers.asked(NOW, at(1));
        assert_eq!(barriers.decide(Some(DUE), NOW, at(2), HOLD), Firing::Wait(at(4)));
        barriers.raise(SourceStream::AggregateEvents, NOW);
        barriers.raise(SourceStream::WorkflowEvents, NOW);
        barriers.raise(SourceStream::WorkflowCommands, TimeMs(999_999));
        assert_eq!(
            barriers.decide(Some(DUE), NOW, at(2), HOLD),
            Firing::Wait(at(4)),
            "one barrier is older than the timer"
        );
        barriers.raise(SourceStream::WorkflowCommands, TimeMs(1_000_001));
        let until = TimeMs(1_000_001);
        assert_eq!(
            barriers.decide(Some(DUE), NOW, at(2), HOLD),
            Firing::Fire {
                until,
                late_source: false
            }
        );
        assert_eq!(
            barriers.decide(Some(TimeMs(1_000_002)), NOW, at(2), HOLD),
            Firing::Wait(at(4)),
            "what is due later waits for a later barrier"
        );
    }

    #[test]
    fn after_an_outage_an_old_timer_still_waits_for_the_backlog() {
        let mut barriers = Barriers::new();
        let now = DUE.plus_ms(3_600_000);
        assert_eq!(barriers.decide(Some(DUE), now, at(0), HOLD), Firing::Ask);
    }

    #[test]
    fn a_barrier_that_does_not_come_is_asked_for_again() {
        let mut barriers = Barriers::new();
        assert_eq!(barriers.decide(Some(DUE), NOW, at(1), HOLD), Firing::Ask);
        barriers.asked(NOW, at(1));
        assert_eq!(barriers.decide(Some(DUE), NOW, at(6), HOLD), Firing::Ask);
    }

    #[test]
    fn a_timer_that_was_held_too_long_fires_and_is_marked() {
        let mut barriers = Barriers::new();
        assert_eq!(barriers.decide(Some(DUE), NOW, at(1), HOLD), Firing::Ask);
        assert_eq!(
            barriers.decide(Some(DUE), NOW, at(601), HOLD),
            Firing::Fire {
                until: NOW,
                late_source: true
            }
        );
    }

    #[test]
    fn all_that_was_held_too_long_fires_one_after_the_other_and_nothing_else() {
        let mut barriers = Barriers::new();
        assert_eq!(barriers.decide(Some(DUE), NOW, at(1), HOLD), Firing::Ask);
        // Another one becomes due 60 s later.
        let (next, late) = (NOW.plus_ms(60_000), NOW.plus_ms(600_000));
        let fire = Firing::Fire {
            until: NOW,
            late_source: true,
        };
        for due in [DUE, DUE.plus_ms(1), NOW] {
            assert_eq!(barriers.decide(Some(due), late, at(601), HOLD), fire);
        }
        barriers.asked(late, at(601));
        assert_eq!(
            barriers.decide(Some(next), late, at(602), HOLD),
            Firing::Wait(at(4)),
            "it waits as long as the others did"
        );
        let later = NOW.plus_ms(660_000);
        assert_eq!(
            barriers.decide(Some(next), later, at(661), HOLD),
            Firing::Fire {
                until: next,
                late_source: true
            }
        );
    }

    #[test]
    fn while_the_shard_itself_holds_back_what_it_has_read_timers_wait() {
        let mut barriers = Barriers::new();
        assert_eq!(barriers.decide(Some(DUE), NOW, at(1), HOLD), Firing::Ask);
        assert_eq!(barriers.decide(Some(DUE), NOW, at(5_000), None), Firing::Ask);
        barriers.asked(NOW, at(5_000));
        assert_eq!(
            barriers.decide(Some(DUE), NOW, at(5_001), HOLD),
            Firing::Wait(at(4)),
            "the time before says nothing about the streams"
        );
        assert_eq!(
            barriers.decide(Some(DUE), NOW, at(5_601), HOLD),
            Firing::Fire {
                until: NOW,
                late_source: true
            }
        );
    }

    #[test]
    fn a_barrier_of_a_clock_that_was_put_back_fires_nothing() {
        let mut barriers = Barriers::new();
        for stream in SourceStream::ALL {
            barriers.raise(stream, DUE.plus_ms(60_000));
        }
        assert_eq!(
            barriers.decide(Some(DUE), TimeMs(999_999), at(1), HOLD),
            Firing::Idle
        );
        assert_eq!(barriers.decide(Some(DUE), NOW, at(1), HOLD), Firing::Ask);
        barriers.asked(NOW, at(1));
        for stream in SourceStream::ALL {
            barriers.raise(stream, NOW);
        }
        assert_eq!(
            barriers.decide(Some(DUE), NOW, at(2), HOLD),
            Firing::Fire {
                until: NOW,
                late_source: false
            }
        );
    }

    #[test]
    fn a_barrier_that_was_asked_for_before_the_clock_was_put_back_is_asked_for_again() {
        let mut barriers = Barriers::new();
        let before = NOW.plus_ms(60_000);
        assert_eq!(barriers.decide(Some(DUE), before, at(1), HOLD), Firing::Ask);
        barriers.asked(before, at(1));
        assert_eq!(barriers.decide(Some(DUE), NOW, at(2), HOLD), Firing::Ask);
    }
}
