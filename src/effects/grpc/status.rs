//! What a status says about a call.

use std::borrow::Cow;
use std::error::Error;
use std::io;
use std::time::Duration;

use tonic::{Code, ConnectError, Status, TimeoutExpired};
use tonic_types::StatusExt as _;

use super::codec::Malformed;
use crate::effects::egress::EgressDenied;
use crate::effects::provider::{CallFailure, Certainty};
use crate::kernel::breaker::CallEnd;
use crate::kernel::definition::effect::AMBIGUOUS;

/// Longest wait that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);
/// How a message begins with which the client refuses an answer that is too long. There is no other sign of it.
const TOO_LONG: &str = "Error, decoded message length too large";

/// Names of the codes as the protocol writes them.
pub const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The failure of a call that never got an answer of the server's own, `None` where the status is the server's.
///
/// Only a failure to connect proves that nothing was sent.
pub fn unanswered(status: &Status, is_safe: bool) -> Option<CallFailure> {
    let source = status.source();
    if let Some(denied) = source.and_then(EgressDenied::among) {
        return Some(CallFailure::not_done("egress.denied", denied.to_string()));
    }
    let causes = causes(source);
    if causes.iter().any(|cause| cause.is::<Malformed>()) {
        return Some(CallFailure::unclear("response.malformed", status.message()));
    }
    if status.code() == Code::OutOfRange && status.message().starts_with(TOO_LONG) {
        return Some(CallFailure::unclear("response.size", status.message()));
    }
    source?;
    let message = causes.iter().fold("request failed".to_owned(), |text, cause| {
        format!("{text}: {cause}")
    });
    let timed_out = |cause: &&(dyn Error + 'static)| {
        let of_the_system = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
        cause.is::<TimeoutExpired>() || cause.downcast_ref().is_some_and(of_the_system)
    };
    let class = if causes.iter().any(timed_out) {
        "timeout"
    } else {
        "transient"
    };
    let is_unsent = causes.iter().any(|cause| cause.is::<ConnectError>());
    Some(if is_unsent || is_safe {
        CallFailure::unreachable(class, message)
    } else {
        CallFailure::unanswered(AMBIGUOUS, message)
    })
}

fn causes<'e>(mut next: Option<&'e (dyn Error + 'static)>) -> Vec<&'e (dyn Error + 'static)> {
    let mut causes = Vec::new();
    while let Some(cause) = next {
        causes.push(cause);
        next = cause.source();
    }
    causes
}

/// The failure that a status of the server's own stands for. `class` is what the definition calls it.
pub fn refused(status: &Status, class: Option<&str>) -> CallFailure {
    let code = status.code();
    CallFailure {
        class: class.map_or(Cow::Borrowed(built_in(code)), |class| {
            Cow::Owned(class.to_owned())
        }),
        message: match status.message() {
            "" => name(code).to_owned(),
            text => format!("{}: {}", name(code), text.replace(char::is_control, " ")),
        },
        certainty: certainty(code),
        end: end(code),
        retry_after: status
            .get_details_retry_info()
            .and_then(|info| info.retry_delay)
            .map(|delay| delay.min(RETRY_AFTER_MAX)),
    }
}

const fn built_in(code: Code) -> &'static str {
    match code {
        Code::Unavailable | Code::Aborted | Code::Internal | Code::Unknown | Code::DataLoss => "transient",
        Code::ResourceExhausted => "throttled",
        Code::DeadlineExceeded => "timeout",
        Code::Cancelled => AMBIGUOUS,
        _ => "permanent",
    }
}

/// A server that broke down in the middle of a call may have done it.
const fn certainty(code: Code) -> Certainty {
    match code {
        Code::Unavailable | Code::Aborted | Code::ResourceExhausted => Certainty::NotDone,
        Code::Internal | Code::Unknown | Code::DataLoss | Code::DeadlineExceeded | Code::Cancelled => {
            Certainty::Unknown
        }
        _ => Certainty::Refused,
    }
}

/// Whether the server is well: a refusal is an answer like any other.
const fn end(code: Code) -> CallEnd {
    match code {
        Code::Unavailable
        | Code::ResourceExhausted
        | Code::DeadlineExceeded
        | Code::Internal
        | Code::Unknown
        | Code::DataLoss => CallEnd::Failed,
        _ => CallEnd::Answered,
    }
}
