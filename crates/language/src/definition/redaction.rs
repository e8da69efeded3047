//! What nobody may see of the values that an effect handles: `redact` of an effect file.

use serde_json::Value as JsonValue;

use super::codes;
use super::effect::{EffectSchemas, Provider};
use super::fields;
use super::findings::Findings;
use super::yaml::{Entry, Node};
use crate::expr::types::{Env, Type};
use crate::expr::{Root, nearest};
use crate::json::Json;
use crate::schema::Schema;

/// What stands in the place of a value that nobody may see.
pub const MASK: &str = "***";

const ROOTS: [&str; 3] = ["input", "response", "result"];
const PATHS_MAX: usize = 64;
/// Deepest path, in names below its root.
const NAMES_MAX: usize = 16;

/// Where values are that nobody may see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redaction {
    pub input: Vec<FieldPath>,
    pub response: Vec<FieldPath>,
    pub result: Vec<FieldPath>,
}

/// The names that lead from a root to a value. A list on the way stands for all of its items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath(Vec<String>);

impl FieldPath {
    /// All texts and numbers at the path and below, as they stand in texts.
    pub fn values(&self, root: &Json<'_>, found: &mut Vec<String>) {
        values_at(&self.0, root, found);
    }

    /// The value with asterisks at the path.
    #[must_use]
    pub fn hide<'a>(&self, root: Json<'a>) -> Json<'a> {
        hidden(&self.0, root)
    }

    /// The same for a value of `serde_json`.
    pub fn hide_value(&self, root: &mut JsonValue) {
        hide_value(&self.0, root);
    }
}

fn values_at(names: &[String], value: &Json<'_>, found: &mut Vec<String>) {
    match (value, names) {
        (Json::List(items), _) => items.iter().for_each(|item| values_at(names, item, found)),
        (Json::Map(members), []) => members.iter().for_each(|(_, value)| values_at(&[], value, found)),
        (value @ Json::Map(_), [name, rest @ ..]) => {
            if let Some(value) = value.get(name) {
                values_at(rest, value, found);
            }
        }
        (Json::Str(text), []) => found.push(text.to_string()),
        (number @ (Json::Int(_) | Json::Double(_)), []) => {
            let mut bytes = Vec::new();
            number.write(&mut bytes);
            found.push(String::from_utf8_lossy(&bytes).into_owned());
        }
        (Json::Null | Json::Bool(_), []) | (_, [_, ..]) => {}
    }
}

fn hidden<'a>(names: &[String], value: Json<'a>) -> Json<'a> {
    match (value, names) {
        (Json::Null, _) => Json::Null,
        (_, []) => Json::Str(MASK.into()),
        (Json::List(items), names) => Json::List(items.into_iter().map(|item| hidden(names, item)).collect()),
        (Json::Map(members), [name, rest @ ..]) => Json::Map(
            members
                .into_iter()
                .map(|(member, value)| {
                    let value = if member == **name {
                        hidden(rest, value)
                    } else {
                        value
                    };
                    (member, value)
                })
                .collect(),
        ),
        (other, [_, ..]) => other,
    }
}

fn hide_value(names: &[String], value: &mut JsonValue) {
    match (value, names) {
        (JsonValue::Null, _) => {}
        (value, []) => *value = JsonValue::String(MASK.to_owned()),
        (JsonValue::Array(items), names) => items.iter_mut().for_each(|item| hide_value(names, item)),
        (JsonValue::Object(members), [name, rest @ ..]) => {
            if let Some(value) = members.get_mut(name) {
                hide_value(rest, value);
            }
        }
        (_, [_, ..]) => {}
    }
}

/// Reads the paths. What they lead to is checked as far as schemas tell.
pub fn read(
    entry: &Entry<'_>,
    provider: Option<&Provider>,
    schemas: &EffectSchemas,
    env: &Env,
    findings: &mut Findings<'_>,
) -> Redaction {
    let items = fields::one_or_many(&entry.value);
    if items.len() > PATHS_MAX {
        let message = format!("there are more than {PATHS_MAX} paths");
        findings.error(codes::WRONG_VALUE, entry.key_span.clone(), message);
    }
    let mut redaction = Redaction::default();
    for item in items {
        let Some((root, path)) = path(item, entry, findings) else {
            continue;
        };
        let of = |schema: Option<&Schema>| schema.map_or_else(Type::dynamic, Type::of_schema);
        let (known, list) = match root {
            "input" => (of(schemas.input.as_deref()), &mut redaction.input),
            "response" => (env.root(Root::Response).clone(), &mut redaction.response),
            _ => (of(schemas.output.as_deref()), &mut redaction.result),
        };
        if let Some(why) = provider.and_then(|provider| absent(provider, root)) {
            findings.error(codes::CONTRADICTION, item.span.clone(), why);
            continue;
        }
        leads_somewhere(&path, root, known, item, findings);
        list.push(path);
    }
    redaction
}

/// Why the runner never sees a root of such an effect.
fn absent(provider: &Provider, root: &str) -> Option<&'static str> {
    match (provider, root) {
        (Provider::Transform | Provider::Custom(_), "response") => Some("there is no `response` here"),
        (Provider::External, "input" | "response") => Some(
            "of an external effect the runner sees the result only; its workers keep the rest to themselves",
        ),
        _ => None,
    }
}

fn path<'n>(
    item: &'n Node<'_>,
    entry: &Entry<'_>,
    findings: &mut Findings<'_>,
) -> Option<(&'n str, FieldPath)> {
    let text = fields::text(item, &entry.key_span, "a path such as input.card", findings)?;
    let mut names = text.split('.');
    let root = names.next().unwrap_or_default();
    let names: Vec<String> = names.map(str::to_owned).collect();
    if !ROOTS.contains(&root) {
        let help = match nearest(root, ROOTS) {
            Some(near) => format!("did you mean \"{near}\"? A path begins with input, response or result"),
            None => "a path begins with input, response or result".to_owned(),
        };
        let message = format!("\"{}\" leads nowhere", text.escape_debug());
        findings
            .error(codes::WRONG_VALUE, item.span.clone(), message)
            .help(Some(help));
        return None;
    }
    let legal = |c: char| c.is_alphanumeric() || "_-$@:/".contains(c);
    let is_name = |name: &String| !name.is_empty() && name.chars().all(legal);
    if names.len() > NAMES_MAX || !names.iter().all(is_name) {
        let message = format!("\"{}\" is not a path", text.escape_debug());
        findings.error(codes::WRONG_VALUE, item.span.clone(), message).help(Some(format!(
            "names with dots between them, at most {NAMES_MAX}; a list on the way stands for all of its items"
        )));
        return None;
    }
    Some((root, FieldPath(names)))
}

/// Follows the path through what schemas tell.
fn leads_somewhere(path: &FieldPath, root: &str, known: Type, item: &Node<'_>, findings: &mut Findings<'_>) {
    let mut known = known;
    let mut walked = root.to_owned();
    for name in &path.0 {
        match known.below(name) {
            Ok(below) => known = below,
            Err(help) => {
                let message = format!("{walked} has no field \"{name}\"");
                findings
                    .error(codes::UNKNOWN_FIELD, item.span.clone(), message)
                    .help(help);
                return;
            }
        }
        walked = format!("{walked}.{name}");
    }
}

impl Redaction {
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.input.is_empty() && self.response.is_empty() && self.result.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str) -> FieldPath {
        FieldPath(
            path.split('.')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }

    const CARDS: &str = r#"{"cards":[{"cvv":123,"pan":"4111"},{"pan":null},7],"name":"A","ok":true}"#;

    #[test]
    fn paths_lead_through_lists_to_all_that_is_below() {
        let root = Json::parse(CARDS.as_bytes(), 8).expect("JSON");
        let values = |path: &str| {
            let mut found = Vec::new();
            at(path).values(&root, &mut found);
            found
        };
        assert_eq!(values("cards.pan"), ["4111"]);
        assert_eq!(values("cards"), ["123", "4111", "7"]);
        assert_eq!(values(""), ["123", "4111", "7", "A"]);
        assert!(values("cards.pan.x").is_empty() && values("nothing").is_empty() && values("ok").is_empty());
    }

    #[test]
    fn a_redacted_path_hides_values_of_every_kind() {
        for (path, expected) in [
            (
                "cards.pan",
                r#"{"cards":[{"cvv":123,"pan":"***"},{"pan":null},7],"name":"A","ok":true}"#,
            ),
            ("cards", r#"{"cards":"***","name":"A","ok":true}"#),
            (
                "ok",
                r#"{"cards":[{"cvv":123,"pan":"4111"},{"pan":null},7],"name":"A","ok":"***"}"#,
            ),
            ("name.x", CARDS),
        ] {
            let mut bytes = Vec::new();
            at(path)
                .hide(Json::parse(CARDS.as_bytes(), 8).expect("JSON"))
                .write(&mut bytes);
            assert_eq!(String::from_utf8_lossy(&bytes), expected, "{path}");
            let mut value: JsonValue = serde_json::from_str(CARDS).expect("JSON");
            at(path).hide_value(&mut value);
            assert_eq!(value.to_string(), expected, "{path}");
        }
    }
}
