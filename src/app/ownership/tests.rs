//! Claims and renewals, on a broker in this process and with state on the disk.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;

use super::absent::Absent;
use super::adoption::{Adoption, Loss};
use super::claim::{Claimed, Claiming};
use super::keeper::{Keeper, Kept};
use super::record::{Entries, OwnerRecord, Token};
use crate::app::adapters::SystemAdapters;
use crate::app::cluster;
use crate::app::randomness::SystemRandomness;
use crate::app::sagas::Lowest;
use crate::config::{BrokerKind, Manifest};
use crate::inproc::{InprocBroker, Settings};
use crate::intake::Marks;
use crate::kernel::duration::Millis;
use crate::kernel::ids::{ClusterId, TimeMs};
use crate::ports::broker::Broker as _;
use crate::ports::clock::Clock;
use crate::storage::{Decided, HeldRow, StorageError, write::Counters};
use crate::tasks::Tasks;
use crate::telemetry::Metrics;

/// A clock that stands until it is moved.
#[derive(Default)]
struct Moved(AtomicU64);

impl Clock for Moved {
    fn now(&self) -> TimeMs {
        TimeMs(1_700_000_000_000)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Acquire))
    }
}

/// A broker, and folders that use it as if it were far away.
struct Place {
    broker: Arc<InprocBroker>,
    clock: Arc<Moved>,
    manifest: Manifest,
    dir: TempDir,
    waited_for: Mutex<Vec<String>>,
}

impl Place {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let system = Arc::new(crate::app::SystemClock::new());
        let broker =
            InprocBroker::open(&dir.path().join("broker"), Settings::default(), system).expect("opens");
        let mut manifest = Manifest::named("shop");
        manifest.broker.kind = BrokerKind::Nats;
        manifest.shards = 1;
        manifest.ownership.renew_every = Millis(1_000);
        manifest.ownership.send_within = Millis(2_000);
        manifest.ownership.take_over_after = Millis(3_000);
        broker
            .ensure_bucket(&cluster::bucket(&manifest))
            .await
            .expect("a bucket");
        crate::app::streams::prepare(&*broker, &manifest)
            .await
            .expect("streams");
        Self {
            broker,
            clock: Arc::new(Moved(AtomicU64::new(10_000))),
            manifest,
            dir,
            waited_for: Mutex::default(),
        }
    }

    fn folder(&self, name: &str) -> Manifest {
        let mut manifest = self.manifest.clone();
        manifest.data_dir = self.dir.path().join(name);
        manifest
    }

    async fn claim_with(&self, folder: &str, existed: &[u16], adoption: Adoption) -> Result<Claimed, String> {
        let manifest = self.folder(folder);
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let claiming = Claiming {
            broker: &*self.broker,
            manifest: &manifest,
            adapters: &SystemAdapters(Arc::default()),
            randomness: &SystemRandomness,
            clock: &clock,
            cluster: ClusterId([7; 16]),
            existed: &existed.iter().copied().collect(),
            adoption: &adoption,
            locked_for: Duration::ZERO,
            waiting_for: &|what| {
                self.clock.0.fetch_add(1_000, Ordering::AcqRel);
                self.waited_for.lock().expect("not poisoned").push(what);
            },
        };
        let mut claimed = claiming.claim(&[0]).await.map_err(|error| error.to_string())?;
        Ok(claimed.remove(0))
    }

    async fn claim(&self, folder: &str) -> Result<Claimed, String> {
        self.claim_with(folder, &[], Adoption::default()).await
    }

    async fn adopt(&self, folder: &str, epoch: u64) -> Result<Claimed, String> {
        let loss = Loss { shard: 0, epoch };
        let adoption = Adoption::new([loss], "the disk broke".to_owned());
        self.claim_with(folder, &[0], adoption).await
    }

    fn keeper(&self, claimed: &Claimed) -> Arc<Keeper> {
        let kept = Kept::of(claimed, claimed.store.reader(), self.clock.monotonic());
        let (metrics, clock) = (
            Arc::new(Metrics::new()),
            Arc::clone(&self.clock) as Arc<dyn Clock>,
        );
        let keeper = Keeper::new(
            Arc::clone(&self.broker) as _,
            self.manifest.clone(),
            Arc::clone(&self.clock) as _,
            Arc::clone(&metrics),
            Tasks::new(&metrics, &clock),
            Marks::default(),
        );
        keeper.add(kept);
        keeper
    }

    async fn record(&self) -> (OwnerRecord, u64) {
        let found = Entries::of(&self.manifest).read(&*self.broker, 0).await;
        found.expect("readable").expect("there")
    }

    async fn put(&self, record: &OwnerRecord) {
        let (_, revision) = self.record().await;
        let entries = Entries::of(&self.manifest);
        let written = entries.write(&*self.broker, 0, record, Some(revision)).await;
        written.expect("written");
    }

    /// The broker knows nothing of any owner any more.
    async fn lose_records(&mut self) {
        self.manifest.streams.cluster_bucket = "made-anew".to_owned();
        let made = self.broker.ensure_bucket(&cluster::bucket(&self.manifest)).await;
        made.expect("a bucket");
    }

    /// As if the process of the record had been on another host.
    async fn move_elsewhere(&self) {
        let (mut record, _) = self.record().await;
        record.place.boot = "another boot".to_owned();
        self.put(&record).await;
    }
}

/// Lets the log of a shard reach so far.
fn apply(claimed: &Claimed, log_sequence: u64) {
    claimed
        .store
        .write::<_, StorageError>(|batch| {
            batch.put_counters(&Counters {
                log_sequence,
                ..Counters::default()
            })
        })
        .expect("commits");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("created");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path = entry.expect("readable").path();
        let to = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            std::fs::copy(&path, &to).expect("copied");
        }
    }
}

#[tokio::test]
async fn a_folder_goes_on_with_the_next_epoch_and_a_second_one_is_refused() {
    let place = Place::new().await;
    let first = place.claim("a").await.expect("new");
    assert_eq!(first.record.epoch, 1);
    assert!(first.fence.is_open());
    let refusal = place.claim("b").await.err().expect("refused");
    assert!(
        refusal.contains("SR0205") && refusal.contains("--adopt-loss 0@1") && refusal.contains("host "),
        "{refusal}"
    );
    assert!(
        !place.folder("b").data_dir.exists(),
        "what is refused leaves nothing"
    );
    drop(first);
    assert_eq!(place.claim("a").await.expect("again").record.epoch, 2);
    assert!(place.waited_for.lock().expect("not poisoned").is_empty());
}

/// The folder told of no cluster, so another id was drawn where the broker had lost its record as well, and the shards were
/// refused as those of another cluster.
#[tokio::test]
async fn a_folder_whose_claim_was_cut_off_knows_its_cluster() {
    let place = Place::new().await;
    drop(place.claim("a").await.expect("new"));
    let known = crate::app::shards::known(&place.folder("a")).expect("readable");
    let known = known.expect("its shard has the id");
    assert_eq!(known.id, ClusterId([7; 16]));
    assert!(known.existed.is_empty(), "whether all are claimed is noted later");
}

#[tokio::test]
async fn a_shard_that_has_existed_is_not_begun_empty_without_an_order() {
    let place = Place::new().await;
    let refusal = place.claim_with("a", &[0], Adoption::default()).await;
    let refusal = refusal.err().expect("refused");
    assert!(refusal.contains("SR0205") && refusal.contains("0@0"), "{refusal}");
    let adopted = place.adopt("a", 0).await.expect("adopted");
    assert_eq!(adopted.record.epoch, 1);
}

#[tokio::test]
async fn a_shard_given_up_by_an_operator_begins_empty_and_the_old_folder_is_refused() {
    let place = Place::new().await;
    let first = place.claim("a").await.expect("new");
    place.keeper(&first).release().await;
    drop(first);
    let refusal = place.adopt("b", 7).await.err().expect("another epoch");
    assert!(refusal.contains("0@1"), "{refusal}");
    let second = place.adopt("b", 1).await.expect("adopted");
    assert_eq!(second.record.epoch, 2);
    drop(second);
    let again = place.adopt("b", 1).await.expect("nothing to adopt any more");
    assert_eq!(again.record.epoch, 3);
    drop(again);
    let refusal = place.claim("a").await.err().expect("refused");
    assert!(refusal.contains("SR0209") && refusal.contains("0@3"), "{refusal}");
}

#[tokio::test]
async fn a_folder_at_another_place_waits_until_its_owner_was_quiet() {
    let place = Place::new().await;
    drop(place.claim("a").await.expect("new"));
    place.move_elsewhere().await;
    let moved = place.claim("a").await.expect("it was quiet");
    assert_eq!(moved.record.epoch, 2);
    let waited_for = place.waited_for.lock().expect("not poisoned");
    assert_eq!(waited_for.len(), 3, "one second each: {waited_for:?}");
}

/// Another process had claimed the shard meanwhile and its record was lost again: both were at work.
#[tokio::test]
async fn time_in_which_nobody_looked_for_a_lost_record_does_not_count() {
    let mut place = Place::new().await;
    drop(place.claim("a").await.expect("new"));
    place.lose_records().await;
    let claim = place.claim("a");
    let stand_still = async {
        while place.waited_for.lock().expect("not poisoned").is_empty() {
            tokio::task::yield_now().await;
        }
        place.clock.0.fetch_add(10_000, Ordering::AcqRel);
    };
    let claimed = tokio::join!(claim, stand_still).0.expect("nobody came");
    assert_eq!(claimed.record.epoch, 2);
    let waited_for = place.waited_for.lock().expect("not poisoned");
    assert_eq!(waited_for.len(), 4, "three seconds behind that: {waited_for:?}");
}

#[tokio::test]
async fn a_folder_whose_owner_still_renews_is_refused() {
    let place = Place::new().await;
    drop(place.claim("a").await.expect("new"));
    place.move_elsewhere().await;
    let claim = place.claim("a");
    let renew = async {
        while place.waited_for.lock().expect("not poisoned").is_empty() {
            tokio::task::yield_now().await;
        }
        let (record, _) = place.record().await;
        place.put(&record).await;
    };
    let refusal = tokio::join!(claim, renew).0.err().expect("refused");
    assert!(
        refusal.contains("SR0209") && refusal.contains("stop that process"),
        "{refusal}"
    );
}

#[tokio::test]
async fn an_older_copy_is_refused_by_its_log_and_by_its_epoch_until_it_is_adopted() {
    let place = Place::new().await;
    let first = place.claim("a").await.expect("new");
    apply(&first, 5);
    place.keeper(&first).release().await;
    drop(first);
    // Taken behind a clean stop, and brought back when the shard had gone on.
    copy(&place.folder("a").data_dir, &place.folder("copy").data_dir);
    let second = place.claim("a").await.expect("again");
    drop(second);
    let refusal = place.claim("copy").await.err().expect("an older epoch");
    assert!(refusal.contains("SR0210") && refusal.contains("0@2"), "{refusal}");
    let third = place.claim("a").await.expect("again");
    let keeper = place.keeper(&third);
    drop(third);
    copy(&place.folder("a").data_dir, &place.folder("copy-2").data_dir);
    let (record, _) = place.record().await;
    place
        .put(&OwnerRecord {
            log_floor: 6,
            ..record
        })
        .await;
    drop(keeper);
    let refusal = place.claim("copy-2").await.err().expect("an older log");
    assert!(refusal.contains("SR0210"), "{refusal}");
    assert_eq!(place.adopt("copy-2", 3).await.expect("adopted").record.epoch, 4);
    let refusal = place
        .claim("a")
        .await
        .err()
        .expect("the newer one is the older one now");
    assert!(refusal.contains("SR0210"), "{refusal}");
}

#[tokio::test]
async fn a_renewal_says_what_is_durable_and_opens_the_fence_for_a_while() {
    let place = Place::new().await;
    let claimed = place.claim("a").await.expect("new");
    let keeper = place.keeper(&claimed);
    apply(&claimed, 9);
    place.clock.0.fetch_add(2_000, Ordering::AcqRel);
    assert!(!claimed.fence.is_open(), "two seconds behind the claim");
    let told = keeper.trouble(0).expect("told");
    assert!(told.contains("sends nothing"), "{told}");
    let running = tokio::spawn(Arc::clone(&keeper).run());
    claimed.fence.passed().await;
    assert_eq!(keeper.trouble(0), None);
    assert_eq!(place.record().await.0.log_floor, 9);
    keeper.release().await;
    running.await.expect("ended");
    let (record, _) = place.record().await;
    assert!(record.stopped);
    assert!(!claimed.fence.is_open(), "nothing is sent behind the release");
}

#[tokio::test]
async fn a_lost_record_is_written_again_and_one_of_another_owner_closes_the_fence_for_good() {
    let place = Place::new().await;
    let claimed = place.claim("a").await.expect("new");
    let keeper = place.keeper(&claimed);
    // The broker went back, and is another one.
    let (record, _) = place.record().await;
    place.put(&record).await;
    let running = tokio::spawn(Arc::clone(&keeper).run());
    let begun = place.record().await.1;
    loop {
        if place.record().await.1 > begun {
            break;
        }
        tokio::task::yield_now().await;
    }
    let (record, _) = place.record().await;
    let other = OwnerRecord {
        epoch: record.epoch + 1,
        ..record
    };
    place.put(&other).await;
    place.clock.0.fetch_add(1_000, Ordering::AcqRel);
    let told = loop {
        if let Some(told) = keeper.trouble(0) {
            break told;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(told.contains("another process owns it"), "{told}");
    assert!(!claimed.fence.is_open());
    keeper.release().await;
    running.await.expect("ended");
    assert_eq!(place.record().await.0, other, "it is not written over");
}

/// A broker that has lost its newest writes counts on from before them.
#[tokio::test]
async fn a_record_of_another_owner_is_not_written_over_because_it_has_the_same_revision() {
    let place = Place::new().await;
    let mut claimed = place.claim("a").await.expect("new");
    let (record, _) = place.record().await;
    let other = OwnerRecord {
        epoch: record.epoch + 1,
        claim: Token([9; 16]),
        ..record
    };
    place.put(&other).await;
    let (_, revision) = place.record().await;
    claimed.revision = revision;
    let keeper = place.keeper(&claimed);
    // For so long this process was not at work.
    place.clock.0.fetch_add(2_500, Ordering::AcqRel);
    let running = tokio::spawn(Arc::clone(&keeper).run());
    let is_taken = |told: &String| told.contains("another process owns it");
    while !keeper.trouble(0).as_ref().is_some_and(is_taken) {
        assert!(!claimed.fence.is_open());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    keeper.release().await;
    running.await.expect("ended");
    assert_eq!(place.record().await, (other, revision), "it is not written over");
}

#[tokio::test]
async fn a_folder_without_record_is_claimed_once_nobody_has_written_it_again_for_a_while() {
    let mut place = Place::new().await;
    drop(place.claim("a").await.expect("new"));
    place.lose_records().await;
    let claimed = place.claim("a").await.expect("nobody is at work");
    assert_eq!(claimed.record.epoch, 2);
    let waited_for = place.waited_for.lock().expect("not poisoned");
    assert_eq!(waited_for.len(), 3, "one second each: {waited_for:?}");
}

/// Its work would stand under places in the log that mean other work in messages of the original.
#[tokio::test]
async fn a_copy_goes_on_where_the_log_of_its_original_cannot_have_been() {
    let mut place = Place::new().await;
    let first = place.claim("a").await.expect("new");
    apply(&first, 900);
    for copied in ["b", "c"] {
        copy(&place.dir.path().join("a"), &place.dir.path().join(copied));
    }
    // Not yet renewed with what it has done since.
    apply(&first, 990);
    drop(first);
    let second = place.claim("b").await.expect("the original was quiet");
    let begins = second.store.reader().progress().expect("readable").log_sequence;
    assert!(begins > 1_000_000, "{begins}");
    assert_eq!(place.record().await.0.log_floor, begins);
    drop(second);
    let again = place.claim("b").await.expect("this very folder");
    let goes_on = again.store.reader().progress().expect("readable").log_sequence;
    assert_eq!(goes_on, begins, "nobody else was at work");
    drop(again);
    place.lose_records().await;
    let unknown = place.claim("c").await.expect("nobody is known");
    let begins = unknown.store.reader().progress().expect("readable").log_sequence;
    assert!(begins > 1_000_000, "{begins}");
}

#[tokio::test]
async fn a_bucket_that_is_gone_when_a_shard_is_claimed_is_made_again() {
    let mut place = Place::new().await;
    place.manifest.streams.cluster_bucket = "never-made".to_owned();
    let claimed = place.claim("a").await.expect("new");
    assert_eq!((claimed.record.epoch, place.record().await.0.epoch), (1, 1));
}

#[tokio::test]
async fn a_record_that_is_written_again_counts_with_its_next_renewal() {
    let mut place = Place::new().await;
    let claimed = place.claim("a").await.expect("new");
    place.lose_records().await;
    let keeper = place.keeper(&claimed);
    place.clock.0.fetch_add(2_500, Ordering::AcqRel);
    assert!(!claimed.fence.is_open(), "its time is over");
    let running = tokio::spawn(Arc::clone(&keeper).run());
    let entries = Entries::of(&place.manifest);
    while entries.read(&*place.broker, 0).await.expect("readable").is_none() {
        tokio::task::yield_now().await;
    }
    assert!(!claimed.fence.is_open(), "another owner may be there");
    while !claimed.fence.is_open() {
        place.clock.0.fetch_add(100, Ordering::AcqRel);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    keeper.release().await;
    running.await.expect("ended");
}

#[tokio::test]
async fn a_copy_is_refused_where_the_record_is_lost_and_its_owner_is_at_work() {
    let mut place = Place::new().await;
    drop(place.claim("a").await.expect("new"));
    copy(&place.dir.path().join("a"), &place.dir.path().join("b"));
    let claimed = place.claim("a").await.expect("again");
    place.lose_records().await;
    let keeper = place.keeper(&claimed);
    let renew = async {
        while place.waited_for.lock().expect("not poisoned").is_empty() {
            tokio::task::yield_now().await;
        }
        [tokio::spawn(Arc::clone(&keeper).run())]
    };
    let (claim, [running]) = tokio::join!(place.claim("b"), renew);
    let refusal = claim.err().expect("refused");
    assert!(refusal.contains("SR0210"), "{refusal}");
    keeper.release().await;
    running.await.expect("ended");
}

#[tokio::test]
async fn an_adopted_shard_sends_nothing_before_it_has_read_the_streams() {
    let place = Place::new().await;
    let first = place.claim("a").await.expect("new");
    apply(&first, 900);
    place.keeper(&first).release().await;
    drop(first);
    let adopted = place.adopt("b", 1).await.expect("adopted");
    let held = adopted.store.reader().held().expect("readable").expect("held");
    assert!(held.given_up == 1 && held.reads());
    let decided = adopted.store.reader().decided().expect("readable");
    assert_eq!(
        decided.iter().map(|row| &row.what).collect::<Vec<_>>(),
        [&Decided::Adopted {
            given_up: 1,
            fresh: true
        }]
    );
    assert!(
        adopted.record.log_floor > 900,
        "its log goes on behind that of the other"
    );
    assert!(!adopted.fence.is_open());
    drop(adopted);
    let again = place.claim("b").await.expect("the same folder");
    assert!(!again.fence.is_open(), "a crash in between");
    let keeper = place.keeper(&again);
    let told = keeper.trouble(0).expect("told");
    assert!(told.contains("read to their ends"), "{told}");
    let running = tokio::spawn(Arc::clone(&keeper).run());
    let put = |held: HeldRow| {
        let put = again
            .store
            .write::<_, StorageError>(|batch| batch.put_held(&held));
        put.expect("commits");
    };
    // As the shard writes it when it has read them.
    let read = HeldRow {
        read: Some((900, TimeMs(1))),
        ..held
    };
    put(read);
    let told = loop {
        let told = keeper.trouble(0).expect("held");
        if !told.contains("read to their ends") {
            break told;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(told.contains("saga-runner shard pending 0"), "{told}");
    assert!(!again.fence.is_open(), "a person decides");
    put(HeldRow {
        released: Some(TimeMs(2)),
        ..read
    });
    again.fence.passed().await;
    assert_eq!(keeper.trouble(0), None);
    assert_eq!(again.fence.earlier(), 900, "what may have been sent before");
    keeper.release().await;
    running.await.expect("ended");
}

/// A shard that is not open here was left out, and what it had not read was trimmed away.
#[tokio::test]
async fn where_an_absent_shard_stands_is_what_its_record_says_and_otherwise_not_known() {
    let place = Place::new().await;
    let claimed = place.claim("first").await.expect("new");
    let absent = Arc::new(Absent::new(Arc::clone(&place.broker) as _, &place.manifest));
    let lowest = |shards| Lowest::of(Arc::default(), Arc::clone(&absent), Marks::default(), shards);
    let mut record = claimed.record.clone();
    (record.positions, record.unneeded) = ([9; 3], [7, 8, 9]);
    place.put(&record).await;
    assert_eq!(
        lowest(1).positions().await,
        Some([7, 8, 9]),
        "its readers need what lies behind"
    );
    assert!(
        absent.owner(0).await.contains("epoch 1"),
        "{}",
        absent.owner(0).await
    );

    assert_eq!(lowest(2).positions().await, None, "the second one never was open");
    let entries = Entries::of(&place.manifest);
    record.unneeded = [5, 30, 40];
    entries
        .write(&*place.broker, 1, &record, None)
        .await
        .expect("written");
    assert_eq!(lowest(2).positions().await, Some([5, 8, 9]), "the lowest of both");

    let bucket = &place.manifest.streams.cluster_bucket;
    let (_, revision) = entries
        .read(&*place.broker, 1)
        .await
        .expect("readable")
        .expect("there");
    let torn = Bytes::from_static(b"{");
    let broker = &place.broker;
    broker
        .put_entry(bucket, &entries.key(1), torn, Some(revision))
        .await
        .expect("written");
    assert_eq!(lowest(2).positions().await, None, "unreadable");
}

/// A shard that was closed is let go at once, and nobody renews its record behind that.
#[tokio::test]
async fn a_closed_shard_is_released_while_the_others_are_renewed() {
    let mut place = Place::new().await;
    place.manifest.shards = 2;
    let first = place.claim("first").await.expect("new");
    let keeper = place.keeper(&first);
    assert!(keeper.may_send_for_all() && keeper.may_answer());
    keeper.release_one(0).await;
    assert!(place.record().await.0.stopped);
    assert!(!first.fence.is_open());
    assert!(!keeper.may_send_for_all(), "it has none");
    assert!(
        !keeper.may_answer(),
        "nobody asks it about shards that it does not have"
    );
    let (_, revision) = place.record().await;
    let running = tokio::spawn(Arc::clone(&keeper).run());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(place.record().await.1, revision, "it is not renewed");
    keeper.release().await;
    running.await.expect("it ends");
    drop((first, keeper));
    let again = place.claim("first").await.expect("its own");
    assert_eq!(again.record.epoch, 2);
}
