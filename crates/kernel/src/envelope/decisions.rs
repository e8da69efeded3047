//! What operators decide, as control messages say it, and as instances take it.

use serde::{Deserialize, Serialize};

use super::control::Principal;
use crate::input::{Finding, Found, Operation, OperationVerb, StuckDecision, Verdict};
use crate::transition::NOTHING;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundAs {
    Done,
    NotDone,
}

/// What an operator has found out about a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepFound {
    pub step: String,
    #[serde(rename = "as")]
    pub found: FoundAs,
    /// What it has given, where it has happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
}

impl StepFound {
    /// The same as the instance takes it.
    ///
    /// # Errors
    /// A sentence for whoever says so.
    pub fn finding(self) -> Result<Finding, &'static str> {
        let found = match (self.found, self.result) {
            (FoundAs::Done, result) => Found::Done {
                result: result.map_or("{}".to_owned(), |result| result.to_string()),
            },
            (FoundAs::NotDone, None) => Found::NotDone,
            (FoundAs::NotDone, Some(_)) => return Err("only what is resolved as done has a result"),
        };
        Ok(Finding {
            step: self.step,
            found,
        })
    }
}

/// What an operator does, checked.
///
/// # Errors
/// A sentence for whoever asks.
pub fn operation(verb: OperationVerb, principal: Principal) -> Result<Operation, &'static str> {
    let lacks = match &verb {
        OperationVerb::Kill => Some("`kill` needs a `reason`"),
        OperationVerb::Delete { .. } => Some("`delete` needs a `reason`"),
        _ => None,
    };
    if let Some(message) = lacks.filter(|_| principal.reason.trim().is_empty()) {
        return Err(message);
    }
    Ok(Operation {
        verb,
        by: principal.who,
        reason: principal.reason,
    })
}

/// What an operator speaks of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stuck {
    /// Only what this step did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Only what it did for this item of a loop over a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// Whether the action of a step has happened: said by whoever resolves or skips it.
    #[serde(rename = "as", default, skip_serializing_if = "Option::is_none")]
    pub found: Option<FoundAs>,
    /// What it has given, where it has; of a step that is skipped, what others read as its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<serde_json::Value>,
}

impl Stuck {
    /// The verdict in full. It is about entries of the ledger where nothing is said of what was found.
    ///
    /// # Errors
    /// A sentence for whoever says so.
    pub fn decide(self, verdict: Verdict, principal: Principal) -> Result<StuckDecision, &'static str> {
        if verdict == Verdict::Skip {
            return self.skip(principal);
        }
        let found = match (self.found, self.result) {
            (None, None) => None,
            _ if verdict != Verdict::Resolve => {
                return Err("only `resolve` and `skip` take `as` and `result`");
            }
            (Some(_), _) if self.step.is_none() => return Err("`as` is about a step: say which"),
            (Some(FoundAs::Done), result) => Some(Found::Done {
                result: result.map_or("{}".to_owned(), |result| result.to_string()),
            }),
            (Some(FoundAs::NotDone), None) => Some(Found::NotDone),
            (None | Some(FoundAs::NotDone), Some(_)) => {
                return Err("only what is resolved as done has a result");
            }
        };
        Ok(StuckDecision {
            verdict,
            step: self.step,
            item: self.item,
            by: principal.who,
            reason: principal.reason,
            found,
            result: None,
        })
    }

    fn skip(self, principal: Principal) -> Result<StuckDecision, &'static str> {
        if principal.reason.trim().is_empty() {
            return Err("`skip` needs a `reason`");
        }
        if self.step.is_none() && (self.found.is_some() || self.result.is_some()) {
            return Err("`as` and `result` are about a step: say which");
        }
        let result = self.result.map(|result| result.to_string());
        let found = self.found.map(|found| match found {
            FoundAs::Done => Found::Done {
                result: result.clone().unwrap_or_else(|| NOTHING.to_owned()),
            },
            FoundAs::NotDone => Found::NotDone,
        });
        Ok(StuckDecision {
            verdict: Verdict::Skip,
            step: self.step,
            item: self.item,
            by: principal.who,
            reason: principal.reason,
            found,
            result,
        })
    }
}
