//! A stream of the simulated broker, and its durable queues.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use saga_runner::kernel::ids::TimeMs;
use saga_runner::ports::broker::{
    Expect, Message, Publication, PublishAck, PublishError, QueueState, StoredMessage, StreamIdentity,
    StreamSpec, StreamState,
};

/// Messages that are counted one by one.
const COUNTED_MAX: usize = 64;

pub struct Stream {
    pub identity: StreamIdentity,
    pub spec: StreamSpec,
    pub messages: BTreeMap<u64, Stored>,
    pub last: u64,
    /// How long a message id is remembered.
    pub(super) window_ms: i64,
    /// Every message that was ever stored, and whether it is gone without the runner's doing: what judges look at.
    pub archive: Vec<(StoredMessage, bool)>,
    /// Sequence of the newest message by subject.
    pub(super) newest: BTreeMap<String, u64>,
    /// Message ids in the order in which they came.
    pub(super) ids: VecDeque<(TimeMs, String, u64)>,
    /// The sequence of each of them.
    pub(super) known: BTreeMap<String, u64>,
    pub queues: BTreeMap<String, Durable>,
}

pub struct Stored {
    pub message: StoredMessage,
    /// When readers may see it.
    pub visible: Duration,
}

impl Stream {
    pub fn new(spec: &StreamSpec, created_ns: i64, window_ms: i64) -> Self {
        Self {
            identity: StreamIdentity {
                name: spec.name.clone(),
                created_ns,
            },
            spec: spec.clone(),
            messages: BTreeMap::new(),
            last: 0,
            window_ms,
            archive: Vec::new(),
            newest: BTreeMap::new(),
            ids: VecDeque::new(),
            known: BTreeMap::new(),
            queues: BTreeMap::new(),
        }
    }

    pub fn first(&self) -> u64 {
        self.messages.keys().next().copied().unwrap_or(self.last + 1)
    }

    pub fn state(&self, now: TimeMs) -> StreamState {
        StreamState {
            identity: self.identity.clone(),
            first_sequence: self.first(),
            last_sequence: self.last,
            messages: self.messages.len() as u64,
            last_time: self.messages.get(&self.last).map(|stored| stored.message.time),
            bytes: self
                .messages
                .values()
                .map(|stored| (stored.message.payload.len() + stored.message.subject.len()) as u64)
                .sum(),
            told: now,
        }
    }

    pub fn takes(&self, subject: &str) -> bool {
        matches_any(&self.spec.subjects, subject)
    }

    /// Stores a message, unless what it expects does not hold.
    pub fn store(
        &mut self,
        publication: &Publication,
        now: TimeMs,
        visible: Duration,
    ) -> Result<PublishAck, PublishError> {
        match &publication.expect {
            Expect::Nothing => {}
            Expect::FirstOnSubject => {
                if self.newest.contains_key(&publication.subject) {
                    return Err(PublishError::AlreadyThere);
                }
            }
            Expect::MessageId(id) => {
                while self
                    .ids
                    .front()
                    .is_some_and(|(at, ..)| now.0 - at.0 >= self.window_ms)
                {
                    if let Some((_, id, _)) = self.ids.pop_front() {
                        self.known.remove(&id);
                    }
                }
                if let Some(sequence) = self.known.get(id) {
                    return Ok(PublishAck {
                        sequence: *sequence,
                        duplicate: true,
                    });
                }
            }
        }
        self.last += 1;
        if let Expect::MessageId(id) = &publication.expect {
            self.ids.push_back((now, id.clone(), self.last));
            self.known.insert(id.clone(), self.last);
        }
        self.newest.insert(publication.subject.clone(), self.last);
        let before = self.messages.values().next_back().map(|stored| stored.visible);
        let message = StoredMessage {
            subject: publication.subject.clone(),
            headers: publication.headers.clone(),
            payload: publication.payload.clone(),
            sequence: self.last,
            time: now,
        };
        self.archive.push((message.clone(), false));
        let visible = before.map_or(visible, |before| before.max(visible));
        self.messages.insert(self.last, Stored { message, visible });
        Ok(PublishAck {
            sequence: self.last,
            duplicate: false,
        })
    }

    pub fn last_by_subject(&self, subject: &str) -> Option<StoredMessage> {
        let sequence = self.newest.get(subject)?;
        self.messages.get(sequence).map(|stored| stored.message.clone())
    }

    /// Removes what lies below `keep`. Subjects whose newest message goes are free again.
    pub fn trim(&mut self, keep: u64) {
        let keep = keep.min(self.last + 1);
        self.messages = self.messages.split_off(&keep);
        self.newest.retain(|_, sequence| *sequence >= keep);
    }

    /// The first matching message from `from` on that can be seen, and when the one can be seen that comes next where
    /// none can.
    pub fn next_match(&self, from: u64, filters: &[String], now: Duration) -> Found<'_> {
        for (sequence, stored) in self.messages.range(from..) {
            if !matches_any(filters, &stored.message.subject) {
                continue;
            }
            return if stored.visible <= now {
                Found::Here(*sequence, &stored.message)
            } else {
                Found::At(stored.visible)
            };
        }
        Found::Nothing
    }

    /// How many messages match from here on; of very many only that there are many.
    pub fn matching_from(&self, from: u64, filters: &[String]) -> u64 {
        let behind = self.messages.range(from..);
        behind
            .filter(|(_, stored)| matches_any(filters, &stored.message.subject))
            .take(COUNTED_MAX)
            .count() as u64
    }

    /// Whether some message matches within these sequences.
    pub fn has_match(&self, within: RangeInclusive<u64>, filters: &[String]) -> bool {
        let mut within = self.messages.range(within);
        within.any(|(_, stored)| matches_any(filters, &stored.message.subject))
    }
}

pub enum Found<'s> {
    Here(u64, &'s StoredMessage),
    At(Duration),
    Nothing,
}

pub fn delivered(stored: &StoredMessage, consumer_sequence: u64, delivered: u64, pending: u64) -> Message {
    Message {
        subject: stored.subject.clone(),
        headers: stored.headers.clone(),
        payload: stored.payload.clone(),
        stream_sequence: stored.sequence,
        consumer_sequence,
        delivered,
        pending,
        time: stored.time,
    }
}

/// A durable queue.
pub struct Durable {
    pub filters: Vec<String>,
    pub group: Option<String>,
    pub created: TimeMs,
    pub ack_wait: Duration,
    pub unacknowledged_max: usize,
    /// First sequence that nobody was given yet.
    pub next: u64,
    /// Up to here nothing matches from `next` on, so that nobody looks at it again.
    pub seen: u64,
    pub held: BTreeMap<u64, Held>,
    pub consumer_sequence: u64,
    /// Each member has one.
    pub members: Arc<()>,
}

pub struct Held {
    pub delivered: u64,
    /// When it is given to the next who asks.
    pub due: Duration,
}

impl Stream {
    /// The next message for a member of a queue; where there is none, when to ask again.
    pub fn take(&mut self, durable: &str, now: Duration) -> Result<Message, Option<Duration>> {
        let mut queue = self.queues.remove(durable).ok_or(None)?;
        let taken = self.take_of(&mut queue, now);
        self.queues.insert(durable.to_owned(), queue);
        taken
    }

    fn take_of(&self, queue: &mut Durable, now: Duration) -> Result<Message, Option<Duration>> {
        queue
            .held
            .retain(|sequence, _| self.messages.contains_key(sequence));
        let due = queue
            .held
            .iter()
            .min_by_key(|(sequence, held)| (held.due, **sequence));
        let (mut again, mut wake) = (None, None);
        if let Some((sequence, held)) = due {
            if held.due <= now {
                again = Some(*sequence);
            } else {
                wake = Some(held.due);
            }
        }
        let sequence = match again {
            Some(sequence) => sequence,
            None if queue.held.len() >= queue.unacknowledged_max => return Err(wake),
            None => match self.next_match(queue.next.max(queue.seen + 1), &queue.filters, now) {
                Found::Here(sequence, _) => {
                    queue.next = sequence + 1;
                    sequence
                }
                Found::At(at) => return Err(Some(wake.map_or(at, |wake| wake.min(at)))),
                Found::Nothing => {
                    queue.seen = self.last;
                    return Err(wake);
                }
            },
        };
        let due = now + queue.ack_wait;
        let held = queue.held.entry(sequence).or_insert(Held { delivered: 0, due });
        held.delivered += 1;
        held.due = due;
        queue.consumer_sequence += 1;
        let pending = self.matching_from(queue.next, &queue.filters);
        let stored = &self.messages[&sequence].message;
        Ok(delivered(
            stored,
            queue.consumer_sequence,
            held.delivered,
            pending,
        ))
    }

    /// What a queue holds.
    pub fn queue_state(&self, durable: &str) -> Option<QueueState> {
        let queue = self.queues.get(durable)?;
        let next = queue.next.max(queue.seen + 1);
        Some(QueueState {
            pending: self.matching_from(next, &queue.filters),
            unacknowledged: queue.held.len() as u64,
            delivered: next - 1,
            floor: self.floor(durable)?.min(next - 1),
            is_asked: Arc::strong_count(&queue.members) > 1,
        })
    }

    /// The sequence up to which everything is answered for.
    pub fn floor(&self, durable: &str) -> Option<u64> {
        let queue = self.queues.get(durable)?;
        let mut behind = self.messages.range(queue.next.max(queue.seen + 1)..);
        let unseen = behind
            .find(|(_, stored)| matches_any(&queue.filters, &stored.message.subject))
            .map_or(self.last + 1, |(sequence, _)| *sequence);
        let held = queue.held.keys().next().copied();
        Some(held.map_or(unseen, |held| held.min(unseen)) - 1)
    }
}

pub fn matches_any(filters: &[String], subject: &str) -> bool {
    filters.iter().any(|filter| matches(filter, subject))
}

fn matches(filter: &str, subject: &str) -> bool {
    let (mut wanted, mut found) = (filter.split('.'), subject.split('.'));
    loop {
        match (wanted.next(), found.next()) {
            (None, None) | (Some(">"), Some(_)) => return true,
            (Some("*"), Some(_)) => {}
            (Some(wanted), Some(found)) if wanted == found => {}
            _ => return false,
        }
    }
}

/// Whether some subject matches both.
pub fn overlap(left: &str, right: &str) -> bool {
    let (mut left, mut right) = (left.split('.'), right.split('.'));
    loop {
        match (left.next(), right.next()) {
            (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

/// One line for each difference between a stream that is there and one that is wanted.
pub fn differences(spec: &StreamSpec, there: &StreamSpec) -> Vec<String> {
    if spec.foreign {
        let carried = |wanted: &&String| there.subjects.iter().any(|subject| overlap(subject, wanted));
        let missing = spec.subjects.iter().filter(|wanted| !carried(wanted));
        return missing
            .map(|wanted| format!("no subject of it matches {wanted}"))
            .collect();
    }
    let mut found = Vec::new();
    if spec.subjects != there.subjects {
        found.push(format!(
            "subjects are {:?}, expected {:?}",
            there.subjects, spec.subjects
        ));
    }
    if spec.message_bytes_max != there.message_bytes_max {
        let (is, expected) = (there.message_bytes_max, spec.message_bytes_max);
        found.push(format!("largest message is {is} bytes, expected {expected}"));
    }
    found
}
