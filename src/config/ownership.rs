//! How a process keeps the shards that it owns.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::kernel::duration::Millis;

/// Shortest `renew_every`.
const RENEW_MIN: Duration = Duration::from_millis(50);
/// Longest `take_over_after`.
const TAKE_OVER_MAX: Duration = Duration::from_hours(1);

/// Times of the owner records, the same in every process of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OwnershipSettings {
    /// How often the owner of a shard renews its record. Default 5s.
    pub renew_every: Millis,
    /// How long behind the last renewal it sends. Default 10s.
    pub send_within: Millis,
    /// How long a record must have been seen unrenewed before the folder is opened at another place. Default 15s.
    pub take_over_after: Millis,
}

impl Default for OwnershipSettings {
    fn default() -> Self {
        Self {
            renew_every: Millis::seconds(5),
            send_within: Millis::seconds(10),
            take_over_after: Millis::seconds(15),
        }
    }
}

impl OwnershipSettings {
    /// What is left between the moment when an owner stops to send and the one when another may begin.
    #[must_use]
    pub fn margin(&self) -> Duration {
        let (take_over, send) = (self.take_over_after.duration(), self.send_within.duration());
        take_over.saturating_sub(send)
    }

    /// Whether the times fit together.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        let renew = self.renew_every.duration();
        if renew < RENEW_MIN || self.take_over_after.duration() > TAKE_OVER_MAX {
            return Err(format!(
                "ownership.renew_every must be at least {} ms, and ownership.take_over_after at most 1 h",
                RENEW_MIN.as_millis()
            ));
        }
        // One renewal may fail; and what was begun just before the end has to arrive before another owner begins.
        if renew * 2 > self.send_within.duration() || renew > self.margin() {
            return Err(
                "ownership.send_within must be at least twice ownership.renew_every, and ownership.take_over_after longer than it by at least ownership.renew_every"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(renew_ms: u64, send_ms: u64, take_over_ms: u64) -> OwnershipSettings {
        OwnershipSettings {
            renew_every: Millis(renew_ms),
            send_within: Millis(send_ms),
            take_over_after: Millis(take_over_ms),
        }
    }

    #[test]
    fn an_owner_stops_to_send_before_another_begins() {
        assert_eq!(OwnershipSettings::default().check(), Ok(()));
        assert_eq!(settings(100, 200, 300).check(), Ok(()));
        for bad in [
            settings(10, 200, 300),
            settings(5_000, 9_999, 15_000),
            settings(5_000, 10_000, 14_999),
            settings(5_000, 15_000, 10_000),
            settings(5_000, 10_000, 3_600_001),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
