//! The graph of an instance, from the version that it runs under.

use super::answers::not_loaded;
use super::instances::no_instance;
use super::node::Node;
use crate::kernel::ids::InstanceId;
use crate::kernel::view::graph::{InstanceGraph, graph as drawn};
use crate::ports::control::ControlError;
use crate::storage::read::Found;

/// # Errors
/// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] where its definition is not loaded.
pub(super) async fn graph(node: &Node, id: &InstanceId) -> Result<InstanceGraph, ControlError> {
    let reader = node.shard(id).await?.reader;
    let owned = id.clone();
    let seen = node.read(move || reader.seen(&owned, 0)).await?;
    let Some(found) = seen.found else {
        return Err(ControlError::NotFound(no_instance(id, &seen.kept)));
    };
    let (record, work) = match &found {
        Found::Live(record) => (record, Some(&seen.work)),
        Found::Ended(summary) => (&summary.record, None),
    };
    let in_force = node.catalog.now();
    let Some(definition) = in_force.sagas.by_hash(&record.definition) else {
        return Err(ControlError::Conflict(not_loaded(id)));
    };
    Ok(drawn(id, record, definition, work))
}
