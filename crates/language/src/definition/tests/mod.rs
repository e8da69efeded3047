//! Whole files: what is read from good ones. What is said about bad ones is under tests/definitions/.

mod conversation;
mod editor;
mod grammar;
mod graphs;
mod hash;
mod limits;
mod mistakes;
mod never;
#[cfg(feature = "wasm")]
mod programs;
mod reading;
mod schemas;
mod uncompensated;

use std::sync::Arc;

use super::{Definition, Diagnostic, EffectDefinition, Loaded, SourceFile, load};

fn folder(path: &str) -> Vec<SourceFile> {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut paths: Vec<_> = std::fs::read_dir(root.join(path))
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .filter(|path| !path.to_string_lossy().ends_with(".test.yaml"))
        .collect();
    paths.sort();
    let file = |path: std::path::PathBuf| SourceFile {
        path: path.display().to_string(),
        text: Arc::from(std::fs::read_to_string(&path).expect("readable")),
    };
    paths.into_iter().map(file).collect()
}

fn examples() -> Loaded {
    load(&folder("sagas"), &folder("effects"))
}

/// Effects of the names of the shipped ones, which take and give anything.
fn untyped_effects() -> Vec<SourceFile> {
    let stub = |effect: SourceFile| {
        let name = effect.text.lines().find(|line| line.starts_with("name: "));
        let name = name.expect("a name");
        let text = format!("apiVersion: sagas/v1\nkind: Effect\n{name}\ntransform: {{}}\nresult: {{}}\n");
        file(&effect.path, &text)
    };
    folder("effects").into_iter().map(stub).collect()
}

fn file(path: &str, text: &str) -> SourceFile {
    SourceFile {
        path: path.to_owned(),
        text: Arc::from(text),
    }
}

/// A saga with the usual head, beside the effects of the examples.
fn load_saga(body: &str) -> Result<Arc<Definition>, Vec<Diagnostic>> {
    let text = format!(
        "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: Order.Placed\nkey: {{\"Order.*\": event.data.id}}\n{body}"
    );
    let mut loaded = load(&[file("probe.yaml", &text)], &untyped_effects());
    loaded.sagas.pop().ok_or(loaded.diagnostics)
}

fn saga(body: &str) -> Arc<Definition> {
    load_saga(body).unwrap_or_else(|findings| {
        let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
        panic!("{}", findings.join("\n"))
    })
}

fn effect(body: &str) -> Arc<EffectDefinition> {
    let text = format!("apiVersion: sagas/v1\nkind: Effect\nname: probe\n{body}");
    let mut loaded = load(&[], &[file("probe.yaml", &text)]);
    let findings: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    loaded.effects.pop().expect("an effect without findings")
}

#[test]
fn every_example_loads_without_findings() {
    let loaded = examples();
    let findings: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    let sagas: Vec<&str> = loaded.sagas.iter().map(|saga| saga.name.as_str()).collect();
    assert_eq!(
        sagas,
        ["album", "approval", "billing", "consolidate", "order", "trip"]
    );
    assert_eq!(loaded.effects.len(), 19);
}

#[test]
fn the_examples_need_one_upstream_and_no_secret() {
    for effect in examples().effects {
        let upstreams: Vec<_> = effect.upstreams().into_iter().collect();
        assert!(
            upstreams.iter().all(|upstream| upstream == "shop"),
            "{}: {upstreams:?}",
            effect.name
        );
        assert!(effect.secrets().is_empty(), "{}", effect.name);
    }
}

#[test]
fn findings_of_all_files_come_by_file_and_place() {
    let head = "apiVersion: sagas/v1\nkind: Saga\nname: twice\nstart: A.B\nkey: {\"A.*\": event.id}\n";
    let loaded = load(
        &[
            file("z.yaml", &format!("{head}steps: {{a: {{effect: nope}}}}\n")),
            file("b.yaml", &format!("{head}steps: {{a: {{efect: x}}}}\nextra: 1\n")),
        ],
        &[
            file(
                "m.yaml",
                "apiVersion: sagas/v1\nkind: Effect\nname: same\ntransform: {}\nresult: 1\n",
            ),
            file(
                "n.yaml",
                "apiVersion: sagas/v1\nkind: Effect\nname: same\ntransform: {}\nresult: 1\n",
            ),
        ],
    );
    let places: Vec<String> = loaded
        .diagnostics
        .iter()
        .map(|finding| {
            format!(
                "{}:{}:{} {}",
                finding.file, finding.line, finding.column, finding.code
            )
        })
        .collect();
    assert_eq!(
        places,
        [
            "b.yaml:3:7 SR0111",
            "b.yaml:6:13 SR0105",
            "b.yaml:7:1 SR0105",
            "n.yaml:3:7 SR0111",
            "z.yaml:6:21 SR0102",
        ]
    );
    let twice = &loaded.diagnostics[0];
    assert_eq!(twice.message, "saga \"twice\" is defined already, in z.yaml:3");
}

#[test]
fn an_effect_that_cannot_be_read_does_not_make_every_use_of_effects_an_error() {
    let saga = "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: A.B\nkey: {\"A.*\": event.id}\nsteps: {a: {effect: broken}}\n";
    let loaded = load(&[file("s.yaml", saga)], &[file("e.yaml", "name: [\n")]);
    let files: Vec<&str> = loaded
        .diagnostics
        .iter()
        .map(|finding| finding.file.as_str())
        .collect();
    assert_eq!(files, ["e.yaml"]);
}

#[test]
fn a_finding_prints_as_one_line_with_place_help_and_code() {
    let findings = load_saga("steps: {pay: {effect: payments-chrage}}\n").expect_err("a typo");
    assert_eq!(
        findings[0].to_string(),
        "probe.yaml:6:23: unknown effect \"payments-chrage\"; did you mean \"payments-charge\"? [SR0102]"
    );
}

#[test]
fn columns_count_characters_and_spans_count_bytes() {
    let body = "state: {init: {größe: \"übergroß ${nein}\"}}\nsteps: {a: {effect: fraud-score}}\n";
    let findings = load_saga(body).expect_err("an unknown name");
    assert_eq!((findings[0].line, findings[0].column), (6, 35));
    assert_eq!(findings[0].span.len(), "nein".len());
}
