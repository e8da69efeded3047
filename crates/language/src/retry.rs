//! Retry delays as a pure function. Jitter is added by the callers that may use randomness.

use serde::{Deserialize, Serialize};

/// How often and how fast failed work is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Attempts in all, the first included; at least 1.
    pub attempts: u32,
    /// Delay before the second attempt, in milliseconds; at least 100.
    pub initial_ms: u64,
    /// What each further delay is multiplied by; at least 1.
    pub factor: f64,
    /// Longest delay, in milliseconds.
    pub max_ms: u64,
}

impl RetryPolicy {
    /// The delay before attempt `next` (2 for the first retry), in milliseconds, or `None` when the
    /// attempts are used up: `min(max, initial * factor^(next - 2))`.
    #[must_use]
    pub fn delay_before(&self, next: u32) -> Option<u64> {
        if next > self.attempts || next < 2 {
            return None;
        }
        let exponent = i32::try_from(next - 2).unwrap_or(i32::MAX);
        #[allow(clippy::cast_precision_loss, reason = "delays are far below 2^52 ms")]
        let delay = (self.initial_ms as f64) * self.factor.powi(exponent);
        #[allow(clippy::cast_precision_loss, reason = "delays are far below 2^52 ms")]
        let capped = delay.min(self.max_ms as f64);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "capped by max_ms and never negative"
        )]
        Some(capped as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_their_cap_and_end_with_the_attempts() {
        let policy = RetryPolicy {
            attempts: 5,
            initial_ms: 200,
            factor: 3.0,
            max_ms: 3_000,
        };
        let delays: Vec<_> = (1..=6).map(|next| policy.delay_before(next)).collect();
        assert_eq!(
            delays,
            [None, Some(200), Some(600), Some(1_800), Some(3_000), None]
        );
    }
}
