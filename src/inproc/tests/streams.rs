//! What a stream keeps: over abrupt ends, expectations, trims, bounds and damage.

use super::*;
use crate::mdbx::raw::Put;

#[tokio::test]
async fn acknowledged_messages_survive_an_abrupt_end() {
    let place = place();
    let broker = place.with_stream().await;
    publish(&broker, "a.b", 500).await;
    broker.trim(STREAM, 101).await.unwrap();
    let before = broker.stream_state(STREAM).await.unwrap();
    broker.abort();
    drop(broker);

    let broker = place.open();
    let after = broker.stream_state(STREAM).await.unwrap();
    let told = before.told;
    assert_eq!(StreamState { told, ..after }, before);
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
    let key = sequence.to_be_bytes();
    let mut row = txn.get(tables.messages, &key).unwrap().unwrap();
    *row.last_mut().unwrap() ^= 1;
    txn.put(tables.messages, &key, &row, Put::Upsert).unwrap();
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
