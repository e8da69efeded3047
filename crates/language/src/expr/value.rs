//! Values during an evaluation: borrowed from scope and program, shared where they are built.
//!
//! Cloning a value is cheap at any size, so loops and lists need no copies of what they hold.

use std::ops::Deref;
use std::rc::Rc;

use jiff::{SignedDuration, Timestamp};

use super::EvalError;
use crate::json::Json;

/// What an operation takes and gives.
#[derive(Debug, Clone)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Str(Text<'a>),
    Timestamp(Timestamp),
    Duration(SignedDuration),
    List(List<'a>),
    Map(Map<'a>),
    /// A value that may be absent. It is never written: an expression ends with `orValue` or its like.
    Optional(Option<Rc<Self>>),
}

#[derive(Debug, Clone)]
pub(super) enum Text<'a> {
    Borrowed(&'a str),
    Built(Rc<str>),
}

#[derive(Debug, Clone)]
pub(super) enum List<'a> {
    Borrowed(&'a [Json<'a>]),
    Built(Rc<Vec<Value<'a>>>),
}

/// Members in the order in which they were read or written.
#[derive(Debug, Clone)]
pub(super) enum Map<'a> {
    Borrowed(&'a [(std::borrow::Cow<'a, str>, Json<'a>)]),
    Built(Rc<Vec<(Text<'a>, Value<'a>)>>),
}

impl<'a> Value<'a> {
    pub fn of(json: &'a Json<'a>) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(answer) => Self::Bool(*answer),
            Json::Int(number) => Self::Int(*number),
            Json::Double(number) => Self::Double(*number),
            Json::Str(text) => Self::Str(Text::Borrowed(text)),
            Json::List(items) => Self::List(List::Borrowed(items)),
            Json::Map(members) => Self::Map(Map::Borrowed(members)),
        }
    }

    pub fn text(text: String) -> Self {
        Self::Str(Text::Built(text.into()))
    }

    pub fn list(items: Vec<Self>) -> Self {
        Self::List(List::Built(Rc::new(items)))
    }

    pub fn map(members: Vec<(Text<'a>, Self)>) -> Self {
        Self::Map(Map::Built(Rc::new(members)))
    }

    /// What a value is called in messages.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "an integer",
            Self::Double(_) => "a double",
            Self::Str(_) => "a string",
            Self::Timestamp(_) => "a timestamp",
            Self::Duration(_) => "a duration",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
            Self::Optional(_) => "an optional",
        }
    }

    pub fn mistyped(&self, operation: &str) -> EvalError {
        EvalError::Type {
            operation: operation.to_owned(),
            found: self.type_name().to_owned(),
        }
    }

    pub fn as_bool(&self, operation: &str) -> Result<bool, EvalError> {
        match self {
            Self::Bool(answer) => Ok(*answer),
            _ => Err(self.mistyped(operation)),
        }
    }

    pub fn as_int(&self, operation: &str) -> Result<i64, EvalError> {
        match self {
            Self::Int(number) => Ok(*number),
            _ => Err(self.mistyped(operation)),
        }
    }

    pub fn as_text(&self, operation: &str) -> Result<&Text<'a>, EvalError> {
        match self {
            Self::Str(text) => Ok(text),
            _ => Err(self.mistyped(operation)),
        }
    }

    pub fn as_list(&self, operation: &str) -> Result<&List<'a>, EvalError> {
        match self {
            Self::List(items) => Ok(items),
            _ => Err(self.mistyped(operation)),
        }
    }

    pub fn as_map(&self, operation: &str) -> Result<&Map<'a>, EvalError> {
        match self {
            Self::Map(members) => Ok(members),
            _ => Err(self.mistyped(operation)),
        }
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Built(text) => text,
        }
    }
}

impl<'a> List<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Borrowed(items) => items.len(),
            Self::Built(items) => items.len(),
        }
    }

    pub fn get(&self, at: usize) -> Option<Value<'a>> {
        match self {
            Self::Borrowed(items) => items.get(at).map(Value::of),
            Self::Built(items) => items.get(at).cloned(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + '_ {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// The items as a list of one's own; nothing is copied where nobody else holds it.
    pub fn into_items(self) -> Vec<Value<'a>> {
        match self {
            Self::Borrowed(items) => items.iter().map(Value::of).collect(),
            Self::Built(items) => Rc::unwrap_or_clone(items),
        }
    }
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Borrowed(members) => members.len(),
            Self::Built(members) => members.len(),
        }
    }

    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        match self {
            Self::Borrowed(members) => members
                .iter()
                .find(|(name, _)| name == key)
                .map(|(_, value)| Value::of(value)),
            Self::Built(members) => members
                .iter()
                .find(|(name, _)| **name == *key)
                .map(|(_, value)| value.clone()),
        }
    }

    pub fn entry(&self, at: usize) -> Option<(Text<'a>, Value<'a>)> {
        match self {
            Self::Borrowed(members) => members
                .get(at)
                .map(|(key, value)| (Text::Borrowed(key.as_ref()), Value::of(value))),
            Self::Built(members) => members.get(at).cloned(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Text<'a>, Value<'a>)> + '_ {
        (0..self.len()).filter_map(|at| self.entry(at))
    }

    pub fn into_members(self) -> Vec<(Text<'a>, Value<'a>)> {
        match self {
            Self::Borrowed(members) => members
                .iter()
                .map(|(key, value)| (Text::Borrowed(key.as_ref()), Value::of(value)))
                .collect(),
            Self::Built(members) => Rc::unwrap_or_clone(members),
        }
    }
}
