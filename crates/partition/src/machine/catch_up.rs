//! Which of the messages that wait comes next while a partition catches up with its streams: the one that was stored
//! first, and due timers at the time they were due.
//!
//! The end of each stream is noted when catching up begins: the first barrier that covers that instant. Until a stream has
//! reached its end, nothing that was stored later than what it may still bring is taken, unless the stream cannot be read.
//! It holds only what readers have brought, and asks nothing of anyone.
//!
//! `stored_order` says where a message stands in that order, `waiting` keeps what one stream has brought.

mod stored_order;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::VecDeque;
use std::time::Duration;

use saga_runner_kernel::ids::TimeMs;
use saga_runner_kernel::input::SourceStream;

use super::message::{Arrival, Delivery};
use stored_order::{Place, place_of};
pub use stored_order::{sequence_of, stamp_of, time_of, timers_before};
use waiting::{Entry, Waiting};

/// How long a control waits for a stream that cannot be read: a little more than readers take to open.
const CONTROLS_WAIT: Duration = Duration::from_secs(1);
/// Time between two requests for the ends of the streams that did not come.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Up to when timers may fire between the inputs of a delivery. Those of an input's own time and later come behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InOrder {
    /// All that the other streams held at this instant has been taken.
    pub covered: TimeMs,
    /// The same, but for what cannot be read, where timers have waited long enough for it.
    pub late: Option<TimeMs>,
    /// A stream is left out, so what it holds comes behind what was stored later.
    pub incomplete: bool,
    /// Most timers of one transaction.
    pub timers_max: usize,
}

impl InOrder {
    /// Timers that are due up to the result may fire at `now` before an input of the time `before`.
    pub fn until(&self, before: TimeMs, now: TimeMs) -> TimeMs {
        let known = self.covered.max(self.late.unwrap_or(self.covered));
        known.min(before.plus_ms(-1)).min(now)
    }
}

/// What comes next.
#[derive(Debug, PartialEq)]
pub enum Next {
    Take(Delivery, InOrder),
    /// Timers come first that are due up to `until`; `late_source` where that is not covered by barriers.
    Timers {
        until: TimeMs,
        late_source: bool,
    },
    /// Nothing until mail comes, or until this time has passed.
    Wait(Duration),
    /// All ends are reached: the order of arrival is good enough from now on.
    Over(Over),
}

/// How catching up has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Over {
    /// All that each stream held at this instant was taken; none of a stream that was left out.
    pub proven: [Option<TimeMs>; 3],
    /// For how long it has lasted.
    pub took: Duration,
    /// Deliveries that were taken.
    pub taken: u64,
}

/// What the choice depends on besides what waits.
#[derive(Debug, Clone, Copy)]
pub struct Ground {
    pub now: TimeMs,
    pub monotonic: Duration,
    /// When the next timer is due, as far as that is known: none where inputs were chosen since the last commit.
    pub next_due: Option<TimeMs>,
    /// Timers may fire up to here although a stream cannot be read.
    pub late: Option<TimeMs>,
    /// Domain events are to wait.
    pub events_held: bool,
    /// Whether the messages of each stream are taken one by one.
    pub one: [bool; 3],
    /// Timers that may fire between the inputs of a transaction.
    pub timers_max: usize,
}

impl Ground {
    fn holds(&self, stream: SourceStream) -> bool {
        self.events_held && stream == SourceStream::AggregateEvents
    }
}

/// Bounds of what waits of one stream.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub deliveries: usize,
    pub bytes: usize,
}

/// What readers have brought and was not yet taken.
#[derive(Debug)]
pub struct CatchUp {
    streams: [Waiting; 3],
    /// How long a stream that brings nothing is waited for.
    wait: Duration,
    began: Duration,
    asked: Option<Duration>,
    taken: u64,
}

impl CatchUp {
    /// Catching up with what the streams hold at `now`; one that brings nothing for `wait` is left out.
    pub fn new(now: TimeMs, monotonic: Duration, wait: Duration) -> Self {
        Self {
            streams: std::array::from_fn(|_| Waiting {
                queue: VecDeque::new(),
                deliveries: 0,
                bytes: 0,
                noted: now,
                reached: None,
                proven: None,
                missed: None,
            }),
            wait,
            began: monotonic,
            asked: None,
            taken: 0,
        }
    }

    /// A stream is read again after a break: the ends are noted again of it and of those whose end was reached before.
    pub fn opened_again(&mut self, stream: SourceStream, now: TimeMs) {
        for (index, queued) in self.streams.iter_mut().enumerate() {
            if index == stream.index() || queued.reached.is_some() {
                queued.noted = now;
                queued.reached = None;
                queued.missed = None;
                self.asked = None;
            }
        }
    }

    /// Whether the ends of the streams are to be asked for.
    pub fn asks(&mut self, monotonic: Duration) -> bool {
        let missing = self.streams.iter().any(|queued| queued.reached.is_none());
        let due = self
            .asked
            .is_none_or(|asked| monotonic.saturating_sub(asked) >= ASK_AGAIN);
        if missing && due {
            self.asked = Some(monotonic);
        }
        missing && due
    }

    /// Forgets instants of a clock that was put back since: the ends are noted by the clock as it is now.
    pub fn forget_the_future(&mut self, now: TimeMs) {
        for queued in &mut self.streams {
            if queued.noted > now {
                queued.noted = now;
                self.asked = None;
            }
        }
    }

    pub fn push(&mut self, delivery: Delivery) {
        let queued = &mut self.streams[delivery.stream.index()];
        queued.missed = None;
        queued.add(delivery, VecDeque::push_back);
    }

    pub fn push_barrier(&mut self, stream: SourceStream, as_of: TimeMs) {
        let queued = &mut self.streams[stream.index()];
        queued.missed = None;
        // Of barriers in a row the last says all.
        if let Some(Entry::Barrier(last)) = queued.queue.back_mut() {
            *last = as_of;
        } else {
            queued.queue.push_back(Entry::Barrier(as_of));
        }
    }

    /// Forgets what a stream has brought: it comes again.
    pub fn forget(&mut self, stream: SourceStream) {
        let queued = &mut self.streams[stream.index()];
        queued.queue.clear();
        queued.deliveries = 0;
        queued.bytes = 0;
        queued.missed = None;
        // A barrier may have been among it.
        self.asked = None;
    }

    /// Removes what of a delivery lies behind `position`: its transaction has ended before it.
    pub fn put_back(&mut self, mut delivery: Delivery, position: u64) {
        if delivery.sequence <= position {
            return;
        }
        let sequence = delivery.sequence;
        delivery
            .inputs
            .retain(|arrival| sequence_of(arrival, sequence) > position);
        delivery.after = delivery.after.max(position);
        let queued = &mut self.streams[delivery.stream.index()];
        self.taken = self.taken.saturating_sub(1);
        queued.add(delivery, VecDeque::push_front);
    }

    /// Whether so much of a stream waits that it is to bring no more for now.
    pub fn is_full(&self, stream: SourceStream, bounds: Bounds) -> bool {
        let queued = &self.streams[stream.index()];
        queued.deliveries >= bounds.deliveries || queued.bytes >= bounds.bytes
    }

    /// Deliveries that wait.
    pub fn deliveries(&self) -> usize {
        self.streams.iter().map(|queued| queued.deliveries).sum()
    }

    /// Whether a stream is left out because it cannot be read.
    pub fn leaves_out(&self, monotonic: Duration) -> bool {
        self.streams
            .iter()
            .any(|queued| queued.is_left_out(monotonic, self.wait))
    }

    /// Chooses what comes next.
    pub fn next(&mut self, ground: Ground) -> Next {
        if let Some(delivery) = self.past_what_has_no_time() {
            let in_order = self.in_order(delivery.stream, ground);
            return Next::Take(delivery, in_order);
        }
        for queued in &mut self.streams {
            if queued.is_missing() {
                queued.missed.get_or_insert(ground.monotonic);
            }
        }
        let is_held = |stream| ground.holds(stream);
        let first = SourceStream::ALL
            .into_iter()
            .filter(|stream| !is_held(*stream))
            .filter_map(|stream| Some((self.place(stream)?, stream)))
            .min();
        let missing = SourceStream::ALL.into_iter().filter(|stream| !is_held(*stream));
        let patience = match first {
            Some((_, SourceStream::WorkflowCommands)) => self.wait.min(CONTROLS_WAIT),
            Some(_) | None => self.wait,
        };
        let left = missing
            .filter_map(|stream| self.streams[stream.index()].missed)
            .map(|since| patience.saturating_sub(ground.monotonic.saturating_sub(since)))
            .max()
            .unwrap_or_default();
        if !left.is_zero() {
            return Next::Wait(left);
        }
        let Some((place, stream)) = first else {
            let is_over = |queued: &Waiting| {
                queued.queue.is_empty()
                    && (queued.reached.is_some() || queued.is_left_out(ground.monotonic, self.wait))
            };
            return if self.streams.iter().all(is_over) {
                Next::Over(self.over(ground.monotonic))
            } else {
                Next::Wait(self.wait)
            };
        };
        let in_order = self.in_order(stream, ground);
        if let Some(due) = ground.next_due {
            let before = self.head(stream).map_or(place.0, |(head, _)| timers_before(head));
            let until = in_order.until(before, ground.now);
            if due <= until {
                let late_source = due > in_order.covered;
                let until = if late_source {
                    until
                } else {
                    until.min(in_order.covered)
                };
                return Next::Timers { until, late_source };
            }
        }
        let before = SourceStream::ALL
            .into_iter()
            .filter(|other| *other != stream && !is_held(*other))
            .filter_map(|other| self.place(other))
            .min();
        match self.streams[stream.index()].take(stream, before, ground.one[stream.index()]) {
            Some(delivery) => {
                self.taken += 1;
                Next::Take(delivery, in_order)
            }
            None => Next::Wait(self.wait),
        }
    }

    /// Passes barriers; the first watermark that stands in the way.
    fn past_what_has_no_time(&mut self) -> Option<Delivery> {
        for stream in SourceStream::ALL {
            let queued = &mut self.streams[stream.index()];
            while let Some(Entry::Barrier(as_of)) = queued.queue.front() {
                queued.proven = Some(*as_of);
                if *as_of >= queued.noted {
                    queued.reached = Some(*as_of);
                    queued.missed = None;
                }
                queued.queue.pop_front();
            }
            if let Some(Entry::Delivery { inputs, .. }) = queued.queue.front()
                && inputs.is_empty()
            {
                return queued.take(stream, None, false);
            }
        }
        None
    }

    /// What the next message of a stream yields first, and the end of its delivery.
    fn head(&self, stream: SourceStream) -> Option<(&Arrival, u64)> {
        match self.streams[stream.index()].queue.front()? {
            Entry::Delivery { sequence, inputs, .. } => inputs.front().map(|arrival| (arrival, *sequence)),
            Entry::Barrier(_) => None,
        }
    }

    /// Place of the next message of a stream.
    fn place(&self, stream: SourceStream) -> Option<Place> {
        let (head, last) = self.head(stream)?;
        Some(place_of(stream, head, last))
    }

    /// Up to when timers may fire before what is taken of `stream`.
    fn in_order(&self, stream: SourceStream, ground: Ground) -> InOrder {
        let others = || SourceStream::ALL.into_iter().filter(|other| *other != stream);
        let known = |other: SourceStream| {
            let queued = &self.streams[other.index()];
            let proven = queued.reached.or(queued.proven).unwrap_or(TimeMs(i64::MIN));
            // What stands before the next message was taken.
            self.place(other).map_or(proven, |(time, ..)| time.plus_ms(-1))
        };
        let left_out = |other: &SourceStream| {
            let queued = &self.streams[other.index()];
            queued.is_left_out(ground.monotonic, self.wait)
        };
        let all = others().map(known).min();
        let readable = others().filter(|other| !left_out(other)).map(known).min();
        InOrder {
            covered: all.unwrap_or(TimeMs(i64::MIN)),
            late: ground
                .late
                .map(|late| readable.map_or(late, |readable| readable.min(late))),
            incomplete: others()
                .any(|other| !ground.holds(other) && self.streams[other.index()].is_missing()),
            timers_max: ground.timers_max,
        }
    }

    fn over(&self, monotonic: Duration) -> Over {
        Over {
            proven: std::array::from_fn(|index| self.streams[index].reached),
            took: monotonic.saturating_sub(self.began),
            taken: self.taken,
        }
    }
}
