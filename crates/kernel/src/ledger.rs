//! What an instance did that would have to be undone, oldest first.
//!
//! A loop over a list may leave a thousand entries, and each of its results reads and writes the whole record. So
//! entries lie in packed chunks that are carried along as bytes; only a chunk in which something changes is opened.
//! Where a chunk begins depends on nothing but the number of entries, so the same ledger has the same bytes however
//! it came about.

use std::borrow::Cow;

use bytes::Bytes;
use saga_runner_language::definition::model::Late;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::ByteBuf;

use super::record::{Outstanding, Question, Tries};

/// Entries of a chunk. An entry takes about 50 bytes, so this is the part of a record that one change rewrites.
const CHUNK_ENTRIES: usize = 16;
/// The bit of [`Head::holds`] that says that a result is awaited; the others are those of [`LedgerStatus::ALL`].
const AWAITS: u8 = 1 << 7;

/// What would have to be undone, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// All but the last one hold [`CHUNK_ENTRIES`].
    chunks: Vec<Chunk>,
}

/// Something done (or perhaps done) that compensation undoes, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Index of the step.
    pub step: u16,
    /// Index of the item, for the steps of a loop over a list.
    pub item: Option<u32>,
    /// Of the step when it did this.
    pub iteration: u32,
    /// What was sent, as JSON; absent where the compensation does not read it, and once it is undone.
    pub input: Option<ByteBuf>,
    /// JSON result; absent where the outcome is unknown or the compensation does not read it, and once it is
    /// undone.
    pub result: Option<ByteBuf>,
    pub status: LedgerStatus,
    /// Attempts of its compensation so far; an operator's retry begins again.
    pub attempt: u32,
    pub tries: Tries,
    pub outstanding: Option<Outstanding>,
    /// Its outcome is unknown, and an operator has to state it before it is undone.
    pub asks: bool,
    /// Path under which its compensation began, where a migration has given the step another name since.
    pub known_as: Option<String>,
    /// Life under which it came on the ledger, where that was a generation before: its compensation is known by the same key.
    pub life: Option<String>,
    /// It turned out to have happened while it was being undone, perhaps after that: it is undone once more.
    pub again: bool,
    /// What is undone is the instance of another saga that the step has started, whatever its compensation says: that instance
    /// has not come to its end by itself.
    pub of_child: bool,
    /// Why nobody waited for it any more when it came.
    pub late: Option<Late>,
    /// What an operator is asked where the outcome of undoing it is unknown.
    pub question: Option<Box<Question>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LedgerStatus {
    /// Nothing undone so far.
    Held,
    /// Its compensation is under way.
    Undoing,
    /// Its compensation failed and a timer will try again.
    BackingOff,
    Undone,
    /// An operator must act: its compensation exhausted its attempts, or it is unknown whether there is
    /// something to undo.
    Stuck,
    /// It is to be undone although the instance goes on, and waits for its turn.
    Due,
    /// It stays done: its compensation is not wanted, was given up, or an operator said so.
    Kept,
}

#[derive(Debug, Clone)]
enum Chunk {
    Packed(Head, Bytes),
    Open(Vec<LedgerEntry>),
}

/// What can be told of a chunk without opening it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Head {
    entries: u8,
    /// What its entries hold, a bit each.
    holds: u8,
    highest_step: u16,
    /// Length of the entries, encoded with postcard one after the other.
    bytes: u32,
    /// CRC-32C of these bytes and of the numbers above: a chunk is believed long before it is opened.
    checksum: u32,
}

impl Ledger {
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| {
            (self.chunks.len() - 1) * CHUNK_ENTRIES + usize::from(last.head().entries)
        })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Adds the newest entry.
    pub fn push(&mut self, entry: LedgerEntry) {
        let full = |chunk: &Chunk| usize::from(chunk.head().entries) == CHUNK_ENTRIES;
        if self.chunks.last().is_none_or(full) {
            if let Some(last) = self.chunks.last_mut() {
                last.close();
            }
            self.chunks.push(Chunk::Open(Vec::new()));
        }
        if let Some(last) = self.chunks.last_mut() {
            last.open().push(entry);
        }
    }

    pub fn clear(&mut self) {
        self.chunks.clear();
    }

    /// Entry `at`, to be changed.
    ///
    /// # Panics
    /// If there is no such entry.
    pub fn entry(&mut self, at: usize) -> &mut LedgerEntry {
        &mut self.chunks[at / CHUNK_ENTRIES].open()[at % CHUNK_ENTRIES]
    }

    /// All entries. Opens a copy of every chunk: not for what happens at each input.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Cow<'_, LedgerEntry>> {
        self.chunks.iter().flat_map(Chunk::entries)
    }

    /// Whether an entry has such a status.
    #[must_use]
    pub fn has(&self, is: impl Fn(LedgerStatus) -> bool) -> bool {
        let wanted = LedgerStatus::bits(is);
        self.chunks.iter().any(|chunk| chunk.head().holds & wanted != 0)
    }

    /// The entries with such a status and their positions. Chunks without one are not opened.
    pub fn having(
        &self,
        is: impl Fn(LedgerStatus) -> bool + Copy,
    ) -> impl DoubleEndedIterator<Item = (usize, Cow<'_, LedgerEntry>)> {
        self.among(LedgerStatus::bits(is))
            .filter(move |(_, entry)| is(entry.status))
    }

    /// The commands whose results are awaited and the positions of their entries.
    pub fn outstanding(&self) -> impl Iterator<Item = (usize, Outstanding)> {
        self.among(AWAITS)
            .filter_map(|(at, entry)| Some((at, entry.outstanding?)))
    }

    /// The highest index of a step.
    #[must_use]
    pub fn highest_step(&self) -> Option<u16> {
        self.chunks.iter().map(|chunk| chunk.head().highest_step).max()
    }

    /// At least as many bytes as the encoding takes.
    #[must_use]
    pub fn bytes_at_most(&self) -> usize {
        let chunks = self.chunks.iter().map(|chunk| match chunk {
            Chunk::Packed(_, body) => 20 + body.len(),
            Chunk::Open(entries) => 20 + entries.iter().map(LedgerEntry::bytes_at_most).sum::<usize>(),
        });
        20 + chunks.sum::<usize>()
    }

    /// The entries of the chunks that hold one of `wanted`.
    fn among(&self, wanted: u8) -> impl DoubleEndedIterator<Item = (usize, Cow<'_, LedgerEntry>)> {
        let chunks = self.chunks.iter().enumerate();
        chunks
            .filter(move |(_, chunk)| chunk.head().holds & wanted != 0)
            .flat_map(|(at, chunk)| {
                let entries = chunk.entries().into_iter().enumerate();
                entries.map(move |(within, entry)| (at * CHUNK_ENTRIES + within, entry))
            })
    }
}

impl Chunk {
    fn head(&self) -> Head {
        match self {
            Self::Packed(head, _) => *head,
            Self::Open(entries) => Head::of(entries, &[]),
        }
    }

    fn entries(&self) -> Vec<Cow<'_, LedgerEntry>> {
        match self {
            Self::Packed(head, body) => head.unpack(body).into_iter().map(Cow::Owned).collect(),
            Self::Open(entries) => entries.iter().map(Cow::Borrowed).collect(),
        }
    }

    fn open(&mut self) -> &mut Vec<LedgerEntry> {
        if let Self::Packed(head, body) = self {
            *self = Self::Open(head.unpack(body));
        }
        match self {
            Self::Open(entries) => entries,
            Self::Packed(..) => unreachable!("it was opened above"),
        }
    }

    fn close(&mut self) {
        if let Self::Open(entries) = self {
            let body = pack(entries, Vec::new());
            *self = Self::Packed(Head::of(entries, &body), Bytes::from(body));
        }
    }
}

impl Head {
    fn of(entries: &[LedgerEntry], body: &[u8]) -> Self {
        let holds = |entry: &LedgerEntry| {
            let awaits = if entry.outstanding.is_some() { AWAITS } else { 0 };
            awaits | entry.status.bit()
        };
        let head = Self {
            entries: u8::try_from(entries.len()).expect("a chunk has few entries"),
            holds: entries.iter().fold(0, |bits, entry| bits | holds(entry)),
            highest_step: entries.iter().map(|entry| entry.step).max().unwrap_or(0),
            bytes: u32::try_from(body.len()).expect("a record is far below 4 GiB"),
            checksum: 0,
        };
        Self {
            checksum: head.checksum_with(body),
            ..head
        }
    }

    fn checksum_with(self, body: &[u8]) -> u32 {
        let [low, high] = self.highest_step.to_le_bytes();
        crc32c::crc32c_append(crc32c::crc32c(body), &[self.entries, self.holds, low, high])
    }

    fn unpack(self, body: &[u8]) -> Vec<LedgerEntry> {
        let mut rest = body;
        let mut entries = Vec::with_capacity(CHUNK_ENTRIES);
        for _ in 0..self.entries {
            let (entry, after) =
                postcard::take_from_bytes(rest).expect("its checksum was right, so it is what was packed");
            entries.push(entry);
            rest = after;
        }
        entries
    }
}

fn pack(entries: &[LedgerEntry], bytes: Vec<u8>) -> Vec<u8> {
    entries.iter().fold(bytes, |bytes, entry| {
        postcard::to_extend(entry, bytes).expect("an entry holds only types that postcard can encode")
    })
}

/// A ledger as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    heads: Vec<Head>,
    bodies: ByteBuf,
}

impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bodies = Vec::with_capacity(self.bytes_at_most());
        let heads = self.chunks.iter().map(|chunk| match chunk {
            Chunk::Packed(head, body) => {
                bodies.extend_from_slice(body);
                *head
            }
            Chunk::Open(entries) => {
                let begin = bodies.len();
                bodies = pack(entries, std::mem::take(&mut bodies));
                Head::of(entries, &bodies[begin..])
            }
        });
        let heads = heads.collect();
        let bodies = ByteBuf::from(bodies);
        Stored { heads, bodies }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Ledger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = Stored::deserialize(deserializer)?;
        let mut bodies = Bytes::from(stored.bodies.into_vec());
        let last = stored.heads.len().saturating_sub(1);
        let mut chunks = Vec::with_capacity(stored.heads.len());
        for (at, head) in stored.heads.into_iter().enumerate() {
            let entries = usize::from(head.entries);
            let bytes = usize::try_from(head.bytes).unwrap_or(usize::MAX);
            let full = entries == CHUNK_ENTRIES || (at == last && (1..CHUNK_ENTRIES).contains(&entries));
            if !full || bytes > bodies.len() {
                return Err(D::Error::custom("a ledger of another shape"));
            }
            let body = bodies.split_to(bytes);
            if head.checksum_with(&body) != head.checksum {
                return Err(D::Error::custom("a ledger that was damaged"));
            }
            chunks.push(Chunk::Packed(head, body));
        }
        if !bodies.is_empty() {
            return Err(D::Error::custom("a ledger of another shape"));
        }
        Ok(Self { chunks })
    }
}

impl PartialEq for Ledger {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl FromIterator<LedgerEntry> for Ledger {
    fn from_iter<I: IntoIterator<Item = LedgerEntry>>(entries: I) -> Self {
        let mut ledger = Self::default();
        entries.into_iter().for_each(|entry| ledger.push(entry));
        ledger
    }
}

impl LedgerEntry {
    /// At least as many bytes as the encoding takes.
    fn bytes_at_most(&self) -> usize {
        let blob = |bytes: &Option<ByteBuf>| bytes.as_ref().map_or(1, |bytes| bytes.len() + 10);
        let known_as = self.known_as.as_ref().map_or(1, |path| path.len() + 11);
        let question = self.question.as_ref();
        let question = question.map_or(1, |question| question.bytes_at_most());
        let life = self.life.as_ref().map_or(1, |life| life.len() + 11);
        let texts = known_as + life;
        130 + blob(&self.input) + blob(&self.result) + texts + self.tries.bytes_at_most() + question
    }
}

impl LedgerStatus {
    pub const ALL: [Self; 7] = [
        Self::Held,
        Self::Undoing,
        Self::BackingOff,
        Self::Undone,
        Self::Stuck,
        Self::Due,
        Self::Kept,
    ];

    /// Whether nothing more is to be done about it when the instance undoes what it did.
    #[must_use]
    pub const fn is_over(self) -> bool {
        match self {
            Self::Undone | Self::Kept => true,
            Self::Held | Self::Undoing | Self::BackingOff | Self::Stuck | Self::Due => false,
        }
    }

    /// Whether nothing is to be done about it as long as the instance goes forward.
    #[must_use]
    pub const fn rests(self) -> bool {
        match self {
            Self::Held | Self::Undone | Self::Kept => true,
            Self::Undoing | Self::BackingOff | Self::Stuck | Self::Due => false,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Undoing => "undoing",
            Self::BackingOff => "backing_off",
            Self::Undone => "undone",
            Self::Stuck => "stuck",
            Self::Due => "due",
            Self::Kept => "kept",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }

    fn bits(is: impl Fn(Self) -> bool) -> u8 {
        let meant = Self::ALL.into_iter().filter(|status| is(*status));
        meant.fold(0, |bits, status| bits | status.bit())
    }
}

#[cfg(test)]
mod tests;
