//! How an MDBX file is opened, and what the library's errors mean: those of shards and of the embedded broker alike.
//!
//! Commits are durable before they are answered, and a file is open in one process only. What differs between the files
//! is in [`Bounds`].

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use libmdbx::{Database, DatabaseOptions, Mode, NoWriteMap, PageSize, ReadWriteOptions, SyncMode};

pub use libmdbx::Error;

/// An open file.
pub type File = Database<NoWriteMap>;

const PAGE_BYTES: usize = 4_096;
/// With larger steps a nearly full disk refuses to grow the file although there is room.
const GROWTH_BYTES: isize = 16 << 20;
const SHRINK_BYTES: isize = 64 << 20;

/// What differs between the files.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Size of the file, in bytes.
    pub bytes_max: u64,
    pub tables_max: u64,
    /// Transactions that read at the same time.
    pub readers_max: u32,
}

/// Why a file cannot be opened.
#[derive(Debug)]
pub enum Refusal {
    /// Its folder cannot be made.
    Folder(io::Error),
    /// Any process, this one included, has it open.
    Locked,
    Store(Error),
}

/// Opens or creates the file in `dir`, which this user alone may look into.
///
/// # Errors
/// [`Refusal`].
pub fn open(dir: &Path, bounds: Bounds) -> Result<File, Refusal> {
    const AGAIN: i32 = 11;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(Refusal::Folder)?;
    let bytes_max = isize::try_from(bounds.bytes_max).unwrap_or(isize::MAX);
    let options = DatabaseOptions {
        permissions: Some(0o600),
        max_readers: Some(bounds.readers_max),
        max_tables: Some(bounds.tables_max),
        page_size: Some(PageSize::Set(PAGE_BYTES)),
        exclusive: true,
        mode: Mode::ReadWrite(ReadWriteOptions {
            sync_mode: SyncMode::Durable,
            min_size: Some(GROWTH_BYTES.min(bytes_max)),
            max_size: Some(bytes_max),
            growth_step: Some(GROWTH_BYTES),
            shrink_threshold: Some(SHRINK_BYTES),
        }),
        ..DatabaseOptions::default()
    };
    Database::open_with_options(dir, options).map_err(|error| match error {
        // The lock file is held.
        Error::Busy | Error::Other(AGAIN) => Refusal::Locked,
        error => Refusal::Store(error),
    })
}

/// What an error of the library means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Room is all that is missing: of the file or of the disk.
    Full,
    /// What is stored cannot be trusted.
    Corrupt,
    Other,
}

#[must_use]
pub const fn meaning(error: &Error) -> Meaning {
    const NO_SPACE: i32 = 28;
    const QUOTA: i32 = 122;
    match error {
        Error::MapFull | Error::UnableExtendMapsize | Error::TxnFull | Error::Other(NO_SPACE | QUOTA) => {
            Meaning::Full
        }
        Error::Corrupted
        | Error::PageNotFound
        | Error::CursorFull
        | Error::Panic
        | Error::Problem
        | Error::Invalid
        | Error::VersionMismatch
        | Error::BadSign => Meaning::Corrupt,
        // Not ours: the library has more than fifty.
        _ => Meaning::Other,
    }
}
