//! Texts that name something: percent-encoded, hashed, unique.

use std::fmt::Write as _;

use super::super::budget::Spender;
use super::super::value::Value;
use super::Given;

/// A UUID of version 8 that only this input of this instance has; another number, another id.
pub(super) fn uid<'a>(number: &Value<'a>, seed: &Value<'a>, budget: &mut Spender<'_>) -> Given<'a> {
    let number = number.as_int("uid()")?;
    let seed = seed.as_text("uid()")?;
    budget.text(seed.len())?;
    let mut hasher = blake3::Hasher::new_derive_key("saga-runner uid v1");
    hasher.update(&number.to_le_bytes());
    hasher.update(seed.as_bytes());
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    let id = uuid::Builder::from_custom_bytes(bytes).into_uuid();
    Ok(Value::text(id.hyphenated().to_string()))
}

/// Everything but RFC 3986's unreserved characters as `%XX`.
#[must_use]
pub fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").expect("writing to a string"),
        }
    }
    out
}
