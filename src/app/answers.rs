//! Commands to instances, checked before they are sent: one that would change nothing is refused, since afterwards only
//! the history tells that it was of no use.
//!
//! Whether it would is asked of the transition itself, with the instance as it is now. The instance may be another one
//! when the command comes to it; then the history has the last word.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::node::Node;
use super::requests::mismatch;
use crate::kernel::definition::model::{Awaited, SIGNAL_PREFIX, Step};
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::ids::{ClusterId, InstanceId, Key, shard_of};
use crate::kernel::input::{
    Control, Input, InputBody, Operation, OperationVerb, Origin, StuckDecision, Verdict,
};
use crate::kernel::limits::Limits;
use crate::kernel::patch::{IgnoreReason, Outcome, Patch};
use crate::kernel::record::{Phase, Record, StepState, StepStatus};
use crate::kernel::transition::{
    Context, Rejection, apply, delete_obstacle, delete_obstacle_of_all, deletes, may_be_cancelled, repeated,
    rerun_obstacle, restart_obstacle,
};
use crate::kernel::view::LetterView;
use crate::ports::control::ControlError;
use crate::storage::earlier::too_many;
use crate::storage::read::Found as Instance;
use crate::storage::rows::EndedRow;

/// Whether the instance has applied this request before.
///
/// # Errors
/// [`ControlError::Mismatch`] where it has applied another one of its id.
pub(super) async fn is_repeated(
    node: &Node,
    id: &InstanceId,
    request_id: &str,
    control: &Control,
) -> Result<bool, ControlError> {
    let reader = node.shard(id).await?.reader;
    let is_answer = matches!(control, Control::Callback { .. });
    let input = Input {
        instance: id.clone(),
        id: request_id.to_owned(),
        time: node.clock.now(),
        origin: Origin::Local,
        body: InputBody::Control(control.clone()),
    };
    let known = node.read(move || {
        Ok(match reader.instance(&input.instance)? {
            None => {
                let deleted = reader.deleted(&input.instance)?;
                let is_this = deleted.is_some_and(|deleted| deleted.request == input.id);
                is_this.then_some(IgnoreReason::Duplicate)
            }
            Some(Instance::Live(record)) => repeated(&record, &input),
            Some(Instance::Ended(summary)) => repeated(&summary.record, &input),
        })
    });
    match known.await? {
        None => Ok(false),
        Some(IgnoreReason::Mismatch) => Err(mismatch(request_id, is_answer)),
        Some(_) => Ok(true),
    }
}

/// Checks a command to an instance, as the intake is going to read it.
///
/// # Errors
/// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] for what would change nothing, or could
/// not be applied, [`ControlError::Gone`] for a token of work that nobody waits for any more.
pub(super) async fn check_use(
    node: &Node,
    id: &InstanceId,
    request_id: &str,
    control: Control,
) -> Result<(), ControlError> {
    let reader = node.shard(id).await?.reader;
    let shard = shard_of(&id.tenant, &id.key, node.manifest.shards);
    let in_force = node.catalog.now();
    let limits = node.manifest.limits.clone();
    let input = Input {
        instance: id.clone(),
        id: request_id.to_owned(),
        time: node.clock.now(),
        origin: Origin::Local,
        body: InputBody::Control(control),
    };
    let refusal = node.read(move || {
        let found = match reader.instance(&input.instance)? {
            None if is_callback(&input) => return Ok(Some(ControlError::Gone(missing(&input.instance)))),
            None => return Ok(Some(ControlError::NotFound(missing(&input.instance)))),
            Some(found) => found,
        };
        // Where the version is not loaded, the command waits for it, unless it is about what has ended.
        let useless = match in_force.sagas.by_hash(&found.record().definition) {
            Some(definition) => refusal(definition, &found, &input, &limits),
            None => of_unloaded(&found, &input),
        };
        let useless = match (useless, deletion(&found, &input)) {
            (None, Some(parent_over)) => {
                let earlier = reader.earlier(&input.instance)?;
                let refusal = of_earlier(&in_force.sagas, found.record(), &earlier, parent_over);
                refusal.map(|refusal| not_deleted(&input.instance, &refusal))
            }
            (useless, _) => useless,
        };
        let behind = match useless {
            Some(_) => reader.kept(&input.instance)?.behind,
            None => None,
        };
        Ok(match (useless, behind) {
            // What was meant is not what is stuck, but what waits.
            (Some(ControlError::Conflict(message)), Some((LetterView { id: Some(number), .. }, _))) => {
                Some(ControlError::Conflict(format!(
                    "{message}; it is blocked by dead letter {shard}-{number}; retry or discard that one"
                )))
            }
            (useless, _) => useless,
        })
    });
    refusal.await?.map_or(Ok(()), Err)
}

/// Why a command would change nothing, or could not be applied, if that is so.
pub(super) fn refusal(
    definition: &Arc<Definition>,
    found: &Instance,
    input: &Input,
    limits: &Limits,
) -> Option<ControlError> {
    match (found, &input.body) {
        (Instance::Ended(summary), InputBody::Control(Control::Operate(operation))) => {
            match deletes(operation) {
                Some(parent_over) => keeps(Some(definition), &summary.record, input, parent_over),
                None => begins(definition, &summary.record, input, operation, limits),
            }
        }
        _ => useless(definition, found.record(), input, limits),
    }
}

/// The same of an instance whose definition is not loaded.
fn of_unloaded(found: &Instance, input: &Input) -> Option<ControlError> {
    let (Instance::Ended(summary), InputBody::Control(Control::Operate(operation))) = (found, &input.body)
    else {
        return None;
    };
    match deletes(operation) {
        Some(parent_over) => keeps(None, &summary.record, input, parent_over),
        None => Some(ControlError::Conflict(not_loaded(&input.instance))),
    }
}

/// Why an instance that has ended is not deleted, if that is so.
fn keeps(
    definition: Option<&Definition>,
    record: &Record,
    input: &Input,
    parent_over: bool,
) -> Option<ControlError> {
    let obstacle = delete_obstacle(definition, record, parent_over)?;
    Some(not_deleted(&input.instance, &obstacle))
}

fn not_deleted(id: &InstanceId, obstacle: &str) -> ControlError {
    ControlError::Conflict(format!("instance {} is not deleted: {obstacle}", id.key))
}

/// Whether the input deletes an instance that has ended, and what whoever asks has seen of its parent.
pub(super) fn deletion(found: &Instance, input: &Input) -> Option<bool> {
    match (found, &input.body) {
        (Instance::Ended(_), InputBody::Control(Control::Operate(operation))) => deletes(operation),
        _ => None,
    }
}

/// Why an instance that has ended is not deleted with what is kept of earlier generations of its key, if that is so.
pub(super) fn of_earlier(
    versions: &DefinitionSet,
    newest: &Record,
    earlier: &[(u64, EndedRow)],
    parent_over: bool,
) -> Option<String> {
    let obstacle = delete_obstacle_of_all(
        |hash| versions.by_hash(hash).map(AsRef::as_ref),
        newest,
        earlier.iter().map(|(_, row)| &row.summary.record),
        parent_over,
    );
    obstacle.or_else(|| too_many(earlier))
}

pub(super) fn not_loaded(id: &InstanceId) -> String {
    format!("the definition of instance {} is not loaded", id.key)
}

/// Why an operator cannot have another go at an instance that has ended, if that is so.
fn begins(
    definition: &Definition,
    record: &Record,
    input: &Input,
    operation: &Operation,
    limits: &Limits,
) -> Option<ControlError> {
    let key = &input.instance.key;
    let obstacle = match &operation.verb {
        OperationVerb::Rerun { found } => rerun_obstacle(definition, record, found, limits),
        OperationVerb::Restart => restart_obstacle(definition, record, None),
        OperationVerb::RestartWith { event } => restart_obstacle(definition, record, Some(event)),
        verb => {
            return Some(ControlError::Conflict(nothing_to_do(
                definition, record, key, verb,
            )));
        }
    };
    let verb = operation.verb.as_str();
    let message = obstacle.map(|obstacle| format!("{verb} of instance {key}: {obstacle}"))?;
    Some(ControlError::Conflict(message))
}

/// Why there is nothing that a command could be for.
pub(super) fn missing(id: &InstanceId) -> String {
    let tenant = if id.tenant.is_none() {
        String::new()
    } else {
        format!(" of tenant {}", id.tenant)
    };
    format!("no instance {} of saga {}{tenant}", id.key, id.saga)
}

/// What the transition says to the input, where that is no.
fn useless(
    definition: &Arc<Definition>,
    record: &Record,
    input: &Input,
    limits: &Limits,
) -> Option<ControlError> {
    match attempt(definition, record, input, limits) {
        Err(rejection) => {
            let message = format!("it cannot be applied as things are: {rejection}");
            Some(ControlError::Conflict(message))
        }
        Ok(patch) => match patch.outcome {
            // A repetition is sent like the first: its sender may not know of that.
            Outcome::Applied | Outcome::Deferred | Outcome::Ignored(IgnoreReason::Duplicate) => None,
            Outcome::Ignored(_) if is_early(record, input) => None,
            Outcome::Ignored(reason) => {
                let message = of_no_use(definition, record, input, reason);
                // A step that waits for a callback may take no heartbeats; the token is good then.
                let is_gone = is_callback(input) && reason != IgnoreReason::NoHandler;
                Some(
                    if is_gone || (is_callback(input) && record.phase != Phase::Running) {
                        ControlError::Gone(message)
                    } else {
                        ControlError::Conflict(message)
                    },
                )
            }
        },
    }
}

/// What the transition makes of an input, of which nothing reaches the outside world.
fn attempt(
    definition: &Definition,
    record: &Record,
    input: &Input,
    limits: &Limits,
) -> Result<Patch, Rejection> {
    let context = Context {
        limits,
        cluster: ClusterId::OFFLINE,
        log_sequence: 0,
        generation: record.generation,
        again: false,
    };
    apply(definition, &input.instance, Some(record), input, &context)
}

/// Whether something of an instance takes a signal of this name; what it carries here is not looked at.
pub(super) fn may_take(definition: &Definition, record: &Record, input: &Input, limits: &Limits) -> bool {
    match attempt(definition, record, input, limits) {
        // An expression misses something in the signal.
        Err(_) => true,
        Ok(patch) => matches!(patch.outcome, Outcome::Applied | Outcome::Deferred),
    }
}

/// Whether it comes from whoever has a token.
const fn is_callback(input: &Input) -> bool {
    matches!(
        input.body,
        InputBody::Control(Control::Callback { .. } | Control::Heartbeat { .. })
    )
}

/// Whether it is a heartbeat of work that was given out and whose step is about to wait for it: whoever sends it must not
/// take it for lost.
fn is_early(record: &Record, input: &Input) -> bool {
    let InputBody::Control(Control::Heartbeat { work }) = &input.body else {
        return false;
    };
    let is_meant = |state: &StepState| {
        // A step that is over keeps the token by which it was told, and waits for nothing any more.
        let is_about_to_wait = state.status != StepStatus::Waiting && !state.status.is_over();
        is_about_to_wait && state.callback.as_deref() == Some(work)
    };
    record.step_states().any(|(_, _, state)| is_meant(state))
}

/// Why a command changes nothing, for whoever gave it.
fn of_no_use(definition: &Definition, record: &Record, input: &Input, reason: IgnoreReason) -> String {
    let (key, phase) = (&input.instance.key, record.phase.as_str());
    let InputBody::Control(control) = &input.body else {
        return format!("it would change nothing: {}", reason.as_str());
    };
    match control {
        Control::Cancel { .. } => format!("instance {key} is {phase}: only a running one can be cancelled"),
        Control::Signal { name, .. } if reason == IgnoreReason::Early => {
            format!("no step of instance {key} waits for the signal {name} yet, and none keeps early signals")
        }
        Control::Signal { name, .. } if record.phase == Phase::Running => {
            let known = signals(definition);
            let known = if known.is_empty() {
                "its saga takes none".to_owned()
            } else {
                let known: Vec<&str> = known.into_iter().collect();
                format!("its saga takes {}", known.join(", "))
            };
            format!("nothing of instance {key} takes the signal {name}, now or next: {known}")
        }
        Control::Signal { name, .. } => {
            format!(
                "instance {key} is {phase}, and its saga says nothing about the signal {name} under after_end"
            )
        }
        Control::Heartbeat { .. } if reason == IgnoreReason::NoHandler => {
            format!("the step of instance {key} that waits for this callback takes no heartbeats")
        }
        Control::Callback { .. } | Control::Heartbeat { .. } => {
            format!("nothing of instance {key}, which is {phase}, waits for this callback any more")
        }
        Control::Retry if record.phase.is_terminal() => ended_retry(key, record.phase),
        Control::Retry => format!("nothing of instance {key}, which is {phase}, is stuck"),
        Control::DecideStuck(decision) => not_stuck(definition, record, input, decision),
        Control::Operate(operation) => nothing_to_do(definition, record, key, &operation.verb),
        Control::Migrate { .. }
        | Control::Start { .. }
        | Control::CancelChild { .. }
        | Control::RegisterAlias { .. }
        | Control::ReleaseAlias { .. }
        | Control::AskAlias { .. }
        | Control::AliasRead { .. }
        | Control::AliasAnswered { .. } => format!("it would change nothing: {}", reason.as_str()),
    }
}

/// What a retry needs to say of an instance that has ended.
fn ended_retry(key: &Key, phase: Phase) -> String {
    format!(
        "instance {key} has ended, it is {}: nothing is stuck; to begin it again from where it failed, retry it with `ended` (`--ended`)",
        phase.as_str()
    )
}

/// Nothing is stuck of what an operator speaks of.
fn not_stuck(definition: &Definition, record: &Record, input: &Input, decision: &StuckDecision) -> String {
    let key = &input.instance.key;
    if record.phase.is_terminal() && decision.verdict == Verdict::Retry {
        return ended_retry(key, record.phase);
    }
    let is_skip = decision.verdict == Verdict::Skip;
    let Some(step) = &decision.step else {
        if is_skip && record.phase == Phase::Running {
            return format!(
                "no compensation of instance {key} is stuck; to skip a step that is in progress, say which (`step`)"
            );
        }
        return format!(
            "nothing of instance {key}, which is {}, is stuck; {} needs a stuck step or compensation",
            record.phase.as_str(),
            decision.verdict.as_str()
        );
    };
    let mut named = definition.steps.iter().zip(&record.steps);
    match named.find(|(named, _)| named.is_named(step)) {
        None => format!("saga {} has no step {step}", input.instance.saga),
        Some((_, state)) if is_skip => format!(
            "step {step} of instance {key} is {}: only a step in progress, or a stuck compensation, is skipped",
            state.status.as_str()
        ),
        Some((_, state)) => format!(
            "step {step} of instance {key} is {}, not stuck; {} needs a stuck step",
            state.status.as_str(),
            decision.verdict.as_str()
        ),
    }
}

/// Why an operation changes nothing.
fn nothing_to_do(definition: &Definition, record: &Record, key: &Key, verb: &OperationVerb) -> String {
    let phase = record.phase.as_str();
    match verb {
        OperationVerb::Pause if record.paused.is_some() => format!("instance {key} is paused already"),
        OperationVerb::Resume if !record.phase.is_terminal() => format!("instance {key} is not paused"),
        OperationVerb::FireTimer { timer } | OperationVerb::CancelTimer { timer } => {
            if record.timers.contains_key(timer) && !may_be_cancelled(definition, timer) {
                return format!(
                    "timer {timer} of instance {key} cannot be cancelled: what waits for it would wait for ever; fire it instead"
                );
            }
            let set: Vec<&str> = record.timers.keys().map(String::as_str).collect();
            let set = if set.is_empty() {
                "none".to_owned()
            } else {
                set.join(", ")
            };
            format!("instance {key} has no timer {timer}; set are: {set}")
        }
        OperationVerb::TryNow { step: Some(step) } => {
            let state = definition
                .steps
                .iter()
                .zip(&record.steps)
                .find(|(found, _)| found.is_named(step));
            match state {
                None => format!("the saga of instance {key} has no step {step}"),
                Some((_, state)) if state.outstanding.is_some() => format!(
                    "step {step} of instance {key} does not back off in the saga: its command is with a worker, which makes its own attempts"
                ),
                Some((_, state)) => format!(
                    "step {step} of instance {key} is {}, and does not back off",
                    state.status.as_str()
                ),
            }
        }
        OperationVerb::TryNow { step: None } if record.outstanding().next().is_some() => format!(
            "nothing of instance {key}, which is {phase}, backs off in the saga: a worker makes its own attempts of a command"
        ),
        OperationVerb::TryNow { step: None } => {
            format!("nothing of instance {key}, which is {phase}, backs off")
        }
        OperationVerb::Rerun { .. } | OperationVerb::Restart | OperationVerb::RestartWith { .. } => {
            format!("instance {key} is {phase}: only one that has ended can be begun again")
        }
        OperationVerb::Pause | OperationVerb::Resume | OperationVerb::Kill => {
            format!("instance {key} has ended: it is {phase}")
        }
        OperationVerb::Delete { parent_over } => {
            let obstacle = delete_obstacle(Some(definition), record, *parent_over);
            format!("instance {key} is not deleted: {}", obstacle.unwrap_or_default())
        }
    }
}

/// The signals that the steps of a saga wait for, and that its handlers take.
pub(super) fn signals(definition: &Definition) -> BTreeSet<&str> {
    let waits = definition.steps.iter().flat_map(Step::waits_for);
    let awaited = waits.filter_map(|awaiting| match &awaiting.on {
        Awaited::Signal(name) => Some(name.as_str()),
        Awaited::Event(_) | Awaited::Callback => None,
    });
    let states = definition.machine.iter().flat_map(|machine| &machine.states);
    let handled = states.flat_map(|state| state.handlers.keys());
    let handled = handled.chain(definition.handlers.keys());
    let handled = handled.filter_map(|heard| heard.strip_prefix(SIGNAL_PREFIX));
    awaited.chain(handled).collect()
}
