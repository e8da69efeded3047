//! What a status says about a call.

use std::error::Error;
use std::io;
use std::time::Duration;

use tonic::{Code, Status, TimeoutExpired};
use tonic_types::StatusExt as _;

use super::codec::Malformed;
use crate::clients::ending::{is_not_begun, is_untrusted, wants_certificate};
use crate::clients::grpc::{causes, is_too_long, is_unconnected, name};
use crate::effects::certainty::{Ending, Said, SideEffects};
use crate::effects::egress::EgressDenied;
use crate::effects::provider::CallFailure;

/// Longest wait that a server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// Whether the message of a call has left this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    No,
    Maybe,
}

/// The outcome of a call that never got an answer of the server's own, `None` where the status is the server's.
pub fn ending(status: &Status, sent: Sent) -> Option<(Ending, String)> {
    if let Some(denied) = status.source().and_then(EgressDenied::among) {
        return Some((Ending::Unsendable("egress.denied"), denied.to_string()));
    }
    let causes = causes(status);
    let said = || status.message().to_owned();
    if causes.iter().any(|cause| cause.is::<Malformed>()) {
        return Some((Ending::Malformed, said()));
    }
    if is_too_long(status) {
        return Some((Ending::TooLong, said()));
    }
    if causes.is_empty() {
        return None;
    }
    let message = causes.iter().fold("request failed".to_owned(), |text, cause| {
        format!("{text}: {cause}")
    });
    let each = || causes.iter().copied();
    let is_late = each().any(is_late);
    let ending = if is_unconnected(&causes) {
        match is_late {
            _ if is_untrusted(each()) => Ending::Untrusted,
            true => Ending::LateUnsent,
            false => Ending::Unconnected,
        }
    } else if wants_certificate(each()) {
        Ending::Untrusted
    } else if is_not_begun(each()) {
        Ending::NotBegun
    } else {
        match (sent, is_late) {
            (Sent::No, true) => Ending::LateUnsent,
            (Sent::No, false) => Ending::LostUnsent,
            (Sent::Maybe, true) => Ending::Late,
            (Sent::Maybe, false) => Ending::Lost,
        }
    };
    Some((ending, message))
}

fn is_late(cause: &(dyn Error + 'static)) -> bool {
    let of_the_system = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    cause.is::<TimeoutExpired>() || cause.downcast_ref().is_some_and(of_the_system)
}

/// The failure that a status of the server's own stands for.
pub fn failure(status: &Status, side_effects: SideEffects) -> CallFailure {
    let code = status.code();
    let message = match status.message() {
        "" => name(code).to_owned(),
        text => format!("{}: {}", name(code), text.replace(char::is_control, " ")),
    };
    CallFailure {
        retry_after: status
            .get_details_retry_info()
            .and_then(|info| info.retry_delay)
            .map(|delay| delay.min(RETRY_AFTER_MAX)),
        ..CallFailure::of(Ending::Said(said(code)), side_effects, message)
    }
}

/// A server that broke down in the middle of a call may have done it.
const fn said(code: Code) -> Said {
    match code {
        Code::Unavailable => Said::NotNow,
        Code::Aborted => Said::Conflict,
        Code::ResourceExhausted => Said::Throttled,
        Code::Internal | Code::Unknown | Code::DataLoss => Said::Broke,
        Code::DeadlineExceeded => Said::GaveUp,
        Code::Cancelled => Said::Cancelled,
        Code::PermissionDenied | Code::Unauthenticated => Said::TurnedAway,
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Said::Refused,
    }
}
