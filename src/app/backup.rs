//! A shard as one file, written while the shard goes on, and restored to an empty folder.
//!
//! What is restored is older than what the shard did since. So it is adopted when it is restored: it sends nothing before its streams
//! are read to their ends and an operator releases it, also where the broker has lost the record of the owner. It has a folder's
//! name of its own, so a record of the owner has to be given up before it is claimed.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use jiff::Timestamp;
use saga_runner_partition::machine::held::adopt;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::exit::{self, Failure};
use super::node::Node;
use super::randomness::SystemRandomness;
use super::shards::{self, Shown};
use super::{StartError, SystemClock};
use crate::config::Manifest;
use crate::kernel::ids::ClusterId;
use crate::mdbx;
use crate::ports::clock::Clock;
use crate::ports::control::{Backup, ControlError};
use crate::ports::randomness::Randomness as _;
use crate::shard::ShardState;
use crate::storage::backup::{BackupError, BackupReader};
use crate::storage::read::Progress;
use crate::storage::rows::ROW_FORMAT;
use crate::storage::{Decided, HeldRow, OpenOptions, Ownership, StorageError, Store};
use crate::tasks::Task;

/// Bytes that are sent at a time, and how many such chunks wait for a client.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS: usize = 4;
/// How often whoever waits for a client looks at whether it is still to wait.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What a backup says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub cluster: String,
    pub cluster_id: ClusterId,
    pub shard: u16,
    pub shards: u16,
    /// Epoch of the owner.
    pub epoch: u64,
    pub log_sequence: u64,
    /// Sequences of the source streams, by `SourceStream::index`.
    pub positions: [u64; 3],
    /// RFC 3339.
    pub taken: String,
    pub row_format: u8,
    /// Version of saga-runner.
    pub version: String,
}

/// Begins to write a backup of an open shard.
pub(super) fn take(node: &Node, shown: &Shown, epoch: u64) -> Result<Backup, ControlError> {
    let running = node.running_or_unavailable()?;
    let place = Arc::clone(&running.backups).try_acquire_owned();
    let place = place.map_err(|_| {
        ControlError::Unavailable(
            "another backup is being taken in this process; retry when it has ended".to_owned(),
        )
    })?;
    let Some(cluster_id) = running.cluster else {
        return Err(ControlError::Unavailable("this process runs no sagas".to_owned()));
    };
    let now = node.clock.now();
    let taken = Timestamp::from_millisecond(now.0).unwrap_or(Timestamp::UNIX_EPOCH);
    let (shard, manifest) = (shown.index, &node.manifest);
    let header = Header {
        cluster: manifest.cluster.clone(),
        cluster_id,
        shard,
        shards: manifest.shards,
        epoch,
        log_sequence: 0,
        positions: [0; 3],
        taken: now.rfc3339(),
        row_format: ROW_FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let (sender, mut receiver) = mpsc::channel(CHUNKS);
    let (drain, status) = (node.drain.clone(), Arc::clone(&shown.status));
    let mut out = Chunks {
        sender: sender.clone(),
        chunk: Vec::with_capacity(CHUNK_BYTES),
        bytes: 0,
        runtime: Handle::current(),
        is_closing: Box::new(move || drain.is_cancelled() || status.state() == ShardState::Stopped),
        clock: Arc::clone(&node.clock),
        until: node.clock.monotonic() + manifest.http.backup_max.duration(),
        _place: place,
    };
    let (reader, tasks) = (shown.reader.clone(), node.tasks.clone());
    let work = move || {
        let rows = reader.backup(|progress| header.at(progress).encoded(), &mut out);
        rows.map(|rows| (rows, out.bytes))
    };
    drop(node.tasks.once(Task::Backup, async move {
        let failed = match tasks.blocking(work).await {
            Ok(Ok((rows, bytes))) => {
                tracing::info!(shard, rows, bytes, "backup was taken");
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error,
        };
        tracing::warn!(shard, error = failed, "backup was not taken");
        // The client is gone, or learns that the file is worth nothing.
        let _gone = sender.send(Err(io::Error::other(failed))).await;
    }));
    let stamp = taken.strftime("%Y%m%dT%H%M%SZ");
    Ok(Backup {
        name: format!("{}-shard-{shard:04}-{stamp}.backup", manifest.cluster),
        chunks: futures::stream::poll_fn(move |context| receiver.poll_recv(context)).boxed(),
    })
}

impl Header {
    fn at(mut self, progress: Progress) -> Self {
        self.log_sequence = progress.log_sequence;
        self.positions = progress.positions;
        self
    }

    fn encoded(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }
}

/// Sends what is written to a client, as long as there is somebody who takes it in time, and the shard is not to be closed.
struct Chunks {
    sender: mpsc::Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
    bytes: u64,
    runtime: Handle,
    /// Whether the shard, or the process, is to be closed.
    is_closing: Box<dyn Fn() -> bool + Send>,
    clock: Arc<dyn Clock>,
    /// On the monotonic clock: the view that is being written makes the file of the shard grow.
    until: Duration,
    _place: OwnedSemaphorePermit,
}

impl Chunks {
    fn send(&mut self) -> io::Result<()> {
        let mut chunk = Some(Bytes::from(std::mem::take(&mut self.chunk)));
        while let Some(bytes) = chunk.take() {
            if (self.is_closing)() {
                return Err(io::Error::other("the shard is being closed"));
            }
            if self.clock.monotonic() > self.until {
                return Err(io::Error::other("it took longer than http.backup_max"));
            }
            let free = tokio::time::timeout(LOOK_EVERY, self.sender.reserve());
            match self.runtime.block_on(free) {
                Ok(Ok(free)) => {
                    self.bytes += bytes.len() as u64;
                    free.send(Ok(bytes));
                }
                Ok(Err(_)) => return Err(io::Error::other("the client is gone")),
                Err(_) => chunk = Some(bytes),
            }
        }
        Ok(())
    }
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.send()
    }
}

/// Reads a backup to its end without restoring it; gives its header and the number of rows.
///
/// # Errors
/// [`BackupError`].
pub fn inspect(file: &mut dyn Read) -> Result<(Header, u64), BackupError> {
    let mut reading = BackupReader::begin(file)?;
    let header = read_header(reading.header())?;
    while reading.next_set()?.is_some() {}
    Ok((header, reading.rows()))
}

fn read_header(bytes: &[u8]) -> Result<Header, BackupError> {
    let header: Header = serde_json::from_slice(bytes)
        .map_err(|error| BackupError::Damaged(format!("its header: {error}")))?;
    if header.shard >= header.shards {
        return Err(BackupError::Damaged(format!(
            "its header: shard {} of {}",
            header.shard, header.shards
        )));
    }
    if header.row_format > ROW_FORMAT {
        return Err(BackupError::Damaged(format!(
            "its rows have format {}, this binary reads up to {ROW_FORMAT}; use a newer saga-runner",
            header.row_format
        )));
    }
    Ok(header)
}

/// Why nothing was restored. There is no folder of the shard then.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("{}: the shard has a folder already; move it away to restore the backup", .0.display())]
    Exists(PathBuf),
    #[error("{}: {error}", path.display())]
    Folder { path: PathBuf, error: io::Error },
}

impl From<StorageError> for RestoreError {
    fn from(error: StorageError) -> Self {
        Self::Backup(error.into())
    }
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Self {
        let code = match error {
            RestoreError::Start(error) => return error.into(),
            RestoreError::Backup(BackupError::Damaged(_) | BackupError::Io(_)) => exit::NO_INPUT,
            RestoreError::Backup(BackupError::Storage(_)) => exit::CONFIG,
            RestoreError::Exists(_) | RestoreError::Folder { .. } => exit::CANNOT_CREATE,
        };
        Self::new(code, error)
    }
}

/// Restores a backup to the folder of its shard, which must not exist; gives its header and the number of rows. `tell` hears how many
/// rows there are already.
///
/// # Errors
/// [`RestoreError`]: nothing is restored.
pub fn restore(
    manifest: &Manifest,
    file: &mut dyn Read,
    reason: &str,
    tell: &mut dyn FnMut(u64),
) -> Result<(Header, u64), RestoreError> {
    let mut reading = BackupReader::begin(file)?;
    let restoring = Restoring::begin(manifest, read_header(reading.header())?)?;
    while let Some(set) = reading.next_set()? {
        restoring.store.apply(&set)?;
        tell(reading.rows());
    }
    Ok((restoring.end(manifest, reason)?, reading.rows()))
}

/// A folder that is not that of the shard yet.
struct Restoring {
    header: Header,
    store: Store,
    folder: Unfinished,
}

/// Is removed unless it was moved to its place.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // What is left of it is in nobody's way: the next restoration removes it.
        let _removed = fs::remove_dir_all(&self.0);
    }
}

impl Restoring {
    fn begin(manifest: &Manifest, header: Header) -> Result<Self, RestoreError> {
        if (&header.cluster, header.shards) != (&manifest.cluster, manifest.shards) {
            return Err(StartError::Foreign(format!(
                "the backup is of cluster {:?} with {} shards, the manifest of {:?} with {}",
                header.cluster, header.shards, manifest.cluster, manifest.shards
            ))
            .into());
        }
        if let Some(known) = shards::known(manifest)?.filter(|known| known.id != header.cluster_id) {
            return Err(StartError::Identity(format!(
                "the backup is of cluster {} ({}), {} of {}",
                header.cluster,
                header.cluster_id,
                manifest.data_dir.display(),
                known.id
            ))
            .into());
        }
        let target = shards::dir(manifest, header.shard);
        if target.exists() {
            return Err(RestoreError::Exists(target));
        }
        let folder = target.with_extension("restoring");
        let options = OpenOptions {
            cluster: header.cluster.clone(),
            cluster_id: header.cluster_id,
            shard: header.shard,
            shards: header.shards,
            create: true,
        };
        if folder.exists() {
            // Another restoration is under way, or one was killed.
            drop(mdbx::open(&folder, &manifest.storage, &options)?);
            let path = folder.clone();
            fs::remove_dir_all(&folder).map_err(|error| RestoreError::Folder { path, error })?;
        }
        let store = mdbx::open(&folder, &manifest.storage, &options)?;
        Ok(Self {
            header,
            store,
            folder: Unfinished(folder),
        })
    }

    fn end(self, manifest: &Manifest, reason: &str) -> Result<Header, RestoreError> {
        let Self {
            header,
            store,
            folder,
        } = self;
        let held = HeldRow {
            since: SystemClock::new().now(),
            given_up: header.epoch,
            read: None,
            released: None,
        };
        let restored = Decided::Restored {
            taken: header.taken.clone(),
            epoch: header.epoch,
        };
        store.write(|batch| adopt(batch, &held, restored, header.log_sequence, reason))?;
        store.put_ownership(&Ownership {
            owner: SystemRandomness.draw().to_be_bytes(),
            epoch: header.epoch,
            claim: SystemRandomness.draw().to_be_bytes(),
        })?;
        drop(store);
        shards::note(manifest, header.cluster_id, &[header.shard])?;
        let target = shards::dir(manifest, header.shard);
        let place = |error| RestoreError::Folder {
            path: target.clone(),
            error,
        };
        sync(&folder.0).map_err(place)?;
        fs::rename(&folder.0, &target).map_err(place)?;
        sync(&manifest.data_dir).map_err(place)?;
        Ok(header)
    }
}

/// Makes the names in a folder durable.
fn sync(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes until it is refused, into a channel that nobody reads; gives the reason.
    async fn refusal(
        time: Duration,
        before: impl FnOnce(&mut Chunks, &mut mpsc::Receiver<io::Result<Bytes>>),
    ) -> String {
        let (sender, mut receiver) = mpsc::channel(CHUNKS);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let place = Arc::new(tokio::sync::Semaphore::new(1)).acquire_owned().await;
        let mut chunks = Chunks {
            sender,
            chunk: Vec::new(),
            bytes: 0,
            runtime: Handle::current(),
            is_closing: Box::new(|| false),
            until: clock.monotonic() + time,
            clock,
            _place: place.expect("free"),
        };
        before(&mut chunks, &mut receiver);
        let writing = tokio::task::spawn_blocking(move || {
            let chunk = vec![0; CHUNK_BYTES];
            (0..=CHUNKS).find_map(|_| chunks.write_all(&chunk).err())
        });
        let error = writing.await.expect("no panic").expect("refused");
        error.to_string()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_backup_ends_where_the_client_is_gone_the_time_is_over_or_the_shard_closes() {
        let long = Duration::from_mins(1);
        let gone = refusal(long, |_, receiver| receiver.close()).await;
        assert!(gone.contains("client is gone"), "{gone}");
        let over = refusal(LOOK_EVERY, |_, _| {}).await;
        assert!(over.contains("http.backup_max"), "{over}");
        let drained = refusal(long, |chunks, _| chunks.is_closing = Box::new(|| true)).await;
        assert!(drained.contains("closed"), "{drained}");
    }
}
