//! A broker with the runner's streams, effects, and a shard's outbox in the hands of a test.

mod items;
mod shard_side;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use saga_runner::effects::consumers::{Consumer, Consumers, Scope};
use saga_runner::effects::{self, BuiltIn, Local, Worker, WorkerSpec};
use saga_runner::inproc::{self, InprocBroker};
use saga_runner::kernel::definition::EffectDefinition;
use saga_runner::kernel::definition::effect::{
    EffectLimits, EffectSchemas, HttpCall, OnAmbiguous, OnCancel, Provider,
};
use saga_runner::kernel::definition::redaction::Redaction;
use saga_runner::kernel::duration::Millis;
use saga_runner::kernel::expr::{Root, Template};
use saga_runner::kernel::ids::{ClusterId, TenantId, TimeMs};
use saga_runner::kernel::retry::RetryPolicy;
use saga_runner::kernel::subject::Tenancy;
use saga_runner::kernel::work::WorkItem;
use saga_runner::nats::{NatsBroker, Settings};
use saga_runner::outbox::{self, Relay, RelaySpec, Submitter};
use saga_runner::ports::broker::{Broker, QueueState, StreamSpec, WorkflowStreams};
use saga_runner::ports::clock::Clock;
use saga_runner::shard::mailbox::Relayed;
use saga_runner::tasks::Tasks;
use saga_runner::telemetry::Metrics;
use tokio::sync::mpsc;
use uuid::Uuid;

pub use self::items::{at, command, command_subject, effect, effect_name, fact, item, result_subject};
pub use self::shard_side::{RelayOptions, ShardSide};
use crate::support::nats_server::NatsServer;

pub const PATIENCE: Duration = Duration::from_mins(1);

/// The machine's clock, moved.
#[derive(Default)]
pub struct MovedClock(pub AtomicI64);

impl Clock for MovedClock {
    fn now(&self) -> TimeMs {
        let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        TimeMs(i64::try_from(real.as_millis()).unwrap() + self.0.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }
}

/// What the broker stands on, kept for as long as it runs.
enum Ground {
    Embedded { _dir: tempfile::TempDir },
    Nats { server: NatsServer },
}

pub struct Rig {
    pub broker: Arc<dyn Broker>,
    ground: Ground,
    pub streams: WorkflowStreams,
    pub clock: Arc<MovedClock>,
    pub metrics: Arc<Metrics>,
    /// Whether commands are sent as those of an effect that makes no call twice: from the first worker on that has one.
    pub announced: Arc<AtomicBool>,
    tasks: Tasks,
}

impl Rig {
    pub fn tasks(&self) -> Tasks {
        self.tasks.clone()
    }

    pub async fn new() -> Self {
        let clock = Arc::new(MovedClock::default());
        let dir = tempfile::tempdir().unwrap();
        let broker = InprocBroker::open(dir.path(), inproc::Settings::default(), clock).unwrap();
        Self::over(broker, Ground::Embedded { _dir: dir }).await
    }

    /// The same over a real nats-server.
    pub async fn on_nats() -> Self {
        let server = NatsServer::start();
        let settings: Settings =
            serde_json::from_value(serde_json::json!({ "urls": [server.url()] })).unwrap();
        let broker = NatsBroker::connect(settings).await.unwrap();
        broker.connected().await.unwrap();
        Self::over(broker, Ground::Nats { server }).await
    }

    /// The same with a connection of the test's own.
    pub async fn on_nats_with(broker: Arc<dyn Broker>, server: NatsServer) -> Self {
        Self::over(broker, Ground::Nats { server }).await
    }

    /// Where the server listens.
    pub fn nats_url(&self) -> String {
        match &self.ground {
            Ground::Nats { server } => server.url(),
            Ground::Embedded { .. } => panic!("a broker in this process listens nowhere"),
        }
    }

    async fn over(broker: Arc<dyn Broker>, ground: Ground) -> Self {
        let streams = WorkflowStreams {
            cluster: "test".to_owned(),
            commands: "WORKFLOW_COMMANDS".to_owned(),
            events: "WORKFLOW_EVENTS".to_owned(),
        };
        let subjects = |kinds: &[&str]| -> Vec<String> {
            kinds.iter().map(|kind| format!("tenant.*.{kind}.>")).collect()
        };
        for (name, subjects) in [
            (
                &streams.commands,
                [
                    subjects(&["effect", "effect_progress", "effect_cancel", "workflow"]),
                    vec!["runner.test.control.>".to_owned()],
                ]
                .concat(),
            ),
            (&streams.events, subjects(&["effect_result", "workflow_event"])),
        ] {
            let spec = StreamSpec {
                name: name.clone(),
                subjects,
                replicas: 1,
                message_bytes_max: 1024 * 1024,
                foreign: false,
            };
            broker.ensure_stream(&spec).await.unwrap();
        }
        let (clock, metrics) = (Arc::new(MovedClock::default()), Arc::new(Metrics::new()));
        Self {
            ground,
            broker,
            streams,
            tasks: Tasks::new(&metrics, &(Arc::clone(&clock) as Arc<dyn Clock>)),
            clock,
            metrics,
            announced: Arc::default(),
        }
    }

    pub fn worker(&self, effect: EffectDefinition, upstream: &str) -> Worker {
        self.worker_over(Arc::clone(&self.broker), effect, upstream)
    }

    pub fn worker_over(&self, broker: Arc<dyn Broker>, effect: EffectDefinition, upstream: &str) -> Worker {
        self.start_worker(broker, "test", effect, upstream)
    }

    pub fn worker_in(&self, group: &str, effect: EffectDefinition, upstream: &str) -> Worker {
        self.start_worker(Arc::clone(&self.broker), group, effect, upstream)
    }

    fn start_worker(
        &self,
        broker: Arc<dyn Broker>,
        group: &str,
        effect: EffectDefinition,
        upstream: &str,
    ) -> Worker {
        self.start(broker, group, vec![effect], upstream, Arc::clone(&self.metrics))
    }

    /// A worker whose series are its own.
    pub fn measured(&self, effects: Vec<EffectDefinition>, upstream: &str) -> (Worker, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new());
        let broker = Arc::clone(&self.broker);
        let worker = self.start(broker, "test", effects, upstream, Arc::clone(&metrics));
        (worker, metrics)
    }

    /// A worker that the relay finds by `local`.
    pub fn local_worker(&self, local: &Arc<Local>, effects: Vec<EffectDefinition>, upstream: &str) -> Worker {
        let mut spec = self.spec("test", effects, upstream, Arc::clone(&self.metrics));
        spec.local = Some(Arc::clone(local));
        Worker::start(&spec).unwrap()
    }

    /// The same with so many places for calls.
    pub fn crowded(
        &self,
        places: usize,
        effects: Vec<EffectDefinition>,
        upstream: &str,
    ) -> (Worker, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new());
        let mut spec = self.spec("test", effects, upstream, Arc::clone(&metrics));
        spec.settings.concurrency = places;
        (Worker::start(&spec).unwrap(), metrics)
    }

    fn start(
        &self,
        broker: Arc<dyn Broker>,
        group: &str,
        effects: Vec<EffectDefinition>,
        upstream: &str,
        metrics: Arc<Metrics>,
    ) -> Worker {
        let spec = WorkerSpec {
            broker,
            ..self.spec(group, effects, upstream, metrics)
        };
        Worker::start(&spec).unwrap()
    }

    pub fn spec(
        &self,
        group: &str,
        effects: Vec<EffectDefinition>,
        upstream: &str,
        metrics: Arc<Metrics>,
    ) -> WorkerSpec {
        let effects: Vec<_> = effects.into_iter().map(Arc::new).collect();
        if effects.iter().any(|effect| effect.never_calls_twice()) {
            self.announced.store(true, Ordering::Release);
        }
        WorkerSpec {
            broker: Arc::clone(&self.broker),
            consumers: plan("by: effect", group, &effects),
            effects,
            tenancy: Tenancy::Multi,
            streams: self.streams.clone(),
            settings: effects::Settings {
                ack_wait: Millis(600),
                result_retry_max: Millis(200),
                ..effects::Settings::default()
            },
            secrets: Arc::new(effects::Secrets::new(&BTreeMap::new())),
            providers: Arc::new(BuiltIn::calling(BTreeMap::from([(
                "pay".to_owned(),
                upstream.to_owned(),
            )]))),
            clock: Arc::clone(&self.clock) as Arc<dyn Clock>,
            tasks: self.tasks(),
            metrics,
            name: Uuid::new_v4().simple().to_string().into(),
            group: group.to_owned(),
            local: None,
        }
    }

    /// A worker of the group `test` that takes its commands as `consumers` says, its series its own.
    pub fn grouped(
        &self,
        consumers: &str,
        effects: Vec<EffectDefinition>,
        upstream: &str,
    ) -> (Worker, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new());
        let mut spec = self.spec("test", effects, upstream, Arc::clone(&metrics));
        spec.consumers = plan(consumers, "test", &spec.effects);
        (Worker::start(&spec).unwrap(), metrics)
    }

    /// The recorded result of a command, once there is one.
    pub async fn result(&self, item: &WorkItem) -> serde_json::Value {
        let subject = result_subject(item);
        let stored = until(async || {
            self.broker
                .last_by_subject(&self.streams.events, &subject)
                .await
                .unwrap()
        })
        .await;
        serde_json::from_slice(&stored.payload).unwrap()
    }

    /// Waits until the workers' queue is in a state that is wanted.
    pub async fn until_queued(&self, durable: &str, wanted: impl Fn(QueueState) -> bool) {
        until(async || {
            let state = self.broker.queue_state(&self.streams.commands, durable).await;
            wanted(state.unwrap()?).then_some(())
        })
        .await;
    }

    pub async fn messages(&self, stream: &str) -> u64 {
        self.broker.stream_state(stream).await.unwrap().messages
    }

    /// A relay over `broker`, its shard played by the test.
    pub fn relay(&self, broker: Arc<dyn Broker>, options: RelayOptions) -> ShardSide {
        let (released, receiver) = mpsc::channel(64);
        let (sender, mailbox) = mpsc::channel(options.mailbox);
        let relayed = Arc::new(Relayed::default());
        let spilled = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&spilled);
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let submitter = options.gateway.map(|url| {
            let settings = serde_json::json!({ "url": url, "timeout": "2s" });
            let gateway =
                saga_runner::gateway::open(&serde_json::from_value(settings).unwrap(), None).unwrap();
            Submitter::new(
                gateway,
                &options.settings,
                None,
                Arc::clone(&clock),
                Arc::clone(&self.metrics),
            )
        });
        let relay = Relay::start(RelaySpec {
            shard: 0,
            broker,
            submitter: submitter.clone(),
            released: receiver,
            mailbox: sender,
            relayed: Arc::clone(&relayed),
            take_spilled: Box::new(move || flag.swap(false, Ordering::AcqRel)),
            streams: self.streams.clone(),
            local: options.local,
            announces: {
                let announced = Arc::clone(&self.announced);
                Arc::new(move |_| announced.load(Ordering::Acquire))
            },
            began_after: options.began_after,
            fence: options
                .fence
                .unwrap_or_else(|| outbox::Fence::open(Arc::clone(&clock))),
            cluster: ClusterId([7; 16]),
            settings: options.settings,
            limits: saga_runner::kernel::limits::Limits::default(),
            clock,
            tasks: self.tasks(),
            metrics: Arc::clone(&self.metrics),
        });
        ShardSide {
            relay: Some(relay),
            submitter,
            released,
            mailbox,
            relayed,
            spilled,
            outbox: options.outbox.into_iter().collect(),
            verdicts: Vec::new(),
            delivered: Vec::new(),
            begun: Vec::new(),
            not_called: Vec::new(),
            closes: None,
            refills: 0,
        }
    }
}

/// The consumers that these settings make for the tenants acme and globex.
pub fn plan(settings: &str, group: &str, effects: &[Arc<EffectDefinition>]) -> Vec<Consumer> {
    plan_for(Some(&["acme", "globex"]), settings, group, effects)
}

/// The consumers that these settings make for these tenants, or for any.
pub fn plan_for(
    tenants: Option<&[&str]>,
    settings: &str,
    group: &str,
    effects: &[Arc<EffectDefinition>],
) -> Vec<Consumer> {
    let settings: Consumers = serde_saphyr::from_str(settings).unwrap();
    let tenants: Option<Vec<_>> = tenants.map(|names| {
        let names = names.iter();
        names.map(|name| TenantId::parse(name).unwrap()).collect()
    });
    let scope = Scope {
        group,
        tenancy: Tenancy::Multi,
        tenants: tenants.as_deref(),
    };
    settings.plan(scope, effects).unwrap()
}

/// Asks until there is an answer.
pub async fn until<T>(mut question: impl AsyncFnMut() -> Option<T>) -> T {
    tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(answer) = question().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("an answer in time")
}

/// An effect that posts to the upstream.
pub fn definition(attempts: u32) -> EffectDefinition {
    let roots = [Root::Input, Root::Command, Root::Secrets, Root::Upstreams];
    EffectDefinition {
        name: effect_name(),
        schemas: EffectSchemas::default(),
        provider: Provider::Http(HttpCall {
            method: "POST".to_owned(),
            url: Template::compile_text("${upstreams.pay}/charges", &roots).unwrap(),
            headers: Vec::new(),
            body: Some(Template::compile_text("${input.amount}", &roots).unwrap()),
            oauth2: None,
            sign: None,
        }),
        timeout_ms: 5_000,
        connect_timeout_ms: 1_000,
        retry: RetryPolicy {
            attempts,
            initial_ms: 100,
            factor: 1.0,
            max_ms: 100,
        },
        retry_classes: ["transient", "throttled", "timeout", "ambiguous"]
            .map(str::to_owned)
            .to_vec(),
        on_ambiguous: OnAmbiguous::default(),
        on_cancel: OnCancel::default(),
        limits: EffectLimits {
            concurrency: 4,
            ..EffectLimits::default()
        },
        breaker: None,
        redaction: Redaction::default(),
        classify: Vec::new(),
        result: None,
    }
}

/// Hands a command straight to the workers' queue.
pub async fn enqueue(rig: &Rig, item: &WorkItem) {
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    shard.release(vec![(at(1, 0), item.clone())]).await;
    shard.until_floor(at(1, 0)).await;
}
