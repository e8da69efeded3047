//! What workers leave for each other about a command that went back to the queue: how often it was called, and
//! when it is due again. The message itself cannot be changed, so this stands beside it, on a subject of its own.

use std::time::Duration;

use crate::kernel::envelope::{EffectProgress, is_announced};
use crate::kernel::ids::{CommandId, EffectName, TenantId, TimeMs};
use crate::kernel::subject::Subject;
use crate::ports::broker::{Broker, BrokerError, Expect, Message, Publication, PublishError};

/// How long a worker tries to record its intent. Without it the next worker assumes the worst, which is safe.
const PATIENCE: Duration = Duration::from_secs(5);

fn subject(tenant: &TenantId, effect: &EffectName, command: CommandId) -> String {
    Subject::EffectProgress {
        tenant: tenant.clone(),
        effect: effect.clone(),
        command,
    }
    .render()
}

/// A delivery, and what tells whether another one came before it.
#[derive(Clone, Copy)]
pub struct Delivery<'m> {
    pub message: &'m Message,
    /// When the consumer was made that has brought it.
    pub created: TimeMs,
    pub now: TimeMs,
    /// Whether the definition in force allows no call after one that may have happened.
    pub never_twice: bool,
}

impl Delivery<'_> {
    /// Whether another consumer may have brought the message before, which counted for itself.
    fn had_another(&self) -> bool {
        self.message.time <= self.created
    }

    /// Whether the deliveries before may have made a call of which `left`, the last word about the command, does not say.
    fn hides_a_call(&self, left: Option<&EffectProgress>) -> bool {
        let delivered = self.message.delivered;
        if is_announced(&self.message.headers) {
            return false;
        }
        match left {
            Some(left) => left.consumer_ms != self.created.0 || left.delivered.saturating_add(1) != delivered,
            // Nothing is recorded: it was with no worker yet, or with one that died in its first call. That weighs more where no call may
            // follow one that may have happened.
            None => delivered > 1 || self.never_twice,
        }
    }
}

/// What is known about the command of this delivery, whose message says `initial`. Where the delivery before ended
/// without a word, its call may have happened, unless the message says that calls are announced: then there was none. The definition
/// in force cannot say so: the worker before may have gone by another one. Such a call may have begun as late as now.
pub async fn read(
    broker: &dyn Broker,
    stream: &str,
    effect: &EffectName,
    name: &(TenantId, CommandId),
    delivery: Delivery<'_>,
    initial: Option<&EffectProgress>,
) -> Result<EffectProgress, BrokerError> {
    let initial = || initial.cloned().unwrap_or_default();
    let may_have_come = delivery.message.delivered > 1 || delivery.had_another();
    let left = if may_have_come {
        stored(broker, stream, effect, name).await?
    } else {
        None
    };
    let hides_a_call = may_have_come && delivery.hides_a_call(left.as_ref());
    let mut progress = left.unwrap_or_else(initial);
    if hides_a_call {
        progress.outcome_unknown = true;
        progress.begun_ms = delivery.now.0;
    }
    progress.consumer_ms = delivery.created.0;
    Ok(progress)
}

/// The last word about the command, if it can be read.
pub async fn stored(
    broker: &dyn Broker,
    stream: &str,
    effect: &EffectName,
    (tenant, command): &(TenantId, CommandId),
) -> Result<Option<EffectProgress>, BrokerError> {
    let subject = subject(tenant, effect, *command);
    let stored = broker.last_by_subject(stream, &subject).await?;
    Ok(stored.and_then(|stored| serde_json::from_slice(&stored.payload).ok()))
}

/// The outcome of a word that was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    Stands,
    /// It may not stand.
    Lost,
    /// There was one before, although there should be none.
    Preceded,
}

/// Which version of the word about a command is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The first: only where there is none.
    First,
    /// The newest, whatever there is.
    Newest,
}

/// Leaves word about the command.
pub async fn write(
    broker: &dyn Broker,
    stream: &str,
    effect: &EffectName,
    (tenant, command): &(TenantId, CommandId),
    progress: &EffectProgress,
    version: Version,
) -> Written {
    let subject = subject(tenant, effect, *command);
    let payload = serde_json::to_vec(progress).expect("plain data");
    let publication = Publication {
        stream: stream.to_owned(),
        subject,
        headers: Vec::new(),
        payload: payload.into(),
        expect: match version {
            Version::First => Expect::FirstOnSubject,
            Version::Newest => Expect::Nothing,
        },
    };
    match tokio::time::timeout(PATIENCE, broker.publish(publication)).await {
        Ok(Ok(_)) => return Written::Stands,
        Ok(Err(PublishError::AlreadyThere)) => return Written::Preceded,
        Ok(Err(error)) => tracing::debug!(%command, %error, "could not record command progress"),
        Err(_) => tracing::debug!(%command, "timeout recording command progress"),
    }
    Written::Lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::envelope::ANNOUNCED_HEADER;

    fn message(delivered: u64, announced: bool) -> Message {
        let mark = (ANNOUNCED_HEADER.to_owned(), "true".to_owned());
        Message {
            subject: String::new(),
            headers: announced.then_some(mark).into_iter().collect(),
            payload: bytes::Bytes::new(),
            stream_sequence: 1,
            consumer_sequence: 1,
            delivered,
            pending: 0,
            time: TimeMs(1_000),
        }
    }

    const fn delivery(message: &Message, created: i64, never_twice: bool) -> Delivery<'_> {
        Delivery {
            message,
            created: TimeMs(created),
            now: TimeMs(2_000),
            never_twice,
        }
    }

    /// Word that a delivery of a consumer left which was made then.
    fn left(delivered: u64, consumer_ms: i64) -> EffectProgress {
        EffectProgress {
            delivered,
            consumer_ms,
            ..EffectProgress::default()
        }
    }

    #[test]
    fn a_delivery_behind_one_of_another_consumer_or_one_without_word_hides_a_call_unless_its_message_is_marked()
     {
        let unmarked = message(3, false);
        for never_twice in [false, true] {
            let delivery = delivery(&unmarked, 500, never_twice);
            for (word, hides) in [
                (None, true),
                (Some(left(0, 500)), true),
                (Some(left(1, 500)), true),
                (Some(left(2, 500)), false),
                (Some(left(2, 400)), true),
            ] {
                assert_eq!(delivery.hides_a_call(word.as_ref()), hides, "{word:?}");
            }
        }
        let marked = message(3, true);
        assert!(!delivery(&marked, 500, true).hides_a_call(None));
        assert!(!delivery(&marked, 500, true).hides_a_call(Some(&left(0, 400))));
    }

    #[test]
    fn a_first_delivery_of_a_newer_consumer_hides_a_call_where_word_was_left_or_no_call_may_follow_one() {
        let first = message(1, false);
        assert!(delivery(&first, 1_500, false).had_another() && !delivery(&first, 500, false).had_another());
        assert!(!delivery(&first, 1_500, false).hides_a_call(None));
        assert!(delivery(&first, 1_500, true).hides_a_call(None));
        assert!(delivery(&first, 1_500, false).hides_a_call(Some(&left(1, 400))));
    }
}
