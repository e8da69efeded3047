//! All rows of a partition as one file, and back.
//!
//! ```text
//! SAGABKP1 │ header │ write set │ … │ write set │ 0 │ number of rows │ BLAKE3 of everything before
//! ```
//!
//! Header and write sets are frames: their length as a `u32`, then the bytes; numbers are little-endian. The header is the caller's.
//! A row is a put in a write set, so restoring is what a replica does, and a file can be restored to any store. Rows about the
//! folder ([`LOCAL`]) are not in it.

use std::io::{self, Read, Write};

use super::tables::{LOCAL, NAMES};
use super::{ReadRows, StorageError, WriteSet};

/// Begins each file; the last digit is the format.
const MAGIC: &[u8; 8] = b"SAGABKP1";
/// A write set is closed when it has this many bytes. A row may be larger.
const SET_BYTES: usize = 1 << 20;

/// Why a backup cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not one of these, is cut off, or is damaged.
    #[error("not a whole backup: {0} [SR0211]")]
    Damaged(String),
}

/// Writes all rows of one view; gives their number.
///
/// # Errors
/// [`BackupError::Io`] of `out`, [`BackupError::Storage`] where a row is damaged.
pub fn write(view: &dyn ReadRows, header: &[u8], out: &mut dyn Write) -> Result<u64, BackupError> {
    let mut out = Hashed::new(out);
    out.write(MAGIC)?;
    out.frame(header)?;
    let (mut set, mut rows) = (WriteSet::new(), 0_u64);
    for table in (0..NAMES.len()).filter(|table| *table != LOCAL) {
        let mut failed = None;
        view.scan(table, &[], &mut |key, value| {
            set.note(table, key, Some(&value));
            rows += 1;
            if set.len() >= SET_BYTES {
                let full = std::mem::replace(&mut set, WriteSet::new());
                failed = out.frame(&full.encode()).err();
            }
            Ok(failed.is_none())
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
    }
    if !set.is_empty() {
        out.frame(&set.encode())?;
    }
    out.write(&0_u32.to_le_bytes())?;
    out.write(&rows.to_le_bytes())?;
    out.end()?;
    Ok(rows)
}

/// A backup that is being read.
pub struct BackupReader<'i> {
    input: Checked<'i>,
    header: Vec<u8>,
    rows: u64,
}

impl<'i> BackupReader<'i> {
    /// Begins to read.
    ///
    /// # Errors
    /// [`BackupError::Damaged`] where this is no backup, or of a newer format; [`BackupError::Io`].
    pub fn begin(input: &'i mut dyn Read) -> Result<Self, BackupError> {
        let mut input = Checked::new(input);
        let magic = input.bytes(MAGIC.len())?;
        if magic != MAGIC {
            return Err(damaged(if magic.starts_with(&MAGIC[..7]) {
                "its format is not known; use a newer saga-runner"
            } else {
                "the file is not a backup of a shard"
            }));
        }
        let header = input.frame()?.ok_or_else(|| damaged("it has no header"))?;
        Ok(Self {
            input,
            header,
            rows: 0,
        })
    }

    /// What its writer has put in front. It is proved with the end of the file.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Rows that were read until now.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// The next write set; none where the file is whole and at its end. What came before counts for nothing until then.
    ///
    /// # Errors
    /// [`BackupError::Damaged`], [`BackupError::Io`].
    pub fn next_set(&mut self) -> Result<Option<WriteSet>, BackupError> {
        let Some(frame) = self.input.frame()? else {
            self.input.end(self.rows)?;
            return Ok(None);
        };
        let set = WriteSet::decode(&frame).map_err(|error| BackupError::Damaged(error.to_string()))?;
        self.rows += set.changes_count();
        Ok(Some(set))
    }
}

fn damaged(why: &str) -> BackupError {
    BackupError::Damaged(why.to_owned())
}

/// Writes, and hashes what it writes.
struct Hashed<'o> {
    out: &'o mut dyn Write,
    hash: blake3::Hasher,
}

impl<'o> Hashed<'o> {
    fn new(out: &'o mut dyn Write) -> Self {
        Self {
            out,
            hash: blake3::Hasher::new(),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }

    fn frame(&mut self, bytes: &[u8]) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "a row of more than 4 GiB");
        let length = u32::try_from(bytes.len()).map_err(too_long)?;
        self.write(&length.to_le_bytes())?;
        self.write(bytes)
    }

    fn end(self) -> io::Result<()> {
        self.out.write_all(self.hash.finalize().as_bytes())?;
        self.out.flush()
    }
}

/// Reads, and hashes what it reads.
struct Checked<'i> {
    input: &'i mut dyn Read,
    hash: blake3::Hasher,
}

impl<'i> Checked<'i> {
    fn new(input: &'i mut dyn Read) -> Self {
        Self {
            input,
            hash: blake3::Hasher::new(),
        }
    }

    /// Exactly so many bytes. No more memory than there are bytes, whatever a damaged length says.
    fn bytes(&mut self, length: usize) -> Result<Vec<u8>, BackupError> {
        let mut bytes = Vec::new();
        let found = Read::take(&mut *self.input, length as u64).read_to_end(&mut bytes)?;
        if found < length {
            return Err(damaged("it is cut off"));
        }
        self.hash.update(&bytes);
        Ok(bytes)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], BackupError> {
        let bytes = self.bytes(N)?;
        bytes.try_into().map_err(|_| damaged("it is cut off"))
    }

    /// `None` at the end of the write sets.
    fn frame(&mut self) -> Result<Option<Vec<u8>>, BackupError> {
        match u32::from_le_bytes(self.number()?) {
            0 => Ok(None),
            length => self.bytes(length as usize).map(Some),
        }
    }

    fn end(&mut self, rows: u64) -> Result<(), BackupError> {
        let expected = u64::from_le_bytes(self.number()?);
        let hash = self.hash.finalize();
        if self.number::<{ blake3::OUT_LEN }>()? != *hash.as_bytes() {
            return Err(damaged("the checksum is wrong"));
        }
        if expected != rows {
            return Err(damaged("rows are missing"));
        }
        if self.input.read(&mut [0])? > 0 {
            return Err(damaged("something follows its end"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::storage::tables::{HISTORY, INSTANCES, META};
    use crate::storage::{Memory, Row, Snapshots as _, TableIndex};

    fn written(store: &Memory) -> Vec<u8> {
        let mut file = Vec::new();
        store
            .read(&mut |view| {
                write(view, b"head", &mut file).expect("written");
                Ok(())
            })
            .expect("a view");
        file
    }

    /// The rows of a file, in an empty store.
    fn restored(file: &[u8]) -> Result<Vec<(TableIndex, Row)>, BackupError> {
        let store = Memory::default();
        let mut input = file;
        let mut reading = BackupReader::begin(&mut input)?;
        assert_eq!(reading.header(), b"head");
        while let Some(set) = reading.next_set()? {
            store.write_rows(|rows| set.apply(rows))?;
        }
        assert_eq!(reading.rows(), store.rows().len() as u64);
        Ok(store.rows())
    }

    fn store(rows: &[(TableIndex, u16, usize)]) -> Memory {
        let store = Memory::default();
        let put = store.write_rows::<_, StorageError>(|view| {
            for (table, key, bytes) in rows {
                view.put(*table, &key.to_be_bytes(), vec![7; *bytes])?;
            }
            Ok(())
        });
        put.expect("there is room");
        store
    }

    #[test]
    fn the_format_is_frozen() {
        let file = written(&store(&[(META, 1, 1), (LOCAL, 1, 1)]));
        let (body, hash) = file.split_at(file.len() - blake3::OUT_LEN);
        assert_eq!(blake3::hash(body).as_bytes(), hash);
        let mut expected = b"SAGABKP1\x04\0\0\0head\x0b\0\0\0".to_vec();
        let mut set = vec![1, 9, 2, 0, 1, 1, 1, 7];
        // The length of the set counts its checksum.
        expected[16] = u8::try_from(set.len() + 4).expect("short");
        let sum = crc32c::crc32c(&set);
        set.extend_from_slice(&sum.to_le_bytes());
        expected.extend_from_slice(&set);
        expected.extend_from_slice(&[0; 4]);
        expected.extend_from_slice(&1_u64.to_le_bytes());
        assert_eq!(body, expected);
    }

    #[test]
    fn every_flipped_bit_every_cut_and_every_addition_is_noticed() {
        let file = written(&store(&[(INSTANCES, 1, 3), (HISTORY, 2, 0)]));
        let whole = |mut file: &[u8]| {
            let mut reading = BackupReader::begin(&mut file)?;
            while reading.next_set()?.is_some() {}
            Ok::<_, BackupError>(())
        };
        let refused = |file: &[u8]| whole(file).is_err();
        assert!(!refused(&file));
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut damaged = file.clone();
                damaged[at] ^= 1 << bit;
                assert!(refused(&damaged), "byte {at}, bit {bit}");
            }
            assert!(refused(&file[..at]), "cut at {at}");
        }
        assert!(refused(&[&file[..], &[0]].concat()));
    }

    #[test]
    fn a_store_of_several_write_sets_comes_back_whole() {
        let rows: Vec<_> = (0..40).map(|n| (INSTANCES, n, 100_000)).collect();
        let store = store(&rows);
        let file = written(&store);
        assert!(file.len() > 3 * SET_BYTES);
        assert_eq!(restored(&file).expect("whole"), store.rows());
    }

    proptest! {
        #[test]
        fn a_backup_restores_all_rows_but_the_local_ones(
            rows in vec((0..NAMES.len(), 0_u16..50, 0_usize..40), 0..60)
        ) {
            let store = store(&rows);
            let kept: Vec<_> = store.rows().into_iter().filter(|(table, _)| *table != LOCAL).collect();
            prop_assert_eq!(restored(&written(&store)).expect("whole"), kept);
        }
    }
}
