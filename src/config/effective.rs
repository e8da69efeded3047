//! The manifest that holds, value by value, and where each comes from.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::layers::Check;
use super::sources::{Sources, without_credentials};
use super::{ConfigError, Manifest, Overrides, keys, layers};
use crate::kernel::definition::yaml::{self, Node};

/// Largest manifest, in bytes.
const MANIFEST_BYTES_MAX: u64 = 1024 * 1024;
/// Where a value comes from that nobody has set.
const DEFAULT: &str = "default";

/// A manifest, and where its values come from.
#[derive(Debug)]
pub struct Effective {
    pub manifest: Manifest,
    /// By the paths of the values that were set.
    origins: BTreeMap<String, String>,
}

/// One value of a manifest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// Its names from the top, with points between them.
    pub key: String,
    /// What holds; `null` where nothing is set and there is no default.
    pub value: Value,
    /// `default`, `FILE:LINE`, or the name of the variable or the flag.
    pub origin: String,
    /// The variable that sets the key, where there is one.
    pub variable: Option<String>,
}

impl Effective {
    /// Reads the manifest at `path` and lays `overrides` over it.
    ///
    /// # Errors
    /// As [`Manifest::load`].
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        Self::load_checked(path, overrides, &|_| Vec::new())
    }

    /// The same, and `check` says what else is refused, told together with all that is wrong by itself.
    ///
    /// # Errors
    /// As [`Manifest::load`].
    pub fn load_checked(path: &Path, overrides: &Overrides, check: Check<'_>) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let size = std::fs::metadata(path).map_err(unreadable)?.len();
        if size > MANIFEST_BYTES_MAX {
            let message = format!("is {size} bytes long, at most {MANIFEST_BYTES_MAX} are allowed");
            return Err(unreadable(std::io::Error::other(message)));
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        layers::read_checked(&text, path, overrides, check)
    }

    pub(super) fn of(manifest: Manifest, root: &Node<'_>, sources: &Sources) -> Self {
        let mut origins = BTreeMap::new();
        collect(root, String::new(), sources, &mut origins);
        Self { manifest, origins }
    }

    /// Every value, by key.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        let mut values = BTreeMap::new();
        flatten(&self.value(), String::new(), &mut values);
        let mut lines: Vec<Line> = values
            .into_iter()
            .map(|(key, value)| Line {
                origin: self.origin(&key).to_owned(),
                variable: variable(&key),
                key,
                value,
            })
            .collect();
        lines.sort_by(|left, right| left.key.cmp(&right.key));
        lines
    }

    /// All of it as a manifest has it, without what is not set. What nobody may see is masked.
    #[must_use]
    pub fn document(&self) -> Value {
        let mut document = self.value();
        strip(&mut document);
        document
    }

    fn value(&self) -> Value {
        let mut value = serde_json::to_value(&self.manifest).expect("a manifest is plain data");
        mask(&mut value);
        value
    }

    /// Where the value comes from: it or a part of it was set.
    fn origin(&self, key: &str) -> &str {
        let below = format!("{key}.");
        let set = self.origins.get(key).or_else(|| {
            let mut parts = self.origins.range(below.clone()..);
            parts
                .next()
                .filter(|(path, _)| path.starts_with(&below))
                .map(|(_, origin)| origin)
        });
        set.map_or(DEFAULT, String::as_str)
    }
}

/// The variable that sets the key, or the map that it is in.
fn variable(key: &str) -> Option<String> {
    let known = keys::all();
    let of = known.iter().find(|known| {
        key == known.path
            || key
                .strip_prefix(&known.path)
                .is_some_and(|rest| rest.starts_with('.'))
    });
    of.and_then(|known| keys::variable(&known.path))
}

fn collect(node: &Node<'_>, path: String, sources: &Sources, origins: &mut BTreeMap<String, String>) {
    match &node.value {
        yaml::Value::Map(entries) if !entries.is_empty() => {
            for entry in entries {
                collect(&entry.value, below(&path, &entry.key), sources, origins);
            }
        }
        yaml::Value::Map(_) | yaml::Value::List(_) | yaml::Value::Scalar(_) => {
            origins.insert(path, sources.told(node.span.start));
        }
    }
}

fn flatten(value: &Value, path: String, values: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, member) in members {
                flatten(member, below(&path, name), values);
            }
        }
        value => drop(values.insert(path, value.clone())),
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Takes users and passwords out of addresses; what is marked as secret is masked by its type.
fn mask(value: &mut Value) {
    match value {
        Value::String(text) => *text = without_credentials(text),
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Object(members) => members.values_mut().for_each(mask),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Takes out what is not set.
fn strip(value: &mut Value) {
    if let Value::Object(members) = value {
        members.values_mut().for_each(strip);
        members.retain(|_, member| !member.is_null() && *member != Value::Object(serde_json::Map::new()));
    }
}
