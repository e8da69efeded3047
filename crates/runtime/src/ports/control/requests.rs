//! Requests to instances, and the outcome of them.

use std::time::Duration;

use serde::Serialize;

use super::Published;
use crate::kernel::envelope::{ConflictPolicy, Principal};
use crate::kernel::patch::Note;

/// A request to start an instance.
#[derive(Debug, Clone)]
pub struct StartRequest {
    /// Makes a repeated request recognisable.
    pub request_id: String,
    /// A JSON object, as the saga declares it.
    pub input: serde_json::Map<String, serde_json::Value>,
    pub on_conflict: ConflictPolicy,
    /// Who asks, and why.
    pub principal: Principal,
    /// The trace of whoever asks.
    pub traceparent: Option<String>,
}

/// How long somebody waits for the outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    pub time: Duration,
    /// Without it a process that cannot tell the outcome stores the request all the same; with it nothing is stored then.
    pub is_asked_for: bool,
    /// Wait for the end of the instance too, once the request is applied.
    pub until_end: bool,
}

impl Patience {
    /// Of whoever does not wait.
    pub const NONE: Self = Self {
        time: Duration::ZERO,
        is_asked_for: false,
        until_end: false,
    };
}

/// A request to an instance that is stored, and that the instance takes in its turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Requested {
    #[serde(flatten)]
    pub published: Published,
    /// Whether it was compared with the instance as it was. If not, this process does not work on its shard.
    pub checked: bool,
    /// Its outcome, where a caller has waited for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RequestOutcome>,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestOutcome {
    pub state: RequestState,
    /// Why it was ignored, what it waits for, or the reason of the dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The dead letter that it is, or that it waits behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<String>,
    /// Of the instance by which it was applied or ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// What happened then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// The same request came before, by an earlier message, and this is the outcome of that one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
    /// The instance as it was when the request was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceBrief>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestState {
    Applied,
    /// It has changed nothing.
    Ignored,
    /// It could not be applied.
    DeadLetter,
    /// It waits, or was not read in time.
    Pending,
}

/// An instance in a few words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceBrief {
    pub saga: String,
    pub key: String,
    pub phase: &'static str,
    pub generation: u32,
    /// Id of the event or request that started it.
    pub started_by: String,
    pub started: String,
    pub updated: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The code of its failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    pub definition: String,
}

/// What an instance is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    End,
    /// A phase, by its name.
    Phase(String),
    /// A step, by its name, and its status.
    Step(String, String),
}

/// Whether an instance has got there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reached {
    pub reached: bool,
    /// It has ended, so that what was not reached never will be.
    pub ended: bool,
    pub instance: InstanceBrief,
}

/// An entry of a history as it happens.
#[derive(Debug, Clone)]
pub enum Happened {
    Entry {
        /// Rises with each entry of the instance.
        id: u64,
        entry: super::HistoryView,
    },
    /// Nothing comes behind it.
    End(InstanceBrief),
}
