//! Facts that another saga hears: each once, by one instance.

use serde_json::{Value, json};

use super::orders::ends;
use super::{ended, records};
use crate::run::{RESULTS, Simulation};
use crate::workload::TENANTS;

pub fn judge(simulation: &Simulation) -> Vec<String> {
    if simulation.losses.has_lost(RESULTS) {
        return Vec::new();
    }
    let results = simulation.server.archive(RESULTS);
    let mut faults = Vec::new();
    for tenant in TENANTS {
        let mut told = 0;
        let orders = simulation.plan.keys("Order").into_iter();
        for (_, key) in orders.filter(|(of, _)| *of == tenant) {
            for (round, ends) in ends(&results, tenant, &key) {
                told += 1;
                let echo = ended(simulation, tenant, "echo", &format!("{key}-{round}"));
                let heard = echo.map(|echo| {
                    let state: Value = serde_json::from_slice(&echo.data).expect("state is JSON");
                    state["heard"].clone()
                });
                if heard != Some(json!(ends)) {
                    faults.push(format!(
                        "round {round} of order/{key} of {tenant} told {ends:?}, and {heard:?} was heard"
                    ));
                }
            }
        }
        let heard = records(simulation, tenant, "echo").len();
        if heard != told {
            faults.push(format!(
                "{told} rounds were told of in {tenant}, and {heard} heard"
            ));
        }
    }
    faults
}
