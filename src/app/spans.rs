//! Sends the spans of the process to a collector, beside all work.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::StartError;
use super::node::Node;
use crate::config::{Manifest, Refusal, check_private};
use crate::otlp::{Collector, Origin};
use crate::tasks::Task;
use crate::telemetry::Metrics;

/// The code of [`StartError::Telemetry`].
const TELEMETRY: &str = "SR0420";
/// The key of the manifest with the credentials of the collector.
const HEADERS_KEY: &str = "telemetry.otlp.headers_file";
/// How often spans are sent.
const EVERY: Duration = Duration::from_secs(1);
/// Spans of one request.
const BATCH: usize = 512;
/// How long a process that ends waits for its last spans to be sent.
const LAST_MAX: Duration = Duration::from_secs(2);

/// The task that sends.
pub(super) struct Sender {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Collects spans from now on and sends them, if the manifest says where.
///
/// # Errors
/// [`StartError::Telemetry`]: the settings cannot be used; `ConfigError::OpenToEverybody` for the file of headers.
pub(super) fn begin(node: &Node) -> Result<Option<Sender>, StartError> {
    let (manifest, metrics) = (&node.manifest, &node.metrics);
    let (Some(settings), Some(mut collector)) = (&manifest.telemetry.otlp, collector(manifest)?) else {
        return Ok(None);
    };
    let secret = settings.headers_file.clone();
    let dropped = metrics.spans_dropped.with_label_values(&["queue"]);
    let seed = Uuid::from_u128(node.randomness.draw()).as_u64_pair().0;
    metrics
        .spans
        .collect(settings.queue_max, settings.sample_ratio, seed, dropped);
    let stop = CancellationToken::new();
    let (metrics, told) = (Arc::clone(metrics), stop.clone());
    let task = node.tasks.spawn(Task::Spans, "", async move {
        loop {
            let stops = tokio::select! {
                biased;
                () = told.cancelled() => true,
                () = tokio::time::sleep(EVERY) => false,
            };
            send(&mut collector, secret.as_deref(), &metrics).await;
            if stops {
                return;
            }
        }
    });
    Ok(Some(Sender { stop, task }))
}

/// The collector, if the manifest says where it is.
fn collector(manifest: &Manifest) -> Result<Option<Collector>, StartError> {
    let Some(settings) = &manifest.telemetry.otlp else {
        return Ok(None);
    };
    let origin = Origin {
        cluster: manifest.cluster.clone(),
        version: env!("CARGO_PKG_VERSION"),
    };
    let (file, timeout) = (settings.headers_file.clone(), settings.timeout.duration());
    if let Some(path) = &file {
        check_private(HEADERS_KEY, path)?;
    }
    let made = Collector::new(&settings.endpoint, file, timeout, origin);
    made.map(Some).map_err(StartError::Telemetry)
}

/// What [`begin`] would refuse, besides what the manifest refuses by itself.
pub(super) fn refusal(manifest: &Manifest) -> Option<Refusal> {
    manifest.telemetry.check().ok()?;
    match collector(manifest).err()? {
        StartError::Config(error) => Some(error.refusal()),
        error => Some(Refusal::sentence(TELEMETRY, &error.to_string())),
    }
}

/// Sends what waits, batch by batch.
async fn send(collector: &mut Collector, headers: Option<&Path>, metrics: &Metrics) {
    loop {
        let batch = metrics.spans.take(BATCH);
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        match collector.send(&batch).await {
            Ok(()) => metrics.spans_exported.inc_by(count),
            Err(error) => {
                metrics.spans_dropped.with_label_values(&["export"]).inc_by(count);
                tracing::debug!(error, count, "the collector of traces did not take spans");
                let private = headers.map_or(Ok(()), |path| check_private(HEADERS_KEY, path));
                let read = private
                    .map_err(|error| error.to_string())
                    .and_then(|()| collector.read_headers());
                if let Err(error) = read {
                    tracing::warn!(
                        error,
                        "the headers for the collector of traces cannot be read; the known ones stay in use"
                    );
                }
                return;
            }
        }
    }
}

impl Sender {
    /// Sends what is left, if the collector takes it at once.
    pub(super) async fn end(self) {
        self.stop.cancel();
        let _in_time = tokio::time::timeout(LAST_MAX, self.task).await;
    }
}
