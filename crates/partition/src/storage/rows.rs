//! Rows that are not kernel values, and the encoding of all of them: a format byte, then postcard.

mod inbox;
mod uses;

use bytes::Bytes;
use saga_runner_kernel::ids::{CommandId, DefinitionHash, InstanceId, SagaName, TenantId, TimeMs};
use saga_runner_kernel::input::{Input, Owner, SourceStream};
use saga_runner_kernel::patch::{IgnoreReason, Note, Outcome};
use saga_runner_kernel::record::{Paused, Phase, Record, Summary};
use saga_runner_kernel::schedule::Skip;
use saga_runner_kernel::work::WorkRef;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use super::StorageError;
pub use inbox::{BlockedRow, InboxRow, WaitReason, Waiting, early_number, early_timer, encode_waiting};
pub use uses::{ActiveDefinitions, ActiveSaga, UseChange, UseChanges, Uses};

/// Format of every row that this binary writes.
pub const ROW_FORMAT: u8 = 1;

/// Encodes a row.
pub fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    bytes.push(ROW_FORMAT);
    postcard::to_extend(row, bytes).expect("rows hold only types that postcard can encode")
}

/// Decodes what [`encode`] wrote.
///
/// # Errors
/// [`StorageError::Corrupt`] names `what`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, StorageError> {
    match bytes.split_first() {
        Some((&ROW_FORMAT, body)) => {
            postcard::from_bytes(body).map_err(|error| StorageError::Corrupt(format!("{what}: {error}")))
        }
        Some((&found, _)) => Err(StorageError::Corrupt(format!(
            "{what} has format {found}, this binary reads {ROW_FORMAT}"
        ))),
        None => Err(StorageError::Corrupt(format!("{what} is empty"))),
    }
}

/// One input of an instance, in short: what it carries is in a row of its own, or in its stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryRow {
    pub instance: InstanceId,
    pub input_id: String,
    pub kind: String,
    pub time: TimeMs,
    pub source: Option<(SourceStream, u64)>,
    pub outcome: HistoryOutcome,
    pub notes: Vec<Note>,
    /// A timer that fired although a source stream could not be read up to its time.
    pub late_source: bool,
    /// Log sequence of the row before this one of the same instance.
    pub previous: Option<u64>,
}

/// The outcome of an input of an instance, or what an operator has decided about one that was a dead letter: what comes of
/// that is told by the rows behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HistoryOutcome {
    Applied,
    Deferred,
    Ignored(IgnoreReason),
    /// It is dead letter `number`.
    Dead {
        number: u64,
        reason: String,
    },
    /// Dead letter `number` is to be applied again.
    Retried {
        number: u64,
    },
    /// Dead letter `number` is forgotten.
    Discarded {
        number: u64,
    },
    /// The data of dead letter `number` were `original`; they are `edited` now, with which it is to be applied again.
    Edited {
        number: u64,
        original: Bytes,
        edited: Bytes,
    },
    /// Not an input: in place of this many earlier rows, which are deleted ([`Keep::history_count`]).
    ///
    /// [`Keep::history_count`]: crate::machine::Keep::history_count
    Cut {
        rows: u64,
    },
}

impl HistoryOutcome {
    /// The outcome in one word: applied, deferred, dead, why it was ignored, retried, edited, discarded or cut.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Deferred => "deferred",
            Self::Ignored(reason) => reason.as_str(),
            Self::Dead { .. } => "dead",
            Self::Retried { .. } => "retried",
            Self::Discarded { .. } => "discarded",
            Self::Edited { .. } => "edited",
            Self::Cut { .. } => "cut",
        }
    }
}

impl From<Outcome> for HistoryOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Applied => Self::Applied,
            Outcome::Deferred => Self::Deferred,
            Outcome::Ignored(reason) => Self::Ignored(reason),
        }
    }
}

/// A timer that is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerTarget {
    pub instance: InstanceId,
    pub name: String,
}

/// Bytes of a payload that a dead letter shows.
pub const EXCERPT_BYTES: usize = 1024;

/// An input that could not be applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    pub tenant: TenantId,
    /// Stable reason code, e.g. `payload.syntax`, `expression`.
    pub reason: String,
    pub message: String,
    pub subject: String,
    pub time: TimeMs,
    pub source: Option<(SourceStream, u64)>,
    pub attempts: u32,
    /// What can be applied again; absent where the message never became an input.
    pub input: Option<Input>,
    /// At most the first KiB of the payload, for people.
    pub excerpt: Bytes,
    /// BLAKE3 of the whole payload, where only an excerpt was kept.
    pub payload_hash: Option<[u8; 32]>,
    /// The instance that it is about, where that is not the one that its input is addressed to.
    pub about: Option<InstanceId>,
    /// Version of the saga that the input met, where it met one. The last of the row: those of before have none.
    #[serde(deserialize_with = "or_none")]
    pub met: Option<DefinitionHash>,
}

/// What a row may end without.
#[allow(clippy::unnecessary_wraps, reason = "serde calls it")]
fn or_none<'de, D: Deserializer<'de>, T: Deserialize<'de>>(bytes: D) -> Result<Option<T>, D::Error> {
    Ok(Option::deserialize(bytes).unwrap_or(None))
}

impl DeadLetter {
    /// The instance that it is about, where it is about one.
    #[must_use]
    pub fn instance(&self) -> Option<&InstanceId> {
        let addressed = self.input.as_ref().map(|input| &input.instance);
        self.about.as_ref().or(addressed)
    }
}

/// What is remembered of a key whose instance has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    pub generation: u32,
    pub ended: TimeMs,
    /// Until when it counts, where the saga said so; else as long as the store keeps what has ended.
    pub until: Option<TimeMs>,
    /// Log sequence under which the summary stands.
    pub summary: u64,
    pub phase: Phase,
    /// Hash of the id of the event or request that started the instance.
    pub start: u64,
}

/// An instance that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndedRow {
    pub instance: InstanceId,
    pub summary: Summary,
    /// Until when it is kept, where the saga said so; else as long as the store keeps what has ended.
    pub until: Option<TimeMs>,
}

/// What is remembered of an instance that an operator has deleted before its time, for as long as its tombstone stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeletedRow {
    /// The id of the request.
    pub request: String,
    pub by: String,
    pub reason: String,
    pub time: TimeMs,
    /// The archive is to have it first.
    pub waits: bool,
    /// By what repetitions are recognised: [`Record::forgotten`].
    pub known: Record,
}

/// By what the message at a position is known again: a sequence alone may mean another message after the stream has lost
/// its newest ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// When the message was stored.
    pub time: TimeMs,
    /// Checksum of its subject and payload; `None` where only its time is known, as at the end of a stream.
    pub content: Option<u32>,
}

impl Stamp {
    /// Of a message of which nothing is known but when it was stored.
    #[must_use]
    pub const fn at(time: TimeMs) -> Self {
        Self { time, content: None }
    }

    /// Whether `found`, which stands at the same sequence now, may be the same message.
    #[must_use]
    pub fn matches(&self, found: &Self) -> bool {
        let same_content = match (self.content, found.content) {
            (Some(kept), Some(found)) => kept == found,
            _ => true,
        };
        self.time == found.time && same_content
    }

    /// Says that `found` stands where `known` stood.
    #[must_use]
    pub fn mismatch(stream: &str, sequence: u64, known: &Self, found: &Self) -> String {
        if known.time == found.time {
            return format!(
                "message {sequence} of stream {stream} has another subject or payload than the one that was read there, \
                 though both were stored at {}: the stream lost its newest messages and has grown again",
                known.time
            );
        }
        format!(
            "message {sequence} of stream {stream} was stored at {}, the one that was read there at {}: the stream lost \
             its newest messages and has grown again",
            found.time, known.time
        )
    }
}

/// Name and creation time: a recreated stream of the same name is another stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamIdentity {
    pub name: String,
    /// Creation time in nanoseconds since the epoch, as the broker tells it.
    pub created_ns: i64,
}

/// Up to where a stream was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionRow {
    pub stream: StreamIdentity,
    pub sequence: u64,
    /// What stands there; `None` where nothing did.
    pub stamp: Option<Stamp>,
}

/// An operator's word on where a stream is to be read on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedRow {
    pub stream: SourceStream,
    pub time: TimeMs,
    /// The position before and after.
    pub from: u64,
    pub to: u64,
    /// Messages that the shard has not read and never will, both ends included.
    pub lost: Option<(u64, u64)>,
    pub reason: String,
}

/// Why a stream cannot be read on without loss, as its reader has found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaltRow {
    /// Messages are gone that were not read; otherwise it is another stream than the one that was read.
    pub is_gap: bool,
    /// The first of them, where it is known.
    pub lost_from: Option<u64>,
    pub message: String,
}

impl HaltRow {
    /// Reason code and sentence.
    #[must_use]
    pub fn reason(self) -> (&'static str, String) {
        let code = if self.is_gap {
            "stream.gap"
        } else {
            "stream.identity"
        };
        (code, self.message)
    }
}

/// One version of a saga, kept for as long as something refers to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedRow {
    pub saga: SagaName,
    /// The text of its file.
    pub source: String,
}

/// Where the schedule of a saga stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleRow {
    /// The expression and the zone by which `next` was found.
    pub cron: String,
    pub zone: String,
    /// Every planned time up to here has been started, put aside or skipped.
    pub handled: TimeMs,
    /// The next planned time; none where the saga has no schedule any more.
    pub next: Option<PlannedRow>,
    /// Runs whose end is awaited, oldest first.
    pub running: Vec<RunRow>,
    /// Planned times that wait for these to end, oldest first.
    pub queue: Vec<TimeMs>,
    pub started: u64,
    pub skipped: u64,
    pub last_started: Option<TimeMs>,
    pub last_skipped: Option<(TimeMs, Skip)>,
    /// An operator has said that nothing is to start.
    pub paused: bool,
    /// Who has, when and why. The last of the row: those of before have none.
    #[serde(deserialize_with = "or_none")]
    pub pause: Option<Paused>,
}

impl ScheduleRow {
    /// That of a schedule whose planned times count from `since`, before the first of them is planned.
    #[must_use]
    pub const fn new(since: TimeMs) -> Self {
        Self {
            cron: String::new(),
            zone: String::new(),
            handled: since,
            next: None,
            running: Vec::new(),
            queue: Vec::new(),
            started: 0,
            skipped: 0,
            last_started: None,
            last_skipped: None,
            paused: false,
            pause: None,
        }
    }
}

/// Who has an alias, and who had it; without anybody there is no row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliasRow {
    /// In the order in which they have registered it.
    pub owners: Vec<Owner>,
    /// Those that have given it up, for as long as a late registration of theirs may come; oldest first.
    pub released: Vec<Released>,
}

impl AliasRow {
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.released.is_empty()
    }

    /// Whether this owner, or a later generation of it, has given the alias up.
    #[must_use]
    pub fn was_released_by(&self, owner: &Owner) -> bool {
        let mut released = self.released.iter().map(|released| &released.owner);
        released.any(|known| known.key == owner.key && known.generation >= owner.generation)
    }

    /// The oldest owner that has ended and still hears what comes.
    #[must_use]
    pub fn ended_owner(&self) -> Option<usize> {
        let mut released = self.released.iter();
        released.find_map(|released| self.owners.iter().position(|owner| *owner == released.owner))
    }
}

/// The name of the timer at which it is forgotten that an alias was given up; no saga can give a timer such a name.
pub const RELEASED_TIMER: &str = "@released";

/// An owner that has given its alias up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    pub owner: Owner,
    /// When this is forgotten.
    pub until: TimeMs,
}

/// A planned time, and who set its timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRow {
    pub at: TimeMs,
    pub set_by: WorkRef,
}

/// A run under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRow {
    pub planned: TimeMs,
    /// The message that started it, and its row in the outbox.
    pub command: CommandId,
    pub row: WorkRef,
}

/// An input in whose application the process has died, or, where it is noted beside the rows, perhaps dies now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// Hash of the instance and the id of the input.
    pub input: [u8; 16],
    /// How often it was begun, this time included.
    pub attempts: u32,
}
