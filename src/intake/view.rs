//! A contiguous view of a stream over broken readers.
//!
//! A reader is trusted only while its consumer sequence rises by exactly one and everything is delivered for the
//! first time. Otherwise it is thrown away, and a new one under a new name begins behind the last message
//! that was handled. A stream that was recreated, or lost what was not read yet, ends the view for good:
//! going on would skip messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::context::{Context, Halt};
use crate::kernel::ids::TimeMs;
use crate::kernel::input::SourceStream;
use crate::ports::broker::{BrokerError, Horizon, Message, Reader, ReaderSpec, StreamIdentity};

/// Payload bytes after which a batch is full.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// # Invariants
/// Every matching message up to `read` was handled, none above it was.
pub(super) struct View {
    ctx: Arc<Context>,
    stream: SourceStream,
    filters: Vec<String>,
    /// Of the definitions that the filters are for.
    generation: u64,
    /// Whether this is the shared reader, whose state health tells.
    shared: bool,
    read: u64,
    reader: Option<Box<dyn Reader>>,
    opening: Option<BoxFuture<'static, Result<Opened, Failure>>>,
    /// Consumer sequence of the last message that was taken.
    taken: u64,
    identity: Option<StreamIdentity>,
    delays: ExponentialBackoff,
    delay: Duration,
    halted: bool,
    proof: Option<Proof>,
}

struct Opened {
    reader: Box<dyn Reader>,
    identity: StreamIdentity,
    last_sequence: u64,
}

enum Failure {
    Later(BrokerError),
    Halt(Halt),
}

/// Everything stored up to `as_of` is read once the message at `horizon.after` is.
struct Proof {
    as_of: TimeMs,
    horizon: Horizon,
    /// When that message, or one before it, should have come: nothing behind it would tell that it was lost.
    due: Instant,
}

impl View {
    pub fn new(ctx: &Arc<Context>, stream: SourceStream, read: u64, shared: bool) -> Self {
        Self {
            ctx: Arc::clone(ctx),
            stream,
            generation: ctx.router.definitions.generation(),
            filters: ctx.filters(stream),
            shared,
            read,
            reader: None,
            opening: None,
            taken: 0,
            identity: None,
            delays: delays(ctx),
            delay: Duration::ZERO,
            halted: false,
            proof: None,
        }
    }

    pub fn read(&self) -> u64 {
        self.read
    }

    /// Appends what has arrived, at least one message.
    ///
    /// The caller handles the messages in order and reports each by [`View::handled`]; those that it does not
    /// report before it calls [`View::abandon`] come again.
    ///
    /// # Cancel safety
    /// No message is lost when the future is dropped.
    pub async fn next(&mut self, out: &mut Vec<Message>) {
        while out.is_empty() {
            self.widen();
            if self.halted || self.filters.is_empty() {
                return std::future::pending().await;
            }
            let Some(reader) = &mut self.reader else {
                self.open().await;
                continue;
            };
            let owed = self.proof.as_ref().map(|proof| proof.due);
            let arrived = match owed {
                None => Ok(reader.next().await),
                Some(due) => tokio::time::timeout_at(due, reader.next()).await,
            };
            let Ok(message) = arrived else {
                self.abandon("overdue");
                continue;
            };
            let mut next = Some(message);
            let mut bytes = 0;
            while let Some(taken) = next {
                // Messages that the old filters left out may lie before this one: it comes again.
                if self.widen() {
                    break;
                }
                match taken {
                    Ok(message) => match self.distrust(&message, out.last()) {
                        None => {
                            self.taken = message.consumer_sequence;
                            bytes += message.payload.len();
                            out.push(message);
                        }
                        Some(reason) => {
                            self.abandon(reason);
                            break;
                        }
                    },
                    Err(error) => {
                        tracing::warn!(stream = self.ctx.name(self.stream), %error, "reader is broken");
                        self.abandon("broken");
                        break;
                    }
                }
                let full = out.len() >= self.ctx.settings.batch_messages || bytes >= BATCH_BYTES_MAX;
                next = match &mut self.reader {
                    Some(reader) if !full => reader.ready(),
                    _ => None,
                };
            }
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
        self.delays = delays(&self.ctx);
        self.delay = Duration::ZERO;
        true
    }

    fn distrust(&self, message: &Message, previous: Option<&Message>) -> Option<&'static str> {
        let floor = previous.map_or(self.read, |message| message.stream_sequence);
        if message.delivered != 1 {
            Some("redelivered")
        } else if message.consumer_sequence != self.taken + 1 {
            Some("gap")
        } else if message.stream_sequence <= floor {
            Some("regressed")
        } else {
            None
        }
    }

    /// Everything up to `sequence` is on its way to the shards.
    pub fn handled(&mut self, sequence: u64, pending: u64) {
        self.advance(sequence);
        let due = self.due();
        if let Some(proof) = &mut self.proof {
            proof.due = due;
        }
        let progress = self.ctx.progress(self.stream);
        progress.heard_of(sequence.saturating_add(pending));
        // A reader that delivers is healthy: the next failure is tried again at once.
        if self.delay > Duration::ZERO {
            self.delays = delays(&self.ctx);
            self.delay = Duration::ZERO;
        }
    }

    fn advance(&mut self, sequence: u64) {
        self.read = self.read.max(sequence);
        if self.shared {
            let progress = self.ctx.progress(self.stream);
            progress.read.store(self.read, Ordering::Relaxed);
            progress.moved(self.ctx.clock.monotonic());
        }
    }

    /// Throws the reader away; the next one begins behind what was handled.
    pub fn abandon(&mut self, reason: &'static str) {
        self.reader = None;
        self.opening = None;
        self.proof = None;
        self.delay = self
            .delays
            .next()
            .unwrap_or(self.ctx.settings.reopen_max.duration());
        if self.shared {
            self.ctx
                .progress(self.stream)
                .connected
                .store(false, Ordering::Relaxed);
        }
        let labels = [self.ctx.name(self.stream), reason];
        self.ctx.metrics.readers_rebuilt.with_label_values(&labels).inc();
    }

    async fn open(&mut self) {
        let opening = self.opening.get_or_insert_with(|| {
            open(
                Arc::clone(&self.ctx),
                self.stream,
                self.filters.clone(),
                self.read,
                self.identity.clone(),
                self.delay,
            )
            .boxed()
        });
        let opened = opening.await;
        self.opening = None;
        match opened {
            Ok(opened) => {
                self.reader = Some(opened.reader);
                self.taken = 0;
                self.identity = Some(opened.identity);
                let progress = self.ctx.progress(self.stream);
                progress.heard_of(opened.last_sequence);
                if self.shared {
                    progress.connected.store(true, Ordering::Relaxed);
                }
            }
            Err(Failure::Later(error)) => {
                tracing::warn!(stream = self.ctx.name(self.stream), %error, "reader cannot be opened");
                self.abandon("unopened");
            }
            Err(Failure::Halt(halt)) => self.halt(halt),
        }
    }

    fn halt(&mut self, halt: Halt) {
        let name = self.ctx.name(self.stream);
        tracing::error!(stream = name, reason = halt.reason, message = %halt.message, "stream cannot be read on without loss");
        self.abandon(halt.reason);
        self.halted = true;
        self.ctx.progress(self.stream).halt(halt);
    }

    /// Asks how far silence reaches. False: not known yet, ask again later.
    pub async fn probe(&mut self) -> bool {
        if self.halted {
            return false;
        }
        // Before the question, so that whatever was stored by then lies within the answer.
        let as_of = self.ctx.clock.now();
        let horizon = if self.filters.is_empty() {
            self.silence().await
        } else {
            let Some(reader) = &mut self.reader else {
                return false;
            };
            match reader.horizon().await {
                Ok(horizon) => horizon,
                Err(error) => {
                    tracing::warn!(stream = self.ctx.name(self.stream), %error, "reader is broken");
                    self.abandon("broken");
                    None
                }
            }
        };
        // Silence about the old filters proves nothing about the new ones.
        if self.widen() {
            return false;
        }
        let Some(horizon) = horizon else { return false };
        self.ctx.progress(self.stream).heard_of(horizon.covered);
        self.proof = Some(Proof {
            as_of,
            horizon,
            due: self.due(),
        });
        true
    }

    /// The horizon of a stream of which nothing matters.
    async fn silence(&mut self) -> Option<Horizon> {
        let state = match self.ctx.broker.stream_state(self.ctx.name(self.stream)).await {
            Ok(state) => state,
            Err(error) => {
                tracing::warn!(stream = self.ctx.name(self.stream), %error, "stream state is unknown");
                self.connected(false);
                return None;
            }
        };
        if self
            .identity
            .as_ref()
            .is_some_and(|known| *known != state.identity)
        {
            self.halt(recreated(self.ctx.name(self.stream)));
            return None;
        }
        self.identity = Some(state.identity);
        self.connected(true);
        Some(Horizon {
            after: 0,
            covered: state.last_sequence,
        })
    }

    fn connected(&self, connected: bool) {
        if self.shared {
            let progress = self.ctx.progress(self.stream);
            progress.connected.store(connected, Ordering::Relaxed);
        }
    }

    fn due(&self) -> Instant {
        Instant::now() + self.ctx.settings.overdue_after.duration()
    }

    pub fn has_proof(&self) -> bool {
        self.proof.is_some()
    }

    /// The instant up to which everything stored is handled, once a probe has come true.
    pub fn proven(&mut self) -> Option<TimeMs> {
        let proof = self.proof.take_if(|proof| proof.horizon.after <= self.read)?;
        self.advance(proof.horizon.covered);
        Some(proof.as_of)
    }

    pub async fn acknowledge(&mut self, sequence: u64) {
        if let Some(reader) = &mut self.reader {
            reader.acknowledge(sequence).await;
        }
    }
}

fn delays(ctx: &Context) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(ctx.settings.reopen_initial.duration())
        .with_max_delay(ctx.settings.reopen_max.duration())
        .without_max_times()
        .with_jitter()
        .build()
}

fn recreated(name: &str) -> Halt {
    Halt {
        reason: "stream.identity",
        message: format!("stream {name} was deleted and created again, its sequences mean other messages"),
    }
}

async fn open(
    ctx: Arc<Context>,
    stream: SourceStream,
    filters: Vec<String>,
    read: u64,
    identity: Option<StreamIdentity>,
    delay: Duration,
) -> Result<Opened, Failure> {
    if delay > Duration::ZERO {
        tokio::time::sleep(delay).await;
    }
    let name = ctx.name(stream);
    let state = ctx.broker.stream_state(name).await.map_err(Failure::Later)?;
    if identity.is_some_and(|known| known != state.identity) {
        return Err(Failure::Halt(recreated(name)));
    }
    if state.last_sequence < read {
        return Err(Failure::Halt(Halt {
            reason: "stream.identity",
            message: format!(
                "stream {name} ends at {}, but was already read up to {read}",
                state.last_sequence
            ),
        }));
    }
    // A reader that never read anything begins with what there is.
    if read > 0 && state.first_sequence > read + 1 {
        return Err(Failure::Halt(Halt {
            reason: "stream.gap",
            message: format!(
                "stream {name} begins at {}, but was read only up to {read}",
                state.first_sequence
            ),
        }));
    }
    let spec = ReaderSpec {
        stream: name.to_owned(),
        filters,
        start_sequence: read + 1,
        name: ctx.reader_name(stream),
        buffer: ctx.settings.buffer,
    };
    let reader = ctx.broker.reader(spec).await.map_err(Failure::Later)?;
    Ok(Opened {
        reader,
        identity: state.identity,
        last_sequence: state.last_sequence,
    })
}
