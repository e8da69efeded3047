//! Everything that runs once broker and storage are there.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::future::OptionFuture;
use tokio::sync::{Mutex, MutexGuard, Semaphore};
use tokio::task::{JoinError, JoinSet};
use uuid::Uuid;

use super::adapters::Adapters;
use super::catalog::{self, Catalog};
use super::node::Node;
use super::ownership::claim::Claimed;
use super::ownership::keeper::Keeper;
use super::sagas::{self, Common, Opened, Sagas};
use super::shard_map::ShardMap;
use super::shards::Shown;
use super::{StartError, archive, streams};
use crate::broker_clock::BrokerClock;
use crate::clients::UpstreamTls;
use crate::config::{Dispatch, Manifest, upstreams};
use crate::effects::{
    Breakers, BuiltIn, Consumer, Hosts, Local, Secrets, SystemResolver, Worker, WorkerSpec,
};
use crate::intake::{Fed, StreamStatus};
use crate::kernel::definition::{DefinitionSet, EffectDefinition};
use crate::kernel::ids::ClusterId;
use crate::kernel::input::SourceStream;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::token::TokenKey;
use crate::outbox::Submitter;
use crate::ports::broker::{Broker, StreamState};
use crate::ports::clock::Clock;
use crate::ports::control::ControlError;
use crate::ports::randomness::Randomness;
use crate::storage::rows::PositionRow;
use crate::tasks::{Task, Tasks};
use crate::telemetry::Metrics;

/// Reads at the same time for those who wait: they must not take the place of those of others.
const PATIENT_READS_MAX: usize = 8;

/// What a node lends for the start.
pub(super) struct Parts<'n> {
    pub manifest: &'n Manifest,
    pub catalog: &'n Arc<Catalog>,
    pub secrets: &'n Arc<Secrets>,
    pub tokens: Option<&'n TokenKey>,
    pub adapters: &'n Arc<dyn Adapters>,
    pub randomness: &'n Arc<dyn Randomness>,
    pub clock: &'n Arc<dyn Clock>,
    pub broker_clock: &'n Arc<BrokerClock>,
    pub metrics: &'n Arc<Metrics>,
    pub tasks: &'n Tasks,
}

/// The running parts of a node. Read access needs no lock; the drain takes the parts out.
pub(super) struct Running {
    pub broker: Arc<dyn Broker>,
    /// The cluster whose sagas run here, if any do.
    pub cluster: Option<ClusterId>,
    /// The shards that are open; none where no sagas run.
    pub shards: Arc<ShardMap<Shown>>,
    /// Bounds what is read for requests: each thread that reads keeps some memory.
    pub reads: Arc<Semaphore>,
    /// Bounds what is read for those who wait.
    pub patient_reads: Semaphore,
    /// What waits for the archive.
    pub archive_seen: archive::Seen,
    /// The place of the backup that is being taken.
    pub backups: Arc<Semaphore>,
    /// Of the shards, if sagas run here.
    pub common: Option<Common>,
    /// Those of the effect worker, if this process has one. A reload brings another worker.
    breakers: std::sync::Mutex<Option<Arc<Breakers>>>,
    /// Which addresses the effects of the worker call.
    hosts: std::sync::Mutex<Option<Arc<Hosts>>>,
    /// Where the relays find the worker, if commands go to it directly.
    local: Option<Arc<Local>>,
    stages: Mutex<Stages>,
    /// Held while a shard is opened or closed, and by the drain.
    changing: Mutex<()>,
}

/// What the drain stops, in this order.
#[derive(Default)]
struct Stages {
    worker: Option<Worker>,
    /// Workers that a reload has replaced and that finish what they have begun.
    replaced: JoinSet<()>,
    sagas: Option<Sagas>,
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
        let mut common = None;
        catalog::name_tenants(parts.manifest, parts.metrics);
        let local = (parts.manifest.dispatch == Dispatch::Local)
            .then(|| Arc::new(Local::new(parts.manifest.limits.payload_bytes)));
        if cluster.is_some() {
            let (begun, sagas) = sagas::start(parts, &broker, streams, claimed, local.as_ref()).await?;
            (common, stages.sagas) = (Some(begun), Some(sagas));
        }
        if parts.manifest.mode.runs_effects() {
            let in_force = parts.catalog.now();
            let (effects, consumers) = (served(&in_force.effects), in_force.consumers.clone());
            stages.worker = start_worker(parts, &broker, effects, consumers, local.as_ref())?;
        }
        // Before the process is ready, so that they are there for the first scrape.
        catalog::begin_series(parts.manifest, &parts.catalog.now(), parts.metrics);
        Ok(Self {
            broker,
            cluster,
            shards: common
                .as_ref()
                .map_or_else(Arc::default, |common| Arc::clone(&common.shards)),
            reads: Arc::new(Semaphore::new(
                parts.manifest.http.reads_max.min(Semaphore::MAX_PERMITS),
            )),
            patient_reads: Semaphore::new(PATIENT_READS_MAX),
            archive_seen: archive::Seen::default(),
            backups: Arc::new(Semaphore::new(1)),
            common,
            breakers: std::sync::Mutex::new(stages.worker.as_ref().map(Worker::breakers)),
            hosts: std::sync::Mutex::new(stages.worker.as_ref().map(Worker::hosts)),
            local,
            stages: Mutex::new(stages),
            changing: Mutex::new(()),
        })
    }

    /// Renews the owner records, if sagas run here.
    pub fn keeper(&self) -> Option<&Arc<Keeper>> {
        self.common.as_ref().map(|common| &common.keeper)
    }

    /// A shard that is open here.
    ///
    /// # Errors
    /// [`ControlError::Unavailable`] where it is not, which names its owner.
    pub async fn shard(&self, shard: u16) -> Result<Shown, ControlError> {
        if let Some(shown) = self.shards.get(shard) {
            return Ok(shown);
        }
        let owner = match &self.common {
            Some(common) => common.absent.owner(shard).await,
            None => "it runs no sagas".to_owned(),
        };
        let message = format!("shard {shard} is not open in this process: {owner}");
        Err(ControlError::Unavailable(message))
    }

    /// The way to the gateway, if this process runs sagas and has one.
    pub fn submitter(&self) -> Option<&Arc<Submitter>> {
        self.common.as_ref()?.submitter.as_ref()
    }

    /// All breakers of this process: of the worker that takes commands now, and of the gateway.
    pub fn breakers(&self) -> impl Iterator<Item = Arc<Breakers>> {
        let gateway = self.submitter().map(|submitter| Arc::clone(submitter.breakers()));
        self.worker_breakers().into_iter().chain(gateway)
    }

    fn worker_breakers(&self) -> Option<Arc<Breakers>> {
        self.breakers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Which addresses the effects call of the worker that takes commands now.
    pub fn hosts(&self) -> Option<Arc<Hosts>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How the source streams are read; none in a process without sagas, or while it drains.
    pub async fn streams(&self) -> Vec<StreamStatus> {
        let stages = self.stages.lock().await;
        stages
            .sagas
            .as_ref()
            .map_or_else(Vec::new, |sagas| sagas.intake.status().to_vec())
    }

    /// Why the worker cannot take commands, one line each.
    pub async fn consumer_troubles(&self) -> Vec<String> {
        let stages = self.stages.lock().await;
        stages.worker.as_ref().map_or_else(Vec::new, Worker::troubles)
    }

    /// The shards that are fed; none while it drains.
    async fn fed(&self) -> Option<Fed> {
        let stages = self.stages.lock().await;
        stages.sagas.as_ref().map(|sagas| sagas.intake.fed())
    }

    /// Whether all that was read of a stream is in the mailbox of a shard.
    pub async fn is_mailed(&self, stream: SourceStream, shard: u16) -> bool {
        match self.fed().await {
            Some(fed) => fed.is_mailed(stream, shard).await,
            None => false,
        }
    }

    /// Feeds a shard from the place to which its position was moved.
    pub async fn read_on(&self, stream: SourceStream, shard: u16, to: &PositionRow) {
        if let Some(fed) = self.fed().await {
            fed.read_on(stream, shard, to.sequence, to.stamp).await;
        }
    }

    /// Lets the readers find what these definitions want. The number by which deliveries say that they have.
    pub async fn widen(&self, definitions: &Arc<DefinitionSet>) -> u64 {
        let stages = self.stages.lock().await;
        let sagas = stages.sagas.as_ref();
        // While it drains nobody reads.
        sagas.map_or(0, |sagas| sagas.intake.widen(definitions))
    }

    /// Nobody else opens or closes a shard while this is held.
    pub async fn alone(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().await
    }

    /// Begins one more shard and feeds it, while the others go on. To be called by whoever is [`Self::alone`].
    pub async fn add(
        &self,
        parts: &Parts<'_>,
        common: &Common,
        opened: Opened,
        streams: &[StreamState; 3],
    ) -> Result<(), StartError> {
        let resumed = opened.claimed.fence.is_resumed();
        let needed = sagas::put_in_force(parts, std::slice::from_ref(&opened.claimed))?;
        // Before its reader opens: what its instances listen to may be more than what the others do.
        self.widen(&needed.definitions).await;
        let (seat, endpoint) = common.begin(parts, opened, streams, &needed)?;
        common.show(&seat);
        let fed = {
            let mut stages = self.stages.lock().await;
            let Some(sagas) = &mut stages.sagas else {
                return Err(StartError::System("draining".to_owned()));
            };
            sagas.seats.insert(endpoint.index, seat);
            sagas.intake.fed()
        };
        fed.add(endpoint, resumed).await;
        Ok(())
    }

    /// Ends one shard, while the others go on. Whether it has stopped; none where it is not open. To be called by whoever is
    /// [`Self::alone`].
    pub async fn remove(
        &self,
        parts: &Parts<'_>,
        common: &Common,
        shard: u16,
        timeout: Duration,
    ) -> Option<bool> {
        let (seat, fed) = {
            let mut stages = self.stages.lock().await;
            let sagas = stages.sagas.as_mut()?;
            (sagas.seats.remove(&shard)?, sagas.intake.fed())
        };
        let halted = self.shards.take(shard).and_then(|shown| shown.halted());
        fed.remove(shard).await;
        let has_stopped = seat.drain(timeout).await;
        if has_stopped {
            common.keeper.release_one(shard).await;
        } else {
            // It may still write, and would be ahead of what is said.
            drop(common.keeper.forget(shard));
        }
        parts.metrics.shard_closed(shard, halted);
        parts.tasks.forget(Task::Relay, format!("of shard {shard}"));
        for stream in SourceStream::ALL {
            let name = streams::name(parts.manifest, stream);
            let of = format!("of shard {shard} in {name}");
            parts.tasks.forget(Task::PrivateReader, of);
        }
        Some(has_stopped)
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
        *self.hosts.lock().unwrap_or_else(PoisonError::into_inner) = new.as_ref().map(Worker::hosts);
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
        // Who opens a shard breaks off, and who closes one is about to be ready.
        let _alone = self.changing.lock().await;
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
        let has_calls = self.local.is_some() && !is_planted(Bug::CallsCutOff);
        let (workers_first, workers_beside) = if has_calls {
            (Some(workers), None)
        } else {
            (None, Some(workers))
        };
        let sagas = async {
            let before = async {
                OptionFuture::from(workers_first).await;
            };
            let Some(sagas) = stages.sagas.take() else {
                return before.await;
            };
            let all_stopped = sagas.drain(before, has_calls, timeout).await;
            // A shard that still writes would be ahead of what is said here.
            if let Some(keeper) = self.keeper().filter(|_| all_stopped) {
                keeper.release().await;
            }
        };
        tokio::join!(OptionFuture::from(workers_beside), sagas);
        if let Err(error) = self.broker.flush().await {
            tracing::warn!(%error, "the last acknowledgements may not have been sent");
        }
    }
}

/// A panic in the drain of a worker leaves its commands to be delivered again.
fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "worker drain ended abnormally");
    }
}

/// A name that nobody else has.
pub(super) fn name(randomness: &dyn Randomness) -> String {
    Uuid::from_u128(randomness.draw()).simple().to_string()
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
        streams: streams::workflow(manifest),
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
        .map_err(|error| StartError::Missing(vec![error.to_string()]))
}

/// Reads what protects the connections to upstreams.
fn upstream_tls(manifest: &Manifest) -> Result<BTreeMap<String, UpstreamTls>, StartError> {
    let read = manifest.upstream_tls.iter();
    read.map(|(name, files)| {
        let tls = upstreams::read_tls(&format!("upstream_tls.{name}"), files)?;
        Ok((name.clone(), tls))
    })
    .collect()
}
