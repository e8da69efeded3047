//! The reader of one detached shard: as slow as its shard, in the way of nobody else.
//!
//! It reads the stream from the shard's position and waits for the mailbox as long as it takes. Once it is close
//! behind the shared reader it asks to hand over: the shared reader begins to keep what comes after its own
//! position R, this one reads on until it has mailed all up to some X at or above R, and reports X. The
//! shared reader mails what it kept from behind X, so the chain of deliveries is unbroken.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::address;
use super::context::Context;
use super::feed::{Feed, Flushed};
use super::identity::Place;
use super::shared::Command;
use super::view::{View, ViewOf};
use crate::kernel::input::SourceStream;
use crate::ports::broker::Message;
use crate::ports::clock::Clock as _;

/// Since when a shard has a reader of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    /// It was far behind the others at the start.
    Start,
    /// It was fed before.
    Detached,
}

pub(super) struct Private {
    ctx: Arc<Context>,
    stream: SourceStream,
    /// Distinguishes this reader from earlier ones of the same shard.
    ticket: u64,
    feed: Feed,
    view: View,
    hub: mpsc::Sender<Command>,
    /// Barriers asked for so far.
    wanted: watch::Receiver<u64>,
    since: Since,
    /// Barriers that the running probe covers, and those that were mailed.
    probed: u64,
    answered: u64,
    /// While handing over: the shared reader keeps all above this.
    target: Option<u64>,
    next_probe: Duration,
    next_join: Duration,
    batch: Vec<Message>,
    _counted: Counted,
}

impl Private {
    pub fn new(
        ctx: &Arc<Context>,
        stream: SourceStream,
        ticket: u64,
        feed: Feed,
        hub: mpsc::Sender<Command>,
        wanted: watch::Receiver<u64>,
        since: Since,
    ) -> Self {
        let now = ctx.clock.monotonic();
        Self {
            view: View::new(ctx, stream, feed.sent(), ViewOf::Private),
            _counted: Counted::new(ctx, stream),
            ctx: Arc::clone(ctx),
            stream,
            ticket,
            feed,
            hub,
            wanted,
            since,
            probed: 0,
            answered: 0,
            target: None,
            next_probe: now,
            next_join: now,
            batch: Vec::new(),
        }
    }

    /// Runs until the shard is handed over or its mailbox is closed.
    ///
    /// # Cancel safety
    /// What was mailed stays mailed, and forms an unbroken chain.
    pub async fn run(mut self) {
        while self.mail_all().await {
            let is_there = self.target.is_some_and(|target| self.view.read() >= target);
            if is_there && self.view.is_vouched_for() {
                if self.hand_over().await {
                    return;
                }
            } else if self.may_join() {
                self.ask_to_join().await;
            }
            self.wait().await;
        }
    }

    /// False: the mailbox is closed.
    async fn mail_all(&mut self) -> bool {
        loop {
            match self.feed.flush() {
                Flushed::All => return true,
                Flushed::Full => self.feed.room().await,
                Flushed::Closed => return false,
            }
        }
    }

    fn may_join(&self) -> bool {
        let shared = self.ctx.progress(self.stream).read.load(Ordering::Relaxed);
        let mailbox = self.feed.mailbox();
        self.target.is_none()
            && self.ctx.clock.monotonic() >= self.next_join
            && shared.saturating_sub(self.view.read()) <= self.ctx.settings.attach_within
            && mailbox.capacity() * 2 >= mailbox.max_capacity()
    }

    async fn ask_to_join(&mut self) {
        self.next_join = self.ctx.clock.monotonic() + self.join_pause();
        let (reply, answer) = oneshot::channel();
        let asked = self.hub.send(Command::Join {
            shard: self.feed.shard,
            ticket: self.ticket,
            read: self.view.read(),
            reply,
        });
        if asked.await.is_ok()
            && let Ok(Some(target)) = answer.await
        {
            self.target = Some(target);
            // The rest of the way may hold no message for this shard at all.
            self.next_probe = self.ctx.clock.monotonic();
        }
    }

    /// True: the shared reader has taken over.
    async fn hand_over(&mut self) -> bool {
        self.target = None;
        self.next_join = self.ctx.clock.monotonic() + self.join_pause();
        self.feed.watermark(self.view.place());
        if !self.mail_all().await {
            return true;
        }
        let (reply, answer) = oneshot::channel();
        let reported = self.hub.send(Command::Joined {
            shard: self.feed.shard,
            ticket: self.ticket,
            read: self.feed.sent().sequence,
            answered: self.answered,
            reply,
        });
        reported.await.is_ok() && answer.await == Ok(true)
    }

    fn join_pause(&self) -> Duration {
        self.ctx.settings.barrier_retry.duration()
    }

    /// Tells the feed by which definitions what comes next was asked for.
    fn follow_definitions(&mut self) {
        self.feed.follow(self.view.routed_by(), Some(self.view.place()));
    }

    /// Tells the shard of a reader that was opened, before what it brings. To begin with a reader of its own is not news.
    fn tell_of_opening(&mut self) {
        match self.view.take_opened() {
            Some(false) if self.since == Since::Detached => {}
            Some(again) => self.feed.opened(again),
            None => {}
        }
    }

    async fn wait(&mut self) {
        self.follow_definitions();
        self.tell_of_opening();
        if let Some(as_of) = self.view.proven() {
            if self.probed > self.answered {
                self.feed.barrier(self.view.place(), as_of);
                self.answered = self.probed;
            } else {
                self.feed.watermark(self.view.place());
            }
            return;
        }
        let now = self.ctx.clock.monotonic();
        let wanted = *self.wanted.borrow_and_update();
        if !self.view.is_probing() && now >= self.next_probe {
            let soon = wanted > self.answered || self.target.is_some();
            self.next_probe = now
                + if soon {
                    self.ctx.settings.barrier_retry.duration()
                } else {
                    self.ctx.settings.watermark_interval.duration()
                };
            if self.view.begin_probe() {
                self.probed = wanted;
            }
        }
        let wake = if self.view.is_probing() {
            now + self.ctx.settings.watermark_interval.duration()
        } else {
            self.next_probe
        };
        let ctx = Arc::clone(&self.ctx);
        tokio::select! {
            biased;
            Ok(()) = self.wanted.changed() => self.next_probe = ctx.clock.monotonic(),
            () = ctx.until(wake) => {}
            () = self.view.next(&mut self.batch) => self.take_batch().await,
        }
    }

    async fn take_batch(&mut self) {
        self.follow_definitions();
        self.tell_of_opening();
        let mut routed = Vec::new();
        let mut silent = false;
        for message in self.batch.drain(..) {
            let place = Place::of(&message);
            if let Err(error) = address::route(&self.ctx, self.stream, &message, &mut routed).await {
                tracing::warn!(stream = self.ctx.name(self.stream), %error, "command of a result is unknown");
                self.view.abandon("lookup");
                break;
            }
            for (shard, arrival) in routed.drain(..) {
                if shard == self.feed.shard {
                    self.feed.push(place, arrival, self.ctx.bounds());
                }
            }
            self.view.handled(place, message.pending);
            silent = message.pending == 0;
        }
        self.batch.clear();
        if self.view.read() - self.feed.queued() > self.ctx.settings.watermark_messages {
            self.feed.watermark(self.view.place());
        }
        if silent && (*self.wanted.borrow() > self.answered || self.target.is_some()) {
            self.next_probe = self.ctx.clock.monotonic();
        }
    }
}

/// Counts a detached shard for as long as it lives.
struct Counted {
    ctx: Arc<Context>,
    stream: SourceStream,
}

impl Counted {
    fn new(ctx: &Arc<Context>, stream: SourceStream) -> Self {
        ctx.metrics.shards_detached.inc();
        ctx.progress(stream).detached.fetch_add(1, Ordering::Relaxed);
        Self {
            ctx: Arc::clone(ctx),
            stream,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.ctx.metrics.shards_detached.dec();
        self.ctx
            .progress(self.stream)
            .detached
            .fetch_sub(1, Ordering::Relaxed);
    }
}
