//! When timers may fire: behind a barrier of every source stream.

use super::mailbox::Notice;
use crate::kernel::duration::Millis;
use crate::kernel::ids::TimeMs;
use crate::kernel::input::SourceStream;

/// Time between two requests for a barrier that does not come.
const ASK_AGAIN_MS: i64 = 1_000;

/// What a shard knows of its streams' barriers.
#[derive(Debug)]
pub(super) struct Barriers {
    /// Everything that each stream held at this instant has been taken.
    as_of: [Option<TimeMs>; 3],
    /// A delivery of this stream was refused: barriers of it do not count until one fits again.
    broken: [bool; 3],
    asked: Option<TimeMs>,
}

impl Barriers {
    pub const fn new() -> Self {
        Self {
            as_of: [None; 3],
            broken: [false; 3],
            asked: None,
        }
    }

    /// A barrier arrived.
    pub fn raise(&mut self, stream: SourceStream, as_of: TimeMs) {
        let index = stream.index();
        if !self.broken[index] {
            self.as_of[index] = self.as_of[index].max(Some(as_of));
        }
    }

    /// A delivery was refused; whether this is news.
    pub const fn break_off(&mut self, stream: SourceStream) -> bool {
        let index = stream.index();
        let news = !self.broken[index];
        self.broken[index] = true;
        news
    }

    /// A delivery was accepted.
    pub const fn mend(&mut self, stream: SourceStream) {
        self.broken[stream.index()] = false;
    }

    /// Timers due up to this instant may fire.
    pub fn safe_until(&self) -> Option<TimeMs> {
        self.as_of.iter().copied().min().flatten()
    }

    /// The request to send for a timer that is due at `due`, if it is due, not covered, and not asked for lately.
    pub fn wanted(&mut self, shard: u16, due: TimeMs, now: TimeMs) -> Option<Notice> {
        if due > now || self.safe_until().is_some_and(|safe| safe >= due) {
            return None;
        }
        if self
            .asked
            .is_some_and(|asked| now < asked.plus_ms(ASK_AGAIN_MS) && asked >= due)
        {
            return None;
        }
        self.asked = Some(now);
        Some(Notice::BarrierWanted { shard })
    }

    /// Up to when timers may fire at `now`: behind the barrier, or whatever has been held for too long.
    pub fn fire_until(&self, now: TimeMs, hold_max: Millis) -> TimeMs {
        let held = now.plus_ms(-hold_max.as_i64());
        self.safe_until().map_or(held, |safe| safe.max(held)).min(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_waits_for_the_barrier_of_every_stream() {
        let hold = Millis::seconds(600);
        let mut barriers = Barriers::new();
        let (due, now) = (TimeMs(1_000_000), TimeMs(1_000_005));
        assert!(barriers.fire_until(now, hold) < due);
        assert_eq!(
            barriers.wanted(3, due, now),
            Some(Notice::BarrierWanted { shard: 3 })
        );
        assert_eq!(barriers.wanted(3, due, now), None, "asked already");
        barriers.raise(SourceStream::AggregateEvents, now);
        barriers.raise(SourceStream::WorkflowEvents, now);
        assert!(barriers.fire_until(now, hold) < due);
        barriers.raise(SourceStream::WorkflowCommands, TimeMs(999_999));
        assert!(
            barriers.fire_until(now, hold) < due,
            "that barrier is older than the timer"
        );
        barriers.raise(SourceStream::WorkflowCommands, now);
        assert!(barriers.fire_until(now, hold) >= due);
    }

    #[test]
    fn a_barrier_behind_a_refused_delivery_does_not_count() {
        let mut barriers = Barriers::new();
        for stream in SourceStream::ALL {
            barriers.raise(stream, TimeMs(10));
        }
        assert!(barriers.break_off(SourceStream::AggregateEvents));
        assert!(!barriers.break_off(SourceStream::AggregateEvents));
        for stream in SourceStream::ALL {
            barriers.raise(stream, TimeMs(20));
        }
        assert_eq!(barriers.safe_until(), Some(TimeMs(10)));
        barriers.mend(SourceStream::AggregateEvents);
        barriers.raise(SourceStream::AggregateEvents, TimeMs(20));
        assert_eq!(barriers.safe_until(), Some(TimeMs(20)));
    }

    #[test]
    fn a_timer_that_was_held_too_long_fires_anyway() {
        let barriers = Barriers::new();
        let now = TimeMs(10_000_000);
        assert_eq!(barriers.fire_until(now, Millis::seconds(600)), TimeMs(9_400_000));
    }
}
