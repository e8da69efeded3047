//! How instances begin, meet what would begin them again, and end early, as a definition says it.

use std::collections::BTreeMap;

use super::model::{Fail, Handler};
use crate::duration::Millis;
use crate::expr::{Expr, Template};
use crate::status::{CancelMode, Phase};

/// What is said about the life of instances, besides what they do.
#[derive(Debug, Default)]
pub struct Lifecycle {
    /// Empty where any event of the types in `start` begins an instance and nothing more. Otherwise for each of
    /// these types the first whose condition holds.
    pub rules: Vec<StartRule>,
    pub on_running: OnRunning,
    pub reuse: Reuse,
    pub no_instance: NoInstance,
    pub keep_ended: KeepEnded,
    /// Handlers for what comes after the end, by event type.
    pub after_end: BTreeMap<String, Vec<Handler>>,
}

impl Lifecycle {
    /// Whether nothing is said of what instances do: how long they are kept is not part of that.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.rules.is_empty()
            && self.on_running == OnRunning::Handle
            && self.reuse == Reuse::default()
            && self.no_instance == NoInstance::Ignore
            && self.after_end.is_empty()
    }
}

/// One way in which an event begins an instance.
#[derive(Debug)]
pub struct StartRule {
    pub event: String,
    /// Reads `event` and `key`.
    pub when: Option<Expr>,
    /// State fields, from the initial state.
    pub set: Vec<(String, Template)>,
}

/// What happens to a start event whose instance runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnRunning {
    /// It is an event like any other.
    #[default]
    Handle,
    Ignore,
    /// It is a dead letter.
    Fail,
}

/// What happens to an event whose instance does not exist and that starts none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NoInstance {
    #[default]
    Ignore,
    DeadLetter,
    /// It waits for its instance for so many milliseconds.
    Park(i64),
}

/// After which ends a key may be used again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reuse {
    pub completed: bool,
    pub failed: bool,
    pub cancelled: bool,
}

impl Reuse {
    pub const ALWAYS: Self = Self {
        completed: true,
        failed: true,
        cancelled: true,
    };

    /// Whether the key of an instance that has ended so may be used again.
    #[must_use]
    pub const fn allows(self, end: Phase) -> bool {
        match end {
            Phase::Completed => self.completed,
            Phase::Failed => self.failed,
            Phase::Cancelled => self.cancelled,
            Phase::Running | Phase::Compensating | Phase::CompensationFailed | Phase::Finishing => false,
        }
    }
}

/// How long instances are kept that have ended, and their keys are used up; `None`: as long as the runner keeps all. Not part
/// of the hash: it says nothing about what the saga does, and may change for the instances that run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeepEnded {
    pub completed: Option<Millis>,
    pub failed: Option<Millis>,
    pub cancelled: Option<Millis>,
}

impl KeepEnded {
    /// The same for every end.
    #[must_use]
    pub const fn always(kept: Millis) -> Self {
        Self {
            completed: Some(kept),
            failed: Some(kept),
            cancelled: Some(kept),
        }
    }

    /// How long an instance is kept that has ended so.
    #[must_use]
    pub const fn after(self, end: Phase) -> Option<Millis> {
        match end {
            Phase::Completed => self.completed,
            Phase::Failed => self.failed,
            Phase::Cancelled => self.cancelled,
            Phase::Running | Phase::Compensating | Phase::CompensationFailed | Phase::Finishing => None,
        }
    }

    /// How long an instance is kept at most, where those of which nothing is said are kept for `default`.
    #[must_use]
    pub fn longest(self, default: Millis) -> Millis {
        let ends = [self.completed, self.failed, self.cancelled];
        let longest = ends.into_iter().map(|kept| kept.unwrap_or(default)).max();
        longest.unwrap_or(default)
    }
}

/// Ends the instance early and successfully.
#[derive(Debug)]
pub struct Complete {
    /// The word for how it ended.
    pub outcome: String,
    /// False: it goes on. Absent: it always ends.
    pub when: Option<Expr>,
}

/// Cancels the instance.
#[derive(Debug)]
pub struct Cancel {
    pub mode: CancelMode,
    pub reason: Option<Template>,
}

/// How a step ends its instance, behind its `set`; one that only sets fields does not.
#[derive(Debug, Default)]
pub struct Decision {
    pub complete: Option<Complete>,
    pub cancel: Option<Cancel>,
    pub fail: Option<Fail>,
}

impl Decision {
    /// Whether no step comes behind it.
    #[must_use]
    pub fn always_ends(&self) -> bool {
        let completes = self
            .complete
            .as_ref()
            .is_some_and(|complete| complete.when.is_none());
        completes || self.cancel.is_some() || self.fail.is_some()
    }
}

/// Fails a step that is under way.
#[derive(Debug)]
pub struct Interrupt {
    /// Index of the step.
    pub step: u16,
    /// The error class with which it fails.
    pub class: String,
}
