//! The input that is being applied, in a small file beside the rows. It is written without waiting for the disk: the pages of the
//! operating system outlive the process, which is all that is asked of it.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use saga_runner_partition::storage::StorageError;
use saga_runner_partition::storage::rows::Suspect;

/// The file, in the folder of the shard.
pub const FILE: &str = "applying";

/// Bytes of the note: the hash of the input and how often it was begun, little endian.
const NOTE_BYTES: usize = 20;
/// Bytes of the file: a note and the CRC-32C over it, or zeros.
const BYTES: usize = NOTE_BYTES + 4;

#[derive(Debug)]
pub struct Applying(File);

impl Applying {
    /// Opens or creates the file in `dir`, which this user alone may read. It is as long as it ever gets, so that later notes need no
    /// room.
    pub fn open(dir: &Path) -> Result<Self, StorageError> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join(FILE))
            .and_then(|file| {
                let is_whole = file.metadata()?.len() == BYTES as u64;
                if !is_whole {
                    file.set_len(0)?;
                    file.write_all_at(&[0; BYTES], 0)?;
                }
                Ok(file)
            });
        opened.map(Self).map_err(|error| refused(&error))
    }

    pub fn note(&self, applying: Option<Suspect>) -> Result<(), StorageError> {
        let bytes = applying.map_or([0; BYTES], encoded);
        self.0.write_all_at(&bytes, 0).map_err(|error| refused(&error))
    }

    /// What was noted last, if it is whole.
    pub fn read(&self) -> Option<Suspect> {
        let mut bytes = [0; BYTES];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        decoded(&bytes)
    }
}

fn encoded(suspect: Suspect) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..16].copy_from_slice(&suspect.input);
    bytes[16..NOTE_BYTES].copy_from_slice(&suspect.attempts.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..NOTE_BYTES]);
    bytes[NOTE_BYTES..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn decoded(bytes: &[u8; BYTES]) -> Option<Suspect> {
    let (input, rest) = bytes.split_first_chunk()?;
    let attempts = u32::from_le_bytes(*rest.first_chunk()?);
    let suspect = Suspect {
        input: *input,
        attempts,
    };
    // Zeros have another checksum.
    (encoded(suspect) == *bytes).then_some(suspect)
}

fn refused(error: &std::io::Error) -> StorageError {
    let message = format!("the file {FILE}: {error}");
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StorageError::Full(message),
        _ => StorageError::Failed(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUSPECT: Suspect = Suspect {
        input: [7; 16],
        attempts: 2,
    };

    #[test]
    fn a_note_is_there_after_reopening_until_it_is_removed() {
        let dir = tempfile::tempdir().expect("folder");
        let open = || Applying::open(dir.path()).expect("opens");
        assert_eq!(open().read(), None);
        open().note(Some(SUSPECT)).expect("noted");
        assert_eq!(open().read(), Some(SUSPECT));
        open().note(None).expect("noted");
        assert_eq!(open().read(), None);
    }

    #[test]
    fn a_note_that_is_damaged_cut_off_or_foreign_says_nothing() {
        let dir = tempfile::tempdir().expect("folder");
        let whole = encoded(SUSPECT);
        let mut flipped = whole;
        flipped[3] ^= 4;
        let longer = [whole.as_slice(), b"more"].concat();
        for damaged in [&flipped[..], &whole[..9], b"", &longer] {
            std::fs::write(dir.path().join(FILE), damaged).expect("written");
            let applying = Applying::open(dir.path()).expect("opens");
            assert_eq!(applying.read(), None, "{damaged:?}");
            applying.note(Some(SUSPECT)).expect("noted");
            assert_eq!(applying.read(), Some(SUSPECT));
        }
    }
}
