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
use crate::files;

/// PEM files that protect the connections to one upstream. Relative paths are relative to the manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamTlsFiles {
    /// The authorities that are trusted for it. Default: the system's.
    pub ca_file: Option<PathBuf>,
    /// The client certificate, together with `key_file`. Default: none.
    pub cert_file: Option<PathBuf>,
    /// Its private key. Refused if every user of the machine may read it.
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
    /// The key and the path of the file that cannot be read or used, and why.
    pub fn read(&self) -> Result<UpstreamTls, String> {
        let identity = match (self.certificate()?, self.key()?) {
            (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
            _ => None,
        };
        let tls = UpstreamTls {
            ca: self.authorities()?,
            identity,
        };
        if let (Some(cert_file), Some(key_file), Some(_)) = (&self.cert_file, &self.key_file, &tls.identity) {
            client_config(Some(&tls)).map_err(|wrong| {
                let (certificate, key) = (cert_file.display(), key_file.display());
                format!("cert_file {certificate} with key_file {key}: {wrong}")
            })?;
        }
        Ok(tls)
    }

    /// What is wrong with the files, each sentence beginning with the key of its file.
    pub fn wrong(&self) -> Vec<String> {
        let alone = [
            self.authorities().err(),
            self.certificate().err(),
            self.key().err(),
        ];
        let alone: Vec<String> = alone.into_iter().flatten().collect();
        if alone.is_empty() {
            // Each can be used by itself: then they may not belong together.
            return self.read().err().into_iter().collect();
        }
        alone
    }

    fn authorities(&self) -> Result<Option<Vec<u8>>, String> {
        let path = self.ca_file.as_deref();
        checked("ca_file", path, files::read, |pem| authorities(pem).map(drop))
    }

    fn certificate(&self) -> Result<Option<Vec<u8>>, String> {
        let path = self.cert_file.as_deref();
        checked("cert_file", path, files::read, |pem| chain(pem).map(drop))
    }

    fn key(&self) -> Result<Option<Vec<u8>>, String> {
        let path = self.key_file.as_deref();
        checked("key_file", path, files::read_private, |pem| {
            private_key(pem).map(drop)
        })
    }
}

/// Reads a file that holds what it is named for.
fn checked(
    key: &str,
    path: Option<&Path>,
    read: impl Fn(&Path) -> Result<Vec<u8>, String>,
    check: impl Fn(&[u8]) -> Result<(), String>,
) -> Result<Option<Vec<u8>>, String> {
    let Some(path) = path else {
        return Ok(None);
    };
    let pem = read(path).map_err(|wrong| named(key, path, &wrong))?;
    check(&pem).map_err(|wrong| named(key, path, &wrong))?;
    Ok(Some(pem))
}

/// What is wrong with the file at a path, which a key names.
pub fn named(key: &str, path: &Path, wrong: &str) -> String {
    format!("{key} {}: {wrong}", path.display())
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
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::clients::testing::Authority;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    }

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
            set_mode(&path, 0o600);
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
        assert_eq!(refused(None, Some(certificate.clone()), Some(key.clone())), "");
        set_mode(&key, 0o644);
        let open = refused(None, Some(certificate), Some(key));
        assert!(
            open.starts_with("key_file ") && open.contains("mode 644"),
            "{open}"
        );
    }

    #[test]
    fn every_file_that_cannot_be_used_is_told_and_pairs_once_each_can() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| Some(folder.path().join(name));
        let mut files = UpstreamTlsFiles {
            ca_file: path("ca.pem"),
            cert_file: path("cert.pem"),
            key_file: path("key.pem"),
        };
        let keys = |files: &UpstreamTlsFiles| -> Vec<String> {
            let sentences = files.wrong().into_iter();
            sentences
                .map(|told| told.split(' ').next().unwrap_or_default().to_owned())
                .collect()
        };
        assert_eq!(keys(&files), ["ca_file", "cert_file", "key_file"]);
        let authority = Authority::new();
        let (one, other) = (authority.certify("one"), authority.certify("other"));
        for (name, bytes) in [
            ("ca.pem", authority.pem()),
            ("cert.pem", one.certificate),
            ("key.pem", other.key),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("written");
            set_mode(&path, 0o600);
        }
        let told = files.wrong();
        assert!(told.len() == 1 && told[0].contains("KeyMismatch"), "{told:?}");
        files.cert_file = None;
        files.key_file = None;
        assert_eq!(files.wrong(), [""; 0]);
    }
}
