//! Workers in Rust, Python and TypeScript against a real nats-server: they keep the protocol of docs/workers.md, and the
//! order saga runs over them, whoever is killed.

#![allow(clippy::disallowed_methods, reason = "the test waits in real time")]

mod custom;
#[path = "../../examples/custom_provider.rs"]
mod example;
mod orders;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::support::nats_server::NatsServer;
use saga_runner::demo::upstream::{Settings, Upstream};
use serde_json::{Value, json};

const CHARGE: &str = r#"{"order": "{id}", "customer": "c-1", "amount": 100, "currency": "EUR"}"#;
const SHIP: &str = r#"{"order": "{id}", "customer": "c-1", "items": [{"sku": "s", "qty": 1}]}"#;

/// Where the parts of the other languages are. A machine that cannot install them fails the test.
fn parts() -> &'static (String, String, String) {
    static PARTS: OnceLock<(String, String, String)> = OnceLock::new();
    PARTS.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/workers.sh");
        let output = Command::new(script).output().expect("run scripts/workers.sh");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "the parts of the workers are missing: {errors}"
        );
        let text = String::from_utf8(output.stdout).expect("paths in UTF-8");
        let mut lines = text.lines().map(str::to_owned);
        let mut line = || lines.next().expect("three lines");
        (line(), line(), line())
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Python,
    TypeScript,
}

impl Language {
    fn command_line(self) -> String {
        let (_, typescript, node) = parts();
        match self {
            Self::Python => format!(
                "python3 {}/workers/python/examples/payments.py",
                env!("CARGO_MANIFEST_DIR")
            ),
            Self::TypeScript => format!("{node} {typescript}/dist/examples/shipping.js"),
        }
    }

    /// What the examples are told.
    fn environment(nats: &str, group: &str, shop: &str) -> Vec<(&'static str, String)> {
        let text = str::to_owned;
        vec![
            ("PYTHONPATH", parts().0.clone()),
            ("NATS_URL", text(nats)),
            ("GROUP", text(group)),
            ("SHOP_URL", text(shop)),
            ("ACK_WAIT", text("3")),
        ]
    }

    fn start(self, nats: &str, group: &str, shop: &str) -> Worker {
        let line = self.command_line();
        let mut words = line.split(' ');
        let child = Command::new(words.next().expect("a program"))
            .args(words)
            .envs(Self::environment(nats, group, shop))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the worker starts");
        Worker(child)
    }
}

/// A worker process, killed with the value.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // SIGKILL; one that has ended is as well.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

async fn upstream() -> Upstream {
    let settings = Settings {
        runner: None,
        slow: std::time::Duration::ZERO,
    };
    Upstream::start(([127, 0, 0, 1], 0).into(), settings)
        .await
        .expect("the upstream starts")
}

/// What `effect conformance` says: whether it succeeded, and its report.
async fn conformance(
    nats: &str,
    effect: &str,
    input: &str,
    worker: Option<String>,
    shop: &str,
) -> (bool, Value) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"));
    command
        .args(["effect", "conformance", "--output", "json", "--timeout", "60s"])
        .args(["--nats-url", nats, "--effect", effect, "--input", input])
        .envs(Language::environment(nats, "conformance", shop));
    if let Some(line) = worker {
        command.args(["--worker", &line]);
    }
    let output = command.output().await.expect("conformance runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    (output.status.success(), report)
}

/// Every check was made and passed.
fn all_passed(report: &Value) {
    let checks = report["checks"].as_array().expect("checks");
    assert_eq!(checks.len(), 11, "{report:#}");
    assert!(
        checks.iter().all(|check| check["status"] == "passed"),
        "{report:#}"
    );
}

/// The command that came a second time with its result standing was not executed.
fn not_executed(report: &Value, upstream: &Upstream) {
    let checks = report["checks"].as_array().expect("checks");
    let gate = checks.iter().find(|check| check["check"] == "result at the gate");
    let said = gate.expect("the gate is checked")["explanation"]
        .as_str()
        .expect("text");
    let id = said.split(' ').find(|word| uuid::Uuid::try_parse(word).is_ok());
    let id = id.expect("a command id");
    let deeds = upstream.deeds();
    assert!(!deeds.is_empty(), "the others were executed");
    assert!(deeds.iter().all(|deed| deed.order != id), "{id} was executed");
}

async fn keeps_the_protocol(language: Language, effect: &str, input: &str) {
    let server = NatsServer::start();
    let upstream = upstream().await;
    let shop = format!("http://{}", upstream.address);
    let (passed, report) =
        conformance(&server.url(), effect, input, Some(language.command_line()), &shop).await;
    assert!(passed, "{report:#}");
    all_passed(&report);
    not_executed(&report, &upstream);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_example_keeps_the_protocol() {
    keeps_the_protocol(Language::Python, "payments-charge", CHARGE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_typescript_example_keeps_the_protocol() {
    keeps_the_protocol(Language::TypeScript, "shipping-create", SHIP).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn saga_runners_own_worker_keeps_the_protocol() {
    let server = NatsServer::start();
    let upstream = upstream().await;
    let shop = format!("http://{}", upstream.address);
    let dir = tempfile::tempdir().expect("a temporary directory");
    for folder in ["sagas", "effects"] {
        std::fs::create_dir(dir.path().join(folder)).expect("created");
    }
    let effects = Path::new(env!("CARGO_MANIFEST_DIR")).join("effects");
    std::fs::copy(
        effects.join("payments-charge.yaml"),
        dir.path().join("effects/payments-charge.yaml"),
    )
    .expect("copied");
    let port = saga_runner::app::nats_server::free_port().expect("a free port");
    let manifest = json!({
        "apiVersion": "saga-runner/v1", "kind": "Manifest", "cluster": "conformance", "mode": "effect",
        "tenants": ["conformance"],
        "sagas": dir.path().join("sagas"), "effects": dir.path().join("effects"),
        "broker": {"kind": "nats", "nats": {"urls": [server.url()]}},
        "upstreams": {"shop": shop},
        "http": {"listen": format!("127.0.0.1:{port}"), "admin_listen": format!("127.0.0.1:{port}")},
        "worker": {"ack_wait": "3s", "consumers": {"by": "effect"}},
    });
    let path = dir.path().join("manifest.yaml");
    std::fs::write(&path, manifest.to_string()).expect("written");
    let line = format!(
        "{} run --config {}",
        env!("CARGO_BIN_EXE_saga-runner"),
        path.display()
    );
    let (passed, report) = conformance(&server.url(), "payments-charge", CHARGE, Some(line), &shop).await;
    assert!(passed, "{report:#}");
    all_passed(&report);
    not_executed(&report, &upstream);
}

/// A worker that acknowledges, and answers nothing: the checks are no rubber stamp.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_only_acknowledges_does_not_pass() {
    let server = NatsServer::start();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = dir.path().join("liar.py");
    std::fs::write(&script, LIAR).expect("written");
    let child = Command::new("python3")
        .arg(&script)
        .envs(Language::environment(&server.url(), "conformance", ""))
        .spawn();
    let _liar = Worker(child.expect("it starts"));
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_saga-runner"))
        .args(["effect", "conformance", "--output", "json", "--timeout", "8s"])
        .args(["--nats-url", &server.url(), "--effect", "lies"])
        .output()
        .await
        .expect("conformance runs");
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let checks = report["checks"].as_array().expect("checks");
    let failed = |name: &str| {
        checks
            .iter()
            .any(|check| check["check"] == name && check["status"] == "failed")
    };
    assert!(
        failed("one result per command") && failed("expired command"),
        "{report:#}"
    );
    assert!(failed("unreadable command"), "{report:#}");
    assert!(!failed("consumer") && !failed("all acknowledged"), "{report:#}");
    let left_out = checks
        .iter()
        .filter(|check| check["status"] == "left_out")
        .count();
    assert_eq!(left_out, 3, "{report:#}");
}

const LIAR: &str = r#"
import asyncio, os, nats
from nats.js import api

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    js = nc.jetstream()
    config = api.ConsumerConfig(durable_name="effect-conformance-lies", filter_subject="tenant.*.effect.lies.>",
                                ack_policy=api.AckPolicy.EXPLICIT, ack_wait=3, max_deliver=-1)
    while True:
        try:
            await js.add_consumer("WORKFLOW_COMMANDS", config)
            break
        except Exception:
            await asyncio.sleep(0.1)
    queue = await js.pull_subscribe_bind("effect-conformance-lies", stream="WORKFLOW_COMMANDS")
    while True:
        try:
            for message in await queue.fetch(1, timeout=1):
                await message.ack()
        except nats.errors.TimeoutError:
            pass

asyncio.run(main())
"#;
