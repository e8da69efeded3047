//! Values during an evaluation: borrowed from scope and program where possible.

use std::borrow::Cow;

use super::EvalError;
use crate::kernel::json::Json;

/// A value that is borrowed as long as nothing is built.
#[derive(Debug, Clone)]
pub(super) enum Value<'a> {
    Ref(&'a Json<'a>),
    Own(Json<'a>),
}

impl<'a> Value<'a> {
    pub fn bool(answer: bool) -> Self {
        Self::Own(Json::Bool(answer))
    }

    pub fn int(number: i64) -> Self {
        Self::Own(Json::Int(number))
    }

    pub fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self::Own(Json::Str(text.into()))
    }

    pub fn json(&self) -> &Json<'a> {
        match self {
            Self::Ref(json) => json,
            Self::Own(json) => json,
        }
    }

    pub fn into_json(self) -> Json<'a> {
        match self {
            Self::Ref(json) => json.clone(),
            Self::Own(json) => json,
        }
    }

    /// The text of a string, borrowed from the scope where it is.
    pub fn into_text(self, operation: &str) -> Result<Cow<'a, str>, EvalError> {
        match self {
            Self::Ref(Json::Str(text)) => Ok(Cow::Borrowed(text)),
            Self::Own(Json::Str(text)) => Ok(text),
            other => Err(other.mistyped(operation)),
        }
    }

    pub fn as_int(&self, operation: &str) -> Result<i64, EvalError> {
        match self.json() {
            Json::Int(number) => Ok(*number),
            _ => Err(self.mistyped(operation)),
        }
    }

    pub fn as_bool(&self, operation: &str) -> Result<bool, EvalError> {
        match self.json() {
            Json::Bool(answer) => Ok(*answer),
            _ => Err(self.mistyped(operation)),
        }
    }

    /// The items of a list, cloned only where they are borrowed.
    pub fn into_items(self, operation: &str) -> Result<Vec<Json<'a>>, EvalError> {
        match self {
            Self::Ref(Json::List(items)) => Ok(items.clone()),
            Self::Own(Json::List(items)) => Ok(items),
            other => Err(other.mistyped(operation)),
        }
    }

    pub fn into_members(self, operation: &str) -> Result<Vec<(Cow<'a, str>, Json<'a>)>, EvalError> {
        match self {
            Self::Ref(Json::Map(members)) => Ok(members.clone()),
            Self::Own(Json::Map(members)) => Ok(members),
            other => Err(other.mistyped(operation)),
        }
    }

    pub fn mistyped(&self, operation: &str) -> EvalError {
        EvalError::Type {
            operation: operation.to_owned(),
            found: type_name(self.json()).to_owned(),
        }
    }
}

/// What a value is called in messages.
pub(super) const fn type_name(json: &Json<'_>) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Int(_) => "an integer",
        Json::Double(_) => "a double",
        Json::Str(_) => "a string",
        Json::List(_) => "a list",
        Json::Map(_) => "a map",
    }
}

/// Equality as CEL has it: values of different types differ, maps do not care for the order of their keys.
pub(super) fn equal(left: &Json<'_>, right: &Json<'_>) -> bool {
    match (left, right) {
        (Json::List(left), Json::List(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal(left, right))
        }
        (Json::Map(members), Json::Map(others)) => {
            members.len() == others.len()
                && members
                    .iter()
                    .all(|(key, value)| right.get(key).is_some_and(|other| equal(value, other)))
        }
        _ => left == right,
    }
}
