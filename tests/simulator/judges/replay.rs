//! What an instance has become follows from what it has taken: its recorded inputs, played again by the offline runner, do the
//! same.

use std::sync::Arc;

use saga_runner::app::Node;
use saga_runner::kernel::ids::InstanceId;
use saga_runner::kernel::recorded::Recorded;
use saga_runner::offline::history;
use saga_runner::ports::control::{ControlError, Instances as _, PageRequest};

use super::{SAGAS, archive, records};
use crate::faults::is_of_stranger;
use crate::run::{COMMANDS, EVENTS, RESULTS, Simulation};
use crate::workload::TENANTS;

/// Seeds whose instances are played again: one in so many, since it takes as long as all that was before.
const PLAYED_EVERY: u64 = 5;

/// Plays the instances again; asks the node while it still runs.
pub async fn judge(simulation: &Simulation, node: &Arc<Node>) -> Vec<String> {
    // What was read from streams that have lost it may be another message by now.
    let has_lost = [EVENTS, RESULTS, COMMANDS]
        .into_iter()
        .any(|stream| simulation.losses.has_lost(stream));
    let is_adopted = simulation.losses.adopted.is_some();
    // What a call of the process itself has given stands last on its subject, where no stranger has published there.
    let is_meddled = simulation.server.archive(RESULTS).iter().any(is_of_stranger);
    let is_archived = archive::is_kept(simulation);
    if is_archived
        || has_lost
        || is_adopted
        || is_meddled
        || !simulation.plan.seed.is_multiple_of(PLAYED_EVERY)
    {
        return Vec::new();
    }
    let versions = simulation.versions();
    let mut faults = Vec::new();
    for tenant in TENANTS {
        for saga in SAGAS {
            for (id, record) in records(simulation, tenant, saga) {
                let inputs = match inputs(node, &id).await {
                    Ok(inputs) => inputs,
                    Err(ControlError::Conflict(_)) => continue,
                    Err(error) => {
                        faults.push(format!("{id}: its inputs cannot be read: {error}"));
                        continue;
                    }
                };
                let Some(definition) = versions.by_hash(&record.definition) else {
                    faults.push(format!("{id}: its definition is unknown"));
                    continue;
                };
                match history::replay(&inputs, None, definition) {
                    Ok(None) => {}
                    // After a crash, what a resume sets free is applied by commits of its own, and a second request of an operator
                    // passes it.
                    Ok(Some(found))
                        if simulation.lives > 1
                            && found.what == "resume"
                            && found.difference.contains("outcome nothing_to_do") => {}
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

/// All pages of what an instance has taken.
async fn inputs(node: &Arc<Node>, id: &InstanceId) -> Result<Vec<Recorded>, ControlError> {
    let mut page = PageRequest::new(None, 500);
    let mut all = Vec::new();
    loop {
        let recorded = node.inputs(id, page.clone()).await?;
        all.extend(recorded.inputs);
        if recorded.next.is_none() {
            return Ok(all);
        }
        page.after = recorded.next;
    }
}
