//! What operators say about what is stuck, checked before it is sent: afterwards only the history tells that it was of
//! no use.

use super::control::blocking;
use super::node::Node;
use crate::kernel::envelope::ControlVerb;
use crate::kernel::ids::InstanceId;
use crate::kernel::input::{Found, Verdict};
use crate::kernel::json::Json;
use crate::kernel::transition::asked_effects;
use crate::kernel::view::{InstanceView, StuckIn};
use crate::ports::control::ControlError;
use crate::storage::read::Found as Instance;

/// Checks an answer against the instance as it is now, and a result against what its effect gives.
///
/// # Errors
/// [`ControlError::Invalid`] for an answer that is none, [`ControlError::Conflict`] where nobody has asked.
pub(super) async fn check(node: &Node, id: &InstanceId, verb: &ControlVerb) -> Result<(), ControlError> {
    let settle = match verb {
        ControlVerb::Retry(stuck) => stuck.clone().settle(Verdict::Retry),
        ControlVerb::Skip(stuck) => stuck.clone().settle(Verdict::Skip),
        ControlVerb::Resolve(stuck) => stuck.clone().settle(Verdict::Resolve),
        _ => return Ok(()),
    }
    .map_err(|message| ControlError::Invalid(message.to_owned()))?;
    if settle.verdict == Verdict::Retry {
        return Ok(());
    }
    let reader = node.shard(id)?.reader.clone();
    let owned = id.clone();
    let Some(Instance::Live(record)) = blocking(move || reader.instance(&owned)).await? else {
        return Ok(());
    };
    let in_force = node.catalog.now();
    let Some(definition) = in_force.sagas.by_hash(&record.definition) else {
        return Ok(());
    };
    if settle.found.is_none() {
        return without_finding(&InstanceView::new(id, &record, Some(definition)));
    }
    let asked = asked_effects(definition, &record, &settle);
    if asked.is_empty() {
        let step = settle.step.unwrap_or_default();
        let message = format!("step {step} of instance {} is not stuck", id.key);
        return Err(ControlError::Conflict(message));
    }
    let Some(Found::Done { result }) = &settle.found else {
        return Ok(());
    };
    let depth = node.manifest.limits.json_depth;
    let result = Json::parse(result.as_bytes(), depth)
        .map_err(|error| ControlError::Invalid(format!("result: {error}")))?;
    let effects = in_force
        .effects
        .iter()
        .filter(|effect| asked.contains(&&effect.name));
    for output in effects.filter_map(|effect| effect.schemas.output.as_ref()) {
        output
            .check(&result)
            .map_err(|violation| ControlError::Invalid(format!("result {violation}")))?;
    }
    Ok(())
}

/// Without what was found it can only be about compensations.
fn without_finding(instance: &InstanceView) -> Result<(), ControlError> {
    let stuck = &instance.stuck;
    match stuck.first() {
        Some(first) if stuck.iter().all(|stuck| stuck.what == StuckIn::Step) => {
            let step = &first.step;
            Err(ControlError::Conflict(format!(
                "nobody knows whether step {step} has happened: retry it, or resolve it as done or as not_done"
            )))
        }
        Some(_) | None => Ok(()),
    }
}
