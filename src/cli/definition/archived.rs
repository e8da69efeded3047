//! The text of a version as a cluster keeps it, for people: its file, and what else its hash covers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::kernel::definition::archive::Parts;
use crate::kernel::json::Json;

/// A version: its file, and what else its hash covers.
#[derive(Debug, Default, PartialEq)]
pub struct Version {
    /// The file of the saga, as it was loaded.
    pub source: String,
    /// By name, e.g. `effect payments-charge`.
    pub besides: BTreeMap<String, Value>,
}

impl Version {
    /// Takes a text apart; one that cannot be is shown as it is.
    pub fn of(text: &str) -> Self {
        let Ok(parts) = Parts::of(text) else {
            return Self {
                source: text.to_owned(),
                besides: BTreeMap::new(),
            };
        };
        let kinds = [
            ("effect", parts.effects),
            ("schema", parts.schemas),
            ("program", parts.program),
        ];
        let besides = kinds.into_iter().flat_map(|(kind, entries)| {
            let entries = entries.into_iter();
            entries.map(move |(name, entry)| (format!("{kind} {name}"), value(entry)))
        });
        Self {
            source: parts.source.into_owned(),
            besides: besides.collect(),
        }
    }

    /// What comes behind the file, as comments of YAML; nothing where the file is all.
    pub fn comments(&self) -> String {
        let mut out = String::new();
        for (name, entry) in &self.besides {
            let text = match entry {
                // A program, which nobody reads.
                Value::String(text) if name.starts_with("program ") => {
                    format!("{} bytes in base64", text.len())
                }
                Value::String(text) => text.clone(),
                other => format!("{other:#}"),
            };
            let _infallible = writeln!(out, "\n# {name}");
            for line in text.lines() {
                let _infallible = writeln!(out, "#   {line}");
            }
        }
        out
    }
}

/// The same as it is printed.
fn value(json: Json<'_>) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(answer) => Value::Bool(answer),
        Json::Int(number) => Value::from(number),
        Json::Double(number) => Value::from(number),
        Json::Str(text) => Value::String(text.into_owned()),
        Json::List(items) => items.into_iter().map(value).collect(),
        Json::Map(members) => members
            .into_iter()
            .map(|(name, member)| (name.into_owned(), value(member)))
            .collect(),
    }
}

/// What differs besides the files, a line each.
pub fn differences(from: &Version, to: &Version) -> Vec<String> {
    let mut names: Vec<&String> = from.besides.keys().chain(to.besides.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let line = |name: &String| match (from.besides.get(name), to.besides.get(name)) {
        (Some(before), Some(after)) if before == after => None,
        (Some(before), Some(after)) => Some(format!("{name} differs{}", parts(before, after))),
        (Some(_), None) => Some(format!("{name} is not needed any more")),
        (None, _) => Some(format!("{name} is new")),
    };
    names.into_iter().filter_map(line).collect()
}

/// The parts of an effect that differ, as the end of a sentence.
fn parts(before: &Value, after: &Value) -> String {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return String::new();
    };
    let mut keys: Vec<&str> = before.keys().chain(after.keys()).map(String::as_str).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|key| before.get(*key) != after.get(*key));
    format!(" in {}", keys.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(output: &str) -> Version {
        Version::of(&format!(
            r#"{{"archive":1,"effects":{{"echo":{{"input":"sha256:1","output":{output}}}}},"program":{{"p.wasm":"AAAA"}},"schemas":{{"s.json":"{{}}"}},"source":"name: shop\n"}}"#
        ))
    }

    #[test]
    fn a_text_is_its_file_or_the_file_with_what_is_besides() {
        let alone = Version::of("name: shop\n");
        assert_eq!((alone.source.as_str(), alone.besides.len()), ("name: shop\n", 0));
        assert_eq!(alone.comments(), "");
        let broken = "{\"archive\":1,";
        assert_eq!(Version::of(broken).source, broken);
        let version = version("null");
        assert_eq!(version.source, "name: shop\n");
        let names: Vec<&str> = version.besides.keys().map(String::as_str).collect();
        assert_eq!(names, ["effect echo", "program p.wasm", "schema s.json"]);
        let comments = version.comments();
        assert!(comments.contains("# effect echo\n#   {\n"), "{comments}");
        assert!(
            comments.contains("# program p.wasm\n#   4 bytes in base64\n"),
            "{comments}"
        );
        let is_comment = |line: &str| line.is_empty() || line.starts_with('#');
        assert!(comments.lines().all(is_comment), "{comments}");
    }

    #[test]
    fn differences_besides_the_files_are_named() {
        let (one, other) = (version("null"), version("[]"));
        assert_eq!(differences(&one, &version("null")), [""; 0]);
        assert_eq!(differences(&one, &other), ["effect echo differs in output"]);
        let alone = Version::of("name: shop\n");
        assert_eq!(
            differences(&alone, &one),
            [
                "effect echo is new",
                "program p.wasm is new",
                "schema s.json is new"
            ]
        );
        assert_eq!(differences(&one, &alone)[0], "effect echo is not needed any more");
    }
}
