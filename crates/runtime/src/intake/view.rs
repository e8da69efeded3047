//! A contiguous view of a stream over broken readers.
//!
//! A reader is trusted only while its consumer sequence rises by exactly one and everything is delivered for the
//! first time. Otherwise it is thrown away, and a new one under a new name begins behind the last message
//! that was handled. A stream that was recreated, or lost what was not read yet, ends the view for good:
//! going on would skip messages.
//!
//! Nothing but a broken reader stands in the way of messages. The broker is asked about the stream while they come; the
//! end of the stream is looked for where none come.
//!
//! `opening` is the way to a reader, `question` what the broker is asked about the stream, `probe` the proof that everything
//! up to some time is read.

mod opening;
mod probe;
mod question;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;

use super::backoff::Backoff;
use super::context::{Context, Halt};
use super::guard::{Guard, Survey};
use super::identity::{Opened, Place};
use crate::kernel::input::SourceStream;
use crate::ports::broker::{BrokerError, Message, Reader, ReaderBroken, StreamIdentity};
use crate::ports::clock::Clock as _;
use probe::{Probe, Silence};
use question::{Purpose, Question, answer_of};

/// Payload bytes after which a batch is full.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Time between two looks at the stream for which messages have to wait.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long they wait for it at most. Without an answer by then it is heeded when it comes.
const LOOK_WAIT: Duration = Duration::from_millis(25);
/// A view that nobody asked for this long may have missed more than its buffer holds.
const STALLED_AFTER: Duration = Duration::from_secs(2);

/// Whose view it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ViewOf {
    /// The shared reader's, whose state health tells.
    Shared,
    /// That of a reader of one shard.
    Private,
}

/// # Invariants
/// Every matching message up to `read` was handled, none above it was.
pub(super) struct View {
    ctx: Arc<Context>,
    stream: SourceStream,
    filters: Vec<String>,
    /// Of the definitions that the filters are for.
    generation: u64,
    /// Of those by which all was asked for that was handed out last.
    routed_by: u64,
    of: ViewOf,
    read: Place,
    reader: Option<Box<dyn Reader>>,
    /// Readers opened so far, and those that were told of.
    opened: u64,
    told: u64,
    opening: Option<BoxFuture<'static, Result<Opened, BrokerError>>>,
    /// Consumer sequence of the last message that was taken.
    taken: u64,
    /// The broker knew of more messages when it sent the last one.
    behind: bool,
    /// When the view was last asked for messages.
    asked_at: Duration,
    identity: Option<StreamIdentity>,
    guard: Guard,
    removed: Option<Arc<[u64]>>,
    /// What of it is not news once the halt is told.
    old_news: Option<Arc<[u64]>>,
    question: Option<Question>,
    /// Messages that jumped wait for the answer until then.
    hold: Option<Duration>,
    next_look: Duration,
    backoff: Backoff,
    halted: bool,
    probe: Option<Probe>,
}

/// What there is to be done next.
enum Event {
    Arrived(Result<Message, ReaderBroken>),
    Answered(Result<Survey, BrokerError>),
    Silent(Result<Option<u64>, ReaderBroken>),
    /// The time has come that the probe waits for.
    Due,
}

impl View {
    pub fn new(ctx: &Arc<Context>, stream: SourceStream, read: Place, of: ViewOf) -> Self {
        let now = ctx.clock.monotonic();
        let generation = ctx.router.definitions.generation();
        Self {
            ctx: Arc::clone(ctx),
            stream,
            generation,
            routed_by: generation,
            filters: ctx.filters(stream),
            of,
            read,
            reader: None,
            opened: 0,
            told: 0,
            opening: None,
            taken: 0,
            behind: true,
            asked_at: now,
            identity: None,
            guard: Guard::new(ctx.marks.mark(stream)),
            removed: None,
            old_news: None,
            question: None,
            hold: None,
            next_look: now,
            backoff: Backoff::new(ctx),
            halted: false,
            probe: None,
        }
    }

    pub fn read(&self) -> u64 {
        self.read.sequence
    }

    /// The same, and what stands there.
    pub fn place(&self) -> Place {
        self.read
    }

    /// Whether a look at the stream has answered for all that was jumped over. Who drops the view before that forgets it.
    pub const fn is_vouched_for(&self) -> bool {
        !self.guard.is_open()
    }

    /// Generation of the definitions by which all was asked for that was handed out last, and is routed. What lies behind
    /// [`View::place`] is not of an older one.
    pub const fn routed_by(&self) -> u64 {
        self.routed_by
    }

    /// Whether a reader was opened since this was last asked; true in it: not for the first time.
    pub fn take_opened(&mut self) -> Option<bool> {
        let news = self.opened > self.told;
        self.told = self.opened;
        news.then_some(self.opened > 1)
    }

    /// Appends what has arrived, or returns without a message where a probe has come further or to its end.
    ///
    /// The caller handles the messages in order and reports each by [`View::handled`]; those that it does not
    /// report before it calls [`View::abandon`] come again. What it was given and has not taken it passes again.
    ///
    /// # Cancel safety
    /// No message is lost when the future is dropped.
    pub async fn next(&mut self, out: &mut Vec<Message>) {
        let now = self.ctx.clock.monotonic();
        self.behind |= now.saturating_sub(self.asked_at) > STALLED_AFTER;
        self.asked_at = now;
        let is_sought = self.is_probing();
        loop {
            if !out.is_empty() {
                self.vouch(out).await;
                if !out.is_empty() {
                    return;
                }
            }
            self.widen();
            self.routed_by = self.generation;
            if is_sought && !self.is_probing() {
                return;
            }
            if self.halted || self.ctx.progress(self.stream).is_halted() {
                return pending().await;
            }
            if self.filters.is_empty() {
                // The state of the stream alone tells how far nothing matters.
                let answer = answer_of(&mut self.question).await;
                self.answered(answer);
                return;
            }
            if self.reader.is_none() {
                self.open().await;
                continue;
            }
            match self.event().await {
                Event::Arrived(message) => self.collect(message, out),
                Event::Answered(answer) => {
                    let for_probe = self.question.as_ref().is_some_and(Question::is_for_probe);
                    self.answered(answer);
                    if for_probe {
                        return;
                    }
                }
                Event::Silent(Ok(Some(after))) => {
                    let due = self.due();
                    if let Some(probe) = &mut self.probe {
                        probe.silence = Silence::Found { after, due };
                    }
                    return;
                }
                Event::Silent(Ok(None)) => self.seek_later(),
                Event::Silent(Err(error)) => self.broken(&error),
                Event::Due => {
                    if let Some(Probe {
                        silence: Silence::Found { .. },
                        ..
                    }) = self.probe
                    {
                        self.abandon("overdue");
                    }
                }
            }
        }
    }

    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    async fn event(&mut self) -> Event {
        let Some(reader) = &mut self.reader else {
            return pending().await;
        };
        let wake = match &self.probe {
            Some(Probe {
                silence: Silence::Found { due, .. },
                ..
            }) => Some(*due),
            Some(Probe {
                silence: Silence::Sought { at },
                covered,
                ..
            }) if *at <= self.ctx.clock.monotonic() => {
                return match reader.ready() {
                    Some(arrived) => Event::Arrived(arrived),
                    None => Event::Silent(reader.silent_up_to(covered.sequence).await),
                };
            }
            Some(Probe {
                silence: Silence::Sought { at },
                ..
            }) => Some(*at),
            None
            | Some(Probe {
                silence: Silence::Doubted | Silence::Confirmed,
                ..
            }) => None,
        };
        let ctx = &self.ctx;
        let due = async {
            match wake {
                Some(at) => ctx.until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = answer_of(&mut self.question) => Event::Answered(answer),
            arrived = reader.next() => Event::Arrived(arrived),
            () = due => Event::Due,
        }
    }

    /// Takes this message and what has arrived behind it.
    fn collect(&mut self, message: Result<Message, ReaderBroken>, out: &mut Vec<Message>) {
        let mut next = Some(message);
        let mut bytes = 0;
        while let Some(taken) = next {
            // Messages that the old filters left out may lie before this one: it comes again.
            if self.widen() {
                return;
            }
            let message = match taken {
                Ok(message) => message,
                Err(error) => return self.broken(&error),
            };
            let before = out
                .last()
                .map_or(self.read.sequence, |message| message.stream_sequence);
            if let Some(reason) = self.distrust(&message, before) {
                return self.abandon(reason);
            }
            if self.guard.passed(before, message.stream_sequence) && self.behind {
                self.look_first();
            }
            self.taken = message.consumer_sequence;
            self.behind = message.pending > 0;
            bytes += message.payload.len();
            out.push(message);
            let full = out.len() >= self.ctx.settings.batch_messages || bytes >= BATCH_BYTES_MAX;
            next = match &mut self.reader {
                Some(reader) if !full => reader.ready(),
                _ => None,
            };
        }
    }

    fn distrust(&self, message: &Message, before: u64) -> Option<&'static str> {
        if message.delivered != 1 {
            Some("redelivered")
        } else if message.consumer_sequence != self.taken + 1 {
            Some("gap")
        } else if message.stream_sequence <= before {
            Some("regressed")
        } else {
            None
        }
    }

    /// Lets what jumped wait until the stream was looked at, if that was not done just before.
    fn look_first(&mut self) {
        let now = self.ctx.clock.monotonic();
        if now >= self.next_look {
            self.next_look = now + LOOK_EVERY;
            self.hold = Some(now + LOOK_WAIT);
        }
    }

    /// Keeps messages back until it is known that nothing was removed before them, or nobody answers.
    ///
    /// # Cancel safety
    /// It goes on with the next call.
    async fn vouch(&mut self, out: &mut Vec<Message>) {
        let Some(until) = self.hold else { return };
        if self.guard.has_unasked() {
            let is_probe = self.question.as_ref().is_some_and(Question::is_probe);
            self.ask(if is_probe { Purpose::Probe } else { Purpose::Look });
        }
        let ctx = Arc::clone(&self.ctx);
        tokio::select! {
            biased;
            answer = answer_of(&mut self.question) => self.answered(answer),
            () = ctx.until(until) => {}
        }
        self.hold = None;
        if self.halted {
            out.clear();
        }
    }

    /// Follows a change of the definitions. True: what matters is another than before, so the reader is thrown
    /// away with whatever it brought.
    fn widen(&mut self) -> bool {
        let generation = self.ctx.router.definitions.generation();
        if generation == self.generation {
            return false;
        }
        self.generation = generation;
        let filters = self.ctx.filters(self.stream);
        if filters == self.filters {
            return false;
        }
        self.filters = filters;
        self.abandon("reload");
        self.backoff.reset();
        true
    }

    /// Everything up to `place` is on its way to the shards.
    pub fn handled(&mut self, place: Place, pending: u64) {
        let sequence = place.sequence;
        self.advance(place);
        if self.probe.is_some() {
            self.probe_goes_on(pending);
        }
        let progress = self.ctx.progress(self.stream);
        progress.read_to(place);
        progress.heard_of(sequence.saturating_add(pending));
        // A reader that delivers is healthy: the next failure is tried again at once.
        self.backoff.reset();
    }

    fn advance(&mut self, place: Place) {
        if place.sequence > self.read.sequence {
            self.read = place;
        }
        if self.of == ViewOf::Shared {
            let progress = self.ctx.progress(self.stream);
            progress.read.store(self.read.sequence, Ordering::Relaxed);
            progress.moved(self.ctx.clock.monotonic());
        }
    }

    fn broken(&mut self, error: &ReaderBroken) {
        tracing::warn!(stream = self.ctx.name(self.stream), %error, "reader is broken");
        self.abandon("broken");
    }

    /// Throws the reader away; the next one begins behind what was handled.
    pub fn abandon(&mut self, reason: &'static str) {
        self.reader = None;
        self.opening = None;
        self.question = None;
        self.hold = None;
        self.guard.unanswered();
        self.probe = None;
        self.backoff.failed();
        self.connected(false);
        let labels = [self.ctx.name(self.stream), reason];
        self.ctx.metrics.readers_rebuilt.with_label_values(&labels).inc();
    }

    fn halt(&mut self, halt: Halt) {
        let name = self.ctx.name(self.stream);
        tracing::error!(stream = name, reason = halt.reason, message = %halt.message, "stream cannot be read on without loss");
        self.abandon(halt.reason);
        self.halted = true;
        self.ctx.halt(self.stream, halt, self.old_news.take());
    }

    fn connected(&self, connected: bool) {
        if self.of == ViewOf::Shared {
            let progress = self.ctx.progress(self.stream);
            progress.connected.store(connected, Ordering::Relaxed);
        }
    }

    fn due(&self) -> Duration {
        self.ctx.clock.monotonic() + self.ctx.settings.overdue_after.duration()
    }
}
