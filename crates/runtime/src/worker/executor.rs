//! What happens to one command, from delivery to acknowledgement.
//!
//! Tens of thousands of commands may wait for an answer at the same time, so what is only needed before and after is boxed:
//! an `async fn` has room for its largest part all the time.
//!
//! `next_attempt` decides whether a call is made and what it means, `recording` writes the result.

mod next_attempt;
mod recording;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::attempt::{Reason, Turn};
use super::breakers::Breakers;
use super::cancellations::Cancellations;
use super::gate::Gate;
use super::held::{Held, HeldCommand};
use super::line::Line;
use super::places::{Pace, Share, Tenants};
use super::progress;
use super::provider::Provider;
use super::result::{self, Addressee, Answer};
use super::room::{Brought, Permit, Took};
use super::secrets::Secrets;
use super::settings::Settings;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::envelope::{EffectCommand, EffectProgress, HeldCall, deadline_of};
use crate::kernel::ids::{CommandId, TenantId, TimeMs};
use crate::ports::broker::{Broker, Message, WorkflowStreams};
use crate::ports::clock::Clock;
use crate::tasks::Tasks;
use crate::telemetry::metrics::{Histogram, IntCounter, IntGauge};
use crate::telemetry::{Exemplars, Metrics};
pub(super) use next_attempt::Next;

/// Longest delay of a negative acknowledgement. What is due later comes back in between and is given back again.
const NAK_DELAY_MAX: Duration = Duration::from_mins(1);
pub(super) const NAK_DELAY: Duration = Duration::from_secs(1);

/// A place of the effect and one of the process.
pub type Places = (OwnedSemaphorePermit, OwnedSemaphorePermit);

/// All that the commands of one effect share.
pub struct Executor {
    pub definition: Arc<EffectDefinition>,
    pub provider: Arc<dyn Provider>,
    pub secrets: Arc<Secrets>,
    pub broker: Arc<dyn Broker>,
    pub streams: WorkflowStreams,
    pub settings: Settings,
    pub gate: Arc<Gate>,
    pub cancellations: Arc<Cancellations>,
    /// Name of this worker, which no other has.
    pub worker: Arc<str>,
    /// What its breakers call the upstream, `None` where nothing is called.
    pub upstream: Option<Arc<str>>,
    pub breakers: Arc<Breakers>,
    pub share: Share,
    /// Calls of the effect that are made at the same time, however its commands came here.
    pub concurrency: Arc<Semaphore>,
    /// Those who wait for a place to call.
    pub places: Line<Places>,
    /// Commands from consumers that are served; at most [`Self::permits_max`]. Others wait for it in [`Self::line`].
    pub permits: Arc<Semaphore>,
    pub permits_max: usize,
    pub line: Line<OwnedSemaphorePermit>,
    pub took: Took,
    /// How fast commands that come by consumers may be carried out.
    pub pace: Option<Pace>,
    pub tenants: Arc<Tenants>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    pub tasks: Tasks,
    pub series: Series,
    /// No new work; what has not been sent is given back.
    pub draining: CancellationToken,
    /// Calls of commands that came straight from the outbox.
    pub home: TaskTracker,
    /// Whatever runs is dropped and given back.
    pub stopping: CancellationToken,
}

/// Series of one effect, looked up once.
pub struct Series {
    pub(super) running: IntGauge,
    pub(super) call_seconds: Histogram,
    pub(super) call_exemplars: Arc<Exemplars>,
    redelivered: IntCounter,
    succeeded: IntCounter,
    failed: IntCounter,
    timed_out: IntCounter,
    known: IntCounter,
    cancelled: IntCounter,
    results_kept: IntGauge,
}

impl Series {
    pub fn of(metrics: &Metrics, effect: &str) -> Self {
        for reason in Reason::ALL {
            metrics
                .effect_commands_returned
                .with_label_values(&[effect, reason.as_str()]);
        }
        metrics.effect_known(effect);
        let results = |result: &str| metrics.effect_results.with_label_values(&[effect, result]);
        Self {
            running: metrics.effect_commands_in_progress.with_label_values(&[effect]),
            call_seconds: metrics.effect_call_seconds.with_label_values(&[effect]),
            call_exemplars: metrics.call_exemplars(effect),
            redelivered: metrics.effect_commands_redelivered.with_label_values(&[effect]),
            succeeded: results("succeeded"),
            failed: results("failed"),
            timed_out: results("timed_out"),
            known: results("known"),
            cancelled: metrics.effect_commands_cancelled.with_label_values(&[effect]),
            results_kept: metrics.effect_results_refused.with_label_values(&[effect]),
        }
    }

    pub(super) const fn of_answer(&self, answer: &Answer) -> &IntCounter {
        match answer {
            Answer::Succeeded { .. } => &self.succeeded,
            Answer::Failed { .. } => &self.failed,
            Answer::TimedOut { .. } => &self.timed_out,
        }
    }
}

/// What to tell the broker about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disposition {
    Done,
    Hopeless,
    GiveBack(Duration),
}

impl Executor {
    /// Serves one delivery and answers for it. `hand` is its room, for which it waits here where it has none yet.
    pub async fn serve(self: Arc<Self>, delivery: HeldCommand, permit: Option<Permit>, brought: Brought) {
        let disposition = {
            let work = std::pin::pin!(async {
                // Where the drain ends the wait there is no room for a call either, so that the command is given back with word.
                let _permit = match permit {
                    Some(permit) => Some(permit),
                    None => self.in_line(&delivery.name().0, brought.bound).await,
                };
                let served = Served::begin(&self);
                let disposition = self.process(&delivery, brought.created).await;
                drop(served);
                disposition
            });
            tokio::select! {
                biased;
                disposition = work => disposition,
                () = self.stopping.cancelled() => Disposition::GiveBack(Duration::ZERO),
                never = delivery.keep() => match never {},
            }
        };
        answer_for(delivery, disposition).await;
    }

    async fn process(&self, delivery: &HeldCommand, created: TimeMs) -> Disposition {
        let message = &delivery.message;
        let name = delivery.name().clone();
        let subject = result::subject(&name.0, &self.definition.name, name.1);
        let is_new = !self.gate.has_seen_answered(&name)
            && self.gate.is_first(message, self.clock.now(), created)
            && !delivery.has_waited();
        let is_answered = if is_new {
            Ok(false)
        } else {
            delivery.looked(self.clock.monotonic());
            let events = &self.streams.events;
            self.gate
                .is_answered(&*self.broker, events, &name, &subject)
                .await
        };
        match is_answered {
            Ok(false) => self.answer(message, created, delivery, name).await,
            Ok(true) => {
                self.series.known.inc();
                Disposition::Done
            }
            Err(error) => {
                tracing::warn!(subject, %error, "cannot tell whether the command was answered");
                Disposition::GiveBack(NAK_DELAY)
            }
        }
    }

    async fn answer(
        &self,
        message: &Message,
        created: TimeMs,
        held: &Held,
        name: (TenantId, CommandId),
    ) -> Disposition {
        let command = match self.decode(message, &name) {
            Ok(command) => command,
            Err(reason) => return Box::pin(self.unreadable(name, &reason)).await,
        };
        let stream = &self.streams.commands;
        let initial = command.progress.as_ref();
        let read = progress::read(
            &*self.broker,
            stream,
            &self.definition.name,
            &name,
            self.delivery(message, created),
            initial,
        );
        let mut progress = match read.await {
            Ok(progress) => progress,
            Err(error) => {
                tracing::warn!(command = %name.1, %error, "cannot tell how often the command was tried");
                return Disposition::GiveBack(NAK_DELAY);
            }
        };
        let answer = match self.next(&command, Turn::of(message, held), &mut progress).await {
            Next::Answer(answer) => answer,
            Next::GiveBack(delay, reason) => {
                progress.delivered = held.delivered();
                progress.held = self.held_back(delay, reason);
                if held.is_lost() {
                    // Whoever has it now leaves word.
                    self.count_given_back(&name, reason);
                    return Disposition::GiveBack(delay);
                }
                let deadline = TimeMs(command.metadata.deadline_ms);
                return self.give_back(&name, &progress, deadline, delay, reason).await;
            }
        };
        let to = Addressee {
            tenant: &name.0,
            command: name.1,
            effect: &self.definition.name,
            metadata: Some(&command.metadata),
        };
        self.record(&to, answer, progress.calls).await;
        self.gate.mark(name);
        Disposition::Done
    }

    /// What tells of the deliveries before this one, which a consumer has brought that was made at `created`.
    pub(super) fn delivery<'m>(&self, message: &'m Message, created: TimeMs) -> progress::Delivery<'m> {
        progress::Delivery {
            message,
            created,
            now: self.clock.now(),
            never_twice: self.definition.never_calls_twice(),
        }
    }

    /// Leaves word about the command, so that whoever gets it next knows what was done.
    async fn give_back(
        &self,
        name: &(TenantId, CommandId),
        progress: &EffectProgress,
        deadline: TimeMs,
        delay: Duration,
        reason: Reason,
    ) -> Disposition {
        let effect = &self.definition.name;
        progress::write(
            &*self.broker,
            &self.streams.commands,
            effect,
            name,
            progress,
            progress::Version::Newest,
        )
        .await;
        self.count_given_back(name, reason);
        // At its deadline somebody must say so.
        let left = deadline.0.saturating_sub(self.clock.now().0);
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        Disposition::GiveBack(delay.min(left).min(NAK_DELAY_MAX))
    }

    /// What whoever asks is told of a call that is kept back.
    pub(super) fn held_back(&self, delay: Duration, reason: Reason) -> Option<Box<HeldCall>> {
        if !reason.is_told() {
            return None;
        }
        let ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
        let upstream = self
            .upstream
            .as_deref()
            .filter(|_| matches!(reason, Reason::Breaker | Reason::BreakerForced));
        Some(Box::new(HeldCall {
            reason: reason.told_as().to_owned(),
            upstream: upstream.map(str::to_owned),
            until_ms: self.clock.now().plus_ms(ms).0,
        }))
    }

    /// Counts a delivery that is not the first of its command.
    pub fn count_redelivered(&self, message: &Message) {
        if message.delivered > 1 {
            self.series.redelivered.inc();
        }
    }

    /// Leaves a trace of a command that goes back to the queue.
    pub fn count_given_back(&self, (tenant, command): &(TenantId, CommandId), reason: Reason) {
        let effect = &self.definition.name;
        let reason = reason.as_str();
        tracing::debug!(%tenant, %effect, %command, reason, "command returned to the queue");
        self.metrics
            .effect_commands_returned
            .with_label_values(&[effect.as_str(), reason])
            .inc();
    }

    /// Reads the envelope. The subject, which the broker's permissions guard, has the last word.
    fn decode<'a>(
        &self,
        message: &'a Message,
        name: &(TenantId, CommandId),
    ) -> Result<EffectCommand<'a>, String> {
        let mut command: EffectCommand<'a> = serde_json::from_slice(&message.payload)
            .map_err(|error| format!("command cannot be read: {error}"))?;
        let deadline = &mut command.metadata.deadline_ms;
        *deadline = deadline_of(*deadline, &message.headers);
        if command.tenant_id != name.0 {
            return Err("tenant of the command is not that of its subject".to_owned());
        }
        if command.command_id != name.1 || command.effect_name != self.definition.name {
            return Err("id or effect of the command is not that of its subject".to_owned());
        }
        Ok(command)
    }

    async fn unreadable(&self, name: (TenantId, CommandId), reason: &str) -> Disposition {
        tracing::error!(effect = %self.definition.name, command = %name.1, reason, "command cannot be executed");
        self.metrics
            .dead_letters
            .with_label_values(&["command.invalid"])
            .inc();
        let to = Addressee {
            tenant: &name.0,
            command: name.1,
            effect: &self.definition.name,
            metadata: None,
        };
        let failed = Answer::failed("command.invalid", reason.to_owned());
        self.record(&to, failed, 0).await;
        Disposition::Hopeless
    }
}

/// Tells the broker the outcome of a delivery. Unacknowledged, it comes again, and the gate finds its result.
pub(super) async fn answer_for(delivery: HeldCommand, disposition: Disposition) {
    let stream_sequence = delivery.message.stream_sequence;
    let claim = delivery.release();
    let answered = match disposition {
        Disposition::Done => claim.ack().await,
        Disposition::Hopeless => claim.term().await,
        Disposition::GiveBack(delay) => claim.nak(delay).await,
    };
    if let Err(error) = answered {
        tracing::debug!(stream_sequence, %error, "delivery was not acknowledged");
    }
}

/// A command that is served, until it is dropped.
struct Served<'l> {
    executor: &'l Executor,
    since: Duration,
}

impl<'l> Served<'l> {
    fn begin(executor: &'l Executor) -> Self {
        executor.series.running.inc();
        let since = executor.clock.monotonic();
        Self { executor, since }
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.executor.series.running.dec();
        let took = self.executor.clock.monotonic().saturating_sub(self.since);
        self.executor.took.add(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most that the task of one command in progress may take, in bytes. There may be tens of thousands.
    const TASK_BYTES_MAX: usize = 2_400;

    fn task_bytes<D, H, T, F>(_: impl Fn(Arc<Executor>, D, H, T) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_command_in_progress_takes_little_memory() {
        let bytes = task_bytes(Executor::serve);
        assert!(bytes <= TASK_BYTES_MAX, "{bytes}");
    }
}
