//! Files that are no text and that definitions name by path: modules of programs, descriptors of gRPC services.
//!
//! Paths are relative to the definition's folder. No file is read here; the caller that loads definitions hands the
//! bytes in.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::findings::Findings;
use super::saga::member;
use super::schema_files::{resolved, scalar};
use super::yaml::{self, Node};

/// How the path of a program ends.
pub const PROGRAM_ENDING: &str = ".wasm";
/// How the path of a set of descriptors ends.
pub const DESCRIPTORS_ENDING: &str = ".binpb";

/// Bytes by path, as [`resolved`] writes it; or why a file could not be read.
#[derive(Debug, Clone, Default)]
pub struct BinaryFiles(pub BTreeMap<String, Result<Arc<[u8]>, String>>);

/// The path of the one such file that the definition at `path` names, resolved.
#[must_use]
pub fn named_binary(path: &str, text: &str) -> Option<String> {
    // Most definitions name none, and reading each twice costs.
    if !text.contains(PROGRAM_ENDING) && !text.contains(DESCRIPTORS_ENDING) {
        return None;
    }
    let mut findings = Findings::new(path, text);
    let root = yaml::parse(text, &mut findings)?;
    let reference = program(&root).or_else(|| descriptors(&root));
    reference.map(|reference| resolved(path, reference))
}

fn program<'n>(root: &'n Node<'_>) -> Option<&'n str> {
    let program = &member(root, "program")?.value;
    match member(program, "file") {
        Some(file) => scalar(&file.value),
        None => scalar(program),
    }
}

fn descriptors<'n>(root: &'n Node<'_>) -> Option<&'n str> {
    let call = &member(root, "grpc")?.value;
    scalar(&member(call, "descriptors")?.value)
}

/// Whether `reference` is a relative path with this ending.
#[must_use]
pub fn is_reference(reference: &str, ending: &str) -> bool {
    let relative = !reference.starts_with('/') && !reference.contains(['\\', ':']);
    relative && reference.ends_with(ending)
}
