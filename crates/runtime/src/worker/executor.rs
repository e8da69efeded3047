//! What happens to one command, from delivery to acknowledgement.
//!
//! Tens of thousands of commands may wait for an answer at the same time, so what is only needed before and after is boxed:
//! an `async fn` has room for its largest part all the time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::attempt::{self, Reason, Room, Turn};
use super::breakers::Breakers;
use super::cancellations::{Cancellations, Watch};
use super::gate::Gate;
use super::held::{Held, HeldCommand};
use super::line::Line;
use super::mask::Mask;
use super::places::{Pace, Share, Tenants};
use super::progress::{self, Written};
use super::provider::{CallContext, CallFailure, CallOutcome, Provider};
use super::result::{self, Addressee, Answer, Recorded, Refusals, Stands};
use super::room::{Brought, Permit, Took};
use super::secrets::Secrets;
use super::settings::Settings;
use crate::kernel::breaker::CallEnd;
use crate::kernel::classes::TIMEOUT_CLASS;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::definition::effect::{AMBIGUOUS, OnCancel};
use crate::kernel::envelope::{EffectCommand, EffectProgress, ErrorPayload, deadline_of};
use crate::kernel::ids::{CommandId, TenantId, TimeMs};
use crate::kernel::json::Json;
use crate::kernel::planted::{Bug, is_planted};
use crate::ports::broker::{Broker, Expect, Message, Publication, WorkflowStreams};
use crate::ports::clock::Clock;
use crate::tasks::Tasks;
use crate::telemetry::Metrics;
use crate::telemetry::metrics::{Histogram, IntCounter, IntGauge};

/// Longest delay of a negative acknowledgement. What is due later comes back in between and is given back again.
const NAK_DELAY_MAX: Duration = Duration::from_mins(1);
pub(super) const NAK_DELAY: Duration = Duration::from_secs(1);
/// Class of a command that was taken back.
const CANCELLED: &str = "cancelled";

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
    succeeded: IntCounter,
    failed: IntCounter,
    timed_out: IntCounter,
    known: IntCounter,
    cancelled: IntCounter,
    results_kept: IntGauge,
}

impl Series {
    pub fn of(metrics: &Metrics, effect: &str) -> Self {
        let results = |result: &str| metrics.effect_results.with_label_values(&[effect, result]);
        Self {
            running: metrics.effect_commands_in_progress.with_label_values(&[effect]),
            call_seconds: metrics.effect_call_seconds.with_label_values(&[effect]),
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
                    None => self.in_line(&delivery.name().0, brought.by_tenant).await,
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
        let is_answered = if self.gate.knows(&name) {
            Ok(true)
        } else if self.gate.is_first(message, self.clock.now(), created) && !delivery.has_waited() {
            Ok(false)
        } else {
            delivery.looked(self.clock.monotonic());
            let events = &self.streams.events;
            self.gate
                .is_answered(&*self.broker, events, &name, &subject)
                .await
        };
        match is_answered {
            Ok(false) => self.answer(message, delivery, name).await,
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

    async fn answer(&self, message: &Message, held: &Held, name: (TenantId, CommandId)) -> Disposition {
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
            message,
            initial,
            self.definition.never_calls_twice(),
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

    /// Makes the next attempt, if it is due and there is room for it, and says what it means for the command.
    pub(super) async fn next(
        &self,
        command: &EffectCommand<'_>,
        turn: Turn<'_>,
        progress: &mut EffectProgress,
    ) -> Next {
        let deadline = TimeMs(command.metadata.deadline_ms);
        let now = self.clock.now();
        if deadline <= now {
            return Next::Answer(self.expired(progress));
        }
        let watch = self
            .cancellations
            .watch((command.tenant_id.clone(), command.command_id), turn.sequence);
        if watch.is_cancelled() {
            return Next::Answer(self.taken_back(progress));
        }
        let never_twice = self.definition.never_calls_twice() && !is_planted(Bug::SecondCall);
        if never_twice && progress.outcome_unknown {
            return Next::Answer(begun_before());
        }
        if progress.not_before_ms > now.0 {
            let early = u64::try_from(progress.not_before_ms - now.0).unwrap_or(0);
            return Next::GiveBack(Duration::from_millis(early), Reason::NotDue);
        }
        let patience = self.settings.yield_retry.duration();
        if progress.calls > 0 && progress.worker == *self.worker && !progress.yielded && !patience.is_zero() {
            progress.yielded = true;
            return Next::GiveBack(patience, Reason::AnotherWorker);
        }
        let input = match Json::parse(command.payload.get().as_bytes(), self.settings.json_depth) {
            Ok(input) => input,
            Err(error) => {
                return Next::Answer(Answer::failed("payload.syntax", error.to_string()));
            }
        };
        let admitted = tokio::select! {
            biased;
            () = watch.cancelled() => return Next::Answer(self.taken_back(progress)),
            admitted = Box::pin(self.admit(&command.tenant_id, deadline, turn)) => admitted,
        };
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(_) if self.clock.now() >= deadline => return Next::Answer(self.expired(progress)),
            Err((delay, reason)) => return Next::GiveBack(delay, reason),
        };
        if Self::is_doubtful(turn, &watch)
            && let Some(instead) = Box::pin(self.look_again(command, turn, &watch, progress)).await
        {
            return instead;
        }
        if never_twice {
            match Box::pin(self.announce(command, turn, progress)).await {
                Written::Stands => {}
                Written::Lost => return Next::GiveBack(NAK_DELAY, Reason::Broker),
                // Whoever has it now may be calling.
                Written::Preceded if turn.held.is_some_and(Held::is_lost) => {
                    return Next::GiveBack(Duration::ZERO, Reason::Lost);
                }
                Written::Preceded => return Next::Answer(begun_before()),
            }
        }
        if turn.intent.is_some_and(|intent| !intent.may_begin()) {
            return Next::GiveBack(Duration::ZERO, Reason::Lost);
        }
        let secrets = self.secrets.now();
        let call = CallContext {
            command,
            input: &input,
            secrets: secrets.object(),
            now: self.clock.now(),
            limit: self.limit(deadline),
        };
        progress.calls = progress.calls.saturating_add(1);
        let outcome = self.attempt_unless_cancelled(&call, admitted, &watch).await;
        let failure = match secrets.scrub(outcome) {
            CallOutcome::Succeeded { payload } => {
                return Next::Answer(Answer::Succeeded {
                    payload,
                    unusable: None,
                });
            }
            CallOutcome::Unusable {
                payload,
                class,
                message,
            } => return Next::Answer(Answer::unusable(payload, class, &message)),
            CallOutcome::Failed(failure) => {
                Mask::at([(&*self.definition.redaction.input, &input)]).scrub_failure(failure)
            }
        };
        progress.outcome_unknown = attempt::has_unknown_outcome(progress.outcome_unknown, &failure);
        if watch.is_cancelled() {
            return Next::Answer(self.taken_back(progress));
        }
        self.after(command, progress, failure)
    }

    /// What a failed call means for the command: another one, or the end.
    fn after(
        &self,
        command: &EffectCommand<'_>,
        progress: &mut EffectProgress,
        failure: CallFailure,
    ) -> Next {
        let deadline = TimeMs(command.metadata.deadline_ms);
        let never_twice = self.definition.never_calls_twice() && !is_planted(Bug::SecondCall);
        // A second call is made only where the first one has certainly done nothing.
        let pause = if never_twice && progress.outcome_unknown {
            None
        } else {
            self.pause(command.command_id, progress.calls, &failure)
        };
        let due = pause.map(|pause| {
            let ms = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
            (pause, self.clock.now().plus_ms(ms))
        });
        match due {
            Some((pause, due)) if due < deadline => {
                progress.not_before_ms = due.0;
                progress.worker = self.worker.to_string();
                progress.yielded = false;
                progress.error = Some(ErrorPayload {
                    class: failure.class.into_owned(),
                    message: failure.message,
                    ..ErrorPayload::default()
                });
                Next::GiveBack(pause, Reason::Retry)
            }
            Some(_) | None => {
                self.audit(command, progress, &failure);
                Next::Answer(attempt::conclude(failure, progress.outcome_unknown))
            }
        }
    }

    /// Makes the call. Where a call may be interrupted, it ends when the command is taken back.
    async fn attempt_unless_cancelled(
        &self,
        call: &CallContext<'_>,
        room: Box<Room>,
        watch: &Watch,
    ) -> CallOutcome {
        let is_safe = self.provider.is_safe();
        let interrupted = async {
            if !is_safe && self.definition.on_cancel == OnCancel::Finish {
                std::future::pending::<()>().await;
            }
            watch.cancelled().await;
        };
        tokio::select! {
            biased;
            outcome = self.attempt(call, room) => outcome,
            () = interrupted => CallOutcome::Failed(if is_safe {
                CallFailure::not_done(CANCELLED, "interrupted")
            } else {
                CallFailure { end: CallEnd::Abandoned, ..CallFailure::unanswered(CANCELLED, "interrupted") }
            }),
        }
    }

    /// The answer to a command whose deadline has passed.
    fn expired(&self, progress: &EffectProgress) -> Answer {
        let message = expired(progress);
        if self.definition.schemas.asks && !progress.outcome_unknown {
            // Nobody has to be asked about what was certainly not done. Sagas call it so, too.
            return Answer::failed(TIMEOUT_CLASS, message);
        }
        Answer::TimedOut {
            class: "deadline".to_owned(),
            message,
        }
    }

    /// The answer to a command whose result nobody waits for.
    pub(super) fn taken_back(&self, progress: &EffectProgress) -> Answer {
        self.series.cancelled.inc();
        let message = if progress.calls == 0 && !progress.outcome_unknown {
            "taken back before a call was made".to_owned()
        } else {
            format!("taken back after {} call(s) or more", progress.calls)
        };
        if progress.outcome_unknown {
            Answer::TimedOut {
                class: CANCELLED.to_owned(),
                message,
            }
        } else {
            Answer::failed(CANCELLED, message)
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
            false,
        )
        .await;
        self.count_given_back(name, reason);
        // At its deadline somebody must say so.
        let left = deadline.0.saturating_sub(self.clock.now().0);
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        Disposition::GiveBack(delay.min(left).min(NAK_DELAY_MAX))
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

    /// Waits until a result of the command stands. As long as the broker takes none, the command stays in progress: given back, it
    /// would be called again.
    async fn record(&self, to: &Addressee<'_>, answer: Answer, calls: u32) {
        let counter = self.series.of_answer(&answer);
        let happened = answer.may_have_happened();
        let late = self.late(to, &answer, calls);
        let refusals = Refusals {
            stuck: self.tasks.stuck(),
            kept: &self.series.results_kept,
            pause_max: self.settings.result_retry_max.duration(),
        };
        let instead = |reason: &str| self.publication(to, Answer::refused(happened, reason), calls);
        // Boxed: there may be tens of thousands of these tasks.
        let publication = self.publication(to, answer, calls);
        match Box::pin(result::record_or(&*self.broker, refusals, publication, instead)).await {
            Stands::Result => counter.inc(),
            Stands::Instead if happened => self.series.timed_out.inc(),
            Stands::Instead => self.series.failed.inc(),
            Stands::Other if Box::pin(self.record_late(late)).await => counter.inc(),
            Stands::Other => self.series.known.inc(),
        }
    }

    /// Records an answer behind one that says that nobody knows the outcome. Refused or not, that one stands.
    async fn record_late(&self, late: Option<Box<Publication>>) -> bool {
        let Some(late) = late else { return false };
        result::completes(&*self.broker, &late).await
            && result::record(&*self.broker, self.tasks.stuck(), *late).await == Recorded::Stored
    }

    /// The same answer as a second message, for the case that somebody has written before that nobody knows the
    /// outcome: what has happened has to be undone, or counts; and an operator may have been asked, whom a failure tells as much.
    fn late(&self, to: &Addressee<'_>, answer: &Answer, calls: u32) -> Option<Box<Publication>> {
        let is_told = match answer {
            Answer::Succeeded { .. } => true,
            Answer::Failed { .. } => self.definition.schemas.asks,
            Answer::TimedOut { .. } => false,
        };
        is_told.then(|| {
            Box::new(Publication {
                expect: Expect::MessageId(format!("late/{}/{}", to.tenant, to.command)),
                ..self.publication(to, answer.clone(), calls)
            })
        })
    }

    fn publication(&self, to: &Addressee<'_>, answer: Answer, calls: u32) -> Publication {
        result::publication(&self.streams.events, to, answer, calls, self.clock.now())
    }
}

/// Tells the broker what became of a delivery. Unacknowledged, it comes again, and the gate finds its result.
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

/// What comes next for a command.
pub(super) enum Next {
    Answer(Answer),
    GiveBack(Duration, Reason),
}

/// The answer to a command whose call was begun, and of whose outcome there is no record.
fn begun_before() -> Answer {
    Answer::TimedOut {
        class: AMBIGUOUS.to_owned(),
        message: "a worker began a call and stopped before it recorded the outcome".to_owned(),
    }
}

/// What is said of a command whose deadline has passed.
fn expired(progress: &EffectProgress) -> String {
    match &progress.error {
        None => "the deadline passed before the command was executed".to_owned(),
        Some(error) => format!(
            "the deadline passed after {} call(s); the last one: {}: {}",
            progress.calls, error.class, error.message
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most that the task of one command in progress may take, in bytes. There may be tens of thousands.
    const TASK_BYTES_MAX: usize = 2_304;

    fn task_bytes<D, H, T, F>(_: impl Fn(Arc<Executor>, D, H, T) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_command_in_progress_takes_little_memory() {
        let bytes = task_bytes(Executor::serve);
        assert!(bytes <= TASK_BYTES_MAX, "{bytes}");
    }
}
