//! What an instance remembers of inputs that it applied: a repetition is recognised by its id, and told from
//! another input under the same id by its content.

use crate::fields::Fields;
use crate::input::{Control, DomainEvent, Input, InputBody, WorkOutcome, WorkResult};
use crate::patch::{IgnoreReason, Note, Patch};
use crate::record::{Record, SEEN_EVENTS_MAX, SEEN_RESULTS_MAX, SOURCES_MAX, Seen, Source};

/// An event, by its id.
fn event_id(event: &DomainEvent) -> u64 {
    hash(&[b"event", event.event_id.as_str().as_bytes()])
}

fn event_content(event: &DomainEvent) -> u32 {
    content(&[event.event_type.as_bytes(), &event.payload])
}

/// A control, by its request id.
pub(super) fn control(input: &Input) -> Seen {
    Seen {
        id: control_id(input),
        content: control_content(input),
    }
}

fn control_id(input: &Input) -> u64 {
    hash(&[b"control", input.id.as_bytes()])
}

fn control_content(input: &Input) -> u32 {
    match &input.body {
        InputBody::Event(_) | InputBody::Result(_) | InputBody::Timer { .. } => 0,
        InputBody::Control(Control::Start {
            input,
            parent,
            on_conflict,
            ..
        }) => {
            // Each repetition of a request has a trace of its own.
            let start = Control::Start {
                input: input.clone(),
                parent: parent.clone(),
                on_conflict: on_conflict.clone(),
                traceparent: None,
            };
            let bytes = postcard::to_stdvec(&start).expect("a control is plain data");
            content(&[&bytes])
        }
        InputBody::Control(control) => {
            let bytes = postcard::to_stdvec(control).expect("a control is plain data");
            content(&[&bytes])
        }
    }
}

/// The event or request that starts an instance, by its id, or by the name of a life that an event has begun again.
pub(super) fn start(id: &str) -> u64 {
    hash(&[b"start", started_by(id).as_bytes()])
}

/// Between the request that begins an instance again and the id of its event; neither may have it.
const AGAIN: char = '\n';

/// Names the life of an instance that is begun again with the event that has started it.
pub(super) fn life(request: &str, event: &str) -> String {
    format!("{request}{AGAIN}{event}")
}

/// The event or request that has started a life.
#[must_use]
pub fn started_by(life: &str) -> &str {
    life.split_once(AGAIN).map_or(life, |(_, event)| event)
}

/// Whether the instance was started by the event or request of this id.
pub(super) fn is_start(record: &Record, id: &str) -> bool {
    started_by(&record.start_event) == id
}

/// A result, by its command; `None` where the outcome is unknown, which a later result may decide.
pub(super) fn result(result: &WorkResult) -> Option<Seen> {
    let content = match &result.outcome {
        WorkOutcome::Succeeded { payload } => content(&[b"ok", payload]),
        WorkOutcome::Unusable { payload, class, .. } => content(&[b"unusable", payload, class.as_bytes()]),
        WorkOutcome::Failed { class, message, .. } => {
            content(&[b"failed", class.as_bytes(), message.as_bytes()])
        }
        WorkOutcome::TimedOut { .. } => return None,
    };
    Some(Seen {
        id: hash(&[b"result", result.command_id.0.as_bytes()]),
        content,
    })
}

/// Hash of what an input says, by which a repetition of it is told from another input under its id.
pub(crate) fn content_of(input: &Input) -> u32 {
    match &input.body {
        InputBody::Event(event) => event_content(event),
        InputBody::Result(came) => result(came).map_or(0, |seen| seen.content),
        InputBody::Timer { .. } => 0,
        InputBody::Control(_) => control_content(input),
    }
}

/// Remembers of an input that an operator has edited what had come: that may come again, and is a repetition then.
pub(super) fn came_as(record: &mut Record, input: &Input, content: u32) {
    let (seen, id) = match &input.body {
        InputBody::Event(event) => (&mut record.seen_events, event_id(event)),
        InputBody::Control(_) => (&mut record.seen_events, control_id(input)),
        InputBody::Result(came) => match result(came) {
            Some(known) => (&mut record.seen_results, known.id),
            None => return,
        },
        InputBody::Timer { .. } => return,
    };
    for seen in seen.iter_mut().filter(|seen| seen.id == id) {
        seen.content = content;
    }
}

/// Whether a control was applied before, or another one under its id.
pub(super) fn find_control(record: &Record, input: &Input) -> Option<IgnoreReason> {
    let found = find(&record.seen_events, control_id(input), || control_content(input))?;
    // It is no dead letter: whoever asks is told.
    Some(if found == IgnoreReason::Conflict {
        IgnoreReason::Mismatch
    } else {
        found
    })
}

/// Whether an event was applied before.
pub(super) fn find_event(record: &Record, event: &DomainEvent) -> Option<IgnoreReason> {
    find(&record.seen_events, event_id(event), || event_content(event))
}

/// What happens to an event whose id is not among those that are remembered, where some have been forgotten: its sequence may
/// say that it was applied. One that was found by an alias, or that waited (`again`), may rightly come behind others.
pub(super) fn find_sequence(record: &Record, event: &DomainEvent, again: bool) -> Option<Patch> {
    if event.via.is_some() || record.seen_events.len() < SEEN_EVENTS_MAX {
        return None;
    }
    let source = source(record, event).filter(|source| !source.repeats)?;
    let reason = match source.standing(event.sequence) {
        Standing::New | Standing::Missing => return None,
        Standing::Applied => IgnoreReason::SameSequence,
        Standing::Below if again => return None,
        Standing::Below => IgnoreReason::TooOld,
    };
    Some(Patch {
        notes: vec![Note::SequenceKnown {
            sequence: event.sequence,
            highest: source.highest,
        }],
        ..Patch::ignored(reason)
    })
}

fn source<'r>(record: &'r Record, event: &DomainEvent) -> Option<&'r Source> {
    // Who gives none has 0.
    let aggregate = aggregate(event);
    let mut sources = record.sources.iter();
    sources
        .find(|source| source.aggregate == aggregate)
        .filter(|_| event.sequence > 0)
}

/// Where a sequence stands among those of its aggregate that were applied.
enum Standing {
    /// Above all.
    New,
    /// Below the highest, and not applied.
    Missing,
    Applied,
    /// So far below that it is not known.
    Below,
}

impl Source {
    fn standing(&self, sequence: u64) -> Standing {
        match self.highest.checked_sub(sequence) {
            None => Standing::New,
            Some(back @ 1..=64) if self.below & (1 << (back - 1)) == 0 => Standing::Missing,
            Some(0..=64) => Standing::Applied,
            Some(_) => Standing::Below,
        }
    }

    fn apply(&mut self, sequence: u64) {
        match self.standing(sequence) {
            Standing::New => {
                // The one that was highest is among those below now.
                self.below = match sequence - self.highest {
                    higher @ 1..=63 => self.below << higher | 1 << (higher - 1),
                    64 => 1 << 63,
                    _ => 0,
                };
                self.highest = sequence;
            }
            Standing::Missing => self.below |= 1 << (self.highest - sequence - 1),
            Standing::Applied => self.repeats = true,
            Standing::Below => {}
        }
    }
}

/// Whether a result for the same command was applied before.
pub(super) fn find_result(record: &Record, input: Seen) -> Option<IgnoreReason> {
    find(&record.seen_results, input.id, || input.content)
}

/// Remembers an event that was applied, by its id and by its sequence.
pub(super) fn remember(record: &mut Record, applied: &DomainEvent) {
    let seen = Seen {
        id: event_id(applied),
        content: event_content(applied),
    };
    remember_event(record, seen);
    if applied.sequence == 0 || applied.via.is_some() {
        return;
    }
    let aggregate = aggregate(applied);
    let sources = &mut record.sources;
    let known = sources.iter().position(|source| source.aggregate == aggregate);
    let source = match known {
        Some(at) => {
            let mut source = sources.remove(at);
            source.apply(applied.sequence);
            source
        }
        None => Source {
            aggregate,
            highest: applied.sequence,
            below: 0,
            repeats: false,
        },
    };
    let excess = (sources.len() + 1).saturating_sub(SOURCES_MAX);
    sources.drain(..excess);
    sources.push(source);
}

fn aggregate(event: &DomainEvent) -> u64 {
    hash(&[
        b"aggregate",
        event.aggregate_type.as_bytes(),
        event.aggregate_id.as_bytes(),
    ])
}

/// Remembers an event or control that was applied, and forgets the oldest beyond the bound.
pub(super) fn remember_event(record: &mut Record, input: Seen) {
    keep(&mut record.seen_events, input, SEEN_EVENTS_MAX);
}

/// Remembers a result that was applied, and forgets the oldest beyond the bound.
pub(super) fn remember_result(record: &mut Record, input: Seen) {
    keep(&mut record.seen_results, input, SEEN_RESULTS_MAX);
}

/// Most inputs are new, and content may be long: it is hashed only for an id that is known.
fn find(seen: &[Seen], id: u64, content: impl FnOnce() -> u32) -> Option<IgnoreReason> {
    let before = seen.iter().find(|before| before.id == id)?;
    Some(if before.content == content() {
        IgnoreReason::Duplicate
    } else {
        IgnoreReason::Conflict
    })
}

fn keep(seen: &mut Vec<Seen>, input: Seen, max: usize) {
    let excess = (seen.len() + 1).saturating_sub(max);
    seen.drain(..excess);
    seen.push(input);
}

fn content(parts: &[&[u8]]) -> u32 {
    let [a, b, c, d, ..] = hash(parts).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// First eight bytes of BLAKE3 over the parts, each behind its length.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut fields = Fields::plain();
    for part in parts {
        fields.bytes(part);
    }
    let mut first = [0_u8; 8];
    first.copy_from_slice(&fields.finish()[..8]);
    u64::from_le_bytes(first)
}
