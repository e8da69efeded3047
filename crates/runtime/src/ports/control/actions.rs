//! What can be done to an instance as it is now.

use serde::Serialize;

/// The requests that an instance would apply now, and why it would not apply the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Actions {
    pub saga: String,
    pub key: String,
    pub phase: &'static str,
    pub possible: Vec<Action>,
    /// Of what is done to an instance as a whole.
    pub refused: Vec<RefusedAction>,
    /// The dead letter that blocks it: to retry or to discard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<String>,
    /// There are more steps, timers and signals than were looked at.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// A request that would be applied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Action {
    /// As the path of the endpoint ends: `cancel`, `try-now`, `timers/{name}/fire`; `delete`: the method of the instance's own.
    pub action: &'static str,
    /// The step that the request has to name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Its item, in a loop over a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// The timer or signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The version to migrate to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// It migrates back to the version that the instance came from: `"undo": true`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
    /// What it may say as `as`, of which it needs one: `done`, `not_done`.
    #[serde(rename = "as", skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<&'static str>,
    /// What it has to say as `result` besides `"as": "done"`: the members that the effect declares, with values to be replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
    /// It begins an instance that has ended: `"ended": true`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// It needs a `reason`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub needs_reason: bool,
}

/// A request that would not be applied, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedAction {
    pub action: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    pub reason: String,
}
