//! Writing down what came out: expectations that are not met get new values in their places, all else of the
//! file stays as it is.

use std::ops::Range;

use serde_json::Value;

/// A value in YAML's flow style, on one line.
#[must_use]
pub fn flow(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => scalar(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => {
            let members: Vec<String> = members
                .iter()
                .map(|(key, value)| format!("{}: {}", scalar(key), flow(value)))
                .collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

/// Text as it is where no reader can take it for anything else, in double quotes elsewhere.
fn scalar(text: &str) -> String {
    const WORDS: [&str; 10] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan"];
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if plain {
        text.to_owned()
    } else {
        // JSON strings are double-quoted YAML.
        Value::from(text).to_string()
    }
}

/// The edit that puts `filled` where an expectation is empty: in the place of `{}`, or behind the colon.
#[must_use]
pub fn into_empty(span: &Range<usize>, text: &str, filled: &str) -> (Range<usize>, String) {
    let here = text.get(span.clone()).unwrap_or_default();
    if here.starts_with('{') {
        return (span.clone(), filled.to_owned());
    }
    let colon = text[span.end..]
        .find(':')
        .map_or(span.end, |at| span.end + at + 1);
    (colon..colon, format!(" {filled}"))
}

/// Carries out edits of `text`. Of two that overlap the first is taken; the caller plays again and sees what is
/// left.
#[must_use]
pub fn apply(text: &str, mut edits: Vec<(Range<usize>, String)>) -> String {
    edits.sort_by_key(|(span, _)| (span.start, span.end));
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for (span, new) in edits {
        let taken = span.start < at || (span.start == at && at > 0 && span.is_empty());
        if taken || !text.is_char_boundary(span.start) || !text.is_char_boundary(span.end) {
            continue;
        }
        out.push_str(&text[at..span.start]);
        out.push_str(&new);
        at = span.end;
    }
    out.push_str(&text[at..]);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_updated_expectation_is_read_back_as_the_same_value() {
        for value in [
            json!({"a": "no", "b": "1", "c": "x y", "d": "", "e": "ok", "f": [1, 2.5, null, true], "g h": {}}),
            json!("a: b"),
            json!("#"),
        ] {
            let text = flow(&value);
            let read: Value = serde_saphyr::from_str(&text).expect("YAML");
            assert_eq!(read, value, "{text}");
        }
    }

    #[test]
    fn edits_leave_everything_else_alone() {
        let text = "expect: {phase: running} # why\nother: 1\n";
        let edits = vec![(16..23, "failed".to_owned()), (17..19, "x".to_owned())];
        assert_eq!(apply(text, edits), "expect: {phase: failed} # why\nother: 1\n");
        assert_eq!(
            into_empty(&(0..6), "expect:\n", "{a: 1}"),
            (7..7, " {a: 1}".to_owned())
        );
        assert_eq!(
            into_empty(&(8..10), "expect: {}\n", "{a: 1}"),
            (8..10, "{a: 1}".to_owned())
        );
    }
}
