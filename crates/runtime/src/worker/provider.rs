//! What a provider is given and what it answers, whatever the transport.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::certainty::SideEffects;
use super::running::{WorkerError, WorkerSpec};
use crate::kernel::breaker::CallEnd;
use crate::kernel::envelope::EffectCommand;
use crate::kernel::ids::TimeMs;
use crate::kernel::json::Json;

/// One kind of call. It makes exactly one attempt and does not retry.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    async fn call(&self, call: &CallContext<'_>) -> CallOutcome;

    /// Whether a call may change something: one without side effects is explained although no answer comes.
    fn side_effects(&self) -> SideEffects;

    /// What is called, `host:port`; `None` where nothing is.
    fn upstream(&self) -> Option<String>;
}

/// What makes the providers of a worker.
pub trait Providers: Send + Sync + 'static {
    /// The provider of each effect of `spec`, in their order.
    ///
    /// # Errors
    /// [`WorkerError`] names the first effect that cannot run.
    fn of(&self, spec: &WorkerSpec) -> Result<Vec<Arc<dyn Provider>>, WorkerError>;
}

/// The command that a call serves. Not `Debug`: it holds secrets.
pub struct CallContext<'a> {
    pub command: &'a EffectCommand<'a>,
    /// The command's payload, read.
    pub input: &'a Json<'a>,
    /// By name, as they are at the time of the call.
    pub secrets: &'a Json<'static>,
    /// When the call begins, by the worker's clock.
    pub now: TimeMs,
    /// The trace of the command with a span of this call, for the upstream.
    pub traceparent: Box<str>,
    /// How long it may take: `timeout.total`, or what is left of the command's deadline where that is less. A provider
    /// ends in time by itself, because only it knows what an unfinished call says about the world.
    pub limit: Duration,
}

/// How one call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// It happened; the payload is JSON.
    Succeeded {
        payload: Vec<u8>,
    },
    /// It happened, and what the upstream said (`payload`, JSON) cannot be turned into the result that the effect
    /// describes. It is recorded as done; the saga's step fails with `class`.
    Unusable {
        payload: Vec<u8>,
        class: &'static str,
        message: String,
    },
    Failed(CallFailure),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFailure {
    /// What `retry.errors` and `on_error` name.
    pub class: Cow<'static, str>,
    pub message: String,
    pub certainty: Certainty,
    /// What it says about the upstream's health.
    pub end: CallEnd,
    /// How long the upstream asks to be left alone.
    pub retry_after: Option<Duration>,
}

/// What a failure says about the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// The upstream understood the call and refused it. All attempts carry one idempotency key, so this also
    /// finds the outcome of earlier ones.
    Refused,
    /// This attempt did nothing; about earlier ones it says nothing.
    NotDone,
    /// It was sent, and its outcome is not known.
    Unknown,
}

impl CallFailure {
    /// A failure before anything was sent, of which the upstream knows nothing.
    #[must_use]
    pub fn not_done(class: &'static str, message: impl Into<String>) -> Self {
        Self {
            class: Cow::Borrowed(class),
            message: message.into(),
            certainty: Certainty::NotDone,
            end: CallEnd::Abandoned,
            retry_after: None,
        }
    }

    /// The upstream could not be reached, so nothing was sent.
    #[must_use]
    pub fn unreachable(class: &'static str, message: impl Into<String>) -> Self {
        Self {
            end: CallEnd::Failed,
            ..Self::not_done(class, message)
        }
    }

    /// It was sent, and there was no answer.
    #[must_use]
    pub fn unanswered(class: &'static str, message: impl Into<String>) -> Self {
        Self {
            certainty: Certainty::Unknown,
            ..Self::unreachable(class, message)
        }
    }

    /// There was an answer, and it does not tell what happened.
    #[must_use]
    pub fn unclear(class: &'static str, message: impl Into<String>) -> Self {
        Self {
            certainty: Certainty::Unknown,
            end: CallEnd::Answered,
            ..Self::not_done(class, message)
        }
    }
}
