//! One attempt at a compensation: the work that undoes a ledger entry, made from what the step sent and got.

use saga_runner_language::definition::model::{Action, CHILD_TIMEOUT_MS, Compensation, Late, Step};
use saga_runner_language::json::Json;
use serde_bytes::ByteBuf;

use super::emission::{KnownBy, Repetition};
use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::turns::SOON_MS;
use super::{Rejection, children, compensation, stuck};
use crate::ledger::LedgerStatus;
use crate::patch::Note;
use crate::work::WorkKind;

/// Work items of one input that compensations which run at the same time leave to others.
pub(super) const WORK_LEFT: usize = 16;

pub(super) fn start(run: &mut Run<'_>, at: usize) -> Result<(), Rejection> {
    let entry = run.record.ledger.entry(at);
    if entry.asks {
        return stuck::ask(run, at);
    }
    let step = &run.ground.definition.steps[usize::from(entry.step)];
    let is_told = !entry.of_child && is_fact(step);
    if is_told && run.work_room() <= WORK_LEFT && !run.work.is_empty() {
        // Facts are undone with at once, so many may follow each other; those that have no room come with the next input.
        let entry = run.record.ledger.entry(at);
        entry.status = LedgerStatus::BackingOff;
        let timer = compensation::timer_name(step, entry);
        return run.set_retry_timer(&timer, SOON_MS);
    }
    let entry = run.record.ledger.entry(at);
    entry.attempt = entry.attempt.saturating_add(1);
    let repetition = compensation::repetition(entry);
    let (input, result, late) = (entry.input.clone(), entry.result.clone(), entry.late);
    let (known_as, life) = (entry.known_as.clone(), entry.life.clone());
    let of_child = entry.of_child;
    let path = Place::Compensation { step: &step.name }.to_string();
    if late.is_some() {
        run.trace(format_args!("{path}.late"));
    }
    let prepared = match (&step.action, &step.compensate) {
        (Action::Saga(child), _) if of_child => {
            children::take_back(run, &child.saga, input, &path).map(|kind| Some((kind, CHILD_TIMEOUT_MS)))
        }
        (_, Some(compensation)) => prepare(run, compensation, repetition, (input, result, late), &path)
            .map(|kind| Some((kind?, compensation.timeout_ms))),
        (_, None) => {
            return Err(Rejection {
                reason: "definition.mismatch",
                message: format!("step {} is on the ledger without a compensation", step.name),
            });
        }
    };
    let begun = match prepared {
        Ok(Some((kind, timeout_ms))) => {
            let known_by = KnownBy {
                path: known_as.as_deref(),
                life: life.as_deref(),
            };
            run.push_work_as(path, known_by, repetition, timeout_ms, kind)
        }
        Ok(None) => {
            stuck::keep(run, at, step);
            return Ok(());
        }
        Err(rejection) => Err(rejection),
    };
    let outstanding = match begun {
        Ok(outstanding) => outstanding,
        // Whatever the input is that leads here, what was done must not be forgotten behind it.
        Err(rejection) if rejection.is_of_rendering() => return stuck::impossible(run, at, step, &rejection),
        Err(rejection) => return Err(rejection),
    };
    run.note(Note::CompensationStarted {
        step: step.name.clone(),
        attempt: repetition.attempt,
    });
    let entry = run.record.ledger.entry(at);
    if is_told {
        // Nothing comes back: what is published with the decision is done with it.
        entry.undone();
        run.note(Note::CompensationDone {
            step: step.name.clone(),
        });
        return Ok(());
    }
    entry.status = LedgerStatus::Undoing;
    entry.outstanding = Some(outstanding);
    Ok(())
}

/// Whether a fact undoes what the step did.
fn is_fact(step: &Step) -> bool {
    let undo = step.compensate.as_ref().map(|compensation| &compensation.action);
    matches!(undo, Some(Action::Publish(_)))
}

/// What undoes an entry of this input and result; `None` where there is nothing to undo.
fn prepare(
    run: &mut Run<'_>,
    compensation: &Compensation,
    repetition: Repetition,
    (input, result, late): (Option<ByteBuf>, Option<ByteBuf>, Option<Late>),
    path: &str,
) -> Result<Option<WorkKind>, Rejection> {
    let late = late.map_or(Json::Null, |late| {
        let reason = Json::Str(late.as_str().into());
        Json::Map(vec![("reason".into(), reason)])
    });
    let mut locals = Locals {
        result: Some(run.ground.values.keep(Json::Null)),
        late: Some(run.ground.values.keep(late)),
        ..Locals::default()
    };
    if let Some(result) = result {
        locals.result = Some(run.parse_owned(result.into_vec(), path)?);
    }
    // In its place there would be what the instance was given.
    locals.input = Some(run.ground.values.keep(Json::Null));
    if let Some(input) = input {
        locals.input = Some(run.parse_owned(input.into_vec(), path)?);
    }
    if let Some(when) = &compensation.when
        && repetition.attempt == 1
        && !run.test(when, locals, || format!("{path}.when"))?
    {
        return Ok(None);
    }
    run.action(&compensation.action, locals, path).map(Some)
}
