//! Taking back what nobody waits for any longer.
//!
//! A step that is abandoned while its work is outstanding leaves a stray. The work may still wait for its turn:
//! whoever has it is told that it need not be done. Nothing depends on whether that comes in time, since a late
//! success is undone.

use super::Rejection;
use super::children;
use super::compensation;
use super::emission::Repetition;
use super::run::Run;
use crate::kernel::definition::model::{Action, COMMAND_TIMEOUT_MS};
use crate::kernel::input::CancelMode;
use crate::kernel::patch::Note;
use crate::kernel::record::{Outstanding, Stray};
use crate::kernel::work::WorkKind;

/// Takes back the work of all steps that this input has abandoned. Who cancels an instance may want what runs to
/// come to its own end.
pub(super) fn abandoned(run: &mut Run<'_>) -> Result<(), Rejection> {
    match compensation::cancel_mode(&run.record) {
        Some(CancelMode::Drain | CancelMode::Abandon) => return Ok(()),
        Some(CancelMode::Compensate) | None => {}
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
    let fresh: Vec<Stray> = run
        .record
        .strays
        .iter()
        .filter(|stray| !was(&stray.outstanding))
        .cloned()
        .collect();
    for stray in &fresh {
        let step = &run.ground.definition.steps[usize::from(stray.step)];
        match &step.action {
            Action::Saga(_) => children::recall(run, stray.step, stray.input.as_ref())?,
            Action::Effect { effect, .. } => {
                let kind = WorkKind::Recall {
                    effect: effect.clone(),
                    command: stray.outstanding.command,
                };
                effect_of(run, stray, &step.name, kind)?;
            }
            Action::Command(_)
            | Action::Publish(_)
            | Action::Nothing
            | Action::Group(_)
            | Action::UndoSaga(_) => {}
        }
    }
    Ok(())
}

/// What has to be said is said first: without room for it, the effect is done and undone.
fn effect_of(run: &mut Run<'_>, stray: &Stray, step: &str, kind: WorkKind) -> Result<(), Rejection> {
    if run.work_room() == 0 {
        return Ok(());
    }
    let path = format!("steps.{step}.recall");
    let repetition = Repetition {
        item: stray.item.unwrap_or(0),
        ..Repetition::once(run.record.version)
    };
    run.note(Note::Emitted { work: path.clone() });
    run.push_work(path, repetition, COMMAND_TIMEOUT_MS, kind)?;
    Ok(())
}
