//! The shape of the manifest, its defaults and its cross-field rules.
//!
//! `streams` has the streams by role.

mod streams;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Deserialize, Serialize, Serializer};

use super::secret::SecretReference;
use crate::clients::UpstreamTlsFiles;
use crate::kernel::duration::Millis;
use crate::kernel::ids::TenantId;
use crate::kernel::limits::Limits;
use crate::kernel::subject::Tenancy;
use crate::logging::LogFormat;
pub use streams::{
    AcceptedLimit, AuditSettings, EventsSettings, StartPosition, StreamSettings, StreamsSettings,
};

/// Everything that one runner is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// `saga-runner/v1`.
    #[serde(rename = "apiVersion")]
    pub api_version: ApiVersion,
    /// `Manifest`.
    pub kind: Kind,
    /// Name of the cluster. Stored with the data, which no other cluster will open.
    pub cluster: String,
    /// What this process does. Default `combined`.
    #[serde(default)]
    pub mode: Mode,
    /// Prefix of the durable consumers that replicas share. Default: the cluster's name.
    #[serde(default)]
    pub group: Option<String>,
    /// How effect commands get to a worker: `broker` (default) or, in mode `combined`, `local`.
    #[serde(default)]
    pub dispatch: Dispatch,
    /// Folder of the stored state. Default `../data` beside the manifest's folder.
    #[serde(default = "default_data_dir")]
    pub data_dir: PathBuf,
    /// Number of shards, fixed when the data is created; 1 to 1,024. Default 8.
    #[serde(default = "default_shards")]
    pub shards: u16,
    /// The tenants served, or `any`; absent: the runner works without multi-tenancy.
    #[serde(default)]
    pub tenants: Option<TenantList>,
    /// The tenants for whom sagas start by the clock. Default: those of `tenants`; none of them if that is `any`.
    #[serde(default)]
    pub scheduled_tenants: Option<Vec<TenantId>>,
    /// Folder of saga definitions. Default `../sagas`.
    #[serde(default = "default_sagas")]
    pub sagas: PathBuf,
    /// Folder of effect definitions. Default `../effects`.
    #[serde(default = "default_effects")]
    pub effects: PathBuf,
    #[serde(default)]
    pub broker: BrokerSettings,
    #[serde(default)]
    pub streams: StreamsSettings,
    /// Where aggregate commands are submitted. Needed if a saga sends one.
    #[serde(default)]
    pub gateway: Option<crate::gateway::Settings>,
    /// Base URLs and addresses of databases that effects name as `${upstreams.<name>}`.
    #[serde(default)]
    pub upstreams: BTreeMap<String, String>,
    /// What protects the connections to upstreams, by their names.
    #[serde(default)]
    pub upstream_tls: BTreeMap<String, UpstreamTlsFiles>,
    /// Secrets that effects name as `${secrets.<name>}`.
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretReference>,
    /// Callback tokens. Needed if an effect hands one out.
    #[serde(default)]
    pub callbacks: Option<CallbackSettings>,
    #[serde(default)]
    pub http: crate::api::Settings,
    #[serde(default)]
    pub log: LogSettings,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub shard: crate::shard::Settings,
    #[serde(default)]
    pub storage: crate::storage::Settings,
    #[serde(default)]
    pub intake: crate::intake::Settings,
    #[serde(default)]
    pub relay: crate::outbox::Settings,
    #[serde(default)]
    pub worker: crate::effects::Settings,
    #[serde(default)]
    pub ownership: super::OwnershipSettings,
    #[serde(default)]
    pub jobs: super::JobSettings,
    #[serde(default)]
    pub telemetry: super::TelemetrySettings,
    /// How long a drain may take before the process exits anyway. Default 25 s.
    #[serde(default = "default_drain_timeout")]
    pub drain_timeout: Millis,
    /// How long a shard, a reader or a publication may get on with nothing before the process is not ready. Default 10 s.
    #[serde(default = "default_stalled_after")]
    pub stalled_after: Millis,
    /// How far the clock of the machine may differ from the broker's before the process is not ready. Default 2 s.
    #[serde(default = "default_clock_difference_max")]
    pub clock_difference_max: Millis,
}

/// How callback tokens are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallbackSettings {
    /// The secret that proves a token; the same for every process of a cluster, at least 16 characters long.
    pub key: SecretReference,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ApiVersion {
    #[serde(rename = "saga-runner/v1")]
    V1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Manifest,
}

/// How effect commands get to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dispatch {
    /// By a stream, from which every worker takes them.
    #[default]
    Broker,
    /// The first attempt is made by the worker of the same process, later ones by any. Mode `combined` only.
    Local,
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Runs sagas; effect workers run elsewhere.
    Saga,
    /// Runs effect workers only; keeps nothing on disk.
    Effect,
    /// Both.
    #[default]
    Combined,
}

impl Mode {
    #[must_use]
    pub const fn runs_sagas(self) -> bool {
        matches!(self, Self::Saga | Self::Combined)
    }

    #[must_use]
    pub const fn runs_effects(self) -> bool {
        matches!(self, Self::Effect | Self::Combined)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Saga => "saga",
            Self::Effect => "effect",
            Self::Combined => "combined",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantList {
    /// These and no others.
    Listed(Vec<TenantId>),
    /// Whatever tenant the subject names.
    Any,
}

impl Serialize for TenantList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Listed(tenants) => tenants.serialize(serializer),
            Self::Any => serializer.serialize_str("any"),
        }
    }
}

impl<'de> Deserialize<'de> for TenantList {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lists;

        impl<'de> serde::de::Visitor<'de> for Lists {
            type Value = TenantList;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of tenants, or `any`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TenantList, E> {
                match text {
                    "any" => Ok(TenantList::Any),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<TenantList, A::Error> {
                let mut tenants = Vec::new();
                while let Some(tenant) = list.next_element()? {
                    tenants.push(tenant);
                }
                Ok(TenantList::Listed(tenants))
            }
        }

        deserializer.deserialize_any(Lists)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BrokerKind {
    /// Streams inside this process, kept under the data folder: nothing else to install.
    #[default]
    Embedded,
    /// NATS JetStream.
    Nats,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BrokerSettings {
    pub kind: BrokerKind,
    pub nats: crate::nats::Settings,
    pub embedded: crate::inproc::Settings,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// Default `json`.
    pub format: LogFormat,
    /// A filter as of tracing's `EnvFilter`. Default `info`.
    pub level: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            format: LogFormat::Json,
            level: "info".to_owned(),
        }
    }
}

impl ValueEnum for LogFormat {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Json, Self::Pretty]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Json => PossibleValue::new("json").help("One JSON object a line"),
            Self::Pretty => PossibleValue::new("pretty").help("For people"),
        })
    }
}

impl Manifest {
    /// A manifest with nothing but defaults.
    #[must_use]
    pub fn named(cluster: &str) -> Self {
        let text =
            serde_json::json!({"apiVersion": "saga-runner/v1", "kind": "Manifest", "cluster": cluster});
        serde_json::from_value(text).expect("every other field has a default")
    }

    pub(super) fn resolve_paths(&mut self, base: &Path) {
        for path in [&mut self.data_dir, &mut self.sagas, &mut self.effects] {
            if path.is_relative() {
                *path = base.join(&*path);
            }
        }
        self.http.resolve(base);
        let headers = self
            .telemetry
            .otlp
            .as_mut()
            .and_then(|otlp| otlp.headers_file.as_mut());
        if let Some(path) = headers.filter(|path| path.is_relative()) {
            *path = base.join(&*path);
        }
        self.broker.nats.resolve(base);
        let callbacks = self.callbacks.as_mut().map(|callbacks| &mut callbacks.key);
        for secret in self.secrets.values_mut().chain(callbacks) {
            secret.resolve(base);
        }
        let of_gateway = self.gateway.as_mut().and_then(|gateway| gateway.tls.as_mut());
        for files in self.upstream_tls.values_mut().chain(of_gateway) {
            files.resolve(base);
        }
    }

    /// Makes NATS at `url` the broker.
    ///
    /// # Errors
    /// A sentence where the URL holds credentials.
    pub fn use_nats(&mut self, url: String) -> Result<(), String> {
        self.broker.kind = BrokerKind::Nats;
        self.broker.nats.urls = vec![url.try_into()?];
        Ok(())
    }

    /// Prefix of the shared durables.
    #[must_use]
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or(&self.cluster)
    }

    /// Whether subjects carry a tenant.
    #[must_use]
    pub const fn tenancy(&self) -> Tenancy {
        match self.tenants {
            Some(_) => Tenancy::Multi,
            None => Tenancy::Single,
        }
    }

    /// The tenants for whom sagas start by the clock; none where the manifest does not say.
    #[must_use]
    pub fn scheduled_tenants(&self) -> Vec<TenantId> {
        let mut tenants = match (&self.scheduled_tenants, &self.tenants) {
            (Some(list), _) | (None, Some(TenantList::Listed(list))) => list.clone(),
            (None, Some(TenantList::Any)) => Vec::new(),
            (None, None) => vec![TenantId::none()],
        };
        tenants.sort();
        tenants.dedup();
        tenants
    }

    /// The tenants served, `None` for any.
    #[must_use]
    pub fn tenant_list(&self) -> Option<Vec<TenantId>> {
        match &self.tenants {
            None => Some(vec![TenantId::none()]),
            Some(TenantList::Listed(list)) => Some(list.clone()),
            Some(TenantList::Any) => None,
        }
    }
}

fn default_data_dir() -> PathBuf {
    PathBuf::from("../data")
}

fn default_sagas() -> PathBuf {
    PathBuf::from("../sagas")
}

fn default_effects() -> PathBuf {
    PathBuf::from("../effects")
}

const fn default_shards() -> u16 {
    8
}

const fn default_stalled_after() -> Millis {
    Millis::seconds(10)
}

const fn default_clock_difference_max() -> Millis {
    Millis::seconds(2)
}

const fn default_drain_timeout() -> Millis {
    Millis::seconds(25)
}
