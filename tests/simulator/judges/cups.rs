//! What kills a process is given up after a few deaths, and nothing else of its instance is.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::judges::{ended, keys};
use crate::run::Simulation;
use crate::store::POISON;

/// Deaths by one input: the first one, and those for which it was noted before that it was begun. A stop in order begins the
/// count anew.
const DEATHS_MAX: usize = 8;

pub fn judge(simulation: &Simulation) -> Vec<String> {
    let mut faults = Vec::new();
    let mut poison = 0;
    for (tenant, key) in keys(simulation, "Cup") {
        let Some(record) = ended(simulation, tenant, "cup", &key) else {
            faults.push(format!("cup/{key} has not ended"));
            continue;
        };
        let mut expected = Vec::new();
        // What a broker has lost is stored again under its id.
        let mut known = BTreeSet::new();
        for (_, event) in &simulation.stored {
            let what = &event.data["what"];
            if event.key != key || event.name != "Cup.Filled" || !known.insert(event.id.as_str()) {
                continue;
            }
            if *what == POISON {
                poison += 1;
            } else {
                expected.push(what.clone());
            }
        }
        let data: Value = serde_json::from_slice(&record.data).expect("state is JSON");
        if data["drops"] != Value::from(expected.clone()) {
            let drops = &data["drops"];
            faults.push(format!("cup/{key} was given {expected:?} and holds {drops}"));
        }
    }
    let deaths = simulation.world.deaths_by_poison();
    if simulation.plan.upstream.poisonous == 0 && deaths > poison * DEATHS_MAX {
        faults.push(format!("{poison} input(s) have killed {deaths} processes"));
    }
    faults
}
