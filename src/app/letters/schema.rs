//! A schema as people read it: JSON Schema with what it refers to in its place.

use serde_json::{Map, Value, json};

use crate::kernel::schema::Schema;

/// Parts that are written out, and how deep; what a part refers to beyond that is shown as anything.
const PARTS_MAX: usize = 500;
const DEPTH_MAX: usize = 16;

pub(super) fn shown(schema: &Schema) -> Value {
    let mut bytes = Vec::new();
    schema.canonical().write(&mut bytes);
    let parts: Vec<Value> = serde_json::from_slice(&bytes).unwrap_or_default();
    let mut writer = Writer {
        parts: &parts,
        left: PARTS_MAX,
        depth: 0,
    };
    writer.part(&json!(0))
}

struct Writer<'p> {
    parts: &'p [Value],
    left: usize,
    depth: usize,
}

impl Writer<'_> {
    /// The part of this number.
    fn part(&mut self, id: &Value) -> Value {
        let index = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let Some(Value::Object(rules)) = index.and_then(|index| self.parts.get(index)) else {
            return json!(true);
        };
        if self.left == 0 || self.depth == DEPTH_MAX {
            return json!(true);
        }
        if rules.contains_key("never") {
            return json!(false);
        }
        self.left -= 1;
        self.depth += 1;
        let mut shown = Map::new();
        for (name, value) in rules {
            self.rule(name, value, &mut shown);
        }
        self.depth -= 1;
        Value::Object(shown)
    }

    fn rule(&mut self, name: &str, value: &Value, shown: &mut Map<String, Value>) {
        let (name, value) = match (name, value) {
            ("items" | "contains" | "propertyNames" | "not", id)
            | ("additionalProperties", id @ Value::Number(_)) => (name, self.part(id)),
            ("first", Value::Array(ids)) => ("prefixItems", self.all(ids)),
            ("allOf" | "anyOf" | "oneOf", Value::Array(ids)) => (name, self.all(ids)),
            ("properties", Value::Object(members)) => {
                let members = members.iter().map(|(name, id)| (name.clone(), self.part(id)));
                (name, Value::Object(members.collect()))
            }
            ("patternProperties", Value::Array(patterns)) => {
                let patterns = patterns.iter().map(|pattern| {
                    let name = pattern[0].as_str().unwrap_or_default().to_owned();
                    (name, self.part(&pattern[1]))
                });
                (name, Value::Object(patterns.collect()))
            }
            ("if", Value::Array(branches)) => {
                for (name, id) in ["if", "then", "else"].into_iter().zip(branches) {
                    if !id.is_null() {
                        shown.insert(name.to_owned(), self.part(id));
                    }
                }
                return;
            }
            ("type", Value::Array(kinds)) if kinds.len() == 1 => (name, kinds[0].clone()),
            (name, value) => (name, value.clone()),
        };
        shown.insert(name.to_owned(), value);
    }

    fn all(&mut self, ids: &[Value]) -> Value {
        Value::Array(ids.iter().map(|id| self.part(id)).collect())
    }
}
