//! The definitions that were in force, kept beside the data: they serve where a start finds only ones that are wrong.
//!
//! Instances run under versions that the shards keep; what begins new ones and calls upstreams comes from the files. So one
//! bad file would keep a process from starting that ran well with the files of before. These are kept as they were read,
//! whenever they come into force.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use super::StartError;
use super::definitions::{self, Files, Read};
use super::shards;
use crate::config::Manifest;
use crate::kernel::definition::{BinaryFiles, SchemaFiles, SourceFile};

/// Most bytes that are read of what was kept.
const BYTES_MAX: u64 = 256 * 1024 * 1024;
/// What is read; another one is not.
const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    format: u32,
    sagas: Vec<Text>,
    effects: Vec<Text>,
    /// By path; those that could not be read are left out, and missed again.
    schemas: BTreeMap<String, String>,
    /// The same, in Base64.
    binaries: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Text {
    path: String,
    text: String,
}

/// Keeps the definitions that are in force. Where that fails, only a later start with wrong files notices.
pub(super) fn keep(manifest: &Manifest, files: &Files) {
    if !manifest.mode.runs_sagas() || files.is_empty() {
        return;
    }
    let path = path(manifest);
    if let Err(error) = write(&path, files) {
        let path = path.display().to_string();
        tracing::warn!(path, %error, "cannot save the active definitions as fallback for a start with invalid ones");
    }
}

/// The definitions of before, where there are any that this manifest can serve.
pub(super) fn instead(manifest: &Manifest) -> Option<Read> {
    if !manifest.mode.runs_sagas() {
        return None;
    }
    let path = path(manifest);
    let told = |error: &dyn std::fmt::Display| {
        let path = path.display().to_string();
        tracing::warn!(path, %error, "cannot use the previous definitions");
    };
    match read(&path).map(|files| definitions::compiled(manifest, files)) {
        Ok(Ok(read)) => Some(read),
        Ok(Err(error)) => {
            told(&error);
            None
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            told(&error);
            None
        }
    }
}

/// Whether other definitions may serve where these are refused.
pub(super) fn may_stand_in(error: &StartError) -> bool {
    matches!(error, StartError::Definitions { .. } | StartError::Missing(_))
}

fn path(manifest: &Manifest) -> PathBuf {
    manifest.data_dir.join("definitions.json")
}

/// A crash leaves the old file or the new one.
fn write(path: &Path, files: &Files) -> io::Result<()> {
    let text = |file: &SourceFile| Text {
        path: file.path.clone(),
        text: file.text.to_string(),
    };
    let schemas = files.schemas.0.iter();
    let binaries = files.binaries.0.iter();
    let kept = Kept {
        format: FORMAT,
        sagas: files.sagas.iter().map(text).collect(),
        effects: files.effects.iter().map(text).collect(),
        schemas: schemas
            .filter_map(|(path, text)| Some((path.clone(), text.as_ref().ok()?.to_string())))
            .collect(),
        binaries: binaries
            .filter_map(|(path, bytes)| Some((path.clone(), BASE64.encode(bytes.as_ref().ok()?))))
            .collect(),
    };
    let bytes = serde_json::to_vec(&kept)?;
    if fs::read(path).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    shards::replace(path, &bytes)
}

fn read(path: &Path) -> io::Result<Files> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let size = fs::metadata(path)?.len();
    if size > BYTES_MAX {
        return Err(wrong(format!("{size} bytes, at most {BYTES_MAX} are read")));
    }
    let kept: Kept = serde_json::from_slice(&fs::read(path)?).map_err(|error| wrong(error.to_string()))?;
    if kept.format != FORMAT {
        return Err(wrong(format!("it has format {}, expected {FORMAT}", kept.format)));
    }
    let text = |file: Text| SourceFile {
        path: file.path,
        text: Arc::from(file.text),
    };
    let mut binaries = BinaryFiles::default();
    for (path, encoded) in kept.binaries {
        let bytes = BASE64
            .decode(encoded.as_bytes())
            .map_err(|error| wrong(format!("{path}: {error}")))?;
        binaries.0.insert(path, Ok(Arc::from(bytes)));
    }
    let schemas = kept.schemas.into_iter();
    Ok(Files {
        sagas: kept.sagas.into_iter().map(text).collect(),
        effects: kept.effects.into_iter().map(text).collect(),
        manifests: Vec::new(),
        schemas: SchemaFiles(schemas.map(|(path, text)| (path, Ok(Arc::from(text)))).collect()),
        binaries,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile {
            path: path.to_owned(),
            text: Arc::from(text),
        }
    }

    #[test]
    fn the_last_good_definitions_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("definitions.json");
        let mut files = Files {
            sagas: vec![file("sagas/a.yaml", "name: \"\u{e9}\"\n")],
            effects: vec![file("effects/b.yaml", "kind: Effect\n")],
            ..Files::default()
        };
        files.schemas.0.insert("s.json".to_owned(), Ok(Arc::from("{}")));
        files
            .schemas
            .0
            .insert("gone.json".to_owned(), Err("gone".to_owned()));
        files
            .binaries
            .0
            .insert("p.wasm".to_owned(), Ok(Arc::from([0, 255, 1])));
        write(&path, &files).expect("written");
        files.schemas.0.remove("gone.json");
        assert_eq!(read(&path).expect("read").fingerprint(), files.fingerprint());
    }

    #[test]
    fn an_incomplete_file_of_definitions_is_not_read() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("definitions.json");
        write(&path, &Files::default()).expect("written");
        let text = fs::read_to_string(&path).expect("read");
        for wrong in [
            text[..text.len() / 2].to_owned(),
            text.replace("\"format\":1", "\"format\":2"),
            text.replace("\"binaries\":{}", "\"binaries\":{\"p\":\"*\"}"),
        ] {
            fs::write(&path, &wrong).expect("written");
            assert!(read(&path).is_err(), "{wrong}");
        }
        assert_eq!(
            read(&dir.path().join("absent")).expect_err("absent").kind(),
            io::ErrorKind::NotFound
        );
    }
}
