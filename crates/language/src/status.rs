//! The phases of an instance and of its steps: expressions compare them, and records keep them.

use serde::{Deserialize, Serialize};

/// Life of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Running,
    /// It failed or was cancelled, and undoes what it did.
    Compensating,
    Completed,
    Failed,
    Cancelled,
    /// A compensation exhausted its attempts: an operator must act.
    CompensationFailed,
    /// Its outcome is reached, and effects of `finally` are under way.
    Finishing,
}

impl Phase {
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Compensating,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::CompensationFailed,
        Self::Finishing,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Compensating => "compensating",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::CompensationFailed => "compensation_failed",
            Self::Finishing => "finishing",
        }
    }

    /// Whether the outcome stands. Late results may still reopen the ledger, never the outcome.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled => true,
            Self::Running | Self::Compensating | Self::CompensationFailed | Self::Finishing => false,
        }
    }
}

/// What happens to work that a cancelled instance has begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelMode {
    /// What it did is undone at once, and what still runs as soon as it succeeds.
    #[default]
    Compensate,
    /// What runs comes to its end first; then everything is undone.
    Drain,
    /// Nothing is undone.
    Abandon,
}

/// Where a step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    Pending,
    Running,
    Done,
    Skipped,
    Failed,
    /// The instance stopped waiting for it.
    Abandoned,
    /// An attempt failed and a timer will start the next one.
    BackingOff,
    /// A timer will start its first attempt.
    Delayed,
    /// Its action has succeeded, and it waits for an event or a signal.
    Waiting,
    /// An operator must act: the outcome of its action is unknown.
    Stuck,
}

impl StepStatus {
    /// The status after this one in their list, so that all can be gone through.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self {
            Self::Pending => Some(Self::Running),
            Self::Running => Some(Self::Done),
            Self::Done => Some(Self::Skipped),
            Self::Skipped => Some(Self::Failed),
            Self::Failed => Some(Self::Abandoned),
            Self::Abandoned => Some(Self::BackingOff),
            Self::BackingOff => Some(Self::Delayed),
            Self::Delayed => Some(Self::Waiting),
            Self::Waiting => Some(Self::Stuck),
            Self::Stuck => None,
        }
    }

    /// The value of `steps.<name>.status`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
            Self::BackingOff => "backing_off",
            Self::Delayed => "delayed",
            Self::Waiting => "waiting",
            Self::Stuck => "stuck",
        }
    }

    /// Whether the step has begun and not ended.
    #[must_use]
    pub const fn is_under_way(self) -> bool {
        match self {
            Self::Running | Self::BackingOff | Self::Delayed | Self::Waiting | Self::Stuck => true,
            Self::Pending | Self::Done | Self::Skipped | Self::Failed | Self::Abandoned => false,
        }
    }

    /// Whether nothing more is to come of the step. One that failed, or was given up, while its instance runs is
    /// one that the instance goes on without.
    #[must_use]
    pub const fn is_over(self) -> bool {
        match self {
            Self::Done | Self::Skipped | Self::Failed | Self::Abandoned => true,
            Self::Pending
            | Self::Running
            | Self::BackingOff
            | Self::Delayed
            | Self::Waiting
            | Self::Stuck => false,
        }
    }
}
