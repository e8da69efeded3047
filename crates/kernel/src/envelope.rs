//! Envelopes: the JSON that crosses the broker and the gateway.
//!
//! Every envelope carries its payload as raw JSON, so it is copied and never re-encoded. The shapes are
//! documented for other languages in docs/envelopes.md.

use bytes::Bytes;
use saga_runner_language::alias::Alias;
use saga_runner_language::ids::{CommandId, EffectName, Key, SagaName, TenantId, TimeMs};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::input::CallbackOutcome;
use super::work::WorkItem;

mod control;
mod decisions;
mod started_by;

pub use control::{
    ConflictPolicy, ControlMessage, ControlVerb, Principal, REASON_BYTES_MAX, Role, Sender, WHO_BYTES_MAX,
};
pub use decisions::{FoundAs, StepFound, Stuck, operation};
pub use started_by::StartedBy;

/// A domain event as aggregates publish it.
#[derive(Debug, Serialize, Deserialize)]
pub struct AggregateEvent<'a> {
    #[serde(default)]
    pub tenant_id: String,
    #[serde(default)]
    pub event_id: Option<String>,
    pub event_type: String,
    pub aggregate_type: String,
    pub aggregate_id: String,
    #[serde(default)]
    pub sequence: u64,
    #[serde(default = "one")]
    pub schema_version: u32,
    #[serde(borrow, default = "null")]
    pub payload: &'a RawValue,
    #[serde(default)]
    pub metadata: EventMetadata,
    /// The producer's clock, RFC 3339: data, never order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMetadata {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hops: u32,
}

/// A command for an effect worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct EffectCommand<'a> {
    pub tenant_id: TenantId,
    pub command_id: CommandId,
    pub effect_name: EffectName,
    #[serde(borrow)]
    pub payload: &'a RawValue,
    pub metadata: CommandMetadata,
    /// What was done about it before it became a message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<EffectProgress>,
}

/// Where a command comes from, how long it is wanted, and what makes its repetition recognisable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandMetadata {
    pub saga: SagaName,
    pub key: Key,
    /// The key of the instance; the correlation id of all that a saga emits.
    pub correlation_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_correlation_id: Option<String>,
    pub causation_id: String,
    /// The same for all attempts of this piece of work.
    pub idempotency_key: String,
    /// Place in the definition, e.g. `steps.charge`.
    pub path: String,
    pub attempt: u32,
    /// Milliseconds since the epoch; an expired command is answered with `TimedOut`, not executed.
    pub deadline_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hops: u32,
}

/// Header of a result that its instance knows already: it is there for everyone else.
pub const APPLIED_HEADER: &str = "saga-runner-applied";
/// Header next to that one: the time of the input that has applied the result, in milliseconds since 1970. The ids of the commands
/// that follow from the result are derived from it, also where a shard goes on from an older state and reads the result again.
pub const APPLIED_TIME_HEADER: &str = "saga-runner-applied-ms";
/// Header of a command whose input had waited in a backlog: its deadline in milliseconds since 1970, in place of the one in its body.
pub const DEADLINE_HEADER: &str = "saga-runner-deadline-ms";

/// Header of a command each of whose calls is recorded before it is made (an intent record), because its effect made no call twice when
/// the command was sent. It holds whatever the definition says that is in force later.
pub const ANNOUNCED_HEADER: &str = "saga-runner-announced";

/// Whether each call of the command with these headers is recorded before it is made.
#[must_use]
pub fn is_announced(headers: &[(String, String)]) -> bool {
    headers
        .iter()
        .any(|(name, value)| name == ANNOUNCED_HEADER && value == "true")
}

/// The deadline of a command whose body and headers say these.
#[must_use]
pub fn deadline_of(body_ms: i64, headers: &[(String, String)]) -> i64 {
    let said = headers.iter().find(|(name, _)| name == DEADLINE_HEADER);
    let later = said.and_then(|(_, value)| value.parse().ok());
    later.map_or(body_ms, |later: i64| later.max(body_ms))
}

/// Where a fact stood in the log of its shard, for the runner itself: a number that rises with each fact of an instance, and what proves
/// it to whoever publishes facts.
pub const POSITION_HEADER: &str = "saga-runner-position";

/// The one recorded result of a command.
#[derive(Debug, Serialize, Deserialize)]
pub struct EffectResult<'a> {
    pub tenant_id: TenantId,
    pub command_id: CommandId,
    pub effect_name: EffectName,
    pub result_type: ResultType,
    /// The result for `Succeeded`; `{"class": ..., "message": ...}` for the others.
    #[serde(borrow)]
    pub payload: &'a RawValue,
    /// RFC 3339, the worker's clock: data, never order.
    #[serde(default)]
    pub timestamp: String,
    #[serde(default)]
    pub metadata: ResultMetadata,
}

impl EffectResult<'_> {
    /// The body of a result that says, in the place of a worker, that the outcome of a command is unknown.
    ///
    /// # Panics
    /// Never: an envelope holds only what JSON can hold.
    #[must_use]
    pub fn unknown(item: &WorkItem, effect: &EffectName, class: &str, message: &str, now: TimeMs) -> Bytes {
        let error = ErrorPayload {
            class: class.to_owned(),
            message: message.to_owned(),
            ..ErrorPayload::default()
        };
        let payload = serde_json::value::to_raw_value(&error).expect("two strings are always JSON");
        let result = EffectResult {
            tenant_id: item.instance.tenant.clone(),
            command_id: item.command_id,
            effect_name: effect.clone(),
            result_type: ResultType::TimedOut,
            payload: &payload,
            timestamp: now.rfc3339(),
            metadata: ResultMetadata {
                saga: Some(item.instance.saga.clone()),
                key: Some(item.instance.key.clone()),
                correlation_id: Some(item.instance.key.as_str().to_owned()),
                traceparent: None,
                calls: 0,
                unusable: None,
            },
        };
        let body = serde_json::to_vec(&result).expect("an envelope holds only what JSON can hold");
        body.into()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResultType {
    Succeeded,
    Failed,
    TimedOut,
}

/// Address of the instance that waits. A result without it is routed by the command that it answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultMetadata {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saga: Option<SagaName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Calls that the worker made to the upstream for this command.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub calls: u32,
    /// Of a `Succeeded` result: it happened, and this is why its payload, which is what the upstream said, is not the result
    /// that the effect describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<ErrorPayload>,
}

/// What the workers know about a command that was given back to the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectProgress {
    /// Calls that were made to the upstream so far.
    pub calls: u32,
    /// Whether one of them may have happened.
    pub outcome_unknown: bool,
    /// Milliseconds since the epoch, not before the start of a call whose end was not recorded; 0 where there is none.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub begun_ms: i64,
    /// The delivery after which it was given back. If it is not the one before the next, a worker died in between.
    pub delivered: u64,
    /// When the consumer was made whose delivery that was, in milliseconds since the epoch: each one counts for itself. 0 for a call
    /// without a consumer.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub consumer_ms: i64,
    /// Milliseconds since the epoch before which it is not executed.
    pub not_before_ms: i64,
    /// The worker that made the last call.
    pub worker: String,
    /// Whether that worker has left the next call to others once.
    #[serde(default)]
    pub yielded: bool,
    /// How the last call ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorPayload>,
    /// What kept the next call back the last time; absent where nothing did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Box<HeldCall>>,
}

/// What keeps a call back that could be made otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldCall {
    /// `breaker`, `breaker_forced`, `tenant_busy`, `tenant_rate`, `busy` or `under_way`.
    pub reason: String,
    /// Whose breaker it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// Milliseconds since the epoch when it is asked for again.
    pub until_ms: i64,
}

/// Word to the workers that nobody waits for the result of a command any longer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectCancellation {
    pub tenant_id: TenantId,
    pub command_id: CommandId,
    pub effect_name: EffectName,
}

/// Payload of a `Failed` or `TimedOut` result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorPayload {
    pub class: String,
    #[serde(default)]
    pub message: String,
    /// Of a `Failed` result: the upstream understood the call and refused it, so it may have stored the refusal under the
    /// idempotency key, and the next attempt needs another one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub refused: bool,
}

/// Longest error class of a result or callback, in bytes; definitions name no longer ones.
pub const CLASS_BYTES_MAX: usize = 128;
/// Longest message of a callback, in bytes: it stands in the state of the instance.
const CALLBACK_MESSAGE_BYTES_MAX: usize = 4_096;

/// What a callback says.
///
/// # Errors
/// A sentence for whoever calls back, who may be anybody with a token.
pub fn callback_outcome(
    ok: Option<&serde_json::Map<String, serde_json::Value>>,
    error: Option<&ErrorPayload>,
) -> Result<CallbackOutcome, &'static str> {
    match (ok, error) {
        (Some(data), None) => Ok(CallbackOutcome::Done {
            data: serde_json::to_vec(data).expect("JSON").into(),
        }),
        (None, Some(ErrorPayload { class, message, .. })) => {
            let unfit = |c: char| c.is_control() || c.is_whitespace();
            if class.is_empty() || class.len() > CLASS_BYTES_MAX || class.contains(unfit) {
                return Err("error.class is a word of 1 to 128 bytes");
            }
            if message.len() > CALLBACK_MESSAGE_BYTES_MAX {
                return Err("error.message has at most 4096 bytes");
            }
            Ok(CallbackOutcome::Failed {
                class: class.clone(),
                message: message.clone(),
            })
        }
        (Some(_), Some(_)) | (None, None) => Err("a callback has either ok or error"),
    }
}

/// What whoever was given a callback token says, as a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallbackMessage {
    pub token: String,
    /// The work is done; what is read as `signal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<serde_json::Map<String, serde_json::Value>>,
    /// The work has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorPayload>,
    /// `true`: nothing is over yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<bool>,
}

/// The message to the instance that waits for `work`, its idempotency key.
///
/// # Errors
/// A sentence for whoever calls back.
pub fn callback_verb(
    work: String,
    ok: Option<serde_json::Map<String, serde_json::Value>>,
    error: Option<ErrorPayload>,
    heartbeat: Option<bool>,
) -> Result<ControlVerb, &'static str> {
    match (heartbeat, &ok, &error) {
        (None, _, _) => {
            callback_outcome(ok.as_ref(), error.as_ref())?;
            Ok(ControlVerb::Callback { work, ok, error })
        }
        (Some(true), None, None) => Ok(ControlVerb::Heartbeat { work }),
        (Some(_), _, _) => Err("a heartbeat is true, and stands alone"),
    }
}

/// Id of the one message that says how a piece of work went: the first one counts, as often as it is repeated.
#[must_use]
pub fn callback_request(work: &str) -> String {
    format!("callback:{work}")
}

/// A command for an aggregate: the body of the gateway's SubmitCommand request.
#[derive(Debug, Serialize, Deserialize)]
pub struct AggregateCommand<'a> {
    pub tenant_id: TenantId,
    pub command_id: CommandId,
    pub aggregate_id: String,
    pub aggregate_type: String,
    /// `<AggregateType>.<Command>`, as the definition says.
    pub command_type: String,
    #[serde(borrow)]
    pub payload_json: &'a RawValue,
    pub metadata: CommandMetadata,
}

/// What a gateway replies to an aggregate command over NATS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandReply {
    pub status: CommandStatus,
    /// Why, unless it was accepted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandStatus {
    /// Now or before: a repeated command is accepted again.
    Accepted,
    /// It will not be carried out.
    Rejected,
    /// It was not carried out; it may come again.
    Unavailable,
}

/// A fact that a saga publishes about itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct WorkflowEvent<'a> {
    pub tenant_id: TenantId,
    pub event_id: CommandId,
    pub event_type: String,
    pub saga: SagaName,
    pub key: Key,
    #[serde(borrow)]
    pub payload: &'a RawValue,
    pub metadata: EventMetadata,
}

/// What `control` says in a [`ForwardedEvent`].
pub const FORWARD: &str = "forward";

/// An event on its way from an alias to one of its owners. It stands among the control messages, and carries the
/// payload as it came, which they cannot.
#[derive(Debug, Serialize, Deserialize)]
pub struct ForwardedEvent<'a> {
    pub request_id: String,
    /// [`FORWARD`].
    pub control: &'a str,
    pub alias: Alias,
    /// Of the owner that has registered the alias.
    pub generation: u32,
    /// When the message of the event was stored, in milliseconds since the epoch.
    pub time_ms: i64,
    /// A saga has published it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fact: bool,
    #[serde(borrow)]
    pub event: AggregateEvent<'a>,
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

const fn one() -> u32 {
    1
}

fn null<'a>() -> &'a RawValue {
    RawValue::NULL
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
const fn is_unset(ms: &i64) -> bool {
    *ms == 0
}
