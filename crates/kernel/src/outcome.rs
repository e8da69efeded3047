//! Outcomes of commands, and reading them from what a worker has recorded.
//!
//! There is one reader, whichever way a result comes: by the stream, by a lookup of an overdue command, or from a call
//! that this process made itself. What it cannot read says nothing about the world, so it is an unknown outcome.

use bytes::Bytes;
use saga_runner_language::classes::TIMEOUT_CLASS;
use saga_runner_language::ids::{CommandId, EffectName, Key, SagaName, TenantId};
use saga_runner_language::json::Json;
use saga_runner_language::limits::Limits;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::envelope::{CLASS_BYTES_MAX, EffectResult, ErrorPayload, ResultMetadata, ResultType};
pub use saga_runner_language::classes::{RESULT_EXPRESSION, RESULT_SCHEMA};

/// Class of a result that cannot be recorded or read, or that is not applied.
pub const RESULT_REFUSED: &str = "result.refused";
/// Class of the failure of a command that no broker takes: its message never was.
pub const EFFECT_UNSENDABLE: &str = "effect.unsendable";
/// Class of an answer that cannot be read.
pub const RESPONSE_MALFORMED: &str = "response.malformed";
/// Class of an answer that is too long.
pub const RESPONSE_SIZE: &str = "response.size";

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum WorkOutcome {
    /// It happened; `payload` is the JSON result.
    Succeeded { payload: Bytes },
    /// It happened; `payload` is what the upstream said, as JSON, which is not the result that the effect describes.
    Unusable {
        payload: Bytes,
        class: String,
        message: String,
    },
    /// It definitely did not happen; `class` is what `on_error` names (`declined`, `rejected`, ...).
    Failed {
        class: String,
        message: String,
        /// The upstream has refused, and may have stored that under the idempotency key.
        refused: bool,
    },
    /// It is unknown whether it happened.
    TimedOut { class: UnknownClass, message: String },
}

/// Why the outcome of a command is unknown, as far as steps tell it apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnknownClass {
    /// No answer, or none that says what happened.
    #[default]
    Timeout,
    /// The upstream answered, and the answer cannot be read.
    ResponseMalformed,
    /// The upstream answered, and the answer is too long.
    ResponseSize,
    /// What was recorded as the result cannot be read, or is not applied.
    ResultRefused,
}

impl UnknownClass {
    /// Every class of unknown outcomes.
    pub const ALL: [Self; 4] = [
        Self::Timeout,
        Self::ResponseMalformed,
        Self::ResponseSize,
        Self::ResultRefused,
    ];

    /// What `on_error` and `retry` call it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => TIMEOUT_CLASS,
            Self::ResponseMalformed => RESPONSE_MALFORMED,
            Self::ResponseSize => RESPONSE_SIZE,
            Self::ResultRefused => RESULT_REFUSED,
        }
    }

    /// The class that a worker gave; steps tell only some of them apart.
    #[must_use]
    pub fn of(class: &str) -> Self {
        let found = Self::ALL.into_iter().find(|known| known.as_str() == class);
        found.unwrap_or_default()
    }
}

/// What the runner says of work whose deadline has come.
pub const PAST_DEADLINE: &str = "no result before the deadline";

/// What a message of a result is about, as its subject says.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// `None` where there are no tenants to keep apart.
    pub tenant: Option<&'a TenantId>,
    pub effect: &'a EffectName,
    pub command: CommandId,
}

/// A result as it was recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedResult {
    /// The instance that it names, if it names one.
    pub address: Option<(SagaName, Key)>,
    pub outcome: WorkOutcome,
}

/// Reads a recorded result. One that cannot be read is an unknown outcome with the class [`RESULT_REFUSED`]: there is
/// no second result for a command, and whoever wrote this one may have called the upstream.
#[must_use]
pub fn read(expected: Expected<'_>, body: &Bytes, limits: &Limits) -> RecordedResult {
    let envelope = envelope(expected, body, limits);
    let address = envelope.as_ref().ok().and_then(|envelope| {
        let ResultMetadata { saga, key, .. } = &envelope.metadata;
        Some((saga.clone()?, key.clone()?))
    });
    let outcome = envelope.and_then(|envelope| outcome(envelope, body, limits));
    RecordedResult {
        address,
        outcome: outcome.unwrap_or_else(|reason| WorkOutcome::refused_result(&reason)),
    }
}

/// The envelope, if it is that of the result that its subject announces.
fn envelope<'a>(
    expected: Expected<'_>,
    body: &'a Bytes,
    limits: &Limits,
) -> Result<EffectResult<'a>, String> {
    if body.len() > limits.payload_bytes {
        let (found, max) = (body.len(), limits.payload_bytes);
        return Err(format!("it has {found} bytes, at most {max} are allowed"));
    }
    let envelope: EffectResult<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if expected
        .tenant
        .is_some_and(|tenant| envelope.tenant_id != *tenant)
    {
        return Err("it names another tenant than its subject".to_owned());
    }
    if envelope.command_id != expected.command || envelope.effect_name != *expected.effect {
        return Err("its effect and command id are not those of its subject".to_owned());
    }
    Ok(envelope)
}

fn outcome(envelope: EffectResult<'_>, body: &Bytes, limits: &Limits) -> Result<WorkOutcome, String> {
    let payload = envelope.payload.get().as_bytes();
    Json::parse(payload, limits.json_depth).map_err(|error| error.to_string())?;
    if envelope.result_type != ResultType::Succeeded {
        let error = serde_json::from_slice(payload).map_err(|error| format!("payload: {error}"))?;
        return Ok(WorkOutcome::of_error(envelope.result_type, checked(error)?));
    }
    let payload = slice(body, envelope.payload);
    let Some(error) = envelope.metadata.unusable else {
        return Ok(WorkOutcome::Succeeded { payload });
    };
    let ErrorPayload { class, message, .. } = checked(error)?;
    Ok(WorkOutcome::Unusable {
        payload,
        class,
        message,
    })
}

/// An error whose class can be named.
fn checked(error: ErrorPayload) -> Result<ErrorPayload, String> {
    if error.class.is_empty() || error.class.len() > CLASS_BYTES_MAX {
        return Err(format!("payload: the class has 1 to {CLASS_BYTES_MAX} bytes"));
    }
    Ok(error)
}

impl WorkOutcome {
    /// A definite failure that no upstream has stored.
    #[must_use]
    pub fn failed(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Failed {
            class: class.into(),
            message: message.into(),
            refused: false,
        }
    }

    /// An unknown outcome because no answer has come in time.
    #[must_use]
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::TimedOut {
            class: UnknownClass::Timeout,
            message: message.into(),
        }
    }

    /// What a recorded result comes to that cannot be read for this reason.
    #[must_use]
    pub fn refused_result(reason: &str) -> Self {
        Self::TimedOut {
            class: UnknownClass::ResultRefused,
            message: format!("the recorded result cannot be read: {reason}"),
        }
    }

    /// What stands in the place of a result that is not applied for this reason.
    #[must_use]
    pub fn not_applied(reason: &str) -> Self {
        Self::TimedOut {
            class: UnknownClass::ResultRefused,
            message: format!("the result is not applied: {reason}"),
        }
    }

    /// What a result says that is not a success.
    #[must_use]
    pub fn of_error(result_type: ResultType, error: ErrorPayload) -> Self {
        let ErrorPayload {
            class,
            message,
            refused,
        } = error;
        match result_type {
            ResultType::TimedOut => Self::TimedOut {
                class: UnknownClass::of(&class),
                message,
            },
            ResultType::Failed | ResultType::Succeeded => Self::Failed {
                class,
                message,
                refused,
            },
        }
    }

    /// Whether it certainly happened.
    #[must_use]
    pub const fn has_happened(&self) -> bool {
        match self {
            Self::Succeeded { .. } | Self::Unusable { .. } => true,
            Self::Failed { .. } | Self::TimedOut { .. } => false,
        }
    }

    /// Bytes that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Succeeded { payload } => payload.len(),
            Self::Unusable { payload, message, .. } => payload.len() + message.len(),
            Self::Failed { message, .. } | Self::TimedOut { message, .. } => message.len(),
        }
    }
}

/// The part of `whole` that `raw` was read from; a default that was not in the text is a static `null`.
#[must_use]
pub fn slice(whole: &Bytes, raw: &RawValue) -> Bytes {
    let part = raw.get().as_bytes();
    let bounds = whole.as_ptr_range();
    if bounds.contains(&part.as_ptr()) {
        whole.slice_ref(part)
    } else {
        Bytes::copy_from_slice(part)
    }
}
