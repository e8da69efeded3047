//! A result that is to be filled in: as an effect declares its output, with the members that it requires and nothing in them that is
//! true. It is made to be tried and to be shown; what a pattern demands it does not meet.

use serde_json::{Map, Value};

use crate::kernel::definition::Definition;
use crate::kernel::definition::model::Action;
use crate::kernel::json::Json;
use crate::kernel::schema::{Kinds, Rules, Schema, SchemaId, TextRules};

/// What stands for a text, and the longest that it becomes where a schema wants more.
const BLANK: &str = "...";
const BLANK_CHARS_MAX: usize = 256;
/// Deepest member, and most members and items altogether: a schema may refer to itself.
const DEPTH_MAX: usize = 8;
const PARTS_MAX: usize = 128;

/// The result of a step, by its name or title; an empty one where its effect declares none.
pub(super) fn of_step(definition: &Definition, name: &str) -> Value {
    let output = definition
        .steps
        .iter()
        .find(|step| step.is_named(name))
        .and_then(|step| {
            let Action::Effect { effect, .. } = &step.action else {
                return None;
            };
            definition.effects.get(effect)?.output.as_ref()
        });
    output.map_or_else(|| Value::Object(Map::new()), |output| of(&output.schema))
}

/// A value as a schema wants it, as far as that can be told without knowing what it means.
fn of(schema: &Schema) -> Value {
    let mut filling = Filling {
        schema,
        left: PARTS_MAX,
    };
    filling.of(0, DEPTH_MAX)
}

struct Filling<'s> {
    schema: &'s Schema,
    /// Members and items that there may still be.
    left: usize,
}

impl Filling<'_> {
    fn of(&mut self, part: SchemaId, depth: usize) -> Value {
        let schema = self.schema;
        let Some(rules) = schema.parts.get(part) else {
            return Value::Null;
        };
        if let Some(first) = rules.one_among.as_ref().and_then(|values| values.first()) {
            return plain(first);
        }
        if depth == 0 || self.left == 0 {
            return Value::Null;
        }
        self.left -= 1;
        let mut found = self.own(rules, depth);
        // Of alternatives the first.
        let alternatives = rules.any_of.first().into_iter().chain(rules.one_of.first());
        for other in rules.all_of.iter().chain(alternatives) {
            let other = self.of(*other, depth - 1);
            found = Some(match (found, other) {
                (Some(Value::Object(mut members)), Value::Object(more)) => {
                    for (name, value) in more {
                        members.entry(name).or_insert(value);
                    }
                    Value::Object(members)
                }
                (Some(found), _) => found,
                (None, other) => other,
            });
        }
        found.unwrap_or_else(|| BLANK.into())
    }

    /// What the rules themselves say; none where they say nothing of its kind.
    fn own(&mut self, rules: &Rules, depth: usize) -> Option<Value> {
        let is_map = !rules.objects.required.is_empty() || !rules.objects.properties.is_empty();
        let kinds = match rules.kinds {
            Some(kinds) => kinds,
            None if is_map => Kinds::OBJECT,
            None => return None,
        };
        Some(if kinds.has(Kinds::OBJECT) {
            self.map(rules, depth)
        } else if kinds.has(Kinds::STRING) {
            text(&rules.texts).into()
        } else if kinds.has(Kinds::INTEGER) {
            number(rules)
        } else if kinds.has(Kinds::BOOLEAN) {
            true.into()
        } else if kinds.has(Kinds::ARRAY) {
            self.list(rules, depth)
        } else {
            Value::Null
        })
    }

    fn map(&mut self, rules: &Rules, depth: usize) -> Value {
        let mut members = Map::new();
        for name in &rules.objects.required {
            let value = match rules.objects.properties.get(name) {
                Some(part) => self.of(*part, depth - 1),
                None => BLANK.into(),
            };
            members.insert(name.clone(), value);
        }
        Value::Object(members)
    }

    fn list(&mut self, rules: &Rules, depth: usize) -> Value {
        let arrays = &rules.arrays;
        let count = arrays.min_items.unwrap_or_default().min(self.left);
        let parts = (0..count).map(|at| arrays.first.get(at).copied().or(arrays.items));
        parts
            .map(|part| part.map_or_else(|| BLANK.into(), |part| self.of(part, depth - 1)))
            .collect()
    }
}

fn text(rules: &TextRules) -> String {
    let least = rules.min_length.unwrap_or_default().max(BLANK.len());
    let length = least.min(rules.max_length.unwrap_or(usize::MAX));
    ".".repeat(length.min(BLANK_CHARS_MAX))
}

/// 0, or the number next to it that is in range.
fn number(rules: &Rules) -> Value {
    let numbers = &rules.numbers;
    let least = numbers
        .minimum
        .or(numbers.exclusive_minimum.map(|least| least + 1.0));
    let most = numbers
        .maximum
        .or(numbers.exclusive_maximum.map(|most| most - 1.0));
    let nearest = match (least, most) {
        (Some(least), _) if least > 0.0 => least.ceil(),
        (_, Some(most)) if most < 0.0 => most.floor(),
        _ => 0.0,
    };
    let whole: Option<i64> = format!("{nearest:.0}").parse().ok();
    whole.map_or_else(|| nearest.into(), Value::from)
}

fn plain(value: &Json<'_>) -> Value {
    let mut text = Vec::new();
    value.write(&mut text);
    serde_json::from_slice(&text).expect("it was written as JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kernel::definition::schemas::compile_text;

    fn filled(schema: &Value) -> Value {
        let text = schema.to_string();
        let schema = compile_text("a result", &text.into()).expect("a schema");
        let found = of(&schema);
        let text = found.to_string();
        let value = Json::parse(text.as_bytes(), 64).expect("JSON");
        assert!(schema.check(&value).is_ok(), "{found}");
        found
    }

    #[test]
    fn a_placeholder_has_what_the_schema_requires_and_fits_it() {
        for (schema, expected) in [
            (json!({}), json!("...")),
            (json!({"type": "object"}), json!({})),
            (
                json!({
                    "type": "object",
                    "required": ["id", "cents", "paid", "by", "lines", "to"],
                    "properties": {
                        "id": {"type": "string", "minLength": 5},
                        "cents": {"type": "integer", "minimum": 1},
                        "paid": {"type": "boolean"},
                        "by": {"enum": ["card", "cash"]},
                        "lines": {"type": "array", "minItems": 1, "items": {"type": "number", "maximum": -2}},
                        "to": {"type": "object", "required": ["city"]},
                        "note": {"type": "string"},
                    },
                }),
                json!({
                    "id": ".....", "cents": 1, "paid": true, "by": "card", "lines": [-2], "to": {"city": "..."},
                }),
            ),
            (
                json!({
                    "type": "object",
                    "required": ["a"],
                    "allOf": [{"required": ["b"]}],
                    "anyOf": [{"required": ["c"]}, {"required": ["d"]}],
                }),
                json!({"a": "...", "b": "...", "c": "..."}),
            ),
        ] {
            assert_eq!(filled(&schema), expected, "{schema}");
        }
    }

    #[test]
    fn a_placeholder_of_a_schema_that_refers_to_itself_ends() {
        let schema = json!({
            "type": "object",
            "required": ["left", "right"],
            "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}},
        });
        let schema = compile_text("a result", &schema.to_string().into()).expect("a schema");
        assert!(of(&schema).is_object());
    }
}
