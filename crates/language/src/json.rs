//! Borrowed JSON: a checked tree whose strings point into the bytes of the message.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Write as _;

/// A JSON value. Maps keep the order of the text and have no duplicate keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Json<'a> {
    Null,
    Bool(bool),
    /// Every JSON integer; those outside 64 signed bits are refused when read, unless [`LargeIntegers`] says otherwise.
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

/// What happens to integers outside 64 signed bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LargeIntegers {
    Refused,
    /// They are text, with their digits as they stand.
    Text,
}

impl<'a> Json<'a> {
    /// Reads exactly one JSON value.
    ///
    /// # Errors
    /// [`JsonError`] names the first rule that the bytes break.
    pub fn parse(bytes: &'a [u8], depth_max: usize) -> Result<Self, JsonError> {
        Self::parse_with(bytes, depth_max, LargeIntegers::Refused)
    }

    /// The same, with a word on integers outside 64 signed bits.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_with(bytes: &'a [u8], depth_max: usize, large: LargeIntegers) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| JsonError::Syntax(format!("not UTF-8 at byte {}", error.valid_up_to())))?;
        let mut reader = Reader {
            text,
            at: 0,
            depth: 0,
            depth_max,
            large,
        };
        reader.space();
        if reader.at == bytes.len() {
            return Err(JsonError::Empty);
        }
        let value = reader.value()?;
        reader.space();
        if reader.at < bytes.len() {
            return Err(reader.fault("something follows the value"));
        }
        Ok(value)
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

    /// The value with texts of its own.
    #[must_use]
    pub fn into_static(self) -> Json<'static> {
        let own = |text: Cow<'a, str>| Cow::Owned(text.into_owned());
        match self {
            Self::Null => Json::Null,
            Self::Bool(answer) => Json::Bool(answer),
            Self::Int(number) => Json::Int(number),
            Self::Double(number) => Json::Double(number),
            Self::Str(text) => Json::Str(own(text)),
            Self::List(items) => Json::List(items.into_iter().map(Json::into_static).collect()),
            Self::Map(members) => Json::Map(
                members
                    .into_iter()
                    .map(|(key, value)| (own(key), value.into_static()))
                    .collect(),
            ),
        }
    }

    /// Appends the value as compact JSON, members in their present order.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.extend_from_slice(b"null"),
            Self::Bool(true) => out.extend_from_slice(b"true"),
            Self::Bool(false) => out.extend_from_slice(b"false"),
            Self::Int(number) => write!(out, "{number}").expect("writing to memory"),
            Self::Double(number) => write!(out, "{number:?}").expect("writing to memory"),
            Self::Str(text) => write_string(text, out),
            Self::List(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Self::Map(members) => {
                out.push(b'{');
                for (index, (key, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_string(key, out);
                    out.push(b':');
                    value.write(out);
                }
                out.push(b'}');
            }
        }
    }
}

/// Appends `text` as a JSON string.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("writing a string to memory");
}

/// Members up to which duplicates are found by comparing each with each.
const PAIRWISE_MAX: usize = 16;

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    depth_max: usize,
    large: LargeIntegers,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn fault(&self, what: &str) -> JsonError {
        JsonError::Syntax(format!("{what} at byte {}", self.at))
    }

    fn value(&mut self) -> Result<Json<'a>, JsonError> {
        match self.peek() {
            Some(b'{') => self.nested(Self::map),
            Some(b'[') => self.nested(Self::list),
            Some(b'"') => self.string().map(Json::Str),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.fault("expected a value")),
            None => Err(self.fault("the text ends")),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Json<'a>, JsonError>) -> Result<Json<'a>, JsonError> {
        self.depth += 1;
        if self.depth > self.depth_max {
            return Err(JsonError::Depth { max: self.depth_max });
        }
        self.at += 1;
        self.space();
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn word(&mut self, word: &str, value: Json<'a>) -> Result<Json<'a>, JsonError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.fault("expected a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn list(&mut self) -> Result<Json<'a>, JsonError> {
        let mut items = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value()?);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Json::List(items));
                }
                _ => return Err(self.fault("expected ',' or ']'")),
            }
            self.space();
        }
    }

    fn map(&mut self) -> Result<Json<'a>, JsonError> {
        let mut members: Vec<(Cow<'a, str>, Json<'a>)> = Vec::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Map(members));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.fault("expected a key"));
            }
            let key = self.string()?;
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.fault("expected ':'"));
            }
            self.at += 1;
            self.space();
            let value = self.value()?;
            members.push((key, value));
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return match duplicate(&members) {
                        Some(key) => Err(JsonError::DuplicateKey { key }),
                        None => Ok(Json::Map(members)),
                    };
                }
                _ => return Err(self.fault("expected ',' or '}'")),
            }
            self.space();
        }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, JsonError> {
        let start = self.at;
        self.at += 1;
        let mut escaped = false;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.at += 2;
                }
                Some(0..=0x1f) => return Err(self.fault("control character in a string")),
                Some(_) => self.at += 1,
                None => return Err(self.fault("the text ends in a string")),
            }
        }
        self.at += 1;
        if !escaped {
            return Ok(Cow::Borrowed(&self.text[start + 1..self.at - 1]));
        }
        self.text
            .get(start..self.at)
            .and_then(|quoted| serde_json::from_str::<String>(quoted).ok())
            .map(Cow::Owned)
            .ok_or_else(|| self.fault("illegal escape in a string"))
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if start == self.at {
            return Err(self.fault("expected a digit"));
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Json<'a>, JsonError> {
        let start = self.at;
        let mut integer = true;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            integer = false;
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            integer = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        let range = || JsonError::NumberRange {
            text: text.chars().take(40).collect(),
        };
        if integer {
            return match (text.parse(), self.large) {
                (Ok(number), _) => Ok(Json::Int(number)),
                (Err(_), LargeIntegers::Text) => Ok(Json::Str(Cow::Borrowed(text))),
                (Err(_), LargeIntegers::Refused) => Err(range()),
            };
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Json::Double(number)),
            _ => Err(range()),
        }
    }
}

fn duplicate(members: &[(Cow<'_, str>, Json<'_>)]) -> Option<String> {
    let found = if members.len() <= PAIRWISE_MAX {
        members
            .iter()
            .enumerate()
            .find(|(index, (key, _))| members[..*index].iter().any(|(other, _)| other == key))
            .map(|(_, (key, _))| key)
    } else {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        members.iter().map(|(key, _)| key).find(|key| !seen.insert(key))
    };
    found.map(|key| key.chars().take(64).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reading(text: &str) -> Result<Json<'_>, JsonError> {
        Json::parse(text.as_bytes(), 8)
    }

    #[test]
    fn strings_without_escapes_borrow_from_the_message() {
        let Ok(Json::Map(members)) = reading(r#"{"a":"plain","b":"es\ncaped"}"#) else {
            panic!("a map");
        };
        assert!(matches!(&members[0].1, Json::Str(Cow::Borrowed("plain"))));
        assert!(matches!(&members[1].1, Json::Str(Cow::Owned(text)) if text == "es\ncaped"));
    }

    #[test]
    fn each_broken_rule_has_its_error() {
        assert_eq!(reading(" "), Err(JsonError::Empty));
        assert!(matches!(
            reading("[[[[[[[[[]]]]]]]]]"),
            Err(JsonError::Depth { max: 8 })
        ));
        assert!(matches!(
            reading(r#"{"a":1,"a":2}"#),
            Err(JsonError::DuplicateKey { .. })
        ));
        for out_of_range in ["1e400", "9223372036854775808", "-9223372036854775809"] {
            assert!(
                matches!(reading(out_of_range), Err(JsonError::NumberRange { .. })),
                "{out_of_range}"
            );
        }
        for broken in [
            "{", "[1,]", "{\"a\"}", "01", "1.", "tru", "\"\\x\"", "\"a", "1 2", "\"\n\"", "-", "\"\\",
        ] {
            assert!(matches!(reading(broken), Err(JsonError::Syntax(_))), "{broken}");
        }
        assert!(matches!(Json::parse(b"\"\xff\"", 8), Err(JsonError::Syntax(_))));
    }

    #[test]
    fn integers_are_exact_and_doubles_stay_doubles() {
        assert_eq!(reading("9007199254740993"), Ok(Json::Int(9_007_199_254_740_993)));
        let mut out = Vec::new();
        reading("[2.0,1e3,-0.5,1e300]").expect("numbers").write(&mut out);
        assert_eq!(String::from_utf8_lossy(&out), "[2.0,1000.0,-0.5,1e300]");
    }

    #[test]
    fn duplicates_are_found_in_large_maps() {
        let members: Vec<String> = (0..1_000).map(|n| format!("\"k{n}\":{n}")).collect();
        assert!(reading(&format!("{{{}}}", members.join(","))).is_ok());
        let doubled = format!("{{{},\"k7\":0}}", members.join(","));
        assert!(matches!(reading(&doubled), Err(JsonError::DuplicateKey { key }) if key == "k7"));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Json::parse(&bytes, 16);
        }

        #[test]
        fn json_is_read_as_serde_reads_it(text in r#"[\[\]{}":,a-c0-9.eE+\-\\ntrufls ]{0,40}"#) {
            agrees_with_serde(text.as_bytes())?;
        }

        #[test]
        fn damaged_json_is_refused_as_serde_refuses_it(
            value in values(),
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>(), 0_u8..3), 0..3),
        ) {
            let mut bytes = Vec::new();
            value.write(&mut bytes);
            for (place, byte, kind) in damage {
                let at = place.index(bytes.len().max(1)).min(bytes.len());
                match kind {
                    0 => bytes.insert(at, byte),
                    1 => bytes.truncate(at),
                    _ => bytes.iter_mut().skip(at).take(1).for_each(|old| *old = byte),
                }
            }
            agrees_with_serde(&bytes)?;
        }

        #[test]
        fn json_is_read_back_as_it_was_written(value in values()) {
            let mut bytes = Vec::new();
            value.write(&mut bytes);
            let back = Json::parse(&bytes, 8);
            prop_assert_eq!(back.as_ref(), Ok(&value));
            prop_assert_eq!(back.map(Json::into_static), Ok(value));
        }

        #[test]
        fn doubles_stay_the_doubles_they_are(bits in any::<u64>()) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            let mut bytes = Vec::new();
            Json::Double(number).write(&mut bytes);
            match Json::parse(&bytes, 1) {
                Ok(Json::Double(back)) => prop_assert_eq!(back.to_bits(), bits),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    fn values() -> impl Strategy<Value = Json<'static>> {
        let text = || prop_oneof!["[a-z\"\\\\\u{0}-\u{20}é😀]{0,6}", ".{0,4}"];
        let leaves = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::Bool),
            any::<i64>().prop_map(Json::Int),
            proptest::num::f64::NORMAL.prop_map(Json::Double),
            text().prop_map(|text| Json::Str(text.into())),
        ];
        leaves.prop_recursive(4, 40, 20, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Json::List),
                proptest::collection::btree_map(text(), inner, 0..20).prop_map(|map| Json::Map(
                    map.into_iter().map(|(key, value)| (key.into(), value)).collect()
                )),
            ]
        })
    }

    /// We take what serde takes, and read the same from it, but for what is refused here on purpose.
    fn agrees_with_serde(bytes: &[u8]) -> Result<(), TestCaseError> {
        let theirs: Result<serde_json::Value, _> = serde_json::from_slice(bytes);
        match Json::parse(bytes, 64) {
            Ok(ours) => prop_assert!(theirs.is_ok_and(|theirs| same(&ours, &theirs)), "{ours:?}"),
            Err(JsonError::Syntax(_) | JsonError::Empty) => prop_assert!(theirs.is_err(), "{theirs:?}"),
            Err(JsonError::Depth { .. } | JsonError::DuplicateKey { .. } | JsonError::NumberRange { .. }) => {
            }
        }
        Ok(())
    }

    fn same(ours: &Json<'_>, theirs: &serde_json::Value) -> bool {
        match (ours, theirs) {
            (Json::Null, serde_json::Value::Null) => true,
            (Json::Bool(ours), serde_json::Value::Bool(theirs)) => ours == theirs,
            // Minus zero without a fraction is an integer here and a double there.
            (Json::Int(ours), serde_json::Value::Number(theirs)) => {
                theirs.as_i64() == Some(*ours) || (*ours == 0 && theirs.as_f64() == Some(0.0))
            }
            // Without a feature for it, serde may be off in the last place.
            (Json::Double(ours), serde_json::Value::Number(theirs)) => theirs
                .as_f64()
                .is_some_and(|theirs| (ours - theirs).abs() <= ours.abs() * 4.0 * f64::EPSILON),
            (Json::Str(ours), serde_json::Value::String(theirs)) => ours == theirs,
            (Json::List(ours), serde_json::Value::Array(theirs)) => {
                ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| same(ours, theirs))
            }
            (Json::Map(ours), serde_json::Value::Object(theirs)) => {
                ours.len() == theirs.len()
                    && ours
                        .iter()
                        .all(|(key, ours)| theirs.get(key.as_ref()).is_some_and(|theirs| same(ours, theirs)))
            }
            _ => false,
        }
    }
}
