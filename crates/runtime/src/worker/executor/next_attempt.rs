//! The next attempt of a command: whether it is made now, and what comes of it means for the command.

use std::time::Duration;

use super::{Executor, NAK_DELAY};
use crate::kernel::breaker::CallEnd;
use crate::kernel::classes::TIMEOUT_CLASS;
use crate::kernel::definition::effect::{AMBIGUOUS, OnCancel};
use crate::kernel::envelope::{EffectCommand, EffectProgress, ErrorPayload};
use crate::kernel::ids::TimeMs;
use crate::kernel::json::Json;
use crate::kernel::planted::{Bug, is_planted};
use crate::worker::attempt::{self, Reason, Room, Turn};
use crate::worker::cancellations::Watch;
use crate::worker::held::Held;
use crate::worker::mask::Mask;
use crate::worker::progress::Written;
use crate::worker::provider::{CallContext, CallFailure, CallOutcome};
use crate::worker::result::Answer;

/// Class of a command that was cancelled.
const CANCELLED: &str = "cancelled";

/// What comes next for a command.
pub(in crate::worker) enum Next {
    Answer(Answer),
    GiveBack(Duration, Reason),
}

impl Executor {
    /// Makes the next attempt, if it is due and there is room for it, and says what it means for the command.
    pub(in crate::worker) async fn next(
        &self,
        command: &EffectCommand<'_>,
        turn: Turn<'_>,
        progress: &mut EffectProgress,
    ) -> Next {
        let deadline = TimeMs(command.metadata.deadline_ms);
        let now = self.clock.now();
        if deadline <= now {
            return Next::Answer(self.expired(command, progress));
        }
        let watch = self
            .cancellations
            .watch((command.tenant_id.clone(), command.command_id), turn.sequence);
        if watch.is_cancelled() {
            return self.taken_back(command, progress);
        }
        let never_twice = self.never_twice();
        if never_twice && progress.outcome_unknown {
            return self.begun_before(command, progress);
        }
        if let Some((delay, reason)) = self.not_yet(progress, now) {
            return Next::GiveBack(delay, reason);
        }
        let input = match Json::parse(command.payload.get().as_bytes(), self.settings.json_depth) {
            Ok(input) => input,
            Err(error) => {
                return Next::Answer(Answer::failed("payload.syntax", error.to_string()));
            }
        };
        let admitted = tokio::select! {
            biased;
            () = watch.cancelled() => return self.taken_back(command, progress),
            admitted = Box::pin(self.admit(&command.tenant_id, deadline, turn)) => admitted,
        };
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(_) if self.clock.now() >= deadline => return Next::Answer(self.expired(command, progress)),
            Err((delay, reason)) => return Next::GiveBack(delay, reason),
        };
        if Self::is_doubtful(turn, &watch)
            && let Some(instead) = Box::pin(self.look_again(command, turn, &watch, progress)).await
        {
            return instead;
        }
        if never_twice || turn.is_announced() {
            let written = Box::pin(self.announce(command, turn, progress)).await;
            if let Some(instead) = self.unannounced(command, progress, written, turn) {
                return instead;
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
            traceparent: attempt::traceparent(command, progress.calls, turn),
            limit: self.limit(deadline),
        };
        progress.calls = progress.calls.saturating_add(1);
        let outcome = self.attempt_unless_cancelled(&call, admitted, &watch).await;
        let failure = match success(secrets.scrub(outcome)) {
            Ok(answer) => return Next::Answer(answer),
            Err(failure) => Mask::at([(&*self.definition.redaction.input, &input)]).scrub_failure(failure),
        };
        progress.outcome_unknown = attempt::has_unknown_outcome(progress.outcome_unknown, &failure);
        if watch.is_cancelled() {
            return self.taken_back(command, progress);
        }
        self.after(command, progress, failure)
    }

    /// Whether a second call is made only where the first one has certainly done nothing.
    fn never_twice(&self) -> bool {
        self.definition.never_calls_twice() && !is_planted(Bug::SecondCall)
    }

    /// For how long, and why, the next attempt is not made now, or not by this worker.
    fn not_yet(&self, progress: &mut EffectProgress, now: TimeMs) -> Option<(Duration, Reason)> {
        if progress.not_before_ms > now.0 {
            let early = u64::try_from(progress.not_before_ms - now.0).unwrap_or(0);
            return Some((Duration::from_millis(early), Reason::NotDue));
        }
        let patience = self.settings.yield_retry.duration();
        if progress.calls > 0 && progress.worker == *self.worker && !progress.yielded && !patience.is_zero() {
            progress.yielded = true;
            return Some((patience, Reason::AnotherWorker));
        }
        None
    }

    /// What a failed call means for the command: another one, or the end.
    fn after(
        &self,
        command: &EffectCommand<'_>,
        progress: &mut EffectProgress,
        failure: CallFailure,
    ) -> Next {
        let deadline = TimeMs(command.metadata.deadline_ms);
        let pause = if self.never_twice() && progress.outcome_unknown {
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
                self.log_retry(command, progress, pause, &failure);
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

    /// Makes the call. Where a call may be interrupted, it ends when the command is cancelled.
    async fn attempt_unless_cancelled(
        &self,
        call: &CallContext<'_>,
        room: Box<Room>,
        watch: &Watch,
    ) -> CallOutcome {
        let changes_nothing = self.provider.side_effects().are_none();
        let interrupted = async {
            if !changes_nothing && self.definition.on_cancel == OnCancel::Finish {
                std::future::pending::<()>().await;
            }
            watch.cancelled().await;
        };
        tokio::select! {
            biased;
            outcome = self.attempt(call, room) => outcome,
            () = interrupted => CallOutcome::Failed(if changes_nothing {
                CallFailure::not_done(CANCELLED, "interrupted")
            } else {
                CallFailure { end: CallEnd::Abandoned, ..CallFailure::unanswered(CANCELLED, "interrupted") }
            }),
        }
    }

    /// The answer to a command whose deadline has passed.
    fn expired(&self, command: &EffectCommand<'_>, progress: &EffectProgress) -> Answer {
        let message = expired(progress);
        self.log_uncalled(command, &message);
        if self.definition.schemas.asks && !progress.outcome_unknown {
            // Nobody has to be asked about what was certainly not done. Sagas call it so, too.
            return Answer::failed(TIMEOUT_CLASS, message);
        }
        Answer::TimedOut {
            class: "deadline".to_owned(),
            message,
        }
    }

    /// What comes next for a command whose result nobody waits for.
    pub(in crate::worker) fn taken_back(
        &self,
        command: &EffectCommand<'_>,
        progress: &EffectProgress,
    ) -> Next {
        if let Some(wait) = self.under_way(command, progress) {
            return Next::GiveBack(wait, Reason::UnderWay);
        }
        self.series.cancelled.inc();
        let message = if progress.calls == 0 && !progress.outcome_unknown {
            "taken back before a call was made".to_owned()
        } else {
            format!("taken back after {} call(s) or more", progress.calls)
        };
        Next::Answer(if progress.outcome_unknown {
            Answer::TimedOut {
                class: CANCELLED.to_owned(),
                message,
            }
        } else {
            Answer::failed(CANCELLED, message)
        })
    }

    /// What to do instead of a call whose intent does not stand recorded.
    fn unannounced(
        &self,
        command: &EffectCommand<'_>,
        progress: &EffectProgress,
        written: Written,
        turn: Turn<'_>,
    ) -> Option<Next> {
        match written {
            Written::Stands => None,
            Written::Lost => Some(Next::GiveBack(NAK_DELAY, Reason::Broker)),
            // Whoever has it now may be calling.
            Written::Preceded if turn.held.is_some_and(Held::is_lost) => {
                Some(Next::GiveBack(Duration::ZERO, Reason::Lost))
            }
            // Calls may be repeated now, and what stands there says that one may have happened.
            Written::Preceded if !self.never_twice() => None,
            Written::Preceded => Some(self.begun_before(command, progress)),
        }
    }

    /// How long a call whose end was not recorded may still be under way to its upstream: as long as it might have taken if
    /// its worker had not stopped. Before that its outcome is not declared unknown, so that nothing is undone that has yet
    /// to arrive.
    fn under_way(&self, command: &EffectCommand<'_>, progress: &EffectProgress) -> Option<Duration> {
        if !progress.outcome_unknown || progress.begun_ms == 0 || is_planted(Bug::HastyUnknown) {
            return None;
        }
        let timeout_ms = i64::try_from(self.definition.timeout_ms).unwrap_or(i64::MAX);
        let over = TimeMs(progress.begun_ms).plus_ms(timeout_ms);
        let over = over.min(TimeMs(command.metadata.deadline_ms));
        let left_ms = over.0.saturating_sub(self.clock.now().0);
        let left_ms = u64::try_from(left_ms).ok().filter(|ms| *ms > 0)?;
        Some(Duration::from_millis(left_ms))
    }

    /// What comes next for a command whose call was begun, and of whose outcome there is no record.
    fn begun_before(&self, command: &EffectCommand<'_>, progress: &EffectProgress) -> Next {
        if let Some(wait) = self.under_way(command, progress) {
            return Next::GiveBack(wait, Reason::UnderWay);
        }
        let message = "a worker began a call and stopped before it recorded the outcome";
        self.log_uncalled(command, message);
        Next::Answer(Answer::TimedOut {
            class: AMBIGUOUS.to_owned(),
            message: message.to_owned(),
        })
    }
}

/// The answer to a command whose call has succeeded.
fn success(outcome: CallOutcome) -> Result<Answer, CallFailure> {
    match outcome {
        CallOutcome::Succeeded { payload } => Ok(Answer::Succeeded {
            payload,
            unusable: None,
        }),
        CallOutcome::Unusable {
            payload,
            class,
            message,
        } => Ok(Answer::unusable(payload, class, &message)),
        CallOutcome::Failed(failure) => Err(failure),
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
