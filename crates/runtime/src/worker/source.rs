//! One consumer: takes the commands that it brings to their executors, as long as the executors have room.
//!
//! an executor takes as many commands in progress as it makes calls at a time, and the broker is asked for no more, but for quick
//! ones, of which as many may wait here for a place. A consumer that pushes lets out what it has, which waits here.
//! Whatever has come is claimed at once and until it is answered for, so that nobody else gets it meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::cancellations::Cancellations;
use super::consumers::Consumer;
use super::executor::Executor;
use super::held::HeldCommands;
use super::line::Bound;
use super::local::Executors;
use super::room::Brought;
use super::running::{WorkerSpec, finish, report};
use super::settings::Settings;
use crate::kernel::envelope::deadline_of;
use crate::kernel::ids::{CommandId, EffectName, TenantId};
use crate::kernel::subject::{Subject, Tenancy};
use crate::ports::broker::{Broker, BrokerError, Manner, Message, Queue, QueueMessage, QueueSpec};
use crate::ports::clock::Clock;
use crate::tasks::Tasks;
use crate::telemetry::Metrics;

const REJOIN_FIRST: Duration = Duration::from_millis(100);
const REJOIN_MAX: Duration = Duration::from_secs(10);
/// Why a queue is joined again behind such a pause.
const STOOD_STILL: &str = "the process stood still for so long that what has come may be another worker's";
/// How often within such a pause the loop looks at the clock.
const LOOKS: u32 = 10;
/// How long a command is left to others whose effect this worker does not have.
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
    pub executors: Executors,
    pub worker: Parts,
}

/// What a source needs of its worker.
pub struct Parts {
    broker: Arc<dyn Broker>,
    /// Name of the stream of commands.
    stream: String,
    tenancy: Tenancy,
    settings: Settings,
    held: Arc<HeldCommands>,
    cancellations: Arc<Cancellations>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    troubles: Arc<Troubles>,
    tasks: Tasks,
    draining: CancellationToken,
}

impl Parts {
    pub fn of(
        spec: &WorkerSpec,
        (held, cancellations): (&Arc<HeldCommands>, &Arc<Cancellations>),
        troubles: &Arc<Troubles>,
        draining: &CancellationToken,
    ) -> Self {
        Self {
            broker: Arc::clone(&spec.broker),
            stream: spec.streams.commands.clone(),
            tenancy: spec.tenancy,
            settings: spec.settings.clone(),
            held: Arc::clone(held),
            cancellations: Arc::clone(cancellations),
            clock: Arc::clone(&spec.clock),
            metrics: Arc::clone(&spec.metrics),
            troubles: Arc::clone(troubles),
            tasks: spec.tasks.clone(),
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
    Executor(Arc<Executor>, (TenantId, CommandId)),
    /// The effect is none of this worker's.
    Unknown(EffectName),
    /// The subject is that of no command.
    Misshapen,
}

impl Source {
    /// Takes commands until the drain, joining the queue again whenever it breaks.
    pub async fn run(&self) {
        let buffer = self
            .executors
            .values()
            .map(|executor| executor.permits_max)
            .max()
            .unwrap_or(1);
        let spec = queue_spec(&self.consumer, &self.worker.stream, &self.worker.settings, buffer);
        tokio::select! {
            biased;
            () = self.worker.draining.cancelled() => return,
            () = self.worker.cancellations.caught_up(self.worker.settings.cancellations_wait.duration()) => {}
        }
        let mut running = JoinSet::new();
        let mut delay = REJOIN_FIRST;
        loop {
            let joined = tokio::select! {
                biased;
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
                "consumer connection lost; reconnecting"
            );
            self.worker.troubles.set(&spec.durable, Some(&broken));
            tokio::select! {
                biased;
                () = self.worker.draining.cancelled() => break,
                () = tokio::time::sleep(delay) => {}
            }
            delay = (delay * 2).min(REJOIN_MAX);
        }
        self.worker.troubles.set(&spec.durable, None);
        finish(&mut running, &self.worker.tasks).await;
    }

    /// Takes commands while the queue lasts. `None`: the drain began, the queue is closed.
    async fn take(&self, queue: &mut dyn Queue, running: &mut JoinSet<()>) -> Option<String> {
        let created = queue.created();
        let mut told = BTreeSet::new();
        let mut seen = self.worker.clock.monotonic();
        loop {
            if self.stood_still(seen) {
                return Some(STOOD_STILL.to_owned());
            }
            seen = self.worker.clock.monotonic();
            while let Some(ended) = running.try_join_next() {
                report(&self.worker.tasks, ended);
            }
            let room = self.room(running.len());
            queue.make_room(room.left);
            let next = tokio::select! {
                biased;
                () = self.worker.draining.cancelled() => {
                    // What it would give back may be another worker's.
                    if !self.stood_still(seen) {
                        queue.close().await;
                    }
                    return None;
                }
                // Otherwise so much is asked for that what comes is occasion enough to ask for more.
                Some(ended) = running.join_next(), if room.is_scarce() => {
                    report(&self.worker.tasks, ended);
                    continue;
                }
                next = queue.next() => next,
                () = tokio::time::sleep(self.pause_max() / LOOKS) => continue,
            };
            if self.stood_still(seen) {
                return Some(STOOD_STILL.to_owned());
            }
            let delivery = match next {
                Ok(delivery) => delivery,
                Err(broken) => return Some(broken.0),
            };
            let (executor, name) = match self.route(&delivery.message) {
                Route::Executor(executor, name) => (executor, name),
                Route::Unknown(effect) => {
                    self.leave_to_others(&delivery, &effect, &mut told).await;
                    continue;
                }
                Route::Misshapen => {
                    tracing::error!(subject = ?delivery.message.subject, "not a command subject; message dropped");
                    self.worker
                        .metrics
                        .dead_letters
                        .with_label_values(&["subject.shape"])
                        .inc();
                    answered(delivery.receipt.term().await, &delivery.message);
                    continue;
                }
            };
            executor.count_redelivered(&delivery.message);
            let Some(delivery) = self.worker.held.take(name, delivery) else {
                tracing::debug!(effect = %executor.definition.name, "command already in progress was delivered again");
                continue;
            };
            let brought = Brought {
                created,
                bound: match self.consumer.tenant {
                    Some(_) => Bound::Share,
                    None => Bound::Free,
                },
            };
            let permit = executor.permit(&delivery.name().0, brought.bound);
            if permit.is_none() && !self.consumer.push && self.executors.len() > 1 {
                // Others behind it, of effects that have room, must not wait.
                running.spawn(executor.give_back_busy(delivery, brought.created));
            } else {
                running.spawn(executor.serve(delivery, permit, brought));
            }
        }
    }

    /// Whether this process did nothing for so long since `seen` that what has come meanwhile may be another worker's, which nothing in it
    /// tells: the broker gives a command to another worker an ack wait after it has sent it here.
    fn stood_still(&self, seen: Duration) -> bool {
        self.worker.clock.monotonic().saturating_sub(seen) > self.pause_max()
    }

    /// Half of the ack wait: what comes behind a shorter pause is renewed in time, within a third of it.
    fn pause_max(&self) -> Duration {
        self.worker.settings.ack_wait.duration() / 2
    }

    fn route(&self, message: &Message) -> Route {
        match Subject::parse(&message.subject, self.worker.tenancy) {
            Ok(Subject::Effect {
                tenant,
                effect,
                command,
            }) => match self.executors.get(&effect) {
                Some(executor) => Route::Executor(Arc::clone(executor), (tenant, command)),
                None => Route::Unknown(effect),
            },
            _ => Route::Misshapen,
        }
    }

    /// Room for more commands, with so many of this consumer in progress.
    fn room(&self, held: usize) -> Room {
        let mut executors = self.executors.values();
        let (Some(executor), None, false) = (executors.next(), executors.next(), self.consumer.push) else {
            return Room::WITHOUT_END;
        };
        let all = match &self.consumer.tenant {
            Some(tenant) => executor.room_of(tenant),
            None => executor.permits_max.saturating_add(executor.ahead()),
        };
        Room {
            left: all.saturating_sub(held),
            all,
        }
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
            tracing::warn!(%effect, consumer, "returning commands of an effect that this worker does not have");
        }
        let worker = &self.worker;
        let Some(deadline) = deadline_ms(&delivery.message.payload) else {
            // It would come again for ever, and no saga has sent it.
            tracing::error!(subject = ?delivery.message.subject, "invalid command; message dropped");
            worker
                .metrics
                .dead_letters
                .with_label_values(&["command.invalid"])
                .inc();
            answered(delivery.receipt.term().await, &delivery.message);
            return;
        };
        let deadline = deadline_of(deadline, &delivery.message.headers);
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

/// How many more commands may come.
#[derive(Debug, Clone, Copy)]
struct Room {
    left: usize,
    all: usize,
}

impl Room {
    /// What cannot be taken at once does not stay here, or comes without being asked for.
    const WITHOUT_END: Self = Self {
        left: usize::MAX,
        all: usize::MAX,
    };

    /// Whether to ask for more as soon as a command in progress is done.
    const fn is_scarce(self) -> bool {
        self.left <= self.all / 2
    }
}

async fn give_back(metrics: &Metrics, delivery: &QueueMessage, effect: &str, reason: &str, delay: Duration) {
    metrics
        .effect_commands_returned
        .with_label_values(&[effect, reason])
        .inc();
    answered(delivery.receipt.nak(delay).await, &delivery.message);
}

/// What was not answered for comes again.
fn answered(answer: Result<(), BrokerError>, message: &Message) {
    if let Err(error) = answer {
        tracing::debug!(subject = message.subject, %error, "delivery was not acknowledged");
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
