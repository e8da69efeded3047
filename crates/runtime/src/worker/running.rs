//! The worker: one shared queue and one bound on concurrency per effect, and an orderly end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::breakers::{Breakers, Names};
use super::cancellations::{self, Cancellations};
use super::consumers::Consumer;
use super::executor::{Executor, Series};
use super::gate::Gate;
use super::held::HeldCommands;
use super::line::Line;
use super::local::{Executors, Local};
use super::places::{Pace, Share, Tenants};
use super::provider::{Provider, Providers};
use super::room::Took;
use super::secrets::Secrets;
use super::settings::Settings;
use super::source::{Parts, Source, Troubles};
use crate::kernel::breaker::BreakerPolicy;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::BreakerScope;
use crate::kernel::rate::Rate;
use crate::kernel::subject::Tenancy;
use crate::ports::broker::{Broker, WorkflowStreams};
use crate::ports::clock::Clock;
use crate::tasks::{Task, Tasks};
use crate::telemetry::Metrics;

/// How often a drain tells what it waits for.
const TELL_EVERY: Duration = Duration::from_secs(5);

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
    pub secrets: Arc<Secrets>,
    /// What makes the calls.
    pub providers: Arc<dyn Providers>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    pub tasks: Tasks,
    /// Name of this worker, which no other has.
    pub name: Arc<str>,
    /// Workers of one group share the work.
    pub group: String,
    /// Where commands come from ([`super::Consumers::plan`]); those of external effects are left alone.
    pub consumers: Vec<Consumer>,
    /// Where the sagas of this process find the worker, if they are to hand commands to it directly.
    pub local: Option<Arc<Local>>,
}

/// Why a worker cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("effect {effect:?}: {reason}")]
pub struct WorkerError {
    pub effect: String,
    pub reason: String,
}

/// The address that each effect calls, by the name of the effect; `None` where it calls nothing outside.
pub type Hosts = BTreeMap<String, Option<Arc<str>>>;

/// A running worker. Dropped without [`Worker::drain`], it leaves its commands to be delivered again.
pub struct Worker {
    executors: JoinSet<()>,
    breakers: Arc<Breakers>,
    hosts: Arc<Hosts>,
    troubles: Arc<Troubles>,
    draining: CancellationToken,
    /// Calls of commands that came straight from the outbox.
    home: TaskTracker,
    stopping: CancellationToken,
    tasks: Tasks,
}

impl Worker {
    /// Builds the providers and begins to pull. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`WorkerError`] names the first effect that cannot run.
    pub fn start(spec: &WorkerSpec) -> Result<Self, WorkerError> {
        let draining = CancellationToken::new();
        let stopping = CancellationToken::new();
        let home = TaskTracker::new();
        let gate = Arc::new(Gate::new(
            spec.settings.answered_max,
            spec.settings.recheck_after.duration(),
        ));
        let providers = spec.providers.of(spec)?;
        let upstreams: Vec<Option<Arc<str>>> = spec
            .effects
            .iter()
            .zip(&providers)
            .map(|(definition, provider)| upstream(definition, &**provider))
            .collect();
        let hosts = Arc::new(hosts(&spec.effects, &providers));
        let breakers = Breakers::new(
            policies(&spec.effects, &upstreams)?,
            names(&spec.effects, &upstreams),
            Arc::clone(&spec.clock),
            Arc::clone(&spec.metrics),
        );
        let cancellations = Arc::new(Cancellations::new(spec.settings.cancellations_max));
        let shares = Share::divide(spec.settings.concurrency, spec.effects.len());
        let ack_wait = spec.settings.ack_wait.duration();
        let mut executors = Vec::with_capacity(spec.effects.len());
        for (((definition, provider), upstream), share) in
            spec.effects.iter().zip(providers).zip(upstreams).zip(shares)
        {
            let (calls, permits_max) = room(definition, &share, ack_wait);
            let tenants = Tenants::new(definition.limits, calls);
            let line = line(&tenants, &spec.clock, permits_max);
            executors.push(Arc::new(Executor {
                definition: Arc::clone(definition),
                provider,
                secrets: Arc::clone(&spec.secrets),
                broker: Arc::clone(&spec.broker),
                streams: spec.streams.clone(),
                settings: spec.settings.clone(),
                gate: Arc::clone(&gate),
                cancellations: Arc::clone(&cancellations),
                worker: Arc::clone(&spec.name),
                upstream,
                breakers: Arc::clone(&breakers),
                share,
                concurrency: Arc::new(Semaphore::new(calls)),
                places: Line::new(|_| usize::MAX),
                permits_max,
                permits: Arc::new(Semaphore::new(permits_max)),
                line,
                took: Took::default(),
                pace: definition.limits.rate.map(Pace::new),
                tenants,
                clock: Arc::clone(&spec.clock),
                metrics: Arc::clone(&spec.metrics),
                tasks: spec.tasks.clone(),
                series: Series::of(&spec.metrics, definition.name.as_str()),
                draining: draining.clone(),
                home: home.clone(),
                stopping: stopping.clone(),
            }));
        }
        let troubles = Arc::new(Troubles::default());
        let tasks = follow(spec, &executors, &cancellations, &troubles, &draining);
        if let Some(local) = &spec.local {
            local.serve_by(by_effect(&executors));
        }
        Ok(Self {
            executors: tasks,
            breakers,
            hosts,
            troubles,
            draining,
            home,
            stopping,
            tasks: spec.tasks.clone(),
        })
    }

    /// Why it cannot take commands, one line for each consumer.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        self.troubles.lines()
    }

    /// Its breakers, for operators.
    #[must_use]
    pub fn breakers(&self) -> Arc<Breakers> {
        Arc::clone(&self.breakers)
    }

    /// Which addresses its effects call.
    #[must_use]
    pub fn hosts(&self) -> Arc<Hosts> {
        Arc::clone(&self.hosts)
    }

    /// Stops pulling, gives back what has not started, and lets the rest finish for at most `timeout`; what
    /// still runs then is dropped and given back. Calls of commands that came straight from the outbox count as what runs.
    pub async fn drain(mut self, timeout: Duration) {
        self.draining.cancel();
        self.home.close();
        if tokio::time::timeout(timeout, self.finish()).await.is_err() {
            tracing::warn!(
                calls = self.home.len(),
                "effects still running when the drain timed out; other workers get their commands"
            );
            self.stopping.cancel();
            if tokio::time::timeout(GIVE_BACK, self.finish()).await.is_err() {
                tracing::warn!("not every command was returned; the rest is redelivered after the ack wait");
            }
        }
    }

    /// Waits for all that it has begun, and tells now and then that it does.
    async fn finish(&mut self) {
        let home = self.home.clone();
        let finished = async { tokio::join!(finish(&mut self.executors, &self.tasks), home.wait()) };
        let mut finished = std::pin::pin!(finished);
        let mut told = tokio::time::interval(TELL_EVERY);
        loop {
            tokio::select! {
                biased;
                _ = &mut finished => return,
                _ = told.tick() => {
                    let calls = self.home.len();
                    tracing::info!(calls, "drain waits for calls in progress");
                }
            }
        }
    }
}

fn by_effect<'l>(executors: impl IntoIterator<Item = &'l Arc<Executor>>) -> Executors {
    let named = |executor: &Arc<Executor>| (executor.definition.name.clone(), Arc::clone(executor));
    executors.into_iter().map(named).collect()
}

impl WorkerError {
    /// That `definition` cannot run.
    #[must_use]
    pub fn of(definition: &EffectDefinition, reason: String) -> Self {
        Self {
            effect: definition.name.to_string(),
            reason,
        }
    }
}

/// What the breakers of an effect's calls are named after.
fn upstream(definition: &EffectDefinition, provider: &dyn Provider) -> Option<Arc<str>> {
    let host = provider.upstream()?;
    let scope = definition.breaker.map(|rule| rule.scope).unwrap_or_default();
    Some(match scope {
        BreakerScope::Host => host.into(),
        BreakerScope::Effect => format!("effect:{}", definition.name).into(),
    })
}

/// Which addresses the effects call.
fn hosts(effects: &[Arc<EffectDefinition>], providers: &[Arc<dyn Provider>]) -> Hosts {
    let host = |(definition, provider): (&Arc<EffectDefinition>, &Arc<dyn Provider>)| {
        (definition.name.to_string(), provider.upstream().map(Arc::from))
    };
    effects.iter().zip(providers).map(host).collect()
}

/// Begins to take commands, and to hear which of them are cancelled.
fn follow(
    spec: &WorkerSpec,
    executors: &[Arc<Executor>],
    cancellations: &Arc<Cancellations>,
    troubles: &Arc<Troubles>,
    draining: &CancellationToken,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let held = Arc::new(HeldCommands::new(
        Arc::clone(&spec.clock),
        spec.settings.ack_wait.duration(),
    ));
    for consumer in spec.consumers.iter().filter(|consumer| !consumer.external) {
        let brought = executors
            .iter()
            .filter(|executor| consumer.effects.contains(&executor.definition.name));
        let source = Arc::new(Source {
            consumer: consumer.clone(),
            executors: by_effect(brought),
            worker: Parts::of(spec, (&held, cancellations), troubles, draining),
        });
        // What it had in progress comes again, as after a crash.
        tasks.spawn(spec.tasks.kept(Task::Consumer, &consumer.name, move || {
            let source = Arc::clone(&source);
            async move { source.run().await }
        }));
    }
    let source = Arc::new(cancellations::Source {
        broker: Arc::clone(&spec.broker),
        stream: spec.streams.commands.clone(),
        tenancy: spec.tenancy,
        reader: format!("{}-cancellations-{}", spec.group, spec.name),
        readers_opened: AtomicU64::new(0),
    });
    let (cancellations, stopping_to_hear) = (Arc::clone(cancellations), draining.clone());
    tasks.spawn(spec.tasks.kept(Task::Cancellations, "", move || {
        let (cancellations, source) = (Arc::clone(&cancellations), Arc::clone(&source));
        let stopping = stopping_to_hear.clone();
        async move { cancellations::follow(cancellations, &source, stopping).await }
    }));
    tasks
}

/// The upstreams that the effects call by each name of the manifest.
fn names(effects: &[Arc<EffectDefinition>], upstreams: &[Option<Arc<str>>]) -> Names {
    let mut names = Names::new();
    for (definition, upstream) in effects.iter().zip(upstreams) {
        if let (Some(name), Some(upstream)) = (definition.upstream(), upstream) {
            let called = names.entry(name.to_owned()).or_default();
            called.insert(upstream.to_string());
        }
    }
    names
}

/// The policy of each upstream: what one of its effects says, or the default.
fn policies(
    effects: &[Arc<EffectDefinition>],
    upstreams: &[Option<Arc<str>>],
) -> Result<BTreeMap<String, BreakerPolicy>, WorkerError> {
    let mut said: BTreeMap<String, Option<BreakerPolicy>> = BTreeMap::new();
    for (definition, upstream) in effects.iter().zip(upstreams) {
        let Some(upstream) = upstream else { continue };
        let policy = said.entry(upstream.to_string()).or_default();
        match (*policy, definition.breaker) {
            (Some(other), Some(rule)) if other != rule.policy => {
                let reason = format!(
                    "another effect that calls {upstream} has another breaker; give both the same, or one of them \
                     `scope: effect`"
                );
                return Err(WorkerError::of(definition, reason));
            }
            (None, Some(rule)) => *policy = Some(rule.policy),
            (Some(_), Some(_)) | (_, None) => {}
        }
    }
    let said = said.into_iter();
    Ok(said
        .map(|(upstream, policy)| (upstream, policy.unwrap_or_default()))
        .collect())
}

pub(super) async fn finish(set: &mut JoinSet<()>, tasks: &Tasks) {
    while let Some(ended) = set.join_next().await {
        report(tasks, ended);
    }
}

/// A panic costs one command its turn: it is delivered again after the ack wait.
pub(super) fn report(tasks: &Tasks, ended: Result<(), tokio::task::JoinError>) {
    tasks.ended(Task::Command, ended);
}

/// Calls of one effect that are made at the same time.
fn concurrency(definition: &EffectDefinition) -> usize {
    let calls = usize::try_from(definition.limits.concurrency.max(1)).unwrap_or(usize::MAX);
    calls.min(Semaphore::MAX_PERMITS)
}

/// Calls of one effect at the same time, no more than there are places for, and commands in progress.
fn room(definition: &EffectDefinition, share: &Share, ack_wait: Duration) -> (usize, usize) {
    let calls = concurrency(definition).min(share.most()).max(1);
    (calls, permits_max(definition, calls, ack_wait))
}

/// A line for room in progress, of which no tenant gets more than its part.
fn line(tenants: &Arc<Tenants>, clock: &Arc<dyn Clock>, permits_max: usize) -> Line<OwnedSemaphorePermit> {
    let (tenants, clock) = (Arc::clone(tenants), Arc::clone(clock));
    Line::new(move |others| tenants.most_of(permits_max, others, clock.monotonic()))
}

/// Commands of one effect that this worker has in progress at the same time.
fn permits_max(definition: &EffectDefinition, calls: usize, ack_wait: Duration) -> usize {
    let rate = definition.limits.rate;
    rate.map_or(calls, |rate| pulled_ahead(rate, ack_wait).min(calls))
}

/// Commands that may wait in this process for their turn, well before the broker gives them to others.
fn pulled_ahead(rate: Rate, ack_wait: Duration) -> usize {
    let calls = ack_wait.as_micros() / 3 / u128::from(rate.interval_us());
    usize::try_from(calls).unwrap_or(usize::MAX).max(1)
}
