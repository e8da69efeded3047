//! One stream: what it accepts, its bounds, and its newest messages in memory.
//!
//! The tail is only ever extended behind a commit, so whoever reads it reads what is durable. Older messages
//! come from the store in pages.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use crate::kernel::ids::TimeMs;
use crate::ports::broker::{ReaderBroken, StoredMessage, StreamIdentity, StreamState};

use super::env::{self, Env, StoreError, StreamRow};
use super::filter::Filter;
use super::record::{self, Entry};
use super::settings::Settings;
use super::window::{IdHash, Window};
use crate::mdbx::raw::Row;

/// Rows that one page looks at.
const PAGE_ROWS_MAX: usize = 4_096;
/// Bytes that one page brings into memory.
const PAGE_BYTES_MAX: usize = 1 << 20;

pub(super) struct Stream {
    pub id: u32,
    pub identity: StreamIdentity,
    /// Replaced as a whole.
    config: RwLock<Arc<Config>>,
    tail: RwLock<Tail>,
    /// Last sequence; wakes whoever waits for messages.
    news: watch::Sender<u64>,
    /// Message ids. Only the writer locks it for longer than a look.
    pub window: Mutex<Window>,
    /// Names of the open readers.
    pub readers: Mutex<BTreeSet<String>>,
}

#[derive(Debug)]
pub(super) struct Config {
    pub subjects: Vec<String>,
    pub filters: Vec<Filter>,
    pub message_bytes_max: u64,
}

impl Config {
    /// # Errors
    /// A sentence that names the subject that is not legal.
    pub fn new(subjects: Vec<String>, message_bytes_max: u64) -> Result<Self, String> {
        let filters = subjects
            .iter()
            .map(|subject| Filter::parse(subject))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            subjects,
            filters,
            message_bytes_max,
        })
    }

    pub fn takes(&self, subject: &str) -> bool {
        self.filters
            .iter()
            .any(|filter| filter.matches(subject.as_bytes()))
    }
}

/// The bounds of a stream and its newest messages without a gap.
#[derive(Debug)]
pub(super) struct Tail {
    entries: VecDeque<Entry>,
    bytes: usize,
    messages_max: usize,
    bytes_max: usize,
    first: u64,
    last: u64,
    /// When the message at `last` was stored.
    last_time: Option<TimeMs>,
    /// Bytes of all bodies up to `last`, and up to the message before `first`.
    total: u64,
    total_before: u64,
    broken: Option<String>,
}

impl Tail {
    pub fn first(&self) -> u64 {
        self.first
    }

    pub fn last(&self) -> u64 {
        self.last
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn stored_bytes(&self) -> u64 {
        self.total - self.total_before
    }

    /// Sequence of the oldest message in memory, one more than the last where there is none.
    fn memory_first(&self) -> u64 {
        self.entries.front().map_or(self.last + 1, |entry| entry.sequence)
    }

    /// The messages from `sequence` on, or `None` where memory does not reach back so far.
    pub fn since(&self, sequence: u64) -> Option<impl Iterator<Item = &Entry>> {
        let skipped = sequence.checked_sub(self.memory_first())?;
        Some(
            self.entries
                .iter()
                .skip(usize::try_from(skipped).unwrap_or(usize::MAX)),
        )
    }

    /// # Errors
    /// The stream was deleted or the broker has stopped.
    pub fn check(&self) -> Result<(), ReaderBroken> {
        match &self.broken {
            None => Ok(()),
            Some(reason) => Err(ReaderBroken(reason.clone())),
        }
    }

    fn push(&mut self, entry: Entry) {
        self.last = entry.sequence;
        self.last_time = Some(entry.time);
        self.total = entry.total;
        self.bytes += entry.body.len();
        self.entries.push_back(entry);
        while self.entries.len() > self.messages_max || self.bytes > self.bytes_max {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry.body.len();
        }
    }
}

/// A stretch of the stream from the store: the matching messages from where it was asked, up to `next`.
#[derive(Debug)]
pub(super) struct Page {
    pub entries: Vec<Entry>,
    /// First sequence that was not looked at.
    pub next: u64,
}

impl Stream {
    /// Takes up a stream where the store left it.
    pub fn load(env: &Env, name: &str, row: &StreamRow, settings: &Settings) -> Result<Self, StoreError> {
        let config = Config::new(row.subjects.clone(), row.message_bytes_max)
            .map_err(|what| StoreError::Damaged(format!("stream {name}: {what}")))?;
        let txn = env.read()?;
        let tables = env::stream_tables(&txn, row.id)?;
        let mut cursor = txn.cursor(tables.messages)?;
        let damaged = |error: record::Damaged| StoreError::Damaged(format!("stream {name}: {error}"));
        let read = |row: Option<Row>| match row {
            Some((key, value)) => Entry::read_row(env::sequence_of(&key)?, value)
                .map(Some)
                .map_err(damaged),
            None => Ok(None),
        };
        let first = read(cursor.first()?)?;
        let last = read(cursor.last()?)?;
        let last_time = last.as_ref().map(|entry| entry.time);
        let (first, last, total, total_before) = match (first, last) {
            (Some(first), Some(last)) => {
                let before = first.total.saturating_sub(first.body.len() as u64);
                (first.sequence, last.sequence, last.total, before)
            }
            _ => (row.last_sequence + 1, row.last_sequence, 0, 0),
        };
        Ok(Self {
            id: row.id,
            identity: StreamIdentity {
                name: name.to_owned(),
                created_ns: row.created_ns,
            },
            config: RwLock::new(Arc::new(config)),
            tail: RwLock::new(Tail {
                entries: VecDeque::new(),
                bytes: 0,
                messages_max: settings.tail_messages,
                bytes_max: settings.tail_bytes,
                first,
                last,
                last_time,
                total,
                total_before,
                broken: None,
            }),
            news: watch::Sender::new(last),
            window: Mutex::new(Window::new(settings.duplicate_window, settings.duplicate_ids_max)),
            readers: Mutex::default(),
        })
    }

    /// Remembers the ids of the newest messages, as far back as the window reaches.
    pub fn load_window(&self, env: &Env, now: TimeMs, ids_max: usize) -> Result<(), StoreError> {
        let txn = env.read()?;
        let tables = env::stream_tables(&txn, self.id)?;
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        let mut cursor = txn.cursor(tables.messages)?;
        let mut next = cursor.last()?;
        while let Some((key, value)) = next {
            let entry = Entry::read_row(env::sequence_of(&key)?, value)
                .map_err(|error| StoreError::Damaged(format!("stream {}: {error}", self.identity.name)))?;
            if !window.reaches(entry.time, now) || found.len() >= ids_max {
                break;
            }
            if !entry.id().is_empty() {
                found.push((IdHash::of(entry.id()), entry.sequence, entry.time));
            }
            next = cursor.previous()?;
        }
        for (id, sequence, time) in found.into_iter().rev() {
            window.remember(id, sequence, time);
        }
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.identity.name
    }

    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn set_config(&self, config: Config) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    pub fn tail(&self) -> RwLockReadGuard<'_, Tail> {
        self.tail.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn tail_mut(&self) -> RwLockWriteGuard<'_, Tail> {
        self.tail.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    pub fn state(&self, now: TimeMs) -> StreamState {
        let tail = self.tail();
        StreamState {
            identity: self.identity.clone(),
            first_sequence: tail.first,
            last_sequence: tail.last,
            last_time: tail.last_time.filter(|_| tail.first <= tail.last),
            messages: tail.last + 1 - tail.first,
            bytes: tail.stored_bytes(),
            told: now,
        }
    }

    /// Shows messages that a commit has made durable.
    pub fn extend(&self, entries: Vec<Entry>) {
        let mut tail = self.tail_mut();
        for entry in entries {
            tail.push(entry);
        }
    }

    /// Wakes whoever waits for messages.
    pub fn announce(&self) {
        let last = self.tail().last;
        self.news.send_replace(last);
    }

    /// Forgets the messages below `first`, which a commit has removed.
    pub fn trimmed(&self, first: u64, total_before: u64) {
        let mut tail = self.tail_mut();
        tail.first = first;
        tail.total_before = total_before;
        while tail.entries.front().is_some_and(|entry| entry.sequence < first) {
            tail.pop();
        }
    }

    /// Ends every reader and queue of the stream.
    pub fn break_off(&self, reason: &str) {
        self.tail_mut().broken.get_or_insert_with(|| reason.to_owned());
        self.announce();
    }

    /// Reads up to `count` matching messages from the store, from `from` on and not beyond `last`.
    pub fn page(
        &self,
        env: &Env,
        filters: &[Filter],
        from: u64,
        last: u64,
        count: usize,
    ) -> Result<Page, StoreError> {
        let txn = env.read()?;
        let tables = env::stream_tables(&txn, self.id)?;
        let mut cursor = txn.cursor(tables.messages)?;
        let mut page = Page {
            entries: Vec::new(),
            next: from,
        };
        let mut bytes = 0;
        let mut rows = 0;
        let mut found = cursor.at_or_behind(&from.to_be_bytes())?;
        while let Some((key, value)) = found {
            let sequence = env::sequence_of(&key)?;
            if sequence > last
                || rows >= PAGE_ROWS_MAX
                || page.entries.len() >= count
                || bytes >= PAGE_BYTES_MAX
            {
                return Ok(page);
            }
            let entry = Entry::read_row(sequence, value)
                .map_err(|error| StoreError::Damaged(format!("stream {}: {error}", self.name())))?;
            page.next = sequence + 1;
            if filters.iter().any(|filter| filter.matches(entry.subject())) {
                bytes += entry.body.len();
                page.entries.push(entry);
            }
            rows += 1;
            found = cursor.next()?;
        }
        page.next = page.next.max(last + 1);
        Ok(page)
    }

    /// Reads one message, from memory where it is there.
    pub fn message_at(&self, env: &Env, sequence: u64) -> Result<Option<StoredMessage>, StoreError> {
        let in_memory = {
            let tail = self.tail();
            if sequence < tail.first || sequence > tail.last {
                return Ok(None);
            }
            tail.since(sequence)
                .and_then(|mut entries| entries.next().cloned())
        };
        let entry = if in_memory.is_some() {
            in_memory
        } else {
            let txn = env.read()?;
            let tables = env::stream_tables(&txn, self.id)?;
            self.stored(&txn, &tables, sequence)?
        };
        entry
            .map(|entry| entry.message())
            .transpose()
            .map_err(|error| StoreError::Damaged(format!("stream {}: {error}", self.name())))
    }

    /// Reads the newest message of a subject.
    pub fn last_by_subject(&self, env: &Env, subject: &str) -> Result<Option<StoredMessage>, StoreError> {
        let txn = env.read()?;
        let tables = env::stream_tables(&txn, self.id)?;
        let Some(key) = txn.get(tables.subjects, subject.as_bytes())? else {
            return Ok(None);
        };
        let sequence = env::sequence_of(&key)?;
        let damaged = |what: String| StoreError::Damaged(format!("stream {}: {what}", self.name()));
        let entry = self
            .stored(&txn, &tables, sequence)?
            .filter(|entry| entry.subject() == subject.as_bytes())
            .ok_or_else(|| {
                damaged(format!(
                    "the index of subject {subject} points at message {sequence}"
                ))
            })?;
        entry
            .message()
            .map(Some)
            .map_err(|error| damaged(error.to_string()))
    }

    fn stored(
        &self,
        txn: &env::Ro<'_>,
        tables: &env::StreamTables,
        sequence: u64,
    ) -> Result<Option<Entry>, StoreError> {
        let Some(row) = txn.get(tables.messages, &sequence.to_be_bytes())? else {
            return Ok(None);
        };
        Entry::read_row(sequence, row)
            .map(Some)
            .map_err(|error| StoreError::Damaged(format!("stream {}: {error}", self.name())))
    }
}
