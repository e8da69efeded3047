//! Reading what happens at the end of an instance: commands, facts, and effects that are waited for.

use super::actions::Reading;
use super::codes;
use super::fields::{self, Fields, NameRule};
use super::grammar;
use super::model::{Emission, Emit, Finally, OF_FINALLY, Step};
use super::steps::STEPS_MAX;
use super::texts::EventParts;
use super::yaml::{Entry, Node};
use crate::expr::Root;

/// What only an effect may have besides.
const OF_EFFECT: &[&str] = &["name", "with", "retry", "timeout", "deadline"];

/// Roots at the end of an instance that did not fail.
const COMPLETED_ROOTS: &[Root] = &[
    Root::Outcome,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Event,
    Root::Record,
];

/// Roots at the end of one that did.
const FAILED_ROOTS: &[Root] = &[
    Root::Outcome,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Failure,
    Root::Event,
    Root::Record,
];

impl<'r> Reading<'r, '_> {
    pub fn finally(&mut self, entry: &'r Entry<'_>) -> Finally {
        let Some(fields) = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::FINALLY,
            self.findings,
        ) else {
            return Finally::default();
        };
        Finally {
            completed: self.end(fields.get("completed"), COMPLETED_ROOTS),
            failed: self.end(fields.get("failed"), FAILED_ROOTS),
            cancelled: self.end(fields.get("cancelled"), FAILED_ROOTS),
        }
    }

    fn end(&mut self, outcome: Option<&'r Entry<'_>>, roots: &'static [Root]) -> Vec<Emission> {
        let Some(entry) = outcome else {
            return Vec::new();
        };
        let known = self.types.clone();
        if let (Some(types), "completed") = (&mut self.types, &*entry.key) {
            types.enter_end(self.completes);
        }
        let mut emits = Vec::new();
        for item in fields::one_or_many(&entry.value) {
            let known = self.types.clone();
            emits.extend(self.last(entry, item, roots));
            self.types = known;
        }
        self.types = known;
        emits
    }

    fn last(
        &mut self,
        outcome: &'r Entry<'_>,
        item: &'r Node<'_>,
        roots: &'static [Root],
    ) -> Option<Emission> {
        let fields = Fields::item(item, &outcome.key_span, &grammar::steps::LAST, self.findings)?;
        let (when, _) = self.emitted_when(&fields, roots, EventParts::Moment);
        // Read in any case, so that all that is wrong is told.
        let retry = fields
            .get("retry")
            .map(|retry| self.step_retry(retry, None))
            .unwrap_or_default();
        let timeout_ms = self.timeout(&fields);
        let deadline = self.deadline(&fields, roots);
        let chosen = fields.chosen(self.findings)?;
        if chosen.key == "effect" {
            let action = self.action(&fields, roots);
            let name = self.last_name(outcome, &fields)?;
            let emit = self
                .add_last(
                    &fields,
                    Step {
                        at_end: true,
                        retry,
                        timeout_ms,
                        deadline,
                        ..Step::doing(name, action?)
                    },
                )
                .map(Emit::Effect)?;
            return Some(Emission { when, emit });
        }
        for key in OF_EFFECT {
            if let Some(stray) = fields.get(key) {
                let message = format!(
                    "\"{key}\" belongs to an effect; nobody waits for a {}",
                    chosen.key
                );
                self.findings
                    .error(codes::CONTRADICTION, stray.key_span.clone(), message);
            }
        }
        let emit = if chosen.key == "command" {
            self.command(chosen, roots, EventParts::Moment).map(Emit::Command)
        } else {
            self.telling(chosen, roots, EventParts::Moment).map(Emit::Publish)
        };
        Some(Emission { when, emit: emit? })
    }

    /// The name of the step of an effect.
    fn last_name(&mut self, outcome: &Entry<'_>, fields: &Fields<'_, '_>) -> Option<String> {
        let entry = fields.require("name", self.findings)?;
        let name = fields::text(
            &entry.value,
            &entry.key_span,
            "the name of an effect",
            self.findings,
        )?;
        let span = &entry.value.span;
        let is_name = fields::is_name(name, span, "effect", NameRule::Identifier, self.findings);
        is_name.then(|| format!("{OF_FINALLY}{}.{name}", outcome.key))
    }

    /// Adds the step of an effect behind all others, and returns its index.
    fn add_last(&mut self, fields: &Fields<'_, '_>, step: Step) -> Option<u16> {
        let name = fields.get("name")?;
        if self.emitted.iter().any(|other| other.name == step.name) {
            let message = "finally has an effect of this name for this outcome already";
            self.findings
                .error(codes::DUPLICATE_NAME, name.value.span.clone(), message);
            return None;
        }
        let index = self.steps.len() + self.emitted.len();
        if index >= STEPS_MAX {
            let message = format!("steps and effects are more than {STEPS_MAX}");
            self.findings
                .error(codes::TOO_MANY, name.key_span.clone(), message);
            return None;
        }
        self.emitted.push(step);
        u16::try_from(index).ok()
    }
}
