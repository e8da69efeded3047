//! What an order did, and why it failed, can be read in the log of the real binary.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::phase_is;
use crate::support::rig::{Rig, TENANT, order_payload};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Starts the runner with a filter and a format of its log.
async fn start(rig: &mut Rig, level: &str, format: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command.args(["run", "--config"]).arg(rig.manifest());
    command.args(["--log", level, "--set", &format!("log.format={format}")]);
    rig.launch_as(command);
    rig.wait_until_ready().await;
}

async fn send(rig: &Rig, kind: &str, order: &str, payload: Value) {
    let body = json!({
        "tenant_id": TENANT, "event_id": format!("{order}-{kind}"), "event_type": kind,
        "aggregate_type": "Order", "aggregate_id": order, "sequence": 1, "schema_version": 1,
        "payload": payload,
        "metadata": {"correlation_id": "cart-7", "traceparent": format!("00-{TRACE}-00f067aa0ba902b7-01")},
    });
    rig.send_body(body.to_string()).await;
}

fn lines(rig: &Rig) -> Vec<Value> {
    let text = std::fs::read_to_string(rig.log()).expect("a log");
    let parsed = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"));
    parsed.collect()
}

/// The lines about one order.
fn about(rig: &Rig, order: &str) -> Vec<Value> {
    let mut found = lines(rig);
    found.retain(|line| line["key"] == order);
    found
}

fn find<'l>(lines: &'l [Value], message: &str) -> Vec<&'l Value> {
    lines.iter().filter(|line| line["message"] == message).collect()
}

/// What reads the log can compare and add numbers.
fn numbers_are_no_texts(all: &[Value]) {
    for (message, field) in [("draining", "timeout_ms"), ("shard works", "aggregate_events")] {
        let found = find(all, message);
        assert!(!found.is_empty(), "{message}");
        assert!(found.iter().all(|line| line[field].is_u64()), "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_at_debug_tells_the_story_of_an_order_whose_payment_is_declined() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    start(&mut rig, "saga_runner=debug", "json").await;
    send(&rig, "Unheard", "other", json!({"order_id": "other"})).await;
    send(&rig, "Placed", "declined-1", order_payload("declined-1")).await;
    rig.wait_for("order", "declined-1", |view| view["ended"].is_string())
        .await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let all = lines(&rig);
    numbers_are_no_texts(&all);
    let order = about(&rig, "declined-1");
    let transitions = find(&order, "transition");
    let first = transitions.first().expect("transitions");
    assert_eq!(
        [
            &first["input"],
            &first["outcome"],
            &first["to"],
            &first["generation"],
            &first["tenant"],
            &first["saga"]
        ],
        [
            &json!("event Order.Placed"),
            &json!("applied"),
            &json!("running"),
            &json!(1),
            &json!(TENANT),
            &json!("order")
        ],
        "{first}"
    );
    assert!(first.get("from").is_none(), "{first}");
    assert!(
        first["notes"]
            .as_str()
            .is_some_and(|notes| notes.contains("StepStarted")),
        "{first}"
    );
    for line in &transitions {
        assert_eq!(
            (&line["trace_id"], &line["correlation_id"]),
            (&json!(TRACE), &json!("cart-7")),
            "{line}"
        );
    }
    let last = transitions.last().expect("transitions");
    assert_eq!(
        (&last["from"], &last["to"]),
        (&json!("compensating"), &json!("failed")),
        "{last}"
    );
    let calls = find(&order, "upstream was called");
    assert!(calls.iter().any(|line| line["class"] == "succeeded"), "{calls:?}");
    // The audit is not under the target that was asked for.
    let failed = find(&order, "effect has failed");
    let failed = failed.first().expect("the failed effect");
    assert_eq!(
        (&failed["level"], &failed["trace_id"]),
        (&json!("WARN"), &json!(TRACE)),
        "{failed}"
    );
    assert!(
        failed["error"].as_str().is_some_and(|error| !error.is_empty()),
        "{failed}"
    );
    for (message, level) in [
        ("step has failed", "INFO"),
        ("instance fails", "WARN"),
        ("instance has ended", "INFO"),
    ] {
        let line = find(&order, message);
        assert_eq!(
            line.first().map(|line| &line["level"]),
            Some(&json!(level)),
            "{message}: {order:?}"
        );
    }
    let unheard = find(&all, "no saga reacts to an event of this type");
    assert_eq!(
        unheard.first().map(|line| &line["event_type"]),
        Some(&json!("Order.Unheard"))
    );
    // Nothing of what the order holds.
    let text = std::fs::read_to_string(rig.log()).expect("a log");
    assert!(!text.contains("tea-01"), "a payload is in the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_at_info_tells_of_a_blocked_instance_and_of_no_transition() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    rig.add_saga(
        "broken",
        r#"
apiVersion: sagas/v1
kind: Saga
name: broken
start: Part.Made
key: {"Part.*": event.data.part}
state: {init: {half: 0}}
handlers:
  Part.Cut: {set: {half: "${10 / event.data.pieces}"}}
"#,
    );
    start(&mut rig, "info", "json").await;
    rig.send("Part", "p-1", "Made", json!({"part": "p-1"})).await;
    rig.wait_for("broken", "p-1", phase_is("running")).await;
    rig.send("Part", "p-1", "Cut", json!({"part": "p-1", "pieces": 0}))
        .await;
    rig.wait_for("broken", "p-1", |view| !view["blocked_by"].is_null())
        .await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let part = about(&rig, "p-1");
    assert_eq!(find(&part, "transition"), Vec::<&Value>::new());
    let dead = find(&part, "an input cannot be applied and is a dead letter");
    let blocked = find(&part, "instance is blocked: its inputs wait behind a dead letter");
    assert_eq!((dead.len(), blocked.len()), (1, 1), "{part:?}");
    assert_eq!(dead[0]["dead_letter"], blocked[0]["dead_letter"]);
    assert_eq!(dead[0]["input"], "event Part.Cut");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_type_with_a_line_break_forges_no_line_of_the_log() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    start(&mut rig, "saga_runner=debug", "pretty").await;
    let body = json!({
        "tenant_id": TENANT, "event_id": "n-1", "event_type": "Cares\nERROR forged: all is lost\u{1b}[31m",
        "aggregate_type": "Order", "aggregate_id": "n-1", "payload": {},
    });
    rig.send_body(body.to_string()).await;
    send(&rig, "Placed", "happy-1", order_payload("happy-1")).await;
    rig.wait_for("order", "happy-1", phase_is("completed")).await;
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
    let text = std::fs::read_to_string(rig.log()).expect("a log");
    assert!(text.contains("forged: all is lost"), "{text}");
    assert!(
        !text.lines().any(|line| line.starts_with("ERROR forged")),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");
}
