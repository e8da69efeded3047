//! Messages between the runner and others over plain NATS, beside the streams of the runner's own.
//!
//! Only a broker that is NATS has it ([`Broker::messenger`](super::broker::Broker::messenger)).

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::broker::PublishError;

#[async_trait]
pub trait Messenger: Send + Sync + 'static {
    /// Sends and waits for the first answer, at most `timeout`.
    ///
    /// # Errors
    /// [`MessengerError::Unheard`] where nobody listens; [`MessengerError::Unknown`] where no answer came.
    async fn request(&self, message: Outgoing, timeout: Duration) -> Result<Reply, MessengerError>;

    /// Sends to whoever listens and waits until the server has it. The server keeps nothing.
    async fn send(&self, message: Outgoing) -> Result<(), MessengerError>;

    /// Has the message kept by the stream that takes its subject. The stream keeps one message for an `id` within
    /// its duplicate window.
    ///
    /// # Errors
    /// [`MessengerError::Unavailable`] also where no stream takes the subject.
    async fn store(&self, message: Outgoing, id: &str) -> Result<Stored, MessengerError>;

    /// The newest value of a key, `None` where it has none or was deleted.
    ///
    /// # Errors
    /// [`MessengerError::Refused`] where the bucket does not exist.
    async fn value(&self, bucket: &str, key: &str) -> Result<Option<Bytes>, MessengerError>;
}

/// A message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Literal: no wildcards, no blanks.
    pub subject: String,
    /// Names and values without control characters.
    pub headers: Vec<(String, String)>,
    pub payload: Bytes,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// By name.
    pub headers: Vec<(String, String)>,
    pub payload: Bytes,
}

/// Where a message was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub stream: String,
    /// For a duplicate, the sequence of the message that was kept first.
    pub sequence: u64,
    pub duplicate: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessengerError {
    /// It will not be taken, now or later; nothing was done.
    #[error("refused: {0}")]
    Refused(String),
    /// It was not sent, or not kept; later it may be.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// Nobody listens on the subject.
    #[error("nobody listens on {0}")]
    Unheard(String),
    /// It was sent, and its outcome is not known.
    #[error("no answer: {0}")]
    Unknown(String),
}

impl From<PublishError> for MessengerError {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Refused(why) => Self::Refused(why),
            PublishError::Unavailable(why) => Self::Unavailable(why),
            PublishError::Unknown(why) => Self::Unknown(why),
            // Nothing is sent that asks for it.
            PublishError::AlreadyThere => Self::Refused(error.to_string()),
        }
    }
}
