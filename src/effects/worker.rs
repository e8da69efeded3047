//! The worker: one shared queue and one bound on concurrency per effect, and an orderly end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::http::{Environment, Http};
use super::lane::{Lane, Series};
use super::provider::Provider;
use super::settings::Settings;
use super::transform::Transform;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::Provider as ProviderDefinition;
use crate::kernel::ids::EffectName;
use crate::kernel::subject::{self, Tenancy};
use crate::ports::broker::{Broker, Queue, QueueSpec, WorkflowStreams};
use crate::ports::clock::Clock;
use crate::telemetry::Metrics;

const REJOIN_FIRST: Duration = Duration::from_millis(100);
const REJOIN_MAX: Duration = Duration::from_secs(10);
/// What the commands that are cut off at the end of a drain get to be given back.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// What a worker needs.
pub struct WorkerSpec {
    pub broker: Arc<dyn Broker>,
    pub effects: Vec<Arc<EffectDefinition>>,
    pub tenancy: Tenancy,
    pub streams: WorkflowStreams,
    pub settings: Settings,
    /// By name; expressions read them as `secrets.<name>`.
    pub secrets: BTreeMap<String, String>,
    /// Base URLs by name; expressions read them as `upstreams.<name>`.
    pub upstreams: BTreeMap<String, String>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    /// Workers of one group share the work.
    pub group: String,
}

/// Why a worker cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("effect {effect:?}: {reason}")]
pub struct WorkerError {
    pub effect: String,
    pub reason: String,
}

/// Name of the durable queue of one effect.
#[must_use]
pub fn durable_name(group: &str, effect: &EffectName) -> String {
    format!("effect-{group}-{effect}")
}

/// A running worker. Dropped without [`Worker::drain`], it leaves its commands to be delivered again.
pub struct Worker {
    lanes: JoinSet<()>,
    draining: CancellationToken,
    stopping: CancellationToken,
}

impl Worker {
    /// Builds the providers and begins to pull. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`WorkerError`] names the first effect that cannot run.
    pub fn start(spec: &WorkerSpec) -> Result<Self, WorkerError> {
        let draining = CancellationToken::new();
        let stopping = CancellationToken::new();
        let environment = Arc::new(Environment::new(&spec.secrets, &spec.upstreams));
        let gate = Arc::new(Gate::new(
            spec.settings.answered_max,
            spec.settings.recheck_after.duration(),
        ));
        let mut lanes = Vec::with_capacity(spec.effects.len());
        for definition in &spec.effects {
            let provider =
                provider(definition, &environment, &spec.settings).map_err(|reason| WorkerError {
                    effect: definition.name.to_string(),
                    reason,
                })?;
            lanes.push(Arc::new(Lane {
                definition: Arc::clone(definition),
                provider,
                broker: Arc::clone(&spec.broker),
                streams: spec.streams.clone(),
                tenancy: spec.tenancy,
                settings: spec.settings.clone(),
                gate: Arc::clone(&gate),
                clock: Arc::clone(&spec.clock),
                metrics: Arc::clone(&spec.metrics),
                series: Series::of(&spec.metrics, definition.name.as_str()),
                draining: draining.clone(),
                stopping: stopping.clone(),
            }));
        }
        let mut tasks = JoinSet::new();
        for lane in lanes {
            tasks.spawn(pull(lane, spec.group.clone()));
        }
        Ok(Self {
            lanes: tasks,
            draining,
            stopping,
        })
    }

    /// Stops pulling, gives back what has not started, and lets the rest finish for at most `timeout`; what
    /// still runs then is dropped and given back.
    pub async fn drain(mut self, timeout: Duration) {
        self.draining.cancel();
        if tokio::time::timeout(timeout, finish(&mut self.lanes))
            .await
            .is_err()
        {
            tracing::warn!("effects still run at the end of the drain; their commands go to other workers");
            self.stopping.cancel();
            let given_back = tokio::time::timeout(GIVE_BACK, finish(&mut self.lanes)).await;
            if given_back.is_err() {
                tracing::warn!("not every command could be given back; they come again after the ack wait");
            }
        }
    }
}

fn provider(
    definition: &Arc<EffectDefinition>,
    environment: &Arc<Environment>,
    settings: &Settings,
) -> Result<Arc<dyn Provider>, String> {
    match &definition.provider {
        ProviderDefinition::Http(call) => Ok(Arc::new(Http::new(definition, call, environment, settings)?)),
        ProviderDefinition::Transform => Ok(Arc::new(Transform {
            definition: Arc::clone(definition),
            expression_steps: settings.expression_steps,
        })),
    }
}

async fn finish(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        report(ended);
    }
}

/// A panic costs one command its turn: it is delivered again after the ack wait.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a task of the effect worker ended abnormally");
    }
}

/// Pulls the commands of one effect until the drain, joining the queue again whenever it breaks.
async fn pull(lane: Arc<Lane>, group: String) {
    let concurrency = usize::try_from(lane.definition.concurrency.max(1)).unwrap_or(usize::MAX);
    let effect = &lane.definition.name;
    let spec = QueueSpec {
        stream: lane.streams.commands.clone(),
        filter: subject::filter(lane.tenancy, None, "effect", Some(effect.as_str())),
        durable: durable_name(&group, effect),
        ack_wait: lane.settings.ack_wait.duration(),
        max_unacknowledged: lane.settings.unacknowledged_max,
        buffer: concurrency,
    };
    let mut running = JoinSet::new();
    let mut delay = REJOIN_FIRST;
    loop {
        let joined = tokio::select! {
            () = lane.draining.cancelled() => break,
            joined = lane.broker.queue(spec.clone()) => joined,
        };
        let broken = match joined {
            Ok(mut queue) => {
                delay = REJOIN_FIRST;
                match take(&lane, &mut *queue, concurrency, &mut running).await {
                    None => break,
                    Some(broken) => broken,
                }
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(%effect, reason = broken, "queue is lost, joining again");
        tokio::select! {
            () = lane.draining.cancelled() => break,
            () = tokio::time::sleep(delay) => {}
        }
        delay = (delay * 2).min(REJOIN_MAX);
    }
    finish(&mut running).await;
}

/// Takes commands while the queue lasts. `None`: the drain began, the queue is closed.
async fn take(
    lane: &Arc<Lane>,
    queue: &mut dyn Queue,
    concurrency: usize,
    running: &mut JoinSet<()>,
) -> Option<String> {
    loop {
        while let Some(ended) = running.try_join_next() {
            report(ended);
        }
        let full = running.len() >= concurrency;
        tokio::select! {
            biased;
            () = lane.draining.cancelled() => {
                queue.close().await;
                return None;
            }
            Some(ended) = running.join_next(), if full => report(ended),
            next = queue.next(), if !full => match next {
                Ok(delivery) => {
                    running.spawn(Arc::clone(lane).serve(delivery));
                }
                Err(broken) => return Some(broken.0),
            },
        }
    }
}
