//! One simulation: a node in as many lives as the plan gives it, then health, then the judges.

mod acting;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use saga_runner::config::Manifest;
use saga_runner::kernel::definition::DefinitionSet;
use saga_runner::ports::control::NodeControl as _;
use serde_json::{Value, json};

use super::faults::Losses;
use super::folder::Folder;
use super::judges;
use super::plan::{Action, Plan};
use super::random::Names;
use super::runner::Runner;
use super::server::{Faults, Server};
use super::store::Disk;
use super::upstream::{Upstream, UpstreamFaults};
use super::versions::{self, Versions};
use super::workload::{Event, TENANTS};
use super::world::World;

pub const EVENTS: &str = "AGGREGATE_EVENTS";
pub const RESULTS: &str = "WORKFLOW_EVENTS";
pub const COMMANDS: &str = "WORKFLOW_COMMANDS";
/// Name of the cluster.
pub const CLUSTER: &str = "simulated";

/// How long an operator waits for what he has asked a process.
const ANSWERED_IN: Duration = Duration::from_secs(10);
/// How long everything may take to end once nothing goes wrong any more.
const HEALING_MAX: Duration = Duration::from_mins(20);

/// What a simulation is made of, and what it leaves for the judges.
pub struct Simulation {
    pub plan: Plan,
    pub world: Arc<World>,
    pub server: Arc<Server>,
    pub upstream: Arc<Upstream>,
    /// Of the folder.
    pub disks: Vec<Disk>,
    /// On which the runner works.
    pub folder: Folder,
    pub losses: Losses,
    pub names: Arc<Names>,
    pub manifest: Manifest,
    pub definitions: Versions,
    home: tempfile::TempDir,
    /// How many there were so far.
    pub folders: u64,
    pub processes: u64,
    /// Actions that were done.
    done: usize,
    /// Nobody starts the process before that.
    down_until: Option<Duration>,
    /// What ends by itself, and when.
    pub ends: Vec<(Duration, End)>,
    /// How often each sequence of events was stored: stream sequence and event.
    pub stored: Vec<(u64, Event)>,
    pub lives: u64,
    /// Processes that have stopped as they were told, and when they were.
    pub stopped: Vec<(u64, Duration)>,
    /// When each process began, on the only folder.
    pub begins: Vec<Begin>,
    /// Dead letters that were discarded after the healing.
    pub discarded: usize,
    is_healed: bool,
}

/// Where a process has begun.
pub struct Begin {
    pub at: Duration,
    /// The log sequence of each shard.
    pub logs: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum End {
    Cut,
    Full(u16),
    MapFull(u16),
    Away,
    /// A shard is open again.
    Closed(u16),
    /// The process goes on.
    Still,
    /// The second process is stopped.
    Second,
}

/// How a life ended.
pub enum Ended {
    Died,
    Stopped,
    /// The second process has taken the place of the first one.
    Replaced,
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
    /// What has happened, where that was to be kept.
    pub trace: Vec<String>,
}

pub fn simulate(seed: u64, is_printed: bool) -> Verdict {
    carry_out(Plan::of(seed), is_printed)
}

pub fn carry_out(plan: Plan, is_printed: bool) -> Verdict {
    judged(play(plan, is_printed))
}

/// Runs a seed and keeps its trace.
pub fn record(seed: u64) -> Verdict {
    let simulation = Simulation::new(Plan::of(seed), false);
    simulation.world.trace.keep();
    judged(simulation.lived())
}

fn judged((simulation, mut faults): (Simulation, Vec<String>)) -> Verdict {
    if faults.is_empty() {
        faults = judges::judge(&simulation);
    }
    for fault in &mut faults {
        *fault = simulation.told(fault);
    }
    let trace = &simulation.world.trace;
    Verdict {
        seed: simulation.plan.seed,
        hash: trace.hash(),
        steps: trace.count(),
        lives: simulation.lives,
        virtual_time: simulation.world.clock.passed(),
        faults,
        trace: trace.kept(),
    }
}

/// Plays a plan to its end; what went wrong until then.
pub fn play(plan: Plan, is_printed: bool) -> (Simulation, Vec<String>) {
    Simulation::new(plan, is_printed).lived()
}

fn home() -> tempfile::TempDir {
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
        let home = home();
        let definitions = Versions::new(home.path());
        let folder = Folder::empty(home.path(), 0, &plan, &world);
        let mut manifest = json!({
            "apiVersion": "saga-runner/v1", "kind": "Manifest", "cluster": CLUSTER, "mode": "combined",
            "data_dir": home.path(), "shards": plan.shards, "tenants": TENANTS,
            "sagas": definitions.path(), "effects": versions::effects(),
            "streams": {"start": "first"},
            "gateway": {"url": "http://127.0.0.1:9"},
        });
        merge(&mut manifest, &plan.settings);
        let manifest: Manifest = serde_json::from_value(manifest).expect("a manifest");
        let (server, upstream) = (Server::new(plan.seed, &world), Upstream::new(plan.seed, &world));
        Self {
            disks: folder.disks.clone(),
            folder,
            losses: Losses::default(),
            names: Arc::new(Names::new(plan.seed)),
            plan,
            world,
            server,
            upstream,
            manifest,
            definitions,
            home,
            folders: 0,
            processes: 0,
            done: 0,
            down_until: None,
            ends: Vec::new(),
            stored: Vec::new(),
            lives: 0,
            stopped: Vec::new(),
            begins: Vec::new(),
            discarded: 0,
            is_healed: false,
        }
    }

    pub fn home(&self) -> PathBuf {
        self.home.path().to_owned()
    }

    /// A message as each run has it: the folder of all folders has another name every time.
    pub fn told(&self, message: &str) -> String {
        message.replace(&format!("{}/", self.home.path().display()), "")
    }

    pub fn take_folder(&mut self, folder: Folder) {
        self.world.forgets_what_was_discarded();
        self.disks.clone_from(&folder.disks);
        self.folder = folder;
    }

    /// With all its lives behind it, and what went wrong until then.
    fn lived(mut self) -> (Self, Vec<String>) {
        let mut faults = self.live();
        faults.extend(self.world.premature());
        (self, faults)
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
            let deaths = self.world.deaths_by_poison();
            let ended = runtime.block_on(async {
                self.world.clock.begin_life();
                self.life().await
            });
            {
                // Nothing that still runs may do anything, and no time passes for it.
                let _context = runtime.enter();
                self.world.clock.end_life();
            }
            drop(runtime);
            if self.world.deaths_by_poison() > deaths {
                self.note_poisoned();
            }
            let orphans = self.orphans();
            if !orphans.is_empty() {
                return orphans;
            }
            match ended {
                Ended::Died | Ended::Stopped | Ended::Replaced => {}
                Ended::Done => return Vec::new(),
                Ended::Failed(fault) => return vec![fault],
            }
        }
    }

    /// All that instances may run under.
    pub fn versions(&self) -> DefinitionSet {
        self.definitions.all(&self.manifest)
    }

    /// What would never move again if the process began anew now, or would be lost in another copy of the shard.
    fn orphans(&self) -> Vec<String> {
        let definitions = self.versions();
        let disks = self.disks.iter();
        disks
            .flat_map(|disk| {
                let orphans = judges::orphaned(&disk.rows.reader(), &definitions);
                orphans.into_iter().chain(disk.differs_from_its_write_sets())
            })
            .collect()
    }

    async fn life(&mut self) -> Ended {
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
        self.ends
            .retain(|(_, end)| !matches!(end, End::Still | End::Second));
        self.stay_down().await;
        let adoption = self.adoption();
        let mut main = match self.begin(self.folder.clone(), adoption) {
            Ok(main) => main,
            Err(fault) => return Ended::Failed(fault),
        };
        let mut second = None;
        let ended = loop {
            let process = Arc::clone(&main.process);
            let ended = tokio::select! {
                biased;
                () = process.death() => Ended::Died,
                ended = self.act(&mut main, &mut second) => ended,
            };
            let Some(taker) = second.take_if(|_| matches!(ended, Ended::Replaced)) else {
                break ended;
            };
            self.replaced(&taker);
            second = Some(std::mem::replace(&mut main, taker));
        };
        if let Some(second) = &second {
            self.left_by(second);
        }
        for runner in [Some(main), second].into_iter().flatten() {
            runner.process.die();
        }
        ended
    }

    /// Lets the time pass in which nobody starts the process. Producers go on.
    async fn stay_down(&mut self) {
        let Some(until) = self.down_until.take() else {
            return;
        };
        loop {
            let now = self.world.clock.passed();
            let next = self.plan.actions.get(self.done).cloned();
            let Some((at, action)) = next.filter(|(at, _)| *at < until) else {
                return tokio::time::sleep(until.saturating_sub(now)).await;
            };
            tokio::time::sleep(at.saturating_sub(now)).await;
            self.done += 1;
            match action {
                Action::Event(event) => self.publish(event),
                Action::Garbage { tenant, kind, key } => self.publish_garbage(tenant, kind, &key),
                _ => {}
            }
        }
    }

    /// Whether a shard has no room for now.
    pub fn is_somewhere_full(&self) -> bool {
        let mut ends = self.ends.iter();
        !self.is_healed && ends.any(|(_, end)| matches!(end, End::Full(_) | End::MapFull(_)))
    }

    /// Bytes that are no event.
    pub fn publish_garbage(&self, tenant: &str, kind: &str, key: &str) {
        let subject = format!("tenant.{tenant}.aggregate.{kind}.{key}");
        self.server.append(EVENTS, subject, b"{".to_vec());
    }

    pub fn publish(&mut self, event: Event) {
        let body = event.body().to_string();
        let sequence = self.server.append(EVENTS, event.subject(), body.into_bytes());
        let (id, tenant) = (&event.id, event.tenant);
        self.world
            .note(format_args!("event {id} of {tenant} is {sequence}"));
        self.stored.push((sequence, event));
    }

    /// Nothing goes wrong any more; an operator discards what cannot be applied; then everything has to end.
    async fn heal(&mut self, main: &mut Runner) -> Ended {
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
            if let Some(started) = main.started().await
                && let Some(ended) = self.started(main.process.number, started).await
            {
                return ended;
            }
            if main.starting.is_none() {
                let node = &main.node;
                for shard in node.absent_shards() {
                    let opened = node.open_shard(shard).await;
                    self.world
                        .note(format_args!("shard {shard} is opened: {opened:?}"));
                }
                self.look_after(node).await;
                if let Err(error) = self.operate(node).await {
                    self.world.note(format_args!("operator: {error}"));
                }
                let checks = node.health().await.checks.into_iter();
                let reasons: Vec<String> = checks
                    .filter(|check| !check.ok)
                    .map(|check| format!("{}: {}", check.name, check.detail))
                    .collect();
                open = judges::open(self);
                if open.is_empty() {
                    let diverging = judges::replay::judge(self, &main.node).await;
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
