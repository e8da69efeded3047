//! What one input came to, as a case sees it.

use crate::kernel::patch::{Note, Outcome};
use crate::kernel::schedule::Skip;
use crate::kernel::work::WorkItem;

/// What one input came to, with what it set free.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Of the input itself; `None` for time that passed without a timer.
    pub outcome: Option<Outcome>,
    /// Of the input at an alias, where it was addressed to one.
    pub at_alias: Option<Outcome>,
    /// Of the input at another instance, where it was not for the one that is looked at.
    pub elsewhere: Option<Outcome>,
    /// Reason and message of the first dead letter among the input and what it set free.
    pub rejection: Option<(String, String)>,
    /// The input waits behind a dead letter.
    pub waits: bool,
    /// The schedule does without the planned time.
    pub skipped: Option<Skip>,
    pub work: Vec<WorkItem>,
    pub notes: Vec<Note>,
    /// A repetition did not leave things as they were, or the store has failed.
    pub unsteady: Option<String>,
}

impl Given {
    /// What a case sees: the outcome of the input at the instance, or else at the alias that it was addressed to.
    #[must_use]
    pub fn shown(&self) -> Option<Outcome> {
        self.outcome.or(self.at_alias).or(self.elsewhere)
    }

    /// What another input brought besides.
    pub fn add(&mut self, other: Self) {
        self.outcome = self.outcome.or(other.outcome);
        self.at_alias = self.at_alias.or(other.at_alias);
        self.elsewhere = self.elsewhere.or(other.elsewhere);
        self.rejection = self.rejection.take().or(other.rejection);
        self.waits |= other.waits;
        self.skipped = self.skipped.or(other.skipped);
        self.unsteady = self.unsteady.take().or(other.unsteady);
        self.work.extend(other.work);
        self.notes.extend(other.notes);
    }
}
