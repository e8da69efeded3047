//! The messages of `proto/saga_runner/gateway/v1/gateway.proto`, written by hand so that no build needs `protoc`.
//! A test holds them against that file, field by field.

use prost::Message;

use crate::kernel::envelope::{self, AggregateCommand};

/// One command for one aggregate.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SubmitCommandRequest {
    #[prost(string, tag = "1")]
    pub tenant_id: String,
    #[prost(string, tag = "2")]
    pub command_id: String,
    #[prost(string, tag = "3")]
    pub aggregate_id: String,
    #[prost(string, tag = "4")]
    pub aggregate_type: String,
    #[prost(string, tag = "5")]
    pub command_type: String,
    #[prost(string, tag = "6")]
    pub payload_json: String,
    #[prost(message, optional, tag = "7")]
    pub metadata: Option<CommandMetadata>,
}

/// Where a command comes from, how long it is wanted, and what makes its repetition recognisable.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandMetadata {
    #[prost(string, tag = "1")]
    pub saga: String,
    #[prost(string, tag = "2")]
    pub key: String,
    #[prost(string, tag = "3")]
    pub correlation_id: String,
    #[prost(string, optional, tag = "4")]
    pub root_correlation_id: Option<String>,
    #[prost(string, tag = "5")]
    pub causation_id: String,
    #[prost(string, tag = "6")]
    pub idempotency_key: String,
    #[prost(string, tag = "7")]
    pub path: String,
    #[prost(uint32, tag = "8")]
    pub attempt: u32,
    #[prost(int64, tag = "9")]
    pub deadline_ms: i64,
    #[prost(string, optional, tag = "10")]
    pub traceparent: Option<String>,
    #[prost(uint32, tag = "11")]
    pub hops: u32,
}

/// The command is taken.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SubmitCommandResponse {}

impl From<&AggregateCommand<'_>> for SubmitCommandRequest {
    fn from(command: &AggregateCommand<'_>) -> Self {
        Self {
            tenant_id: command.tenant_id.as_str().to_owned(),
            command_id: command.command_id.to_string(),
            aggregate_id: command.aggregate_id.clone(),
            aggregate_type: command.aggregate_type.clone(),
            command_type: command.command_type.clone(),
            payload_json: command.payload_json.get().to_owned(),
            metadata: Some(CommandMetadata::from(&command.metadata)),
        }
    }
}

impl From<&envelope::CommandMetadata> for CommandMetadata {
    fn from(metadata: &envelope::CommandMetadata) -> Self {
        Self {
            saga: metadata.saga.as_str().to_owned(),
            key: metadata.key.as_str().to_owned(),
            correlation_id: metadata.correlation_id.clone(),
            root_correlation_id: metadata.root_correlation_id.clone(),
            causation_id: metadata.causation_id.clone(),
            idempotency_key: metadata.idempotency_key.clone(),
            path: metadata.path.clone(),
            attempt: metadata.attempt,
            deadline_ms: metadata.deadline_ms,
            traceparent: metadata.traceparent.clone(),
            hops: metadata.hops,
        }
    }
}
