//! One consumer: takes the commands that it brings to their lanes, as long as the lanes have room.
//!
//! A lane takes as many commands in hand as it makes calls at a time. What waits here for a place is claimed by
//! reports of progress, so that nobody else gets it meanwhile: one command of a consumer that is pulled from, all that
//! it has let out of one that pushes.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::attempt::Reason;
use super::consumers::Consumer;
use super::lane::Lane;
use super::local::Lanes;
use super::recalls::Recalls;
use super::settings::Settings;
use super::worker::{WorkerSpec, finish, report};
use crate::kernel::ids::EffectName;
use crate::kernel::subject::{Subject, Tenancy};
use crate::ports::broker::{Broker, BrokerError, Manner, Message, Queue, QueueMessage, QueueSpec, Receipt};
use crate::ports::clock::Clock;
use crate::telemetry::Metrics;

const REJOIN_FIRST: Duration = Duration::from_millis(100);
const REJOIN_MAX: Duration = Duration::from_secs(10);
/// How long a command is left to others that this worker has no room for.
const BUSY_DELAY: Duration = Duration::from_millis(500);
/// The same of one whose effect this worker does not have.
const UNKNOWN_DELAY: Duration = Duration::from_secs(5);
/// Unknown effects that are told, each once.
const UNKNOWN_TOLD_MAX: usize = 100;
/// Stands for the effect in the metrics where it is none of this worker's.
const UNKNOWN: &str = "unknown";

/// Why consumers cannot be taken from now, by their names.
#[derive(Debug, Default)]
pub struct Troubles(Mutex<BTreeMap<String, String>>);

impl Troubles {
    fn set(&self, consumer: &str, reason: Option<&str>) {
        let mut troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match reason {
            Some(reason) => troubles.insert(consumer.to_owned(), reason.to_owned()),
            None => troubles.remove(consumer),
        };
    }

    /// One line each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = troubles.iter();
        lines
            .map(|(consumer, reason)| format!("consumer {consumer}: {reason}"))
            .collect()
    }
}

/// One consumer, and who gets what it brings.
pub struct Source {
    pub consumer: Consumer,
    /// The effects that it brings.
    pub lanes: Lanes,
    pub worker: Parts,
}

/// What a source needs of its worker.
pub struct Parts {
    broker: Arc<dyn Broker>,
    /// Name of the stream of commands.
    stream: String,
    tenancy: Tenancy,
    settings: Settings,
    recalls: Arc<Recalls>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    troubles: Arc<Troubles>,
    draining: CancellationToken,
}

impl Parts {
    pub fn of(
        spec: &WorkerSpec,
        recalls: &Arc<Recalls>,
        troubles: &Arc<Troubles>,
        draining: &CancellationToken,
    ) -> Self {
        Self {
            broker: Arc::clone(&spec.broker),
            stream: spec.streams.commands.clone(),
            tenancy: spec.tenancy,
            settings: spec.settings.clone(),
            recalls: Arc::clone(recalls),
            clock: Arc::clone(&spec.clock),
            metrics: Arc::clone(&spec.metrics),
            troubles: Arc::clone(troubles),
            draining: draining.clone(),
        }
    }
}

/// The consumer, as the broker has to have it.
#[must_use]
pub fn queue_spec(consumer: &Consumer, stream: &str, settings: &Settings, buffer: usize) -> QueueSpec {
    QueueSpec {
        stream: stream.to_owned(),
        filters: consumer.filters.clone(),
        durable: consumer.name.clone(),
        group: Some(consumer.group.clone()),
        ack_wait: settings.ack_wait.duration(),
        max_unacknowledged: settings.unacknowledged_max,
        buffer,
        manner: Manner {
            push: consumer.push,
            bound: consumer.bound,
        },
    }
}

/// Where a delivery goes.
enum Route {
    Lane(Arc<Lane>),
    /// The effect is none of this worker's.
    Unknown(EffectName),
    /// The subject is that of no command.
    Misshapen,
}

impl Source {
    /// Takes commands until the drain, joining the queue again whenever it breaks.
    pub async fn run(self) {
        let buffer = self.lanes.values().map(|lane| lane.hand_max).max().unwrap_or(1);
        let spec = queue_spec(&self.consumer, &self.worker.stream, &self.worker.settings, buffer);
        tokio::select! {
            () = self.worker.draining.cancelled() => return,
            () = self.worker.recalls.caught_up() => {}
        }
        let mut running = JoinSet::new();
        let mut delay = REJOIN_FIRST;
        loop {
            let joined = tokio::select! {
                () = self.worker.draining.cancelled() => break,
                joined = self.worker.broker.queue(spec.clone()) => joined,
            };
            let broken = match joined {
                Ok(mut queue) => {
                    delay = REJOIN_FIRST;
                    self.worker.troubles.set(&spec.durable, None);
                    match self.take(&mut *queue, &mut running).await {
                        None => break,
                        Some(broken) => broken,
                    }
                }
                Err(error) => error.to_string(),
            };
            tracing::warn!(
                consumer = spec.durable,
                reason = broken,
                "queue is lost, joining again"
            );
            self.worker.troubles.set(&spec.durable, Some(&broken));
            tokio::select! {
                () = self.worker.draining.cancelled() => break,
                () = tokio::time::sleep(delay) => {}
            }
            delay = (delay * 2).min(REJOIN_MAX);
        }
        self.worker.troubles.set(&spec.durable, None);
        finish(&mut running).await;
    }

    /// Takes commands while the queue lasts. `None`: the drain began, the queue is closed.
    async fn take(&self, queue: &mut dyn Queue, running: &mut JoinSet<()>) -> Option<String> {
        let created = queue.created();
        let mut told = BTreeSet::new();
        loop {
            while let Some(ended) = running.try_join_next() {
                report(ended);
            }
            let next = tokio::select! {
                biased;
                () = self.worker.draining.cancelled() => {
                    queue.close().await;
                    return None;
                }
                next = queue.next() => next,
            };
            let delivery = match next {
                Ok(delivery) => delivery,
                Err(broken) => return Some(broken.0),
            };
            let lane = match self.route(&delivery.message) {
                Route::Lane(lane) => lane,
                Route::Unknown(effect) => {
                    self.leave_to_others(&delivery, &effect, &mut told).await;
                    continue;
                }
                Route::Misshapen => {
                    tracing::error!(subject = ?delivery.message.subject, "subject is not that of a command; dropped");
                    self.worker
                        .metrics
                        .dead_letters
                        .with_label_values(&["subject.shape"])
                        .inc();
                    answered(delivery.receipt.term().await, &delivery.message);
                    continue;
                }
            };
            if self.consumer.push {
                // It has been let out already, so it waits here; others do not wait behind it.
                let draining = self.worker.draining.clone();
                running.spawn(async move {
                    if let Some(hand) = in_line(&lane, &delivery, &draining).await {
                        lane.serve(delivery, hand, created).await;
                    }
                });
            } else if let Some(hand) = self.room(&lane, &delivery).await {
                running.spawn(lane.serve(delivery, hand, created));
            }
        }
    }

    fn route(&self, message: &Message) -> Route {
        match Subject::parse(&message.subject, self.worker.tenancy) {
            Ok(Subject::Effect { effect, .. }) => match self.lanes.get(&effect) {
                Some(lane) => Route::Lane(Arc::clone(lane)),
                None => Route::Unknown(effect),
            },
            _ => Route::Misshapen,
        }
    }

    /// Room in hand. `None`: there is none, and the command was given back.
    async fn room(&self, lane: &Lane, delivery: &QueueMessage) -> Option<OwnedSemaphorePermit> {
        if let Ok(hand) = Arc::clone(&lane.hand).try_acquire_owned() {
            return Some(hand);
        }
        if self.lanes.len() > 1 {
            // Others behind it, of effects that have room, must not wait.
            let spread = Duration::from_millis(delivery.message.stream_sequence % 256);
            let effect = lane.definition.name.as_str();
            let delay = BUSY_DELAY + spread;
            give_back(&self.worker.metrics, delivery, effect, "busy", delay).await;
            return None;
        }
        in_line(lane, delivery, &self.worker.draining).await
    }

    /// A command of an effect that this worker does not have: another one may have it, until its deadline. Then the
    /// saga's own process says that time is up.
    async fn leave_to_others(
        &self,
        delivery: &QueueMessage,
        effect: &EffectName,
        told: &mut BTreeSet<EffectName>,
    ) {
        if told.len() < UNKNOWN_TOLD_MAX && told.insert(effect.clone()) {
            let consumer = &*self.consumer.name;
            tracing::warn!(%effect, consumer, "commands of an effect that this worker does not have are left to others");
        }
        let worker = &self.worker;
        let Some(deadline) = deadline_ms(&delivery.message.payload) else {
            // It would come again for ever, and no saga has sent it.
            tracing::error!(subject = ?delivery.message.subject, "command cannot be read; dropped");
            worker
                .metrics
                .dead_letters
                .with_label_values(&["command.invalid"])
                .inc();
            answered(delivery.receipt.term().await, &delivery.message);
            return;
        };
        if deadline <= worker.clock.now().0 {
            answered(delivery.receipt.term().await, &delivery.message);
        } else {
            give_back(
                &worker.metrics,
                delivery,
                UNKNOWN,
                "unknown_effect",
                UNKNOWN_DELAY,
            )
            .await;
        }
    }
}

/// Waits for room in hand, and claims the delivery until then. `None`: the drain began, and it was given back.
async fn in_line(
    lane: &Lane,
    delivery: &QueueMessage,
    draining: &CancellationToken,
) -> Option<OwnedSemaphorePermit> {
    let free = std::pin::pin!(Arc::clone(&lane.hand).acquire_owned());
    let hand = tokio::select! {
        biased;
        () = draining.cancelled() => None,
        free = claimed(&*delivery.receipt, lane.settings.ack_wait.duration(), free) => {
            Some(free.expect("the semaphore is never closed"))
        }
    };
    if hand.is_none() {
        let effect = lane.definition.name.as_str();
        give_back(
            &lane.metrics,
            delivery,
            effect,
            Reason::Drain.as_str(),
            Duration::ZERO,
        )
        .await;
    }
    hand
}

async fn give_back(metrics: &Metrics, delivery: &QueueMessage, effect: &str, reason: &str, delay: Duration) {
    metrics
        .effects_given_back
        .with_label_values(&[effect, reason])
        .inc();
    answered(delivery.receipt.nak(delay).await, &delivery.message);
}

/// Waits for `what` and meanwhile reports progress. What comes pinned is kept once: an `async fn` that pins what it is
/// given has it twice, and there is one of these for each command in hand.
pub(super) async fn claimed<T>(
    receipt: &dyn Receipt,
    ack_wait: Duration,
    mut what: Pin<&mut impl Future<Output = T>>,
) -> T {
    let beat = ack_wait / 3;
    loop {
        tokio::select! {
            biased;
            done = what.as_mut() => return done,
            () = tokio::time::sleep(beat) => {
                if let Err(error) = receipt.progress().await {
                    tracing::debug!(%error, "progress was not reported");
                }
            }
        }
    }
}

/// What was not answered for comes again.
fn answered(answer: Result<(), BrokerError>, message: &Message) {
    if let Err(error) = answer {
        tracing::debug!(subject = message.subject, %error, "delivery was not answered for");
    }
}

/// The deadline of a command whose effect is not known here, if it can be read.
fn deadline_ms(payload: &[u8]) -> Option<i64> {
    #[derive(Deserialize)]
    struct Command {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        deadline_ms: i64,
    }
    let command: Command = serde_json::from_slice(payload).ok()?;
    Some(command.metadata.deadline_ms)
}
