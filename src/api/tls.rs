//! TLS of the API: what new connections are served with, and who is at their other end.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use serde::{Deserialize, Serialize};

use super::files::Files;
use crate::clients::tls::{authorities, chain, named, private_key};
use crate::files;
use crate::ports::clock::Clock;

/// PEM files of the API's certificate. Relative paths are relative to the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// The certificate, followed by those between it and its authority.
    pub certificate_file: PathBuf,
    /// Its private key. Refused if every user of the machine may read it.
    pub key_file: PathBuf,
    /// The authorities of clients' certificates. Default: no client is asked for one.
    #[serde(default)]
    pub client_ca_file: Option<PathBuf>,
    /// Whether a client needs a certificate: `required` (default), or `optional`, where a token does instead.
    #[serde(default)]
    pub client_certificates: ClientCertificates,
}

/// Whether a client needs a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// Without one there is no connection.
    #[default]
    Required,
    /// Without one a request needs a token.
    Optional,
}

impl TlsSettings {
    /// Makes relative paths those of files below `base`.
    pub fn resolve(&mut self, base: &Path) {
        let paths = [&mut self.certificate_file, &mut self.key_file];
        for path in paths.into_iter().chain(self.client_ca_file.as_mut()) {
            if path.is_relative() {
                *path = base.join(&*path);
            }
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        let paths = [
            Some(&self.certificate_file),
            Some(&self.key_file),
            self.client_ca_file.as_ref(),
        ];
        paths.into_iter().flatten().cloned().collect()
    }

    /// What is wrong with the files, each sentence beginning with the key of its file.
    pub fn wrong(&self) -> Vec<String> {
        let alone = [
            self.certificate().err(),
            self.key().err(),
            self.client_authorities().err(),
        ];
        let alone: Vec<String> = alone.into_iter().flatten().collect();
        if alone.is_empty() {
            // Each can be used by itself: then they may not belong together.
            return self.read().err().into_iter().collect();
        }
        alone
    }

    fn certificate(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let path = &self.certificate_file;
        let read = files::read(path).and_then(|pem| chain(&pem));
        read.map_err(|wrong| named("certificate_file", path, &wrong))
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        let path = &self.key_file;
        let read = files::read_private(path).and_then(|pem| private_key(&pem));
        read.map_err(|wrong| named("key_file", path, &wrong))
    }

    fn client_authorities(&self) -> Result<Option<(&Path, RootCertStore)>, String> {
        let Some(path) = self.client_ca_file.as_deref() else {
            return Ok(None);
        };
        let read = files::read(path).and_then(|pem| authorities(&pem));
        let trusted = read.map_err(|wrong| named("client_ca_file", path, &wrong))?;
        Ok(Some((path, trusted)))
    }

    fn read(&self) -> Result<Arc<ServerConfig>, String> {
        let (chain, secret) = (self.certificate()?, self.key()?);
        let provider = CryptoProvider::get_default().cloned();
        let provider = provider.unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match self.client_authorities()? {
            None => builder.with_no_client_auth(),
            Some((path, trusted)) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), provider);
                let verifier = match self.client_certificates {
                    ClientCertificates::Required => verifier,
                    ClientCertificates::Optional => verifier.allow_unauthenticated(),
                };
                let verifier = verifier
                    .build()
                    .map_err(|error| named("client_ca_file", path, &error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, secret).map_err(|error| {
            let (certificate, key) = (self.certificate_file.display(), self.key_file.display());
            format!("certificate_file {certificate} with key_file {key}: {error}")
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A resumed session has the certificate of its first handshake, which may have ended since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// The certificate in force.
pub struct Tls {
    files: Files<Arc<ServerConfig>>,
    clock: Arc<dyn Clock>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// The key and the path of the file that cannot be used, and why.
    pub fn open(settings: &TlsSettings, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let of = settings.clone();
        let files = Files::open("http.tls", settings.paths(), move || of.read())?;
        Ok(Self { files, clock })
    }

    /// What a new connection is served with.
    pub fn config(&self) -> Arc<ServerConfig> {
        let current = self.files.current(self.clock.monotonic());
        Arc::clone(&current)
    }
}

/// The names in the certificate of a client, which one of the authorities has signed: `dns:` with a name in lower case, or
/// `uri:` with a URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate(Arc<[String]>);

impl ClientCertificate {
    /// That of a connection, if its client has shown one.
    pub fn of(connection: &ServerConnection) -> Option<Self> {
        Self::read(connection.peer_certificates()?.first()?)
    }

    fn read(certificate: &CertificateDer<'_>) -> Option<Self> {
        let read = webpki::EndEntityCert::try_from(certificate).ok()?;
        let dns = read
            .valid_dns_names()
            .map(|name| format!("dns:{}", name.to_ascii_lowercase()));
        let uris = read.valid_uri_names().map(|uri| format!("uri:{uri}"));
        Some(Self::of_names(dns.chain(uris)))
    }

    /// One with these names.
    pub fn of_names(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().collect())
    }

    /// Whether the name is one of its names.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|own| own == name)
    }
}
