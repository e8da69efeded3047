//! Requests to the JetStream API and direct gets, with their answers as plain data.
//!
//! Stream configurations stay JSON: an update then keeps whatever a newer server or an operator has put
//! into them.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::{Context, context::ContextBuilder};
use async_nats::{Message, RequestErrorKind, StatusCode};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::ports::broker::BrokerError;

use super::error::{ApiError, ApiFailure};
use super::link::Link;

/// Most consumers of a stream that are listed.
const CONSUMERS_LISTED_MAX: usize = 100_000;

pub(super) const PREFIX: &str = "$JS.API";

#[derive(Debug, Deserialize)]
pub(super) struct StreamInfo {
    pub config: Map<String, Value>,
    /// RFC 3339.
    pub created: String,
    pub state: StreamCounts,
    /// When the server told this: RFC 3339, behind its look at the state.
    pub ts: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamCounts {
    pub messages: u64,
    pub bytes: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    /// RFC 3339.
    #[serde(default)]
    pub last_ts: String,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct Position {
    pub stream_seq: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct ConsumerInfo {
    pub config: ConsumerConfig,
    /// RFC 3339.
    pub created: String,
    /// The last message delivered.
    pub delivered: Position,
    pub ack_floor: Position,
    #[serde(default)]
    pub num_ack_pending: u64,
    /// Messages that match and were not delivered yet.
    #[serde(default)]
    pub num_pending: u64,
    /// Requests that wait for messages.
    #[serde(default)]
    pub num_waiting: u64,
    /// Somebody listens where the consumer pushes to.
    #[serde(default)]
    pub push_bound: bool,
}

/// What the runner sets on a consumer. Durations are nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct ConsumerConfig {
    #[serde(default)]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable_name: Option<String>,
    #[serde(default)]
    pub deliver_policy: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opt_start_seq: Option<u64>,
    #[serde(default)]
    pub ack_policy: String,
    #[serde(default)]
    pub ack_wait: u64,
    #[serde(default)]
    pub max_deliver: i64,
    #[serde(default)]
    pub max_ack_pending: i64,
    #[serde(default)]
    pub replay_policy: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter_subject: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter_subjects: Vec<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub inactive_threshold: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub num_replicas: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mem_storage: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_group: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flow_control: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub headers_only: bool,
    /// Waits in place of `ack_wait`, one for each delivery.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backoff: Vec<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priority_groups: Vec<String>,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_until: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ConsumerConfig {
    /// All filters, however many the server chose to show as one.
    pub fn filters(&self) -> Vec<&str> {
        let mut filters: Vec<&str> = self
            .filter_subject
            .iter()
            .filter(|filter| !filter.is_empty())
            .chain(&self.filter_subjects)
            .map(String::as_str)
            .collect();
        filters.sort_unstable();
        filters
    }

    /// Sets one filter or several.
    pub fn set_filters(&mut self, filters: &[String]) {
        match filters {
            [one] => self.filter_subject = Some(one.clone()),
            several => self.filter_subjects = several.to_vec(),
        }
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether a consumer is made again or may exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConsumerAction {
    Create,
    Update,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer<T> {
    Failed { error: ApiFailure },
    Done(T),
}

impl Link {
    /// One request to the JetStream API.
    pub async fn api<T: DeserializeOwned>(&self, operation: &str, body: &Value) -> Result<T, ApiError> {
        self.generation().map_err(ApiError::Unavailable)?;
        let payload = if body.is_null() {
            Bytes::new()
        } else {
            Bytes::from(body.to_string())
        };
        let answer = self
            .client
            .request(format!("{PREFIX}.{operation}"), payload)
            .await
            .map_err(|error| {
                ApiError::Unavailable(match error.kind() {
                    RequestErrorKind::NoResponders => {
                        format!("jetstream does not answer {operation}; is it enabled for this account?")
                    }
                    RequestErrorKind::TimedOut => format!("no answer to {operation} in time"),
                    _ => format!("{operation}: {error}"),
                })
            })?;
        match serde_json::from_slice(&answer.payload) {
            Ok(Answer::Done(done)) => Ok(done),
            Ok(Answer::Failed { error }) => Err(ApiError::Failed(error)),
            Err(error) => Err(ApiError::Unavailable(format!(
                "cannot read the answer to {operation}: {error}"
            ))),
        }
    }

    pub async fn stream_info(&self, stream: &str) -> Result<StreamInfo, ApiError> {
        self.api(&format!("STREAM.INFO.{stream}"), &Value::Null).await
    }

    /// Messages removed from the middle of a stream, ascending.
    pub async fn removed(&self, stream: &str) -> Result<Vec<u64>, ApiError> {
        #[derive(Deserialize)]
        struct Info {
            state: Details,
        }
        #[derive(Deserialize)]
        struct Details {
            #[serde(default)]
            deleted: Option<Vec<u64>>,
        }
        let body = json!({ "deleted_details": true });
        let info: Info = self.api(&format!("STREAM.INFO.{stream}"), &body).await?;
        let mut removed = info.state.deleted.unwrap_or_default();
        removed.sort_unstable();
        Ok(removed)
    }

    pub async fn consumer_info(&self, stream: &str, consumer: &str) -> Result<ConsumerInfo, ApiError> {
        self.api(&format!("CONSUMER.INFO.{stream}.{consumer}"), &Value::Null)
            .await
    }

    /// The consumers of a stream, by name.
    pub async fn consumers(&self, stream: &str) -> Result<Vec<ConsumerConfig>, ApiError> {
        #[derive(Deserialize)]
        struct Page {
            total: usize,
            #[serde(default)]
            consumers: Option<Vec<ConsumerInfo>>,
        }
        let mut all = Vec::new();
        loop {
            let body = json!({ "offset": all.len() });
            let page: Page = self.api(&format!("CONSUMER.LIST.{stream}"), &body).await?;
            let found = page.consumers.unwrap_or_default();
            let is_last = found.is_empty();
            all.extend(found.into_iter().map(|info| info.config));
            if is_last || all.len() >= page.total || all.len() >= CONSUMERS_LISTED_MAX {
                all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
                return Ok(all);
            }
        }
    }

    /// Sequence of the first message at or behind `sequence` that matches, as the stream's leader has it.
    pub async fn next_matching(
        &self,
        stream: &str,
        filter: &str,
        sequence: u64,
    ) -> Result<Option<u64>, ApiError> {
        #[derive(Deserialize)]
        struct Found {
            message: Place,
        }
        #[derive(Deserialize)]
        struct Place {
            seq: u64,
        }
        let body = json!({ "seq": sequence, "next_by_subj": filter });
        match self.api(&format!("STREAM.MSG.GET.{stream}"), &body).await {
            Ok(Found { message }) => Ok(Some(message.seq)),
            Err(ApiError::Failed(failure)) if failure.no_message() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn put_consumer(
        &self,
        stream: &str,
        config: &ConsumerConfig,
        action: ConsumerAction,
    ) -> Result<ConsumerInfo, ApiError> {
        let action = match action {
            ConsumerAction::Create => "create",
            ConsumerAction::Update => "update",
        };
        let body = json!({ "stream_name": stream, "config": config, "action": action });
        // With its one filter in the subject, the request can be permitted for that filter alone.
        let operation = match &config.filter_subject {
            Some(filter) => format!("CONSUMER.CREATE.{stream}.{}.{filter}", config.name),
            None => format!("CONSUMER.CREATE.{stream}.{}", config.name),
        };
        self.api(&operation, &body).await
    }

    /// A message straight from the store, without the stream's leader having to be asked. `Ok(None)` where
    /// there is none.
    pub async fn direct_get(&self, stream: &str, body: &Value) -> Result<Option<Message>, DirectError> {
        self.generation().map_err(DirectError::Unavailable)?;
        let subject = format!("{PREFIX}.DIRECT.GET.{stream}");
        let answer = match self.client.request(subject, Bytes::from(body.to_string())).await {
            Ok(answer) => answer,
            Err(error) => {
                return Err(match error.kind() {
                    RequestErrorKind::NoResponders => DirectError::NotOffered,
                    RequestErrorKind::TimedOut => {
                        DirectError::Unavailable(format!("no answer to a direct get from {stream} in time"))
                    }
                    _ => DirectError::Unavailable(error.to_string()),
                });
            }
        };
        match answer.status {
            None | Some(StatusCode::OK) => Ok(Some(answer)),
            Some(StatusCode::NOT_FOUND) => Ok(None),
            Some(status) => Err(DirectError::Refused(format!(
                "direct get from {stream}: {status} {}",
                answer.description.unwrap_or_default()
            ))),
        }
    }

    /// A context for publishing with bounded acknowledgements in flight.
    pub fn publish_context(&self, in_flight_max: usize) -> Context {
        ContextBuilder::new()
            .timeout(self.request_timeout)
            .ack_timeout(self.request_timeout)
            .max_ack_inflight(in_flight_max)
            .backpressure_on_inflight(true)
            .build(self.client.clone())
    }
}

pub(super) enum DirectError {
    /// The stream does not exist, or does not allow direct gets.
    NotOffered,
    Unavailable(String),
    Refused(String),
}

impl From<DirectError> for BrokerError {
    fn from(error: DirectError) -> Self {
        match error {
            DirectError::NotOffered => Self::Refused("the stream does not allow direct gets".to_owned()),
            DirectError::Unavailable(why) => Self::Unavailable(why),
            DirectError::Refused(why) => Self::Refused(why),
        }
    }
}
