//! Definitions of sagas and effects: read from YAML, checked as a whole, compiled once.

pub mod diagnostic;
pub mod effect;
pub mod model;
pub mod set;

pub use diagnostic::{Diagnostic, Severity};
pub use effect::EffectDefinition;
pub use model::Definition;
pub use set::DefinitionSet;

use std::sync::Arc;

/// A file of definitions as it was read.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// As the user named it.
    pub path: String,
    pub text: Arc<str>,
}

/// Everything found in a set of files.
#[derive(Debug, Default)]
pub struct Loaded {
    pub sagas: Vec<Arc<Definition>>,
    pub effects: Vec<Arc<EffectDefinition>>,
    /// All findings of all files, by file and place. With an error among them nothing is to be run.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads, checks and compiles sagas and effects together.
#[must_use]
pub fn load(_sagas: &[SourceFile], _effects: &[SourceFile]) -> Loaded {
    todo!()
}

/// Compiles a definition that passed [`load`] when it was archived; effects are not looked up.
///
/// # Errors
/// The findings, where the text no longer compiles.
pub fn compile_archived(_source: &str) -> Result<Definition, Vec<Diagnostic>> {
    todo!()
}
