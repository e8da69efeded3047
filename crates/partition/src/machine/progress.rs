//! Which deliveries a shard takes, and the domain events that it sets aside while its outbox is full.

use std::collections::VecDeque;

use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::input::SourceStream;

use super::message::{Arrival, Delivery};

/// What happens to a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    Fits,
    /// All of it was taken before.
    Repeated,
    /// Messages before it were not taken, or it may lack what concerns a saga; `news` says that it is the first since one fitted.
    Gap {
        news: bool,
    },
}

/// Up to where each stream was taken, committed or not.
#[derive(Debug)]
pub struct StreamProgress {
    taken: [u64; 3],
    refusing: [bool; 3],
    /// What was routed by definitions of before these may lack what concerns a saga.
    routed_by: [u64; 3],
}

impl StreamProgress {
    pub const fn new(positions: [u64; 3]) -> Self {
        Self {
            taken: positions,
            refusing: [false; 3],
            routed_by: [0; 3],
        }
    }

    pub const fn taken(&self, stream: SourceStream) -> u64 {
        self.taken[stream.index()]
    }

    /// Whether messages of this stream are missing. Its barriers do not count then.
    pub const fn refuses(&self, stream: SourceStream) -> bool {
        self.refusing[stream.index()]
    }

    /// Judges a delivery by the one rule that makes overlap harmless and gaps impossible.
    pub const fn offer(&mut self, delivery: &Delivery) -> Acceptance {
        let index = delivery.stream.index();
        let taken = self.taken[index];
        if delivery.sequence <= taken {
            return Acceptance::Repeated;
        }
        let is_outdated = delivery.routed_by < self.routed_by[index];
        if delivery.after > taken || is_outdated {
            let news = !self.refusing[index];
            self.refusing[index] = true;
            return Acceptance::Gap { news };
        }
        self.taken[index] = delivery.sequence;
        self.refusing[index] = false;
        Acceptance::Fits
    }

    /// An operator has decided from where on a stream is taken.
    pub const fn moved(&mut self, stream: SourceStream, position: u64) {
        self.taken[stream.index()] = position;
        self.refusing[stream.index()] = false;
    }

    /// What lies behind `position` is taken as it is routed by these definitions. True: some of it was taken already as others
    /// route it, or was refused, and is to be fed again.
    pub const fn rerouted(&mut self, stream: SourceStream, position: u64, routed_by: u64) -> bool {
        let index = stream.index();
        // Whatever was asked for before may have been answered as the others route it. Until it comes, barriers prove nothing.
        let again = self.taken[index] > position || self.refusing[index];
        self.taken[index] = position;
        self.refusing[index] = again;
        self.routed_by[index] = routed_by;
        again
    }

    /// Refuses everything until a delivery fits again, without a gap notice: that is sent when there is room.
    pub const fn refuse(&mut self, stream: SourceStream) {
        self.refusing[stream.index()] = true;
    }
}

/// Domain events that wait for the outbox to shrink, with the barriers between them.
///
/// Bounded: what does not fit is refused, and fed again by the intake once there is room.
#[derive(Debug, Default)]
pub struct Held {
    queue: VecDeque<HeldMail>,
    bytes: usize,
    deliveries: usize,
    /// Something was refused since the queue was last empty.
    pub overflowed: bool,
}

#[derive(Debug)]
pub enum HeldMail {
    Delivery(Delivery),
    Barrier(TimeMs),
}

impl Held {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub const fn deliveries(&self) -> usize {
        self.deliveries
    }

    /// Whether one more delivery may come. An empty queue always takes one, so that every time the stream is fed
    /// again it gets further than before.
    pub const fn has_room(&self, deliveries_max: usize, bytes_max: usize) -> bool {
        self.deliveries == 0 || (self.deliveries < deliveries_max && self.bytes < bytes_max)
    }

    pub fn push_delivery(&mut self, delivery: Delivery) {
        self.bytes += bytes_of(&delivery);
        self.deliveries += 1;
        self.queue.push_back(HeldMail::Delivery(delivery));
    }

    pub fn push_barrier(&mut self, as_of: TimeMs) {
        // Of barriers in a row the last says all.
        if let Some(HeldMail::Barrier(last)) = self.queue.back_mut() {
            *last = as_of;
        } else {
            self.queue.push_back(HeldMail::Barrier(as_of));
        }
    }

    /// Forgets what it has, and that it had no room: all of it comes again.
    pub fn clear(&mut self) {
        self.overflowed = false;
        self.queue.clear();
        self.bytes = 0;
        self.deliveries = 0;
    }

    pub fn pop(&mut self) -> Option<HeldMail> {
        let mail = self.queue.pop_front()?;
        if let HeldMail::Delivery(delivery) = &mail {
            self.bytes -= bytes_of(delivery);
            self.deliveries -= 1;
        }
        Some(mail)
    }
}

/// Payload bytes of a delivery.
pub fn bytes_of(delivery: &Delivery) -> usize {
    delivery.inputs.iter().map(Arrival::bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: SourceStream = SourceStream::AggregateEvents;

    fn delivery(after: u64, sequence: u64) -> Delivery {
        Delivery {
            stream: SourceStream::AggregateEvents,
            after,
            sequence,
            stamp: None,
            routed_by: 0,
            inputs: Vec::new(),
        }
    }

    #[test]
    fn only_what_joins_on_is_taken_and_a_gap_is_news_once() {
        let mut progress = StreamProgress::new([5, 0, 0]);
        assert_eq!(progress.offer(&delivery(3, 5)), Acceptance::Repeated);
        assert_eq!(progress.offer(&delivery(6, 7)), Acceptance::Gap { news: true });
        assert_eq!(progress.offer(&delivery(7, 9)), Acceptance::Gap { news: false });
        assert!(progress.refuses(SourceStream::AggregateEvents));
        assert!(!progress.refuses(SourceStream::WorkflowEvents));
        assert_eq!(progress.offer(&delivery(5, 7)), Acceptance::Fits);
        assert!(!progress.refuses(SourceStream::AggregateEvents));
        assert_eq!(progress.offer(&delivery(9, 10)), Acceptance::Gap { news: true });
        assert_eq!(progress.taken(SourceStream::AggregateEvents), 7);
    }

    #[test]
    fn deliveries_routed_by_older_definitions_are_refused_and_read_again() {
        let routed = |after, sequence, routed_by| Delivery {
            routed_by,
            ..delivery(after, sequence)
        };
        let mut progress = StreamProgress::new([5, 0, 0]);
        assert!(
            !progress.rerouted(EVENTS, 5, 1),
            "nothing was taken that is not applied"
        );
        assert_eq!(progress.offer(&routed(3, 5, 0)), Acceptance::Repeated);
        assert_eq!(progress.offer(&routed(5, 6, 0)), Acceptance::Gap { news: true });
        assert_eq!(progress.offer(&routed(6, 7, 0)), Acceptance::Gap { news: false });
        assert_eq!(progress.offer(&routed(5, 6, 1)), Acceptance::Fits);
        assert_eq!(progress.offer(&routed(6, 8, 1)), Acceptance::Fits);
        assert!(progress.rerouted(EVENTS, 6, 2), "8 was taken and is not applied");
        assert!(progress.refuses(SourceStream::AggregateEvents));
        assert_eq!(progress.offer(&routed(8, 9, 2)), Acceptance::Gap { news: false });
        assert_eq!(progress.offer(&routed(6, 9, 2)), Acceptance::Fits);
        let result = Delivery {
            stream: SourceStream::WorkflowEvents,
            ..delivery(0, 1)
        };
        assert_eq!(
            progress.offer(&result),
            Acceptance::Fits,
            "nothing more is heard of that stream"
        );
        assert!(progress.rerouted(result.stream, 0, 3));
        assert_eq!(progress.offer(&result), Acceptance::Gap { news: false });
        let result = Delivery {
            routed_by: 3,
            ..result
        };
        assert_eq!(progress.offer(&result), Acceptance::Fits);
    }

    #[test]
    fn a_delivery_refused_for_want_of_room_stays_missing_when_definitions_change() {
        let mut progress = StreamProgress::new([5, 0, 0]);
        progress.refuse(EVENTS);
        assert!(
            progress.rerouted(EVENTS, 5, 1),
            "what lies behind 5 was refused, and is to be fed again"
        );
        assert!(
            progress.refuses(EVENTS),
            "its barriers do not count until it comes"
        );
        let again = Delivery {
            routed_by: 1,
            ..delivery(5, 6)
        };
        assert_eq!(progress.offer(&again), Acceptance::Fits);
        assert!(!progress.refuses(EVENTS));
    }

    #[test]
    fn held_deliveries_are_bounded_and_come_out_in_order() {
        let mut held = Held::default();
        assert!(held.has_room(0, 0), "an empty queue takes one");
        held.push_delivery(delivery(0, 1));
        assert!(!held.has_room(1, 100));
        held.push_barrier(TimeMs(1));
        held.push_barrier(TimeMs(2));
        held.push_delivery(delivery(1, 2));
        assert!(matches!(held.pop(), Some(HeldMail::Delivery(first)) if first.sequence == 1));
        assert!(matches!(held.pop(), Some(HeldMail::Barrier(TimeMs(2)))));
        assert!(matches!(held.pop(), Some(HeldMail::Delivery(second)) if second.sequence == 2));
        assert!(held.pop().is_none() && held.is_empty() && held.deliveries() == 0);
    }
}
