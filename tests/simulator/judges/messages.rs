//! What stands in the runner's own streams: one result for each command, the same command under the same id, facts in order.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::run::{COMMANDS, RESULTS, Simulation};

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut faults = results(simulation);
    faults.extend(commands(simulation));
    faults.extend(facts(simulation));
    faults
}

fn results(simulation: &Simulation) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for message in simulation.server.archive(RESULTS) {
        if !message.subject.contains(".effect_result.") {
            continue;
        }
        let body: Value = serde_json::from_slice(&message.payload).expect("a result is JSON");
        // What became of an unknown outcome may be told once more.
        if body["result_type"] != "TimedOut" {
            *counts.entry(message.subject).or_default() += 1;
        }
    }
    counts.retain(|_, count| *count > 1);
    let told = counts.into_iter();
    told.map(|(subject, count)| format!("{count} results on {subject}"))
        .collect()
}

/// The body of a command is a function of the transition that asked for it.
fn commands(simulation: &Simulation) -> Vec<String> {
    let mut bodies: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for message in simulation.server.archive(COMMANDS) {
        if !message.subject.contains(".effect.") {
            continue;
        }
        let mut body: Value = serde_json::from_slice(&message.payload).expect("a command is JSON");
        // What was tried before is not part of the work.
        if let Some(body) = body.as_object_mut() {
            body.remove("progress");
        }
        bodies
            .entry(message.subject)
            .or_default()
            .insert(body.to_string());
    }
    bodies.retain(|_, bodies| bodies.len() > 1);
    let told = bodies.into_iter();
    told.map(|(subject, bodies)| format!("{} bodies of the command {subject}: {bodies:?}", bodies.len()))
        .collect()
}

/// A fact is repeated right behind itself, or not at all.
fn facts(simulation: &Simulation) -> Vec<String> {
    let mut by_subject: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in simulation.server.archive(RESULTS) {
        if !message.subject.contains(".workflow_event.") {
            continue;
        }
        let body: Value = serde_json::from_slice(&message.payload).expect("a fact is JSON");
        let id = body["event_id"].as_str().expect("an id").to_owned();
        by_subject.entry(message.subject).or_default().push(id);
    }
    let mut faults = Vec::new();
    for (subject, mut ids) in by_subject {
        ids.dedup();
        let distinct: BTreeSet<&String> = ids.iter().collect();
        if distinct.len() < ids.len() {
            faults.push(format!(
                "facts of {subject} were repeated behind later ones: {ids:?}"
            ));
        }
    }
    faults
}
