//! An intake over the scripted broker, and shards that keep the rules of the mailbox.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::broker::Scripted;
use crate::broker_clock::BrokerClock;
use crate::intake::{Intake, IntakeSpec, Marks, Settings, ShardEndpoint};
use crate::kernel::definition::DefinitionSet;
use crate::kernel::duration::Millis;
use crate::kernel::ids::{Key, TimeMs, shard_of};
use crate::kernel::input::SourceStream;
use crate::kernel::limits::Limits;
use crate::kernel::subject::Tenancy;
use crate::ports::broker::Broker;
use crate::ports::clock::Clock;
use crate::shard::mailbox::{Applied, Arrival, Mail, Notice, Stamp};
use crate::tasks::Tasks;
use crate::telemetry::Metrics;

pub(super) const STREAMS: [&str; 3] = ["AGGREGATE_EVENTS", "WORKFLOW_EVENTS", "WORKFLOW_COMMANDS"];

/// A clock that is an hour ahead of the broker's.
pub(super) struct Ahead(pub Scripted);

impl Clock for Ahead {
    fn now(&self) -> TimeMs {
        self.0.time().plus_ms(3_600_000)
    }

    fn monotonic(&self) -> Duration {
        self.0.passed()
    }
}

pub(super) struct World {
    pub broker: Scripted,
    pub intake: Intake,
    pub metrics: Arc<Metrics>,
    pub notices: mpsc::Sender<Notice>,
    pub mailboxes: Vec<Option<mpsc::Receiver<Mail>>>,
    pub positions: Vec<Arc<[AtomicU64; 3]>>,
}

pub(super) fn settings() -> Settings {
    Settings {
        watermark_interval: Millis(10),
        barrier_retry: Millis(2),
        detach_after: Millis(20),
        reopen_initial: Millis(1),
        reopen_max: Millis(5),
        ..Settings::default()
    }
}

pub(super) struct Plan {
    pub shards: u16,
    pub mailbox: usize,
    pub settings: Settings,
    pub starts: Vec<u64>,
    /// What stood at the starts.
    pub stamps: Vec<Option<Stamp>>,
    pub halted: Vec<u16>,
    pub definitions: Vec<Arc<crate::kernel::definition::Definition>>,
}

impl Plan {
    pub fn new(shards: u16) -> Self {
        Self {
            shards,
            mailbox: 64,
            settings: settings(),
            starts: vec![0; usize::from(shards)],
            stamps: vec![None; usize::from(shards)],
            halted: Vec::new(),
            definitions: vec![super::order_saga()],
        }
    }

    pub fn start(self, broker: Scripted) -> World {
        self.start_on(Arc::new(broker.clone()), broker)
    }

    pub fn start_on(self, real: Arc<dyn Broker>, broker: Scripted) -> World {
        let (notices, received) = mpsc::channel(64);
        let clock = Arc::new(BrokerClock::new(Arc::new(Ahead(broker.clone()))));
        let metrics = Arc::new(Metrics::new());
        let mut shards = Vec::new();
        let mut mailboxes = Vec::new();
        let mut positions = Vec::new();
        for index in 0..self.shards {
            let (mail, mailbox) = mpsc::channel(self.mailbox);
            let start = self.starts[usize::from(index)];
            let position: Arc<[AtomicU64; 3]> = Arc::new([start, 0, 0].map(AtomicU64::new));
            let shown = Arc::clone(&position);
            shards.push(ShardEndpoint {
                index,
                mail,
                stamps: [self.stamps[usize::from(index)], None, None],
                gates: Arc::default(),
                halted: self.halted.contains(&index),
                position: Arc::new(move |stream: SourceStream| shown[stream.index()].load(Ordering::SeqCst)),
            });
            mailboxes.push(Some(mailbox));
            positions.push(position);
        }
        let intake = Intake::start(IntakeSpec {
            cluster: "shop".to_owned(),
            broker: real,
            shards,
            shard_count: self.shards,
            definitions: Arc::new(DefinitionSet::new(self.definitions, Vec::new())),
            tenancy: Tenancy::Multi,
            tenants: None,
            streams: STREAMS.map(str::to_owned),
            reader_prefix: "test".to_owned(),
            limits: Limits::default(),
            tokens: None,
            takes_applied: false,
            marks: Marks::default(),
            settings: self.settings,
            tasks: Tasks::new(&metrics, &(Arc::clone(&clock) as Arc<dyn Clock>)),
            clock,
            metrics: Arc::clone(&metrics),
            notices: received,
        });
        World {
            broker,
            intake,
            metrics,
            notices,
            mailboxes,
            positions,
        }
    }
}

impl World {
    pub fn mailbox(&mut self, shard: u16) -> mpsc::Receiver<Mail> {
        self.mailboxes[usize::from(shard)].take().expect("taken once")
    }

    /// A shard as it is opened again: with another mailbox, and the positions that it had.
    pub fn opened(&mut self, index: u16) -> ShardEndpoint {
        let (mail, mailbox) = mpsc::channel(64);
        self.mailboxes[usize::from(index)] = Some(mailbox);
        let shown = Arc::clone(&self.positions[usize::from(index)]);
        ShardEndpoint {
            index,
            mail,
            stamps: [None; 3],
            gates: Arc::default(),
            halted: false,
            position: Arc::new(move |stream: SourceStream| shown[stream.index()].load(Ordering::SeqCst)),
        }
    }

    /// A shard that keeps the acceptance rule and notes the sequence of each input, in order.
    pub fn shard(&mut self, index: u16, mood: Mood) -> Shard {
        let mut mailbox = self.mailbox(index);
        let notices = self.notices.clone();
        let positions = Arc::clone(&self.positions[usize::from(index)]);
        let applied = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&applied);
        let (position_seen, moves) = watch::channel(0);
        let mut mood = mood;
        let mut refused = [false; 3];
        tokio::spawn(async move {
            while let Some(mail) = mailbox.recv().await {
                mood.pause().await;
                let Mail::Delivery(delivery) = mail else { continue };
                let position = &positions[delivery.stream.index()];
                let at = position.load(Ordering::SeqCst);
                if delivery.sequence <= at {
                    continue;
                }
                if delivery.after > at || mood.holds_back(delivery.stream, at) {
                    let gap = Notice::Gap {
                        shard: index,
                        stream: delivery.stream,
                        position: at,
                    };
                    let told = std::mem::replace(&mut refused[delivery.stream.index()], true);
                    // What is held back is reported whenever there is room again.
                    if (!told || delivery.after <= at) && notices.send(gap).await.is_err() {
                        return;
                    }
                    continue;
                }
                refused[delivery.stream.index()] = false;
                let sequences = delivery.inputs.iter().map(|arrival| match arrival {
                    Arrival::Input(input) => match input.origin {
                        crate::kernel::input::Origin::Stream { sequence, .. } => sequence,
                        other => panic!("not from a stream: {other:?}"),
                    },
                    Arrival::Applied(Applied { sequence, .. }) => *sequence,
                    Arrival::Unreadable(found) => found.sequence,
                });
                noted
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend(sequences);
                position.store(delivery.sequence, Ordering::SeqCst);
                if delivery.stream == SourceStream::AggregateEvents {
                    position_seen.send_replace(delivery.sequence);
                }
            }
        });
        Shard { applied, moves }
    }
}

pub(super) struct Shard {
    applied: Arc<Mutex<Vec<u64>>>,
    moves: watch::Receiver<u64>,
}

impl Shard {
    /// Waits until the shard knows all events up to `sequence`.
    pub async fn knows(&mut self, sequence: u64) {
        let wait = self.moves.wait_for(|position| *position >= sequence);
        tokio::time::timeout(Duration::from_secs(30), wait)
            .await
            .expect("the shard is fed in time")
            .expect("the shard lives");
    }

    pub fn applied(&self) -> Vec<u64> {
        self.applied
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// How a shard spends its time.
#[derive(Debug, Clone, Default)]
pub(super) struct Mood {
    /// Milliseconds before each mail, over and over.
    pub pauses: Vec<u64>,
    pub mails: usize,
    /// Positions at which a delivery that fits is held back, each once: the outbox is full.
    pub holds_back: Vec<u64>,
}

impl Mood {
    async fn pause(&mut self) {
        if let Some(ms) = self.pauses.get(self.mails % self.pauses.len().max(1))
            && *ms > 0
        {
            tokio::time::sleep(Duration::from_millis(*ms)).await;
        }
        self.mails += 1;
    }

    fn holds_back(&mut self, stream: SourceStream, at: u64) -> bool {
        let due = self.holds_back.iter().position(|from| at >= *from);
        stream == SourceStream::AggregateEvents
            && due.is_some_and(|due| {
                self.holds_back.remove(due);
                true
            })
    }
}

/// Stores the event of an order and tells the shard that owns it.
pub(super) fn place(broker: &Scripted, order: &str, shards: u16) -> (u64, u16) {
    let payload = super::event(json!({"event_id": order, "payload": {"order_id": order}}));
    let subject = format!("tenant.acme.aggregate.Order.{order}");
    let sequence = broker.store(STREAMS[0], &subject, payload);
    let key = Key::parse(order).expect("legal");
    (sequence, shard_of(&super::acme(), &key, shards))
}
