//! Defaults, file, variables and flags become one manifest.
//!
//! Variables and flags are laid over the tree of the file, value by value: lists are replaced, maps are filled up. What comes out
//! is read as one, so whatever is wrong is wrong for the same reasons, wherever it was written.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use super::effective::Effective;
use super::keys::{self, Written};
use super::overrides::{Overrides, Setting};
use super::shown::Shown;
use super::sources::{Origin, Sources};
use super::{ConfigError, Manifest, Refusal, mistakes, yaml_options};
use crate::kernel::definition::diagnostic::{Diagnostic, Severity};
use crate::kernel::definition::findings::Findings;
use crate::kernel::definition::yaml::{self, Entry, Node, Scalar, ScalarStyle, Value};
use crate::kernel::expr::nearest;

/// What is refused of a manifest besides what it says by itself.
pub type Check<'c> = &'c dyn Fn(&Manifest) -> Vec<Refusal>;

/// Reads a manifest from `text` with `overrides` over it; relative paths in the text are relative to the folder of `path`.
///
/// # Errors
/// [`ConfigError::Wrong`], with all that is wrong.
pub(super) fn read(text: &str, path: &Path, overrides: &Overrides) -> Result<Effective, ConfigError> {
    read_checked(text, path, overrides, &|_| Vec::new())
}

/// The same, and `check` says what else is refused.
///
/// # Errors
/// As [`read`].
pub(super) fn read_checked(
    text: &str,
    path: &Path,
    overrides: &Overrides,
    check: Check<'_>,
) -> Result<Effective, ConfigError> {
    let sources = Sources::of(path, text, overrides);
    let mut findings = Findings::new("", sources.text());
    let parsed = yaml::parse(sources.text_of_file(), &mut findings);
    let mut wrong = wrong_variables(overrides);
    let Some(mut root) = parsed else {
        wrong.extend(sources.relocated(mistakes::coded(findings)));
        let texts = sources.texts(None);
        return Err(ConfigError::Wrong {
            findings: wrong,
            texts,
        });
    };
    for (index, setting) in overrides.settings().iter().enumerate() {
        lay(&mut root, &sources, index, setting, &mut findings);
    }
    inline_secrets(&root, &sources, &mut findings);
    let texts = |root: &Node<'_>| sources.texts(Some(root));
    let shown = Shown::of(&root, sources.text());
    let mut manifest = match serde_saphyr::from_str_with_options::<Manifest>(&shown.text, yaml_options()) {
        Ok(manifest) if !findings.has_errors() && wrong.is_empty() => manifest,
        Ok(_) => {
            wrong.extend(sources.relocated(mistakes::coded(findings)));
            let texts = texts(&root);
            return Err(ConfigError::Wrong {
                findings: wrong,
                texts,
            });
        }
        Err(error) => {
            let texts = texts(&root);
            wrong.extend(sources.relocated(mistakes::all(root, findings, sources.text(), &error)));
            return Err(ConfigError::Wrong {
                findings: wrong,
                texts,
            });
        }
    };
    manifest.resolve_paths(path.parent().unwrap_or_else(|| Path::new(".")));
    let mut refusals = manifest.refusals();
    refusals.extend(check(&manifest));
    if !refusals.is_empty() {
        let findings = mistakes::placed(&root, &sources, refusals);
        let texts = texts(&root);
        return Err(ConfigError::Wrong { findings, texts });
    }
    Ok(Effective::of(manifest, &root, &sources))
}

/// Variables that name no key, or the same one.
fn wrong_variables(overrides: &Overrides) -> Vec<Diagnostic> {
    let variables: Vec<String> = keys::all()
        .iter()
        .filter_map(|key| keys::variable(&key.path))
        .collect();
    let wrong = |name: &str, message: String, help: Option<String>| Diagnostic {
        code: mistakes::SYNTAX,
        severity: Severity::Error,
        file: name.to_owned(),
        line: 0,
        column: 0,
        span: 0..0,
        message,
        help,
    };
    let strangers = overrides.strangers().iter().map(|name| {
        let near = nearest(name, variables.iter().map(String::as_str));
        let message = "no key of the manifest is set by this variable".to_owned();
        wrong(name, message, near.map(|near| format!("did you mean {near}?")))
    });
    let twice = overrides
        .said_twice()
        .into_iter()
        .map(|(short, long, path)| wrong(short, format!("{path} is set by {long}, too; keep one"), None));
    strangers.chain(twice).collect()
}

/// Lays one value over the tree.
fn lay<'t>(
    root: &mut Node<'t>,
    sources: &'t Sources,
    index: usize,
    setting: &Setting,
    findings: &mut Findings<'_>,
) {
    let (key, at) = sources.ranges(index, setting);
    let Some(mut value) = valued(&setting.path, &sources.text()[at.clone()], at.start, findings) else {
        return;
    };
    let parts: Vec<&str> = setting.path.split('.').collect();
    relative_to_here(&mut value, parts.last().copied().unwrap_or_default());
    insert(root, &parts, &key, value);
    if setting.implies_nats {
        let kind = scalar(Cow::Borrowed("nats"), at, ScalarStyle::DoubleQuoted);
        insert(root, &["broker", "kind"], &key, kind);
    }
}

/// What the text says as the value of the key; `None` where it is told what is wrong.
fn valued<'t>(path: &str, text: &'t str, begin: usize, findings: &mut Findings<'_>) -> Option<Node<'t>> {
    let all = begin..begin + text.len();
    let trimmed = text.trim();
    let verbatim = |style| scalar(Cow::Borrowed(trimmed), all.clone(), style);
    match keys::written(path) {
        // Of one that is not known its name is what is wrong.
        Some(Written::Text) | None => Some(verbatim(ScalarStyle::DoubleQuoted)),
        Some(Written::Plain) => Some(verbatim(ScalarStyle::Plain)),
        Some(Written::AnyOrList) if trimmed == "any" => Some(verbatim(ScalarStyle::DoubleQuoted)),
        Some(Written::List | Written::AnyOrList) if !trimmed.starts_with('[') => {
            let mut items = Vec::new();
            let mut at = begin;
            for item in text.split(',') {
                let span = at..at + item.len();
                at = span.end + 1;
                items.push(scalar(
                    Cow::Borrowed(item.trim()),
                    span,
                    ScalarStyle::DoubleQuoted,
                ));
            }
            Some(Node {
                span: all,
                value: Value::List(items),
            })
        }
        Some(Written::List | Written::AnyOrList | Written::Map) => {
            let mut own = Findings::new("", text);
            let mut parsed = yaml::parse(text, &mut own);
            for told in own.into_sorted() {
                let span = told.span.start + begin..told.span.end + begin;
                findings.error(told.code, span, told.message).help(told.help);
            }
            if let Some(node) = &mut parsed {
                shift(node, begin);
            }
            parsed
        }
    }
}

fn scalar(text: Cow<'_, str>, span: Range<usize>, style: ScalarStyle) -> Node<'_> {
    Node {
        span,
        value: Value::Scalar(Scalar { text, style }),
    }
}

fn shift(node: &mut Node<'_>, by: usize) {
    let moved = |span: &Range<usize>| span.start + by..span.end + by;
    node.span = moved(&node.span);
    match &mut node.value {
        Value::Scalar(_) => {}
        Value::List(items) => items.iter_mut().for_each(|item| shift(item, by)),
        Value::Map(entries) => {
            for entry in entries {
                entry.key_span = moved(&entry.key_span);
                shift(&mut entry.value, by);
            }
        }
    }
}

/// Paths that are not written in the manifest have nothing to do with its folder.
fn relative_to_here(node: &mut Node<'_>, name: &str) {
    match &mut node.value {
        Value::Scalar(scalar) if keys::names_a_file(name) && !scalar.text.is_empty() => {
            if let Ok(path) = std::path::absolute(&*scalar.text) {
                scalar.text = Cow::Owned(path.to_string_lossy().into_owned());
            }
        }
        Value::Scalar(_) | Value::List(_) => {}
        Value::Map(entries) => {
            for entry in entries {
                let key = entry.key.clone();
                relative_to_here(&mut entry.value, &key);
            }
        }
    }
}

/// Puts the value where the path leads, with what is missing on the way. Where no map is, nothing is put: that is told anyway.
fn insert<'t>(node: &mut Node<'t>, path: &[&str], key: &Range<usize>, value: Node<'t>) {
    let (Value::Map(entries), Some((first, rest))) = (&mut node.value, path.split_first()) else {
        return;
    };
    let index = entries
        .iter()
        .position(|entry| entry.key == *first)
        .unwrap_or_else(|| {
            entries.push(Entry {
                key: Cow::Owned((*first).to_owned()),
                key_span: key.clone(),
                value: Node {
                    span: key.clone(),
                    value: Value::Map(Vec::new()),
                },
            });
            entries.len() - 1
        });
    let entry = &mut entries[index];
    if !rest.is_empty() {
        return insert(&mut entry.value, rest, key, value);
    }
    entry.key_span = key.clone();
    fill_up(&mut entry.value, value);
}

/// Replaces a value; of a map only the members that the other one has.
fn fill_up<'t>(node: &mut Node<'t>, value: Node<'t>) {
    match (&mut node.value, value.value) {
        (Value::Map(entries), Value::Map(others)) => {
            for other in others {
                match entries.iter_mut().find(|entry| entry.key == other.key) {
                    Some(entry) => {
                        entry.key_span = other.key_span;
                        fill_up(&mut entry.value, other.value);
                    }
                    None => entries.push(other),
                }
            }
        }
        (_, other) => {
            *node = Node {
                span: value.span,
                value: other,
            };
        }
    }
}

/// Tells of secrets that everybody may read who may read the manifest, or the command lines of this machine.
fn inline_secrets(root: &Node<'_>, sources: &Sources, findings: &mut Findings<'_>) {
    for key in keys::all().into_iter().filter(|key| key.is_secret) {
        let Some(value) = at(root, &key.path) else {
            continue;
        };
        let place = match sources.origin(value.span.start) {
            Origin::Variable => continue,
            Origin::File => "in the manifest, where others can read it",
            Origin::Flag => "on the command line, where other processes can read it",
        };
        let name = &key.path;
        let variable = keys::variable(name).unwrap_or_default();
        findings
            .error(
                mistakes::INLINE_SECRET,
                value.span.clone(),
                format!("{name} is {place}"),
            )
            .help(Some(format!(
                "put it into a file and write {name}_file, or set the variable {variable}"
            )));
    }
}

/// The value at a path.
fn at<'n, 't>(root: &'n Node<'t>, path: &str) -> Option<&'n Node<'t>> {
    path.split('.').try_fold(root, |node, part| match &node.value {
        Value::Map(entries) => entries
            .iter()
            .find(|entry| entry.key == part)
            .map(|entry| &entry.value),
        Value::List(_) | Value::Scalar(_) => None,
    })
}
