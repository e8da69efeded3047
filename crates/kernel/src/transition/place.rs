//! Places in a definition, named as work paths and error messages name them.

use std::fmt;

use saga_runner_language::definition::model::{OF_FINALLY, OF_HANDLERS, OF_MACHINE, OF_TIMERS};

/// Where in the definition something comes from.
///
/// Work paths go into the ids of commands, so their spelling is a stored format.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place<'a> {
    Init,
    /// `start[0]`
    Start {
        index: usize,
    },
    /// `migrate`
    Migration,
    /// `handlers.Order.Placed[0]`
    Handler {
        event_type: &'a str,
        index: usize,
    },
    /// `after_end.Order.Paid[0]`
    AfterEnd {
        event_type: &'a str,
        index: usize,
    },
    /// `machine.collecting.handlers.Line.Ready[0]`
    StateHandler {
        state: &'a str,
        event_type: &'a str,
        index: usize,
    },
    /// `machine.collecting.timer.flush[0]`
    StateTimer {
        state: &'a str,
        timer: &'a str,
        index: usize,
    },
    /// `machine.charging.result.charge[0]`
    StateEffect {
        state: &'a str,
        /// `result` or `error`.
        end: &'a str,
        effect: &'a str,
        index: usize,
    },
    /// `handlers.result.tell[0]`
    EmittedEffect {
        /// `result` or `error`.
        end: &'a str,
        effect: &'a str,
        index: usize,
    },
    /// `machine.flushing.entry`
    Entry {
        state: &'a str,
    },
    /// `timers.unpaid`
    Timer {
        name: &'a str,
    },
    /// `steps.charge`
    Step {
        name: &'a str,
    },
    /// `steps.paid.wait`, `steps.paid.wait.any[1]`
    Awaited {
        step: &'a str,
        /// In a list.
        index: Option<usize>,
    },
    /// `steps.charge.on_error.declined`, `steps.charge.on_error.declined[1]`
    OnError {
        step: &'a str,
        class: &'a str,
        /// In a list of several.
        index: Option<usize>,
    },
    /// `steps.charge.compensate`
    Compensation {
        step: &'a str,
    },
    /// `finally.failed`
    Finally {
        outcome: &'a str,
    },
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Init => f.write_str("state.init"),
            Self::Start { index } => write!(f, "start[{index}]"),
            Self::Migration => f.write_str("migrate"),
            Self::Handler { event_type, index } => write!(f, "handlers.{event_type}[{index}]"),
            Self::AfterEnd { event_type, index } => write!(f, "after_end.{event_type}[{index}]"),
            Self::StateHandler {
                state,
                event_type,
                index,
            } => write!(f, "machine.{state}.handlers.{event_type}[{index}]"),
            Self::StateTimer { state, timer, index } => {
                write!(f, "machine.{state}.timer.{timer}[{index}]")
            }
            Self::StateEffect {
                state,
                end,
                effect,
                index,
            } => write!(f, "machine.{state}.{end}.{effect}[{index}]"),
            Self::EmittedEffect { end, effect, index } => write!(f, "handlers.{end}.{effect}[{index}]"),
            Self::Entry { state } => write!(f, "machine.{state}.entry"),
            Self::Timer { name } => write!(f, "timers.{name}"),
            Self::Step { name } => step(f, name),
            Self::Awaited { step: name, index } => {
                step(f, name)?;
                f.write_str(".wait")?;
                match index {
                    Some(index) => write!(f, ".any[{index}]"),
                    None => Ok(()),
                }
            }
            Self::OnError {
                step: name,
                class,
                index,
            } => {
                step(f, name)?;
                write!(f, ".on_error.{class}")?;
                match index {
                    Some(index) => write!(f, "[{index}]"),
                    None => Ok(()),
                }
            }
            Self::Compensation { step: name } => {
                step(f, name)?;
                f.write_str(".compensate")
            }
            Self::Finally { outcome } => write!(f, "finally.{outcome}"),
        }
    }
}

/// The name of the step of an effect of a machine or of the end is its place already.
fn step(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    if [OF_MACHINE, OF_TIMERS, OF_HANDLERS, OF_FINALLY]
        .iter()
        .any(|prefix| name.starts_with(prefix))
    {
        return f.write_str(name);
    }
    write!(f, "steps.{name}")
}

impl Place<'_> {
    /// The path of the work item that number `index` of the `emit` list at this place makes.
    pub(super) fn emit_path(&self, index: usize) -> String {
        match self {
            Self::Entry { .. } | Self::Finally { .. } => format!("{self}[{index}]"),
            Self::Init
            | Self::Start { .. }
            | Self::Migration
            | Self::Handler { .. }
            | Self::AfterEnd { .. }
            | Self::StateHandler { .. }
            | Self::StateTimer { .. }
            | Self::StateEffect { .. }
            | Self::EmittedEffect { .. }
            | Self::Timer { .. }
            | Self::Step { .. }
            | Self::Awaited { .. }
            | Self::OnError { .. }
            | Self::Compensation { .. } => format!("{self}.emit[{index}]"),
        }
    }
}
