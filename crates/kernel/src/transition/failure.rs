//! Failing: the turn from going forward to undoing.

use saga_runner_language::definition::model::Fail;

use super::run::Run;
use super::slot::Slot;
use super::{Rejection, compensation, ends, flight, program};
use crate::input::CancelMode;
use crate::patch::Note;
use crate::record::{Failure, Phase};

/// Why an instance is to fail.
#[derive(Debug)]
pub(super) struct Cause {
    code: String,
    message: String,
    step: Option<String>,
    cancelled: Option<CancelMode>,
    keep: Vec<String>,
    drain: bool,
}

impl Cause {
    /// `fail: {code}` of a definition.
    pub(super) fn declared(code: &str, message: String, step: Option<&str>) -> Self {
        Self {
            code: code.to_owned(),
            message,
            step: step.map(str::to_owned),
            cancelled: None,
            keep: Vec::new(),
            drain: false,
        }
    }

    /// With what the definition says besides: the steps that are not undone, and whether what is in flight is waited for.
    pub(super) fn of(self, fail: &Fail) -> Self {
        Self {
            keep: fail.keep.clone(),
            drain: fail.drain,
            ..self
        }
    }

    /// With the step that is to blame, if one is.
    pub(super) fn by(self, step: Option<&str>) -> Self {
        Self {
            step: step.map(str::to_owned),
            ..self
        }
    }

    /// A step that failed with an error class.
    pub(super) fn step(step: &str, class: &str, message: &str) -> Self {
        Self {
            code: class.to_owned(),
            message: message.to_owned(),
            step: Some(step.to_owned()),
            cancelled: None,
            keep: Vec::new(),
            drain: false,
        }
    }

    /// An operator's or another saga's request.
    pub(super) fn cancel(reason: &str, mode: CancelMode) -> Self {
        Self {
            code: "cancelled".to_owned(),
            message: reason.to_owned(),
            step: None,
            cancelled: Some(mode),
            keep: Vec::new(),
            drain: mode == CancelMode::Drain,
        }
    }
}

/// Turns a running instance to compensation. The first failure stands; a later one changes nothing.
pub(super) fn fail(run: &mut Run<'_>, cause: Cause) -> Result<(), Rejection> {
    if run.record.phase != Phase::Running {
        return Ok(());
    }
    run.note(Note::Failing {
        code: cause.code.clone(),
    });
    run.record.phase = Phase::Compensating;
    run.record.failure = Some(Failure {
        code: cause.code,
        message: cause.message,
        step: cause.step,
        time: run.record.updated,
        cancelled: cause.cancelled,
        drain: cause.drain,
        keep: cause.keep,
    });
    abandon_steps(run);
    run.clear_instance_timers();
    run.readmit_deferred();
    if cause.cancelled == Some(CancelMode::Abandon) {
        compensation::keep_all(run);
    }
    compensation::keep_named(run);
    compensation::proceed(run)
}

/// Turns a running instance to undoing because somebody asks for it, and tells its program if it has one.
pub(super) fn cancel(run: &mut Run<'_>, reason: &str, mode: CancelMode) -> Result<(), Rejection> {
    fail(run, Cause::cancel(reason, mode))?;
    if run.ground.definition.program.is_some() {
        program::cancel(run, reason, mode)?;
    }
    Ok(())
}

/// Stops waiting for what runs, unless the instance lets it come to its end.
pub(super) fn abandon_steps(run: &mut Run<'_>) {
    let open: Vec<Slot> = Slot::all(&run.record)
        .filter(|(slot, state)| state.status.is_under_way() && !flight::goes_on(run, *slot))
        .map(|(slot, _)| slot)
        .collect();
    for slot in open {
        ends::abandon(run, slot);
    }
    flight::forget_items(run);
}
