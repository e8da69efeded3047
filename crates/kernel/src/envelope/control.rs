//! Control messages: what is asked of one instance, by whom, and by whose subject it may come.

use saga_runner_language::alias::Alias;
use saga_runner_language::ids::{CommandId, Key};
use serde::{Deserialize, Serialize};

use super::decisions::{StepFound, Stuck};
use super::{ErrorPayload, FORWARD, ResultType, StartedBy, is_default, is_zero};
use crate::children::ParentRef;
use crate::input::{CancelMode, OnConflict};

/// A message to one instance: on the tenant's `workflow.<saga>.<key>`, or on the runner's own
/// `runner.<cluster>.control.<tenant>.<saga>.<key>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlMessage {
    /// Makes a repeated request recognisable.
    pub request_id: String,
    /// For whom a runner has sent it. Only on the runner's own subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
    /// Refuses members that it does not know; a flattened struct itself cannot.
    #[serde(flatten)]
    pub verb: ControlVerb,
}

impl ControlMessage {
    /// Whether it may come by the subject of a tenant.
    #[must_use]
    pub fn is_of_tenant(&self) -> bool {
        self.principal.is_none() && self.verb.sender() == Sender::Tenant
    }

    /// Whether it may come by the runners' own subject: what an operator decides needs a principal who may.
    #[must_use]
    pub fn is_of_runner(&self) -> bool {
        let role = self.principal.as_ref().map(|principal| principal.role);
        self.verb.sender() != Sender::Operator || role.is_some_and(|role| role >= self.verb.role())
    }
}

/// What somebody may do. Each role may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Decides about instances, dead letters and schedules.
    Operator,
    /// Changes the process and the cluster.
    Admin,
}

impl Role {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Who asks for what only operators may do, as the process found out that has taken the request, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Principal {
    /// Empty where the API does not authenticate and the request named nobody.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    /// What it may do for the tenant of the instance.
    pub role: Role,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Longest name of a principal, in bytes.
pub const WHO_BYTES_MAX: usize = 256;
/// Longest reason of a principal, in bytes: the record of a paused or killed instance keeps it.
pub const REASON_BYTES_MAX: usize = 1_024;

impl Principal {
    /// Of a message that no operator has sent.
    #[must_use]
    pub const fn nobody() -> Self {
        Self {
            who: String::new(),
            role: Role::Viewer,
            reason: String::new(),
        }
    }

    /// Whether it says neither who asks nor why.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        self.who.is_empty() && self.reason.is_empty()
    }

    /// # Errors
    /// A sentence for whoever asks, where name or reason are too long.
    pub const fn check(&self) -> Result<(), &'static str> {
        if self.who.len() > WHO_BYTES_MAX {
            return Err("the name of who asks has at most 256 bytes");
        }
        if self.reason.len() > REASON_BYTES_MAX {
            return Err("`reason` has at most 1024 bytes");
        }
        Ok(())
    }
}

/// Who may say something to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// Whoever may publish for the tenant.
    Tenant,
    /// A principal with the role of an operator, by way of a runner.
    Operator,
    /// The runners alone: what instances tell each other.
    Runner,
}

impl Sender {
    /// Who may say what `control` names; `None` where it is no verb. What the tenant may say comes by the tenant's subject, and all
    /// else by the runner's own, so that the broker's permissions tell them apart.
    #[must_use]
    pub fn of(control: &str) -> Option<Self> {
        match control {
            "start" | "signal" | "cancel" => Some(Self::Tenant),
            "retry" | "skip" | "resolve" | "pause" | "resume" | "kill" | "fire_timer" | "cancel_timer"
            | "try_now" | "rerun" | "restart" | "delete" => Some(Self::Operator),
            "cancel_child" | "outcome" | "callback" | "heartbeat" | "register_alias" | "release_alias"
            | "ask_alias" | "alias_read" | "alias_answered" | FORWARD => Some(Self::Runner),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "control", rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlVerb {
    /// Stop the instance and compensate what it did.
    Cancel {
        #[serde(default)]
        reason: String,
        #[serde(default, skip_serializing_if = "is_default")]
        mode: CancelMode,
    },
    /// Undo what is stuck, with all attempts again; send the work of stuck steps once more.
    Retry(Stuck),
    /// What is stuck stays done; a step in progress that it names is left out. Needs a reason.
    Skip(Stuck),
    /// What is stuck has been undone by other means; or the outcome of a stuck step.
    Resolve(Stuck),
    /// Keep the inputs of the instance until it is resumed.
    Pause {},
    /// Apply what was kept, and go on.
    Resume {},
    /// End the instance at once and undo nothing. Needs a reason.
    Kill {},
    /// Fire a timer of the instance now.
    FireTimer { timer: String },
    /// Clear a timer of the instance.
    CancelTimer { timer: String },
    /// Make the next attempt of what backs off now.
    TryNow {
        /// Only of this step and its compensation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<String>,
    },
    /// Begin the next generation of an instance that has ended without success, with what is done and was not undone.
    Rerun {
        /// What operators found out about steps of unknown outcome.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        found: Vec<StepFound>,
    },
    /// The same with nothing kept but what it was given.
    Restart {
        /// The event that has started the instance, if an event has: its data are kept nowhere but in its message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        event: Option<Box<StartedBy>>,
    },
    /// Delete an instance that has ended, with its history. Needs a reason, and the role admin.
    Delete {
        /// The process that was asked has seen that the instance that has started it has ended, or is gone.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        parent_over: bool,
    },
    /// Tell a step that waits for it.
    Signal {
        name: String,
        /// A JSON object.
        #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
        data: serde_json::Map<String, serde_json::Value>,
        /// Who says so.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        by: String,
        /// Hops of the chain of messages that led here.
        #[serde(default, skip_serializing_if = "is_zero")]
        hops: u32,
    },
    /// Begin an instance without an event.
    Start {
        /// A JSON object, as the saga declares it.
        #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
        input: serde_json::Map<String, serde_json::Value>,
        /// The instance whose step asks for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<ParentRef>,
        #[serde(default, skip_serializing_if = "is_default")]
        on_conflict: ConflictPolicy,
    },
    /// From a parent to its child: stop, and undo what was done.
    CancelChild {
        parent: ParentRef,
        /// Also if it has completed; the parent is told how that went.
        #[serde(default)]
        undo: bool,
        /// The child was there, as far as the parent knows.
        #[serde(default)]
        known: bool,
    },
    /// From a child to its parent: how it has ended, or how undoing it has.
    Outcome {
        /// The command of the parent that is answered.
        command_id: CommandId,
        result_type: ResultType,
        /// The result for `Succeeded`; `{"class": ..., "message": ...}` for the others.
        #[serde(default)]
        payload: serde_json::Value,
    },
    /// Say how a piece of work went: either what is read as `signal`, or why it failed.
    Callback {
        /// Its idempotency key.
        work: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ok: Option<serde_json::Map<String, serde_json::Value>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<ErrorPayload>,
    },
    /// Say that whoever was given the token of a piece of work is still at it.
    Heartbeat {
        /// Its idempotency key.
        work: String,
    },
    /// From an instance to an alias: it has it from now on.
    RegisterAlias {
        /// Of the instance.
        key: Key,
        generation: u32,
    },
    /// From an instance to an alias: it has ended.
    ReleaseAlias {
        /// Of the instance.
        key: Key,
        generation: u32,
        /// It hears events that are matched by the alias as long as it is kept.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        hears: bool,
    },
    /// From an instance to an alias: have all events up to `due_ms` been forwarded?
    AskAlias {
        /// Of the instance.
        key: Key,
        due_ms: i64,
        number: u64,
        slot: u8,
    },
    /// From an alias to an instance: they have, by messages before this one.
    AliasRead {
        due_ms: i64,
        number: u64,
        slot: u8,
        /// The alias could not read its streams that far.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        late: bool,
    },
    /// From an alias to an instance that has registered it: the instance has it, or it does not.
    AliasAnswered {
        alias: Alias,
        /// Of the instance that has registered it.
        generation: u32,
        /// The alias already has as many instances as it may have.
        refused: bool,
    },
}

impl ControlVerb {
    /// Who may say it.
    #[must_use]
    pub fn sender(&self) -> Sender {
        match self {
            Self::Start { parent: Some(_), .. } => Sender::Runner,
            Self::Start {
                on_conflict: ConflictPolicy::TerminateExisting,
                ..
            } => Sender::Operator,
            verb => Sender::of(verb.as_str()).unwrap_or(Sender::Runner),
        }
    }

    /// The role that an operator needs to say it.
    #[must_use]
    pub const fn role(&self) -> Role {
        match self {
            Self::Delete { .. } => Role::Admin,
            _ => Role::Operator,
        }
    }

    /// As `control` says it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Cancel { .. } => "cancel",
            Self::Retry(_) => "retry",
            Self::Skip(_) => "skip",
            Self::Resolve(_) => "resolve",
            Self::Pause {} => "pause",
            Self::Resume {} => "resume",
            Self::Kill {} => "kill",
            Self::FireTimer { .. } => "fire_timer",
            Self::CancelTimer { .. } => "cancel_timer",
            Self::TryNow { .. } => "try_now",
            Self::Rerun { .. } => "rerun",
            Self::Restart { .. } => "restart",
            Self::Delete { .. } => "delete",
            Self::Signal { .. } => "signal",
            Self::Start { .. } => "start",
            Self::CancelChild { .. } => "cancel_child",
            Self::Outcome { .. } => "outcome",
            Self::Callback { .. } => "callback",
            Self::Heartbeat { .. } => "heartbeat",
            Self::RegisterAlias { .. } => "register_alias",
            Self::ReleaseAlias { .. } => "release_alias",
            Self::AskAlias { .. } => "ask_alias",
            Self::AliasRead { .. } => "alias_read",
            Self::AliasAnswered { .. } => "alias_answered",
        }
    }
}

/// What happens to a start whose instance runs already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictPolicy {
    /// It is refused.
    #[default]
    Fail,
    /// Nothing changes, and whoever asks gets the one that runs.
    UseExisting,
    /// The one that runs is killed, and the next generation begins. Needs the role operator and a reason.
    TerminateExisting,
}

impl ConflictPolicy {
    /// The same as the instance takes it.
    ///
    /// # Errors
    /// A sentence for whoever asks.
    pub fn decide(self, principal: Principal) -> Result<OnConflict, &'static str> {
        match self {
            Self::Fail => Ok(OnConflict::Fail),
            Self::UseExisting => Ok(OnConflict::UseExisting),
            Self::TerminateExisting if principal.reason.trim().is_empty() => {
                Err("`terminate_existing` needs a `reason`")
            }
            Self::TerminateExisting => Ok(OnConflict::TerminateExisting {
                by: principal.who,
                reason: principal.reason,
            }),
        }
    }
}
