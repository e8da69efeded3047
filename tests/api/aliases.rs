//! Instances by a value that they have registered.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::caller::{get, post, runner};
use crate::support::rig::Rig;

const PARCEL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Packed
key: {"Parcel.*": event.data.id}
events: {Carrier.Delivered: {by: {tracking: event.data.no}}}
handlers:
  Parcel.Packed: {alias: {tracking: "${event.data.no}"}}
steps:
  deliver: {wait: {event: Carrier.Delivered, timeout: 24h}}
"#;

/// Waits until an alias is as it is wanted.
async fn alias(rig: &Rig, value: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/v1/tenants/acme/sagas/parcel/aliases/tracking/{value}");
    let mut last = Value::Null;
    for _ in 0..3_000 {
        last = get(rig, &path).await.json();
        if wanted(&last) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not get there: {last:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alias_tells_who_has_it_and_what_waits() {
    let rig = runner(Duration::ZERO).await;
    rig.add_saga("parcel", PARCEL);
    assert_eq!(post(&rig, "/admin/reload", "").await.status, 200);
    let nobody = json!({"saga": "parcel", "alias": "tracking", "value": "T/1 a", "owners": [], "waiting": 0});
    assert_eq!(alias(&rig, "T%2F1%20a", |_| true).await, nobody);
    for key in ["p-1", "p-2"] {
        rig.send("Parcel", key, "Packed", json!({"id": key, "no": "T/1 a"}))
            .await;
    }
    let both = |view: &Value| view["owners"].as_array().is_some_and(|owners| owners.len() == 2);
    let view = alias(&rig, "T%2F1%20a", both).await;
    let mut keys: Vec<&str> = view["owners"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|owner| owner["key"].as_str())
        .collect();
    keys.sort_unstable();
    assert_eq!(
        (keys, &view["owners"][0]["generation"]),
        (vec!["p-1", "p-2"], &json!(1))
    );
    // Another tenant has others.
    let other = get(&rig, "/v1/tenants/globex/sagas/parcel/aliases/tracking/T%2F1%20a")
        .await
        .json();
    assert_eq!(other["owners"], json!([]));

    rig.send("Carrier", "d-1", "Delivered", json!({"no": "T/1 a"}))
        .await;
    alias(&rig, "T%2F1%20a", |view| *view == nobody).await;
    rig.send("Carrier", "d-2", "Delivered", json!({"no": "T-2"}))
        .await;
    alias(&rig, "T-2", |view| view["waiting"] == 1).await;

    let long = "x".repeat(121);
    for path in ["a-b/v".to_owned(), format!("tracking/{long}")] {
        let path = format!("/v1/tenants/acme/sagas/parcel/aliases/{path}");
        get(&rig, &path).await.is_problem(400, "SR0501");
    }
}

/// A page until it is as it is wanted.
async fn page(rig: &Rig, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..3_000 {
        last = get(rig, path).await.json();
        if wanted(&last) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not get there: {last:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_an_alias_has_no_room_for_shows_it_until_an_operator_tries_again() {
    let limits = json!({"limits": {"alias_owners": 1}});
    let mut rig = Rig::new(None, "30m", Duration::ZERO, limits).await;
    rig.add_saga("parcel", PARCEL);
    rig.start().await;
    let instance = |key: &str| format!("/v1/tenants/acme/sagas/parcel/instances/{key}");
    rig.send("Parcel", "p-1", "Packed", json!({"id": "p-1", "no": "T-1"}))
        .await;
    alias(&rig, "T-1", |view| view["owners"][0]["key"] == "p-1").await;
    rig.send("Parcel", "p-2", "Packed", json!({"id": "p-2", "no": "T-1"}))
        .await;
    let refused = json!({"tracking": [{"value": "T-1", "refused": true}]});
    let view = page(&rig, &instance("p-2"), |view| view["aliases"] == refused).await;
    let note = json!({"alias_refused": {"alias": "tracking", "value": "T-1"}});
    assert!(
        view["history"].to_string().contains(&note.to_string()),
        "{view:#}"
    );
    let has = json!({"tracking": ["T-1"]});
    assert_eq!(get(&rig, &instance("p-1")).await.json()["aliases"], has);

    let letters = get(&rig, "/v1/tenants/acme/dead-letters").await.json();
    let letter = &letters["items"][0];
    assert_eq!(
        (&letter["reason"], &letter["saga"], &letter["key"]),
        (&json!("alias.owners"), &json!("parcel"), &json!("p-2")),
        "{letters:#}"
    );
    let message = letter["message"].as_str().expect("text");
    assert!(
        message.contains("tracking \"T-1\"") && message.contains("instance p-2"),
        "{message}"
    );

    rig.send("Carrier", "d-1", "Delivered", json!({"no": "T-1"}))
        .await;
    alias(&rig, "T-1", |view| view["owners"] == json!([])).await;
    let id = letter["id"].as_str().expect("text");
    let retry = post(&rig, &format!("/v1/tenants/acme/dead-letters/{id}/retry"), "").await;
    assert!(retry.status < 300, "{retry:?}");
    let view = page(&rig, &instance("p-2"), |view| view["aliases"] == has).await;
    let note = json!({"alias_accepted": {"alias": "tracking", "value": "T-1"}});
    assert!(
        view["history"].to_string().contains(&note.to_string()),
        "{view:#}"
    );
    rig.send("Carrier", "d-2", "Delivered", json!({"no": "T-1"}))
        .await;
    page(&rig, &instance("p-2"), |view| view["phase"] == "completed").await;
    let letters = get(&rig, "/v1/tenants/acme/dead-letters").await.json();
    assert_eq!(letters["items"], json!([]));
}
