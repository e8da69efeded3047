//! Where in a manifest stands what its check refuses.

use std::ops::Range;

use crate::kernel::definition::fields;
use crate::kernel::definition::yaml::{Node, Value};

/// The value that a refusal begins with the key of, e.g. `relay.gate_horizon`: of the deepest part of the key that the text has.
/// `None` where it has none of it, because the value is a default or comes from elsewhere.
pub(super) fn of_refused(root: &Node<'_>, text: &str, refusal: &str) -> Option<Range<usize>> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let key = refusal.split(|c: char| !is_part(c)).next()?;
    let mut found = root;
    let mut depth = 0;
    for part in key.split('.') {
        let Some(value) = member(found, part) else { break };
        (found, depth) = (value, depth + 1);
    }
    if depth == 0 {
        return None;
    }
    Some(fields::visible(found, &found.span, text))
}

fn member<'n, 't>(node: &'n Node<'t>, key: &str) -> Option<&'n Node<'t>> {
    match &node.value {
        Value::Map(entries) => entries
            .iter()
            .find(|entry| entry.key == key)
            .map(|entry| &entry.value),
        Value::List(_) | Value::Scalar(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::definition::findings::Findings;
    use crate::kernel::definition::yaml;

    #[test]
    fn a_refusal_is_placed_where_the_text_has_its_key_or_a_part_of_it() {
        let text = "cluster: a\nrelay:\n  retry_max: 1s\n  gate_horizon: 0ms\nlimits: {hops: 0}\n";
        for (refusal, expected) in [
            ("relay.gate_horizon must be longer", Some("0ms")),
            ("relay.trim_interval must be longer", Some("retry_max: 1s")),
            ("limits.hops must be between", Some("0")),
            ("cluster: may hold only", Some("a")),
            ("shards must be between", None),
            ("an unlucky sentence", None),
        ] {
            let root = yaml::parse(text, &mut Findings::new("", text)).expect("YAML");
            let found = of_refused(&root, text, refusal);
            assert_eq!(found.map(|span| &text[span]), expected, "{refusal}");
        }
        let list = yaml::parse("[1, 2]", &mut Findings::new("", "")).expect("YAML");
        assert_eq!(of_refused(&list, "[1, 2]", "relay.gate_horizon"), None);
    }
}
