//! Reading JSON Schemas, inline or from files beside a definition, with the place of every mistake.

mod rules;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use regex::RegexBuilder;

use super::codes;
use super::fields;
use super::findings::Findings;
use super::yaml::{Entry, Node, Plain, Value};
use crate::expr::nearest;
use crate::json::Json;
use crate::schema::{Rules, Schema, SchemaId};

/// Most schemas inside one schema, references followed.
const PARTS_MAX: usize = 4_096;
/// Largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 64 * 1024;
/// The dialect that schemas are written in.
const DIALECTS: [&str; 4] = [
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft-07/schema",
];

/// Keywords that demand something.
const KEYWORDS: [&str; 29] = [
    "$ref",
    "type",
    "enum",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "items",
    "contains",
    "minItems",
    "maxItems",
    "uniqueItems",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
];
/// Keywords that demand nothing by themselves.
const ANNOTATIONS: [&str; 16] = [
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
    "definitions",
    "$defs",
    "then",
    "else",
    "markdownDescription",
];

/// Compiles the schema at `node`, which is a whole document as far as its references go. `None` where there
/// are errors, all of which are reported.
pub fn compile(node: &Node<'_>, at: &Range<usize>, findings: &mut Findings<'_>) -> Option<Schema> {
    let mut reader = Reader {
        document: node,
        at: at.clone(),
        findings,
        parts: Vec::new(),
        targets: BTreeMap::new(),
        waiting: VecDeque::new(),
        sound: true,
    };
    reader.part(node);
    while let Some((id, node)) = reader.waiting.pop_front() {
        reader.parts[id] = reader.rules(node);
    }
    let circle = reader.sound.then(|| circle(&reader.parts)).flatten();
    if circle.is_some() {
        reader.fault(node, "refers to itself without a value in between");
    }
    reader.sound.then_some(Schema { parts: reader.parts })
}

struct Reader<'n, 't, 'f, 'c> {
    document: &'n Node<'t>,
    /// Where the schema is mentioned, for what has no place of its own.
    at: Range<usize>,
    findings: &'f mut Findings<'c>,
    parts: Vec<Rules>,
    /// Schemas that are referred to, by pointer.
    targets: BTreeMap<String, SchemaId>,
    /// Those of them that are still to be read; a chain of references is not recursion of ours.
    waiting: VecDeque<(SchemaId, &'n Node<'t>)>,
    sound: bool,
}

impl<'n, 't> Reader<'n, 't, '_, '_> {
    /// Reads the schema at `node` and gives its number.
    fn part(&mut self, node: &'n Node<'t>) -> SchemaId {
        let id = self.reserve(node);
        if id < PARTS_MAX {
            self.parts[id] = self.rules(node);
        }
        id
    }

    fn reserve(&mut self, node: &Node<'_>) -> SchemaId {
        let id = self.parts.len();
        self.parts.push(Rules::default());
        if id == PARTS_MAX {
            self.fault(
                node,
                &format!("a schema may have at most {PARTS_MAX} schemas inside"),
            );
        }
        id
    }

    fn rules(&mut self, node: &'n Node<'t>) -> Rules {
        let mut rules = Rules::default();
        let entries = match &node.value {
            Value::Map(entries) => entries,
            Value::Scalar(scalar) => {
                match scalar.plain() {
                    Plain::Bool(answer) => rules.never = !answer,
                    _ => self.fault(node, "a schema is a map, `true` or `false`"),
                }
                return rules;
            }
            Value::List(_) => {
                self.fault(node, "a schema is a map, `true` or `false`");
                return rules;
            }
        };
        for entry in sorted(entries) {
            self.keyword(entry, entries, &mut rules);
        }
        rules
    }

    fn keyword(&mut self, entry: &'n Entry<'t>, entries: &'n [Entry<'t>], rules: &mut Rules) {
        match &*entry.key {
            "$schema" => self.dialect(entry),
            "$ref" => {
                if let Some(part) = self.reference(entry) {
                    rules.all_of.push(part);
                }
            }
            "type" => rules.kinds = self.kinds(entry),
            "enum" => {
                let allowed = self.items(entry).iter().map(json).collect();
                rules.one_among = Some(allowed);
            }
            "const" => rules.one_among = Some(vec![json(&entry.value)]),
            "if" => {
                let test = self.part(&entry.value);
                let mut branch = |key: &str| {
                    let branch = entries.iter().find(|entry| entry.key == key)?;
                    Some(self.part(&branch.value))
                };
                let (then, otherwise) = (branch("then"), branch("else"));
                rules.condition = Some((test, then, otherwise));
            }
            "allOf" => {
                let parts = self.schemas(entry);
                rules.all_of.extend(parts);
            }
            "anyOf" => rules.any_of = self.schemas(entry),
            "oneOf" => rules.one_of = self.schemas(entry),
            "not" => rules.not = Some(self.part(&entry.value)),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
                self.number_rule(entry, rules);
            }
            "minLength" | "maxLength" | "pattern" => self.text_rule(entry, rules),
            "items" | "contains" | "minItems" | "maxItems" | "uniqueItems" => self.array_rule(entry, rules),
            "properties"
            | "patternProperties"
            | "additionalProperties"
            | "required"
            | "propertyNames"
            | "minProperties"
            | "maxProperties" => self.object_rule(entry, rules),
            key if ANNOTATIONS.contains(&key) || key.starts_with("x-") => {}
            key => {
                let known = KEYWORDS.into_iter().chain(ANNOTATIONS);
                let help = nearest(key, known).map_or_else(
                    || "schemas are draft-07; names of one's own begin with x-".to_owned(),
                    |near| format!("did you mean \"{near}\"?"),
                );
                let message = format!("unknown keyword \"{}\" in a schema", key.escape_debug());
                self.sound = false;
                self.findings
                    .error(codes::SCHEMA, entry.key_span.clone(), message)
                    .help(Some(help));
            }
        }
    }

    /// The schema that `$ref` names, read once however often it is named.
    fn reference(&mut self, entry: &'n Entry<'t>) -> Option<SchemaId> {
        let pointer = self.text(&entry.value, "a reference")?;
        if pointer == "#" {
            return Some(0);
        }
        let Some(path) = pointer.strip_prefix("#/") else {
            let message = format!("\"{}\" is not inside this schema", pointer.escape_debug());
            self.sound = false;
            self.findings
                .error(codes::SCHEMA, entry.value.span.clone(), message)
                .help(Some(
                    "references begin with #/, as in #/definitions/item".to_owned(),
                ));
            return None;
        };
        if let Some(part) = self.targets.get(path) {
            return Some(*part);
        }
        let mut node = self.document;
        for name in path.split('/') {
            let name = name.replace("~1", "/").replace("~0", "~");
            let found = match &node.value {
                Value::Map(entries) => entries
                    .iter()
                    .find(|entry| *entry.key == *name)
                    .map(|entry| &entry.value),
                Value::List(items) => name.parse::<usize>().ok().and_then(|at| items.get(at)),
                Value::Scalar(_) => None,
            };
            let Some(found) = found else {
                let message = format!("\"{}\" is not there", pointer.escape_debug());
                self.fault(&entry.value, &message);
                return None;
            };
            node = found;
        }
        let id = self.reserve(node);
        self.targets.insert(path.to_owned(), id);
        if id < PARTS_MAX {
            self.waiting.push_back((id, node));
        }
        Some(id)
    }

    fn schemas(&mut self, entry: &'n Entry<'t>) -> Vec<SchemaId> {
        let items = self.items(entry);
        if items.is_empty() {
            self.fault(&entry.value, &format!("{} needs a schema", entry.key));
        }
        items.iter().map(|item| self.part(item)).collect()
    }

    fn items(&mut self, entry: &'n Entry<'t>) -> &'n [Node<'t>] {
        if let Value::List(items) = &entry.value.value {
            return items;
        }
        self.fault(&entry.value, &format!("{} is a list", entry.key));
        &[]
    }

    fn members(&mut self, entry: &'n Entry<'t>) -> &'n [Entry<'t>] {
        if let Value::Map(entries) = &entry.value.value {
            return entries;
        }
        self.fault(&entry.value, &format!("{} is a map", entry.key));
        &[]
    }

    fn count(&mut self, entry: &'n Entry<'t>) -> Option<usize> {
        if let Json::Int(number) = json(&entry.value)
            && let Ok(number) = usize::try_from(number)
        {
            return Some(number);
        }
        self.fault(&entry.value, &format!("{} is a whole number", entry.key));
        None
    }

    fn text<'x>(&mut self, node: &'x Node<'_>, what: &str) -> Option<&'x str> {
        if let Value::Scalar(scalar) = &node.value
            && let Plain::Text(text) = scalar.plain()
        {
            return Some(text);
        }
        self.fault(node, &format!("{what} is text"));
        None
    }

    fn regex(&mut self, pattern: &str, node: &Node<'_>) -> Option<regex::Regex> {
        let built = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build();
        built
            .map_err(|error| {
                let text = error.to_string();
                let reason = text.lines().last().unwrap_or_default().trim();
                let reason = reason.trim_start_matches("error: ");
                self.fault(node, &format!("the pattern cannot be used: {reason}"));
            })
            .ok()
    }

    fn fault(&mut self, node: &Node<'_>, message: &str) {
        self.sound = false;
        let span = fields::visible(node, &self.at, self.findings.text());
        self.findings.error(codes::SCHEMA, span, message);
    }
}

/// In the order of their names, so that the numbers of schemas do not depend on the layout of the text.
fn sorted<'n, 't>(entries: &'n [Entry<'t>]) -> Vec<&'n Entry<'t>> {
    let mut entries: Vec<&Entry<'t>> = entries.iter().collect();
    entries.sort_by(|left, right| left.key.cmp(&right.key));
    entries
}

/// A schema that comes back to itself without going down in the value: no value could be checked against it.
fn circle(parts: &[Rules]) -> Option<SchemaId> {
    let around = |id: SchemaId| {
        let rules = &parts[id];
        let condition = rules
            .condition
            .iter()
            .flat_map(|(test, then, otherwise)| [Some(*test), *then, *otherwise].into_iter().flatten());
        rules
            .all_of
            .iter()
            .chain(&rules.any_of)
            .chain(&rules.one_of)
            .chain(&rules.not)
            .copied()
            .chain(condition)
            .collect::<Vec<_>>()
    };
    // 0: not seen, 1: on the way, 2: done.
    let mut marks = vec![0_u8; parts.len()];
    for start in 0..parts.len() {
        let mut path = vec![(start, around(start))];
        if marks[start] != 0 {
            continue;
        }
        marks[start] = 1;
        while let Some((id, open)) = path.last_mut() {
            let Some(next) = open.pop() else {
                marks[*id] = 2;
                path.pop();
                continue;
            };
            match marks[next] {
                0 => {
                    marks[next] = 1;
                    path.push((next, around(next)));
                }
                1 => return Some(next),
                _ => {}
            }
        }
    }
    None
}

/// A value of a definition as JSON; what is not JSON number is its text.
pub fn json(node: &Node<'_>) -> Json<'static> {
    match &node.value {
        Value::Scalar(scalar) => match scalar.plain() {
            Plain::Null => Json::Null,
            Plain::Bool(answer) => Json::Bool(answer),
            Plain::Int(number) => Json::Int(number),
            Plain::Double(number) => Json::Double(number),
            Plain::Text(text) => Json::Str(text.to_owned().into()),
            Plain::Refused(_) => Json::Str(scalar.text.clone().into_owned().into()),
        },
        Value::List(items) => Json::List(items.iter().map(json).collect()),
        Value::Map(entries) => Json::Map(
            entries
                .iter()
                .map(|entry| (entry.key.clone().into_owned().into(), json(&entry.value)))
                .collect(),
        ),
    }
}

/// Compiles a schema from a text of its own, for what is not a definition.
///
/// # Errors
/// The findings, one line each.
pub fn compile_text(path: &str, text: &Arc<str>) -> Result<Schema, Vec<super::Diagnostic>> {
    let mut findings = Findings::new(path, text);
    let schema =
        super::yaml::parse(text, &mut findings).and_then(|node| compile(&node, &(0..0), &mut findings));
    schema.ok_or_else(|| findings.into_sorted())
}

/// A text of YAML or JSON as JSON.
///
/// # Errors
/// The findings, where it is neither.
pub fn json_of_text(path: &str, text: &str) -> Result<Json<'static>, Vec<super::Diagnostic>> {
    let mut findings = Findings::new(path, text);
    let root = super::yaml::parse(text, &mut findings);
    root.map(|root| json(&root)).ok_or_else(|| findings.into_sorted())
}
