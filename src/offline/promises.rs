//! What must hold at the end of every run of `--chaos`.
//!
//! - No input is rejected, and every instance ends.
//! - The ledger has nothing that is still to be undone.
//! - What a step of an instance that has failed or was cancelled has done, or may have done, was undone, unless the step says
//!   otherwise (`compensate: none`, `when`, `on_unknown`, `on_late`), or the failure does (`keep`). So was what states, timers and
//!   handlers have begun. This is told by the work that was sent and answered, not by the ledger.

use super::chaos::{Ending, Fate};
use super::work;
use super::world::World;
use crate::kernel::definition::model::{Action, Compensation, OnLate, OnUnknown, Step};
use crate::kernel::ids::InstanceId;
use crate::kernel::input::CancelMode;
use crate::kernel::record::{Phase, Record};
use crate::kernel::work::{WorkItem, WorkKind};

/// What is wrong with an end.
#[must_use]
pub fn broken(ending: &Ending) -> Option<String> {
    if let Some(message) = &ending.rejected {
        return Some(format!("an input is rejected: {message}"));
    }
    let world = &ending.world;
    let Some(record) = world.last() else {
        return Some("there is no instance".to_owned());
    };
    if world.ended.is_none() {
        let awaited = work::awaited(world).join(", ");
        let awaited = if awaited.is_empty() { "nothing" } else { &awaited };
        let phase = record.phase.as_str();
        return Some(format!("the instance stays {phase} and awaits {awaited}"));
    }
    if let Some((other, _)) = world.others().find(|(id, _)| world.is_live(id)) {
        return Some(format!("{}/{} does not end", other.saga, other.key));
    }
    let own = uncompensated(&world.instance, record, world);
    // What a completed child keeps is its parent's to undo.
    let mut others = world
        .others()
        .filter(|(_, record)| record.phase != Phase::Completed);
    let own = own.or_else(|| others.find_map(|(id, record)| uncompensated(id, &record, world)));
    own.or_else(|| not_undone(ending, record))
}

/// What an instance has neither kept nor undone at its end.
fn uncompensated(id: &InstanceId, record: &Record, world: &World) -> Option<String> {
    let (_, left) = record.ledger.having(|status| !status.is_over()).next()?;
    let step = world.definition_of(id).steps.get(usize::from(left.step));
    Some(format!(
        "the instance ends as {} and {} is not undone",
        record.phase.as_str(),
        step.map_or("a step", |step| step.name.as_str())
    ))
}

/// Work of the instance that a case is about that was done, or perhaps was, and that nothing undoes.
fn not_undone(ending: &Ending, record: &Record) -> Option<String> {
    let world = &ending.world;
    let failure = record.failure.as_ref();
    let is_abandoned = failure.is_some_and(|failure| failure.cancelled == Some(CancelMode::Abandon));
    if record.phase == Phase::Completed || is_abandoned {
        return None;
    }
    let is_own = |item: &&WorkItem| {
        let address = world.addresses.get(&item.command_id);
        item.instance == world.instance
            && address.is_some_and(|address| address.generation == record.generation)
    };
    let mut own = world.sent.iter().filter(is_own);
    let left = own.find(|item| {
        let fate = ending.fates.get(&item.command_id).copied();
        must_be_undone(world, record, item, fate) && !is_undone(world, item)
    })?;
    Some(format!(
        "the instance ends as {} and nothing undoes {}, which {}",
        record.phase.as_str(),
        world.name(left),
        match ending.fates.get(&left.command_id) {
            Some(Fate::Unknown) => "perhaps was done",
            Some(Fate::Done | Fate::NotDone) | None => "was done",
        }
    ))
}

fn must_be_undone(world: &World, record: &Record, item: &WorkItem, fate: Option<Fate>) -> bool {
    let WorkKind::Effect { effect, .. } = &item.kind else {
        return false;
    };
    let Some((index, step)) = step_of(world, item) else {
        return false;
    };
    let keep = record.failure.iter().flat_map(|failure| &failure.keep);
    let mut keep = keep.filter(|name| Step::is_called(&world.definition.steps, index, name));
    if keep.next().is_some() {
        return false;
    }
    let Some(undo) = step.compensate.as_ref().filter(|undo| always_undoes(undo)) else {
        return false;
    };
    let asks = world
        .definition
        .effects
        .get(effect)
        .is_some_and(|contract| contract.asks);
    match fate {
        Some(Fate::Done) => true,
        Some(Fate::Unknown) => undo.on_unknown == OnUnknown::Compensate && !asks,
        Some(Fate::NotDone) | None => false,
    }
}

/// Whether it says that whatever was done is undone by a piece of work.
fn always_undoes(undo: &Compensation) -> bool {
    undo.when.is_none() && undo.on_late == OnLate::Compensate && matches!(undo.action, Action::Effect { .. })
}

/// The step whose forward work it is, with its index: also what a state, a timer or a handler emits is one.
fn step_of<'w>(world: &'w World, item: &WorkItem) -> Option<(u16, &'w Step)> {
    let name = item.path.strip_prefix("steps.").unwrap_or(&item.path);
    let mut steps = (0..).zip(&world.definition.steps);
    steps.find(|(_, step)| step.name == name)
}

fn is_undone(world: &World, item: &WorkItem) -> bool {
    let Some(done) = world.addresses.get(&item.command_id) else {
        return false;
    };
    let mut sent = world.sent.iter().filter(|other| work::undoes(&other.path));
    sent.any(|other| {
        let address = world.addresses.get(&other.command_id);
        address.is_some_and(|address| {
            other.instance == item.instance
                && address.generation == done.generation
                && (address.turn, address.item) == (done.turn, done.item)
                && other
                    .path
                    .strip_prefix(&*item.path)
                    .is_some_and(|rest| rest.starts_with('.'))
        })
    })
}
