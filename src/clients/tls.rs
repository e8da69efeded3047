//! What proves an upstream, and what proves this runner to it.

use std::path::{Path, PathBuf};

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
