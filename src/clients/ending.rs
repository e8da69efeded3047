//! What the causes of a failed call say about whether the server has begun it.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, Error as TlsError};

use super::tls::refuses_certificate;

/// Whether the server has said that it has not begun the request: it refused the stream of HTTP/2, or was going away
/// before it.
#[must_use]
pub fn is_not_begun<'e>(mut causes: impl Iterator<Item = &'e (dyn Error + 'static)>) -> bool {
    causes.any(|cause| {
        cause.downcast_ref::<h2::Error>().is_some_and(|error| {
            let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
            let stopped = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
            error.is_remote() && (refused || stopped)
        })
    })
}

/// Whether there is no connection because one side does not accept the certificate of the other.
#[must_use]
pub fn is_untrusted<'e>(mut causes: impl Iterator<Item = &'e (dyn Error + 'static)>) -> bool {
    causes.any(|cause| tls_error(cause).is_some_and(refuses_certificate))
}

/// Whether the server has hung up for want of a client certificate.
///
/// In TLS 1.3 it says so behind the handshake of the client, who may have sent a request by then. The server reads none
/// before it has seen the certificate.
#[must_use]
pub fn wants_certificate<'e>(mut causes: impl Iterator<Item = &'e (dyn Error + 'static)>) -> bool {
    // HTTP/2 keeps the text of an error of its connection and nothing else.
    let text = TlsError::AlertReceived(AlertDescription::CertificateRequired).to_string();
    causes.any(|cause| {
        let carries_text = cause.is::<h2::Error>() || cause.is::<io::Error>();
        carries_text && cause.to_string() == text
    })
}

/// The error of TLS itself, which connectors wrap in errors of I/O.
fn tls_error<'e>(mut cause: &'e (dyn Error + 'static)) -> Option<&'e TlsError> {
    while let Some(io) = cause.downcast_ref::<io::Error>() {
        cause = io.get_ref()?;
    }
    cause.downcast_ref()
}
