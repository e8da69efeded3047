//! The keys of the manifest, as its schema has them: which there are, what their values are, and the variables that set them.

use std::sync::LazyLock;

use serde_json::Value;

use super::MANIFEST_SCHEMA;

/// What the variables begin with that set keys.
pub const PREFIX: &str = "SAGA_RUNNER_";
/// What every manifest begins with; no variable sets it.
const HEAD: [&str; 2] = ["apiVersion", "kind"];

static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(MANIFEST_SCHEMA).expect("the file is JSON"));

/// A key that has a value of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its names from the top, with points between them.
    pub path: String,
    /// Whether nobody may see its value.
    pub is_secret: bool,
}

/// How a value is written in a variable or a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// As it is.
    Text,
    /// As in the manifest: a number, or `true`.
    Plain,
    /// With commas between its items, or as in the manifest.
    List,
    /// The word `any`, or a list.
    AnyOrList,
    /// As in the manifest.
    Map,
}

/// The schema of manifests.
pub fn schema() -> &'static Value {
    &SCHEMA
}

/// The schema behind references to it.
fn resolved(schema: &'static Value) -> &'static Value {
    let of = schema["allOf"].get(0).unwrap_or(schema);
    match of["$ref"].as_str().and_then(|way| way.strip_prefix('#')) {
        Some(pointer) => SCHEMA.pointer(pointer).expect("the schema has what it refers to"),
        None => schema,
    }
}

/// Every key with a value of its own, in the order of the schema.
pub fn all() -> Vec<Key> {
    let mut keys = Vec::new();
    collect("", schema(), &mut keys);
    keys
}

fn collect(path: &str, schema: &'static Value, keys: &mut Vec<Key>) {
    let schema = resolved(schema);
    match schema["properties"].as_object() {
        Some(members) => {
            for (name, member) in members {
                let below = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                collect(&below, member, keys);
            }
        }
        None => keys.push(Key {
            path: path.to_owned(),
            is_secret: schema["writeOnly"] == true,
        }),
    }
}

/// The variable that sets the key; none for the head of a manifest.
pub fn variable(path: &str) -> Option<String> {
    let is_settable = !HEAD.contains(&path);
    is_settable.then(|| format!("{PREFIX}{}", path.replace('.', "_").to_ascii_uppercase()))
}

/// How the value at a path is written; `None` where the schema has no such path.
pub fn written(path: &str) -> Option<Written> {
    let mut at = schema();
    for part in path.split('.') {
        let named = at["properties"].get(part);
        let free = at.get("additionalProperties").filter(|free| free.is_object());
        at = resolved(named.or(free)?);
    }
    Some(match at["type"].as_str() {
        _ if at["anyOf"].is_array() && at["anyOf"][0].get("const").is_some() => Written::AnyOrList,
        Some("integer" | "number" | "boolean") => Written::Plain,
        Some("array") => Written::List,
        Some("object") => Written::Map,
        Some(_) | None => Written::Text,
    })
}

/// Whether the last name of a path says that its value is a path of the file system.
pub fn names_a_file(name: &str) -> bool {
    matches!(name, "sagas" | "effects" | "file") || name.ends_with("_file") || name.ends_with("_dir")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_two_keys_have_the_same_variable() {
        let mut by_variable: BTreeMap<String, String> = BTreeMap::new();
        for key in all() {
            if let Some(variable) = variable(&key.path) {
                let other = by_variable.insert(variable.clone(), key.path.clone());
                assert_eq!(other, None, "{variable} is that of {} too", key.path);
            }
        }
        assert_eq!(
            by_variable["SAGA_RUNNER_WORKER_EGRESS_ALLOW_PRIVATE"],
            "worker.egress.allow_private"
        );
        assert!(by_variable.len() > 120, "{}", by_variable.len());
    }

    #[test]
    fn how_a_value_is_written_follows_from_the_schema() {
        for (path, expected) in [
            ("shards", Some(Written::Plain)),
            ("relay.breaker.failure_rate", Some(Written::Plain)),
            ("streams.manage", Some(Written::Plain)),
            ("drain_timeout", Some(Written::Text)),
            ("broker.kind", Some(Written::Text)),
            ("broker.nats.urls", Some(Written::List)),
            ("tenants", Some(Written::AnyOrList)),
            ("upstreams", Some(Written::Map)),
            ("upstreams.bank", Some(Written::Text)),
            ("upstream_tls.bank.ca_file", Some(Written::Text)),
            ("secrets.pay", Some(Written::Map)),
            ("callbacks.key", Some(Written::Map)),
            ("broker", Some(Written::Map)),
            ("brokr.kind", None),
            ("shards.many", None),
        ] {
            assert_eq!(written(path), expected, "{path}");
        }
    }

    #[test]
    fn keys_whose_values_nobody_may_see_are_marked() {
        let secret: Vec<String> = all()
            .into_iter()
            .filter(|key| key.is_secret)
            .map(|key| key.path)
            .collect();
        assert_eq!(
            secret,
            [
                "broker.nats.nkey_seed",
                "broker.nats.password",
                "broker.nats.token"
            ]
        );
    }
}
