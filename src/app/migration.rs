//! Instances of earlier versions are brought over to a later one, or to an earlier one again.
//!
//! Each migration is an input of its instance, applied by the shard in the instance's order and written to its
//! history. This module only finds the instances, in pages, and counts; aborted, it is begun again by the next
//! start, reload or request, and finds what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use uuid::Uuid;

use super::control::blocking;
use super::node::Node;
use super::rehearsal::{Rehearsal, misfit};
use super::shards::Shown;
use super::versions;
use crate::kernel::definition::{Definition, DefinitionSet, Diagnostic, misfits};
use crate::kernel::ids::{DefinitionHash, InstanceId};
use crate::kernel::record::Record;
use crate::ports::control::{ControlError, MigrationReport, MigrationRequest, Problem, Refusal};
use crate::shard::mailbox::Mail;
use crate::tasks::Task;

/// Instances that are asked at a time, before the shard has committed them.
const PAGE: usize = 200;
/// Refusals that a report names; all are counted.
const REFUSALS_MAX: usize = 100;
/// How long a request waits for the end; the work goes on without it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Migrations whose reports are kept, the latest ones.
const KEPT_MAX: usize = 16;

/// The migrations that were asked for, by number, with the outcome of them so far.
#[derive(Debug, Default)]
pub(super) struct Migrations {
    last: u64,
    reports: BTreeMap<u64, watch::Receiver<MigrationReport>>,
}

impl Migrations {
    /// Gives a new one its number and a report to write to.
    fn add(&mut self, mut report: MigrationReport) -> (u64, watch::Sender<MigrationReport>) {
        self.last += 1;
        report.id = format!("{ID_PREFIX}{}", self.last);
        let (sender, receiver) = watch::channel(report);
        self.reports.insert(self.last, receiver);
        while self.reports.len() > KEPT_MAX {
            self.reports.pop_first();
        }
        (self.last, sender)
    }

    fn find(&self, id: &str) -> Option<watch::Receiver<MigrationReport>> {
        let number = id.strip_prefix(ID_PREFIX)?.parse().ok()?;
        self.reports.get(&number).cloned()
    }
}

/// What the ids of migrations begin with.
const ID_PREFIX: &str = "m-";

/// What is to be done: all other live instances of the saga come to `version`; or, to undo that, those that came
/// to it go back to where each came from.
#[derive(Clone)]
struct Order {
    set: Arc<DefinitionSet>,
    version: Arc<Definition>,
    request: MigrationRequest,
}

/// Begins to carry out, or to rehearse, a migration. Gives the report as it is at the end or after two seconds.
pub(super) async fn run(
    node: &Node,
    hash: DefinitionHash,
    request: MigrationRequest,
) -> Result<MigrationReport, ControlError> {
    node.running_or_unavailable()?;
    let set = Arc::clone(&node.catalog.now().sagas);
    let version = set
        .by_hash(&hash)
        .cloned()
        .ok_or_else(|| ControlError::NotFound(format!("definition {hash} is not loaded")))?;
    let Some(node) = node.myself() else {
        return Err(ControlError::Unavailable("stopping".to_owned()));
    };
    let order = Order {
        set,
        version,
        request,
    };
    let (number, sender) = node.migrations().add(order.report());
    let receiver = sender.subscribe();
    let tasks = node.tasks.clone();
    // The report tells how it ended.
    drop(tasks.once(Task::Migration, async move {
        if let Err(error) = work(&node, &order, &sender).await {
            tracing::warn!(saga = %order.version.name, %error, "migration aborted");
            sender.send_modify(|report| report.problem = Some(error.to_string()));
        }
        sender.send_modify(|report| report.finished = true);
        let (moved, refused, total) = sender.borrow().counts();
        tracing::info!(number, moved, refused, total, "migration ended");
    }));
    Ok(finished(receiver).await)
}

/// The report of a migration that was begun, at its end or after two seconds.
pub(super) async fn report(node: &Node, id: &str) -> Result<MigrationReport, ControlError> {
    let found = node.migrations().find(id);
    let Some(receiver) = found else {
        let message = format!("no migration {id:?}: it is long ago, or the process has started again since");
        return Err(ControlError::NotFound(message));
    };
    Ok(finished(receiver).await)
}

async fn finished(mut receiver: watch::Receiver<MigrationReport>) -> MigrationReport {
    // Whether it ended in time or its sender is gone, the report tells how far it came.
    let ended = receiver.wait_for(|report| report.finished);
    drop(tokio::time::timeout(PATIENCE, ended).await);
    let mut report = receiver.borrow().clone();
    // Without a sender nothing of it goes on.
    if !report.finished && receiver.has_changed().is_err() {
        report.finished = true;
        report.problem = Some("the migration ended by a panic; the log has more".to_owned());
    }
    report
}

impl Order {
    fn report(&self) -> MigrationReport {
        MigrationReport {
            saga: self.version.name.to_string(),
            version: self.version.hash.to_string(),
            dry_run: self.request.dry_run,
            undo: self.request.undo,
            ..MigrationReport::default()
        }
    }

    /// Whether an instance is one of those that this is about.
    fn concerns(&self, id: &InstanceId, record: &Record) -> bool {
        let is_at_version = record.definition == self.version.hash;
        id.saga == self.version.name && is_at_version == self.request.undo
    }

    /// The version that an instance is to go to. `None`, to undo, for one that began under this one.
    fn target(&self, record: &Record) -> Option<DefinitionHash> {
        if self.request.undo {
            record.left.as_ref().map(|left| left.definition)
        } else {
            Some(self.version.hash)
        }
    }
}

/// Begins the migrations that active versions ask for with `on_change: migrate`.
pub(super) fn begin_automatic(node: &Arc<Node>) {
    let set = Arc::clone(&node.catalog.now().sagas);
    for target in set
        .iter_active()
        .filter(|definition| definition.migration.automatic)
    {
        let others = set
            .iter()
            .any(|other| other.name == target.name && other.hash != target.hash);
        if !others {
            continue;
        }
        let order = Order {
            set: Arc::clone(&set),
            version: Arc::clone(target),
            request: MigrationRequest::default(),
        };
        let (tasks, node) = (node.tasks.clone(), Arc::clone(node));
        let (sender, _) = watch::channel(order.report());
        drop(tasks.once(Task::Migration, async move {
            let done = work(&node, &order, &sender).await;
            let (saga, report) = (&order.version.name, sender.borrow().clone());
            match done {
                Ok(()) => {
                    let (moved, refused, total) = report.counts();
                    tracing::info!(%saga, moved, refused, total, "instances migrated to another version");
                }
                Err(error) => tracing::warn!(%saga, %error, "migration aborted"),
            }
            for refusal in report.refusals.iter().take(REFUSALS_LOGGED) {
                tracing::warn!(instance = refusal.instance, problems = ?refusal.problems, "instance cannot be migrated and keeps its version");
            }
        }));
    }
}

/// What would keep every live instance of an earlier version from coming over, where a version asks for it: none of them
/// could be given what its state must have.
///
/// # Errors
/// [`ControlError`] where the live instances cannot be counted.
pub(super) async fn stranded(
    node: &Node,
    sagas: &[Arc<Definition>],
    earlier: &[Arc<Definition>],
) -> Result<Vec<Diagnostic>, ControlError> {
    let mut stranded = Vec::new();
    for to in sagas.iter().filter(|saga| saga.migration.automatic) {
        let mut seen = BTreeSet::from([to.hash]);
        let wanted = |from: &DefinitionHash| to.migration.from.is_empty() || to.migration.from.contains(from);
        for from in earlier.iter().filter(|from| from.name == to.name) {
            if !seen.insert(from.hash) || !wanted(&from.hash) {
                continue;
            }
            let found = misfits(from, to, false);
            if found.is_empty() {
                continue;
            }
            let live = versions::live(node, |_, hash| *hash == from.hash).await?;
            if live > 0 {
                stranded.extend(found.into_iter().map(|finding| Diagnostic {
                    message: format!(
                        "{}; so {live} live instance(s) of {} could not be migrated",
                        finding.message, from.hash
                    ),
                    ..finding
                }));
            }
        }
    }
    Ok(stranded)
}

/// Refusals that the log names where nobody asked for a report.
const REFUSALS_LOGGED: usize = 5;

async fn work(
    node: &Node,
    order: &Order,
    report: &watch::Sender<MigrationReport>,
) -> Result<(), ControlError> {
    // One at a time, and none while the definitions change.
    let _alone = node.reloading.lock().await;
    let total = versions::live(node, |saga, hash| {
        *saga == order.version.name && (*hash == order.version.hash) == order.request.undo
    })
    .await?;
    report.send_modify(|report| report.total = total);
    let mut judge = Judge {
        node,
        order,
        misfits: BTreeMap::new(),
    };
    for shard in &node.running_or_unavailable()?.shards.all() {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let (reader, wanted) = (shard.reader.clone(), order.clone());
            let (page, next) = blocking(&node.tasks, move || {
                reader.live(after.as_deref(), PAGE, |id, record| wanted.concerns(id, record))
            })
            .await?;
            let mut told = report.borrow().clone();
            let willing = judge.page(page, &mut told);
            if !order.request.dry_run {
                send(node, shard, order.request.undo, &willing).await?;
            }
            report.send_replace(told);
            match next {
                Some(key) => after = Some(key),
                None => break,
            }
        }
    }
    Ok(())
}

/// Rehearses migrations.
struct Judge<'n> {
    node: &'n Node,
    order: &'n Order,
    /// What does not fit between the schemas of two versions.
    misfits: BTreeMap<(DefinitionHash, DefinitionHash), Vec<Problem>>,
}

impl Judge<'_> {
    /// Gives those that would be carried out, with the version that each goes to.
    fn page(
        &mut self,
        page: Vec<(InstanceId, Record)>,
        report: &mut MigrationReport,
    ) -> Vec<(InstanceId, DefinitionHash)> {
        let mut willing = Vec::with_capacity(page.len());
        for (id, record) in page {
            report.seen += 1;
            let Some(to) = self.order.target(&record) else {
                continue;
            };
            let problems = match self.judge(&id, &record, to) {
                Ok(starts) => {
                    report.moved += 1;
                    for work in starts {
                        // Each is named by a part of the definition, of which there are not many.
                        *report.starts.entry(work).or_default() += 1;
                    }
                    willing.push((id, to));
                    continue;
                }
                Err(problems) => problems,
            };
            report.refused += 1;
            if report.refusals.len() < REFUSALS_MAX {
                report.refusals.push(Refusal {
                    instance: id.to_string(),
                    from: record.definition.to_string(),
                    to: to.to_string(),
                    problems,
                });
            }
        }
        willing
    }

    /// What begins as soon as the instance is migrated, or everything for which it cannot.
    fn judge(
        &mut self,
        id: &InstanceId,
        record: &Record,
        to: DefinitionHash,
    ) -> Result<Vec<String>, Vec<Problem>> {
        let (set, back) = (&self.order.set, self.order.request.undo);
        let (Some(from), Some(target)) = (set.by_hash(&record.definition), set.by_hash(&to)) else {
            let present = set.by_hash(&record.definition).is_some();
            let gone = if present { to } else { record.definition };
            return Err(vec![Problem {
                at: String::new(),
                message: format!("version {gone} is not loaded"),
            }]);
        };
        let misfits = self.misfits.entry((from.hash, to));
        let misfits = misfits.or_insert_with(|| misfit(from, target, back));
        let rehearsal = Rehearsal {
            from,
            to: target,
            back,
            misfits,
            limits: &self.node.manifest.limits,
            now: self.node.clock.now(),
        };
        rehearsal.of(id, record)
    }
}

/// Asks for the migration of each, and waits until the shard has committed them.
async fn send(
    node: &Node,
    shard: &Shown,
    back: bool,
    instances: &[(InstanceId, DefinitionHash)],
) -> Result<(), ControlError> {
    for (instance, to) in instances {
        ask(shard, instance, *to, back, request_id(node, *to)).await?;
    }
    flush(shard).await
}

/// Asks for the migration of one instance. A repetition with the same id changes nothing.
pub(super) async fn ask(
    shard: &Shown,
    instance: &InstanceId,
    to: DefinitionHash,
    back: bool,
    id: String,
) -> Result<(), ControlError> {
    let instance = instance.clone();
    let mail = Mail::Migrate {
        instance,
        to,
        back,
        id,
    };
    shard.mail.send(mail).await.map_err(|_| stopped(shard))
}

fn stopped(shard: &Shown) -> ControlError {
    ControlError::Unavailable(format!("shard {} has stopped", shard.index))
}

/// Waits until the shard has committed everything that it was asked for before.
pub(super) async fn flush(shard: &Shown) -> Result<(), ControlError> {
    let (reply, answer) = oneshot::channel();
    let flush = Mail::Refill {
        after: None,
        limit: 0,
        reply,
    };
    shard.mail.send(flush).await.map_err(|_| stopped(shard))?;
    answer.await.map(drop).map_err(|_| stopped(shard))
}

/// Names a request: random, since an instance may come to the same version more than once.
pub(super) fn request_id(node: &Node, to: DefinitionHash) -> String {
    format!(
        "migrate:{to}:{}",
        Uuid::from_u128(node.randomness.draw()).simple()
    )
}
