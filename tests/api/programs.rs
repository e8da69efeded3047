//! A saga that a program decides, on the embedded broker with workers, across a restart without its files.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::api::caller::{event, get, instance, letters, post, send, until};
use crate::support::rig::Rig;

const EXAMPLE: &str = "examples/programs";

/// Copies the example into the rig's folders.
fn add_example(rig: &Rig) {
    for path in [
        "sagas/parcels.yaml",
        "sagas/bin/parcels.wasm",
        "sagas/schemas/delivery_requested.json",
        "sagas/schemas/parcels_state.json",
        "effects/parcel-ship.yaml",
        "effects/parcel-cancel.yaml",
    ] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(EXAMPLE).join(path);
        rig.add_file(path, &std::fs::read(from).expect("a file of the example"));
    }
}

async fn request(rig: &Rig, order: &str, grams: &[i64]) {
    let items: Vec<_> = grams
        .iter()
        .map(|grams| json!({"sku": "x", "grams": grams}))
        .collect();
    let payload = json!({"order_id": order, "items": items});
    let body = event("acme", order, "Delivery.Requested", &payload);
    let answer = post(rig, "/v1/tenants/acme/events", body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
}

/// Answers with what stands in its input or its state, so that the test says what it does.
const ECHO: &str = "\
apiVersion: sagas/v1
kind: Saga
name: echo
start: Echo.Opened
key: {\"Echo.*\": event.data.id}
program: {file: bin/echo.wasm, events: [Echo.Called], effects: [parcel-ship]}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_runs_to_its_end_even_when_its_file_is_gone() {
    let mut rig = Rig::new(None, "30m", Duration::ZERO, json!({})).await;
    add_example(&rig);
    rig.add_saga("echo", ECHO);
    let module =
        wat::parse_str(include_str!("../../crates/language/src/program/echo.wat")).expect("a module");
    rig.add_file("sagas/bin/echo.wasm", &module);
    rig.start().await;

    request(&rig, "o-1", &[17_000, 9_000, 4_000]).await;
    let view = until(&rig, &instance("acme", "parcels", "o-1"), |view| {
        view["phase"] == "completed"
    })
    .await;
    let shipped = |grams: i64, skus: &[&str]| {
        let tracking = format!("T-o-1-{grams}");
        json!({"status": "shipped", "tracking": tracking, "parcel": {"grams": grams, "skus": skus}})
    };
    assert_eq!(
        view["state"],
        json!({"parcels": {"parcel-1": shipped(17_000, &["x"]), "parcel-2": shipped(13_000, &["x", "x"])}})
    );

    let echo = instance("acme", "echo", "e-1");
    let payload = json!({"id": "e-1", "answer": {"state": {"n": 1}, "work": [{"timer": "late", "after_ms": 3_600_000}]}});
    send(&rig, "acme", "opened", "Echo.Opened", payload).await;
    until(&rig, &echo, |view| view["state"] == json!({"n": 1})).await;
    rig.kill();
    rig.remove_file("sagas/echo.yaml");
    rig.remove_file("sagas/bin/echo.wasm");
    rig.start().await;

    let last = json!({"state": {"n": 3}, "complete": true});
    let work =
        json!([{"effect": "parcel-ship", "name": "one", "with": {"order": "o-2", "parcel": {"grams": 5}}}]);
    let payload = json!({"id": "e-1", "answer": {"state": {"answer": last}, "work": work}});
    send(&rig, "acme", "called", "Echo.Called", payload).await;
    let view = until(&rig, &echo, |view| view["phase"] == "completed").await;
    assert_eq!(view["state"], json!({"n": 3}));
    let letters = get(&rig, &letters("acme")).await.json();
    assert_eq!(letters["items"], json!([]), "nothing went wrong");
}
