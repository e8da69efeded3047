//! Borrowed JSON: a checked tree whose strings point into the bytes of the message.

use std::borrow::Cow;

/// A JSON value. Maps keep the order of the text and have no duplicate keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Json<'a> {
    Null,
    Bool(bool),
    /// Every JSON integer; those outside 64 signed bits are refused when read.
    Int(i64),
    /// A number with fraction or exponent, always finite.
    Double(f64),
    Str(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Map(Vec<(Cow<'a, str>, Json<'a>)>),
}

/// Why bytes are not JSON that the runner takes. Each maps to a dead-letter reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    #[error("payload is empty")]
    Empty,
    #[error("payload is not JSON: {0}")]
    Syntax(String),
    #[error("payload is nested deeper than {max} levels")]
    Depth { max: usize },
    #[error("key {key:?} appears twice")]
    DuplicateKey { key: String },
    #[error("number {text} is out of range")]
    NumberRange { text: String },
}

impl<'a> Json<'a> {
    /// Reads exactly one JSON value.
    ///
    /// # Errors
    /// [`JsonError`] names the first rule that the bytes break.
    pub fn parse(_bytes: &'a [u8], _depth_max: usize) -> Result<Self, JsonError> {
        todo!()
    }

    /// The member `name` of a map.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Json<'a>> {
        match self {
            Self::Map(members) => members
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    /// Appends the value as compact JSON, members in their present order.
    pub fn write(&self, _out: &mut Vec<u8>) {
        todo!()
    }
}
