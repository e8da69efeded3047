//! Reading how a step is undone.

use std::ops::Range;

use super::actions::Reading;
use super::certain;
use super::children::Child;
use super::codes;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::model::{
    ANY_CLASS, Action, COMPENSATION_RETRY, Compensation, EFFECT_TIMEOUT_MS, Late, OnExhausted, OnLate,
    OnUnknown, UndoOrder, UndoRetry,
};
use super::steps::{RetryBounds, retry};
use super::texts::EventParts;
use super::typing::Types;
use super::yaml::{Entry, Plain, Value};
use crate::expr::types::Type;
use crate::expr::{Expr, Root};

/// Most attempts of a compensation.
pub const COMPENSATION_ATTEMPTS_MAX: u32 = 1_000;

/// Roots when a step is undone.
const ROOTS: &[Root] = &[
    Root::Input,
    Root::Result,
    Root::State,
    Root::Key,
    Root::Steps,
    Root::Failure,
    Root::Event,
    Root::Record,
    Root::Late,
];

/// What `compensate` says of a step that nothing undoes.
const NONE: &str = "none";

/// Whether `compensate` says that nothing undoes the step.
pub fn is_none(entry: &Entry<'_>) -> bool {
    matches!(&entry.value.value, Value::Scalar(scalar) if matches!(scalar.plain(), Plain::Text(NONE)))
}

/// What follows each outcome of a step or of its compensation that is not a plain success.
struct Answers {
    on_unknown: OnUnknown,
    on_late: OnLate,
    on_exhausted: OnExhausted,
    undoes_failed: bool,
}

impl Reading<'_, '_> {
    pub fn compensation(&mut self, entry: &Entry<'_>, child: Child<'_>) -> Compensation {
        let span = &entry.key_span;
        match Fields::read(&entry.value, span, &grammar::steps::COMPENSATION, self.findings) {
            Some(fields) => self.undo(&fields, child),
            // That there is one is known, even if it is wrong.
            None => Compensation {
                when: None,
                action: Action::Nothing,
                on_unknown: OnUnknown::default(),
                undoes_failed: false,
                on_late: OnLate::Compensate,
                on_exhausted: OnExhausted::Stop,
                retry: vec![UndoRetry::of_all(COMPENSATION_RETRY)],
                timeout_ms: EFFECT_TIMEOUT_MS,
            },
        }
    }

    fn undo(&mut self, fields: &Fields<'_, '_>, child: Child<'_>) -> Compensation {
        let Answers {
            on_unknown,
            on_late,
            on_exhausted,
            undoes_failed,
        } = self.answers(fields);
        let may_lack_result = on_unknown == OnUnknown::Compensate || undoes_failed;
        if let Some(types) = &mut self.types {
            if may_lack_result {
                let result = types.env.root(Root::Result).or(&Type::null());
                types.env.bind(Root::Result, result);
            }
            let reasons = Type::one_of(Late::ALL.map(Late::as_str));
            let late = Type::object([("reason", reasons)]).or(&Type::null());
            types.env.bind(Root::Late, late);
        }
        if let Some(types) = &mut self.types {
            let sent = types.sent.take().unwrap_or_else(Type::dynamic);
            types.env.bind(Root::Input, sent);
        }
        // The ledger keeps what was sent, not the item.
        let item = self.item.take();
        let when = fields.get("when").map(|when| {
            let condition = self.expr(when, ROOTS, EventParts::Moment);
            self.certain(when, &condition, certain::COMPENSATE);
            condition
        });
        let action = match (fields.get("saga"), fields.get("publish")) {
            (Some(saga), _) => self.undo_child(saga, fields, child),
            (None, Some(publish)) => self.undo_by_fact(publish, fields),
            (None, None) => self.action(fields, ROOTS),
        };
        self.item = item;
        let is_known = |types: &Types| !types.env.root(Root::Result).is_dynamic();
        let checked = self.types.as_ref().is_some_and(is_known);
        // Where the result has a type, each reading of it has been checked.
        let is_told = (may_lack_result && !checked) || on_unknown == OnUnknown::Ask;
        if let (true, Some(action)) = (is_told, &action) {
            let at = fields
                .get(if undoes_failed { "on_failed" } else { "on_unknown" })
                .map_or_else(|| fields.place(), |entry| entry.key_span.clone());
            let case = if undoes_failed {
                "the step has failed"
            } else {
                "the outcome of the step is unknown"
            };
            self.absent_result(action, when.as_ref(), (may_lack_result, case), at);
        }
        let retry = fields
            .get("retry")
            .map_or_else(Vec::new, |entry| self.undo_retry(entry));
        let timeout_ms = self.timeout(fields);
        Compensation {
            when,
            action: action.unwrap_or(Action::Nothing),
            on_unknown,
            undoes_failed,
            on_late,
            on_exhausted,
            retry: if retry.is_empty() {
                vec![UndoRetry::of_all(COMPENSATION_RETRY)]
            } else {
                retry
            },
            timeout_ms,
        }
    }

    /// Reads what follows each outcome that is not a plain success.
    fn answers(&mut self, fields: &Fields<'_, '_>) -> Answers {
        let on_unknown = fields.get("on_unknown").and_then(|answer| {
            let words = [
                ("compensate", OnUnknown::Compensate),
                ("ask", OnUnknown::Ask),
                ("ignore", OnUnknown::Ignore),
            ];
            one_of(answer, &words, self.findings)
        });
        let on_late = fields.get("on_late").and_then(|answer| {
            let words = [
                ("compensate", OnLate::Compensate),
                ("accept", OnLate::Accept),
                ("ignore", OnLate::Ignore),
            ];
            one_of(answer, &words, self.findings)
        });
        let on_exhausted = fields.get("on_exhausted").and_then(|answer| {
            let words = [("stop", OnExhausted::Stop), ("continue", OnExhausted::Continue)];
            one_of(answer, &words, self.findings)
        });
        let on_failed = fields.get("on_failed").and_then(|answer| {
            let words = [("ignore", false), ("compensate", true)];
            one_of(answer, &words, self.findings)
        });
        Answers {
            // What can be undone is undone, unless the file says that it is better left alone.
            on_unknown: on_unknown.unwrap_or_default(),
            on_late: on_late.unwrap_or(OnLate::Compensate),
            on_exhausted: on_exhausted.unwrap_or(OnExhausted::Stop),
            undoes_failed: on_failed.unwrap_or(false),
        }
    }

    /// One table, or a list of them.
    fn undo_retry(&mut self, entry: &Entry<'_>) -> Vec<UndoRetry> {
        let bounds = RetryBounds {
            attempts: 1..=COMPENSATION_ATTEMPTS_MAX,
            default: COMPENSATION_RETRY,
        };
        let mut tables: Vec<UndoRetry> = Vec::new();
        for item in fields::one_or_many(&entry.value) {
            let Some(fields) =
                Fields::item(item, &entry.key_span, &grammar::steps::UNDO_RETRY, self.findings)
            else {
                continue;
            };
            let policy = retry(&fields, &bounds, self.findings);
            let known = tables.iter().flat_map(|table| &table.classes).cloned().collect();
            let classes = match fields.get("errors") {
                Some(errors) => self.classes(errors, known),
                None => vec![ANY_CLASS.to_owned()],
            };
            tables.push(UndoRetry { classes, policy });
        }
        tables
    }

    /// A fact is published with the decision to undo, so nothing of it is tried again or waited for.
    fn undo_by_fact(&mut self, publish: &Entry<'_>, fields: &Fields<'_, '_>) -> Option<Action> {
        let others = ["effect", "command", "with", "retry", "timeout", "on_exhausted"];
        for other in others.into_iter().filter_map(|key| fields.get(key)) {
            let message = format!(
                "\"{}\" does not stand beside \"publish\": a fact is published with the decision",
                other.key
            );
            self.findings
                .error(codes::CONTRADICTION, other.key_span.clone(), message);
        }
        self.telling(publish, ROOTS, EventParts::Moment)
            .map(Action::Publish)
    }

    /// `compensation` of a saga.
    pub fn undo_order(&mut self, fields: &Fields<'_, '_>) -> UndoOrder {
        let Some(entry) = fields.get("compensation") else {
            return UndoOrder::default();
        };
        let words = [
            ("sequential", UndoOrder::Sequential),
            ("parallel", UndoOrder::Parallel),
        ];
        one_of(entry, &words, self.findings).unwrap_or_default()
    }

    /// A step whose outcome is unknown has no result: reading a field of it would stop its compensation.
    fn absent_result(
        &mut self,
        action: &Action,
        when: Option<&Expr>,
        (is_error, case): (bool, &str),
        at: Range<usize>,
    ) {
        let mut unguarded = None;
        let mut look = |expr: &Expr| {
            let field = expr.fields_of(Root::Result).into_iter().next();
            if !expr.text().contains("null") && unguarded.is_none() {
                unguarded = field;
            }
        };
        when.into_iter().for_each(&mut look);
        match action {
            Action::Effect { with, .. } => with.for_each_expr(&mut look),
            Action::Command(command) => {
                command.aggregate_id.for_each_expr(&mut look);
                command.payload.for_each_expr(&mut look);
            }
            Action::Publish(telling) => telling.for_each_expr(&mut look),
            Action::Saga(_)
            | Action::UndoSaga(_)
            | Action::Nothing
            | Action::Decide(_)
            | Action::Group(_) => {}
        }
        if let Some(field) = unguarded {
            let message = format!("`result.{field}` is read, but there is none where {case}");
            let (span, code) = (at, codes::ABSENT_RESULT);
            let finding = if is_error {
                self.findings.error(code, span, message)
            } else {
                // An operator is asked first.
                self.findings.warning(code, span, message)
            };
            finding.help(Some(format!(
                "name what is to be undone by the key or by `input`, or write result == null ? null : result.{field}, or say on_unknown: ask or ignore"
            )));
        }
    }
}

/// One of a few words.
pub fn one_of<T: Copy>(entry: &Entry<'_>, words: &[(&str, T)], findings: &mut Findings<'_>) -> Option<T> {
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let expected = names.join(", ");
    if let Value::Scalar(scalar) = &entry.value.value
        && let Plain::Text(text) = scalar.plain()
    {
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let message = format!(
            "{} is \"{}\", expected one of {expected}",
            entry.key,
            text.escape_debug()
        );
        findings.error(codes::WRONG_VALUE, entry.value.span.clone(), message);
        return None;
    }
    fields::expected(
        &entry.value,
        &entry.key_span,
        &format!("one of {expected}"),
        findings,
    );
    None
}
