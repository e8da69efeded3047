//! Requests of the API that another process answers: each is one message to the process that has the shards open, and the answer
//! comes in parts.
//!
//! Nothing of it is stored. Who sends parts waits with each for whoever reads them, so neither side holds more than one.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

/// The way between the processes of a cluster.
#[async_trait]
pub trait Forwarding: Send + Sync + 'static {
    /// Sends a request to the process that [listens](Self::listen); `cluster` is its name.
    ///
    /// # Errors
    /// [`ForwardingError::Refused`] for one that is too large, [`ForwardingError::Unavailable`] without a connection.
    async fn forward(&self, cluster: &str, request: Bytes) -> Result<Box<dyn Answer>, ForwardingError>;

    /// Takes the requests that the other processes of the cluster send from now on, over broken connections as well.
    ///
    /// # Errors
    /// [`ForwardingError::Unavailable`] where that cannot be.
    async fn listen(&self, cluster: &str) -> Result<Box<dyn Listener>, ForwardingError>;
}

/// An answer as it comes.
#[async_trait]
pub trait Answer: Send {
    /// The next part, `None` behind the last one. A broken connection is never taken for an end.
    ///
    /// # Errors
    /// [`ForwardingError::Unheard`] where no process listens; [`ForwardingError::Unanswered`] where the part does not come within
    /// `patience`, or cannot come any more. Then no other part comes either.
    async fn part(&mut self, patience: Duration) -> Result<Option<Bytes>, ForwardingError>;
}

/// Requests as they come.
#[async_trait]
pub trait Listener: Send {
    /// The next request, and the way back. `None` once the connection is closed for good.
    async fn request(&mut self) -> Option<(Bytes, Box<dyn Reply>)>;
}

/// Takes the answer to one request.
#[async_trait]
pub trait Reply: Send {
    /// Largest part, in bytes.
    fn part_bytes_max(&self) -> usize;

    /// Sends a part and waits until the next one is wanted, for at most `patience`.
    ///
    /// # Errors
    /// [`ForwardingError::Unheard`] where nobody reads the answer any more; no other part has to be sent after an error.
    async fn send(&mut self, part: Bytes, patience: Duration) -> Result<(), ForwardingError>;

    /// Sends the last part.
    async fn finish(self: Box<Self>, part: Bytes) -> Result<(), ForwardingError>;
}

/// Why there is no answer, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardingError {
    /// Nobody has taken the message.
    #[error("no process listens")]
    Unheard,
    /// It was not sent.
    #[error("{0}")]
    Unavailable(String),
    /// It cannot be sent, now or later.
    #[error("{0}")]
    Refused(String),
    /// It was sent, and its outcome is unknown.
    #[error("{0}")]
    Unanswered(String),
}
