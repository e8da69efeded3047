//! Sagas that start sagas in other shards, through the embedded broker, with the runner killed in between.

use std::time::Duration;

use saga_runner::kernel::ids::{Key, TenantId, shard_of};
use serde_json::{Value, json};

use crate::api::caller::{post, send};
use crate::support::rig::{Rig, TENANT};

const TRIP: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: tour
start: Tour.Booked
key: {"Tour.*": event.data.tour}
state: {init: {}}
steps:
  hotel:
    saga: {name: hotel, key: "${key}-hotel", input: {nights: 3}}
    set: {hotel: "${result.state.nights}"}
    compensate: {saga: undo}
  guide: {needs: [hotel], wait: {signal: guide, timeout: 1h}, fail_if: "!signal.found"}
"#;
const HOTEL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: hotel
input: {type: object, required: [nights], properties: {nights: {type: integer}}}
state: {init: {nights: "${input.nights}"}}
steps:
  room: {effect: room, with: {hotel: "${key}"}, compensate: {effect: unroom, with: {hotel: "${key}"}}}
  stay: {needs: [room], wait: {signal: stay, timeout: 1h}}
finally:
  cancelled: {publish: {type: hotel.cancelled}}
"#;

async fn runner() -> Rig {
    let rig = Rig::new(None, "30m", Duration::ZERO, json!({"shards": 4})).await;
    rig.add_saga("tour", TRIP);
    rig.add_saga("hotel", HOTEL);
    for name in ["room", "unroom"] {
        let effect =
            format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\ntransform: {{}}\nresult: {{}}\n");
        rig.add_effect(name, &effect);
    }
    rig
}

/// A tour whose hotel is in another shard.
fn tour(number: usize) -> String {
    let shard = |key: &str| {
        let tenant = TenantId::parse(TENANT).expect("legal");
        shard_of(&tenant, &Key::parse(key).expect("legal"), 4)
    };
    let mut candidates = (0..).map(|n| format!("t{number}-{n}"));
    candidates
        .find(|key| shard(key) != shard(&format!("{key}-hotel")))
        .expect("some are apart")
}

async fn signal(rig: &Rig, saga: &str, key: &str, name: &str, data: Value) {
    let path = format!("/v1/tenants/{TENANT}/sagas/{saga}/instances/{key}/signals/{name}");
    let answer = post(rig, &path, json!({"data": data}).to_string()).await;
    assert_eq!(answer.status, 202, "{answer:?}");
}

fn phase_is(phase: &'static str) -> impl Fn(&Value) -> bool {
    move |view| view["phase"] == phase
}

fn step_is(name: &'static str, status: &'static str) -> impl Fn(&Value) -> bool {
    move |view| {
        let steps = view["steps"].as_array().expect("steps");
        steps
            .iter()
            .any(|step| step["name"] == name && step["status"] == status)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parent_and_child_find_each_other_across_shards_and_restarts() {
    let mut rig = runner().await;
    rig.start().await;
    let (good, bad, stopped) = (tour(1), tour(2), tour(3));
    for tour in [&good, &bad, &stopped] {
        send(&rig, TENANT, tour, "Tour.Booked", json!({"tour": tour})).await;
    }
    // The starts may be anywhere on their way.
    rig.kill();
    rig.start().await;
    for tour in [&good, &bad, &stopped] {
        let hotel = format!("{tour}-hotel");
        let view = rig.wait_for("hotel", &hotel, step_is("stay", "waiting")).await;
        assert_eq!(view["parent"], json!({"saga": "tour", "key": tour}));
        assert_eq!(view["state"]["nights"], 3);
    }
    for tour in [&good, &bad] {
        signal(&rig, "hotel", &format!("{tour}-hotel"), "stay", json!({})).await;
    }
    let path = format!("/v1/tenants/{TENANT}/sagas/tour/instances/{stopped}/cancel");
    assert_eq!(post(&rig, &path, "").await.status, 202);
    rig.kill();
    rig.start().await;
    // A child is cancelled with its parent, and both undo what they did.
    let hotel = rig
        .wait_for("hotel", &format!("{stopped}-hotel"), phase_is("cancelled"))
        .await;
    assert_eq!(hotel["ledger"][0]["status"], "undone");
    rig.wait_for("tour", &stopped, |view| {
        view["phase"] == "cancelled" && view["ended"].is_string()
    })
    .await;
    for tour in [&good, &bad] {
        let view = rig.wait_for("tour", tour, step_is("guide", "waiting")).await;
        assert_eq!(view["state"]["hotel"], 3);
        rig.wait_for("hotel", &format!("{tour}-hotel"), phase_is("completed"))
            .await;
    }
    signal(&rig, "tour", &good, "guide", json!({"found": true})).await;
    signal(&rig, "tour", &bad, "guide", json!({"found": false})).await;
    rig.kill();
    rig.start().await;
    rig.wait_for("tour", &good, phase_is("completed")).await;
    let failed = rig.wait_for("tour", &bad, phase_is("failed")).await;
    assert_eq!(failed["ledger"][0]["status"], "undone");
    // It had completed and is undone by its own ledger.
    let undone = rig
        .instance("hotel", &format!("{bad}-hotel"))
        .await
        .expect("it is kept");
    assert_eq!(undone["phase"], "cancelled");
    assert_eq!(undone["ledger"][0]["status"], "undone");
    let kept = rig
        .instance("hotel", &format!("{good}-hotel"))
        .await
        .expect("it is kept");
    assert_eq!(kept["phase"], "completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_taken_fails_the_step_and_leaves_the_other_alone() {
    let mut rig = runner().await;
    rig.start().await;
    let path = format!("/v1/tenants/{TENANT}/sagas/hotel/instances");
    let taken = tour(1);
    let body = json!({"key": format!("{taken}-hotel"), "input": {"nights": 1}}).to_string();
    assert_eq!(post(&rig, &path, body).await.status, 201);
    rig.wait_for("hotel", &format!("{taken}-hotel"), phase_is("running"))
        .await;
    send(&rig, TENANT, &taken, "Tour.Booked", json!({"tour": taken})).await;
    let failed = rig.wait_for("tour", &taken, phase_is("failed")).await;
    assert_eq!(failed["failure"]["code"], "child_exists");
    // It was not ours to cancel.
    let theirs = rig
        .instance("hotel", &format!("{taken}-hotel"))
        .await
        .expect("it runs");
    assert_eq!(theirs["phase"], "running");
}
