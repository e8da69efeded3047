//! Code, JSON Schemas, examples and page of the envelopes say the same.
//!
//! Prevents a renamed or newly required member from breaking workers and producers in other languages
//! unnoticed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use saga_runner::kernel::envelope::{
    AggregateCommand, AggregateEvent, CallbackMessage, CommandReply, ControlMessage, EffectCancellation,
    EffectCommand, EffectProgress, EffectResult, ForwardedEvent, WorkflowEvent,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Example and schema, by file name.
const EXAMPLES: [(&str, &str); 32] = [
    ("effect-cancellation", "effect-cancellation"),
    ("effect-progress", "effect-progress"),
    ("aggregate-event", "aggregate-event"),
    ("effect-command", "effect-command"),
    ("effect-result", "effect-result"),
    ("effect-result-failed", "effect-result"),
    ("aggregate-command", "aggregate-command"),
    ("command-reply", "command-reply"),
    ("command-reply-rejected", "command-reply"),
    ("workflow-event", "workflow-event"),
    ("callback", "callback"),
    ("control-cancel", "control-message"),
    ("control-drain", "control-message"),
    ("control-retry", "runner-control-message"),
    ("control-skip", "runner-control-message"),
    ("control-resolve", "runner-control-message"),
    ("control-signal", "control-message"),
    ("control-start", "control-message"),
    ("control-start-child", "runner-control-message"),
    ("control-cancel_child", "runner-control-message"),
    ("control-heartbeat", "runner-control-message"),
    ("control-outcome", "runner-control-message"),
    ("control-register-alias", "runner-control-message"),
    ("control-release-alias", "runner-control-message"),
    ("control-alias-answered", "runner-control-message"),
    ("control-kill", "runner-control-message"),
    ("control-delete", "runner-control-message"),
    ("control-fire-timer", "runner-control-message"),
    ("control-try-now", "runner-control-message"),
    ("control-rerun", "runner-control-message"),
    ("control-ask-alias", "runner-control-message"),
    ("forwarded-event", "forwarded-event"),
];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn example(name: &str) -> Value {
    serde_json::from_str(&read(&format!("tests/golden/envelopes/{name}.json"))).expect("JSON")
}

fn schema(name: &str) -> Value {
    serde_json::from_str(&read(&format!("docs/schemas/{name}.json"))).expect("JSON")
}

/// Reads the text as the envelope of this schema and writes it again.
fn through(schema: &str, text: &str) -> Result<Value, String> {
    fn again<'a, T: Deserialize<'a> + Serialize>(text: &'a str) -> Result<Value, String> {
        let envelope: T = serde_json::from_str(text).map_err(|error| error.to_string())?;
        serde_json::to_value(envelope).map_err(|error| error.to_string())
    }
    fn said(text: &str, may: fn(&ControlMessage) -> bool) -> Result<Value, String> {
        let message: ControlMessage = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if may(&message) {
            again::<ControlMessage>(text)
        } else {
            Err("not by this subject".to_owned())
        }
    }
    match schema {
        "aggregate-event" => again::<AggregateEvent<'_>>(text),
        "effect-command" => again::<EffectCommand<'_>>(text),
        "effect-result" => again::<EffectResult<'_>>(text),
        "effect-progress" => again::<EffectProgress>(text),
        "effect-cancellation" => again::<EffectCancellation>(text),
        "aggregate-command" => again::<AggregateCommand<'_>>(text),
        "command-reply" => again::<CommandReply>(text),
        "workflow-event" => again::<WorkflowEvent<'_>>(text),
        "callback" => again::<CallbackMessage>(text),
        "control-message" => said(text, ControlMessage::is_of_tenant),
        "runner-control-message" => said(text, ControlMessage::is_of_runner),
        "forwarded-event" => again::<ForwardedEvent<'_>>(text),
        other => panic!("no envelope {other}"),
    }
}

/// The part of JSON Schema that the schemas use, `pattern` and `description` aside.
fn valid(schema: &Value, value: &Value) -> Result<(), String> {
    let Value::Object(rules) = schema else {
        return if schema == &Value::Bool(true) {
            Ok(())
        } else {
            Err("nothing is allowed here".to_owned())
        };
    };
    let members = value.as_object();
    for (rule, wanted) in rules {
        let holds = match (rule.as_str(), wanted) {
            ("type", Value::String(kind)) => match kind.as_str() {
                "object" => value.is_object(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64() || value.is_u64(),
                other => return Err(format!("type {other} is not understood")),
            },
            ("enum", Value::Array(choices)) => choices.contains(value),
            ("minLength", length) => value
                .as_str()
                .is_none_or(|text| text.len() as u64 >= length.as_u64().unwrap_or(0)),
            ("maxLength", length) => value
                .as_str()
                .is_none_or(|text| text.len() as u64 <= length.as_u64().unwrap_or(0)),
            ("minimum", bound) => value.as_i64() >= bound.as_i64(),
            ("maximum", bound) => value.as_i64() <= bound.as_i64(),
            ("required", Value::Array(names)) => names
                .iter()
                .filter_map(Value::as_str)
                .all(|name| members.is_some_and(|members| members.contains_key(name))),
            ("additionalProperties", Value::Bool(false)) => members
                .is_none_or(|members| members.keys().all(|name| rules["properties"].get(name).is_some())),
            ("properties", Value::Object(properties)) => {
                for (name, part) in properties {
                    if let Some(value) = members.and_then(|members| members.get(name)) {
                        valid(part, value).map_err(|error| format!("{name}: {error}"))?;
                    }
                }
                true
            }
            ("if", condition) => {
                let branch = if valid(condition, value).is_ok() {
                    "then"
                } else {
                    "else"
                };
                if let Some(branch) = rules.get(branch) {
                    valid(branch, value)?;
                }
                true
            }
            ("allOf", Value::Array(parts)) => {
                for part in parts {
                    valid(part, value)?;
                }
                true
            }
            ("$schema" | "title" | "description" | "format" | "pattern" | "then" | "else", _) => true,
            (other, _) => return Err(format!("rule {other} is not understood")),
        };
        if !holds {
            return Err(format!("{rule} {wanted} does not hold for {value}"));
        }
    }
    Ok(())
}

#[test]
fn examples_are_read_and_written_without_loss() {
    for (name, kind) in EXAMPLES {
        let value = example(name);
        assert_eq!(through(kind, &value.to_string()), Ok(value), "{name}");
    }
}

#[test]
fn examples_keep_their_schema() {
    for (name, kind) in EXAMPLES {
        assert_eq!(valid(&schema(kind), &example(name)), Ok(()), "{name}");
    }
}

#[test]
fn the_code_requires_exactly_the_fields_that_a_schema_requires() {
    for (name, kind) in EXAMPLES {
        let (whole, schema) = (example(name), schema(kind));
        for member in whole.as_object().expect("a map").keys() {
            let mut part = whole.clone();
            part.as_object_mut().expect("a map").remove(member);
            let read = through(kind, &part.to_string());
            assert_eq!(
                valid(&schema, &part).is_ok(),
                read.is_ok(),
                "{name} without {member}: {read:?}"
            );
        }
        let metadata = whole.get("metadata").and_then(Value::as_object);
        for member in metadata.into_iter().flat_map(|members| members.keys()) {
            let mut part = whole.clone();
            part["metadata"].as_object_mut().expect("a map").remove(member);
            let read = through(kind, &part.to_string());
            assert_eq!(
                valid(&schema, &part).is_ok(),
                read.is_ok(),
                "{name} without {member}: {read:?}"
            );
        }
    }
}

#[test]
fn every_member_of_the_code_is_in_the_schema() {
    for (name, kind) in EXAMPLES {
        let schema = schema(kind);
        let named = |value: &Value, schema: &Value| {
            let known: BTreeSet<_> = schema["properties"]
                .as_object()
                .expect("properties")
                .keys()
                .collect();
            for member in value.as_object().expect("a map").keys() {
                assert!(known.contains(member), "{name}: {member} is not in schema {kind}");
            }
        };
        let written = through(kind, &example(name).to_string()).expect("readable");
        named(&written, &schema);
        if let Some(metadata) = written.get("metadata") {
            named(metadata, &schema["properties"]["metadata"]);
        }
    }
}

#[test]
fn unknown_members_are_an_error_in_control_messages_only() {
    for (name, kind) in EXAMPLES {
        let mut value = example(name);
        value["surprise"] = Value::Bool(true);
        let read = through(kind, &value.to_string());
        assert_eq!(
            read.is_ok(),
            !kind.ends_with("control-message"),
            "{name}: {read:?}"
        );
        assert_eq!(valid(&schema(kind), &value).is_ok(), read.is_ok(), "{name}");
    }
    let reason = r#"{"request_id":"r","control":"signal","name":"go","reason":"none"}"#;
    assert!(through("control-message", reason).is_err());
    let value = serde_json::from_str(reason).expect("JSON");
    assert!(valid(&schema("control-message"), &value).is_err());
}

#[test]
fn every_schema_is_on_the_page() {
    let page = read("docs/envelopes.md");
    for (_, kind) in EXAMPLES {
        assert!(page.contains(&format!("schemas/{kind}.json")), "{kind}");
    }
}
