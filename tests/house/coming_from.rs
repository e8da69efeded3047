//! The examples on the pages for those who come from elsewhere load without a finding.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use saga_runner::kernel::definition::{SourceFile, load};
use serde_json::Value;

use crate::worked::place;

/// No schema to check expressions against.
const UNTYPED: &str = "SR0179";

const HEAD: &str = r#"apiVersion: sagas/v1
kind: Saga
name: example
start: Order.Placed
key: {"*": event.data.order_id}
state: {init: {total: 0, status: new, customer: "", items: []}}
"#;

/// The saga that recipes start.
const CHILD: &str = r#"apiVersion: sagas/v1
kind: Saga
name: payment
input: {type: object, properties: {amount: {type: integer}}}
steps:
  tell: {effect: message-send, with: {to: bank, text: "${key}"}}
"#;

fn files(folder: &str, keep: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder of the repository")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.file_name().is_some_and(|name| keep(&name.to_string_lossy())))
        .collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("readable")
}

/// The keys of a saga file, and the words that stand for a value.
fn words(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            if let Some(properties) = members.get("properties").and_then(Value::as_object) {
                found.extend(properties.keys().cloned());
            }
            let values = members.get("enum").and_then(Value::as_array);
            found.extend(
                values
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(str::to_owned),
            );
            members.values().for_each(|value| words(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| words(value, found)),
        _ => {}
    }
}

#[test]
fn every_code_word_of_a_migration_table_is_a_key_or_word_of_the_language() {
    let schema =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/language/src/definition/editor/saga.json");
    let schema: Value = serde_json::from_str(&read(&schema)).expect("the schema for editors");
    // An error class.
    let mut known = BTreeSet::from(["too_many_failed".to_owned()]);
    words(&schema, &mut known);
    let is_word = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let mut checked = 0;
    for page in files("docs", |name| name.starts_with("from-")) {
        let text = read(&page);
        let rows = text.lines().filter(|line| line.starts_with("| "));
        let here = rows.filter_map(|row| row.split_once(" | ").map(|(_, here)| here));
        for code in here.flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
            let key = code.split_once(": ").map_or(code, |(key, _)| key);
            if is_word(key) {
                assert!(known.contains(key), "{}: there is no {key}", page.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 80, "{checked}");
}

#[test]
fn every_example_loads_as_it_stands_below_the_usual_head() {
    let effects: Vec<SourceFile> = files("effects", |name| {
        Path::new(name).extension() == Some("yaml".as_ref())
    })
    .iter()
    .map(|path| SourceFile {
        path: path.display().to_string(),
        text: read(path).into(),
    })
    .collect();
    let pages = files("docs", |name| name.starts_with("from-"));
    assert_eq!(pages.len(), 4);
    let mut faults = Vec::new();
    for page in pages {
        let text = read(&page);
        let examples: Vec<&str> = text
            .split("```yaml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .collect();
        // Whole files are played elsewhere, with their cases.
        let recipes = examples.iter().filter(|example| place(example).is_none());
        assert!(recipes.clone().count() > 0, "{} has no recipe", page.display());
        for example in recipes {
            let saga = SourceFile {
                path: page.display().to_string(),
                text: format!("{HEAD}{example}").into(),
            };
            let child = SourceFile {
                path: "payment.yaml".to_owned(),
                text: CHILD.into(),
            };
            let loaded = load(&[saga, child], &effects);
            // An example is not whole file and has no schemas, which is worth a warning elsewhere.
            let wrong = loaded.diagnostics.iter().filter(|found| found.code != UNTYPED);
            faults.extend(wrong.map(ToString::to_string));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
