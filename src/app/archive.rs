//! The archive: ended instances are put into a stream of the broker before they are deleted.
//!
//! ```text
//! its time is over, or an operator deletes it ──▶ published ──▶ acknowledged ──▶ the shard is told ──▶ deleted
//! ```
//!
//! The partition keeps an instance until it is told that the archive has it. Killed anywhere before that, the process finds it again,
//! and publishes the same entry under the same id: the last entry on its subject has that id, or the broker has seen the id a moment
//! ago, so it is not stored twice. While the archive is away or full, nothing is deleted.

mod entry;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use tokio::sync::oneshot;

use super::control::blocking;
use super::node::Node;
use super::shards::Shown;
use super::streams;
use crate::kernel::ids::InstanceId;
use crate::kernel::subject;
use crate::kernel::view::Kept;
use crate::ports::broker::{Broker, BrokerError, Expect, Publication, StreamSpec};
use crate::ports::control::{ArchivedInstance, ControlError, rfc3339};
use crate::shard::ShardState;
use crate::shard::mailbox::Mail;
use crate::storage::ArchiveSettings;
use crate::storage::read::Found;
use crate::storage::rows::EndedRow;
use crate::tasks::Task;
use entry::Entry;

/// How often it is looked for instances whose time is over.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often entries are looked for that are too old.
const TRIM_EVERY: Duration = Duration::from_mins(10);
/// Instances of one look at a shard.
const LOOK_MAX: usize = 256;
/// Publications at a time.
const AT_ONCE: usize = 16;
/// Entries of a history that are archived at most.
const HISTORY_MAX: usize = 10_000;
/// By what an entry is recognised.
const ID_HEADER: &str = "saga-runner-archive-id";
/// Room for subject and headers around an entry, in bytes.
const AROUND_ENTRY: usize = 4 * 1024;

/// What the stream of the archive must be; `None` without an archive.
pub(super) fn spec(manifest: &crate::config::Manifest) -> Option<StreamSpec> {
    let settings = manifest.storage.archive.as_ref()?;
    manifest.mode.runs_sagas().then(|| StreamSpec {
        name: settings.stream.clone(),
        subjects: vec![subject::archive_filter(&manifest.cluster)],
        replicas: manifest.streams.replicas,
        message_bytes_max: settings.entry_bytes_max + AROUND_ENTRY,
        foreign: false,
    })
}

/// Begins to archive, in a process that runs sagas and has an archive.
pub(super) fn begin(node: &Arc<Node>) {
    if spec(&node.manifest).is_none() {
        return;
    }
    let me = Arc::downgrade(node);
    node.tasks.keep(Task::Archive, "", move || {
        let node = me.upgrade();
        async move {
            if let Some(node) = node
                && let Some(settings) = node.manifest.storage.archive.clone()
            {
                let archiver = Archiver { node, settings };
                archiver.run().await;
            }
        }
    });
}

struct Archiver {
    node: Arc<Node>,
    settings: ArchiveSettings,
}

impl Archiver {
    /// Archives until the drain.
    async fn run(&self) {
        let stuck = self.node.tasks.stuck();
        let mut attempts = None;
        let mut trimmed = None;
        loop {
            let now = self.node.clock.monotonic();
            match self.look().await {
                Ok(is_whole) => {
                    attempts = None;
                    if !is_whole && !self.node.is_draining() {
                        continue;
                    }
                }
                Err(reason) => {
                    if attempts.is_none() {
                        tracing::warn!(
                            stream = self.settings.stream,
                            reason,
                            "the archive does not take ended instances; they are not deleted"
                        );
                    }
                    let attempts = attempts.get_or_insert_with(|| stuck.begin(&self.settings.stream));
                    attempts.failed(&reason);
                }
            }
            if trimmed.is_none_or(|before| now.saturating_sub(before) > TRIM_EVERY) {
                trimmed = Some(now);
                if let Err(error) = self.trim().await {
                    tracing::debug!(%error, "the archive cannot be trimmed");
                }
            }
            let sleep = tokio::time::sleep(LOOK_EVERY);
            if self.node.drain.run_until_cancelled(sleep).await.is_none() {
                return;
            }
        }
    }

    /// Archives what is due in each shard. False: there is more.
    async fn look(&self) -> Result<bool, String> {
        let (Some(running), Some(broker)) = (self.node.running(), self.node.broker()) else {
            return Ok(true);
        };
        // What another process may have changed meanwhile, or an operator has not released, must not stand in the archive as the last.
        if !running.keeper().is_some_and(|keeper| keeper.may_send_for_all()) {
            return Ok(true);
        }
        let (mut waiting, mut is_whole, mut trouble) = (0, true, None);
        for shard in running.shards.all() {
            if shard.status.state() != ShardState::Running {
                continue;
            }
            let due = self.due(&shard).await?;
            let found = due.len();
            if found == 0 {
                continue;
            }
            match self.archive(broker.as_ref(), &shard, due).await {
                Ok(()) => is_whole &= found < LOOK_MAX,
                Err(error) => {
                    waiting += found;
                    trouble = Some(error);
                }
            }
        }
        let gauge = &self.node.metrics.archive_waiting;
        gauge.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        trouble.map_or(Ok(is_whole), Err)
    }

    async fn due(&self, shard: &Shown) -> Result<Vec<(u64, EndedRow)>, String> {
        let keep = self.node.manifest.storage.keep();
        let tenants: Vec<_> = keep
            .counts()
            .map(|(tenant, count)| (tenant.clone(), count))
            .collect();
        let outdated = keep.outdated(self.node.clock.now());
        let reader = shard.reader.clone();
        let due = blocking(&self.node.tasks, move || reader.due(outdated, &tenants, LOOK_MAX));
        due.await.map_err(|error| error.to_string())
    }

    /// Archives these, then lets the shard delete those that the archive has.
    async fn archive(
        &self,
        broker: &dyn Broker,
        shard: &Shown,
        due: Vec<(u64, EndedRow)>,
    ) -> Result<(), String> {
        self.check_room(broker).await?;
        let stored = stream::iter(due).map(|(number, row)| async move {
            let stored = self.store(broker, shard, row).await;
            stored.map(|()| number)
        });
        let stored: Vec<Result<u64, String>> = stored.buffer_unordered(AT_ONCE).collect().await;
        let (mut numbers, mut trouble) = (Vec::new(), None);
        for one in stored {
            match one {
                Ok(number) => numbers.push(number),
                Err(error) => trouble = Some(error),
            }
        }
        if !numbers.is_empty() {
            let (reply, answer) = oneshot::channel();
            let stopped = || format!("shard {} has stopped", shard.index);
            let mail = Mail::Archived { numbers, reply };
            shard.mail.send(mail).await.map_err(|_| stopped())?;
            let answer = answer.await.map_err(|_| stopped())?;
            answer.map_err(|refused| refused.to_string())?;
        }
        trouble.map_or(Ok(()), Err)
    }

    async fn check_room(&self, broker: &dyn Broker) -> Result<(), String> {
        let Some(most) = self.settings.max_bytes else {
            return Ok(());
        };
        let state = broker.stream_state(&self.settings.stream).await;
        let bytes = state.map_err(|error| error.to_string())?.bytes;
        if bytes < most {
            return Ok(());
        }
        Err(format!(
            "the archive is full, it has {bytes} of {most} bytes (storage.archive.max_bytes)"
        ))
    }

    /// Stores one entry, unless it is there.
    async fn store(&self, broker: &dyn Broker, shard: &Shown, row: EndedRow) -> Result<(), String> {
        let instance = row.instance.clone();
        let id = self.id(&row);
        let subject = subject::archive(&self.node.manifest.cluster, &instance);
        let stream = &self.settings.stream;
        let last = broker.last_by_subject(stream, &subject).await;
        let last = last.map_err(|error| error.to_string())?;
        let is_there = last.is_some_and(|last| {
            let mut headers = last.headers.iter();
            headers.any(|(name, value)| name.eq_ignore_ascii_case(ID_HEADER) && *value == id)
        });
        if is_there {
            return Ok(());
        }
        let payload = self.entry(shard, row).await?;
        let publication = Publication {
            stream: stream.clone(),
            subject,
            headers: vec![(ID_HEADER.to_owned(), id.clone())],
            payload: payload.into(),
            expect: Expect::MessageId(id),
        };
        let stored = broker.publish(publication).await;
        stored
            .map(drop)
            .map_err(|error| format!("instance {instance}: {error}"))
    }

    /// Names what is archived: the same instance after the same inputs has the same.
    fn id(&self, row: &EndedRow) -> String {
        let record = &row.summary.record;
        let cluster = self.node.running().and_then(|running| running.cluster);
        let cluster = cluster.map_or_else(String::new, |cluster| cluster.to_string());
        let life = format!(
            "{cluster}/{}/{}/{}/{}/{}",
            row.instance, record.generation, record.start_event, record.started.0, record.version
        );
        blake3::hash(life.as_bytes()).to_hex().to_string()
    }

    async fn entry(&self, shard: &Shown, row: EndedRow) -> Result<Vec<u8>, String> {
        let last = row.summary.record.last_history;
        let reader = shard.reader.clone();
        let history = blocking(&self.node.tasks, move || reader.history(last, HISTORY_MAX));
        let history = history.await.map_err(|error| error.to_string())?;
        let found = Found::Ended(row.summary);
        let view = self.node.view(&row.instance, &found, Kept::default());
        let views = history.into_iter();
        let views = views.map(|(_, row)| self.node.history_view(row));
        let archived = rfc3339(self.node.clock.now());
        let entry = Entry::new(&view, views, archived).map_err(|error| error.to_string())?;
        let most = self.settings.entry_bytes_max;
        self.node.tasks.blocking(move || entry.pack(most)).await
    }

    /// Removes the entries that are older than they may be.
    async fn trim(&self) -> Result<(), BrokerError> {
        let (Some(age), Some(broker)) = (self.settings.max_age, self.node.broker()) else {
            return Ok(());
        };
        let stream = &self.settings.stream;
        let state = broker.stream_state(stream).await?;
        let since = state.told.plus_ms(age.as_i64().saturating_neg());
        let from = streams::first_since(&*broker, stream, &state, since).await?;
        if from > state.first_sequence {
            broker.trim(stream, from).await?;
        }
        Ok(())
    }
}

impl Node {
    /// What the archive has of an instance.
    ///
    /// # Errors
    /// [`ControlError::Unavailable`] where it does not answer, or with what nobody can read.
    pub(super) async fn in_archive(&self, id: &InstanceId) -> Result<Option<ArchivedInstance>, ControlError> {
        let Some(settings) = &self.manifest.storage.archive else {
            return Ok(None);
        };
        let broker = self
            .broker()
            .ok_or_else(|| ControlError::Unavailable(self.waiting_for()))?;
        let subject = subject::archive(&self.manifest.cluster, id);
        let unavailable =
            |error: String| ControlError::Unavailable(format!("archive {}: {error}", settings.stream));
        let found = broker.last_by_subject(&settings.stream, &subject).await;
        let found = found.map_err(|error| unavailable(error.to_string()))?;
        let Some(found) = found else {
            return Ok(None);
        };
        let read = self
            .tasks
            .blocking(move || Entry::unpack(&found.payload))
            .await
            .map_err(unavailable)?;
        let entry = read.map_err(|error| unavailable(error.to_string()))?;
        Ok(Some(entry.into_instance()))
    }
}
