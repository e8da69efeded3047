//! A contiguous view of a stream over broken readers.
//!
//! A reader is trusted only while its consumer sequence rises by exactly one and everything is delivered for the
//! first time. Otherwise it is thrown away, and a new one under a new name begins behind the last message
//! that was handled. A stream that was recreated, or lost what was not read yet, ends the view for good:
//! going on would skip messages.
//!
//! Nothing but a broken reader stands in the way of messages. The broker is asked about the stream while they come; the
//! end of the stream is looked for where none come.

mod probe;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::backoff::Backoff;
use super::context::{Context, Halt};
use super::guard::{Guard, Removed, Survey, survey};
use super::identity::{Opened, Place, Seen, judge, open};
use crate::kernel::input::SourceStream;
use crate::ports::broker::{BrokerError, Message, Reader, ReaderBroken, ReaderSpec, StreamIdentity};
use crate::ports::clock::Clock as _;
use probe::{Probe, Silence};

/// Payload bytes after which a batch is full.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Time between two looks at the stream for which messages have to wait.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long they wait for it at most. Without an answer by then it is heeded when it comes.
const LOOK_WAIT: Duration = Duration::from_millis(25);
/// A view that nobody asked for this long may have missed more than its buffer holds.
const STALLED_AFTER: Duration = Duration::from_secs(2);

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
    /// Whether this is the shared reader, whose state health tells.
    shared: bool,
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

/// What the broker is being asked about the stream.
struct Question {
    purpose: Purpose,
    read: Place,
    answer: BoxFuture<'static, Result<Survey, BrokerError>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To open a reader.
    Open,
    /// To prove how far everything was read.
    Probe,
    /// To see that nothing had been removed when the reader knew of nothing more.
    Confirm,
    /// To see whether anything was removed.
    Look,
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
    pub fn new(ctx: &Arc<Context>, stream: SourceStream, read: Place, shared: bool) -> Self {
        let now = ctx.clock.monotonic();
        let generation = ctx.router.definitions.generation();
        Self {
            ctx: Arc::clone(ctx),
            stream,
            generation,
            routed_by: generation,
            filters: ctx.filters(stream),
            shared,
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
        if self.shared {
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

    /// Comes nearer to a reader.
    ///
    /// # Cancel safety
    /// It goes on with the next call.
    async fn open(&mut self) {
        if let Some(opening) = &mut self.opening {
            let opened = opening.await;
            self.opening = None;
            match opened {
                Ok(Opened { reader, state, seen }) => {
                    if let Some(halt) = judge(&state, &seen) {
                        return self.halt(halt);
                    }
                    self.ctx.progress(self.stream).stands(self.read);
                    self.reader = Some(reader);
                    self.opened += 1;
                    self.taken = 0;
                    self.behind = true;
                    self.connected(true);
                }
                Err(error) => self.unopened(&error),
            }
            return;
        }
        if self.question.is_none() {
            self.backoff.wait().await;
            // All behind what was read counts as jumped over: the stream may have dropped it meanwhile.
            self.guard.passed(self.read.sequence, u64::MAX);
            self.ask(Purpose::Open);
        }
        let answer = answer_of(&mut self.question).await;
        self.answered(answer);
    }

    fn unopened(&mut self, error: &BrokerError) {
        tracing::warn!(stream = self.ctx.name(self.stream), %error, "reader cannot be opened");
        self.abandon("unopened");
    }

    fn ask(&mut self, purpose: Purpose) {
        self.guard.ask();
        let name = self.ctx.name(self.stream).to_owned();
        let broker = Arc::clone(&self.ctx.broker);
        // Before a reader is opened nothing is looked up: that is done behind it. Where none is, the answer alone
        // lets the position move.
        let progress = self.ctx.progress(self.stream);
        let place = match purpose {
            Purpose::Open => None,
            _ => progress.to_look_up(self.ctx.clock.monotonic(), self.filters.is_empty()),
        };
        self.question = Some(Question {
            purpose,
            read: self.read,
            answer: survey(
                (broker, Arc::clone(&self.ctx.clock)),
                (self.stream, name),
                self.removed.clone(),
                place.into_iter().collect(),
            )
            .boxed(),
        });
    }

    fn answered(&mut self, answer: Result<Survey, BrokerError>) {
        let Some(question) = self.question.take() else {
            return;
        };
        let survey = match answer {
            Ok(survey) => survey,
            Err(error) if question.purpose == Purpose::Open => return self.unopened(&error),
            Err(error) => {
                self.guard.unanswered();
                tracing::warn!(stream = self.ctx.name(self.stream), %error, "stream state is unknown");
                if question.purpose == Purpose::Confirm {
                    self.probe = None;
                }
                if self.reader.is_none() {
                    self.connected(false);
                }
                return;
            }
        };
        // What the old filters left out is not known to be silent.
        if self.widen() {
            return;
        }
        if let Some(halt) = self.examine(&survey, question.read.sequence) {
            return self.halt(halt);
        }
        if !survey.seen.is_empty() {
            self.ctx.progress(self.stream).stands(question.read);
        }
        let (state, as_of) = (survey.state, survey.as_of);
        self.ctx.progress(self.stream).heard_of(state.last_sequence);
        self.identity = Some(state.identity.clone());
        match question.purpose {
            Purpose::Look => {}
            Purpose::Confirm => {
                if let Some(probe) = &mut self.probe {
                    probe.silence = Silence::Confirmed;
                }
            }
            Purpose::Open => {
                let progress = self.ctx.progress(self.stream);
                let mark = progress.to_look_up(self.ctx.clock.monotonic(), true);
                let places = mark.into_iter().chain([self.read, progress.furthest()]).collect();
                let broker = Arc::clone(&self.ctx.broker);
                self.opening = Some(open(broker, self.reader_spec(), places).boxed());
            }
            Purpose::Probe => {
                let now = self.ctx.clock.monotonic();
                let silence = if self.filters.is_empty() {
                    self.connected(true);
                    Silence::Found { after: 0, due: now }
                } else {
                    Silence::Sought { at: now }
                };
                self.probe = Some(Probe {
                    as_of,
                    covered: Place::end_of(&state),
                    silence,
                });
            }
        }
    }

    fn reader_spec(&self) -> ReaderSpec {
        ReaderSpec {
            stream: self.ctx.name(self.stream).to_owned(),
            filters: self.filters.clone(),
            start_sequence: self.read.sequence + 1,
            name: self.ctx.reader_name(self.stream),
            buffer: self.ctx.settings.buffer,
        }
    }

    /// Why the stream must not be read on, if it must not. `read`: as far as it was read when it was looked at.
    fn examine(&mut self, survey: &Survey, read: u64) -> Option<Halt> {
        let (name, state) = (self.ctx.name(self.stream), &survey.state);
        if self
            .identity
            .as_ref()
            .is_some_and(|known| *known != state.identity)
        {
            return Some(Halt {
                reason: "stream.identity",
                message: format!(
                    "stream {name} was deleted and created again, its sequences mean other messages"
                ),
            });
        }
        let unseen = Seen {
            place: Place {
                sequence: read,
                stamp: None,
            },
            found: None,
        };
        if let Some(halt) = judge(state, &[unseen]).or_else(|| judge(state, &survey.seen)) {
            return Some(halt);
        }
        let removed: Vec<u64> = match &survey.removed {
            Removed::AsKnown => Vec::new(),
            Removed::Listed(listed) => {
                let before = self.ctx.progress(self.stream).removed_before(listed);
                self.removed = Some(Arc::clone(listed));
                let news = listed.iter().copied();
                news.filter(|sequence| before.binary_search(sequence).is_err())
                    .collect()
            }
            Removed::Many(count) => {
                if self.removed.take().is_some() || self.identity.is_none() {
                    tracing::warn!(
                        stream = name,
                        count,
                        "too many messages were removed one by one to see whether each was read before"
                    );
                }
                Vec::new()
            }
        };
        let lost = self
            .guard
            .answered(state.first_sequence, &removed, self.read.sequence);
        // Where nothing matters, nothing is lost.
        let lost = lost.filter(|_| !self.filters.is_empty())?;
        self.old_news = self.removed.as_ref().map(|removed| {
            let before = self.ctx.progress(self.stream).removed_before(removed);
            let is_old = |sequence: &u64| lost.tells_of(*sequence) || before.binary_search(sequence).is_ok();
            removed.iter().copied().filter(is_old).collect()
        });
        Some(lost.halt(name))
    }

    fn halt(&mut self, halt: Halt) {
        let name = self.ctx.name(self.stream);
        tracing::error!(stream = name, reason = halt.reason, message = %halt.message, "stream cannot be read on without loss");
        self.abandon(halt.reason);
        self.halted = true;
        self.ctx.halt(self.stream, halt, self.old_news.take());
    }

    fn connected(&self, connected: bool) {
        if self.shared {
            let progress = self.ctx.progress(self.stream);
            progress.connected.store(connected, Ordering::Relaxed);
        }
    }

    fn due(&self) -> Duration {
        self.ctx.clock.monotonic() + self.ctx.settings.overdue_after.duration()
    }
}

impl Question {
    fn is_probe(&self) -> bool {
        self.purpose == Purpose::Probe
    }

    fn is_for_probe(&self) -> bool {
        matches!(self.purpose, Purpose::Probe | Purpose::Confirm)
    }
}

/// # Cancel safety
/// The question stays.
async fn answer_of(question: &mut Option<Question>) -> Result<Survey, BrokerError> {
    match question {
        Some(question) => (&mut question.answer).await,
        None => pending().await,
    }
}
