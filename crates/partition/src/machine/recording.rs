//! What the history of an instance tells of an input.

use saga_runner_kernel::input::{Control, Input, InputBody, OnConflict, Origin, SourceStream};
use saga_runner_kernel::patch::{IgnoreReason, Note, Outcome};
use saga_runner_kernel::record::Record;

use super::staging::Run;
use crate::storage::StorageError;
use crate::storage::kept::KeptWork;
use crate::storage::rows::{HistoryOutcome, HistoryRow};

impl Run<'_> {
    /// Adds a row to the history of the instance, with the input; `after` names it as the newest.
    pub fn write_history(
        &self,
        input: &Input,
        previous: Option<u64>,
        after: &mut Record,
        entry: HistoryEntry,
        log_sequence: u64,
    ) -> Result<(), StorageError> {
        let mut notes = entry.notes;
        if matches!(input.origin, Origin::Edited { .. }) {
            notes.push(Note::Edited);
        }
        let row = HistoryRow {
            instance: input.instance.clone(),
            input_id: input.id.clone(),
            kind: kind_in_full(input),
            time: input.time,
            source: source(input),
            outcome: entry.outcome,
            notes,
            late_source: entry.late_source,
            previous,
        };
        after.last_history = Some(log_sequence);
        self.batch.put_history(log_sequence, &row)?;
        let keep = self.ground.keep;
        self.batch
            .put_work_of(log_sequence, entry.work, keep.work_bytes)?;
        match &input.body {
            // Its row says all that there is to it.
            InputBody::Timer { .. } => {}
            body => self.batch.put_input(log_sequence, body, keep.input_bytes)?,
        }
        if keep.history_count > 0 && is_drawn(log_sequence) {
            self.batch.cut_history(log_sequence, keep.history_count)?;
        }
        Ok(())
    }
}

/// One row of this many is followed by a look at how long the history of its instance is: nothing counts its rows.
const CUT_EVERY: u64 = 1_024;

/// Whether the row of this log sequence is one of those. Spread, since an instance may have every second row, say.
const fn is_drawn(log_sequence: u64) -> bool {
    // Fibonacci hashing: 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 6.4).
    let spread = log_sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    spread < u64::MAX / CUT_EVERY
}

/// What the history tells of an input besides the input.
pub struct HistoryEntry {
    pub outcome: HistoryOutcome,
    pub notes: Vec<Note>,
    pub late_source: bool,
    /// What it has caused to be sent.
    pub work: Vec<KeptWork>,
}

/// Whether the history tells that an input was of no use: whoever gave the command looks there. A repetition was of use
/// before, and a heartbeat may come as often as it likes.
pub(super) const fn is_told(input: &Input, outcome: Outcome) -> bool {
    let Outcome::Ignored(reason) = outcome else {
        return false;
    };
    match &input.body {
        _ if matches!(reason, IgnoreReason::Duplicate) => false,
        // Whoever asks for the one that runs gets it, and nothing has happened.
        InputBody::Control(Control::Start {
            parent, on_conflict, ..
        }) => parent.is_none() && !matches!(on_conflict, OnConflict::UseExisting),
        InputBody::Control(
            Control::Cancel { .. }
            | Control::Retry
            | Control::DecideStuck(_)
            | Control::Operate(_)
            | Control::Signal { .. }
            | Control::Callback { .. },
        ) => true,
        _ => false,
    }
}

/// What an input is called in histories and dead letters.
pub fn kind_in_full(input: &Input) -> String {
    match &input.body {
        InputBody::Event(event) => match &event.via {
            None => format!("event {}", event.event_type),
            Some(via) => format!(
                "event {} by {} {}",
                event.event_type, via.alias.name, via.alias.value
            ),
        },
        InputBody::Result(result) => match &result.effect {
            Some(effect) => format!("result of {effect}"),
            None => "verdict of the gateway".to_owned(),
        },
        InputBody::Timer { name } => format!("timer {name}"),
        InputBody::Control(control) => match control {
            Control::Migrate { to, .. } => format!("migration to {to}"),
            Control::Signal { name, .. } => format!("signal {name}"),
            Control::DecideStuck(decision) => decision.verdict.as_str().to_owned(),
            Control::Operate(operation) => operation.verb.as_str().to_owned(),
            Control::Cancel { .. } => "cancel".to_owned(),
            Control::Retry => "retry".to_owned(),
            Control::Start { .. } => "start".to_owned(),
            Control::CancelChild { .. } => "cancel_child".to_owned(),
            Control::Callback { .. } => "callback".to_owned(),
            Control::Heartbeat { .. } => "heartbeat".to_owned(),
            Control::RegisterAlias { .. } => "registration of an alias".to_owned(),
            Control::ReleaseAlias { .. } => "release of an alias".to_owned(),
            Control::AskAlias { .. } => "question to an alias".to_owned(),
            Control::AliasRead { .. } => "answer of an alias".to_owned(),
            Control::AliasAnswered { via, refused } => {
                let what = if *refused { "refusal" } else { "acceptance" };
                format!("{what} by {} {}", via.alias.name, via.alias.value)
            }
        },
    }
}

pub const fn source(input: &Input) -> Option<(SourceStream, u64)> {
    match input.origin {
        Origin::Stream { stream, sequence } => Some((stream, sequence)),
        Origin::Timer | Origin::Local | Origin::Edited { .. } => None,
    }
}
