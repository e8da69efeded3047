//! Work without a step: commands, facts and signals, and what they carry.

use super::actions::Reading;
use super::certain;
use super::codes;
use super::fields::{self, Fields};
use super::grammar;
use super::model::{CommandTemplate, Emission, Emit, PublishTemplate, Telling};
use super::texts::{self, EventParts};
use super::typing::Types;
use super::yaml::{Entry, Value};
use crate::expr::types::Type;
use crate::expr::{Expr, Root, Template};
use crate::limits::Limits;

impl Reading<'_, '_> {
    /// One emission, or a list of them.
    pub fn emits(&mut self, entry: &Entry<'_>, roots: &'static [Root], event: EventParts) -> Vec<Emission> {
        let mut emits = Vec::new();
        for item in fields::one_or_many(&entry.value) {
            if let Some(effect) = super::saga::member(item, "effect") {
                self.findings
                    .error(
                        codes::UNKNOWN_KEY,
                        effect.key_span.clone(),
                        "no effect is emitted here: nobody would wait for how it ends",
                    )
                    .help(Some(
                        "make it a step, or let a handler of the saga, a timer or the entry of a state emit it; here only commands, facts and signals are emitted"
                            .to_owned(),
                    ));
                continue;
            }
            let Some(fields) = Fields::item(
                item,
                &entry.key_span,
                &grammar::emissions::EMISSION,
                self.findings,
            ) else {
                continue;
            };
            let (when, outside) = self.emitted_when(&fields, roots, event);
            let emit = match fields.chosen(self.findings) {
                Some(entry) if entry.key == "command" => self.command(entry, roots, event).map(Emit::Command),
                Some(entry) => self.telling(entry, roots, event).map(Emit::Publish),
                None => None,
            };
            self.types = outside;
            emits.extend(emit.map(|emit| Emission { when, emit }));
        }
        self.fits_one_transition(entry, emits.len());
        emits
    }

    /// `when` of an emission, which holds for the rest of it, and what was known before.
    pub fn emitted_when(
        &mut self,
        fields: &Fields<'_, '_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> (Option<Expr>, Option<Types>) {
        let when = fields.get("when").map(|when| {
            let condition = self.expr(when, roots, event);
            self.certain(when, &condition, certain::EMIT);
            condition
        });
        let outside = self.assume(when.as_ref(), true);
        (when, outside)
    }

    /// Whether so many emissions are more than any transition may make.
    pub fn fits_one_transition(&mut self, entry: &Entry<'_>, emits: usize) {
        let most = Limits::default().work_items;
        if emits > most && self.types.is_some() {
            let message = format!("{emits} emissions at once, at most {most} are allowed");
            self.findings
                .error(codes::TOO_MANY, entry.key_span.clone(), message)
                .help(Some(
                    "let a \"foreach\" make them, which starts items as room frees".to_owned(),
                ));
        }
    }

    pub fn command(
        &mut self,
        entry: &Entry<'_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Option<CommandTemplate> {
        self.command_with(entry, roots, roots, event)
    }

    /// The same, where the payload reads something else than the id does.
    pub fn command_with(
        &mut self,
        entry: &Entry<'_>,
        roots: &'static [Root],
        payload: &'static [Root],
        event: EventParts,
    ) -> Option<CommandTemplate> {
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::emissions::COMMAND,
            self.findings,
        )?;
        let aggregate_type = self.word(&fields, "aggregate");
        let command_type = self.word(&fields, "type");
        let id = fields.require("id", self.findings);
        let known = self.types.clone();
        if let Some(types) = &mut self.types {
            types
                .env
                .bind(Root::Command, Type::object([("token", Type::string())]));
        }
        let payload = self.payload(&fields, payload, event);
        self.types = known;
        let aggregate_id = id.map(|id| self.text(id, "the id of an aggregate", roots, event));
        Some(CommandTemplate {
            aggregate_type: aggregate_type?,
            aggregate_id: aggregate_id?,
            command_type: command_type?,
            payload: payload?,
        })
    }

    /// `publish: {type, payload}` or `signal: {saga, key, name, data}`
    pub fn telling(
        &mut self,
        entry: &Entry<'_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Option<Telling> {
        if entry.key == "signal" {
            return self.signal(entry, roots, event).map(Telling::Signal);
        }
        self.publish(entry, roots, event).map(Telling::Fact)
    }

    fn publish(
        &mut self,
        entry: &Entry<'_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Option<PublishTemplate> {
        let fields = Fields::read(
            &entry.value,
            &entry.key_span,
            &grammar::emissions::PUBLICATION,
            self.findings,
        )?;
        let fact_type = self.word(&fields, "type");
        let payload = self.payload(&fields, roots, event);
        if let (Some(fact), Some(payload)) = (&fact_type, &payload) {
            self.fits_fact(fields.get("payload").unwrap_or(entry), fact, payload);
        }
        Some(PublishTemplate {
            fact_type: fact_type?,
            payload: payload?,
        })
    }

    pub fn word(&mut self, fields: &Fields<'_, '_>, key: &str) -> Option<String> {
        let entry = fields.require(key, self.findings)?;
        let text = fields::text(&entry.value, &entry.key_span, "text", self.findings)?;
        if text.contains("${") {
            let message = format!("{key} is fixed, found an expression in it");
            self.findings
                .error(codes::WRONG_VALUE, entry.value.span.clone(), message);
            return None;
        }
        fields::is_word(text, &entry.value.span, key, self.findings).then(|| text.to_owned())
    }

    fn payload(
        &mut self,
        fields: &Fields<'_, '_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Option<Template> {
        let Some(entry) = fields.get("payload") else {
            return Some(Template::Constant(b"{}".to_vec()));
        };
        self.object(entry, roots, event)
    }

    /// A map, or an expression that gives one.
    pub fn object(
        &mut self,
        entry: &Entry<'_>,
        roots: &'static [Root],
        event: EventParts,
    ) -> Option<Template> {
        let (readable, findings) = self.readable(roots, event);
        let template = texts::template(&entry.value, readable, findings);
        let is_object = matches!(entry.value.value, Value::Map(_)) || matches!(template, Template::Value(_));
        if !is_object {
            let what = format!("{} as a map, or an expression that gives one", entry.key);
            fields::expected(&entry.value, &entry.key_span, &what, self.findings);
        }
        is_object.then_some(template)
    }
}
