//! What proves an upstream, and what proves this runner to it.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde::{Deserialize, Serialize};

use super::told;

/// PEM files that protect the connections to one upstream. Relative paths are relative to the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The path of the file that cannot be read or used, and why.
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
        let tls = UpstreamTls {
            ca: self.ca_file.as_ref().map(read).transpose()?,
            identity,
        };
        self.usable(&tls)?;
        Ok(tls)
    }

    /// Whether the files hold what they are named for.
    fn usable(&self, tls: &UpstreamTls) -> Result<(), String> {
        let named = |path: &PathBuf, reason: String| format!("{}: {reason}", path.display());
        if let (Some(path), Some(ca)) = (&self.ca_file, &tls.ca) {
            authorities(ca).map_err(|reason| named(path, reason))?;
        }
        if let (Some(cert_file), Some(key_file), Some(own)) = (&self.cert_file, &self.key_file, &tls.identity)
        {
            chain(&own.certificate).map_err(|reason| named(cert_file, reason))?;
            private_key(&own.key).map_err(|reason| named(key_file, reason))?;
            client_config(Some(tls))
                .map_err(|reason| format!("{} with {}: {reason}", cert_file.display(), key_file.display()))?;
        }
        Ok(())
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
    let failed = |error: &dyn Error| unusable(&told(&error.to_string(), error));
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?;
    let builder = match tls.and_then(|tls| tls.ca.as_ref()) {
        Some(ca) => builder.with_root_certificates(authorities(ca).map_err(|reason| unusable(&reason))?),
        None => builder.with_platform_verifier().map_err(|error| failed(&error))?,
    };
    let mut config = match tls.and_then(|tls| tls.identity.as_ref()) {
        Some(identity) => {
            let chain = chain(&identity.certificate).map_err(|reason| unusable(&reason))?;
            let key = private_key(&identity.key).map_err(|reason| unusable(&reason))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| failed(&error))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn unusable(reason: &str) -> String {
    format!("TLS cannot be set up: {reason}")
}

/// The certificates of the authorities that are trusted.
///
/// # Errors
/// A sentence where there is none.
pub fn authorities(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem).map_err(|error| error.to_string())? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("the authorities hold no certificate in PEM".to_owned());
    }
    Ok(roots)
}

/// A certificate, and those between it and its authority.
///
/// # Errors
/// A sentence where there is none.
pub fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain = certificates(pem).map_err(|error| error.to_string())?;
    if chain.is_empty() {
        return Err("there is no certificate in PEM".to_owned());
    }
    Ok(chain)
}

/// A private key.
///
/// # Errors
/// A sentence where there is none.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("there is no private key in PEM: {error}"))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}

/// Whether one side does not accept the certificate of the other.
#[must_use]
pub fn refuses_certificate(error: &rustls::Error) -> bool {
    use rustls::AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => true,
        rustls::Error::AlertReceived(alert) => matches!(
            alert,
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::CertificateRequired
        ),
        _ => false,
    }
}

/// Whether an error says that one side does not accept the certificate of the other, which another attempt does not change.
#[must_use]
pub fn is_untrusted(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref().is_some_and(refuses_certificate) {
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
    use crate::clients::testing::Authority;

    #[test]
    fn authorities_without_a_certificate_are_refused() {
        let tls = UpstreamTls {
            ca: Some(b"no certificate".to_vec()),
            identity: None,
        };
        let refused = client_config(Some(&tls)).expect_err("every server would be refused");
        assert!(refused.contains("hold no certificate"), "{refused}");
    }

    #[test]
    fn a_file_that_is_not_what_it_should_be_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::new();
        let (one, other) = (authority.certify("one"), authority.certify("other"));
        let place = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            path
        };
        let (certificate, key) = (place("cert.pem", &one.certificate), place("key.pem", &one.key));
        let other = place("other.pem", &other.key);
        let refused = |ca_file, cert_file, key_file| {
            let files = UpstreamTlsFiles {
                ca_file,
                cert_file,
                key_file,
            };
            files.read().err().unwrap_or_default()
        };
        for (reason, parts) in [
            (
                refused(Some(key.clone()), None, None),
                ["key.pem: ", "no certificate"],
            ),
            (
                refused(None, Some(key.clone()), Some(key.clone())),
                ["key.pem: ", "no certificate"],
            ),
            (
                refused(None, Some(certificate.clone()), Some(certificate.clone())),
                ["cert.pem: ", "no private key"],
            ),
            (
                refused(None, Some(certificate.clone()), Some(other)),
                ["cert.pem with ", "KeyMismatch"],
            ),
        ] {
            assert!(
                parts.iter().all(|part| reason.contains(part)),
                "{reason:?} lacks one of {parts:?}"
            );
        }
        assert_eq!(refused(None, Some(certificate), Some(key)), "");
    }
}
