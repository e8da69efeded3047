//! Every input that was acknowledged is applied once, in the order in which it was stored; and what is told of it comes in that
//! order, repeated at most right behind itself.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::judges::ended;
use crate::run::{RESULTS, Simulation, TENANT};

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut faults = Vec::new();
    for key in simulation.plan.keys("List") {
        let Some(record) = ended(simulation, "list", &key) else {
            faults.push(format!("list/{key} has not ended"));
            continue;
        };
        let data: Value = serde_json::from_slice(&record.data).expect("state is JSON");
        let applied: Vec<u64> = numbers(&data["items"]);
        let expected = stored(simulation, &key);
        if applied != expected {
            faults.push(format!(
                "list/{key} was told {expected:?} and has applied {applied:?}"
            ));
        }
        let told = told(simulation, &key);
        if told != expected {
            faults.push(format!(
                "list/{key} was told {expected:?} and has published {told:?}"
            ));
        }
    }
    faults
}

fn numbers(items: &Value) -> Vec<u64> {
    let items = items.as_array().expect("a list");
    items
        .iter()
        .map(|item| item.as_u64().expect("a number"))
        .collect()
}

/// What was stored for a list, each event once, in the order of the stream.
fn stored(simulation: &Simulation, key: &str) -> Vec<u64> {
    let mut known = BTreeSet::new();
    let mut numbers = Vec::new();
    for (_, event) in &simulation.stored {
        if event.kind == "List" && event.key == key && known.insert(&event.id) && event.name == "List.Added" {
            numbers.push(event.data["n"].as_u64().expect("a number"));
        }
    }
    numbers
}

/// What the list has published, repetitions right behind left out.
fn told(simulation: &Simulation, key: &str) -> Vec<u64> {
    let subject = format!("tenant.{TENANT}.workflow_event.list.{key}");
    let facts = simulation.server.archive(RESULTS).into_iter();
    let mut told: Vec<u64> = facts
        .filter(|fact| fact.subject == subject)
        .filter_map(|fact| {
            let body: Value = serde_json::from_slice(&fact.payload).expect("a fact is JSON");
            let is_added = body["event_type"] == "list.added";
            is_added.then(|| body["payload"]["n"].as_u64().expect("a number"))
        })
        .collect();
    told.dedup();
    told
}
