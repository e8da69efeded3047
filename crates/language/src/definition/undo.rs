//! How what a step did is undone, as a definition says it.

use serde::{Deserialize, Serialize};

use super::model::{ANY_CLASS, Action, includes};
use crate::expr::{Expr, Root};
use crate::retry::RetryPolicy;

/// How a step is undone. Its templates read `input`, `result` (absent if unknown), `state`, `key`, `failure`.
#[derive(Debug)]
pub struct Compensation {
    /// Tested when its turn has come: false leaves done what the step did.
    pub when: Option<Expr>,
    pub action: Action,
    pub on_unknown: OnUnknown,
    /// A step that has failed for certain is undone as well, because it may have left something behind.
    pub undoes_failed: bool,
    pub on_late: OnLate,
    pub on_exhausted: OnExhausted,
    /// The first that is for an error class counts; classes that none is for are not tried again.
    pub retry: Vec<UndoRetry>,
    pub timeout_ms: i64,
}

impl Compensation {
    /// Whether it reads `root`.
    #[must_use]
    pub fn reads(&self, root: Root) -> bool {
        let tests = self.when.as_ref().is_some_and(|when| when.reads(root));
        tests
            || match &self.action {
                Action::Effect { with, .. } => with.reads(root),
                Action::Command(command) => command.aggregate_id.reads(root) || command.payload.reads(root),
                // It says which instance that is.
                Action::UndoSaga(_) => root == Root::Input,
                Action::Publish(telling) => telling.reads(root),
                Action::Saga(_) | Action::Nothing | Action::Decide(_) | Action::Group(_) => false,
            }
    }
}

/// Which failures of a compensation are followed by another attempt.
#[derive(Debug)]
pub struct UndoRetry {
    /// Error classes, `*` for all.
    pub classes: Vec<String>,
    /// Its attempts are those of all its classes together.
    pub policy: RetryPolicy,
}

impl UndoRetry {
    /// What holds where a definition says nothing.
    #[must_use]
    pub fn of_all(policy: RetryPolicy) -> Self {
        Self {
            classes: vec![ANY_CLASS.to_owned()],
            policy,
        }
    }

    #[must_use]
    pub fn is_for(&self, class: &str) -> bool {
        includes(&self.classes, class)
    }
}

/// Why nobody waited for a success any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Late {
    /// The instance went on without the step: a join had enough, or a handler, an answer to an error or an
    /// operator gave it up.
    Enough,
    /// The outcome was unknown for so long that the step was over.
    TimedOut,
    Failed,
    Cancelled,
    Deadline,
    /// The instance was completed.
    Ended,
}

impl Late {
    pub const ALL: [Self; 6] = [
        Self::Enough,
        Self::TimedOut,
        Self::Failed,
        Self::Cancelled,
        Self::Deadline,
        Self::Ended,
    ];

    /// The word by which definitions and views know it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enough => "enough",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::Ended => "ended",
        }
    }
}

/// What happens to a step of unknown outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUnknown {
    /// It is undone as if it had.
    #[default]
    Compensate,
    /// An operator says whether there is something to undo.
    Ask,
    /// It counts as if it had not.
    Ignore,
}

/// What happens to a success for which the instance did not wait any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLate {
    /// It is undone at once.
    Compensate,
    /// It counts: it is undone with everything else if the instance fails afterwards.
    Accept,
    /// It stays done in every case.
    Ignore,
}

/// What follows when a compensation has used up its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExhausted {
    /// An operator must act; what was done before it waits.
    Stop,
    /// It stays done, and the others are undone.
    Continue,
}

/// In which order an instance undoes what it did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UndoOrder {
    /// One at a time, the last one first.
    #[default]
    Sequential,
    /// All at the same time.
    Parallel,
}
