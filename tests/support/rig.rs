#![allow(
    dead_code,
    clippy::disallowed_methods,
    reason = "several test programs share it, none needs all of it, and it waits in real time"
)]
//! The real binary, a real upstream, and either broker, all on loopback; killed as the test says.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use saga_runner::demo::upstream::{Settings, Upstream};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The tenant of all orders.
pub const TENANT: &str = "acme";

pub struct Rig {
    dir: TempDir,
    pub upstream: Upstream,
    pub client: reqwest::Client,
    address: SocketAddr,
    scheme: &'static str,
    runner: Option<Child>,
}

impl Rig {
    /// Definitions are the shipped ones, with the order's half hour cut to `unpaid_after`.
    pub async fn new(nats_url: Option<String>, unpaid_after: &str, slow: Duration, extra: Value) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let settings = Settings { runner: None, slow };
        let upstream = Upstream::start(SocketAddr::from(([127, 0, 0, 1], 0)), settings)
            .await
            .expect("the upstream starts");
        let port = saga_runner::app::nats_server::free_port().expect("a free port");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        copy_definitions(dir.path(), unpaid_after);
        let base = format!("http://{}", upstream.address);
        let mut manifest = json!({
            "apiVersion": "saga-runner/v1",
            "kind": "Manifest",
            "cluster": "crash",
            "data_dir": dir.path().join("data"),
            "shards": 2,
            "tenants": [TENANT, "globex"],
            "sagas": dir.path().join("sagas"),
            "effects": dir.path().join("effects"),
            "gateway": {"url": format!("{base}/gateway/commands")},
            "upstreams": {"shop": base},
            "http": {"listen": address, "admin_listen": address, "accept_events": true},
        });
        if let Some(url) = &nats_url {
            manifest["broker"] = json!({"kind": "nats", "nats": {"urls": [url]}});
        }
        // A gateway has one address: another one stands in place of the upstream's.
        if ["nats", "grpc"]
            .iter()
            .any(|kind| extra["gateway"].get(kind).is_some())
        {
            manifest["gateway"] = Value::Null;
        }
        merge(&mut manifest, extra);
        let scheme = if manifest["http"]["tls"].is_object() {
            "https"
        } else {
            "http"
        };
        std::fs::write(dir.path().join("manifest.yaml"), manifest.to_string()).expect("written");
        upstream.set_runner(format!("http://{address}"));
        Self {
            dir,
            upstream,
            client: reqwest::Client::builder().no_proxy().build().expect("a client"),
            address,
            scheme,
            runner: None,
        }
    }

    /// Adds a saga to the shipped ones, before the start.
    pub fn add_saga(&self, name: &str, text: &str) {
        let path = self.dir.path().join("sagas").join(format!("{name}.yaml"));
        std::fs::write(path, text).expect("written");
    }

    /// Adds an effect.
    pub fn add_effect(&self, name: &str, text: &str) {
        let path = self.dir.path().join("effects").join(format!("{name}.yaml"));
        std::fs::write(path, text).expect("written");
    }

    /// Takes all sagas and effects away.
    pub fn clear_definitions(&self) {
        for folder in ["sagas", "effects"] {
            let folder = self.dir.path().join(folder);
            std::fs::remove_dir_all(&folder).expect("removed");
            std::fs::create_dir(&folder).expect("created");
        }
    }

    /// Adds any file, by its path from the manifest. Only its owner may read it.
    pub fn add_file(&self, path: &str, bytes: &[u8]) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its permissions");
    }

    /// Takes a file away.
    pub fn remove_file(&self, path: &str) {
        std::fs::remove_file(self.dir.path().join(path)).expect("it was there");
    }

    /// Sends a signal to the runner. One that stops it has stopped all its threads when this returns.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.pid());
        nix::sys::signal::kill(pid, signal).expect("signalled");
        let begin = Instant::now();
        while signal == nix::sys::signal::Signal::SIGSTOP && !is_stopped(self.pid()) {
            assert!(begin.elapsed() < Duration::from_secs(10), "it does not stop");
            std::thread::yield_now();
        }
    }

    /// The folder of manifest and definitions.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub fn log(&self) -> PathBuf {
        self.dir.path().join("runner.log")
    }

    /// Starts the runner in another mode than the manifest's, and waits until it is ready.
    pub async fn start_as(&mut self, mode: &str) {
        self.launch_with(&["--mode", mode]);
        self.wait_until_ready().await;
    }

    /// Starts the runner without waiting for it.
    pub fn launch(&mut self) {
        self.launch_with(&[]);
    }

    fn launch_with(&mut self, arguments: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_saga-runner"));
        command
            .args(["run", "--config"])
            .arg(self.manifest())
            .args(arguments);
        self.launch_as(command);
    }

    pub fn manifest(&self) -> PathBuf {
        self.dir.path().join("manifest.yaml")
    }

    /// Starts the runner by another command line, without waiting for it.
    pub fn launch_as(&mut self, mut command: Command) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .expect("a log");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the runner starts");
        self.runner = Some(child);
    }

    /// Starts the runner and waits until it is ready.
    pub async fn start(&mut self) {
        self.launch();
        self.wait_until_ready().await;
    }

    pub async fn wait_until_ready(&mut self) {
        let begin = Instant::now();
        loop {
            if let Ok(answer) = self.client.get(self.url("/ready")).send().await
                && answer.status().is_success()
            {
                return;
            }
            if let Some(status) = self
                .runner
                .as_mut()
                .and_then(|child| child.try_wait().ok())
                .flatten()
            {
                panic!("the runner stopped with {status}:\n{}", self.log_tail());
            }
            assert!(
                begin.elapsed() < Duration::from_mins(1),
                "the runner is not ready:\n{}",
                self.log_tail()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the runner with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.runner.take() {
            child.kill().expect("killed");
            child.wait().expect("reaped");
        }
    }

    /// Ends the runner with SIGTERM and gives its exit code.
    pub async fn terminate(&mut self) -> Option<i32> {
        let mut child = self.runner.take().expect("a running runner");
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("signalled");
        tokio::task::spawn_blocking(move || child.wait().expect("reaped").code())
            .await
            .expect("waited")
    }

    /// The exit code of a runner that was told to end by other means than a signal.
    pub async fn exit(&mut self) -> Option<i32> {
        let mut child = self.runner.take().expect("a running runner");
        tokio::task::spawn_blocking(move || child.wait().expect("reaped").code())
            .await
            .expect("waited")
    }

    /// The process id of the runner.
    pub fn pid(&self) -> i32 {
        let child = self.runner.as_ref().expect("a running runner");
        i32::try_from(child.id()).expect("a pid")
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    /// One instance as the API shows it.
    pub async fn instance(&self, saga: &str, key: &str) -> Option<Value> {
        let url = self.url(&format!("/v1/tenants/{TENANT}/sagas/{saga}/instances/{key}"));
        let answer = self.client.get(url).send().await.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        serde_json::from_slice(&answer.bytes().await.ok()?).ok()
    }

    /// Waits until `wanted` holds for the instance.
    pub async fn wait_for(&self, saga: &str, key: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        let mut last = None;
        while begin.elapsed() < Duration::from_mins(1) {
            if let Some(view) = self.instance(saga, key).await {
                if wanted(&view) {
                    return view;
                }
                last = Some(view);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{saga}/{key} did not get there: {last:?}\n{}", self.log_tail());
    }

    /// Waits until every shard has read the stream up to `sequence`.
    pub async fn until_read(&self, stream: &str, sequence: u64) {
        let has_read = |shard: &Value| shard["positions"][stream].as_u64() >= Some(sequence);
        let begin = Instant::now();
        loop {
            let answer = self
                .client
                .get(self.url("/admin/shards"))
                .send()
                .await
                .expect("an answer");
            let page: Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
            let shards = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            if !shards.is_empty() && shards.iter().all(has_read) {
                return;
            }
            assert!(
                begin.elapsed() < Duration::from_mins(1),
                "{page}\n{}",
                self.log_tail()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends an event over HTTP until it is taken; its id makes repetition harmless.
    pub async fn send(&self, aggregate: &str, id: &str, event: &str, payload: Value) {
        self.send_body(event_body(aggregate, id, event, &payload)).await;
    }

    /// Sends an envelope as it is.
    pub async fn send_body(&self, body: String) {
        let url = self.url(&format!("/v1/tenants/{TENANT}/events"));
        for _ in 0..600 {
            let request = self.client.post(&url).header("content-type", "application/json");
            if let Ok(answer) = request.body(body.clone()).send().await
                && answer.status().is_success()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the event was never taken\n{}", self.log_tail());
    }

    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn event_body(aggregate: &str, id: &str, event: &str, payload: &Value) -> String {
    json!({
        "tenant_id": TENANT,
        "event_id": format!("{aggregate}-{event}-{id}"),
        "event_type": event,
        "aggregate_type": aggregate,
        "aggregate_id": id,
        "sequence": 1,
        "schema_version": 1,
        "payload": payload,
        "metadata": {"correlation_id": id},
    })
    .to_string()
}

pub fn order_payload(order: &str) -> Value {
    json!({
        "order_id": order,
        "customer": {"id": "c-1"},
        "items": [{"sku": "tea-01", "qty": 2}],
        "total_cents": 1999,
        "currency": "EUR",
    })
}

fn copy_definitions(dir: &Path, unpaid_after: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for kind in ["sagas", "effects"] {
        std::fs::create_dir_all(dir.join(kind)).expect("created");
        for entry in std::fs::read_dir(root.join(kind)).expect("shipped definitions") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                continue; // cases of `saga-runner test`
            }
            let text = std::fs::read_to_string(&path).expect("readable");
            let text = text.replace("after: 30m", &format!("after: {unpaid_after}"));
            let name = path.file_name().expect("a file");
            std::fs::write(dir.join(kind).join(name), text).expect("written");
        }
    }
}

/// Lays `extra` over `into`, object by object.
fn merge(into: &mut Value, extra: Value) {
    match (into, extra) {
        (Value::Object(into), Value::Object(extra)) => {
            for (key, value) in extra {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, extra) => *into = extra,
    }
}

/// Whether every thread of a process is stopped: threads that run stop a moment after the signal.
fn is_stopped(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // Behind the name in brackets, which may hold anything, comes the state.
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with('T'))
    })
}
