//! The body of an answer, read up to a bound.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};

use super::client::{Unanswered, late};
use super::pool::Rest;

/// What follows the head of an answer.
pub enum Body {
    Plain(Rest),
    Tls(Incoming),
}

/// Why a body cannot be read.
pub enum BodyFault {
    TooLong,
    Broken(Unanswered),
}

impl Body {
    /// The bytes, at most `bytes_max` and until `by`.
    pub async fn read(&mut self, bytes_max: usize, by: Instant) -> Result<Vec<u8>, BodyFault> {
        let read = timeout_at(by, self.read_all(bytes_max)).await;
        read.unwrap_or_else(|_| Err(BodyFault::Broken(Unanswered::Lost(late()))))
    }

    async fn read_all(&mut self, bytes_max: usize) -> Result<Vec<u8>, BodyFault> {
        let announced = self.announced().and_then(|bytes| usize::try_from(bytes).ok());
        if announced.is_some_and(|bytes| bytes > bytes_max) {
            return Err(BodyFault::TooLong);
        }
        let mut bytes = Vec::with_capacity(announced.unwrap_or(0));
        while let Some(chunk) = self.chunk().await.map_err(BodyFault::Broken)? {
            if bytes.len() + chunk.len() > bytes_max {
                return Err(BodyFault::TooLong);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    fn announced(&self) -> Option<u64> {
        match self {
            Self::Plain(rest) => rest.announced(),
            Self::Tls(incoming) => incoming.size_hint().exact(),
        }
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, Unanswered> {
        let incoming = match self {
            Self::Plain(rest) => return rest.chunk().await,
            Self::Tls(incoming) => incoming,
        };
        while let Some(frame) = incoming.frame().await {
            // What is not data are trailers, which nobody reads.
            if let Ok(chunk) = frame?.into_data() {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }
}
