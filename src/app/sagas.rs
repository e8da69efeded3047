//! What runs sagas in this process: the shards that are open, each with its relay, the intake that feeds them, and the
//! trimming of the streams.
//!
//! A shard is begun in the same way at the start of the process and while the others run ([`Common::begin`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join_all;
use tokio::sync::mpsc;

use super::catalog::InForce;
use super::ownership::absent::{Absent, Unknown};
use super::ownership::claim::Claimed;
use super::ownership::keeper::{Keeper, Kept};
use super::running::{Parts, served};
use super::shard_map::ShardMap;
use super::shards::{self, Needed, Shown};
use super::{StartError, standing, streams};
use crate::config::BrokerKind;
use crate::effects::Local;
use crate::intake::{Intake, IntakeSpec, Marks, ShardEndpoint};
use crate::kernel::ids::EffectName;
use crate::kernel::input::SourceStream;
use crate::outbox::{LocalFirst, Relay, RelaySpec, Rest, Retention, RetentionSpec, Submitter};
use crate::ports::broker::{Broker, StreamState};
use crate::shard::mailbox::{Notice, Released};
use crate::shard::{ShardHandle, ShardState, Standing};
use crate::storage::StorageError;

/// Releases that may wait for a relay.
const RELEASES_MAX: usize = 256;
/// Notices that may wait for the intake.
const NOTICES_MAX: usize = 1_024;
/// How long the readers may take to stop.
const READERS_DRAIN: Duration = Duration::from_secs(5);
/// How long the relays may finish what is in flight.
const RELAY_DRAIN: Duration = Duration::from_secs(2);

/// What all shards of this process are begun with.
#[derive(Clone)]
pub(super) struct Common {
    broker: Arc<dyn Broker>,
    /// Those that are open.
    pub shards: Arc<ShardMap<Shown>>,
    /// The way to the gateway, if there is one.
    pub submitter: Option<Arc<Submitter>>,
    /// Renews the owner records.
    pub keeper: Arc<Keeper>,
    /// Tells of the shards that are not open here.
    pub absent: Arc<Absent>,
    /// What the readers need of the streams.
    marks: Marks,
    /// Where the relays find the worker, if commands go to it directly.
    local: Option<Arc<Local>>,
    notices: mpsc::Sender<Notice>,
}

/// What the drain stops.
pub(super) struct Sagas {
    /// By the number of the shard.
    pub seats: BTreeMap<u16, Seat>,
    pub intake: Intake,
    retention: Retention,
}

/// A shard, and who hands its work over.
pub(super) struct Seat {
    shard: ShardHandle,
    relay: Relay,
}

/// A claimed shard, and what was found out about its streams.
pub(super) struct Opened {
    pub claimed: Claimed,
    /// What stands in the streams at its positions.
    standing: [Option<Standing>; 3],
}

impl Opened {
    /// Looks the positions up, which may take as long as the broker is away.
    pub async fn new(
        broker: &Arc<dyn Broker>,
        claimed: Claimed,
        streams: &[StreamState; 3],
    ) -> Result<Self, StartError> {
        let standing = standing::look_up(broker, &claimed.store, streams).await?;
        Ok(Self { claimed, standing })
    }
}

/// Begins the shards that were claimed, and all that they need.
pub(super) async fn start(
    parts: &Parts<'_>,
    broker: &Arc<dyn Broker>,
    streams: &[StreamState; 3],
    claimed: Vec<Claimed>,
    local: Option<&Arc<Local>>,
) -> Result<(Common, Sagas), StartError> {
    let manifest = parts.manifest;
    let (notices, asked) = mpsc::channel::<Notice>(NOTICES_MAX);
    let needed = put_in_force(parts, &claimed)?;
    let submitter = match &manifest.gateway {
        Some(settings) => {
            let gateway = parts.adapters.gateway(settings, Arc::clone(broker).messenger())?;
            let (clock, metrics) = (Arc::clone(parts.clock), Arc::clone(parts.metrics));
            let tokens = parts.tokens.cloned();
            Some(Submitter::new(gateway, &manifest.relay, tokens, clock, metrics))
        }
        None => None,
    };
    let marks = Marks::default();
    let common = Common {
        broker: Arc::clone(broker),
        shards: Arc::default(),
        submitter,
        keeper: Keeper::new(
            Arc::clone(broker),
            manifest.clone(),
            Arc::clone(parts.clock),
            Arc::clone(parts.metrics),
            parts.tasks.clone(),
            marks.clone(),
        ),
        marks,
        absent: Arc::new(Absent::new(Arc::clone(broker), manifest)),
        local: local.cloned(),
        notices,
    };
    let (mut seats, mut endpoints) = (BTreeMap::new(), Vec::with_capacity(claimed.len()));
    for claimed in claimed {
        let opened = Opened::new(broker, claimed, streams).await?;
        let (seat, endpoint) = common.begin(parts, opened, streams, &needed)?;
        common.show(&seat);
        seats.insert(endpoint.index, seat);
        endpoints.push(endpoint);
    }
    for shard in common.shards.absent(manifest.shards) {
        parts.metrics.shard_closed(shard, None);
    }
    let retention = common.start_retention(parts);
    let intake = Intake::start(IntakeSpec {
        broker: Arc::clone(broker),
        shards: endpoints,
        shard_count: manifest.shards,
        definitions: needed.definitions,
        cluster: manifest.cluster.clone(),
        tenancy: manifest.tenancy(),
        tenants: manifest.tenant_list(),
        streams: SourceStream::ALL.map(|role| streams::name(manifest, role).to_owned()),
        reader_prefix: format!(
            "{}-{}",
            manifest.group(),
            super::running::name(&**parts.randomness)
        ),
        limits: manifest.limits.clone(),
        tokens: parts.tokens.cloned(),
        takes_applied: common.keeper.is_resumed(),
        marks: common.marks.clone(),
        settings: manifest.intake.clone(),
        clock: Arc::clone(parts.broker_clock),
        metrics: Arc::clone(parts.metrics),
        tasks: parts.tasks.clone(),
        notices: asked,
    });
    let sagas = Sagas {
        seats,
        intake,
        retention,
    };
    Ok((common, sagas))
}

/// Puts the definitions in force that these shards need beside those that are.
pub(super) fn put_in_force(parts: &Parts<'_>, claimed: &[Claimed]) -> Result<Needed, StartError> {
    let in_force = parts.catalog.now();
    let needed = shards::definitions(claimed, &in_force)?;
    parts.catalog.replace(InForce {
        revision: needed.revision,
        sagas: Arc::clone(&needed.definitions),
        effects: in_force.effects.clone(),
        consumers: in_force.consumers.clone(),
        effects_text: in_force.effects_text,
        files: Arc::clone(&in_force.files),
    });
    Ok(needed)
}

impl Common {
    /// Begins a shard and its relay. Nothing is read for it before the intake has the endpoint.
    pub fn begin(
        &self,
        parts: &Parts<'_>,
        opened: Opened,
        streams: &[StreamState; 3],
        needed: &Needed,
    ) -> Result<(Seat, ShardEndpoint), StartError> {
        let Opened { claimed, standing } = opened;
        let manifest = parts.manifest;
        let (index, epoch, fence) = (claimed.shard, claimed.record.epoch, Arc::clone(&claimed.fence));
        let cluster = claimed.store.cluster_id();
        let marked_since = match &self.local {
            Some(_) => mark_calls(parts, &claimed)?,
            None => BTreeMap::new(),
        };
        self.keeper.add(Kept::of(
            &claimed,
            claimed.store.reader(),
            parts.clock.monotonic(),
        ));
        let (release, released) = mpsc::channel::<Released>(RELEASES_MAX);
        let shard = shards::start(
            parts,
            manifest.shard.clone(),
            index,
            claimed.store,
            standing,
            needed,
            streams,
            release,
            &self.notices,
        )
        .inspect_err(|_| drop(self.keeper.forget(index)))?;
        let relay = Relay::start(RelaySpec {
            shard: index,
            broker: Arc::clone(&self.broker),
            submitter: self.submitter.clone(),
            released,
            mailbox: shard.mail.clone(),
            relayed: Arc::clone(&shard.relayed),
            take_spilled: {
                let status = Arc::clone(&shard.status);
                Box::new(move || status.take_spilled())
            },
            streams: streams::workflow(manifest),
            local: self.local.as_ref().map(|local| LocalFirst {
                dispatch: Arc::clone(local) as Arc<dyn crate::ports::dispatch::Dispatch>,
                recovered: shard.began_after,
                maybe_called: shard.maybe_called,
                begun: shard.begun.clone(),
                marked_since,
            }),
            announces: announces(parts),
            began_after: shard.began_after,
            fence,
            cluster,
            settings: manifest.relay.clone(),
            limits: manifest.limits.clone(),
            clock: Arc::clone(parts.clock),
            metrics: Arc::clone(parts.metrics),
            tasks: parts.tasks.clone(),
        });
        parts.metrics.shard_opened(index, epoch);
        let endpoint = endpoint(&shard);
        Ok((Seat { shard, relay }, endpoint))
    }

    /// Lets operators see the shard.
    pub fn show(&self, seat: &Seat) {
        self.shards.put(seat.shard.index, Shown::of(&seat.shard));
    }

    fn start_retention(&self, parts: &Parts<'_>) -> Retention {
        let manifest = parts.manifest;
        let lowest = Arc::new(Lowest::new(self, manifest.shards));
        Retention::start(RetentionSpec {
            broker: Arc::clone(&self.broker),
            streams: streams::workflow(manifest),
            events: (manifest.broker.kind == BrokerKind::Embedded)
                .then(|| streams::name(manifest, SourceStream::AggregateEvents).to_owned()),
            durables: {
                let catalog = Arc::clone(parts.catalog);
                Box::new(move || {
                    let in_force = catalog.now();
                    let consumers = in_force.consumers.iter();
                    consumers.map(|consumer| consumer.name.clone()).collect()
                })
            },
            positions: Box::new(move || {
                let lowest = Arc::clone(&lowest);
                async move { lowest.positions().await }.boxed()
            }),
            may_trim: {
                let keeper = Arc::clone(&self.keeper);
                Box::new(move || keeper.may_send_for_all())
            },
            settings: manifest.relay.clone(),
            clock: Arc::clone(parts.clock),
            tasks: parts.tasks.clone(),
        })
    }
}

/// Stores that local calls leave a mark for as long as this life, of the effects that make no call twice now, and says since when they do.
fn mark_calls(parts: &Parts<'_>, claimed: &Claimed) -> Result<BTreeMap<EffectName, u64>, StartError> {
    let effects = served(&parts.catalog.now().effects);
    let once = effects.iter().filter(|effect| effect.never_calls_twice());
    let names: BTreeSet<EffectName> = once.map(|effect| effect.name.clone()).collect();
    let is_known = !claimed.fence.is_resumed();
    claimed
        .store
        .write::<_, StorageError>(|batch| batch.mark_calls_of(names, is_known))
        .map_err(|error| StartError::Storage(error.to_string()))
}

/// Which effects make no call twice, as the definitions in force say at each question.
fn announces(parts: &Parts<'_>) -> Arc<dyn Fn(&EffectName) -> bool + Send + Sync> {
    let catalog = Arc::clone(parts.catalog);
    Arc::new(move |effect: &EffectName| {
        let in_force = catalog.now();
        let mut known = in_force.effects.iter();
        known.any(|known| known.name == *effect && !known.is_external() && known.never_calls_twice())
    })
}

/// Up to where no shard of the cluster needs the streams, nor a reader: of the shards that are open here by their positions, of
/// the others as their owner records tell, which are never ahead of what is stored.
pub(super) struct Lowest {
    shards: Arc<ShardMap<Shown>>,
    absent: Arc<Absent>,
    marks: Marks,
    count: u16,
    /// The shard whose position was not known last, so that this is told once.
    unknown: Mutex<Option<u16>>,
}

impl Lowest {
    pub fn new(common: &Common, count: u16) -> Self {
        let marks = common.marks.clone();
        Self::of(
            Arc::clone(&common.shards),
            Arc::clone(&common.absent),
            marks,
            count,
        )
    }

    pub fn of(shards: Arc<ShardMap<Shown>>, absent: Arc<Absent>, marks: Marks, count: u16) -> Self {
        Self {
            shards,
            absent,
            marks,
            count,
            unknown: Mutex::new(None),
        }
    }

    /// By `SourceStream::index`; `None` while one of them is not known.
    pub async fn positions(&self) -> Option<[u64; 3]> {
        let mut lowest = [u64::MAX; 3];
        for shard in 0..self.count {
            let positions = if let Some(shown) = self.shards.get(shard) {
                shown.status.positions()
            } else {
                self.recorded(shard).await?
            };
            for (least, position) in lowest.iter_mut().zip(positions) {
                *least = position.min(*least);
            }
        }
        *self.unknown() = None;
        // Behind the positions: what a reader needs is marked before its shard can store what came behind it.
        Some(self.marks.unneeded(lowest))
    }

    async fn recorded(&self, shard: u16) -> Option<[u64; 3]> {
        match self.absent.unneeded(shard).await {
            Ok(unneeded) => Some(unneeded),
            Err(Unknown::Unanswered(message)) => {
                tracing::debug!(shard, message, "no owner record; streams are not trimmed");
                None
            }
            Err(Unknown::NoRecord(message)) => {
                if self.unknown().replace(shard) != Some(shard) {
                    tracing::warn!(
                        shard,
                        message,
                        "position of a shard that is not open here is unknown; streams are not trimmed"
                    );
                }
                None
            }
        }
    }

    fn unknown(&self) -> std::sync::MutexGuard<'_, Option<u16>> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sagas {
    /// Stops in the order in which work flows: no new input, commit, hand over. `before`: what ends beside the readers, and
    /// brings results into the shards. Whether all shards have stopped.
    pub async fn drain(self, before: impl Future<Output = ()>, has_calls: bool, timeout: Duration) -> bool {
        let Self {
            seats,
            intake,
            retention,
        } = self;
        let readers = stopped("the readers", READERS_DRAIN, intake.drain());
        tokio::join!(readers, before);
        let seats: Vec<Seat> = seats.into_values().collect();
        if has_calls {
            finish_calls(&seats).await;
        }
        let (shards, relays): (Vec<_>, Vec<_>) =
            seats.into_iter().map(|seat| (seat.shard, seat.relay)).unzip();
        let all = join_all(shards.into_iter().map(ShardHandle::stop));
        let all_stopped = stopped("the shards", timeout, all).await;
        join_all(relays.into_iter().map(|relay| relay.drain(RELAY_DRAIN))).await;
        drop(retention);
        all_stopped
    }
}

impl Seat {
    /// Stops one shard that gets no more input: what is in its mailbox is committed, the calls that are under way for it end,
    /// and what may leave its outbox does, for at most `timeout`. Whether it has stopped.
    pub async fn drain(self, timeout: Duration) -> bool {
        let Self { shard, relay } = self;
        let index = shard.index;
        let finished = async {
            relay.until(Rest::NoCalls).await;
            shard.commit().await;
        };
        stopped(&format!("the calls of shard {index}"), timeout, finished).await;
        // What the broker does not take now stays in the outbox.
        let _emptied = tokio::time::timeout(RELAY_DRAIN, relay.until(Rest::Nothing)).await;
        let has_stopped = stopped(&format!("shard {index}"), timeout, shard.stop()).await;
        relay.drain(RELAY_DRAIN).await;
        has_stopped
    }
}

/// Waits until a part has stopped, not for ever: a disk or a connection may hang. What is not committed by then is read
/// again after the next start. Whether it has stopped.
async fn stopped<T>(what: &str, timeout: Duration, stop: impl Future<Output = T>) -> bool {
    let in_time = tokio::time::timeout(timeout, stop).await.is_ok();
    if !in_time {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(what, timeout_ms, "tasks did not stop in time");
    }
    in_time
}

/// Brings the outcomes of the calls that were made here into the shards, and their results to the broker, for at most
/// [`RELAY_DRAIN`].
async fn finish_calls(seats: &[Seat]) {
    let finished = async {
        join_all(seats.iter().map(|seat| seat.relay.until(Rest::NoCalls))).await;
        join_all(seats.iter().map(|seat| seat.shard.commit())).await;
        join_all(seats.iter().map(|seat| seat.relay.until(Rest::Nothing))).await;
    };
    if tokio::time::timeout(RELAY_DRAIN, finished).await.is_ok() {
        tracing::info!("the outcomes of all calls are stored and published");
    } else {
        tracing::info!("not all results were published; the rest is published after the next start");
    }
}

fn endpoint(shard: &ShardHandle) -> ShardEndpoint {
    let status = Arc::clone(&shard.status);
    ShardEndpoint {
        index: shard.index,
        mail: shard.mail.clone(),
        stamps: shard.stamps,
        gates: Arc::clone(&status.gates),
        halted: matches!(status.state(), ShardState::Halted { .. }),
        position: Arc::new(move |stream| status.position(stream)),
    }
}
