//! What a step waits for.

use std::fmt;

use super::model::Delay;
use crate::expr::{Expr, Template};

/// What a step waits for.
#[derive(Debug)]
pub struct Wait {
    /// The first that comes and fits ends it.
    pub any: Vec<Awaiting>,
    /// Whether the file lists them, so that `wait.index` tells which one came.
    pub is_list: bool,
    pub early: Early,
    /// When it passes, the step fails with the class `timeout`.
    pub timeout: Option<Delay>,
    /// Longest silence of the holder of the token, in milliseconds; then the step fails with
    /// [`HEARTBEAT_CLASS`](super::model::HEARTBEAT_CLASS).
    pub heartbeat_ms: Option<i64>,
}

/// What happens to an event or a signal that comes before its step waits. Callbacks are kept in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Early {
    /// The first step that comes takes it.
    Keep,
    /// The same, within the turn or item of the loop around in which it came.
    Turn,
    Ignore,
}

/// One thing that ends a wait.
#[derive(Debug)]
pub struct Awaiting {
    pub on: Awaited,
    /// Reads `event` or `signal`.
    pub when: Option<Expr>,
    /// State fields, set before those of the step. In a list only.
    pub set: Vec<(String, Template)>,
}

#[derive(Debug)]
pub enum Awaited {
    /// An event type.
    Event(String),
    /// The name of a signal.
    Signal(String),
    /// The holder of the token of the attempt.
    Callback,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(event_type) => write!(f, "event {event_type}"),
            Self::Signal(name) => write!(f, "signal {name}"),
            Self::Callback => f.write_str("callback"),
        }
    }
}
