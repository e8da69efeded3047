//! Effects that live instances may still call and that no file declares any more: a command for one waits until its deadline, and
//! a compensation is not made.

use std::collections::BTreeMap;

use super::node::Node;
use super::versions;
use crate::ports::control::ControlError;

/// One sentence for each effect that is missing; none where this process runs no sagas.
///
/// # Errors
/// [`ControlError::Unavailable`] where a shard cannot be read.
pub(super) async fn told(node: &Node) -> Result<Vec<String>, ControlError> {
    if node.running().is_none_or(|running| running.common.is_none()) {
        return Ok(Vec::new());
    }
    let in_force = node.catalog.now();
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (hash, live) in versions::in_use(node).await? {
        // The instances of a version that is not loaded are told as that.
        let Some(definition) = in_force.sagas.by_hash(&hash) else {
            continue;
        };
        let called = definition.called_effects().into_iter();
        for effect in called.filter(|effect| !in_force.declares(effect.as_str())) {
            let user = format!("{live} live instance(s) of {} {hash}", definition.name);
            users.entry(effect.to_string()).or_default().push(user);
        }
    }
    let told = users.into_iter().map(|(effect, users)| {
        format!(
            "no file declares effect {effect}, which may be called for {}: restore its file and reload, or migrate them",
            users.join(" and ")
        )
    });
    Ok(told.collect())
}

/// The same where it is no reason to fail.
pub(super) async fn warnings(node: &Node) -> Vec<String> {
    let told = told(node).await.unwrap_or_else(|error| {
        vec![format!(
            "it is not known whether all effects are declared that live instances may call: {error}"
        )]
    });
    for warning in &told {
        tracing::warn!("{warning}");
    }
    told
}
