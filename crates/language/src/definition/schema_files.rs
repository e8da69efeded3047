//! Schemas that definitions name by path: which they are, their texts, and each of them compiled once.
//!
//! Paths are relative to the definition's folder. No file is read here; the caller that loads definitions hands the
//! texts in.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::binary_files::BinaryFiles;
use super::codes;
use super::diagnostic::Diagnostic;
use super::fields;
use super::findings::Findings;
use super::schemas;
use super::yaml::{self, Entry, Node, Plain, Value};
use crate::schema::Schema;

/// Most schema files that one definition may name.
const FILES_MAX: usize = 256;
/// How a path to a schema ends.
const ENDINGS: [&str; 3] = [".json", ".yaml", ".yml"];

/// The texts of schemas by their path, as [`resolved`] writes it; or why one could not be read.
#[derive(Debug, Clone, Default)]
pub struct SchemaFiles(pub BTreeMap<String, Result<Arc<str>, String>>);

/// The paths of the schemas that the definition at `path` names, resolved.
#[must_use]
pub fn named_schemas(path: &str, text: &str) -> Vec<String> {
    // Most definitions name none, and reading each twice costs.
    if !ENDINGS.iter().any(|ending| text.contains(ending)) {
        return Vec::new();
    }
    let mut findings = Findings::new(path, text);
    let Some(root) = yaml::parse(text, &mut findings) else {
        return Vec::new();
    };
    let mut named = Vec::new();
    let mut look = |entry: Option<&Entry<'_>>| {
        if let Some(reference) = entry.and_then(|entry| scalar(&entry.value))
            && named.len() < FILES_MAX
        {
            named.push(resolved(path, reference));
        }
    };
    let member = super::saga::member;
    look(member(&root, "input"));
    look(member(&root, "output"));
    look(member(&root, "state").and_then(|state| member(&state.value, "schema")));
    for key in ["events", "facts"] {
        if let Some(Value::Map(described)) = member(&root, key).map(|described| &described.value.value) {
            for one in described {
                look(member(&one.value, "schema"));
            }
        }
    }
    named.sort();
    named.dedup();
    named
}

/// The text of a scalar that holds any.
pub fn scalar<'n>(node: &'n Node<'_>) -> Option<&'n str> {
    match &node.value {
        Value::Scalar(scalar) => match scalar.plain() {
            Plain::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        },
        Value::List(_) | Value::Map(_) => None,
    }
}

/// `reference` from the folder of the definition at `path`, without `.` and `..` where they mean nothing.
#[must_use]
pub fn resolved(path: &str, reference: &str) -> String {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = Vec::new();
    for part in folder
        .split('/')
        .skip(usize::from(folder.is_empty()))
        .chain(reference.split('/'))
    {
        match part {
            "." => {}
            ".." if parts.last().is_some_and(|last| !matches!(*last, ".." | "")) => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The schemas of one load, and the other files that definitions name.
#[derive(Debug)]
pub struct Schemas<'f> {
    files: &'f SchemaFiles,
    binaries: &'f BinaryFiles,
    compiled: BTreeMap<String, Option<Arc<Schema>>>,
    /// What is wrong with the files themselves.
    pub diagnostics: Vec<Diagnostic>,
    /// What the definition at hand has named, as it names it, with the text.
    named: BTreeMap<String, Arc<str>>,
}

impl<'f> Schemas<'f> {
    pub fn new(files: &'f SchemaFiles, binaries: &'f BinaryFiles) -> Self {
        Self {
            files,
            binaries,
            compiled: BTreeMap::new(),
            diagnostics: Vec::new(),
            named: BTreeMap::new(),
        }
    }

    /// The bytes at a path, or why they could not be read.
    pub fn binary(&self, path: &str) -> Option<&'f Result<Arc<[u8]>, String>> {
        self.binaries.0.get(path)
    }

    /// The files that were named since the last call.
    pub fn take_named(&mut self) -> BTreeMap<String, Arc<str>> {
        std::mem::take(&mut self.named)
    }

    /// The schema that `entry` holds or names.
    pub fn read(&mut self, entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<Arc<Schema>> {
        match &entry.value.value {
            Value::Scalar(_) => self.file(entry, findings),
            Value::Map(_) => schemas::compile(&entry.value, &entry.key_span, findings).map(Arc::new),
            Value::List(_) => {
                let what = "a schema, or the path of one";
                fields::expected(&entry.value, &entry.key_span, what, findings);
                None
            }
        }
    }

    fn file(&mut self, entry: &Entry<'_>, findings: &mut Findings<'_>) -> Option<Arc<Schema>> {
        let what = "a schema, or the path of one";
        let reference = fields::text(&entry.value, &entry.key_span, what, findings)?;
        let span = entry.value.span.clone();
        let relative = !reference.starts_with('/') && !reference.contains(['\\', ':']);
        if !relative || !ENDINGS.iter().any(|ending| reference.ends_with(ending)) {
            let message = format!("\"{}\" is not the path of a schema", reference.escape_debug());
            findings.error(codes::SCHEMA_FILE, span, message).help(Some(
                "write a path relative to this file that ends with .json or .yaml".to_owned(),
            ));
            return None;
        }
        let path = resolved(findings.path(), reference);
        let text = match self.files.0.get(&path) {
            Some(Ok(text)) => text,
            Some(Err(reason)) => {
                let message = format!("the schema {path} cannot be read: {reason}");
                findings.error(codes::SCHEMA_FILE, span, message);
                return None;
            }
            None => {
                findings.error(codes::SCHEMA_FILE, span, format!("there is no schema {path}"));
                return None;
            }
        };
        let compiled = self.compiled.entry(path.clone()).or_insert_with(|| {
            let mut inside = Findings::new(&path, text);
            let schema =
                yaml::parse(text, &mut inside).and_then(|node| schemas::compile(&node, &(0..0), &mut inside));
            self.diagnostics.append(&mut inside.into_sorted());
            schema.map(Arc::new)
        });
        if compiled.is_none() {
            let message = format!("the schema {path} has mistakes");
            findings.error(codes::SCHEMA, span, message);
        }
        self.named.insert(resolved("", reference), Arc::clone(text));
        compiled.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_folder_of_the_definition() {
        for (path, reference, expected) in [
            ("sagas/order.yaml", "schemas/a.json", "sagas/schemas/a.json"),
            ("sagas/order.yaml", "../schemas/a.json", "schemas/a.json"),
            ("order.yaml", "./a.json", "a.json"),
            ("order.yaml", "../../a.json", "../../a.json"),
            ("/etc/sagas/order.yaml", "a.json", "/etc/sagas/a.json"),
            ("./sagas/order.yaml", "a.json", "sagas/a.json"),
        ] {
            assert_eq!(resolved(path, reference), expected, "{path} {reference}");
        }
    }

    #[test]
    fn every_place_of_a_schema_is_found() {
        let text = "events: {A.B: {schema: a.json}, A.C: {schema: {type: object}}}\nfacts: {a.d: {schema: f.json}}\nstate: {schema: s.yaml}\ninput: i.json\noutput: ../o.json\n";
        assert_eq!(
            named_schemas("x/d.yaml", text),
            ["o.json", "x/a.json", "x/f.json", "x/i.json", "x/s.yaml"]
        );
    }
}
