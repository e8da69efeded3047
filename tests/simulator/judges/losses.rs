//! What is gone was told: an event that was removed, and that no runner has applied, lies in a gap that an operator has accepted;
//! and who has read what a stream does not have any more is told that it is another one.

use serde_json::Value;

use crate::faults::Gone;
use crate::judges::{found, instance};
use crate::run::{EVENTS, Simulation};
use saga_runner_partition::storage::read::Found;

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut faults = removed(simulation);
    faults.extend(forgotten(simulation));
    faults
}

/// A stream that has gone back, or was made anew, means other messages by its sequences.
pub fn forgotten(simulation: &Simulation) -> Option<String> {
    let mut gone = simulation.losses.gone.iter();
    // Another process may have begun with what there was.
    if simulation.losses.adopted.is_some() {
        return None;
    }
    let is_told = |gone: &&Gone| {
        let shard = simulation.shard_of(&gone.event.key);
        let mut told = simulation.losses.told.iter();
        told.any(|report| report.stream == EVENTS && report.shard == shard)
    };
    // Where what took its place was removed as well before the broker answered, there is nothing to compare with.
    let first = simulation
        .server
        .kept(EVENTS)
        .first()
        .map_or(u64::MAX, |message| message.sequence);
    let untold = gone.find(|gone| {
        let leaves_trace = gone.sequence >= first;
        !gone.is_removed && gone.was_read && leaves_trace && !is_told(gone)
    });
    untold.map(|gone| {
        format!(
            "{} was read and then lost by its stream, and nobody was told",
            gone.event.id
        )
    })
}

/// What is gone and nobody was told of. A process finds out up to seconds later, where the broker does not answer it.
pub fn removed(simulation: &Simulation) -> Vec<String> {
    let gone = simulation.losses.gone.iter();
    // Where a broker loses what nobody has read, nobody can know.
    let removed = gone.filter(|gone| gone.is_removed && !gone.stood_in_place && !gone.is_unheard);
    removed
        .filter(|gone| {
            !is_applied(simulation, gone)
                && !is_within_what_was_told(simulation, gone)
                && !came_behind_its_end(simulation, gone)
        })
        .map(|gone| {
            format!(
                "{} was removed and is not applied, and nobody was told",
                gone.event.id
            )
        })
        .collect()
}

/// Of each list all that it was told, of other instances whether they have begun.
fn is_applied(simulation: &Simulation, gone: &Gone) -> bool {
    let saga = gone.event.kind.to_lowercase();
    let record = match found(simulation, &instance(gone.event.tenant, &saga, &gone.event.key)) {
        Some(Found::Ended(summary)) => summary.record,
        Some(Found::Live(record)) => record,
        None => return !is_start(gone) && (gone.was_read || never_began(simulation, gone)),
    };
    if gone.event.name != "List.Added" {
        return true;
    }
    let data: Value = serde_json::from_slice(&record.data).expect("state is JSON");
    let items = data["items"].as_array().expect("a list");
    items.contains(&gone.event.data["n"])
}

fn is_start(gone: &Gone) -> bool {
    gone.event.name.ends_with(".Opened")
}

/// What would have started its instance is gone: the event has no instance, and leaves no trace. That was told, unless the
/// broker lost the start before anybody had read it: then nobody can know.
fn never_began(simulation: &Simulation, gone: &Gone) -> bool {
    let event = &gone.event;
    let mut others = simulation.losses.gone.iter();
    others.any(|other| {
        let is_same = other.event.tenant == event.tenant
            && other.event.kind == event.kind
            && other.event.key == event.key;
        let was_lost_unread = !other.is_removed && !other.was_read && !other.is_resent;
        is_same && is_start(other) && (was_lost_unread || is_within_what_was_told(simulation, other))
    })
}

/// It was lost before and stored again, perhaps behind what ended its instance.
fn came_behind_its_end(simulation: &Simulation, gone: &Gone) -> bool {
    let mut others = simulation.losses.gone.iter();
    let was_lost = others.any(|other| other.event.id == gone.event.id && !other.is_removed);
    let saga = gone.event.kind.to_lowercase();
    let id = instance(gone.event.tenant, &saga, &gone.event.key);
    was_lost && matches!(found(simulation, &id), Some(Found::Ended(_)))
}

fn is_within_what_was_told(simulation: &Simulation, gone: &Gone) -> bool {
    let shard = simulation.shard_of(&gone.event.key);
    let mut told = simulation.losses.told.iter();
    told.any(|report| {
        let skipped = report.skipped.as_ref();
        report.stream == EVENTS
            && report.shard == shard
            && skipped.is_none_or(|skipped| (skipped.from..=skipped.to).contains(&gone.sequence))
    })
}
