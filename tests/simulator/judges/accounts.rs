//! Every event that was acknowledged is accounted for: applied, recognised as a repetition, a dead letter, of no concern, or
//! waiting; and applied once at most.

use std::collections::{BTreeMap, BTreeSet};

use saga_runner::kernel::input::SourceStream;
use saga_runner::storage::rows::{HistoryOutcome, HistoryRow};

use super::{history, keys};
use crate::run::Simulation;
use crate::workload::Event;

/// Sagas whose keys are used once, by the type of the aggregates that concern them, and the type of event that does not.
const SAGAS: [(&str, &str, &str); 6] = [
    ("List", "list", ""),
    ("List", "watch", "List.Divided"),
    ("Bill", "bill", ""),
    ("Pay", "pay", ""),
    ("Stall", "stall", ""),
    ("Rounds", "rounds", ""),
];

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut faults = Vec::new();
    for (kind, saga, not) in SAGAS {
        for (tenant, key) in keys(simulation, kind) {
            let rows = history(simulation, tenant, saga, &key);
            let stored = simulation.stored.iter();
            let stored: Vec<&(u64, Event)> = stored
                .filter(|(_, event)| event.kind == kind && event.name != not)
                .filter(|(_, event)| event.tenant == tenant && event.key == key)
                .collect();
            let found = account(&rows, &stored);
            faults.extend(found.map(|fault| format!("{saga}/{key} of {tenant}: {fault}")));
        }
    }
    faults
}

/// What is wrong with the account of one instance.
fn account(rows: &[HistoryRow], stored: &[&(u64, Event)]) -> Option<String> {
    let mut outcomes: BTreeMap<u64, Vec<&HistoryOutcome>> = BTreeMap::new();
    for row in rows {
        if let Some((SourceStream::AggregateEvents, sequence)) = row.source {
            outcomes.entry(sequence).or_default().push(&row.outcome);
        }
    }
    let is_applied = |outcome: &&&HistoryOutcome| **outcome == &HistoryOutcome::Applied;
    let twice = outcomes
        .iter()
        .find(|(_, outcomes)| outcomes.iter().filter(is_applied).count() > 1);
    if let Some((sequence, _)) = twice {
        return Some(format!("event {sequence} was applied twice"));
    }
    let known: BTreeSet<&str> = stored
        .iter()
        .filter(|(sequence, _)| outcomes.contains_key(sequence))
        .map(|(_, event)| event.id.as_str())
        .collect();
    // Before the start there was no instance, and behind the last there may be none any more.
    let (first, last) = (outcomes.keys().next()?, outcomes.keys().next_back()?);
    let missing = stored
        .iter()
        .find(|(sequence, event)| (*first..*last).contains(sequence) && !known.contains(event.id.as_str()));
    missing.map(|(sequence, event)| format!("event {} ({sequence}) is not accounted for", event.id))
}
