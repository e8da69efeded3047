//! Everything that runs once broker and storage are there.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::future::{OptionFuture, join_all};
use tokio::sync::{Mutex, mpsc};
use tokio::task::{JoinError, JoinSet};
use uuid::Uuid;

use super::adapters::Adapters;
use super::catalog::{Catalog, InForce};
use super::node::Node;
use super::ownership::claim::Claimed;
use super::ownership::keeper::{Keeper, Kept};
use super::{StartError, shards, standing, streams};
use crate::clients::UpstreamTls;
use crate::config::{BrokerKind, Dispatch, Manifest};
use crate::effects::{Breakers, BuiltIn, Consumer, Local, Secrets, SystemResolver, Worker, WorkerSpec};
use crate::intake::{Intake, IntakeSpec, ShardEndpoint, StreamStatus};
use crate::kernel::definition::{DefinitionSet, EffectDefinition};
use crate::kernel::ids::ClusterId;
use crate::kernel::input::SourceStream;
use crate::kernel::token::TokenKey;
use crate::outbox::{Fence, LocalFirst, Relay, RelaySpec, Rest, Retention, RetentionSpec, Submitter};
use crate::ports::broker::{Broker, StreamState, WorkflowStreams};
use crate::ports::clock::Clock;
use crate::ports::randomness::Randomness;
use crate::shard::mailbox::{Notice, Released};
use crate::shard::{ShardHandle, ShardState};
use crate::storage::rows::PositionRow;
use crate::tasks::Tasks;
use crate::telemetry::Metrics;

/// Releases that may wait for a relay.
const RELEASES_MAX: usize = 256;
/// Notices that may wait for the intake.
const NOTICES_MAX: usize = 1_024;
/// How long the readers may take to stop.
const READERS_DRAIN: Duration = Duration::from_secs(5);
/// How long the relays may finish what is in flight.
const RELAY_DRAIN: Duration = Duration::from_secs(2);

/// What a node lends for the start.
pub(super) struct Parts<'n> {
    pub manifest: &'n Manifest,
    pub catalog: &'n Arc<Catalog>,
    pub secrets: &'n Arc<Secrets>,
    pub tokens: Option<&'n TokenKey>,
    pub adapters: &'n Arc<dyn Adapters>,
    pub randomness: &'n Arc<dyn Randomness>,
    pub clock: &'n Arc<dyn Clock>,
    pub metrics: &'n Arc<Metrics>,
    pub tasks: &'n Tasks,
}

/// The running parts of a node. Read access needs no lock; the drain takes the parts out.
pub(super) struct Running {
    pub broker: Arc<dyn Broker>,
    /// The cluster whose sagas run here, if any do.
    pub cluster: Option<ClusterId>,
    pub shards: Vec<shards::Shown>,
    /// Those of the effect worker, if this process has one. A reload brings another worker.
    breakers: std::sync::Mutex<Option<Arc<Breakers>>>,
    /// Through which commands go to the gateway, if this process runs sagas and has one.
    pub submitter: Option<Arc<Submitter>>,
    /// Where the relays find the worker, if commands go to it directly.
    local: Option<Arc<Local>>,
    /// Keeps the shards this process's own, if it has any.
    pub keeper: Option<Arc<Keeper>>,
    stages: Mutex<Stages>,
}

/// What the drain stops, in this order.
#[derive(Default)]
struct Stages {
    worker: Option<Worker>,
    /// Workers that a reload has replaced and that finish what they have begun.
    replaced: JoinSet<()>,
    intake: Option<Intake>,
    shards: Vec<ShardHandle>,
    relays: Vec<Relay>,
    retention: Option<Retention>,
}

impl Running {
    /// Opens the shards and starts all parts.
    pub async fn start(
        parts: &Parts<'_>,
        broker: Arc<dyn Broker>,
        streams: &[StreamState; 3],
        cluster: Option<ClusterId>,
        claimed: Vec<Claimed>,
    ) -> Result<Self, StartError> {
        let mut stages = Stages::default();
        let (mut shown, mut submitter, mut keeper) = (Vec::new(), None, None);
        let local = (parts.manifest.dispatch == Dispatch::Local)
            .then(|| Arc::new(Local::new(parts.manifest.limits.payload_bytes)));
        if let Some(local) = &local {
            local.expect(&served(&parts.catalog.now().effects));
        }
        if cluster.is_some() {
            let started = start_sagas(parts, &broker, streams, claimed, local.as_ref(), &mut stages).await?;
            (submitter, keeper) = (started.0, Some(started.1));
            shown = stages.shards.iter().map(shards::Shown::of).collect();
        }
        if parts.manifest.mode.runs_effects() {
            let in_force = parts.catalog.now();
            let (effects, consumers) = (served(&in_force.effects), in_force.consumers.clone());
            stages.worker = start_worker(parts, &broker, effects, consumers, local.as_ref())?;
        }
        Ok(Self {
            broker,
            cluster,
            shards: shown,
            breakers: std::sync::Mutex::new(stages.worker.as_ref().map(Worker::breakers)),
            submitter,
            local,
            keeper,
            stages: Mutex::new(stages),
        })
    }

    /// All breakers of this process: of the worker that takes commands now, and of the gateway.
    pub fn breakers(&self) -> impl Iterator<Item = Arc<Breakers>> {
        let gateway = self
            .submitter
            .as_ref()
            .map(|submitter| Arc::clone(submitter.breakers()));
        self.worker_breakers().into_iter().chain(gateway)
    }

    fn worker_breakers(&self) -> Option<Arc<Breakers>> {
        self.breakers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How the source streams are read; none in a process without sagas, or while it drains.
    pub async fn streams(&self) -> Vec<StreamStatus> {
        let stages = self.stages.lock().await;
        stages
            .intake
            .as_ref()
            .map_or_else(Vec::new, |intake| intake.status().to_vec())
    }

    /// Why the worker cannot take commands, one line each.
    pub async fn consumer_troubles(&self) -> Vec<String> {
        let stages = self.stages.lock().await;
        stages.worker.as_ref().map_or_else(Vec::new, Worker::troubles)
    }

    /// Whether all that was read of a stream is in the mailbox of a shard.
    pub async fn is_mailed(&self, stream: SourceStream, shard: u16) -> bool {
        let stages = self.stages.lock().await;
        match &stages.intake {
            Some(intake) => intake.is_mailed(stream, shard).await,
            None => false,
        }
    }

    /// Feeds a shard from the place to which its position was moved.
    pub async fn read_on(&self, stream: SourceStream, shard: u16, to: &PositionRow) {
        if let Some(intake) = &self.stages.lock().await.intake {
            intake.read_on(stream, shard, to.sequence, to.stamp).await;
        }
    }

    /// Lets the readers find what these definitions want.
    pub async fn widen(&self, definitions: &Arc<DefinitionSet>) {
        if let Some(intake) = &self.stages.lock().await.intake {
            intake.widen(definitions);
        }
    }

    /// Runs other effects: new workers pull at once, the old ones finish what they have begun.
    pub async fn replace_worker(
        &self,
        node: &Node,
        effects: &[Arc<EffectDefinition>],
        consumers: Vec<Consumer>,
    ) -> Result<(), StartError> {
        if !node.manifest.mode.runs_effects() {
            return Ok(());
        }
        let mut stages = self.stages.lock().await;
        // The drain has taken the stages, and nothing would stop another worker.
        if node.is_draining() {
            return Err(StartError::System("draining".to_owned()));
        }
        let effects = served(effects);
        let new = start_worker(
            &node.parts(),
            &self.broker,
            effects,
            consumers,
            self.local.as_ref(),
        )?;
        let breakers = new.as_ref().map(Worker::breakers);
        if let (Some(new), Some(old)) = (&breakers, self.worker_breakers()) {
            new.keep_forced(&old);
        }
        *self.breakers.lock().unwrap_or_else(PoisonError::into_inner) = breakers;
        if let Some(old) = std::mem::replace(&mut stages.worker, new) {
            let timeout = node.manifest.drain_timeout.duration();
            stages.replaced.spawn(old.drain(timeout));
        }
        while let Some(ended) = stages.replaced.try_join_next() {
            report(ended);
        }
        Ok(())
    }

    /// Stops in the order in which work flows: no new work, no new input, commit, hand over.
    pub async fn drain(&self, timeout: Duration) {
        let mut stages = std::mem::take(&mut *self.stages.lock().await);
        let worker = stages.worker.take();
        let mut replaced = std::mem::take(&mut stages.replaced);
        let workers = async {
            let replaced = async {
                while let Some(ended) = replaced.join_next().await {
                    report(ended);
                }
            };
            let worker = OptionFuture::from(worker.map(|worker| worker.drain(timeout)));
            tokio::join!(worker, replaced);
        };
        // The results of local calls come by the mailbox, so the shards stop after the workers.
        let (workers_first, workers_beside) = if self.local.is_some() {
            (Some(workers), None)
        } else {
            (None, Some(workers))
        };
        let sagas = async {
            let intake = async {
                if let Some(intake) = stages.intake.take() {
                    stopped("the readers", READERS_DRAIN, intake.drain()).await;
                }
            };
            tokio::join!(intake, OptionFuture::from(workers_first));
            if self.local.is_some() {
                settle_calls(&stages).await;
            }
            let shards = stages.shards.drain(..).map(ShardHandle::stop);
            let all_stopped = stopped("the shards", timeout, join_all(shards)).await;
            let relays = stages.relays.drain(..).map(|relay| relay.drain(RELAY_DRAIN));
            join_all(relays).await;
            drop(stages.retention.take());
            // A shard that still writes would be ahead of what is said here.
            if let Some(keeper) = self.keeper.as_ref().filter(|_| all_stopped) {
                keeper.release().await;
            }
        };
        tokio::join!(OptionFuture::from(workers_beside), sagas);
        if let Err(error) = self.broker.flush().await {
            tracing::warn!(%error, "the last acknowledgements may not have left");
        }
    }
}

/// Waits until a part has stopped, not for ever: a disk or a connection may hang. What is not committed by then is read
/// again after the next start. Whether it has stopped.
async fn stopped<T>(what: &str, timeout: Duration, stop: impl Future<Output = T>) -> bool {
    let in_time = tokio::time::timeout(timeout, stop).await.is_ok();
    if !in_time {
        let timeout_ms = timeout.as_millis();
        tracing::warn!(what, timeout_ms, "they did not stop in time");
    }
    in_time
}

/// Brings the outcomes of the calls that were made here into the shards, and their results to the broker, for at most
/// [`RELAY_DRAIN`].
async fn settle_calls(stages: &Stages) {
    let settled = async {
        join_all(stages.relays.iter().map(|relay| relay.until(Rest::NoCalls))).await;
        join_all(stages.shards.iter().map(ShardHandle::commit)).await;
        join_all(stages.relays.iter().map(|relay| relay.until(Rest::Nothing))).await;
    };
    if tokio::time::timeout(RELAY_DRAIN, settled).await.is_ok() {
        tracing::info!("the outcomes of all calls are stored and published");
    } else {
        tracing::info!("not all results could be published; they are after the next start");
    }
}

/// A panic in the drain of a worker leaves its commands to be delivered again.
fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the drain of a worker ended abnormally");
    }
}

/// Starts shards, relays and intake; returns the way to the gateway, and who looks after the owner records.
async fn start_sagas(
    parts: &Parts<'_>,
    broker: &Arc<dyn Broker>,
    streams: &[StreamState; 3],
    claimed: Vec<Claimed>,
    local: Option<&Arc<Local>>,
    stages: &mut Stages,
) -> Result<(Option<Arc<Submitter>>, Arc<Keeper>), StartError> {
    let manifest = parts.manifest;
    let (notices, asked) = mpsc::channel::<Notice>(NOTICES_MAX);
    let in_force = parts.catalog.now();
    let needed = shards::definitions(&claimed, &in_force.active())?;
    let definitions = needed.definitions;
    parts.catalog.replace(InForce {
        revision: needed.revision,
        sagas: Arc::clone(&definitions),
        effects: in_force.effects.clone(),
        consumers: in_force.consumers.clone(),
        effects_text: in_force.effects_text,
    });
    let submitter = match &manifest.gateway {
        Some(settings) => {
            let gateway = parts.adapters.gateway(settings, Arc::clone(broker).messenger())?;
            let (clock, metrics) = (Arc::clone(parts.clock), Arc::clone(parts.metrics));
            Some(Submitter::new(gateway, &manifest.relay, clock, metrics))
        }
        None => None,
    };
    let mut kept = Vec::with_capacity(claimed.len());
    for claimed in claimed {
        let (index, fence) = (claimed.shard, Arc::clone(&claimed.fence));
        let renewed = parts.clock.monotonic();
        kept.push(Kept::of(&claimed, claimed.store.reader(), renewed));
        let (release, released) = mpsc::channel::<Released>(RELEASES_MAX);
        let standing = standing::look_up(broker, &claimed.store, streams).await?;
        let shard = shards::start(
            parts,
            shard_settings(manifest, &fence),
            index,
            claimed.store,
            standing,
            &definitions,
            needed.revision,
            streams,
            release,
            &notices,
        )?;
        stages.relays.push(Relay::start(RelaySpec {
            shard: index,
            broker: Arc::clone(broker),
            submitter: submitter.clone(),
            released,
            mailbox: shard.mail.clone(),
            floor: Arc::clone(&shard.floor),
            take_spilled: {
                let status = Arc::clone(&shard.status);
                Box::new(move || status.take_spilled())
            },
            streams: workflow_streams(manifest),
            local: local.map(|local| LocalFirst {
                dispatch: Arc::clone(local) as Arc<dyn crate::ports::dispatch::Dispatch>,
                recovered: shard.began_after,
                begun: shard.begun.clone(),
            }),
            began_after: shard.began_after,
            fence,
            cluster: manifest.cluster.clone(),
            settings: manifest.relay.clone(),
            limits: manifest.limits.clone(),
            clock: Arc::clone(parts.clock),
            metrics: Arc::clone(parts.metrics),
            tasks: parts.tasks.clone(),
        }));
        stages.shards.push(shard);
    }
    let keeper = Keeper::new(
        Arc::clone(broker),
        manifest.clone(),
        Arc::clone(parts.clock),
        Arc::clone(parts.metrics),
        parts.tasks.clone(),
        kept,
    );
    let endpoints: Vec<ShardEndpoint> = stages.shards.iter().map(endpoint).collect();
    stages.retention = Some(start_retention(parts, broker, &endpoints, &keeper));
    stages.intake = Some(Intake::start(IntakeSpec {
        broker: Arc::clone(broker),
        shards: endpoints,
        shard_count: manifest.shards,
        definitions,
        tenancy: manifest.tenancy(),
        tenants: manifest.tenant_list(),
        streams: SourceStream::ALL.map(|role| streams::name(manifest, role).to_owned()),
        reader_prefix: format!("{}-{}", manifest.group(), name(&**parts.randomness)),
        limits: manifest.limits.clone(),
        takes_applied: keeper.is_resumed(),
        settings: manifest.intake.clone(),
        clock: Arc::clone(parts.clock),
        metrics: Arc::clone(parts.metrics),
        tasks: parts.tasks.clone(),
        notices: asked,
    }));
    Ok((submitter, keeper))
}

/// While a shard is held, nothing leaves its outbox: what waited for room there would wait for ever.
fn shard_settings(manifest: &Manifest, fence: &Fence) -> crate::shard::Settings {
    let mut settings = manifest.shard.clone();
    if fence.is_held() {
        settings.outbox_soft = u64::MAX;
    }
    settings
}

/// A name that nobody else has.
fn name(randomness: &dyn Randomness) -> String {
    Uuid::from_u128(randomness.draw()).simple().to_string()
}

fn start_retention(
    parts: &Parts<'_>,
    broker: &Arc<dyn Broker>,
    endpoints: &[ShardEndpoint],
    keeper: &Arc<Keeper>,
) -> Retention {
    let manifest = parts.manifest;
    let positions: Vec<_> = endpoints
        .iter()
        .map(|shard| Arc::clone(&shard.position))
        .collect();
    Retention::start(RetentionSpec {
        broker: Arc::clone(broker),
        streams: workflow_streams(manifest),
        events: (manifest.broker.kind == BrokerKind::Embedded)
            .then(|| streams::name(manifest, SourceStream::AggregateEvents).to_owned()),
        durables: {
            let catalog = Arc::clone(parts.catalog);
            Box::new(move || {
                let in_force = catalog.now();
                let consumers = in_force.consumers.iter();
                consumers.map(|consumer| consumer.name.clone()).collect()
            })
        },
        positions: Arc::new(move |stream: SourceStream| {
            positions.iter().map(|position| position(stream)).min()
        }),
        may_trim: {
            let keeper = Arc::clone(keeper);
            Box::new(move || keeper.may_send_for_all())
        },
        settings: manifest.relay.clone(),
        clock: Arc::clone(parts.clock),
        tasks: parts.tasks.clone(),
    })
}

fn endpoint(shard: &ShardHandle) -> ShardEndpoint {
    let status = Arc::clone(&shard.status);
    ShardEndpoint {
        index: shard.index,
        mail: shard.mail.clone(),
        stamps: shard.stamps,
        gates: Arc::clone(&status.gates),
        halted: matches!(status.state(), ShardState::Halted { .. }),
        position: Arc::new(move |stream| status.position(stream)),
    }
}

/// The effects that a worker of saga-runner carries out.
pub fn served(effects: &[Arc<EffectDefinition>]) -> Vec<Arc<EffectDefinition>> {
    let here = effects.iter().filter(|effect| !effect.is_external());
    here.cloned().collect()
}

/// No worker where there is nothing to do.
fn start_worker(
    parts: &Parts<'_>,
    broker: &Arc<dyn Broker>,
    effects: Vec<Arc<EffectDefinition>>,
    consumers: Vec<Consumer>,
    local: Option<&Arc<Local>>,
) -> Result<Option<Worker>, StartError> {
    let manifest = parts.manifest;
    if effects.is_empty() {
        if let Some(local) = local {
            local.serve_by(BTreeMap::new());
        }
        return Ok(None);
    }
    let spec = WorkerSpec {
        broker: Arc::clone(broker),
        effects,
        tenancy: manifest.tenancy(),
        streams: workflow_streams(manifest),
        settings: manifest.worker.clone(),
        secrets: Arc::clone(parts.secrets),
        providers: Arc::new(BuiltIn {
            upstreams: manifest.upstreams.clone(),
            upstream_tls: upstream_tls(manifest)?,
            tokens: parts.tokens.cloned(),
            resolver: Arc::new(SystemResolver),
            registry: parts.adapters.registry(),
        }),
        clock: Arc::clone(parts.clock),
        metrics: Arc::clone(parts.metrics),
        tasks: parts.tasks.clone(),
        name: name(&**parts.randomness).into(),
        group: manifest.group().to_owned(),
        consumers,
        local: local.cloned(),
    };
    Worker::start(&spec)
        .map(Some)
        .map_err(|error| StartError::Missing(error.to_string()))
}

/// Reads what protects the connections to upstreams.
fn upstream_tls(manifest: &Manifest) -> Result<BTreeMap<String, UpstreamTls>, StartError> {
    let read = manifest.upstream_tls.iter();
    read.map(|(name, files)| Ok((name.clone(), files.read().map_err(StartError::Missing)?)))
        .collect()
}

fn workflow_streams(manifest: &Manifest) -> WorkflowStreams {
    WorkflowStreams {
        commands: streams::name(manifest, SourceStream::WorkflowCommands).to_owned(),
        events: streams::name(manifest, SourceStream::WorkflowEvents).to_owned(),
    }
}
