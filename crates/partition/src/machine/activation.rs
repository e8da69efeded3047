//! The definitions that a partition works under, and what waits for one of them.

use std::collections::{BTreeMap, HashMap};

use saga_runner_kernel::definition::DefinitionSet;
use saga_runner_kernel::ids::InstanceId;

use crate::storage::rows::{ActiveDefinitions, ActiveSaga, ArchivedRow, Waiting};
use crate::storage::{Batch, StorageError};

/// Archives the active definitions and records since when each saga is active.
pub fn activate(
    batch: &Batch<'_>,
    definitions: &DefinitionSet,
    revision: u64,
    positions: [u64; 3],
) -> Result<(), StorageError> {
    let before = batch.active_definitions()?;
    let mut sagas = BTreeMap::new();
    for definition in definitions.iter_active() {
        let row = ArchivedRow {
            saga: definition.name.clone(),
            source: definition.source.to_string(),
        };
        batch.put_definition(&definition.hash, &row)?;
        let since = before
            .sagas
            .get(definition.name.as_str())
            .map_or(positions, |active| active.since);
        sagas.insert(
            definition.name.to_string(),
            ActiveSaga {
                hash: definition.hash,
                since,
            },
        );
    }
    let active = ActiveDefinitions { revision, sagas };
    if active != before {
        batch.put_active_definitions(&active)?;
    }
    batch.prune_definitions(|hash| definitions.is_active(hash))
}

/// Instances whose inputs wait and have nothing in their way any more: the definition is loaded that they waited for, or the
/// process has died between a decision about a dead letter and what waited behind it.
#[allow(clippy::implicit_hasher, reason = "it is the map of the partition")]
pub fn resumable(
    definitions: &DefinitionSet,
    batch: &Batch<'_>,
    waiting: &HashMap<InstanceId, Waiting>,
) -> Result<Vec<InstanceId>, StorageError> {
    let mut resumable = Vec::new();
    for (id, waiting) in waiting {
        let nothing_waits = !waiting.is_blocked() && waiting.later == 0;
        if nothing_waits || waiting.behind.is_some() || waiting.asks.is_some() {
            continue;
        }
        let known = match batch.record(id)? {
            Some(record) => definitions.by_hash(&record.definition).is_some(),
            None => true,
        };
        if known {
            resumable.push(id.clone());
        }
    }
    resumable.sort_unstable();
    Ok(resumable)
}
