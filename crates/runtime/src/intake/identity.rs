//! By what a message is known again.
//!
//! A stream whose broker lost power may go back to an earlier end and grow again: its sequences then mean other messages.
//! So the message at a position is kept in mind by its stored time and a checksum, and looked up again before a reader
//! hands anything over, and now and then while one does.

use std::sync::Arc;

use crate::kernel::planted::{Bug, is_planted};
use crate::ports::broker::{Broker, BrokerError, Message, Reader, ReaderSpec, StoredMessage, StreamState};
use crate::shard::mailbox::Stamp;

use super::context::Halt;

/// A sequence of a stream, and what stood there when it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub sequence: u64,
    pub stamp: Option<Stamp>,
}

impl Place {
    pub fn of(message: &Message) -> Self {
        Self {
            sequence: message.stream_sequence,
            stamp: Some(Stamp {
                time: message.time,
                content: Some(checksum(&message.subject, &message.payload)),
            }),
        }
    }

    /// The end of a stream, which nobody has read.
    pub fn end_of(state: &StreamState) -> Self {
        Self {
            sequence: state.last_sequence,
            stamp: state.last_time.map(Stamp::at),
        }
    }
}

/// By what a message that was looked up is known again.
#[must_use]
pub fn stamp_of(message: &StoredMessage) -> Stamp {
    Stamp {
        time: message.time,
        content: Some(checksum(&message.subject, &message.payload)),
    }
}

fn checksum(subject: &str, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(subject.as_bytes()), payload)
}

/// What stands at a place now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub place: Place,
    /// `None` where nothing can be compared: the message is gone, or was never seen.
    pub found: Option<Stamp>,
}

/// Looks places of a stream up.
pub(super) async fn look_up(
    broker: &Arc<dyn Broker>,
    state: &StreamState,
    places: &[Place],
) -> Result<Vec<Seen>, BrokerError> {
    let stream = &state.identity.name;
    let mut seen = Vec::with_capacity(places.len());
    for place in places {
        let is_there = place.sequence >= state.first_sequence && place.sequence <= state.last_sequence;
        let found = if place.stamp.is_some() && is_there {
            broker.message_at(stream, place.sequence).await?
        } else {
            None
        };
        seen.push(Seen {
            place: *place,
            found: found.as_ref().map(stamp_of),
        });
    }
    Ok(seen)
}

/// Why a stream is not the one that was read, if it is not.
pub(super) fn judge(state: &StreamState, seen: &[Seen]) -> Option<Halt> {
    let name = &state.identity.name;
    let halt = |message| Halt {
        reason: "stream.identity",
        lost_from: None,
        message,
    };
    seen.iter().find_map(|Seen { place, found }| {
        if place.sequence > state.last_sequence {
            return Some(halt(format!(
                "stream {name} ends at {}, but was already read up to {}",
                state.last_sequence, place.sequence
            )));
        }
        let (known, found) = (place.stamp?, (*found)?);
        let is_other = !known.matches(&found) && !is_planted(Bug::ReusedSequence);
        is_other.then(|| halt(Stamp::mismatch(name, place.sequence, &known, &found)))
    })
}

/// A reader, and the stream as it was found behind its opening.
pub(super) struct Opened {
    pub reader: Box<dyn Reader>,
    pub state: StreamState,
    pub seen: Vec<Seen>,
}

/// Opens a reader, then looks at what was read before: a stream that goes back later takes this reader with it.
pub(super) async fn open(
    broker: Arc<dyn Broker>,
    spec: ReaderSpec,
    places: Vec<Place>,
) -> Result<Opened, BrokerError> {
    let stream = spec.stream.clone();
    let reader = broker.reader(spec).await?;
    let state = broker.stream_state(&stream).await?;
    let seen = look_up(&broker, &state, &places).await?;
    Ok(Opened { reader, state, seen })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::ids::TimeMs;
    use crate::ports::broker::StreamIdentity;

    fn state(last_sequence: u64) -> StreamState {
        StreamState {
            identity: StreamIdentity {
                name: "S".to_owned(),
                created_ns: 1,
            },
            first_sequence: 1,
            last_sequence,
            last_time: Some(TimeMs(1)),
            messages: last_sequence,
            bytes: 0,
            told: TimeMs(1),
        }
    }

    fn stamp(time: i64, content: Option<u32>) -> Stamp {
        Stamp {
            time: TimeMs(time),
            content,
        }
    }

    #[test]
    fn another_time_or_content_and_an_earlier_end_are_another_stream() {
        let judged = |last, known, found| {
            let place = Place {
                sequence: 7,
                stamp: known,
            };
            judge(&state(last), &[Seen { place, found }]).map(|halt| halt.message)
        };
        let known = Some(stamp(1_000, Some(5)));
        assert_eq!(judged(9, known, Some(stamp(1_000, Some(5)))), None);
        assert_eq!(judged(9, known, None), None, "it is gone");
        assert_eq!(judged(9, None, None), None, "it was never seen");
        let end = Some(stamp(1_000, None));
        assert_eq!(judged(9, end, Some(stamp(1_000, Some(6)))), None);
        for (known, found) in [(known, stamp(1_000, Some(6))), (end, stamp(2_000, Some(5)))] {
            let message = judged(9, known, Some(found)).expect("another message");
            assert!(message.contains("message 7 of stream S"), "{message}");
        }
        let message = judged(6, None, None).expect("it ends before");
        assert!(message.contains("ends at 6"), "{message}");
    }
}
