//! The evidence outside the runner: what the upstream did, and what stands in the streams.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use saga_runner::demo::audit::{Audit, Ending};
use saga_runner::ports::broker::{Broker, ReaderSpec};
use serde_json::Value;

use crate::support::rig::{Rig, TENANT};

/// Checks the upstream's books and the streams against each other.
pub async fn check(rig: &Rig, broker: &dyn Broker, endings: &BTreeMap<String, Value>) {
    check_upstream(rig, endings);
    let commands = read_all(broker, "WORKFLOW_COMMANDS", &format!("tenant.{TENANT}.effect.>")).await;
    let results = read_all(
        broker,
        "WORKFLOW_EVENTS",
        &format!("tenant.{TENANT}.effect_result.>"),
    )
    .await;

    let results_by_command = count(&results);
    let mut attempts: BTreeMap<(&str, &str, u64), &str> = BTreeMap::new();
    let mut pieces: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    let mut known_keys = BTreeSet::new();
    for command in &commands {
        let id = text(command, "/command_id");
        assert_eq!(
            results_by_command.get(id),
            Some(&1),
            "every command has exactly one recorded result: {command}"
        );
        let place = (text(command, "/metadata/key"), text(command, "/metadata/path"));
        let attempt = command["metadata"]["attempt"].as_u64().expect("an attempt");
        let before = attempts.insert((place.0, place.1, attempt), id);
        assert!(
            before.is_none_or(|before| before == id),
            "an attempt has one command id: {command}"
        );
        let key = text(command, "/metadata/idempotency_key");
        pieces.entry(place).or_default().insert(key);
        known_keys.insert(key);
    }
    for (place, keys) in &pieces {
        assert_eq!(
            keys.len(),
            1,
            "all attempts of {place:?} carry one idempotency key"
        );
    }
    for deed in rig.upstream.deeds() {
        if deed.kind != "commands" {
            assert!(
                known_keys.contains(deed.idempotency_key.as_str()),
                "the upstream did nothing that was not commanded: {deed:?}"
            );
        }
    }
}

/// The same where commands need no message: the results that the instances have taken are the evidence.
pub async fn check_local(rig: &Rig, broker: &dyn Broker, endings: &BTreeMap<String, Value>) {
    check_upstream(rig, endings);
    let mut taken = BTreeSet::new();
    for view in endings.values() {
        for input in view["history"].as_array().expect("a history") {
            if input["kind"]
                .as_str()
                .is_some_and(|kind| kind.starts_with("result of "))
            {
                taken.insert(text(input, "/input").to_owned());
            }
        }
    }
    assert!(taken.len() > endings.len(), "the histories tell of results");
    // They are published behind the commit that has applied them.
    let begin = Instant::now();
    loop {
        let filter = format!("tenant.{TENANT}.effect_result.>");
        let results = read_all(broker, "WORKFLOW_EVENTS", &filter).await;
        let counted = count(&results);
        let twice = counted.iter().find(|(_, times)| **times != 1);
        assert_eq!(twice, None, "a command has one recorded result");
        let missing = taken
            .iter()
            .find(|command| !counted.contains_key(command.as_str()));
        let Some(missing) = missing else { break };
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "no result of {missing} was published"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for order in endings.keys().step_by(50) {
        let url = rig.url(&format!(
            "/v1/tenants/{TENANT}/sagas/order/instances/{order}/inputs"
        ));
        let answer = rig.client.get(url).send().await.expect("an answer");
        let recorded: Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
        let inputs = recorded["inputs"].as_array().expect("inputs");
        let missing = inputs
            .iter()
            .find(|input| input["input"].get("missing").is_some());
        assert_eq!(missing, None, "the history can be replayed");
        // An order without stock may end before any of its steps has succeeded.
        let told = inputs.iter().any(|input| {
            let outcome = &input["input"]["result"]["outcome"];
            let payload = outcome["ok"].as_object();
            payload.is_some_and(|ok| !ok.is_empty()) || outcome["error"]["message"].is_string()
        });
        assert!(told, "results are read back: {recorded}");
    }
    let commands = read_all(broker, "WORKFLOW_COMMANDS", &format!("tenant.{TENANT}.effect.>")).await;
    assert!(
        commands.len() < taken.len(),
        "most commands took the short way: {} of {}",
        commands.len(),
        taken.len()
    );
}

/// Results of each command.
fn count(results: &[Value]) -> BTreeMap<&str, usize> {
    let mut counted = BTreeMap::new();
    for result in results {
        *counted.entry(text(result, "/command_id")).or_default() += 1;
    }
    counted
}

/// Checks that every charge is shipped or refunded, and that nothing was done under two keys.
pub fn check_upstream(rig: &Rig, endings: &BTreeMap<String, Value>) {
    let endings: Vec<Ending> = endings
        .iter()
        .map(|(order, view)| Ending {
            order: order.clone(),
            phase: view["phase"].as_str().unwrap_or_default().to_owned(),
            failure: view["failure"]["code"].as_str().map(str::to_owned),
        })
        .collect();
    let audit = Audit::new(&endings, &rig.upstream.deeds());
    assert!(audit.faults.is_empty(), "{}", audit.faults.join("\n"));
}

async fn read_all(broker: &dyn Broker, stream: &str, filter: &str) -> Vec<Value> {
    let mut reader = broker
        .reader(ReaderSpec {
            stream: stream.to_owned(),
            filters: vec![filter.to_owned()],
            start_sequence: 1,
            name: format!("books-{}", uuid::Uuid::new_v4().simple()),
            buffer: 1_000,
        })
        .await
        .expect("a reader");
    let mut found = Vec::new();
    let mut after = 0;
    loop {
        while let Some(message) = reader.ready() {
            let message = message.expect("a message");
            after = message.stream_sequence;
            found.push(serde_json::from_slice(&message.payload).expect("an envelope"));
        }
        match reader.horizon().await.expect("the reader works") {
            Some(horizon) if horizon.after <= after => return found,
            _ => {
                let message = reader.next().await.expect("a message");
                after = message.stream_sequence;
                found.push(serde_json::from_slice(&message.payload).expect("an envelope"));
            }
        }
    }
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
