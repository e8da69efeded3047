//! A durable queue that members share, each message answered for by itself.
//!
//! Members pull nothing ahead: whoever asks gets the next message, so none waits with one member while
//! another is idle, and the wait for an answer begins when the message is taken.
//!
//! The floor, up to which everything is answered for, is stored by and by. After a start everything above the
//! stored floor is delivered again, answered or not, and what could have been delivered before counts as
//! delivered before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::kernel::ids::TimeMs;
use crate::ports::broker::{BrokerError, Message, QueueSpec, QueueState, ReaderBroken};
use crate::ports::clock::Clock;

use super::env::{Env, QueueRow};
use super::feed::{Feed, Fetch, Reach};
use super::filter::Filter;
use super::inbox::Inbox;
use super::record::Entry;
use super::stream::{Page, Stream};

/// Messages picked from the stream and not yet asked for.
const AHEAD_MAX: usize = 64;
/// Before the first member joined, nobody may hold a message.
const ACK_WAIT_BEFORE_JOIN: Duration = Duration::from_secs(30);
/// Below it, members would do nothing but look whose wait is over.
const ACK_WAIT_MIN: Duration = Duration::from_millis(10);
/// Pages that one question for the floor may read.
const FLOOR_PAGES_MAX: usize = 8;

/// The state of a queue that all members share.
pub(super) struct QueueShared {
    durable: String,
    filters: Vec<String>,
    created: TimeMs,
    stream: Arc<Stream>,
    env: Weak<Env>,
    clock: Arc<dyn Clock>,
    inbox: Arc<Inbox>,
    state: Mutex<State>,
    /// Room below the bound on unanswered messages, a message given back, a page read.
    stirred: Notify,
    /// The floor moved since it was last looked at for storing.
    moved: AtomicBool,
    /// Members that have room for a message.
    asking: AtomicUsize,
}

struct State {
    ack_wait: Duration,
    held_max: usize,
    feed: Feed,
    ahead: VecDeque<Entry>,
    /// Delivered and not answered for, or given back and waiting.
    held: BTreeMap<u64, Held>,
    /// When each of them is delivered again.
    due: BTreeSet<(Duration, u64)>,
    consumer_sequence: u64,
    /// Messages up to here may have been delivered before the broker was started.
    suspect_to: u64,
    fetching: bool,
    broken: Option<ReaderBroken>,
    stored: QueueRow,
}

struct Held {
    entry: Entry,
    delivered: u64,
    due: Duration,
}

/// What a member gets.
pub(super) enum Taken {
    Message(Message),
    /// Nothing now; this long at most until something may be delivered again.
    Nothing(Duration),
}

enum Next {
    /// This one of those held.
    Message(u64),
    Nothing(Duration),
    /// Nothing, and the store has to be asked.
    Store(Duration),
}

impl QueueShared {
    /// Takes up a queue where its row left it. `suspect_to` is the last message of the stream when the broker
    /// was started.
    pub fn new(
        stream: Arc<Stream>,
        durable: &str,
        row: QueueRow,
        suspect_to: u64,
        inbox: Arc<Inbox>,
        clock: Arc<dyn Clock>,
        env: Weak<Env>,
    ) -> Result<Self, String> {
        let filters = row.filters.iter();
        let parsed = filters
            .map(|filter| Filter::parse(filter))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            durable: durable.to_owned(),
            filters: row.filters.clone(),
            created: TimeMs(row.created_ms),
            env,
            clock,
            inbox,
            state: Mutex::new(State {
                ack_wait: ACK_WAIT_BEFORE_JOIN,
                held_max: 1,
                feed: Feed::new(Arc::clone(&stream), parsed, row.floor + 1),
                ahead: VecDeque::new(),
                held: BTreeMap::new(),
                due: BTreeSet::new(),
                consumer_sequence: row.consumer_sequence,
                suspect_to,
                fetching: false,
                broken: None,
                stored: row,
            }),
            stream,
            stirred: Notify::new(),
            moved: AtomicBool::new(false),
            asking: AtomicUsize::new(0),
        })
    }

    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    pub fn durable(&self) -> &str {
        &self.durable
    }

    pub const fn created(&self) -> TimeMs {
        self.created
    }

    /// One line for each way in which the queue is not the one that `spec` describes.
    pub fn differences(&self, spec: &QueueSpec) -> Vec<String> {
        let sorted = |filters: &[String]| {
            let mut filters = filters.to_vec();
            filters.sort_unstable();
            filters
        };
        let (found, expected) = (sorted(&self.filters), sorted(&spec.filters));
        if found == expected {
            return Vec::new();
        }
        let durable = &spec.durable;
        vec![format!(
            "durable {durable} filters {found:?}, expected {expected:?}"
        )]
    }

    /// What is known now of what it holds; messages that were not looked at yet count as if they matched.
    pub fn counts(&self) -> QueueState {
        let state = self.lock();
        QueueState {
            pending: state.ahead.len() as u64 + state.feed.behind(),
            unacknowledged: state.held.len() as u64,
            delivered: state.undelivered() - 1,
            floor: state.floor(),
            is_asked: self.asking.load(Ordering::Acquire) > 0,
        }
    }

    /// Takes over the waits and bounds of the newest member.
    ///
    /// # Errors
    /// [`BrokerError::Mismatch`] where the queue selects other messages.
    pub fn join(&self, spec: &QueueSpec) -> Result<(), BrokerError> {
        let differences = self.differences(spec);
        if !differences.is_empty() {
            return Err(BrokerError::Mismatch {
                stream: spec.stream.clone(),
                differences,
            });
        }
        let mut state = self.lock();
        state.ack_wait = spec.ack_wait.max(ACK_WAIT_MIN);
        state.held_max = spec.max_unacknowledged.max(1);
        drop(state);
        self.stirred.notify_waiters();
        Ok(())
    }

    pub fn stored_floor(&self) -> u64 {
        self.lock().stored.floor
    }

    /// What has to be stored, if it is not stored yet.
    pub fn unstored(&self) -> Option<QueueRow> {
        if !self.moved.swap(false, Ordering::AcqRel) {
            return None;
        }
        let state = self.lock();
        let row = QueueRow {
            filters: self.filters.clone(),
            created_ms: self.created.0,
            floor: state.floor(),
            consumer_sequence: state.consumer_sequence,
        };
        (row != state.stored).then_some(row)
    }

    /// A row of [`Self::unstored`] has been stored, or has to be offered again.
    pub fn stored(&self, row: Option<QueueRow>) {
        match row {
            Some(row) => self.lock().stored = row,
            None => self.floor_moved(),
        }
    }

    /// The sequence up to which everything is answered for. Looks for matching messages first, so that those
    /// that do not match hold nothing back.
    pub async fn floor(self: &Arc<Self>) -> Result<u64, BrokerError> {
        for _ in 0..FLOOR_PAGES_MAX {
            let fetch = {
                let mut state = self.lock();
                if !state.ahead.is_empty() || state.fetching {
                    break;
                }
                match state.walk() {
                    Ok(Reach::Store) => {
                        state.fetching = true;
                        state.feed.fetch(AHEAD_MAX)
                    }
                    Ok(Reach::End(_) | Reach::Full) => break,
                    Err(broken) => return Err(BrokerError::Unavailable(broken.to_string())),
                }
            };
            let shared = Arc::clone(self);
            let read = Handle::current().spawn_blocking(move || shared.read(fetch));
            if read.await.is_err() {
                break;
            }
        }
        self.floor_moved();
        Ok(self.lock().floor())
    }

    /// Hands out the next message, or says how long nothing can be expected without a stir or news.
    pub fn take(self: &Arc<Self>, runtime: &Handle) -> Result<Taken, ReaderBroken> {
        let mut guard = self.lock();
        let state = &mut *guard;
        match state.take(self.clock.monotonic())? {
            Next::Message(sequence) => state.hand_over(sequence).map(Taken::Message),
            Next::Nothing(wait) => Ok(Taken::Nothing(wait)),
            Next::Store(wait) => {
                state.fetching = true;
                let fetch = state.feed.fetch(AHEAD_MAX);
                let shared = Arc::clone(self);
                runtime.spawn_blocking(move || shared.read(fetch));
                Ok(Taken::Nothing(wait))
            }
        }
    }

    /// The message is answered for, by whichever delivery of it.
    pub fn acknowledge(&self, sequence: u64) -> Result<(), BrokerError> {
        let mut state = self.answerable()?;
        let was_full = state.held.len() >= state.held_max;
        let Some(held) = state.held.remove(&sequence) else {
            return Ok(());
        };
        state.due.remove(&(held.due, sequence));
        drop(state);
        if was_full {
            self.stirred.notify_one();
        }
        self.floor_moved();
        Ok(())
    }

    /// Delivers the message again after `delay`. Only the newest delivery has a say: an older one must not
    /// take the message from who works on it now.
    pub fn give_back(&self, sequence: u64, delivered: u64, delay: Duration) -> Result<(), BrokerError> {
        let due = self.clock.monotonic().saturating_add(delay);
        if self.answerable()?.postpone(sequence, delivered, due) {
            self.stirred.notify_waiters();
        }
        Ok(())
    }

    /// Begins the wait for an answer again.
    pub fn extend(&self, sequence: u64, delivered: u64) -> Result<(), BrokerError> {
        let mut state = self.answerable()?;
        let due = self.clock.monotonic().saturating_add(state.ack_wait);
        if state.postpone(sequence, delivered, due) {
            Ok(())
        } else {
            let reason = "the message was delivered again or is answered for";
            Err(BrokerError::Refused(reason.to_owned()))
        }
    }

    fn answerable(&self) -> Result<MutexGuard<'_, State>, BrokerError> {
        self.stream
            .tail()
            .check()
            .map_err(|broken| BrokerError::Unavailable(broken.0))?;
        Ok(self.lock())
    }

    /// A member has room for a message, until what is returned is dropped.
    pub fn ask(self: &Arc<Self>) -> Asking {
        self.asking.fetch_add(1, Ordering::AcqRel);
        Asking(Arc::clone(self))
    }

    pub fn stirred(&self) -> &Notify {
        &self.stirred
    }

    /// Reads a page. A panic breaks the queue, which would wait for the page for ever.
    fn read(&self, fetch: Fetch) {
        let page = catch_unwind(AssertUnwindSafe(|| fetch.run(&self.env)));
        let panicked = |_| Err(ReaderBroken("reading the store has panicked".to_owned()));
        self.page_came(page.unwrap_or_else(panicked));
    }

    fn page_came(&self, page: Result<Page, ReaderBroken>) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.fetching = false;
        match page {
            Ok(page) => state.feed.fetched(page, &mut state.ahead),
            Err(broken) => state.broken = Some(broken),
        }
        drop(guard);
        self.stirred.notify_waiters();
    }

    fn floor_moved(&self) {
        if !self.moved.swap(true, Ordering::AcqRel) {
            self.inbox.floor_moved();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, now: Duration) -> Result<Next, ReaderBroken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let first = {
            let tail = self.feed.stream().tail();
            tail.check()?;
            tail.first()
        };
        if let Some(sequence) = self.again(now, first) {
            return Ok(Next::Message(sequence));
        }
        // No delivery of now falls due before.
        let wait = self.due.first().map_or(self.ack_wait, |(due, _)| {
            due.saturating_sub(now).min(self.ack_wait)
        });
        if self.held.len() >= self.held_max {
            return Ok(Next::Nothing(wait));
        }
        loop {
            while let Some(entry) = self.ahead.pop_front() {
                if entry.sequence >= first {
                    return Ok(Next::Message(self.hold(entry, now)));
                }
            }
            match self.walk()? {
                _ if !self.ahead.is_empty() => {}
                Reach::Store if !self.fetching => return Ok(Next::Store(wait)),
                Reach::Store | Reach::End(_) | Reach::Full => return Ok(Next::Nothing(wait)),
            }
        }
    }

    /// A message whose time has come again, with its new wait begun. What was trimmed meanwhile is let go.
    fn again(&mut self, now: Duration, first: u64) -> Option<u64> {
        while let Some((_, sequence)) = pop_due(&mut self.due, now) {
            if sequence < first {
                self.held.remove(&sequence);
            } else if let Some(held) = self.held.get_mut(&sequence) {
                held.delivered += 1;
                held.due = now.saturating_add(self.ack_wait);
                self.due.insert((held.due, sequence));
                return Some(sequence);
            }
        }
        None
    }

    fn hold(&mut self, entry: Entry, now: Duration) -> u64 {
        let sequence = entry.sequence;
        let due = now.saturating_add(self.ack_wait);
        // Whoever gets it has to look whether the work was done before.
        let delivered = if sequence <= self.suspect_to { 2 } else { 1 };
        self.due.insert((due, sequence));
        self.held.insert(
            sequence,
            Held {
                entry,
                delivered,
                due,
            },
        );
        sequence
    }

    fn hand_over(&mut self, sequence: u64) -> Result<Message, ReaderBroken> {
        let held = self
            .held
            .get(&sequence)
            .ok_or_else(|| ReaderBroken("a held message is missing".to_owned()))?;
        let stored = held
            .entry
            .message()
            .map_err(|error| ReaderBroken(error.to_string()))?;
        self.consumer_sequence += 1;
        Ok(Message {
            subject: stored.subject,
            headers: stored.headers,
            payload: stored.payload,
            stream_sequence: sequence,
            consumer_sequence: self.consumer_sequence,
            delivered: held.delivered,
            pending: self.ahead.len() as u64 + self.feed.behind(),
            time: stored.time,
        })
    }

    fn postpone(&mut self, sequence: u64, delivered: u64, due: Duration) -> bool {
        match self.held.get_mut(&sequence) {
            Some(held) if held.delivered == delivered => {
                self.due.remove(&(held.due, sequence));
                self.due.insert((due, sequence));
                held.due = due;
                true
            }
            _ => false,
        }
    }

    /// Picks more messages from the stream. While a page is on its way, what follows it has to wait.
    fn walk(&mut self) -> Result<Reach, ReaderBroken> {
        if self.fetching {
            return Ok(Reach::Store);
        }
        let room = AHEAD_MAX.saturating_sub(self.ahead.len());
        self.feed.advance(&mut self.ahead, room)
    }

    fn floor(&self) -> u64 {
        let held = self.held.first_key_value().map(|(sequence, _)| *sequence);
        held.unwrap_or(u64::MAX).min(self.undelivered()) - 1
    }

    /// The first sequence that nobody was given.
    fn undelivered(&self) -> u64 {
        let ahead = self.ahead.front().map(|entry| entry.sequence);
        ahead.unwrap_or(u64::MAX).min(self.feed.position())
    }
}

/// The wish of a member for a message.
pub(super) struct Asking(Arc<QueueShared>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::AcqRel);
    }
}

fn pop_due(due: &mut BTreeSet<(Duration, u64)>, now: Duration) -> Option<(Duration, u64)> {
    due.first().filter(|(at, _)| *at <= now)?;
    due.pop_first()
}
