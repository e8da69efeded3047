//! The manifest: what one runner is to do, read once at start.
//!
//! Precedence: default < file < environment < flag. Unknown keys are errors. Secrets are references to the
//! environment or to files, never values.

mod check;
pub mod effective;
mod jobs;
pub mod keys;
mod layers;
#[cfg(test)]
mod layers_tests;
mod limits;
pub mod manifest;
mod mistakes;
mod overrides;
mod ownership;
mod place;
mod refusal;
#[cfg(test)]
mod schema_tests;
pub mod secret;
mod shown;
mod sources;
mod telemetry;
pub mod upstreams;

pub use crate::logging::LogFormat;
pub use effective::Effective;
pub use jobs::{JOB_RATE_MAX, JOB_RATE_MIN, JobSettings};
pub use manifest::{BrokerKind, Dispatch, Manifest, Mode, StreamSettings, TenantList};
pub use overrides::Overrides;
pub use ownership::OwnershipSettings;
pub use refusal::Refusal;
pub use telemetry::{OtlpSettings, TelemetrySettings};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::open_to_everybody;
use crate::kernel::definition::Diagnostic;

/// Why a manifest cannot be used. The process exits with 78 (configuration) or 66 (no such file).
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}: cannot be read: {source} [SR0401]", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// What is wrong with the text, all of it; one at least.
    #[error("{}", findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Wrong {
        findings: Vec<Diagnostic>,
        /// What the findings are about, by the names that they have for it, without what is secret.
        texts: BTreeMap<String, Arc<str>>,
    },
    #[error("http.tokens_file {}: {wrong} [SR0413]", path.display())]
    Tokens { path: PathBuf, wrong: String },
    #[error("http.jwt.{wrong} [SR0417]")]
    Jwt { wrong: String },
    /// The sentence begins with the key of a file, below `http.tls`.
    #[error("http.tls.{wrong} [SR0415]")]
    Tls { wrong: String },
    /// The sentence begins with the key of a file, below `key`.
    #[error("{key}.{wrong} [SR0418]")]
    UpstreamTls { key: String, wrong: String },
    #[error("{key} {}: {wrong} [SR0416]", path.display())]
    OpenToEverybody {
        key: String,
        path: PathBuf,
        wrong: String,
    },
    /// Names of the secrets that cannot be used, each with what is wrong with it; one at least.
    #[error("{}", secrets.iter().map(|(name, wrong)| format!("secret {name}: {wrong} [SR0404]")).collect::<Vec<_>>().join("\n"))]
    Secrets { secrets: Vec<(String, String)> },
}

/// JSON Schema (draft-07) of a manifest, for editors.
pub const MANIFEST_SCHEMA: &str = include_str!("manifest.schema.json");

impl ConfigError {
    /// The code, which has a page under docs/errors/.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "SR0401",
            Self::Wrong { findings, .. } => findings.first().map_or("SR0402", |finding| finding.code),
            Self::Secrets { .. } => "SR0404",
            Self::Tokens { .. } => "SR0413",
            Self::Jwt { .. } => "SR0417",
            Self::Tls { .. } => "SR0415",
            Self::OpenToEverybody { .. } => "SR0416",
            Self::UpstreamTls { .. } => "SR0418",
        }
    }

    /// The error as what is refused of a manifest, where its sentence begins with the key that it is about.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        Refusal::sentence(self.code(), &self.to_string())
    }
}

/// Refuses a file of secrets, named by `key`, that every user of the machine may read or change.
///
/// # Errors
/// [`ConfigError::OpenToEverybody`].
pub fn check_private(key: &str, path: &Path) -> Result<(), ConfigError> {
    match open_to_everybody(path) {
        None => Ok(()),
        Some(wrong) => Err(ConfigError::OpenToEverybody {
            key: key.to_owned(),
            path: path.to_owned(),
            wrong,
        }),
    }
}

impl Manifest {
    /// Reads the manifest at `path` and lays `overrides` over it.
    ///
    /// # Errors
    /// [`ConfigError`], one line for each mistake, with the place in the file where there is one.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        Effective::load(path, overrides).map(|effective| effective.manifest)
    }

    /// Reads a manifest from `text`; relative paths in it are relative to the folder of `path`.
    ///
    /// # Errors
    /// As [`Manifest::load`].
    pub fn parse(text: &str, path: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        layers::read(text, path, overrides).map(|effective| effective.manifest)
    }
}

/// How YAML is read whose errors people see.
#[must_use]
pub fn yaml_options() -> serde_saphyr::Options {
    let mut options = serde_saphyr::Options::default();
    options.with_snippet = false;
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::ids::TenantId;

    fn parse(text: &str) -> Result<Manifest, ConfigError> {
        Manifest::parse(text, Path::new("config/test.yaml"), &Overrides::default())
    }

    const HEAD: &str = "apiVersion: saga-runner/v1\nkind: Manifest\ncluster: test\n";

    fn refusal(body: &str) -> String {
        parse(&format!("{HEAD}{body}"))
            .expect_err("must be refused")
            .to_string()
    }

    #[test]
    fn defaults_fill_what_is_not_said() {
        let manifest = parse(HEAD).expect("complete");
        assert_eq!(manifest.shards, 8);
        assert_eq!(manifest.mode, Mode::Combined);
        assert_eq!(manifest.drain_timeout.to_string(), "25s");
        assert_eq!(manifest.sagas, Path::new("config/../sagas"));
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "a table")]
    fn mistakes_are_told_with_their_place() {
        for (body, expected) in [
            ("shrads: 4\n", "config/test.yaml:4:1: unknown"),
            ("drain_timeout: fast\n", "config/test.yaml:4:16: "),
            (
                "shards: 0\n",
                "config/test.yaml:4:9: shards must be between 1 and 1024",
            ),
            (
                "relay:\n  gate_horizon: 0ms\n",
                "config/test.yaml:5:17: relay.gate_horizon must be at least relay.recheck_after, 1m, found 0ms",
            ),
            ("tenants: [Acme]\n", "tenant may hold only"),
            ("scheduled_tenants: [a]\n", "\"a\", which is not among tenants"),
            (
                "storage: {archive: {entry_bytes_max: 1}}\n",
                "storage.archive.entry_bytes_max must be between",
            ),
            (
                "storage: {keep_history_count: 999}\n",
                "storage.keep_history_count must be 0 or at least 1000",
            ),
            (
                "storage: {archive: {inputs_bytes_max: 100000000}}\n",
                "storage.archive.inputs_bytes_max must be at most",
            ),
            (
                "storage: {archive: {stream: WORKFLOW_EVENTS}}\n",
                "which another stream has",
            ),
            (
                "storage: {tenants: {a: {keep_ended: 1d}}}\n",
                "storage.tenants names \"a\", which is not among tenants",
            ),
            (
                "tenants: [b]\nstorage: {tenants: {a: {keep_ended_count: 1}}}\n",
                "storage.tenants names \"a\", which is not among tenants",
            ),
            (
                "tenants: [a, b]\nscheduled_tenants: [a, c]\n",
                "\"c\", which is not among tenants",
            ),
            (
                "upstream_tls: {bank: {ca_file: ca.pem}}\n",
                "\"bank\", which is not among upstreams",
            ),
            (
                "upstreams: {bank: \"https://b\"}\nupstream_tls: {bank: {key_file: k.pem}}\n",
                "cert_file and key_file belong together",
            ),
            ("gateway: {}\n", "url (HTTP), grpc or nats"),
            (
                "gateway: {url: \"http://a\", grpc: \"http://b\"}\n",
                "gateway has url and grpc",
            ),
            (
                "gateway: {grpc: \"b:50051\"}\n",
                "gateway.grpc \"b:50051\" is not",
            ),
            (
                "gateway: {grcp: \"http://b\"}\n",
                "config/test.yaml:4:11: unknown",
            ),
            (
                "gateway: {nats: \"gateway.x\"}\n",
                "gateway.nats needs broker.kind nats",
            ),
            (
                "broker: {kind: nats}\ngateway: {nats: \"gateway.{tenant}\"}\n",
                "has {tenant}, and the manifest has no tenants",
            ),
            (
                "broker: {kind: nats}\ngateway: {nats: \"tenant.x\"}\n",
                "belong to the runner",
            ),
            (
                "cluster: other\n",
                "config/test.yaml:4:1: key \"cluster\" is there twice",
            ),
            ("secrets: {pay: inline}\n", "config/test.yaml:4:"),
            (
                "secrets: {pay: {kv: {bucket: b, key: k}}}\nbroker: {kind: embedded}\n",
                "secrets.pay is in NATS KV, which needs broker.kind nats, found embedded",
            ),
            (
                "secrets: {pay: {kv: {bucket: a b, key: k}}}\nbroker: {kind: nats}\n",
                "secrets.pay: bucket \"a b\" may hold",
            ),
            (
                "secrets: {pay: {kv: {bucket: b, key: \"a.*\"}}}\nbroker: {kind: nats}\n",
                "secrets.pay: key \"a.*\" may hold",
            ),
            ("secrets: {pay: {kv: {bucket: b}}}\n", "config/test.yaml:4:"),
            (
                "callbacks: {key: {kv: {bucket: b, key: k}}}\nbroker: {kind: nats}\n",
                "callbacks.key cannot be in NATS KV",
            ),
            (
                "worker: {consumers: {by: saga}}\n",
                "config/test.yaml:4:26: by is \"saga\", expected effect",
            ),
            (
                "worker:\n  consumers:\n    by: category\n",
                "config/test.yaml:6:5: `by: category` needs `categories`",
            ),
            (
                "worker: {consumers: {bind: {charge: theirs}}}\n",
                "worker.consumers.bind.charge names a NATS consumer, which needs broker.kind nats, found embedded",
            ),
            (
                "worker: {consumers: {delivery: push}}\n",
                "worker.consumers.delivery is push, which needs broker.kind nats, found embedded",
            ),
            (
                "broker: {kind: nats}\nworker: {unacknowledged_max: 20000, consumers: {delivery: push}}\n",
                "between 1 and 16384 where worker.consumers.delivery is push, found 20000",
            ),
            (
                "tenants: any\nworker: {consumers: {by: tenant}}\n",
                "which needs a list under tenants",
            ),
            (
                "worker: {consumers: {by: tenant_and_effect}}\n",
                "which needs a list under tenants",
            ),
            (
                "shards: 1\nshards: 2\n",
                "config/test.yaml:5:1: key \"shards\" is there twice",
            ),
        ] {
            let message = refusal(body);
            assert!(message.contains(expected), "{body:?}: {message}");
        }
    }

    #[test]
    fn certificates_are_found_beside_the_manifest() {
        let body = "upstreams: {bank: \"https://b\"}\nupstream_tls: {bank: {ca_file: ca.pem, cert_file: /c.pem, key_file: k.pem}}\n";
        let manifest = parse(&format!("{HEAD}{body}")).expect("complete");
        let files = &manifest.upstream_tls["bank"];
        let found = [&files.ca_file, &files.cert_file, &files.key_file].map(|path| path.as_deref());
        let expected = ["config/ca.pem", "/c.pem", "config/k.pem"].map(|path| Some(Path::new(path)));
        assert_eq!(found, expected);
        let body = "gateway: {grpc: \"https://b\", tls: {ca_file: ca.pem}}\n";
        let manifest = parse(&format!("{HEAD}{body}")).expect("complete");
        let files = manifest.gateway.and_then(|gateway| gateway.tls);
        assert_eq!(
            files.and_then(|files| files.ca_file).as_deref(),
            Some(Path::new("config/ca.pem"))
        );
    }

    #[test]
    fn schedules_belong_to_the_tenants_that_are_named() {
        for (body, expected) in [
            ("", &[""][..]),
            ("tenants: [b, a]\n", &["a", "b"]),
            ("tenants: [b, a]\nscheduled_tenants: [b]\n", &["b"]),
            ("tenants: any\n", &[]),
            ("tenants: any\nscheduled_tenants: [c]\n", &["c"]),
        ] {
            let manifest = parse(&format!("{HEAD}{body}")).expect("complete");
            let tenants = manifest.scheduled_tenants();
            let found: Vec<&str> = tenants.iter().map(TenantId::as_str).collect();
            assert_eq!(found, expected, "{body}");
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let overrides = Overrides::default()
            .flag("--mode", "mode", Some("saga".to_owned()))
            .flag(
                "--nats-url",
                "broker.nats.urls",
                Some("nats://elsewhere:4222".to_owned()),
            );
        let manifest = Manifest::parse(
            &format!("{HEAD}mode: effect\n"),
            Path::new("config/test.yaml"),
            &overrides,
        )
        .expect("complete");
        assert_eq!(manifest.mode, Mode::Saga);
        assert_eq!(manifest.broker.kind, BrokerKind::Nats);
    }
}
