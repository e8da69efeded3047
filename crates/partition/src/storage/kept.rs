//! What the history is about: the inputs as they were applied, and the work that they caused. Streams lose their messages long
//! before an instance is forgotten.

use bytes::Bytes;
use saga_runner_kernel::ids::CommandId;
use saga_runner_kernel::input::InputBody;
use saga_runner_kernel::work::{COMMAND, EFFECT, FACT, MESSAGE, START, WorkItem, WorkKind};
use serde::{Deserialize, Serialize};

use super::read::Reader;
use super::rows::{decode, encode};
use super::tables::{INPUTS, WORK};
use super::write::Batch;
use super::{ReadRows, StorageError, TableIndex, keys};

/// First byte of a row: what follows is the encoded input.
const PLAIN: u8 = 0;
/// The same: what follows is compressed by LZ4, behind its length in four bytes.
const LZ4: u8 = 1;
/// Largest row that is read back, in bytes before compression. Messages are far smaller; a row that claims more is corrupt.
const READ_MAX: usize = 64 << 20;

/// A work item as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptWork {
    pub id: CommandId,
    pub to: Addressee,
    pub path: String,
    pub attempt: u32,
    /// Half as long as its text.
    pub idempotency_key: [u8; 16],
    /// JSON, unless it was larger than what is kept.
    pub payload: Option<Bytes>,
}

/// Where kept work went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Addressee {
    Effect {
        name: String,
    },
    Command {
        name: String,
        aggregate_id: String,
    },
    Fact {
        name: String,
    },
    /// An instance of another saga that is started.
    Start {
        saga: String,
        key: String,
    },
    /// An instance of another saga.
    Message {
        saga: String,
        key: String,
    },
}

impl Addressee {
    /// `None` of work that no definition asks for, and of a copy of a result.
    fn of(kind: &WorkKind) -> Option<Self> {
        match kind {
            kind if kind.is_incidental() => None,
            WorkKind::Result { .. } | WorkKind::Cancel { .. } => None,
            WorkKind::Effect { effect, .. } => Some(Self::Effect {
                name: effect.as_str().to_owned(),
            }),
            WorkKind::Command {
                command_type,
                aggregate_id,
                ..
            } => Some(Self::Command {
                name: command_type.clone(),
                aggregate_id: aggregate_id.clone(),
            }),
            WorkKind::Fact { fact_type, .. } => Some(Self::Fact {
                name: fact_type.clone(),
            }),
            WorkKind::Saga {
                saga, key, message, ..
            } => {
                let (saga, key) = (saga.as_str().to_owned(), key.as_str().to_owned());
                Some(if message.starts() {
                    Self::Start { saga, key }
                } else {
                    Self::Message { saga, key }
                })
            }
        }
    }

    /// Kind and name as [`WorkKind::named`] has them, and the key of the instance or the id of the aggregate.
    #[must_use]
    pub fn named(&self) -> (&'static str, &str, Option<&str>) {
        match self {
            Self::Effect { name } => (EFFECT, name, None),
            Self::Command { name, aggregate_id } => (COMMAND, name, Some(aggregate_id)),
            Self::Fact { name } => (FACT, name, None),
            Self::Start { saga, key } => (START, saga, Some(key)),
            Self::Message { saga, key } => (MESSAGE, saga, Some(key)),
        }
    }
}

impl KeptWork {
    /// What is kept of an item; `None` of one that no definition asks for, and of a copy of a result.
    #[must_use]
    pub fn of(item: &WorkItem) -> Option<Self> {
        Some(Self {
            to: Addressee::of(&item.kind)?,
            id: item.command_id,
            path: item.path.clone(),
            attempt: item.attempt,
            idempotency_key: u128::from_str_radix(&item.idempotency_key, 16)
                .unwrap_or_default()
                .to_be_bytes(),
            payload: Some(Bytes::copy_from_slice(item.kind.payload())),
        })
    }

    /// 32 hex digits.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.idempotency_key))
    }
}

/// What a row of the history is about, as far as it was kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kept {
    pub input: Option<InputBody>,
    pub work: Vec<KeptWork>,
}

impl Batch<'_> {
    /// Keeps what the history row of this log sequence is about, unless it would take more than `max` bytes.
    pub fn put_input(&self, log_sequence: u64, body: &InputBody, max: u64) -> Result<(), StorageError> {
        let row = packed(&encode(body));
        if u64::try_from(row.len()).is_ok_and(|bytes| bytes <= max) {
            self.view.append(INPUTS, &keys::number(log_sequence), row)?;
        }
        Ok(())
    }

    /// Keeps the work that the input of this log sequence has caused, without what it carries if the row would take more than `max`
    /// bytes.
    pub fn put_work_of(
        &self,
        log_sequence: u64,
        mut work: Vec<KeptWork>,
        max: u64,
    ) -> Result<(), StorageError> {
        if work.is_empty() {
            return Ok(());
        }
        let mut row = packed(&encode(&work));
        if u64::try_from(row.len()).is_ok_and(|bytes| bytes > max) {
            for item in &mut work {
                item.payload = None;
            }
            row = packed(&encode(&work));
        }
        self.view.append(WORK, &keys::number(log_sequence), row)
    }

    /// Forgets what the history row of this log sequence is about.
    pub(super) fn delete_kept(&self, log_sequence: u64) -> Result<(), StorageError> {
        let key = keys::number(log_sequence);
        self.view.delete(INPUTS, &key)?;
        self.view.delete(WORK, &key).map(drop)
    }
}

impl Reader {
    /// What the history rows of these log sequences are about, as far as it was kept, in their order; fewer than are asked for where all
    /// together would take more than `bytes_max` bytes.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`].
    pub fn kept_with_history(
        &self,
        log_sequences: impl IntoIterator<Item = u64>,
        bytes_max: usize,
    ) -> Result<Vec<Kept>, StorageError> {
        let mut left = bytes_max;
        self.view(|view| {
            let mut found = Vec::new();
            for log_sequence in log_sequences {
                if left == 0 {
                    break;
                }
                let key = keys::number(log_sequence);
                let read = |table| read(view, table, &key);
                let (input, work) = (read(INPUTS)?, read(WORK)?);
                for plain in [&input, &work].into_iter().flatten() {
                    left = left.saturating_sub(plain.len());
                }
                let input = input.map(|plain| decode(&plain, "a kept input")).transpose()?;
                let work = work.map(|plain| decode(&plain, "kept work")).transpose()?;
                found.push(Kept {
                    input,
                    work: work.unwrap_or_default(),
                });
            }
            Ok(found)
        })
    }
}

fn read(view: &dyn ReadRows, table: TableIndex, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
    view.get(table, key)?.map(|row| unpacked(&row)).transpose()
}

fn packed(plain: &[u8]) -> Vec<u8> {
    let compressed = lz4_flex::block::compress_prepend_size(plain);
    let (kind, bytes) = if compressed.len() < plain.len() {
        (LZ4, &*compressed)
    } else {
        (PLAIN, plain)
    };
    let mut row = Vec::with_capacity(1 + bytes.len());
    row.push(kind);
    row.extend_from_slice(bytes);
    row
}

fn unpacked(row: &[u8]) -> Result<Vec<u8>, StorageError> {
    let corrupt = || StorageError::Corrupt("a row beside the history".to_owned());
    let (kind, bytes) = row.split_first().ok_or_else(corrupt)?;
    match *kind {
        PLAIN => Ok(bytes.to_vec()),
        LZ4 => {
            let (length, bytes) = lz4_flex::block::uncompressed_size(bytes).map_err(|_| corrupt())?;
            if length > READ_MAX {
                return Err(corrupt());
            }
            lz4_flex::block::decompress(bytes, length).map_err(|_| corrupt())
        }
        _ => Err(corrupt()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_unpacked_as_it_was_and_takes_a_byte_more_at_most() {
        let text = r#"{"sku":"tea-01","qty":2}"#.repeat(40);
        for plain in [&b""[..], b"a", text.as_bytes()] {
            let row = packed(plain);
            assert_eq!(unpacked(&row).expect("good"), plain);
            assert!(row.len() <= plain.len() + 1);
        }
        assert!(packed(text.as_bytes()).len() < text.len() / 4);
    }

    #[test]
    fn a_row_that_was_cut_off_or_claims_too_much_is_corrupt() {
        let row = packed("abcdefgh".repeat(50).as_bytes());
        assert!(unpacked(&[]).is_err());
        assert!(unpacked(&row[..row.len() - 3]).is_err());
        assert!(unpacked(&[LZ4, 255, 255, 255, 255, 0]).is_err());
        assert!(unpacked(&[9, 1]).is_err());
    }
}
