//! One runner: what it is made of, how it starts and how it drains.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::adapters::{Adapters, SystemAdapters};
use super::catalog::Catalog;
use super::cluster::Trouble;
use super::definitions::Read;
use super::hearing::Hearing;
use super::ownership::Adoption;
use super::ownership::claim::{Claimed, Claiming};
use super::running::{Parts, Running};
use super::secrets::SecretsError;
use super::{
    StartError, archive, audit, cluster, consumers, jobs, migration, rates, reload, secrets, shards, streams,
};
use crate::broker_clock::BrokerClock;
use crate::config::{Manifest, secret};
use crate::effects::{Registry, Secrets};
use crate::kernel::ids::TimeMs;
use crate::kernel::input::SourceStream;
use crate::kernel::token::TokenKey;
use crate::ports::broker::{Broker, BrokerError, StreamState};
use crate::ports::clock::Clock;
use crate::ports::control::{LastReload, ReloadError, Reloaded};
use crate::ports::messenger::Messenger;
use crate::ports::randomness::Randomness;
use crate::tasks::{Task, Tasks};
use crate::telemetry::Metrics;

/// How long the start waits before it asks the broker again for its consumers, or for secrets that it could not get.
const BROKER_AGAIN: Duration = Duration::from_secs(1);

/// A runner in this process.
pub struct Node {
    pub(super) manifest: Manifest,
    pub(super) catalog: Arc<Catalog>,
    /// Held by the reload that is under way.
    pub(super) reloading: tokio::sync::Mutex<()>,
    pub(super) last_reload: Mutex<Option<LastReload>>,
    migrations: Mutex<migration::Migrations>,
    me: Weak<Self>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tasks: Tasks,
    /// What everything here goes by.
    pub(super) clock: Arc<dyn Clock>,
    /// The same, which can be told the broker's time.
    pub(super) broker_clock: Arc<BrokerClock>,
    pub(super) started: TimeMs,
    secrets: Arc<Secrets>,
    /// Makes and reads callback tokens.
    pub(super) tokens: Option<TokenKey>,
    adapters: Arc<dyn Adapters>,
    pub(super) randomness: Arc<dyn Randomness>,
    pub(super) trail: audit::Trail,
    /// What the consumers of effects hold.
    pub(super) consumers_seen: Arc<consumers::Seen>,
    broker: OnceLock<Arc<dyn Broker>>,
    running: OnceLock<Running>,
    draining: AtomicBool,
    pub(super) drain: CancellationToken,
    /// Why it does not run yet.
    waiting_for: Mutex<String>,
    /// What happened in the last hour.
    pub(super) rates: rates::Kept,
    /// Whether forwarded requests are heard.
    pub(super) hearing: Hearing,
    /// What the operator gives up at this start.
    adoption: OnceLock<Adoption>,
    /// The shards that are opened at the start, where that is not all of them.
    first: OnceLock<BTreeSet<u16>>,
}

impl Node {
    /// Puts a node together; nothing is opened or connected yet.
    ///
    /// # Errors
    /// [`StartError::Config`] where a secret is missing.
    pub fn new(
        manifest: Manifest,
        loaded: Read,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>, StartError> {
        Self::with_registry(manifest, loaded, clock, metrics, Arc::default())
    }

    /// The same, with providers that are not saga-runner's own.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_registry(
        manifest: Manifest,
        loaded: Read,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        registry: Arc<Registry>,
    ) -> Result<Arc<Self>, StartError> {
        let adapters = Arc::new(SystemAdapters(registry));
        Self::with_adapters(manifest, loaded, clock, metrics, adapters)
    }

    /// The same over other adapters than the real ones.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_adapters(
        manifest: Manifest,
        loaded: Read,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        adapters: Arc<dyn Adapters>,
    ) -> Result<Arc<Self>, StartError> {
        let secrets = Arc::new(Secrets::new(&secret::resolve(&manifest.secrets)?));
        let callbacks = manifest.callbacks.as_ref();
        let key = callbacks
            .map(|callbacks| secret::callback_key(&callbacks.key))
            .transpose()?;
        let tokens = key.map(|key| TokenKey::of_secret(&key));
        let broker_clock = Arc::new(BrokerClock::new(clock));
        let clock = Arc::clone(&broker_clock) as Arc<dyn Clock>;
        let started = clock.now();
        let planned = consumers::plan(&manifest, &loaded.effects)?;
        Ok(Arc::new_cyclic(|me| Self {
            trail: audit::Trail::new(manifest.streams.audit.queue_max, &metrics, &clock),
            manifest,
            catalog: Arc::new(Catalog::new(loaded, planned)),
            reloading: tokio::sync::Mutex::new(()),
            last_reload: Mutex::new(None),
            migrations: Mutex::default(),
            me: Weak::clone(me),
            tasks: adapters.tasks(&metrics, &clock),
            rates: rates::Kept::new(&metrics, started),
            metrics,
            clock,
            broker_clock,
            started,
            secrets,
            tokens,
            randomness: adapters.randomness(),
            adapters,
            consumers_seen: Arc::default(),
            broker: OnceLock::new(),
            running: OnceLock::new(),
            draining: AtomicBool::new(false),
            drain: CancellationToken::new(),
            waiting_for: Mutex::new("starting".to_owned()),
            hearing: Hearing::default(),
            adoption: OnceLock::new(),
            first: OnceLock::new(),
        }))
    }

    /// Names what is given up, before the start.
    pub fn adopt(&self, adoption: Adoption) {
        self.adoption.get_or_init(|| adoption);
    }

    /// Opens these shards at the start and leaves the others alone; all are opened where nothing is said.
    pub fn open_first(&self, shards: impl IntoIterator<Item = u16>) {
        let known = 0..self.manifest.shards;
        let shards = shards.into_iter().filter(|shard| known.contains(shard));
        self.first.get_or_init(|| shards.collect());
    }

    /// Connects, opens and starts everything, and waits for the broker as long as it takes.
    ///
    /// # Errors
    /// [`StartError`] for what waiting cannot fix.
    pub async fn start(&self) -> Result<(), StartError> {
        let clock = Arc::clone(self.broker_clock.own());
        let tell = |what: String| self.set_waiting_for(what);
        let broker = self.adapters.broker(&self.manifest, clock, &tell).await?;
        self.set_waiting_for("starting".to_owned());
        let streams = self.wait_for_streams(broker.as_ref()).await?;
        let cluster = self.wait_for_cluster(broker.as_ref(), &streams).await?;
        self.wait_for_consumers(broker.as_ref()).await?;
        audit::prepare(self, broker.as_ref()).await;
        // Stays unset only in a node that was started before, which is not done.
        let _first = self.broker.set(Arc::clone(&broker));
        let messenger = Arc::clone(&broker).messenger();
        self.wait_for_secrets(messenger.as_deref()).await?;
        let cluster_id = cluster.as_ref().map(|cluster| cluster.id);
        let claimed = match &cluster {
            Some(cluster) => {
                let all = || (0..self.manifest.shards).collect();
                let first = self.first.get_or_init(all).iter().copied().collect::<Vec<_>>();
                self.claim(broker.as_ref(), cluster, &first, Duration::ZERO)
                    .await?
            }
            None => Vec::new(),
        };
        let running =
            Running::start(&self.parts(), Arc::clone(&broker), &streams, cluster_id, claimed).await?;
        if let Some(keeper) = running.keeper() {
            let keeper = Arc::clone(keeper);
            self.keep(Task::Cluster, move |_| Arc::clone(&keeper).run());
        }
        let _first = self.running.set(running);
        self.keep(Task::Secrets, move |node| {
            secrets::keep(
                Arc::clone(&node.secrets),
                node.manifest.secrets.clone(),
                messenger.clone(),
                node.manifest.worker.secrets_every.duration(),
                node.drain.clone(),
            )
        });
        if !self.manifest.mode.runs_sagas() {
            // Where sagas run, the readers of their streams hear the time.
            let broker = Arc::clone(&broker);
            self.keep(Task::Clock, move |node| {
                let clock = Arc::clone(&node.broker_clock);
                streams::hear_the_time(
                    Arc::clone(&broker),
                    clock,
                    node.manifest.clone(),
                    node.drain.clone(),
                )
            });
        }
        self.keep(Task::Consumers, move |node| {
            consumers::watch(
                Arc::clone(&broker),
                node.manifest.clone(),
                Arc::clone(&node.catalog),
                Arc::clone(&node.consumers_seen),
                Arc::clone(&node.metrics),
                node.drain.clone(),
            )
        });
        let in_force = self.catalog.now();
        reload::keep(self, Arc::clone(&in_force.files)).await;
        tracing::info!(
            cluster = self.manifest.cluster,
            cluster_id = cluster_id.map(tracing::field::display),
            mode = self.manifest.mode.as_str(),
            shards = self.manifest.shards,
            sagas = in_force.sagas.iter_active().count(),
            effects = in_force.effects.len(),
            "running"
        );
        if let Some(node) = self.myself() {
            migration::begin_automatic(&node);
            jobs::begin(&node);
            archive::begin(&node);
        }
        Ok(())
    }

    /// What the start of a part may borrow.
    pub(super) fn parts(&self) -> Parts<'_> {
        Parts {
            manifest: &self.manifest,
            catalog: &self.catalog,
            secrets: &self.secrets,
            tokens: self.tokens.as_ref(),
            adapters: &self.adapters,
            randomness: &self.randomness,
            clock: &self.clock,
            broker_clock: &self.broker_clock,
            metrics: &self.metrics,
            tasks: &self.tasks,
        }
    }

    /// Begins what runs until the drain, and again after a panic.
    fn keep<F>(&self, task: Task, begin: impl Fn(&Self) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (me, begin) = (Weak::clone(&self.me), Arc::new(begin));
        self.tasks.keep(task, "", move || {
            let work = me.upgrade().map(|node| begin(&node));
            async move {
                if let Some(work) = work {
                    work.await;
                }
            }
        });
    }

    pub(super) fn migrations(&self) -> MutexGuard<'_, migration::Migrations> {
        self.migrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn myself(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Reads the definitions again. It ends by itself, even if nobody waits for it any more.
    ///
    /// # Errors
    /// [`ReloadError`]: nothing has changed.
    pub async fn reload(&self) -> Result<Reloaded, ReloadError> {
        let Some(node) = self.me.upgrade() else {
            return Err(ReloadError::Unavailable("stopping".to_owned()));
        };
        let tasks = self.tasks.clone();
        let broken_off =
            |why: String| Err(ReloadError::Unavailable(format!("the reload was aborted: {why}")));
        match tasks
            .once(Task::Reload, async move { reload::reload(&node).await })
            .await
        {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => broken_off(panic),
            Err(error) => broken_off(error.to_string()),
        }
    }

    pub(super) async fn wait_for_streams(&self, broker: &dyn Broker) -> Result<[StreamState; 3], StartError> {
        let mut delays = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(5))
            .with_jitter()
            .with_jitter_seed(seed(&*self.randomness))
            .without_max_times()
            .build();
        loop {
            let asked = self.broker_clock.ask();
            match streams::prepare(broker, &self.manifest).await {
                Ok(states) => {
                    for (stream, state) in SourceStream::ALL.into_iter().zip(&states) {
                        self.broker_clock.told(stream, asked, state.told);
                    }
                    return Ok(states);
                }
                Err(BrokerError::Unavailable(message)) => {
                    tracing::warn!(message, "waiting for the broker");
                    self.set_waiting_for(format!("broker: {message}"));
                    tokio::time::sleep(delays.next().unwrap_or(Duration::from_secs(5))).await;
                }
                Err(error) => return Err(StartError::Broker(error.to_string())),
            }
        }
    }

    /// The cluster, in a process that runs sagas.
    pub(super) async fn wait_for_cluster(
        &self,
        broker: &dyn Broker,
        streams: &[StreamState; 3],
    ) -> Result<Option<cluster::Known>, StartError> {
        if !self.manifest.mode.runs_sagas() {
            return Ok(None);
        }
        let folder = shards::known(&self.manifest)?;
        let id = folder.as_ref().map(|folder| folder.id);
        let adoption = self.adoption.get_or_init(Adoption::default);
        let identify = || cluster::identify(broker, &self.manifest, &*self.randomness, id, streams, adoption);
        let mut cluster = self.until_answered(identify).await?;
        cluster
            .existed
            .extend(folder.into_iter().flat_map(|folder| folder.existed));
        Ok(Some(cluster))
    }

    /// Makes this process the owner of these shards, before anything is read or sent for them. `locked_for`: how long their
    /// folders may still be open.
    pub(super) async fn claim(
        &self,
        broker: &dyn Broker,
        cluster: &cluster::Known,
        shards: &[u16],
        locked_for: Duration,
    ) -> Result<Vec<Claimed>, StartError> {
        let claiming = Claiming {
            broker,
            manifest: &self.manifest,
            adapters: &*self.adapters,
            randomness: &*self.randomness,
            clock: &self.clock,
            cluster: cluster.id,
            existed: &cluster.existed,
            adoption: self.adoption.get_or_init(Adoption::default),
            locked_for,
            waiting_for: &|what| self.set_waiting_for(what),
        };
        let claimed = claiming.claim(shards).await?;
        shards::note(&self.manifest, cluster.id, shards)?;
        self.until_answered(|| cluster::note_shards(broker, &self.manifest, shards))
            .await?;
        Ok(claimed)
    }

    /// Asks the broker again as long as it is away.
    async fn until_answered<T, F>(&self, ask: impl Fn() -> F) -> Result<T, StartError>
    where
        F: Future<Output = Result<T, Trouble>>,
    {
        loop {
            match ask().await {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Unavailable(message)) => {
                    tracing::warn!(message, "waiting for the broker");
                    self.set_waiting_for(format!("broker: {message}"));
                    tokio::time::sleep(BROKER_AGAIN).await;
                }
                Err(Trouble::Refused(error)) => return Err(error),
            }
        }
    }

    async fn wait_for_consumers(&self, broker: &dyn Broker) -> Result<(), StartError> {
        loop {
            let in_force = self.catalog.now();
            match consumers::verify(broker, &self.manifest, &in_force.consumers).await {
                Ok(verdict) => return verdict,
                Err(BrokerError::Unavailable(message)) => {
                    tracing::warn!(message, "waiting for the broker");
                    self.set_waiting_for(format!("broker: {message}"));
                    tokio::time::sleep(BROKER_AGAIN).await;
                }
                Err(error) => return Err(StartError::Broker(error.to_string())),
            }
        }
    }

    /// Reads what could not be read without a connection.
    async fn wait_for_secrets(&self, messenger: Option<&dyn Messenger>) -> Result<(), StartError> {
        let references = &self.manifest.secrets;
        while secrets::need_connection(references) {
            match secrets::read(references, messenger).await {
                Ok(read) => {
                    self.secrets.replace(&read);
                    break;
                }
                Err(SecretsError::Config(error)) => return Err(error.into()),
                Err(SecretsError::Unavailable(message)) => {
                    tracing::warn!(message, "waiting for secrets from NATS KV");
                    self.set_waiting_for(format!("secrets of NATS KV: {message}"));
                    tokio::time::sleep(BROKER_AGAIN).await;
                }
            }
        }
        Ok(())
    }

    /// What runs, once it does.
    pub(super) fn running(&self) -> Option<&Running> {
        self.running.get()
    }

    /// The broker, once it is connected.
    pub fn broker(&self) -> Option<Arc<dyn Broker>> {
        self.broker.get().cloned()
    }

    pub(super) fn waiting_for(&self) -> String {
        self.waiting_for
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set_waiting_for(&self, what: String) {
        *self.waiting_for.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// Asks for the drain; whether this was the first call.
    pub(super) fn request_drain(&self) -> bool {
        let first = !self.draining.swap(true, Ordering::AcqRel);
        self.drain.cancel();
        first
    }

    /// Resolves once a drain was asked for.
    pub async fn drain_requested(&self) {
        self.drain.cancelled().await;
    }

    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Takes no more work and finishes what runs, for at most `timeout`.
    pub async fn drain(&self, timeout: Duration) {
        self.request_drain();
        if let Some(running) = self.running.get() {
            running.drain(timeout).await;
        }
    }
}

/// For waits that no other process spreads in the same way.
fn seed(randomness: &dyn Randomness) -> u64 {
    let (high, low) = Uuid::from_u128(randomness.draw()).as_u64_pair();
    high ^ low
}
