//! The record by which the broker knows a cluster.
//!
//! Its id is part of every idempotency key. It lies in the broker and in the folder, so that neither can lose it alone:
//!
//! ```text
//! folder  record   what happens
//! id      same     the id
//! id      other    refused
//! id      none     the id, and the record is written again
//! fresh   id       the id; what that means for its shards is decided by their owners (`src/app/ownership/`)
//! fresh   none     another id is drawn; where the runner's own streams hold something, or have held something and have consumers
//!                  of this group, only if the loss is adopted
//! ```

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::StartError;
use super::ownership::{Adoption, Entries, ReadError};
use crate::config::Manifest;
use crate::kernel::ids::ClusterId;
use crate::kernel::input::SourceStream;
use crate::ports::broker::{Broker, BrokerError, BucketSpec, KnownQueue, PutError, StreamState};
use crate::ports::randomness::Randomness;

/// How often the record is read and written before somebody else's writes are told as a fault.
const ROUNDS_MAX: usize = 8;

/// Consumers that a message names.
const CONSUMERS_TOLD_MAX: usize = 5;

/// What the broker keeps of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    id: ClusterId,
    /// The stream of its commands: two clusters of one name are told apart by it.
    commands: String,
    shards: u16,
    /// Shards whose state was created at some time.
    existed: Vec<u16>,
}

/// A cluster whose record is in the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub id: ClusterId,
    /// Shards whose state was created at some time.
    pub existed: BTreeSet<u16>,
}

impl Known {
    fn of(record: Record) -> Self {
        Self {
            id: record.id,
            existed: record.existed.into_iter().collect(),
        }
    }
}

/// Why there is no id yet.
pub(super) enum Trouble {
    /// Waiting may help.
    Unavailable(String),
    Refused(StartError),
}

impl From<BrokerError> for Trouble {
    fn from(error: BrokerError) -> Self {
        match error {
            BrokerError::Unavailable(message) => Self::Unavailable(message),
            error => Self::Refused(StartError::Broker(error.to_string())),
        }
    }
}

impl From<ReadError> for Trouble {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Broker(error) => error.into(),
            error @ ReadError::Unreadable { .. } => Self::Refused(StartError::Identity(error.to_string())),
        }
    }
}

impl From<PutError> for Trouble {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Refused(_) => Self::Refused(StartError::Broker(error.to_string())),
            PutError::Conflict | PutError::Unavailable(_) | PutError::Unknown(_) => {
                Self::Unavailable(error.to_string())
            }
        }
    }
}

/// The bucket of the record.
pub(super) fn bucket(manifest: &Manifest) -> BucketSpec {
    BucketSpec {
        name: manifest.streams.cluster_bucket.clone(),
        replicas: manifest.streams.replicas,
    }
}

fn key(manifest: &Manifest) -> String {
    format!("{}.cluster", manifest.cluster)
}

/// The cluster, whose record is there when this returns. `folder` is the id that the folder knows.
pub(super) async fn identify(
    broker: &dyn Broker,
    manifest: &Manifest,
    randomness: &dyn Randomness,
    folder: Option<ClusterId>,
    streams: &[StreamState; 3],
    adoption: &Adoption,
) -> Result<Known, Trouble> {
    prepare_bucket(broker, manifest).await?;
    for _ in 0..ROUNDS_MAX {
        if let Some((record, revision)) = read(broker, manifest).await? {
            check(&record, manifest, folder).map_err(Trouble::Refused)?;
            let shards = manifest.shards;
            if record.shards == shards {
                return Ok(Known::of(record));
            }
            // Before the folder knows it: later the folder would be refused.
            match write(broker, manifest, &Record { shards, ..record }, Some(revision)).await {
                Ok(_) | Err(PutError::Conflict) => continue,
                Err(error) => return Err(error.into()),
            }
        }
        let mut existed = Vec::new();
        let id = if let Some(id) = folder {
            tracing::warn!(cluster_id = %id, "broker has no record of this cluster; writing it again");
            id
        } else {
            if let Some(found) = remains(broker, manifest, streams).await? {
                let given_up = give_up(broker, manifest, adoption, &found).await?;
                existed = (0..manifest.shards).collect();
                tracing::warn!(
                    target: "audit",
                    cluster = manifest.cluster,
                    given_up,
                    reason = adoption.reason(),
                    "loss of the cluster id was adopted; a new id is generated, and every idempotency key changes"
                );
            }
            ClusterId(randomness.draw().to_be_bytes())
        };
        let record = Record {
            id,
            commands: manifest.streams.workflow_commands.name.clone(),
            shards: manifest.shards,
            existed,
        };
        match write(broker, manifest, &record, None).await {
            Ok(_) => return Ok(Known::of(record)),
            // Another process was faster, and its record counts.
            Err(PutError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Trouble::Unavailable(
        "the record of the cluster changes all the time".to_owned(),
    ))
}

/// Makes the bucket, or holds it against what is asked for.
pub(super) async fn prepare_bucket(broker: &dyn Broker, manifest: &Manifest) -> Result<(), BrokerError> {
    let spec = bucket(manifest);
    if manifest.streams.manage {
        return broker.ensure_bucket(&spec).await;
    }
    let differences = broker.check_bucket(&spec).await?;
    if differences.is_empty() {
        return Ok(());
    }
    Err(BrokerError::Mismatch {
        stream: spec.name,
        differences,
    })
}

async fn read(broker: &dyn Broker, manifest: &Manifest) -> Result<Option<(Record, u64)>, Trouble> {
    let name = &manifest.streams.cluster_bucket;
    let entry = match broker.entry(name, &key(manifest)).await {
        // It was there just now, and is lost with all that it had. Whoever writes finds out, and it is made again.
        Err(BrokerError::NoStream(_)) => None,
        entry => entry?,
    };
    let Some(entry) = entry else {
        return Ok(None);
    };
    match serde_json::from_slice(&entry.value) {
        Ok(record) => Ok(Some((record, entry.revision))),
        Err(error) => Err(Trouble::Refused(StartError::Identity(format!(
            "bucket {name}, entry {}: cannot read the record of the cluster: {error}",
            key(manifest)
        )))),
    }
}

async fn write(
    broker: &dyn Broker,
    manifest: &Manifest,
    record: &Record,
    expected: Option<u64>,
) -> Result<u64, PutError> {
    let value = Bytes::from(serde_json::to_vec(record).expect("a record is plain data"));
    broker
        .put_entry(&manifest.streams.cluster_bucket, &key(manifest), value, expected)
        .await
}

/// Whether the record is that of this manifest and this folder.
fn check(record: &Record, manifest: &Manifest, folder: Option<ClusterId>) -> Result<(), StartError> {
    let place = format!(
        "bucket {}, entry {}",
        manifest.streams.cluster_bucket,
        key(manifest)
    );
    if let Some(folder) = folder.filter(|folder| *folder != record.id) {
        return Err(StartError::Identity(format!(
            "{}: the data belongs to cluster {folder}, and the broker knows {} ({place}); correct `data_dir` or the broker",
            manifest.data_dir.display(),
            record.id
        )));
    }
    let commands = &manifest.streams.workflow_commands.name;
    if record.commands != *commands {
        return Err(StartError::Identity(format!(
            "{place} is of the cluster whose stream of commands is {}, this one has {commands}; set another `cluster` or `streams.cluster_bucket`",
            record.commands
        )));
    }
    // Before any of them has existed, the number may still be changed.
    let may_change = folder.is_none() && record.existed.is_empty();
    if record.shards != manifest.shards && !may_change {
        return Err(StartError::Identity(format!(
            "{place} is of a cluster with {} shard(s), the manifest says {}",
            record.shards, manifest.shards
        )));
    }
    Ok(())
}

/// What speaks against it that the cluster is new.
async fn remains(
    broker: &dyn Broker,
    manifest: &Manifest,
    streams: &[StreamState; 3],
) -> Result<Option<String>, BrokerError> {
    let own = [SourceStream::WorkflowCommands, SourceStream::WorkflowEvents];
    let messages = own.into_iter().find_map(|stream| {
        let state = &streams[stream.index()];
        let name = &state.identity.name;
        (state.messages > 0).then(|| format!("stream {name} holds {} message(s)", state.messages))
    });
    if messages.is_some() {
        return Ok(messages);
    }
    let purged = own
        .iter()
        .map(|stream| &streams[stream.index()])
        .find(|state| state.last_sequence > 0);
    let Some(purged) = purged else {
        // Workers may come before the sagas, and make their consumers.
        return Ok(None);
    };
    let commands = &streams[SourceStream::WorkflowCommands.index()].identity.name;
    let of_group = |queue: &KnownQueue| queue.group.as_deref() == Some(manifest.group());
    let queues = broker.queues(commands).await?.into_iter().filter(of_group);
    let mut consumers: Vec<String> = queues.map(|queue| queue.durable).collect();
    if consumers.is_empty() {
        return Ok(None);
    }
    let count = consumers.len();
    consumers.truncate(CONSUMERS_TOLD_MAX);
    let more = if count > consumers.len() { ", ..." } else { "" };
    let consumers = consumers.join(", ");
    Ok(Some(format!(
        "stream {} is empty, but has held {} message(s), and {commands} has {count} consumer(s) ({consumers}{more})",
        purged.identity.name, purged.last_sequence
    )))
}

/// Whether the operator gives up every shard of a cluster whose id is lost, by the epochs that are known of them; what that
/// is, for the log.
async fn give_up(
    broker: &dyn Broker,
    manifest: &Manifest,
    adoption: &Adoption,
    found: &str,
) -> Result<String, Trouble> {
    let entries = Entries::of(manifest);
    let (mut flags, mut is_adopted) = (Vec::new(), true);
    for shard in 0..manifest.shards {
        let epoch = entries
            .read(broker, shard)
            .await?
            .map_or(0, |(record, _)| record.epoch);
        is_adopted &= adoption.of(shard) == Some(epoch);
        flags.push(format!("{shard}@{epoch}"));
    }
    let flags = flags.join(",");
    if is_adopted {
        return Ok(flags);
    }
    Err(Trouble::Refused(StartError::Unidentified(format!(
        "{found} of a cluster whose id is lost: neither {} nor bucket {} knows it; restore one of them, or adopt the loss: run --adopt-loss {flags} --reason TEXT generates a new id, which changes every idempotency key",
        manifest.data_dir.display(),
        manifest.streams.cluster_bucket
    ))))
}

/// Notes in the record that these shards exist: from now on, a folder without them has lost them.
pub(super) async fn note_shards(
    broker: &dyn Broker,
    manifest: &Manifest,
    shards: &[u16],
) -> Result<(), Trouble> {
    for _ in 0..ROUNDS_MAX {
        let Some((record, revision)) = read(broker, manifest).await? else {
            // The next start writes it again.
            return Ok(());
        };
        let mut existed: Vec<u16> = record.existed.iter().chain(shards).copied().collect();
        existed.sort_unstable();
        existed.dedup();
        if existed == record.existed {
            return Ok(());
        }
        match write(broker, manifest, &Record { existed, ..record }, Some(revision)).await {
            Ok(_) => return Ok(()),
            Err(PutError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Trouble::Unavailable(
        "the record of the cluster changes all the time".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::app::randomness::SystemRandomness;
    use crate::inproc::{InprocBroker, Settings};
    use crate::ports::broker::{Expect, Publication, StreamSpec};

    /// A broker of its own, and a manifest for it.
    struct Place {
        broker: Arc<InprocBroker>,
        manifest: Manifest,
        _dir: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a folder");
            let clock = Arc::new(crate::app::SystemClock::new());
            let broker = InprocBroker::open(dir.path(), Settings::default(), clock).expect("opens");
            let manifest = Manifest::named("shop");
            Self {
                broker,
                manifest,
                _dir: dir,
            }
        }

        async fn identify(&self, folder: Option<ClusterId>) -> Result<ClusterId, String> {
            let known = self.identify_or_adopt(folder, &Adoption::default()).await;
            known.map(|known| known.id)
        }

        async fn identify_or_adopt(
            &self,
            folder: Option<ClusterId>,
            adoption: &Adoption,
        ) -> Result<Known, String> {
            let streams = crate::app::streams::prepare(&*self.broker, &self.manifest)
                .await
                .expect("streams");
            let randomness = &SystemRandomness;
            let outcome = identify(
                &*self.broker,
                &self.manifest,
                randomness,
                folder,
                &streams,
                adoption,
            )
            .await;
            outcome.map_err(|trouble| match trouble {
                Trouble::Unavailable(message) => message,
                Trouble::Refused(error) => error.to_string(),
            })
        }

        async fn publish(&self, stream: &str, subject: &str) {
            let message = Publication {
                stream: stream.to_owned(),
                subject: subject.to_owned(),
                headers: Vec::new(),
                payload: Bytes::from_static(b"{}"),
                expect: Expect::Nothing,
            };
            self.broker.publish(message).await.expect("stored");
        }
    }

    #[tokio::test]
    async fn a_new_cluster_draws_an_id_and_every_later_folder_takes_it() {
        let place = Place::new();
        let id = place.identify(None).await.expect("new");
        assert_eq!(
            place.identify(None).await,
            Ok(id),
            "a fresh folder beside the record"
        );
        assert_eq!(place.identify(Some(id)).await, Ok(id));
        assert_ne!(Place::new().identify(None).await, Ok(id), "ids are random");
    }

    #[tokio::test]
    async fn processes_that_begin_a_cluster_at_once_agree_on_one_id() {
        let place = Place::new();
        let ids = futures::future::join_all((0..8).map(|_| place.identify(None))).await;
        assert!(ids[0].is_ok() && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }

    #[tokio::test]
    async fn a_folder_of_another_cluster_is_refused() {
        let place = Place::new();
        place.identify(None).await.expect("new");
        let message = place
            .identify(Some(ClusterId([9; 16])))
            .await
            .expect_err("refused");
        assert!(message.contains("SR0410"), "{message}");
    }

    #[tokio::test]
    async fn a_lost_record_is_written_again_from_the_folder() {
        let (place, id) = (Place::new(), ClusterId([9; 16]));
        place.publish_to_commands().await;
        assert_eq!(place.identify(Some(id)).await, Ok(id));
        assert_eq!(place.identify(None).await, Ok(id), "it is in the record again");
    }

    #[tokio::test]
    async fn without_folder_and_record_only_empty_streams_make_a_new_cluster() {
        let place = Place::new();
        place.publish_to_commands().await;
        let message = place.identify(None).await.expect_err("refused");
        assert!(
            message.contains("SR0411") && message.contains("WORKFLOW_COMMANDS"),
            "{message}"
        );
    }

    /// It was refused whatever the operator said, so that only an emptied stream was a way out.
    #[tokio::test]
    async fn where_folder_and_record_are_lost_the_operator_is_told_what_giving_up_means_and_can() {
        let mut place = Place::new();
        place.manifest.shards = 2;
        place.publish_to_commands().await;
        let message = place.identify(None).await.expect_err("refused");
        assert!(
            message.contains("--adopt-loss 0@0,1@0") && message.contains("changes every idempotency key"),
            "{message}"
        );
        let adopting = |losses: &[&str]| {
            let losses = losses.iter().map(|loss| loss.parse().expect("a loss"));
            Adoption::new(losses, "both disks broke".to_owned())
        };
        let of_one = place.identify_or_adopt(None, &adopting(&["0@0"])).await;
        assert!(of_one.is_err(), "the other shard is not given up: {of_one:?}");
        let known = place
            .identify_or_adopt(None, &adopting(&["0@0", "1@0"]))
            .await
            .expect("adopted");
        assert_eq!(
            known.existed,
            [0, 1].into(),
            "its shards are lost ones, not new ones"
        );
        assert_eq!(
            place.identify(None).await,
            Ok(known.id),
            "from now on it has this id"
        );
    }

    #[tokio::test]
    async fn a_record_of_other_streams_or_shards_is_not_taken() {
        let mut place = Place::new();
        let id = place.identify(None).await.expect("new");
        place.manifest.shards += 1;
        let message = place.identify(Some(id)).await.expect_err("refused");
        assert!(
            message.contains("SR0410") && message.contains("shard"),
            "{message}"
        );
        assert_eq!(
            place.identify(None).await,
            Ok(id),
            "a fresh folder of another shape"
        );
        assert!(note_shards(&*place.broker, &place.manifest, &[0]).await.is_ok());
        assert_eq!(
            place.identify(Some(id)).await,
            Ok(id),
            "the record has followed it"
        );
        "OTHER".clone_into(&mut place.manifest.streams.workflow_commands.name);
        let spec = StreamSpec {
            name: "OTHER".to_owned(),
            subjects: vec!["other.>".to_owned()],
            ..crate::app::streams::specs(&place.manifest)[2].clone()
        };
        place.broker.ensure_stream(&spec).await.expect("made");
        let state = place.broker.stream_state("OTHER").await.expect("there");
        let streams = [state.clone(), state.clone(), state];
        let (randomness, adoption) = (&SystemRandomness, &Adoption::default());
        let outcome = identify(
            &*place.broker,
            &place.manifest,
            randomness,
            None,
            &streams,
            adoption,
        )
        .await;
        let Err(Trouble::Refused(error)) = outcome else {
            panic!("refused");
        };
        assert!(error.to_string().contains("SR0410"), "{error}");
    }

    #[tokio::test]
    async fn the_record_names_the_shards_once_they_exist() {
        let place = Place::new();
        place.identify(None).await.expect("new");
        let existed = async || {
            let found = read(&*place.broker, &place.manifest).await;
            found.ok().flatten().expect("there").0.existed
        };
        assert_eq!(existed().await, Vec::<u16>::new());
        assert!(
            note_shards(&*place.broker, &place.manifest, &[1, 2])
                .await
                .is_ok()
        );
        assert_eq!(existed().await, [1, 2]);
        assert!(
            note_shards(&*place.broker, &place.manifest, &[0, 2])
                .await
                .is_ok()
        );
        assert_eq!(existed().await, [0, 1, 2]);
    }

    impl Place {
        /// As a cluster leaves them that has worked.
        async fn publish_to_commands(&self) {
            crate::app::streams::prepare(&*self.broker, &self.manifest)
                .await
                .expect("streams");
            self.publish("WORKFLOW_COMMANDS", "effect.charge.x").await;
        }
    }
}
