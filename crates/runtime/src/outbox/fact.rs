//! Publishing facts: recognisable by an id that no tenant can guess, and verified where the broker says that it
//! knows the id already.
//!
//! Duplicate detection is stream-wide: whoever may publish anything to the stream could use up an id that they
//! know, and suppress someone else's message.
//!
//! The broker forgets ids after a while. Each fact says in a header where it stood in its shard's log, signed together with its
//! id, and facts of an instance go one after the other: so the last message on the subject tells which of them are stored.

use serde::Deserialize;

use super::envelope::{self, Unsendable};
use super::publish::{Publisher, Sent, pause, seed};
use crate::kernel::children::SagaMessage;
use crate::kernel::envelope::POSITION_HEADER;
use crate::kernel::ids::{ClusterId, CommandId, Key, SagaName};
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::work::{WorkItem, WorkRef};
use crate::ports::broker::{BrokerError, Expect, Publication, PublishError, StoredMessage};

/// After so many foreign messages under our ids the fact goes out without one: it may then be stored twice,
/// which consumers of facts must expect, but not be lost.
const SALTS_MAX: u32 = 4;

/// Digits of the signature of a position.
const SIGNATURE_HEX: usize = 32;

/// Who wrote a stored message.
#[derive(Deserialize)]
struct Author {
    event_id: CommandId,
}

/// Of the ids of facts and of the signatures of their positions: nobody outside the cluster can guess one.
#[derive(Debug, Clone, Copy)]
pub struct FactKey([u8; 32]);

impl FactKey {
    /// Derived from the cluster's id, which is random and in no message.
    #[must_use]
    pub fn of(cluster: ClusterId) -> Self {
        Self(blake3::derive_key("saga-runner fact message id v1", &cluster.0))
    }

    /// Where a fact stood, so that nobody else can say it, nor say it of another fact.
    fn position(&self, subject: &str, id: CommandId, encoded: u64) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"position");
        hasher.update(&encoded.to_le_bytes());
        hasher.update(id.0.as_bytes());
        hasher.update(subject.as_bytes());
        format!("{encoded}-{}", &hasher.finalize().to_hex()[..SIGNATURE_HEX])
    }
}

/// The fact of an outbox row, without the id that makes its repetition recognisable.
///
/// # Errors
/// [`Unsendable`] where it is not a message.
pub fn message(
    stream: &str,
    key: &FactKey,
    row: WorkRef,
    item: &WorkItem,
    (fact_type, payload): (&str, &[u8]),
) -> Result<Publication, Unsendable> {
    let mut publication = envelope::fact(stream, item, fact_type, payload)?;
    let position = key.position(&publication.subject, item.command_id, row.position());
    publication.headers.push((POSITION_HEADER.to_owned(), position));
    Ok(publication)
}

impl Publisher {
    /// Publishes the fact of an outbox row until it stands in the stream; `suppressed` hears of ids that others had used.
    pub async fn fact(
        &self,
        row: WorkRef,
        item: &WorkItem,
        fact_type: &str,
        payload: &[u8],
        suppressed: impl Fn(),
    ) -> Sent {
        let stream = &self.streams.events;
        let publication = match message(stream, &self.fact_key, row, item, (fact_type, payload)) {
            Ok(publication) => publication,
            Err(error) => return error.into(),
        };
        let is_old = self.is_of_earlier_life(row) || self.is_old(item);
        if is_old && !is_planted(Bug::FactsAgain) {
            // It may have been published long ago, and only the news of that was lost.
            let mut delays = self.settings.delays(seed(item));
            loop {
                match self.is_passed(&publication, row, item.command_id).await {
                    Ok(true) => return Sent::AlreadyThere,
                    Ok(false) => break,
                    Err(_) => pause(&mut delays).await,
                }
            }
        }
        self.recognisably(item, publication, is_ours, suppressed).await
    }

    /// Whether the last message on the subject is this fact or a later one of its instance. After a copy of the shard's
    /// folder was gone on from, the same fact may stand in another row than the one by which it was published.
    async fn is_passed(
        &self,
        publication: &Publication,
        row: WorkRef,
        id: CommandId,
    ) -> Result<bool, BrokerError> {
        let subject = &publication.subject;
        let last = self.broker.last_by_subject(&publication.stream, subject).await?;
        let published = last.as_ref().and_then(|last| self.published(last));
        Ok(published.is_some_and(|(last, encoded)| last == id || encoded >= row.position()))
    }

    /// Id and place in the log of a fact that this cluster has published.
    fn published(&self, stored: &StoredMessage) -> Option<(CommandId, u64)> {
        let (_, said) = stored.headers.iter().find(|(name, _)| name == POSITION_HEADER)?;
        let encoded = said.split_once('-')?.0.parse().ok()?;
        let Author { event_id } = serde_json::from_slice(&stored.payload).ok()?;
        (*said == self.fact_key.position(&stored.subject, event_id, encoded)).then_some((event_id, encoded))
    }

    /// Publishes a message to another saga until it stands in the stream.
    pub async fn saga(
        &self,
        item: &WorkItem,
        saga: &SagaName,
        key: &Key,
        message: &SagaMessage,
        suppressed: impl Fn(),
    ) -> Sent {
        let is_ours = |stored: &StoredMessage, publication: &Publication, item: &WorkItem| {
            stored.subject == publication.subject && envelope::is_request(&stored.payload, item)
        };
        match envelope::saga(&self.streams, item, saga, key, message) {
            Ok(publication) => self.recognisably(item, publication, is_ours, suppressed).await,
            Err(error) => error.into(),
        }
    }

    /// Publishes under an id by which a repetition is recognised, until the message stands in the stream.
    async fn recognisably(
        &self,
        item: &WorkItem,
        mut publication: Publication,
        is_ours: impl Fn(&StoredMessage, &Publication, &WorkItem) -> bool,
        suppressed: impl Fn(),
    ) -> Sent {
        let mut delays = self.settings.delays(seed(item));
        let mut salt = 0;
        let mut attempts = self.tasks.stuck().begin(&publication.stream);
        publication.expect = self.expectation(item, salt);
        loop {
            match self.send(publication.clone()).await {
                Ok(ack) if !ack.duplicate => return Sent::Stored,
                Ok(ack) => match self.broker.message_at(&publication.stream, ack.sequence).await {
                    // Gone means trimmed, and only what everyone has read is trimmed.
                    Ok(None) => return Sent::AlreadyThere,
                    Ok(Some(stored)) if is_ours(&stored, &publication, item) => return Sent::AlreadyThere,
                    Ok(Some(stored)) => {
                        tracing::error!(
                            subject = publication.subject,
                            sequence = stored.sequence,
                            "another message was stored under the id of a fact; publishing under another id"
                        );
                        suppressed();
                        salt += 1;
                        publication.expect = self.expectation(item, salt);
                        continue;
                    }
                    Err(error) => attempts.failed(&error.to_string()),
                },
                Err(PublishError::Refused(reason)) => return Sent::Unsendable(reason),
                // Not an answer to this expectation; a later attempt is verified like any other.
                Err(error @ (PublishError::AlreadyThere | PublishError::Unavailable(_))) => {
                    attempts.failed(&error.to_string());
                }
                Err(PublishError::Unknown(reason)) => {
                    attempts.failed(&reason);
                    if let Ok(true) = self.is_last(&publication, item, &is_ours).await {
                        return Sent::AlreadyThere;
                    }
                }
            }
            pause(&mut delays).await;
        }
    }

    fn expectation(&self, item: &WorkItem, salt: u32) -> Expect {
        if salt >= SALTS_MAX || is_planted(Bug::FactsAgain) {
            return Expect::Nothing;
        }
        let tenant = item.instance.tenant.as_str().as_bytes();
        let mut hasher = blake3::Hasher::new_keyed(&self.fact_key.0);
        hasher.update(&(tenant.len() as u64).to_le_bytes());
        hasher.update(tenant);
        hasher.update(item.command_id.0.as_bytes());
        hasher.update(&salt.to_le_bytes());
        Expect::MessageId(hasher.finalize().to_hex().to_string())
    }

    /// Facts of an instance go one after the other, so the last one on the subject tells. A message to a saga may
    /// have another one behind it; then it is published again and recognised by its id.
    async fn is_last(
        &self,
        publication: &Publication,
        item: &WorkItem,
        is_ours: &impl Fn(&StoredMessage, &Publication, &WorkItem) -> bool,
    ) -> Result<bool, BrokerError> {
        let last = self
            .broker
            .last_by_subject(&publication.stream, &publication.subject)
            .await?;
        Ok(last.is_some_and(|stored| is_ours(&stored, publication, item)))
    }
}

fn is_ours(stored: &StoredMessage, publication: &Publication, item: &WorkItem) -> bool {
    stored.subject == publication.subject
        && serde_json::from_slice::<Author>(&stored.payload)
            .is_ok_and(|author| author.event_id == item.command_id)
}
