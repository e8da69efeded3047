//! Values that nobody may see, and asterisks in their place.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::provider::{CallFailure, CallOutcome};
use crate::kernel::definition::redaction::{FieldPath, MASK};
use crate::kernel::expr::percent_encode;
use crate::kernel::json::Json;

/// Shorter values at paths of effect files are not looked for in texts: asterisks for every `1` hide nothing.
const REDACTED_BYTES_MIN: usize = 3;
/// Deepest nesting of a result that is looked through, in levels.
const DEPTH_MAX: usize = 256;
/// What is left of a value at the end of a message that was cut off is masked from so many bytes on.
const REMAINDER_BYTES_MIN: usize = 4;
/// A value whose beginning of so many bytes stands in a message is masked as far as it stands there.
const BEGINNING_BYTES: usize = 16;

/// Finds values that nobody may see.
pub struct Mask {
    /// The values in each spelling in which they may come back, the longest first, so that of two values of which
    /// one holds the other none is left in part.
    spellings: Vec<String>,
}

impl Mask {
    /// Values of fewer than `bytes_min` bytes are left out: they would be found where they mean something else.
    #[must_use]
    pub fn of<'v>(bytes_min: usize, values: impl IntoIterator<Item = &'v str>) -> Self {
        let mut spellings: Vec<String> = values
            .into_iter()
            .filter(|value| value.len() >= bytes_min)
            .flat_map(spellings)
            .collect();
        spellings.sort_by_key(|text| (std::cmp::Reverse(text.len()), text.clone()));
        spellings.dedup();
        Self { spellings }
    }

    /// The values at paths of effect files.
    #[must_use]
    pub fn at<const N: usize>(places: [(&[FieldPath], &Json<'_>); N]) -> Self {
        let mut values = Vec::new();
        for (paths, root) in places {
            for path in paths {
                path.values(root, &mut values);
            }
        }
        Self::of(REDACTED_BYTES_MIN, values.iter().map(String::as_str))
    }

    /// The outcome of a call, without any of the values.
    #[must_use]
    pub fn scrub(&self, outcome: CallOutcome) -> CallOutcome {
        match outcome {
            CallOutcome::Succeeded { payload } => CallOutcome::Succeeded {
                payload: self.clean_json(payload),
            },
            CallOutcome::Unusable {
                payload,
                class,
                message,
            } => CallOutcome::Unusable {
                payload: self.clean_json(payload),
                class,
                message: self.clean_message(message),
            },
            CallOutcome::Failed(failure) => CallOutcome::Failed(self.scrub_failure(failure)),
        }
    }

    /// How a call failed, without any of the values.
    #[must_use]
    pub fn scrub_failure(&self, failure: CallFailure) -> CallFailure {
        CallFailure {
            message: self.clean_message(failure.message),
            ..failure
        }
    }

    /// A message. Values in it may have been cut off, by whoever wrote it or with its end.
    #[must_use]
    pub fn clean_message(&self, message: String) -> String {
        let mut message = self.clean(message);
        for spelling in &self.spellings {
            let head = &spelling[..spelling.floor_char_boundary(BEGINNING_BYTES)];
            let mut from = 0;
            while spelling.len() > BEGINNING_BYTES
                && let Some(at) = message[from..].find(head).map(|found| from + found)
            {
                let alike = spelling.chars().zip(message[at..].chars());
                let alike = alike.take_while(|(one, other)| one == other);
                let bytes: usize = alike.map(|(c, _)| c.len_utf8()).sum();
                message.replace_range(at..at + bytes, MASK);
                from = at + MASK.len();
            }
        }
        let left = self.spellings.iter().filter_map(|spelling| {
            let ends = spelling.char_indices().map(|(at, _)| at).rev();
            let mut ends = ends.take_while(|end| *end >= REMAINDER_BYTES_MIN);
            ends.find(|end| message.ends_with(&spelling[..*end]))
        });
        if let Some(bytes) = left.max() {
            message.truncate(message.len() - bytes);
            message.push_str(MASK);
        }
        message
    }

    /// Only texts are masked: digits of a number that look like a secret are part of the number.
    fn clean_json(&self, payload: Vec<u8>) -> Vec<u8> {
        let holds = |text: &str| self.spellings.iter().any(|spelling| text.contains(&**spelling));
        if !std::str::from_utf8(&payload).is_ok_and(holds) {
            return payload;
        }
        match Json::parse(&payload, DEPTH_MAX) {
            Ok(value) => {
                let mut bytes = Vec::with_capacity(payload.len());
                self.masked(value).write(&mut bytes);
                bytes
            }
            // It is not a result either, and its text goes nowhere but into the message that says so.
            Err(_) => self
                .clean(String::from_utf8_lossy(&payload).into_owned())
                .into_bytes(),
        }
    }

    fn masked<'a>(&self, value: Json<'a>) -> Json<'a> {
        match value {
            Json::Str(text) => Json::Str(Cow::Owned(self.clean(text.into_owned()))),
            Json::List(items) => Json::List(items.into_iter().map(|item| self.masked(item)).collect()),
            Json::Map(members) => {
                let member = |(name, value)| (name, self.masked(value));
                Json::Map(members.into_iter().map(member).collect())
            }
            plain => plain,
        }
    }

    fn clean(&self, text: String) -> String {
        let mut text = text;
        for spelling in &self.spellings {
            if text.contains(spelling.as_str()) {
                text = text.replace(spelling.as_str(), MASK);
            }
        }
        text
    }
}

/// A value as it is, as it stands in JSON with and without letters beyond ASCII, in a URL, and in a message of one
/// line.
fn spellings(value: &str) -> [String; 5] {
    let quoted = serde_json::to_string(value).expect("a string is always JSON");
    let inner = quoted[1..quoted.len() - 1].to_owned();
    let ascii = inner.chars().fold(String::new(), |mut text, c| {
        if c.is_ascii() {
            text.push(c);
        } else {
            let mut units = [0_u16; 2];
            for unit in c.encode_utf16(&mut units) {
                write!(text, "\\u{unit:04x}").expect("writing to a string");
            }
        }
        text
    });
    let line = value.replace(char::is_control, " ");
    [value.to_owned(), inner, ascii, percent_encode(value), line]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_was_cut_off_within_a_value_does_not_tell_its_beginning() {
        let mask = Mask::of(6, ["4111111111111111", "s3cret-token"]);
        let clean = |text: &str| mask.clean_message(text.to_owned());
        assert_eq!(
            clean("402: card 4111111111111111 and s3cret-tok"),
            "402: card *** and ***"
        );
        assert_eq!(clean("402: card 41111"), "402: card ***");
        assert_eq!(clean("402: card 411"), "402: card 411");
        assert_eq!(clean("402: s3cret-token, no"), "402: ***, no");
        let long = Mask::of(6, ["a-token-that-is-longer-than-what-is-shown-of-it"]);
        assert_eq!(
            long.clean_message(
                "cannot read \"a-token-that-is-longer-tha…\" here, nor a-token-that-i".to_owned()
            ),
            "cannot read \"***…\" here, nor ***"
        );
    }

    #[test]
    fn a_value_is_found_however_it_is_spelled() {
        let mask = Mask::of(3, ["Jo\u{308}rg Müller", "a/b c"]);
        for spelling in [
            "Jo\u{308}rg Müller",
            r"Jo\u0308rg M\u00fcller",
            "Jo%CC%88rg%20M%C3%BCller",
            "a/b c",
            "a%2Fb%20c",
        ] {
            assert_eq!(mask.clean_message(format!("no {spelling}!")), "no ***!");
        }
    }
}
