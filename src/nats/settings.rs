//! How to reach NATS: addresses, credentials, TLS and timing.
//!
//! Secrets have a `*_file` twin, are read when the connection is made, and never show in `Debug` or in a
//! serialised form.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use async_nats::{ConnectOptions, ServerAddr};
use serde::{Deserialize, Serialize};

use crate::kernel::duration::Millis;

use super::batch::WORTH_A_BATCH;
use super::error::ConnectError;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Servers of one cluster, `nats://host:port` or `tls://host:port`, without credentials in them.
    /// Default: `nats://127.0.0.1:4222`.
    pub urls: Vec<ServerUrl>,
    /// User name, together with `password` or `password_file`. Default: none.
    pub user: Option<String>,
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

/// What a server takes unless its operator lowers or raises `max_batch_size`.
const BATCH_MAX: usize = 1_000;

impl Default for Settings {
    fn default() -> Self {
        Self {
            urls: vec![ServerUrl("nats://127.0.0.1:4222".to_owned())],
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
    /// Addresses as the client wants them.
    pub(super) fn addresses(&self) -> Result<Vec<ServerAddr>, ConnectError> {
        if self.urls.is_empty() {
            return Err(ConnectError::settings("urls is empty; name at least one server"));
        }
        self.urls
            .iter()
            .map(|url| {
                url.0
                    .parse()
                    .map_err(|error| ConnectError::settings(format!("urls: {:?}: {error}", url.0)))
            })
            .collect()
    }

    /// Connection options with all that is secret read in.
    pub(super) async fn options(&self) -> Result<ConnectOptions, ConnectError> {
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
        let options = ConnectOptions::new()
            .name(&self.name)
            .request_timeout(Some(self.request_timeout.duration()))
            .connection_timeout(self.connect_timeout.duration())
            .ping_interval(self.ping_interval.duration())
            .require_tls(self.tls_required);
        self.authenticate(self.encrypt(options)?).await
    }

    fn encrypt(&self, mut options: ConnectOptions) -> Result<ConnectOptions, ConnectError> {
        if let Some(path) = &self.tls_ca_file {
            readable("tls_ca_file", path)?;
            options = options.add_root_certificates(path.clone());
        }
        match (&self.tls_cert_file, &self.tls_key_file) {
            (Some(cert), Some(key)) => {
                readable("tls_cert_file", cert)?;
                read_private("tls_key_file", key)?;
                Ok(options.add_client_certificate(cert.clone(), key.clone()))
            }
            (None, None) => Ok(options),
            _ => Err(ConnectError::settings(
                "tls_cert_file and tls_key_file belong together; set both or none",
            )),
        }
    }

    async fn authenticate(&self, options: ConnectOptions) -> Result<ConnectOptions, ConnectError> {
        let password = secret("password", self.password.as_ref(), self.password_file.as_deref())?;
        let token = secret("token", self.token.as_ref(), self.token_file.as_deref())?;
        let seed = secret(
            "nkey_seed",
            self.nkey_seed.as_ref(),
            self.nkey_seed_file.as_deref(),
        )?;
        let ways = [
            self.user.is_some() || password.is_some(),
            token.is_some(),
            seed.is_some(),
            self.credentials_file.is_some(),
        ];
        if ways.iter().filter(|used| **used).count() > 1 {
            return Err(ConnectError::settings(
                "more than one of user, token, nkey_seed and credentials_file is set; keep one",
            ));
        }
        let options = match (&self.user, password) {
            (Some(user), Some(password)) => options.user_and_password(user.clone(), password),
            (None, None) => options,
            _ => {
                return Err(ConnectError::settings(
                    "user and password belong together; set both or none",
                ));
            }
        };
        let options = match token {
            Some(token) => options.token(token),
            None => options,
        };
        let options = match seed {
            Some(seed) => options.nkey(seed),
            None => options,
        };
        match &self.credentials_file {
            Some(path) => {
                read_private("credentials_file", path)?;
                options.credentials_file(path).await.map_err(|error| {
                    ConnectError::settings(format!("credentials_file: {}: {error}", path.display()))
                })
            }
            None => Ok(options),
        }
    }
}

fn secret(name: &str, inline: Option<&Secret>, file: Option<&Path>) -> Result<Option<String>, ConnectError> {
    match (inline, file) {
        (Some(_), Some(_)) => Err(ConnectError::settings(format!(
            "{name} and {name}_file are both set; keep one"
        ))),
        (Some(secret), None) => Ok(Some(secret.0.clone())),
        (None, Some(path)) => read_private(&format!("{name}_file"), path).map(Some),
        (None, None) => Ok(None),
    }
}

fn readable(name: &str, path: &Path) -> Result<(), ConnectError> {
    fs::File::open(path)
        .map(drop)
        .map_err(|error| ConnectError::settings(format!("{name}: {}: {error}", path.display())))
}

/// Reads a secret that must not be open to everybody on the machine.
fn read_private(name: &str, path: &Path) -> Result<String, ConnectError> {
    let wrong = |what: String| ConnectError::settings(format!("{name}: {}: {what}", path.display()));
    let mode = fs::metadata(path)
        .map_err(|error| wrong(error.to_string()))?
        .permissions()
        .mode();
    if mode & 0o004 != 0 {
        return Err(wrong(format!(
            "readable by everybody (mode {:03o}); fix it with chmod o-r",
            mode & 0o777
        )));
    }
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(wrong("empty".to_owned()));
    }
    Ok(text.to_owned())
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

    fn file(mode: u32, text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
        file
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

    #[tokio::test]
    async fn a_secret_comes_from_its_file_without_the_line_end() {
        let file = file(0o600, "hunter2\n");
        assert_eq!(
            secret("password", None, Some(file.path())).unwrap().as_deref(),
            Some("hunter2")
        );
    }

    #[test]
    fn a_secret_file_open_to_everybody_is_refused() {
        let file = file(0o644, "hunter2");
        let error = secret("token", None, Some(file.path())).unwrap_err().to_string();
        assert!(error.contains("mode 644"), "{error}");
        assert!(error.contains("SR0302"), "{error}");
    }

    #[tokio::test]
    async fn contradicting_settings_are_refused_by_name() {
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
            let error = parse(json).unwrap().options().await.unwrap_err().to_string();
            assert!(error.contains(names), "{json}: {error}");
        }
        let empty = parse(r#"{"urls":[]}"#).unwrap();
        assert!(empty.addresses().is_err());
    }
}
