//! The inputs of an instance, after the streams have lost their messages.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{connect, phase_is};
use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT, order_payload};

/// Brings an order to its end, takes every message out of the streams, and restarts the runner with SIGKILL.
async fn order_without_streams(server: &NatsServer, extra: Value) -> (Rig, Value) {
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, extra).await;
    rig.start().await;
    rig.send("Order", "happy-1", "Placed", order_payload("happy-1"))
        .await;
    rig.wait_for("order", "happy-1", phase_is("completed")).await;
    let broker = connect(&server.url()).await;
    for stream in ["AGGREGATE_EVENTS", "WORKFLOW_EVENTS", "WORKFLOW_COMMANDS"] {
        let end = broker.stream_state(stream).await.expect("a stream");
        rig.until_read(stream, end.last_sequence).await;
        broker.trim(stream, end.last_sequence + 1).await.expect("trimmed");
    }
    rig.kill();
    rig.start().await;
    let url = rig.url(&format!(
        "/v1/tenants/{TENANT}/sagas/order/instances/happy-1/inputs"
    ));
    let answer = rig.client.get(url).send().await.expect("an answer");
    let recorded = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
    (rig, recorded)
}

fn are_missing(recorded: &Value) -> (usize, usize) {
    let inputs = recorded["inputs"].as_array().expect("inputs");
    let missing = inputs.iter().filter(|input| !input["input"]["missing"].is_null());
    (missing.count(), inputs.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_is_replayed_after_its_streams_have_lost_all_messages() {
    let server = NatsServer::start();
    let (rig, recorded) = order_without_streams(&server, json!({})).await;
    let (missing, all) = are_missing(&recorded);
    assert!(missing == 0 && all >= 4, "{recorded}");
    let payload = &recorded["inputs"][0]["input"]["event"]["payload"];
    assert_eq!(*payload, order_payload("happy-1"));
    sent_work_is_told(&rig, &recorded);
    let replay = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .arg("replay")
        .arg(rig.folder())
        .arg("--from")
        .arg(rig.url(&format!(
            "/v1/tenants/{TENANT}/sagas/order/instances/happy-1/inputs"
        )))
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&replay.stdout);
    assert!(replay.status.success() && told.starts_with("ok"), "{replay:?}");
}

/// What was sent stands beside the input that caused it, as the upstream has got it; the command line prints the same.
fn sent_work_is_told(rig: &Rig, recorded: &Value) {
    let inputs = recorded["inputs"].as_array().expect("inputs");
    let work = inputs
        .iter()
        .filter_map(|input| input["work"].as_array())
        .flatten();
    let effects: Vec<&Value> = work.filter(|work| work["kind"] == "effect").collect();
    let deeds = rig.upstream.deeds();
    assert!(effects.len() >= 2, "{recorded}");
    for work in &effects {
        let key = work["idempotency_key"].as_str().expect("a key");
        assert!(deeds.iter().any(|deed| deed.idempotency_key == key), "{work}");
        assert!(work["payload"].is_object() && work["attempt"] == 1, "{work}");
    }
    let printed = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args([
            "instance", "inputs", "order", "happy-1", "--tenant", TENANT, "--url",
        ])
        .arg(rig.url(""))
        .output()
        .expect("it runs");
    let printed = String::from_utf8_lossy(&printed.stdout);
    for work in &effects {
        let payload = work["payload"].to_string();
        assert!(
            printed.contains("received ") && printed.contains(&payload),
            "{printed}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_that_are_not_kept_are_missing_once_their_streams_have_lost_them() {
    let server = NatsServer::start();
    let (_rig, recorded) = order_without_streams(
        &server,
        json!({"storage": {"keep_input_bytes": 0, "keep_work_bytes": 0}}),
    )
    .await;
    let (missing, all) = are_missing(&recorded);
    assert!(missing > 0 && missing <= all, "{recorded}");
    let inputs = recorded["inputs"].as_array().expect("inputs");
    assert!(
        inputs.iter().all(|input| input.get("work").is_none()),
        "{recorded}"
    );
}
