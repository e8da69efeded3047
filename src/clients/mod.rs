//! What clients of other systems have in common, whoever they are called by: certificates, gRPC channels that use them, and
//! how a failure is told.

#[cfg(any(feature = "effect-http", feature = "grpc"))]
pub mod ending;
#[cfg(feature = "grpc")]
pub mod grpc;
#[cfg(test)]
pub(crate) mod testing;
pub mod tls;

pub use tls::{Identity, UpstreamTls, UpstreamTlsFiles};

use std::error::Error;
use std::fmt::Write as _;

/// `what` and the causes of an error. Not the error itself, which may tell the URL, and that may hold credentials.
#[must_use]
pub fn told(what: &str, error: &dyn Error) -> String {
    let mut text = what.to_owned();
    let mut source = error.source();
    while let Some(cause) = source {
        write!(text, ": {cause}").expect("writing to a string");
        source = cause.source();
    }
    text
}
