//! The series of jobs.

use prometheus::{IntCounterVec, IntGauge, Registry};

use super::register::{counters, gauge};

/// What jobs do in this process.
#[derive(Debug)]
pub struct JobSeries {
    /// Jobs that this process carries on.
    pub running: IntGauge,
    /// Jobs that ended, by `outcome` (completed, stopped, failed).
    pub ended: IntCounterVec,
    /// Instances that a job has handled, by `verb` and `outcome` (applied, ignored, failed).
    pub instances: IntCounterVec,
}

impl JobSeries {
    pub(super) fn new(r: &Registry) -> Self {
        Self {
            running: gauge(r, "jobs_running", "Jobs that this process carries on."),
            ended: counters(
                r,
                "jobs_ended_total",
                "Jobs that ended, by outcome.",
                &["outcome"],
            ),
            instances: counters(
                r,
                "job_instances_total",
                "Instances that jobs have handled, by verb and outcome.",
                &["verb", "outcome"],
            ),
        }
    }
}
