//! What a status says about a call.

use std::borrow::Cow;
use std::error::Error;
use std::io;
use std::time::Duration;

use tonic::{Code, Status, TimeoutExpired};
use tonic_types::StatusExt as _;

use super::codec::Malformed;
use crate::clients::grpc::{causes, is_too_long, is_unsent, name};
use crate::effects::egress::EgressDenied;
use crate::effects::provider::{CallFailure, Certainty};
use crate::kernel::breaker::CallEnd;
use crate::kernel::definition::effect::AMBIGUOUS;

/// Longest wait that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// The failure of a call that never got an answer of the server's own, `None` where the status is the server's.
///
/// Only a failure to connect proves that nothing was sent.
pub fn unanswered(status: &Status, is_safe: bool) -> Option<CallFailure> {
    if let Some(denied) = status.source().and_then(EgressDenied::among) {
        return Some(CallFailure::not_done("egress.denied", denied.to_string()));
    }
    let causes = causes(status);
    if causes.iter().any(|cause| cause.is::<Malformed>()) {
        return Some(CallFailure::unclear("response.malformed", status.message()));
    }
    if is_too_long(status) {
        return Some(CallFailure::unclear("response.size", status.message()));
    }
    if causes.is_empty() {
        return None;
    }
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
    Some(if is_unsent(&causes) || is_safe {
        CallFailure::unreachable(class, message)
    } else {
        CallFailure::unanswered(AMBIGUOUS, message)
    })
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
