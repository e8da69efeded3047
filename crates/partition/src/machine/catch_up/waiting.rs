//! What one stream has brought and was not taken yet, and how far it is known to have been read.

use std::collections::VecDeque;
use std::time::Duration;

use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::input::SourceStream;

use super::stored_order::{Place, place_of, stamp_of};
use crate::machine::message::{Arrival, Delivery};
use crate::storage::rows::Stamp;

/// What one stream has brought.
#[derive(Debug)]
pub(super) struct Waiting {
    pub queue: VecDeque<Entry>,
    pub deliveries: usize,
    pub bytes: usize,
    /// A barrier of this instant or a later one is the end.
    pub noted: TimeMs,
    /// The barrier by which the end was reached.
    pub reached: Option<TimeMs>,
    /// The last barrier that was taken.
    pub proven: Option<TimeMs>,
    /// Since when the others have been waiting for it.
    pub missed: Option<Duration>,
}

#[derive(Debug)]
pub(super) enum Entry {
    Delivery {
        after: u64,
        sequence: u64,
        stamp: Option<Stamp>,
        routed_by: u64,
        inputs: VecDeque<Arrival>,
    },
    Barrier(TimeMs),
}

impl Waiting {
    /// It may still bring what comes before all others.
    pub fn is_missing(&self) -> bool {
        self.reached.is_none() && self.queue.is_empty()
    }

    pub fn is_left_out(&self, monotonic: Duration, wait: Duration) -> bool {
        self.is_missing()
            && self
                .missed
                .is_some_and(|since| monotonic.saturating_sub(since) >= wait)
    }

    pub fn add(&mut self, delivery: Delivery, put: fn(&mut VecDeque<Entry>, Entry)) {
        self.deliveries += 1;
        self.bytes += delivery.inputs.iter().map(Arrival::bytes).sum::<usize>();
        let Delivery {
            after,
            sequence,
            stamp,
            routed_by,
            inputs,
            ..
        } = delivery;
        put(
            &mut self.queue,
            Entry::Delivery {
                after,
                sequence,
                stamp,
                routed_by,
                inputs: inputs.into(),
            },
        );
    }

    /// The messages of the first delivery that come before `before`, but for the first, which always comes; `one`: nothing
    /// but that.
    pub fn take(&mut self, stream: SourceStream, before: Option<Place>, one: bool) -> Option<Delivery> {
        let (after, sequence, stamp, routed_by, mut inputs) = match self.queue.pop_front()? {
            Entry::Delivery {
                after,
                sequence,
                stamp,
                routed_by,
                inputs,
            } => (after, sequence, stamp, routed_by, inputs),
            barrier @ Entry::Barrier(_) => {
                self.queue.push_front(barrier);
                return None;
            }
        };
        let mut taken = Vec::new();
        let mut last = None;
        while let Some(arrival) = inputs.front() {
            let place = place_of(stream, arrival, sequence);
            let same = last == Some(place.2);
            if !same && last.is_some() && (one || before.is_some_and(|before| place > before)) {
                break;
            }
            last = Some(place.2);
            taken.extend(inputs.pop_front());
        }
        let (upto, stands) = match (last, taken.last()) {
            (Some(last), Some(arrival)) if !inputs.is_empty() => (last, stamp_of(arrival)),
            _ => (sequence, stamp),
        };
        self.bytes -= taken.iter().map(Arrival::bytes).sum::<usize>();
        if inputs.is_empty() {
            self.deliveries -= 1;
        } else {
            self.queue.push_front(Entry::Delivery {
                after: upto,
                sequence,
                stamp,
                routed_by,
                inputs,
            });
        }
        Some(Delivery {
            stream,
            after,
            sequence: upto,
            stamp: stands,
            routed_by,
            inputs: taken,
        })
    }
}
