//! The JSON Schemas for editors say what the loader says: they are those of the tables by which it reads, with the same keys
//! everywhere, and no good file is refused.
//!
//! A key is found missing on either side by asking both. From the root down, an unknown key is put into
//! every map that the schema describes; the loader answers with the keys that it knows there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::schemas::{compile_text, json_of_text};
use super::super::{editor, load};
use super::{file, folder};
use crate::definition::codes::UNKNOWN_KEY;

const PROBE: &str = "zzzzzzzz";
/// Deepest map that is looked into; what nests in itself is looked into twice.
const DEPTH_MAX: usize = 16;

/// One way down into a file.
#[derive(Debug, Clone)]
enum Down {
    Key(String),
    Item,
}

struct Walk<'s> {
    schema: &'s Value,
    load: fn(&str) -> Vec<super::Diagnostic>,
    faults: BTreeSet<String>,
    maps: usize,
}

/// Keys of one map, or `None` where the schema leaves it open.
type Keys = Option<BTreeMap<String, Vec<Value>>>;

impl Walk<'_> {
    /// What `schemas`, all of which describe this place, say about maps.
    fn at(&mut self, path: &[Down], schemas: &[Value], trail: &[String]) {
        if path.len() > DEPTH_MAX {
            return;
        }
        let mut alternatives = Vec::new();
        let mut trail = trail.to_vec();
        for schema in schemas {
            self.flatten(schema, &mut alternatives, &mut trail);
        }
        // Groups nest in themselves: once around shows all there is.
        let repeated = trail
            .iter()
            .any(|name| trail.iter().filter(|other| *other == name).count() > 2);
        if repeated {
            return;
        }
        let mut below: BTreeMap<String, (Down, Vec<Value>)> = BTreeMap::new();
        let mut keys: Keys = Some(BTreeMap::new());
        for schema in &alternatives {
            if let Some(items) = schema.get("items") {
                let (_, list) = below.entry("[]".to_owned()).or_insert((Down::Item, Vec::new()));
                list.push(items.clone());
            }
            if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
                assert_eq!(schema["additionalProperties"], json!(false), "{path:?} is open");
                for (name, property) in properties {
                    if let Some(keys) = &mut keys {
                        keys.entry(name.clone()).or_default().push(property.clone());
                    }
                }
            }
            let mut free = |sample: &str, schema: &Value| {
                let down = Down::Key(sample.to_owned());
                let (_, list) = below.entry(sample.to_owned()).or_insert((down, Vec::new()));
                list.push(schema.clone());
            };
            for (pattern, member) in members(schema, "patternProperties") {
                let pattern = regex::Regex::new(pattern).expect("a pattern");
                let samples = ["timer.t", "signal.s", "result.s", "error.s", "A.B", "x"];
                let sample = samples.iter().find(|sample| pattern.is_match(sample));
                free(sample.expect("a sample of the pattern"), member);
            }
            match schema.get("additionalProperties") {
                Some(Value::Object(member)) if schema.get("properties").is_none() => {
                    let events = matches!(path.last(), Some(Down::Key(key)) if ["handlers", "events", "after_end"].contains(&key.as_str()));
                    free(if events { "A.B" } else { "x" }, &Value::Object(member.clone()));
                }
                _ => {}
            }
            if open(schema) {
                keys = None;
            }
        }
        let has_free_keys = below.values().any(|(down, _)| matches!(down, Down::Key(_)));
        if !has_free_keys && let Some(keys) = &keys {
            self.compare(path, &keys.keys().cloned().collect());
        }
        for (name, schemas) in keys.unwrap_or_default() {
            self.at(&extended(path, Down::Key(name)), &schemas, &trail);
        }
        for (down, schemas) in below.into_values() {
            self.at(&extended(path, down), &schemas, &trail);
        }
    }

    /// The schemas without references and alternatives.
    fn flatten(&self, schema: &Value, into: &mut Vec<Value>, trail: &mut Vec<String>) {
        if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
            let name = name.strip_prefix("#/definitions/").expect("a local reference");
            trail.push(name.to_owned());
            return self.flatten(&self.schema["definitions"][name], into, trail);
        }
        let mut plain = true;
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let alternatives = schema
                .get(keyword)
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            // Which keys must be there is no matter here.
            let is_place = |schema: &&Value| {
                schema
                    .as_object()
                    .is_none_or(|rules| !rules.contains_key("required") || rules.len() > 1)
            };
            for schema in alternatives.filter(is_place) {
                plain = false;
                self.flatten(schema, into, trail);
            }
        }
        if plain {
            into.push(schema.clone());
        }
    }

    fn compare(&mut self, path: &[Down], told: &BTreeSet<String>) {
        self.maps += usize::from(!told.is_empty());
        let text = document(path).to_string();
        let findings = (self.load)(&text);
        let probe = findings
            .iter()
            .find(|finding| finding.code == UNKNOWN_KEY && finding.message.contains(PROBE));
        let known: BTreeSet<String> = match probe.and_then(|probe| probe.help.as_deref()) {
            Some(help) => match help.split_once(" may have ") {
                Some((_, names)) => names.split(", ").map(str::to_owned).collect(),
                None => BTreeSet::new(),
            },
            None => BTreeSet::new(),
        };
        for key in known.difference(told) {
            self.faults
                .insert(format!("{path:?}: the loader takes {key:?}, the schema does not"));
        }
        for key in told.difference(&known) {
            self.faults.insert(format!(
                "{path:?}: the schema has {key:?}, the loader does not take it"
            ));
        }
    }
}

/// Whether any key may stand here, or any value.
fn open(schema: &Value) -> bool {
    let anything = match schema {
        Value::Bool(anything) => *anything,
        Value::Object(rules) => ["type", "enum", "const", "properties"]
            .iter()
            .all(|rule| !rules.contains_key(*rule)),
        _ => false,
    };
    let types = |name: &str| match &schema["type"] {
        Value::String(only) => only == name,
        Value::Array(types) => types.iter().any(|one| one == name),
        _ => false,
    };
    let bare = schema.get("properties").is_none()
        && schema.get("patternProperties").is_none()
        && !schema["additionalProperties"].is_object();
    anything
        || schema["additionalProperties"] == json!(true)
        || (types("object") && bare && schema["additionalProperties"] != json!(false))
}

fn members<'s>(schema: &'s Value, keyword: &str) -> impl Iterator<Item = (&'s String, &'s Value)> {
    schema
        .get(keyword)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

fn extended(path: &[Down], down: Down) -> Vec<Down> {
    let mut path = path.to_vec();
    path.push(down);
    path
}

/// A file with the probe at `path`.
fn document(path: &[Down]) -> Value {
    let probe = json!({PROBE: 1});
    path.iter().rev().fold(probe, |below, down| match down {
        Down::Key(key) => Value::Object(Map::from_iter([(key.clone(), below)])),
        Down::Item => json!([below]),
    })
}

fn assert_same_keys(schema: &str, load: fn(&str) -> Vec<super::Diagnostic>, maps: usize) {
    let schema: Value = serde_json::from_str(schema).expect("JSON");
    let mut walk = Walk {
        schema: &schema,
        load,
        faults: BTreeSet::new(),
        maps: 0,
    };
    walk.at(&[], std::slice::from_ref(&schema), &[]);
    let faults: Vec<String> = walk.faults.into_iter().collect();
    assert!(
        faults.is_empty(),
        "what a shape of crates/language/src/definition/grammar/ says stands elsewhere than the loader reads it:\n{}",
        faults.join("\n")
    );
    assert!(walk.maps >= maps, "only {} maps were compared", walk.maps);
}

#[test]
fn the_schema_of_sagas_has_the_keys_that_the_loader_takes_and_no_other() {
    assert_same_keys(
        editor::SAGA,
        |text| load(&[file("probe.yaml", text)], &[]).diagnostics,
        30,
    );
}

#[test]
fn the_schema_of_effects_has_the_keys_that_the_loader_takes_and_no_other() {
    assert_same_keys(
        editor::EFFECT,
        |text| load(&[], &[file("probe.yaml", text)]).diagnostics,
        6,
    );
}

/// Set to write the schemas instead of comparing them.
const WRITE: &str = "SAGA_RUNNER_WRITE_SCHEMAS";

#[test]
fn the_committed_schemas_are_those_of_the_tables() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/definition/editor");
    for (name, committed, generated) in [
        ("saga.json", editor::SAGA, editor::of_sagas()),
        ("effect.json", editor::EFFECT, editor::of_effects()),
    ] {
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(folder.join(name), &generated).expect("written");
        } else {
            assert!(
                committed == generated,
                "{name} is not what the tables say; make schemas writes it"
            );
        }
    }
}

/// What the schema says about a file.
fn complaint(schema: &str, path: &str, text: &str) -> Option<String> {
    let schema = compile_text("schema", &schema.into()).expect("a schema");
    let violation = schema.check(&json_of_text(path, text).expect("YAML")).err()?;
    Some(format!("{path}: {violation}"))
}

#[test]
fn every_shipped_file_and_every_fix_of_an_error_page_validates() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut complaints = Vec::new();
    let mut files: Vec<(String, String)> = ["sagas", "effects"]
        .into_iter()
        .flat_map(folder)
        .map(|file| (file.path, file.text.to_string()))
        .collect();
    for entry in std::fs::read_dir(root.join("docs/errors")).expect("the folder is there") {
        let path = entry.expect("readable").path();
        let page = std::fs::read_to_string(&path).expect("readable");
        let cure = page
            .split("```yaml\n")
            .nth(2)
            .and_then(|rest| rest.split("```").next());
        let Some(cure) = cure.filter(|_| page.starts_with("# SR01")) else {
            continue;
        };
        let head = match (
            cure.contains("apiVersion:"),
            ["http:", "grpc:", "smtp:", "sql:", "nats:", "transform:"]
                .iter()
                .any(|key| cure.contains(key)),
        ) {
            (true, _) => "",
            (false, true) => "apiVersion: sagas/v1\nkind: Effect\nname: probe\n",
            (false, false) => {
                "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: A.B\nkey: {\"*\": event.id}\n"
            }
        };
        files.push((path.display().to_string(), format!("{head}{cure}")));
    }
    assert!(files.len() > 20, "files are found");
    for (path, text) in files {
        let schema = if text.contains("kind: Effect") {
            editor::EFFECT
        } else {
            editor::SAGA
        };
        complaints.extend(complaint(schema, &path, &text));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn the_schemas_refuse_what_the_loader_refuses() {
    let head = "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: A.B\nkey: {\"*\": event.id}\n";
    for (body, expected) in [
        (
            "steps: {a: {efect: x}}",
            "steps.a.efect: is not a member that is allowed",
        ),
        ("steps: {a: {needs: 1}}", "steps.a.needs: expected"),
        ("machine: {initial: a}", "machine: lacks the member \"states\""),
        (
            "handlers: {A.B: {emit: [{publish: {}}]}}",
            "emit[0].publish: lacks the member \"type\"",
        ),
    ] {
        let said = complaint(editor::SAGA, "probe.yaml", &format!("{head}{body}")).expect("refused");
        assert!(said.contains(expected), "{body}: {said}");
    }
}
