//! Decisions about what is stuck or backs off, checked before they are sent: whether somebody has asked, whether a result is one, and
//! whether it is the saga that backs off.

use super::node::Node;
use super::why;
use crate::kernel::definition::Definition;
use crate::kernel::envelope::{ControlMessage, ControlVerb, Principal};
use crate::kernel::ids::InstanceId;
use crate::kernel::input::{StuckDecision, Verdict};
use crate::kernel::limits::Limits;
use crate::kernel::record::Record;
use crate::kernel::transition::{Unfit, check_answer, skip_obstacle};
use crate::kernel::view::{InstanceView, StuckIn};
use crate::ports::control::ControlError;
use crate::storage::read::Found as Instance;

/// Checks an answer against the instance as it is now, and a result against what its effect gives.
///
/// # Errors
/// [`ControlError::Invalid`] for an answer that is none, [`ControlError::Conflict`] where nobody has asked, or where a worker holds the
/// next attempt back.
pub(super) async fn check(
    node: &Node,
    id: &InstanceId,
    message: &ControlMessage,
) -> Result<(), ControlError> {
    let (verdict, stuck) = match &message.verb {
        ControlVerb::Retry(stuck) => (Verdict::Retry, stuck),
        ControlVerb::Skip(stuck) => (Verdict::Skip, stuck),
        ControlVerb::Resolve(stuck) => (Verdict::Resolve, stuck),
        ControlVerb::TryNow { step } => {
            let kept = why::kept_from_trying(node, id, step.as_deref()).await;
            return kept.map_or(Ok(()), |why| Err(ControlError::Conflict(why)));
        }
        ControlVerb::Pause { .. }
        | ControlVerb::Resume { .. }
        | ControlVerb::Kill { .. }
        | ControlVerb::Restart { .. }
        | ControlVerb::Delete { .. }
        | ControlVerb::Cancel { .. }
        | ControlVerb::FireTimer { .. }
        | ControlVerb::CancelTimer { .. }
        | ControlVerb::Rerun { .. }
        | ControlVerb::Signal { .. }
        | ControlVerb::Start { .. }
        | ControlVerb::CancelChild { .. }
        | ControlVerb::Outcome { .. }
        | ControlVerb::Callback { .. }
        | ControlVerb::Heartbeat { .. }
        | ControlVerb::RegisterAlias { .. }
        | ControlVerb::ReleaseAlias { .. }
        | ControlVerb::AskAlias { .. }
        | ControlVerb::AliasRead { .. }
        | ControlVerb::AliasAnswered { .. } => return Ok(()),
    };
    let principal = message.principal.clone().unwrap_or_else(Principal::nobody);
    let decision = stuck
        .clone()
        .decide(verdict, principal)
        .map_err(|message| ControlError::Invalid(message.to_owned()))?;
    if decision.verdict == Verdict::Retry {
        return Ok(());
    }
    let reader = node.shard(id).await?.reader;
    let owned = id.clone();
    let Some(Instance::Live(record)) = node.read(move || reader.instance(&owned)).await? else {
        return Ok(());
    };
    let in_force = node.catalog.now();
    let Some(definition) = in_force.sagas.by_hash(&record.definition) else {
        return Ok(());
    };
    unfit(id, &record, definition, &decision, &node.manifest.limits)
}

/// Why a decision does not fit what it is about.
///
/// # Errors
/// As [`check`].
pub(super) fn unfit(
    id: &InstanceId,
    record: &Record,
    definition: &Definition,
    decision: &StuckDecision,
    limits: &Limits,
) -> Result<(), ControlError> {
    if decision.verdict == Verdict::Skip {
        return match skip_obstacle(definition, record, decision, limits) {
            // What it names is not there; whoever asks the transition says so in full.
            None | Some(Unfit::NotStuck) => Ok(()),
            Some(Unfit::Refused(message)) => Err(ControlError::Conflict(message)),
            Some(Unfit::Result(message)) => Err(ControlError::Invalid(message)),
        };
    }
    if decision.found.is_none() {
        return without_finding(&InstanceView::new(id, record, Some(definition)));
    }
    match check_answer(definition, record, decision, limits) {
        Ok(()) => Ok(()),
        Err(Unfit::NotStuck) => {
            let step = decision.step.as_deref().unwrap_or_default();
            let message = format!("step {step} of instance {} is not stuck", id.key);
            Err(ControlError::Conflict(message))
        }
        Err(Unfit::Refused(message)) => Err(ControlError::Conflict(message)),
        Err(Unfit::Result(message)) => Err(ControlError::Invalid(message)),
    }
}

/// Without what was found it can only be about compensations.
fn without_finding(instance: &InstanceView) -> Result<(), ControlError> {
    let stuck = &instance.stuck;
    match stuck.first() {
        Some(first) if stuck.iter().all(|stuck| stuck.what == StuckIn::Step) => {
            let step = &first.step;
            Err(ControlError::Conflict(format!(
                "the outcome of step {step} is unknown: retry it, or resolve it as done or as not_done"
            )))
        }
        Some(_) | None => Ok(()),
    }
}
