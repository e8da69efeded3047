//! JSON Schema, the part of draft-07 that definitions use: compiled once, checked against values without I/O.
//!
//! Knows nothing about files; `kernel::definition` reads schemas with their places. Values are told apart as
//! expressions tell them: `integer` means a number without fraction and exponent, `number` both kinds.

mod canonical;
mod validate;

use std::collections::BTreeMap;

use regex::Regex;

use super::json::Json;

/// Why a stored form is not that of a schema.
#[derive(Debug, thiserror::Error)]
pub enum BrokenSchema {
    #[error("a schema is a list of parts")]
    NoList,
    #[error("a schema has a part")]
    Empty,
    #[error("{0} of a schema is damaged")]
    Keyword(&'static str),
    #[error("{name} of a schema: {error}")]
    Pattern { name: &'static str, error: regex::Error },
}

pub use validate::Violation;

/// The kinds of JSON values, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kinds(u8);

impl Kinds {
    pub const NULL: Self = Self(1);
    pub const BOOLEAN: Self = Self(1 << 1);
    pub const INTEGER: Self = Self(1 << 2);
    pub const DOUBLE: Self = Self(1 << 3);
    pub const STRING: Self = Self(1 << 4);
    pub const ARRAY: Self = Self(1 << 5);
    pub const OBJECT: Self = Self(1 << 6);
    pub const ALL: Self = Self(0x7f);

    /// The kinds that `type` calls `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::INTEGER.with(Self::DOUBLE),
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => return None,
        })
    }

    #[must_use]
    pub const fn of(value: &Json<'_>) -> Self {
        match value {
            Json::Null => Self::NULL,
            Json::Bool(_) => Self::BOOLEAN,
            Json::Int(_) => Self::INTEGER,
            Json::Double(_) => Self::DOUBLE,
            Json::Str(_) => Self::STRING,
            Json::List(_) => Self::ARRAY,
            Json::Map(_) => Self::OBJECT,
        }
    }

    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names that `type` has for the kinds, in a fixed order.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let number = Self::INTEGER.with(Self::DOUBLE);
        let kinds = [
            (Self::NULL, "null"),
            (Self::BOOLEAN, "boolean"),
            (number, "number"),
            (Self::INTEGER, "integer"),
            (Self::STRING, "string"),
            (Self::ARRAY, "array"),
            (Self::OBJECT, "object"),
        ];
        let named = kinds
            .into_iter()
            .filter(|(kind, name)| self.has(*kind) && !(*name == "integer" && self.has(number)));
        named.map(|(_, name)| name).collect()
    }
}

/// The place of a schema among those that it is made of.
pub type SchemaId = usize;

/// A schema with everything that it refers to; the first is the whole.
#[derive(Debug, Clone)]
pub struct Schema {
    /// References are resolved; they may go round in circles through values, never without one.
    pub parts: Vec<Rules>,
}

/// What one schema demands. All that is given must hold.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// The schema `false`.
    pub never: bool,
    pub kinds: Option<Kinds>,
    /// `enum`, and `const` as an `enum` of one.
    pub one_among: Option<Vec<Json<'static>>>,
    pub numbers: NumberRules,
    pub texts: TextRules,
    pub arrays: ArrayRules,
    pub objects: ObjectRules,
    pub all_of: Vec<SchemaId>,
    pub any_of: Vec<SchemaId>,
    pub one_of: Vec<SchemaId>,
    pub not: Option<SchemaId>,
    /// `if`, with `then` and `else`.
    pub condition: Option<(SchemaId, Option<SchemaId>, Option<SchemaId>)>,
}

#[derive(Debug, Clone, Default)]
pub struct NumberRules {
    pub minimum: Option<f64>,
    pub maximum: Option<f64>,
    pub exclusive_minimum: Option<f64>,
    pub exclusive_maximum: Option<f64>,
    /// Whole numbers only: remainders of doubles are not what people expect.
    pub multiple_of: Option<i64>,
}

#[derive(Debug, Clone, Default)]
pub struct TextRules {
    /// In characters.
    pub min_length: Option<usize>,
    /// In characters.
    pub max_length: Option<usize>,
    pub pattern: Option<Regex>,
}

#[derive(Debug, Clone, Default)]
pub struct ArrayRules {
    pub items: Option<SchemaId>,
    /// `items` as a list: what the first items are, one by one.
    pub first: Vec<SchemaId>,
    pub contains: Option<SchemaId>,
    pub min_items: Option<usize>,
    pub max_items: Option<usize>,
    pub unique: bool,
}

#[derive(Debug, Clone, Default)]
pub struct ObjectRules {
    pub properties: BTreeMap<String, SchemaId>,
    pub patterns: Vec<(Regex, SchemaId)>,
    pub additional: Additional,
    pub required: Vec<String>,
    pub names: Option<SchemaId>,
    pub min_properties: Option<usize>,
    pub max_properties: Option<usize>,
}

/// Members that no rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Additional {
    /// Nothing is said: allowed in values, unknown to expressions.
    #[default]
    Unsaid,
    /// `true`.
    Any,
    /// `false`.
    None,
    Schema(SchemaId),
}

impl Schema {
    /// Finds the first rule that `value` breaks.
    ///
    /// # Errors
    /// [`Violation`] with the place in the value.
    pub fn check(&self, value: &Json<'_>) -> Result<(), Violation> {
        validate::check(self, value)
    }

    /// All that is wrong with a value, member by member and item by item; at most `max`, and empty where nothing is.
    #[must_use]
    pub fn violations(&self, value: &Json<'_>, max: usize) -> Vec<Violation> {
        validate::violations(self, value, max)
    }

    /// The schema as JSON without anything that changes no meaning: what hashes are taken of.
    #[must_use]
    pub fn canonical(&self) -> Json<'static> {
        canonical::form(self)
    }

    /// Reads [`Schema::canonical`].
    ///
    /// # Errors
    /// [`BrokenSchema`] where it is something else.
    pub fn from_canonical(form: &Json<'_>) -> Result<Self, BrokenSchema> {
        canonical::read(form)
    }

    #[must_use]
    pub fn root(&self) -> &Rules {
        &self.parts[0]
    }
}

#[cfg(test)]
mod tests;
