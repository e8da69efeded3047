//! Trips: what was taken of one that came about is kept, and of any other given back; what was told of it as well.

use std::collections::BTreeSet;

use serde_json::Value;

use super::books::{is_contradicted, is_lied_to};
use super::ended;
use crate::run::{RESULTS, Simulation};
use crate::upstream::Call;

/// Reminders that a timer sends at most.
const NUDGES_MAX: usize = 3;

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let calls = simulation.upstream.calls();
    let mut faults = Vec::new();
    for (tenant, key) in simulation.plan.keys("Trip") {
        let name = format!("trip/{key} of {tenant}");
        let Some(record) = ended(simulation, tenant, "trip", &key) else {
            faults.push(format!("{name} has not ended"));
            continue;
        };
        let state: Value = serde_json::from_slice(&record.data).expect("state is JSON");
        let is_done = record.failure.is_none() && record.phase.as_str() == "completed";
        let told = Told::of(simulation, tenant, &key);
        let trip = Trip {
            simulation,
            calls: &calls,
            is_done,
        };
        let seats = state["seats"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (at, seat) in seats.iter().enumerate() {
            let of = format!("{tenant}/{key}-{}", seat.as_str().unwrap_or_default());
            let is_kept = told.seats.get(at).is_some_and(|seat| !seat.is_null());
            let fault = trip.pair(&of, ["stock-reserve", "stock-release"], is_kept);
            faults.extend(fault.map(|fault| format!("{name}: {fault}")));
        }
        let of = format!("{tenant}/{key}");
        let fault = trip.pair(&of, ["card-charge", "card-refund"], true);
        faults.extend(fault.map(|fault| format!("{name}: {fault}")));
        let is_told = match (told.held, told.released, told.done) {
            (1, 0, 1) => is_done,
            // A reminder that is under way keeps it from its end, and it may be cancelled so late.
            (1, 1, 1) => record.phase.as_str() == "cancelled",
            (held, released, 0) => !is_done && held == released && held <= 1,
            _ => false,
        };
        if !is_told {
            faults.push(format!(
                "{name} is {}, and has told {told:?}",
                record.phase.as_str()
            ));
        }
        let nudges = format!("{of}-nudge");
        let keys: BTreeSet<&str> = calls
            .iter()
            .filter(|call| call.effect == "meter-tick" && call.of == nudges)
            .map(|call| call.key.as_str())
            .collect();
        if keys.len() > NUDGES_MAX {
            faults.push(format!("{name} was reminded {} times", keys.len()));
        }
    }
    faults
}

struct Trip<'s> {
    simulation: &'s Simulation,
    calls: &'s [Call],
    is_done: bool,
}

impl Trip<'_> {
    /// What is wrong with what was done and undone under this name; `is_kept`: the trip counts on it.
    fn pair(&self, of: &str, [does, undoes]: [&str; 2], is_kept: bool) -> Option<String> {
        if is_lied_to(self.calls, &[does, undoes], of)
            || is_contradicted(self.simulation, self.calls, does, of)
        {
            return None;
        }
        let is = |call: &Call, effect: &str| call.effect == effect && call.of == of && call.is_done;
        let done = self.calls.iter().position(|call| is(call, does));
        let undone = self.calls.iter().rposition(|call| is(call, undoes));
        if self.is_done {
            let is_right = !is_kept || (done.is_some() && undone.is_none());
            return (!is_right)
                .then(|| format!("{does} of {of} was not done or was undone, and it is completed"));
        }
        let is_right = done.is_none_or(|done| undone.is_some_and(|undone| undone > done));
        (!is_right).then(|| format!("{does} of {of} was done and not undone"))
    }
}

/// What a trip has told: how many facts of each type, and the seats that it has got.
#[derive(Debug, Default)]
struct Told {
    held: usize,
    released: usize,
    done: usize,
    seats: Vec<Value>,
}

impl Told {
    fn of(simulation: &Simulation, tenant: &str, key: &str) -> Self {
        let mut told = Self::default();
        let mut known = BTreeSet::new();
        for fact in simulation.server.archive(RESULTS) {
            if fact.subject != format!("tenant.{tenant}.workflow_event.trip.{key}") {
                continue;
            }
            let body: Value = serde_json::from_slice(&fact.payload).expect("a fact is JSON");
            if !known.insert(body["event_id"].to_string()) {
                continue;
            }
            match body["event_type"].as_str() {
                Some("trip.held") => {
                    told.held += 1;
                    told.seats = body["payload"]["seats"].as_array().cloned().unwrap_or_default();
                }
                Some("trip.released") => told.released += 1,
                Some("trip.done") => told.done += 1,
                _ => {}
            }
        }
        told
    }
}
