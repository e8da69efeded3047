//! Circuit breaker as a pure function: it is told the time and the outcomes of calls, and says whether a call
//! may be made. It knows nothing about what is called.

use serde::{Deserialize, Serialize};

/// When a breaker opens and how it closes again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerPolicy {
    /// Calls are counted in windows of this length, in milliseconds. Default 30,000.
    pub window_ms: u64,
    /// Fewer calls than this in a window never open it. Default 20.
    pub calls_min: u32,
    /// Share of failed calls, 0 to 1, at which it opens. Default 0.5.
    pub failure_rate: f64,
    /// How long it stays open, in milliseconds. Default 15,000.
    pub open_ms: u64,
    /// Successful probes in a row that close it again; as many may run at the same time. Default 3.
    pub probes: u32,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            window_ms: 30_000,
            calls_min: 20,
            failure_rate: 0.5,
            open_ms: 15_000,
            probes: 3,
        }
    }
}

/// Where a breaker stands. Times are milliseconds of any clock that never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed { since: u64, calls: u32, failures: u32 },
    Open { until: u64 },
    HalfOpen { running: u32, succeeded: u32 },
}

/// Whether a call may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Make it, and [`Breaker::record`] its outcome.
    Go,
    /// Ask again in this many milliseconds.
    Wait { ms: u64 },
}

/// The outcome of an admitted call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    /// The callee answered anything.
    Answered,
    /// It could not be reached, did not answer or asked for patience.
    Failed,
    /// The caller gave up before there was an outcome.
    Abandoned,
}

/// Where a breaker stands, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// Calls are made.
    Closed,
    /// A few calls are made to see whether it may close.
    HalfOpen,
    /// No call is made.
    Open,
}

impl BreakerState {
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Breaker {
    policy: BreakerPolicy,
    state: State,
}

impl Breaker {
    #[must_use]
    pub const fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            state: State::Closed {
                since: 0,
                calls: 0,
                failures: 0,
            },
        }
    }

    /// Asks for a call at `now`.
    pub fn admit(&mut self, now: u64) -> Admission {
        match self.state {
            State::Closed { .. } => Admission::Go,
            State::Open { until } if now < until => Admission::Wait { ms: until - now },
            State::Open { .. } => {
                self.state = State::HalfOpen {
                    running: 1,
                    succeeded: 0,
                };
                Admission::Go
            }
            State::HalfOpen { running, succeeded } if running + succeeded < self.policy.probes.max(1) => {
                self.state = State::HalfOpen {
                    running: running + 1,
                    succeeded,
                };
                Admission::Go
            }
            State::HalfOpen { .. } => Admission::Wait {
                ms: (self.policy.open_ms / 10).clamp(10, 1_000),
            },
        }
    }

    /// Records the outcome of an admitted call.
    pub fn record(&mut self, now: u64, end: CallEnd) {
        self.state = match (self.state, end) {
            (
                State::Closed {
                    since,
                    calls,
                    failures,
                },
                CallEnd::Answered | CallEnd::Failed,
            ) => self.count(now, (since, calls, failures), end),
            // A call that was admitted before the breaker opened tells nothing about the callee now.
            (state @ State::Open { .. }, CallEnd::Answered | CallEnd::Failed | CallEnd::Abandoned)
            | (state @ State::Closed { .. }, CallEnd::Abandoned) => state,
            (State::HalfOpen { .. }, CallEnd::Failed) => State::Open {
                until: now.saturating_add(self.policy.open_ms),
            },
            (State::HalfOpen { succeeded, .. }, CallEnd::Answered)
                if succeeded + 1 >= self.policy.probes.max(1) =>
            {
                State::Closed {
                    since: now,
                    calls: 0,
                    failures: 0,
                }
            }
            (State::HalfOpen { running, succeeded }, CallEnd::Answered) => State::HalfOpen {
                running: running.saturating_sub(1),
                succeeded: succeeded + 1,
            },
            (State::HalfOpen { running, succeeded }, CallEnd::Abandoned) => State::HalfOpen {
                running: running.saturating_sub(1),
                succeeded,
            },
        };
    }

    /// Where it stands at `now`. One that was open for long enough is half open, though no call came yet.
    #[must_use]
    pub const fn state(&self, now: u64) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { until } if now < until => BreakerState::Open,
            State::Open { .. } | State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Whether it may be forgotten at `now`: its calls were all right, or there were none for a window after it was open.
    #[must_use]
    pub const fn is_idle(&self, now: u64) -> bool {
        match self.state {
            State::Closed { since, .. } => now.saturating_sub(since) > self.policy.window_ms,
            State::Open { until } => now.saturating_sub(until) > self.policy.window_ms,
            State::HalfOpen { .. } => false,
        }
    }

    /// Whether calls are held back entirely at `now`.
    #[must_use]
    pub const fn is_open(&self, now: u64) -> bool {
        match self.state {
            State::Open { until } => now < until,
            State::Closed { .. } | State::HalfOpen { .. } => false,
        }
    }

    fn count(&self, now: u64, window: (u64, u32, u32), end: CallEnd) -> State {
        let (since, calls, failures) = match window {
            (since, _, _) if now.saturating_sub(since) > self.policy.window_ms => (now, 0, 0),
            window => window,
        };
        let calls = calls.saturating_add(1);
        let failures = failures.saturating_add(u32::from(end == CallEnd::Failed));
        let rate = f64::from(failures) / f64::from(calls);
        if calls >= self.policy.calls_min && failures > 0 && rate >= self.policy.failure_rate {
            return State::Open {
                until: now.saturating_add(self.policy.open_ms),
            };
        }
        State::Closed {
            since,
            calls,
            failures,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::new(BreakerPolicy {
            window_ms: 1_000,
            calls_min: 4,
            failure_rate: 0.5,
            open_ms: 500,
            probes: 2,
        })
    }

    fn opened() -> Breaker {
        let mut breaker = breaker();
        for _ in 0..4 {
            assert_eq!(breaker.admit(0), Admission::Go);
            breaker.record(0, CallEnd::Failed);
        }
        breaker
    }

    #[test]
    fn a_breaker_opens_at_the_failure_rate_and_not_before_enough_calls() {
        let mut breaker = breaker();
        for _ in 0..3 {
            breaker.record(0, CallEnd::Failed);
            assert_eq!(breaker.admit(0), Admission::Go);
        }
        breaker.record(0, CallEnd::Answered);
        assert_eq!(breaker.admit(100), Admission::Wait { ms: 400 });
    }

    #[test]
    fn failures_of_an_old_window_are_forgotten() {
        let mut breaker = breaker();
        for _ in 0..3 {
            breaker.record(0, CallEnd::Failed);
        }
        breaker.record(2_000, CallEnd::Failed);
        assert_eq!(breaker.admit(2_000), Admission::Go);
    }

    #[test]
    fn half_open_admits_as_many_probes_as_must_succeed() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(500), Admission::Go);
        assert_eq!(breaker.admit(500), Admission::Go);
        assert_eq!(breaker.admit(500), Admission::Wait { ms: 50 });
        breaker.record(510, CallEnd::Answered);
        breaker.record(510, CallEnd::Answered);
        assert_eq!(
            (breaker.admit(510), breaker.admit(510), breaker.admit(510)),
            (Admission::Go, Admission::Go, Admission::Go)
        );
    }

    #[test]
    fn a_failed_probe_opens_it_again() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(500), Admission::Go);
        breaker.record(600, CallEnd::Failed);
        assert!(breaker.is_open(1_000));
        assert_eq!(breaker.admit(1_100), Admission::Go);
    }

    #[test]
    fn an_abandoned_probe_frees_its_place() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(500), Admission::Go);
        assert_eq!(breaker.admit(500), Admission::Go);
        breaker.record(500, CallEnd::Abandoned);
        assert_eq!(breaker.admit(500), Admission::Go);
    }
}
