//! The shard's side of catching up: what its readers bring is kept by stream and taken in stored order.
//!
//! What comes next is chosen in [`saga_runner_partition::machine::catch_up`].

use std::collections::VecDeque;
use std::time::Duration;

use saga_runner_partition::machine::catch_up::{Bounds, CatchUp, Ground, Next, Over};
use saga_runner_partition::machine::progress::HeldMail;
use saga_runner_partition::machine::timers::Firing;

use super::batch::Item;
use super::mailbox::Notice;
use super::shard_loop::ShardLoop;
use crate::kernel::ids::TimeMs;
use crate::kernel::input::{Origin, SourceStream};

/// Catching up, as the thread sees it.
#[derive(Debug)]
pub(super) struct CatchingUp {
    pub merge: CatchUp,
    /// Timers may fire up to here although a stream cannot be read.
    late: Option<TimeMs>,
    /// Timers that come before what waits.
    firing: Option<Firing>,
    /// When to choose again although no mail has come.
    again: Option<Duration>,
}

impl ShardLoop {
    /// Takes what comes in the order in which it was stored, until the ends are reached that the streams have now.
    pub fn begin_catching_up(&mut self) {
        let wait = self.settings.catch_up_wait.duration();
        if wait.is_zero() {
            return;
        }
        let (now, monotonic) = (self.clock.now(), self.clock.monotonic());
        let mut merge = CatchUp::new(now, monotonic, wait);
        while let Some(mail) = self.held.pop() {
            match mail {
                HeldMail::Delivery(delivery) => merge.push(delivery),
                HeldMail::Barrier(as_of) => merge.push_barrier(SourceStream::AggregateEvents, as_of),
            }
        }
        self.catching_up = Some(Box::new(CatchingUp {
            merge,
            late: None,
            firing: None,
            again: None,
        }));
        self.show_catching_up(true);
    }

    pub fn show_catching_up(&self, catching_up: bool) {
        self.status.set_catching_up(catching_up);
        let shard = self.index.to_string();
        let gauge = self.metrics.shards_catching_up.with_label_values(&[&shard]);
        gauge.set(i64::from(catching_up));
    }

    /// The reader of a stream was opened; `again`: it had brought something before.
    pub fn opened(&mut self, stream: SourceStream, again: bool) {
        let now = self.clock.now();
        match &mut self.catching_up {
            None => self.begin_catching_up(),
            Some(catching_up) if again => catching_up.merge.opened_again(stream, now),
            Some(_) => {}
        }
    }

    /// Gathers what comes next in stored order.
    pub fn gather_in_order(&mut self) {
        // What is there already may come before what was kept.
        for _ in 0..self.settings.mailbox {
            if self.is_gathered() || !self.take_one() {
                break;
            }
        }
        let mut is_first = self.gathered.is_empty();
        while !self.is_gathered() {
            let ground = self.ground(is_first);
            let Some(catching_up) = &mut self.catching_up else {
                return;
            };
            match catching_up.merge.next(ground) {
                Next::Take(delivery, in_order) => {
                    let is_alone = ground.one[delivery.stream.index()] && !delivery.inputs.is_empty();
                    is_first &= delivery.inputs.is_empty();
                    self.gathered.push(Item::Delivery(delivery, Some(in_order)));
                    if is_alone {
                        break;
                    }
                }
                Next::Timers { until, late_source } => {
                    catching_up.firing = Some(Firing::Fire { until, late_source });
                    break;
                }
                Next::Wait(pause) => {
                    catching_up.again = Some(ground.monotonic + pause);
                    break;
                }
                // Not before all inputs are committed: the end of a transaction may put some back.
                Next::Over(_) if self.gathered.has_in_order() => break,
                Next::Over(over) => {
                    self.caught_up(&over);
                    break;
                }
            }
        }
        self.move_gates();
    }

    fn ground(&self, is_first: bool) -> Ground {
        let isolation = &self.partition.isolation;
        let streams = SourceStream::ALL.map(|stream| Origin::Stream { stream, sequence: 0 });
        Ground {
            now: self.clock.now(),
            monotonic: self.clock.monotonic(),
            next_due: self.partition.next_due.filter(|_| is_first),
            late: self.catching_up.as_ref().and_then(|catching_up| catching_up.late),
            events_held: self.holding,
            one: streams.map(|origin| isolation.is_needed(origin)),
            // After an unclean stop each timer is begun alone.
            timers_max: if isolation.is_needed(Origin::Timer) {
                0
            } else {
                (self.settings.batch_inputs / 2).max(1)
            },
        }
    }

    fn caught_up(&mut self, over: &Over) {
        self.catching_up = None;
        self.show_catching_up(false);
        for (stream, proven) in SourceStream::ALL.into_iter().zip(over.proven) {
            if let Some(as_of) = proven {
                self.raise(stream, as_of);
            } else {
                tracing::warn!(
                    shard = self.index,
                    stream = self.partition.streams[stream.index()].name,
                    "stream cannot be read and is left out: what it holds comes behind what was stored later"
                );
            }
        }
        tracing::info!(
            shard = self.index,
            deliveries = over.taken,
            took_ms = u64::try_from(over.took.as_millis()).unwrap_or(u64::MAX),
            "shard has caught up with its streams"
        );
    }

    /// Lets streams bring no more than what may wait.
    fn move_gates(&self) {
        let settings = &self.settings;
        let full = Bounds {
            deliveries: settings.held_deliveries,
            bytes: settings.held_bytes,
        };
        let half = Bounds {
            deliveries: full.deliveries / 2 + 1,
            bytes: full.bytes / 2 + 1,
        };
        for stream in SourceStream::ALL {
            let gate = &self.status.gates;
            // Some distance between the two, so that it does not flicker.
            let bounds = if gate.is_closed(stream) { half } else { full };
            let closed = self
                .catching_up
                .as_ref()
                .is_some_and(|catching_up| catching_up.merge.is_full(stream, bounds));
            gate.set_closed(stream, closed);
        }
    }

    /// Where the shard holds back what it would send until its streams are read: whether they are, with all of it committed.
    pub fn note_caught_up(&mut self) {
        if self.reads_first() && self.gathered.is_empty() && self.barriers.are_raised() {
            self.gathered.push(Item::CaughtUp);
        }
    }

    /// Whether an adopted state has to be read forward, and nothing else triggers that.
    pub fn reads_first(&self) -> bool {
        self.catching_up.is_none() && self.partition.held.is_some_and(|held| held.reads())
    }

    /// What the timers do while the shard catches up; `decided`: what they would do otherwise.
    pub fn timers_in_order(&mut self, decided: Firing) -> Firing {
        let (now, monotonic) = (self.clock.now(), self.clock.monotonic());
        let Some(catching_up) = &mut self.catching_up else {
            return decided;
        };
        catching_up.merge.forget_the_future(now);
        if catching_up.merge.asks(monotonic) {
            self.unsent.push(Notice::BarrierWanted { shard: self.index });
        }
        catching_up.late = match decided {
            Firing::Fire {
                until,
                late_source: true,
            } => Some(until),
            Firing::Fire { .. } | Firing::Idle | Firing::Ask | Firing::Wait(_) => None,
        };
        let again = catching_up.again.take();
        let pause = again.map_or(super::shard_loop::IDLE, |again| again.saturating_sub(monotonic));
        match (catching_up.firing.take(), decided) {
            (Some(firing), _) => firing,
            (
                None,
                Firing::Fire {
                    late_source: false, ..
                },
            ) => decided,
            (None, Firing::Wait(other)) => Firing::Wait(other.min(pause)),
            (
                None,
                Firing::Idle
                | Firing::Ask
                | Firing::Fire {
                    late_source: true, ..
                },
            ) => Firing::Wait(pause),
        }
    }

    /// How long due timers wait for streams that cannot be read, while the shard catches up: without end where all can.
    pub fn hold_in_order(&self) -> Option<Duration> {
        let hold_max = self.settings.timer_hold_max.duration();
        match &self.catching_up {
            Some(catching_up) if !catching_up.merge.leaves_out(self.clock.monotonic()) => None,
            Some(_) | None => Some(hold_max),
        }
    }

    /// Removes what a commit has left because its transaction was to end before it; and what stands behind that in
    /// `items`.
    pub fn put_back(&mut self, left: Vec<Item>, items: &mut VecDeque<Item>) {
        if left.is_empty() {
            return;
        }
        let (behind, others): (Vec<_>, Vec<_>) = std::mem::take(items)
            .into_iter()
            .partition(|item| matches!(item, Item::Delivery(_, Some(_))));
        *items = others.into();
        if self.catching_up.is_none() {
            self.begin_catching_up();
        }
        let Some(catching_up) = &mut self.catching_up else {
            return;
        };
        for item in left.into_iter().chain(behind).rev() {
            if let Item::Delivery(delivery, _) = item {
                let position = self.partition.positions[delivery.stream.index()];
                catching_up.merge.put_back(delivery, position);
            }
        }
    }
}
