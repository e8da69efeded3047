//! What stands in the runner's own streams: one result for each command, the same command under the same id, facts in order.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{SAGAS, records};
use crate::faults::is_of_stranger;
use crate::run::{CLUSTER, COMMANDS, RESULTS, Simulation};
use crate::workload::{TENANTS, mark};

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut faults = results(simulation);
    faults.extend(commands(simulation));
    faults.extend(told_once(simulation));
    // What was adopted may tell everything again.
    if simulation.losses.adopted.is_none() {
        faults.extend(facts(simulation));
    }
    faults.extend(mixed(simulation));
    faults
}

/// What is a tenant's stands under its subjects and in its instances, and nowhere else.
fn mixed(simulation: &Simulation) -> Vec<String> {
    let streams = [RESULTS, COMMANDS].map(|stream| simulation.server.archive(stream));
    let mut faults = Vec::new();
    for tenant in TENANTS {
        let mut others = TENANTS.into_iter().filter(|other| *other != tenant);
        let foreign = mark(others.next().expect("there are two"));
        let is_foreign = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok_and(|text| text.contains(&foreign));
        let subjects = [
            format!("tenant.{tenant}."),
            format!("runner.{CLUSTER}.control.{tenant}."),
        ];
        let is_of_tenant = |one: &str| subjects.iter().any(|subjects| one.starts_with(subjects));
        let messages = streams.iter().flatten();
        let mixed = messages.filter(|one| is_of_tenant(&one.subject) && is_foreign(&one.payload));
        faults.extend(mixed.map(|one| format!("{} has what another tenant said", one.subject)));
        for saga in SAGAS {
            let records = records(simulation, tenant, saga).into_iter();
            let mixed = records.filter(|(_, record)| is_foreign(&record.data));
            faults.extend(mixed.map(|(id, _)| format!("{id} has what another tenant said")));
        }
    }
    faults
}

fn results(simulation: &Simulation) -> Vec<String> {
    let mut faults = Vec::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for message in simulation.server.kept(RESULTS) {
        if !message.subject.contains(".effect_result.") || is_of_stranger(&message) {
            continue;
        }
        let body: Value = serde_json::from_slice(&message.payload).expect("a result is JSON");
        let is_unknown = body["result_type"] == "TimedOut";
        if is_unknown && simulation.plan.is_calm {
            faults.push(format!(
                "the outcome of {} is unknown without any fault",
                message.subject
            ));
        }
        // What became of an unknown outcome may be told once more.
        if !is_unknown {
            *counts.entry(message.subject).or_default() += 1;
        }
    }
    // What an adopted state had not sent yet is sent, and the result of the first time may be trimmed by then.
    let most = if simulation.losses.adopted.is_some() { 2 } else { 1 };
    counts.retain(|_, count| *count > most);
    let told = counts.into_iter();
    faults.extend(told.map(|(subject, count)| format!("{count} results on {subject}")));
    faults
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
    for command in simulation.upstream.submissions() {
        bodies.entry(command.id).or_default().insert(command.payload);
    }
    bodies.retain(|_, bodies| bodies.len() > 1);
    let told = bodies.into_iter();
    told.map(|(subject, bodies)| format!("{} bodies of the command {subject}: {bodies:?}", bodies.len()))
        .collect()
}

/// What a fact tells is a function of the transition as well.
fn told_once(simulation: &Simulation) -> Vec<String> {
    let mut bodies: BTreeMap<(String, String), BTreeSet<Vec<u8>>> = BTreeMap::new();
    for message in simulation.server.archive(RESULTS) {
        if message.subject.contains(".workflow_event.") {
            let body: Value = serde_json::from_slice(&message.payload).expect("a fact is JSON");
            let id = body["event_id"].as_str().expect("an id").to_owned();
            let bodies = bodies.entry((message.subject, id)).or_default();
            bodies.insert(message.payload.to_vec());
        }
    }
    bodies.retain(|_, bodies| bodies.len() > 1);
    let told = bodies.into_iter();
    told.map(|((subject, id), bodies)| format!("{} bodies of the fact {id} on {subject}", bodies.len()))
        .collect()
}

/// A fact is repeated right behind itself, or not at all.
fn facts(simulation: &Simulation) -> Vec<String> {
    let mut by_subject: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in simulation.server.kept(RESULTS) {
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
