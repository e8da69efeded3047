//! The examples of the documents load as they stand, beside the shipped effects, as `saga-runner validate` loads them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use saga_runner::app::definitions::{self, Folders};
use saga_runner::kernel::definition::Loaded;

pub fn document(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(path).expect("a document")
}

pub fn yaml_blocks(text: &str) -> Vec<String> {
    text.split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next().map(str::to_owned))
        .collect()
}

/// The section about types, whose examples are whole files.
fn types() -> String {
    let text = document("docs/language.md");
    let (_, rest) = text.split_once("\n## Types\n").expect("a section about types");
    let (section, _) = rest.split_once("\n## ").expect("a section behind it");
    section.to_owned()
}

pub fn shipped_effects() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("effects");
    fs::read_dir(folder)
        .expect("shipped effects")
        .map(|entry| entry.expect("readable").path())
        .collect()
}

/// Loads a project of these files, by the way of the command line: from files, with all that they name, and beside
/// effects whose schemas are known.
fn load_project(sagas: &[(&str, &str)], effects: &[(&str, &str)]) -> Loaded {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |path: &str| {
        let place = folder.path().join(path);
        fs::create_dir_all(place.parent().expect("it is in a folder")).expect("a folder");
        place
    };
    for (kind, files) in [("sagas", sagas), ("effects", effects)] {
        for (name, text) in files {
            fs::write(place(&format!("{kind}/{name}")), text).expect("written");
        }
    }
    // The program of the examples, if they name one.
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/programs/sagas/bin/parcels.wasm");
    fs::copy(module, place("sagas/bin/parcels.wasm")).expect("the committed module");
    // The descriptors, likewise.
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proto");
    let descriptors = protox::compile(["stock.proto"], [proto]).expect("the committed file compiles");
    fs::write(
        place("effects/stock.binpb"),
        prost::Message::encode_to_vec(&descriptors),
    )
    .expect("written");
    for path in shipped_effects() {
        let name = path.file_name().expect("a file").to_string_lossy();
        let text = fs::read_to_string(&path).expect("readable");
        let is_replaced = |(_, own): &(&str, &str)| name_of(own) == name_of(&text);
        if !effects.iter().any(is_replaced) {
            fs::write(place(&format!("effects/shipped/{name}")), text).expect("written");
        }
    }
    let files = definitions::read(&Folders::Mixed(folder.path().to_owned()));
    files.expect("files that can be read").load()
}

fn name_of(text: &str) -> Option<&str> {
    text.lines().find(|line| line.starts_with("name: "))
}

fn assert_clean(loaded: &Loaded) {
    let findings: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn the_language_reference_adds_up_to_sagas_that_load() {
    // An example that has steps and stands below a heading of the fourth order is a saga of its own.
    let (own, blocks): (Vec<String>, Vec<String>) =
        yaml_blocks(&document("docs/language.md").replace(&types(), ""))
            .into_iter()
            .partition(|block| is_variant(block));
    // What expressions may say stands in some handler.
    let blocks: Vec<String> = blocks
        .into_iter()
        .filter(|block| !block.starts_with("set:"))
        .collect();
    let [head, handlers, steps, retry, errors, timers, machine, end, effect] = blocks.as_slice() else {
        panic!(
            "docs/language.md has {} examples; tell this test what they are",
            blocks.len()
        );
    };
    let steps_saga = [head, handlers, steps, retry, errors, timers, end]
        .map(String::as_str)
        .concat();
    let machine_saga = format!(
        "apiVersion: sagas/v1\nkind: Saga\nname: consolidation\nstart: Line.Ready\n\
         key: {{\"*\": event.data.warehouse}}\nstate: {{init: {{grams: 0}}}}\n{machine}"
    );
    let sagas = [
        ("steps.yaml", steps_saga.as_str()),
        ("machine.yaml", &machine_saga),
    ];
    assert_clean(&load_project(&sagas, &[]));
    assert_clean(&load_project(&[], &[("effect.yaml", effect)]));
    for example in own {
        assert_clean(&load_own(&below(head, &example)));
    }
}

/// An example below the usual head, which leaves out what the example says itself.
fn below(head: &str, example: &str) -> String {
    let says = |key: &str| example.lines().any(|line| line.starts_with(key));
    if says("apiVersion:") {
        return example.to_owned();
    }
    let kept = head
        .lines()
        .filter(|line| !(line.starts_with("start:") && says("start:")));
    kept.chain(example.lines())
        .fold(String::new(), |text, line| text + line + "\n")
}

/// Loads a saga beside another one that it may start.
fn load_own(text: &str) -> Loaded {
    let child = r#"apiVersion: sagas/v1
kind: Saga
name: payment
input: {type: object}
handlers: {signal.hurry: {set: {hurried: true}}}
steps:
  charge: {effect: message-send, with: {to: bank, text: "${key}"}}
  tell: {needs: [charge], publish: {type: receipt.issued, payload: {order_id: "${key}", cents: 1}}}
  paid: {needs: [tell], wait: {signal: paid, timeout: 1h}}
"#;
    load_project(&[("own.yaml", text), ("payment.yaml", child)], &[])
}

/// Every name of a key in a JSON Schema.
fn keys(schema: &serde_json::Value, found: &mut BTreeSet<String>) {
    if let Some(properties) = schema.get("properties").and_then(|value| value.as_object()) {
        found.extend(properties.keys().cloned());
    }
    match schema {
        serde_json::Value::Object(members) => members.values().for_each(|value| keys(value, found)),
        serde_json::Value::Array(items) => items.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn every_key_of_a_saga_stands_in_a_table_of_the_reference() {
    let schema = document("crates/language/src/definition/editor/saga.json");
    let schema: serde_json::Value = serde_json::from_str(&schema).expect("the schema for editors");
    let mut known = BTreeSet::new();
    keys(&schema, &mut known);
    assert!(known.len() > 100, "{known:?}");
    let page = document("docs/language.md");
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let code = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let told: BTreeSet<&str> = code
        .flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .collect();
    let missing: Vec<&String> = known.iter().filter(|key| !told.contains(key.as_str())).collect();
    assert!(missing.is_empty(), "docs/language.md has no row for {missing:?}");
}

#[test]
fn an_example_that_gives_an_effect_what_it_does_not_take_is_found() {
    let page = document("docs/language.md");
    let example = yaml_blocks(&page)
        .into_iter()
        .find(|block| block.contains("with: {to: legal, text:"))
        .expect("an example that sends a message");
    let head = yaml_blocks(&page).swap_remove(0);
    assert_clean(&load_own(&below(&head, &example)));
    let wrong = example.replace("{to: legal, text:", "{to: legal, subject: Contract, text:");
    let loaded = load_own(&below(&head, &wrong));
    let codes: Vec<&str> = loaded.diagnostics.iter().map(|found| found.code).collect();
    assert_eq!(codes, ["SR0178"]);
}

#[test]
fn the_examples_of_programs_are_what_the_runner_takes() {
    let page = document("docs/programs.md");
    let head = "apiVersion: sagas/v1\nkind: Saga\nname: p\nstart: Order.Placed\nkey: {\"*\": event.id}\n";
    for block in yaml_blocks(&page) {
        assert_clean(&load_own(&format!("{head}{block}")));
    }
    let answers: Vec<&str> = page
        .split("```json\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert_eq!(answers.len(), 1);
    let answer = saga_runner::kernel::program::answer::read(answers[0].as_bytes(), 64);
    assert_eq!(answer.expect("an answer").work.len(), 5);
}

/// Whether an example stands below a heading of the fourth order.
fn is_variant(block: &str) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/language.md");
    let text = fs::read_to_string(path).expect("a document");
    let before = text.split(block).next().expect("the block is from there");
    let heading = before.lines().rev().find(|line| line.starts_with('#'));
    heading.is_some_and(|heading| heading.starts_with("#### "))
}

#[test]
fn every_example_of_an_effect_loads() {
    let blocks = yaml_blocks(&document("docs/effects.md"));
    assert!(!blocks.is_empty());
    for block in blocks {
        assert_clean(&load_project(&[], &[("effect.yaml", &block)]));
    }
}

#[test]
fn the_saga_of_the_readme_loads() {
    let blocks = yaml_blocks(&document("README.md"));
    let saga = blocks
        .iter()
        .find(|block| block.contains("kind: Saga"))
        .expect("a saga");
    assert_clean(&load_project(&[("order.yaml", saga)], &[]));
}

#[test]
fn the_examples_of_types_are_files_that_load() {
    let blocks = yaml_blocks(&types());
    let [saga, effect] = blocks.as_slice() else {
        panic!("{} examples", blocks.len());
    };
    assert_clean(&load_project(&[("typed.yaml", saga)], &[("pay.yaml", effect)]));
}
