//! Buckets: entries that are replaced by compare-and-set, and what their names, keys and values may be.

use bytes::Bytes;

use super::BrokerError;

/// A place for entries, each of which has a key, a value and a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSpec {
    pub name: String,
    pub replicas: u8,
}

/// Longest name of a bucket, in bytes.
pub const BUCKET_NAME_BYTES_MAX: usize = 128;
/// Longest key of an entry, in bytes.
pub const ENTRY_KEY_BYTES_MAX: usize = 256;
/// Largest value of an entry, in bytes.
pub const ENTRY_VALUE_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Rises with every write of the bucket.
    pub revision: u64,
    pub value: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The entry has another revision than was expected, or is there, or is not.
    #[error("the entry is not as expected")]
    Conflict,
    /// The broker will not store this, now or later.
    #[error("refused: {0}")]
    Refused(String),
    /// The broker cannot store it now; it did not.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// It was sent, and neither an answer nor what was read back tells its outcome.
    #[error("no answer: {0}")]
    Unknown(String),
}

/// Says what is wrong with the name of a bucket: letters, digits, `-` and `_`.
///
/// # Errors
/// A sentence.
pub fn check_bucket_name(name: &str) -> Result<(), String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > BUCKET_NAME_BYTES_MAX || !name.bytes().all(is_legal) {
        return Err(format!(
            "{name:?} is not a name of a bucket: 1 to {BUCKET_NAME_BYTES_MAX} letters, digits, `-` and `_`"
        ));
    }
    Ok(())
}

/// Says what is wrong with the key of an entry: tokens of letters, digits and `-/_=`, with dots between them.
///
/// # Errors
/// A sentence.
pub fn check_entry_key(key: &str) -> Result<(), String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/' | b'_' | b'=');
    let is_token = |token: &str| !token.is_empty() && token.bytes().all(is_legal);
    if key.len() > ENTRY_KEY_BYTES_MAX || !key.split('.').all(is_token) {
        return Err(format!(
            "{key:?} is not a key of an entry: at most {ENTRY_KEY_BYTES_MAX} letters, digits, `-/_=` and single dots within"
        ));
    }
    Ok(())
}

/// Says what is wrong with the size of a value.
///
/// # Errors
/// A sentence.
pub fn check_entry_value(value: &[u8]) -> Result<(), String> {
    if value.len() > ENTRY_VALUE_BYTES_MAX {
        return Err(format!(
            "the value is {} bytes long, at most {ENTRY_VALUE_BYTES_MAX} are allowed",
            value.len()
        ));
    }
    Ok(())
}

pub(super) fn no_buckets(name: &str) -> BrokerError {
    BrokerError::Refused(format!("bucket {name}: this broker keeps no entries"))
}
