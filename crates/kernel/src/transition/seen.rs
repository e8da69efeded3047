//! What an instance remembers of inputs that it applied: a repetition is recognised by its id, and told from
//! another input under the same id by its content.

use crate::input::{DomainEvent, WorkOutcome, WorkResult};
use crate::patch::{IgnoreReason, Note, Patch};
use crate::record::{Record, SEEN_EVENTS_MAX, SEEN_RESULTS_MAX, SOURCES_MAX, Seen, Source};

/// An event, by its id.
pub(super) fn event(event: &DomainEvent) -> Seen {
    Seen {
        id: hash(&[b"event", event.event_id.as_str().as_bytes()]),
        content: content(&[event.event_type.as_bytes(), &event.payload]),
    }
}

/// A control, by its request id. Its content is not compared: whoever asks twice means the first request.
pub(super) fn control(request: &str) -> Seen {
    Seen {
        id: hash(&[b"control", request.as_bytes()]),
        content: 0,
    }
}

/// The event or request that starts an instance, by its id.
pub(super) fn start(id: &str) -> u64 {
    hash(&[b"start", id.as_bytes()])
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

/// Whether an event or control was applied before.
pub(super) fn find_event(record: &Record, input: Seen) -> Option<IgnoreReason> {
    find(&record.seen_events, input)
}

/// What becomes of an event whose id is not among those that are remembered, where some have been forgotten: its sequence may
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
    /// So far below that nobody knows.
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
    find(&record.seen_results, input)
}

/// Remembers an event that was applied, by its id and by its sequence.
pub(super) fn remember(record: &mut Record, applied: &DomainEvent) {
    remember_event(record, event(applied));
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

fn find(seen: &[Seen], input: Seen) -> Option<IgnoreReason> {
    let before = seen.iter().find(|before| before.id == input.id)?;
    Some(if before.content == input.content {
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
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut first = [0_u8; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}
