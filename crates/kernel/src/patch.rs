//! What a transition changes: rows put and deleted, never a handle to storage.

use saga_runner_language::ids::TimeMs;
use serde::{Deserialize, Serialize};

use super::record::{Record, Summary};
use super::work::{WorkItem, WorkRef};

/// The result of one transition, to be applied to one shard in one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    pub outcome: Outcome,
    /// The record after the transition; `None` leaves it (or its absence) as it is, or the instance has
    /// ended and its last record is in [`Patch::ended`].
    pub record: Option<Record>,
    /// Rows to append to the outbox: item `i` becomes `WorkRef { log_sequence, index: i }`, with the log
    /// sequence that the transition was given.
    pub work: Vec<WorkItem>,
    /// Outbox rows whose outcome is known, to delete.
    pub completed: Vec<WorkRef>,
    pub timers_set: Vec<TimerRow>,
    pub timers_cleared: Vec<TimerRow>,
    /// Whether the input is to be kept in the inbox and given again after [`Patch::readmit`].
    pub deferred: bool,
    /// Set where the input is to wait in the inbox for an instance that may begin: until when.
    pub early: Option<TimeMs>,
    /// Whether deferred inputs of this instance are to be given again now, oldest first.
    pub readmit: bool,
    /// Set when the instance has ended and nothing can come back for it: its record leaves the table of
    /// live instances, and this summary and a tombstone stay.
    pub ended: Option<Summary>,
    /// What happened, for the history of the instance.
    pub notes: Vec<Note>,
}

impl Patch {
    /// A patch that changes nothing.
    #[must_use]
    pub const fn ignored(reason: IgnoreReason) -> Self {
        Self {
            outcome: Outcome::Ignored(reason),
            record: None,
            work: Vec::new(),
            completed: Vec::new(),
            timers_set: Vec::new(),
            timers_cleared: Vec::new(),
            deferred: false,
            early: None,
            readmit: false,
            ended: None,
            notes: Vec::new(),
        }
    }
}

/// The outcome of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Applied,
    Deferred,
    Ignored(IgnoreReason),
}

/// Why an input changed nothing. The set is closed: it labels a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IgnoreReason {
    /// No instance, and this input does not start one.
    NoInstance,
    /// The instance has ended.
    Ended,
    /// It is among the last inputs that this instance applied.
    Duplicate,
    /// A result or timer of work that is no longer current.
    Stale,
    /// A result for a command that this instance never sent.
    Orphan,
    /// Neither the definition nor its present state has a handler for it.
    NoHandler,
    /// One of the last inputs that this instance applied has the same id and another content: the first one
    /// stands, and this one is a dead letter.
    Conflict,
    /// The key rule of another version brought it here; that of the instance's own version gives another key.
    OtherKey,
    /// It asks to migrate to another version, in which something that the instance has has no place.
    Refused,
    /// A request to start an instance that is there.
    Exists,
    /// An event whose aggregate has another event of this sequence, which was applied.
    SameSequence,
    /// An event so far behind another one of its aggregate that it is no longer known whether it was applied.
    TooOld,
    /// An event or a signal that came before a step waits for it, which does not keep what comes early.
    Early,
    /// An operator asks for what is so already, or about what is not there.
    NothingToDo,
    /// A request under the id of another one, which was applied.
    Mismatch,
}

impl IgnoreReason {
    pub const ALL: [Self; 15] = [
        Self::NoInstance,
        Self::Ended,
        Self::Duplicate,
        Self::Stale,
        Self::Orphan,
        Self::NoHandler,
        Self::Conflict,
        Self::OtherKey,
        Self::Refused,
        Self::Exists,
        Self::SameSequence,
        Self::TooOld,
        Self::Early,
        Self::NothingToDo,
        Self::Mismatch,
    ];

    /// The label value of this reason.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoInstance => "no_instance",
            Self::Ended => "ended",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Orphan => "orphan",
            Self::NoHandler => "no_handler",
            Self::Conflict => "conflict",
            Self::OtherKey => "other_key",
            Self::Refused => "refused",
            Self::Exists => "exists",
            Self::SameSequence => "same_sequence",
            Self::TooOld => "too_old",
            Self::Early => "early",
            Self::NothingToDo => "nothing_to_do",
            Self::Mismatch => "input_mismatch",
        }
    }
}

/// One row of the due index. The record holds the same triple, so either can be found from the other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TimerRow {
    pub due: TimeMs,
    /// Makes the row unique among timers due at the same instant: the log sequence of the input that set
    /// it, and its index among the timers of that input.
    pub set_by: WorkRef,
    /// Name within the instance, e.g. `unpaid` or `retry:charge.compensate`.
    pub name: String,
    /// How often it has fired since it was set, where it repeats.
    pub fired: u32,
}

/// One thing that a transition did, as the history stores and shows it: `{"step_done": {"step": ...}}`.
///
/// Stored by index and tagged from outside, which the storage's encoding needs: new notes go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    Started,
    StepStarted {
        step: String,
        attempt: u32,
    },
    StepDone {
        step: String,
    },
    StepFailed {
        step: String,
        class: String,
    },
    StepSkipped {
        step: String,
    },
    StepAbandoned {
        step: String,
    },
    LateResult {
        step: String,
        outcome: String,
    },
    StateEntered {
        state: String,
    },
    TimerSet {
        timer: String,
        #[serde(with = "readable_time")]
        due: TimeMs,
    },
    TimerFired {
        timer: String,
    },
    TimerCleared {
        timer: String,
    },
    Emitted {
        work: String,
    },
    Failing {
        code: String,
    },
    CompensationStarted {
        step: String,
        attempt: u32,
    },
    CompensationDone {
        step: String,
    },
    CompensationFailed {
        step: String,
        class: String,
    },
    Ended {
        phase: String,
    },
    /// An aggregate command for which no step waits was refused.
    CommandRefused {
        command: String,
        class: String,
    },
    /// An alternative of a choice was taken, the first being 0.
    BranchTaken {
        step: String,
        branch: u16,
    },
    /// An attempt of a step failed, and another one follows.
    AttemptFailed {
        step: String,
        attempt: u32,
        class: String,
    },
    /// A step failed, and the instance goes on as if it were done.
    StepContinued {
        step: String,
        class: String,
    },
    /// The instance went back to a step, which begins again with all that needs it.
    WentBack {
        step: String,
    },
    /// A loop with a condition begins a turn, the first being 0.
    TurnStarted {
        step: String,
        turn: u32,
    },
    /// A loop over a list begins.
    ItemsStarted {
        step: String,
        items: u32,
    },
    ItemDone {
        step: String,
        item: u32,
    },
    ItemFailed {
        step: String,
        item: u32,
        class: String,
    },
    /// A step starts later.
    StepDelayed {
        step: String,
    },
    /// A step waits for an event or a signal.
    StepWaits {
        step: String,
    },
    /// An event or a signal came before the step that waits for it.
    Buffered {
        name: String,
    },
    /// A signal was taken.
    Signalled {
        signal: String,
        by: String,
    },
    /// The instance went over to another version.
    Migrated {
        from: String,
        to: String,
    },
    /// What the step did stays done: the condition of its compensation does not hold, or its attempts are used up
    /// and the others go on.
    CompensationSkipped {
        step: String,
    },
    /// It is unknown whether there is something to undo, and an operator is asked.
    CompensationAsked {
        step: String,
    },
    /// An operator has decided about a step that was stuck, or could not be undone.
    StuckDecided {
        step: String,
        verdict: String,
        by: String,
        reason: String,
    },
    /// An effect of `finally` has failed for good; the outcome stands.
    FinallyFailed {
        step: String,
        class: String,
    },
    /// Whoever had the token of a piece of work said how it went.
    CalledBack {
        work: String,
    },
    /// Work that a program asked for has ended: `succeeded`, or with an error class.
    WorkEnded {
        work: String,
        outcome: String,
    },
    /// The instance completes before everything is done.
    CompletedEarly {
        outcome: String,
    },
    /// Whoever has the token of the step's work is still at it.
    Heartbeat {
        step: String,
    },
    /// Events that are matched by this value find the instance from now on.
    AliasRegistered {
        alias: String,
        value: String,
    },
    /// They find it no more.
    AliasReleased {
        alias: String,
        value: String,
    },
    /// The outcome of the action of a step is unknown, and an operator is asked.
    StepAsked {
        step: String,
    },
    /// An event was not applied because of its sequence: the highest one of its aggregate that was applied is this.
    SequenceKnown {
        sequence: u64,
        highest: u64,
    },
    /// An event or a signal that came before a step waits for it is not kept, or no longer.
    TooEarly {
        name: String,
    },
    /// A timer has fired while the effect that it emits is still under way: it is not begun once more.
    StillRunning {
        step: String,
    },
    /// The alias already has as many instances as it may have: events that it matches do not reach this one.
    AliasRefused {
        alias: String,
        value: String,
    },
    /// Events reach it now: an operator has retried the registration.
    AliasAccepted {
        alias: String,
        value: String,
    },
    /// An operator has done something to the instance: `pause`, `resume`, `kill`, `fire_timer`, `cancel_timer`, `try_now`,
    /// `terminate` (by a start in its place).
    Operated {
        verb: String,
        by: String,
        reason: String,
    },
    /// What was asked for is not done, and why.
    Refused {
        message: String,
    },
    /// The input is a dead letter that an operator has edited: these are the data of the edit.
    Edited,
    /// Who has decided about a dead letter, and why.
    LetterDecided {
        by: String,
        reason: String,
        /// The job that has decided; empty: a single request.
        #[serde(default)]
        job: String,
    },
}

/// A time that is stored as a number, and shown in RFC 3339.
mod readable_time {
    use saga_runner_language::ids::TimeMs;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
    pub fn serialize<S: Serializer>(time: &TimeMs, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&time.rfc3339())
        } else {
            time.serialize(serializer)
        }
    }

    /// Histories that were archived or fetched before have numbers.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Shown {
        Number(i64),
        Text(String),
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TimeMs, D::Error> {
        if !deserializer.is_human_readable() {
            return TimeMs::deserialize(deserializer);
        }
        match Shown::deserialize(deserializer)? {
            Shown::Number(ms) => Ok(TimeMs(ms)),
            Shown::Text(text) => {
                // Beyond the calendar a time is shown by its number.
                let time = TimeMs::read(&text).or_else(|| text.parse().ok().map(TimeMs));
                time.ok_or_else(|| D::Error::custom(format!("{text:?} is not a time in RFC 3339")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_of_notes_is_frozen() {
        let notes = vec![
            Note::Started,
            Note::StepStarted {
                step: "a".to_owned(),
                attempt: 1,
            },
            Note::TimerSet {
                timer: "t".to_owned(),
                due: TimeMs(1),
            },
            Note::Ended {
                phase: "failed".to_owned(),
            },
            Note::CommandRefused {
                command: "c".to_owned(),
                class: "x".to_owned(),
            },
            Note::BranchTaken {
                step: "s".to_owned(),
                branch: 1,
            },
            Note::ItemFailed {
                step: "s".to_owned(),
                item: 2,
                class: "x".to_owned(),
            },
        ];
        let bytes = postcard::to_stdvec(&notes).expect("encodes");
        assert_eq!(
            bytes,
            b"\x07\x00\x01\x01a\x01\x08\x01t\x02\x10\x06failed\x11\x01c\x01x\x12\x01s\x01\x19\x01s\x02\x01x"
        );
        assert_eq!(postcard::from_bytes::<Vec<Note>>(&bytes), Ok(notes.clone()));
        assert_eq!(
            serde_json::to_value(&notes[1]).expect("encodes"),
            serde_json::json!({"step_started": {"step": "a", "attempt": 1}})
        );
    }

    #[test]
    fn a_time_in_a_note_is_shown_as_text_and_read_as_text_or_number() {
        let note = |due| Note::TimerSet {
            timer: "t".to_owned(),
            due: TimeMs(due),
        };
        let shown = |due: serde_json::Value| serde_json::json!({"timer_set": {"timer": "t", "due": due}});
        for (due, text) in [
            (1_764_000_000_500, "2025-11-24T16:00:00.500Z"),
            (i64::MAX, "9223372036854775807"),
        ] {
            let told = serde_json::to_value(note(due)).expect("encodes");
            assert_eq!(told, shown(text.into()));
            for form in [text.into(), due.into()] {
                let read = serde_json::from_value::<Note>(shown(form)).expect("a note");
                assert_eq!(read, note(due));
            }
        }
        assert!(serde_json::from_value::<Note>(shown("soon".into())).is_err());
    }
}
