//! Completing before everything is done.
//!
//! The instance stops waiting for what runs, as it does when it fails: what succeeds late is dealt with as
//! `on_late` of its compensation says. What it did stays done.

use saga_runner_language::definition::model::Complete;

use super::place::Place;
use super::run::Run;
use super::scope::Locals;
use super::{Rejection, failure};
use crate::patch::Note;
use crate::record::{EarlyEnd, Phase, Record};

impl<'a> Run<'a> {
    /// Completes a running instance if the condition holds. Tells whether it does.
    pub(super) fn complete(
        &mut self,
        complete: &Complete,
        locals: Locals<'a>,
        place: Place<'_>,
    ) -> Result<bool, Rejection> {
        if !self.is_running() {
            return Ok(false);
        }
        if let Some(when) = &complete.when
            && !self.test(when, locals, || format!("{place}.complete.when"))?
        {
            return Ok(false);
        }
        self.note(Note::CompletedEarly {
            outcome: complete.outcome.clone(),
        });
        // The outcome stands from here on; `finally` follows when the input is concluded.
        self.record.phase = Phase::Finishing;
        self.record.early = Some(Box::new(EarlyEnd {
            outcome: complete.outcome.clone(),
            begun: false,
        }));
        failure::abandon_steps(self);
        self.clear_instance_timers();
        self.readmit_deferred();
        Ok(true)
    }
}

/// Whether the instance completes early and `finally` has still to begin.
pub(super) fn is_ahead(record: &Record) -> bool {
    let early = record.early.as_ref().is_some_and(|early| !early.begun);
    early && record.phase == Phase::Finishing
}
