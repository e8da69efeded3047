//! JSON Schemas (draft-07) of definition files, for editors.
//!
//! They are written from the tables by which the loader reads ([`super::grammar`]), with `make schemas`; a test holds the
//! files against the tables. The loader does not read them and says more than they can.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::grammar::{self, Key, Kind, Named, Shape};

/// Of a saga file.
pub const SAGA: &str = include_str!("saga.json");
/// Of an effect file.
pub const EFFECT: &str = include_str!("effect.json");

/// The schema of a saga file, as the tables have it.
#[must_use]
pub fn of_sagas() -> String {
    whole(&grammar::saga::SAGA, "Saga")
}

/// The schema of an effect file, as the tables have it.
#[must_use]
pub fn of_effects() -> String {
    whole(&grammar::effect::EFFECT, "Effect")
}

fn whole(shape: &'static Shape, title: &str) -> String {
    let mut schemas = Schemas::default();
    let mut rules = schemas.shape(shape);
    rules.insert(
        "$schema".to_owned(),
        json!("http://json-schema.org/draft-07/schema#"),
    );
    rules.insert("title".to_owned(), json!(title));
    rules.insert(
        "definitions".to_owned(),
        Value::Object(schemas.definitions.into_iter().collect()),
    );
    let mut text = serde_json::to_string_pretty(&rules).expect("plain data");
    text.push('\n');
    text
}

/// The parts with names, as far as they are written.
#[derive(Default)]
struct Schemas {
    definitions: BTreeMap<String, Value>,
}

type Rules = Map<String, Value>;

fn rules(of: Value) -> Rules {
    match of {
        Value::Object(rules) => rules,
        _ => Rules::new(),
    }
}

impl Schemas {
    fn shape(&mut self, shape: &'static Shape) -> Rules {
        let mut rules = rules(json!({"type": "object", "additionalProperties": false}));
        let properties = shape
            .keys
            .iter()
            .map(|key| (key.name.to_owned(), Value::Object(self.key(key))));
        let properties: Rules = properties.collect();
        rules.insert("properties".to_owned(), Value::Object(properties));
        if !shape.about.is_empty() {
            rules.insert("description".to_owned(), json!(shape.about));
        }
        let needed: Vec<&str> = shape
            .keys
            .iter()
            .filter(|key| key.needed)
            .map(|key| key.name)
            .collect();
        if !needed.is_empty() {
            rules.insert("required".to_owned(), json!(needed));
        }
        if !shape.one_of.is_empty() {
            let each: Vec<Value> = shape
                .one_of
                .iter()
                .map(|key| json!({"required": [key]}))
                .collect();
            rules.insert("oneOf".to_owned(), json!(each));
        }
        rules
    }

    fn key(&mut self, key: &Key) -> Rules {
        let mut rules = self.kind(&key.kind);
        if key.about.is_empty() {
            return rules;
        }
        // Beside a reference nothing else counts.
        if rules.contains_key("$ref") {
            rules = self::rules(json!({"allOf": [rules]}));
        }
        rules.insert("description".to_owned(), json!(key.about));
        rules
    }

    fn kind(&mut self, kind: &Kind) -> Rules {
        rules(match kind {
            Kind::Any => json!({}),
            Kind::Fields => json!({"type": "object"}),
            Kind::Text => json!({"type": "string", "minLength": 1}),
            Kind::Pattern(pattern) => json!({"type": "string", "pattern": pattern}),
            Kind::Bool => json!({"type": "boolean"}),
            Kind::True => json!({"const": true}),
            Kind::Word([only]) => json!({"const": only}),
            Kind::Word(words) => json!({"enum": words}),
            Kind::Integer(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
            Kind::Number(least, most) => json!({"type": "number", "minimum": least, "maximum": most}),
            Kind::Named(named) => self.named(named),
            Kind::Map(shape) => self.map(shape),
            Kind::MapOf(kind, least, most) => {
                let mut rules = rules(json!({"type": "object", "additionalProperties": self.kind(kind)}));
                bounds(&mut rules, "Properties", *least, *most);
                return rules;
            }
            Kind::List(kind, least, most) => {
                let mut rules = rules(json!({"type": "array", "items": self.kind(kind)}));
                bounds(&mut rules, "Items", *least, *most);
                return rules;
            }
            Kind::OneOrMany(kind) => {
                let one = self.kind(kind);
                json!({"anyOf": [one, {"type": "array", "items": one}]})
            }
            Kind::Either(kinds) => {
                let each: Vec<Rules> = kinds.iter().map(|kind| self.kind(kind)).collect();
                json!({"anyOf": each})
            }
            Kind::ByPrefix(prefixes, own, events) => {
                let mut patterns = Rules::new();
                for prefix in *prefixes {
                    patterns.insert(format!("^{prefix}\\."), Value::Object(self.kind(own)));
                }
                patterns.insert(
                    format!("^{}\\.", none_of(prefixes, true)),
                    Value::Object(self.kind(events)),
                );
                json!({"type": "object", "additionalProperties": false, "patternProperties": patterns})
            }
        })
    }

    fn named(&mut self, named: &Named) -> Value {
        let mut rules = rules(match named.types {
            [only] => json!({"type": only}),
            types => json!({"type": types}),
        });
        rules.insert("description".to_owned(), json!(named.about));
        match named.pattern {
            Some(pattern) => rules.insert("pattern".to_owned(), json!(pattern)),
            None if named.types == ["string"] => rules.insert("minLength".to_owned(), json!(1)),
            None => None,
        };
        self.definitions
            .insert(named.name.to_owned(), Value::Object(rules));
        refers(named.name)
    }

    fn map(&mut self, shape: &'static Shape) -> Value {
        if shape.name.is_empty() {
            return Value::Object(self.shape(shape));
        }
        if !self.definitions.contains_key(shape.name) {
            // Groups of steps hold steps.
            self.definitions.insert(shape.name.to_owned(), Value::Null);
            let rules = self.shape(shape);
            self.definitions
                .insert(shape.name.to_owned(), Value::Object(rules));
        }
        refers(shape.name)
    }
}

fn refers(name: &str) -> Value {
    json!({"$ref": format!("#/definitions/{name}")})
}

fn bounds(rules: &mut Rules, of: &str, least: u32, most: Option<u32>) {
    if least > 0 {
        rules.insert(format!("min{of}"), json!(least));
    }
    if let Some(most) = most {
        rules.insert(format!("max{of}"), json!(most));
    }
}

/// A pattern of texts without a dot that are none of `words`; patterns have no other way to say so.
fn none_of(words: &[&str], at_begin: bool) -> String {
    let mut firsts: Vec<char> = words.iter().filter_map(|word| word.chars().next()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let set: String = firsts.iter().collect();
    let mut alternatives = vec![format!("[^{set}.][^.]*")];
    for first in firsts {
        let rests: Vec<&str> = words.iter().filter_map(|word| word.strip_prefix(first)).collect();
        alternatives.push(format!("{first}{}", none_of(&rests, false)));
    }
    // What ends here is a beginning of a word, and none itself.
    if !at_begin && words.iter().all(|word| !word.is_empty()) {
        alternatives.push(String::new());
    }
    format!("(?:{})", alternatives.join("|"))
}
