//! Sagas that start by the clock, on both brokers: each planned time once for each tenant, whatever stops.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

mod clocks;
mod faults;
mod killed;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::support::nats_server::NatsServer;
use crate::support::other_time::OtherTime;
use saga_runner::app::{Node, SystemClock, definitions};
use saga_runner::config::Manifest;
use saga_runner::kernel::envelope::{ConflictPolicy, ControlMessage, ControlVerb, Principal};
use saga_runner::kernel::ids::{InstanceId, Key, SagaName, TenantId, TimeMs};
use saga_runner::ports::clock::Clock;
use saga_runner::ports::control::{Instances, PageRequest, Patience, ScheduleView, Schedules, StartRequest};
use saga_runner::telemetry::Metrics;
use serde_json::json;

const TENANTS: [&str; 2] = ["acme", "globex"];
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

const NIGHTLY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: nightly
schedule: {cron: "0 6 * * *"}
state: {init: {at: "${input.time}"}}
steps:
  tell: {publish: {type: nightly.ran, payload: {at: "${input.time}"}}}
"#;

/// It runs until somebody lets it go on.
const SLOW: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: slow
schedule: {cron: "0 12 * * *", overlap: queue, catch_up: all}
state: {init: {}}
steps:
  rest: {wait: {signal: enough, timeout: 40000h}}
"#;

/// Planned for the same times as `nightly`, and its keys may be used again.
const AGAIN: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: again
schedule: {cron: "0 6 * * *", catch_up: all, overlap: queue}
reuse: always
state: {init: {at: "${input.time}"}}
steps:
  tell: {publish: {type: again.ran, payload: {at: "${input.time}"}}}
"#;

/// The clock of the machine, some time ahead of it.
#[derive(Default)]
struct AheadClock {
    clock: SystemClock,
    /// Since when, by the clock of the machine, it was so far ahead.
    steps: RwLock<Vec<(TimeMs, i64)>>,
}

impl AheadClock {
    /// Goes to a time of day, today or on a later day, and gives the day's midnight.
    fn go_to(&self, hour: i64, days: i64) -> i64 {
        let now = self.now().0;
        let midnight = now.div_euclid(DAY_MS) * DAY_MS + days * DAY_MS;
        let real = self.clock.now();
        let ahead = midnight + hour * HOUR_MS - real.0;
        let mut steps = self.steps.write().unwrap_or_else(PoisonError::into_inner);
        steps.push((real, ahead));
        midnight
    }

    /// What it has shown at a time of the machine's clock.
    fn shown(&self, real: TimeMs) -> TimeMs {
        let steps = self.steps.read().unwrap_or_else(PoisonError::into_inner);
        let step = steps.iter().rev().find(|(since, _)| *since <= real);
        real.plus_ms(step.map_or(0, |(_, ahead)| *ahead))
    }
}

impl Clock for AheadClock {
    fn now(&self) -> TimeMs {
        self.shown(self.clock.now())
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }
}

struct Stage {
    dir: tempfile::TempDir,
    clock: Arc<AheadClock>,
    nats: Option<String>,
}

impl Stage {
    fn new(nats: Option<String>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for folder in ["sagas", "effects"] {
            std::fs::create_dir_all(dir.path().join(folder)).expect("created");
        }
        let stage = Self {
            dir,
            clock: Arc::default(),
            nats,
        };
        stage.write("nightly", NIGHTLY);
        stage.write("slow", SLOW);
        // So far ahead that the time of the machine and its broker lies behind, in the night before everything.
        stage.clock.go_to(1, 2);
        stage
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn write(&self, saga: &str, text: &str) {
        let path = self.path().join(format!("sagas/{saga}.yaml"));
        std::fs::write(path, text).expect("written");
    }

    async fn start(&self) -> Arc<Node> {
        let mut manifest = json!({
            "apiVersion": "saga-runner/v1",
            "kind": "Manifest",
            "cluster": "schedules",
            "data_dir": self.path().join("data"),
            "shards": 3,
            "tenants": TENANTS,
            "sagas": self.path().join("sagas"),
            "effects": self.path().join("effects"),
        });
        if let Some(url) = &self.nats {
            manifest["broker"] = json!({"kind": "nats", "nats": {"urls": [url]}});
        }
        let manifest: Manifest = serde_json::from_value(manifest).expect("a manifest");
        for _ in 0..3_000 {
            let read = definitions::load(&manifest).expect("good definitions");
            let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
            let shown = Arc::clone(&self.clock);
            let adapters = OtherTime(Arc::new(move |real| shown.shown(real)));
            let metrics = Arc::new(Metrics::new());
            let node = Node::with_adapters(manifest.clone(), read, clock, metrics, Arc::new(adapters))
                .expect("a node");
            match node.start().await {
                Ok(()) => return node,
                // What the node before has left running in this process still holds its files.
                Err(error) if error.to_string().contains("in use by another process") => {}
                Err(error) => panic!("{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the node before never lets go of its files");
    }
}

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).expect("a tenant")
}

fn saga(name: &str) -> SagaName {
    SagaName::parse(name).expect("a saga")
}

async fn stop(node: Arc<Node>) {
    node.drain(Duration::from_secs(10)).await;
}

/// Phases of the instances of a saga, by key.
async fn instances(node: &Node, of: &str, name: &str) -> BTreeMap<String, String> {
    let page = PageRequest::new(None, 500);
    let page = node
        .instances(&tenant(of), &saga(name), None, page)
        .await
        .expect("a list");
    let views = page
        .items
        .iter()
        .map(|view| serde_json::to_value(view).expect("JSON"));
    views
        .map(|view| {
            let text = |key: &str| view[key].as_str().expect("text").to_owned();
            (text("key"), text("phase"))
        })
        .collect()
}

/// Where a schedule stands, once it is known.
async fn schedule(node: &Node, of: &str, name: &str) -> Option<ScheduleView> {
    let found = node.schedules(&tenant(of)).await.expect("a list");
    found.into_iter().find(|view| view.saga == name)
}

/// Waits until a saga has these instances and no others, in these phases, for every tenant.
async fn until(node: &Node, name: &str, wanted: &[(i64, &str)]) {
    let wanted: BTreeMap<String, String> = wanted
        .iter()
        .map(|(at, phase)| (TimeMs(*at).to_string(), (*phase).to_owned()))
        .collect();
    for of in TENANTS {
        let mut found = BTreeMap::new();
        for _ in 0..3_000 {
            found = instances(node, of, name).await;
            if found == wanted {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(found, wanted, "{of}: {:?}", schedule(node, of, name).await);
    }
}

/// Waits until the schedules of all tenants say something.
async fn until_told(node: &Node, name: &str, holds: impl Fn(&ScheduleView) -> bool) {
    for of in TENANTS {
        let mut view = schedule(node, of, name).await;
        for _ in 0..3_000 {
            if view.as_ref().is_some_and(&holds) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            view = schedule(node, of, name).await;
        }
        assert!(view.as_ref().is_some_and(&holds), "{of}: {view:?}");
    }
}

async fn each_planned_time_runs_once(nats: Option<String>) {
    let stage = Stage::new(nats);
    let node = stage.start().await;
    until_told(&node, "nightly", |view| view.next.is_some()).await;
    let mut runs = Vec::new();
    for day in 0..2 {
        let midnight = stage.clock.go_to(7, day.min(1));
        runs.push((midnight + 6 * HOUR_MS, "completed"));
        until(&node, "nightly", &runs).await;
        // The end of a run is told before the next day, which would otherwise be skipped.
        until_told(&node, "nightly", |view| view.running.is_empty()).await;
    }
    stop(node).await;

    // Three days without a runner, then the same state once more.
    let midnight = stage.clock.go_to(7, 3);
    runs.push((midnight + 6 * HOUR_MS, "completed"));
    for _ in 0..2 {
        let node = stage.start().await;
        until(&node, "nightly", &runs).await;
        until_told(&node, "nightly", |view| {
            view.skipped == 2 && view.started == 3 && view.running.is_empty()
        })
        .await;
        stop(node).await;
    }

    // Another time of day from now on.
    let node = stage.start().await;
    stage.write("nightly", &NIGHTLY.replace("0 6", "30 8"));
    node.reload().await.expect("reloaded");
    let midnight = stage.clock.go_to(9, 0);
    runs.push((midnight + 8 * HOUR_MS + HOUR_MS / 2, "completed"));
    until(&node, "nightly", &runs).await;
    let next = TimeMs(midnight + DAY_MS + 8 * HOUR_MS + HOUR_MS / 2).rfc3339();
    until_told(&node, "nightly", |view| view.next.as_deref() == Some(&next)).await;

    // And none without its file.
    std::fs::remove_file(stage.path().join("sagas/nightly.yaml")).expect("it was there");
    node.reload().await.expect("reloaded");
    for of in TENANTS {
        for _ in 0..3_000 {
            let views = node.schedules(&tenant(of)).await.expect("a list");
            if views.iter().all(|view| view.saga != "nightly") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let views = node.schedules(&tenant(of)).await.expect("a list");
        assert!(views.iter().all(|view| view.saga != "nightly"), "{views:?}");
    }
    stop(node).await;
}

async fn runs_wait_for_one_another(nats: Option<String>) {
    let stage = Stage::new(nats);
    let node = stage.start().await;
    until_told(&node, "slow", |view| view.next.is_some()).await;
    let first = stage.clock.go_to(13, 0) + 12 * HOUR_MS;
    until(&node, "slow", &[(first, "running")]).await;
    stop(node).await;

    // What was missed meanwhile waits behind the one that runs.
    stage.clock.go_to(13, 2);
    let node = stage.start().await;
    until_told(&node, "slow", |view| view.queued.len() == 2).await;
    until(&node, "slow", &[(first, "running")]).await;
    let mut runs = vec![(first, "completed")];
    for day in 1..=2 {
        for of in TENANTS {
            enough(&node, of, runs[runs.len() - 1].0).await;
        }
        runs.push((first + day * DAY_MS, "running"));
        until(&node, "slow", &runs).await;
        let last = runs.len() - 1;
        runs[last].1 = "completed";
    }
    until_told(&node, "slow", |view| view.queued.is_empty() && view.skipped == 0).await;
    stop(node).await;
}

async fn planned_times_meet_runs_that_were_made_by_hand(nats: Option<String>) {
    let stage = Stage::new(nats);
    stage.write("again", AGAIN);
    let node = stage.start().await;
    until_told(&node, "again", |view| view.next.is_some()).await;
    let midnight = stage.clock.go_to(5, 0);
    let planned = midnight + 6 * HOUR_MS;
    for name in ["nightly", "again"] {
        for of in TENANTS {
            by_hand(&node, of, name, planned, "before").await;
        }
        until(&node, name, &[(planned, "completed")]).await;
    }
    // Both sagas are planned for this time. The clock begins another generation only where the key may be used again.
    stage.clock.go_to(7, 0);
    for (name, generation) in [("nightly", 1), ("again", 2)] {
        until_told(&node, name, |view| view.started == 1 && view.running.is_empty()).await;
        until_generation(&node, name, planned, generation).await;
    }
    for of in TENANTS {
        by_hand(&node, of, "again", planned, "after").await;
    }
    until_generation(&node, "again", planned, 3).await;
    stop(node).await;

    // Nothing of it is done once more by who reads everything again.
    let node = stage.start().await;
    let next = stage.clock.go_to(7, 1) + 6 * HOUR_MS;
    for name in ["nightly", "again"] {
        until(&node, name, &[(planned, "completed"), (next, "completed")]).await;
        until_told(&node, name, |view| view.started == 2 && view.running.is_empty()).await;
    }
    for (name, generation) in [("nightly", 1), ("again", 3)] {
        until_generation(&node, name, planned, generation).await;
        until_generation(&node, name, next, 1).await;
    }
    stop(node).await;
}

/// Starts the run of a planned time by a request.
async fn by_hand(node: &Node, of: &str, name: &str, planned: i64, id: &str) {
    let time = TimeMs(planned).to_string();
    let input = serde_json::Map::from_iter([("time".to_owned(), json!(time))]);
    let run = instance_id(of, name, planned);
    let request = StartRequest {
        request_id: format!("{id}-{name}"),
        input,
        on_conflict: ConflictPolicy::Fail,
        principal: Principal::nobody(),
        traceparent: None,
    };
    let sent = Instances::start(node, &run, request, Patience::NONE).await;
    sent.expect("taken");
}

/// Waits until the runs of a planned time have ended in this generation, for every tenant.
async fn until_generation(node: &Node, name: &str, planned: i64, generation: u32) {
    for of in TENANTS {
        let id = instance_id(of, name, planned);
        let mut found = json!(null);
        for _ in 0..3_000 {
            let detail = node.instance(&id, 0).await.expect("it is kept");
            found = serde_json::to_value(detail).expect("JSON");
            if found["generation"] == generation && found["ended"].is_string() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(found["generation"], generation, "{of} {name}");
        assert!(found["ended"].is_string(), "{found}");
    }
}

fn instance_id(of: &str, name: &str, planned: i64) -> InstanceId {
    InstanceId {
        tenant: tenant(of),
        saga: saga(name),
        key: Key::parse(&TimeMs(planned).to_string()).expect("a key"),
    }
}

/// Ends a run.
async fn enough(node: &Node, of: &str, planned: i64) {
    let id = instance_id(of, "slow", planned);
    let message = ControlMessage {
        request_id: "enough-1".to_owned(),
        principal: None,
        verb: ControlVerb::Signal {
            name: "enough".to_owned(),
            data: serde_json::Map::new(),
            by: String::new(),
            hops: 0,
        },
    };
    let sent = node.control(&id, message, None).await.expect("sent");
    assert!(sent.checked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_planned_time_runs_once_on_the_embedded_broker() {
    each_planned_time_runs_once(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_planned_time_runs_once_on_nats() {
    let server = NatsServer::start();
    each_planned_time_runs_once(Some(server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_wait_for_one_another_on_the_embedded_broker() {
    runs_wait_for_one_another(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_wait_for_one_another_on_nats() {
    let server = NatsServer::start();
    runs_wait_for_one_another(Some(server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planned_times_meet_runs_that_were_made_by_hand_on_the_embedded_broker() {
    planned_times_meet_runs_that_were_made_by_hand(None).await;
}
