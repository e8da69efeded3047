//! Definitions are read again while everything runs.
//!
//! All or nothing: what is wrong is found before anything changes. Then the readers learn what the new sagas want,
//! then one shard after the other begins to work under them, each between two commits, and takes all that lies behind its
//! positions as they route it. So a saga that is new hears what it would hear if the process had been started again, and no
//! event is taken twice.

use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;

use super::catalog::InForce;
use super::control::blocking;
use super::definitions::{self, Files};
use super::node::Node;
use super::running::Running;
use super::{StartError, consumers, last_good, migration, shards, undeclared};
use crate::effects::Consumer;
use crate::kernel::definition::{Definition, DefinitionSet, EffectDefinition};
use crate::ports::control::{LastReload, ReloadError, Reloaded, SagaChange};
use crate::shard::mailbox::Mail;

/// Findings of a refused reload that `/info` keeps; the log and the answer have all.
const FINDINGS_KEPT_MAX: usize = 100;

/// Reads the files again and puts them in force.
pub(super) async fn reload(node: &Node) -> Result<Reloaded, ReloadError> {
    let _alone = node.reloading.lock().await;
    let outcome = attempt(node).await;
    let (label, message) = match &outcome {
        Ok(done) => ("done", format!("revision {}", done.revision)),
        Err(error) => ("refused", error.to_string()),
    };
    node.metrics.definition_reloads.with_label_values(&[label]).inc();
    match &outcome {
        Ok(done) => {
            let changes: Vec<String> = done.sagas.iter().map(ToString::to_string).collect();
            let changes = changes.join(", ");
            tracing::info!(revision = done.revision, changes, "definitions reloaded");
        }
        Err(error) => {
            log(error);
            tracing::warn!(%error, "reload failed; the active definitions stay in use");
        }
    }
    note(node, message, outcome.as_ref().err());
    outcome
}

/// Says that the files were refused at the start, and that what was in force before serves in their place.
pub(super) fn refused_at_start(node: &Node, error: StartError) {
    let error = refused(error);
    log(&error);
    tracing::warn!(%error, "definitions are invalid; the previous ones stay in use");
    node.metrics
        .definition_reloads
        .with_label_values(&["refused"])
        .inc();
    note(node, error.to_string(), Some(&error));
}

fn log(error: &ReloadError) {
    for finding in error.findings() {
        let at = (finding.line, finding.column);
        tracing::warn!(
            code = finding.code, severity = ?finding.severity, file = finding.file, line = at.0,
            column = at.1, help = finding.help, "{}", finding.message
        );
    }
}

fn note(node: &Node, message: String, error: Option<&ReloadError>) {
    node.metrics.definitions_refused.set(i64::from(error.is_some()));
    node.note_reload(LastReload {
        time: node.clock.now().rfc3339(),
        ok: error.is_none(),
        message,
        findings: error.map_or_else(Vec::new, |error| {
            error.findings().iter().take(FINDINGS_KEPT_MAX).cloned().collect()
        }),
    });
}

async fn attempt(node: &Node) -> Result<Reloaded, ReloadError> {
    let unavailable = |error: String| ReloadError::Unavailable(error);
    if node.is_draining() {
        return Err(unavailable("draining".to_owned()));
    }
    let running = node.running().ok_or_else(|| unavailable(node.waiting_for()))?;
    let manifest = node.manifest.clone();
    let loaded = node
        .tasks
        .blocking(move || definitions::load(&manifest))
        .await
        .map_err(|error| unavailable(format!("the files could not be read: {error}")))?
        .map_err(refused)?;
    let planned = consumers::plan(&node.manifest, &loaded.effects).map_err(refused)?;
    let before = node.catalog.now();
    let effects_changed = loaded.effects_text != before.effects_text;
    let sagas = changes(&before, &loaded.sagas);
    let effects: Vec<String> = loaded
        .effects
        .iter()
        .map(|effect| effect.name.to_string())
        .collect();
    let ways_changed = ways_changed(&before, &loaded.sagas);
    if sagas.is_empty() && !effects_changed && !ways_changed {
        let problems = bring_up_to_date(running, &before).await;
        return Ok(Reloaded {
            revision: before.revision,
            sagas,
            effects_changed,
            effects,
            problems,
            warnings: undeclared::warnings(node).await,
        });
    }
    let archived = kept(node, &before, running).await?;
    refuse_stranded(node, &loaded.sagas, &archived).await?;
    let revision = before.revision + u64::from(!sagas.is_empty());
    let set = Arc::new(DefinitionSet::new(loaded.sagas, archived));
    if effects_changed {
        // The last that can fail.
        change_worker(node, running, &loaded.effects, &planned).await?;
    }
    node.catalog.replace(InForce {
        revision,
        sagas: Arc::clone(&set),
        effects: loaded.effects,
        consumers: planned,
        effects_text: loaded.effects_text,
        files: Arc::clone(&loaded.files),
    });
    keep(node, loaded.files).await;
    let routed_by = running.widen(&set).await;
    let changed = |shard: &shards::Shown| !sagas.is_empty() || ways_changed || shard.status.is_outdated();
    let mut shards = running.shards.all();
    shards.retain(changed);
    let problems = activate_in(&shards, &set, revision, routed_by).await;
    node.catalog.now().show(&node.metrics);
    if let Some(node) = node.myself() {
        migration::begin_automatic(&node);
    }
    Ok(Reloaded {
        revision,
        sagas,
        effects_changed,
        effects,
        problems,
        warnings: undeclared::warnings(node).await,
    })
}

/// Nothing has changed: shards that could not take an earlier change get what is in force; one line for each that still cannot.
async fn bring_up_to_date(running: &Running, before: &InForce) -> Vec<String> {
    let outdated = |shard: &shards::Shown| shard.status.is_outdated();
    let mut shards = running.shards.all();
    shards.retain(outdated);
    let routed_by = running.widen(&before.sagas).await;
    activate_in(&shards, &before.sagas, before.revision, routed_by).await
}

/// Refuses definitions to which live instances would have to be migrated and cannot.
async fn refuse_stranded(
    node: &Node,
    sagas: &[Arc<Definition>],
    archived: &[Arc<Definition>],
) -> Result<(), ReloadError> {
    let findings = migration::stranded(node, sagas, archived)
        .await
        .map_err(|error| ReloadError::Unavailable(error.to_string()))?;
    if findings.is_empty() {
        return Ok(());
    }
    let message = "with on_change: migrate, live instances could not come over".to_owned();
    Err(ReloadError::Refused { message, findings })
}

/// Puts a worker in force that knows these effects.
async fn change_worker(
    node: &Node,
    running: &Running,
    effects: &[Arc<EffectDefinition>],
    planned: &[Consumer],
) -> Result<(), ReloadError> {
    match consumers::verify(&*running.broker, &node.manifest, planned).await {
        Ok(verdict) => verdict.map_err(refused)?,
        Err(error) => return Err(ReloadError::Unavailable(error.to_string())),
    }
    // It builds every provider before it pulls anything.
    running
        .replace_worker(node, effects, planned.to_vec())
        .await
        .map_err(refused)
}

/// Keeps what is in force for a start that finds wrong files.
pub(super) async fn keep(node: &Node, files: Arc<Files>) {
    let manifest = node.manifest.clone();
    let kept = node
        .tasks
        .blocking(move || last_good::keep(&manifest, &files))
        .await;
    if let Err(error) = kept {
        tracing::warn!(%error, "cannot save the active definitions as fallback for a start with invalid ones");
    }
}

/// Puts the definitions in force in these shards; one line for each that could not change.
async fn activate_in(
    shards: &[shards::Shown],
    set: &Arc<DefinitionSet>,
    revision: u64,
    routed_by: u64,
) -> Vec<String> {
    let mut problems = Vec::new();
    for shard in shards {
        if let Err(problem) = activate(shard, set, revision, routed_by).await {
            problems.push(format!("shard {}: {problem}", shard.index));
        }
    }
    problems
}

/// A shard that is halted changes when it goes on, one that has no room at the next reload or start.
async fn activate(
    shard: &shards::Shown,
    set: &Arc<DefinitionSet>,
    revision: u64,
    routed_by: u64,
) -> Result<(), String> {
    let (reply, answer) = oneshot::channel();
    let mail = Mail::Activate {
        definitions: Arc::clone(set),
        revision,
        routed_by,
        reply,
    };
    shard
        .mail
        .send(mail)
        .await
        .map_err(|_| "it has stopped".to_owned())?;
    let answer = answer.await.map_err(|_| "it has stopped".to_owned())?;
    answer.map_err(|refused| refused.to_string())
}

/// The versions that an instance runs under, or may begin under before its shard has changed.
async fn kept(node: &Node, before: &InForce, running: &Running) -> Result<Vec<Arc<Definition>>, ReloadError> {
    let mut kept = before.active();
    for shard in running.shards.all() {
        let reader = shard.reader;
        let read = move || Ok((reader.definitions()?, reader.active_definitions()?));
        let (stored, active) = blocking(&node.tasks, read)
            .await
            .map_err(|error| ReloadError::Unavailable(error.to_string()))?;
        let used = stored.into_iter().filter(|(_, _, uses)| !uses.is_none());
        let used = used.map(|(hash, _, _)| hash);
        // A shard that had no room for an earlier reload begins instances under what was in force before it.
        let active = active.sagas.into_values().map(|saga| saga.hash);
        kept.extend(
            used.chain(active)
                .filter_map(|hash| before.sagas.by_hash(&hash).cloned()),
        );
    }
    Ok(kept)
}

fn changes(before: &InForce, after: &[Arc<Definition>]) -> Vec<SagaChange> {
    let mut changes = Vec::new();
    for definition in after {
        let old = before.sagas.active(&definition.name).map(|old| old.hash);
        if old != Some(definition.hash) {
            changes.push(SagaChange {
                saga: definition.name.to_string(),
                from: old.map(|hash| hash.to_string()),
                to: Some(definition.hash.to_string()),
            });
        }
    }
    for old in before.sagas.iter_active() {
        if after.iter().all(|definition| definition.name != old.name) {
            changes.push(SagaChange {
                saga: old.name.to_string(),
                from: Some(old.hash.to_string()),
                to: None,
            });
        }
    }
    changes.sort_by(|left, right| left.saga.cmp(&right.saga));
    changes
}

/// Whether the text of a version is another one, which may tell another way to come to it.
fn ways_changed(before: &InForce, after: &[Arc<Definition>]) -> bool {
    after.iter().any(|definition| {
        let old = before.sagas.active(&definition.name);
        old.is_some_and(|old| old.hash == definition.hash && old.source != definition.source)
    })
}

fn refused(error: StartError) -> ReloadError {
    let message = error.to_string();
    match error {
        StartError::Definitions { findings, .. } => ReloadError::Refused { message, findings },
        _ => ReloadError::Refused {
            message,
            findings: Vec::new(),
        },
    }
}

impl Node {
    pub(super) fn note_reload(&self, last: LastReload) {
        *self.last_reload.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
    }

    pub(super) fn last_reload(&self) -> Option<LastReload> {
        self.last_reload
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
