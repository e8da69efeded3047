//! What a JSON Schema says about the values that pass it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Kinds, Member, Type};
use crate::schema::{Additional, Rules, Schema, SchemaId};
use crate::{json::Json, schema};

/// Schemas inside each other that are followed; what is deeper is dynamic.
const DEPTH_MAX: usize = 24;
/// Most schemas that the type of one schema is put together from; beyond, what is left is dynamic.
const STEPS_MAX: usize = 20_000;

impl Type {
    /// The type of what passes `schema`. A schema that contains itself is dynamic from there on.
    #[must_use]
    pub fn of_schema(schema: &Schema) -> Self {
        Reading::of(schema, false).part(0)
    }

    /// The same for what is held against `schema`: members that it does not list may be there, as JSON Schema has it.
    #[must_use]
    pub fn of_schema_as_written(schema: &Schema) -> Self {
        Reading::of(schema, true).part(0)
    }
}

struct Reading<'s> {
    schema: &'s Schema,
    /// Where a schema lists members and says nothing of others, there may be others.
    is_open: bool,
    /// Schemas around.
    trail: Vec<SchemaId>,
    steps: usize,
}

impl<'s> Reading<'s> {
    const fn of(schema: &'s Schema, is_open: bool) -> Self {
        Self {
            schema,
            is_open,
            trail: Vec::new(),
            steps: 0,
        }
    }

    fn part(&mut self, id: SchemaId) -> Type {
        self.steps += 1;
        if self.steps > STEPS_MAX || self.trail.len() == DEPTH_MAX || self.trail.contains(&id) {
            return Type::dynamic();
        }
        self.trail.push(id);
        let schema = self.schema;
        let read = self.rules(&schema.parts[id]);
        self.trail.pop();
        read
    }

    fn rules(&mut self, rules: &Rules) -> Type {
        if rules.never {
            return Type::default();
        }
        let mut read = self.own(rules);
        for part in &rules.all_of {
            read = read.and(&self.part(*part));
        }
        for alternatives in [&rules.any_of, &rules.one_of] {
            let joined = alternatives
                .iter()
                .map(|part| self.part(*part))
                .reduce(|left, right| left.or(&right));
            if let Some(joined) = joined {
                read = read.and(&joined);
            }
        }
        read
    }

    /// What the rules say by themselves.
    fn own(&mut self, rules: &Rules) -> Type {
        if let Some(allowed) = &rules.one_among {
            let joined = allowed
                .iter()
                .map(Type::of_json)
                .reduce(|left, right| left.or(&right))
                .unwrap_or_default();
            return match rules.kinds {
                Some(kinds) => Type {
                    kinds: joined.kinds.both(of_schema_kinds(kinds)),
                    ..joined
                },
                None => joined,
            };
        }
        let objects = &rules.objects;
        let about_objects =
            !objects.properties.is_empty() || !objects.required.is_empty() || !objects.patterns.is_empty();
        let about_lists = rules.arrays.items.is_some() || !rules.arrays.first.is_empty();
        let kinds = match rules.kinds {
            Some(kinds) => of_schema_kinds(kinds),
            // Strictly a schema without `type` lets everything else through; nobody means it.
            None if about_objects => Kinds::MAP,
            None if about_lists => Kinds::LIST,
            None => return Type::dynamic(),
        };
        let mut read = Type::of(kinds);
        if kinds.has(Kinds::LIST) {
            read.item = Some(Arc::new(self.items(rules)));
        }
        if kinds.has(Kinds::MAP) {
            read.object = self.members(rules).object;
        }
        read
    }

    fn items(&mut self, rules: &Rules) -> Type {
        let rest = rules
            .arrays
            .items
            .map_or_else(Type::dynamic, |part| self.part(part));
        rules
            .arrays
            .first
            .iter()
            .map(|part| self.part(*part))
            .fold(rest, |left, right| left.or(&right))
    }

    fn members(&mut self, rules: &Rules) -> Type {
        let objects = &rules.objects;
        let mut members: BTreeMap<String, Member> = BTreeMap::new();
        for (name, part) in &objects.properties {
            let value = self.part(*part);
            let required = objects.required.contains(name);
            members.insert(name.clone(), Member { value, required });
        }
        for name in &objects.required {
            members.entry(name.clone()).or_insert_with(|| Member {
                value: Type::dynamic(),
                required: true,
            });
        }
        let mut rest = match objects.additional {
            Additional::Unsaid if self.is_open || (members.is_empty() && objects.patterns.is_empty()) => {
                Some(Type::dynamic())
            }
            // A schema that lists members means them to be all there are.
            Additional::Unsaid | Additional::None => None,
            Additional::Any => Some(Type::dynamic()),
            Additional::Schema(part) => Some(self.part(part)),
        };
        for (_, part) in &objects.patterns {
            let value = self.part(*part);
            rest = Some(rest.map_or_else(|| value.clone(), |rest| rest.or(&value)));
        }
        Type::of_object(members, rest)
    }
}

fn of_schema_kinds(kinds: schema::Kinds) -> Kinds {
    [
        (schema::Kinds::NULL, Kinds::NULL),
        (schema::Kinds::BOOLEAN, Kinds::BOOL),
        (schema::Kinds::INTEGER, Kinds::INT),
        (schema::Kinds::DOUBLE, Kinds::DOUBLE),
        (schema::Kinds::STRING, Kinds::STRING),
        (schema::Kinds::ARRAY, Kinds::LIST),
        (schema::Kinds::OBJECT, Kinds::MAP),
    ]
    .into_iter()
    .filter(|(kind, _)| kinds.has(*kind))
    .fold(Kinds::NONE, |all, (_, kind)| all.with(kind))
}

/// The words of a constant list, for `x in ["a", "b"]`.
pub(super) fn words_of(list: &Json<'_>) -> Option<Type> {
    let Json::List(items) = list else { return None };
    let joined = items
        .iter()
        .map(Type::of_json)
        .reduce(|left, right| left.or(&right));
    Some(joined.unwrap_or_default())
}
