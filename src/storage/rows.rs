//! Rows that are not kernel values, and the encoding of all of them: a format byte, then postcard.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::StorageError;
use crate::kernel::ids::{DefinitionHash, InstanceId, TenantId, TimeMs};
use crate::kernel::input::{Input, SourceStream};
use crate::kernel::patch::{Note, Outcome};
use crate::kernel::record::Summary;

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

/// One input of an instance, in short: the payload stays in its stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryRow {
    pub instance: InstanceId,
    pub input_id: String,
    pub kind: String,
    pub time: TimeMs,
    pub source: Option<(SourceStream, u64)>,
    pub outcome: Outcome,
    pub notes: Vec<Note>,
    /// Log sequence of the row before this one of the same instance.
    pub previous: Option<u64>,
}

/// A timer that is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerTarget {
    pub instance: InstanceId,
    pub name: String,
}

/// Why an input waits in the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitReason {
    /// The state of the machine defers it.
    Deferred,
    /// An earlier input of the instance is in the dead letters.
    Parked,
}

/// An input that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboxRow {
    pub reason: WaitReason,
    pub input: Input,
}

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
}

/// What is remembered of a key whose instance has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    pub generation: u32,
    pub ended: TimeMs,
    /// Log sequence under which the summary stands.
    pub summary: u64,
}

/// An instance that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndedRow {
    pub instance: InstanceId,
    pub summary: Summary,
}

/// Where a stream's lane stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionRow {
    pub stream_name: String,
    pub stream_created_ns: i64,
    pub sequence: u64,
}

/// The definitions that a shard works under.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveDefinitions {
    /// Rises with every change.
    pub revision: u64,
    pub sagas: BTreeMap<String, ActiveSaga>,
}

/// One active saga.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveSaga {
    pub hash: DefinitionHash,
    /// Positions of the streams when the saga became active: it gets what came after them.
    pub since: [u64; 3],
}

/// An input whose application was begun and perhaps never finished: it survives the death of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    pub stream: SourceStream,
    pub sequence: u64,
    /// Index within its delivery.
    pub index: u32,
    pub attempts: u32,
}
