//! Every bad file under `bad/` with what is said about it, as a person sees it.
//!
//! A snapshot is the promise: place, code, message and help of every mistake of the file, all at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use saga_runner::app::diagnostics::render;
use saga_runner::kernel::definition::{
    BinaryFiles, Loaded, SchemaFiles, Severity, SourceFile, load, load_with,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn folder(path: &str) -> Vec<SourceFile> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root().join(path))
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    paths.sort();
    let file = |path: PathBuf| SourceFile {
        path: path
            .file_name()
            .expect("a file has a name")
            .to_string_lossy()
            .into_owned(),
        text: Arc::from(std::fs::read_to_string(&path).expect("readable")),
    };
    paths.into_iter().map(file).collect()
}

/// Effects of the same names that take and give anything: most files here are about other mistakes.
fn untyped(effects: Vec<SourceFile>) -> Vec<SourceFile> {
    let stub = |file: SourceFile| {
        let name = file.text.lines().find(|line| line.starts_with("name: "));
        let name = name.expect("a name");
        let text = format!("apiVersion: sagas/v1\nkind: Effect\n{name}\ntransform: {{}}\nresult: {{}}\n");
        SourceFile {
            text: Arc::from(text),
            ..file
        }
    };
    effects.into_iter().map(stub).collect()
}

/// The descriptors that files here name.
fn descriptors() -> BinaryFiles {
    let files = protox::compile(["stock.proto"], [root().join("tests/proto")]);
    let bytes = prost::Message::encode_to_vec(&files.expect("the committed file compiles"));
    let mut descriptors = BinaryFiles::default();
    descriptors
        .0
        .insert("stock.binpb".to_owned(), Ok(Arc::from(bytes)));
    let text = Ok(Arc::from(&b"not descriptors"[..]));
    descriptors.0.insert("text.binpb".to_owned(), text);
    descriptors
}

/// Loads one file beside the effects of the examples.
fn load_one(file: &SourceFile) -> Loaded {
    let mut effects = untyped(folder("effects"));
    if file.text.contains("\nkind: Effect\n") {
        effects.push(file.clone());
        load_with(&[], &effects, &SchemaFiles::default(), &descriptors())
    } else {
        load(std::slice::from_ref(file), &effects)
    }
}

fn shown(file: &SourceFile, loaded: &Loaded) -> String {
    let text = Arc::clone(&file.text);
    render(
        &loaded.diagnostics,
        &|path| (path == file.path).then(|| text.clone()),
        false,
    )
}

#[test]
fn every_mistake_of_a_file_is_shown_at_its_place() {
    for file in folder("tests/definitions/bad") {
        let loaded = load_one(&file);
        let frames = shown(&file, &loaded);
        assert!(!loaded.diagnostics.is_empty(), "{} has no findings", file.path);
        insta::with_settings!({snapshot_path => "bad", prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!(file.path.trim_end_matches(".yaml"), frames);
        });
    }
}

#[test]
fn a_file_with_an_error_defines_nothing() {
    for file in folder("tests/definitions/bad") {
        let loaded = load_one(&file);
        let errors = loaded
            .diagnostics
            .iter()
            .any(|finding| finding.severity == Severity::Error);
        let defined = loaded.sagas.len()
            + loaded
                .effects
                .iter()
                .filter(|effect| effect.name.as_str() == "bad")
                .count();
        assert_eq!(defined == 0, errors, "{}", file.path);
    }
}
