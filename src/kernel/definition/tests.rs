//! Whole files: what is read from good ones, what is said about bad ones.

use std::sync::Arc;

use super::{Loaded, SourceFile, load};

fn files(folder: &str) -> Vec<SourceFile> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<_> = std::fs::read_dir(root.join(folder))
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| SourceFile {
            path: format!("{folder}/{}", path.file_name().expect("a file").to_string_lossy()),
            text: Arc::from(std::fs::read_to_string(&path).expect("readable")),
        })
        .collect()
}

fn examples() -> Loaded {
    load(&files("sagas"), &files("effects"))
}

#[test]
fn every_example_loads_without_findings() {
    let loaded = examples();
    let findings: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    assert_eq!(loaded.sagas.len(), 2);
    assert_eq!(loaded.effects.len(), 7);
}
