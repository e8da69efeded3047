//! `join`: how many of the steps that a step needs must be done, and what happens to the others.
//!
//! A step that is needed by such joins alone may fail: they go on without it, or fail themselves once there
//! cannot be enough any more.

use std::ops::RangeInclusive;

use saga_runner_language::definition::loops::VALUE_RANGE;
use saga_runner_language::definition::model::{Count, Group, Join, Step, Stragglers};
use saga_runner_language::json::Json;

use super::ends::{self, Defeat};
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::slot::Slot;
use super::{Rejection, entries, groups};
use crate::patch::Note;
use crate::record::StepStatus;

/// Most bytes of a wrong value that a message shows.
const SHOWN_BYTES: usize = 64;
/// Error class of a step that waits for more of its needs than can be done.
pub(super) const JOIN_UNREACHABLE: &str = "join_unreachable";

/// How far the needs of a step have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Open,
    Met,
    OutOfReach,
}

/// How far the needs of a step have come.
pub(super) fn standing(run: &Run<'_>, slot: Slot) -> Standing {
    let step = slot.step(run);
    let counts = BranchCounts::of(run, slot);
    let (met, out_of_reach) = match &step.join {
        Join::All => (counts.open == 0, counts.lost > 0),
        Join::AtLeast { count, .. } => match count.fixed().or(run.slot(slot).needed) {
            Some(count) => (
                counts.done >= count,
                counts.done.saturating_add(counts.open) < count,
            ),
            // It is computed when the first of the needs is over.
            None => (false, false),
        },
    };
    if out_of_reach {
        Standing::OutOfReach
    } else if met {
        Standing::Met
    } else {
        Standing::Open
    }
}

/// Computes how many needs of a step must be done, once the first of them is over, and keeps it. A number that cannot be is a
/// failure of the step; tells whether it has failed.
pub(super) fn compute(run: &mut Run<'_>, slot: Slot) -> Result<bool, Rejection> {
    let step = slot.step(run);
    let Join::AtLeast { count, .. } = &step.join else {
        return Ok(false);
    };
    if count.fixed().is_some() || run.slot(slot).needed.is_some() {
        return Ok(false);
    }
    let counts = BranchCounts::of(run, slot);
    let needs = u32::try_from(step.needs.len()).unwrap_or(u32::MAX);
    if counts.open >= needs {
        return Ok(false);
    }
    let place = format!("{}.join.at_least", Place::Step { name: &step.name });
    match number(run, count, 1..=needs, &place) {
        Ok(count) => {
            run.slot_mut(slot).needed = Some(count);
            Ok(false)
        }
        Err(why) => {
            why.defeats(run, slot)?;
            Ok(true)
        }
    }
}

/// Why a number of a definition has no value now.
pub(super) enum NoNumber {
    /// Its value is not allowed there, as this sentence says.
    OutOfRange(String),
    /// It cannot be computed.
    Rejected(Rejection),
}

impl From<Rejection> for NoNumber {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl NoNumber {
    /// A value that is not allowed is a failure of the step.
    pub(super) fn defeats(self, run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
        let class = VALUE_RANGE;
        match self {
            Self::OutOfRange(message) => {
                let message = &message;
                ends::failed(run, slot, Defeat { class, message })
            }
            Self::Rejected(rejection) => Err(rejection),
        }
    }
}

/// A number of a definition as it is now.
pub(super) fn number<'a>(
    run: &mut Run<'a>,
    count: &'a Count,
    range: RangeInclusive<u32>,
    place: &str,
) -> Result<u32, NoNumber> {
    let expr = match count {
        Count::Fixed(number) => return Ok(*number),
        Count::Computed(expr) => expr,
    };
    let value = run.evaluate(expr, Locals::default(), || place.to_owned())?;
    let number = match value {
        Json::Int(number) => u32::try_from(number).ok().filter(|number| range.contains(number)),
        _ => None,
    };
    number.ok_or_else(|| {
        let mut found = Vec::new();
        value.write(&mut found);
        found.truncate(SHOWN_BYTES);
        NoNumber::OutOfRange(format!(
            "{place} is {}, allowed are whole numbers from {} to {}",
            String::from_utf8_lossy(&found),
            range.start(),
            range.end()
        ))
    })
}

/// Whether the needs of a step cannot be met any more.
pub(super) fn is_out_of_reach(run: &Run<'_>, slot: Slot) -> bool {
    standing(run, slot) == Standing::OutOfReach
}

/// Fails a step whose needs cannot be met any more.
pub(super) fn out_of_reach(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    let step = slot.step(run);
    let counts = BranchCounts::of(run, slot);
    let message = format!(
        "of {} needs {} are done and {} may still be",
        step.needs.len(),
        counts.done,
        counts.open
    );
    let defeat = Defeat {
        class: JOIN_UNREACHABLE,
        message: &message,
    };
    ends::failed(run, slot, defeat)
}

/// The join of a step is met: gives up the needs that are not over, where the step says so.
pub(super) fn leave_stragglers(run: &mut Run<'_>, slot: Slot) -> Result<(), Rejection> {
    let step = slot.step(run);
    let Join::AtLeast {
        stragglers: Stragglers::Cancel,
        ..
    } = &step.join
    else {
        return Ok(());
    };
    for need in &step.needs {
        let slot = slot.peer(run, *need);
        let is_left = run.slot(slot).status.is_under_way();
        give_up(run, slot);
        if is_left {
            entries::give_back(run, slot)?;
        }
    }
    Ok(())
}

/// A step has failed and nothing is said about that. Tells whether it, or a group around it, is one that joins
/// can do without; that group has then failed with it.
pub(super) fn goes_on_without(run: &mut Run<'_>, slot: Slot, defeat: Defeat<'_>) -> Result<bool, Rejection> {
    let definition = run.ground.definition;
    let mut at = slot;
    while !Step::is_spare(&definition.steps, usize::from(at.step)) {
        let Some(around) = at.step(run).within else {
            return Ok(false);
        };
        // What an item is to the loop around it, the loop says.
        if let Some(Group::Foreach(_)) | None = definition.group(around) {
            return Ok(false);
        }
        at = at.peer(run, around);
    }
    if at == slot {
        groups::close(run, at);
    } else {
        give_up(run, at);
        let state = run.slot_mut(at);
        state.status = StepStatus::Failed;
        state.error = Some(defeat.class.to_owned());
        run.note(Note::StepFailed {
            step: at.step(run).name.clone(),
            class: defeat.class.to_owned(),
        });
    }
    entries::give_back(run, at)?;
    Ok(true)
}

/// Stops waiting for a step and for all that is nested in it. What has not started never will.
pub(super) fn give_up(run: &mut Run<'_>, slot: Slot) {
    let definition = run.ground.definition;
    let nested = definition.group(slot.step).map_or(0..0, Group::members);
    for step in std::iter::once(slot.step).chain(nested) {
        let slot = Slot { step, ..slot };
        // The steps of a loop over a list have no state for an item other than their own.
        if !run.has_slot(slot) {
            continue;
        }
        let status = run.slot(slot).status;
        if status.is_under_way() {
            groups::abandon(run, slot);
            ends::abandon(run, slot);
            run.slot_mut(slot).items = None;
        } else if status == StepStatus::Pending {
            run.slot_mut(slot).status = StepStatus::Abandoned;
            run.note(Note::StepAbandoned {
                step: slot.step(run).name.clone(),
            });
        }
    }
}

/// What the needs of a step came to so far.
#[derive(Debug, Default)]
struct BranchCounts {
    done: u32,
    /// They may be done later.
    open: u32,
    /// They failed, or were given up.
    lost: u32,
}

impl BranchCounts {
    fn of(run: &Run<'_>, slot: Slot) -> Self {
        let mut counts = Self::default();
        for need in &slot.step(run).needs {
            let count = match run.slot(slot.peer(run, *need)).status {
                StepStatus::Done => &mut counts.done,
                StepStatus::Skipped => continue,
                StepStatus::Failed | StepStatus::Abandoned => &mut counts.lost,
                StepStatus::Pending
                | StepStatus::Running
                | StepStatus::BackingOff
                | StepStatus::Delayed
                | StepStatus::Waiting
                | StepStatus::Stuck => &mut counts.open,
            };
            *count += 1;
        }
        counts
    }
}
