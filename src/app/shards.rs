//! The shards on this machine's disk: which of them the folder knows, and their definitions.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::StartError;
use super::catalog::InForce;
use super::cluster::Known;
use super::ownership::claim::Claimed;
use super::running::Parts;
use crate::config::Manifest;
use crate::config::manifest::StartPosition;
use crate::kernel::definition::{self, Definition, DefinitionSet};
use crate::kernel::ids::ClusterId;
use crate::kernel::input::SourceStream;
use crate::kernel::schedule;
use crate::ports::broker::StreamState;
use crate::shard::mailbox::{Mail, Notice, Relayed, Released};
use crate::shard::{Settings, ShardHandle, ShardSpec, ShardState, ShardStatus, Standing};
use crate::storage::{Reader, Store};

/// What `cluster.json` remembers, beside what the broker does: neither can lose it alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Marker {
    cluster: String,
    /// The random id of the cluster, as its record in the broker has it.
    id: ClusterId,
    shards: u16,
    /// Shards whose state was created.
    created: Vec<u16>,
}

/// What the API sees of a shard.
#[derive(Clone)]
pub(super) struct Shown {
    pub index: u16,
    pub mail: mpsc::Sender<Mail>,
    pub status: Arc<ShardStatus>,
    pub reader: Reader,
    /// What was handed over.
    pub relayed: Arc<Relayed>,
}

impl Shown {
    pub fn of(shard: &ShardHandle) -> Self {
        Self {
            index: shard.index,
            mail: shard.mail.clone(),
            status: Arc::clone(&shard.status),
            reader: shard.reader.clone(),
            relayed: Arc::clone(&shard.relayed),
        }
    }

    /// Why it does nothing until an operator acts, if that is so.
    pub fn halted(&self) -> Option<&'static str> {
        match self.status.state() {
            ShardState::Halted { reason, .. } => Some(reason),
            ShardState::Running | ShardState::Full(_) | ShardState::Stopped => None,
        }
    }
}

/// The definitions that the shards need.
pub(super) struct Needed {
    /// The active sagas, and the archived ones that something still refers to.
    pub definitions: Arc<DefinitionSet>,
    /// Revision of the active sagas: higher than before where they are others than before.
    pub revision: u64,
}

/// The definitions that the shards need, those in force and the ones that they have archived together.
pub(super) fn definitions(claimed: &[Claimed], in_force: &InForce) -> Result<Needed, StartError> {
    let active = in_force.active();
    let mut archived: Vec<_> = in_force.sagas.iter().cloned().collect();
    let (mut revision, mut changed) = (0, false);
    for Claimed { store, .. } in claimed {
        archived.extend(archived_definitions(store, &active)?);
        let before = store
            .reader()
            .active_definitions()
            .map_err(|error| StartError::Storage(error.to_string()))?;
        changed |= before.revision == 0 || !before.is_of(&active);
        revision = revision.max(before.revision);
    }
    Ok(Needed {
        definitions: Arc::new(DefinitionSet::new(active, archived)),
        // A shard that was not open during a reload comes to what the others work under already.
        revision: in_force.revision.max(revision + u64::from(changed)),
    })
}

/// The cluster to which the folder belongs, as far as the folder tells; `None` where it is fresh.
pub(super) fn known(manifest: &Manifest) -> Result<Option<Known>, StartError> {
    let marker = read_marker(&marker_path(manifest), manifest)?;
    Ok(marker.map(|marker| Known {
        id: marker.id,
        existed: marker.created.into_iter().collect(),
    }))
}

/// Notes in the folder to which cluster it belongs, and that these shards of it were created.
pub(super) fn note(manifest: &Manifest, id: ClusterId, shards: &[u16]) -> Result<(), StartError> {
    let path = marker_path(manifest);
    let before = read_marker(&path, manifest)?;
    let mut created: BTreeSet<u16> = shards.iter().copied().collect();
    created.extend(before.iter().flat_map(|marker| &marker.created));
    let marker = Marker {
        cluster: manifest.cluster.clone(),
        id,
        shards: manifest.shards,
        created: created.into_iter().collect(),
    };
    if before.as_ref() == Some(&marker) {
        return Ok(());
    }
    write_marker(&path, &marker)
}

/// The folder of a shard.
pub(super) fn dir(manifest: &Manifest, shard: u16) -> PathBuf {
    manifest.data_dir.join(format!("shard-{shard:04}"))
}

fn marker_path(manifest: &Manifest) -> PathBuf {
    manifest.data_dir.join("cluster.json")
}

fn read_marker(path: &Path, manifest: &Manifest) -> Result<Option<Marker>, StartError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StartError::Storage(format!("{}: {error}", path.display()))),
    };
    let marker: Marker = serde_json::from_str(&text)
        .map_err(|error| StartError::Foreign(format!("{}: {error}", path.display())))?;
    if marker.cluster != manifest.cluster || marker.shards != manifest.shards {
        return Err(StartError::Foreign(format!(
            "{}: the data belongs to cluster {:?} with {} shard(s), the manifest says {:?} with {}",
            path.display(),
            marker.cluster,
            marker.shards,
            manifest.cluster,
            manifest.shards
        )));
    }
    Ok(Some(marker))
}

/// Writes the marker so that a crash leaves the old one or the new one.
fn write_marker(path: &Path, marker: &Marker) -> Result<(), StartError> {
    let failed = |error: std::io::Error| StartError::Storage(format!("{}: {error}", path.display()));
    let text = serde_json::to_string_pretty(marker).expect("a marker is plain data");
    path.parent().map_or(Ok(()), make_folder).map_err(failed)?;
    replace(path, text.as_bytes()).map_err(failed)
}

/// Creates the data folder if it is not there. This user alone may look into it.
fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Replaces a file of the data folder, which this user alone may read. A crash leaves the old one or the new one.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("json.new");
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

pub(super) fn archived_definitions(
    store: &Store,
    active: &[Arc<Definition>],
) -> Result<Vec<Arc<Definition>>, StartError> {
    let stored = store
        .reader()
        .definitions()
        .map_err(|error| StartError::Storage(error.to_string()))?;
    let mut archived = Vec::new();
    for (hash, row, _) in stored {
        if active.iter().any(|definition| definition.hash == hash) {
            continue;
        }
        match definition::compile_archived(&row.source) {
            Ok(definition) if definition.hash == hash => archived.push(Arc::new(definition)),
            // Its instances wait for a binary that reads it.
            Ok(_) | Err(_) => {
                tracing::error!(%hash, saga = %row.saga, "archived definition no longer compiles");
            }
        }
    }
    Ok(archived)
}

/// Starts one shard on its state.
#[allow(clippy::too_many_arguments, reason = "what differs between shards")]
pub(super) fn start(
    parts: &Parts<'_>,
    settings: Settings,
    index: u16,
    store: Store,
    standing: [Option<Standing>; 3],
    needed: &Needed,
    streams: &[StreamState; 3],
    release: mpsc::Sender<Released>,
    notices: &mpsc::Sender<Notice>,
) -> Result<ShardHandle, StartError> {
    let manifest = parts.manifest;
    let mut scheduled_tenants = manifest.scheduled_tenants();
    scheduled_tenants.retain(|tenant| schedule::owner(tenant, manifest.shards) == index);
    let initial_positions = SourceStream::ALL.map(|stream| {
        let state = &streams[stream.index()];
        match (stream, manifest.streams.start) {
            (SourceStream::AggregateEvents, StartPosition::New) => state.last_sequence,
            // Commands and results are the runner's own: nothing of them may be left out.
            (SourceStream::AggregateEvents, StartPosition::First)
            | (SourceStream::WorkflowEvents | SourceStream::WorkflowCommands, _) => {
                state.first_sequence.saturating_sub(1)
            }
        }
    });
    ShardHandle::start(ShardSpec {
        index,
        store,
        definitions: Arc::clone(&needed.definitions),
        scheduled_tenants,
        revision: needed.revision,
        limits: manifest.limits.clone(),
        settings,
        delivery_inputs: manifest.intake.delivery_inputs,
        streams: streams.clone(),
        standing,
        initial_positions,
        clock: Arc::clone(parts.clock),
        metrics: Arc::clone(parts.metrics),
        tasks: parts.tasks.clone(),
        release,
        notices: notices.clone(),
    })
    .map_err(|error| StartError::Storage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_folder_and_its_files_are_for_this_user_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("a/data");
        make_folder(&folder).expect("created");
        make_folder(&folder).expect("it is there");
        let file = folder.join("cluster.json");
        for text in ["{}", "{\"a\": 1}"] {
            replace(&file, text.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&file).expect("read"), text);
        }
        for (path, mode) in [(&folder, 0o700), (&file, 0o600)] {
            let permissions = fs::metadata(path).expect("it is there").permissions();
            assert_eq!(permissions.mode() & 0o777, mode, "{}", path.display());
        }
    }
}
