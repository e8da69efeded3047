//! What an instance remembers of inputs that it applied: a repetition is recognised by its id, and told from
//! another input under the same id by its content.

use crate::input::{DomainEvent, WorkOutcome, WorkResult};
use crate::patch::IgnoreReason;
use crate::record::{Record, SEEN_EVENTS_MAX, SEEN_RESULTS_MAX, Seen};

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

/// A result, by its command; `None` where the outcome is unknown, which a later result may settle.
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

/// Whether a result for the same command was applied before.
pub(super) fn find_result(record: &Record, input: Seen) -> Option<IgnoreReason> {
    find(&record.seen_results, input)
}

/// Remembers an event or control that was applied, and forgets the oldest beyond the bound.
pub(super) fn remember_event(record: &mut Record, input: Seen) {
    remember(&mut record.seen_events, input, SEEN_EVENTS_MAX);
}

/// Remembers a result that was applied, and forgets the oldest beyond the bound.
pub(super) fn remember_result(record: &mut Record, input: Seen) {
    remember(&mut record.seen_results, input, SEEN_RESULTS_MAX);
}

fn find(seen: &[Seen], input: Seen) -> Option<IgnoreReason> {
    let before = seen.iter().find(|before| before.id == input.id)?;
    Some(if before.content == input.content {
        IgnoreReason::Duplicate
    } else {
        IgnoreReason::Conflict
    })
}

fn remember(seen: &mut Vec<Seen>, input: Seen, max: usize) {
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
