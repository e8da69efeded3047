//! The record by which the broker knows the owner of a shard.

use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::config::Manifest;
use crate::kernel::ids::TimeMs;
use crate::mdbx;
use crate::ports::broker::{Broker, BrokerError, PutError};
use crate::ports::randomness::Randomness;

/// A random name, written as 32 hex digits: of a folder, or of one claim to a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub [u8; 16]);

impl Token {
    pub fn draw(randomness: &dyn Randomness) -> Self {
        Self(randomness.draw().to_be_bytes())
    }
}

impl Serialize for Token {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16)
            .map(|number| Self(number.to_be_bytes()))
            .map_err(serde::de::Error::custom)
    }
}

fn said(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Name of this host, for people.
pub fn host() -> String {
    match said("/proc/sys/kernel/hostname").trim() {
        "" => "unknown".to_owned(),
        host => host.to_owned(),
    }
}

/// Where a folder is: the file of a shard on the disk of a running kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Name of the host, for people.
    pub host: String,
    /// Random id of the host's boot; empty where there is none. Hosts that were cloned have one name, but not one boot.
    pub boot: String,
    /// Device and inode of the file; none where it does not exist.
    pub file: Option<(u64, u64)>,
}

impl Place {
    /// This host, with the file of a shard in `dir`.
    pub fn of(dir: &Path) -> Self {
        Self {
            host: host(),
            boot: said("/proc/sys/kernel/random/boot_id").trim().to_owned(),
            file: mdbx::file(dir),
        }
    }

    /// Whether both are the same file on the same kernel, whose lock excludes a second process.
    pub fn is_same_file(&self, other: &Self) -> bool {
        !self.boot.is_empty() && self.boot == other.boot && self.file.is_some() && self.file == other.file
    }
}

/// Who owns a shard, and how far its state is for certain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerRecord {
    /// The folder.
    pub owner: Token,
    /// Rises with every claim.
    pub epoch: u64,
    /// The claim itself: two copies of a folder may claim the same epoch.
    pub claim: Token,
    pub place: Place,
    /// The owner has stopped, and nothing of it is under way.
    pub stopped: bool,
    /// When it was claimed, by the broker's clock as far as its host knew it.
    pub since: TimeMs,
    /// When it was renewed last.
    pub renewed: TimeMs,
    /// How long behind a renewal the owner sends, in milliseconds.
    pub sends_ms: u64,
    /// The owner's log reaches at least so far.
    pub log_floor: u64,
    /// Sequences of the source streams up to which the owner has taken everything, by `SourceStream::index`.
    pub positions: [u64; 3],
    /// The same or lower: up to there its readers do not need the streams either.
    pub unneeded: [u64; 3],
}

impl OwnerRecord {
    /// Whether this is the same claim, however often it was renewed.
    pub fn is_claim_of(&self, other: &Self) -> bool {
        (self.owner, self.epoch, self.claim) == (other.owner, other.epoch, other.claim)
    }

    /// Who it is, for people.
    pub fn whose(&self) -> String {
        let state = if self.stopped { "stopped" } else { "last renewed" };
        format!(
            "host {} since {} (epoch {}, {state} {})",
            self.place.host,
            self.since.rfc3339(),
            self.epoch,
            self.renewed.rfc3339()
        )
    }
}

/// The entries of the records of one cluster.
#[derive(Debug, Clone)]
pub struct Entries {
    pub bucket: String,
    cluster: String,
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error("bucket {bucket}, entry {key}: cannot read the owner record: {reason}")]
    Unreadable {
        bucket: String,
        key: String,
        reason: String,
    },
}

impl Entries {
    pub fn of(manifest: &Manifest) -> Self {
        Self {
            bucket: manifest.streams.cluster_bucket.clone(),
            cluster: manifest.cluster.clone(),
        }
    }

    pub fn key(&self, shard: u16) -> String {
        format!("{}.shard.{shard}", self.cluster)
    }

    /// The record of a shard and its revision.
    pub async fn read(
        &self,
        broker: &dyn Broker,
        shard: u16,
    ) -> Result<Option<(OwnerRecord, u64)>, ReadError> {
        let key = self.key(shard);
        let Some(entry) = broker.entry(&self.bucket, &key).await? else {
            return Ok(None);
        };
        match serde_json::from_slice(&entry.value) {
            Ok(record) => Ok(Some((record, entry.revision))),
            Err(error) => Err(ReadError::Unreadable {
                bucket: self.bucket.clone(),
                key,
                reason: error.to_string(),
            }),
        }
    }

    /// Replaces the record at this revision, or creates it, and gives the new revision.
    pub async fn write(
        &self,
        broker: &dyn Broker,
        shard: u16,
        record: &OwnerRecord,
        expected: Option<u64>,
    ) -> Result<u64, PutError> {
        let value = Bytes::from(serde_json::to_vec(record).expect("a record is plain data"));
        broker
            .put_entry(&self.bucket, &self.key(shard), value, expected)
            .await
    }
}
