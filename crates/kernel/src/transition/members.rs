//! Setting top-level members of the state without re-encoding the others.
//!
//! The state is compact JSON with sorted keys that this kernel wrote itself, so a scan for the ends of its
//! members is enough; what is not set is copied byte for byte.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Puts the rendered values `sets` into `state`, a compact JSON object with sorted keys; of two values for
/// one name the last stands. `None` where `state` is not such an object.
pub(super) fn merge(state: &[u8], sets: &[(&str, Vec<u8>)]) -> Option<Vec<u8>> {
    let added: usize = sets
        .iter()
        .map(|(name, value)| name.len() + value.len() + 4)
        .sum();
    let mut sets: BTreeMap<&str, &[u8]> = sets
        .iter()
        .map(|(name, value)| (*name, value.as_slice()))
        .collect();
    let mut out = Vec::with_capacity(state.len() + added);
    out.push(b'{');
    let mut rest = state.strip_prefix(b"{")?.strip_suffix(b"}")?;
    while !rest.is_empty() {
        let (name, member, after) = split_member(rest)?;
        while let Some(first) = sets.first_entry().filter(|first| *first.key() < name.as_ref()) {
            let (set, value) = first.remove_entry();
            put(&mut out, set, value);
        }
        if let Some(value) = sets.remove(name.as_ref()) {
            put(&mut out, &name, value);
        } else {
            separate(&mut out);
            out.extend_from_slice(member);
        }
        rest = after;
    }
    for (set, value) in sets {
        put(&mut out, set, value);
    }
    out.push(b'}');
    Some(out)
}

/// How deep compact JSON is nested, 0 for a scalar.
pub(super) fn depth(value: &[u8]) -> usize {
    let (mut depth, mut deepest, mut at) = (0_usize, 0, 0);
    while let Some(byte) = value.get(at) {
        match byte {
            b'"' => at += string_end(&value[at..]).unwrap_or(1) - 1,
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    deepest
}

/// Splits the first member off: its name, its text, and what follows the comma.
fn split_member(text: &[u8]) -> Option<(Cow<'_, str>, &[u8], &[u8])> {
    let key = text.get(..string_end(text)?)?;
    let value = text.get(key.len()..)?.strip_prefix(b":")?;
    let end = key.len() + 1 + value_end(value)?;
    let (member, after) = text.split_at_checked(end)?;
    let after = match after.strip_prefix(b",") {
        // A comma announces another member.
        Some(after) => Some(after).filter(|after| !after.is_empty())?,
        None => Some(after).filter(|after| after.is_empty())?,
    };
    let name = if key.contains(&b'\\') {
        Cow::Owned(serde_json::from_slice::<String>(key).ok()?)
    } else {
        Cow::Borrowed(std::str::from_utf8(&key[1..key.len() - 1]).ok()?)
    };
    Some((name, member, after))
}

/// Length of the JSON string that `text` begins with, quotes included.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut bytes = text.iter().enumerate();
    bytes.next().filter(|(_, byte)| **byte == b'"')?;
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some(at + 1),
            b'\\' => {
                bytes.next()?;
            }
            _ => {}
        }
    }
    None
}

/// Length of the JSON value that `text` begins with.
fn value_end(text: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at += string_end(&text[at..])? - 1,
            b'{' | b'[' => depth += 1,
            b',' if depth == 0 => break,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        at += 1;
    }
    (at > 0 && depth == 0).then_some(at)
}

fn put(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    separate(out);
    serde_json::to_writer(&mut *out, name).expect("writing a string to memory cannot fail");
    out.push(b':');
    out.extend_from_slice(value);
}

fn separate(out: &mut Vec<u8>) {
    if out.len() > 1 {
        out.push(b',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn merged(state: &str, sets: &[(&str, &str)]) -> Option<String> {
        let sets: Vec<(&str, Vec<u8>)> = sets
            .iter()
            .map(|(name, value)| (*name, value.as_bytes().to_vec()))
            .collect();
        merge(state.as_bytes(), &sets).map(|bytes| String::from_utf8(bytes).expect("UTF-8"))
    }

    #[test]
    fn members_are_replaced_added_and_kept_in_the_order_of_their_names() {
        let state = r#"{"b":[1,{"x":"},"}],"d":"\"]","é":null}"#;
        assert_eq!(
            merged(state, &[("d", "4"), ("a", "1"), ("c", "{}"), ("z", "true")]).as_deref(),
            Some(r#"{"a":1,"b":[1,{"x":"},"}],"c":{},"d":4,"z":true,"é":null}"#)
        );
        assert_eq!(merged("{}", &[]).as_deref(), Some("{}"));
        assert_eq!(
            merged("{}", &[("a", "1"), ("a", "2")]).as_deref(),
            Some(r#"{"a":2}"#)
        );
        assert_eq!(
            merged(r#"{"a\"b":1}"#, &[("a\"b", "2")]).as_deref(),
            Some(r#"{"a\"b":2}"#)
        );
    }

    #[test]
    fn a_value_other_than_an_object_is_refused() {
        for broken in [
            "",
            "{",
            "}",
            "[]",
            "{a}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            r#"{"a":]}"#,
            r#"{"a\"#,
        ] {
            assert_eq!(merged(broken, &[("b", "1")]), None, "{broken}");
        }
    }

    #[test]
    fn brackets_within_strings_nest_nothing() {
        for (json, expected) in [
            ("1", 0),
            (r#""[{""#, 0),
            ("[]", 1),
            (r#"{"a":[{"[":"\"{"}],"b":[]}"#, 3),
        ] {
            assert_eq!(depth(json.as_bytes()), expected, "{json}");
        }
    }

    proptest! {
        #[test]
        fn merging_equals_setting_members_of_a_map(
            state in proptest::collection::btree_map(".{0,4}", ".{0,6}", 0..6),
            sets in proptest::collection::btree_map(".{0,4}", ".{0,6}", 0..6),
        ) {
            let rendered: Vec<(&str, Vec<u8>)> = sets
                .iter()
                .map(|(name, value)| (name.as_str(), serde_json::to_vec(value).expect("encodes")))
                .collect();
            let mut expected = state.clone();
            expected.extend(sets.clone());
            prop_assert_eq!(
                merge(&serde_json::to_vec(&state).expect("encodes"), &rendered),
                Some(serde_json::to_vec(&expected).expect("encodes"))
            );
        }

        #[test]
        fn no_bytes_make_it_panic(state in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = merge(&state, &[("a", b"1".to_vec())]);
        }
    }
}
