//! A shard or a reader that hangs: nothing fails, and nothing is got on with. `/ready` says so.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use saga_runner::app::{Adapters, Node, SystemClock, definitions};
use saga_runner::config::Manifest;
use saga_runner::mdbx::environment::Environment;
use saga_runner::ports::broker::{Expect, Publication};
use saga_runner::ports::control::NodeControl as _;
use saga_runner::storage::rows::Suspect;
use saga_runner::storage::{OpenOptions, Settings, StorageError, Store, tables};
use saga_runner::telemetry::Metrics;
use saga_runner_partition::storage::{ReadWork, Snapshots, Transactions, WriteWork};
use serde_json::{Value, json};

use crate::support::nats_server::NatsServer;

const NOTED: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: noted
start: Note.Written
key: {"Note.*": event.aggregate_id}
state: {init: {}}
steps:
  rest: {wait: {signal: enough, timeout: 40000h}}
"#;

/// A disk that does not answer while its gate is closed.
#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, closed: bool) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = closed;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let open = self.opened.wait_while(closed, |closed| *closed);
        drop(open.unwrap_or_else(PoisonError::into_inner));
    }
}

#[derive(Debug)]
struct Gated {
    disk: Environment,
    gate: Arc<Gate>,
}

impl Snapshots for Gated {
    fn read(&self, work: &mut ReadWork<'_>) -> Result<(), StorageError> {
        Snapshots::read(&self.disk, work)
    }
}

impl Transactions for Gated {
    fn transact(&self, work: &mut WriteWork<'_>) -> Result<(), StorageError> {
        self.gate.pass();
        self.disk.transact(work)
    }

    fn note_applying(&self, applying: Option<Suspect>) -> Result<(), StorageError> {
        self.disk.note_applying(applying)
    }

    fn applying(&self) -> Option<Suspect> {
        self.disk.applying()
    }
}

/// The real adapters, over such a disk.
struct OnGatedDisk(Arc<Gate>);

impl Adapters for OnGatedDisk {
    fn store(&self, dir: &Path, settings: &Settings, options: &OpenOptions) -> Result<Store, StorageError> {
        let disk = Environment::open(dir, tables::NAMES, settings.max_bytes)?;
        let gate = Arc::clone(&self.0);
        Store::over(Arc::new(Gated { disk, gate }), dir, settings, options)
    }
}

struct Stage {
    node: Arc<Node>,
    gate: Arc<Gate>,
    _dir: tempfile::TempDir,
}

async fn start(broker: Value) -> Stage {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for folder in ["sagas", "effects"] {
        std::fs::create_dir_all(dir.path().join(folder)).expect("created");
    }
    std::fs::write(dir.path().join("sagas/noted.yaml"), NOTED).expect("written");
    let manifest: Manifest = serde_json::from_value(json!({
        "apiVersion": "saga-runner/v1",
        "kind": "Manifest",
        "cluster": "hanging",
        "data_dir": dir.path().join("data"),
        "shards": 1,
        "tenants": ["acme"],
        "sagas": dir.path().join("sagas"),
        "effects": dir.path().join("effects"),
        "broker": broker,
        "intake": {"watermark_interval": "100ms"},
        "stalled_after": "1s",
    }))
    .expect("a manifest");
    let read = definitions::load(&manifest).expect("good definitions");
    let gate = Arc::new(Gate::default());
    let adapters = Arc::new(OnGatedDisk(Arc::clone(&gate)));
    let clock = Arc::new(SystemClock::new());
    let node = Node::with_adapters(manifest, read, clock, Arc::new(Metrics::new()), adapters);
    let node = node.expect("a node");
    node.start().await.expect("it starts");
    Stage {
        node,
        gate,
        _dir: dir,
    }
}

impl Stage {
    async fn note(&self, key: &str) {
        let event = json!({
            "tenant_id": "acme", "event_id": format!("{key}-written"), "event_type": "Written",
            "aggregate_type": "Note", "aggregate_id": key, "sequence": 1, "schema_version": 1,
            "payload": {}, "metadata": {"correlation_id": key, "causation_id": key},
            "timestamp": "2026-01-01T00:00:00Z"
        });
        let message = Publication {
            stream: "AGGREGATE_EVENTS".to_owned(),
            subject: format!("tenant.acme.aggregate.Note.{key}"),
            headers: Vec::new(),
            payload: event.to_string().into(),
            expect: Expect::Nothing,
        };
        let broker = self.node.broker().expect("connected");
        broker.publish(message).await.expect("stored");
    }

    /// Waits until these reasons, and these alone where there are none, keep it from being ready.
    async fn until(&self, reasons: &[&str]) {
        let begin = Instant::now();
        loop {
            let ready = self.node.ready().await;
            let named = |reason: &&str| ready.reasons.iter().any(|found| found.starts_with(*reason));
            if ready.ready == reasons.is_empty() && reasons.iter().all(named) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "{ready:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_whose_disk_does_not_answer_is_not_ready_until_it_does() {
    let stage = start(json!({"kind": "embedded"})).await;
    stage.until(&[]).await;
    stage.gate.set(true);
    stage.note("first").await;
    stage.until(&["shard 0: no progress for "]).await;
    stage.gate.set(false);
    stage.until(&[]).await;
    stage.node.drain(Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_a_suspended_server_are_not_ready_until_it_resumes() {
    let server = NatsServer::start();
    let stage = start(json!({"kind": "nats", "nats": {"urls": [server.url()]}})).await;
    stage.note("first").await;
    stage.until(&[]).await;
    server.signal(Signal::SIGSTOP);
    let streams = ["AGGREGATE_EVENTS", "WORKFLOW_EVENTS", "WORKFLOW_COMMANDS"];
    let reasons = streams.map(|stream| format!("{stream} is not being read: no progress for "));
    stage.until(&reasons.each_ref().map(String::as_str)).await;
    server.signal(Signal::SIGCONT);
    stage.until(&[]).await;
    stage.node.drain(Duration::from_secs(10)).await;
}
