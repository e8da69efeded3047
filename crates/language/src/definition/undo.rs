//! How what a step did is undone, as a definition says it.

use super::model::Action;
use crate::expr::Expr;
use crate::retry::RetryPolicy;

/// How a step is undone. Its templates read `input`, `result` (absent if unknown), `state`, `key`, `failure`.
#[derive(Debug)]
pub struct Compensation {
    /// Tested when its turn has come: false leaves done what the step did.
    pub when: Option<Expr>,
    pub action: Action,
    pub on_unknown: OnUnknown,
    pub on_late: OnLate,
    pub on_exhausted: OnExhausted,
    pub retry: RetryPolicy,
    pub timeout_ms: i64,
}

/// What becomes of a step of which nobody knows whether it happened.
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

/// What becomes of a success for which the instance did not wait any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLate {
    /// It is undone at once.
    Compensate,
    /// It counts: it is undone with everything else if the instance fails afterwards.
    Accept,
    /// It stays done, whatever happens.
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
