//! What happens to one command, from delivery to acknowledgement.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::provider::{CallContext, CallFailure, CallOutcome, Certainty, Provider};
use super::result::{self, Addressee, Answer, Recorded};
use super::settings::Settings;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::envelope::EffectCommand;
use crate::kernel::ids::{CommandId, TenantId, TimeMs};
use crate::kernel::json::Json;
use crate::kernel::subject::{Subject, Tenancy};
use crate::ports::broker::{Broker, Message, QueueMessage, WorkflowStreams};
use crate::ports::clock::Clock;
use crate::telemetry::Metrics;
use crate::telemetry::metrics::{Histogram, IntCounter, IntGauge};

/// Longest delay of a negative acknowledgement: longer ones would outlive the gate's horizon unseen.
const NAK_DELAY_MAX: Duration = Duration::from_mins(1);
const NAK_DELAY: Duration = Duration::from_secs(1);
/// The same for every answer that the broker refuses, so that nobody spins on it.
const REFUSED_DELAY: Duration = Duration::from_secs(30);

/// All that the commands of one effect share.
pub struct Lane {
    pub definition: Arc<EffectDefinition>,
    pub provider: Arc<dyn Provider>,
    pub broker: Arc<dyn Broker>,
    pub streams: WorkflowStreams,
    pub tenancy: Tenancy,
    pub settings: Settings,
    pub gate: Arc<Gate>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    pub series: Series,
    /// No new work; what has not been sent is given back.
    pub draining: CancellationToken,
    /// Whatever runs is dropped and given back.
    pub stopping: CancellationToken,
}

/// Series of one effect, looked up once.
pub struct Series {
    running: IntGauge,
    call_seconds: Histogram,
    succeeded: IntCounter,
    failed: IntCounter,
    timed_out: IntCounter,
    known: IntCounter,
}

impl Series {
    pub fn of(metrics: &Metrics, effect: &str) -> Self {
        let results = |result: &str| metrics.effect_results.with_label_values(&[effect, result]);
        Self {
            running: metrics.effects_running.with_label_values(&[effect]),
            call_seconds: metrics.effect_call_seconds.with_label_values(&[effect]),
            succeeded: results("succeeded"),
            failed: results("failed"),
            timed_out: results("timed_out"),
            known: results("known"),
        }
    }
}

/// What to tell the broker about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disposition {
    Done,
    Hopeless,
    GiveBack(Duration),
}

/// What the attempts came to.
enum Attempted {
    Answer(Answer),
    /// The worker drains and the next attempt was still to come.
    GiveBack(Duration),
}

impl Lane {
    /// Serves one delivery and answers for it.
    pub async fn serve(self: Arc<Self>, delivery: QueueMessage) {
        let QueueMessage { message, receipt } = delivery;
        self.series.running.inc();
        let disposition = {
            let work = self.process(&message);
            tokio::pin!(work);
            let beat = self.settings.ack_wait.duration() / 3;
            loop {
                tokio::select! {
                    biased;
                    disposition = &mut work => break disposition,
                    () = self.stopping.cancelled() => break Disposition::GiveBack(Duration::ZERO),
                    () = tokio::time::sleep(beat) => {
                        if let Err(error) = receipt.progress().await {
                            tracing::debug!(subject = message.subject, %error, "progress was not reported");
                        }
                    }
                }
            }
        };
        self.series.running.dec();
        let answered = match disposition {
            Disposition::Done => receipt.ack().await,
            Disposition::Hopeless => receipt.term().await,
            Disposition::GiveBack(delay) => receipt.nak(delay).await,
        };
        // Unacknowledged, it comes again, and the gate finds its result.
        if let Err(error) = answered {
            tracing::debug!(subject = message.subject, %error, "delivery was not answered for");
        }
    }

    async fn process(&self, message: &Message) -> Disposition {
        let (tenant, command) = match Subject::parse(&message.subject, self.tenancy) {
            Ok(Subject::Effect {
                tenant,
                effect,
                command,
            }) if effect == self.definition.name => (tenant, command),
            _ => {
                tracing::error!(subject = ?message.subject, "subject is not that of a command of this effect; dropped");
                self.metrics
                    .dead_letters
                    .with_label_values(&["subject.shape"])
                    .inc();
                return Disposition::Hopeless;
            }
        };
        let name = (tenant, command);
        let subject = result::subject(&name.0, &self.definition.name, command);
        let now = self.clock.now();
        let gate = self.gate.is_answered(
            &*self.broker,
            &self.streams.events,
            &name,
            &subject,
            message,
            now.0,
        );
        match gate.await {
            Ok(false) => self.answer(message, name).await,
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

    async fn answer(&self, message: &Message, name: (TenantId, CommandId)) -> Disposition {
        let command = match self.decode(message, &name) {
            Ok(command) => command,
            Err(reason) => return self.unreadable(name, &reason).await,
        };
        let mut calls = 0;
        let now = self.clock.now();
        let attempted = if command.metadata.deadline_ms <= now.0 {
            Attempted::Answer(expired("the deadline passed before the command was executed"))
        } else {
            match Json::parse(command.payload.get().as_bytes(), self.settings.json_depth) {
                Ok(input) => {
                    let call = CallContext {
                        command: &command,
                        input: &input,
                    };
                    // Another worker may have called already and died before it could record anything.
                    self.attempts(&call, message.delivered > 1, &mut calls).await
                }
                Err(error) => Attempted::Answer(Answer::Failed {
                    class: "payload.syntax".to_owned(),
                    message: error.to_string(),
                }),
            }
        };
        match attempted {
            Attempted::Answer(answer) => {
                let to = Addressee {
                    tenant: &name.0,
                    command: name.1,
                    effect: &self.definition.name,
                    metadata: Some(&command.metadata),
                };
                let disposition = self.record(&to, answer, calls).await;
                if disposition == Disposition::Done {
                    self.gate.mark(name);
                }
                disposition
            }
            Attempted::GiveBack(delay) => Disposition::GiveBack(delay.min(NAK_DELAY_MAX)),
        }
    }

    /// Reads the envelope. The subject, which the broker's permissions guard, has the last word.
    fn decode<'a>(
        &self,
        message: &'a Message,
        name: &(TenantId, CommandId),
    ) -> Result<EffectCommand<'a>, String> {
        let command: EffectCommand<'a> = serde_json::from_slice(&message.payload)
            .map_err(|error| format!("command cannot be read: {error}"))?;
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
        let failed = Answer::Failed {
            class: "command.invalid".to_owned(),
            message: reason.to_owned(),
        };
        match self.record(&to, failed, 0).await {
            Disposition::Done => Disposition::Hopeless,
            other => other,
        }
    }

    async fn record(&self, to: &Addressee<'_>, answer: Answer, calls: u32) -> Disposition {
        let counter = match &answer {
            Answer::Succeeded { .. } => &self.series.succeeded,
            Answer::Failed { .. } => &self.series.failed,
            Answer::TimedOut { .. } => &self.series.timed_out,
        };
        let happened = matches!(answer, Answer::Succeeded { .. } | Answer::TimedOut { .. });
        match self.publish(to, answer, calls).await {
            Recorded::Stored => counter.inc(),
            Recorded::Known => self.series.known.inc(),
            Recorded::Refused(reason) => return self.record_refusal(to, &reason, happened, calls).await,
        }
        Disposition::Done
    }

    /// The broker will not take the result (too large, most likely): the saga must learn that there is one.
    async fn record_refusal(
        &self,
        to: &Addressee<'_>,
        reason: &str,
        happened: bool,
        calls: u32,
    ) -> Disposition {
        let class = "result.refused".to_owned();
        let message = format!("the broker refuses the result: {reason}");
        tracing::error!(effect = %to.effect, command = %to.command, reason, "broker refuses a result");
        let (answer, counter) = if happened {
            (Answer::TimedOut { class, message }, &self.series.timed_out)
        } else {
            (Answer::Failed { class, message }, &self.series.failed)
        };
        match self.publish(to, answer, calls).await {
            Recorded::Stored => counter.inc(),
            Recorded::Known => self.series.known.inc(),
            Recorded::Refused(_) => return Disposition::GiveBack(REFUSED_DELAY),
        }
        Disposition::Done
    }

    async fn publish(&self, to: &Addressee<'_>, answer: Answer, calls: u32) -> Recorded {
        let now = self.clock.now();
        let publication = result::publication(&self.streams.events, to, answer, calls, now);
        result::record(&*self.broker, publication).await
    }

    /// Calls until there is an outcome, the attempts are used up, or the deadline is too near for another.
    async fn attempts(&self, call: &CallContext<'_>, earlier: bool, calls: &mut u32) -> Attempted {
        let deadline = TimeMs(call.command.metadata.deadline_ms);
        let mut unsettled = earlier;
        loop {
            *calls += 1;
            let failure = match self.attempt(call, deadline).await {
                CallOutcome::Succeeded { payload } => {
                    return Attempted::Answer(Answer::Succeeded { payload });
                }
                CallOutcome::Failed(failure) => failure,
            };
            unsettled = match failure.certainty {
                Certainty::Refused => false,
                Certainty::NotDone => unsettled,
                Certainty::Unknown => true,
            };
            let Some(delay) = self.delay_before_next(call.command.command_id, *calls, &failure) else {
                return Attempted::Answer(conclude(failure, unsettled));
            };
            let wait_ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
            if self.clock.now().plus_ms(wait_ms) >= deadline {
                return Attempted::Answer(conclude(failure, unsettled));
            }
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = self.draining.cancelled() => return Attempted::GiveBack(delay),
            }
        }
    }

    async fn attempt(&self, call: &CallContext<'_>, deadline: TimeMs) -> CallOutcome {
        let start = self.clock.monotonic();
        let left_ms = deadline.0.saturating_sub(self.clock.now().0);
        let limit_ms = self
            .definition
            .timeout_ms
            .min(u64::try_from(left_ms).unwrap_or(0));
        let limit = Duration::from_millis(limit_ms);
        let outcome = tokio::time::timeout(limit, self.provider.call(call))
            .await
            .unwrap_or_else(|_| {
                let message = format!("no answer within {limit_ms} ms");
                CallOutcome::Failed(CallFailure::unknown("timeout", message))
            });
        let took = self.clock.monotonic().saturating_sub(start);
        self.series.call_seconds.observe(took.as_secs_f64());
        let class = match &outcome {
            CallOutcome::Succeeded { .. } => "succeeded",
            CallOutcome::Failed(failure) => &failure.class,
        };
        self.metrics
            .effect_calls
            .with_label_values(&[self.definition.name.as_str(), class])
            .inc();
        outcome
    }

    /// The delay before the next call, `None` if there is to be none.
    fn delay_before_next(&self, command: CommandId, calls: u32, failure: &CallFailure) -> Option<Duration> {
        let retried = self
            .definition
            .retry_classes
            .iter()
            .any(|class| *class == failure.class);
        let delay_ms = self
            .definition
            .retry
            .delay_before(calls + 1)
            .filter(|_| retried)?;
        let delay = Duration::from_millis(jittered(delay_ms, command, calls));
        Some(delay.max(failure.retry_after.unwrap_or_default()))
    }
}

/// Half the delay and a share of the other half. The share comes from the command's own random bits, so that
/// commands that failed together spread out, without a source of randomness.
fn jittered(delay_ms: u64, command: CommandId, calls: u32) -> u64 {
    let (_, mut bits) = command.0.as_u64_pair();
    bits ^= u64::from(calls).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits ^= bits >> 31;
    bits = bits.wrapping_mul(0x94d0_49bb_1331_11eb);
    let share = (bits >> 32) % 1_001;
    let half = delay_ms / 2;
    half + (delay_ms - half) * share / 1_000
}

fn expired(message: &str) -> Answer {
    Answer::TimedOut {
        class: "deadline".to_owned(),
        message: message.to_owned(),
    }
}

/// What is recorded after the last attempt: `Failed` says that it definitely did not happen.
fn conclude(failure: CallFailure, unsettled: bool) -> Answer {
    let class = failure.class.into_owned();
    let message = failure.message;
    if unsettled {
        Answer::TimedOut { class, message }
    } else {
        Answer::Failed { class, message }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn jitter_stays_within_the_delay_and_spreads_commands() {
        let delays: std::collections::BTreeSet<u64> = (0..50_u128)
            .map(|n| jittered(1_000, CommandId(Uuid::from_u128(n)), 1))
            .collect();
        assert!(delays.iter().all(|delay| (500..=1_000).contains(delay)));
        assert!(delays.len() > 25, "{delays:?}");
    }
}
