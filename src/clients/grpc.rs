//! gRPC channels, and what a status says about a call that got no answer.

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, ConnectError, Status};

use super::{UpstreamTls, ending, told};

/// Connections that say nothing are asked for a heartbeat by TCP.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);
/// A handshake of TLS may take as long again as the connection below it.
const HANDSHAKE_FACTOR: u32 = 2;
/// How a message begins with which the client refuses an answer that is too long. There is no other sign of it.
const TOO_LONG: &str = "Error, decoded message length too large";

/// Any error of a look-up of names.
pub type LookupError = Box<dyn Error + Send + Sync>;

/// A channel that connects when it is needed, to the addresses that `lookup` finds for the endpoint's host. Must be
/// called within a tokio runtime.
///
/// # Errors
/// A sentence where the certificates cannot be used.
pub fn channel<L, F>(
    endpoint: Endpoint,
    connect_timeout: Duration,
    tls: Option<&UpstreamTls>,
    lookup: L,
) -> Result<Channel, String>
where
    L: Fn(String) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Vec<SocketAddr>, LookupError>> + Send + 'static,
{
    let mut endpoint = endpoint.connect_timeout(connect_timeout.saturating_mul(HANDSHAKE_FACTOR));
    if endpoint.uri().scheme_str() == Some("https") {
        endpoint = endpoint
            .tls_config(protection(tls))
            .map_err(|error| told("TLS cannot be set up", &error))?;
    }
    let resolver = tower::service_fn(move |name: Name| {
        let found = lookup(name.as_str().to_owned());
        async move { found.await.map(IntoIterator::into_iter) }
    });
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.enforce_http(false);
    connector.set_nodelay(true);
    // The error of the endpoint's own limit could not be told from one behind the connection.
    connector.set_connect_timeout(Some(connect_timeout));
    connector.set_keepalive(Some(TCP_KEEPALIVE));
    Ok(endpoint.connect_with_connector_lazy(connector))
}

/// Trusts the authorities of the upstream in place of the system's, and proves the runner to it.
fn protection(tls: Option<&UpstreamTls>) -> ClientTlsConfig {
    let config = ClientTlsConfig::new();
    let config = match tls.and_then(|tls| tls.ca.as_ref()) {
        Some(ca) => config.ca_certificate(Certificate::from_pem(ca)),
        None => config.with_native_roots(),
    };
    match tls.and_then(|tls| tls.identity.as_ref()) {
        Some(identity) => config.identity(Identity::from_pem(&identity.certificate, &identity.key)),
        None => config,
    }
}

/// Names of the codes as the protocol writes them.
#[must_use]
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

/// Whether an answer came that is longer than it may be.
#[must_use]
pub fn is_too_long(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().starts_with(TOO_LONG)
}

/// What this side of the connection found wrong, from the outside in; empty where the status is the server's own.
#[must_use]
pub fn causes(status: &Status) -> Vec<&(dyn Error + 'static)> {
    let mut causes = Vec::new();
    let mut next = status.source();
    while let Some(cause) = next {
        causes.push(cause);
        next = cause.source();
    }
    causes
}

/// Whether there is no connection, so that nothing was sent.
#[must_use]
pub fn is_unconnected(causes: &[&(dyn Error + 'static)]) -> bool {
    causes.iter().any(|cause| cause.is::<ConnectError>())
}

/// Whether these causes prove that the server has begun nothing: there is no connection, or the server has said so.
#[must_use]
pub fn is_unsent(causes: &[&(dyn Error + 'static)]) -> bool {
    is_unconnected(causes)
        || ending::is_not_begun(causes.iter().copied())
        || ending::wants_certificate(causes.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_certificate_that_cannot_be_used_is_told_with_its_cause() {
        let identity = crate::clients::Identity {
            certificate: b"no certificate".to_vec(),
            key: b"no key".to_vec(),
        };
        let tls = UpstreamTls {
            ca: None,
            identity: Some(identity),
        };
        let endpoint = Endpoint::from_static("https://localhost");
        let nowhere = |_| async { Ok(Vec::new()) };
        let refused = channel(endpoint, Duration::from_secs(1), Some(&tls), nowhere)
            .expect_err("there is nothing to prove it with");
        let cause = refused.strip_prefix("TLS cannot be set up: ").unwrap_or_default();
        assert!(cause.len() > "transport error".len(), "{refused}");
    }
}
