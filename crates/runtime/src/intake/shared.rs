//! The shared reader of one stream, for every attached shard.
//!
//! It never waits long for one shard: a mailbox that stays full is left to a private reader
//! (see [`super::private`]). Where all mailboxes are full, reading pauses: that is backpressure, not a slow shard.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::address;
use super::context::{Context, ShardEndpoint};
use super::feed::{Bounds, Feed, Flushed};
use super::identity::Place;
use super::private::{Private, Since};
use super::route::Routed;
use super::slot::{Detached, Slot, State, place_of};
use super::view::View;
use crate::kernel::input::SourceStream;
use crate::ports::broker::Message;
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::Arrival;
use crate::tasks::Task;

/// What a shared reader is asked.
#[derive(Debug)]
pub(super) enum Command {
    /// Definitions have changed: ask the broker for what they want.
    Widen,
    /// A shard waits for a barrier.
    Barrier { shard: u16 },
    /// A shard refused a delivery: feed it again from behind `position`.
    Gap { shard: u16, position: u64 },
    /// A private reader is close behind. The answer is the sequence above which everything is kept for its
    /// shard from now on, `None` where it shall try again later.
    Join {
        shard: u16,
        ticket: u64,
        read: u64,
        reply: oneshot::Sender<Option<u64>>,
    },
    /// A private reader mailed all up to `read` and stops, if the answer is true.
    Joined {
        shard: u16,
        ticket: u64,
        read: u64,
        answered: u64,
        reply: oneshot::Sender<bool>,
    },
    /// Whether all that was read is in the mailbox of the shard.
    IsMailed {
        shard: u16,
        reply: oneshot::Sender<bool>,
    },
    /// A shard was opened: feed it from its position.
    Add {
        shard: Box<ShardEndpoint>,
        reply: oneshot::Sender<()>,
    },
    /// A shard is about to be closed: mail nothing to it after the answer.
    Remove { shard: u16, reply: oneshot::Sender<()> },
    /// An operator has moved the position of the shard: feed it from there.
    ReadOn {
        shard: u16,
        place: Place,
        reply: oneshot::Sender<()>,
    },
}

pub(super) struct Shared {
    ctx: Arc<Context>,
    stream: SourceStream,
    slots: Vec<Slot>,
    view: View,
    batch: Vec<Message>,
    routed: Vec<Routed>,
    commands: mpsc::Receiver<Command>,
    /// For private readers.
    hub: mpsc::Sender<Command>,
    tickets: u64,
    /// Shards that wait for a barrier, and those whose barrier the running probe answers.
    wanted: BTreeSet<u16>,
    probed: BTreeSet<u16>,
    next_probe: Duration,
    next_tick: Duration,
    window: Duration,
}

/// A joining shard keeps each message apart, so that a part can be dropped at any sequence.
const APART: Bounds = Bounds { inputs: 0, bytes: 0 };

impl Shared {
    pub fn new(
        ctx: &Arc<Context>,
        stream: SourceStream,
        shards: &[ShardEndpoint],
        commands: mpsc::Receiver<Command>,
        hub: mpsc::Sender<Command>,
    ) -> Self {
        let now = ctx.clock.monotonic();
        let positions: Vec<Place> = shards.iter().map(|shard| place_of(shard, stream)).collect();
        // Where a halted shard stands, the stream may have nothing any more.
        let fed = || shards.iter().zip(&positions).filter(|(shard, _)| !shard.halted);
        let by_sequence = |place: &Place| place.sequence;
        let newest = fed().map(|(_, place)| *place).max_by_key(by_sequence);
        let newest = newest.unwrap_or_default();
        // That it stands tells that the others do.
        ctx.progress(stream).stands(newest);
        let behind =
            |place: Place| newest.sequence.saturating_sub(place.sequence) > ctx.settings.detach_behind;
        let start = fed()
            .map(|(_, position)| *position)
            .filter(|place| !behind(*place))
            .min_by_key(by_sequence);
        let mut shared = Self {
            view: View::new(ctx, stream, start.unwrap_or_default(), true),
            ctx: Arc::clone(ctx),
            stream,
            slots: Vec::with_capacity(shards.len()),
            batch: Vec::new(),
            routed: Vec::new(),
            commands,
            hub,
            tickets: 0,
            wanted: BTreeSet::new(),
            probed: BTreeSet::new(),
            next_probe: now,
            next_tick: now,
            window: now,
        };
        for (endpoint, position) in shards.iter().zip(positions) {
            shared.slots.push(Slot::new(endpoint.clone(), stream, position));
            if behind(position) && !endpoint.halted {
                shared.detach_from(shared.slots.len() - 1, position, Since::Start);
            }
        }
        shared
    }

    /// Runs until `stop`. Everything mailed stays mailed.
    pub async fn run(mut self, stop: CancellationToken) {
        while !self.slots.iter().any(Slot::is_fed) {
            // Nobody is to be fed.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(command) = self.commands.recv() => self.obey(command).await,
            }
        }
        let ctx = Arc::clone(&self.ctx);
        loop {
            self.make_ready();
            self.flush();
            self.detach_stalled();
            let full = self.slots.iter().position(|slot| slot.full_since.is_some());
            self.look_at_the_clock(full.is_some());
            let wake = self.wake();
            let room = async {
                match full {
                    Some(at) => self.slots[at].feed.room().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(command) = self.commands.recv() => self.obey(command).await,
                () = ctx.until(wake) => {}
                () = room => {}
                () = self.view.next(&mut self.batch), if full.is_none() => self.take_batch().await,
            }
        }
        for slot in self.slots {
            if let State::Detached(reader) | State::Joining(reader) = slot.state {
                reader.end().await;
            }
        }
    }

    /// Tells the feeds by which definitions what comes next was asked for.
    fn follow_definitions(&mut self) {
        if self.ctx.progress(self.stream).is_halted() {
            // It is read anew before anything comes, from where the shards are then.
            return;
        }
        let (routed_by, read) = (self.view.routed_by(), self.view.place());
        for slot in &mut self.slots {
            let is_fed_here = matches!(slot.state, State::Attached | State::Joining(_));
            slot.feed.follow(routed_by, is_fed_here.then_some(read));
        }
    }

    /// Mails what a probe proved.
    fn make_ready(&mut self) {
        self.follow_definitions();
        self.tell_of_opening();
        if let Some(as_of) = self.view.proven() {
            let read = self.view.place();
            for slot in self.slots.iter_mut().filter(|slot| slot.is_attached()) {
                if self.probed.contains(&slot.feed.shard) {
                    slot.feed.barrier(read, as_of);
                } else {
                    slot.feed.watermark(read);
                }
            }
            self.probed.clear();
        } else if !self.view.is_probing() {
            // The reader broke before the proof came true.
            self.wanted.append(&mut self.probed);
        }
    }

    fn flush(&mut self) {
        let now = self.ctx.clock.monotonic();
        for slot in self.slots.iter_mut().filter(|slot| slot.is_attached()) {
            match slot.feed.flush() {
                Flushed::All => {
                    if let Some(since) = slot.full_since.take() {
                        slot.full_for += now.saturating_sub(since);
                    }
                }
                Flushed::Full => {
                    slot.full_since.get_or_insert(now);
                }
                Flushed::Closed => {
                    slot.state = State::Gone;
                    slot.full_since = None;
                }
            }
        }
    }

    /// Leaves shards that hold up the others to readers of their own: those whose mailbox was full for
    /// `detach_after` at a stretch, or for half of a window of four times that.
    fn detach_stalled(&mut self) {
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
    fn detach(&mut self, at: usize, position: Place) {
        // What it was not told yet the private reader tells.
        let since = if self.slots[at].feed.has_opening() {
            Since::Start
        } else {
            Since::Detached
        };
        self.detach_from(at, position, since);
    }

    fn detach_from(&mut self, at: usize, position: Place, since: Since) {
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

    /// Reports now and then, and begins a probe where it is time for one.
    fn look_at_the_clock(&mut self, blocked: bool) {
        let now = self.ctx.clock.monotonic();
        let is_tick = now >= self.next_tick;
        if is_tick {
            self.next_tick = now + self.ctx.settings.watermark_interval.duration();
            self.report();
        }
        let is_wanted = !self.wanted.is_empty() && now >= self.next_probe;
        if blocked || self.view.is_probing() || !(is_tick || is_wanted) {
            return;
        }
        self.next_probe = now + self.ctx.settings.barrier_retry.duration();
        if self.view.begin_probe() {
            self.probed.append(&mut self.wanted);
        }
    }

    fn wake(&self) -> Duration {
        let patience = self.ctx.settings.detach_after.duration();
        let stalled = self.slots.iter().filter_map(|slot| slot.full_since).min();
        let is_blocked = stalled.is_some();
        // Past that, nobody was waiting behind it: look again later.
        let now = self.ctx.clock.monotonic();
        let stalled = stalled.map(|since| match since + patience {
            due if due > now => due,
            _ => now + patience,
        });
        let wants = !self.wanted.is_empty() && !is_blocked && !self.view.is_probing();
        stalled
            .into_iter()
            .chain(wants.then_some(self.next_probe))
            .fold(self.next_tick, Duration::min)
    }

    /// Shows how far the shards are.
    fn report(&self) {
        let position = |slot: &Slot| (slot.endpoint.position)(self.stream);
        let lowest = self.slots.iter().map(position).min();
        let end = self.ctx.progress(self.stream).end.load(Ordering::Relaxed);
        let lag = lowest.map_or(0, |position| end.saturating_sub(position));
        self.ctx
            .metrics
            .stream_lag
            .with_label_values(&[self.ctx.name(self.stream)])
            .set(i64::try_from(lag).unwrap_or(i64::MAX));
    }

    /// Tells the shards of a reader that was opened, before what it brings.
    fn tell_of_opening(&mut self) {
        if let Some(again) = self.view.take_opened() {
            for slot in self.slots.iter_mut().filter(|slot| slot.is_attached()) {
                slot.feed.opened(again);
            }
        }
    }

    async fn take_batch(&mut self) {
        self.follow_definitions();
        self.tell_of_opening();
        let mut silent = false;
        let mut taken = 0;
        for message in self.batch.drain(..) {
            let place = Place::of(&message);
            if let Err(error) = address::route(&self.ctx, self.stream, &message, &mut self.routed).await {
                tracing::warn!(stream = self.ctx.name(self.stream), %error, "command of a result is unknown");
                self.view.abandon("lookup");
                break;
            }
            for (shard, arrival) in self.routed.drain(..) {
                if matches!(&arrival, Arrival::Unreadable(found) if found.reason == "tenant.mismatch") {
                    self.ctx.metrics.tenant_mismatches.inc();
                }
                let Some(slot) = self.slots.iter_mut().find(|slot| slot.feed.shard == shard) else {
                    continue;
                };
                match slot.state {
                    State::Attached => slot.feed.push(place, arrival, self.ctx.bounds()),
                    State::Joining(_) => slot.feed.push(place, arrival, APART),
                    State::Detached(_) | State::Gone => {}
                }
            }
            self.view.handled(place, message.pending);
            silent = message.pending == 0;
            taken += 1;
        }
        self.batch.clear();
        self.ctx
            .metrics
            .messages_read
            .with_label_values(&[self.ctx.name(self.stream)])
            .inc_by(taken);
        self.after_batch();
        if silent && !self.wanted.is_empty() {
            self.next_probe = self.ctx.clock.monotonic();
        }
    }

    fn after_batch(&mut self) {
        let read = self.view.place();
        let settings = &self.ctx.settings;
        for slot in &mut self.slots {
            let overflow = slot.feed.waiting_inputs() > settings.attach_inputs;
            match std::mem::replace(&mut slot.state, State::Gone) {
                State::Attached => {
                    if read.sequence.saturating_sub(slot.feed.queued()) > settings.watermark_messages {
                        slot.feed.watermark(read);
                    }
                    slot.state = State::Attached;
                }
                State::Joining(reader) if overflow => {
                    slot.feed.restart(read);
                    slot.state = State::Detached(reader);
                }
                other => slot.state = other,
            }
        }
    }

    async fn obey(&mut self, command: Command) {
        let command = match command {
            Command::Add { shard, reply } => {
                self.add(*shard);
                let _gone = reply.send(());
                return;
            }
            Command::Remove { shard, reply } => {
                self.remove(shard).await;
                let _gone = reply.send(());
                return;
            }
            command => command,
        };
        let (Command::Barrier { shard }
        | Command::Gap { shard, .. }
        | Command::Join { shard, .. }
        | Command::Joined { shard, .. }
        | Command::IsMailed { shard, .. }
        | Command::ReadOn { shard, .. }) = &command
        else {
            // The view finds out by itself, now that it is awake.
            return;
        };
        let Some(at) = self.slots.iter().position(|slot| slot.feed.shard == *shard) else {
            return;
        };
        match command {
            Command::Widen | Command::Add { .. } | Command::Remove { .. } => {}
            Command::Barrier { shard } => match &self.slots[at].state {
                State::Attached => {
                    if self.wanted.is_empty() {
                        self.next_probe = self.ctx.clock.monotonic();
                    }
                    self.wanted.insert(shard);
                }
                State::Detached(reader) | State::Joining(reader) => {
                    reader.barriers.send_modify(|count| *count += 1);
                }
                State::Gone => {}
            },
            Command::Gap { position, .. } => self.feed_again(at, position).await,
            Command::IsMailed { reply, .. } => {
                let slot = &self.slots[at];
                let _gone = reply.send(!slot.is_attached() || slot.feed.is_empty());
            }
            Command::ReadOn { place, reply, .. } => {
                self.read_on(at, place).await;
                let _gone = reply.send(());
            }
            Command::Join {
                ticket, read, reply, ..
            } => {
                let target = self.begin_join(at, ticket, read);
                if reply.send(target).is_err() {
                    self.slots[at].stay_detached();
                }
            }
            Command::Joined {
                ticket,
                read,
                answered,
                reply,
                ..
            } => {
                let taken = self.finish_join(at, ticket, read, answered);
                if reply.send(taken).is_err() {
                    // It mailed all that it reported before it ended.
                    tracing::debug!(ticket, "private reader ended before it was answered");
                }
            }
        }
    }

    async fn feed_again(&mut self, at: usize, position: u64) {
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

    /// Feeds one more shard, by a reader of its own until it has come to the others.
    fn add(&mut self, endpoint: ShardEndpoint) {
        let place = place_of(&endpoint, self.stream);
        let halted = endpoint.halted;
        self.slots.push(Slot::new(endpoint, self.stream, place));
        if halted {
            // It is fed from where an operator says.
            return;
        }
        let at = self.slots.len() - 1;
        if self.is_read_for_others(at) {
            self.detach_from(at, place, Since::Start);
        } else if !self.ctx.progress(self.stream).is_halted() {
            self.begin_with(at, place);
        }
    }

    async fn remove(&mut self, shard: u16) {
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

    /// Whether the stream is read, and for more than the shard at `at`.
    fn is_read_for_others(&self, at: usize) -> bool {
        let mut others = self.slots.iter().enumerate().filter(|(other, _)| *other != at);
        !self.ctx.progress(self.stream).is_halted() && others.any(|(_, slot)| slot.is_fed())
    }

    /// Feeds a shard from `place`. Where the stream is not read any more, that waits until each shard has its place.
    async fn read_on(&mut self, at: usize, place: Place) {
        let slot = &mut self.slots[at];
        if let State::Detached(reader) | State::Joining(reader) =
            std::mem::replace(&mut slot.state, State::Gone)
        {
            reader.end().await;
        }
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
        self.view = View::new(&self.ctx, self.stream, first.unwrap_or_default(), true);
        self.batch.clear();
        self.wanted.append(&mut self.probed);
    }

    fn begin_join(&mut self, at: usize, ticket: u64, read: u64) -> Option<u64> {
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

    fn finish_join(&mut self, at: usize, ticket: u64, read: u64, answered: u64) -> bool {
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
