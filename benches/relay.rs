//! Handing over and answering work over the embedded broker: what a command costs on its way out and back.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a bench stops where it unwraps, and runs in real time"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use saga_runner::effects::consumers::Scope;
use saga_runner::effects::{self, BuiltIn, Consumer, Consumers, Worker, WorkerSpec, durable_name};
use saga_runner::inproc::{self, InprocBroker};
use saga_runner::kernel::definition::EffectDefinition;
use saga_runner::kernel::definition::effect::{EffectLimits, OnAmbiguous, OnCancel, Provider};
use saga_runner::kernel::ids::{
    ClusterId, CommandId, EffectName, InstanceId, Key, SagaName, TenantId, TimeMs,
};
use saga_runner::kernel::retry::RetryPolicy;
use saga_runner::kernel::subject::Tenancy;
use saga_runner::kernel::work::{WorkItem, WorkKind, WorkRef};
use saga_runner::outbox::{self, Relay, RelaySpec};
use saga_runner::ports::broker::{Broker, StreamSpec, WorkflowStreams};
use saga_runner::ports::clock::Clock;
use saga_runner::shard::mailbox::{Mail, Relayed, Released};
use saga_runner::tasks::Tasks;
use saga_runner::telemetry::Metrics;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use uuid::Uuid;

const COMMANDS: u64 = 1_000;

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

/// A broker with a relay whose shard has nothing else to do, and the number of rows released so far.
struct Bench {
    broker: Arc<dyn Broker>,
    streams: WorkflowStreams,
    released: mpsc::Sender<Released>,
    relayed: Arc<Relayed>,
    sequence: u64,
    _relay: Relay,
    _dir: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let broker = InprocBroker::open(dir.path(), inproc::Settings::default(), Arc::clone(&clock)).unwrap();
        let streams = WorkflowStreams {
            cluster: "test".to_owned(),
            commands: "WORKFLOW_COMMANDS".to_owned(),
            events: "WORKFLOW_EVENTS".to_owned(),
        };
        for (name, kind) in [(&streams.commands, "effect"), (&streams.events, "effect_result")] {
            let spec = StreamSpec {
                name: name.clone(),
                subjects: vec![format!("tenant.*.{kind}.>")],
                replicas: 1,
                message_bytes_max: 1024 * 1024,
                foreign: false,
            };
            broker.ensure_stream(&spec).await.unwrap();
        }
        let (released, receiver) = mpsc::channel(64);
        let (mailbox, mut mail) = mpsc::channel(64);
        tokio::spawn(async move {
            while let Some(mail) = mail.recv().await {
                if let Mail::Refill { reply, .. } = mail {
                    reply.send(Vec::new()).unwrap();
                }
            }
        });
        let relayed = Arc::new(Relayed::default());
        let metrics = Arc::new(Metrics::new());
        let relay = Relay::start(RelaySpec {
            shard: 0,
            broker: Arc::clone(&broker) as Arc<dyn Broker>,
            submitter: None,
            released: receiver,
            mailbox,
            relayed: Arc::clone(&relayed),
            take_spilled: Box::new(|| false),
            streams: streams.clone(),
            local: None,
            announces: Arc::new(|_| false),
            began_after: 0,
            fence: outbox::Fence::open(Arc::clone(&clock)),
            cluster: ClusterId([7; 16]),
            settings: outbox::Settings {
                per_tenant_in_flight: usize::MAX,
                ..outbox::Settings::default()
            },
            limits: saga_runner::kernel::limits::Limits::default(),
            clock: Arc::clone(&clock),
            tasks: Tasks::new(&metrics, &clock),
            metrics,
        });
        Self {
            broker,
            streams,
            released,
            relayed,
            sequence: 0,
            _relay: relay,
            _dir: dir,
        }
    }

    fn worker(&self) -> Worker {
        let effects = vec![Arc::new(EffectDefinition {
            schemas: saga_runner::kernel::definition::effect::EffectSchemas::default(),
            name: effect(),
            provider: Provider::Transform,
            timeout_ms: 10_000,
            connect_timeout_ms: 2_000,
            retry: RetryPolicy {
                attempts: 1,
                initial_ms: 100,
                factor: 2.0,
                max_ms: 1_000,
            },
            retry_classes: Vec::new(),
            on_ambiguous: OnAmbiguous::default(),
            on_cancel: OnCancel::default(),
            limits: EffectLimits {
                concurrency: 256,
                ..EffectLimits::default()
            },
            breaker: None,
            redaction: saga_runner::kernel::definition::redaction::Redaction::default(),
            classify: Vec::new(),
            result: None,
        })];
        let (metrics, clock) = (Arc::new(Metrics::new()), Arc::new(SystemClock) as Arc<dyn Clock>);
        Worker::start(&WorkerSpec {
            broker: Arc::clone(&self.broker),
            consumers: consumers(&effects),
            effects,
            tenancy: Tenancy::Multi,
            streams: self.streams.clone(),
            settings: effects::Settings::default(),
            secrets: Arc::new(saga_runner::effects::Secrets::new(&BTreeMap::new())),
            providers: Arc::new(BuiltIn::calling(BTreeMap::new())),
            clock: Arc::clone(&clock),
            tasks: Tasks::new(&metrics, &clock),
            metrics,
            local: None,
            name: Uuid::new_v4().simple().to_string().into(),
            group: "bench".to_owned(),
        })
        .unwrap()
    }

    /// A commit with the next rows.
    fn commit(&mut self) -> Released {
        self.sequence += 1;
        let sequence = self.sequence;
        let rows = (0..COMMANDS).map(|n| {
            let index = u16::try_from(n).unwrap();
            let row = WorkRef {
                log_sequence: sequence,
                index,
            };
            (row, item(sequence * COMMANDS + n))
        });
        Released {
            shard: 0,
            work: rows.collect(),
            completed: Vec::new(),
            overdue: Vec::new(),
        }
    }

    async fn hand_over(&self, released: Released) {
        let last = released.work.last().map(|(row, _)| *row).unwrap();
        self.released.send(released).await.unwrap();
        while !Relayed::covers(self.relayed.floor.load(Ordering::Acquire), last) {
            tokio::task::yield_now().await;
        }
    }

    async fn answered(&self) {
        let target = self.sequence * COMMANDS;
        let durable = durable_name("bench", &effect());
        loop {
            let floor = self
                .broker
                .queue_floor(&self.streams.commands, &durable)
                .await
                .unwrap();
            if floor.is_some_and(|floor| floor >= target) {
                return;
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
}

fn effect() -> EffectName {
    EffectName::parse("noop").unwrap()
}

fn item(n: u64) -> WorkItem {
    let now = SystemClock.now();
    WorkItem {
        instance: InstanceId {
            tenant: TenantId::parse("acme").unwrap(),
            saga: SagaName::parse("order").unwrap(),
            key: Key::parse(&format!("o-{n}")).unwrap(),
        },
        command_id: CommandId(Uuid::from_u128(
            0x0199_0000_0000_7000_8000_0000_0000_0000 + u128::from(n),
        )),
        idempotency_key: format!("{n:032x}"),
        path: "steps.charge".to_owned(),
        attempt: 1,
        created: now,
        deadline: now.plus_ms(900_000),
        waited_ms: 0,
        causation_id: "e-1".to_owned(),
        root_correlation_id: None,
        traceparent: None,
        hops: 1,
        kind: WorkKind::Effect {
            effect: effect(),
            payload: Bytes::from(format!(r#"{{"order":"o-{n}","amount":12999,"currency":"EUR"}}"#)),
        },
    }
}

fn relay(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let mut group = c.benchmark_group("relay");
    group.throughput(Throughput::Elements(COMMANDS)).sample_size(10);
    group.bench_function("hand over 1,000 effect commands", |b| {
        let mut bench = runtime.block_on(Bench::new());
        b.iter_custom(|rounds| {
            let mut took = Duration::ZERO;
            for _ in 0..rounds {
                let released = bench.commit();
                let begin = Instant::now();
                runtime.block_on(bench.hand_over(released));
                took += begin.elapsed();
            }
            took
        });
    });
    group.bench_function("hand over and answer 1,000 no-op effect commands", |b| {
        let mut bench = runtime.block_on(Bench::new());
        let worker = runtime.block_on(async { bench.worker() });
        b.iter_custom(|rounds| {
            let mut took = Duration::ZERO;
            for _ in 0..rounds {
                let released = bench.commit();
                let begin = Instant::now();
                runtime.block_on(async {
                    bench.hand_over(released).await;
                    bench.answered().await;
                });
                took += begin.elapsed();
            }
            took
        });
        runtime.block_on(worker.drain(Duration::from_secs(1)));
    });
    group.finish();
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

criterion_group!(benches, relay);
criterion_main!(benches);
