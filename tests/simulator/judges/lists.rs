//! Every input that was acknowledged is applied once, in the order in which it was stored, by each saga that it concerns; and
//! what is told of it comes in that order, repeated at most right behind itself.

use std::collections::{BTreeMap, BTreeSet};

use saga_runner::kernel::ids::InstanceId;
use saga_runner::kernel::input::SourceStream;
use saga_runner::ports::broker::StoredMessage;
use serde_json::Value;

use super::{ended, found, instance, is_whole, keys, reader_of};
use crate::run::{EVENTS, RESULTS, Simulation};
use crate::workload::Event;

/// How long what comes before the start surely waits for it.
const EARLY_MS: i64 = 36_000;

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut faults = Vec::new();
    let mut times = BTreeMap::new();
    for message in simulation.server.archive(EVENTS) {
        times.entry(message.sequence).or_insert(message.time.0);
    }
    let results = simulation.server.archive(RESULTS);
    for (tenant, key) in keys(simulation, "List") {
        let name = format!("list/{key} of {tenant}");
        let events = events(simulation, &times, tenant, &key);
        let expected = if is_whole(simulation) {
            numbers(behind(&events, start(&events)))
        } else {
            numbers(events.iter().collect())
        };
        let Some(state) = state(simulation, tenant, "list", &key) else {
            faults.push(format!("{name} has not ended"));
            continue;
        };
        let applied = listed(&state["items"]);
        if applied != expected {
            faults.push(format!(
                "{name} was told {expected:?} and has applied {applied:?}"
            ));
        }
        let sequences: Vec<u64> = expected.iter().map(|n| n + 1).collect();
        if listed(&state["sequences"]) != sequences {
            faults.push(format!("{name} has other sequences: {}", state["sequences"]));
        }
        let mut told = told(&results, tenant, &key);
        if simulation.losses.adopted.is_some() || simulation.losses.has_lost(RESULTS) {
            // What was adopted may tell everything again; so may an outbox that the broker has not confirmed before it forgot.
            let mut known = BTreeSet::new();
            told.retain(|n| known.insert(*n));
        }
        let untold = discarded(simulation, tenant, &key);
        if !is_told(&told, &expected, untold) {
            faults.push(format!(
                "{name} was told {expected:?} and has published {told:?}; {untold} fact(s) were discarded"
            ));
        }
        // What is lost is asked of one saga alone.
        if !is_whole(simulation) {
            continue;
        }
        faults.extend(watched(simulation, tenant, &key, &events));
        faults.extend(audited(simulation, tenant, &key, &events));
    }
    faults
}

/// How many facts of a list an operator has discarded.
fn discarded(simulation: &Simulation, tenant: &str, key: &str) -> usize {
    let discarded = simulation.losses.discarded_facts.iter();
    discarded
        .filter(|(of, saga, about)| of == tenant && saga == "list" && about == key)
        .count()
}

/// Whether all was told in its order, but for so many at most.
fn is_told(told: &[u64], expected: &[u64], untold: usize) -> bool {
    let mut left = expected.iter();
    told.iter().all(|n| left.any(|expected| expected == n)) && told.len() + untold >= expected.len()
}

/// The saga in which what comes early waits.
fn watched(simulation: &Simulation, tenant: &str, key: &str, events: &[Stored<'_>]) -> Option<String> {
    let Some(state) = state(simulation, tenant, "watch", key) else {
        return Some(format!("watch/{key} of {tenant} has not ended"));
    };
    let opened = start(events)?;
    let from = events
        .iter()
        .filter(|one| one.time >= opened.time - EARLY_MS)
        .map(|one| one.sequence)
        .min()?;
    let expected = numbers(unclosed(events.iter().filter(|one| one.sequence >= from), opened));
    let applied = listed(&state["items"]);
    (applied != expected)
        .then(|| format!("watch/{key} of {tenant} was told {expected:?} and has applied {applied:?}"))
}

/// The saga that was added meanwhile: it has all that its shard had not applied when it came into force, and nothing of before.
fn audited(simulation: &Simulation, tenant: &str, key: &str, events: &[Stored<'_>]) -> Option<String> {
    let name = format!("audit/{key} of {tenant}");
    let since = since(simulation, &instance(tenant, "audit", key));
    let heard: Vec<Stored<'_>> = events
        .iter()
        .filter(|one| since.is_some_and(|since| one.sequence > since))
        .copied()
        .collect();
    let Some(begun) = start(&heard) else {
        let is_there = found(simulation, &instance(tenant, "audit", key)).is_some();
        return is_there.then(|| format!("{name} was begun by what was stored before its definition"));
    };
    let Some(state) = state(simulation, tenant, "audit", key) else {
        let at = begun.sequence;
        return Some(format!(
            "{name} has not ended, although its shard has taken its start, {at}, behind its definition"
        ));
    };
    let expected = numbers(behind(&heard, Some(begun)));
    let applied = listed(&state["items"]);
    (applied != expected).then(|| format!("{name} was told {expected:?} and has applied {applied:?}"))
}

/// The position of the shard of an instance when its saga became active.
fn since(simulation: &Simulation, id: &InstanceId) -> Option<u64> {
    let active = reader_of(simulation, id).active_definitions();
    let active = active.expect("a store in memory can be read");
    let saga = active.sagas.get(id.saga.as_str())?;
    Some(saga.since[SourceStream::AggregateEvents.index()])
}

/// An event as it stands in its stream.
#[derive(Clone, Copy)]
struct Stored<'e> {
    sequence: u64,
    time: i64,
    event: &'e Event,
}

/// What was stored for a list, in the order of the stream.
fn events<'s>(
    simulation: &'s Simulation,
    times: &BTreeMap<u64, i64>,
    tenant: &str,
    key: &str,
) -> Vec<Stored<'s>> {
    let time = |sequence: u64| times.get(&sequence).copied().unwrap_or(0);
    let mut events: Vec<Stored<'_>> = simulation
        .stored
        .iter()
        .filter(|(_, event)| event.kind == "List" && event.tenant == tenant && event.key == key)
        .map(|(sequence, event)| Stored {
            sequence: *sequence,
            time: time(*sequence),
            event,
        })
        .collect();
    if is_whole(simulation) {
        events.sort_by_key(|one| one.sequence);
    }
    events
}

fn start<'e, 's>(events: &'e [Stored<'s>]) -> Option<&'e Stored<'s>> {
    events.iter().find(|one| one.event.name == "List.Opened")
}

/// What follows the start, up to the end.
fn behind<'e, 's>(events: &'e [Stored<'s>], begun: Option<&Stored<'s>>) -> Vec<&'e Stored<'s>> {
    let Some(begun) = begun else { return Vec::new() };
    let later = events.iter().filter(|one| one.sequence > begun.sequence);
    unclosed(later, begun)
}

/// What stands before the first end behind the start.
fn unclosed<'e, 's: 'e>(
    events: impl Iterator<Item = &'e Stored<'s>>,
    begun: &Stored<'s>,
) -> Vec<&'e Stored<'s>> {
    events
        .take_while(|one| one.event.name != "List.Closed" || one.sequence < begun.sequence)
        .collect()
}

/// Each event once.
fn numbers(events: Vec<&Stored<'_>>) -> Vec<u64> {
    let mut known = BTreeSet::new();
    let added = events.into_iter().filter(|one| one.event.name == "List.Added");
    added
        .filter(|one| known.insert(&one.event.id))
        .map(|one| one.event.data["n"].as_u64().expect("a number"))
        .collect()
}

fn state(simulation: &Simulation, tenant: &str, saga: &str, key: &str) -> Option<Value> {
    let record = ended(simulation, tenant, saga, key)?;
    Some(serde_json::from_slice(&record.data).expect("state is JSON"))
}

fn listed(items: &Value) -> Vec<u64> {
    let items = items.as_array().expect("a list");
    items
        .iter()
        .map(|item| item.as_u64().expect("a number"))
        .collect()
}

/// What the list has published, repetitions right behind left out.
fn told(results: &[StoredMessage], tenant: &str, key: &str) -> Vec<u64> {
    let subject = format!("tenant.{tenant}.workflow_event.list.{key}");
    let facts = results.iter();
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
