//! The composition root: starts, wires and drains. The only place that knows all layers.

mod accept;
mod actions;
mod adapters;
mod aliases;
mod answers;
mod archive;
mod audit;
pub mod backup;
#[cfg(feature = "bench")]
pub mod bench;
mod beside;
mod catalog;
mod clock;
mod cluster;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod consumers;
mod control;
mod counts;
mod credentials;
mod cursors;
mod decisions;
pub mod definitions;
mod deletions;
pub mod diagnostics;
pub mod doctor;
pub mod exit;
mod graph;
mod groups;
mod hearing;
mod held;
mod inputs;
mod instances;
mod jobs;
mod last_good;
mod letters;
mod lifecycle;
mod migrate_one;
mod migration;
pub mod nats_server;
mod node;
pub mod out;
pub mod ownership;
mod pages;
mod pending;
mod randomness;
mod rates;
mod readiness;
mod redacted;
mod rehearsal;
mod reload;
mod requests;
mod restart;
mod running;
mod sagas;
mod schedules;
mod search;
mod secrets;
mod shard_map;
mod shard_verbs;
mod shards;
mod spans;
mod standing;
pub mod streams;
mod undeclared;
pub mod unusable;
mod versions;
mod waits;
pub mod watched;
mod why;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use adapters::Adapters;
pub use clock::SystemClock;
pub use lifecycle::{dev, main, main_with_adapters};
pub use node::Node;

pub use crate::api::auth::NewToken;
pub use crate::effects::Registry;

use crate::config::{BrokerKind, ConfigError, Manifest};
use crate::inproc::InprocBroker;
use crate::kernel::definition::{Diagnostic, Severity};
use crate::nats::{ConnectError, NatsBroker};
use crate::ports::broker::{Broker, BrokerError};
use crate::ports::clock::Clock;

/// Why a runner cannot start. Nothing that waiting could fix: that is retried.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0} [SR0401]")]
    Unreadable(String),
    /// Spans cannot be sent as the manifest says.
    #[error("{0} [SR0420]")]
    Telemetry(String),
    #[error("{} in the definitions [SR0405]", counted(findings))]
    Definitions {
        findings: Vec<Diagnostic>,
        /// Texts of the files, for the excerpts.
        texts: BTreeMap<String, Arc<str>>,
    },
    #[error("{}", .0.iter().map(|wrong| format!("{wrong} [SR0406]")).collect::<Vec<_>>().join("\n"))]
    Missing(Vec<String>),
    #[error("{0} [SR0407]")]
    Foreign(String),
    #[error("{0} [SR0408]")]
    Consumer(String),
    #[error("{0} [SR0409]")]
    Consumers(String),
    #[error("{0} [SR0410]")]
    Identity(String),
    #[error("{0} [SR0411]")]
    Unidentified(String),
    /// A folder without the data of a shard that the cluster knows.
    #[error("{0} [SR0205]")]
    Lost(String),
    /// The shard belongs to another folder, or to another process.
    #[error("{0} [SR0209]")]
    Owned(String),
    /// The folder is an older copy.
    #[error("{0} [SR0210]")]
    Older(String),
    #[error("{0}")]
    Storage(String),
    #[error("{0}")]
    Broker(String),
    /// The broker is away, and the command does not wait for it.
    #[error("{0}")]
    Unreached(String),
    #[error("{0}")]
    System(String),
}

/// How many errors and warnings there are, for people.
fn counted(findings: &[Diagnostic]) -> String {
    let is_error = |finding: &&Diagnostic| finding.severity == Severity::Error;
    let errors = findings.iter().filter(is_error).count();
    match findings.len() - errors {
        0 => format!("{errors} error(s)"),
        warnings => format!("{errors} error(s) and {warnings} warning(s)"),
    }
}

/// The asynchronous half of the process.
///
/// # Errors
/// Where the system gives no threads.
pub fn runtime() -> Result<tokio::runtime::Runtime, StartError> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("saga-runner")
        .build()
        .map_err(|error| StartError::System(format!("no threads: {error}")))
}

/// Opens the broker that the manifest names, and waits for it as long as it takes; `tell` is told what is waited for.
///
/// # Errors
/// [`StartError::Broker`] for what waiting cannot fix: a server that is too old, a locked folder, bad
/// credentials.
pub async fn connect_broker(
    manifest: &Manifest,
    clock: Arc<dyn Clock>,
    tell: &(dyn Fn(String) + Send + Sync),
) -> Result<Arc<dyn Broker>, StartError> {
    match manifest.broker.kind {
        BrokerKind::Embedded => open_embedded(manifest, clock),
        BrokerKind::Nats => {
            let broker = connect_nats(manifest).await?;
            broker.connected_telling(tell).await.map_err(unconnected)?;
            Ok(broker)
        }
    }
}

/// The same for a command, which gives up after the connect timeout of the manifest.
///
/// # Errors
/// [`StartError::Unreached`] where no server is reached in that time; otherwise as [`connect_broker`].
pub(crate) async fn reach_broker(
    manifest: &Manifest,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Broker>, StartError> {
    match manifest.broker.kind {
        BrokerKind::Embedded => open_embedded(manifest, clock),
        BrokerKind::Nats => {
            let patience = manifest.broker.nats.connect_timeout.duration();
            let broker = connect_nats(manifest).await?;
            broker.connected_within(patience).await.map_err(unconnected)?;
            Ok(broker)
        }
    }
}

fn open_embedded(manifest: &Manifest, clock: Arc<dyn Clock>) -> Result<Arc<dyn Broker>, StartError> {
    let dir = manifest.data_dir.join("broker");
    let broker = InprocBroker::open(&dir, manifest.broker.embedded.clone(), clock)
        .map_err(|error| StartError::Broker(error.to_string()))?;
    Ok(broker)
}

async fn connect_nats(manifest: &Manifest) -> Result<Arc<NatsBroker>, StartError> {
    let settings = manifest.broker.nats.clone();
    NatsBroker::connect(settings).await.map_err(unconnected)
}

fn unconnected(error: ConnectError) -> StartError {
    match error {
        error @ ConnectError::Unreached { .. } => StartError::Unreached(error.to_string()),
        error => StartError::Broker(error.to_string()),
    }
}

/// What a command says of a question that the broker has not answered as it should.
fn unanswered(error: BrokerError) -> StartError {
    match error {
        error @ BrokerError::Unavailable(_) => StartError::Unreached(error.to_string()),
        error => StartError::Broker(error.to_string()),
    }
}
