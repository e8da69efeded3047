//! What operators and others say to an instance, and what of that is of no use to it.

use saga_runner_language::definition::Definition;
use saga_runner_language::limits::Limits;

use super::{Unfit, flight, operations, questions, signals, skip_obstacle, stuck};
use crate::input::{CancelMode, Control, Verdict};
use crate::patch::IgnoreReason;
use crate::record::{Phase, Record};

/// Why a control changes nothing, as far as that can be told without applying it.
pub(super) fn refusal(
    definition: &Definition,
    record: &Record,
    control: &Control,
    limits: &Limits,
) -> Option<IgnoreReason> {
    if let Control::Operate(operation) = control {
        return operations::refusal(definition, record, operation);
    }
    let hears = match control {
        Control::Cancel { mode, .. } => {
            record.phase == Phase::Running || (*mode == CancelMode::Compensate && flight::is_open(record))
        }
        Control::Signal { name, .. } => {
            record.phase == Phase::Running || signals::is_heard_late(definition, record, name)
        }
        Control::Callback { .. } => record.phase == Phase::Running || flight::is_open(record),
        Control::Retry => stuck::any_stuck(record) || questions::any(record),
        Control::DecideStuck(decision) if decision.verdict == Verdict::Skip => {
            match skip_obstacle(definition, record, decision, limits) {
                None => true,
                Some(Unfit::NotStuck) => false,
                Some(Unfit::Refused(_) | Unfit::Result(_)) => return Some(IgnoreReason::Refused),
            }
        }
        Control::DecideStuck(decision) => {
            stuck::concerns(definition, record, decision) || questions::concerns(definition, record, decision)
        }
        Control::Migrate { .. } => !record.phase.is_terminal(),
        Control::Start { .. }
        | Control::CancelChild { .. }
        | Control::Operate(_)
        | Control::Heartbeat { .. }
        | Control::RegisterAlias { .. }
        | Control::ReleaseAlias { .. }
        | Control::AskAlias { .. }
        | Control::AliasRead { .. }
        | Control::AliasAnswered { .. } => false,
    };
    (!hears).then(|| {
        if record.phase.is_terminal() {
            IgnoreReason::Ended
        } else {
            IgnoreReason::NoHandler
        }
    })
}
