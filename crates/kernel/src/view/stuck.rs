//! Steps and compensations of an instance that wait for an operator.

use serde::Serialize;

use crate::ledger::LedgerStatus;
use crate::record::{Question, Record, StepStatus};

/// Something that waits for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StuckView {
    pub step: String,
    /// Index of the item, in a loop over a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    pub what: StuckIn,
    /// The command of unknown outcome, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    /// The idempotency key with which its upstream was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// What an operator is to decide about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StuckIn {
    /// Whether what the step does has happened.
    Step,
    /// What happens to what it did.
    Compensation,
}

pub(super) fn stuck(record: &Record, step_name: &impl Fn(usize) -> String) -> Vec<StuckView> {
    let asked = |question: Option<&Question>| StuckView {
        step: String::new(),
        item: None,
        what: StuckIn::Step,
        command_id: question.map(|question| question.command.to_string()),
        idempotency_key: question.map(|question| question.idempotency_key.clone()),
        message: question.map(|question| question.message.clone()),
        since: question.map(|question| question.since.rfc3339()),
    };
    let of_steps = record
        .step_states()
        .filter(|(_, _, state)| state.status == StepStatus::Stuck)
        .map(|(step, item, state)| StuckView {
            step: step_name(usize::from(step)),
            item,
            ..asked(state.question.as_deref())
        });
    let mut stuck: Vec<StuckView> = of_steps.collect();
    let entries = record.ledger.having(|status| status == LedgerStatus::Stuck);
    stuck.extend(entries.map(|(_, entry)| StuckView {
        step: step_name(usize::from(entry.step)),
        item: entry.item,
        what: StuckIn::Compensation,
        ..asked(entry.question.as_deref())
    }));
    stuck
}
