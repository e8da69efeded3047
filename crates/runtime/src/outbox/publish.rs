//! Handing effect commands over to the broker.

use std::sync::Arc;
use std::time::Duration;

use super::envelope::{self, Unsendable};
use super::fact::FactKey;
use super::fence::Fence;
use super::local::LocalFirst;
use super::settings::Settings;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::kernel::envelope::EffectProgress;
use crate::kernel::ids::{CommandId, EffectName, TimeMs};
use crate::kernel::limits::Limits;
use crate::kernel::work::{WorkItem, WorkRef};
use crate::ports::broker::{Broker, BrokerError, Publication, PublishAck, PublishError, WorkflowStreams};
use crate::ports::clock::Clock;
use crate::shard::mailbox::Mail;
use crate::tasks::{Attempts, Tasks};

/// What all publications of a relay share.
pub struct Publisher {
    pub broker: Arc<dyn Broker>,
    pub streams: WorkflowStreams,
    pub settings: Settings,
    pub clock: Arc<dyn Clock>,
    pub fact_key: FactKey,
    /// Work up to here is of an earlier life of the process.
    pub began_after: u64,
    pub fence: Arc<Fence>,
    /// By which results are read.
    pub limits: Limits,
    pub local: Option<LocalFirst>,
    /// As [`RelaySpec::announces`](super::relay::RelaySpec::announces).
    pub announces: Arc<dyn Fn(&EffectName) -> bool + Send + Sync>,
    /// The shard's.
    pub mailbox: mpsc::Sender<Mail>,
    pub tasks: Tasks,
}

/// How an effect command was handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    Stored,
    /// An earlier publication of the same command stands.
    AlreadyThere,
    /// It has a result, so it must not be sent again.
    Answered,
    /// The broker does not take it, or it will never be a message.
    Unsendable(String),
}

impl From<Unsendable> for Sent {
    fn from(error: Unsendable) -> Self {
        Self::Unsendable(error.to_string())
    }
}

impl Publisher {
    /// Publishes the command until it stands in the stream; waits as long as the broker is away. `progress` says
    /// what was done about it before.
    pub async fn effect(
        &self,
        item: &WorkItem,
        effect: &EffectName,
        payload: &[u8],
        progress: Option<EffectProgress>,
    ) -> Sent {
        let stream = &self.streams.commands;
        let announced = (self.announces)(effect);
        let command = envelope::effect_command(stream, item, effect, payload, progress, announced);
        let publication = match command {
            Ok(publication) => publication,
            Err(error) => return error.into(),
        };
        let mut delays = self.settings.delays(seed(item));
        let subject = envelope::result_subject(item, effect);
        let mut attempts = self.tasks.stuck().begin(&publication.stream);
        loop {
            // Before each attempt: its stream may have been trimmed past it by now, and then nothing else would recognise a
            // repetition. What is younger is not trimmed.
            if self.is_old(item) {
                match self.stands(&self.streams.events, &subject).await {
                    Ok(true) => return Sent::Answered,
                    Ok(false) => {}
                    Err(_) => {
                        pause(&mut delays).await;
                        continue;
                    }
                }
            }
            if let Some(sent) = self.store_once(&publication, &mut attempts).await {
                return sent;
            }
            pause(&mut delays).await;
        }
    }

    /// Publishes the result of an effect that was carried out here.
    pub async fn result(&self, item: &WorkItem, effect: &EffectName, body: &Bytes) -> Sent {
        let publication = envelope::result(&self.streams.events, item, effect, body);
        self.until_stored(publication, self.settings.delays(seed(item)))
            .await
    }

    /// Tells the workers that nobody waits for the result of `command` any longer.
    pub async fn cancel(&self, item: &WorkItem, effect: &EffectName, command: CommandId) -> Sent {
        let publication = envelope::cancellation(&self.streams.commands, item, effect, command);
        self.until_stored(publication, self.settings.delays(seed(item)))
            .await
    }

    async fn until_stored(
        &self,
        publication: Publication,
        mut delays: impl Iterator<Item = Duration>,
    ) -> Sent {
        let mut attempts = self.tasks.stuck().begin(&publication.stream);
        loop {
            if let Some(sent) = self.store_once(&publication, &mut attempts).await {
                return sent;
            }
            pause(&mut delays).await;
        }
    }

    /// Publishes once, and returns the outcome unless it is to be tried again.
    async fn store_once(&self, publication: &Publication, attempts: &mut Attempts<'_>) -> Option<Sent> {
        match self.send(publication.clone()).await {
            Ok(_) => Some(Sent::Stored),
            Err(PublishError::AlreadyThere) => Some(Sent::AlreadyThere),
            Err(PublishError::Refused(reason)) => Some(Sent::Unsendable(reason)),
            Err(PublishError::Unavailable(reason)) => {
                attempts.failed(&reason);
                None
            }
            Err(PublishError::Unknown(reason)) => {
                attempts.failed(&reason);
                // The subject is the command's own: whatever stands there is the command.
                let stands = self.stands(&publication.stream, &publication.subject).await;
                (stands == Ok(true)).then_some(Sent::AlreadyThere)
            }
        }
    }

    /// Publishes as soon as this process may send for the shard.
    pub async fn send(&self, publication: Publication) -> Result<PublishAck, PublishError> {
        self.fence.passed().await;
        self.broker.publish(publication).await
    }

    /// Whether an earlier life of the shard may have handed a row over.
    pub fn is_of_earlier_life(&self, row: WorkRef) -> bool {
        row.log_sequence <= self.began_after.max(self.fence.earlier())
    }

    pub async fn stands(&self, stream: &str, subject: &str) -> Result<bool, BrokerError> {
        Ok(self.broker.last_by_subject(stream, subject).await?.is_some())
    }

    pub fn is_old(&self, item: &WorkItem) -> bool {
        let TimeMs(now) = self.clock.now();
        now.saturating_sub(item.created.0) >= self.settings.recheck_after.as_i64()
    }
}

/// Spreads the retries of different work, the same in every run.
pub fn seed(item: &WorkItem) -> u64 {
    item.command_id.0.as_u64_pair().1
}

pub async fn pause(delays: &mut impl Iterator<Item = Duration>) {
    let delay = delays.next().unwrap_or(Duration::from_secs(1));
    tokio::time::sleep(delay).await;
}
