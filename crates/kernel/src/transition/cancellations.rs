//! Taking back what nobody waits for any longer.
//!
//! A step that is abandoned while its work is outstanding leaves a stray. The work may still wait for its turn:
//! whoever has it is told that it need not be done. Nothing depends on whether that comes in time, since a late
//! success is undone.

use saga_runner_language::definition::model::{Action, COMMAND_TIMEOUT_MS};

use super::Rejection;
use super::children;
use super::compensation;
use super::emission::Repetition;
use super::flight;
use super::run::Run;
use crate::input::CancelMode;
use crate::patch::Note;
use crate::record::{Outstanding, Stray};
use crate::work::WorkKind;

/// Cancels the instances that abandoned steps have started.
pub(super) fn children(run: &mut Run<'_>) -> Result<(), Rejection> {
    let of_sagas = |action: &Action| matches!(action, Action::Saga(_));
    for stray in fresh(run, of_sagas) {
        children::cancel(run, stray.step, stray.input.as_ref())?;
    }
    Ok(())
}

/// Tells the workers which effects of abandoned steps need not be carried out. Comes last, and takes only the room that
/// is left: what is not told is done and undone, but an input for whose work there is no room is refused.
pub(super) fn effects(run: &mut Run<'_>) -> Result<(), Rejection> {
    let of_effects = |action: &Action| matches!(action, Action::Effect { .. });
    let room = run.work_room();
    for stray in fresh(run, of_effects).into_iter().take(room) {
        let step = &run.ground.definition.steps[usize::from(stray.step)];
        let Action::Effect { effect, .. } = &step.action else {
            continue;
        };
        let kind = WorkKind::Cancel {
            effect: effect.clone(),
            command: stray.outstanding.command,
        };
        let path = format!("steps.{}.cancel", step.name);
        let repetition = Repetition {
            item: stray.item.unwrap_or(0),
            ..Repetition::once(run.record.version)
        };
        run.note(Note::Emitted { work: path.clone() });
        run.push_work(path, repetition, COMMAND_TIMEOUT_MS, kind)?;
    }
    Ok(())
}

/// The strays that this input has made, of steps with such an action. Who cancels an instance may want what runs to
/// come to its own end: then there are none.
fn fresh(run: &Run<'_>, is_meant: impl Fn(&Action) -> bool) -> Vec<Stray> {
    if flight::drains(&run.record) || compensation::cancel_mode(&run.record) == Some(CancelMode::Abandon) {
        return Vec::new();
    }
    let before = run
        .ground
        .before
        .map_or(&[][..], |before| before.strays.as_slice());
    let was = |outstanding: &Outstanding| {
        before
            .iter()
            .any(|stray| stray.outstanding.command == outstanding.command)
    };
    let steps = &run.ground.definition.steps;
    let strays = run.record.strays.iter();
    strays
        .filter(|stray| is_meant(&steps[usize::from(stray.step)].action) && !was(&stray.outstanding))
        .cloned()
        .collect()
}
