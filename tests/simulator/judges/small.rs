//! Loops whose turns are work of their own, steps that could not be begun, and what begins by the clock.

use std::collections::BTreeSet;

use serde_json::Value;

use super::books::is_lied_to;
use super::{ended, records};
use crate::run::Simulation;
use crate::workload::TENANTS;

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut faults = rounds(simulation);
    faults.extend(stalls(simulation));
    faults.extend(minutes(simulation));
    faults
}

/// Each turn of a loop is done, under a key of its own.
fn rounds(simulation: &Simulation) -> Vec<String> {
    let calls = simulation.upstream.calls();
    let mut faults = Vec::new();
    for (tenant, key) in simulation.plan.keys("Rounds") {
        let Some(record) = ended(simulation, tenant, "rounds", &key) else {
            faults.push(format!("rounds/{key} of {tenant} has not ended"));
            continue;
        };
        let state: Value = serde_json::from_slice(&record.data).expect("state is JSON");
        let of = format!("{tenant}/{key}");
        if is_lied_to(&calls, &["meter-tick"], &of) {
            continue;
        }
        let done = calls
            .iter()
            .filter(|call| call.effect == "meter-tick" && call.of == of && call.is_done);
        let keys: BTreeSet<&str> = done.map(|call| call.key.as_str()).collect();
        let (told, turns) = (state["done"].as_u64(), state["turns"].as_u64());
        let done = Some(keys.len() as u64);
        // Of the last one of a loop that has failed nobody may have heard.
        let is_right = if record.failure.is_none() {
            told == turns && done == turns
        } else {
            done >= told && done <= told.map(|told| told + 1)
        };
        if !is_right {
            faults.push(format!(
                "rounds/{key} of {tenant}: {turns:?} turns, {told:?} of them told and {done:?} done"
            ));
        }
    }
    faults
}

/// What was taken before a step that cannot be begun is given back.
fn stalls(simulation: &Simulation) -> Vec<String> {
    let calls = simulation.upstream.calls();
    let mut faults = Vec::new();
    for (tenant, key) in simulation.plan.keys("Stall") {
        let Some(record) = ended(simulation, tenant, "stall", &key) else {
            faults.push(format!("stall/{key} of {tenant} has not ended"));
            continue;
        };
        let of = format!("{tenant}/{key}");
        if is_lied_to(&calls, &["stock-reserve", "stock-release"], &of) {
            continue;
        }
        let done = |effect: &str| {
            let mut all = calls.iter();
            all.any(|call| call.effect == effect && call.of == of && call.is_done)
        };
        let (taken, given_back) = (done("stock-reserve"), done("stock-release"));
        let is_right = if record.failure.is_none() {
            taken && !given_back
        } else {
            !taken || given_back
        };
        if !is_right {
            faults.push(format!(
                "stall/{key} of {tenant} is {}, taken {taken}, given back {given_back}",
                record.phase.as_str()
            ));
        }
    }
    faults
}

/// Every minute from the first to the last has been begun, once.
fn minutes(simulation: &Simulation) -> Vec<String> {
    let mut faults = Vec::new();
    for tenant in TENANTS {
        let begun: BTreeSet<String> = records(simulation, tenant, "minutes")
            .into_iter()
            .map(|(id, _)| id.key.as_str().to_owned())
            .collect();
        let passed = simulation.world.clock.passed().as_secs() / 60;
        let all: Vec<String> = (0..=passed + 1)
            .map(|minute| format!("2026-01-01T{:02}:{:02}:00Z", minute / 60, minute % 60))
            .collect();
        let places: Vec<usize> = begun
            .iter()
            .filter_map(|key| all.iter().position(|one| one == key))
            .collect();
        let is_whole = places.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        if places.len() != begun.len() || !is_whole {
            faults.push(format!("the minutes of {tenant} are not whole: {begun:?}"));
        }
        // What is planned from the beginning on is a minute later at most.
        let last = places.last().map_or(0, |last| *last as u64);
        // A shard that is opened for the first time at the end plans from then on.
        let is_late = simulation.plan.first.is_some() && begun.is_empty();
        if passed > last + 2 && !is_late {
            faults.push(format!(
                "{passed} minutes have passed, and the last begun of {tenant} is {last}"
            ));
        }
    }
    faults
}
