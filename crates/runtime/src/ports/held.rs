//! What operators ask about a shard that goes on from an adopted state, and say about what it holds back.

use serde::{Deserialize, Serialize};

use crate::kernel::ids::{CommandId, TenantId};

/// What happens to what a shard holds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldVerb {
    /// It is sent.
    Release,
    /// It is not, and whoever waits for it is told that its outcome is unknown.
    Discard,
}

impl HeldVerb {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Discard => "discard",
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldRequest {
    /// Who asks, for the audit alone.
    #[serde(default)]
    pub by: String,
    /// Why; needed unless nothing is done.
    #[serde(default)]
    pub reason: String,
    /// Only tell what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// What is given up, by the ids that the list shows. For `discard` alone.
    #[serde(default)]
    pub commands: Vec<CommandId>,
    /// Everything is given up that may have been carried out already. For `discard` alone.
    #[serde(default)]
    pub all: bool,
}

/// What a shard holds back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PendingReport {
    pub shard: u16,
    /// `none`: it goes on from no adopted state; `reading`: its streams are not read to their ends yet; `held`: it waits for
    /// a decision; `released`: it sends.
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adopted: Option<AdoptedView>,
    /// Rows in the outbox.
    pub rows: u64,
    /// The same by saga, and the timers beside it; of the first 100,000 rows and timers.
    pub sagas: Vec<PendingSaga>,
    /// There are more than that.
    pub more: bool,
    /// Some of the rows, in the order in which they would be sent.
    pub items: Vec<PendingRow>,
    /// Cursor of the next page, absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What was decided about the shard, oldest first.
    pub decisions: Vec<DecidedView>,
}

/// The state that the shard goes on from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdoptedView {
    pub since: String,
    /// Epoch of the owner who was given up.
    pub given_up: u64,
    /// When the streams were read to the ends that they had then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<String>,
}

/// What the instances of a saga have to send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PendingSaga {
    #[serde(skip_serializing_if = "TenantId::is_none")]
    pub tenant: TenantId,
    pub saga: String,
    /// Commands of effects.
    pub effects: u64,
    /// Commands to aggregates.
    pub commands: u64,
    pub facts: u64,
    /// Starts of other sagas.
    pub starts: u64,
    /// What instances tell each other and the workers.
    pub messages: u64,
    /// Timers that are due and wait for their streams.
    pub timers_due: u64,
    pub timers: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_timer: Option<String>,
}

/// Something that would be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PendingRow {
    /// Names it; of a fact its id.
    pub id: CommandId,
    /// `effect`, `command`, `fact`, `start` or `message`.
    pub kind: &'static str,
    /// Of the effect, the command, the fact or the saga.
    pub name: String,
    #[serde(skip_serializing_if = "TenantId::is_none")]
    pub tenant: TenantId,
    pub saga: String,
    pub key: String,
    /// Place in the definition.
    pub path: String,
    /// When what it follows from was stored.
    pub since: String,
    /// A step waits for its outcome.
    pub awaited: bool,
    /// The owner who was given up may have carried it out.
    pub may_be_done: bool,
    /// It can be discarded.
    pub may_be_discarded: bool,
}

/// What was decided about a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DecidedView {
    pub time: String,
    /// `adopted`, `released` or `discarded`.
    pub what: &'static str,
    pub detail: String,
    pub reason: String,
}

/// What was decided, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldReport {
    pub shard: u16,
    pub verb: &'static str,
    /// False after a dry run.
    pub done: bool,
    /// Rows that are sent, or given up.
    pub rows: u64,
    /// Steps among them that go on with an unknown outcome; 0 where they are sent.
    pub unknown: u64,
    /// The first of them.
    pub items: Vec<PendingRow>,
    /// The shard sends.
    pub sends: bool,
}
