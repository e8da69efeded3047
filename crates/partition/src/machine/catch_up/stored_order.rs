//! Where messages stand in the order in which the broker stored them.
//!
//! By the stored time; of one time results come before controls and controls before events; within a stream by its sequence.

use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::input::{Input, InputBody, Origin, SourceStream};

use crate::machine::message::{Applied, Arrival};
use crate::storage::rows::Stamp;

/// Place of a message in the common order: when it was stored, its stream's rank, its sequence.
pub(super) type Place = (TimeMs, u8, u64);

/// Results before controls before events.
pub(super) const fn rank(stream: SourceStream) -> u8 {
    match stream {
        SourceStream::WorkflowEvents => 0,
        SourceStream::WorkflowCommands => 1,
        SourceStream::AggregateEvents => 2,
    }
}

/// The sequence of the message that has yielded it; `last`: the end of its delivery.
pub fn sequence_of(arrival: &Arrival, last: u64) -> u64 {
    match arrival {
        Arrival::Input(Input {
            origin: Origin::Stream { sequence, .. },
            ..
        }) => *sequence,
        Arrival::Applied(applied) => applied.sequence,
        Arrival::Input(_) => last,
        Arrival::Unreadable(message) => message.sequence,
    }
}

/// When it was stored. An event that was forwarded stands at the time of the event.
pub const fn time_of(arrival: &Arrival) -> TimeMs {
    match arrival {
        Arrival::Input(input) => input.time,
        Arrival::Applied(applied) => applied.stored,
        Arrival::Unreadable(message) => message.time,
    }
}

/// Timers that were due before this instant fire before it. Those that were due between the application of a result and the storage
/// of its message have fired behind the result.
pub fn timers_before(arrival: &Arrival) -> TimeMs {
    match arrival {
        Arrival::Applied(Applied { input, stored, .. }) => input.time.min(*stored),
        Arrival::Input(_) | Arrival::Unreadable(_) => time_of(arrival),
    }
}

/// By what the message that has yielded it is known again, as far as it tells. A forwarded event does not say when its own
/// message was stored.
pub fn stamp_of(arrival: &Arrival) -> Option<Stamp> {
    match arrival {
        Arrival::Input(Input {
            body: InputBody::Event(event),
            ..
        }) if event.via.is_some() => None,
        Arrival::Input(_) | Arrival::Applied(_) | Arrival::Unreadable(_) => Some(Stamp::at(time_of(arrival))),
    }
}

pub(super) fn place_of(stream: SourceStream, arrival: &Arrival, last: u64) -> Place {
    (time_of(arrival), rank(stream), sequence_of(arrival, last))
}
