//! What proves an upstream, and what proves this runner to it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde::Deserialize;

/// PEM files that protect the connections to one upstream. Relative paths are relative to the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamTlsFiles {
    /// The authorities that are trusted for it. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// The client certificate, together with `key_file`. Default: none.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
}

impl UpstreamTlsFiles {
    /// Makes relative paths those of files below `base`.
    pub fn resolve(&mut self, base: &Path) {
        let paths = [&mut self.ca_file, &mut self.cert_file, &mut self.key_file];
        for path in paths.into_iter().flatten().filter(|path| path.is_relative()) {
            *path = base.join(&*path);
        }
    }

    /// Whether the files make sense together.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.cert_file.is_some() == self.key_file.is_some() {
            Ok(())
        } else {
            Err("cert_file and key_file belong together; set both or none".to_owned())
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    /// The path of the file that cannot be read, and why.
    pub fn read(&self) -> Result<UpstreamTls, String> {
        let read =
            |path: &PathBuf| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let identity = match (&self.cert_file, &self.key_file) {
            (Some(certificate), Some(key)) => Some(Identity {
                certificate: read(certificate)?,
                key: read(key)?,
            }),
            _ => None,
        };
        Ok(UpstreamTls {
            ca: self.ca_file.as_ref().map(read).transpose()?,
            identity,
        })
    }
}

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

/// How a client of HTTP protects its connections: it trusts the authorities of the upstream in place of the system's,
/// and proves the runner to it.
///
/// # Errors
/// A sentence where something in PEM is not what it should be.
pub fn client_config(tls: Option<&UpstreamTls>) -> Result<ClientConfig, String> {
    let failed = |error: &dyn Error| format!("TLS cannot be set up: {error}");
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?;
    let builder = match tls.and_then(|tls| tls.ca.as_ref()) {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(ca).map_err(|error| failed(&error))? {
                roots.add(certificate).map_err(|error| failed(&error))?;
            }
            if roots.is_empty() {
                return Err("TLS cannot be set up: the authorities hold no certificate in PEM".to_owned());
            }
            builder.with_root_certificates(roots)
        }
        None => builder.with_platform_verifier().map_err(|error| failed(&error))?,
    };
    let mut config = match tls.and_then(|tls| tls.identity.as_ref()) {
        Some(identity) => {
            let chain = certificates(&identity.certificate).map_err(|error| failed(&error))?;
            let key = PrivateKeyDer::from_pem_slice(&identity.key).map_err(|error| failed(&error))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| failed(&error))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}

/// Whether an error says that the other side has no certificate that is trusted, which another attempt does not change.
#[must_use]
pub fn is_untrusted(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
            return true;
        }
        // Such an error does not count what it holds among its causes.
        cause = match error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
        {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_without_a_certificate_are_refused() {
        let tls = UpstreamTls {
            ca: Some(b"no certificate".to_vec()),
            identity: None,
        };
        let refused = client_config(Some(&tls)).expect_err("every server would be refused");
        assert!(refused.contains("hold no certificate"), "{refused}");
    }
}
