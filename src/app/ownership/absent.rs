//! What the owner records tell of shards that are not open in this process.

use std::sync::Arc;

use super::record::{Entries, OwnerRecord, ReadError};
use crate::config::Manifest;
use crate::ports::broker::Broker;

/// The records of shards that are somebody else's, or nobody's.
pub struct Absent {
    broker: Arc<dyn Broker>,
    entries: Entries,
}

/// Why it is not known where a shard stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// The broker could not be asked.
    Unanswered(String),
    /// There is no record, or none that can be read.
    NoRecord(String),
}

impl Absent {
    pub fn new(broker: Arc<dyn Broker>, manifest: &Manifest) -> Self {
        Self {
            broker,
            entries: Entries::of(manifest),
        }
    }

    /// Sequences of the source streams up to which the shard has taken everything for certain, by `SourceStream::index`.
    ///
    /// # Errors
    /// [`Unknown`], where nothing may be taken for read.
    pub async fn positions(&self, shard: u16) -> Result<[u64; 3], Unknown> {
        Ok(self.record(shard).await?.positions)
    }

    /// Those up to which its owner's readers do not need the streams either.
    ///
    /// # Errors
    /// [`Unknown`], as above.
    pub async fn unneeded(&self, shard: u16) -> Result<[u64; 3], Unknown> {
        Ok(self.record(shard).await?.unneeded)
    }

    async fn record(&self, shard: u16) -> Result<OwnerRecord, Unknown> {
        match self.entries.read(&*self.broker, shard).await {
            Ok(Some((record, _))) => Ok(record),
            Ok(None) => Err(Unknown::NoRecord("it has no owner record".to_owned())),
            Err(ReadError::Broker(error)) => Err(Unknown::Unanswered(error.to_string())),
            Err(error @ ReadError::Unreadable { .. }) => Err(Unknown::NoRecord(error.to_string())),
        }
    }

    /// Who has the shard, for people.
    pub async fn owner(&self, shard: u16) -> String {
        match self.entries.read(&*self.broker, shard).await {
            Ok(Some((record, _))) => format!("its owner is {}", record.whose()),
            Ok(None) => "it has no owner".to_owned(),
            Err(error) => format!("its owner is not known: {error}"),
        }
    }
}
