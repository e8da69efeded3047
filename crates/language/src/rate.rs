//! Rate limit as a pure function: it is told the time and says when the next call may be made. Calls are spaced
//! evenly; after a pause a few may follow each other at once.

/// A tenth of a second's worth of calls, and always one, may follow each other at once.
const BURST_US: u64 = 100_000;

/// Calls per span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// At least 1.
    pub calls: u32,
    /// The span, in milliseconds; at least 1.
    pub per_ms: u64,
}

impl Rate {
    /// Reads `200/s`, `90/m` or `5000/h`; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (calls, unit) = text.split_once('/')?;
        let per_ms = match unit.trim() {
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let calls = calls.trim();
        let digits = !calls.is_empty() && calls.bytes().all(|byte| byte.is_ascii_digit());
        let calls = digits.then(|| calls.parse().ok()).flatten()?;
        (calls > 0).then_some(Self { calls, per_ms })
    }

    /// Time between two calls, in microseconds; at least 1.
    #[must_use]
    pub fn interval_us(self) -> u64 {
        (self.per_ms.saturating_mul(1_000) / u64::from(self.calls.max(1))).max(1)
    }
}

/// Where a limit stands. Times are microseconds of any clock that never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimiter {
    rate: Rate,
    /// When the next call would be due if all were evenly spaced.
    due_us: u64,
}

impl RateLimiter {
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self { rate, due_us: 0 }
    }

    /// Takes the place of the next call: `Ok` says how long to wait for it, in microseconds. `Err` says how long
    /// it would be, where that is more than `patience_us`, and takes no place.
    ///
    /// # Errors
    /// The wait in microseconds.
    pub fn reserve(&mut self, now_us: u64, patience_us: u64) -> Result<u64, u64> {
        let interval = self.rate.interval_us();
        let burst = BURST_US.saturating_sub(interval);
        let due = self.due_us.max(now_us.saturating_sub(burst));
        let wait = due.saturating_sub(now_us);
        if wait > patience_us {
            return Err(wait);
        }
        self.due_us = due.saturating_add(interval);
        Ok(wait)
    }

    /// Whether forgetting it changes nothing.
    #[must_use]
    pub const fn is_idle(&self, now_us: u64) -> bool {
        self.due_us.saturating_add(BURST_US) < now_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_calls_per_unit() {
        let rate = |calls, per_ms| Some(Rate { calls, per_ms });
        assert_eq!(Rate::parse("200/s"), rate(200, 1_000));
        assert_eq!(Rate::parse("90 / m"), rate(90, 60_000));
        assert_eq!(Rate::parse("5000/h"), rate(5_000, 3_600_000));
        for bad in [
            "",
            "5",
            "/s",
            "0/s",
            "-1/s",
            "+1/s",
            "1.5/s",
            "5/d",
            "99999999999/s",
        ] {
            assert_eq!(Rate::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn calls_are_spaced_and_the_places_that_are_taken_add_up() {
        let mut limiter = RateLimiter::new(Rate {
            calls: 5,
            per_ms: 1_000,
        });
        let now = 10_000_000;
        assert_eq!(limiter.reserve(now, u64::MAX), Ok(0));
        assert_eq!(limiter.reserve(now, u64::MAX), Ok(200_000));
        assert_eq!(
            limiter.reserve(now, 300_000),
            Err(400_000),
            "refused, nothing is taken"
        );
        assert_eq!(limiter.reserve(now, 400_000), Ok(400_000));
        assert_eq!(limiter.reserve(now + 600_000, 0), Ok(0));
    }

    #[test]
    fn in_any_second_there_are_no_more_calls_than_the_rate_and_its_burst() {
        let rate = Rate {
            calls: 100,
            per_ms: 1_000,
        };
        let mut limiter = RateLimiter::new(rate);
        let start = 60_000_000;
        let admitted = (0..100_000_u64)
            .filter(|step| limiter.reserve(start + step * 10, 0).is_ok())
            .count();
        assert!(
            (100..=110).contains(&admitted),
            "a second's worth and a tenth of one: {admitted}"
        );
        assert!(!limiter.is_idle(start) && limiter.is_idle(start + 2_000_000));
    }
}
