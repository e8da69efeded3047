//! A walk along a stream that picks the matching messages, from memory while it can keep up.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::ports::broker::ReaderBroken;

use super::env::Env;
use super::filter::Filter;
use super::record::Entry;
use super::stream::{Page, Stream, Tail};

/// Messages in memory that one look ahead counts; beyond them each is taken to match.
const COUNT_MAX: usize = 1_024;

pub(super) struct Feed {
    stream: Arc<Stream>,
    filters: Arc<[Filter]>,
    /// First sequence not looked at for delivery.
    next: u64,
    /// Up to here matching messages were counted ahead, and so many were found from `next` on.
    counted_to: u64,
    counted: u64,
    /// Matching messages from `next` on; an upper bound where not all could be counted.
    behind: u64,
    /// The first messages that were removed before they were looked at, both ends included.
    removed: Option<(u64, u64)>,
}

/// How far a walk came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Up to the stream's last sequence.
    End(u64),
    /// No room for more.
    Full,
    /// Memory does not reach back so far: the store has to be asked.
    Store,
}

/// What has to be known to read on in the store, without the feed.
pub(super) struct Fetch {
    stream: Arc<Stream>,
    filters: Arc<[Filter]>,
    from: u64,
    last: u64,
    count: usize,
}

impl Fetch {
    /// Reads, on a thread that may block.
    pub fn run(self, env: &Weak<Env>) -> Result<Page, ReaderBroken> {
        let env = env
            .upgrade()
            .ok_or_else(|| ReaderBroken("the broker has stopped".to_owned()))?;
        self.stream
            .page(&env, &self.filters, self.from, self.last, self.count)
            .map_err(|error| ReaderBroken(error.to_string()))
    }
}

impl Feed {
    pub fn new(stream: Arc<Stream>, filters: Vec<Filter>, start: u64) -> Self {
        Self {
            stream,
            filters: filters.into(),
            next: start.max(1),
            counted_to: 0,
            counted: 0,
            behind: 0,
            removed: None,
        }
    }

    /// Begins with what the stream still has, from `start` on.
    pub fn from_what_is_there(stream: Arc<Stream>, filters: Vec<Filter>, start: u64) -> Self {
        let start = start.max(stream.tail().first());
        Self::new(stream, filters, start)
    }

    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// First sequence that was not looked at.
    pub fn position(&self) -> u64 {
        self.next
    }

    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// What was removed before it was looked at, both ends included.
    pub fn removed(&self) -> Option<(u64, u64)> {
        self.removed
    }

    fn pass_removed(&mut self, first: u64) {
        if first > self.next {
            self.removed.get_or_insert((self.next, first - 1));
            self.next = first;
        }
    }

    /// Walks on and puts up to `room` matching messages into `found`.
    pub fn advance(&mut self, found: &mut VecDeque<Entry>, mut room: usize) -> Result<Reach, ReaderBroken> {
        let stream = Arc::clone(&self.stream);
        let tail = stream.tail();
        tail.check()?;
        self.pass_removed(tail.first());
        if self.next > tail.last() {
            self.behind = 0;
            return Ok(Reach::End(tail.last()));
        }
        let Some(entries) = tail.since(self.next) else {
            self.behind = tail.last() + 1 - self.next;
            return Ok(if room == 0 { Reach::Full } else { Reach::Store });
        };
        for entry in entries {
            if self.matches(entry) {
                if room == 0 {
                    return Ok(self.look_ahead(&tail));
                }
                room -= 1;
                if entry.sequence <= self.counted_to {
                    self.counted -= 1;
                }
                found.push_back(entry.clone());
            }
            self.next = entry.sequence + 1;
        }
        self.behind = 0;
        Ok(Reach::End(tail.last()))
    }

    fn matches(&self, entry: &Entry) -> bool {
        self.filters.iter().any(|filter| filter.matches(entry.subject()))
    }

    /// Counts what is still to come, a stretch with each call.
    fn look_ahead(&mut self, tail: &Tail) -> Reach {
        if self.counted_to < self.next {
            self.counted_to = self.next - 1;
            self.counted = 0;
        }
        if let Some(entries) = tail.since(self.counted_to + 1) {
            for entry in entries.take(COUNT_MAX) {
                self.counted += u64::from(self.matches(entry));
                self.counted_to = entry.sequence;
            }
        }
        self.behind = self.counted + (tail.last() - self.counted_to);
        Reach::Full
    }

    /// What to read from the store after [`Reach::Store`].
    pub fn fetch(&self, count: usize) -> Fetch {
        Fetch {
            stream: Arc::clone(&self.stream),
            filters: Arc::clone(&self.filters),
            from: self.next,
            last: self.stream.tail().last(),
            count: count.max(1),
        }
    }

    /// Takes up what was read.
    pub fn fetched(&mut self, page: Page, found: &mut VecDeque<Entry>) {
        let (first, last) = {
            let tail = self.stream.tail();
            (tail.first(), tail.last())
        };
        // It may have been removed before the page was read.
        self.pass_removed(first);
        self.next = self.next.max(page.next);
        self.behind = (last + 1).saturating_sub(self.next);
        found.extend(page.entries);
    }
}
