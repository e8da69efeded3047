//! Events find instances by a value that these have registered, on both brokers, while the runner is killed: between
//! registration and event, before either, and while events are on their way.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT};

const PARCEL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: parcel
start: Parcel.Packed
key: {"Parcel.*": event.data.id}
events:
  Carrier.Scanned: {by: {tracking: event.data.no}}
  Carrier.Delivered: {by: {tracking: event.data.no}}
no_instance: {park: 1h}
state: {init: {no: "", places: []}}
handlers:
  Parcel.Packed: {set: {no: "${event.data.no}"}}
  Carrier.Scanned: {set: {places: "${state.places + [event.data.at]}"}}
steps:
  label: {effect: label, with: {no: "${state.no}"}, alias: {tracking: "${result.no}"}}
  deliver: {needs: [label], wait: {event: Carrier.Delivered, timeout: 24h}}
"#;

const LABEL: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: label
input: {type: object}
transform: {}
result: {no: "${input.no}"}
"#;

const OTHER: &str = "globex";
/// Parcels that have one tracking number.
const OWNERS: [&str; 2] = ["a", "b"];
/// Scans after which both have to hear of further ones.
const SCANS_MAX: u64 = 500;

struct Story {
    rig: Rig,
    kills: u32,
}

impl Story {
    async fn begin(nats: Option<String>) -> Self {
        // More shards, so that aliases and their owners are in different ones.
        let extra = json!({"worker": {"ack_wait": "2s"}, "shards": 5});
        let rig = Rig::new(nats, "30m", Duration::ZERO, extra).await;
        rig.add_saga("parcel", PARCEL);
        rig.add_effect("label", LABEL);
        let mut story = Self { rig, kills: 0 };
        story.rig.start().await;
        story
    }

    fn kill(&mut self) {
        self.rig.kill();
        self.kills += 1;
        self.rig.launch();
    }

    /// Sends an event of a tenant until it is taken; a repetition has the same id.
    async fn send(&self, tenant: &str, event: &str, id: &str, payload: Value) {
        let (aggregate, kind) = event.split_once('.').expect("Aggregate.Event");
        let body = json!({
            "tenant_id": tenant,
            "event_id": format!("{event}-{id}"),
            "event_type": kind,
            "aggregate_type": aggregate,
            "aggregate_id": id,
            "payload": payload,
        });
        let url = self.rig.url(&format!("/v1/tenants/{tenant}/events"));
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_mins(1) {
            let request = self
                .rig
                .client
                .post(&url)
                .header("content-type", "application/json");
            if let Ok(answer) = request.body(body.to_string()).send().await
                && answer.status().is_success()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the event was never taken\n{}", self.rig.log_tail());
    }

    async fn pack(&self, tenant: &str, key: &str, no: &str) {
        self.send(tenant, "Parcel.Packed", key, json!({"id": key, "no": no}))
            .await;
    }

    async fn scan(&self, tenant: &str, no: &str, at: u64) {
        let id = format!("{no}-{at}");
        self.send(tenant, "Carrier.Scanned", &id, json!({"no": no, "at": at}))
            .await;
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let answer = self.rig.client.get(self.rig.url(path)).send().await.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        serde_json::from_slice(&answer.bytes().await.ok()?).ok()
    }

    /// Waits until `wanted` holds for an instance.
    async fn until(&self, tenant: &str, key: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/v1/tenants/{tenant}/sagas/parcel/instances/{key}");
        let begin = Instant::now();
        let mut last = None;
        while begin.elapsed() < Duration::from_mins(1) {
            if let Some(view) = self.get(&path).await {
                if wanted(&view) {
                    return view;
                }
                last = Some(view);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!(
            "{tenant}/{key} did not get there: {last:?}\n{}",
            self.rig.log_tail()
        );
    }

    async fn places(&self, tenant: &str, key: &str) -> Vec<u64> {
        let path = format!("/v1/tenants/{tenant}/sagas/parcel/instances/{key}");
        let view = self.get(&path).await.unwrap_or_default();
        places(&view)
    }
}

fn places(view: &Value) -> Vec<u64> {
    let places = view["state"]["places"].as_array().cloned().unwrap_or_default();
    places.iter().filter_map(Value::as_u64).collect()
}

fn registered(no: &str) -> impl Fn(&Value) -> bool {
    let aliases = json!({"tracking": [no]});
    move |view| view["aliases"] == aliases
}

fn heard(last: u64) -> impl Fn(&Value) -> bool {
    move |view| places(view).last() == Some(&last)
}

/// The runner is killed when the alias is registered and its message may still be on the way.
async fn killed_between_registration_and_event(story: &mut Story) {
    story.pack(TENANT, "one", "T-one").await;
    story.until(TENANT, "one", registered("T-one")).await;
    story.kill();
    story.scan(TENANT, "T-one", 1).await;
    story.kill();
    story.scan(TENANT, "T-one", 2).await;
    story.until(TENANT, "one", heard(2)).await;
    assert_eq!(story.places(TENANT, "one").await, [1, 2]);
}

/// The event is there before anybody has its value.
async fn early(story: &mut Story) {
    for at in 1..=3 {
        story.scan(TENANT, "T-early", at).await;
    }
    story.kill();
    story.pack(TENANT, "early", "T-early").await;
    story.kill();
    story.scan(TENANT, "T-early", 4).await;
    story.until(TENANT, "early", heard(4)).await;
    assert_eq!(story.places(TENANT, "early").await, [1, 2, 3, 4]);
}

/// Two parcels have one number, and a parcel of another tenant has the same.
async fn several_owners(story: &mut Story) {
    let no = "T-both";
    story.pack(OTHER, "a", no).await;
    for key in OWNERS {
        story.pack(TENANT, key, no).await;
    }
    story.scan(OTHER, no, 1_000).await;
    let mut at = 0;
    let both_hear = loop {
        at += 1;
        story.scan(TENANT, no, at).await;
        if at % 4 == 0 && at <= 16 {
            story.kill();
        }
        if at > 16
            && !story.places(TENANT, "a").await.is_empty()
            && !story.places(TENANT, "b").await.is_empty()
        {
            break at;
        }
        assert!(at < SCANS_MAX, "one of them never hears of anything");
        // Registrations come when they come.
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let end = both_hear + 5;
    for at in both_hear + 1..=end {
        story.scan(TENANT, no, at).await;
        story.kill();
    }
    let mut firsts = Vec::new();
    for key in OWNERS {
        let view = story.until(TENANT, key, heard(end)).await;
        let places = places(&view);
        // From its first one on it has heard of all, in order, once.
        let expected: Vec<u64> = (places[0]..=end).collect();
        assert_eq!(places, expected, "{key}");
        firsts.push(places[0]);
    }
    assert_eq!(
        firsts.iter().min(),
        Some(&1),
        "what was early went to the first owner: {firsts:?}"
    );
    story.until(OTHER, "a", heard(1_000)).await;
    assert_eq!(story.places(OTHER, "a").await, [1_000]);
    story
        .send(TENANT, "Carrier.Delivered", no, json!({"no": no}))
        .await;
    for key in OWNERS {
        let view = story
            .until(TENANT, key, |view| view["phase"] == "completed")
            .await;
        assert_eq!(view["aliases"], Value::Null, "an end gives aliases up");
    }
    story.until(OTHER, "a", |view| view["phase"] == "running").await;
}

/// What came by an alias is in the history, and can be replayed.
async fn history_and_replay(story: &Story) {
    let path = format!("/v1/tenants/{TENANT}/sagas/parcel/instances/one");
    let view = story.get(&path).await.expect("it is there");
    let kind = "event Carrier.Scanned by tracking T-one";
    assert!(view["history"].to_string().contains(kind), "{view:#}");
    let replayed = Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .arg("replay")
        .arg(story.rig.folder())
        .arg("--from")
        .arg(story.rig.url(&format!("{path}/inputs")))
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&replayed.stdout);
    assert!(
        replayed.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&replayed.stderr)
    );
}

async fn every_event_finds_its_instances(nats: Option<String>) {
    let mut story = Story::begin(nats).await;
    killed_between_registration_and_event(&mut story).await;
    early(&mut story).await;
    several_owners(&mut story).await;
    history_and_replay(&story).await;
    assert!(story.kills >= 10, "only {} kills", story.kills);
    for tenant in [TENANT, OTHER] {
        let letters = story
            .get(&format!("/v1/tenants/{tenant}/dead-letters"))
            .await
            .expect("a list");
        assert_eq!(letters["items"], json!([]), "{tenant}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_finds_its_instances_by_alias_on_the_embedded_broker() {
    every_event_finds_its_instances(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_finds_its_instances_by_alias_on_nats() {
    let server = NatsServer::start();
    every_event_finds_its_instances(Some(server.url())).await;
}
