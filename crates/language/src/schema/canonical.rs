//! A schema in one form, for every way to write it.

use std::borrow::Cow;

use regex::Regex;

use super::{
    Additional, ArrayRules, BrokenSchema, Kinds, NumberRules, ObjectRules, Rules, Schema, SchemaId, TextRules,
};
use crate::json::Json;

/// The parts in the order in which they are reached from the whole; references are their numbers.
pub(super) fn form(schema: &Schema) -> Json<'static> {
    Json::List(schema.parts.iter().map(rules).collect())
}

fn rules(rules: &Rules) -> Json<'static> {
    let mut members: Vec<(&'static str, Json<'static>)> = Vec::new();
    let mut put = |name: &'static str, value: Option<Json<'static>>| {
        members.extend(value.map(|value| (name, value)));
    };
    let Rules {
        never,
        kinds,
        one_among,
        numbers,
        texts,
        arrays,
        objects,
        all_of,
        any_of,
        one_of,
        not,
        condition,
    } = rules;
    put("never", never.then_some(Json::Bool(true)));
    put(
        "type",
        kinds.map(|kinds| Json::List(kinds.names().into_iter().map(text).collect())),
    );
    put("enum", one_among.clone().map(Json::List));
    put("minimum", numbers.minimum.map(Json::Double));
    put("maximum", numbers.maximum.map(Json::Double));
    put("exclusiveMinimum", numbers.exclusive_minimum.map(Json::Double));
    put("exclusiveMaximum", numbers.exclusive_maximum.map(Json::Double));
    put("multipleOf", numbers.multiple_of.map(Json::Int));
    put("minLength", texts.min_length.map(count));
    put("maxLength", texts.max_length.map(count));
    put(
        "pattern",
        texts.pattern.as_ref().map(|pattern| text(pattern.as_str())),
    );
    put("items", arrays.items.map(id));
    put("first", ids(&arrays.first));
    put("contains", arrays.contains.map(id));
    put("minItems", arrays.min_items.map(count));
    put("maxItems", arrays.max_items.map(count));
    put("uniqueItems", arrays.unique.then_some(Json::Bool(true)));
    let properties = objects
        .properties
        .iter()
        .map(|(name, part)| (Cow::Owned(name.clone()), id(*part)));
    put(
        "properties",
        (!objects.properties.is_empty()).then(|| Json::Map(properties.collect())),
    );
    let patterns = objects
        .patterns
        .iter()
        .map(|(pattern, part)| Json::List(vec![text(pattern.as_str()), id(*part)]));
    put(
        "patternProperties",
        (!objects.patterns.is_empty()).then(|| Json::List(patterns.collect())),
    );
    put(
        "additionalProperties",
        match objects.additional {
            Additional::Unsaid => None,
            Additional::Any => Some(Json::Bool(true)),
            Additional::None => Some(Json::Bool(false)),
            Additional::Schema(part) => Some(id(part)),
        },
    );
    let required = objects.required.iter().map(|name| text(name));
    put(
        "required",
        (!objects.required.is_empty()).then(|| Json::List(required.collect())),
    );
    put("propertyNames", objects.names.map(id));
    put("minProperties", objects.min_properties.map(count));
    put("maxProperties", objects.max_properties.map(count));
    put("allOf", ids(all_of));
    put("anyOf", ids(any_of));
    put("oneOf", ids(one_of));
    put("not", not.map(id));
    put(
        "if",
        condition.map(|(test, then, otherwise)| {
            let branch = |part: Option<SchemaId>| part.map_or(Json::Null, id);
            Json::List(vec![id(test), branch(then), branch(otherwise)])
        }),
    );
    Json::Map(
        members
            .into_iter()
            .map(|(name, value)| (Cow::Borrowed(name), value))
            .collect(),
    )
}

fn ids(parts: &[SchemaId]) -> Option<Json<'static>> {
    (!parts.is_empty()).then(|| Json::List(parts.iter().copied().map(id).collect()))
}

fn id(part: SchemaId) -> Json<'static> {
    count(part)
}

fn count(number: usize) -> Json<'static> {
    Json::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

fn text(text: &str) -> Json<'static> {
    Json::Str(Cow::Owned(text.to_owned()))
}

/// Reads what [`form`] wrote.
///
/// # Errors
/// [`BrokenSchema`] where it is something else.
pub(super) fn read(form: &Json<'_>) -> Result<Schema, BrokenSchema> {
    let Json::List(parts) = form else {
        return Err(BrokenSchema::NoList);
    };
    let parts: Vec<Rules> = parts
        .iter()
        .map(|rules| {
            let reader = Reader {
                rules,
                parts: parts.len(),
            };
            reader.rules()
        })
        .collect::<Result<_, _>>()?;
    if parts.is_empty() {
        return Err(BrokenSchema::Empty);
    }
    Ok(Schema { parts })
}

struct Reader<'j> {
    rules: &'j Json<'j>,
    /// How many parts the schema has.
    parts: usize,
}

impl<'j> Reader<'j> {
    fn rules(&self) -> Result<Rules, BrokenSchema> {
        let mut rules = Rules {
            never: self.flag("never")?.unwrap_or_default(),
            ..Rules::default()
        };
        if let Some(names) = self.list("type")? {
            let mut kinds = Kinds::default();
            for name in names {
                let kind = text_of("type", name).and_then(|name| Kinds::named(name).ok_or(broken("type")))?;
                kinds = kinds.with(kind);
            }
            rules.kinds = Some(kinds);
        }
        rules.one_among = self
            .list("enum")?
            .map(|values| values.iter().cloned().map(Json::into_static).collect());
        rules.numbers = NumberRules {
            minimum: self.number("minimum")?,
            maximum: self.number("maximum")?,
            exclusive_minimum: self.number("exclusiveMinimum")?,
            exclusive_maximum: self.number("exclusiveMaximum")?,
            multiple_of: match self.rules.get("multipleOf") {
                None => None,
                Some(Json::Int(number)) => Some(*number),
                Some(_) => return Err(broken("multipleOf")),
            },
        };
        rules.texts = TextRules {
            min_length: self.count("minLength")?,
            max_length: self.count("maxLength")?,
            pattern: match self.rules.get("pattern") {
                None => None,
                Some(text) => Some(regex("pattern", text)?),
            },
        };
        rules.arrays = ArrayRules {
            items: self.part("items")?,
            first: self.parts("first")?,
            contains: self.part("contains")?,
            min_items: self.count("minItems")?,
            max_items: self.count("maxItems")?,
            unique: self.flag("uniqueItems")?.unwrap_or_default(),
        };
        rules.objects = self.objects()?;
        rules.all_of = self.parts("allOf")?;
        rules.any_of = self.parts("anyOf")?;
        rules.one_of = self.parts("oneOf")?;
        rules.not = self.part("not")?;
        rules.condition = match self.list("if")? {
            None => None,
            Some([test, then, otherwise]) => {
                let branch = |part: &Json<'_>| match part {
                    Json::Null => Ok(None),
                    part => self.id("if", part).map(Some),
                };
                Some((self.id("if", test)?, branch(then)?, branch(otherwise)?))
            }
            Some(_) => return Err(broken("if")),
        };
        Ok(rules)
    }

    fn objects(&self) -> Result<ObjectRules, BrokenSchema> {
        let mut objects = ObjectRules {
            names: self.part("propertyNames")?,
            min_properties: self.count("minProperties")?,
            max_properties: self.count("maxProperties")?,
            additional: match self.rules.get("additionalProperties") {
                None => Additional::Unsaid,
                Some(Json::Bool(true)) => Additional::Any,
                Some(Json::Bool(false)) => Additional::None,
                Some(part) => Additional::Schema(self.id("additionalProperties", part)?),
            },
            ..ObjectRules::default()
        };
        match self.rules.get("properties") {
            None => {}
            Some(Json::Map(properties)) => {
                for (name, part) in properties {
                    let part = self.id("properties", part)?;
                    objects.properties.insert(name.clone().into_owned(), part);
                }
            }
            Some(_) => return Err(broken("properties")),
        }
        for pair in self.list("patternProperties")?.unwrap_or_default() {
            let Json::List(pair) = pair else {
                return Err(broken("patternProperties"));
            };
            let [pattern, part] = pair.as_slice() else {
                return Err(broken("patternProperties"));
            };
            let pattern = regex("patternProperties", pattern)?;
            objects
                .patterns
                .push((pattern, self.id("patternProperties", part)?));
        }
        for name in self.list("required")?.unwrap_or_default() {
            objects.required.push(text_of("required", name)?.to_owned());
        }
        Ok(objects)
    }

    fn list(&self, name: &'static str) -> Result<Option<&'j [Json<'j>]>, BrokenSchema> {
        match self.rules.get(name) {
            None => Ok(None),
            Some(Json::List(items)) => Ok(Some(items)),
            Some(_) => Err(broken(name)),
        }
    }

    fn flag(&self, name: &'static str) -> Result<Option<bool>, BrokenSchema> {
        match self.rules.get(name) {
            None => Ok(None),
            Some(Json::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(broken(name)),
        }
    }

    fn number(&self, name: &'static str) -> Result<Option<f64>, BrokenSchema> {
        match self.rules.get(name) {
            None => Ok(None),
            Some(Json::Double(number)) => Ok(Some(*number)),
            Some(_) => Err(broken(name)),
        }
    }

    fn count(&self, name: &'static str) -> Result<Option<usize>, BrokenSchema> {
        match self.rules.get(name) {
            None => Ok(None),
            Some(Json::Int(number)) => usize::try_from(*number).map(Some).map_err(|_| broken(name)),
            Some(_) => Err(broken(name)),
        }
    }

    fn part(&self, name: &'static str) -> Result<Option<SchemaId>, BrokenSchema> {
        self.rules.get(name).map(|part| self.id(name, part)).transpose()
    }

    fn parts(&self, name: &'static str) -> Result<Vec<SchemaId>, BrokenSchema> {
        let parts = self.list(name)?.unwrap_or_default().iter();
        parts.map(|part| self.id(name, part)).collect()
    }

    fn id(&self, name: &'static str, part: &Json<'_>) -> Result<SchemaId, BrokenSchema> {
        let id = match part {
            Json::Int(id) => usize::try_from(*id).ok().filter(|id| *id < self.parts),
            _ => None,
        };
        id.ok_or_else(|| broken(name))
    }
}

fn text_of<'j>(name: &'static str, value: &'j Json<'_>) -> Result<&'j str, BrokenSchema> {
    match value {
        Json::Str(text) => Ok(text),
        _ => Err(broken(name)),
    }
}

fn regex(name: &'static str, value: &Json<'_>) -> Result<Regex, BrokenSchema> {
    Regex::new(text_of(name, value)?).map_err(|error| BrokenSchema::Pattern { name, error })
}

const fn broken(name: &'static str) -> BrokenSchema {
    BrokenSchema::Keyword(name)
}
