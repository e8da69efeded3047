//! Shards that hold up the others get a reader of their own, and join the shared one once that is close behind.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::Shared;
use crate::intake::feed::Feed;
use crate::intake::identity::Place;
use crate::intake::private::{Private, Since};
use crate::intake::slot::{Detached, State};
use crate::ports::clock::Clock as _;
use crate::tasks::Task;

impl Shared {
    /// Leaves shards that hold up the others to readers of their own: those whose mailbox was full for
    /// `detach_after` at a stretch, or for half of a window of four times that.
    pub(super) fn detach_stalled(&mut self) {
        let now = self.ctx.clock.monotonic();
        let patience = self.ctx.settings.detach_after.duration();
        if now.saturating_sub(self.window) > patience * 4 {
            self.window = now;
            self.slots
                .iter_mut()
                .for_each(|slot| slot.full_for = Duration::ZERO);
        }
        let others_wait = self
            .slots
            .iter()
            .any(|slot| slot.is_attached() && slot.full_since.is_none());
        if !others_wait {
            return;
        }
        for at in 0..self.slots.len() {
            let slot = &self.slots[at];
            let Some(since) = slot.full_since else { continue };
            let stretch = now.saturating_sub(since);
            if slot.is_attached() && (stretch >= patience || slot.full_for + stretch >= patience * 2) {
                let from = slot.feed.sent();
                tracing::info!(
                    stream = self.ctx.name(self.stream),
                    shard = slot.feed.shard,
                    from = from.sequence,
                    "shard is slow and gets a reader of its own"
                );
                self.detach(at, from);
            }
        }
    }

    /// Starts a private reader from behind `position` for a shard that was fed before.
    pub(super) fn detach(&mut self, at: usize, position: Place) {
        // What it was not told yet the private reader tells.
        let since = if self.slots[at].feed.has_opening() {
            Since::Start
        } else {
            Since::Detached
        };
        self.detach_from(at, position, since);
    }

    pub(super) fn detach_from(&mut self, at: usize, position: Place, since: Since) {
        self.tickets += 1;
        let ticket = self.tickets;
        let slot = &mut self.slots[at];
        let shard = slot.feed.shard;
        let asked = self.wanted.remove(&shard) | self.probed.remove(&shard) | slot.feed.has_barrier();
        let (barriers, wanted) = watch::channel(u64::from(asked));
        let feed = Feed::new(&slot.endpoint, self.stream, position);
        let of = format!("of shard {shard} in {}", self.ctx.name(self.stream));
        let hub = self.hub.clone();
        let private = Private::new(&self.ctx, self.stream, ticket, feed, hub, wanted, since);
        slot.feed.restart(position);
        slot.full_since = None;
        slot.full_for = Duration::ZERO;
        slot.state = State::Detached(Detached {
            ticket,
            task: AbortOnDropHandle::new(self.ctx.tasks.spawn(Task::PrivateReader, of, private.run())),
            barriers,
        });
    }

    pub(super) async fn feed_again(&mut self, at: usize, position: u64) {
        let slot = &mut self.slots[at];
        // What the mailbox still holds begins above `position` and is refused, too, without another notice:
        // the shard reports once until a delivery fits. A shard without room may refuse one position again.
        if matches!(slot.state, State::Gone) {
            return;
        }
        tracing::warn!(
            stream = self.ctx.name(self.stream),
            shard = slot.feed.shard,
            position,
            "shard refused a delivery and is fed again"
        );
        let labels = [self.ctx.name(self.stream), "refused"];
        self.ctx.metrics.readers_rebuilt.with_label_values(&labels).inc();
        let mut asked = false;
        if let State::Detached(reader) | State::Joining(reader) =
            std::mem::replace(&mut slot.state, State::Attached)
        {
            asked = *reader.barriers.borrow() > 0;
            reader.end().await;
        }
        if asked {
            self.wanted.insert(self.slots[at].feed.shard);
        }
        let position = Place {
            sequence: position,
            stamp: None,
        };
        self.detach(at, position);
    }

    pub(super) fn begin_join(&mut self, at: usize, ticket: u64, read: u64) -> Option<u64> {
        let mine = self.view.place();
        let near = !self.ctx.progress(self.stream).is_halted()
            && mine.sequence.saturating_sub(read) <= self.ctx.settings.attach_within.saturating_mul(2);
        let slot = &mut self.slots[at];
        match std::mem::replace(&mut slot.state, State::Gone) {
            State::Detached(reader) if reader.ticket == ticket && near => {
                slot.feed.restart(mine);
                slot.state = State::Joining(reader);
                Some(mine.sequence)
            }
            other => {
                slot.state = other;
                None
            }
        }
    }

    pub(super) fn finish_join(&mut self, at: usize, ticket: u64, read: u64, answered: u64) -> bool {
        let slot = &mut self.slots[at];
        match std::mem::replace(&mut slot.state, State::Gone) {
            State::Joining(reader) if reader.ticket == ticket => {
                if *reader.barriers.borrow() > answered {
                    self.wanted.insert(slot.feed.shard);
                    self.next_probe = self.ctx.clock.monotonic();
                }
                slot.feed.take_over(Place {
                    sequence: read,
                    stamp: None,
                });
                slot.state = State::Attached;
                true
            }
            other => {
                slot.state = other;
                false
            }
        }
    }
}
