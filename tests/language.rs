//! The examples of the documents load as they stand.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use saga_runner::kernel::definition::{Loaded, ProgramFiles, SchemaFiles, SourceFile, load, load_with};

fn document(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(path).expect("a document")
}

fn yaml_blocks(text: &str) -> Vec<String> {
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

fn source(path: &str, text: String) -> SourceFile {
    SourceFile {
        path: path.to_owned(),
        text: Arc::from(text),
    }
}

fn shipped_effects() -> Vec<SourceFile> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("effects");
    fs::read_dir(folder)
        .expect("shipped effects")
        .map(|entry| {
            let path = entry.expect("readable").path();
            // Of the same names; what they take and give is not what these examples are about.
            let text = fs::read_to_string(&path).expect("readable");
            let name = text
                .lines()
                .find(|line| line.starts_with("name: "))
                .expect("a name");
            let effect =
                format!("apiVersion: sagas/v1\nkind: Effect\n{name}\ntransform: {{}}\nresult: {{}}\n");
            source(&path.display().to_string(), effect)
        })
        .collect()
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
        source("steps.yaml", steps_saga),
        source("machine.yaml", machine_saga),
    ];
    assert_clean(&load(&sagas, &shipped_effects()));
    assert_clean(&load(&[], &[source("effect.yaml", effect.clone())]));
    for example in own {
        assert_clean(&load_own(below(head, &example)));
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

/// Loads a saga whose program, if it has one, is that of the example.
fn load_own(text: String) -> Loaded {
    let mut programs = ProgramFiles::default();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/programs/sagas/bin/parcels.wasm");
    let module = fs::read(path).expect("the committed module");
    programs
        .0
        .insert("bin/parcels.wasm".to_owned(), Ok(Arc::from(module)));
    let schemas = SchemaFiles::default();
    // What an example starts.
    let child = "apiVersion: sagas/v1\nkind: Saga\nname: payment\ninput: {type: object}\n\
                 steps: {charge: {effect: payments-charge}}\n";
    load_with(
        &[source("own.yaml", text), source("payment.yaml", child.to_owned())],
        &shipped_effects(),
        &schemas,
        &programs,
    )
}

#[test]
fn the_examples_of_programs_are_what_the_runner_takes() {
    let page = document("docs/programs.md");
    let head = "apiVersion: sagas/v1\nkind: Saga\nname: p\nstart: Order.Placed\nkey: {\"*\": event.id}\n";
    for block in yaml_blocks(&page) {
        assert_clean(&load_own(format!("{head}{block}")));
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
        assert_clean(&load(&[], &[source("effect.yaml", block)]));
    }
}

#[test]
fn the_saga_of_the_readme_loads() {
    let blocks = yaml_blocks(&document("README.md"));
    let saga = blocks
        .iter()
        .find(|block| block.contains("kind: Saga"))
        .expect("a saga");
    assert_clean(&load(&[source("README.md", saga.clone())], &shipped_effects()));
}

#[test]
fn the_examples_of_types_are_files_that_load() {
    let blocks = yaml_blocks(&types());
    let [saga, effect] = blocks.as_slice() else {
        panic!("{} examples", blocks.len());
    };
    assert_clean(&load(
        &[source("typed.yaml", saga.clone())],
        &[source("pay.yaml", effect.clone())],
    ));
}
