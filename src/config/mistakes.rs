//! All that is wrong with a manifest, in one go, each mistake at its place.
//!
//! The reader stops at its first mistake. So the tree is held against the schema of manifests, which knows the keys and the
//! types of values. What is wrong by it is taken out, and the reader reads the rest; what it points at is taken out in turn, and
//! each round tells one more.

use std::collections::BTreeSet;
use std::ops::Range;

use super::check::CONTRADICTION;
use super::shown::Shown;
use super::sources::Sources;
use super::{Manifest, Refusal, keys, place, yaml_options};
use crate::kernel::definition::diagnostic::{Diagnostic, Severity};
use crate::kernel::definition::findings::Findings;
use crate::kernel::definition::yaml::{Entry, Node, Plain, Scalar, Value};
use crate::kernel::definition::{codes, fields};
use crate::kernel::duration::Millis;
use crate::kernel::expr::nearest;

/// What cannot be read.
pub(super) const SYNTAX: &str = "SR0402";
/// A secret that others may read.
pub(super) const INLINE_SECRET: &str = "SR0414";
/// Most mistakes that the reader is asked for.
const ROUNDS_MAX: usize = 50;
/// What stands in for a key that is missing at the top, so that the rest can be read.
const STAND_INS: [(&str, &str); 3] = [
    ("apiVersion", "saga-runner/v1"),
    ("kind", "Manifest"),
    ("cluster", "unnamed"),
];

/// All mistakes of a manifest, over those that were found before it was read.
pub(super) fn all(
    mut root: Node<'_>,
    mut findings: Findings<'_>,
    text: &str,
    first: &serde_saphyr::Error,
) -> Vec<Diagnostic> {
    let before = findings.len();
    let schema = keys::schema();
    let mut sight = Sight {
        schema,
        findings: &mut findings,
        wrong: Vec::new(),
    };
    sight.look(&root, &(0..0), schema, &mut Vec::new());
    let wrong = outermost(sight.wrong);
    // From behind, so that what is before keeps its index.
    for way in wrong.iter().rev() {
        remove(&mut root, way);
    }
    unread(&mut root, text, &mut findings);
    if findings.len() == before {
        findings.error(SYNTAX, 0..0, sentence(first));
    }
    coded(findings)
}

/// The findings, with the codes of manifests.
pub(super) fn coded(findings: Findings<'_>) -> Vec<Diagnostic> {
    let mut list = findings.into_sorted();
    let own = [CONTRADICTION, INLINE_SECRET];
    for finding in list.iter_mut().filter(|finding| !own.contains(&finding.code)) {
        // Those of the YAML itself have codes of definitions.
        finding.code = SYNTAX;
    }
    list
}

/// What is refused of a manifest, each where the key that it is about stands.
pub(super) fn placed(root: &Node<'_>, sources: &Sources, refusals: Vec<Refusal>) -> Vec<Diagnostic> {
    let text = sources.text();
    let at = |refusal: Refusal| match place::of_refused(root, text, &refusal.key) {
        Some(span) => {
            let mut findings = Findings::new("", text);
            findings.error(refusal.code, span, refusal.message);
            sources.relocated(findings.into_sorted()).remove(0)
        }
        None => Diagnostic {
            code: refusal.code,
            severity: Severity::Error,
            file: sources.file().to_owned(),
            line: 0,
            column: 0,
            span: 0..0,
            message: refusal.message,
            help: None,
        },
    };
    let mut placed: Vec<Diagnostic> = refusals.into_iter().map(at).collect();
    placed.sort_by_key(|finding| (finding.line, finding.column));
    placed
}

/// What the reader says, without the place, which is told beside it.
fn sentence(error: &serde_saphyr::Error) -> String {
    let message = error.without_snippet().to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    match message.split_once(": ") {
        Some((place, rest)) if place.contains("line") => rest.to_owned(),
        _ => message.to_owned(),
    }
}

/// A tree held against the schema.
struct Sight<'s, 'f, 'c> {
    schema: &'s serde_json::Value,
    findings: &'f mut Findings<'c>,
    /// The ways to members and items that are wrong, from the top.
    wrong: Vec<Vec<usize>>,
}

impl<'s> Sight<'s, '_, '_> {
    fn resolved(&self, schema: &'s serde_json::Value) -> (&'s serde_json::Value, Option<&'s str>) {
        let of = schema["allOf"].get(0).unwrap_or(schema);
        match of["$ref"]
            .as_str()
            .and_then(|way| way.strip_prefix("#/definitions/"))
        {
            Some(name) => (&self.schema["definitions"][name], Some(name)),
            None => (schema, None),
        }
    }

    /// `at` is the key of the node.
    fn look(
        &mut self,
        node: &Node<'_>,
        at: &Range<usize>,
        schema: &'s serde_json::Value,
        way: &mut Vec<usize>,
    ) {
        let (schema, name) = self.resolved(schema);
        if let Some(words) = schema["enum"].as_array() {
            return self.word(node, at, words, way);
        }
        if let Some(word) = schema.get("const") {
            return self.word(node, at, std::slice::from_ref(word), way);
        }
        if let Some(either) = schema["anyOf"].as_array() {
            let is_list = |schema: &&serde_json::Value| {
                (schema["type"] == "array") == matches!(node.value, Value::List(_))
            };
            if let Some(schema) = either.iter().find(is_list) {
                self.look(node, at, schema, way);
            }
            return;
        }
        match (schema["type"].as_str(), &node.value) {
            (Some("object"), Value::Map(entries)) => self.object(entries, node, at, schema, way),
            (Some("array"), Value::List(items)) => {
                for (index, item) in items.iter().enumerate() {
                    way.push(index);
                    let place = fields::visible(item, at, self.findings.text());
                    self.look(item, &place, &schema["items"], way);
                    way.pop();
                }
            }
            (Some("object"), _) if name == Some("secret") => {
                let message = "a secret is in the manifest, where others can read it".to_owned();
                let help = "write {env: VARIABLE}, {file: PATH} or {kv: {bucket: BUCKET, key: KEY}}";
                let place = fields::visible(node, at, self.findings.text());
                self.findings
                    .error(INLINE_SECRET, place, message)
                    .help(Some(help.to_owned()));
                self.wrong.push(way.clone());
            }
            (Some("object"), _) => self.refuse(node, at, "a map", way),
            (Some("array"), _) => self.refuse(node, at, "a list", way),
            (Some("integer"), Value::Scalar(scalar)) => self.number(node, scalar, schema, at, way),
            (Some("integer"), _) => self.refuse(node, at, "a whole number", way),
            (Some("boolean"), Value::Scalar(scalar)) if matches!(scalar.plain(), Plain::Bool(_)) => {}
            (Some("boolean"), _) => self.refuse(node, at, "`true` or `false`", way),
            (Some("string"), Value::Scalar(scalar)) => match Millis::parse(&scalar.text) {
                Err(error) if name == Some("duration") && !node.span.is_empty() => {
                    self.findings.error(SYNTAX, node.span.clone(), error.to_string());
                    self.wrong.push(way.clone());
                }
                Ok(_) | Err(_) => {}
            },
            (Some("string"), _) => self.refuse(node, at, "text", way),
            _ => {}
        }
    }

    fn refuse(&mut self, node: &Node<'_>, at: &Range<usize>, what: &str, way: &[usize]) {
        fields::expected(node, at, what, self.findings);
        self.wrong.push(way.to_vec());
    }

    fn object(
        &mut self,
        entries: &[Entry<'_>],
        node: &Node<'_>,
        at: &Range<usize>,
        schema: &'s serde_json::Value,
        way: &mut Vec<usize>,
    ) {
        let known = schema["properties"].as_object();
        for (index, entry) in entries.iter().enumerate() {
            way.push(index);
            let member = known.and_then(|known| known.get(&*entry.key));
            match (member, &schema["additionalProperties"]) {
                (Some(member), _) => self.look(&entry.value, &entry.key_span, member, way),
                (None, free @ serde_json::Value::Object(_)) => {
                    self.look(&entry.value, &entry.key_span, free, way);
                }
                (None, _) => {
                    let names: Vec<&str> = known
                        .into_iter()
                        .flatten()
                        .map(|(name, _)| name.as_str())
                        .collect();
                    let help = match nearest(&entry.key, names.iter().copied()) {
                        Some(near) => format!("did you mean \"{near}\"?"),
                        None => format!("expected one of {}", names.join(", ")),
                    };
                    let message = format!("unknown key \"{}\"", entry.key.escape_debug());
                    self.findings
                        .error(SYNTAX, entry.key_span.clone(), message)
                        .help(Some(help));
                    self.wrong.push(way.clone());
                }
            }
            way.pop();
        }
        let needed = schema["required"].as_array().into_iter().flatten();
        let is_needed = |at: usize| needed.clone().any(|key| key.as_str() == Some(&*entries[at].key));
        let lacks = |wrong: &Vec<usize>| match wrong.split_last() {
            Some((last, before)) => before == way.as_slice() && is_needed(*last),
            None => false,
        };
        // Without a member that it must have nothing can be read of it. What is missing at the top has a stand-in.
        if !way.is_empty() && self.wrong.iter().any(lacks) {
            self.wrong.push(way.clone());
        }
        let near = |key: &str| {
            let strangers = entries
                .iter()
                .filter(|entry| known.is_none_or(|known| !known.contains_key(&*entry.key)));
            nearest(key, strangers.map(|entry| &*entry.key)).is_some()
        };
        for key in needed.filter_map(serde_json::Value::as_str) {
            if entries.iter().any(|entry| entry.key == key) {
                continue;
            }
            // Under a name that is wrong it has been told.
            if !near(key) {
                let place = if way.is_empty() {
                    0..0
                } else {
                    fields::visible(node, at, self.findings.text())
                };
                self.findings
                    .error(SYNTAX, place, format!("the key \"{key}\" is missing"));
            }
            if !way.is_empty() {
                self.wrong.push(way.clone());
            }
        }
    }

    fn word(&mut self, node: &Node<'_>, at: &Range<usize>, words: &[serde_json::Value], way: &[usize]) {
        let named: Vec<&str> = words.iter().filter_map(serde_json::Value::as_str).collect();
        let Value::Scalar(scalar) = &node.value else {
            self.refuse(node, at, &named.join(" or "), way);
            return;
        };
        if named.contains(&&*scalar.text) || named.is_empty() {
            return;
        }
        let what = self
            .findings
            .text()
            .get(at.clone())
            .unwrap_or_default()
            .trim_matches(['"', '\'']);
        let message = format!(
            "{what} is \"{}\", expected {}",
            scalar.text.escape_debug(),
            named.join(" or ")
        );
        let place = fields::visible(node, at, self.findings.text());
        self.findings.error(SYNTAX, place, message);
        self.wrong.push(way.to_vec());
    }

    fn number(
        &mut self,
        node: &Node<'_>,
        scalar: &Scalar<'_>,
        schema: &serde_json::Value,
        at: &Range<usize>,
        way: &[usize],
    ) {
        let Plain::Int(number) = scalar.plain() else {
            self.refuse(node, at, "a whole number", way);
            return;
        };
        let (least, most) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
        let bounds = match (least, most) {
            (Some(least), _) if number < least => format!("at least {least}"),
            (_, Some(most)) if number > most => format!("at most {most}"),
            _ => return,
        };
        let place = fields::visible(node, at, self.findings.text());
        let message = format!("expected {bounds}, found {number}");
        self.findings.error(CONTRADICTION, place, message);
        self.wrong.push(way.to_vec());
    }
}

/// In their order, without what is within another one.
fn outermost(mut ways: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    ways.sort();
    ways.dedup_by(|way, before| way.starts_with(before));
    ways
}

/// The key of the member at the end of `way`; `None` for an item.
fn key_at<'n>(root: &'n Node<'_>, way: &[usize]) -> Option<&'n str> {
    let (index, rest) = way.split_first()?;
    let (inner, key) = match &root.value {
        Value::Map(entries) => entries
            .get(*index)
            .map(|entry| (&entry.value, Some(&*entry.key)))?,
        Value::List(items) => (items.get(*index)?, None),
        Value::Scalar(_) => return None,
    };
    if rest.is_empty() { key } else { key_at(inner, rest) }
}

/// Tells what the reader does not take of a tree that the schema has nothing against.
fn unread(root: &mut Node<'_>, text: &str, findings: &mut Findings<'_>) {
    if findings.has(codes::SYNTAX) || findings.has(codes::DUPLICATE_KEY) || findings.has(codes::LIMIT) {
        return;
    }
    // Taken out for what has been told, so that it is missing says nothing.
    let mut gone: BTreeSet<String> = BTreeSet::new();
    for _round in 0..ROUNDS_MAX {
        let shown = Shown::with(root, text, &STAND_INS);
        let Err(error) = serde_saphyr::from_str_with_options::<Manifest>(&shown.text, yaml_options()) else {
            return;
        };
        let Some(place) = shown.place(&error) else {
            return;
        };
        let message = sentence(&error);
        if !gone.iter().any(|key| message == format!("missing field `{key}`")) {
            findings.error(SYNTAX, place.span.clone(), message);
        }
        if place.way.is_empty() {
            return;
        }
        gone.extend(key_at(root, &place.way).map(str::to_owned));
        remove(root, &place.way);
    }
}

/// Takes the member or the item at the end of `way` out, and what is empty without it, about which nothing could be said.
fn remove(root: &mut Node<'_>, way: &[usize]) {
    let Some((index, rest)) = way.split_first() else {
        return;
    };
    let inner = match &mut root.value {
        Value::Map(entries) => entries.get_mut(*index).map(|entry| &mut entry.value),
        Value::List(items) => items.get_mut(*index),
        Value::Scalar(_) => None,
    };
    let Some(inner) = inner else { return };
    remove(inner, rest);
    let is_empty = match &inner.value {
        Value::Map(entries) => entries.is_empty(),
        Value::List(items) => items.is_empty(),
        Value::Scalar(_) => false,
    };
    match &mut root.value {
        Value::Map(entries) if rest.is_empty() || is_empty => drop(entries.remove(*index)),
        Value::List(items) if rest.is_empty() || is_empty => drop(items.remove(*index)),
        Value::Map(_) | Value::List(_) | Value::Scalar(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Manifest, Overrides};
    use std::path::Path;

    fn told(text: &str) -> Vec<String> {
        let error = Manifest::parse(text, Path::new("m.yaml"), &Overrides::default()).expect_err("wrong");
        error.to_string().lines().map(str::to_owned).collect()
    }

    const HEAD: &str = "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: test\n";

    fn of(body: &str) -> Vec<String> {
        told(&format!("{HEAD}{body}"))
    }

    #[test]
    fn every_mistake_is_told_once_and_at_its_place() {
        let body = "shrads: 4\nshards: many\ndrain_timeout: fast\nhttp: {listen: nowhere, extra: 1}\nworker:\n  consumers:\n    by: category\nlimits: {hops: -1}\nbroker:\n  kind: rabbit\nstalled_after: [1]\n";
        assert_eq!(
            of(body),
            [
                "m.yaml:4:1: unknown key \"shrads\"; did you mean \"shards\"? [SR0402]",
                "m.yaml:5:9: expected a whole number, found text [SR0402]",
                "m.yaml:6:16: \"fast\" is not a duration; write it like 500ms, 30s, 15m, 1h 30m or 7d [SR0402]",
                "m.yaml:7:16: invalid socket address syntax [SR0402]",
                "m.yaml:7:25: unknown key \"extra\"; expected one of accept_events, admin_listen, answer_bytes_max, answer_timeout, authentication, backup_max, connections_max, encrypted_in_front, forward_bytes_max, forward_timeout, forwards_max, header_timeout, hosts, jwt, listen, page_bytes_max, reads_max, request_timeout, streams_max, tls, tokens_file, wait_max, waits_max [SR0402]",
                "m.yaml:10:5: `by: category` needs `categories` [SR0402]",
                "m.yaml:11:16: expected at least 0, found -1 [SR0403]",
                "m.yaml:13:9: kind is \"rabbit\", expected embedded or nats [SR0402]",
                "m.yaml:14:16: expected text, found a list [SR0402]",
            ]
        );
    }

    #[test]
    fn mistakes_are_told_behind_a_key_that_is_missing() {
        assert_eq!(
            told("kind: Manifest\nclutser: a\nlog: {level: 5, formt: json}\ntenants: [Acme]\n"),
            [
                "m.yaml:1:1: the key \"apiVersion\" is missing [SR0402]",
                "m.yaml:2:1: unknown key \"clutser\"; did you mean \"cluster\"? [SR0402]",
                "m.yaml:3:17: unknown key \"formt\"; did you mean \"format\"? [SR0402]",
                "m.yaml:4:11: tenant may hold only a-z, 0-9, '_' and '-', beginning with a letter or digit, found 'A' [SR0402]",
            ]
        );
        let within = of("secrets: {pay: {kv: {bucket: b}}}\n");
        assert_eq!(within, ["m.yaml:4:21: the key \"key\" is missing [SR0402]"]);
    }

    #[test]
    fn a_wrong_key_that_must_be_there_is_not_told_to_be_missing() {
        assert_eq!(
            told(
                "apiVersion: sagas/v1\nkind: Saga\ncluster: [a]\nlimits: {hops: -1}\nhttp: {listen: nowhere}\n"
            ),
            [
                "m.yaml:1:13: apiVersion is \"sagas/v1\", expected saga-runner/v1 [SR0402]",
                "m.yaml:2:7: kind is \"Saga\", expected Manifest [SR0402]",
                "m.yaml:3:10: expected text, found a list [SR0402]",
                "m.yaml:4:16: expected at least 0, found -1 [SR0403]",
                "m.yaml:5:16: invalid socket address syntax [SR0402]",
            ]
        );
        let within = of("secrets: {pay: {kv: {bucket: b, key: [k]}}}\nhttp: {listen: nowhere}\n");
        assert_eq!(
            within,
            [
                "m.yaml:4:38: expected text, found a list [SR0402]",
                "m.yaml:5:16: invalid socket address syntax [SR0402]",
            ]
        );
    }

    #[test]
    fn each_item_of_a_list_is_told() {
        let lines = of("tenants: [Acme, fine, \"B C\"]\n");
        let places: Vec<&str> = lines
            .iter()
            .map(|line| line.split(": ").next().unwrap_or_default())
            .collect();
        assert_eq!(places, ["m.yaml:4:11", "m.yaml:4:23"]);
    }

    #[test]
    fn a_text_that_is_no_yaml_is_one_mistake() {
        assert_eq!(of("http: {\n").len(), 1);
    }

    #[test]
    fn all_contradictions_are_told() {
        let lines =
            of("shards: 8\nmode: saga\nlimits: {hops: 1000, record_bytes: 0}\nscheduled_tenants: [a]\n");
        let told = lines.join("\n");
        assert_eq!(lines.len(), 4, "{told}");
        for part in [
            "m.yaml:5:7: mode saga",
            "6:16: limits.hops",
            "6:36: limits.record_bytes",
            "7:20: scheduled_tenants",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
