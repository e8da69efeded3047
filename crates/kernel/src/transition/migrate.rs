//! An instance migrates to another version of its saga.
//!
//! Everything that it has must have a place in the new version, by name or by what `migrate` says; for whatever
//! has none the migration is refused, with all the reasons at once, and nothing changes. What the new version has
//! in addition begins as in a new instance: steps are pending, timers begin to run. Undoing is a migration to the
//! version that was left, by the same rules.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::Migration;
use saga_runner_language::expr::write_sorted;
use saga_runner_language::ids::InstanceId;
use saga_runner_language::json::Json;

use super::arena::Arena;
use super::mapping::Mapping;
pub use super::mapping::Obstacle;
use super::place::Place;
use super::run::{Ground, Run};
use super::scope::Locals;
use super::slot::Slot;
use super::{Context, Rejection, check_definition, compensation, seen, timers};
use crate::input::{Control, Input, InputBody};
use crate::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::record::{Phase, Record};

/// Reason of a migration that is refused.
pub const REFUSED: &str = "migration.refused";

/// Everything of an instance that has no place in `to`; on the way `back`, in the version that it came from.
#[must_use]
pub fn obstacles(from: &Definition, to: &Definition, record: &Record, back: bool) -> Vec<Obstacle> {
    let identity = Migration::default();
    let (_, obstacles) = Mapping::new(from, to, way(from, to, back, &identity), back).moved(record);
    obstacles
}

/// What says how to go from one to the other.
fn way<'d>(from: &'d Definition, to: &'d Definition, back: bool, identity: &'d Migration) -> &'d Migration {
    if back {
        from.migration.undo.as_deref().unwrap_or(identity)
    } else {
        &to.migration
    }
}

/// Brings an instance from the version that it runs under to `to`; `input` is the control that asks for it.
///
/// # Errors
/// [`Rejection`] with [`REFUSED`] where something of the instance has no place in `to`, others where an
/// expression fails; nothing has changed then.
pub fn migrate(
    from: &Definition,
    to: &Definition,
    instance: &InstanceId,
    record: &Record,
    input: &Input,
    context: &Context<'_>,
) -> Result<Patch, Rejection> {
    if record.definition == to.hash {
        return Ok(Patch::ignored(IgnoreReason::Duplicate));
    }
    if record.phase.is_terminal() {
        return Ok(Patch::ignored(IgnoreReason::Ended));
    }
    check_definition(from, record)?;
    let back = matches!(
        input.body,
        InputBody::Control(Control::Migrate { back: true, .. })
    );
    let identity = Migration::default();
    let way = way(from, to, back, &identity);
    let (moved, obstacles) = Mapping::new(from, to, way, back).moved(record);
    if !obstacles.is_empty() {
        let messages: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
        return Err(Rejection {
            reason: REFUSED,
            message: messages.join("; "),
        });
    }
    let (texts, values) = (Arena::default(), Arena::default());
    let ground = Ground {
        definition: to,
        instance,
        before: Some(record),
        last: None,
        input,
        context,
        texts: &texts,
        values: &values,
        trace: None,
    };
    let mut run = Run::of(ground, record);
    run.record = Record {
        version: run.record.version,
        updated: run.record.updated,
        ..moved
    };
    seen::remember_event(&mut run.record, seen::control(input));
    run.note(Note::Migrated {
        from: from.hash.to_string(),
        to: to.hash.to_string(),
    });
    run.set(&way.set, Locals::default(), Place::Migration)?;
    drop_fields(&mut run, way)?;
    if run.record.phase == Phase::Running {
        new_timers(&mut run, from, way)?;
        // What the old state deferred is given again; the new one may defer it again.
        run.readmit_deferred();
    } else {
        compensation::resume(&mut run)?;
    }
    run.conclude(Outcome::Applied)
}

fn drop_fields(run: &mut Run<'_>, way: &Migration) -> Result<(), Rejection> {
    let gone = &way.dropped.state;
    if gone.is_empty() {
        return Ok(());
    }
    let state = run.state_root()?;
    if let Json::Map(members) = state {
        let kept = members.iter().filter(|(name, _)| !gone.contains(name.as_ref()));
        let kept = Json::Map(kept.cloned().collect());
        let mut data = Vec::new();
        write_sorted(&kept, &mut data);
        run.replace_data(data);
    }
    Ok(())
}

/// Timers that every new instance has and that the old version did not know begin to run now.
fn new_timers(run: &mut Run<'_>, from: &Definition, way: &Migration) -> Result<(), Rejection> {
    let to = run.ground.definition;
    for timer in &to.timers {
        let known = from.timers.iter().any(|old| {
            let renamed = way.timers.get(&old.name);
            *renamed.unwrap_or(&old.name) == timer.name
        });
        let step = timer.during.map(Slot::of);
        let wanted = step.is_none_or(|slot| run.has_slot(slot) && run.slot(slot).status.is_under_way());
        if wanted && !known && !run.record.timers.contains_key(&timer.name) {
            timers::begin(run, timer)?;
        }
    }
    Ok(())
}
