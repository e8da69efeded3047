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
mod seen;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use tokio::sync::oneshot;

use super::control::blocking;
use super::inputs::Reading;
use super::node::Node;
use super::shards::Shown;
use super::{pages, streams};
use crate::kernel::ids::InstanceId;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::subject;
use crate::kernel::view::Kept;
use crate::ports::broker::{Broker, BrokerError, Expect, Publication, StoredMessage, StreamSpec};
use crate::ports::control::{ArchivedInstance, ControlError};
use crate::shard::ShardState;
use crate::shard::mailbox::Mail;
use crate::storage::read::Found;
use crate::storage::rows::{EndedRow, HistoryRow};
use crate::storage::{ArchiveSettings, Outdated};
use crate::tasks::Task;
use entry::{Entry, Inputs};
pub(super) use seen::{Look, Seen, WAITS_LONG_MS};

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
/// The generation of the instance.
const GENERATION_HEADER: &str = "saga-runner-archive-generation";
/// When that began, in milliseconds since 1970.
const STARTED_HEADER: &str = "saga-runner-archive-started";
/// Sequence of the entry of a later generation, which was archived before.
const NEWEST_HEADER: &str = "saga-runner-archive-newest";
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
        let may_send = running.keeper().is_some_and(|keeper| keeper.may_send_for_all());
        let (mut seen, mut is_whole, mut trouble) = (Look::default(), true, None);
        for shard in running.shards.all() {
            if shard.status.state() != ShardState::Running {
                continue;
            }
            let outdated = self.node.manifest.storage.keep().outdated(self.node.clock.now());
            let due = self.due(&shard, outdated).await?;
            let found = due.len();
            if found == 0 {
                continue;
            }
            if !may_send {
                seen.add(&due, outdated);
                seen.reason = Some("this process may not send for all of its shards".to_owned());
                continue;
            }
            let mut waiting = Look::default();
            waiting.add(&due, outdated);
            match self.archive(broker.as_ref(), &shard, due).await {
                Ok(()) => is_whole &= found < LOOK_MAX,
                Err(error) => {
                    seen.waiting += waiting.waiting;
                    seen.oldest_ms = seen.oldest_ms.max(waiting.oldest_ms);
                    trouble = Some(error);
                }
            }
        }
        if let Some(error) = &trouble {
            (seen.reason, seen.is_trouble) = (Some(error.clone()), true);
        }
        running.archive_seen.put(seen, &self.node.metrics);
        trouble.map_or(Ok(is_whole), Err)
    }

    async fn due(&self, shard: &Shown, outdated: Outdated) -> Result<Vec<(u64, EndedRow)>, String> {
        let keep = self.node.manifest.storage.keep();
        let tenants: Vec<_> = keep
            .counts()
            .map(|(tenant, count)| (tenant.clone(), count))
            .collect();
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
        let stored = stream::iter(by_key(due)).map(|rows| self.store_all(broker, shard, rows));
        let stored: Vec<_> = stored.buffer_unordered(AT_ONCE).collect().await;
        let (mut numbers, mut trouble) = (Vec::new(), None);
        for (of_key, error) in stored {
            numbers.extend(of_key);
            trouble = error.or(trouble);
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

    /// Stores the generations of one key in their order: the numbers of those that the archive has, and why it has not the next one.
    async fn store_all(
        &self,
        broker: &dyn Broker,
        shard: &Shown,
        rows: Vec<(u64, EndedRow)>,
    ) -> (Vec<u64>, Option<String>) {
        let mut numbers = Vec::with_capacity(rows.len());
        for (number, row) in rows {
            match self.store(broker, shard, row).await {
                Ok(()) => numbers.push(number),
                Err(error) => return (numbers, Some(error)),
            }
        }
        (numbers, None)
    }

    /// Stores one entry, unless it is there.
    async fn store(&self, broker: &dyn Broker, shard: &Shown, row: EndedRow) -> Result<(), String> {
        let instance = row.instance.clone();
        let id = self.id(&row);
        let subject = subject::archive(&self.node.manifest.cluster, &instance);
        let stream = &self.settings.stream;
        let found = on_subject(broker, stream, &subject).await;
        let found = found.map_err(|error| error.to_string())?;
        let has_id = |message: &StoredMessage| header(message, ID_HEADER) == Some(id.as_str());
        if found
            .as_ref()
            .is_some_and(|(last, newest)| has_id(last) || has_id(newest))
        {
            return Ok(());
        }
        let (started, generation) = place(&row);
        let mut headers = vec![
            (ID_HEADER.to_owned(), id.clone()),
            (GENERATION_HEADER.to_owned(), generation.to_string()),
            (STARTED_HEADER.to_owned(), started.to_string()),
        ];
        // Which generation was due first is not said. The newest of a key is found all the same.
        let later = found.map(|(_, newest)| newest).filter(|newest| {
            let started_then = number(newest, STARTED_HEADER);
            let generation_then = number(newest, GENERATION_HEADER);
            (started_then, generation_then) > (Some(started), Some(i64::from(generation)))
        });
        headers.extend(later.map(|later| (NEWEST_HEADER.to_owned(), later.sequence.to_string())));
        let payload = self.entry(shard, row).await?;
        let publication = Publication {
            stream: stream.clone(),
            subject,
            headers,
            payload: payload.into(),
            expect: Expect::MessageId(id),
        };
        let stored = broker.publish(publication).await;
        if is_planted(Bug::ArchivedUnacknowledged) {
            return Ok(());
        }
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
        let history = blocking(&self.node.tasks, move || reader.history(last, HISTORY_MAX + 1));
        let mut history = history.await.map_err(|error| error.to_string())?;
        let is_cut = history.len() > HISTORY_MAX;
        history.truncate(HISTORY_MAX);
        let inputs = if is_cut {
            // Without the first ones nothing can be replayed.
            None
        } else {
            self.inputs(shard, &row, &history).await?
        };
        let found = Found::Ended(row.summary);
        let view = self.node.view(&row.instance, &found, Kept::default());
        let views = history.into_iter();
        let views = views.map(|(_, row)| self.node.history_view(row));
        let archived = self.node.clock.now().rfc3339();
        let entry = Entry::new(&view, views, is_cut, inputs, archived).map_err(|error| error.to_string())?;
        let most = self.settings.entry_bytes_max;
        self.node.tasks.blocking(move || entry.pack(most)).await
    }

    /// What the rows of a history are about, from the first one on, as much as an entry may have.
    async fn inputs(
        &self,
        shard: &Shown,
        row: &EndedRow,
        history: &[(u64, HistoryRow)],
    ) -> Result<Option<Inputs>, String> {
        let most = self.settings.inputs_bytes_max;
        if most == 0 || self.node.manifest.storage.keep_input_bytes == 0 {
            return Ok(None);
        }
        let told = |error: ControlError| error.to_string();
        let numbers: Vec<u64> = history.iter().rev().map(|(number, _)| *number).collect();
        let reader = shard.reader.clone();
        let kept = blocking(&self.node.tasks, move || reader.kept_with_history(numbers, most));
        let kept = kept.await.map_err(told)?;
        let reading = Reading::of(&self.node, &row.instance, &row.summary.record).map_err(told)?;
        let (mut inputs, mut whole, mut left) = (Vec::with_capacity(history.len()), 0, most);
        let mut kept = kept.into_iter();
        for (number, row) in history.iter().rev().cloned() {
            let kept = kept.next().filter(|_| whole == inputs.len());
            let taken = match kept {
                Some(kept) => {
                    let without = reading.without_body(row.clone());
                    let taken = reading.recorded(number, row, kept).await.map_err(told)?;
                    let bytes = pages::json_bytes(&taken);
                    if bytes <= left {
                        left -= bytes;
                        whole += 1;
                        taken
                    } else {
                        without
                    }
                }
                None => reading.without_body(row),
            };
            inputs.push(taken);
        }
        Ok(Some(Inputs { inputs, whole }))
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

/// Ended instances by their keys, the generations of each in their order.
fn by_key(due: Vec<(u64, EndedRow)>) -> Vec<Vec<(u64, EndedRow)>> {
    let mut keys: BTreeMap<InstanceId, Vec<(u64, EndedRow)>> = BTreeMap::new();
    for (number, row) in due {
        keys.entry(row.instance.clone()).or_default().push((number, row));
    }
    let mut keys: Vec<_> = keys.into_values().collect();
    for rows in &mut keys {
        rows.sort_by_key(|(_, row)| place(row));
    }
    keys
}

/// The last entry on a subject, and that of the newest generation.
async fn on_subject(
    broker: &dyn Broker,
    stream: &str,
    subject: &str,
) -> Result<Option<(StoredMessage, StoredMessage)>, BrokerError> {
    let Some(last) = broker.last_by_subject(stream, subject).await? else {
        return Ok(None);
    };
    let Some(sequence) = header(&last, NEWEST_HEADER).and_then(|text| text.parse().ok()) else {
        return Ok(Some((last.clone(), last)));
    };
    // It may be too old by now.
    let newest = broker.message_at(stream, sequence).await?;
    let newest = newest.filter(|newest| newest.subject == subject);
    let newest = newest.unwrap_or_else(|| last.clone());
    Ok(Some((last, newest)))
}

/// By what the lives of a key are ordered: a key that nothing is known of any more begins with the first generation again.
fn place(row: &EndedRow) -> (i64, u32) {
    let record = &row.summary.record;
    (record.started.0, record.generation)
}

fn number(message: &StoredMessage, wanted: &str) -> Option<i64> {
    header(message, wanted)?.parse().ok()
}

fn header<'m>(message: &'m StoredMessage, wanted: &str) -> Option<&'m str> {
    let mut headers = message.headers.iter();
    let found = headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
    found.map(|(_, value)| value.as_str())
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
        let found = on_subject(broker.as_ref(), &settings.stream, &subject).await;
        let found = found.map_err(|error| unavailable(error.to_string()))?;
        let Some((_, found)) = found else {
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
