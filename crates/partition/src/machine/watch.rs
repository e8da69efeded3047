//! Watching a transaction: what happens to each input, and what is decided on the way.

use saga_runner_kernel::input::Input;
use saga_runner_kernel::patch::{Note, Outcome};
use saga_runner_kernel::transition::Trace;

use crate::storage::rows::HistoryOutcome;

/// The outcome of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told<'a> {
    /// The kernel has taken it, with what happened.
    Outcome(Outcome, &'a [Note]),
    /// It is a dead letter.
    Dead { reason: &'a str, message: &'a str },
    /// It waits behind a dead letter of its instance, or for the definition of it.
    Waits,
}

impl Told<'_> {
    /// It in one word: what the history calls it, or `waits`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Outcome(outcome, _) => HistoryOutcome::from(*outcome).as_str(),
            Self::Dead { .. } => "dead",
            Self::Waits => "waits",
        }
    }
}

/// Hears about each input, in the order in which they are decided.
pub trait Watch {
    fn told(&self, input: &Input, what: Told<'_>);

    /// Hears what is decided within a transition, if it wants to.
    fn trace(&self) -> Option<&dyn Trace>;
}
