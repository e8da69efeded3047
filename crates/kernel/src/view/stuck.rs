//! Steps and compensations of an instance that wait for an operator.

use serde::Serialize;

use crate::ledger::{LedgerEntry, LedgerStatus};
use crate::record::{Question, Record, StepStatus};

/// Something that waits for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StuckView {
    pub step: String,
    /// Index of the item, in a loop over a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    pub what: StuckIn,
    /// Of a compensation: nothing was undone, because the outcome of the step is unknown; an operator says whether it is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub outcome_unknown: bool,
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
        outcome_unknown: false,
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
    stuck.extend(entries.map(|(_, entry)| {
        let mut view = StuckView {
            step: step_name(usize::from(entry.step)),
            item: entry.item,
            what: StuckIn::Compensation,
            outcome_unknown: entry.asks,
            ..asked(entry.question.as_deref())
        };
        if entry.asks {
            tell_unknown(&mut view, record, &entry);
        }
        view
    }));
    stuck
}

/// What is known of a step of unknown outcome: its command, and the error with which its last attempt ended.
fn tell_unknown(view: &mut StuckView, record: &Record, entry: &LedgerEntry) {
    let mut doubts = record.doubts.iter().rev();
    let doubt = doubts.find(|doubt| {
        let is_of_entry =
            (doubt.step, doubt.item, doubt.iteration) == (entry.step, entry.item, entry.iteration);
        is_of_entry && doubt.on_ledger && !doubt.undo
    });
    view.command_id = doubt.map(|doubt| doubt.command.to_string());
    let mut states = record.step_states();
    let state = states.find(|(step, item, _)| (*step, *item) == (entry.step, entry.item));
    let class = state.and_then(|(_, _, state)| state.error.as_ref());
    view.message = class.map(|class| format!("its last attempt ended with {class}"));
}
