//! Why an instance does not go on: what is read for it. What that means says the kernel.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;

use super::instances::no_instance;
use super::node::Node;
use super::shards::Shown;
use super::streams;
use crate::effects::Consumer;
use crate::kernel::envelope::{EffectCommand, EffectProgress};
use crate::kernel::ids::{CommandId, EffectName, InstanceId, Key, SagaName, TenantId};
use crate::kernel::input::SourceStream;
use crate::kernel::subject::Subject;
use crate::kernel::view::pending::{self, AwaitedView, CallsView, PENDING_MAX, WaitsFor};
use crate::kernel::view::why::{self, Evidence, Why};
use crate::kernel::view::{CommandState, CommandView, InstanceView, QueueView};
use crate::kernel::work::{WorkItem, WorkRef};
use crate::ports::broker::{Broker, BrokerError, QueueState, StoredMessage};
use crate::ports::control::ControlError;
use crate::shard::mailbox::Relayed;
use crate::storage::read::Found;

/// Effects of which workers and broker are asked for one answer.
const EFFECTS_MAX: usize = 2;
/// Longest wait for the broker. What it would have said is then not part of the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What an instance waits for, as far as the partition knows.
pub(super) fn pending(node: &Node, found: &Found, work: &BTreeMap<WorkRef, WorkItem>) -> Vec<AwaitedView> {
    let Found::Live(record) = found else {
        return Vec::new();
    };
    let in_force = node.catalog.now();
    let definition = in_force.sagas.by_hash(&record.definition).map(AsRef::as_ref);
    let mut awaited = pending::pending(record, definition, work);
    for pending in &mut awaited {
        let effect = pending.effect.as_deref();
        pending.undeclared = effect.is_some_and(|effect| !in_force.declares(effect));
    }
    awaited
}

/// Why an instance does not go on, and why the one does not that it waits for.
pub(super) async fn why(node: &Node, id: &InstanceId) -> Result<Why, ControlError> {
    let mut looked = look(node, id).await?;
    tell_calls(node, id, &mut looked).await;
    let child = child(&id.tenant, &looked.pending);
    let below = match child {
        // What happened to it since is not worth an error.
        Some(child) => look(node, &child).await.ok().map(|looked| looked.answer(None)),
        None => None,
    };
    Ok(looked.answer(below.as_ref()))
}

/// Why a request to make the next attempt of a step, or of all, now is of no use: nothing of it backs off in the saga, and the calls
/// of an effect in progress are a worker's. `None` where that is not so.
///
/// Only the worker that was given a command knows that no other one calls for it. A request from outside could have two of them call
/// at a time.
pub(super) async fn kept_from_trying(node: &Node, id: &InstanceId, step: Option<&str>) -> Option<String> {
    // Without the instance, the request is refused for that.
    let mut looked = look(node, id).await.ok()?;
    let is_meant = |pending: &AwaitedView| !pending.abandoned && step.is_none_or(|step| pending.step == step);
    looked.pending.retain(is_meant);
    if looked
        .pending
        .iter()
        .any(|pending| pending.waits_for == WaitsFor::Retry)
    {
        return None;
    }
    looked
        .pending
        .retain(|pending| pending.waits_for == WaitsFor::Effect);
    let named = |command: CommandId| {
        let command = command.to_string();
        looked
            .pending
            .iter()
            .any(|pending| pending.command_id.as_ref() == Some(&command))
    };
    looked.commands = std::mem::take(&mut looked.commands)
        .into_iter()
        .filter(|sought| named(sought.command))
        .collect();
    tell_calls(node, id, &mut looked).await;
    let first = looked.pending.iter().min_by_key(|pending| why::rank(pending))?;
    let (saga, key) = (&id.saga, &id.key);
    let instead = if first.compensates {
        "wait for that".to_owned()
    } else {
        let step = &first.step;
        format!(
            "wait for that, skip the step (`saga-runner instance skip {saga} {key} --step {step} --as not_done --reason TEXT`), or cancel the instance"
        )
    };
    let meant = match step {
        Some(step) => format!("step {step} of instance {key} does not back off in its saga"),
        None => format!("nothing of instance {key} backs off in its saga"),
    };
    Some(format!(
        "{meant}: {}. The worker that has a command alone decides when its next call is made, so that two are never made at a time; \
         try-now does not reach it: {instead}",
        why::told(first)
    ))
}

/// The instance that is waited for.
fn child(tenant: &TenantId, pending: &[AwaitedView]) -> Option<InstanceId> {
    let child = pending.iter().find_map(|pending| pending.child.as_ref())?;
    Some(InstanceId {
        tenant: tenant.clone(),
        saga: SagaName::parse(&child.saga).ok()?,
        key: Key::parse(&child.key).ok()?,
    })
}

/// What is known of an instance.
struct Looked {
    instance: InstanceView,
    pending: Vec<AwaitedView>,
    hears: Vec<String>,
    /// The effects that are under way.
    commands: Vec<Sought>,
}

/// A command whose whereabouts are asked for.
struct Sought {
    effect: EffectName,
    command: CommandId,
    /// The relay has handed it over.
    is_sent: bool,
    /// A worker of this process was given its call.
    is_called: bool,
}

impl Looked {
    fn answer(&self, child: Option<&Why>) -> Why {
        why::why(Evidence {
            instance: &self.instance,
            pending: &self.pending,
            hears: &self.hears,
            child,
        })
    }
}

async fn look(node: &Node, id: &InstanceId) -> Result<Looked, ControlError> {
    let Shown { reader, relayed, .. } = node.shard(id).await?;
    let owned = id.clone();
    let seen = node.read(move || reader.seen(&owned, 0)).await?;
    let Some(found) = seen.found else {
        return Err(ControlError::NotFound(no_instance(id, &seen.kept)));
    };
    let (mut hears, mut commands) = (Vec::new(), Vec::new());
    if let Found::Live(record) = &found {
        let in_force = node.catalog.now();
        let definition = in_force.sagas.by_hash(&record.definition);
        hears = definition
            .map(|definition| pending::hears(record, definition))
            .unwrap_or_default();
        let floor = relayed.floor.load(Ordering::Acquire);
        let sought = |(effect, command, row): (&EffectName, CommandId, WorkRef)| Sought {
            effect: effect.clone(),
            command,
            is_sent: Relayed::covers(floor, row),
            is_called: relayed.has_called(row),
        };
        let under_way = pending::commands(record, &seen.work);
        commands = under_way.take(PENDING_MAX).map(sought).collect();
    }
    Ok(Looked {
        pending: pending(node, &found, &seen.work),
        instance: node.view(id, &found, seen.kept),
        hears,
        commands,
    })
}

/// Adds what workers have said about the calls of the first effects that are under way, and where their commands are.
async fn tell_calls(node: &Node, id: &InstanceId, looked: &mut Looked) {
    let Some(running) = node.running() else { return };
    let in_force = node.catalog.now();
    let asking = Asking {
        broker: &*running.broker,
        stream: streams::name(&node.manifest, SourceStream::WorkflowCommands),
        consumers: &in_force.consumers,
        tenant: &id.tenant,
    };
    let commands = std::mem::take(&mut looked.commands);
    let sought = commands.iter().take(EFFECTS_MAX);
    let asking = &asking;
    let asked = sought.map(|sought| async move {
        let asked = tokio::time::timeout(PATIENCE, asking.of(sought)).await;
        (sought, asked.ok().flatten())
    });
    for (sought, told) in join_all(asked).await {
        let Some((calls, place)) = told else { continue };
        let command = sought.command.to_string();
        let mut of_command = looked.pending.iter_mut();
        let of_command = of_command.find(|pending| pending.command_id.as_ref() == Some(&command));
        if let Some(pending) = of_command {
            pending.calls = calls;
            pending.command = place;
        }
    }
}

/// The broker, asked about commands of one tenant.
struct Asking<'a> {
    broker: &'a dyn Broker,
    /// Name of the stream of commands.
    stream: &'a str,
    consumers: &'a [Consumer],
    tenant: &'a TenantId,
}

impl Asking<'_> {
    /// The last word about a command. Where there is none, what its message says about the calls that were made before it was
    /// sent, and where it is. Three questions at once, so that an answer takes one way to the broker and back. `None` where one of them
    /// has no answer.
    async fn of(&self, sought: &Sought) -> Option<(Option<CallsView>, Option<CommandView>)> {
        let (tenant, effect, command) = (self.tenant.clone(), sought.effect.clone(), sought.command);
        let progress = Subject::EffectProgress {
            tenant: tenant.clone(),
            effect: effect.clone(),
            command,
        };
        let sent = Subject::Effect {
            tenant,
            effect,
            command,
        };
        let (said, stored, queue) =
            tokio::join!(self.last(&progress), self.last(&sent), self.queue(&sought.effect));
        if let Some(stored) = said.ok()? {
            let said: EffectProgress = serde_json::from_slice(&stored.payload).ok()?;
            return Some((Some(CallsView::from(said)), None));
        }
        let Some(stored) = stored.ok()? else {
            let state = match sought {
                Sought { is_called: true, .. } => CommandState::WithWorker,
                // What is answered may be trimmed before the shard has read the result.
                Sought { is_sent: true, .. } => CommandState::Answered,
                Sought { is_sent: false, .. } => CommandState::Unsent,
            };
            return Some((None, Some(CommandView::without_message(state))));
        };
        let place = queue.map(|(consumer, state)| placed(consumer, state, &stored));
        let sent: EffectCommand<'_> = serde_json::from_slice(&stored.payload).ok()?;
        Some((sent.progress.map(CallsView::from), place))
    }

    async fn last(&self, subject: &Subject) -> Result<Option<StoredMessage>, BrokerError> {
        self.broker.last_by_subject(self.stream, &subject.render()).await
    }

    /// The consumer that brings commands of an effect to its workers, and what it holds if it exists.
    async fn queue(&self, effect: &EffectName) -> Option<(&str, Option<QueueState>)> {
        let brings = |consumer: &&Consumer| {
            let is_of_tenant = consumer.tenant.as_ref().is_none_or(|of| of == self.tenant);
            is_of_tenant && consumer.effects.contains(effect)
        };
        let consumer = self.consumers.iter().find(brings)?;
        let state = self.broker.queue_state(self.stream, &consumer.name).await.ok()?;
        Some((&consumer.name, state))
    }
}

/// Where the message of a command is in the queue of its workers.
fn placed(consumer: &str, state: Option<QueueState>, stored: &StoredMessage) -> CommandView {
    let queued = state.map(|state| QueueView {
        sequence: stored.sequence,
        delivered: state.delivered,
        floor: state.floor,
        pending: state.pending,
        unacknowledged: state.unacknowledged,
        workers_ask: state.is_asked,
    });
    CommandView::stored(consumer, stored.time.rfc3339(), queued)
}
