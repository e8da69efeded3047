//! Effects of a handler that run beside each other: each time the handler is taken, it adds one piece of work.

use saga_runner_language::definition::model::Foreach;

use super::run::Run;
use super::slot::Slot;
use super::{Rejection, WORK_PENDING, attempts, items};
use crate::items::{Bounds, Items};
use crate::record::{StepState, StepStatus};

/// Starts a piece of work beside those that are under way: the handler that emits it was taken once more. `iteration` is
/// another one each time.
pub(super) fn add(
    run: &mut Run<'_>,
    slot: Slot,
    foreach: &Foreach,
    path: &str,
    iteration: u64,
) -> Result<(), Rejection> {
    let body = foreach.steps.start;
    let state = run.slot_mut(slot);
    state.status = StepStatus::Running;
    let items = state.items.get_or_insert_with(|| {
        let bounds = Bounds {
            parallel: PIECES_MAX,
            at_least: None,
            tolerated: None,
        };
        Box::new(Items::new(body, &[], bounds))
    });
    if items.running.len() >= PIECES_MAX as usize {
        return Err(Rejection {
            reason: WORK_PENDING,
            message: format!("{path}: {PIECES_MAX} effects of this handler are under way, no more may be"),
        });
    }
    let piece = StepState {
        iteration: u32::try_from(iteration).unwrap_or(u32::MAX),
        ..StepState::pending()
    };
    let item = Some(items.add(vec![piece]));
    attempts::start(run, Slot { step: body, item })
}

/// Ends a piece of work whose failure a handler has taken.
pub(super) fn forget(run: &mut Run<'_>, slot: Slot) {
    if let (Some((group, _)), Some(index)) = (slot.foreach(run), slot.item) {
        items::take(run, Slot::of(group), index);
    }
}

/// Most effects of one handler that are under way at the same time.
const PIECES_MAX: u32 = 100;
