//! A broker with the runner's streams, effects, and a shard's outbox in the hands of a test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
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
use saga_runner::kernel::ids::{
    ClusterId, CommandId, EffectName, InstanceId, Key, SagaName, TenantId, TimeMs,
};
use saga_runner::kernel::retry::RetryPolicy;
use saga_runner::kernel::subject::{Subject, Tenancy};
use saga_runner::kernel::work::{WorkItem, WorkKind, WorkRef};
use saga_runner::nats::{NatsBroker, Settings};
use saga_runner::outbox::{self, LocalFirst, Relay, RelaySpec, Rest, Submitter};
use saga_runner::ports::broker::{Broker, StreamSpec, WorkflowStreams};
use saga_runner::ports::clock::Clock;
use saga_runner::shard::mailbox::{Mail, Refused, Relayed, Released, Verdict};
use saga_runner::tasks::Tasks;
use saga_runner::telemetry::Metrics;
use tokio::sync::mpsc;
use uuid::Uuid;

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
            commands: "WORKFLOW_COMMANDS".to_owned(),
            events: "WORKFLOW_EVENTS".to_owned(),
        };
        let subjects = |kinds: &[&str]| -> Vec<String> {
            kinds.iter().map(|kind| format!("tenant.*.{kind}.>")).collect()
        };
        for (name, subjects) in [
            (
                &streams.commands,
                subjects(&["effect", "effect_progress", "effect_cancel", "workflow"]),
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

pub struct RelayOptions {
    pub settings: outbox::Settings,
    pub gateway: Option<String>,
    /// Rows up to this one are of an earlier life of the process.
    pub began_after: u64,
    /// What the outbox holds when the relay starts.
    pub outbox: Vec<(WorkRef, WorkItem)>,
    pub mailbox: usize,
    pub local: Option<LocalFirst>,
    /// One that never closes where there is none.
    pub fence: Option<Arc<outbox::Fence>>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            settings: outbox::Settings {
                retry_initial: Millis(10),
                retry_max: Millis(50),
                ..outbox::Settings::default()
            },
            gateway: None,
            began_after: 0,
            outbox: Vec::new(),
            mailbox: 16,
            local: None,
            fence: None,
        }
    }
}

/// The shard's side of a relay.
pub struct ShardSide {
    relay: Option<Relay>,
    submitter: Option<Arc<Submitter>>,
    pub released: mpsc::Sender<Released>,
    mailbox: mpsc::Receiver<Mail>,
    pub relayed: Arc<Relayed>,
    pub spilled: Arc<AtomicBool>,
    pub outbox: BTreeMap<WorkRef, WorkItem>,
    pub verdicts: Vec<Verdict>,
    pub delivered: Vec<WorkRef>,
    /// Rows whose calls were said to begin.
    pub begun: Vec<WorkRef>,
    /// Rows of which that was taken back.
    pub not_called: Vec<WorkRef>,
    /// Closes before it is answered that a call begins.
    pub closes: Option<Arc<outbox::Fence>>,
    refills: usize,
}

impl ShardSide {
    /// What submits the commands for aggregates.
    pub fn submitter(&self) -> &Submitter {
        self.submitter.as_ref().expect("the test has a gateway")
    }

    /// Commits the rows and releases them.
    pub async fn release(&mut self, rows: Vec<(WorkRef, WorkItem)>) {
        self.outbox.extend(rows.iter().cloned());
        self.send(rows, Vec::new(), Vec::new()).await;
    }

    pub async fn complete(&mut self, rows: Vec<WorkRef>) {
        for row in &rows {
            self.outbox.remove(row);
        }
        self.send(Vec::new(), rows, Vec::new()).await;
    }

    pub async fn overdue(&mut self, row: WorkRef) {
        let item = self.outbox[&row].clone();
        self.send(Vec::new(), Vec::new(), vec![(row, item)]).await;
    }

    async fn send(
        &mut self,
        work: Vec<(WorkRef, WorkItem)>,
        completed: Vec<WorkRef>,
        overdue: Vec<(WorkRef, WorkItem)>,
    ) {
        let released = Released {
            shard: 0,
            work,
            completed,
            overdue,
        };
        self.released.send(released).await.unwrap();
    }

    /// Answers mail until `done` holds.
    pub async fn until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(
                Instant::now() < deadline,
                "still waiting; verdicts {:?}",
                self.verdicts
            );
            // Woken by mail, or to look again at what changes without mail.
            if let Ok(mail) = tokio::time::timeout(Duration::from_millis(10), self.mailbox.recv()).await {
                self.handle(mail.expect("the relay runs"));
            }
        }
    }

    /// Lets the relay read what the outbox held when it started.
    pub async fn until_started(&mut self) {
        self.until(|shard| shard.refills > 0).await;
    }

    pub async fn until_floor(&mut self, row: WorkRef) {
        let encoded = row.log_sequence << 16 | u64::from(row.index);
        self.until(|shard| shard.relayed.floor.load(Ordering::Acquire) >= encoded)
            .await;
    }

    /// Ends the relay as a shutdown does.
    pub async fn drain(&mut self, timeout: Duration) {
        self.relay.take().expect("drained once").drain(timeout).await;
        self.take_mail();
    }

    /// Answers mail until the relay has come to this rest.
    pub async fn come_to_rest(&mut self, rest: Rest) {
        let relay = self.relay.take().expect("not drained");
        let asked = tokio::spawn(async move {
            relay.until(rest).await;
            relay
        });
        self.until(|_| asked.is_finished()).await;
        self.relay = Some(asked.await.unwrap());
        self.take_mail();
    }

    /// Reads what is in the mailbox now.
    fn take_mail(&mut self) {
        while let Ok(mail) = self.mailbox.try_recv() {
            self.handle(mail);
        }
    }

    fn handle(&mut self, mail: Mail) {
        match mail {
            Mail::Verdict(verdict) => self.verdicts.push(verdict),
            Mail::Delivered(rows) => {
                for row in &rows {
                    self.outbox.remove(row);
                }
                self.delivered.extend(rows);
            }
            Mail::CallBegins { row, reply } => {
                if let Some(fence) = &self.closes {
                    fence.close();
                }
                if self.outbox.contains_key(&row) {
                    self.begun.push(row);
                    let _gone = reply.send(Ok(()));
                } else {
                    let _gone = reply.send(Err(Refused::Conflict("the command is completed".into())));
                }
            }
            Mail::NotCalled(row) => self.not_called.push(row),
            Mail::Refill { after, limit, reply } => {
                let rows = self
                    .outbox
                    .iter()
                    .filter(|(row, _)| after.is_none_or(|after| **row > after));
                let page = rows.take(limit).map(|(row, item)| (*row, item.clone())).collect();
                reply.send(page).unwrap();
                self.refills += 1;
            }
            other => panic!("unexpected mail {other:?}"),
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

pub fn at(log_sequence: u64, index: u16) -> WorkRef {
    WorkRef { log_sequence, index }
}

pub fn effect_name() -> EffectName {
    EffectName::parse("charge").unwrap()
}

/// A row of instance `key`, its ids made from `n`.
pub fn item(rig: &Rig, key: &str, n: u128, kind: WorkKind) -> WorkItem {
    let now = rig.clock.now();
    WorkItem {
        instance: InstanceId {
            tenant: TenantId::parse("acme").unwrap(),
            saga: SagaName::parse("order").unwrap(),
            key: Key::parse(key).unwrap(),
        },
        command_id: CommandId(Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0000 + n)),
        idempotency_key: format!("{n:032x}"),
        path: "steps.charge".to_owned(),
        attempt: 1,
        created: now,
        deadline: now.plus_ms(600_000),
        waited_ms: 0,
        causation_id: "e-1".to_owned(),
        root_correlation_id: None,
        traceparent: None,
        hops: 1,
        kind,
    }
}

pub fn effect(rig: &Rig, key: &str, n: u128) -> WorkItem {
    let kind = WorkKind::Effect {
        effect: effect_name(),
        payload: Bytes::from_static(br#"{"amount":12}"#),
    };
    item(rig, key, n, kind)
}

pub fn command(rig: &Rig, key: &str, n: u128, awaited: bool) -> WorkItem {
    let kind = WorkKind::Command {
        aggregate_type: "Shipment".to_owned(),
        aggregate_id: format!("shp-{n}"),
        command_type: "Shipment.Create".to_owned(),
        payload: Bytes::from_static(b"{}"),
        token: None,
        awaited,
    };
    item(rig, key, n, kind)
}

pub fn fact(rig: &Rig, key: &str, n: u128) -> WorkItem {
    let kind = WorkKind::Fact {
        fact_type: "order.fulfilled".to_owned(),
        payload: Bytes::from_static(b"{}"),
    };
    item(rig, key, n, kind)
}

fn effect_of(item: &WorkItem) -> EffectName {
    match &item.kind {
        WorkKind::Effect { effect, .. } => effect.clone(),
        other => panic!("{other:?} is not an effect"),
    }
}

pub fn command_subject(item: &WorkItem) -> String {
    Subject::Effect {
        tenant: item.instance.tenant.clone(),
        effect: effect_of(item),
        command: item.command_id,
    }
    .render()
}

pub fn result_subject(item: &WorkItem) -> String {
    Subject::EffectResult {
        tenant: item.instance.tenant.clone(),
        effect: effect_of(item),
        command: item.command_id,
    }
    .render()
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

/// HeldCommands a command straight to the workers' queue.
pub async fn enqueue(rig: &Rig, item: &WorkItem) {
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    shard.release(vec![(at(1, 0), item.clone())]).await;
    shard.until_floor(at(1, 0)).await;
}
