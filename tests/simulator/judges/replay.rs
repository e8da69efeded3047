//! What an instance has become follows from what it has taken: its recorded inputs, played again by the offline runner, do the
//! same.

use std::sync::Arc;

use saga_runner::app::Node;
use saga_runner::offline::history;
use saga_runner::ports::control::{ControlError, Instances as _};

use super::{SAGAS, records};
use crate::run::Simulation;
use crate::workload::TENANTS;

/// Seeds whose instances are played again: one in so many, since it takes as long as all that was before.
const PLAYED_EVERY: u64 = 5;

/// Plays the instances again; asks the node while it still runs.
pub async fn judge(simulation: &Simulation, node: &Arc<Node>) -> Vec<String> {
    if simulation.plan.is_plain || !simulation.plan.seed.is_multiple_of(PLAYED_EVERY) {
        return Vec::new();
    }
    let versions = simulation.versions();
    let mut faults = Vec::new();
    for tenant in TENANTS {
        for saga in SAGAS {
            for (id, record) in records(simulation, tenant, saga) {
                let inputs = match node.inputs(&id).await {
                    Ok(recorded) => recorded.inputs,
                    Err(ControlError::Conflict(_)) => continue,
                    Err(error) => {
                        faults.push(format!("{id}: its inputs cannot be read: {error}"));
                        continue;
                    }
                };
                let Some(definition) = versions.by_hash(&record.definition) else {
                    faults.push(format!("{id}: nobody knows its definition"));
                    continue;
                };
                match history::replay(&inputs, None, definition) {
                    Ok(None) => {}
                    Ok(Some(found)) => faults.push(format!(
                        "{id}: played again it goes another way at input {}, {}: {}",
                        found.input, found.what, found.difference
                    )),
                    // Streams keep what they have for some time only.
                    Err(why) if why.contains("no longer in its stream") => {}
                    Err(why) => faults.push(format!("{id} cannot be played again: {why}")),
                }
            }
        }
    }
    faults
}
