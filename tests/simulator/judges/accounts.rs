//! Every event that was acknowledged is accounted for: applied, recognised as a repetition, a dead letter, of no concern, or
//! waiting; and applied once at most.
//!
//! What comes when an instance has ended leaves nothing behind. Where events and timers alone end an instance, whatever was
//! stored before its end must have come before that. Results come by another stream, and order holds between two streams
//! only as far as both are read at once: so there something is left to the events that were stored last.

use std::collections::{BTreeMap, BTreeSet};

use saga_runner::kernel::ids::TimeMs;
use saga_runner::kernel::input::SourceStream;
use saga_runner::storage::rows::{HistoryOutcome, HistoryRow};

use super::books::is_punctual;
use super::timers::COARSE_MS;
use super::{history_of, records};
use crate::plan::Action;
use crate::run::{EVENTS, Simulation};
use crate::workload::{Event, TENANTS};

/// Sagas by the type of the aggregates that concern them, the type of event that does not, and whether results end them.
const SAGAS: [(&str, &str, &str, bool); 9] = [
    ("List", "list", "", false),
    ("List", "watch", "List.Divided", false),
    ("Bill", "bill", "", false),
    ("Cup", "cup", "", false),
    ("Pay", "pay", "", true),
    ("Stall", "stall", "", true),
    ("Rounds", "rounds", "", true),
    ("Trip", "trip", "", true),
    // Under one key again and again: what starts the next one is of no concern to the one that runs.
    ("Order", "order", "Order.Opened", true),
];
/// How far reading of one stream may be behind reading of another where nothing goes wrong, and where something does,
/// in milliseconds.
const LAG_MS: i64 = 1_000;
const LAG_IN_TROUBLE_MS: i64 = 30_000;

/// An event, where it stands in its stream, and when it was stored.
struct Stored<'s> {
    sequence: u64,
    time: TimeMs,
    event: &'s Event,
}

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let archive = simulation.server.archive(EVENTS).into_iter();
    let times: BTreeMap<u64, TimeMs> = archive.map(|message| (message.sequence, message.time)).collect();
    let mut faults = Vec::new();
    for (kind, saga, not, ends_by_result) in SAGAS {
        for (tenant, (id, record)) in TENANTS.into_iter().flat_map(|tenant| {
            records(simulation, tenant, saga)
                .into_iter()
                .map(move |one| (tenant, one))
        }) {
            let rows = history_of(simulation, &id, &record);
            let stored = simulation.stored.iter();
            // An instance that undoes something for another reason heeds no withdrawal.
            let failed = record.failure.as_ref().map(|failure| failure.code.as_str());
            let is_heeded = |event: &Event| {
                event.name != "Pay.Withdrawn" || failed.is_none_or(|code| code == "withdrawn")
            };
            let stored: Vec<Stored<'_>> = stored
                .filter(|(_, event)| event.kind == kind && event.name != not && is_heeded(event))
                .filter(|(_, event)| event.tenant == tenant && event.key == id.key.as_str())
                .map(|(sequence, event)| Stored {
                    sequence: *sequence,
                    time: times.get(sequence).copied().unwrap_or(TimeMs(i64::MAX)),
                    event,
                })
                .collect();
            // What is being undone heeds no events, and the next order of the key is opened meanwhile.
            let is_completed = record.failure.is_none() && record.phase.as_str() == "completed";
            if saga == "order" && !is_completed {
                continue;
            }
            let lag_ms = if !ends_by_result {
                Some(COARSE_MS)
            } else if is_completed {
                lag_ms(simulation)
            } else {
                None
            };
            faults.extend(account(&rows, &stored, lag_ms).map(|fault| format!("{id}: {fault}")));
        }
    }
    faults
}

/// How far events may be behind results; none where events wait for as long as it takes.
fn lag_ms(simulation: &Simulation) -> Option<i64> {
    if is_punctual(simulation) {
        return Some(LAG_MS);
    }
    let plan = &simulation.plan;
    let has_room = plan.settings["shard"]["outbox_soft"].as_u64() > Some(1_000);
    let is_stopped = |action: &Action| {
        action.concerns_owners()
            || matches!(
                action,
                Action::Close { .. } | Action::Fault(_) | Action::DiskFull { .. }
            )
    };
    let is_disturbed = plan.actions.iter().any(|(_, action)| is_stopped(action));
    // What a process finds when it begins is judged by its order (`catching_up.rs`): it may have been away for long.
    (has_room && !is_disturbed && simulation.lives == 1).then_some(LAG_IN_TROUBLE_MS)
}

/// What is wrong with the account of one instance. `lag_ms`: how much earlier than its end an event was stored that must have
/// come before that.
fn account(rows: &[HistoryRow], stored: &[Stored<'_>], lag_ms: Option<i64>) -> Option<String> {
    let mut outcomes: BTreeMap<u64, Vec<&HistoryOutcome>> = BTreeMap::new();
    for row in rows {
        if let Some((SourceStream::AggregateEvents, sequence)) = row.source {
            outcomes.entry(sequence).or_default().push(&row.outcome);
        }
    }
    let mut applied = BTreeSet::new();
    for Stored { sequence, event, .. } in stored {
        let outcomes = outcomes.get(sequence).map_or(&[][..], Vec::as_slice);
        for _ in outcomes
            .iter()
            .filter(|outcome| **outcome == &HistoryOutcome::Applied)
        {
            if !applied.insert(&event.id) {
                return Some(format!(
                    "event {} was applied twice, at last from {sequence}",
                    event.id
                ));
            }
        }
    }
    let is_accounted = |one: &Stored<'_>| outcomes.contains_key(&one.sequence);
    let known: BTreeSet<&str> = stored
        .iter()
        .filter(|one| is_accounted(one))
        .map(|one| one.event.id.as_str())
        .collect();
    let (begin, end) = (rows.first()?, rows.last()?);
    // Before the start there was no instance, and behind the last there may be none any more.
    let first = match begin.source {
        Some((SourceStream::AggregateEvents, sequence)) => sequence,
        _ => *outcomes.keys().next()?,
    };
    let last = *outcomes.keys().next_back()?;
    // A timer that waited in vain for a stream that cannot be read says so.
    let lag_ms = lag_ms.filter(|_| !end.late_source);
    let is_before_end =
        |one: &Stored<'_>| lag_ms.is_some_and(|lag_ms| one.time.0.saturating_add(lag_ms) < end.time.0);
    // The next instance of a key remembers what the one before it has taken.
    let taken_before: BTreeSet<&str> = stored
        .iter()
        .filter(|one| one.sequence < first)
        .map(|one| one.event.id.as_str())
        .collect();
    let missing = stored.iter().find(|one| {
        let id = one.event.id.as_str();
        let concerns = one.sequence >= first && (one.sequence < last || is_before_end(one));
        concerns && !known.contains(id) && !taken_before.contains(id)
    });
    missing.map(|one| format!("event {} ({}) is not accounted for", one.event.id, one.sequence))
}
