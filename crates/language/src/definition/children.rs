//! Reading steps that start instances of other sagas.

use super::actions::Reading;
use super::codes;
use super::fields::{self, Fields};
use super::grammar;
use super::model::{Action, ChildTemplate};
use super::saga::parsed;
use super::steps::START_ROOTS;
use super::texts::EventParts;
use super::typing;
use super::yaml::{Entry, Value};
use crate::expr::types::Type;
use crate::expr::{Root, Template, nearest};
use crate::ids::SagaName;

/// The saga that a step starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child<'s> {
    None,
    /// Its text is invalid.
    Unreadable,
    Named(&'s SagaName),
}

impl<'s> Child<'s> {
    pub fn of(entry: Option<&Entry<'_>>, action: Option<&'s Action>) -> Self {
        match (entry, action) {
            (None, _) => Self::None,
            (Some(_), Some(Action::Saga(child))) => Self::Named(&child.saga),
            (Some(_), _) => Self::Unreadable,
        }
    }
}

/// The one word behind `compensate: {saga: ...}`.
const UNDO: &str = "undo";

impl<'r> Reading<'r, '_> {
    /// `saga: {name, key, input}` with `wait: outcome | none`
    pub fn child(&mut self, entry: &'r Entry<'_>, step: &Fields<'r, '_>) -> Option<Action> {
        if let Some(retry) = step.get("retry") {
            self.findings
                .error(
                    codes::CONTRADICTION,
                    retry.key_span.clone(),
                    "a saga is not started twice: its key is used up with the first attempt",
                )
                .help(Some("let the steps of the other saga try again".to_owned()));
        }
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::steps::CHILD,
            self.findings,
        )?;
        let name = fields.require("name", self.findings);
        let saga = name.and_then(|name| self.saga_name(name));
        let key = fields
            .require("key", self.findings)
            .map(|key| self.text(key, "the key of a saga", START_ROOTS, EventParts::Moment));
        let input = match fields.get("input") {
            None => Some(Template::Constant(b"{}".to_vec())),
            Some(input) => self.object(input, START_ROOTS, EventParts::Moment),
        };
        let waits = step.get("wait").is_none_or(|wait| self.waits(wait));
        let schema = saga
            .as_ref()
            .and_then(|saga| self.sagas?.get(saga.as_str())?.input.as_ref());
        if let (Some(types), Some(schema), Some(input)) = (&self.types, schema, &input) {
            let entry = fields.get("input").unwrap_or(entry);
            typing::value(entry, input, &Type::of_schema(schema), &types.env, self.findings);
        }
        Some(Action::Saga(ChildTemplate {
            // One that is not known is a saga nevertheless.
            saga: saga.unwrap_or_else(|| SagaName::parse("unknown").expect("a legal name")),
            key: key?,
            input: input?,
            waits,
        }))
    }

    fn saga_name(&mut self, entry: &Entry<'_>) -> Option<SagaName> {
        let text = fields::text(&entry.value, &entry.key_span, "the name of a saga", self.findings)?;
        let name = parsed(SagaName::parse(text), &entry.value.span, self.findings)?;
        let Some(sagas) = self.sagas else {
            return Some(name);
        };
        let (message, help) = match sagas.get(text) {
            Some(announced) if announced.input.is_some() => return Some(name),
            None if !self.all_sagas => return Some(name),
            Some(_) => (
                format!("saga \"{text}\" takes no input: events alone start it"),
                Some("let its file say what it is given: input: {type: object}".to_owned()),
            ),
            None => (
                format!("unknown saga \"{text}\""),
                nearest(text, sagas.keys().map(String::as_str))
                    .map(|near| format!("did you mean \"{near}\"?")),
            ),
        };
        self.findings
            .error(codes::UNKNOWN_SAGA, entry.value.span.clone(), message)
            .help(help);
        None
    }

    fn waits(&mut self, entry: &Entry<'_>) -> bool {
        let word = match &entry.value.value {
            Value::Scalar(scalar) => &*scalar.text,
            Value::List(_) | Value::Map(_) => "",
        };
        if !matches!(word, "outcome" | "none") {
            self.findings.error(
                codes::WRONG_VALUE,
                entry.value.span.clone(),
                "what a step waits for that starts a saga is its outcome, or none",
            );
        }
        word != "none"
    }

    /// What a step knows when the saga that it has started is over.
    pub fn know_child(&mut self, child: &ChildTemplate) {
        let Some(types) = &mut self.types else { return };
        let result = if child.waits {
            Type::object([
                ("saga", Type::string()),
                ("key", Type::string()),
                ("outcome", Type::string()),
                ("state", Type::dynamic()),
            ])
        } else {
            Type::null()
        };
        types.env.bind(Root::Result, result);
        types.sent = Some(Type::object([
            ("key", Type::string()),
            ("input", Type::dynamic()),
        ]));
    }

    /// `compensate: {saga: undo}`
    pub fn undo_child(
        &mut self,
        entry: &Entry<'_>,
        fields: &Fields<'_, '_>,
        child: Child<'_>,
    ) -> Option<Action> {
        for key in ["effect", "command", "with"] {
            if let Some(stray) = fields.get(key) {
                let message = format!("\"{key}\" and \"saga\" exclude each other");
                self.findings
                    .error(codes::CONTRADICTION, stray.key_span.clone(), message);
            }
        }
        let word = fields::text(&entry.value, &entry.key_span, "undo", self.findings)?;
        if word != UNDO {
            self.findings.error(
                codes::WRONG_VALUE,
                entry.value.span.clone(),
                "a saga is undone by \"saga: undo\"",
            );
            return None;
        }
        if child == Child::None {
            self.findings.error(
                codes::CONTRADICTION,
                entry.key_span.clone(),
                "the step starts no saga that could be undone",
            );
        }
        match child {
            Child::Named(saga) => Some(Action::UndoSaga(saga.clone())),
            Child::None | Child::Unreadable => None,
        }
    }
}
