//! Bytes become inputs and find their shards.
//!
//! One shared reader for each source stream decodes every message once, finds the sagas that react, and mails
//! each shard what is for it. The intake decides nothing about instances and stores nothing: shards keep
//! their positions, and it reads from there. Start at [`decode`] and [`route`] for messages, at [`shared`],
//! [`private`] and [`view`] for how reading survives faults and slow shards.

mod address;
mod backoff;
mod cloudevents;
mod context;
mod control;
pub mod decode;
mod feed;
mod guard;
mod headers;
mod identity;
mod marks;
mod private;
pub mod route;
mod settings;
mod shared;
mod slot;
pub mod versions;
mod view;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use context::{Halt, ShardEndpoint};
pub use identity::stamp_of;
pub use marks::Marks;
pub use settings::Settings;

use context::{Context, Progress};
use decode::Decoder;
use identity::Place;
use route::Router;
use shared::{Command, Shared};
use versions::Versions;

use crate::broker_clock::BrokerClock;
use crate::kernel::definition::DefinitionSet;
use crate::kernel::ids::TenantId;
use crate::kernel::input::SourceStream;
use crate::kernel::limits::Limits;
use crate::kernel::subject::Tenancy;
use crate::kernel::token::TokenKey;
use crate::ports::broker::Broker;
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::{Notice, Stamp};
use crate::tasks::{Task, Tasks};
use crate::telemetry::Metrics;

/// Requests to a shared reader that may wait.
const COMMANDS_MAX: usize = 1_024;

/// What an intake is made of.
pub struct IntakeSpec {
    pub broker: Arc<dyn Broker>,
    /// The shards of this process.
    pub shards: Vec<ShardEndpoint>,
    /// How many shards the cluster has.
    pub shard_count: u16,
    pub definitions: Arc<DefinitionSet>,
    /// Name of the cluster.
    pub cluster: String,
    pub tenancy: Tenancy,
    /// The only tenants to serve, all where `None`.
    pub tenants: Option<Vec<TenantId>>,
    /// Names of the streams, by [`SourceStream::index`].
    pub streams: [String; 3],
    /// Begins the name of every consumer: one subject token, unlike that of any other process.
    pub reader_prefix: String,
    pub limits: Limits,
    /// Reads callback tokens.
    pub tokens: Option<TokenKey>,
    /// A shard goes on from an older state: it may need results that it had applied before they were published.
    pub takes_applied: bool,
    /// Where whoever trims the streams hears what the readers need.
    pub marks: Marks,
    pub settings: Settings,
    pub clock: Arc<BrokerClock>,
    pub metrics: Arc<Metrics>,
    pub tasks: Tasks,
    pub notices: mpsc::Receiver<Notice>,
}

/// The running intake. Dropping it stops it, too, without waiting.
pub struct Intake {
    ctx: Arc<Context>,
    fed: Fed,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
    readers: Vec<JoinHandle<()>>,
    notices: JoinHandle<()>,
}

/// The shards that are fed, and the way to the shared reader of each stream. Clones are the same.
#[derive(Clone)]
pub struct Fed {
    ctx: Arc<Context>,
    /// By [`SourceStream::index`].
    hubs: Vec<mpsc::Sender<Command>>,
}

/// How one source stream is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamStatus {
    pub stream: SourceStream,
    pub connected: bool,
    /// Why reading ended, where going on would lose messages.
    pub halted: Option<Halt>,
    /// Everything up to here is on its way to the attached shards.
    pub read: u64,
    /// Newest sequence of the stream that was heard of.
    pub end: u64,
    /// Messages between the slowest shard and the end.
    pub lag: u64,
    /// Since the stream was last read or found silent.
    pub quiet: Duration,
    /// Shards that are fed by readers of their own.
    pub detached: u64,
}

impl Intake {
    /// Starts reading from the positions of the shards. To be called within a runtime.
    #[must_use]
    pub fn start(spec: IntakeSpec) -> Self {
        let from_sequence = spec.settings.event_id_from_sequence;
        let events = &spec.streams[SourceStream::AggregateEvents.index()];
        let decoder = Decoder {
            cluster: spec.cluster,
            tenancy: spec.tenancy,
            tenants: spec.tenants.map(|tenants| tenants.into_iter().collect()),
            limits: spec.limits,
            tokens: spec.tokens,
            takes_applied: Arc::new(AtomicBool::new(spec.takes_applied)),
            event_id_from: from_sequence.then(|| events.clone()),
        };
        let by_number = spec.shards.iter().map(|shard| (shard.index, shard.clone()));
        let ctx = Arc::new(Context {
            broker: spec.broker,
            router: Router {
                decoder,
                definitions: Versions::new(spec.definitions),
                shards: spec.shard_count,
            },
            streams: spec.streams,
            reader_prefix: spec.reader_prefix,
            settings: spec.settings,
            progress: std::array::from_fn(|_| Progress::default()),
            marks: spec.marks,
            readers_opened: AtomicU64::new(0),
            draws: AtomicU64::new(0),
            clock: spec.clock,
            metrics: spec.metrics,
            tasks: spec.tasks.clone(),
            shards: RwLock::new(by_number.collect()),
        });
        for stream in SourceStream::ALL {
            ctx.progress(stream).moved(ctx.clock.monotonic());
        }
        let stop = CancellationToken::new();
        let mut hubs = Vec::with_capacity(SourceStream::ALL.len());
        let readers = SourceStream::ALL.map(|stream| {
            let (hub, commands) = mpsc::channel(COMMANDS_MAX);
            let shared = Shared::new(&ctx, stream, &spec.shards, commands, hub.clone());
            hubs.push(hub);
            let of = format!("of {}", ctx.name(stream));
            spec.tasks.spawn(Task::Reader, of, shared.run(stop.clone()))
        });
        Self {
            fed: Fed {
                ctx: Arc::clone(&ctx),
                hubs: hubs.clone(),
            },
            ctx,
            readers: readers.into(),
            notices: {
                let forward = Arc::new(Mutex::new(Forward {
                    notices: spec.notices,
                    passing: None,
                    hubs,
                }));
                let stop = stop.clone();
                spec.tasks.keep(Task::Notices, "of the shards", move || {
                    let (forward, stop) = (Arc::clone(&forward), stop.clone());
                    async move { forward.lock().await.run(&stop).await }
                })
            },
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        }
    }

    /// How each stream is doing, by [`SourceStream::index`].
    #[must_use]
    pub fn status(&self) -> [StreamStatus; 3] {
        SourceStream::ALL.map(|stream| self.status_of(stream))
    }

    fn status_of(&self, stream: SourceStream) -> StreamStatus {
        let progress = self.ctx.progress(stream);
        let end = progress.end.load(Ordering::Relaxed);
        let lowest = self.ctx.lowest(stream);
        let ended = self.readers[stream.index()].is_finished() && !self.stop.is_cancelled();
        let halted = progress.halted().or_else(|| {
            ended.then(|| Halt {
                reason: "intake.stopped",
                lost_from: None,
                message: "the reader ended unexpectedly".to_owned(),
            })
        });
        StreamStatus {
            stream,
            connected: progress.connected.load(Ordering::Relaxed) && !ended,
            halted,
            read: progress.read.load(Ordering::Relaxed),
            end,
            lag: lowest.map_or(0, |position| end.saturating_sub(position)),
            quiet: self.ctx.clock.monotonic().saturating_sub(progress.last_moved()),
            detached: progress.detached.load(Ordering::Relaxed),
        }
    }

    /// Routes by these definitions from now on: whatever is published after this call is seen by them. Their generation, by
    /// which deliveries say that they were routed by them.
    pub fn widen(&self, definitions: &Arc<DefinitionSet>) -> u64 {
        let generation = self.ctx.router.definitions.replace(Arc::clone(definitions));
        for hub in &self.fed.hubs {
            // A reader with so many requests is awake anyway.
            drop(hub.try_send(Command::Widen));
        }
        generation
    }

    /// The shards that are fed.
    #[must_use]
    pub fn fed(&self) -> Fed {
        self.fed.clone()
    }

    /// Stops reading and waits until nothing more is mailed. What was mailed stays mailed.
    pub async fn drain(self) {
        self.stop.cancel();
        for task in self.readers.into_iter().chain([self.notices]) {
            if let Err(error) = task.await {
                tracing::error!(%error, "a reader ended with a panic");
            }
        }
    }
}

impl Fed {
    /// Feeds one more shard, from behind its positions, while the others go on. `takes_applied`: it goes on from an older
    /// state.
    pub async fn add(&self, shard: ShardEndpoint, takes_applied: bool) {
        let decoder = &self.ctx.router.decoder;
        decoder.takes_applied.fetch_or(takes_applied, Ordering::AcqRel);
        self.ctx.add(&shard);
        for hub in &self.hubs {
            let (reply, answer) = oneshot::channel();
            let shard = Box::new(shard.clone());
            // A reader that has ended is told of by health.
            let _ended = hub.send(Command::Add { shard, reply }).await.is_ok() && answer.await.is_ok();
        }
    }

    /// Feeds a shard no more, and waits until nothing is mailed to it. What was mailed stays mailed.
    pub async fn remove(&self, shard: u16) {
        for hub in &self.hubs {
            let (reply, answer) = oneshot::channel();
            let _ended = hub.send(Command::Remove { shard, reply }).await.is_ok() && answer.await.is_ok();
        }
        self.ctx.remove(shard);
    }

    /// Whether all that was read of a stream is in the mailbox of a shard.
    pub async fn is_mailed(&self, stream: SourceStream, shard: u16) -> bool {
        let (reply, answer) = oneshot::channel();
        let asked = self.hubs[stream.index()].send(Command::IsMailed { shard, reply });
        asked.await.is_ok() && answer.await == Ok(true)
    }

    /// Feeds a shard from behind the place to which its position was moved.
    pub async fn read_on(&self, stream: SourceStream, shard: u16, sequence: u64, stamp: Option<Stamp>) {
        let (reply, answer) = oneshot::channel();
        let place = Place { sequence, stamp };
        let asked = self.hubs[stream.index()].send(Command::ReadOn { shard, place, reply });
        // A reader that has ended is told of by health.
        let _ended = asked.await.is_ok() && answer.await.is_ok();
    }
}

/// Passes on what shards ask.
struct Forward {
    notices: mpsc::Receiver<Notice>,
    /// The one that is held. A shard does not say twice that it has to be fed again, so none may get lost.
    passing: Option<Notice>,
    hubs: Vec<mpsc::Sender<Command>>,
}

impl Forward {
    /// Runs until the shards are gone or `stop`.
    async fn run(&mut self, stop: &CancellationToken) {
        loop {
            if self.passing.is_none() {
                self.passing = stop.run_until_cancelled(self.notices.recv()).await.flatten();
            }
            let Some(notice) = self.passing else { return };
            self.pass_on(notice).await;
            self.passing = None;
        }
    }

    async fn pass_on(&self, notice: Notice) {
        match notice {
            Notice::BarrierWanted { shard } => {
                for hub in &self.hubs {
                    // Without its reader a stream proves nothing, and health tells.
                    drop(hub.send(Command::Barrier { shard }).await);
                }
            }
            Notice::Gap {
                shard,
                stream,
                position,
            } => drop(
                self.hubs[stream.index()]
                    .send(Command::Gap { shard, position })
                    .await,
            ),
        }
    }
}
