//! By what a node reaches the world outside of the process.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::ownership::Place;
use super::randomness::SystemRandomness;
use super::unusable::GATEWAY_TLS;
use super::{Registry, StartError, connect_broker};
use crate::config::{Manifest, upstreams};
use crate::gateway;
use crate::mdbx;
use crate::ports::broker::Broker;
use crate::ports::clock::Clock;
use crate::ports::gateway::Gateway;
use crate::ports::messenger::Messenger;
use crate::ports::randomness::Randomness;
use crate::storage::{self, OpenOptions, StorageError, Store};
use crate::tasks::Tasks;
use crate::telemetry::Metrics;

/// The adapters of a node. Those that are not said are the real ones, as the manifest wants them; a simulation says others,
/// and everything between them is the same.
#[async_trait]
pub trait Adapters: Send + Sync + 'static {
    /// Providers that are not saga-runner's own.
    fn registry(&self) -> Arc<Registry> {
        Arc::default()
    }

    fn randomness(&self) -> Arc<dyn Randomness> {
        Arc::new(SystemRandomness)
    }

    fn tasks(&self, metrics: &Arc<Metrics>, clock: &Arc<dyn Clock>) -> Tasks {
        Tasks::new(metrics, clock)
    }

    /// Connects to the broker, and waits for it as long as it takes; `tell` is told what is waited for.
    ///
    /// # Errors
    /// [`StartError::Broker`] for what waiting cannot fix.
    async fn broker(
        &self,
        manifest: &Manifest,
        clock: Arc<dyn Clock>,
        tell: &(dyn Fn(String) + Send + Sync),
    ) -> Result<Arc<dyn Broker>, StartError> {
        connect_broker(manifest, clock, tell).await
    }

    /// The gateway for aggregate commands.
    ///
    /// # Errors
    /// [`StartError::Missing`] names the setting that is wrong, [`StartError::Config`] a file that cannot be used.
    fn gateway(
        &self,
        settings: &gateway::Settings,
        messenger: Option<Arc<dyn Messenger>>,
    ) -> Result<Arc<dyn Gateway>, StartError> {
        if let Some(files) = &settings.tls {
            upstreams::read_tls(GATEWAY_TLS, files)?;
        }
        gateway::open(settings, messenger).map_err(|error| StartError::Missing(vec![error.to_string()]))
    }

    /// Opens the state of a shard.
    ///
    /// # Errors
    /// [`StorageError`] says why it is refused.
    fn store(
        &self,
        dir: &Path,
        settings: &storage::Settings,
        options: &OpenOptions,
    ) -> Result<Store, StorageError> {
        mdbx::open(dir, settings, options)
    }

    /// Where the state of a shard is, or would be.
    fn place(&self, dir: &Path) -> Place {
        Place::of(dir)
    }
}

/// The real ones, and the providers that a team has compiled in.
pub struct SystemAdapters(pub Arc<Registry>);

impl Adapters for SystemAdapters {
    fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.0)
    }
}
