//! Reading how an instance ends early: `complete`, and what a failure keeps.

use std::ops::Range;

use super::actions::Reading;
use super::certain;
use super::codes;
use super::fields::{self, Fields, NameRule};
use super::findings::Findings;
use super::grammar;
use super::model::{Cancel, Complete, Definition, Handler, Step};
use super::texts::EventParts;
use super::yaml::Entry;
use crate::expr::{Root, nearest};
use crate::status::CancelMode;

/// Words that say that an instance did not complete.
const OTHER_ENDS: [&str; 2] = ["failed", "cancelled"];

impl<'r> Reading<'r, '_> {
    /// `complete: {outcome, when}`
    pub fn complete(
        &mut self,
        entry: &Entry<'_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Option<Complete> {
        self.completes = true;
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::saga::EARLY_END,
            self.findings,
        )?;
        let when = fields.get("when").map(|when| {
            let condition = self.expr(when, roots, event);
            self.certain(when, &condition, certain::COMPLETE);
            condition
        });
        let outcome = fields.require("outcome", self.findings)?;
        let text = fields::text(&outcome.value, &outcome.key_span, "an outcome", self.findings)?;
        let span = &outcome.value.span;
        let legal = fields::is_name(text, span, "outcome", NameRule::Dotted, self.findings);
        if OTHER_ENDS.contains(&text) {
            let message = format!("outcome is \"{text}\", which is how instances end that do not complete");
            self.findings.error(codes::WRONG_VALUE, span.clone(), message);
        }
        legal.then(|| Complete {
            outcome: text.to_owned(),
            when,
        })
    }

    /// `cancel: {mode, reason}`
    pub fn cancel(&mut self, entry: &Entry<'_>, roots: &'static [Root], event: EventParts) -> Option<Cancel> {
        let shape = &grammar::saga::CANCELLATION;
        let fields = Fields::read(&entry.value, &entry.key_span, shape, self.findings)?;
        let mode = fields.get("mode").map_or(Some("compensate"), |mode| {
            self.one_word(mode, &["compensate", "drain", "abandon"])
        });
        let reason = fields
            .get("reason")
            .map(|reason| self.text(reason, "a reason", roots, event));
        let mode = match mode? {
            "drain" => CancelMode::Drain,
            "abandon" => CancelMode::Abandon,
            _ => CancelMode::Compensate,
        };
        Some(Cancel { mode, reason })
    }

    /// `cancel` beside other ways on.
    pub fn cancelled_here(&mut self, fields: &Fields<'_, '_>, others: &[&str]) {
        let other = others.iter().find_map(|key| fields.get(key));
        if let (Some(_), Some(other)) = (fields.get("cancel"), other) {
            let message = format!(
                "an instance that is cancelled goes nowhere else: \"cancel\" and \"{}\" exclude each other",
                other.key
            );
            self.findings
                .error(codes::CONTRADICTION, other.key_span.clone(), message);
        }
    }

    /// `complete` beside other ways on: without a condition there are none.
    pub fn ends_here(&mut self, fields: &Fields<'_, '_>, others: &[&str]) {
        let Some(complete) = fields.get("complete") else {
            return;
        };
        if super::saga::member(&complete.value, "when").is_some() {
            return;
        }
        if let Some(other) = others.iter().find_map(|key| fields.get(key)) {
            let message = format!(
                "an instance that has completed goes nowhere: \"complete\" without \"when\" and \"{}\" exclude each other",
                other.key
            );
            self.findings
                .error(codes::CONTRADICTION, other.key_span.clone(), message);
        }
    }

    /// Names of steps, which are looked up when all of them are read.
    pub fn kept(&mut self, entry: &'r Entry<'_>) -> Vec<String> {
        let mut names = Vec::new();
        for item in fields::one_or_many(&entry.value) {
            if let Some(name) = fields::text(item, &entry.key_span, "the name of a step", self.findings) {
                self.kept.push((name, item.span.clone()));
                names.push(name.to_owned());
            }
        }
        names.sort();
        names.dedup();
        names
    }
}

/// Whether some handler or timer ends an instance early.
pub fn completes(definition: &Definition) -> bool {
    let handlers = definition.own_handlers().flatten();
    let of_handlers = handlers.map(|handler: &Handler| &handler.actions);
    let of_timers = definition.timers.iter().map(|timer| &timer.actions);
    of_handlers
        .chain(of_timers)
        .any(|actions| actions.complete.is_some())
}

/// What a failure keeps are steps that could be undone.
pub fn kept(kept: &[(&str, Range<usize>)], steps: &[Step], findings: &mut Findings<'_>) {
    for (name, span) in kept {
        let named = (0..=u16::MAX)
            .zip(steps)
            .filter(|(index, _)| Step::is_called(steps, *index, name));
        let mut known = false;
        let mut undoable = false;
        for (_, step) in named {
            known = true;
            undoable |= step.compensate.is_some();
        }
        if !known {
            let undoable = steps.iter().filter(|step| step.compensate.is_some());
            let help =
                nearest(name, undoable.map(Step::title)).map(|near| format!("did you mean \"{near}\"?"));
            let message = format!("unknown step \"{}\"", name.escape_debug());
            findings
                .error(codes::UNKNOWN_STEP, span.clone(), message)
                .help(help);
        } else if !undoable {
            let message = format!("the step \"{name}\" has no \"compensate\", so there is nothing to keep");
            findings.error(codes::WRONG_VALUE, span.clone(), message);
        }
    }
}
