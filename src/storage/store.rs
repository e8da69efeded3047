//! The stored state of one shard.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use saga_runner_partition::storage::{ReadRows as _, Snapshots, WriteRows as _};

use super::environment::Environment;
use super::read::Reader;
use super::rows::{self, ROW_FORMAT};
use super::write::Batch;
use super::{Settings, StorageError, tables};
use crate::kernel::ids::ClusterId;

/// Format level of the whole environment.
const FORMAT_LEVEL: u8 = 1;

/// Whose data is expected, and whether it may be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    pub cluster: String,
    pub cluster_id: ClusterId,
    pub shard: u16,
    pub shards: u16,
    /// Whether an empty folder may become this shard. False where the cluster already knows the shard: an empty
    /// folder has then lost its data.
    pub create: bool,
}

/// The state of one shard, opened exclusively.
#[derive(Debug)]
pub struct Store {
    environment: Arc<Environment>,
    settings: Settings,
    cluster_id: ClusterId,
    created: bool,
}

impl Store {
    /// Opens the shard in `dir`.
    ///
    /// # Errors
    /// [`StorageError`] says why the folder is refused: locked, foreign, newer, or unexpectedly empty.
    pub fn open(dir: &Path, settings: &Settings, options: &OpenOptions) -> Result<Self, StorageError> {
        let empty = !dir.join("mdbx.dat").exists();
        if empty && !options.create {
            return Err(StorageError::Missing(dir.to_owned()));
        }
        let environment = Environment::open(dir, tables::NAMES, settings.max_bytes)?;
        let created = environment.write(|view| {
            let identity = Identity::of(options);
            match view.get(tables::LOCAL, b"identity")? {
                Some(bytes) => {
                    check_format(dir, &bytes)?;
                    identity.check(dir, &rows::decode(&bytes, "identity")?)?;
                    Ok::<_, StorageError>(false)
                }
                None if options.create => {
                    view.put(tables::LOCAL, b"identity", rows::encode(&identity))?;
                    Ok(true)
                }
                None => Err(StorageError::Missing(dir.to_owned())),
            }
        })?;
        Ok(Self {
            environment: Arc::new(environment),
            settings: settings.clone(),
            cluster_id: options.cluster_id,
            created,
        })
    }

    /// Whether this call of [`Store::open`] made it.
    #[must_use]
    pub const fn was_created(&self) -> bool {
        self.created
    }

    /// The cluster whose state this is a part of.
    #[must_use]
    pub const fn cluster_id(&self) -> ClusterId {
        self.cluster_id
    }

    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A view for other threads.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.environment) as Arc<dyn Snapshots>)
    }

    /// Runs `work` in one transaction; an error leaves nothing.
    ///
    /// # Errors
    /// What `work` gives, or what the commit meets.
    pub fn write<R, E: From<StorageError>>(
        &self,
        work: impl FnOnce(&Batch<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.environment.write(|view| work(&Batch::new(view)))
    }
}

/// What an environment says it is.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Identity {
    level: u8,
    cluster: String,
    cluster_id: ClusterId,
    shard: u16,
    shards: u16,
}

impl Identity {
    fn of(options: &OpenOptions) -> Self {
        Self {
            level: FORMAT_LEVEL,
            cluster: options.cluster.clone(),
            cluster_id: options.cluster_id,
            shard: options.shard,
            shards: options.shards,
        }
    }

    fn check(&self, dir: &Path, found: &Self) -> Result<(), StorageError> {
        if found.level > FORMAT_LEVEL {
            return Err(newer(dir.to_owned(), found.level));
        }
        if (&found.cluster, found.cluster_id) != (&self.cluster, self.cluster_id) {
            return Err(StorageError::Foreign {
                path: dir.to_owned(),
                found: found.whose(),
                expected: self.whose(),
            });
        }
        if (found.shard, found.shards) != (self.shard, self.shards) {
            return Err(StorageError::OtherShard {
                path: dir.to_owned(),
                found: found.place(),
                expected: self.place(),
            });
        }
        Ok(())
    }

    fn whose(&self) -> String {
        format!("{:?} ({})", self.cluster, self.cluster_id)
    }

    fn place(&self) -> String {
        format!("{} of {}", self.shard, self.shards)
    }
}

fn check_format(dir: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    match bytes.first() {
        Some(&found) if found > ROW_FORMAT => Err(newer(dir.to_owned(), found)),
        _ => Ok(()),
    }
}

const fn newer(path: PathBuf, found: u8) -> StorageError {
    StorageError::Newer {
        path,
        found,
        newest: FORMAT_LEVEL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(cluster: &str, shard: u16, create: bool) -> OpenOptions {
        OpenOptions {
            cluster: cluster.to_owned(),
            cluster_id: ClusterId([7; 16]),
            shard,
            shards: 4,
            create,
        }
    }

    fn refusal(dir: &Path, options: &OpenOptions) -> String {
        Store::open(dir, &Settings::default(), options)
            .expect_err("must be refused")
            .to_string()
    }

    #[test]
    fn data_of_others_is_refused_and_own_data_opens_again() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("shard-0000");
        let message = refusal(&path, &options("shop", 0, false));
        assert!(message.contains("SR0205"), "{message}");
        let store = Store::open(&path, &Settings::default(), &options("shop", 0, true)).expect("created");
        assert!(store.was_created());
        let message = refusal(&path, &options("shop", 0, true));
        assert!(message.contains("SR0201"), "{message}");
        drop(store);
        let resharded = OpenOptions {
            shards: 8,
            ..options("shop", 0, true)
        };
        let of_another_id = OpenOptions {
            cluster_id: ClusterId([8; 16]),
            ..options("shop", 0, true)
        };
        for (other, code) in [
            (options("else", 0, true), "SR0202"),
            (of_another_id, "SR0202"),
            (options("shop", 1, true), "SR0204"),
            (resharded, "SR0204"),
        ] {
            let message = refusal(&path, &other);
            assert!(message.contains(code), "{message}");
        }
        let again = Store::open(&path, &Settings::default(), &options("shop", 0, false)).expect("opens");
        assert!(!again.was_created());
    }

    #[test]
    fn a_newer_format_is_refused() {
        let dir = tempfile::tempdir().expect("folder");
        let store =
            Store::open(dir.path(), &Settings::default(), &options("shop", 0, true)).expect("created");
        store
            .environment
            .write::<_, StorageError>(|view| view.put(tables::LOCAL, b"identity", vec![ROW_FORMAT + 1, 9, 9]))
            .expect("commits");
        drop(store);
        let message = refusal(dir.path(), &options("shop", 0, false));
        assert!(message.contains("SR0203"), "{message}");
    }
}
