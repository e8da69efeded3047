//! The shared reader of one stream, for every attached shard.
//!
//! It never waits long for one shard: a mailbox that stays full is left to a private reader
//! (see [`super::private`]). Where all mailboxes are full, reading pauses: that is backpressure, not a slow shard.
//!
//! Here are its loop, its probes, and how messages get to shards. `commands` is what it is asked; `detaching` gives slow shards
//! readers of their own and takes them back; `shards` is which shards are fed, and from where.

mod commands;
mod detaching;
mod shards;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::address;
use super::context::{Context, ShardEndpoint};
use super::feed::{Bounds, Flushed};
use super::identity::Place;
use super::private::Since;
use super::route::Routed;
use super::slot::{Slot, State, place_of};
use super::view::{View, ViewOf};
use crate::kernel::input::SourceStream;
use crate::ports::broker::Message;
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::Arrival;
pub(super) use commands::Command;

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
            view: View::new(ctx, stream, start.unwrap_or_default(), ViewOf::Shared),
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
            // It is read again before anything comes, from where the shards are then.
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
}
