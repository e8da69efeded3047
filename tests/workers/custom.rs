//! Providers that a team compiles in: `examples/custom_provider.rs` in a runner of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use saga_runner::app::{Node, Registry, SystemClock, definitions};
use saga_runner::config::Manifest;
use saga_runner::kernel::envelope::{ConflictPolicy, Principal};
use saga_runner::kernel::ids::{InstanceId, Key, SagaName, TenantId};
use saga_runner::ports::control::{Instances, Patience, StartRequest};
use saga_runner::telemetry::Metrics;
use serde_json::json;

use crate::workers::example;

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: notes
input: {type: object, required: [text], properties: {text: {type: string}}}
state: {init: {text: "${input.text}", line: 0}}
steps:
  print:
    effect: note-print
    with: {text: "${state.text}"}
    set: {line: "${result.line}"}
    compensate: none
"#;

const EFFECT: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: note-print
input: {type: object, required: [text], properties: {text: {type: string}}}
output: {type: object, required: [line], properties: {line: {type: integer}}}
custom:
  provider: line-printer
  with: {text: "note: ${input.text}"}
timeout: {total: 5s}
"#;

fn node(dir: &Path, registry: Registry) -> Arc<Node> {
    for (folder, text) in [("sagas", SAGA), ("effects", EFFECT)] {
        std::fs::create_dir_all(dir.join(folder)).expect("created");
        std::fs::write(dir.join(folder).join("notes.yaml"), text).expect("written");
    }
    let manifest = json!({
        "apiVersion": "saga-runner/v1", "kind": "Manifest", "cluster": "custom", "data_dir": dir.join("data"),
        "shards": 1, "tenants": ["acme"], "sagas": dir.join("sagas"), "effects": dir.join("effects"),
    });
    let manifest: Manifest = serde_json::from_value(manifest).expect("a manifest");
    let read = definitions::load(&manifest).expect("good definitions");
    let clock = Arc::new(SystemClock::new());
    Node::with_registry(
        manifest,
        read,
        clock,
        Arc::new(Metrics::new()),
        Arc::new(registry),
    )
    .expect("a node")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_is_carried_out_by_a_provider_of_the_team() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let lines = dir.path().join("lines");
    let node = node(dir.path(), example::registry(lines.clone()));
    node.start().await.expect("it starts");
    let instance = InstanceId {
        tenant: TenantId::parse("acme").expect("a tenant"),
        saga: SagaName::parse("notes").expect("a saga"),
        key: Key::parse("n-1").expect("a key"),
    };
    let input = json!({"text": "milk"}).as_object().expect("a map").clone();
    let request = StartRequest {
        request_id: "r-1".to_owned(),
        input,
        on_conflict: ConflictPolicy::Fail,
        principal: Principal::nobody(),
        traceparent: None,
    };
    Instances::start(&*node, &instance, request, Patience::NONE)
        .await
        .expect("taken");
    let mut view = serde_json::Value::Null;
    for _ in 0..1_500 {
        if let Ok(found) = node.instance(&instance, 1).await {
            view = serde_json::to_value(found).expect("JSON");
            if view["phase"] == "completed" {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(view["phase"], "completed", "{view:#}");
    assert_eq!(view["state"]["line"], 1, "{view:#}");
    let text = std::fs::read_to_string(lines).expect("the lines");
    assert!(
        text.ends_with(" note: milk\n") && text.lines().count() == 1,
        "{text}"
    );
    node.drain(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_the_runner_has_not_is_told_with_those_it_has() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let other = Registry::default()
        .with("fax", |_| Err("never made".to_owned()))
        .with("telex", |_| Err("never made".to_owned()));
    let error = node(dir.path(), other)
        .start()
        .await
        .expect_err("it does not start");
    let text = error.to_string();
    assert!(
        text.contains("note-print") && text.contains("\"line-printer\" is not known"),
        "{text}"
    );
    assert!(text.contains("this runner has fax, telex"), "{text}");
}
