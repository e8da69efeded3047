//! `schema`: JSON Schemas of the files, for editors.

use clap::{Args, ValueEnum};

use crate::app::exit::Failure;
use crate::app::out;
use crate::config;
use crate::kernel::definition::editor;

#[derive(Debug, Args)]
pub struct SchemaArguments {
    /// Kind of file.
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
    out::text(text)
}
