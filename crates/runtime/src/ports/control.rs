//! What operators ask of a runner, so that the HTTP API knows neither shards nor tables.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::kernel::alias::Alias;
use crate::kernel::breaker::BreakerState;
use crate::kernel::definition::Diagnostic;
use crate::kernel::envelope::ControlVerb;
use crate::kernel::ids::{InstanceId, SagaName, TenantId, TimeMs};
use crate::kernel::patch::Note;
use crate::kernel::recorded::Recorded;
use crate::kernel::schedule::{CatchUp, Overlap, Skip};
use crate::kernel::token::Callback;
use crate::kernel::view::InstanceView;
use crate::ports::held::{HeldReport, HeldRequest, HeldVerb, PendingReport};

#[async_trait]
pub trait Control: Send + Sync + 'static {
    /// Who and what this process is.
    fn info(&self) -> Info;

    /// Whether the process itself still moves. Never asks the broker.
    fn alive(&self) -> bool;

    /// Whether it takes work.
    async fn ready(&self) -> Readiness;

    /// Storage and broker, checked now.
    async fn health(&self) -> Health;

    /// All series in the Prometheus text format.
    fn metrics(&self) -> String;

    /// Begins the drain; a second call changes nothing.
    fn drain(&self) -> DrainStarted;

    /// Reads the definitions again and puts them in force, all or none.
    ///
    /// # Errors
    /// [`ReloadError`]: nothing has changed.
    async fn reload(&self) -> Result<Reloaded, ReloadError>;

    /// Publishes a domain event for `tenant`.
    async fn publish_event(&self, tenant: &TenantId, event: Bytes) -> Result<Published, ControlError>;

    /// Starts an instance with an input, a JSON object.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a saga, [`ControlError::Invalid`] for an input that it does not
    /// take, [`ControlError::Conflict`] where the instance is there already, by another request.
    async fn start(
        &self,
        instance: &InstanceId,
        request_id: &str,
        input: serde_json::Map<String, serde_json::Value>,
    ) -> Result<Published, ControlError>;

    /// Sends a control message to an instance.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without the instance, [`ControlError::Conflict`] for a message that would change
    /// nothing as things are.
    async fn control(
        &self,
        instance: &InstanceId,
        request_id: &str,
        verb: ControlVerb,
    ) -> Result<Published, ControlError>;

    /// Whom a callback token is for; `None` where this cluster did not make it.
    fn callback(&self, token: &str) -> Option<Callback>;

    /// Instances of a saga, newest last, live ones before ended ones.
    async fn instances(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        page: PageRequest,
    ) -> Result<Page<InstanceView>, ControlError>;

    /// One instance with its history, newest entry first.
    async fn instance(&self, id: &InstanceId, history: usize) -> Result<InstanceDetail, ControlError>;

    /// The inputs that an instance has taken, oldest first, as far as the streams still have them.
    async fn inputs(&self, id: &InstanceId) -> Result<RecordedInputs, ControlError>;

    /// Dead letters of a tenant, oldest first.
    async fn dead_letters(
        &self,
        tenant: &TenantId,
        page: PageRequest,
    ) -> Result<Page<DeadLetterView>, ControlError>;

    /// Every version of every saga that is active or still in use.
    async fn definitions(&self) -> Result<Vec<DefinitionView>, ControlError>;

    /// One version, named by the first digits of its hash.
    async fn definition(&self, hash: &str) -> Result<DefinitionDetail, ControlError>;

    /// The breakers of this process: each upstream, and the tenants for which it is not simply closed.
    fn breakers(&self) -> Vec<BreakerView>;

    /// Holds calls of an upstream back, lets them through, or leaves it to the breaker again; for one tenant, or
    /// for all.
    fn force_breaker(
        &self,
        upstream: &str,
        tenant: Option<&TenantId>,
        force: BreakerForce,
    ) -> Result<(), ControlError>;

    /// Brings the live instances of a saga over to the version whose hash begins with `hash`, or, to undo that,
    /// back from it; or tells what would become of them. The report may come before the end.
    async fn migrate(&self, hash: &str, request: MigrationRequest) -> Result<MigrationReport, ControlError>;

    /// How far a migration is that was begun before, by the `id` of its report.
    async fn migration(&self, id: &str) -> Result<MigrationReport, ControlError>;

    /// Who has an alias.
    async fn alias(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        alias: &Alias,
    ) -> Result<AliasView, ControlError>;

    /// The schedules of a tenant, by the name of their sagas.
    async fn schedules(&self, tenant: &TenantId) -> Result<Vec<ScheduleView>, ControlError>;

    /// Lets a schedule rest, or go on.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] where the saga has none.
    async fn order_schedule(
        &self,
        tenant: &TenantId,
        saga: &SagaName,
        order: ScheduleOrder,
    ) -> Result<(), ControlError>;

    /// All shards of the cluster: those that are open in this process, and what is known of the others.
    async fn shards(&self) -> Result<Vec<ShardView>, ControlError>;

    /// Opens a shard that is not open in this process, while the others go on.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard, [`ControlError::Conflict`] where it is open, or belongs to somebody
    /// else.
    async fn open_shard(&self, shard: u16) -> Result<(), ControlError>;

    /// Drains and closes a shard, while the others go on. What is meant for it waits in the streams.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard, [`ControlError::Conflict`] where it is not open.
    async fn close_shard(&self, shard: u16) -> Result<(), ControlError>;

    /// Settles from where on a shard reads a stream that is not the one that was read, or that lost what was not read; or
    /// tells what that would mean.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard or stream, [`ControlError::Conflict`] where there is nothing of
    /// the kind to accept.
    async fn accept(
        &self,
        shard: u16,
        verb: AcceptVerb,
        request: AcceptRequest,
    ) -> Result<AcceptReport, ControlError>;

    /// What a shard holds back that goes on from an adopted state.
    async fn pending(&self, shard: u16, page: PageRequest) -> Result<PendingReport, ControlError>;

    /// Lets that go, or gives some of it up; or tells what that would mean.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] without such a shard or command, [`ControlError::Conflict`] where nothing is held.
    async fn decide_held(
        &self,
        shard: u16,
        verb: HeldVerb,
        request: HeldRequest,
    ) -> Result<HeldReport, ControlError>;

    /// Decides on a dead letter, named as its view names it.
    async fn decide(&self, tenant: &TenantId, id: &str, decision: Decision) -> Result<(), ControlError>;
}

/// One shard of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShardView {
    pub shard: u16,
    /// It is open in this process.
    pub open: bool,
    /// `running`, `full`, `halted` or `stopped`; `absent` where it is not open here.
    pub state: &'static str,
    /// Why it does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who has it, as its owner record says, where it is not open here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// By stream the sequence up to which it has taken everything, as far as that is known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub positions: BTreeMap<String, u64>,
}

/// What an operator accepts of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptVerb {
    /// Messages are gone that were not read.
    Gap,
    /// It is another stream, or has gone back.
    Rebind,
}

impl AcceptVerb {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gap => "accept-gap",
            Self::Rebind => "rebind",
        }
    }

    /// The reason of a halt that it settles.
    #[must_use]
    pub const fn accepts(self) -> &'static str {
        match self {
            Self::Gap => "stream.gap",
            Self::Rebind => "stream.identity",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptRequest {
    /// Name of the stream.
    pub stream: String,
    /// Why; needed unless nothing is done.
    #[serde(default)]
    pub reason: String,
    /// Only tell what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// The position to go on behind, in place of the one that is found.
    #[serde(default)]
    pub position: Option<u64>,
}

/// Messages of a stream, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sequences {
    pub from: u64,
    pub to: u64,
}

/// What is accepted, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AcceptReport {
    pub shard: u16,
    pub stream: String,
    /// `stream.gap` or `stream.identity`.
    pub found: &'static str,
    pub detail: String,
    pub position: u64,
    pub new_position: u64,
    /// Messages that the shard never reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Sequences>,
    /// Messages of the stream that it reads next; those that it has read before count as repetitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_read: Option<Sequences>,
    /// What is accepted as lost, and what becomes of the rest.
    pub lost: Vec<String>,
    /// The position was moved; false after a dry run.
    pub done: bool,
    /// What was accepted for this shard and stream before, oldest first.
    pub earlier: Vec<AcceptedView>,
}

/// What was accepted before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AcceptedView {
    pub time: String,
    pub position: u64,
    pub new_position: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Sequences>,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Retry,
    Discard,
}

/// The instances that have registered a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AliasView {
    pub saga: String,
    /// Its name.
    pub alias: String,
    pub value: String,
    /// In the order in which they have registered it; an event that is matched reaches each.
    pub owners: Vec<OwnerView>,
    /// Events that wait for an instance to register it.
    pub waiting: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OwnerView {
    pub key: String,
    pub generation: u32,
}

/// What an operator says about a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleOrder {
    /// Nothing starts by it.
    Pause,
    Resume,
}

/// Where the schedule of a saga stands: why something ran, or did not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScheduleView {
    pub saga: String,
    pub cron: String,
    pub zone: String,
    /// Absent where the saga has no schedule any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    pub paused: bool,
    /// The next planned time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The same by the clocks of the zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_local: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_started: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_skipped: Option<SkippedView>,
    /// Keys of the runs whose end is awaited.
    pub running: Vec<String>,
    /// Planned times that wait for these to end.
    pub queued: Vec<String>,
    pub started: u64,
    pub skipped: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedView {
    pub time: String,
    pub reason: Skip,
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

/// A breaker of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BreakerView {
    /// `host:port`, or `effect:<name>`.
    pub upstream: String,
    /// Absent where all tenants without an entry of their own are meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    pub state: BreakerState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced: Option<BreakerForce>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    Unavailable(String),
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
    pub brings: String,
    /// It was there before, and the runner neither makes nor alters it.
    pub bound: bool,
    /// Workers that are not saga-runner take from it.
    pub external: bool,
    /// Absent until it was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    /// Commands that nobody was given yet.
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
    /// Whether the effects began anew.
    pub effects_changed: bool,
    /// The effects in force.
    pub effects: Vec<String>,
    /// Shards that could not change now; they do at their next start.
    pub problems: Vec<String>,
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

/// What is to be done about the live instances of a saga.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MigrationRequest {
    /// Change nothing.
    pub dry_run: bool,
    /// Those that were brought over to the version go back to where they came from.
    pub undo: bool,
}

/// What a migration did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MigrationReport {
    /// Names the migration.
    pub id: String,
    pub saga: String,
    /// Hash of the version that instances go over to, or, to undo that, come back from.
    pub version: String,
    pub dry_run: bool,
    pub undo: bool,
    /// False while it is at work.
    pub finished: bool,
    /// Why it was broken off before all were looked at.
    pub problem: Option<String>,
    /// Instances to look at, as they were counted at the beginning.
    pub total: u64,
    /// Instances looked at so far.
    pub seen: u64,
    /// Instances that were asked to go over, or would be.
    pub moved: u64,
    /// Instances that stay as they are.
    pub refused: u64,
    /// Why, for the first hundred of them.
    pub refusals: Vec<Refusal>,
}

impl MigrationReport {
    /// The numbers alone: moved, refused, and how many there are.
    #[must_use]
    pub const fn counts(&self) -> (u64, u64, u64) {
        (self.moved, self.refused, self.total)
    }
}

/// An instance that cannot go over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// `<tenant>/<saga>/<key>`
    pub instance: String,
    /// Hash of the version that it stays with.
    pub from: String,
    /// Hash of the version that it cannot go to.
    pub to: String,
    pub problems: Vec<Problem>,
}

/// Something that has no place in the other version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where the file would have to say what becomes of it, as `file:line:column`; empty where no file can.
    pub at: String,
    pub message: String,
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

/// One archived version of a saga, and who uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DefinitionView {
    pub saga: String,
    /// `sha256:...`
    pub hash: String,
    /// Whether new instances get it.
    pub active: bool,
    /// Whether this process could read it; instances of a version that it could not read wait.
    pub loaded: bool,
    /// Live instances of all tenants that run under it.
    pub live: u64,
    /// Ended ones that are still kept.
    pub ended: u64,
    /// Live instances that were brought over from it and may go back.
    pub left: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DefinitionDetail {
    #[serde(flatten)]
    pub definition: DefinitionView,
    /// The text of its file.
    pub source: String,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Published {
    pub stream: String,
    pub sequence: u64,
    pub duplicate: bool,
}

/// A slice of a longer list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// What the page before called `next`.
    pub after: Option<String>,
    /// 1 to 500.
    pub limit: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Cursor of the next page, absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Shards of which nothing is in the list, because they are not open in this process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent_shards: Vec<u16>,
}

/// What an instance has taken.
#[derive(Debug, Clone, Serialize)]
pub struct RecordedInputs {
    pub inputs: Vec<Recorded>,
}

#[derive(Debug, Clone, Serialize)]
pub struct InstanceDetail {
    #[serde(flatten)]
    pub instance: InstanceView,
    pub history: Vec<HistoryView>,
}

#[derive(Debug, Clone, Serialize)]
pub struct HistoryView {
    pub input: String,
    pub kind: String,
    pub time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    pub outcome: String,
    pub notes: Vec<Note>,
    /// It was taken although a stream could not be read that may hold what comes before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub late_source: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct DeadLetterView {
    /// `<shard>-<number>`.
    pub id: String,
    pub reason: String,
    pub message: String,
    pub subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saga: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    pub time: String,
    pub attempts: u32,
    /// The first KiB of the payload, control characters escaped.
    pub excerpt: String,
}

/// RFC 3339 for people.
#[must_use]
pub fn rfc3339(time: TimeMs) -> String {
    jiff::Timestamp::from_millisecond(time.0).map_or_else(|_| time.0.to_string(), |stamp| stamp.to_string())
}
