//! Reading what a step does about failures: `retry`, `on_error`, `on_timeout`.

use std::collections::BTreeMap;
use std::ops::Range;

use super::actions::Reading;
use super::certain;
use super::codes;
use super::fields::{self, Fields, NameRule};
use super::grammar;
use super::model::{ANY_CLASS, HEARTBEAT_CLASS, OnError, RETRY_CLASSES, STEP_RETRY, StepRetry, Then, Wait};
use super::steps::{RetryBounds, retry};
use super::texts::EventParts;
use super::yaml::{Entry, Node};
use crate::classes::TIMEOUT_CLASS;
use crate::classes::{RESULT_EXPRESSION, RESULT_SCHEMA};
use crate::expr::Root;

/// Most attempts of a step for one error class.
pub const STEP_ATTEMPTS_MAX: u32 = 1_000;

/// Roots when a step has failed.
pub const ERROR_ROOTS: &[Root] = &[
    Root::Error,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Event,
    Root::Record,
];

impl<'r> Reading<'r, '_> {
    /// One table, or a list of them.
    pub fn step_retry(&mut self, entry: &Entry<'_>, wait: Option<&Wait>) -> Vec<StepRetry> {
        let bounds = RetryBounds {
            attempts: 1..=STEP_ATTEMPTS_MAX,
            default: STEP_RETRY,
        };
        let mut tables: Vec<StepRetry> = Vec::new();
        for item in fields::one_or_many(&entry.value) {
            let Some(fields) =
                Fields::item(item, &entry.key_span, &grammar::steps::STEP_RETRY, self.findings)
            else {
                continue;
            };
            let policy = retry(&fields, &bounds, self.findings);
            let errors = fields.get("errors");
            let known = tables.iter().flat_map(|table| &table.classes).cloned().collect();
            let mut classes = errors.map_or_else(Vec::new, |errors| self.classes(errors, known));
            if errors.is_none() {
                classes = RETRY_CLASSES.map(str::to_owned).to_vec();
                if wait.is_some_and(|wait| wait.heartbeat_ms.is_some()) {
                    classes.push(HEARTBEAT_CLASS.to_owned());
                }
            }
            tables.push(StepRetry {
                classes,
                named: errors.is_some(),
                policy,
            });
        }
        tables
    }

    /// The error classes that an entry of `retry` is for; those `before` it are taken.
    pub fn classes(&mut self, errors: &Entry<'_>, mut before: Vec<String>) -> Vec<String> {
        let taken = before.len();
        for item in fields::one_or_many(&errors.value) {
            let Some(class) = self.class(item, &errors.key_span) else {
                continue;
            };
            if [RESULT_SCHEMA, RESULT_EXPRESSION].contains(&class) {
                let message = format!("\"{class}\" is not tried again: what it fails on has happened");
                self.findings
                    .error(codes::CONTRADICTION, item.span.clone(), message)
                    .help(Some("say under \"on_error\" what follows".to_owned()));
            }
            if before.iter().any(|known| known == class || known == ANY_CLASS) {
                let message = format!("an entry before this one is for the class \"{class}\" already");
                self.findings
                    .error(codes::CONTRADICTION, item.span.clone(), message);
            }
            before.push(class.to_owned());
        }
        before.split_off(taken)
    }

    /// An error class, or `*` for all of them.
    fn class<'n>(&mut self, node: &'n Node<'_>, at: &Range<usize>) -> Option<&'n str> {
        let text = fields::text(node, at, "an error class", self.findings)?;
        if text == ANY_CLASS {
            return Some(text);
        }
        fields::is_name(text, &node.span, "error class", NameRule::Dotted, self.findings).then_some(text)
    }

    /// `on_error` by class, and `on_timeout`, which is short for one of them.
    pub fn on_error(&mut self, fields: &Fields<'r, '_>) -> BTreeMap<String, Vec<OnError>> {
        let mut answers = BTreeMap::new();
        if let Some(entry) = fields.get("on_error") {
            let entries = fields::entries(&entry.value, &entry.key_span, "on_error", self.findings);
            for entry in entries.unwrap_or_default() {
                if entry.key != ANY_CLASS {
                    let span = &entry.key_span;
                    fields::is_name(&entry.key, span, "error class", NameRule::Dotted, self.findings);
                }
                let answer = self.alternative_answers(entry);
                answers.insert(entry.key.clone().into_owned(), answer);
            }
        }
        if let Some(entry) = fields.get("on_timeout") {
            if answers.contains_key(TIMEOUT_CLASS) {
                let message = "on_timeout says the same as on_error with the class \"timeout\"";
                self.findings
                    .error(codes::CONTRADICTION, entry.key_span.clone(), message);
            }
            let answer = self.alternative_answers(entry);
            answers.insert(TIMEOUT_CLASS.to_owned(), answer);
        }
        answers
    }

    /// The answers to a class, of which the first counts that holds.
    fn alternative_answers(&mut self, entry: &'r Entry<'_>) -> Vec<OnError> {
        let mut answers: Vec<OnError> = Vec::new();
        let known = self.types.clone();
        for item in fields::one_or_many(&entry.value) {
            if answers.last().is_some_and(|before| before.when.is_none()) {
                let span = fields::visible(item, &entry.key_span, self.findings.text());
                let message = "this alternative is never taken: one before it always is";
                self.findings.warning(codes::UNREACHABLE_HANDLER, span, message);
            }
            answers.extend(self.answer(item, &entry.key_span));
        }
        self.types = known;
        answers
    }

    fn answer(&mut self, item: &'r Node<'_>, at: &Range<usize>) -> Option<OnError> {
        let fields = Fields::item(item, at, &grammar::steps::ANSWER, self.findings)?;
        let when = fields.get("when").map(|when| {
            let condition = self.expr(when, ERROR_ROOTS, EventParts::Moment);
            self.certain(when, &condition, certain::ANSWER);
            condition
        });
        let outside = self.assume(when.as_ref(), true);
        let set = fields
            .get("set")
            .map(|set| self.set(set, ERROR_ROOTS, EventParts::Moment))
            .unwrap_or_default();
        let undo = fields
            .get("undo")
            .map(|undo| self.steps_named(undo))
            .unwrap_or_default();
        let complete = fields
            .get("complete")
            .and_then(|complete| self.complete(complete, ERROR_ROOTS, EventParts::Moment));
        self.ends_here(&fields, &["continue", "cancel", "fail", "goto"]);
        let cancel = fields
            .get("cancel")
            .and_then(|cancel| self.cancel(cancel, ERROR_ROOTS, EventParts::Moment));
        let goes_on = fields
            .get("continue")
            .and_then(|answer| fields::boolean(answer, self.findings))
            .unwrap_or(false);
        let failure = fields
            .get("fail")
            .and_then(|fail| self.fail(fail, ERROR_ROOTS, EventParts::Moment));
        let target = fields
            .get("goto")
            .and_then(|goto| self.step_name(&goto.value, goto));
        self.types = outside;
        // Those behind it are taken where this one is not.
        self.assume(when.as_ref(), false);
        let ways: Vec<&Entry<'_>> = ["continue", "cancel", "fail", "goto"]
            .into_iter()
            .filter_map(|key| fields.get(key))
            .collect();
        if let [_, second, ..] = ways.as_slice() {
            self.findings.error(
                codes::CONTRADICTION,
                second.key_span.clone(),
                "what follows an error is one of continue, cancel, fail and goto",
            );
        }
        let then = match (target, cancel) {
            (Some(target), _) => Then::GoTo(target),
            (None, Some(cancel)) => Then::Cancel(cancel),
            (None, None) if goes_on => Then::Continue,
            (None, None) => Then::Fail(failure),
        };
        Some(OnError {
            when,
            set,
            undo,
            complete,
            then,
        })
    }
}
