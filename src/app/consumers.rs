//! The consumers that bring commands to workers: which there have to be, whether they are as they have to be, and
//! what they hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::catalog::Catalog;
use super::running::Running;
use super::{StartError, definitions, reach_broker, runtime, streams, unanswered};
use crate::config::Manifest;
use crate::effects::Consumer;
use crate::effects::consumers::Scope;
use crate::effects::source::queue_spec;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::input::SourceStream;
use crate::ports::broker::{Broker, BrokerError, KnownQueue, QueueState};
use crate::ports::control::{Check, ConsumerInfo};
use crate::telemetry::Metrics;

/// Time between two looks at what the consumers hold.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// All consumers of these effects, by what they bring.
///
/// # Errors
/// [`StartError::Consumers`] where the manifest does not fit the effects.
pub fn plan(manifest: &Manifest, effects: &[Arc<EffectDefinition>]) -> Result<Vec<Consumer>, StartError> {
    let tenants = manifest.tenant_list();
    let scope = Scope {
        group: manifest.group(),
        tenancy: manifest.tenancy(),
        tenants: tenants.as_deref(),
    };
    let planned = manifest.worker.consumers.plan(scope, effects);
    planned.map_err(|faults| StartError::Consumers(faults.join("; ")))
}

fn stream(manifest: &Manifest) -> &str {
    streams::name(manifest, SourceStream::WorkflowCommands)
}

/// Compares what is there with what has to be; one line for each difference that keeps workers from their work.
///
/// # Errors
/// [`BrokerError`] where the broker cannot be asked.
async fn differences(
    broker: &dyn Broker,
    manifest: &Manifest,
    consumer: &Consumer,
) -> Result<Vec<String>, BrokerError> {
    let spec = queue_spec(consumer, stream(manifest), &manifest.worker, 1);
    broker.check_queue(&spec).await
}

/// Looks whether workers could take from their consumers. Those of workers elsewhere are their own concern, and where
/// this process has no worker, only names that were given to it can be wrong.
///
/// # Errors
/// `Ok(Err)` has all differences; `Err` says that the broker cannot be asked.
pub(super) async fn verify(
    broker: &dyn Broker,
    manifest: &Manifest,
    consumers: &[Consumer],
) -> Result<Result<(), StartError>, BrokerError> {
    let served = consumers.iter().filter(|consumer| !consumer.external);
    let concerned = served.filter(|consumer| consumer.bound || manifest.mode.runs_effects());
    let mut found = Vec::new();
    for consumer in concerned {
        found.extend(differences(broker, manifest, consumer).await?);
    }
    Ok(if found.is_empty() {
        Ok(())
    } else {
        Err(StartError::Consumer(found.join("; ")))
    })
}

/// Consumers of the group that nothing here takes from: those of another grouping, or of effects that are gone.
async fn unused(
    broker: &dyn Broker,
    manifest: &Manifest,
    consumers: &[Consumer],
) -> Result<Vec<String>, BrokerError> {
    let found = broker.queues(stream(manifest)).await?;
    let ours = |queue: &KnownQueue| queue.group.as_deref() == Some(manifest.group());
    let used = |queue: &KnownQueue| consumers.iter().any(|consumer| consumer.name == queue.durable);
    let left = found.into_iter().filter(|queue| ours(queue) && !used(queue));
    Ok(left.map(|queue| queue.durable).collect())
}

/// Tells the consumers that were left behind. Only a process that runs sagas knows all effects of its cluster.
async fn tell_unused(broker: &dyn Broker, manifest: &Manifest, consumers: &[Consumer]) {
    if !manifest.mode.runs_sagas() {
        return;
    }
    match unused(broker, manifest, consumers).await {
        Ok(names) => {
            for name in names {
                tracing::warn!(
                    consumer = name,
                    "no effect of this manifest comes by this consumer any more; once the workers that took from it have \
                     ended, remove it: saga-runner consumers delete {name}"
                );
            }
        }
        Err(error) => tracing::debug!(%error, "cannot list consumers"),
    }
}

/// What a look at a consumer has shown: what it holds, nothing where it does not exist.
#[derive(Debug, Clone, Copy)]
struct Look(Option<QueueState>);

/// What the consumers held when they were last looked at.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<BTreeMap<String, Look>>);

impl Seen {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last look at a consumer, if there was one.
    fn of(&self, consumer: &str) -> Option<Look> {
        self.lock().get(consumer).copied()
    }

    /// Takes in what a look has shown, for people and for the metrics.
    fn replace(&self, looks: BTreeMap<String, Look>, metrics: &Metrics) {
        let gauges = [&metrics.consumer_pending, &metrics.consumer_unacknowledged];
        for (name, look) in &looks {
            let counts = look
                .0
                .map_or([0, 0], |state| [state.pending, state.unacknowledged]);
            for (gauge, count) in gauges.into_iter().zip(counts) {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                gauge.with_label_values(&[name]).set(count);
            }
        }
        let mut seen = self.lock();
        for name in seen.keys().filter(|name| !looks.contains_key(*name)) {
            for gauge in gauges {
                // It may never have been shown.
                let _ = gauge.remove_label_values(&[name]);
            }
        }
        *seen = looks;
    }
}

/// Looks at the consumers again and again until the drain.
pub(super) async fn watch(
    broker: Arc<dyn Broker>,
    manifest: Manifest,
    catalog: Arc<Catalog>,
    seen: Arc<Seen>,
    metrics: Arc<Metrics>,
    drain: CancellationToken,
) {
    let mut told = Vec::new();
    loop {
        let in_force = catalog.now();
        if told != in_force.consumers {
            tell_unused(&*broker, &manifest, &in_force.consumers).await;
            told.clone_from(&in_force.consumers);
        }
        let mut looks = BTreeMap::new();
        for consumer in &in_force.consumers {
            match broker.queue_state(stream(&manifest), &consumer.name).await {
                Ok(state) => {
                    looks.insert(consumer.name.clone(), Look(state));
                }
                Err(error) => tracing::debug!(%error, "cannot read the state of a consumer"),
            }
        }
        seen.replace(looks, &metrics);
        tokio::select! {
            biased;
            () = drain.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// The consumers as operators see them.
pub(super) fn infos(seen: &Seen, consumers: &[Consumer]) -> Vec<ConsumerInfo> {
    let described = |consumer: &Consumer| {
        let look = seen.of(&consumer.name);
        let state = look.and_then(|look| look.0);
        ConsumerInfo {
            name: consumer.name.clone(),
            delivers: consumer.delivers.clone(),
            bound: consumer.bound,
            external: consumer.external,
            exists: look.map(|look| look.0.is_some()),
            pending: state.map(|state| state.pending),
            unacknowledged: state.map(|state| state.unacknowledged),
        }
    };
    consumers.iter().map(described).collect()
}

/// Whether commands come.
pub(super) async fn check(running: &Running, seen: &Seen, consumers: &[Consumer]) -> Check {
    let troubles = running.consumer_troubles().await;
    let states = consumers.iter().filter_map(|consumer| seen.of(&consumer.name)?.0);
    let (pending, unacknowledged) = states.fold((0, 0), |(pending, unacknowledged), state| {
        (pending + state.pending, unacknowledged + state.unacknowledged)
    });
    Check {
        name: "consumers".to_owned(),
        ok: troubles.is_empty(),
        detail: if troubles.is_empty() {
            format!(
                "{} consumer(s), {pending} command(s) pending, {unacknowledged} unacknowledged",
                consumers.len()
            )
        } else {
            troubles.join("; ")
        },
    }
}

/// One consumer, for people.
#[derive(Debug)]
pub struct Line {
    pub name: String,
    /// What it brings; `None` where it was left behind.
    pub delivers: Option<String>,
    pub filters: Vec<String>,
    pub bound: bool,
    pub external: bool,
    /// `None` where it does not exist.
    pub state: Option<QueueState>,
    pub differences: Vec<String>,
}

/// Carries out `consumers list`: those that the manifest needs, and those that were left behind.
///
/// # Errors
/// [`StartError`] where the files cannot be read or the broker cannot be asked.
pub fn report(manifest: &Manifest) -> Result<Vec<Line>, StartError> {
    let consumers = plan(manifest, &definitions::load(manifest)?.effects)?;
    runtime()?.block_on(async {
        let broker = reach_broker(manifest, Arc::new(super::SystemClock::new())).await?;
        let mut lines = Vec::new();
        for consumer in &consumers {
            let looked_at = !consumer.external || consumer.bound;
            lines.push(Line {
                name: consumer.name.clone(),
                delivers: Some(consumer.delivers.clone()),
                filters: consumer.filters.clone(),
                bound: consumer.bound,
                external: consumer.external,
                state: state(&*broker, manifest, &consumer.name).await?,
                differences: if looked_at {
                    differences(&*broker, manifest, consumer)
                        .await
                        .map_err(unanswered)?
                } else {
                    Vec::new()
                },
            });
        }
        for name in unused(&*broker, manifest, &consumers).await.map_err(unanswered)? {
            lines.push(Line {
                state: state(&*broker, manifest, &name).await?,
                name,
                delivers: None,
                filters: Vec::new(),
                bound: false,
                external: false,
                differences: Vec::new(),
            });
        }
        Ok(lines)
    })
}

async fn state(
    broker: &dyn Broker,
    manifest: &Manifest,
    name: &str,
) -> Result<Option<QueueState>, StartError> {
    let found = broker.queue_state(stream(manifest), name).await;
    found.map_err(unanswered)
}

/// Carries out `consumers delete`: removes one that was left behind and that nobody takes from.
///
/// # Errors
/// [`StartError::Consumer`] where it is in use, or is none that was left behind.
pub fn delete(manifest: &Manifest, name: &str) -> Result<(), StartError> {
    let consumers = plan(manifest, &definitions::load(manifest)?.effects)?;
    runtime()?.block_on(async {
        let broker = reach_broker(manifest, Arc::new(super::SystemClock::new())).await?;
        let left = unused(&*broker, manifest, &consumers).await.map_err(unanswered)?;
        if !left.iter().any(|other| other == name) {
            return Err(StartError::Consumer(format!(
                "{name} is not an orphaned consumer; orphaned: {}",
                if left.is_empty() {
                    "none".to_owned()
                } else {
                    left.join(", ")
                }
            )));
        }
        match broker.delete_queue(stream(manifest), name).await {
            Err(BrokerError::Refused(reason)) => Err(StartError::Consumer(reason)),
            other => other.map_err(unanswered),
        }
    })
}
