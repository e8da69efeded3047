//! From the bytes of an answer to the value that expressions read as its body.

use crate::kernel::json::{Json, JsonError, LargeIntegers};

/// What an answer says of its own form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// JSON by its content type.
    Json,
    /// Anything else. JSON is read as JSON all the same, and the rest is text.
    Any,
}

impl Form {
    /// By the content type, such as `application/problem+json; charset=utf-8`.
    pub fn of(content_type: &[u8]) -> Self {
        let essence = content_type
            .split(|byte| *byte == b';')
            .next()
            .unwrap_or_default();
        let essence = essence.trim_ascii().to_ascii_lowercase();
        if essence == b"application/json" || essence == b"text/json" || essence.ends_with(b"+json") {
            Self::Json
        } else {
            Self::Any
        }
    }
}

/// A body that calls itself JSON and is something else, or is too deep.
#[derive(Debug, thiserror::Error)]
#[error("the answer cannot be read: {0}")]
pub struct Unreadable(JsonError);

/// The value of a body: null for an empty one. Integers that need more than 64 bits are text, digit by digit.
///
/// # Errors
/// [`Unreadable`] where the body calls itself JSON and cannot be read as such.
pub fn value(bytes: &[u8], form: Form, depth_max: usize) -> Result<Json<'_>, Unreadable> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    if bytes.is_empty() {
        return Ok(Json::Null);
    }
    match (Json::parse_with(bytes, depth_max, LargeIntegers::Text), form) {
        (Ok(value), _) => Ok(value),
        (Err(error), Form::Json) => Err(Unreadable(error)),
        (Err(_), Form::Any) => Ok(text(bytes)),
    }
}

/// Bytes that are no JSON, or not to be read as such.
pub fn text(bytes: &[u8]) -> Json<'_> {
    Json::Str(String::from_utf8_lossy(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_cannot_be_read_is_no_text() {
        let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
        let bodies: [&[u8]; 8] = [
            b"{\"a\":1,\"a\":2}",
            b"{\"a\":NaN}",
            b"1e400",
            b"{\"a\":",
            b"\"\xff\"",
            b"{} {}",
            b"hello",
            deep.as_bytes(),
        ];
        for body in bodies {
            assert!(value(body, Form::Json, 64).is_err(), "{body:?}");
            assert!(matches!(value(body, Form::Any, 64), Ok(Json::Str(_))), "{body:?}");
        }
    }

    #[test]
    fn a_mark_is_passed_over_and_a_long_integer_keeps_its_digits() {
        let read = |body: &'static [u8]| value(body, Form::Json, 64).expect("read");
        assert_eq!(
            read(b"\xef\xbb\xbf[18446744073709551615,-9223372036854775809,7]"),
            Json::List(vec![
                Json::Str("18446744073709551615".into()),
                Json::Str("-9223372036854775809".into()),
                Json::Int(7),
            ])
        );
        assert_eq!(read(b""), Json::Null);
        assert_eq!(read(b"\xef\xbb\xbf"), Json::Null);
    }

    #[test]
    fn the_content_type_says_what_is_json() {
        for json in ["application/json", "Application/Problem+JSON; charset=utf-8"] {
            assert_eq!(Form::of(json.as_bytes()), Form::Json, "{json}");
        }
        for other in ["", "text/plain", "application/jsonlines", "text/html; a=+json"] {
            assert_eq!(Form::of(other.as_bytes()), Form::Any, "{other}");
        }
    }
}
