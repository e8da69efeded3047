//! Measures a whole runner in this process: throughput, latency, CPU and memory, and the raw figure of the same
//! broker.

mod drive;
mod raw;
mod report;
mod usage;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Child;

pub use report::Report;

use super::{Node, StartError, SystemClock, runtime};
use crate::config::manifest::StartPosition;
use crate::config::{BrokerKind, Dispatch, Manifest, TenantList};
use crate::kernel::definition::{self, SourceFile};
use crate::ports::broker::Broker;
use crate::telemetry::Metrics;
use usage::Usage;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    pub sagas: u64,
    pub in_flight: u64,
    /// Sagas per second of the latency phase.
    pub rate: u64,
    pub latency_for: Duration,
    pub shards: u16,
    pub dispatch: Dispatch,
    pub broker: Where,
    /// Messages that are stored by one atomic batch where so many wait, on NATS.
    pub publish_batch: usize,
    /// Largest input that is kept with the history, in bytes as it is stored.
    pub keep_input_bytes: u64,
    pub keep_work_bytes: u64,
    pub dir: Option<PathBuf>,
}

/// The broker of a bench.
#[derive(Debug, Clone)]
pub enum Where {
    Embedded,
    /// A server that the bench starts and stops.
    NatsServer {
        program: PathBuf,
        /// Syncs each write before it acknowledges.
        sync_always: bool,
    },
    NatsUrl(String),
}

impl Plan {
    /// Messages that one saga of the bench costs: its event, three results, one fact, and three commands where those
    /// go by the broker.
    pub const fn messages_per_saga(&self) -> u64 {
        match self.dispatch {
            Dispatch::Broker => 8,
            Dispatch::Local => 5,
        }
    }
}

/// The saga of the bench: three steps in a row.
const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: bench-order
start: Order.Placed
key: {"Order.*": event.data.order_id}
state: {init: {status: new}}
handlers:
  Order.Placed:
    set: {status: placed, total: "${event.data.total_cents}", customer: "${event.data.customer.id}"}
steps:
  reserve:
    effect: bench-noop
    with: {order: "${key}", total: "${state.total}"}
    set: {reservation: "${result.id}"}
  charge:
    needs: [reserve]
    effect: bench-noop
    with: {order: "${key}", total: "${state.total}"}
    set: {charge: "${result.id}"}
  ship:
    needs: [charge]
    effect: bench-noop
    with: {order: "${key}", total: "${state.total}"}
    set: {status: shipped}
finally:
  completed: {publish: {type: bench.done, payload: {order: "${key}"}}}
"#;

const EFFECT: &str = r#"
apiVersion: sagas/v1
kind: Effect
name: bench-noop
transform: {}
limits: {concurrency: 64}
result: {id: "${input.order}"}
"#;

/// Runs the plan.
///
/// # Errors
/// [`StartError`] where the runner does not start, or a saga does not end.
pub fn run(plan: &Plan) -> Result<Report, StartError> {
    runtime()?.block_on(measure(plan))
}

async fn measure(plan: &Plan) -> Result<Report, StartError> {
    let kept = plan.dir.is_some();
    let dir = plan
        .dir
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("saga-runner-bench-{}", std::process::id())));
    std::fs::create_dir_all(&dir).map_err(system)?;
    let (server, url) = start_server(plan, &dir).await?;
    let manifest = manifest(plan, &dir, url)?;
    let outcome = phases(plan, manifest, server.as_ref()).await;
    if !kept {
        // Left to the system's cleaning of temporary files where it cannot be removed.
        let _ = std::fs::remove_dir_all(&dir);
    }
    outcome
}

async fn phases(plan: &Plan, manifest: Manifest, server: Option<&Child>) -> Result<Report, StartError> {
    let data_dir = manifest.data_dir.clone();
    let server = server.and_then(Child::id);
    let clock: Arc<SystemClock> = Arc::new(SystemClock::new());
    let begin = Usage::now(server);
    let files = |path: &str, text: &str| SourceFile {
        path: path.to_owned(),
        text: Arc::from(text),
    };
    let loaded = definition::load(
        &[files("bench-order.yaml", SAGA)],
        &[files("bench-noop.yaml", EFFECT)],
    );
    if let Some(finding) = loaded.diagnostics.first() {
        return Err(StartError::System(format!(
            "the bench's own definition: {finding}"
        )));
    }
    let drain_timeout = manifest.drain_timeout.duration();
    let broker_kind = manifest.broker.kind;
    let node = Node::new(manifest, loaded.into(), clock, Arc::new(Metrics::new()))?;
    node.start().await?;
    let broker: Arc<dyn Broker> = node
        .broker()
        .ok_or_else(|| StartError::System("the runner did not start".to_owned()))?;
    let mut driver = drive::Driver::open(broker.as_ref()).await?;
    let first = driver.one(broker.as_ref()).await?;
    let started = begin.until(&Usage::now(server));
    let idle_rss_bytes = usage::rss_bytes();

    let before = Usage::now(server);
    let throughput = driver.throughput(&broker, plan.sagas, plan.in_flight).await?;
    let spent = before.until(&Usage::now(server));
    let latency = driver.latency(&broker, plan.rate, plan.latency_for).await?;
    let rss_bytes = usage::rss_bytes();
    drop(driver);
    node.drain(drain_timeout).await;
    let state_bytes = usage::folder_bytes(&data_dir, Some("broker"));
    let raw = raw::measure(&broker, plan).await?;
    Ok(Report {
        broker: match broker_kind {
            BrokerKind::Embedded => "embedded",
            BrokerKind::Nats => "nats",
        },
        sync_always: matches!(
            plan.broker,
            Where::NatsServer {
                sync_always: true,
                ..
            }
        ),
        publish_batch: plan.publish_batch,
        in_flight: plan.in_flight,
        shards: plan.shards,
        dispatch: match plan.dispatch {
            Dispatch::Broker => "broker",
            Dispatch::Local => "local",
        },
        start_to_first_saga_ms: started.wall.as_secs_f64() * 1_000.0,
        first_saga_ms: first.as_secs_f64() * 1_000.0,
        idle_rss_bytes,
        rss_bytes,
        throughput: throughput.figures(&spent),
        latency,
        raw,
        state_bytes_per_saga: state_bytes / plan.sagas.max(1),
    })
}

async fn start_server(
    plan: &Plan,
    dir: &std::path::Path,
) -> Result<(Option<Child>, Option<String>), StartError> {
    match &plan.broker {
        Where::Embedded => Ok((None, None)),
        Where::NatsUrl(url) => Ok((None, Some(url.clone()))),
        Where::NatsServer { program, sync_always } => {
            let (child, url) = super::nats_server::start(program, dir, *sync_always).await?;
            Ok((Some(child), Some(url)))
        }
    }
}

fn manifest(plan: &Plan, dir: &std::path::Path, url: Option<String>) -> Result<Manifest, StartError> {
    let mut manifest = Manifest::named("bench");
    manifest.data_dir = dir.join("data");
    manifest.shards = plan.shards;
    manifest.dispatch = plan.dispatch;
    manifest.storage.keep_input_bytes = plan.keep_input_bytes;
    manifest.storage.keep_work_bytes = plan.keep_work_bytes;
    manifest.tenants = Some(TenantList::Any);
    manifest.streams.start = StartPosition::New;
    if let Some(url) = url {
        manifest.broker.nats.publish_batch_max = plan.publish_batch;
        manifest.use_nats(url).map_err(StartError::System)?;
    }
    if manifest.data_dir.join("cluster.json").exists() {
        return Err(StartError::System(format!(
            "{} has data of another run",
            manifest.data_dir.display()
        )));
    }
    Ok(manifest)
}

fn system(error: impl std::fmt::Display) -> StartError {
    StartError::System(error.to_string())
}
