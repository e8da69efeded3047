//! The JSON Schema of manifests has the keys that are read, and no other.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::{MANIFEST_SCHEMA, Manifest};
use crate::kernel::definition::schemas::{compile_text, json_of_text};

const PROBE: &str = "zzzzzzzz";

/// The keys that are read at `path`, as the refusal of another key lists them.
fn read_keys(path: &[&str]) -> BTreeSet<String> {
    let probe = json!({PROBE: 1});
    let document = path.iter().rev().fold(probe, |below, key| json!({*key: below}));
    let refusal = serde_json::from_value::<Manifest>(document)
        .expect_err("the key is unknown")
        .to_string();
    let (_, expected) = refusal
        .split_once("expected")
        .unwrap_or_else(|| panic!("{path:?}: {refusal}"));
    assert!(refusal.contains(PROBE), "{path:?}: {refusal}");
    expected
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn compare(path: &[&str], schema: &Value, faults: &mut Vec<String>) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let told: BTreeSet<String> = properties.keys().cloned().collect();
    let read = read_keys(path);
    if told != read {
        faults.push(format!("{path:?}: the schema has {told:?}, read are {read:?}"));
    }
    for (key, property) in properties {
        let path: Vec<&str> = path.iter().copied().chain([key.as_str()]).collect();
        compare(&path, property, faults);
    }
}

#[test]
fn the_schema_has_the_keys_that_are_read_and_no_other() {
    let schema: Value = serde_json::from_str(MANIFEST_SCHEMA).expect("JSON");
    let mut faults = Vec::new();
    compare(&[], &schema, &mut faults);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_shipped_manifest_validates_and_a_slip_does_not() {
    let schema = compile_text("schema", &MANIFEST_SCHEMA.into()).expect("a schema");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in [
        "config/saga-runner.yaml",
        "config/compose.yaml",
        "src/cli/init/saga-runner.yaml",
    ] {
        let text = std::fs::read_to_string(root.join(path)).expect("readable");
        let manifest = json_of_text(path, &text).expect("YAML");
        schema
            .check(&manifest)
            .unwrap_or_else(|violation| panic!("{path}: {violation}"));
        let read = Manifest::load(&root.join(path), &super::Overrides::default());
        assert!(read.is_ok(), "{path}: {read:?}");
    }
    let slip = json_of_text(
        "slip",
        "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: a\nshrads: 1\n",
    );
    let said = schema
        .check(&slip.expect("YAML"))
        .expect_err("a slip")
        .to_string();
    assert_eq!(said, "shrads: is not a member that is allowed");
}

#[test]
fn a_gateway_is_in_one_place() {
    let schema = compile_text("schema", &MANIFEST_SCHEMA.into()).expect("a schema");
    let head = "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: a\nbroker: {kind: nats}\ngateway: ";
    for (gateway, is_one) in [
        ("{url: \"http://a\"}", true),
        ("{grpc: \"http://a\", timeout: 3s}", true),
        ("{nats: gateway.all}", true),
        ("{timeout: 3s}", false),
        ("{url: \"http://a\", grpc: \"http://b\"}", false),
    ] {
        let text = format!("{head}{gateway}\n");
        let manifest = json_of_text("manifest", &text).expect("YAML");
        assert_eq!(schema.check(&manifest).is_ok(), is_one, "{gateway}");
        let read = Manifest::parse(&text, Path::new("test.yaml"), &super::Overrides::default());
        assert_eq!(read.is_ok(), is_one, "{gateway}: the loader says otherwise");
    }
}
