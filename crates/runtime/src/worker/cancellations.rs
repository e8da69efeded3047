//! Cancelled commands: their results are no longer needed.
//!
//! The sagas publish cancellations to the stream of commands, one message for each. Whoever has not begun a command by then does
//! not begin it. A command that is carried out nevertheless does no harm: what it did is undone.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::kernel::ids::{CommandId, EffectName, TenantId};
use crate::kernel::subject::{self, Subject, Tenancy};
use crate::ports::broker::{Broker, BrokerError, Message, Reader, ReaderBroken, ReaderSpec};

const REOPEN_FIRST: Duration = Duration::from_millis(100);
const REOPEN_MAX: Duration = Duration::from_secs(10);
/// How long to wait for more of a backlog before its end is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Messages that the broker sends ahead.
const BUFFER: usize = 1_024;

type Name = (TenantId, CommandId);

/// What this worker knows of commands that were cancelled.
pub struct Cancellations {
    state: Mutex<State>,
    current: Current,
}

/// Whether all was heard that stands in the stream. Not before the backlog is read, and not while the reader is lost.
///
/// Unlike a `watch` of tokio it wakes those who wait in their order.
#[derive(Default)]
struct Current {
    is_current: AtomicBool,
    changed: Notify,
}

impl Current {
    fn set(&self, is_current: bool) {
        self.is_current.store(is_current, Ordering::Release);
        self.changed.notify_waiters();
    }

    fn get(&self) -> bool {
        self.is_current.load(Ordering::Acquire)
    }

    async fn reached(&self) {
        loop {
            // Armed before the look, so that nothing can happen between the look and the wait.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.get() {
                return;
            }
            changed.await;
        }
    }
}

struct State {
    known: Known,
    /// Commands that this worker has in progress.
    held: HashMap<Name, HeldCommand>,
}

/// The newest commands that were cancelled, in the order of the stream.
struct Known {
    names: HashSet<Name>,
    order: VecDeque<(u64, Name)>,
    max: usize,
    /// Sequence of the newest message that was forgotten for want of room.
    forgotten: u64,
}

impl Known {
    fn insert(&mut self, name: &Name, sequence: u64) {
        if self.names.insert(name.clone()) {
            self.order.push_back((sequence, name.clone()));
        }
        while self.order.len() > self.max {
            let Some((sequence, name)) = self.order.pop_front() else {
                return;
            };
            self.names.remove(&name);
            self.forgotten = self.forgotten.max(sequence);
        }
    }
}

/// A command in progress. A second delivery of it may have come before the first one was through.
#[derive(Default)]
struct HeldCommand {
    deliveries: usize,
    cancelled: CancellationToken,
}

impl Cancellations {
    /// Remembers the newest `known_max`.
    pub fn new(known_max: u64) -> Self {
        let known = Known {
            names: HashSet::new(),
            order: VecDeque::new(),
            max: usize::try_from(known_max).unwrap_or(usize::MAX),
            forgotten: 0,
        };
        Self {
            state: Mutex::new(State {
                known,
                held: HashMap::new(),
            }),
            current: Current::default(),
        }
    }

    /// Watches a command while it is in progress. `sequence` is that of its message; a message that takes it back is younger.
    pub fn watch(self: &Arc<Self>, name: Name, sequence: u64) -> Watch {
        let (token, forgotten) = {
            let mut state = self.lock();
            let is_known = state.known.names.contains(&name);
            let forgotten = !is_known && sequence <= state.known.forgotten;
            let command = state.held.entry(name.clone()).or_default();
            command.deliveries += 1;
            if is_known {
                command.cancelled.cancel();
            }
            (command.cancelled.clone(), forgotten)
        };
        Watch {
            cancellations: Arc::clone(self),
            name,
            token,
            forgotten,
        }
    }

    /// Waits until all was heard that stands in the stream, at most for `patience`.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn caught_up(&self, patience: Duration) {
        // Past it, each command is looked up by itself before its call.
        let _ = tokio::time::timeout(patience, self.current.reached()).await;
    }

    fn cancel(&self, name: &Name, sequence: u64) {
        let mut state = self.lock();
        state.known.insert(name, sequence);
        if let Some(command) = state.held.get(name) {
            command.cancelled.cancel();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, message: &Message, tenancy: Tenancy) {
        if let Ok(Subject::EffectCancellation { tenant, command, .. }) =
            Subject::parse(&message.subject, tenancy)
        {
            self.cancel(&(tenant, command), message.stream_sequence);
        } else {
            tracing::warn!(subject = ?message.subject, "not a cancellation subject");
        }
    }
}

/// One command in progress.
pub struct Watch {
    cancellations: Arc<Cancellations>,
    name: Name,
    token: CancellationToken,
    /// It may have been cancelled by a message that was forgotten.
    forgotten: bool,
}

impl Watch {
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Whether the command may have been cancelled by a message that was not heard or was forgotten.
    pub fn is_unsure(&self) -> bool {
        !self.is_cancelled() && (self.forgotten || !self.cancellations.current.get())
    }

    /// Asks the broker whether the command was cancelled.
    pub async fn ask(
        &self,
        broker: &dyn Broker,
        stream: &str,
        effect: &EffectName,
    ) -> Result<(), BrokerError> {
        let (tenant, command) = self.name.clone();
        let subject = Subject::EffectCancellation {
            tenant,
            effect: effect.clone(),
            command,
        };
        if let Some(stored) = broker.last_by_subject(stream, &subject.render()).await? {
            self.cancellations.cancel(&self.name, stored.sequence);
        }
        Ok(())
    }

    /// Ends when the command is cancelled.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.cancellations.lock();
        if let Entry::Occupied(mut command) = state.held.entry(self.name.clone()) {
            command.get_mut().deliveries -= 1;
            if command.get().deliveries == 0 {
                command.remove();
            }
        }
    }
}

/// Where the word comes from.
pub struct Source {
    pub broker: Arc<dyn Broker>,
    /// The stream of commands.
    pub stream: String,
    pub tenancy: Tenancy,
    /// Begins the names of its readers: of this worker alone.
    pub reader: String,
    pub readers_opened: AtomicU64,
}

/// Hears what is cancelled, and all that the stream still has of it, until `stopping`.
pub async fn follow(cancellations: Arc<Cancellations>, source: &Source, stopping: CancellationToken) {
    // Where it is begun again after a panic, nothing was heard meanwhile.
    cancellations.current.set(false);
    let mut next = None;
    let mut delay = REOPEN_FIRST;
    loop {
        let connection = source.broker.next_connection();
        let reason = tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            ended = hear_all(&cancellations, source, &mut next, &mut delay) => match ended {
                Ok(ReaderBroken(reason)) => reason,
                Err(error) => error.to_string(),
            },
        };
        cancellations.current.set(false);
        tracing::debug!(reason, "cannot read cancellations; retrying");
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = connection => delay = REOPEN_FIRST,
            () = tokio::time::sleep(delay) => {}
        }
        delay = (delay * 2).min(REOPEN_MAX);
    }
}

/// Reads from `next` on until the reader breaks.
async fn hear_all(
    cancellations: &Cancellations,
    source: &Source,
    next: &mut Option<u64>,
    delay: &mut Duration,
) -> Result<ReaderBroken, BrokerError> {
    let start = match *next {
        Some(sequence) => sequence,
        None => source.broker.stream_state(&source.stream).await?.first_sequence,
    };
    let mut reader = source
        .broker
        .reader(ReaderSpec {
            stream: source.stream.clone(),
            filters: vec![subject::filter(source.tenancy, None, "effect_cancel", None)],
            start_sequence: start,
            name: format!(
                "{}-{}",
                source.reader,
                source.readers_opened.fetch_add(1, Ordering::Relaxed)
            ),
            buffer: BUFFER,
        })
        .await?;
    let mut heard = 0;
    let mut backlog = Backlog::default();
    loop {
        let message = match backlog.next(&mut *reader, heard).await {
            Ok(Some(message)) => message,
            Ok(None) => {
                *delay = REOPEN_FIRST;
                cancellations.current.set(true);
                continue;
            }
            Err(broken) => return Ok(broken),
        };
        *delay = REOPEN_FIRST;
        cancellations.hear(&message, source.tenancy);
        heard = message.stream_sequence;
        *next = Some(heard + 1);
    }
}

/// What stood in the stream when the reader was opened.
#[derive(Default)]
struct Backlog {
    /// Sequence of its last message, once it is known.
    end: Option<u64>,
    is_read: bool,
}

impl Backlog {
    /// The next message; `None`, once, when the backlog was read. What has arrived is taken before its end is looked for:
    /// that is a round trip or more.
    async fn next(&mut self, reader: &mut dyn Reader, heard: u64) -> Result<Option<Message>, ReaderBroken> {
        while !self.is_read {
            if self.end.is_some_and(|end| end <= heard) {
                self.is_read = true;
                return Ok(None);
            }
            if let Some(message) = reader.ready() {
                return message.map(Some);
            }
            if self.end.is_none() {
                self.end = reader.horizon().await?.map(|horizon| horizon.after);
                if self.end.is_some() {
                    continue;
                }
            }
            if let Ok(message) = tokio::time::timeout(LOOK_AGAIN, reader.next()).await {
                return message.map(Some);
            }
        }
        reader.next().await.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn name(n: u128) -> Name {
        (
            TenantId::parse("acme").expect("legal"),
            CommandId(Uuid::from_u128(n)),
        )
    }

    #[test]
    fn a_cancellation_is_heard_before_and_while_a_command_is_in_progress_and_only_by_it() {
        let cancellations = Arc::new(Cancellations::new(8));
        let (first, other) = (cancellations.watch(name(1), 1), cancellations.watch(name(2), 2));
        assert!(!first.is_cancelled());
        cancellations.cancel(&name(1), 9);
        assert!(first.is_cancelled() && !other.is_cancelled());
        drop((first, other));
        assert!(
            cancellations.lock().held.is_empty(),
            "nothing is kept of what is over"
        );
        assert!(cancellations.watch(name(1), 1).is_cancelled());
        let stranger = (TenantId::parse("other").expect("legal"), name(1).1);
        assert!(!cancellations.watch(stranger, 1).is_cancelled());
    }

    #[test]
    fn a_second_delivery_that_is_over_leaves_the_first_in_progress() {
        let cancellations = Arc::new(Cancellations::new(8));
        let (first, second) = (cancellations.watch(name(1), 1), cancellations.watch(name(1), 1));
        drop(second);
        cancellations.cancel(&name(1), 9);
        assert!(first.is_cancelled());
        drop(first);
        assert!(cancellations.lock().held.is_empty());
    }

    #[test]
    fn a_cancellation_forgotten_for_want_of_room_leaves_only_older_commands_unsure() {
        let cancellations = Arc::new(Cancellations::new(2));
        assert!(
            cancellations.watch(name(7), 7).is_unsure(),
            "nothing was heard yet"
        );
        cancellations.current.set(true);
        for n in 1..=3 {
            cancellations.cancel(&name(n), 10 + u64::try_from(n).expect("small"));
        }
        let (forgotten, known) = (cancellations.watch(name(1), 1), cancellations.watch(name(2), 2));
        assert!(forgotten.is_unsure() && !forgotten.is_cancelled());
        assert!(known.is_cancelled() && !known.is_unsure());
        assert!(cancellations.watch(name(11), 11).is_unsure());
        assert!(
            !cancellations.watch(name(12), 12).is_unsure(),
            "younger than what was forgotten"
        );
        cancellations.current.set(false);
        assert!(
            cancellations.watch(name(12), 12).is_unsure(),
            "the reader is lost"
        );
    }
}
