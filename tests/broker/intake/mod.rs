//! Reading over a real nats-server: the intake, and shards that a test plays.

mod identity;
mod limits;
mod reading;
mod removed;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use saga_runner::app::SystemClock;
use saga_runner::broker_clock::BrokerClock;
use saga_runner::intake::{Intake, IntakeSpec, Marks, Settings, ShardEndpoint};
use saga_runner::kernel::definition::{self, DefinitionSet, SourceFile};
use saga_runner::kernel::ids::{Key, TenantId, shard_of};
use saga_runner::kernel::input::{Origin, SourceStream};
use saga_runner::kernel::limits::Limits;
use saga_runner::kernel::subject::Tenancy;
use saga_runner::ports::broker::{Broker, Expect, Publication, StreamSpec};
use saga_runner::ports::clock::Clock;
use saga_runner::shard::mailbox::{Arrival, Mail, Notice};
use saga_runner::tasks::Tasks;
use saga_runner::telemetry::Metrics;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::broker::suite::{eventually, within};

pub const EVENTS: &str = "AGGREGATE_EVENTS";

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: order
start: Order.Placed
key: {"Order.*": event.data.order_id}
state: {init: {}}
steps:
  rest: {wait: {signal: enough, timeout: 40000h}}
"#;

pub fn order(number: u64) -> String {
    format!("o-{number}")
}

fn placed(number: u64) -> Publication {
    let id = order(number);
    let event = json!({
        "tenant_id": "acme", "event_id": id, "event_type": "Placed", "aggregate_type": "Order", "aggregate_id": id,
        "sequence": 1, "schema_version": 1, "payload": {"order_id": id},
        "metadata": {"correlation_id": id, "causation_id": id}, "timestamp": "2026-01-01T00:00:00Z"
    });
    Publication {
        stream: EVENTS.to_owned(),
        subject: format!("tenant.acme.aggregate.Order.{id}"),
        headers: Vec::new(),
        payload: event.to_string().into(),
        expect: Expect::Nothing,
    }
}

/// Stores the events of these orders, many at a time.
pub async fn place(broker: &dyn Broker, orders: std::ops::Range<u64>) {
    let orders: Vec<u64> = orders.collect();
    for burst in orders.chunks(1_000) {
        let all = burst.iter().map(|number| broker.publish(placed(*number)));
        for stored in within("publish", futures::future::join_all(all)).await {
            stored.expect("an event can be stored");
        }
    }
}

/// Which shard of so many an order belongs to.
pub fn owner(number: u64, shards: u16) -> u16 {
    let tenant = TenantId::parse("acme").expect("legal");
    shard_of(&tenant, &Key::parse(&order(number)).expect("legal"), shards)
}

/// What the streams of a runner must be; the events with further settings.
pub async fn streams(broker: &dyn Broker, url: &str, events: Value) {
    let mut config = json!({
        "name": EVENTS, "subjects": ["tenant.*.aggregate.>"], "retention": "limits", "storage": "file",
        "discard": "old", "num_replicas": 1, "allow_direct": true,
    });
    for (name, value) in events.as_object().expect("settings") {
        config[name] = value.clone();
    }
    let made = crate::broker::nats::api(url, &format!("STREAM.CREATE.{EVENTS}"), config).await;
    assert!(made["error"].is_null(), "{made}");
    for (name, subjects) in [
        ("WORKFLOW_EVENTS", ["tenant.*.effect_result.>"]),
        ("WORKFLOW_COMMANDS", ["tenant.*.workflow.>"]),
    ] {
        let spec = StreamSpec {
            name: name.to_owned(),
            subjects: subjects.map(str::to_owned).into(),
            replicas: 1,
            message_bytes_max: 1 << 20,
            foreign: false,
        };
        within("ensure", broker.ensure_stream(&spec)).await.unwrap();
    }
}

/// An intake with the mailboxes of its shards.
pub struct Stage {
    pub intake: Intake,
    pub marks: Marks,
    notices: mpsc::Sender<Notice>,
    shards: Vec<Seat>,
}

struct Seat {
    mailbox: Option<mpsc::Receiver<Mail>>,
    position: Arc<AtomicU64>,
}

/// How a stage is set.
pub struct Plan {
    pub settings: Settings,
    pub mailbox: usize,
    /// Positions of the shards in the stream of events.
    pub starts: Vec<u64>,
    pub halted: Vec<u16>,
}

impl Plan {
    pub fn new(starts: &[u64]) -> Self {
        Self {
            settings: Settings::default(),
            mailbox: 64,
            starts: starts.to_vec(),
            halted: Vec::new(),
        }
    }

    pub fn start(self, broker: Arc<dyn Broker>) -> Stage {
        let file = SourceFile {
            path: "order.yaml".to_owned(),
            text: SAGA.into(),
        };
        let loaded = definition::load(&[file], &[]);
        assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
        let (notices, asked) = mpsc::channel(64);
        let (mut endpoints, mut shards) = (Vec::new(), Vec::new());
        for (index, start) in (0..).zip(&self.starts) {
            let (mail, mailbox) = mpsc::channel(self.mailbox);
            let position = Arc::new(AtomicU64::new(*start));
            let shown = Arc::clone(&position);
            endpoints.push(ShardEndpoint {
                stamps: [None; 3],
                index,
                mail,
                gates: Arc::default(),
                halted: self.halted.contains(&index),
                position: Arc::new(move |stream| match stream {
                    SourceStream::AggregateEvents => shown.load(Ordering::SeqCst),
                    SourceStream::WorkflowEvents | SourceStream::WorkflowCommands => 0,
                }),
            });
            shards.push(Seat {
                mailbox: Some(mailbox),
                position,
            });
        }
        let clock = Arc::new(BrokerClock::new(Arc::new(SystemClock::new())));
        let metrics = Arc::new(Metrics::new());
        let marks = Marks::default();
        let intake = Intake::start(IntakeSpec {
            cluster: "shop".to_owned(),
            tasks: Tasks::new(&metrics, &(Arc::clone(&clock) as Arc<dyn Clock>)),
            broker,
            shard_count: u16::try_from(endpoints.len()).expect("few"),
            shards: endpoints,
            definitions: Arc::new(DefinitionSet::new(loaded.sagas, Vec::new())),
            tenancy: Tenancy::Multi,
            tenants: None,
            streams: [EVENTS, "WORKFLOW_EVENTS", "WORKFLOW_COMMANDS"].map(str::to_owned),
            reader_prefix: "stage".to_owned(),
            limits: Limits::default(),
            tokens: None,
            takes_applied: false,
            marks: marks.clone(),
            settings: self.settings,
            clock,
            metrics,
            notices: asked,
        });
        Stage {
            intake,
            marks,
            notices,
            shards,
        }
    }
}

impl Stage {
    /// Lets the shard take its mail; until then its mailbox fills.
    pub fn shard(&mut self, index: u16) -> Shard {
        let seat = &mut self.shards[usize::from(index)];
        let mut mailbox = seat.mailbox.take().expect("taken once");
        let position = Arc::clone(&seat.position);
        let (state, seen) = watch::channel(Seen::default());
        tokio::spawn(async move {
            while let Some(mail) = mailbox.recv().await {
                match mail {
                    Mail::Barrier { stream, .. } => state.send_modify(|seen| {
                        if seen.barriers[stream.index()] == 0 {
                            seen.first_barrier[stream.index()] = position.load(Ordering::SeqCst);
                        }
                        seen.barriers[stream.index()] += 1;
                    }),
                    Mail::Delivery(delivery) if delivery.stream == SourceStream::AggregateEvents => {
                        let at = position.load(Ordering::SeqCst);
                        if delivery.sequence <= at {
                            continue;
                        }
                        assert!(delivery.after <= at, "no test of this kind lets a shard refuse");
                        position.store(delivery.sequence, Ordering::SeqCst);
                        state.send_modify(|seen| {
                            seen.position = delivery.sequence;
                            seen.applied.extend(delivery.inputs.iter().map(sequence_of));
                        });
                    }
                    _ => {}
                }
            }
        });
        Shard { index, seen }
    }

    /// As a shard does that has a due timer.
    pub async fn want_barrier(&self, shard: u16) {
        let notice = Notice::BarrierWanted { shard };
        within("notice", self.notices.send(notice)).await.unwrap();
    }

    /// The reason why the events are not read on, once they are not.
    pub async fn halted(&self) -> saga_runner::intake::Halt {
        eventually("a halt", || {
            std::future::ready(self.intake.status()[0].halted.is_some())
        })
        .await;
        self.intake.status()[0].halted.clone().expect("seen before")
    }
}

fn sequence_of(arrival: &Arrival) -> u64 {
    match arrival {
        Arrival::Input(input) => match &input.origin {
            Origin::Stream { sequence, .. } => *sequence,
            other => panic!("not from a stream: {other:?}"),
        },
        Arrival::Applied(applied) => applied.sequence,
        Arrival::Unreadable(found) => panic!("unreadable: {found:?}"),
    }
}

/// What a shard was mailed of the events.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub position: u64,
    pub applied: Vec<u64>,
    /// By stream.
    pub barriers: [u64; 3],
    /// The position in the events when a stream's first barrier came.
    pub first_barrier: [u64; 3],
}

pub struct Shard {
    pub index: u16,
    pub seen: watch::Receiver<Seen>,
}

impl Shard {
    /// Waits until the shard's mail makes it so.
    pub async fn until(&self, patience: Duration, what: &str, holds: impl FnMut(&Seen) -> bool) -> Seen {
        let mut changes = self.seen.clone();
        let wait = changes.wait_for(holds);
        if let Ok(seen) = tokio::time::timeout(patience, wait).await {
            return seen.expect("the shard lives").clone();
        }
        let seen = self.seen.borrow();
        panic!(
            "shard {}: {what}: not within {patience:?}; at {} with {} input(s), barriers {:?}",
            self.index,
            seen.position,
            seen.applied.len(),
            seen.barriers
        );
    }
}
