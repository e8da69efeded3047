//! The one recorded result of a command: its bytes, and how it gets into the stream exactly once.

use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::kernel::envelope::{CommandMetadata, EffectResult, ErrorPayload, ResultMetadata, ResultType};
use crate::kernel::ids::{CommandId, EffectName, TenantId, TimeMs};
use crate::kernel::trace::is_traceparent;
use crate::ports::broker::{Broker, Expect, Publication, PublishError};
use crate::tasks::Stuck;
use crate::telemetry::metrics::IntGauge;

/// Longest message of a failure, in bytes.
const MESSAGE_BYTES_MAX: usize = 1_024;
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Whom a result answers.
#[derive(Debug)]
pub struct Addressee<'a> {
    pub tenant: &'a TenantId,
    pub command: CommandId,
    pub effect: &'a EffectName,
    /// Absent where the command could not be read.
    pub metadata: Option<&'a CommandMetadata>,
}

/// What is to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Succeeded {
        payload: Vec<u8>,
        /// Why the payload is not the result that the effect describes, where it is not.
        unusable: Option<ErrorPayload>,
    },
    Failed {
        class: String,
        message: String,
        /// The upstream has refused, so the next attempt needs another idempotency key.
        refused: bool,
    },
    TimedOut {
        class: String,
        message: String,
    },
}

impl Answer {
    pub const fn result_type(&self) -> ResultType {
        match self {
            Self::Succeeded { .. } => ResultType::Succeeded,
            Self::Failed { .. } => ResultType::Failed,
            Self::TimedOut { .. } => ResultType::TimedOut,
        }
    }

    /// A failure of which the upstream has stored nothing.
    pub fn failed(class: &str, message: String) -> Self {
        Self::Failed {
            class: class.to_owned(),
            message,
            refused: false,
        }
    }

    /// It happened, and what came back is not a result.
    pub fn unusable(payload: Vec<u8>, class: &str, message: &str) -> Self {
        Self::Succeeded {
            payload,
            unusable: Some(ErrorPayload {
                class: class.to_owned(),
                message: bounded(message),
                refused: false,
            }),
        }
    }

    pub const fn may_have_happened(&self) -> bool {
        matches!(self, Self::Succeeded { .. } | Self::TimedOut { .. })
    }

    /// What is recorded in the place of an answer that cannot be recorded, too large most likely.
    pub fn refused(happened: bool, reason: &str) -> Self {
        const CLASS: &str = "result.refused";
        let message = format!("the result cannot be recorded: {reason}");
        if happened {
            Self::TimedOut {
                class: CLASS.to_owned(),
                message,
            }
        } else {
            Self::failed(CLASS, message)
        }
    }
}

/// How recording went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// By this call.
    Stored,
    /// Someone else recorded one before; that one stands.
    Known,
    /// The broker will never take this message.
    Refused(String),
}

/// Encodes the result as its envelope.
pub fn publication(stream: &str, to: &Addressee<'_>, answer: Answer, calls: u32, now: TimeMs) -> Publication {
    let result_type = answer.result_type();
    let error = |class, message: &str, refused| {
        let payload = ErrorPayload {
            class,
            message: bounded(message),
            refused,
        };
        serde_json::to_vec(&payload).expect("plain data is always JSON")
    };
    let (payload, unusable) = match answer {
        Answer::Succeeded { payload, unusable } => (payload, unusable),
        Answer::Failed {
            class,
            message,
            refused,
        } => (error(class, &message, refused), None),
        Answer::TimedOut { class, message } => (error(class, &message, false), None),
    };
    let payload: &RawValue = match serde_json::from_slice(&payload) {
        Ok(payload) => payload,
        Err(error) => {
            let failed = Answer::TimedOut {
                class: "result.syntax".to_owned(),
                message: format!("the provider's result is not JSON: {error}"),
            };
            return publication(stream, to, failed, calls, now);
        }
    };
    let meta = to.metadata;
    let traceparent = meta
        .and_then(|meta| meta.traceparent.as_ref())
        .filter(|text| is_traceparent(text));
    let result = EffectResult {
        tenant_id: to.tenant.clone(),
        command_id: to.command,
        effect_name: to.effect.clone(),
        result_type,
        payload,
        timestamp: now.rfc3339(),
        metadata: ResultMetadata {
            saga: meta.map(|meta| meta.saga.clone()),
            key: meta.map(|meta| meta.key.clone()),
            correlation_id: meta.map(|meta| meta.correlation_id.clone()),
            traceparent: traceparent.cloned(),
            calls,
            unusable,
        },
    };
    let mut bytes = Vec::with_capacity(payload.get().len() + 512);
    serde_json::to_writer(&mut bytes, &result).expect("an envelope holds only what JSON can hold");
    Publication {
        stream: stream.to_owned(),
        subject: subject(to.tenant, to.effect, to.command),
        headers: traceparent
            .map(|text| ("traceparent".to_owned(), text.clone()))
            .into_iter()
            .collect(),
        payload: Bytes::from(bytes),
        expect: Expect::FirstOnSubject,
    }
}

/// The subject on which the result of a command stands.
pub fn subject(tenant: &TenantId, effect: &EffectName, command: CommandId) -> String {
    crate::kernel::subject::Subject::EffectResult {
        tenant: tenant.clone(),
        effect: effect.clone(),
        command,
    }
    .render()
}

/// How it went to record a result that has a smaller one to take its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stands {
    /// The result.
    Result,
    /// What takes its place.
    Instead,
    /// What someone else recorded before.
    Other,
}

/// What the broker does not take.
pub struct Refusals<'r> {
    pub stuck: &'r Stuck,
    /// Results that are kept here because the broker refuses them.
    pub kept: &'r IntGauge,
    /// Longest pause between two attempts.
    pub pause_max: Duration,
}

/// Publishes until a result of the command stands: `result`, or else what `instead` makes of the reason for which the broker
/// refuses it. Where the broker refuses that one, too, both are kept and tried again, since the result is all that keeps the call
/// from being made again. Waits as long as the broker is away.
pub async fn record_or(
    broker: &dyn Broker,
    refusals: Refusals<'_>,
    result: Publication,
    instead: impl FnOnce(&str) -> Publication,
) -> Stands {
    let reason = match record(broker, refusals.stuck, result.clone()).await {
        Recorded::Stored => return Stands::Result,
        Recorded::Known => return Stands::Other,
        Recorded::Refused(reason) => reason,
    };
    let subject = &*result.subject;
    tracing::error!(subject, reason, "broker rejects a result");
    let instead = instead(&reason);
    let mut kept = None;
    let mut attempts = refusals.stuck.begin(&result.stream);
    let mut pause = RETRY_FIRST;
    let stands = loop {
        let reason = match record(broker, refusals.stuck, instead.clone()).await {
            Recorded::Stored => break Stands::Instead,
            Recorded::Known => break Stands::Other,
            Recorded::Refused(reason) => reason,
        };
        // The refusal may have come before the broker has looked at the subject.
        if let Ok(Some(stored)) = broker.last_by_subject(&result.stream, subject).await {
            break if stored.payload == result.payload {
                Stands::Result
            } else if stored.payload == instead.payload {
                Stands::Instead
            } else {
                Stands::Other
            };
        }
        attempts.failed(&reason);
        kept.get_or_insert_with(|| {
            tracing::error!(
                subject,
                reason,
                "broker rejects every form of a result; keeping and retrying it"
            );
            Kept::one(refusals.kept)
        });
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(refusals.pause_max);
        match record(broker, refusals.stuck, result.clone()).await {
            Recorded::Stored => break Stands::Result,
            Recorded::Known => break Stands::Other,
            Recorded::Refused(_) => {}
        }
    };
    if kept.is_some() {
        tracing::info!(subject, "result stored that the broker had rejected before");
    }
    stands
}

/// A result that is kept, until it is dropped.
struct Kept<'g>(&'g IntGauge);

impl<'g> Kept<'g> {
    fn one(gauge: &'g IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Publishes until the result stands in the stream. Waits as long as the broker is away.
pub async fn record(broker: &dyn Broker, stuck: &Stuck, publication: Publication) -> Recorded {
    let mut attempts = stuck.begin(&publication.stream);
    let mut delay = RETRY_FIRST;
    loop {
        match broker.publish(publication.clone()).await {
            Ok(_) => return Recorded::Stored,
            Err(PublishError::AlreadyThere) => return Recorded::Known,
            Err(PublishError::Refused(reason)) => return Recorded::Refused(reason),
            Err(PublishError::Unavailable(reason)) => {
                attempts.failed(&reason);
                tracing::debug!(
                    subject = publication.subject,
                    reason,
                    "result waits for the broker"
                );
            }
            Err(PublishError::Unknown(reason)) => {
                attempts.failed(&reason);
                tracing::debug!(
                    subject = publication.subject,
                    reason,
                    "unknown whether the result was stored; reading it back"
                );
                let stored = broker
                    .last_by_subject(&publication.stream, &publication.subject)
                    .await;
                // The subject belongs to one command, so whatever stands there is its result.
                if let Ok(Some(stored)) = stored {
                    return if stored.payload == publication.payload {
                        Recorded::Stored
                    } else {
                        Recorded::Known
                    };
                }
            }
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(RETRY_MAX);
    }
}

/// Whether what stands on the subject of `late` says only that the outcome is unknown. Waits as long as the broker is
/// away.
pub async fn completes(broker: &dyn Broker, late: &Publication) -> bool {
    let mut delay = RETRY_FIRST;
    loop {
        match broker.last_by_subject(&late.stream, &late.subject).await {
            Ok(Some(stored)) => {
                let found = serde_json::from_slice::<EffectResult<'_>>(&stored.payload);
                return found.is_ok_and(|found| found.result_type == ResultType::TimedOut);
            }
            Ok(None) => return false,
            Err(error) => {
                tracing::debug!(subject = late.subject, %error, "cannot tell which result is stored");
            }
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(RETRY_MAX);
    }
}

fn bounded(message: &str) -> String {
    let end = message.floor_char_boundary(MESSAGE_BYTES_MAX);
    message[..end].to_owned()
}
