//! What proves an upstream, and what proves this runner to it.

/// The TLS side of one upstream, all parts in PEM.
#[derive(Clone, Default)]
pub struct UpstreamTls {
    /// Certificates of the authorities that are trusted for it, in place of those of the system.
    pub ca: Option<Vec<u8>>,
    pub identity: Option<Identity>,
}

/// A client's certificate.
#[derive(Clone)]
pub struct Identity {
    /// The certificate, and those between it and its authority.
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}
