//! `schema`: JSON Schemas of the files, for editors.

use std::io::Write as _;

use clap::{Args, ValueEnum};

use super::exit::Failure;
use crate::config;
use crate::kernel::definition::editor;

#[derive(Debug, Args)]
pub struct SchemaArguments {
    /// Which file is to be described.
    kind: FileKind,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FileKind {
    Saga,
    Effect,
    Manifest,
}

pub fn schema(arguments: &SchemaArguments) -> Result<(), Failure> {
    let text = match arguments.kind {
        FileKind::Saga => editor::SAGA,
        FileKind::Effect => editor::EFFECT,
        FileKind::Manifest => config::MANIFEST_SCHEMA,
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(Failure::software)
}
