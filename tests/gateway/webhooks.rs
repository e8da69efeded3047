//! The webhooks of examples/webhooks, told to a receiver that fails, is late and does not answer.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::support::rig::Rig;

const KEY: &str = "k3y-of-the-customer";

/// What the receiver was told, and what it has taken.
#[derive(Default)]
struct Told {
    /// Parcel, number and key of each call, in order.
    calls: Vec<(String, u64, String)>,
    /// The events that were carried out, by their keys.
    done: BTreeMap<String, (String, u64)>,
    /// Calls of each event.
    turns: BTreeMap<(String, u64), u32>,
}

type Receiver = Arc<Mutex<Told>>;

/// As docs/webhooks.md says.
fn is_genuine(headers: &HeaderMap, body: &[u8]) -> bool {
    let header = headers["webhook-signature"].to_str().expect("text");
    let parts: BTreeMap<_, _> = header
        .split(',')
        .filter_map(|part| part.split_once('='))
        .collect();
    let mut mac = Hmac::<Sha256>::new_from_slice(KEY.as_bytes()).expect("any length");
    mac.update(format!("{}.", parts["t"]).as_bytes());
    mac.update(body);
    let told = data_encoding::HEXLOWER
        .decode(parts["v1"].as_bytes())
        .expect("hexadecimal");
    mac.verify_slice(&told).is_ok()
}

async fn hook(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if !is_genuine(&headers, &body) {
        return StatusCode::UNAUTHORIZED;
    }
    let event: Value = serde_json::from_slice(&body).expect("JSON");
    let parcel = event["subject"].as_str().expect("text").to_owned();
    let number = event["number"].as_u64().expect("a number");
    let key = headers["idempotency-key"].to_str().expect("text").to_owned();
    assert_eq!(event["id"], key.as_str());
    let turn = {
        let mut told = receiver.lock().expect("not poisoned");
        told.calls.push((parcel.clone(), number, key.clone()));
        let turn = told.turns.entry((parcel.clone(), number)).or_default();
        *turn += 1;
        *turn
    };
    // What each event meets: a failure, then an answer that is too late though the work is done, then a receiver that is well.
    if turn == 1 {
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    receiver
        .lock()
        .expect("not poisoned")
        .done
        .entry(key)
        .or_insert((parcel, number));
    if turn == 2 {
        std::future::pending::<()>().await;
    }
    StatusCode::OK
}

fn example(path: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples/webhooks")
        .join(path);
    std::fs::read_to_string(file).expect("the example is there")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_arrive_in_order_and_once_per_event_despite_receiver_faults() {
    let receiver = Receiver::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let customer = format!("http://{}", listener.local_addr().expect("bound"));
    let hooks = Router::new()
        .route("/hooks", post(hook))
        .with_state(Arc::clone(&receiver));
    tokio::spawn(async move { axum::serve(listener, hooks).await });
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("webhook.key");
    std::fs::write(&key, KEY).expect("written");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("set");
    let extra = json!({
        "upstreams": {"customer": customer},
        "secrets": {"webhook_key": {"file": key}},
    });
    let mut rig = Rig::new(None, "30m", Duration::ZERO, extra).await;
    rig.clear_definitions();
    rig.add_saga("parcel-hooks", &example("sagas/parcel-hooks.yaml"));
    let effect = example("effects/webhook-deliver.yaml")
        .replace("initial: 1s", "initial: 100ms")
        .replace("total: 10s", "total: 500ms")
        .replace("connect: 2s", "connect: 400ms");
    // Every call but the third fails, which a breaker would heed.
    let effect = effect + "breaker: {min_calls: 1000}\n";
    rig.add_effect("webhook-deliver", &effect);
    rig.start().await;
    let parcels = ["p-1", "p-2", "p-3"];
    for parcel in parcels {
        let about = |more: Value| {
            let mut data = json!({"parcel_id": parcel});
            data.as_object_mut()
                .expect("an object")
                .extend(more.as_object().expect("an object").clone());
            data
        };
        // All at once: each waits for the one before it.
        rig.send(
            "Parcel",
            parcel,
            "Parcel.Created",
            about(json!({"recipient": "ann"})),
        )
        .await;
        rig.send(
            "Parcel",
            parcel,
            "Parcel.Shipped",
            about(json!({"carrier": "dpd"})),
        )
        .await;
        rig.send("Parcel", parcel, "Parcel.Delivered", about(json!({})))
            .await;
    }
    for parcel in parcels {
        let over =
            |view: &Value| ["completed", "failed"].contains(&view["phase"].as_str().unwrap_or_default());
        let view = rig.wait_for("parcel-hooks", parcel, over).await;
        assert_eq!(view["phase"], "completed", "{view}");
        assert_eq!(view["state"]["missed"], 0, "{view}");
    }
    let told = receiver.lock().expect("not poisoned");
    for parcel in parcels {
        let numbers: Vec<u64> = of(&told, parcel).map(|(_, number, _)| *number).collect();
        assert!(numbers.is_sorted(), "{parcel}: {numbers:?}");
        for number in 1..=3 {
            let mut keys: Vec<&str> = of(&told, parcel)
                .filter(|(_, told, _)| *told == number)
                .map(|(_, _, key)| key.as_str())
                .collect();
            assert!(
                keys.len() >= 3,
                "{parcel} {number}: it failed once and was late once"
            );
            keys.dedup();
            assert_eq!(keys.len(), 1, "{parcel} {number}: one key per event");
        }
    }
    assert_eq!(told.done.len(), 9, "each event once, by its key: {:?}", told.done);
}

fn of<'t>(told: &'t Told, parcel: &'t str) -> impl Iterator<Item = &'t (String, u64, String)> {
    told.calls.iter().filter(move |(of, _, _)| of == parcel)
}
