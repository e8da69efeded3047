//! What clients of other systems have in common, whoever they are called by: addresses, certificates, gRPC channels that use them,
//! and how a failure is told.

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

use reqwest::Url;

/// A URL with a host; `None` for any other text.
#[must_use]
pub fn url_with_host(text: &str) -> Option<Url> {
    // The parser takes `https:///name` for `https://name`.
    let (_, rest) = text.split_once("://")?;
    let is_hosted = |url: &Url| url.host_str().is_some_and(|host| !host.is_empty());
    Url::parse(text)
        .ok()
        .filter(|url| !rest.starts_with('/') && is_hosted(url))
}

/// The same for HTTP alone.
#[must_use]
pub fn http_url(text: &str) -> Option<Url> {
    url_with_host(text).filter(|url| matches!(url.scheme(), "http" | "https"))
}

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
