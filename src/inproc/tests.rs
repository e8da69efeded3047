//! Promises of the embedded broker beyond those of the port: what survives, what is bounded.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use tempfile::TempDir;

use super::*;
use crate::kernel::duration::Millis;
use crate::kernel::ids::TimeMs;
use crate::ports::broker::{Horizon, Manner, Message, QueueMessage};

/// A clock that stands still until it is set forward.
#[derive(Default)]
struct SetClock(AtomicI64);

impl SetClock {
    fn forward(&self, by: Duration) {
        self.0
            .fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> TimeMs {
        TimeMs(1_700_000_000_000 + self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst).unsigned_abs())
    }
}

/// A broker's folder, and a broker that can be ended and begun anew.
struct Place {
    dir: TempDir,
    settings: Settings,
    clock: Arc<SetClock>,
}

const STREAM: &str = "S";
const ACK_WAIT: Duration = Duration::from_secs(30);

impl Place {
    fn new(settings: Settings) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            settings,
            clock: Arc::default(),
        }
    }

    fn open(&self) -> Arc<InprocBroker> {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        InprocBroker::open(self.dir.path(), self.settings.clone(), clock).unwrap()
    }

    async fn with_stream(&self) -> Arc<InprocBroker> {
        let broker = self.open();
        broker.ensure_stream(&spec()).await.unwrap();
        broker
    }
}

fn place() -> Place {
    Place::new(Settings::default())
}

fn spec() -> StreamSpec {
    StreamSpec {
        name: STREAM.to_owned(),
        subjects: vec![">".to_owned()],
        replicas: 1,
        message_bytes_max: 1 << 20,
        foreign: false,
    }
}

fn message(subject: &str, payload: impl Into<Bytes>) -> Publication {
    Publication {
        stream: STREAM.to_owned(),
        subject: subject.to_owned(),
        headers: vec![("traceparent".to_owned(), "00-1-2-01".to_owned())],
        payload: payload.into(),
        expect: Expect::Nothing,
    }
}

fn expecting(subject: &str, expect: Expect) -> Publication {
    Publication {
        expect,
        ..message(subject, "x")
    }
}

async fn publish(broker: &InprocBroker, subject: &str, count: usize) {
    let all = (0..count).map(|n| broker.publish(message(subject, n.to_string())));
    for stored in join_all(all).await {
        stored.unwrap();
    }
}

async fn reader(
    broker: &InprocBroker,
    filters: &[&str],
    start_sequence: u64,
    buffer: usize,
) -> Box<dyn Reader> {
    static NEXT: AtomicI64 = AtomicI64::new(0);
    let spec = ReaderSpec {
        stream: STREAM.to_owned(),
        filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
        start_sequence,
        name: format!("r{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        buffer,
    };
    broker.reader(spec).await.unwrap()
}

fn queue_spec(filter: &str) -> QueueSpec {
    QueueSpec {
        group: None,
        stream: STREAM.to_owned(),
        filters: vec![filter.to_owned()],
        durable: "workers".to_owned(),
        ack_wait: ACK_WAIT,
        max_unacknowledged: 1_000,
        buffer: 16,
        manner: Manner::default(),
    }
}

/// What is there must come at once; a message that stays out fails the test instead of hanging it.
async fn soon<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), answer)
        .await
        .expect("an answer")
}

async fn take(reader: &mut dyn Reader, count: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    while messages.len() < count {
        messages.push(soon(reader.next()).await.unwrap());
    }
    messages
}

async fn work(queue: &mut dyn Queue, count: usize) -> Vec<QueueMessage> {
    let mut messages = Vec::new();
    while messages.len() < count {
        messages.push(soon(queue.next()).await.unwrap());
    }
    messages
}

fn sequences(messages: &[QueueMessage]) -> Vec<u64> {
    messages.iter().map(|work| work.message.stream_sequence).collect()
}

#[tokio::test]
async fn what_was_answered_survives_an_abrupt_end() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a.b", 500).await;
    broker.trim(STREAM, 101).await.unwrap();
    let before = broker.stream_state(STREAM).await.unwrap();
    broker.abort();
    drop(broker);

    let broker = place.open();
    assert_eq!(broker.stream_state(STREAM).await.unwrap(), before);
    let mut reader = reader(&broker, &[">"], 1, 64).await;
    for (n, message) in take(&mut *reader, 400).await.iter().enumerate() {
        assert_eq!(message.stream_sequence, n as u64 + 101);
        assert_eq!(message.payload, (n + 100).to_string());
        assert_eq!(message.subject, "a.b");
        assert_eq!(message.headers.len(), 1);
    }
    assert_eq!(
        broker.publish(message("a.b", "next")).await.unwrap().sequence,
        501
    );
}

#[tokio::test]
async fn a_stream_trimmed_to_nothing_goes_on_counting_after_an_abrupt_end() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a", 5).await;
    broker.trim(STREAM, 6).await.unwrap();
    broker.abort();
    drop(broker);
    let broker = place.open();
    let state = broker.stream_state(STREAM).await.unwrap();
    assert_eq!(
        (
            state.first_sequence,
            state.last_sequence,
            state.messages,
            state.bytes
        ),
        (6, 5, 0, 0)
    );
    assert_eq!(broker.publish(message("a", "x")).await.unwrap().sequence, 6);
}

#[tokio::test]
async fn an_abrupt_end_breaks_readers_and_queues_and_refuses_the_rest() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a", 1).await;
    let mut reader = reader(&broker, &["a"], 2, 64).await;
    let mut queue = broker.queue(queue_spec("a")).await.unwrap();
    let held = soon(queue.next()).await.unwrap();
    let (left, right, ()) =
        soon(async { tokio::join!(reader.next(), queue.next(), async { broker.abort() }) }).await;
    assert!(left.is_err() && right.is_err());
    assert!(matches!(
        held.receipt.ack().await,
        Err(BrokerError::Unavailable(_))
    ));
    let refused = broker.publish(message("a", "x")).await;
    assert!(
        matches!(refused, Err(PublishError::Unavailable(_))),
        "{refused:?}"
    );
    assert!(matches!(broker.ping().await, Err(BrokerError::Unavailable(_))));
    assert!(matches!(
        broker.stream_state(STREAM).await,
        Err(BrokerError::Unavailable(_))
    ));
}

#[tokio::test]
async fn a_dropped_broker_stores_what_was_handed_over() {
    let place = place();
    let broker = place.with_stream().await;
    let waiting: Vec<_> = (0..50)
        .map(|n| {
            let broker = Arc::clone(&broker);
            let mut publication = Box::pin(async move { broker.publish(message("a", n.to_string())).await });
            assert!(
                publication.as_mut().now_or_never().is_none(),
                "handed over, not yet answered"
            );
            publication
        })
        .collect();
    drop(waiting);
    drop(broker);
    let state = place.open().stream_state(STREAM).await.unwrap();
    assert_eq!(state.last_sequence, 50);
}

#[tokio::test]
async fn the_state_of_a_stream_counts_what_was_handed_over_before_the_question() {
    let place = place();
    let broker = place.with_stream().await;
    for n in 1..=20 {
        let mut publication = Box::pin(broker.publish(message("a", n.to_string())));
        assert!(publication.as_mut().now_or_never().is_none());
        assert_eq!(broker.stream_state(STREAM).await.unwrap().last_sequence, n);
        publication.await.unwrap();
    }
}

#[tokio::test]
async fn expectations_hold_across_a_reopening() {
    let place = place();
    let broker = place.with_stream().await;
    let id = || Expect::MessageId("one".to_owned());
    assert_eq!(broker.publish(expecting("a", id())).await.unwrap().sequence, 1);
    broker
        .publish(expecting("b", Expect::FirstOnSubject))
        .await
        .unwrap();
    broker.abort();
    drop(broker);
    let broker = place.open();
    let again = broker.publish(expecting("c", id())).await.unwrap();
    assert_eq!((again.sequence, again.duplicate), (1, true));
    for taken in ["a", "b"] {
        let refused = broker.publish(expecting(taken, Expect::FirstOnSubject)).await;
        assert_eq!(refused, Err(PublishError::AlreadyThere), "{taken}");
    }
    assert_eq!(
        broker
            .publish(expecting("c", Expect::FirstOnSubject))
            .await
            .unwrap()
            .sequence,
        3
    );
}

#[tokio::test]
async fn a_message_id_is_forgotten_after_the_window() {
    let place = place();
    let broker = place.with_stream().await;
    let id = || expecting("a", Expect::MessageId("one".to_owned()));
    broker.publish(id()).await.unwrap();
    place.clock.forward(Duration::from_secs(119));
    assert!(broker.publish(id()).await.unwrap().duplicate);
    place.clock.forward(Duration::from_secs(1));
    assert_eq!(
        broker.publish(id()).await.unwrap(),
        PublishAck {
            sequence: 2,
            duplicate: false
        }
    );
    drop(broker);
    place.clock.forward(Duration::from_mins(2));
    assert_eq!(place.open().publish(id()).await.unwrap().sequence, 3);
}

#[tokio::test]
async fn expectations_hold_within_one_batch() {
    let place = place();
    let broker = place.with_stream().await;
    let firsts = (0..20).map(|_| broker.publish(expecting("a", Expect::FirstOnSubject)));
    let stored = join_all(firsts).await.into_iter().flatten().count();
    assert_eq!(stored, 1);
    let id = Expect::MessageId("one".to_owned());
    let same = (0..20).map(|_| broker.publish(expecting("b", id.clone())));
    let acks: Vec<PublishAck> = join_all(same).await.into_iter().map(Result::unwrap).collect();
    assert!(acks.iter().all(|ack| ack.sequence == 2));
    assert_eq!(acks.iter().filter(|ack| !ack.duplicate).count(), 1);
}

#[tokio::test]
async fn trim_frees_the_subjects_of_what_it_removes_and_no_others() {
    let place = place();
    let broker = place.with_stream().await;
    // More than one stretch of a trim.
    publish(&broker, "again", 2_500).await;
    for subject in ["old", "again", "new"] {
        publish(&broker, subject, 1).await;
    }
    broker.trim(STREAM, 2_502).await.unwrap();
    assert_eq!(broker.last_by_subject(STREAM, "old").await.unwrap(), None);
    let again = broker.last_by_subject(STREAM, "again").await.unwrap().unwrap();
    assert_eq!(again.sequence, 2_502);
    assert_eq!(
        broker
            .publish(expecting("old", Expect::FirstOnSubject))
            .await
            .unwrap()
            .sequence,
        2_504
    );
    let taken = broker.publish(expecting("again", Expect::FirstOnSubject)).await;
    assert_eq!(taken, Err(PublishError::AlreadyThere));
}

#[tokio::test]
async fn a_full_stream_takes_messages_again_after_a_trim() {
    let place = Place::new(Settings {
        stream_bytes_max: 10_000,
        ..Settings::default()
    });
    let broker = place.with_stream().await;
    let large = || message("a", vec![0; 3_000]);
    for _ in 0..3 {
        broker.publish(large()).await.unwrap();
    }
    for _ in 0..2 {
        let full = broker.publish(large()).await;
        assert!(
            matches!(&full, Err(PublishError::Unavailable(text)) if text.contains("full")),
            "{full:?}"
        );
    }
    broker.trim(STREAM, 2).await.unwrap();
    assert_eq!(broker.publish(large()).await.unwrap().sequence, 4);
    assert!(broker.publish(large()).await.is_err());
}

#[tokio::test]
async fn a_full_file_refuses_and_goes_on_after_a_trim() {
    let place = Place::new(Settings {
        file_bytes_max: 16 << 20,
        ..Settings::default()
    });
    let broker = place.with_stream().await;
    let large = || message("a", vec![0; 200_000]);
    let mut stored = 0;
    let full = loop {
        match broker.publish(large()).await {
            Ok(ack) => stored = ack.sequence,
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&full, PublishError::Unavailable(text) if text.contains("full")),
        "{full:?}"
    );
    assert!(stored > 50, "{stored}");
    broker.trim(STREAM, stored / 2).await.unwrap();
    assert_eq!(broker.publish(large()).await.unwrap().sequence, stored + 1);
    let mut reader = reader(&broker, &["a"], stored, 8).await;
    assert_eq!(take(&mut *reader, 2).await[1].stream_sequence, stored + 1);
}

/// Writes into the store of a broker that is not open.
fn damage(place: &Place, sequence: u64) {
    let env = Env::open(place.dir.path(), &place.settings).unwrap();
    let txn = env.write().unwrap();
    let tables = env::stream_tables(&txn, 0).unwrap();
    let mut row: Vec<u8> = txn
        .get(&tables.messages, sequence.to_be_bytes())
        .unwrap()
        .unwrap();
    *row.last_mut().unwrap() ^= 1;
    let flags = libmdbx::WriteFlags::UPSERT;
    txn.put(&tables.messages, sequence.to_be_bytes(), &row, flags)
        .unwrap();
    txn.commit().unwrap();
}

#[tokio::test]
async fn a_damaged_message_breaks_its_reader_instead_of_being_delivered() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a", 3).await;
    drop(broker);
    damage(&place, 2);
    // Old enough that its id does not matter for opening.
    place.clock.forward(Duration::from_mins(2));
    let broker = place.open();
    let mut reader = reader(&broker, &["a"], 1, 1).await;
    assert_eq!(take(&mut *reader, 1).await[0].stream_sequence, 1);
    for _ in 0..2 {
        let error = soon(reader.next()).await.unwrap_err();
        assert!(error.0.contains("message 2 is damaged"), "{error}");
    }
    assert!(broker.message_at(STREAM, 2).await.is_err());
    assert!(broker.message_at(STREAM, 3).await.is_ok());
}

#[tokio::test]
async fn a_damaged_newest_message_is_found_at_the_opening() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a", 3).await;
    drop(broker);
    damage(&place, 3);
    let clock = Arc::clone(&place.clock) as Arc<dyn Clock>;
    let opened = InprocBroker::open(place.dir.path(), place.settings.clone(), clock);
    assert!(matches!(opened.err(), Some(OpenError::Damaged { .. })));
}

#[tokio::test]
async fn readers_behind_the_memory_read_the_store_without_a_gap() {
    let place = Place::new(Settings {
        tail_messages: 100,
        ..Settings::default()
    });
    let broker = place.with_stream().await;
    for _ in 0..20 {
        publish(&broker, "a", 50).await;
        publish(&broker, "b", 150).await;
    }
    let mut all = reader(&broker, &[">"], 1, 16).await;
    let mut some = reader(&broker, &["a"], 1, 16).await;
    let background = async {
        publish(&broker, "a", 500).await;
    };
    let (all, some, ()) = tokio::join!(take(&mut *all, 4_500), take(&mut *some, 1_500), background);
    let expected: Vec<u64> = (1..=4_500).collect();
    assert_eq!(
        all.iter().map(|m| m.stream_sequence).collect::<Vec<_>>(),
        expected
    );
    let expected: Vec<u64> = (1..=4_000_u64)
        .filter(|n| (n - 1) % 200 < 50)
        .chain(4_001..=4_500)
        .collect();
    assert_eq!(
        some.iter().map(|m| m.stream_sequence).collect::<Vec<_>>(),
        expected
    );
    for (n, message) in some.iter().enumerate() {
        assert_eq!((message.consumer_sequence, message.delivered), (n as u64 + 1, 1));
        // The last 500 come while others are read, so they may or may not be counted.
        let behind = 1_000_u64.saturating_sub(n as u64 + 1);
        assert!(message.pending >= behind, "{n}: {} of {behind}", message.pending);
    }
    assert_eq!(some[1_499].pending, 0);
}

#[tokio::test]
async fn a_dropped_next_loses_nothing_while_the_store_is_read() {
    let place = Place::new(Settings {
        tail_messages: 10,
        ..Settings::default()
    });
    let broker = place.with_stream().await;
    publish(&broker, "a", 1_000).await;
    let mut reader = reader(&broker, &["a"], 1, 7).await;
    let mut expected = 1;
    while expected <= 1_000 {
        match reader.next().now_or_never() {
            Some(message) => {
                assert_eq!(message.unwrap().stream_sequence, expected);
                expected += 1;
            }
            None => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_horizon_is_exact_while_others_publish() {
    let place = Place::new(Settings {
        tail_messages: 64,
        ..Settings::default()
    });
    let broker = place.with_stream().await;
    let publisher = {
        let broker = Arc::clone(&broker);
        tokio::spawn(async move {
            for round in 0..150 {
                publish(&broker, if round % 3 == 0 { "a" } else { "b" }, 1 + round % 20).await;
            }
        })
    };
    let mut reader = reader(&broker, &["a"], 1, 8).await;
    let mut claims: Vec<Horizon> = Vec::new();
    let (mut taken, mut claimed) = (0, 0);
    let mut check = |reader: &mut dyn Reader, claims: &mut Vec<Horizon>| {
        while let Some(message) = reader.ready() {
            let sequence = message.unwrap().stream_sequence;
            // Later messages lie behind this one, so a claim that holds for it is done.
            claims.retain(|claim| {
                let due = claim.after <= taken;
                assert!(
                    !due || claim.covered < sequence,
                    "{claim:?}, then came {sequence}"
                );
                !due
            });
            taken = sequence;
        }
        taken
    };
    while !publisher.is_finished() {
        let before = broker.stream_state(STREAM).await.unwrap().last_sequence;
        if let Some(horizon) = reader.horizon().await.unwrap() {
            assert!(horizon.covered >= before);
            claims.push(horizon);
            claimed += 1;
        }
        check(&mut *reader, &mut claims);
        tokio::task::yield_now().await;
    }
    publisher.await.unwrap();
    let last = broker.stream_state(STREAM).await.unwrap().last_sequence;
    let end = soon(async {
        loop {
            if let Some(horizon) = reader.horizon().await.unwrap() {
                break horizon;
            }
            check(&mut *reader, &mut claims);
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(end.covered, last);
    assert_eq!(check(&mut *reader, &mut claims), end.after);
    assert!(claimed > 0);
}

#[tokio::test]
async fn an_unanswered_message_goes_to_another_member_after_the_wait() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a", 2).await;
    let mut left = broker.queue(queue_spec("a")).await.unwrap();
    let mut right = broker.queue(queue_spec("a")).await.unwrap();
    let first = work(&mut *left, 2).await;
    assert!(right.ready().is_none());
    place.clock.forward(ACK_WAIT / 2);
    first[1].receipt.progress().await.unwrap();
    place.clock.forward(ACK_WAIT / 2);
    let again = right.ready().unwrap().unwrap();
    assert_eq!((again.message.stream_sequence, again.message.delivered), (1, 2));
    assert_eq!(again.message.consumer_sequence, 3);
    assert!(right.ready().is_none(), "progress keeps the second one");
    // The former holder can neither give it away nor keep it, but done is done.
    first[0].receipt.nak(Duration::ZERO).await.unwrap();
    assert!(left.ready().is_none());
    first[0].receipt.ack().await.unwrap();
    place.clock.forward(ACK_WAIT * 2);
    assert_eq!(left.ready().unwrap().unwrap().message.stream_sequence, 2);
    assert!(left.ready().is_none());
}

#[tokio::test]
async fn a_refused_message_comes_back_after_its_delay_and_wakes_a_member() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a", 1).await;
    let mut queue = broker.queue(queue_spec("a")).await.unwrap();
    let first = soon(queue.next()).await.unwrap();
    first.receipt.nak(Duration::from_secs(5)).await.unwrap();
    place.clock.forward(Duration::from_millis(4_999));
    assert!(queue.ready().is_none());
    place.clock.forward(Duration::from_millis(1));
    let second = queue.ready().unwrap().unwrap();
    assert_eq!(second.message.delivered, 2);
    let (third, given_back) =
        soon(async { tokio::join!(queue.next(), second.receipt.nak(Duration::ZERO)) }).await;
    given_back.unwrap();
    assert_eq!(third.unwrap().message.delivered, 3);
}

#[tokio::test]
async fn an_answer_makes_room_for_a_waiting_member() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a", 3).await;
    let spec = QueueSpec {
        max_unacknowledged: 2,
        ..queue_spec("a")
    };
    let mut queue = broker.queue(spec).await.unwrap();
    let held = work(&mut *queue, 2).await;
    let (third, answered) = soon(async { tokio::join!(queue.next(), held[0].receipt.ack()) }).await;
    answered.unwrap();
    assert_eq!(third.unwrap().message.stream_sequence, 3);
}

#[tokio::test]
async fn what_was_not_acknowledged_is_delivered_again_after_an_abrupt_end() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "b", 3).await;
    publish(&broker, "a", 6).await;
    let mut queue = broker.queue(queue_spec("a")).await.unwrap();
    let held = work(&mut *queue, 4).await;
    for n in [0, 1, 3] {
        held[n].receipt.ack().await.unwrap();
    }
    assert_eq!(broker.queue_floor(STREAM, "workers").await.unwrap(), Some(5));
    broker.abort();
    drop(broker);

    let broker = place.open();
    assert_eq!(broker.queue_floor(STREAM, "workers").await.unwrap(), Some(5));
    let mut queue = broker.queue(queue_spec("a")).await.unwrap();
    publish(&broker, "a", 1).await;
    let again = work(&mut *queue, 5).await;
    assert_eq!(sequences(&again), [6, 7, 8, 9, 10]);
    let delivered: Vec<u64> = again.iter().map(|work| work.message.delivered).collect();
    assert_eq!(
        delivered,
        [2, 2, 2, 2, 1],
        "all but the last may have been delivered before"
    );
}

#[tokio::test]
async fn an_orderly_end_keeps_the_floor() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a", 3).await;
    let mut queue = broker.queue(queue_spec("a")).await.unwrap();
    for held in work(&mut *queue, 2).await {
        held.receipt.ack().await.unwrap();
    }
    drop(broker);
    let broker = place.open();
    let mut queue = broker.queue(queue_spec("a")).await.unwrap();
    assert_eq!(sequences(&work(&mut *queue, 1).await), [3]);
}

#[tokio::test]
async fn a_later_commit_takes_the_floor_along() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a", 1).await;
    let mut queue = broker.queue(queue_spec("a")).await.unwrap();
    work(&mut *queue, 1).await[0].receipt.ack().await.unwrap();
    place.clock.forward(place.settings.floor_interval.duration());
    publish(&broker, "b", 1).await;
    broker.abort();
    drop(broker);
    let broker = place.open();
    let mut queue = broker.queue(queue_spec("a")).await.unwrap();
    assert!(queue.ready().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_members_share_the_work_without_duplicates() {
    let place = Place::new(Settings {
        tail_messages: 500,
        ..Settings::default()
    });
    let broker = place.with_stream().await;
    let total = 3_000;
    let mut members = Vec::new();
    for _ in 0..8 {
        let mut queue = broker.queue(queue_spec("work.>")).await.unwrap();
        members.push(tokio::spawn(async move {
            let mut seen = Vec::new();
            loop {
                let work = queue.next().await.unwrap();
                if work.message.payload == "end" {
                    break;
                }
                assert_eq!(work.message.delivered, 1);
                work.receipt.ack().await.unwrap();
                seen.push((work.message.consumer_sequence, work.message.stream_sequence));
            }
            seen
        }));
    }
    for round in 0..10 {
        publish(&broker, &format!("work.{round}"), total / 10).await;
        publish(&broker, "other", 40).await;
    }
    for _ in 0..8 {
        broker.publish(message("work.end", "end")).await.unwrap();
    }
    let mut seen = Vec::new();
    for member in soon(join_all(members)).await {
        let member = member.unwrap();
        assert!(
            member.windows(2).all(|pair| pair[0] < pair[1]),
            "each member sees an order"
        );
        seen.extend(member);
    }
    assert_eq!(seen.len(), total, "each message once");
    seen.sort_unstable();
    let in_order: BTreeSet<u64> = seen.iter().map(|(_, stream)| *stream).collect();
    assert_eq!(in_order.len(), total);
    assert!(
        seen.windows(2).all(|pair| pair[0].1 < pair[1].1),
        "delivered in stream order"
    );
}

#[tokio::test]
async fn publishers_wait_for_room_in_their_order() {
    let place = Place::new(Settings {
        pending_bytes: 4_096,
        batch_messages: 3,
        ..Settings::default()
    });
    let broker = place.with_stream().await;
    publish(&broker, "a", 300).await;
    let mut reader = reader(&broker, &["a"], 1, 64).await;
    for (n, message) in take(&mut *reader, 300).await.iter().enumerate() {
        assert_eq!(message.payload, n.to_string());
    }
}

#[tokio::test]
async fn overlapping_subjects_and_too_many_streams_are_refused() {
    let place = Place::new(Settings {
        streams_max: 2,
        ..Settings::default()
    });
    let broker = place.open();
    let stream = |name: &str, subject: &str| StreamSpec {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        ..spec()
    };
    broker.ensure_stream(&stream("A", "a.>")).await.unwrap();
    for (name, subject) in [("B", "a.b"), ("B", "*.b"), ("B", ""), ("B.C", "b"), ("", "b")] {
        let refused = broker.ensure_stream(&stream(name, subject)).await;
        assert!(
            matches!(refused, Err(BrokerError::Refused(_))),
            "{name} {subject}: {refused:?}"
        );
    }
    broker.ensure_stream(&stream("B", "b")).await.unwrap();
    let refused = broker.ensure_stream(&stream("C", "c")).await;
    assert!(matches!(refused, Err(BrokerError::Refused(_))), "{refused:?}");
    broker.delete_stream("A").await.unwrap();
    let state = broker.ensure_stream(&stream("C", "a.b")).await.unwrap();
    assert_eq!(state.last_sequence, 0);
    let copies = StreamSpec {
        replicas: 3,
        ..stream("C", "a.b")
    };
    assert!(matches!(
        broker.ensure_stream(&copies).await,
        Err(BrokerError::Mismatch { .. })
    ));
}

#[test]
fn settings_refuse_unknown_names() {
    let settings: Settings = serde_json::from_str(r#"{"duplicate_window": "30s"}"#).unwrap();
    assert_eq!(settings.duplicate_window, Millis::seconds(30));
    assert!(serde_json::from_str::<Settings>(r#"{"duplicate_windo": "30s"}"#).is_err());
}
