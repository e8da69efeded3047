//! What a stream must be, what it is, and the difference.
//!
//! A stream of ours has to match in every point that could lose, refuse or alter messages. A stream of
//! others only has to carry the subjects and hand out every message that it still keeps: how long it keeps
//! them is its owner's choice.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::ports::broker::{BrokerError, DroppingLimit, StreamIdentity, StreamSpec, StreamState};

use super::api::{StreamInfo, nanos};
use super::error::ApiError;
use super::link::Link;
use super::message::time_ms;

/// Within it, a message id is remembered.
const DUPLICATE_WINDOW: Duration = Duration::from_mins(2);

pub(super) type Config = Map<String, Value>;

/// Creates the stream, or brings it to `spec` if it is ours; then compares what the server really keeps.
///
/// `batches`: whether it has to take atomic batches; otherwise it may.
pub(super) async fn ensure(
    link: &Link,
    spec: &StreamSpec,
    batches: bool,
) -> Result<StreamState, BrokerError> {
    let failed = |error: ApiError| error.into_broker_error(&spec.name);
    let missing = match link.stream_info(&spec.name).await {
        Ok(info) => {
            let differences = differences(spec, batches, &info.config);
            if !differences.is_empty() && !spec.foreign {
                update(link, spec, batches, info.config).await?;
            }
            false
        }
        Err(ApiError::Failed(failure)) if failure.no_stream() => true,
        Err(error) => return Err(failed(error)),
    };
    if missing {
        let config = Value::Object(required(spec, batches));
        let _: Value = link
            .api(&format!("STREAM.CREATE.{}", spec.name), &config)
            .await
            .map_err(failed)?;
    }
    let info = link.stream_info(&spec.name).await.map_err(failed)?;
    let differences = differences(spec, batches, &info.config);
    if differences.is_empty() {
        return state(&spec.name, &info);
    }
    Err(BrokerError::Mismatch {
        stream: spec.name.clone(),
        differences,
    })
}

/// Overrides what must be so and leaves the rest (placement, limits on bytes, description) as it is.
async fn update(
    link: &Link,
    spec: &StreamSpec,
    batches: bool,
    mut config: Config,
) -> Result<(), BrokerError> {
    config.extend(required(spec, batches));
    let _: Value = link
        .api(&format!("STREAM.UPDATE.{}", spec.name), &Value::Object(config))
        .await
        .map_err(|error| error.into_broker_error(&spec.name))?;
    Ok(())
}

pub(super) async fn check(link: &Link, spec: &StreamSpec, batches: bool) -> Result<Vec<String>, BrokerError> {
    let info = link
        .stream_info(&spec.name)
        .await
        .map_err(|error| error.into_broker_error(&spec.name))?;
    Ok(differences(spec, batches, &info.config))
}

pub(super) async fn read_state(link: &Link, stream: &str) -> Result<StreamState, BrokerError> {
    let info = link
        .stream_info(stream)
        .await
        .map_err(|error| error.into_broker_error(stream))?;
    state(stream, &info)
}

fn state(stream: &str, info: &StreamInfo) -> Result<StreamState, BrokerError> {
    let created_ns = info
        .created
        .parse::<Timestamp>()
        .ok()
        .and_then(|time| i64::try_from(time.as_nanosecond()).ok())
        .ok_or_else(|| {
            BrokerError::Refused(format!(
                "stream {stream} has the creation time {:?}",
                info.created
            ))
        })?;
    let told = time_ms(&info.ts)
        .ok_or_else(|| BrokerError::Refused(format!("the server tells stream {stream} at {:?}", info.ts)))?;
    let counts = &info.state;
    Ok(StreamState {
        identity: StreamIdentity {
            name: stream.to_owned(),
            created_ns,
        },
        first_sequence: if counts.messages == 0 {
            counts.last_seq + 1
        } else {
            counts.first_seq
        },
        last_sequence: counts.last_seq,
        last_time: if counts.messages == 0 {
            None
        } else {
            time_ms(&counts.last_ts)
        },
        messages: counts.messages,
        bytes: counts.bytes,
        told,
    })
}

/// Removes all messages below `sequence`.
///
/// The API takes 0 for "all", and a sequence beyond the end moves the end there; neither is ever sent.
pub(super) async fn trim(link: &Link, stream: &str, sequence: u64) -> Result<(), BrokerError> {
    let state = read_state(link, stream).await?;
    let sequence = sequence.min(state.last_sequence + 1);
    if sequence <= state.first_sequence {
        return Ok(());
    }
    let _: Value = link
        .api(&format!("STREAM.PURGE.{stream}"), &json!({ "seq": sequence }))
        .await
        .map_err(|error| error.into_broker_error(stream))?;
    Ok(())
}

/// The settings that make a stream what `spec` asks for.
fn required(spec: &StreamSpec, batches: bool) -> Config {
    let value = json!({
        "name": spec.name,
        "subjects": spec.subjects,
        "retention": "limits",
        "discard": "new",
        "discard_new_per_subject": false,
        "storage": "file",
        "num_replicas": spec.replicas,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": spec.message_bytes_max,
        "duplicate_window": nanos(DUPLICATE_WINDOW),
        "allow_direct": true,
        "allow_rollup_hdrs": false,
        "allow_msg_ttl": false,
        "allow_msg_schedules": false,
        "allow_msg_counter": false,
        "deny_purge": false,
        "no_ack": false,
        "sealed": false,
    });
    let mut config = match value {
        Value::Object(config) => config,
        _ => Config::new(),
    };
    if batches {
        config.insert("allow_atomic".to_owned(), Value::Bool(true));
    }
    config
}

/// Settings that a stream of ours must not have at all.
const FORBIDDEN: [&str; 3] = ["mirror", "sources", "subject_transform"];

/// One line for each difference that matters.
fn differences(spec: &StreamSpec, batches: bool, stored: &Config) -> Vec<String> {
    if spec.foreign {
        foreign_differences(spec, stored)
    } else {
        own_differences(spec, batches, stored)
    }
}

fn own_differences(spec: &StreamSpec, batches: bool, stored: &Config) -> Vec<String> {
    let mut differences = compare(required(spec, batches), stored);
    for name in FORBIDDEN {
        if let Some(found) = stored.get(name).filter(|found| !is_void(found)) {
            differences.push(format!("{name} is {found}, expected none"));
        }
    }
    if stored.get("persist_mode").and_then(Value::as_str) == Some("async") {
        differences.push("persist_mode is \"async\", expected \"default\"".to_owned());
    }
    differences
}

/// One line for each setting of `required` that is stored as something else.
pub(super) fn compare(required: Config, stored: &Config) -> Vec<String> {
    let mut differences = Vec::new();
    for (name, wanted) in required {
        let found = stored.get(&name).unwrap_or(&Value::Null);
        let same = match wanted {
            // The server leaves out what is false.
            Value::Bool(false) => matches!(found, Value::Null | Value::Bool(false)),
            Value::Number(ref zero) if zero.as_u64() == Some(0) => found.is_null() || *found == wanted,
            Value::Array(_) => subject_set(found) == subject_set(&wanted),
            ref other => found == other,
        };
        if !same {
            differences.push(format!("{name} is {found}, expected {wanted}"));
        }
    }
    differences
}

fn foreign_differences(spec: &StreamSpec, stored: &Config) -> Vec<String> {
    let mut differences = Vec::new();
    let subjects = subject_set(stored.get("subjects").unwrap_or(&Value::Null));
    for wanted in &spec.subjects {
        if !subjects.iter().any(|subject| overlap(subject, wanted)) {
            differences.push(format!("no subject of it matches {wanted}"));
        }
    }
    let retention = stored.get("retention").unwrap_or(&Value::Null);
    if retention != "limits" {
        differences.push(format!(
            "retention is {retention}, expected \"limits\"; others would remove messages before they are read"
        ));
    }
    let per_subject = stored.get("max_msgs_per_subject").and_then(Value::as_i64);
    if let Some(kept @ 1..) = per_subject {
        differences.push(format!(
            "max_msgs_per_subject is {kept}, expected -1; a newer message would replace one that was not yet read"
        ));
    }
    for name in REMOVING {
        if stored.get(name) == Some(&Value::Bool(true)) {
            differences.push(format!(
                "{name} is true, expected false; producers could remove messages that were not yet read"
            ));
        }
    }
    differences
}

/// What a producer may switch on for a message, so that it goes, or lets others go, before it is read.
const REMOVING: [&str; 3] = ["allow_msg_ttl", "allow_rollup_hdrs", "allow_msg_schedules"];

pub(super) async fn dropping_limits(link: &Link, stream: &str) -> Result<Vec<DroppingLimit>, BrokerError> {
    let info = link
        .stream_info(stream)
        .await
        .map_err(|error| error.into_broker_error(stream))?;
    Ok(limits(&info.config))
}

/// The limits that drop messages from the beginning.
fn limits(stored: &Config) -> Vec<DroppingLimit> {
    let number = |name: &str| {
        let value = stored.get(name).and_then(Value::as_i64);
        value.filter(|value| *value > 0)
    };
    let mut limits = Vec::new();
    if let Some(age) = number("max_age") {
        limits.push(DroppingLimit {
            name: "max_age",
            value: format!("{:?}", Duration::from_nanos(age.unsigned_abs())),
        });
    }
    // With `new` a full stream refuses what comes, and keeps what it has.
    if stored.get("discard").and_then(Value::as_str) == Some("new") {
        return limits;
    }
    for name in ["max_msgs", "max_bytes"] {
        if let Some(value) = number(name) {
            limits.push(DroppingLimit {
                name,
                value: format!("{value} with discard \"old\""),
            });
        }
    }
    limits
}

fn is_void(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn subject_set(value: &Value) -> BTreeSet<&str> {
    value
        .as_array()
        .map(|subjects| subjects.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

/// Whether some subject matches both patterns.
fn overlap(left: &str, right: &str) -> bool {
    let (mut left, mut right) = (left.split('.'), right.split('.'));
    loop {
        match (left.next(), right.next()) {
            (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(foreign: bool) -> StreamSpec {
        StreamSpec {
            name: "S".to_owned(),
            subjects: vec!["a.>".to_owned(), "b.*".to_owned()],
            replicas: 1,
            message_bytes_max: 1_024,
            foreign,
        }
    }

    fn with(spec: &StreamSpec, name: &str, value: Value) -> Config {
        let mut config = required(spec, false);
        config.insert(name.to_owned(), value);
        config
    }

    #[test]
    fn a_stream_as_required_has_no_differences() {
        let spec = spec(false);
        assert_eq!(
            differences(&spec, false, &required(&spec, false)),
            Vec::<String>::new()
        );
        let swapped = with(&spec, "subjects", json!(["b.*", "a.>"]));
        assert_eq!(differences(&spec, false, &swapped), Vec::<String>::new());
    }

    #[test]
    fn every_setting_that_could_lose_messages_is_a_difference_in_a_stream_of_ours() {
        let spec = spec(false);
        for (name, value) in [
            ("retention", json!("workqueue")),
            ("discard", json!("old")),
            ("storage", json!("memory")),
            ("max_age", json!(1)),
            ("max_msgs_per_subject", json!(1)),
            ("max_msg_size", json!(512)),
            ("num_replicas", json!(3)),
            ("duplicate_window", json!(1)),
            ("allow_direct", json!(false)),
            ("allow_rollup_hdrs", json!(true)),
            ("allow_msg_ttl", json!(true)),
            ("allow_msg_schedules", json!(true)),
            ("no_ack", json!(true)),
            ("sealed", json!(true)),
            ("deny_purge", json!(true)),
            ("subjects", json!(["a.>"])),
            ("mirror", json!({"name": "O"})),
            ("sources", json!([{"name": "O"}])),
            ("subject_transform", json!({"src": "a", "dest": "b"})),
            ("persist_mode", json!("async")),
        ] {
            let found = differences(&spec, false, &with(&spec, name, value));
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].starts_with(name), "{found:?}");
        }
    }

    #[test]
    fn a_foreign_stream_may_forget_by_age_but_not_by_reader_or_subject() {
        let spec = spec(true);
        for (name, value, count) in [
            ("max_age", json!(1_000), 0),
            ("discard", json!("old"), 0),
            ("storage", json!("memory"), 0),
            ("subjects", json!([">"]), 0),
            ("subjects", json!(["a.x.>", "b.y"]), 0),
            ("subjects", json!(["c.>"]), 2),
            ("retention", json!("interest"), 1),
            ("max_msgs_per_subject", json!(1), 1),
            ("allow_msg_ttl", json!(true), 1),
            ("allow_rollup_hdrs", json!(true), 1),
            ("allow_msg_schedules", json!(true), 1),
        ] {
            let found = differences(&spec, false, &with(&spec, name, value));
            assert_eq!(found.len(), count, "{name}: {found:?}");
        }
    }

    #[test]
    fn limits_that_drop_messages_are_told() {
        let named = |config: Value| -> Vec<&'static str> {
            let Value::Object(config) = config else {
                panic!("a map");
            };
            limits(&config).into_iter().map(|limit| limit.name).collect()
        };
        assert!(named(json!({"max_age": 0, "max_msgs": -1, "max_bytes": -1, "discard": "old"})).is_empty());
        assert_eq!(
            named(json!({"max_age": 1_000_000_000, "max_msgs": 5, "max_bytes": 5, "discard": "old"})),
            ["max_age", "max_msgs", "max_bytes"]
        );
        assert_eq!(
            named(json!({"max_age": 1_000_000_000, "max_msgs": 5, "max_bytes": 5, "discard": "new"})),
            ["max_age"]
        );
        let Value::Object(hour) = json!({"max_age": 3_600_000_000_000_u64}) else {
            panic!("a map");
        };
        assert_eq!(limits(&hour)[0].value, "3600s");
    }

    #[test]
    fn patterns_overlap_where_one_subject_matches_both() {
        for (left, right, expected) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            ("a.*.c", "a.b.*", true),
            ("a.b", "a.b.c", false),
            (">", "x", true),
            ("a.b", "b.b", false),
        ] {
            assert_eq!(overlap(left, right), expected, "{left} {right}");
            assert_eq!(overlap(right, left), expected, "{right} {left}");
        }
    }
}
