//! Looking after commands that were handed over long ago and still have no result.
//!
//! An acknowledged message can still be lost with a power failure of the broker, so the result, the command and
//! the deadline are looked at in this order.

use bytes::Bytes;

use super::envelope;
use super::local::maybe_called;
use super::publish::{Publisher, Sent, pause, seed};
use crate::kernel::children::{CHILD_REFUSED, SagaMessage};
use crate::kernel::envelope::EffectResult;
use crate::kernel::ids::{EffectName, Key, SagaName, TimeMs};
use crate::kernel::input::{WorkOutcome, WorkResult};
use crate::kernel::limits::Limits;
use crate::kernel::outcome::{self, Expected};
use crate::kernel::work::{WorkItem, WorkKind};
use crate::ports::broker::{BrokerError, Expect, Publication, PublishError, StoredMessage};
use crate::shard::mailbox::Verdict;

/// How long a saga that does not answer is left alone: one hour, in milliseconds.
const ASK_AGAIN_MS: i64 = 3_600_000;

/// What was done for one row.
#[derive(Debug, Clone, PartialEq)]
pub enum Swept {
    /// Its result stands in the stream: apply it.
    Found(Verdict),
    /// It was lost and is published again.
    Republished,
    /// Its deadline is over; a result that says so comes by the stream.
    TimedOut,
    /// It stands in the stream and still has time.
    Waiting,
    /// The broker could not be asked; it will be reported again.
    Failed,
}

impl Swept {
    pub const fn action(&self) -> &'static str {
        match self {
            Self::Found(_) => "found",
            Self::Republished => "republished",
            Self::TimedOut => "timed_out",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        }
    }
}

impl Publisher {
    /// Checks an overdue effect command.
    pub async fn sweep(&self, item: &WorkItem) -> Swept {
        let swept = match &item.kind {
            WorkKind::Effect { effect, payload } => self.sweep_effect(item, effect, payload).await,
            WorkKind::Saga {
                saga, key, message, ..
            } => self.sweep_saga(item, saga, key, message).await,
            WorkKind::Command { .. }
            | WorkKind::Fact { .. }
            | WorkKind::Result { .. }
            | WorkKind::Cancel { .. } => {
                return Swept::Waiting;
            }
        };
        swept.unwrap_or_else(|error| {
            tracing::debug!(command = %item.command_id, %error, "failed to check overdue command");
            Swept::Failed
        })
    }

    async fn sweep_effect(
        &self,
        item: &WorkItem,
        effect: &EffectName,
        payload: &[u8],
    ) -> Result<Swept, BrokerError> {
        let subject = envelope::result_subject(item, effect);
        if let Some(stored) = self
            .broker
            .last_by_subject(&self.streams.events, &subject)
            .await?
        {
            return Ok(Swept::Found(self.verdict(item, effect, &stored)));
        }
        let now = self.clock.now();
        if now >= item.ends().plus_ms(self.settings.deadline_grace.as_i64()) {
            return self.give_up(item, effect, now).await;
        }
        let command = envelope::effect_subject(item, effect);
        if self.stands(&self.streams.commands, &command).await? {
            return Ok(Swept::Waiting);
        }
        // It was there once, so somebody may have executed it.
        match self.effect(item, effect, payload, Some(maybe_called(now))).await {
            Sent::Stored | Sent::AlreadyThere => Ok(Swept::Republished),
            Sent::Answered => Ok(Swept::Waiting),
            Sent::Unsendable(message) => Ok(Swept::Found(unsendable(item, effect, message, now))),
        }
    }

    /// Asks a saga again that does not answer. It may run for long; so it is asked where the broker has lost the
    /// message, and now and then, since the answer may be what was lost: a saga that has told its end tells it again.
    async fn sweep_saga(
        &self,
        item: &WorkItem,
        saga: &SagaName,
        key: &Key,
        message: &SagaMessage,
    ) -> Result<Swept, BrokerError> {
        let now = self.clock.now();
        if now >= item.ends().plus_ms(self.settings.deadline_grace.as_i64()) {
            let message = "no answer before the deadline".to_owned();
            return Ok(Swept::Found(of_saga(item, WorkOutcome::timed_out(message), now)));
        }
        let subject = envelope::saga_subject(&self.streams.cluster, item, saga, key);
        let last = self
            .broker
            .last_by_subject(&self.streams.commands, &subject)
            .await?;
        let stands = last.is_some_and(|stored| {
            envelope::is_request(&stored.payload, item) && now < stored.time.plus_ms(ASK_AGAIN_MS)
        });
        if stands {
            return Ok(Swept::Waiting);
        }
        match self.saga(item, saga, key, message, || {}).await {
            Sent::Stored | Sent::AlreadyThere => Ok(Swept::Republished),
            Sent::Answered => Ok(Swept::Waiting),
            Sent::Unsendable(message) => {
                let refused = WorkOutcome::failed(CHILD_REFUSED, message);
                Ok(Swept::Found(of_saga(item, refused, now)))
            }
        }
    }

    /// Records that the outcome of the command is unknown. A result that came in between stands.
    async fn give_up(&self, item: &WorkItem, effect: &EffectName, now: TimeMs) -> Result<Swept, BrokerError> {
        let publication = self.timed_out(item, effect, now);
        let subject = publication.subject.clone();
        match self.send(publication).await {
            Ok(_) => Ok(Swept::TimedOut),
            Err(PublishError::AlreadyThere) => {
                let stored = self
                    .broker
                    .last_by_subject(&self.streams.events, &subject)
                    .await?;
                Ok(stored.map_or(Swept::Failed, |stored| {
                    Swept::Found(self.verdict(item, effect, &stored))
                }))
            }
            // Reported again, it is looked up again.
            Err(PublishError::Unknown(_) | PublishError::Unavailable(_)) => Ok(Swept::Failed),
            Err(PublishError::Refused(reason)) => Err(BrokerError::Refused(reason)),
        }
    }

    /// The result of a command that somebody else may have sent, if it stands in the stream; waits as long as the broker is
    /// away.
    pub async fn found(&self, item: &WorkItem, effect: &EffectName) -> Option<Verdict> {
        let subject = envelope::result_subject(item, effect);
        let mut delays = self.settings.delays(seed(item));
        loop {
            match self.broker.last_by_subject(&self.streams.events, &subject).await {
                Ok(found) => return found.map(|stored| self.verdict(item, effect, &stored)),
                Err(_) => pause(&mut delays).await,
            }
        }
    }

    /// A stored result as the shard takes it.
    fn verdict(&self, item: &WorkItem, effect: &EffectName, stored: &StoredMessage) -> Verdict {
        verdict_of(item, effect, &stored.payload, &self.limits, stored.time)
    }

    fn timed_out(&self, item: &WorkItem, effect: &EffectName, now: TimeMs) -> Publication {
        Publication {
            stream: self.streams.events.clone(),
            subject: envelope::result_subject(item, effect),
            headers: Vec::new(),
            payload: EffectResult::unknown(item, effect, "deadline", outcome::PAST_DEADLINE, now),
            expect: Expect::FirstOnSubject,
        }
    }
}

/// What the runner itself says about a message to another saga.
pub fn of_saga(item: &WorkItem, outcome: WorkOutcome, now: TimeMs) -> Verdict {
    Verdict {
        instance: item.instance.clone(),
        result: WorkResult {
            command_id: item.command_id,
            effect: None,
            outcome,
        },
        time: now,
        publish: None,
    }
}

/// The body of a result as the shard takes it.
pub fn verdict_of(
    item: &WorkItem,
    effect: &EffectName,
    body: &Bytes,
    limits: &Limits,
    time: TimeMs,
) -> Verdict {
    let expected = Expected {
        tenant: Some(&item.instance.tenant).filter(|tenant| !tenant.is_none()),
        effect,
        command: item.command_id,
    };
    Verdict {
        instance: item.instance.clone(),
        result: WorkResult {
            command_id: item.command_id,
            effect: Some(effect.clone()),
            outcome: outcome::read(expected, body, limits).outcome,
        },
        time,
        publish: None,
    }
}

/// The verdict on a command that no broker will take.
pub fn unsendable(item: &WorkItem, effect: &EffectName, message: String, now: TimeMs) -> Verdict {
    Verdict {
        instance: item.instance.clone(),
        result: WorkResult {
            command_id: item.command_id,
            effect: Some(effect.clone()),
            outcome: WorkOutcome::failed(outcome::EFFECT_UNSENDABLE, message),
        },
        time: now,
        publish: None,
    }
}
