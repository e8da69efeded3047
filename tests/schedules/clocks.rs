//! A machine whose clock is not that of the broker's server.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use saga_runner::app::{Node, SystemClock, definitions};
use saga_runner::config::Manifest;
use saga_runner::kernel::ids::TimeMs;
use saga_runner::ports::broker::{Expect, Publication};
use saga_runner::ports::clock::Clock;
use saga_runner::ports::control::{Health, MetricsFormat, NodeControl as _, Readiness};
use saga_runner::telemetry::Metrics;
use serde_json::json;

use super::{HOUR_MS, instances, stop};
use crate::support::nats_server::NatsServer;

/// A saga whose instances end by a timer, so long after an event of this type has opened them.
fn saga(name: &str, kind: &str, ends_after: &str) -> String {
    format!(
        r#"
apiVersion: sagas/v1
kind: Saga
name: {name}
start: {kind}.Opened
key: {{"{kind}.*": event.aggregate_id}}
state: {{init: {{}}}}
steps:
  rest: {{wait: {{signal: enough, timeout: {ends_after}}}}}
"#
    )
}

/// The clock of the machine, set to another time.
#[derive(Default)]
struct WrongClock {
    clock: SystemClock,
    ahead_ms: AtomicI64,
}

impl Clock for WrongClock {
    fn now(&self) -> TimeMs {
        let ahead_ms = self.ahead_ms.load(Ordering::SeqCst);
        self.clock.now().plus_ms(ahead_ms)
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
}

struct Stage {
    clock: Arc<WrongClock>,
    node: Arc<Node>,
    _dir: tempfile::TempDir,
}

async fn start(nats: &NatsServer, ahead_ms: i64, mode: &str) -> Stage {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for folder in ["sagas", "effects"] {
        std::fs::create_dir_all(dir.path().join(folder)).expect("created");
    }
    for (name, kind, ends_after) in [("bill", "Bill", "30m"), ("tip", "Tip", "700ms")] {
        let path = dir.path().join(format!("sagas/{name}.yaml"));
        std::fs::write(path, saga(name, kind, ends_after)).expect("written");
    }
    let manifest: Manifest = serde_json::from_value(json!({
        "apiVersion": "saga-runner/v1",
        "kind": "Manifest",
        "cluster": "clocks",
        "mode": mode,
        "data_dir": dir.path().join("data"),
        "shards": 1,
        "tenants": ["acme"],
        "sagas": dir.path().join("sagas"),
        "effects": dir.path().join("effects"),
        "broker": {"kind": "nats", "nats": {"urls": [nats.url()]}},
        "intake": {"watermark_interval": "100ms"},
    }))
    .expect("a manifest");
    let clock = Arc::new(WrongClock::default());
    clock.ahead_ms.store(ahead_ms, Ordering::SeqCst);
    let read = definitions::load(&manifest).expect("good definitions");
    let wrong = Arc::clone(&clock) as Arc<dyn Clock>;
    let node = Node::new(manifest, read, wrong, Arc::new(Metrics::new())).expect("a node");
    node.start().await.expect("it starts");
    Stage {
        clock,
        node,
        _dir: dir,
    }
}

impl Stage {
    async fn open(&self, kind: &str, key: &str) {
        let event = json!({
            "tenant_id": "acme", "event_id": format!("{key}-opened"), "event_type": "Opened",
            "aggregate_type": kind, "aggregate_id": key, "sequence": 1, "schema_version": 1,
            "payload": {}, "metadata": {"correlation_id": key, "causation_id": key},
            "timestamp": "2026-01-01T00:00:00Z"
        });
        let message = Publication {
            stream: "AGGREGATE_EVENTS".to_owned(),
            subject: format!("tenant.acme.aggregate.{kind}.{key}"),
            headers: Vec::new(),
            payload: event.to_string().into(),
            expect: Expect::Nothing,
        };
        let broker = self.node.broker().expect("connected");
        broker.publish(message).await.expect("stored");
    }

    async fn phase(&self, saga: &str, key: &str) -> Option<String> {
        instances(&self.node, "acme", saga).await.remove(key)
    }

    async fn until_ended(&self, key: &str) {
        let begin = Instant::now();
        while self
            .phase("tip", key)
            .await
            .is_none_or(|phase| phase == "running")
        {
            assert!(begin.elapsed() < Duration::from_secs(30), "{key} has not ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn until_ready(&self, holds: impl Fn(&Readiness) -> bool) {
        let begin = Instant::now();
        loop {
            let ready = self.node.ready().await;
            if holds(&ready) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "{ready:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn clock_check(health: &Health) -> (bool, &str) {
    let found = health.checks.iter().find(|check| check.name == "clock");
    let check = found.expect("there is one");
    (check.ok, &check.detail)
}

async fn timers_go_by_the_brokers_time(ahead_ms: i64, told: &str) {
    let server = NatsServer::start();
    let stage = start(&server, ahead_ms, "combined").await;
    stage.open("Bill", "later").await;
    stage.open("Tip", "soon").await;
    let begin = Instant::now();
    stage.until_ended("soon").await;
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(600), "fired after {took:?}");
    assert_eq!(stage.phase("bill", "later").await.as_deref(), Some("running"));

    stage.until_ready(|ready| !ready.ready).await;
    let ready = stage.node.ready().await;
    let clock = ready.reasons.iter().find(|reason| reason.starts_with("clock: "));
    assert!(clock.is_some_and(|reason| reason.contains(told)), "{ready:?}");
    let health = stage.node.health().await;
    let (ok, detail) = clock_check(&health);
    assert!(!ok && detail.contains(told), "{detail}");
    let shown = if ahead_ms > 0 { "3599." } else { "-3599." };
    let metrics = stage.node.metrics(MetricsFormat::Classic);
    let line = format!("saga_runner_clock_ahead_seconds {shown}");
    assert!(metrics.contains(&line), "{line} is not in {metrics}");

    stage.clock.ahead_ms.store(0, Ordering::SeqCst);
    stage.until_ready(|ready| ready.ready).await;
    assert!(clock_check(&stage.node.health().await).0);
    stage.open("Tip", "third").await;
    stage.until_ended("third").await;
    assert_eq!(stage.phase("bill", "later").await.as_deref(), Some("running"));
    stop(stage.node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_clock_that_is_ahead_timers_go_by_the_brokers_time_and_it_is_not_ready() {
    timers_go_by_the_brokers_time(HOUR_MS, "s ahead of the broker's").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_clock_that_is_behind_timers_go_by_the_brokers_time_and_it_is_not_ready() {
    timers_go_by_the_brokers_time(-HOUR_MS, "s behind the broker's").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_clock_is_set_while_it_runs_is_not_ready_until_it_is_right_again() {
    let server = NatsServer::start();
    let stage = start(&server, 0, "effect").await;
    stage.until_ready(|ready| ready.ready).await;
    for ahead_ms in [3_000, -3_000] {
        stage.clock.ahead_ms.store(ahead_ms, Ordering::SeqCst);
        stage.until_ready(|ready| !ready.ready).await;
        // Less than what may differ.
        stage.clock.ahead_ms.store(ahead_ms / 3, Ordering::SeqCst);
        stage.until_ready(|ready| ready.ready).await;
    }
    stop(stage.node).await;
}
