//! Failures to connect, with the codes that operators look up, and what the broker's API answers.

use std::time::Duration;

use serde::Deserialize;

use super::version::SERVER_VERSIONS;
use crate::ports::broker::BrokerError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "nats-server {version} is too old, found version {version}, expected {SERVER_VERSIONS}; upgrade the server [SR0301]"
    )]
    Unsupported { version: String },
    #[error("connection settings of nats: {0} [SR0302]")]
    Settings(String),
    #[error("connection to nats: {0}")]
    Closed(String),
    /// No server was reached in time.
    #[error("no connection to the broker at {servers} within {patience:?}: {why}")]
    Unreached {
        servers: String,
        patience: Duration,
        why: String,
    },
}

impl ConnectError {
    pub(super) fn settings(what: impl Into<String>) -> Self {
        Self::Settings(what.into())
    }

    /// The key below `broker.nats` that the sentence about wrong settings begins with, if it begins with one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        let Self::Settings(what) = self else {
            return None;
        };
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
        what.split(|c: char| !is_part(c))
            .next()
            .filter(|key| !key.is_empty())
    }
}

/// An error answer of the JetStream API.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ApiFailure {
    /// Class, as in HTTP.
    pub code: u16,
    #[serde(default)]
    pub err_code: u64,
    #[serde(default)]
    pub description: String,
}

const CONSUMER_EXISTS: u64 = 10_148;
const CONSUMER_NAME_IN_USE: u64 = 10_013;
const CONSUMER_NOT_FOUND: u64 = 10_014;
const MESSAGE_NOT_FOUND: u64 = 10_037;
const STREAM_NOT_FOUND: u64 = 10_059;

impl ApiFailure {
    pub fn no_stream(&self) -> bool {
        self.err_code == STREAM_NOT_FOUND
    }

    pub fn no_consumer(&self) -> bool {
        self.err_code == CONSUMER_NOT_FOUND
    }

    pub fn no_message(&self) -> bool {
        self.err_code == MESSAGE_NOT_FOUND
    }

    pub fn consumer_exists(&self) -> bool {
        matches!(self.err_code, CONSUMER_EXISTS | CONSUMER_NAME_IN_USE)
    }
}

/// Why a request to the API brought nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ApiError {
    /// No answer, or one that nobody can read.
    Unavailable(String),
    Failed(ApiFailure),
}

impl From<async_nats::jetstream::Error> for ApiError {
    fn from(error: async_nats::jetstream::Error) -> Self {
        Self::Failed(ApiFailure {
            code: u16::try_from(error.code()).unwrap_or(u16::MAX),
            err_code: error.error_code().0,
            description: error.to_string(),
        })
    }
}

impl ApiError {
    pub fn into_broker_error(self, stream: &str) -> BrokerError {
        match self {
            Self::Unavailable(why) => BrokerError::Unavailable(why),
            Self::Failed(failure) if failure.no_stream() => BrokerError::NoStream(stream.to_owned()),
            Self::Failed(failure) if failure.code >= 500 || failure.code == 429 => {
                BrokerError::Unavailable(format!("{} ({})", failure.description, failure.err_code))
            }
            Self::Failed(failure) => {
                BrokerError::Refused(format!("{} ({})", failure.description, failure.err_code))
            }
        }
    }
}
