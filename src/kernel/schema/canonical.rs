//! A schema in one form, whatever its text looks like.

use std::borrow::Cow;

use super::{Additional, Rules, Schema, SchemaId};
use crate::kernel::json::Json;

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
