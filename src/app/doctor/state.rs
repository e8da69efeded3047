//! The stored state of each shard: whether it opens, and whether everything in it has something that moves it on.

use std::sync::Arc;

use super::Checked;
use crate::app::{SystemClock, archive, shards};
use crate::config::Manifest;
use crate::kernel::definition::{Definition, DefinitionSet};
use crate::kernel::ids::ClusterId;
use crate::mdbx;
use crate::ports::clock::Clock as _;
use crate::storage::{OpenOptions, Reader, StorageError};

/// Instances of one shard that are counted as waiting for the archive.
const WAITING_MAX: usize = 1_000;
/// Faults that are told of one shard.
const TOLD_MAX: usize = 5;

/// What was found of the shards.
pub(super) struct Shards {
    pub checks: Vec<Checked>,
    /// Ended instances of these shards that wait for the archive.
    pub waiting: archive::Look,
    /// Up to where each shard that could be opened has read its streams, by `SourceStream::index`.
    pub positions: Vec<(u16, [u64; 3])>,
}

pub(super) fn examine(
    manifest: &Manifest,
    active: &[Arc<Definition>],
    tell: &mut dyn FnMut(String),
) -> Shards {
    let mut found = Shards {
        checks: Vec::new(),
        waiting: archive::Look::default(),
        positions: Vec::new(),
    };
    let known = match shards::known(manifest) {
        Ok(Some(known)) => known,
        Ok(None) => return found,
        Err(error) => {
            let fix = "correct `cluster`, `shards` or `data_dir`";
            found
                .checks
                .push(Checked::fail("cluster of the data", error.to_string(), fix));
            return found;
        }
    };
    for shard in 0..manifest.shards {
        let check = format!("shard {shard}");
        let is_there = mdbx::file(&shards::dir(manifest, shard)).is_some();
        match (is_there, known.existed.contains(&shard)) {
            (false, false) => {}
            (false, true) => found.checks.push(Checked::fail(
                &check,
                "its data is lost: the folder knows that the shard was created",
                "mount or restore it (SR0205)",
            )),
            (true, _) => look(manifest, known.id, shard, active, tell, &mut found),
        }
    }
    found
}

fn look(
    manifest: &Manifest,
    cluster_id: ClusterId,
    shard: u16,
    active: &[Arc<Definition>],
    tell: &mut dyn FnMut(String),
    found: &mut Shards,
) {
    let check = format!("shard {shard}");
    let options = OpenOptions {
        cluster: manifest.cluster.clone(),
        cluster_id,
        shard,
        shards: manifest.shards,
        create: false,
    };
    let store = match mdbx::open(&shards::dir(manifest, shard), &manifest.storage, &options) {
        Ok(store) => store,
        Err(error @ StorageError::Locked(_)) => {
            let fix = "it is well if that is the runner, which `doctor --url` asks; its state is checked while it is stopped";
            return found.checks.push(Checked::warn(&check, error.to_string(), fix));
        }
        Err(error) => {
            return found.checks.push(Checked::fail(
                &check,
                error.to_string(),
                "see the page of the code",
            ));
        }
    };
    let archived = shards::archived_definitions(&store, active).unwrap_or_default();
    let definitions = DefinitionSet::new(active.to_vec(), archived);
    let reader = store.reader();
    found.checks.push(match faults(&reader, &definitions, shard, tell) {
        Ok((detail, faults)) if faults.is_empty() => Checked::ok(&check, detail),
        Ok((_, faults)) => {
            let told: Vec<&str> = faults.iter().take(TOLD_MAX).map(String::as_str).collect();
            let detail = format!("{} fault(s) in what is stored: {}", faults.len(), told.join("; "));
            let fix = "keep a copy of the folder and report this; `instance kill` ends an instance that waits for nothing";
            Checked::fail(&check, detail, fix)
        }
        Err(error) => Checked::fail(&check, error.to_string(), "restore the shard from a copy (SR0206)"),
    });
    let keep = manifest.storage.keep();
    let tenants: Vec<_> = keep
        .counts()
        .map(|(tenant, count)| (tenant.clone(), count))
        .collect();
    let outdated = keep.outdated(SystemClock::new().now());
    // What cannot be read is told above.
    if keep.archive
        && let Ok(due) = reader.due(outdated, &tenants, WAITING_MAX)
    {
        found.waiting.add(&due, outdated);
    }
    if let Ok(progress) = reader.progress() {
        found.positions.push((shard, progress.positions));
    }
}

/// What the shard holds, and what of it nothing moves on.
fn faults(
    reader: &Reader,
    definitions: &DefinitionSet,
    shard: u16,
    tell: &mut dyn FnMut(String),
) -> Result<(String, Vec<String>), StorageError> {
    let counts = reader.check()?;
    let all = counts.live + counts.outbox;
    let faults = reader.orphans(definitions, &mut |looked| {
        tell(format!("shard {shard}: {looked} of {all} instances and commands"));
    })?;
    let detail = format!(
        "{} live and {} ended instances, {} commands, {} dead letters; each waits for something that comes",
        counts.live, counts.ended, counts.outbox, counts.dead_letters
    );
    Ok((detail, faults))
}
