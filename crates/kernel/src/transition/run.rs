//! The working copy of one transition, and the patch that it becomes.

use saga_runner_language::definition::Definition;
use saga_runner_language::expr::Budget;
use saga_runner_language::ids::InstanceId;
use saga_runner_language::json::Json;
use serde_bytes::ByteBuf;

use super::arena::Arena;
use super::results::Mode;
use super::scope::Locals;
use super::slot::Slot;
use super::{Context, Rejection, Trace, doubts, seen};
use crate::input::{Control, DomainEvent, Input, InputBody, Origin};
use crate::patch::{Note, Outcome, Patch};
use crate::record::{Phase, Record, StepState, Summary};
use crate::trace;
use crate::work::{WorkItem, WorkRef};

/// What a transition works on; everything but the working copy is borrowed for its whole length.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    pub definition: &'a Definition,
    pub instance: &'a InstanceId,
    /// The record before.
    pub before: Option<&'a Record>,
    /// The last record of the generation before, where that is kept and another one is to begin.
    pub last: Option<&'a Record>,
    pub input: &'a Input,
    pub context: &'a Context<'a>,
    /// Bytes that came into being during the transition.
    pub texts: &'a Arena<Vec<u8>>,
    /// JSON parsed from them, from the record and from the input.
    pub values: &'a Arena<Json<'a>>,
    /// Who listens, if anybody does.
    pub trace: Option<&'a dyn Trace>,
}

/// One transition under way.
pub(super) struct Run<'a> {
    pub ground: Ground<'a>,
    pub record: Record,
    /// The user's state as it is now; the record gets it at the end.
    pub data: &'a [u8],
    pub budget: Budget,
    /// What took most of it so far, and how much.
    pub heaviest: Option<(u64, String)>,
    pub parsed: Parsed<'a>,
    pub work: Vec<WorkItem>,
    /// Which of them are not sent after all, by index.
    pub unsent: Vec<u16>,
    pub completed: Vec<WorkRef>,
    pub notes: Vec<Note>,
    pub readmit: bool,
    /// Timers set so far, the index of the next one.
    pub timers_set: u16,
    /// States that entry actions went on to, bounded by [`super::machine::HOPS_MAX`].
    pub entry_hops: u8,
    /// How often this input made the instance go back, bounded by [`super::errors::RETURNS_OF_INPUT_MAX`].
    pub returns: u8,
    /// The step of an item that is being led on.
    pub focus: Option<Slot>,
    /// What handlers for the end of an effect read besides.
    pub ambient: Locals<'a>,
    /// Results that came with this input.
    pub fresh: Vec<(Slot, &'a [u8])>,
    /// Entries of the ledger that steps have left which this input gave up or made fail, so nobody has what they did.
    pub left: Vec<(Slot, usize)>,
    /// Turns of loops that this input has begun, bounded in [`super::turns`].
    pub turns: u32,
    /// Items that this input has started, bounded in [`super::items`].
    pub items_started: u32,
    /// What is left out.
    pub mode: Mode,
}

/// What the message says that starts an instance.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Opening<'o> {
    /// Of the event or request.
    pub id: &'o str,
    pub correlation_id: Option<&'o str>,
    pub traceparent: Option<&'o str>,
    pub hops: u32,
    /// JSON; absent where an event starts it.
    pub input: Option<&'o [u8]>,
}

impl<'o> Opening<'o> {
    pub(super) fn event(event: &'o DomainEvent) -> Self {
        Self {
            id: event.event_id.as_str(),
            correlation_id: event.correlation_id.as_deref(),
            traceparent: event.traceparent.as_deref(),
            hops: event.hops,
            input: None,
        }
    }
}

/// JSON that expressions of this transition read, each parsed or built when the first one asks for it.
#[derive(Default)]
pub(super) struct Parsed<'a> {
    pub key: Option<&'a Json<'a>>,
    pub input: Option<&'a Json<'a>>,
    pub event: Option<&'a Json<'a>>,
    pub state: Option<&'a Json<'a>>,
    pub steps: Option<&'a Json<'a>>,
    pub failure: Option<&'a Json<'a>>,
    pub record: Option<&'a Json<'a>>,
    pub item: Option<&'a Json<'a>>,
    pub index: Option<&'a Json<'a>>,
    /// The result that is the input, by its bytes.
    pub result: Option<(&'a [u8], &'a Json<'a>)>,
}

impl<'a> Run<'a> {
    /// Continues an instance.
    pub(super) fn of(ground: Ground<'a>, record: &'a Record) -> Self {
        Self::with(ground, record.clone(), &record.data)
    }

    /// Opens an instance whose state is still to be rendered.
    pub(super) fn open(ground: Ground<'a>, origin: Opening<'_>) -> Self {
        let Ground {
            definition,
            instance,
            input,
            context,
            last,
            ..
        } = ground;
        let record = Record {
            root_correlation_id: origin
                .correlation_id
                .filter(|root| *root != instance.key.as_str())
                .map(str::to_owned),
            traceparent: Some(origin.traceparent.map_or_else(
                || trace::of_life(context.cluster, instance, origin.id),
                str::to_owned,
            )),
            hops: origin.hops,
            input: origin.input.map(ByteBuf::from),
            steps: definition.steps.iter().map(|_| StepState::pending()).collect(),
            // What an earlier generation has taken does not come twice.
            seen_events: last.map(|last| last.seen_events.clone()).unwrap_or_default(),
            sources: last.map(|last| last.sources.clone()).unwrap_or_default(),
            doubts: last
                .map(|last| doubts::of_before(definition, last))
                .unwrap_or_default(),
            program: super::program::first(definition.program.as_ref()),
            ..Record::opened(context.generation, definition.hash, origin.id, input.time)
        };
        Self::with(ground, record, b"{}")
    }

    fn with(ground: Ground<'a>, mut record: Record, data: &'a [u8]) -> Self {
        record.version = record.version.saturating_add(1);
        // The time of an instance never goes back: an input that was deferred or blocked would otherwise set
        // timers and deadlines that are over already.
        record.updated = record.updated.max(ground.input.time);
        match &ground.input.body {
            InputBody::Event(event) => record.hops = event.hops,
            InputBody::Control(Control::Signal { hops, .. }) => record.hops = *hops,
            InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => {}
        }
        Self {
            ground,
            record,
            data,
            budget: Budget {
                steps: ground.context.limits.expression_steps,
            },
            heaviest: None,
            parsed: Parsed::default(),
            work: Vec::new(),
            unsent: Vec::new(),
            completed: Vec::new(),
            notes: Vec::new(),
            readmit: false,
            timers_set: 0,
            entry_hops: 0,
            returns: 0,
            focus: None,
            ambient: Locals::default(),
            fresh: Vec::new(),
            left: Vec::new(),
            turns: 0,
            items_started: 0,
            mode: Mode::Whole,
        }
    }

    /// The event, where the input is one.
    pub(super) fn event(&self) -> Option<&'a DomainEvent> {
        match &self.ground.input.body {
            InputBody::Event(event) => Some(event),
            InputBody::Result(_) | InputBody::Timer { .. } | InputBody::Control(_) => None,
        }
    }

    /// Replaces the user's state.
    pub(super) fn replace_data(&mut self, data: Vec<u8>) {
        self.data = self.ground.texts.keep(data);
        self.parsed.state = None;
    }

    /// Whether the user's state is another one than before this input.
    pub(super) fn data_changed(&self) -> bool {
        match self.ground.before {
            Some(before) => !std::ptr::eq(before.data.as_slice(), self.data),
            None => true,
        }
    }

    /// Tells who listens that what stands at `place` is done.
    pub(super) fn trace(&self, place: impl std::fmt::Display) {
        if let Some(trace) = self.ground.trace {
            trace.taken(place.to_string());
        }
    }

    /// Whether the instance still goes forward.
    pub(super) fn is_running(&self) -> bool {
        self.record.phase == Phase::Running
    }

    /// Whether this input ends in the failure of the instance, because it could not be applied otherwise.
    pub(super) fn is_failing(&self) -> bool {
        self.mode != Mode::Whole
    }

    pub(super) fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Turns the working copy into a patch.
    pub(super) fn finish(mut self, outcome: Outcome) -> Result<Patch, Rejection> {
        self.drop_unsent();
        if self.data_changed() {
            if outcome != Outcome::Deferred {
                self.check_state()?;
            }
            self.record.data = ByteBuf::from(self.data);
        }
        if let Origin::Edited { content } = self.ground.input.origin {
            seen::came_as(&mut self.record, self.ground.input, content);
        }
        self.check_size()?;
        let timers_before = self.ground.before.map(|before| &before.timers);
        let timers_set = self
            .record
            .timers
            .iter()
            .filter(|(name, row)| timers_before.and_then(|before| before.get(*name)) != Some(row))
            .map(|(_, row)| row.clone())
            .collect();
        let timers_cleared = timers_before
            .into_iter()
            .flatten()
            .filter(|(name, row)| self.record.timers.get(*name) != Some(row))
            .map(|(_, row)| row.clone())
            .collect();
        let ended = self.record.phase.is_terminal() && self.record.has_nothing_open();
        let mut readmit = self.readmit;
        if ended && self.record.deferred > 0 {
            // They may begin another generation.
            self.record.deferred = 0;
            readmit = true;
        }
        let (record, ended) = if ended {
            let summary = Summary {
                ended: self.record.updated,
                record: self.record,
            };
            (None, Some(summary))
        } else {
            (Some(self.record), None)
        };
        Ok(Patch {
            outcome,
            record,
            work: self.work,
            completed: self.completed,
            timers_set,
            timers_cleared,
            deferred: outcome == Outcome::Deferred,
            early: None,
            readmit,
            ended,
            notes: self.notes,
        })
    }

    /// Encodes the record only where a cheap bound says that it may be too large.
    fn check_size(&self) -> Result<(), Rejection> {
        let max = self.ground.context.limits.record_bytes;
        if self.record.encoded_bytes_at_most() <= max {
            return Ok(());
        }
        let bytes = self.record.encode().len();
        if bytes <= max {
            return Ok(());
        }
        Err(Rejection {
            reason: "state.size",
            message: format!("the record would take {bytes} bytes, at most {max} are allowed"),
        })
    }
}
