//! Handlers, and what they and other actions do.

use super::super::lifecycle::{Cancel, Complete, Interrupt};
use super::Delay;
use crate::expr::{Expr, Root, Template};
use crate::ids::SagaName;

/// One alternative of a handler list: the first whose `when` holds is taken.
#[derive(Debug)]
pub struct Handler {
    pub when: Option<Expr>,
    pub actions: Actions,
}

/// What a handler, a state entry or a timer does, in this order: `set` (all from the state before),
/// `clear_timer`, `timer`, `alias` and `emit` (from the state after), then `interrupt`, then `complete`, `cancel`, `fail` or `to`.
#[derive(Debug, Default)]
pub struct Actions {
    /// Top-level fields of the state, by name.
    pub set: Vec<(String, Template)>,
    pub clear_timers: Vec<String>,
    pub timers: Vec<TimerSet>,
    /// Values that the instance registers, by alias.
    pub aliases: Vec<(String, Template)>,
    pub emit: Vec<Emission>,
    pub interrupt: Option<Interrupt>,
    pub complete: Option<Complete>,
    pub cancel: Option<Cancel>,
    pub fail: Option<Fail>,
    /// Index of the state to go to.
    pub to: Option<u16>,
    /// Keep the input until the state is left. Excludes everything else.
    pub defer: bool,
}

#[derive(Debug)]
pub struct TimerSet {
    pub name: String,
    pub after: Delay,
    /// Keep the timer if it is already set.
    pub if_absent: bool,
    /// `after` is how much later a timer fires that is set; one that is not stays so.
    pub extend: bool,
}

/// An entry of `emit` or of `finally`.
#[derive(Debug)]
pub struct Emission {
    /// False: nothing is emitted.
    pub when: Option<Expr>,
    pub emit: Emit,
}

impl From<Emit> for Emission {
    fn from(emit: Emit) -> Self {
        Self { when: None, emit }
    }
}

/// Work without a step: nobody waits for it.
#[derive(Debug)]
pub enum Emit {
    Command(CommandTemplate),
    Publish(Telling),
    /// An effect, by the index of its step: of a machine state or a timer, which have handlers for how it ends, or of the end.
    Effect(u16),
}

#[derive(Debug)]
pub struct CommandTemplate {
    pub aggregate_type: String,
    pub aggregate_id: Template,
    pub command_type: String,
    pub payload: Template,
}

impl CommandTemplate {
    /// Whether it hands out the callback token of the work of its step.
    #[must_use]
    pub fn hands_out_token(&self) -> bool {
        self.payload.roots().contains(Root::Command)
    }
}

/// What is said without an answer.
#[derive(Debug)]
pub enum Telling {
    /// To all listeners.
    Fact(PublishTemplate),
    /// To one instance of another saga.
    Signal(SignalTemplate),
}

impl Telling {
    /// Whether it reads `root`.
    #[must_use]
    pub fn reads(&self, root: Root) -> bool {
        let mut found = false;
        self.for_each_expr(&mut |expr| found |= expr.reads(root));
        found
    }

    /// Calls `visit` for every expression.
    pub fn for_each_expr(&self, visit: &mut dyn FnMut(&Expr)) {
        match self {
            Self::Fact(fact) => fact.payload.for_each_expr(visit),
            Self::Signal(signal) => {
                signal.key.for_each_expr(visit);
                signal.data.for_each_expr(visit);
            }
        }
    }
}

#[derive(Debug)]
pub struct PublishTemplate {
    pub fact_type: String,
    pub payload: Template,
}

#[derive(Debug)]
pub struct SignalTemplate {
    pub saga: SagaName,
    /// Rendered to text.
    pub key: Template,
    pub name: String,
    /// Gives a map.
    pub data: Template,
}

#[derive(Debug)]
pub struct Fail {
    pub code: String,
    pub message: Option<Template>,
    /// Names of steps that this failure does not undo, in code-point order.
    pub keep: Vec<String>,
    /// What is in flight comes to its own end before anything is undone.
    pub drain: bool,
}
