//! The status of an instance: computed at each input, from its record and its definition, without the outbox.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Action, Step};

use super::pending::WaitsFor;
use crate::instance_status::{BlockedCause, ERROR_BYTES, InstanceStatus, Waits};
use crate::ledger::LedgerStatus;
use crate::record::{Record, StepStatus};

/// What stands beside the record of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InboxStatus {
    /// Inputs wait behind a dead letter.
    pub dead_letter: bool,
    /// Inputs wait for the definition of the instance.
    pub definition: bool,
}

impl From<WaitsFor> for Waits {
    fn from(waits: WaitsFor) -> Self {
        match waits {
            WaitsFor::Effect => Self::Effect,
            WaitsFor::Command => Self::Command,
            WaitsFor::Child => Self::Child,
            WaitsFor::Message => Self::Message,
            WaitsFor::Retry => Self::Retry,
            WaitsFor::Delay => Self::Delay,
            WaitsFor::Operator => Self::Operator,
        }
    }
}

impl InstanceStatus {
    /// The status of an instance that is live.
    #[must_use]
    pub fn of(record: &Record, definition: Option<&Definition>, beside: InboxStatus) -> Self {
        let first = first_awaited(record, definition);
        let is_stuck = first
            .as_ref()
            .is_some_and(|(waits, _)| *waits == WaitsFor::Operator);
        let blocked_by = match record.paused {
            Some(_) => BlockedCause::Paused,
            None if beside.dead_letter => BlockedCause::DeadLetter,
            None if beside.definition => BlockedCause::Definition,
            None if is_stuck => BlockedCause::Operator,
            None => BlockedCause::Nothing,
        };
        let (waits_for, error) = match first {
            Some((waits, error)) => (waits.into(), error),
            None => (idle(record, definition), None),
        };
        Self {
            phase: record.phase,
            blocked_by,
            waits_for,
            error: error.map_or_else(|| failure(record), shortened),
        }
    }

    /// The status of an instance that has ended.
    #[must_use]
    pub fn ended(record: &Record) -> Self {
        Self {
            phase: record.phase,
            blocked_by: BlockedCause::Nothing,
            waits_for: Waits::Nothing,
            error: failure(record),
        }
    }
}

fn failure(record: &Record) -> String {
    let code = record.failure.as_ref().map(|failure| failure.code.as_str());
    code.map(|code| shortened(code.to_owned())).unwrap_or_default()
}

fn shortened(mut class: String) -> String {
    let mut end = class.len().min(ERROR_BYTES);
    while !class.is_char_boundary(end) {
        end -= 1;
    }
    class.truncate(end);
    class
}

/// What `why` would name first of what is pending, without what workers have said, with its error class.
fn first_awaited(record: &Record, definition: Option<&Definition>) -> Option<(WaitsFor, Option<String>)> {
    let step = |index: u16| definition.and_then(|definition| definition.steps.get(usize::from(index)));
    let mut first: Option<(WaitsFor, Option<String>)> = None;
    let mut take = |waits: WaitsFor, error: Option<&String>| {
        if first
            .as_ref()
            .is_none_or(|(before, _)| waits.rank() < before.rank())
        {
            first = Some((waits, error.cloned()));
        }
    };
    for (index, _, state) in record.step_states() {
        let waits = match state.status {
            StepStatus::Running if state.outstanding.is_none() => continue,
            StepStatus::Running => step(index).map_or(WaitsFor::Effect, |step| called(&step.action)),
            StepStatus::Waiting => WaitsFor::Message,
            StepStatus::BackingOff => WaitsFor::Retry,
            StepStatus::Delayed => WaitsFor::Delay,
            StepStatus::Stuck => WaitsFor::Operator,
            StepStatus::Pending
            | StepStatus::Done
            | StepStatus::Skipped
            | StepStatus::Failed
            | StepStatus::Abandoned => continue,
        };
        take(waits, state.error.as_ref());
    }
    for (_, entry) in record.ledger.having(|status| !status.rests()) {
        let waits = match entry.status {
            LedgerStatus::Undoing if entry.outstanding.is_none() => continue,
            LedgerStatus::Undoing if entry.of_child => WaitsFor::Child,
            LedgerStatus::Undoing => step(entry.step).map_or(WaitsFor::Effect, undone_by),
            LedgerStatus::BackingOff => WaitsFor::Retry,
            LedgerStatus::Stuck => WaitsFor::Operator,
            LedgerStatus::Held | LedgerStatus::Undone | LedgerStatus::Due | LedgerStatus::Kept => continue,
        };
        take(waits, entry.tries.failures.last().map(|failed| &failed.class));
    }
    if let Some(program) = &record.program
        && !program.pending.is_empty()
    {
        take(WaitsFor::Effect, None);
    }
    if first.is_none()
        && let Some(stray) = record.strays.first()
    {
        let waits = step(stray.step).map_or(WaitsFor::Effect, |step| called(&step.action));
        first = Some((waits, None));
    }
    first
}

fn undone_by(step: &Step) -> WaitsFor {
    let compensation = step.compensate.as_ref();
    compensation.map_or(WaitsFor::Effect, |compensation| called(&compensation.action))
}

/// What is awaited of an action that has begun.
const fn called(action: &Action) -> WaitsFor {
    match action {
        Action::Command(_) => WaitsFor::Command,
        Action::Saga(_) | Action::UndoSaga(_) => WaitsFor::Child,
        Action::Effect { .. }
        | Action::Publish(_)
        | Action::Nothing
        | Action::Decide(_)
        | Action::Group(_) => WaitsFor::Effect,
    }
}

/// What an instance waits for in which nothing is under way.
fn idle(record: &Record, definition: Option<&Definition>) -> Waits {
    let hears = definition.is_some_and(|definition| {
        let machine = definition.machine.as_ref().zip(record.machine);
        let state = machine.and_then(|(machine, at)| machine.states.get(usize::from(at.state)));
        !definition.handlers.is_empty() || state.is_some_and(|state| !state.handlers.is_empty())
    });
    if hears {
        Waits::Handlers
    } else if record.timers.is_empty() {
        Waits::Nothing
    } else {
        Waits::Timer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_class_is_cut_at_a_character() {
        let long = "ä".repeat(ERROR_BYTES);
        assert_eq!(shortened(long), "ä".repeat(ERROR_BYTES / 2));
        assert_eq!(shortened("timeout".to_owned()), "timeout");
    }
}
