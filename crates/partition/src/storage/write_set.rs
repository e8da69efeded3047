//! What one transaction has changed, as a value that another store can apply.
//!
//! It is captured where rows are written, so nothing that a partition writes passes beside it. Each change is encoded at once
//! into the bytes that are sent in the end: a row costs one copy and no allocation. A row that was written twice is in it
//! twice, and the later one wins, as it did in the transaction. Rows of [`LOCAL`] are left out, since they are about the
//! folder and not about the partition.

use std::cell::RefCell;

use serde::{Deserialize, Serialize};
use serde_bytes::Bytes;

use super::tables::{LOCAL, NAMES};
use super::{ReadRows, Row, StorageError, TableIndex, Take, WriteRows};

/// Format of an encoded write set.
const FORMAT: u8 = 1;
/// Bytes of the checksum at the end.
const CHECKSUM_BYTES: usize = 4;

/// One row that was put or deleted.
#[derive(Debug, Serialize, Deserialize)]
struct Change<'a> {
    table: u8,
    #[serde(borrow)]
    key: &'a Bytes,
    /// `None`: deleted.
    #[serde(borrow)]
    value: Option<&'a Bytes>,
}

/// The rows that a transaction has put or deleted, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteSet {
    /// The format byte, and the changes.
    bytes: Vec<u8>,
}

impl WriteSet {
    pub(super) fn new() -> Self {
        Self { bytes: vec![FORMAT] }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == 1
    }

    /// Bytes of the changes.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Number of changes.
    pub(super) fn changes_count(&self) -> u64 {
        self.changes().count() as u64
    }

    pub(super) fn note(&mut self, table: TableIndex, key: &[u8], value: Option<&[u8]>) {
        if table == LOCAL {
            return;
        }
        let table = u8::try_from(table).expect("there are fewer tables");
        let bytes = std::mem::take(&mut self.bytes);
        let change = Change {
            table,
            key: Bytes::new(key),
            value: value.map(Bytes::new),
        };
        self.bytes = postcard::to_extend(&change, bytes).expect("a row is plain data");
    }

    /// The changes, up to the first that cannot be read.
    fn changes(&self) -> impl Iterator<Item = Result<Change<'_>, postcard::Error>> {
        let mut rest = &self.bytes[1..];
        std::iter::from_fn(move || {
            let whole = std::mem::take(&mut rest);
            (!whole.is_empty()).then(|| {
                let (change, after) = postcard::take_from_bytes(whole)?;
                rest = after;
                Ok(change)
            })
        })
    }

    /// Makes the same changes in another store.
    ///
    /// # Errors
    /// [`StorageError`] of that store: the transaction is to be given up.
    pub fn apply(&self, rows: &dyn WriteRows) -> Result<(), StorageError> {
        for change in self.changes() {
            let Change { table, key, value } = change.map_err(|error| corrupt(&error.to_string()))?;
            let table = usize::from(table);
            match value {
                Some(value) => rows.put(table, key, value.to_vec())?,
                None => drop(rows.delete(table, key)?),
            }
        }
        Ok(())
    }

    /// A format byte, the changes, and a CRC-32C over both.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = self.bytes;
        let sum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// # Errors
    /// [`StorageError::Corrupt`] where it is damaged, or of a format that this binary does not know.
    pub fn decode(bytes: &[u8]) -> Result<Self, StorageError> {
        let at = bytes.len().checked_sub(CHECKSUM_BYTES);
        let (body, sum) = bytes.split_at(at.ok_or_else(|| corrupt("too short"))?);
        if crc32c::crc32c(body).to_le_bytes() != sum {
            return Err(corrupt("the checksum is wrong"));
        }
        if body.first() != Some(&FORMAT) {
            return Err(corrupt("its format is not known"));
        }
        let set = Self { bytes: body.to_vec() };
        for change in set.changes() {
            let table = usize::from(change.map_err(|error| corrupt(&error.to_string()))?.table);
            if table >= NAMES.len() || table == LOCAL {
                return Err(corrupt("it names a table that is not known"));
            }
        }
        Ok(set)
    }
}

fn corrupt(why: &str) -> StorageError {
    StorageError::Corrupt(format!("a write set: {why}"))
}

/// Rows of a transaction whose changes are noted.
pub struct Capture<'t> {
    rows: &'t dyn WriteRows,
    set: RefCell<WriteSet>,
}

impl<'t> Capture<'t> {
    #[must_use]
    pub fn new(rows: &'t dyn WriteRows) -> Self {
        Self {
            rows,
            set: RefCell::new(WriteSet::new()),
        }
    }

    /// What has changed.
    #[must_use]
    pub fn into_set(self) -> WriteSet {
        self.set.into_inner()
    }

    /// Notes the row and puts it; a row that is refused is not noted.
    fn noted(
        &self,
        table: TableIndex,
        key: &[u8],
        value: Vec<u8>,
        put: impl FnOnce(&dyn WriteRows, Vec<u8>) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let mut set = self.set.borrow_mut();
        let before = set.bytes.len();
        set.note(table, key, Some(&value));
        put(self.rows, value).inspect_err(|_| set.bytes.truncate(before))
    }
}

impl ReadRows for Capture<'_> {
    fn get(&self, table: TableIndex, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.rows.get(table, key)
    }

    fn count(&self, table: TableIndex) -> Result<u64, StorageError> {
        self.rows.count(table)
    }

    fn scan(&self, table: TableIndex, from: &[u8], take: &mut Take<'_>) -> Result<(), StorageError> {
        self.rows.scan(table, from, take)
    }

    fn first(&self, table: TableIndex, from: &[u8]) -> Result<Option<Row>, StorageError> {
        self.rows.first(table, from)
    }
}

impl WriteRows for Capture<'_> {
    fn put(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError> {
        self.noted(table, key, value, |rows, value| rows.put(table, key, value))
    }

    fn append(&self, table: TableIndex, key: &[u8], value: Vec<u8>) -> Result<(), StorageError> {
        self.noted(table, key, value, |rows, value| rows.append(table, key, value))
    }

    fn delete(&self, table: TableIndex, key: &[u8]) -> Result<bool, StorageError> {
        let existed = self.rows.delete(table, key)?;
        if existed {
            self.set.borrow_mut().note(table, key, None);
        }
        Ok(existed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::storage::Memory;
    use crate::storage::tables::{HISTORY, INSTANCES, META};

    /// Runs `work` in one transaction and gives what it has changed.
    fn captured(store: &Memory, work: impl FnOnce(&dyn WriteRows) -> Result<(), StorageError>) -> WriteSet {
        let done = store.write_rows::<_, StorageError>(|rows| {
            let capture = Capture::new(rows);
            work(&capture)?;
            Ok(capture.into_set())
        });
        done.expect("there is room")
    }

    fn small() -> WriteSet {
        let store = Memory::default();
        captured(&store, |rows| {
            rows.put(META, b"b", b"before".to_vec())?;
            rows.put(META, b"b", b"after".to_vec())?;
            rows.append(HISTORY, b"h", Vec::new())?;
            rows.put(INSTANCES, b"i", b"x".to_vec())?;
            rows.delete(INSTANCES, b"i")?;
            rows.delete(INSTANCES, b"was never there")?;
            rows.put(LOCAL, b"closed", Vec::new())
        })
    }

    #[test]
    fn the_encoding_is_frozen() {
        let encoded = small().encode();
        let frozen = [
            1, // The format.
            // Table, key, and that there is a value.
            9, 1, b'b', 1, 6, b'b', b'e', b'f', b'o', b'r', b'e', //
            9, 1, b'b', 1, 5, b'a', b'f', b't', b'e', b'r', // The same row again: this is what stays.
            2, 1, b'h', 1, 0, // A value of no bytes.
            0, 1, b'i', 1, 1, b'x', //
            0, 1, b'i', 0, // Deleted.
            18, 100, 84, 174, // The checksum.
        ];
        assert_eq!(encoded, frozen);
        assert_eq!(WriteSet::decode(&encoded).expect("whole"), small());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let encoded = small().encode();
        for at in 0..encoded.len() {
            for bit in 0..8 {
                let mut damaged = encoded.clone();
                damaged[at] ^= 1 << bit;
                assert!(WriteSet::decode(&damaged).is_err(), "byte {at}, bit {bit}");
            }
            assert!(WriteSet::decode(&encoded[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn an_unknown_format_or_table_is_refused() {
        let sealed = |mut bytes: Vec<u8>| {
            let sum = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
            WriteSet::decode(&bytes).expect_err("refused").to_string()
        };
        assert!(sealed(vec![FORMAT + 1]).contains("format"));
        for table in [LOCAL, NAMES.len()] {
            let table = u8::try_from(table).expect("small");
            assert!(
                sealed(vec![FORMAT, table, 1, b'k', 0]).contains("table"),
                "{table}"
            );
        }
    }

    /// A row that is put (with what length) or deleted.
    fn step() -> impl Strategy<Value = (usize, u8, Option<usize>)> {
        (0..NAMES.len(), 0_u8..8, proptest::option::of(0_usize..40))
    }

    proptest! {
        #[test]
        fn the_write_sets_of_a_store_applied_to_an_empty_one_give_the_same_rows_but_the_local_ones(
            transactions in vec(vec(step(), 0..12), 0..20)
        ) {
            let (store, other) = (Memory::default(), Memory::default());
            for (number, steps) in transactions.iter().enumerate() {
                let set = captured(&store, |rows| {
                    for (table, key, length) in steps {
                        match length {
                            Some(length) => rows.put(*table, &[*key], vec![u8::try_from(number).expect("few"); *length])?,
                            None => drop(rows.delete(*table, &[*key])?),
                        }
                    }
                    Ok(())
                });
                let set = WriteSet::decode(&set.encode()).expect("whole");
                other.write_rows(|rows| set.apply(rows)).expect("there is room");
            }
            let kept: Vec<_> = store.rows().into_iter().filter(|(table, _)| *table != LOCAL).collect();
            prop_assert_eq!(kept, other.rows());
        }
    }
}
