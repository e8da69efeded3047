//! What is asked of a process: whether it works, and how it ends.

use std::fmt::{self, Display};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{ControlError, Published, RatesView};
use crate::kernel::breaker::BreakerState;
use crate::kernel::definition::Diagnostic;
use crate::kernel::ids::TenantId;
use crate::kernel::token::Callback;
use crate::ports::forwarding::Forwarding;

/// Questions to one process, whatever shards it has open.
#[async_trait]
pub trait NodeControl: Send + Sync + 'static {
    /// Who and what this process is.
    fn info(&self) -> Info;

    /// Whether the process itself still moves. Never asks the broker.
    fn alive(&self) -> bool;

    /// Whether it takes work.
    async fn ready(&self) -> Readiness;

    /// Storage and broker, checked now.
    async fn health(&self) -> Health;

    /// All series as a text.
    fn metrics(&self, format: MetricsFormat) -> String;

    /// What happened in the last hour, minute by minute.
    fn rates(&self) -> RatesView;

    /// Begins the drain; a second call changes nothing.
    fn drain(&self) -> DrainStarted;

    /// Reads the definitions again and puts them in force, all or none.
    ///
    /// # Errors
    /// [`ReloadError`]: nothing has changed.
    async fn reload(&self) -> Result<Reloaded, ReloadError>;

    /// Publishes a domain event for `tenant`, as part of the trace of whoever sends it; that of the event comes first.
    async fn publish_event(
        &self,
        tenant: &TenantId,
        event: Bytes,
        traceparent: Option<String>,
    ) -> Result<Published, ControlError>;

    /// Whom a callback token is for; `None` where this cluster did not make it.
    fn callback(&self, token: &str) -> Option<Callback>;

    /// The way to the process that has the shards open; `None` where this one may have some, or no other process can.
    fn forwarding(&self) -> Option<Arc<dyn Forwarding>>;

    /// The breakers of this process: each upstream, and the tenants for which it is not simply closed.
    fn breakers(&self) -> Vec<BreakerView>;

    /// Holds calls of an upstream back, lets them through, or leaves it to the breaker again; for one tenant, or
    /// for all. The upstream is given as the list has it, or by one of its names.
    fn force_breaker(
        &self,
        upstream: &str,
        tenant: Option<&TenantId>,
        force: BreakerForce,
    ) -> Result<(), ControlError>;
}

/// How series are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// The text format of Prometheus.
    Classic,
    /// OpenMetrics 1.0, with exemplars.
    OpenMetrics,
}

impl MetricsFormat {
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What an operator says about a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerForce {
    /// No call is made.
    Open,
    /// Every call is made.
    Closed,
    /// The breaker decides.
    Auto,
}

/// The outcome of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forced {
    Now,
    /// It was said before, and changes nothing.
    Before,
    /// There is no such upstream.
    Unknown,
}

/// A breaker of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BreakerView {
    /// `host:port`, `effect:<name>`, or `gateway:<aggregate type>`.
    pub upstream: String,
    /// Its names in `upstreams` of the manifest, by which instances are listed and counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Absent where all tenants without an entry of their own are meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    pub state: BreakerState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced: Option<BreakerForce>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Info {
    pub name: &'static str,
    pub version: &'static str,
    pub cluster: String,
    pub mode: &'static str,
    pub broker: &'static str,
    pub shards: u16,
    /// The tenants served: their names, or `any`; absent where the runner works without tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Tenants>,
    pub started: String,
    /// Rises whenever the active sagas change.
    pub revision: u64,
    /// The last reload, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reload: Option<LastReload>,
    pub sagas: Vec<DefinitionInfo>,
    /// Effects that workers of saga-runner carry out.
    pub effects: Vec<String>,
    /// Effects that other workers carry out; whether one runs is not known here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub external_effects: Vec<String>,
    /// Consumers that bring commands to workers.
    pub consumers: Vec<ConsumerInfo>,
    /// Breakers of this process that are not simply closed, at most 100.
    pub breakers: Vec<BreakerView>,
    /// Where the breaker of the gateway stands, in a process that submits to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway_breaker: Option<&'static str>,
}

/// Whom a runner serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Tenants {
    Listed(Vec<TenantId>),
    /// The word `any`.
    Any(&'static str),
}

/// A consumer that brings commands to workers.
#[derive(Debug, Clone, Serialize)]
pub struct ConsumerInfo {
    pub name: String,
    /// An effect, a tenant, a tenant and an effect, or a category.
    pub delivers: String,
    /// It was there before, and the runner neither makes nor alters it.
    pub bound: bool,
    /// Workers that are not saga-runner take from it.
    pub external: bool,
    /// Absent until it was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    /// Commands not delivered yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<u64>,
    /// Commands that a worker was given and has not answered for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unacknowledged: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct DefinitionInfo {
    pub name: String,
    pub hash: String,
}

/// What a reload changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Revision of the active sagas.
    pub revision: u64,
    /// Sagas that are others than before, by name.
    pub sagas: Vec<SagaChange>,
    /// Whether the effects began again.
    pub effects_changed: bool,
    /// The effects in force.
    pub effects: Vec<String>,
    /// Shards that could not change now; they do at their next start.
    pub problems: Vec<String>,
    /// Effects that live instances may call and that no file declares any more.
    pub warnings: Vec<String>,
}

/// A saga whose active version has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SagaChange {
    pub saga: String,
    /// Hash of the version that was active.
    pub from: Option<String>,
    /// Hash of the version that is active, absent where the saga is gone.
    pub to: Option<String>,
}

/// `order: sha256:AAAA -> sha256:BBBB`, with `-` where there is no version.
impl Display for SagaChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [from, to] = [&self.from, &self.to].map(|hash| hash.as_deref().unwrap_or("-"));
        write!(out, "{}: {from} -> {to}", self.saga)
    }
}

/// How the last reload went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastReload {
    pub time: String,
    pub ok: bool,
    pub message: String,
    /// What is wrong with the definitions, at most 100 findings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Diagnostic>,
}

/// Why a reload changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    #[error("{message}")]
    Refused {
        message: String,
        findings: Vec<Diagnostic>,
    },
    #[error("{0}")]
    Unavailable(String),
}

impl ReloadError {
    /// What is wrong with the definitions, where that is why.
    #[must_use]
    pub fn findings(&self) -> &[Diagnostic] {
        match self {
            Self::Refused { findings, .. } => findings,
            Self::Unavailable(_) => &[],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Readiness {
    pub ready: bool,
    /// What is missing, empty when ready.
    pub reasons: Vec<String>,
    /// Shards that are not open in this process: their instances wait. It is ready for those of the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent_shards: Vec<u16>,
    /// Revision of the active sagas.
    pub revision: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Health {
    pub healthy: bool,
    pub checks: Vec<Check>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub ok: bool,
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainStarted {
    Now,
    Before,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_saga_reads_as_one_text() {
        let change = |from: Option<&str>, to: Option<&str>| SagaChange {
            saga: "order".to_owned(),
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
        };
        assert_eq!(change(Some("a"), Some("b")).to_string(), "order: a -> b");
        assert_eq!(change(None, Some("b")).to_string(), "order: - -> b");
        assert_eq!(change(Some("a"), None).to_string(), "order: a -> -");
    }
}
