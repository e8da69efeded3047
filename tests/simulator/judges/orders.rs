//! Orders, and the sagas that they begin: each round ends in one way, and nothing stays booked for one that was undone.

use std::collections::{BTreeMap, BTreeSet};

use saga_runner::ports::broker::StoredMessage;
use serde_json::Value;

use super::books::is_lied_to;
use super::{ended, records};
use crate::run::{RESULTS, Simulation};
use crate::upstream::Call;
use crate::workload::TENANTS;

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let calls = simulation.upstream.calls();
    let mut faults = Vec::new();
    for tenant in TENANTS {
        for (id, record) in records(simulation, tenant, "part") {
            let of = format!("{tenant}/{}", id.key.as_str());
            if is_lied_to(&calls, &["slot-book", "slot-cancel"], &of) {
                continue;
            }
            let is_kept = record.failure.is_none() && record.phase.as_str() == "completed";
            faults.extend(booked(&calls, &of, is_kept));
        }
    }
    let results = simulation.server.archive(RESULTS);
    for (tenant, key) in simulation.plan.keys("Order") {
        for (round, ends) in ends(&results, tenant, &key) {
            let name = format!("round {round} of order/{key} of {tenant}");
            if ends.len() > 1 {
                faults.push(format!("{name} has ended as {ends:?}"));
            }
            let part = ended(simulation, tenant, "part", &format!("{key}-{round}"));
            let is_done = ends.contains("order.done");
            let is_kept = part.is_some_and(|part| part.phase.as_str() == "completed");
            if is_done != is_kept {
                faults.push(format!(
                    "{name} has ended as {ends:?}; its part is completed: {is_kept}"
                ));
            }
        }
    }
    faults
}

/// What was booked for one part is there, or was given back.
fn booked(calls: &[Call], of: &str, is_kept: bool) -> Option<String> {
    let last = |effect: &str| {
        let mut all = calls.iter();
        all.rposition(|call| call.effect == effect && call.of == of && call.is_done)
    };
    let (booked, given_back) = (last("slot-book"), last("slot-cancel"));
    let is_right = if is_kept {
        booked.is_some() && given_back.is_none()
    } else {
        booked <= given_back
    };
    (!is_right).then(|| {
        format!("part {of}: completed {is_kept}, booked {booked:?} and given back {given_back:?}, by number of the call")
    })
}

/// How each round of an order has ended, by what was told of it.
pub fn ends(results: &[StoredMessage], tenant: &str, key: &str) -> BTreeMap<u64, BTreeSet<String>> {
    let subject = format!("tenant.{tenant}.workflow_event.order.{key}");
    let mut ends: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for fact in results {
        if fact.subject != subject {
            continue;
        }
        let body: Value = serde_json::from_slice(&fact.payload).expect("a fact is JSON");
        if let (Some(name), Some(round)) = (body["event_type"].as_str(), body["payload"]["round"].as_u64()) {
            ends.entry(round).or_default().insert(name.to_owned());
        }
    }
    ends
}
