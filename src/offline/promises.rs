//! What must hold at the end of every run of `--chaos`, for every instance that there is.
//!
//! - No input is rejected, and every instance ends.
//! - The ledger has nothing that is still to be undone. That of a completed child is its parent's.
//! - What a step of an instance that has failed or was cancelled has done, or may have done, was undone, unless the step says
//!   otherwise (`compensate: none`, `when`, `on_unknown`, `on_late`), or the failure does (`keep`). So was what states, timers and
//!   handlers have begun, and so were children. This is told by the work that was sent and answered, not by the ledger.

use super::chaos::{Ending, Fate};
use super::work;
use super::world::World;
use crate::kernel::definition::Definition;
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
    let left = uncompensated(world, &world.instance, record).or_else(|| {
        let mut others = world.others();
        others.find_map(|(id, record)| uncompensated(world, id, &record))
    });
    left.or_else(|| not_undone(ending, &world.instance, record))
        .or_else(|| {
            let mut others = world.others();
            others.find_map(|(id, record)| not_undone(ending, id, &record))
        })
}

/// What an instance has neither kept nor undone at its end.
fn uncompensated(world: &World, id: &InstanceId, record: &Record) -> Option<String> {
    // What a completed child keeps is its parent's to undo.
    let is_kept = record.parent.as_ref().is_some_and(|parent| parent.undoable);
    if record.phase == Phase::Completed && is_kept || is_abandoned(record) {
        return None;
    }
    let (_, left) = record.ledger.having(|status| !status.is_over()).next()?;
    let step = world.definition_of(id).steps.get(usize::from(left.step));
    Some(format!(
        "{} ends as {} and {} is not undone",
        called(world, id),
        record.phase.as_str(),
        step.map_or("a step", |step| step.name.as_str())
    ))
}

/// An operator has killed it, or given up what it has done.
fn is_abandoned(record: &Record) -> bool {
    let failure = record.failure.as_ref();
    failure.is_some_and(|failure| failure.cancelled == Some(CancelMode::Abandon))
}

fn called(world: &World, id: &InstanceId) -> String {
    if *id == world.instance {
        return "the instance".to_owned();
    }
    format!("{}/{}", id.saga, id.key)
}

/// Work of an instance that was done, or perhaps was, and that nothing undoes.
fn not_undone(ending: &Ending, id: &InstanceId, record: &Record) -> Option<String> {
    let world = &ending.world;
    if record.phase == Phase::Completed || is_abandoned(record) {
        return None;
    }
    let is_own = |item: &&WorkItem| {
        let address = world.addresses.get(&item.command_id);
        item.instance == *id && address.is_some_and(|address| address.generation == record.generation)
    };
    let mut own = world.sent.iter().filter(is_own);
    let left =
        own.find(|item| must_be_undone(world, record, item, fate(ending, item)) && !is_undone(world, item))?;
    Some(format!(
        "{} ends as {} and nothing undoes {}, which {}",
        called(world, id),
        record.phase.as_str(),
        world.name(left),
        match fate(ending, left) {
            Some(Fate::Unknown) => "perhaps was done",
            Some(Fate::Done | Fate::NotDone) | None => "was done",
        }
    ))
}

/// The outcome of a piece of work. An instance that is there speaks for itself.
fn fate(ending: &Ending, item: &WorkItem) -> Option<Fate> {
    let world = &ending.world;
    let WorkKind::Saga { saga, key, .. } = &item.kind else {
        return ending.fates.get(&item.command_id).copied();
    };
    if !world.is_delivered(item) {
        return ending.fates.get(&item.command_id).copied();
    }
    let child = InstanceId {
        tenant: item.instance.tenant.clone(),
        saga: saga.clone(),
        key: key.clone(),
    };
    let child = world.read(&child)?;
    let is_own = child
        .parent
        .is_some_and(|parent| parent.command == item.command_id);
    (is_own && child.phase == Phase::Completed).then_some(Fate::Done)
}

fn must_be_undone(world: &World, record: &Record, item: &WorkItem, fate: Option<Fate>) -> bool {
    let definition = world.definition_of(&item.instance);
    let Some((index, step)) = step_of(definition, item) else {
        return false;
    };
    let keep = record.failure.iter().flat_map(|failure| &failure.keep);
    let mut keep = keep.filter(|name| Step::is_called(&definition.steps, index, name));
    if keep.next().is_some() {
        return false;
    }
    let Some(undo) = step.compensate.as_ref().filter(|undo| always_undoes(undo)) else {
        return false;
    };
    let asks = match &item.kind {
        WorkKind::Effect { effect, .. } => definition
            .effects
            .get(effect)
            .is_some_and(|contract| contract.asks),
        _ => false,
    };
    match fate {
        Some(Fate::Done) => true,
        Some(Fate::Unknown) => undo.on_unknown == OnUnknown::Compensate && !asks,
        Some(Fate::NotDone) | None => false,
    }
}

/// Whether it says that whatever was done is undone by a piece of work.
fn always_undoes(undo: &Compensation) -> bool {
    let is_work = match undo.action {
        Action::Effect { .. } | Action::Command(_) | Action::Publish(_) | Action::UndoSaga(_) => true,
        Action::Saga(_) | Action::Nothing | Action::Decide(_) | Action::Group(_) => false,
    };
    undo.when.is_none() && undo.on_late == OnLate::Compensate && is_work
}

/// The step whose forward work it is, with its index: also what a state, a timer or a handler emits is one.
fn step_of<'d>(definition: &'d Definition, item: &WorkItem) -> Option<(u16, &'d Step)> {
    let name = item.path.strip_prefix("steps.").unwrap_or(&item.path);
    let mut steps = (0..).zip(&definition.steps);
    steps.find(|(_, step)| step.name == name)
}

fn is_undone(world: &World, item: &WorkItem) -> bool {
    let Some(done) = world.addresses.get(&item.command_id) else {
        return false;
    };
    if matches!(item.kind, WorkKind::Saga { .. }) && world.is_delivered(item) {
        // It has ended as if nothing were to be undone.
        return false;
    }
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
