//! Definitions of sagas and effects: read from YAML, checked as a whole, compiled once.
//!
//! [`load`] goes text -> tree with places ([`yaml`]) -> checked fields -> [`model`], and collects every finding
//! on the way. Reads no files itself.

mod actions;
mod canonical;
mod check;
pub mod codes;
pub mod diagnostic;
pub mod editor;
pub mod effect;
mod effect_file;
mod fields;
mod findings;
mod groups;
mod machine;
pub mod model;
mod saga;
pub mod schemas;
pub mod set;
mod steps;
#[cfg(test)]
mod tests;
mod texts;
mod url;
mod yaml;

pub use diagnostic::{Diagnostic, Severity};
pub use effect::EffectDefinition;
pub use model::Definition;
pub use set::DefinitionSet;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use findings::Findings;
use yaml::{Node, Value};

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
pub fn load(sagas: &[SourceFile], effects: &[SourceFile]) -> Loaded {
    let mut loaded = Loaded::default();
    let mut names = Names::default();
    for file in effects {
        let mut findings = Findings::new(&file.path, &file.text);
        let root = yaml::parse(&file.text, &mut findings);
        names.declare(root.as_ref(), "effect", file, &mut findings);
        let effect = root.and_then(|root| effect_file::compile(&root, &mut findings));
        loaded.effects.extend(effect);
        loaded.diagnostics.append(&mut findings.into_sorted());
    }
    let effects: BTreeSet<String> = std::mem::take(&mut names.places).into_keys().collect();
    // An effect whose name cannot be read would be reported again by every saga that uses it.
    let known = (!names.unreadable).then_some(&effects);
    for file in sagas {
        let mut findings = Findings::new(&file.path, &file.text);
        let root = yaml::parse(&file.text, &mut findings);
        names.declare(root.as_ref(), "saga", file, &mut findings);
        let saga = root.and_then(|root| saga::compile(&root, &file.text, known, &mut findings));
        loaded.sagas.extend(saga.map(Arc::new));
        loaded.diagnostics.append(&mut findings.into_sorted());
    }
    // Stable: within a file the findings are in order.
    loaded
        .diagnostics
        .sort_by(|left, right| left.file.cmp(&right.file));
    loaded
}

/// Compiles a definition that passed [`load`] when it was archived; effects are not looked up.
///
/// # Errors
/// The findings, where the text no longer compiles.
pub fn compile_archived(source: &str) -> Result<Definition, Vec<Diagnostic>> {
    let text: Arc<str> = Arc::from(source);
    let mut findings = Findings::new("archived definition", source);
    let definition =
        yaml::parse(source, &mut findings).and_then(|root| saga::compile(&root, &text, None, &mut findings));
    definition.ok_or_else(|| findings.into_sorted())
}

/// The names of one kind of definitions, over all files.
#[derive(Debug, Default)]
struct Names {
    /// File and line of the first definition of a name.
    places: BTreeMap<String, (String, usize)>,
    /// There is a file without a readable name.
    unreadable: bool,
}

impl Names {
    fn declare(
        &mut self,
        root: Option<&Node<'_>>,
        kind: &str,
        file: &SourceFile,
        findings: &mut Findings<'_>,
    ) {
        let Some((name, span)) = root.and_then(name) else {
            self.unreadable = true;
            return;
        };
        let line = findings.line(span.start);
        match self.places.get(name) {
            Some((path, line)) => {
                let message = format!("{kind} \"{name}\" is defined already, in {path}:{line}");
                findings.error(codes::DUPLICATE_NAME, span, message);
            }
            None => {
                self.places.insert(name.to_owned(), (file.path.clone(), line));
            }
        }
    }
}

fn name<'n>(root: &'n Node<'_>) -> Option<(&'n str, Range<usize>)> {
    let entry = saga::member(root, "name")?;
    match &entry.value.value {
        Value::Scalar(scalar) => Some((&scalar.text, entry.value.span.clone())),
        Value::List(_) | Value::Map(_) => None,
    }
}
