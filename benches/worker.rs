//! What a worker costs: CPU for each effect without I/O, and memory with many slow calls in flight, over a real
//! nats-server.
//!
//! `cargo bench --bench worker` prints one line for each; `cargo bench --bench worker -- slow-http 20` the one for HTTP after
//! twenty calls on each connection instead of three. Each is measured in a process of its own, with the allocator of
//! the product; so is the slow upstream, so that neither its memory nor its CPU are counted.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench stops where it unwraps, runs in real time, and prints what it measured"
)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::StreamExt as _;
use procfs::process::Process;
use saga_runner::effects::consumers::Scope;
use saga_runner::effects::{self, BuiltIn, Consumer, Consumers, Secrets, Worker, WorkerSpec, durable_name};
use saga_runner::kernel::definition::{EffectDefinition, SourceFile, load};
use saga_runner::kernel::ids::{CommandId, EffectName, TenantId, TimeMs};
use saga_runner::kernel::subject::{Subject, Tenancy};
use saga_runner::nats::NatsBroker;
use saga_runner::ports::broker::{
    Broker, Expect, Manner, Publication, QueueSpec, StreamSpec, WorkflowStreams,
};
use saga_runner::ports::clock::Clock;
use saga_runner::tasks::Tasks;
use saga_runner::telemetry::Metrics;
use serde_json::json;
use uuid::Uuid;

#[path = "../tests/support/nats_server.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod nats_server;

use nats_server::NatsServer;

/// Commands of the measurement of CPU.
const NOOPS: u64 = 100_000;
/// Calls that are in flight at the same time, spread over so many effects.
const IN_FLIGHT: u64 = 10_000;
const SLOW_EFFECTS: u64 = 4;
/// Calls for each that is in flight, one after the other, where nobody says how many; and how long each takes.
const ROUNDS: u64 = 3;
const SLOW: Duration = Duration::from_secs(1);

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> TimeMs {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        TimeMs(i64::try_from(now.as_millis()).unwrap())
    }

    fn monotonic(&self) -> Duration {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }
}

/// What this process is to do; without a word it has each figure measured by another one.
fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["upstream-http"] => runtime.block_on(http_upstream()),
        ["upstream-nats", url] => runtime.block_on(nats_upstream(url)),
        ["noops"] => runtime.block_on(noops()),
        ["slow-http"] => runtime.block_on(slow(Peer::Http, ROUNDS)),
        ["slow-http", rounds] => runtime.block_on(slow(Peer::Http, rounds.parse().unwrap())),
        ["slow-nats"] => runtime.block_on(slow(Peer::Nats, ROUNDS)),
        _ => {
            for figure in ["noops", "slow-http", "slow-nats"] {
                let status = Command::new(std::env::current_exe().unwrap())
                    .arg(figure)
                    .status();
                assert!(status.unwrap().success());
            }
        }
    }
}

/// Answers every request after [`SLOW`].
async fn http_upstream() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let answer = || async {
        tokio::time::sleep(SLOW).await;
        "{}"
    };
    axum::serve(listener, axum::Router::new().fallback(answer))
        .await
        .unwrap();
}

/// The same over NATS.
async fn nats_upstream(url: &str) {
    let client = async_nats::connect(url).await.unwrap();
    let mut requests = client.subscribe("slow").await.unwrap();
    client.flush().await.unwrap();
    println!("ready");
    while let Some(request) = requests.next().await {
        let client = client.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SLOW).await;
            client
                .publish(request.reply.unwrap(), Bytes::from_static(b"{}"))
                .await
                .unwrap();
        });
    }
}

/// What the slow effects call.
#[derive(Clone, Copy)]
enum Peer {
    Http,
    Nats,
}

/// A server with the runner's streams.
struct Ground {
    broker: Arc<dyn Broker>,
    streams: WorkflowStreams,
    server: NatsServer,
}

impl Ground {
    async fn new() -> Self {
        let server = NatsServer::start();
        let settings = serde_json::from_value(json!({ "urls": [server.url()] })).unwrap();
        let broker = NatsBroker::connect(settings).await.unwrap();
        broker.connected().await.unwrap();
        let streams = WorkflowStreams {
            cluster: "test".to_owned(),
            commands: "WORKFLOW_COMMANDS".to_owned(),
            events: "WORKFLOW_EVENTS".to_owned(),
        };
        for (name, kinds) in [
            (
                &streams.commands,
                ["effect", "effect_progress", "effect_cancel"].as_slice(),
            ),
            (&streams.events, ["effect_result"].as_slice()),
        ] {
            let spec = StreamSpec {
                name: name.clone(),
                subjects: kinds.iter().map(|kind| format!("tenant.*.{kind}.>")).collect(),
                replicas: 1,
                message_bytes_max: 1024 * 1024,
                foreign: false,
            };
            broker.ensure_stream(&spec).await.unwrap();
        }
        Self {
            broker,
            streams,
            server,
        }
    }

    /// Puts `count` commands of an effect into the queue, which is made before: what is older than its queue is
    /// looked up before it is executed.
    async fn enqueue(&self, effect: &EffectName, first: u64, count: u64) {
        let spec = QueueSpec {
            group: None,
            stream: self.streams.commands.clone(),
            filters: vec![format!("tenant.*.effect.{effect}.>")],
            durable: durable_name("bench", effect),
            ack_wait: Duration::from_secs(30),
            max_unacknowledged: 4_096,
            buffer: 1,
            manner: Manner::default(),
        };
        self.broker.queue(spec).await.unwrap().close().await;
        let deadline = SystemClock.now().plus_ms(3_600_000).0;
        let publish = |n: u64| {
            let command = CommandId(Uuid::from_u128(
                0x0199_0000_0000_7000_8000_0000_0000_0000 + u128::from(n),
            ));
            let tenant = TenantId::parse("acme").unwrap();
            let payload = json!({
                "tenant_id": "acme", "command_id": command, "effect_name": effect, "payload": {"amount": n},
                "metadata": {
                    "saga": "order", "key": format!("o-{n}"), "correlation_id": format!("o-{n}"),
                    "causation_id": "e-1", "idempotency_key": format!("{n:032x}"), "path": "steps.charge",
                    "attempt": 1, "deadline_ms": deadline, "hops": 1,
                },
            });
            let subject = Subject::Effect {
                tenant,
                effect: effect.clone(),
                command,
            };
            let publication = Publication {
                stream: self.streams.commands.clone(),
                subject: subject.render(),
                headers: Vec::new(),
                payload: Bytes::from(payload.to_string()),
                expect: Expect::Nothing,
            };
            let broker = Arc::clone(&self.broker);
            async move { broker.publish(publication).await.unwrap() }
        };
        let mut stored = futures::stream::iter((first..first + count).map(publish)).buffer_unordered(512);
        while stored.next().await.is_some() {}
    }

    fn worker(&self, effects: Vec<Arc<EffectDefinition>>, upstream: &str, metrics: &Arc<Metrics>) -> Worker {
        let spec = WorkerSpec {
            broker: Arc::clone(&self.broker),
            consumers: consumers(&effects),
            effects,
            tenancy: Tenancy::Multi,
            streams: self.streams.clone(),
            settings: effects::Settings {
                concurrency: usize::try_from(2 * IN_FLIGHT).unwrap(),
                ..effects::Settings::default()
            },
            secrets: Arc::new(Secrets::new(&BTreeMap::new())),
            providers: Arc::new(BuiltIn::calling(BTreeMap::from([(
                "slow".to_owned(),
                upstream.to_owned(),
            )]))),
            clock: Arc::new(SystemClock),
            tasks: Tasks::new(metrics, &(Arc::new(SystemClock) as Arc<dyn Clock>)),
            metrics: Arc::clone(metrics),
            local: None,
            name: Uuid::new_v4().simple().to_string().into(),
            group: "bench".to_owned(),
        };
        Worker::start(&spec).unwrap()
    }

    /// Waits until all commands of the effect are acknowledged; calls `look` in between.
    async fn answered(&self, effect: &EffectName, commands: u64, mut look: impl FnMut()) {
        let durable = durable_name("bench", effect);
        loop {
            look();
            let floor = self
                .broker
                .queue_floor(&self.streams.commands, &durable)
                .await
                .unwrap();
            if floor.is_some_and(|floor| floor >= commands) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn definition(name: &str, rest: &str) -> Arc<EffectDefinition> {
    let source = SourceFile {
        path: format!("{name}.yaml"),
        text: format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\n{rest}").into(),
    };
    let loaded = load(&[], &[source]);
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    Arc::clone(&loaded.effects[0])
}

fn cpu() -> Duration {
    let stat = Process::myself().unwrap().stat().unwrap();
    Duration::from_millis((stat.utime + stat.stime) * 1_000 / procfs::ticks_per_second())
}

/// Resident memory now, in mebibytes.
fn resident() -> u64 {
    let status = Process::myself().unwrap().status().unwrap();
    status.vmrss.unwrap() / 1_024
}

async fn noops() {
    let ground = Ground::new().await;
    let noop = definition("noop", "transform: {}\nresult: {}\nlimits: {concurrency: 256}\n");
    ground.enqueue(&noop.name, 0, NOOPS).await;
    let (start, before) = (Instant::now(), cpu());
    let worker = ground.worker(
        vec![Arc::clone(&noop)],
        "http://nowhere",
        &Arc::new(Metrics::new()),
    );
    ground.answered(&noop.name, NOOPS, || ()).await;
    let (took, used) = (start.elapsed(), cpu().saturating_sub(before));
    worker.drain(Duration::from_secs(5)).await;
    println!(
        "no-op effects over nats-server: {NOOPS} in {:.1} s, {:.0} effects/s, {:.1} us of CPU each in the worker's process",
        took.as_secs_f64(),
        NOOPS as f64 / took.as_secs_f64(),
        used.as_secs_f64() * 1e6 / NOOPS as f64,
    );
}

/// Ends with the value.
struct Upstream(Child);

impl Drop for Upstream {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

async fn slow(peer: Peer, rounds: u64) {
    let ground = Ground::new().await;
    let mut command = Command::new(std::env::current_exe().unwrap());
    match peer {
        Peer::Http => command.arg("upstream-http"),
        Peer::Nats => command.args(["upstream-nats", &ground.server.url()]),
    };
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut word = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut word).unwrap();
    let _upstream = Upstream(child);
    let (name, call) = match peer {
        Peer::Http => ("HTTP", "http: {method: POST, url: \"${upstreams.slow}/\","),
        Peer::Nats => ("NATS", "nats: {request: slow,"),
    };
    let each = IN_FLIGHT / SLOW_EFFECTS;
    let mut effects = Vec::new();
    for n in 0..SLOW_EFFECTS {
        let rest = format!("{call} body: {{n: \"${{input.amount}}\"}}}}\nlimits: {{concurrency: {each}}}\n");
        let effect = definition(&format!("slow-{n}"), &rest);
        ground
            .enqueue(&effect.name, n * each * rounds, each * rounds)
            .await;
        effects.push(effect);
    }
    let empty = resident();
    let metrics = Arc::new(Metrics::new());
    let start = Instant::now();
    let upstream = format!("http://{}", word.trim());
    let worker = ground.worker(effects.clone(), &upstream, &metrics);
    let (mut in_flight, mut memory) = (0, 0);
    for (effect, n) in effects.iter().zip(1..) {
        ground
            .answered(&effect.name, n * each * rounds, || {
                let running = |effect: &Arc<EffectDefinition>| {
                    metrics
                        .effect_commands_in_progress
                        .with_label_values(&[effect.name.as_str()])
                        .get()
                };
                in_flight = in_flight.max(effects.iter().map(running).sum::<i64>());
                memory = memory.max(resident());
            })
            .await;
    }
    let took = start.elapsed();
    worker.drain(Duration::from_secs(5)).await;
    println!(
        "slow effects (1 s over {name}): {} in {:.1} s, at most {in_flight} in progress, at most {memory} MiB resident ({empty} MiB before)",
        IN_FLIGHT * rounds,
        took.as_secs_f64(),
    );
}

/// One consumer for each effect.
fn consumers(effects: &[Arc<EffectDefinition>]) -> Vec<Consumer> {
    let scope = Scope {
        group: "bench",
        tenancy: Tenancy::Multi,
        tenants: None,
    };
    Consumers::default().plan(scope, effects).expect("it fits")
}
