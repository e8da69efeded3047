//! Bounds of jobs.

use serde::{Deserialize, Serialize};

/// Most jobs that may be kept: their list is one entry of the broker.
const KEPT_MAX: u16 = 200;
/// Most instances that a job may be allowed to select.
const INSTANCES_MAX: u32 = 1_000_000;
/// Fewest instances a second of a job.
pub const JOB_RATE_MIN: u32 = 1;
/// Most instances a second of a job.
pub const JOB_RATE_MAX: u32 = 1_000;

/// Jobs: one verb for many instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobSettings {
    /// Jobs that the broker keeps, ended ones included. Default 100.
    pub kept_max: u16,
    /// Jobs that may be in progress at a time. Default 10.
    pub active_max: u16,
    /// Instances that one job may select. Default 100,000.
    pub instances_max: u32,
    /// Instances a second of a job that does not say. Default 50.
    pub rate: u32,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            kept_max: 100,
            active_max: 10,
            instances_max: 100_000,
            rate: 50,
        }
    }
}

impl JobSettings {
    /// Whether the numbers are in their ranges.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=KEPT_MAX).contains(&self.kept_max) || !(1..=self.kept_max).contains(&self.active_max) {
            return Err(format!(
                "jobs.kept_max must be 1 to {KEPT_MAX}, and jobs.active_max 1 to jobs.kept_max"
            ));
        }
        if !(1..=INSTANCES_MAX).contains(&self.instances_max) {
            return Err(format!("jobs.instances_max must be 1 to {INSTANCES_MAX}"));
        }
        if !(JOB_RATE_MIN..=JOB_RATE_MAX).contains(&self.rate) {
            return Err(format!(
                "jobs.rate must be {JOB_RATE_MIN} to {JOB_RATE_MAX} instances a second"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_their_ranges_are_refused() {
        let good = JobSettings::default();
        assert_eq!(good.check(), Ok(()));
        for bad in [
            JobSettings { kept_max: 0, ..good },
            JobSettings {
                kept_max: 201,
                ..good
            },
            JobSettings {
                active_max: 0,
                ..good
            },
            JobSettings {
                kept_max: 5,
                active_max: 6,
                ..good
            },
            JobSettings {
                instances_max: 0,
                ..good
            },
            JobSettings {
                instances_max: 1_000_001,
                ..good
            },
            JobSettings { rate: 0, ..good },
            JobSettings { rate: 1_001, ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
