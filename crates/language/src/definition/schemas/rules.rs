//! The rules of a schema for numbers, texts, lists and objects.

use super::super::codes;
use super::super::fields;
use super::super::yaml::{Entry, Value};
use super::{DIALECTS, Reader, json, sorted};
use crate::expr::nearest;
use crate::json::Json;
use crate::schema::{Additional, Kinds, Rules};

impl<'n, 't> Reader<'n, 't, '_, '_> {
    pub(super) fn number_rule(&mut self, entry: &'n Entry<'t>, rules: &mut Rules) {
        if entry.key == "multipleOf" {
            let number = self.count(entry).and_then(|number| i64::try_from(number).ok());
            match number {
                Some(0) => self.fault(&entry.value, "multipleOf is at least 1"),
                number => rules.numbers.multiple_of = number,
            }
            return;
        }
        let number = match json(&entry.value) {
            #[allow(clippy::cast_precision_loss, reason = "bounds are JSON numbers")]
            Json::Int(number) => number as f64,
            Json::Double(number) => number,
            _ => return self.fault(&entry.value, &format!("{} is a number", entry.key)),
        };
        let rule = match &*entry.key {
            "minimum" => &mut rules.numbers.minimum,
            "maximum" => &mut rules.numbers.maximum,
            "exclusiveMinimum" => &mut rules.numbers.exclusive_minimum,
            _ => &mut rules.numbers.exclusive_maximum,
        };
        *rule = Some(number);
    }

    pub(super) fn text_rule(&mut self, entry: &'n Entry<'t>, rules: &mut Rules) {
        match &*entry.key {
            "minLength" => rules.texts.min_length = self.count(entry),
            "maxLength" => rules.texts.max_length = self.count(entry),
            _ => {
                let pattern = self.text(&entry.value, "a pattern");
                rules.texts.pattern = pattern.and_then(|pattern| self.regex(pattern, &entry.value));
            }
        }
    }

    pub(super) fn array_rule(&mut self, entry: &'n Entry<'t>, rules: &mut Rules) {
        let arrays = &mut rules.arrays;
        match &*entry.key {
            "minItems" => arrays.min_items = self.count(entry),
            "maxItems" => arrays.max_items = self.count(entry),
            "contains" => arrays.contains = Some(self.part(&entry.value)),
            "uniqueItems" => match json(&entry.value) {
                Json::Bool(unique) => arrays.unique = unique,
                _ => self.fault(&entry.value, "uniqueItems is `true` or `false`"),
            },
            _ => match &entry.value.value {
                Value::List(items) => arrays.first = items.iter().map(|item| self.part(item)).collect(),
                Value::Scalar(_) | Value::Map(_) => arrays.items = Some(self.part(&entry.value)),
            },
        }
    }

    pub(super) fn object_rule(&mut self, entry: &'n Entry<'t>, rules: &mut Rules) {
        let objects = &mut rules.objects;
        match &*entry.key {
            "minProperties" => objects.min_properties = self.count(entry),
            "maxProperties" => objects.max_properties = self.count(entry),
            "propertyNames" => objects.names = Some(self.part(&entry.value)),
            "required" => {
                for item in self.items(entry) {
                    let name = self.text(item, "the name of a member");
                    objects.required.extend(name.map(str::to_owned));
                }
                objects.required.sort();
                objects.required.dedup();
            }
            "additionalProperties" => {
                objects.additional = match json(&entry.value) {
                    Json::Bool(true) => Additional::Any,
                    Json::Bool(false) => Additional::None,
                    _ => Additional::Schema(self.part(&entry.value)),
                };
            }
            "properties" => {
                for member in sorted(self.members(entry)) {
                    let part = self.part(&member.value);
                    rules
                        .objects
                        .properties
                        .insert(member.key.clone().into_owned(), part);
                }
            }
            _ => {
                for member in sorted(self.members(entry)) {
                    let part = self.part(&member.value);
                    if let Some(pattern) = self.regex(&member.key, &member.value) {
                        rules.objects.patterns.push((pattern, part));
                    }
                }
            }
        }
    }

    pub(super) fn dialect(&mut self, entry: &Entry<'_>) {
        let Some(dialect) = self.text(&entry.value, "a dialect") else {
            return;
        };
        if !DIALECTS.contains(&dialect) {
            let message = format!(
                "the schema is written in {}, expected draft-07",
                dialect.escape_debug()
            );
            self.sound = false;
            self.findings
                .error(codes::SCHEMA, entry.value.span.clone(), message)
                .help(Some(format!("write \"$schema\": \"{}\"", DIALECTS[0])));
        }
    }

    pub(super) fn kinds(&mut self, entry: &'n Entry<'t>) -> Option<Kinds> {
        let mut kinds = Kinds::default();
        for item in fields::one_or_many(&entry.value) {
            let name = self.text(item, "a type")?;
            let Some(kind) = Kinds::named(name) else {
                let all = [
                    "null", "boolean", "integer", "number", "string", "array", "object",
                ];
                let help = nearest(name, all).map_or_else(
                    || format!("types are {}", all.join(", ")),
                    |near| format!("did you mean \"{near}\"?"),
                );
                self.sound = false;
                self.findings
                    .error(
                        codes::SCHEMA,
                        item.span.clone(),
                        format!("unknown type \"{}\"", name.escape_debug()),
                    )
                    .help(Some(help));
                return None;
            };
            kinds = kinds.with(kind);
        }
        Some(kinds)
    }
}
