//! HTTP clients that use certificates of their own.

use reqwest::{Certificate, ClientBuilder};

use super::{UpstreamTls, told};

/// Trusts the authorities of the upstream in place of the system's, and proves the runner to it.
///
/// # Errors
/// A sentence where something in PEM is not what it should be.
pub fn protected(builder: ClientBuilder, tls: Option<&UpstreamTls>) -> Result<ClientBuilder, String> {
    let failed = |error: reqwest::Error| told("TLS cannot be set up", &error);
    let Some(tls) = tls else { return Ok(builder) };
    let mut builder = builder;
    if let Some(ca) = &tls.ca {
        builder = builder.tls_certs_only(Certificate::from_pem_bundle(ca).map_err(failed)?);
    }
    if let Some(identity) = &tls.identity {
        let pem = [&identity.certificate[..], b"\n", &identity.key[..]].concat();
        builder = builder.identity(reqwest::Identity::from_pem(&pem).map_err(failed)?);
    }
    Ok(builder)
}
