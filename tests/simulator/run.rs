//! One simulation: a node in as many lives as the plan gives it, then health, then the judges.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use saga_runner::app::{Adapters, Node, Registry, StartError};
use saga_runner::config::Manifest;
use saga_runner::effects::provider::Provider;
use saga_runner::kernel::definition::DefinitionSet;
use saga_runner::ports::broker::Broker;
use saga_runner::ports::clock::Clock;
use saga_runner::ports::control::NodeControl as _;
use saga_runner::ports::gateway::Gateway;
use saga_runner::ports::messenger::Messenger;
use saga_runner::ports::randomness::Randomness;
use saga_runner::storage::{self, OpenOptions, StorageError, Store};
use saga_runner::tasks::Tasks;
use saga_runner::telemetry::Metrics;
use serde_json::{Value, json};

use super::judges;
use super::plan::{Action, Plan};
use super::random::Names;
use super::server::{Client, Faults, Server};
use super::store::Disk;
use super::upstream::{Calls, SimGateway, Upstream, UpstreamFaults};
use super::versions::{self, Versions};
use super::workload::{Event, TENANTS};
use super::world::World;

pub const EVENTS: &str = "AGGREGATE_EVENTS";
pub const RESULTS: &str = "WORKFLOW_EVENTS";
pub const COMMANDS: &str = "WORKFLOW_COMMANDS";

/// How long everything may take to end once nothing goes wrong any more.
const HEALING_MAX: Duration = Duration::from_mins(20);

/// What a simulation is made of, and what it leaves for the judges.
pub struct Simulation {
    pub plan: Plan,
    pub world: Arc<World>,
    pub server: Arc<Server>,
    pub upstream: Arc<Upstream>,
    pub disks: Vec<Disk>,
    names: Arc<Names>,
    manifest: Manifest,
    pub definitions: Versions,
    _folder: tempfile::TempDir,
    /// Actions that were done.
    done: usize,
    /// What ends by itself, and when.
    ends: Vec<(Duration, End)>,
    /// How often each sequence of events was stored: stream sequence and event.
    pub stored: Vec<(u64, Event)>,
    pub lives: u64,
    /// Dead letters that were discarded after the healing.
    pub discarded: usize,
    is_healed: bool,
    is_purged: bool,
    /// The runner has said that it lost what was removed before it was read.
    pub is_told: bool,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Cut,
    Full(u16),
    Away,
    /// A shard is open again.
    Closed(u16),
}

/// How a life ended.
enum Ended {
    Died,
    Stopped,
    /// Everything has come to its end.
    Done,
    Failed(String),
}

/// What came of a seed.
#[derive(Debug)]
pub struct Verdict {
    pub seed: u64,
    pub hash: u64,
    pub steps: u64,
    pub lives: u64,
    pub virtual_time: Duration,
    /// What does not hold; one line each.
    pub faults: Vec<String>,
}

pub fn simulate(seed: u64, is_printed: bool) -> Verdict {
    carry_out(Plan::of(seed), is_printed)
}

pub fn carry_out(plan: Plan, is_printed: bool) -> Verdict {
    let seed = plan.seed;
    let mut simulation = Simulation::new(plan, is_printed);
    let mut faults = simulation.live();
    faults.extend(simulation.world.premature());
    // Where inputs are lost, and that is told, the rest stands still.
    if faults.is_empty() && !simulation.is_told {
        faults = judges::judge(&simulation);
    }
    let trace = &simulation.world.trace;
    Verdict {
        seed,
        hash: trace.hash(),
        steps: trace.count(),
        lives: simulation.lives,
        virtual_time: simulation.world.clock.passed(),
        faults,
    }
}

fn folder() -> tempfile::TempDir {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() {
        tempfile::tempdir_in(shared).expect("a folder")
    } else {
        tempfile::tempdir().expect("a folder")
    }
}

fn merge(into: &mut Value, extra: &Value) {
    match (into, extra) {
        (Value::Object(into), Value::Object(extra)) => {
            for (key, value) in extra {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, extra) => *into = extra.clone(),
    }
}

impl Simulation {
    pub fn new(plan: Plan, is_printed: bool) -> Self {
        let world = World::new(is_printed);
        let folder = folder();
        let definitions = Versions::new(folder.path());
        let mut manifest = json!({
            "apiVersion": "saga-runner/v1", "kind": "Manifest", "cluster": "simulated", "mode": "combined",
            "data_dir": folder.path(), "shards": plan.shards, "tenants": TENANTS,
            "sagas": definitions.path(), "effects": versions::effects(),
            "streams": {"start": "first"},
            "gateway": {"url": "http://127.0.0.1:9"},
        });
        merge(&mut manifest, &plan.settings);
        let manifest: Manifest = serde_json::from_value(manifest).expect("a manifest");
        let (server, upstream) = (Server::new(plan.seed, &world), Upstream::new(plan.seed, &world));
        Self {
            disks: (0..plan.shards).map(|shard| Disk::new(shard, &world)).collect(),
            names: Arc::new(Names::new(plan.seed)),
            plan,
            world,
            server,
            upstream,
            manifest,
            definitions,
            _folder: folder,
            done: 0,
            ends: Vec::new(),
            stored: Vec::new(),
            lives: 0,
            discarded: 0,
            is_healed: false,
            is_purged: false,
            is_told: false,
        }
    }

    /// Lives as often as it takes, until everything has ended; what went wrong.
    fn live(&mut self) -> Vec<String> {
        loop {
            self.lives += 1;
            if self.lives > 100 {
                return vec!["too many lives".to_owned()];
            }
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime");
            let ended = runtime.block_on(async {
                self.world.clock.begin_life();
                self.life().await
            });
            {
                // Nothing that still runs may do anything, and no time passes for it.
                let _context = runtime.enter();
                self.world.clock.end_life();
            }
            if !self.world.is_dead() {
                self.world.die();
            }
            drop(runtime);
            let orphans = self.orphans();
            if !orphans.is_empty() {
                return orphans;
            }
            match ended {
                Ended::Died | Ended::Stopped => {}
                Ended::Done => return Vec::new(),
                Ended::Failed(fault) => return vec![fault],
            }
        }
    }

    /// All that instances may run under.
    pub fn versions(&self) -> DefinitionSet {
        self.definitions.all(&self.manifest)
    }

    /// What would never move again if the process began anew now.
    fn orphans(&self) -> Vec<String> {
        let definitions = self.versions();
        let disks = self.disks.iter();
        disks
            .flat_map(|disk| judges::orphaned(&disk.rows.reader(), &definitions))
            .collect()
    }

    async fn life(&mut self) -> Ended {
        self.world.revive();
        self.world.note(format_args!("life {}", self.lives));
        if self.lives == 1 {
            self.server.lock().window_ms = self.plan.window_ms;
            self.server.prepare(&self.manifest);
        }
        let (broker, upstream) = (self.plan.broker, self.plan.upstream);
        if !self.is_healed {
            self.server.set_faults(broker);
            self.upstream.set_faults(upstream);
        }
        let metrics = Arc::new(Metrics::new());
        let clock = Arc::clone(&self.world.clock) as Arc<dyn Clock>;
        let adapters = Arc::new(SimAdapters {
            server: Arc::clone(&self.server),
            upstream: Arc::clone(&self.upstream),
            disks: self.disks.clone(),
            names: Arc::clone(&self.names),
        });
        self.definitions.begin();
        let read = self.definitions.read(&self.manifest);
        let node = match Node::with_adapters(self.manifest.clone(), read, clock, metrics, adapters) {
            Ok(node) => node,
            Err(error) => return Ended::Failed(format!("no node: {error}")),
        };
        if let Some(first) = &self.plan.first {
            node.open_first(first.iter().copied());
        }
        let world = Arc::clone(&self.world);
        let starting = {
            let node = Arc::clone(&node);
            tokio::spawn(async move { node.start().await })
        };
        let acting = self.act(&node, starting);
        tokio::select! {
            biased;
            () = world.death() => Ended::Died,
            ended = acting => ended,
        }
    }

    /// Does what the plan says, heals, and waits for the end.
    async fn act(
        &mut self,
        node: &Arc<Node>,
        starting: tokio::task::JoinHandle<Result<(), StartError>>,
    ) -> Ended {
        let mut starting = Some(starting);
        loop {
            if let Some(task) = starting.take_if(|task| task.is_finished())
                && let Some(ended) = self.started(task).await
            {
                return ended;
            }
            let now = self.world.clock.passed();
            self.end_what_ends(node, now);
            let next_end = self.ends.iter().map(|(at, _)| *at).min();
            let Some((at, action)) = self.plan.actions.get(self.done).cloned() else {
                match next_end {
                    Some(end) => {
                        tokio::time::sleep(end.saturating_sub(now)).await;
                        continue;
                    }
                    None => return self.heal(node, starting).await,
                }
            };
            let until = next_end.map_or(at, |end| end.min(at));
            if until > now {
                tokio::time::sleep(until.saturating_sub(now)).await;
                continue;
            }
            self.done += 1;
            match action {
                Action::Event(event) => self.publish(event),
                Action::Ask(request) => self.ask(node, request),
                Action::Garbage { tenant, kind, key } => {
                    let subject = format!("tenant.{tenant}.aggregate.{kind}.{key}");
                    self.server.append(EVENTS, subject, b"{".to_vec());
                }
                // What was lost is told by the process that saw it, and by no later one.
                Action::Crash { .. } | Action::Restart if self.is_purged => {}
                Action::Crash { calls } => self.world.die_after(calls),
                Action::Restart => {
                    self.world.note(format_args!("told to stop"));
                    node.drain(Duration::from_secs(10)).await;
                    return Ended::Stopped;
                }
                Action::Change => {
                    self.world.note(format_args!("other definitions"));
                    self.change(node);
                }
                Action::Reload => {
                    let node = Arc::clone(node);
                    drop(tokio::spawn(async move { drop(node.reload().await) }));
                }
                Action::Cut { for_ms } => {
                    self.server.cut();
                    self.ends.push((now + Duration::from_millis(for_ms), End::Cut));
                }
                // A cluster that is not there yet begins with what it finds.
                Action::Purge if self.disks.iter().any(|disk| disk.rows.rows().is_empty()) => {}
                Action::Purge => {
                    self.server.purge(EVENTS);
                    self.world.spare();
                    self.is_purged = true;
                }
                Action::DropOnTheWay => self.server.drop_on_the_way(),
                Action::DiskFull { shard, for_ms } => {
                    let shard = shard % self.plan.shards;
                    self.world.note(format_args!("disk of shard {shard} is full"));
                    self.disks[usize::from(shard)].set_full(true);
                    self.ends
                        .push((now + Duration::from_millis(for_ms), End::Full(shard)));
                }
                Action::ClockStep { ms } => {
                    self.world.note(format_args!("clock steps to {ms} ms"));
                    self.world.clock.step(ms);
                }
                Action::Close { shard, for_ms } => {
                    let (node, world) = (Arc::clone(node), Arc::clone(&self.world));
                    drop(tokio::spawn(async move {
                        let closed = node.close_shard(shard, Duration::from_secs(10)).await;
                        world.note(format_args!("shard {shard} is closed: {closed:?}"));
                    }));
                    self.ends
                        .push((now + Duration::from_millis(for_ms), End::Closed(shard)));
                }
                Action::UpstreamsAway { for_ms } => {
                    self.world.note(format_args!("upstreams are away"));
                    self.upstream.set_faults(UpstreamFaults {
                        unreachable: 1_000,
                        ..UpstreamFaults::default()
                    });
                    self.ends.push((now + Duration::from_millis(for_ms), End::Away));
                }
            }
        }
    }

    /// How the life ends where the process could not start.
    async fn started(&self, task: tokio::task::JoinHandle<Result<(), StartError>>) -> Option<Ended> {
        match task.await {
            Ok(Ok(())) => {
                self.definitions.started(self.server.last(EVENTS));
                None
            }
            // Whoever looks after the process starts it again.
            Ok(Err(StartError::Storage(message))) if message.contains("SR0207") => {
                self.world.note(format_args!("it does not start: {message}"));
                tokio::time::sleep(Duration::from_secs(1)).await;
                Some(Ended::Stopped)
            }
            Ok(Err(error)) => Some(Ended::Failed(format!("it does not start: {error}"))),
            Err(error) => Some(Ended::Failed(format!("its start panicked: {error}"))),
        }
    }

    fn end_what_ends(&mut self, node: &Arc<Node>, now: Duration) {
        let due: Vec<End> = self
            .ends
            .iter()
            .filter(|(at, _)| *at <= now)
            .map(|(_, end)| *end)
            .collect();
        self.ends.retain(|(at, _)| *at > now);
        for end in due {
            match end {
                End::Cut => self.server.reconnect(),
                End::Full(shard) => {
                    self.world.note(format_args!("disk of shard {shard} has room"));
                    self.disks[usize::from(shard)].set_full(false);
                }
                End::Away => self.upstream.set_faults(self.plan.upstream),
                End::Closed(shard) => {
                    let (node, world) = (Arc::clone(node), Arc::clone(&self.world));
                    drop(tokio::spawn(async move {
                        let opened = node.open_shard(shard).await;
                        world.note(format_args!("shard {shard} is opened: {opened:?}"));
                    }));
                }
            }
        }
    }

    fn publish(&mut self, event: Event) {
        let body = event.body().to_string();
        let sequence = self.server.append(EVENTS, event.subject(), body.into_bytes());
        let (id, tenant) = (&event.id, event.tenant);
        self.world
            .note(format_args!("event {id} of {tenant} is {sequence}"));
        self.stored.push((sequence, event));
    }

    /// Nothing goes wrong any more; an operator discards what cannot be applied; then everything has to end.
    async fn heal(
        &mut self,
        node: &Arc<Node>,
        mut starting: Option<tokio::task::JoinHandle<Result<(), StartError>>>,
    ) -> Ended {
        self.is_healed = true;
        self.world.note(format_args!("healed"));
        self.server.set_faults(Faults {
            latency_ms: 1,
            ..Faults::default()
        });
        self.upstream.set_faults(UpstreamFaults {
            latency_ms: 5,
            ..UpstreamFaults::default()
        });
        self.world.clock.step(0);
        let begun = self.world.clock.passed();
        let mut open = vec!["it has not started".to_owned()];
        while self.world.clock.passed().saturating_sub(begun) < HEALING_MAX {
            if let Some(task) = starting.take_if(|task| task.is_finished())
                && let Some(ended) = self.started(task).await
            {
                return ended;
            }
            if starting.is_none() {
                for shard in node.absent_shards() {
                    let opened = node.open_shard(shard).await;
                    self.world
                        .note(format_args!("shard {shard} is opened: {opened:?}"));
                }
                if let Err(error) = self.operate(node).await {
                    self.world.note(format_args!("operator: {error}"));
                }
                let checks = node.health().await.checks.into_iter();
                let reasons: Vec<String> = checks
                    .filter(|check| !check.ok)
                    .map(|check| format!("{}: {}", check.name, check.detail))
                    .collect();
                if self.is_purged && reasons.iter().any(|reason| reason.contains("stream.gap")) {
                    self.is_told = true;
                    return Ended::Done;
                }
                open = judges::open(self);
                if open.is_empty() {
                    let diverging = judges::replay::judge(self, node).await;
                    if !diverging.is_empty() {
                        return Ended::Failed(diverging.join("\n  "));
                    }
                    // Clean, so that whatever was held back is stored.
                    node.drain(Duration::from_secs(30)).await;
                    return Ended::Done;
                }
                open.extend(reasons.into_iter().map(|reason| format!("unhealthy: {reason}")));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ended::Failed(format!("not everything ends after healing: {}", open.join("; ")))
    }
}

/// The simulated adapters of a node.
struct SimAdapters {
    server: Arc<Server>,
    upstream: Arc<Upstream>,
    disks: Vec<Disk>,
    names: Arc<Names>,
}

#[async_trait]
impl Adapters for SimAdapters {
    fn registry(&self) -> Arc<Registry> {
        let upstream = Arc::clone(&self.upstream);
        Arc::new(Registry::default().with("upstream", move |definition| {
            let calls = Calls {
                upstream: Arc::clone(&upstream),
                effect: definition.name.to_string(),
            };
            Ok(Arc::new(calls) as Arc<dyn Provider>)
        }))
    }

    fn randomness(&self) -> Arc<dyn Randomness> {
        Arc::clone(&self.names) as Arc<dyn Randomness>
    }

    fn tasks(&self, metrics: &Arc<Metrics>, clock: &Arc<dyn Clock>) -> Tasks {
        Tasks::on_one_thread(metrics, clock)
    }

    async fn broker(&self, _: &Manifest, _: Arc<dyn Clock>) -> Result<Arc<dyn Broker>, StartError> {
        Ok(Arc::new(Client(Arc::clone(&self.server))))
    }

    fn gateway(
        &self,
        _: &saga_runner::gateway::Settings,
        _: Option<Arc<dyn Messenger>>,
    ) -> Result<Arc<dyn Gateway>, StartError> {
        Ok(Arc::new(SimGateway(Arc::clone(&self.upstream))))
    }

    fn store(
        &self,
        dir: &Path,
        settings: &storage::Settings,
        options: &OpenOptions,
    ) -> Result<Store, StorageError> {
        let disk = self.disks[usize::from(options.shard)].clone();
        Store::over(Arc::new(disk), dir, settings, options)
    }
}
