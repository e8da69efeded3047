//! The instance record: all that an instance remembers between two inputs.
//!
//! Its encoding (postcard behind a format byte) is a stored format; golden bytes guard it.

mod size;
mod step;

use std::collections::BTreeMap;

use saga_runner_language::alias::Alias;
use saga_runner_language::ids::{CommandId, DefinitionHash, Key, SagaName, TimeMs};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::input::CancelMode;
use super::instance_status::Listing;
use super::ledger::Ledger;
use super::patch::TimerRow;
pub use saga_runner_language::status::{Phase, StepStatus};
pub use step::{ClassFailures, Doubt, Outstanding, Question, Sent, StepState, Stray, Tries};

/// How many event ids an instance remembers to recognise a producer's duplicates.
pub const SEEN_EVENTS_MAX: usize = 64;
/// How many commands an instance remembers whose results were definite, to recognise a second, other result.
pub const SEEN_RESULTS_MAX: usize = 16;

/// Of how many aggregates an instance remembers which of their events it has applied.
pub const SOURCES_MAX: usize = 16;

/// How many commands of unknown outcome an instance remembers.
pub const DOUBTS_MAX: usize = 32;

/// State of one instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Rises when a finished key is opened again.
    pub generation: u32,
    /// The definition that this instance runs under.
    pub definition: DefinitionHash,
    /// Number of inputs applied.
    pub version: u64,
    pub phase: Phase,
    pub started: TimeMs,
    /// Time of the latest input applied; it never goes back.
    pub updated: TimeMs,
    /// Id of the event or request that started the instance.
    pub start_event: String,
    /// Correlation id of the message that started the instance, where it differs from the key.
    pub root_correlation_id: Option<String>,
    pub traceparent: Option<String>,
    pub hops: u32,
    /// What it was given if a request started it: one JSON object.
    pub input: Option<ByteBuf>,
    /// The instance whose step has started it.
    pub parent: Option<Box<Parent>>,
    /// The user's state: one JSON object, keys sorted.
    pub data: ByteBuf,
    /// Index of the machine state, where the definition has a machine.
    pub machine: Option<MachineState>,
    /// One per step of the definition, in its order.
    pub steps: Vec<StepState>,
    /// What would have to be undone, oldest first.
    pub ledger: Ledger,
    /// Work that nothing waits for any more and whose outcome is still to come.
    pub strays: Vec<Stray>,
    /// Commands of unknown outcome whose success would still be of use, oldest first, at most [`DOUBTS_MAX`].
    pub doubts: Vec<Doubt>,
    /// Steps that have done something, or may have, of which no entry of the ledger tells: by index, rising. Another go at the
    /// instance must not do it once more.
    pub off_ledger: Vec<u16>,
    /// Events and signals that came before the step that waits for them, oldest first.
    pub buffer: Vec<Buffered>,
    /// Timers that are set, by name.
    pub timers: BTreeMap<String, TimerRow>,
    pub failure: Option<Failure>,
    /// How it completes, where that is early.
    pub early: Option<Box<EarlyEnd>>,
    /// The last events and controls applied, oldest first, at most [`SEEN_EVENTS_MAX`].
    pub seen_events: Vec<Seen>,
    /// The aggregates whose events were applied, the one of the newest event last, at most [`SOURCES_MAX`].
    pub sources: Vec<Source>,
    /// The last definite results applied, oldest first, at most [`SEEN_RESULTS_MAX`].
    pub seen_results: Vec<Seen>,
    /// Inputs that wait in the inbox because the present state defers them.
    pub deferred: u32,
    /// Log sequence of the newest history row of this instance; each row names the one before.
    pub last_history: Option<u64>,
    /// The version from which it was brought over to this one, so that this can be undone.
    pub left: Option<Left>,
    /// What a program has asked for, where the definition has one.
    pub program: Option<Box<ProgramState>>,
    /// What it has registered and not released, oldest first, at most [`saga_runner_language::limits::Limits::aliases`].
    pub aliases: Vec<Registered>,
    /// What it has released at its end, for another go at it.
    pub released: Vec<Alias>,
    /// Who has paused it, while it is paused.
    pub paused: Option<Box<Paused>>,
    /// Where it stands in the index of its partition, which alone changes that.
    pub listing: Option<Box<Listing>>,
}

/// By whom an instance or a schedule was paused, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    pub by: String,
    pub reason: String,
    pub since: TimeMs,
}

/// An alias that an instance has registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    pub alias: Alias,
    /// The alias has refused it, so events that are matched by it do not find the instance.
    pub refused: bool,
}

/// What an instance remembers for its program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramState {
    /// Work whose outcome is to come, oldest first.
    pub pending: Vec<Pending>,
    /// The program has said that the instance is complete; it ends when nothing is under way any more.
    pub completing: bool,
    /// The outcome of work that did not succeed, by name, oldest first, at most [`PROGRAM_TRIES_MAX`].
    pub tries: Vec<ProgramTries>,
}

/// Most names of a program's work for which it is remembered the outcome of it.
pub const PROGRAM_TRIES_MAX: usize = 256;

/// What the attempts under one name of a program came to so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramTries {
    pub name: String,
    /// As [`Tries::round`].
    pub round: u32,
    /// As [`Tries::unknown`].
    pub unknown: bool,
}

/// Work of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// The program's own name for it.
    pub name: String,
    pub outstanding: Outstanding,
}

/// A version that an instance has left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    pub definition: DefinitionHash,
    /// Steps of that version that had ended and have no place in the present one, by index.
    pub forgotten: Vec<(u16, StepStatus)>,
}

/// What an instance knows of the one that started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    pub saga: SagaName,
    pub key: Key,
    /// The command that started the instance.
    pub command: CommandId,
    /// How many sagas are above it.
    pub depth: u32,
    /// Whether the parent waits for the outcome.
    pub waits: bool,
    /// Whether the parent may undo it, for which the ledger outlives its completion.
    pub undoable: bool,
    /// Whether the outcome was told.
    pub answered: bool,
    /// The command that asks for it to be undone, until that is answered.
    pub undo: Option<CommandId>,
}

/// What an instance remembers of an input that it applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Hash of the id.
    pub id: u64,
    /// Hash of the content, byte for byte.
    pub content: u32,
}

/// Where a machine stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineState {
    /// Index into the states of the definition.
    pub state: u16,
    /// How many states were entered so far; part of the idempotency keys of what they emit.
    pub entries: u64,
}

/// Something that came early.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffered {
    pub kind: MessageKind,
    /// The event type, the name of the signal, or the idempotency key of the work that is called back.
    pub name: String,
    pub time: TimeMs,
    /// The record's version with which it came.
    pub version: u64,
    /// JSON: what expressions see as `event` or `signal`; of a callback that says failure, class and message.
    pub value: ByteBuf,
}

/// What a step may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MessageKind {
    Event,
    Signal,
    /// A callback that says that it is done.
    Callback,
    /// A callback that says that it failed.
    CallbackFailed,
}

/// Which events of an aggregate were applied, by their sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Hash of its type and id.
    pub aggregate: u64,
    /// The highest sequence that was applied.
    pub highest: u64,
    /// Which of the 64 below it were, the lowest bit being the one right below.
    pub below: u64,
    /// Two of its events had one sequence, so these say nothing.
    pub repeats: bool,
}

/// Why an instance failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What `fail: {code}` says, or the error class of the step that failed.
    pub code: String,
    pub message: String,
    /// Name of the step that failed, if one did.
    pub step: Option<String>,
    pub time: TimeMs,
    /// How it was cancelled, where that began it; the instance then ends as cancelled.
    pub cancelled: Option<CancelMode>,
    /// What is in flight comes to its own end before anything is undone.
    pub drain: bool,
    /// Names of steps that are not undone.
    pub keep: Vec<String>,
}

/// The end of an instance that completes before everything is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyEnd {
    /// What `complete: {outcome}` says.
    pub outcome: String,
    /// Whether `finally` has begun: what is undone on the way is undone first.
    pub begun: bool,
}

/// What stays of an instance that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The final record.
    pub record: Record,
    pub ended: TimeMs,
}

/// Why stored bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("record has format {found}, this binary reads up to {newest}")]
    Newer { found: u8, newest: u8 },
    #[error("record cannot be decoded: {0}")]
    Broken(String),
}

/// Format that this binary writes.
pub const RECORD_FORMAT: u8 = 1;

impl Record {
    /// That of an instance which begins and has neither state nor steps.
    #[must_use]
    pub fn opened(generation: u32, definition: DefinitionHash, start_event: &str, time: TimeMs) -> Self {
        Self {
            generation,
            definition,
            version: 0,
            phase: Phase::Running,
            started: time,
            updated: time,
            start_event: start_event.to_owned(),
            root_correlation_id: None,
            traceparent: None,
            hops: 0,
            input: None,
            parent: None,
            data: ByteBuf::new(),
            machine: None,
            steps: Vec::new(),
            ledger: Ledger::default(),
            strays: Vec::new(),
            doubts: Vec::new(),
            off_ledger: Vec::new(),
            buffer: Vec::new(),
            timers: BTreeMap::new(),
            failure: None,
            early: None,
            seen_events: Vec::new(),
            sources: Vec::new(),
            seen_results: Vec::new(),
            deferred: 0,
            last_history: None,
            left: None,
            program: None,
            aliases: Vec::new(),
            released: Vec::new(),
            paused: None,
            listing: None,
        }
    }

    /// Encodes the record: the format byte, then postcard.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_bytes_at_most());
        bytes.push(RECORD_FORMAT);
        postcard::to_extend(self, bytes).expect("a record holds only types that postcard can encode")
    }

    /// Decodes what [`Record::encode`] wrote.
    ///
    /// # Errors
    /// [`RecordError::Newer`] for a format above [`RECORD_FORMAT`], [`RecordError::Broken`] for anything
    /// that is not a record.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        match bytes.split_first() {
            Some((&RECORD_FORMAT, body)) => {
                postcard::from_bytes(body).map_err(|error| RecordError::Broken(error.to_string()))
            }
            Some((&found, _)) if found > RECORD_FORMAT => Err(RecordError::Newer {
                found,
                newest: RECORD_FORMAT,
            }),
            Some((&found, _)) => Err(RecordError::Broken(format!("format {found} never existed"))),
            None => Err(RecordError::Broken("empty".to_owned())),
        }
    }

    /// The states of all steps in the order in which they are looked at: index in the definition, the item that it runs
    /// for where it stands in a loop over a list, and the state.
    pub fn step_states(&self) -> impl Iterator<Item = (u16, Option<u32>, &StepState)> {
        (0..=u16::MAX).zip(&self.steps).flat_map(|(step, state)| {
            let items = state.items.iter().flat_map(|items| {
                let first = items.first;
                items.running.iter().flat_map(move |item| {
                    let steps = (first..=u16::MAX).zip(&item.steps);
                    steps.map(move |(step, state)| (step, Some(item.index), state))
                })
            });
            std::iter::once((step, None, state)).chain(items)
        })
    }

    /// What stays of it where an operator deletes it: by what repetitions of its inputs are recognised, and nothing that it was told
    /// or did.
    #[must_use]
    pub fn forgotten(&self) -> Self {
        Self {
            version: self.version,
            phase: self.phase,
            updated: self.updated,
            seen_events: self.seen_events.clone(),
            sources: self.sources.clone(),
            seen_results: self.seen_results.clone(),
            ..Self::opened(self.generation, self.definition, &self.start_event, self.started)
        }
    }

    /// All commands whose outcome is to come, whoever waits for it.
    pub fn outstanding(&self) -> impl Iterator<Item = Outstanding> {
        let of_steps = self.step_states().filter_map(|(_, _, state)| state.outstanding);
        let of_ledger = self.ledger.outstanding().map(|(_, outstanding)| outstanding);
        let of_strays = self.strays.iter().map(|stray| stray.outstanding);
        let of_program = self
            .program
            .iter()
            .flat_map(|program| program.pending.iter().map(|pending| pending.outstanding));
        of_steps.chain(of_ledger).chain(of_strays).chain(of_program)
    }

    /// Lets `change` see what is known of every command whose outcome is to come. Those of the ledger are looked for one by one:
    /// not for what happens at each input.
    pub(crate) fn for_each_outstanding(&mut self, mut change: impl FnMut(&mut Outstanding)) {
        let of_ledger: Vec<usize> = self.ledger.outstanding().map(|(at, _)| at).collect();
        for at in of_ledger {
            self.ledger.entry(at).outstanding.iter_mut().for_each(&mut change);
        }
        for state in &mut self.steps {
            let items = state.items.iter_mut().flat_map(|items| &mut items.running);
            let of_items = items.flat_map(|item| &mut item.steps);
            let of_items = of_items.filter_map(|state| state.outstanding.as_mut());
            of_items.for_each(&mut change);
            state.outstanding.iter_mut().for_each(&mut change);
        }
        let strays = self.strays.iter_mut().map(|stray| &mut stray.outstanding);
        strays.for_each(&mut change);
        let programs = self.program.iter_mut().flat_map(|program| &mut program.pending);
        programs.map(|pending| &mut pending.outstanding).for_each(change);
    }

    /// The ledger does without the entries that were at these positions: what is of a turn or an item stands behind the same
    /// ones as before.
    pub(crate) fn forget_entries(&mut self, positions: &[usize]) {
        for state in &mut self.steps {
            let items = state.items.iter_mut().flat_map(|items| &mut items.running);
            let of_items = items.flat_map(|item| &mut item.steps);
            let of_items = of_items.map(|state| &mut state.ledger_before);
            for before in of_items.chain([&mut state.ledger_before]) {
                let first = usize::try_from(*before).unwrap_or(usize::MAX);
                let fewer = positions.partition_point(|position| *position < first);
                *before -= u32::try_from(fewer).unwrap_or(0);
            }
        }
    }

    /// How the instance ends or has ended, in one word: what `complete` said, else `completed`, `failed` or
    /// `cancelled`.
    #[must_use]
    pub fn outcome(&self) -> &str {
        match (&self.failure, &self.early) {
            (None, Some(early)) => &early.outcome,
            _ => self.end().as_str(),
        }
    }

    /// How the instance ends once nothing is left to do.
    #[must_use]
    pub fn end(&self) -> Phase {
        match &self.failure {
            None => Phase::Completed,
            Some(failure) if failure.cancelled.is_some() => Phase::Cancelled,
            Some(_) => Phase::Failed,
        }
    }

    /// Whether it has registered the alias and not given it up, refused or not.
    #[must_use]
    pub fn has_alias(&self, alias: &Alias) -> bool {
        self.aliases.iter().any(|registered| registered.alias == *alias)
    }

    /// Whether nothing can come back for this instance: no outcome is awaited, no compensation is under way,
    /// waits for its next attempt, or for an operator.
    #[must_use]
    pub fn has_nothing_open(&self) -> bool {
        self.outstanding().next().is_none() && !self.ledger.has(|status| !status.rests())
    }
}

#[cfg(test)]
mod tests;
