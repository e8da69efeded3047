//! How fast a job goes.

use std::time::Duration;

/// Gives each part its time, evenly: nothing is caught up after a pause.
#[derive(Debug)]
pub(super) struct Pace {
    between: Duration,
    next: Duration,
}

impl Pace {
    /// So many a second, at least one.
    pub fn new(per_second: u32) -> Self {
        Self {
            between: Duration::from_secs(1) / per_second.max(1),
            next: Duration::ZERO,
        }
    }

    /// How long the next one has to wait. `now` is of a clock that never goes back.
    pub fn wait(&mut self, now: Duration) -> Duration {
        let due = self.next.max(now);
        self.next = due + self.between;
        due.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each of `count` parts goes, where each takes as long as it waits.
    fn times(pace: &mut Pace, from: Duration, count: u32) -> Vec<Duration> {
        let mut now = from;
        let go = |_| {
            now += pace.wait(now);
            now
        };
        (0..count).map(go).collect()
    }

    #[test]
    fn in_no_second_go_more_than_the_rate_says() {
        for rate in [1, 3, 50, 1_000] {
            let times = times(&mut Pace::new(rate), Duration::from_secs(7), rate * 3);
            for window in times.windows(rate as usize + 1) {
                let (first, last) = (window[0], window[rate as usize]);
                assert!(
                    last.saturating_sub(first) >= Duration::from_micros(999_990),
                    "{rate}: {first:?} {last:?}"
                );
            }
            let whole = times[times.len() - 1].saturating_sub(times[0]);
            assert!(whole <= Duration::from_secs(3), "{rate} a second: {whole:?}");
        }
    }

    #[test]
    fn time_lost_in_a_pause_is_not_caught_up_in_a_burst() {
        let mut pace = Pace::new(10);
        assert_eq!(pace.wait(Duration::ZERO), Duration::ZERO);
        let later = Duration::from_mins(1);
        assert_eq!(pace.wait(later), Duration::ZERO);
        assert_eq!(pace.wait(later), Duration::from_millis(100));
        assert_eq!(pace.wait(later), Duration::from_millis(200));
    }
}
