//! One instance migrates to another version, by the way that jobs and `definition migrate` take: an input from the process that has
//! its shard, tried before.

use super::answers::not_loaded;
use super::instances::no_instance;
use super::migration;
use super::node::Node;
use super::rehearsal::{Rehearsal, misfit};
use super::versions;
use crate::kernel::ids::{DefinitionHash, InstanceId};
use crate::kernel::record::Record;
use crate::ports::control::{ControlError, Destination, InstanceMigration, InstanceMigrationRequest};
use crate::storage::read::Found;
use crate::storage::rows::HistoryOutcome;

/// Newest rows of the history among which the migration is sought.
const HISTORY_ROWS: usize = 64;

/// # Errors
/// [`ControlError::NotFound`] without the instance or the version, [`ControlError::Invalid`] for a version of another saga,
/// [`ControlError::Conflict`] for an instance that has ended, is at the version, or came from none.
pub(super) async fn migrate(
    node: &Node,
    id: &InstanceId,
    request: InstanceMigrationRequest,
) -> Result<InstanceMigration, ControlError> {
    let shard = node.shard(id).await?;
    let reader = shard.reader.clone();
    let record = live(node, id).await?;
    let back = request.to == Destination::Before;
    let to = match &request.to {
        Destination::Version(hash) => versions::named(node, hash).await?,
        Destination::Before => came_from(id, &record)?,
    };
    // One at a time, and none while the definitions change.
    let _alone = node.reloading.lock().await;
    let in_force = node.catalog.now();
    let Some(version) = in_force.sagas.by_hash(&to) else {
        return Err(ControlError::NotFound(format!("definition {to} is not loaded")));
    };
    if version.name != id.saga {
        let message = format!(
            "definition {to} is one of saga {}, not of {}",
            version.name, id.saga
        );
        return Err(ControlError::Invalid(message));
    }
    if record.definition == to {
        let message = format!("instance {} is at version {to} already", id.key);
        return Err(ControlError::Conflict(message));
    }
    let mut answer = InstanceMigration {
        saga: id.saga.to_string(),
        key: id.key.as_str().to_owned(),
        from: record.definition.to_string(),
        to: to.to_string(),
        dry_run: request.dry_run,
        starts: Vec::new(),
        problems: Vec::new(),
    };
    let Some(from) = in_force.sagas.by_hash(&record.definition) else {
        return Err(ControlError::Conflict(not_loaded(id)));
    };
    let limits = &node.manifest.limits;
    let rehearsal = Rehearsal {
        from,
        to: version,
        back,
        misfits: &misfit(from, version, back),
        limits,
        now: node.clock.now(),
    };
    match rehearsal.of(id, &record) {
        Ok(starts) => answer.starts = starts,
        Err(problems) => answer.problems = problems,
    }
    if request.dry_run || !answer.problems.is_empty() {
        return Ok(answer);
    }
    let input = migration::request_id(node, to);
    migration::ask(&shard, id, to, back, input.clone()).await?;
    migration::flush(&shard).await?;
    let owned = id.clone();
    let applied = node.read(move || {
        let page = reader.history_page(&owned, None, HISTORY_ROWS)?;
        let rows = page.map_or_else(Vec::new, |(rows, _)| rows);
        let mut rows = rows.into_iter().map(|(_, row)| row);
        Ok(rows.any(|row| row.input_id == input && row.outcome == HistoryOutcome::Applied))
    });
    if applied.await? {
        return Ok(answer);
    }
    live(node, id).await?;
    let message = format!(
        "instance {} has changed meanwhile, and keeps its version: ask again",
        id.key
    );
    Err(ControlError::Conflict(message))
}

/// The version that an instance has left by a migration.
fn came_from(id: &InstanceId, record: &Record) -> Result<DefinitionHash, ControlError> {
    let left = record.left.as_ref().map(|left| left.definition);
    left.ok_or_else(|| {
        ControlError::Conflict(format!(
            "instance {} began under its version {}: there is none to go back to",
            id.key, record.definition
        ))
    })
}

/// The record of an instance that may migrate.
async fn live(node: &Node, id: &InstanceId) -> Result<Record, ControlError> {
    let reader = node.shard(id).await?.reader;
    let owned = id.clone();
    let (found, kept) = node
        .read(move || Ok((reader.instance(&owned)?, reader.kept(&owned)?)))
        .await?;
    match found {
        None => Err(ControlError::NotFound(no_instance(id, &kept))),
        Some(Found::Live(record)) if !record.phase.is_terminal() => Ok(record),
        Some(found) => Err(ControlError::Conflict(format!(
            "instance {} has ended, it is {}: only one that has not is migrated",
            id.key,
            found.record().phase.as_str()
        ))),
    }
}
