//! What a saga says its facts carry, and what others that hear them say.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::actions::Reading;
use super::codes;
use super::conversation::Sagas;
use super::fields::{self, Fields};
use super::findings::Findings;
use super::grammar;
use super::model::EventDefinition;
use super::saga::member;
use super::schema_files::Schemas;
use super::typing;
use super::yaml::{Entry, Node, Value};
use crate::expr::nearest;
use crate::expr::types::{Misfit, Type};
use crate::ids::SagaName;
use crate::schema::Schema;

/// What the file of a saga says that its facts carry, as far as it can be read.
pub fn declared(
    root: &Node<'_>,
    schemas: &mut Schemas<'_>,
    findings: &mut Findings<'_>,
) -> BTreeMap<String, Arc<Schema>> {
    let facts = member(root, "facts").map(|facts| &facts.value.value);
    let Some(Value::Map(facts)) = facts else {
        return BTreeMap::new();
    };
    let declared = facts.iter().filter_map(|fact| {
        let schema = schemas.read(member(&fact.value, "schema")?, findings)?;
        Some((fact.key.clone().into_owned(), schema))
    });
    declared.collect()
}

/// What the sagas that publish a fact say that it carries, where all of them do.
pub fn given(sagas: &Sagas, fact: &str, from: &[SagaName]) -> Option<Type> {
    let each = from.iter().map(|from| {
        let schema = sagas.get(from.as_str())?.declared(fact)?;
        Some(Type::of_schema(schema))
    });
    let each: Option<Vec<Type>> = each.collect();
    each?.into_iter().reduce(|left, right| left.or(&right))
}

impl<'r> Reading<'r, '_> {
    /// `facts: {receipt.issued: {schema: ...}}`, each of which something in the file publishes.
    pub fn facts(&mut self, file: &Fields<'r, '_>, root: &Node<'_>) -> BTreeMap<String, Type> {
        let mut facts = BTreeMap::new();
        let Some(entry) = file.get("facts") else {
            return facts;
        };
        let decides = member(root, "program").is_some();
        let published = super::conversation::published(root);
        let entries = fields::entries(&entry.value, &entry.key_span, "facts", self.findings);
        for entry in entries.unwrap_or_default() {
            let is_word = fields::is_word(&entry.key, &entry.key_span, "fact", self.findings);
            let Some(fields) =
                Fields::read(&entry.value, &entry.key_span, &grammar::saga::FACT, self.findings)
            else {
                continue;
            };
            let schema = fields.require("schema", self.findings);
            let schema = schema.and_then(|schema| self.schemas.read(schema, self.findings));
            if is_word && !decides && !published.contains(&*entry.key) {
                let message = format!("nothing publishes the fact \"{}\"", entry.key.escape_debug());
                let near = nearest(&entry.key, published.iter().map(String::as_str));
                self.findings
                    .warning(codes::UNUSED_EVENT, entry.key_span.clone(), message)
                    .help(near.map(|near| format!("did you mean \"{near}\"?")));
            }
            if let Some(schema) = schema {
                facts.insert(entry.key.clone().into_owned(), Type::of_schema(&schema));
            }
        }
        facts
    }

    /// Holds what a publication carries against what the file says of the fact.
    pub fn fits_fact(&mut self, entry: &Entry<'_>, fact: &str, payload: &crate::expr::Template) {
        if let Some(types) = &self.types
            && let Some(expected) = types.fact(fact)
        {
            typing::value(entry, payload, expected, &types.env, self.findings);
        }
    }

    /// What is known of the data of facts that the file says nothing about: what those say who publish them.
    pub fn heard_facts(&self, events: &BTreeMap<String, EventDefinition>) -> BTreeMap<String, Type> {
        let Some(sagas) = self.sagas else {
            return BTreeMap::new();
        };
        let unsaid = events.iter().filter(|(_, event)| event.schema.is_none());
        unsaid
            .filter_map(|(fact, event)| Some((fact.clone(), given(sagas, fact, &event.from)?)))
            .collect()
    }

    /// Holds what a saga says that a fact carries, under `schema`, against what those say who publish it.
    pub fn hears(&mut self, entry: &Entry<'_>, schema: &Schema, fact: &str, from: &[SagaName]) {
        let Some(sagas) = self.sagas.filter(|_| !from.is_empty()) else {
            return;
        };
        let wanted = Type::of_schema_as_written(schema);
        let mut given = Vec::new();
        for from in from {
            let declared = sagas.get(from.as_str()).and_then(|saga| saga.declared(fact));
            given.push(declared.map_or_else(Type::dynamic, |schema| {
                let declared = Type::of_schema(schema);
                for misfit in declared.fits(&wanted).err().unwrap_or_default() {
                    self.unheard(entry, fact, from, misfit);
                }
                declared
            }));
        }
        for misfit in wanted.lacking(&given) {
            let from: Vec<&str> = from.iter().map(SagaName::as_str).collect();
            self.unheard(entry, fact, from.join(" or "), misfit);
        }
    }

    fn unheard(&mut self, entry: &Entry<'_>, fact: &str, from: impl std::fmt::Display, misfit: Misfit) {
        let span = place(entry, &misfit, self.findings);
        let message = format!(
            "{} of saga {from} does not carry this: {}",
            fact.escape_debug(),
            misfit.message
        );
        let help = misfit
            .help
            .unwrap_or_else(|| format!("its file says under facts what {} carries", fact.escape_debug()));
        self.findings
            .error(codes::UNHEARD, span, message)
            .help(Some(help));
    }
}

/// Where a schema speaks of what does not fit, as far as it stands in the file.
fn place(entry: &Entry<'_>, misfit: &Misfit, findings: &Findings<'_>) -> Range<usize> {
    let (mut at, mut node) = (entry.key_span.clone(), &entry.value);
    for name in &misfit.path {
        let property = member(node, "properties").and_then(|properties| member(&properties.value, name));
        let Some(property) = property else {
            break;
        };
        (at, node) = (property.key_span.clone(), &property.value);
    }
    match &node.value {
        Value::Scalar(_) if misfit.path.is_empty() => fields::visible(node, &at, findings.text()),
        Value::Scalar(_) | Value::Map(_) | Value::List(_) => at,
    }
}
