//! What came while the real binary was down is taken in the order in which nats-server stored it, across its streams, and
//! timers at the time they were due.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use serde_json::{Value, json};

use crate::support::nats_server::NatsServer;
use crate::support::rig::{Rig, TENANT, event_body};

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: race
start: Race.Opened
key: {"Race.*": event.data.id}
state: {init: {seen: []}}
handlers:
  Race.Counted: {set: {seen: "${state.seen + [event.data.what]}"}}
steps:
  ask:
    effect: away
    with: {}
    set: {seen: "${state.seen + ['result']}"}
  hold: {wait: {signal: close, timeout: 1h}}
"#;
const TIMED: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: bill
start: Bill.Opened
key: {"*": event.data.id}
state: {init: {paid: false}}
events: {till.paid: {from: till}}
handlers:
  Bill.Paid: {set: {paid: true}}
  till.paid: {set: {paid: true}}
steps:
  hold: {wait: {signal: close, timeout: 1h}}
timers:
  unpaid: {after: 5s, cancel_when: state.paid, fail: {code: unpaid}}
"#;
const TILL: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: till
start: Till.Opened
key: {"*": event.data.id}
steps:
  tell: {publish: {type: till.paid, payload: {id: "${key}"}}}
"#;
const EFFECT: &str = r"
apiVersion: sagas/v1
kind: Effect
name: away
input: {type: object}
output: {type: object}
external: {}
";
const KEYS: usize = 24;
/// When the timer is due.
const DUE: Duration = Duration::from_secs(5);

/// What happens to one instance while the runner is down.
const MIXTURES: [[&str; 4]; 6] = [
    ["first", "result", "second", "cancel"],
    ["first", "second", "result", "cancel"],
    ["result", "first", "cancel", "second"],
    ["first", "cancel", "result", "second"],
    ["result", "cancel", "first", "second"],
    ["result", "first", "second", "cancel"],
];

struct Outage {
    stream: jetstream::Context,
    commands: BTreeMap<String, String>,
}

impl Outage {
    /// The commands that nobody has carried out, by key.
    async fn begin(url: &str) -> Self {
        let stream = jetstream::new(async_nats::connect(url).await.expect("connects"));
        let stored = stream.get_stream("WORKFLOW_COMMANDS").await.expect("is there");
        let mut commands = BTreeMap::new();
        for sequence in 1..=stored.cached_info().state.last_sequence {
            let Ok(message) = stored.get_raw_message(sequence).await else {
                continue;
            };
            if let Some(id) = message
                .subject
                .strip_prefix(&format!("tenant.{TENANT}.effect.away."))
            {
                let body: Value = serde_json::from_slice(&message.payload).expect("JSON");
                let key = body["metadata"]["key"].as_str().expect("a key");
                commands.insert(key.to_owned(), id.to_owned());
            }
        }
        Self { stream, commands }
    }

    /// Stores a message, in another millisecond than the one before.
    async fn store(&self, subject: String, body: String) {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let stored = self.stream.publish(subject, body.into()).await.expect("sent");
        stored.await.expect("stored");
    }

    async fn happens(&self, what: &str, key: &str) {
        match what {
            "cancel" => {
                let body = json!({"request_id": format!("c-{key}"), "control": "cancel", "reason": "test"});
                let subject = format!("tenant.{TENANT}.workflow.race.{key}");
                self.store(subject, body.to_string()).await;
            }
            "result" => {
                let id = &self.commands[key];
                let body = json!({
                    "tenant_id": TENANT, "command_id": id, "effect_name": "away", "result_type": "Succeeded",
                    "payload": {}, "metadata": {"saga": "race", "key": key},
                });
                let subject = format!("tenant.{TENANT}.effect_result.away.{id}");
                self.store(subject, body.to_string()).await;
            }
            counted => {
                let payload = json!({"id": key, "what": counted});
                let body = event_body("Race", key, "Counted", &payload);
                let body = body.replace("Race-Counted", &format!("Race-{counted}"));
                self.store(format!("tenant.{TENANT}.aggregate.Race.{key}"), body)
                    .await;
            }
        }
    }

    async fn pay(&self, key: &str) {
        let body = event_body("Bill", key, "Paid", &json!({"id": key}));
        self.store(format!("tenant.{TENANT}.aggregate.Bill.{key}"), body)
            .await;
    }

    /// A fact of another saga says that it is paid.
    async fn tell(&self, key: &str) {
        let body = json!({
            "tenant_id": TENANT, "event_id": "018f3a1c-0000-7000-8000-000000000001", "event_type": "till.paid",
            "saga": "till", "key": key, "payload": {"id": key}, "metadata": {},
        });
        self.store(
            format!("tenant.{TENANT}.workflow_event.till.{key}"),
            body.to_string(),
        )
        .await;
    }
}

async fn seen(rig: &Rig, key: &str) -> Vec<String> {
    let view = rig.wait_for("race", key, |view| view["phase"] != "running").await;
    serde_json::from_value(view["state"]["seen"].clone()).expect("a list")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_an_outage_are_processed_in_stored_order() {
    let server = NatsServer::start();
    let mut rig = Rig::new(Some(server.url()), "30m", Duration::ZERO, json!({})).await;
    rig.clear_definitions();
    rig.add_saga("race", SAGA);
    rig.add_saga("bill", TIMED);
    rig.add_saga("till", TILL);
    rig.add_effect("away", EFFECT);
    rig.start().await;
    let keys: Vec<String> = (0..KEYS).map(|number| format!("k{number}")).collect();
    for key in &keys {
        rig.send("Race", key, "Opened", json!({"id": key})).await;
    }
    let begin = Instant::now();
    while Outage::begin(&server.url()).await.commands.len() < KEYS {
        assert!(
            begin.elapsed() < Duration::from_mins(1),
            "every command is stored"
        );
    }
    let opened = Instant::now();
    for key in ["early", "told", "late"] {
        rig.send("Bill", key, "Opened", json!({"id": key})).await;
        rig.wait_for("bill", key, |view| view["phase"] == "running").await;
    }
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());

    let outage = Outage::begin(&server.url()).await;
    outage.pay("early").await;
    outage.tell("told").await;
    assert!(opened.elapsed() < DUE, "the machine is too slow for this test");
    for at in [0, 1, 2, 3] {
        for (number, key) in keys.iter().enumerate() {
            outage.happens(MIXTURES[number % MIXTURES.len()][at], key).await;
        }
    }
    tokio::time::sleep((DUE + Duration::from_secs(1)).saturating_sub(opened.elapsed())).await;
    outage.pay("late").await;
    rig.start().await;

    for (number, key) in keys.iter().enumerate() {
        let stored = MIXTURES[number % MIXTURES.len()];
        let expected: Vec<&str> = stored.into_iter().take_while(|what| *what != "cancel").collect();
        assert_eq!(seen(&rig, key).await, expected, "{key}, {stored:?}");
    }
    let late = rig
        .wait_for("bill", "late", |view| view["phase"] != "running")
        .await;
    assert_eq!(late["failure"]["code"], "unpaid", "{late}");
    assert_eq!(late["state"]["paid"], false, "the timer was due before: {late}");
    for key in ["early", "told"] {
        let paid = rig
            .wait_for("bill", key, |view| view["state"]["paid"] == true)
            .await;
        assert_eq!(paid["phase"], "running", "{paid}");
    }
    assert_eq!(rig.terminate().await, Some(0), "{}", rig.log_tail());
}
