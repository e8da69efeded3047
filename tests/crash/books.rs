//! The evidence outside the runner: what the upstream did, and what stands in the streams.

use std::collections::{BTreeMap, BTreeSet};

use saga_runner::demo::audit::{Audit, Ending};
use saga_runner::ports::broker::{Broker, ReaderSpec};
use serde_json::Value;

use crate::rig::{Rig, TENANT};

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

    let mut results_by_command: BTreeMap<&str, usize> = BTreeMap::new();
    for result in &results {
        *results_by_command.entry(text(result, "/command_id")).or_default() += 1;
    }
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
            name: format!("books-{stream}"),
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
