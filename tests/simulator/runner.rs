//! One runner: a node, the process that it is, and the folder that it works on.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use saga_runner::app::ownership::{Adoption, Place};
use saga_runner::app::{Adapters, Node, Registry, StartError};
use saga_runner::config::Manifest;
use saga_runner::effects::provider::Provider;
use saga_runner::ports::broker::Broker;
use saga_runner::ports::clock::Clock;
use saga_runner::ports::gateway::Gateway;
use saga_runner::ports::messenger::Messenger;
use saga_runner::ports::randomness::Randomness;
use saga_runner::storage::{self, OpenOptions, StorageError, Store};
use saga_runner::tasks::Tasks;
use saga_runner::telemetry::Metrics;
use tokio::task::JoinHandle;

use super::folder::Folder;
use super::process::Process;
use super::random::Names;
use super::run::{Begin, Simulation};
use super::server::{Client, Server};
use super::upstream::{Calls, SimGateway, Upstream};

pub struct Runner {
    pub node: Arc<Node>,
    pub process: Arc<Process>,
    pub folder: Folder,
    /// Until its end was looked at.
    pub starting: Option<JoinHandle<Result<(), StartError>>>,
}

impl Runner {
    /// How its start has ended, once.
    pub async fn started(&mut self) -> Option<Result<Result<(), StartError>, String>> {
        let task = self.starting.take_if(|task| task.is_finished())?;
        Some(task.await.map_err(|error| format!("its start panicked: {error}")))
    }
}

impl Simulation {
    /// Starts a process on a folder. What the operator gives up with this start is named.
    pub fn begin(&mut self, folder: Folder, adoption: Option<Adoption>) -> Result<Runner, String> {
        self.processes += 1;
        let process = Process::new(&self.world, self.processes);
        self.world.note(format_args!(
            "process {} begins on folder {}",
            process.number, folder.number
        ));
        self.begins.push(Begin {
            at: self.world.clock.passed(),
            logs: folder.disks.iter().map(|disk| disk.rows.log_sequence()).collect(),
        });
        // Another kernel, where the host was started again.
        let boot = if self.plan.reboots { process.number } else { 0 };
        let adapters = Arc::new(SimAdapters {
            server: Arc::clone(&self.server),
            upstream: Arc::clone(&self.upstream),
            names: Arc::clone(&self.names),
            process: Arc::clone(&process),
            boot: format!("{}-{boot}", folder.number),
            folder: folder.clone(),
        });
        let manifest = Manifest {
            data_dir: folder.dir.clone(),
            ..self.manifest.clone()
        };
        let clock = Arc::clone(&self.world.clock) as Arc<dyn Clock>;
        let loaded = self.definitions.read(&manifest);
        let node = Node::with_adapters(manifest, loaded, clock, Arc::new(Metrics::new()), adapters)
            .map_err(|error| format!("no node: {error}"))?;
        if let Some(adoption) = adoption {
            node.adopt(adoption);
        }
        if let Some(first) = &self.plan.first {
            node.open_first(first.iter().copied());
        }
        let starting = {
            let node = Arc::clone(&node);
            tokio::spawn(async move { node.start().await })
        };
        Ok(Runner {
            node,
            process,
            folder,
            starting: Some(starting),
        })
    }
}

/// The simulated adapters of a node.
struct SimAdapters {
    server: Arc<Server>,
    upstream: Arc<Upstream>,
    names: Arc<Names>,
    process: Arc<Process>,
    folder: Folder,
    boot: String,
}

#[async_trait]
impl Adapters for SimAdapters {
    fn registry(&self) -> Arc<Registry> {
        let (upstream, process) = (Arc::clone(&self.upstream), Arc::clone(&self.process));
        Arc::new(Registry::default().with("upstream", move |definition| {
            let calls = Calls {
                upstream: Arc::clone(&upstream),
                process: Arc::clone(&process),
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

    async fn broker(
        &self,
        _: &Manifest,
        _: Arc<dyn Clock>,
        _: &(dyn Fn(String) + Send + Sync),
    ) -> Result<Arc<dyn Broker>, StartError> {
        Ok(Arc::new(Client {
            server: Arc::clone(&self.server),
            process: Arc::clone(&self.process),
        }))
    }

    fn gateway(
        &self,
        _: &saga_runner::gateway::Settings,
        _: Option<Arc<dyn Messenger>>,
    ) -> Result<Arc<dyn Gateway>, StartError> {
        let (upstream, process) = (Arc::clone(&self.upstream), Arc::clone(&self.process));
        Ok(Arc::new(SimGateway(upstream, process)))
    }

    fn store(
        &self,
        dir: &Path,
        settings: &storage::Settings,
        options: &OpenOptions,
    ) -> Result<Store, StorageError> {
        let mount = self.folder.disks[usize::from(options.shard)].mount(&self.process);
        Store::over(Arc::new(mount), dir, settings, options)
    }

    fn place(&self, dir: &Path) -> Place {
        let mut disks = self.folder.disks.iter().enumerate();
        let file = disks
            .find(|(shard, disk)| dir.ends_with(format!("shard-{shard:04}")) && !disk.rows.rows().is_empty());
        Place {
            host: format!("host-{}", self.folder.number),
            boot: self.boot.clone(),
            file: file.map(|(shard, _)| (self.folder.number, shard as u64)),
        }
    }
}
