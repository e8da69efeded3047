//! What each piece of mail means for the shard: it joins the batch, is set aside, or is refused.

use saga_runner_partition::machine::progress::{Acceptance, bytes_of};

use super::ShardLoop;
use crate::kernel::ids::{InstanceId, TimeMs};
use crate::kernel::input::{Control, Input, InputBody, Origin, SourceStream};
use crate::kernel::planted::{Bug, is_planted};
use crate::shard::batch::{Activation, Item, Refill, verdict_input};
use crate::shard::mailbox::{Delivery, Mail, Notice};

impl ShardLoop {
    /// Takes one piece of mail; false: there is none.
    pub fn take_one(&mut self) -> bool {
        self.feed_again_if_room();
        let mail = self.backlog.pop_front().or_else(|| self.mailbox.try_recv().ok());
        mail.map(|mail| self.take(mail)).is_some()
    }

    /// What was refused for want of room is asked for again, once all that was set aside has been taken.
    fn feed_again_if_room(&mut self) {
        if self.held.overflowed && !self.holding && self.held.is_empty() {
            self.held.overflowed = false;
            let notice = self.gap(SourceStream::AggregateEvents);
            self.unsent.push(notice);
        }
    }

    /// Takes what this process says to an instance.
    fn take_local(&mut self, instance: InstanceId, id: String, control: Control) {
        let input = Input {
            instance,
            id,
            time: self.clock.now(),
            origin: Origin::Local,
            body: InputBody::Control(control),
        };
        self.gathered.push(Item::Verdict(Box::new((input, None))));
    }

    pub(super) fn take(&mut self, mail: Mail) {
        match mail {
            Mail::Delivery(delivery) => self.take_delivery(delivery),
            Mail::Barrier { stream, as_of } => self.take_barrier(stream, as_of),
            Mail::Opened { stream, again } => self.opened(stream, again),
            Mail::Verdict(verdict) => {
                let verdict = verdict_input(verdict, self.clock.now());
                self.gathered.push(Item::Verdict(Box::new(verdict)));
            }
            Mail::Migrate {
                instance,
                to,
                back,
                id,
            } => self.take_local(instance, id, Control::Migrate { to, back }),
            Mail::Delivered(rows) => self.gathered.push(Item::Delivered(rows)),
            Mail::CallBegins { row, reply } => self.gathered.push(Item::CallBegins { row, reply }),
            Mail::NotCalled(row) => self.gathered.push(Item::NotCalled(row)),
            Mail::Archived { numbers, reply } => {
                self.gathered.push(Item::Archived { numbers, reply });
            }
            Mail::Refill { after, limit, reply } => {
                self.gathered.refills.push(Refill { after, limit, reply });
            }
            Mail::DeadLetter {
                tenant,
                number,
                order,
                reply,
            } => self.gathered.push(Item::Decision {
                tenant,
                number,
                order,
                reply,
            }),
            Mail::PauseSchedule {
                tenant,
                saga,
                paused,
                principal,
                reply,
            } => self.gathered.push(Item::Pause {
                tenant,
                saga,
                paused,
                principal,
                reply,
            }),
            Mail::Activate {
                definitions,
                revision,
                routed_by,
                reply,
            } => {
                self.gathered.activation = Some(Activation {
                    definitions,
                    revision,
                    routed_by,
                    reply: Some(reply),
                });
            }
            Mail::StreamHalted { stream, halt } => self.keep_halt(stream, &halt),
            Mail::Held {
                decision,
                reason,
                reply,
            } => self.gathered.push(Item::Held {
                decision,
                reason,
                reply,
            }),
            Mail::Reposition(order) => self.gathered.reposition = Some(order),
            Mail::Stop => self.gathered.stop = true,
        }
    }

    fn take_delivery(&mut self, delivery: Delivery) {
        let stream = delivery.stream;
        let aside = stream == SourceStream::AggregateEvents
            && self.catching_up.is_none()
            && (self.holding || !self.held.is_empty());
        let settings = &self.settings;
        if aside && !self.held.has_room(settings.held_deliveries, settings.held_bytes) {
            self.held.overflowed = true;
            self.progress.refuse(stream);
            return;
        }
        match self.progress.offer(&delivery) {
            Acceptance::Fits if aside => {
                if is_planted(Bug::PositionPastHeld) {
                    let inputs = Vec::new();
                    let passed = Delivery {
                        inputs,
                        ..delivery.clone()
                    };
                    self.gathered.push(Item::Delivery(passed, None));
                }
                self.held.push_delivery(delivery);
            }
            Acceptance::Fits => match &mut self.catching_up {
                Some(catching_up) => catching_up.merge.push(delivery),
                None => self.gathered.push(Item::Delivery(delivery, None)),
            },
            Acceptance::Repeated => {}
            Acceptance::Gap { news } => {
                tracing::debug!(
                    shard = self.index,
                    ?stream,
                    after = delivery.after,
                    bytes = bytes_of(&delivery),
                    "delivery begins above the position and is refused"
                );
                if news {
                    let notice = self.gap(stream);
                    self.unsent.push(notice);
                }
            }
        }
    }

    fn take_barrier(&mut self, stream: SourceStream, as_of: TimeMs) {
        if self.progress.refuses(stream) {
            return;
        }
        if let Some(catching_up) = &mut self.catching_up {
            catching_up.merge.push_barrier(stream, as_of);
        } else if self.waits_behind_held(stream) {
            self.held.push_barrier(as_of);
        } else {
            // It counts for timers that fire behind all that was gathered before it.
            self.raise(stream, as_of);
        }
    }

    /// A barrier counts up to now: of its stream's clock more may be known than of the one that is furthest behind, by which it
    /// is now. What lies beyond now would be taken for a time before the clock was put back.
    pub fn raise(&mut self, stream: SourceStream, as_of: TimeMs) {
        let now = self.clock.now();
        self.barriers.raise(stream, as_of.min(now));
    }

    fn waits_behind_held(&self, stream: SourceStream) -> bool {
        stream == SourceStream::AggregateEvents && !self.held.is_empty() && !is_planted(Bug::TimersPassHeld)
    }

    pub const fn gap(&self, stream: SourceStream) -> Notice {
        Notice::Gap {
            shard: self.index,
            stream,
            position: self.progress.taken(stream),
        }
    }
}
