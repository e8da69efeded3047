//! Why an instance does not go on: what is read for it. What that means says the kernel.

use std::collections::BTreeMap;
use std::time::Duration;

use super::instances::no_instance;
use super::node::Node;
use super::streams;
use crate::kernel::envelope::{EffectCommand, EffectProgress};
use crate::kernel::ids::{CommandId, EffectName, InstanceId, Key, SagaName, TenantId};
use crate::kernel::input::SourceStream;
use crate::kernel::subject::Subject;
use crate::kernel::view::InstanceView;
use crate::kernel::view::pending::{self, AwaitedView, CallsView};
use crate::kernel::view::why::{self, Evidence, Why};
use crate::kernel::work::{WorkItem, WorkRef};
use crate::ports::broker::Broker;
use crate::ports::control::ControlError;
use crate::storage::read::Found;

/// Questions to the broker for one answer.
const ASKED_MAX: usize = 2;
/// Longest wait for the broker. What workers have said is then not part of the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What an instance waits for, as far as the partition knows.
pub(super) fn pending(node: &Node, found: &Found, work: &BTreeMap<WorkRef, WorkItem>) -> Vec<AwaitedView> {
    let Found::Live(record) = found else {
        return Vec::new();
    };
    let in_force = node.catalog.now();
    let definition = in_force.sagas.by_hash(&record.definition).map(AsRef::as_ref);
    pending::pending(record, definition, work)
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
    commands: Vec<(EffectName, CommandId)>,
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
    let reader = node.shard(id).await?.reader;
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
        let under_way = pending::commands(record, &seen.work).take(ASKED_MAX);
        commands = under_way
            .map(|(effect, command)| (effect.clone(), command))
            .collect();
    }
    Ok(Looked {
        pending: pending(node, &found, &seen.work),
        instance: node.view(id, &found, seen.kept),
        hears,
        commands,
    })
}

/// Adds what workers have said about the calls of the first effects that are under way.
async fn tell_calls(node: &Node, id: &InstanceId, looked: &mut Looked) {
    let Some(running) = node.running() else { return };
    let broker = &*running.broker;
    let stream = streams::name(&node.manifest, SourceStream::WorkflowCommands);
    let mut left = ASKED_MAX;
    for (effect, command) in std::mem::take(&mut looked.commands) {
        let asked = said(broker, stream, (&id.tenant, &effect, command), &mut left);
        let said = tokio::time::timeout(PATIENCE, asked).await.ok().flatten();
        let Some(said) = said else { continue };
        let command = command.to_string();
        let mut of_command = looked.pending.iter_mut();
        let of_command = of_command.find(|pending| pending.command_id.as_ref() == Some(&command));
        if let Some(pending) = of_command {
            pending.calls = Some(CallsView::from(said));
        }
    }
}

/// The last word about a command, else what its message says about the calls that were made before there was one.
async fn said(
    broker: &dyn Broker,
    stream: &str,
    (tenant, effect, command): (&TenantId, &EffectName, CommandId),
    left: &mut usize,
) -> Option<EffectProgress> {
    let progress = Subject::EffectProgress {
        tenant: tenant.clone(),
        effect: effect.clone(),
        command,
    };
    *left = left.checked_sub(1)?;
    if let Some(stored) = broker.last_by_subject(stream, &progress.render()).await.ok()? {
        return serde_json::from_slice(&stored.payload).ok();
    }
    let sent = Subject::Effect {
        tenant: tenant.clone(),
        effect: effect.clone(),
        command,
    };
    *left = left.checked_sub(1)?;
    let stored = broker.last_by_subject(stream, &sent.render()).await.ok()??;
    let sent: EffectCommand<'_> = serde_json::from_slice(&stored.payload).ok()?;
    sent.progress
}
