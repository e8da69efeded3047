//! The MDBX environment of the broker: opened, locked, its tables and its rows about streams and queues.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | name | a number |
//! | `streams` | name | [`StreamRow`] |
//! | `queues` | stream id, durable name | [`QueueRow`] |
//! | `entries` | bucket, `.`, key | [`EntryRow`] |
//! | `messages.<stream id>` | sequence | a row of [`super::record`] |
//! | `subjects.<stream id>` | subject | sequence of its newest message |
//!
//! Numbers in keys are big-endian. Rows about streams, queues and entries end with a CRC32C.
//! That a bucket exists is the number `bucket.<name>` of `meta`.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use crate::mdbx::opening::{self as mdbx, Bounds, File, Meaning, Refusal};
use crate::mdbx::raw::{Handle, Put, Read, Transaction, Write};

/// Rises with every change of the stored form that an older program could misread.
const FORMAT: u64 = 1;
const META: &str = "meta";
const STREAMS: &str = "streams";
const QUEUES: &str = "queues";
const ENTRIES: &str = "entries";
/// Besides those of the streams.
const TABLES: u64 = 4;
/// More than the threads that the runtime lends for blocking reads.
const READERS_MAX: u32 = 1_024;

pub(super) type Rw<'env> = Transaction<'env, Write>;
pub(super) type Ro<'env> = Transaction<'env, Read>;

/// Why the broker's folder cannot be opened. The codes are those of the runner's other stored data, whose pages
/// say what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{}: cannot use the folder: {source} [SR0208]", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("{}: in use by another process; stop it: a shard has one owner [SR0201]", path.display())]
    Locked { path: PathBuf },
    #[error("{}: cannot open the broker store: {source} [SR0208]", path.display())]
    Store { path: PathBuf, source: mdbx::Error },
    #[error(
        "{}: has format {found}, this binary reads up to {FORMAT}; use a newer saga-runner [SR0203]",
        path.display()
    )]
    Newer { path: PathBuf, found: u64 },
    #[error("{}: stored data is corrupt: {what} [SR0206]", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("cannot start the broker's thread: {0}")]
    Thread(io::Error),
}

/// What went wrong with the store while it was open.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error("broker store: {0}")]
    Mdbx(#[from] mdbx::Error),
    #[error("broker store: {0}")]
    Damaged(String),
}

impl StoreError {
    /// Whether room is all that is missing.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Mdbx(error) if mdbx::meaning(error) == Meaning::Full)
    }
}

/// A stream as the store describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamRow {
    pub id: u32,
    pub created_ns: i64,
    pub subjects: Vec<String>,
    pub message_bytes_max: u64,
    /// Newest sequence at the last trim; counts only while the stream is empty.
    pub last_sequence: u64,
}

/// A queue as the store describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueueRow {
    pub filters: Vec<String>,
    pub created_ms: i64,
    /// Everything up to here is answered for.
    pub floor: u64,
    /// Deliveries so far.
    pub consumer_sequence: u64,
}

/// An entry of a bucket as the store describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EntryRow {
    pub revision: u64,
    pub value: Vec<u8>,
}

/// The two tables of one stream, for one transaction.
pub(super) struct StreamTables {
    pub messages: Handle,
    pub subjects: Handle,
}

pub(super) struct Env {
    db: File,
}

impl Env {
    pub fn open(dir: &Path, settings: &Settings) -> Result<Self, OpenError> {
        let bounds = Bounds {
            bytes_max: settings.file_bytes_max,
            tables_max: TABLES + 2 * u64::from(settings.streams_max),
            readers_max: READERS_MAX,
        };
        let path = || dir.to_owned();
        let db = mdbx::open(dir, bounds).map_err(|refusal| match refusal {
            Refusal::Folder(source) => OpenError::Folder { path: path(), source },
            Refusal::Locked => OpenError::Locked { path: path() },
            Refusal::Store(source) => refused(dir, source),
        })?;
        let env = Self { db };
        let failed = |error: StoreError| match error {
            StoreError::Mdbx(source) => refused(dir, source),
            StoreError::Damaged(what) => OpenError::Damaged {
                path: dir.to_owned(),
                what,
            },
        };
        match env.prepare().map_err(failed)? {
            FORMAT => Ok(env),
            found => Err(OpenError::Newer {
                path: dir.to_owned(),
                found,
            }),
        }
    }

    /// Makes the tables that are always there and returns the format of the store.
    fn prepare(&self) -> Result<u64, StoreError> {
        let txn = self.write()?;
        for name in [META, STREAMS, QUEUES, ENTRIES] {
            txn.made_table(name)?;
        }
        let format = meta(&txn, "format")?.unwrap_or(FORMAT);
        if format != FORMAT {
            return Ok(format);
        }
        set_meta(&txn, "format", FORMAT)?;
        // Table handles opened here outlive the transaction only if it changes something.
        let starts = meta(&txn, "starts")?.unwrap_or(0);
        set_meta(&txn, "starts", starts.wrapping_add(1))?;
        for (_, row) in streams(&txn)? {
            create_stream_tables(&txn, row.id)?;
        }
        txn.commit()?;
        Ok(format)
    }

    pub fn write(&self) -> Result<Rw<'_>, StoreError> {
        Ok(Transaction::begin(&self.db)?)
    }

    pub fn read(&self) -> Result<Ro<'_>, StoreError> {
        Ok(Transaction::begin(&self.db)?)
    }
}

fn refused(dir: &Path, source: mdbx::Error) -> OpenError {
    let path = dir.to_owned();
    match mdbx::meaning(&source) {
        Meaning::Corrupt => OpenError::Damaged {
            path,
            what: source.to_string(),
        },
        Meaning::Full | Meaning::Other => OpenError::Store { path, source },
    }
}

pub(super) fn meta<K>(txn: &Transaction<'_, K>, name: &str) -> Result<Option<u64>, StoreError> {
    let Some(value) = txn.get(txn.table(META)?, name.as_bytes())? else {
        return Ok(None);
    };
    let value = value.as_slice().try_into();
    let value = value.map_err(|_| StoreError::Damaged(format!("number {name} has the wrong length")))?;
    Ok(Some(u64::from_be_bytes(value)))
}

pub(super) fn set_meta(txn: &Rw<'_>, name: &str, value: u64) -> Result<(), StoreError> {
    let table = txn.table(META)?;
    Ok(txn.put(table, name.as_bytes(), &value.to_be_bytes(), Put::Upsert)?)
}

pub(super) fn streams<K>(txn: &Transaction<'_, K>) -> Result<Vec<(String, StreamRow)>, StoreError> {
    let mut cursor = txn.cursor(txn.table(STREAMS)?)?;
    let mut all = Vec::new();
    let mut next = cursor.first()?;
    while let Some((name, value)) = next {
        let name = String::from_utf8_lossy(&name).into_owned();
        let row = open_seal(&value).ok_or_else(|| StoreError::Damaged(format!("row of stream {name}")))?;
        all.push((name, row));
        next = cursor.next()?;
    }
    Ok(all)
}

pub(super) fn put_stream(txn: &Rw<'_>, name: &str, row: &StreamRow) -> Result<(), StoreError> {
    let table = txn.table(STREAMS)?;
    Ok(txn.put(table, name.as_bytes(), &sealed(row), Put::Upsert)?)
}

/// Opens the tables of a stream, which exist since [`create_stream_tables`].
pub(super) fn stream_tables<K>(txn: &Transaction<'_, K>, id: u32) -> Result<StreamTables, StoreError> {
    Ok(StreamTables {
        messages: txn.table(&format!("messages.{id}"))?,
        subjects: txn.table(&format!("subjects.{id}"))?,
    })
}

pub(super) fn create_stream_tables(txn: &Rw<'_>, id: u32) -> Result<StreamTables, StoreError> {
    Ok(StreamTables {
        messages: txn.made_table(&format!("messages.{id}"))?,
        subjects: txn.made_table(&format!("subjects.{id}"))?,
    })
}

/// Removes a stream with its messages and queues. Its empty tables wait for the next stream of that id.
pub(super) fn delete_stream(txn: &Rw<'_>, name: &str, id: u32) -> Result<(), StoreError> {
    let tables = stream_tables(txn, id)?;
    txn.clear(tables.messages)?;
    txn.clear(tables.subjects)?;
    for (durable, _) in queues(txn, id)? {
        txn.delete(txn.table(QUEUES)?, &queue_key(id, &durable))?;
    }
    txn.delete(txn.table(STREAMS)?, name.as_bytes())?;
    Ok(())
}

pub(super) fn queues<K>(
    txn: &Transaction<'_, K>,
    stream: u32,
) -> Result<Vec<(String, QueueRow)>, StoreError> {
    let mut cursor = txn.cursor(txn.table(QUEUES)?)?;
    let mut all = Vec::new();
    let mut next = cursor.at_or_behind(&stream.to_be_bytes())?;
    while let Some((key, value)) = next {
        let Some(durable) = key.strip_prefix(&stream.to_be_bytes()) else {
            break;
        };
        let durable = String::from_utf8_lossy(durable).into_owned();
        let row = open_seal(&value).ok_or_else(|| StoreError::Damaged(format!("row of queue {durable}")))?;
        all.push((durable, row));
        next = cursor.next()?;
    }
    Ok(all)
}

pub(super) fn put_queue(txn: &Rw<'_>, stream: u32, durable: &str, row: &QueueRow) -> Result<(), StoreError> {
    let table = txn.table(QUEUES)?;
    Ok(txn.put(table, &queue_key(stream, durable), &sealed(row), Put::Upsert)?)
}

pub(super) fn entry<K>(
    txn: &Transaction<'_, K>,
    bucket: &str,
    key: &str,
) -> Result<Option<EntryRow>, StoreError> {
    let found = txn.get(txn.table(ENTRIES)?, &entry_key(bucket, key))?;
    found
        .map(|bytes| {
            open_seal(&bytes).ok_or_else(|| StoreError::Damaged(format!("entry {key} of bucket {bucket}")))
        })
        .transpose()
}

pub(super) fn put_entry(txn: &Rw<'_>, bucket: &str, key: &str, row: &EntryRow) -> Result<(), StoreError> {
    let table = txn.table(ENTRIES)?;
    Ok(txn.put(table, &entry_key(bucket, key), &sealed(row), Put::Upsert)?)
}

/// The name of a bucket has no dot.
fn entry_key(bucket: &str, key: &str) -> Vec<u8> {
    format!("{bucket}.{key}").into_bytes()
}

fn queue_key(stream: u32, durable: &str) -> Vec<u8> {
    let mut key = stream.to_be_bytes().to_vec();
    key.extend_from_slice(durable.as_bytes());
    key
}

pub(super) fn sequence_of(key: &[u8]) -> Result<u64, StoreError> {
    key.try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| StoreError::Damaged("a sequence has the wrong length".to_owned()))
}

fn sealed<T: Serialize>(row: &T) -> Vec<u8> {
    let mut bytes = postcard::to_stdvec(row).expect("rows hold nothing that cannot be written");
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn open_seal<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (row, crc) = bytes.split_last_chunk()?;
    if crc32c::crc32c(row) != u32::from_le_bytes(*crc) {
        return None;
    }
    postcard::from_bytes(row).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_opening_is_refused_as_locked() {
        let dir = tempfile::tempdir().unwrap();
        let _env = Env::open(dir.path(), &Settings::default()).unwrap();
        let second = Env::open(dir.path(), &Settings::default());
        assert!(matches!(second.err(), Some(OpenError::Locked { .. })));
    }

    #[test]
    fn a_newer_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::open(dir.path(), &Settings::default()).unwrap();
        let txn = env.write().unwrap();
        set_meta(&txn, "format", FORMAT + 1).unwrap();
        txn.commit().unwrap();
        drop(env);
        let newer = Env::open(dir.path(), &Settings::default());
        assert!(matches!(newer.err(), Some(OpenError::Newer { found: 2, .. })));
    }

    #[test]
    fn rows_about_streams_and_queues_carry_a_checksum() {
        let row = QueueRow {
            filters: vec!["a.>".to_owned(), "b".to_owned()],
            created_ms: 5,
            floor: 7,
            consumer_sequence: 9,
        };
        let bytes = sealed(&row);
        assert_eq!(open_seal(&bytes), Some(row));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open_seal::<QueueRow>(&damaged), None, "bit {bit}");
        }
    }
}
