//! Definitions of sagas and effects: read from YAML, checked as a whole, compiled once.
//!
//! [`load`] goes text -> tree with places ([`yaml`]) -> checked fields -> [`model`], and collects every finding
//! on the way. Reads no files itself.

mod actions;
mod aliases;
pub mod archive;
mod awaited;
mod binary_files;
mod canonical;
mod certain;
mod check;
mod children;
pub mod codes;
mod compensations;
mod contract;
mod conversation;
pub mod diagnostic;
pub mod editor;
pub mod effect;
mod effect_custom;
mod effect_file;
mod effect_grpc;
mod effect_http;
mod effect_http_oauth2;
mod effect_http_sign;
mod effect_limits;
mod effect_nats;
mod effect_smtp;
mod effect_sql;
mod emissions;
mod endings;
mod events;
mod facts;
pub mod fields;
mod finally;
pub mod findings;
pub mod grammar;
pub mod graph;
mod groups;
pub mod http_proof;
mod joins;
pub mod keys;
mod lifecycle;
pub mod loops;
mod machine;
mod migration;
pub mod model;
mod nested;
mod never;
mod program;
pub mod redaction;
mod results;
mod saga;
mod schedule;
mod schema_files;
pub mod schemas;
pub mod set;
pub mod sql_database;
pub mod sql_text;
mod starts;
mod state_effects;
mod step_errors;
mod steps;
#[cfg(test)]
mod tests;
mod texts;
mod timers;
mod typing;
mod uncompensated;
mod undo;
mod url;
mod waits;
pub mod yaml;

pub use binary_files::{BinaryFiles, named_binary};
pub use diagnostic::{Diagnostic, Severity};
pub use effect::EffectDefinition;
pub use migration::misfits;
pub use model::Definition;
pub use schema_files::{SchemaFiles, named_schemas};
pub use set::DefinitionSet;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use effect::{EffectSchemas, Effects};
use findings::Findings;
use schema_files::Schemas;
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
    /// One warning for each file whose expressions are not checked before they run, for want of schemas. Told
    /// apart: such a file is complete.
    pub untyped: Vec<Diagnostic>,
}

impl Loaded {
    /// Everything there is to say to people, by file and place.
    #[must_use]
    pub fn findings(&self) -> Vec<Diagnostic> {
        let mut findings: Vec<Diagnostic> = self.diagnostics.iter().chain(&self.untyped).cloned().collect();
        findings.sort_by(|left, right| (&left.file, left.span.start).cmp(&(&right.file, right.span.start)));
        findings
    }
}

/// Reads, checks and compiles sagas and effects together, none of which names another file by path.
#[must_use]
pub fn load(sagas: &[SourceFile], effects: &[SourceFile]) -> Loaded {
    load_with(sagas, effects, &SchemaFiles::default(), &BinaryFiles::default())
}

/// Reads, checks and compiles sagas and effects together with the schemas, programs and descriptors that they name.
#[must_use]
pub fn load_with(
    sagas: &[SourceFile],
    effects: &[SourceFile],
    schemas: &SchemaFiles,
    binaries: &BinaryFiles,
) -> Loaded {
    let mut schemas = Schemas::new(schemas, binaries);
    let mut loaded = Loaded::default();
    let mut names = Names::default();
    for file in effects {
        let mut findings = Findings::new(&file.path, &file.text);
        let root = yaml::parse(&file.text, &mut findings);
        names.declare(root.as_ref(), "effect", file, &mut findings);
        let at = root.as_ref().and_then(name).map_or(0..0, |(_, span)| span);
        let effect = root.and_then(|root| effect_file::compile(&root, &mut schemas, &mut findings));
        let lacking = effect
            .as_ref()
            .and_then(|effect| typing::untyped_effect(&effect.schemas));
        loaded
            .untyped
            .extend(lacking.map(|lacking| untyped(file, at, lacking)));
        schemas.take_named();
        loaded.effects.extend(effect);
        loaded.diagnostics.append(&mut findings.into_sorted());
    }
    let mut effects: Effects = std::mem::take(&mut names.places)
        .into_keys()
        .map(|name| (name, EffectSchemas::default()))
        .collect();
    for effect in &loaded.effects {
        effects.insert(effect.name.to_string(), effect.schemas.clone());
    }
    let acting = loaded.effects.iter().filter(|effect| effect.provider.acts());
    let acting = acting.map(|effect| effect.name.to_string()).collect();
    let parsed: Vec<_> = sagas
        .iter()
        .map(|file| {
            let mut findings = Findings::new(&file.path, &file.text);
            let root = yaml::parse(&file.text, &mut findings);
            (file, findings, root)
        })
        .collect();
    let roots = parsed.iter().map(|(file, _, root)| (*file, root.as_ref()));
    let (announced, all_sagas) = announced(roots, &mut schemas);
    let known = saga::Known {
        effects: &effects,
        acting: &acting,
        sagas: &announced,
        // One whose name cannot be read would be reported again by every saga that uses it.
        all_effects: !names.unreadable,
        all_sagas,
    };
    for (file, mut findings, root) in parsed {
        names.declare(root.as_ref(), "saga", file, &mut findings);
        let at = root.as_ref().and_then(name).map_or(0..0, |(_, span)| span);
        let saga =
            root.and_then(|root| saga::compile(&root, &file.text, Some(known), &mut schemas, &mut findings));
        let lacking = saga
            .as_ref()
            .and_then(|saga| typing::untyped_saga(saga, &announced));
        loaded
            .untyped
            .extend(lacking.map(|lacking| untyped(file, at, &lacking)));
        loaded.sagas.extend(saga.map(Arc::new));
        loaded.diagnostics.append(&mut findings.into_sorted());
    }
    loaded.diagnostics.append(&mut schemas.diagnostics);
    // Stable: within a file the findings are in order.
    loaded
        .diagnostics
        .sort_by(|left, right| left.file.cmp(&right.file));
    loaded
}

/// The sagas with what they say to each other, and whether these are all: the name of one may be unreadable. What is wrong with
/// a schema is told when its own file is compiled.
fn announced<'n, 't: 'n>(
    roots: impl Iterator<Item = (&'n SourceFile, Option<&'n yaml::Node<'t>>)>,
    schemas: &mut Schemas<'_>,
) -> (conversation::Sagas, bool) {
    let mut sagas = conversation::Sagas::new();
    let mut all = true;
    for (file, root) in roots {
        let Some((root, (saga, _))) = root.and_then(|root| Some((root, name(root)?))) else {
            all = false;
            continue;
        };
        let mut unheard = Findings::new(&file.path, &file.text);
        let input = match saga::member(root, "input") {
            Some(entry) => schemas.read(entry, &mut unheard),
            None => saga::member(root, "schedule").map(|_| schedule::given()),
        };
        let declared = facts::declared(root, schemas, &mut unheard);
        sagas.insert(
            saga.to_owned(),
            conversation::Announced::of(root, input, declared),
        );
    }
    schemas.take_named();
    (sagas, all)
}

fn untyped(file: &SourceFile, at: Range<usize>, lacking: &str) -> Diagnostic {
    let mut findings = Findings::new(&file.path, &file.text);
    findings.warning(codes::UNTYPED, at, lacking).help(Some(
        "without one, mistakes in expressions show when they run".to_owned(),
    ));
    findings.into_sorted().remove(0)
}

/// Compiles a definition that passed [`load`] when it was archived, from its `source`; effects are not looked up.
///
/// # Errors
/// The findings, where the text no longer compiles.
pub fn compile_archived(source: &str) -> Result<Definition, Vec<Diagnostic>> {
    let mut findings = Findings::new("archived definition", source);
    let archive = match archive::opened(source) {
        Ok(archive) => archive,
        Err(error) => {
            findings.error(codes::SYNTAX, 0..0, error.to_string());
            return Err(findings.into_sorted());
        }
    };
    let text: Arc<str> = Arc::from(archive.source);
    let mut findings = Findings::new("archived definition", &text);
    let mut schemas = Schemas::new(&archive.schemas, &archive.programs);
    let definition = yaml::parse(&text, &mut findings)
        .and_then(|root| saga::compile_pinned(&root, &text, archive.effects, &mut schemas, &mut findings));
    let mut diagnostics = schemas.diagnostics;
    definition.ok_or_else(|| {
        diagnostics.append(&mut findings.into_sorted());
        diagnostics
    })
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
