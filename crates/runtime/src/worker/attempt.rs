//! One attempt: whether there is room for it, the call itself, and how long to wait for the next one.

use std::sync::Arc;
use std::time::Duration;

use super::breakers::Admitted;
use super::certainty::Ending;
use super::executor::{Executor, Places};
use super::held::Held;
use super::line::{Bound, Granted};
use super::places::TenantPlace;
use super::provider::{CallContext, CallFailure, CallOutcome, Certainty};
use super::result::Answer;
use crate::kernel::breaker::CallEnd;
use crate::kernel::definition::EffectDefinition;
use crate::kernel::envelope::EffectCommand;
use crate::kernel::ids::{CommandId, TenantId, TimeMs};
use crate::kernel::trace;
use crate::ports::broker::Message;
use crate::ports::dispatch::Intent;

/// Shortest pause before another attempt, in milliseconds.
const PAUSE_MS_MIN: u64 = 50;
/// First delay of a command whose tenant has as many in progress as it may, in milliseconds.
const BUSY_MS: u64 = 200;
/// Longest delay of a command for which there is no room, in milliseconds.
const BUSY_MS_MAX: u64 = 5_000;

/// How long a provider may take beyond its limit to say the outcome of a call.
const OVERRUN: Duration = Duration::from_millis(500);

/// Why a command goes back to the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// An attempt failed, another one follows.
    Retry,
    /// The next attempt is better made by another worker.
    AnotherWorker,
    /// The pause before the next attempt is not over.
    NotDue,
    /// A worker stopped during a call, which may still reach the upstream.
    UnderWay,
    /// The upstream is left alone.
    Breaker,
    /// An operator holds the breaker open.
    BreakerForced,
    /// The tenant has as many commands in progress as it may.
    TenantBusy,
    /// The worker has no room in progress, and others of its consumer must not wait for it.
    Busy,
    /// The tenant calls as fast as it may.
    TenantRate,
    /// The worker takes no more work.
    Drain,
    /// The broker does not take the word that comes before a call, or does not answer a question that does.
    Broker,
    /// Another worker may have been given it.
    Lost,
}

impl Reason {
    pub const ALL: [Self; 12] = [
        Self::Retry,
        Self::AnotherWorker,
        Self::NotDue,
        Self::UnderWay,
        Self::Breaker,
        Self::BreakerForced,
        Self::TenantBusy,
        Self::Busy,
        Self::TenantRate,
        Self::Drain,
        Self::Broker,
        Self::Lost,
    ];

    /// The word of the metric: it counts what an operator holds back as what the breaker does.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::AnotherWorker => "another_worker",
            Self::NotDue => "not_due",
            Self::UnderWay => "under_way",
            Self::Breaker | Self::BreakerForced => "breaker",
            Self::TenantBusy => "tenant_busy",
            Self::Busy => "busy",
            Self::TenantRate => "tenant_rate",
            Self::Drain => "drain",
            Self::Broker => "broker",
            Self::Lost => "lost",
        }
    }

    /// The word for those who ask what a command waits for.
    pub const fn told_as(self) -> &'static str {
        match self {
            Self::BreakerForced => "breaker_forced",
            other => other.as_str(),
        }
    }

    /// Whether operators are told of it: a breaker, a limit, or a call that may be under way.
    pub const fn is_told(self) -> bool {
        match self {
            Self::Breaker
            | Self::BreakerForced
            | Self::TenantBusy
            | Self::Busy
            | Self::TenantRate
            | Self::UnderWay => true,
            Self::Retry | Self::AnotherWorker | Self::NotDue | Self::Drain | Self::Broker | Self::Lost => {
                false
            }
        }
    }
}

/// What tells the turns of a command apart.
#[derive(Clone, Copy)]
pub struct Turn<'h> {
    /// The claim on it, of one that comes from the queue.
    pub held: Option<&'h Held>,
    /// 1 for the first.
    pub number: u64,
    /// Spreads commands that were given back together.
    pub seed: u64,
    /// Of the command's message in its stream, the highest where it has none. What takes it back comes behind it.
    pub sequence: u64,
    /// Where it is recorded that a call begins; absent for a command of the queue, beside which that is stored.
    pub intent: Option<&'h dyn Intent>,
}

impl<'h> Turn<'h> {
    pub const fn of(message: &Message, held: &'h Held) -> Self {
        Self {
            held: Some(held),
            number: message.delivered,
            seed: message.stream_sequence ^ message.delivered.rotate_left(32),
            sequence: message.stream_sequence,
            intent: None,
        }
    }

    /// Whether the call is to be recorded before it is made, whatever the definition in force says.
    pub fn is_announced(self) -> bool {
        self.held.is_some_and(Held::is_announced) || self.intent.is_some_and(Intent::is_needed)
    }

    /// How long to wait for room, the longer the more often there was none; `first_ms` at first.
    pub fn patience(self, first_ms: u64) -> Duration {
        let doublings = u32::try_from(self.number.saturating_sub(1)).unwrap_or(u32::MAX);
        self.spread(first_ms.saturating_mul(1 << doublings.min(8)).min(BUSY_MS_MAX))
    }

    /// Commands that were given back together should not come back together.
    fn spread(self, ms: u64) -> Duration {
        Duration::from_millis(ms + scattered(ms / 4 + 20, self.seed))
    }
}

/// Room for one call.
pub struct Room {
    _tenant: TenantPlace,
    _place: Granted<Places>,
    breaker: Option<Admitted>,
}

impl Executor {
    /// Room for a call for `tenant`, or when and why to ask again.
    pub(super) async fn admit(
        &self,
        tenant: &TenantId,
        deadline: TimeMs,
        turn: Turn<'_>,
    ) -> Result<Box<Room>, (Duration, Reason)> {
        let spread = |ms: u64| turn.spread(ms);
        let Some(tenant_place) = self.tenants.enter(tenant, self.clock.monotonic()) else {
            return Err((turn.patience(BUSY_MS), Reason::TenantBusy));
        };
        let place = if let Some(place) = self.places.try_enter(tenant, Bound::Free, || self.free_at_once()) {
            place
        } else {
            let left = deadline.0.saturating_sub(self.clock.now().0);
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return Err((Duration::ZERO, Reason::Drain)),
                place = self.places.enter(tenant, Bound::Free, || self.free_places()) => place,
                () = tokio::time::sleep(left) => return Err((Duration::ZERO, Reason::NotDue)),
            }
        };
        let breaker = match &self.upstream {
            None => None,
            Some(upstream) => match self.breakers.admit(upstream, tenant) {
                Ok(admitted) => Some(admitted),
                Err(refused) if refused.is_forced => {
                    return Err((spread(refused.ms), Reason::BreakerForced));
                }
                Err(refused) => return Err((spread(refused.ms), Reason::Breaker)),
            },
        };
        self.tenants
            .call(tenant, self.clock.monotonic())
            .map_err(|wait| {
                let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                (spread(ms), Reason::TenantRate)
            })?;
        Ok(Box::new(Room {
            _tenant: tenant_place,
            _place: place,
            breaker,
        }))
    }

    /// A place of the effect, then one of the process, then the time that the rate leaves between two calls.
    async fn free_places(&self) -> Places {
        let effect = Arc::clone(&self.concurrency).acquire_owned().await;
        let effect = effect.expect("the semaphore is never closed");
        let place = self.share.enter().await;
        if let Some(pace) = &self.pace {
            pace.wait(&*self.clock).await;
        }
        (effect, place)
    }

    /// The same, if all of it is free. Where there is a rate it may not be.
    fn free_at_once(&self) -> Option<Places> {
        if self.pace.is_some() || self.draining.is_cancelled() {
            return None;
        }
        let effect = Arc::clone(&self.concurrency).try_acquire_owned().ok()?;
        Some((effect, self.share.try_enter()?))
    }

    /// How long a call may take that begins now: the time of one attempt, at most what is left of the command's.
    pub(super) fn limit(&self, deadline: TimeMs) -> Duration {
        let left_ms = deadline.0.saturating_sub(self.clock.now().0);
        let left_ms = u64::try_from(left_ms).unwrap_or(0);
        Duration::from_millis(self.definition.timeout_ms.min(left_ms))
    }

    /// Makes the call.
    ///
    /// Providers keep `limit` by themselves. One that does not is cut off shortly after, and then no more is known than
    /// whether it changes anything.
    pub(super) async fn attempt(&self, call: &CallContext<'_>, room: Box<Room>) -> CallOutcome {
        let start = self.clock.monotonic();
        let outcome = tokio::time::timeout(call.limit + OVERRUN, self.provider.call(call))
            .await
            .unwrap_or_else(|_| {
                let message = format!("no answer within {} ms", call.limit.as_millis());
                CallOutcome::Failed(CallFailure::of(
                    Ending::Late,
                    self.provider.side_effects(),
                    message,
                ))
            });
        let took = self.clock.monotonic().saturating_sub(start);
        let (class, end) = match &outcome {
            CallOutcome::Succeeded { .. } => ("succeeded", CallEnd::Answered),
            CallOutcome::Unusable { class, .. } => (*class, CallEnd::Answered),
            CallOutcome::Failed(failure) => (&*failure.class, failure.end),
        };
        if let Some(breaker) = room.breaker {
            breaker.ended(end);
        }
        self.tell_call(call, class, took);
        outcome
    }

    /// The pause before the attempt after `calls`, `None` if there is to be none.
    pub(super) fn pause(&self, command: CommandId, calls: u32, failure: &CallFailure) -> Option<Duration> {
        if !self.is_retried(failure) {
            return None;
        }
        let pause_ms = self.definition.retry.delay_before(calls.saturating_add(1))?;
        let pause = Duration::from_millis(jittered(pause_ms, command, calls));
        Some(pause.max(failure.retry_after.unwrap_or_default()))
    }

    /// Whether its class and its certainty allow another call.
    pub(super) fn is_retried(&self, failure: &CallFailure) -> bool {
        may_repeat(&self.definition, failure.certainty)
            && self
                .definition
                .retry_classes
                .iter()
                .any(|class| *class == failure.class)
    }
}

/// What the upstream is told of the trace: the command's, or one that all its attempts share, and a span of this call, which comes after
/// `calls` others. It is derived, so no source of randomness is needed; the turn tells apart what two workers call that know nothing of
/// each other.
pub fn traceparent(command: &EffectCommand<'_>, calls: u32, turn: Turn<'_>) -> Box<str> {
    let (_, bits) = command.command_id.0.as_u64_pair();
    let call = u64::from(calls)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let span = scattered(u64::MAX, bits ^ call ^ turn.seed.rotate_left(17));
    let known = command.metadata.traceparent.as_deref();
    known
        .and_then(|known| trace::with_span(known, span))
        .unwrap_or_else(|| format!("00-{}-{:016x}-01", command.command_id.0.simple(), span.max(1)))
        .into_boxed_str()
}

/// Whether another call may follow one that has failed in this way, under the same idempotency key.
fn may_repeat(definition: &EffectDefinition, certainty: Certainty) -> bool {
    match certainty {
        // An upstream that checks the key has stored the refusal under it. The step's `retry` sends another command.
        Certainty::Refused => false,
        Certainty::NotDone => true,
        Certainty::Unknown => !definition.never_calls_twice(),
    }
}

/// Whether a call may have happened, after one more has failed.
pub fn has_unknown_outcome(before: bool, failure: &CallFailure) -> bool {
    match failure.certainty {
        Certainty::Refused => false,
        Certainty::NotDone => before,
        Certainty::Unknown => true,
    }
}

/// What is recorded after the last attempt: `Failed` says that it definitely did not happen.
pub fn conclude(failure: CallFailure, outcome_unknown: bool) -> Answer {
    let class = failure.class.into_owned();
    let message = failure.message;
    if outcome_unknown {
        Answer::TimedOut { class, message }
    } else {
        let refused = failure.certainty == Certainty::Refused;
        Answer::Failed {
            class,
            message,
            refused,
        }
    }
}

/// Anything from the shortest pause to the whole of it. The share comes from the command's own random bits, so
/// that commands that failed together spread out, without a source of randomness.
fn jittered(pause_ms: u64, command: CommandId, calls: u32) -> u64 {
    let (_, bits) = command.0.as_u64_pair();
    let floor = PAUSE_MS_MIN.min(pause_ms);
    floor
        + scattered(
            pause_ms - floor,
            bits ^ u64::from(calls).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        )
}

/// A number up to `max` that looks random and depends on `seed` alone.
fn scattered(max: u64, seed: u64) -> u64 {
    let mut bits = seed;
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
        bits ^= bits >> shift;
        bits = bits.wrapping_mul(factor);
    }
    (bits ^ (bits >> 31)) % max.saturating_add(1).max(1)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn jitter_is_full_and_spreads_commands() {
        let pauses: std::collections::BTreeSet<u64> = (0..200_u128)
            .map(|n| jittered(1_000, CommandId(Uuid::from_u128(n)), 1))
            .collect();
        assert!(pauses.iter().all(|pause| (50..=1_000).contains(pause)));
        assert!(pauses.len() > 100, "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause < 200) && pauses.iter().any(|pause| *pause > 800));
    }
}
