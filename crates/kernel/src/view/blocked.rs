//! What keeps an instance, or a part of it, from going on.

use saga_runner_language::ids::TimeMs;
use serde::Serialize;

use super::{TimerView, is_nothing};
use crate::ledger::LedgerStatus;
use crate::record::{Record, StepStatus};

/// How long after its time a timer counts as overdue; until then it may be about to fire.
const OVERDUE_MS: i64 = 1_000;

/// What an instance waits for that does not come by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockedView {
    /// Since when.
    pub since: String,
    /// The dead letter behind which its inputs wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<LetterView>,
    /// The definition that is not loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    /// Inputs that wait because of these.
    #[serde(skip_serializing_if = "is_nothing")]
    pub inputs: usize,
    /// Timers that are due and did not fire.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overdue: Vec<TimerView>,
    /// What waits for an operator; `stuck` has it in full.
    #[serde(skip_serializing_if = "is_nothing")]
    pub questions: usize,
    /// Who has paused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<PausedView>,
}

/// By whom an instance or a schedule was paused, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PausedView {
    pub by: String,
    pub reason: String,
    pub since: String,
}

/// A dead letter that stands in the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LetterView {
    /// By which it is decided on, where it can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub reason: String,
    pub message: String,
}

/// What is known of an instance's inputs beside its record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// The dead letter behind which they wait, and when that input was stored.
    pub behind: Option<(LetterView, TimeMs)>,
    /// The first of them that waits for the definition of the instance.
    pub unversioned: Option<TimeMs>,
    /// How many of them wait for either, or for a paused instance to be resumed.
    pub inputs: usize,
    /// Events that came while there was no instance and wait for one, and when the first of them was stored.
    pub early: usize,
    pub early_since: Option<TimeMs>,
}

impl BlockedView {
    /// What blocks a live instance at `now`: one rule for everyone who shows it.
    #[must_use]
    pub fn of(record: &Record, kept: Kept, now: TimeMs) -> Option<Self> {
        let overdue: Vec<_> = record
            .timers
            .values()
            .filter(|timer| timer.due.plus_ms(OVERDUE_MS) <= now)
            .collect();
        let steps = record
            .step_states()
            .filter(|(_, _, state)| state.status == StepStatus::Stuck)
            .map(|(_, _, state)| state.question.as_ref().map(|question| question.since));
        let entries = record.ledger.having(|status| status == LedgerStatus::Stuck);
        let entries = entries.map(|(_, entry)| entry.question.as_ref().map(|question| question.since));
        let questions: Vec<Option<TimeMs>> = steps.chain(entries).collect();
        let behind = kept.behind.as_ref().map(|(_, since)| *since);
        let paused = record.paused.as_ref();
        let since = [behind, kept.unversioned, paused.map(|paused| paused.since)]
            .into_iter()
            .flatten()
            .chain(overdue.iter().map(|timer| timer.due))
            .chain(questions.iter().map(|since| since.unwrap_or(record.updated)))
            .min()?;
        Some(Self {
            since: since.rfc3339(),
            dead_letter: kept.behind.map(|(letter, _)| letter),
            definition: kept.unversioned.map(|_| record.definition.to_string()),
            inputs: kept.inputs,
            overdue: overdue.into_iter().map(TimerView::of).collect(),
            questions: questions.len(),
            paused: paused.map(|paused| PausedView {
                by: paused.by.clone(),
                reason: paused.reason.clone(),
                since: paused.since.rfc3339(),
            }),
        })
    }
}
