//! What workers leave for each other about a command that went back to the queue: how often it was called, and
//! when it is due again. The message itself cannot be changed, so this stands beside it, on a subject of its own.

use std::time::Duration;

use crate::kernel::envelope::EffectProgress;
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

/// What is known about the command of this delivery, whose message says `initial`. Where the delivery before ended
/// without a word, its call may have happened, unless calls are `announced`: then there was none. `created` is when the consumer was
/// made that has brought it: an older message may have been brought by another one before, which counted for itself.
#[allow(
    clippy::too_many_arguments,
    reason = "what tells one delivery from all others"
)]
pub async fn read(
    broker: &dyn Broker,
    stream: &str,
    effect: &EffectName,
    name: &(TenantId, CommandId),
    message: &Message,
    created: TimeMs,
    initial: Option<&EffectProgress>,
    announced: bool,
) -> Result<EffectProgress, BrokerError> {
    let initial = || initial.cloned().unwrap_or_default();
    let had_another = message.time <= created;
    if message.delivered <= 1 && !had_another {
        return Ok(initial());
    }
    let stored = stored(broker, stream, effect, name).await?;
    let mut progress = stored.unwrap_or_else(initial);
    let is_complete = !had_another && progress.delivered.saturating_add(1) == message.delivered;
    if !announced && !is_complete {
        progress.outcome_unknown = true;
    }
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
