//! Which shards are fed and from where: they are opened, closed and repositioned while others are read for.

use super::Shared;
use crate::intake::context::ShardEndpoint;
use crate::intake::identity::Place;
use crate::intake::private::Since;
use crate::intake::slot::{Slot, State, place_of};
use crate::intake::view::{View, ViewOf};
use crate::ports::clock::Clock as _;

impl Shared {
    /// Feeds one more shard, by a reader of its own until it has come to the others.
    pub(super) fn add(&mut self, endpoint: ShardEndpoint) {
        let place = place_of(&endpoint, self.stream);
        let halted = endpoint.halted;
        self.slots.push(Slot::new(endpoint, self.stream, place));
        if halted {
            // It is fed from where an operator says.
            return;
        }
        let at = self.slots.len() - 1;
        self.want_barrier(at);
        if self.is_read_for_others(at) {
            self.detach_from(at, place, Since::Start);
        } else if !self.ctx.progress(self.stream).is_halted() {
            self.begin_with(at, place);
        }
    }

    pub(super) async fn remove(&mut self, shard: u16) {
        self.wanted.remove(&shard);
        self.probed.remove(&shard);
        while let Some(at) = self.slots.iter().position(|slot| slot.feed.shard == shard) {
            let slot = self.slots.swap_remove(at);
            if let State::Detached(reader) | State::Joining(reader) = slot.state {
                reader.end().await;
            }
        }
        // It may have been the only one that had no place yet.
        self.begin_if_ready();
    }

    /// A shard that begins to be fed catches up, and so waits for a barrier. It works before the readers know that it is fed:
    /// what it has asked for until then had no place to be noted, and it asks again after seconds only.
    fn want_barrier(&mut self, at: usize) {
        self.wanted.insert(self.slots[at].feed.shard);
        self.next_probe = self.ctx.clock.monotonic();
    }

    /// Whether the stream is read, and for more than the shard at `at`.
    fn is_read_for_others(&self, at: usize) -> bool {
        let mut others = self.slots.iter().enumerate().filter(|(other, _)| *other != at);
        !self.ctx.progress(self.stream).is_halted() && others.any(|(_, slot)| slot.is_fed())
    }

    /// Feeds a shard from `place`. Where the stream is not read any more, that waits until each shard has its place.
    pub(super) async fn read_on(&mut self, at: usize, place: Place) {
        let slot = &mut self.slots[at];
        if let State::Detached(reader) | State::Joining(reader) =
            std::mem::replace(&mut slot.state, State::Gone)
        {
            reader.end().await;
        }
        self.want_barrier(at);
        if self.is_read_for_others(at) {
            return self.detach(at, place);
        }
        self.ctx.progress(self.stream).repositioned();
        self.begin_with(at, place);
    }

    /// Reads the stream from `place`, and for the others from theirs, as soon as each that is fed has one.
    fn begin_with(&mut self, at: usize, place: Place) {
        let slot = &mut self.slots[at];
        slot.state = State::Attached;
        slot.full_since = None;
        slot.feed.restart(place);
        slot.ready = true;
        self.begin_if_ready();
    }

    fn begin_if_ready(&mut self) {
        let fed = || self.slots.iter().filter(|slot| slot.is_fed());
        if fed().next().is_some() && fed().all(|slot| slot.ready) {
            self.begin_again();
        }
    }

    /// Reads from where the shards are, as after a start.
    fn begin_again(&mut self) {
        let fed = self.slots.iter_mut().filter(|slot| slot.ready);
        let places: Vec<Place> = fed
            .map(|slot| {
                slot.ready = false;
                slot.feed.sent()
            })
            .collect();
        let by_sequence = |place: &Place| place.sequence;
        let first = places.iter().copied().min_by_key(by_sequence);
        let last = places.iter().copied().max_by_key(by_sequence);
        self.ctx
            .progress(self.stream)
            .begin_again(last.unwrap_or_default());
        self.view = View::new(&self.ctx, self.stream, first.unwrap_or_default(), ViewOf::Shared);
        self.batch.clear();
        self.wanted.append(&mut self.probed);
    }
}
