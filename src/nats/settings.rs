//! How to reach NATS: addresses, credentials, TLS and timing.
//!
//! Secrets have a `*_file` twin, are read whenever a connection is made, and never show in `Debug` or in a
//! serialised form.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_nats::{ConnectOptions, ServerAddr};
use serde::{Deserialize, Serialize};

use crate::clients::UpstreamTlsFiles;
use crate::kernel::duration::Millis;

use super::batch::WORTH_A_BATCH;
use super::context::Context;
use super::error::ConnectError;
use super::identity::{Identity, Source};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Servers of one cluster, `nats://host:port` or `tls://host:port`, without credentials in them.
    /// Default: `nats://127.0.0.1:4222`.
    pub urls: Vec<ServerUrl>,
    /// Context of the `nats` command: servers, identity and TLS. Default: none.
    pub context: Option<String>,
    /// User name, together with `password` or `password_file`. Default: none.
    pub user: Option<String>,
    /// Secrets of themselves come from the environment only.
    pub password: Option<Secret>,
    pub password_file: Option<PathBuf>,
    /// Bearer token. Default: none.
    pub token: Option<Secret>,
    pub token_file: Option<PathBuf>,
    /// Seed of an nkey, `SU...`. Default: none.
    pub nkey_seed: Option<Secret>,
    pub nkey_seed_file: Option<PathBuf>,
    /// Credentials file with JWT and seed, as `nsc` writes it. Default: none.
    pub credentials_file: Option<PathBuf>,
    /// PEM file with the authorities that sign the servers' certificates. Default: the system's.
    pub tls_ca_file: Option<PathBuf>,
    /// PEM file of the client certificate, together with `tls_key_file`. Default: none.
    pub tls_cert_file: Option<PathBuf>,
    pub tls_key_file: Option<PathBuf>,
    /// Refuse connections without TLS. Default: false.
    pub tls_required: bool,
    /// Name of the connection as operators see it on the server. Default: `saga-runner`.
    pub name: String,
    /// How long to wait for an answer of the broker. Default: 5s.
    pub request_timeout: Millis,
    /// How long one attempt to connect may take. Default: 5s.
    pub connect_timeout: Millis,
    /// How often a quiet connection is probed; it is given up after two probes without an answer.
    /// Default: 5s.
    pub ping_interval: Millis,
    /// How often the broker shows life to a waiting consumer; two that stay out break it. Default: 5s.
    pub heartbeat: Millis,
    /// Messages published and not yet acknowledged by the broker; further ones wait. Default: 4096.
    pub publish_in_flight_max: usize,
    /// Messages for one stream that are stored by one atomic batch where so many wait, 8 to 1,000; 1: each by itself.
    /// For servers with `sync_interval: always`. Default: 1.
    pub publish_batch_max: usize,
}

/// Why one of two files is of no use.
const HALF_A_CERTIFICATE: &str = "tls_cert_file and tls_key_file belong together; set both or none";
/// What a server takes unless its operator lowers or raises `max_batch_size`.
const BATCH_MAX: usize = 1_000;

impl Default for Settings {
    fn default() -> Self {
        Self {
            urls: vec![ServerUrl("nats://127.0.0.1:4222".to_owned())],
            context: None,
            user: None,
            password: None,
            password_file: None,
            token: None,
            token_file: None,
            nkey_seed: None,
            nkey_seed_file: None,
            credentials_file: None,
            tls_ca_file: None,
            tls_cert_file: None,
            tls_key_file: None,
            tls_required: false,
            name: "saga-runner".to_owned(),
            request_timeout: Millis::seconds(5),
            connect_timeout: Millis::seconds(5),
            ping_interval: Millis::seconds(5),
            heartbeat: Millis::seconds(5),
            publish_in_flight_max: 4_096,
            publish_batch_max: 1,
        }
    }
}

impl Settings {
    /// Makes relative paths those of files below `base`.
    pub fn resolve(&mut self, base: &Path) {
        let paths = [
            &mut self.password_file,
            &mut self.token_file,
            &mut self.nkey_seed_file,
            &mut self.credentials_file,
            &mut self.tls_ca_file,
            &mut self.tls_cert_file,
            &mut self.tls_key_file,
        ];
        for path in paths.into_iter().flatten().filter(|path| path.is_relative()) {
            *path = base.join(&*path);
        }
    }

    /// Reads everything that a connection needs, without one, and tells what no server could change: settings that contradict each
    /// other, files that cannot be used. All are [`ConnectError::Settings`].
    pub fn wrong(&self) -> Vec<ConnectError> {
        let read = self.with_context();
        let mut found: Vec<ConnectError> = self.check_numbers().err().into_iter().collect();
        match read {
            Err(error) => found.push(error),
            Ok((settings, identity, _)) => {
                found.extend(self.addresses().err());
                found.extend(identity.prove(b"").err());
                found.extend(settings.wrong_certificates());
            }
        }
        found
    }

    /// The part of [`Self::wrong`] that reads no file, so no context either.
    pub fn wrong_without_files(&self) -> Vec<ConnectError> {
        let certificates = self.certificates().check();
        let addresses = match self.context {
            None => self.addresses().map(drop),
            Some(_) => Ok(()),
        };
        let outcomes = [
            self.check_numbers(),
            certificates.map_err(|_| ConnectError::settings(HALF_A_CERTIFICATE)),
            self.identity().map(drop),
            addresses,
        ];
        let mut found: Vec<ConnectError> = outcomes.into_iter().filter_map(Result::err).collect();
        // Addresses are not read without an identity.
        found.dedup();
        found
    }

    /// The files of certificates, without those of a context.
    fn certificates(&self) -> UpstreamTlsFiles {
        UpstreamTlsFiles {
            ca_file: self.tls_ca_file.clone(),
            cert_file: self.tls_cert_file.clone(),
            key_file: self.tls_key_file.clone(),
        }
    }

    /// What is wrong with the files of certificates.
    fn wrong_certificates(&self) -> Vec<ConnectError> {
        let files = self.certificates();
        if files.check().is_err() {
            return vec![ConnectError::settings(HALF_A_CERTIFICATE)];
        }
        let wrong = files.wrong().into_iter();
        wrong
            .map(|wrong| ConnectError::settings(format!("tls_{wrong}")))
            .collect()
    }

    /// The settings with what the context says that they name: it says who this process is, and the rest where they do not.
    fn with_context(&self) -> Result<(Self, Identity, Context), ConnectError> {
        let mut settings = self.clone();
        let own = self.identity()?;
        let Some(name) = &self.context else {
            return Ok((settings, own, Context::default()));
        };
        let context = Context::named(name)?;
        let identity = match (own, context.identity.clone()) {
            (own, Identity::None) => own,
            (Identity::None, theirs) => theirs,
            _ => {
                return Err(ConnectError::settings(format!(
                    "context {name} says who the runner is, and so do user, token, nkey_seed or credentials_file; keep one"
                )));
            }
        };
        if settings.urls == Self::default().urls && !context.urls.is_empty() {
            settings.urls = context.urls.iter().cloned().map(ServerUrl).collect();
        }
        let other = context.clone();
        settings.tls_ca_file = settings.tls_ca_file.or(other.ca);
        if settings.tls_cert_file.is_none() && settings.tls_key_file.is_none() {
            (settings.tls_cert_file, settings.tls_key_file) = (other.cert, other.key);
        }
        Ok((settings, identity, context))
    }

    /// Addresses as the client wants them.
    pub(super) fn addresses(&self) -> Result<Vec<ServerAddr>, ConnectError> {
        let (settings, _, _) = self.with_context()?;
        if settings.urls.is_empty() {
            return Err(ConnectError::settings("urls is empty; name at least one server"));
        }
        settings
            .urls
            .iter()
            .map(|url| {
                url.0
                    .parse()
                    .map_err(|error| ConnectError::settings(format!("urls: {:?}: {error}", url.0)))
            })
            .collect()
    }

    /// The servers for people: no credentials are in them.
    pub(super) fn shown_servers(&self) -> Result<String, ConnectError> {
        let (settings, _, _) = self.with_context()?;
        let urls: Vec<String> = settings.urls.into_iter().map(String::from).collect();
        Ok(urls.join(", "))
    }

    /// Connection options. What is secret is read whenever a connection is made, and once here.
    pub(super) fn options(&self) -> Result<ConnectOptions, ConnectError> {
        self.check_numbers()?;
        let (settings, identity, context) = self.with_context()?;
        // Told now rather than by a connection that is never made.
        identity.prove(b"")?;
        let identity = Arc::new(identity);
        let prove = move |nonce: Vec<u8>| {
            let identity = Arc::clone(&identity);
            async move { identity.prove_to_client(&nonce) }
        };
        let mut options = ConnectOptions::with_auth_callback(prove)
            .name(&self.name)
            .request_timeout(Some(self.request_timeout.duration()))
            .connection_timeout(self.connect_timeout.duration())
            .ping_interval(self.ping_interval.duration())
            .require_tls(self.tls_required);
        if context.tls_first {
            options = options.tls_first();
        }
        if let Some(prefix) = context.inbox_prefix {
            options = options.custom_inbox_prefix(prefix);
        }
        settings.encrypt(options)
    }

    fn check_numbers(&self) -> Result<(), ConnectError> {
        let positive = |name: &str, value: u64| {
            if value == 0 {
                return Err(ConnectError::settings(format!(
                    "{name} must be positive, found 0"
                )));
            }
            Ok(())
        };
        positive("request_timeout", self.request_timeout.0)?;
        positive("connect_timeout", self.connect_timeout.0)?;
        positive("ping_interval", self.ping_interval.0)?;
        positive("heartbeat", self.heartbeat.0)?;
        positive("publish_in_flight_max", self.publish_in_flight_max as u64)?;
        let batch = self.publish_batch_max;
        if batch != 1 && !(WORTH_A_BATCH..=BATCH_MAX).contains(&batch) {
            return Err(ConnectError::settings(format!(
                "publish_batch_max must be 1 (no batches) or {WORTH_A_BATCH} to {BATCH_MAX}, found {batch}"
            )));
        }
        Ok(())
    }

    fn encrypt(&self, mut options: ConnectOptions) -> Result<ConnectOptions, ConnectError> {
        // Told now rather than by a connection that is never made.
        if let Some(wrong) = self.wrong_certificates().into_iter().next() {
            return Err(wrong);
        }
        if let Some(path) = &self.tls_ca_file {
            options = options.add_root_certificates(path.clone());
        }
        if let (Some(cert), Some(key)) = (&self.tls_cert_file, &self.tls_key_file) {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        Ok(options)
    }

    /// Who this process is for the server.
    fn identity(&self) -> Result<Identity, ConnectError> {
        let password = Source::of("password", self.password.as_ref(), self.password_file.as_deref())?;
        let token = Source::of("token", self.token.as_ref(), self.token_file.as_deref())?;
        let seed = Source::of(
            "nkey_seed",
            self.nkey_seed.as_ref(),
            self.nkey_seed_file.as_deref(),
        )?;
        let mut ways = Vec::new();
        match (self.user.clone(), password) {
            (Some(name), Some(password)) => ways.push(Identity::User { name, password }),
            (None, None) => {}
            _ => {
                return Err(ConnectError::settings(
                    "user and password belong together; set both or none",
                ));
            }
        }
        ways.extend(token.map(Identity::Token));
        ways.extend(seed.map(Identity::Nkey));
        ways.extend(self.credentials_file.clone().map(Identity::Credentials));
        match ways.len() {
            0 | 1 => Ok(ways.pop().unwrap_or_default()),
            _ => Err(ConnectError::settings(
                "more than one of user, token, nkey_seed and credentials_file is set; keep one",
            )),
        }
    }
}

/// Address of a server. Holds no credentials, hence may be shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerUrl(String);

impl TryFrom<String> for ServerUrl {
    type Error = String;

    fn try_from(url: String) -> Result<Self, Self::Error> {
        if url.contains('@') {
            return Err(
                "a server address must not hold credentials; use user and password_file, token_file, \
                 nkey_seed_file or credentials_file"
                    .to_owned(),
            );
        }
        Ok(Self(url))
    }
}

impl From<ServerUrl> for String {
    fn from(url: ServerUrl) -> Self {
        url.0
    }
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

const REDACTED: &str = "[redacted]";

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Settings, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn secrets_show_neither_in_debug_nor_serialised() {
        let settings =
            parse(r#"{"user":"u","password":"hunter2","token":"t0ken","nkey_seed":"SUx"}"#).unwrap();
        let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
        for secret in ["hunter2", "t0ken", "SUx"] {
            assert!(!shown.contains(secret), "{secret} in {shown}");
        }
    }

    #[test]
    fn unknown_fields_and_credentials_in_addresses_are_refused() {
        assert!(parse(r#"{"url":"x"}"#).is_err());
        let error = parse(r#"{"urls":["nats://u:hunter2@h:4222"]}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("password_file"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn contradicting_settings_are_refused_by_name() {
        for (json, names) in [
            (r#"{"user":"u"}"#, "password"),
            (r#"{"token":"a","nkey_seed":"b"}"#, "more than one"),
            (r#"{"token":"a","token_file":"/b"}"#, "token_file"),
            (r#"{"tls_cert_file":"/dev/null"}"#, "tls_key_file"),
            (r#"{"credentials_file":"/nowhere/at/all"}"#, "/nowhere/at/all"),
            (r#"{"heartbeat":"0s"}"#, "heartbeat"),
            (r#"{"publish_batch_max":0}"#, "publish_batch_max"),
            (r#"{"publish_batch_max":7}"#, "8 to 1000"),
            (r#"{"publish_batch_max":1001}"#, "8 to 1000"),
        ] {
            let error = parse(json).unwrap().options().unwrap_err().to_string();
            assert!(error.contains(names), "{json}: {error}");
        }
        let empty = parse(r#"{"urls":[]}"#).unwrap();
        assert!(empty.addresses().is_err());
    }
}
