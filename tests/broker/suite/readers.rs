//! Readers: order, contiguity, horizon.

use std::time::Duration;

use futures::FutureExt;
use saga_runner::ports::broker::{Horizon, Reader, ReaderSpec};

use super::{Case, eventually, next, payload, sequences, take, within};

pub async fn a_reader_delivers_matching_messages_from_its_start_in_order(case: Case) {
    let case = case.with_stream().await;
    for n in 0..30 {
        case.publish(["a.x", "b.x", "a.y.z"][n % 3], &n.to_string()).await;
    }
    let mut reader = case.reader(&["a.*"], 5).await;
    let messages = take(&mut *reader, 8).await;
    assert_eq!(sequences(&messages), [7, 10, 13, 16, 19, 22, 25, 28]);
    assert_eq!(messages[0].subject, case.subject("a.x"));
    case.publish("a.last", "").await;
    assert_eq!(next(&mut *reader).await.stream_sequence, 31);
}

pub async fn a_reader_goes_on_with_messages_stored_later(case: Case) {
    let case = case.with_stream().await;
    let mut reader = case.reader(&["a"], 1).await;
    assert!(reader.next().now_or_never().is_none());
    for n in 0..20 {
        case.publish("a", &n.to_string()).await;
        assert_eq!(payload(&next(&mut *reader).await), n.to_string());
    }
}

pub async fn deliveries_are_numbered_from_one_without_gaps(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("b", 100).await;
    case.publish_many("a", 500).await;
    let mut reader = case.reader(&["a"], 1).await;
    for (n, message) in take(&mut *reader, 500).await.iter().enumerate() {
        assert_eq!(message.consumer_sequence, n as u64 + 1);
        assert_eq!(message.delivered, 1);
    }
}

pub async fn several_filters_share_one_order(case: Case) {
    let case = case.with_stream().await;
    for n in 0..40 {
        case.publish(&format!("{}.x", ["a", "b", "c", "d"][n % 4]), "")
            .await;
    }
    let mut reader = case.reader(&["a.>", "d.x"], 1).await;
    let messages = take(&mut *reader, 20).await;
    let expected: Vec<u64> = (1..=40).filter(|n| n % 4 < 2).collect();
    assert_eq!(sequences(&messages), expected);
}

pub async fn pending_counts_the_matching_messages_behind(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 5).await;
    case.publish_many("b", 5).await;
    let mut reader = case.reader(&["a"], 1).await;
    let pending: Vec<u64> = take(&mut *reader, 5)
        .await
        .iter()
        .map(|message| message.pending)
        .collect();
    assert_eq!(pending, [4, 3, 2, 1, 0]);
}

pub async fn ready_takes_what_has_arrived_and_never_waits(case: Case) {
    let case = case.with_stream().await;
    let mut reader = case.reader(&["a"], 1).await;
    assert!(reader.ready().is_none());
    case.publish_many("a", 300).await;
    // Far more than the buffer: ready alone has to keep the messages coming.
    let mut seen = 0;
    within("ready", async {
        while seen < 300 {
            match reader.ready() {
                Some(message) => {
                    seen += 1;
                    assert_eq!(message.unwrap().stream_sequence, seen);
                }
                None => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert!(reader.ready().is_none());
}

pub async fn a_dropped_next_loses_no_message(case: Case) {
    let case = case.with_stream().await;
    let mut reader = case.reader(&["a"], 1).await;
    let publish = case.publish_many("a", 2_000);
    let read = async {
        let mut expected = 1;
        let mut dropped = 0_u32;
        while expected <= 2_000 {
            let mut taken = reader.next().now_or_never();
            if taken.is_none() {
                // Each kind of waiting gets dropped: before its first wake-up and after.
                dropped += 1;
                let wait = Duration::from_micros(u64::from(dropped % 3) * 50);
                taken = tokio::time::timeout(wait, reader.next()).await.ok();
            }
            if let Some(message) = taken {
                assert_eq!(message.unwrap().stream_sequence, expected);
                expected += 1;
            }
        }
    };
    within("all", async { tokio::join!(publish, read) }).await;
}

pub async fn a_buffer_of_one_still_delivers_everything(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 50).await;
    let spec = ReaderSpec {
        buffer: 1,
        ..case.reader_spec(&["a"], 1)
    };
    let mut reader = case.broker.reader(spec).await.unwrap();
    assert_eq!(
        sequences(&take(&mut *reader, 50).await),
        (1..=50).collect::<Vec<u64>>()
    );
}

pub async fn readers_do_not_disturb_each_other(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 100).await;
    let mut first = case.reader(&["a"], 1).await;
    take(&mut *first, 10).await;
    let mut second = case.reader(&["a"], 1).await;
    assert_eq!(
        sequences(&take(&mut *second, 100).await),
        (1..=100).collect::<Vec<u64>>()
    );
    drop(second);
    assert_eq!(
        sequences(&take(&mut *first, 90).await),
        (11..=100).collect::<Vec<u64>>()
    );
}

/// Asks until the broker commits itself.
async fn horizon(reader: &mut dyn Reader) -> Horizon {
    within("horizon", async {
        loop {
            if let Some(horizon) = reader.horizon().await.expect("the reader holds") {
                return horizon;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

pub async fn the_horizon_of_an_empty_stream_is_zero(case: Case) {
    let case = case.with_stream().await;
    let mut reader = case.reader(&["a"], 1).await;
    assert_eq!(horizon(&mut *reader).await, Horizon { after: 0, covered: 0 });
}

pub async fn the_horizon_passes_a_tail_that_does_not_match(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("b", 10).await;
    let mut reader = case.reader(&["a"], 1).await;
    assert_eq!(
        horizon(&mut *reader).await,
        Horizon {
            after: 0,
            covered: 10
        }
    );
    case.publish("a", "").await;
    assert_eq!(next(&mut *reader).await.stream_sequence, 11);
    for round in 1..=20 {
        case.publish("b", "").await;
        assert_eq!(
            horizon(&mut *reader).await,
            Horizon {
                after: 11,
                covered: 11 + round
            }
        );
    }
    // And its owner goes on as before.
    case.publish("a", "").await;
    let message = next(&mut *reader).await;
    assert_eq!((message.stream_sequence, message.consumer_sequence), (32, 2));
}

pub async fn the_horizon_waits_for_messages_not_yet_taken(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 10).await;
    case.publish_many("b", 5).await;
    let mut reader = case.reader(&["a"], 1).await;
    assert_eq!(
        horizon(&mut *reader).await,
        Horizon {
            after: 10,
            covered: 15
        }
    );
    assert_eq!(
        sequences(&take(&mut *reader, 10).await),
        (1..=10).collect::<Vec<u64>>()
    );
    assert_eq!(
        horizon(&mut *reader).await,
        Horizon {
            after: 10,
            covered: 15
        }
    );
}

pub async fn the_horizon_never_covers_a_message_not_delivered(case: Case) {
    let case = case.with_stream().await;
    let total = 3_000_u64;
    let publish = async {
        let numbers: Vec<u64> = (1..=total).collect();
        // In bursts, so that the reader is at times ahead and at times behind.
        for burst in numbers.chunks(50) {
            let all = burst
                .iter()
                .map(|n| case.publish(if n % 3 == 0 { "a" } else { "b" }, ""));
            futures::future::join_all(all).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut reader = case.reader(&["a"], 1).await;
    let read = async {
        let (mut taken, mut claims, mut pending) = (0, 0, Vec::<Horizon>::new());
        while taken + 3 <= total || claims == 0 {
            let before = case.last_sequence().await;
            if let Some(horizon) = reader.horizon().await.unwrap() {
                claims += 1;
                assert!(horizon.covered >= before, "{horizon:?} is behind {before}");
                pending.push(horizon);
            }
            while let Some(message) = reader.ready() {
                let sequence = message.unwrap().stream_sequence;
                assert_eq!(sequence, taken + 3);
                // A claim whose `after` was taken before must not reach to this message.
                // Later messages lie behind this one, so a claim that holds for it is done.
                pending.retain(|claim| {
                    let due = claim.after <= taken;
                    assert!(
                        !due || claim.covered < sequence,
                        "{claim:?}, then came {sequence}"
                    );
                    !due
                });
                taken = sequence;
            }
        }
        claims
    };
    let ((), claims) = within("all", async { tokio::join!(publish, read) }).await;
    assert!(claims > 1, "only {claims} claims");
}

pub async fn a_reader_may_start_behind_the_end(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 5).await;
    let mut reader = case.reader(&["a"], 6).await;
    assert_eq!(horizon(&mut *reader).await, Horizon { after: 0, covered: 5 });
    case.publish("a", "new").await;
    let message = next(&mut *reader).await;
    assert_eq!((message.stream_sequence, message.consumer_sequence), (6, 1));
}

pub async fn a_deleted_stream_breaks_its_readers(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 3).await;
    let mut reader = case.reader(&["a"], 1).await;
    take(&mut *reader, 3).await;
    case.ground.delete_stream(&case.stream).await;
    case.broker.ensure_stream(&case.spec()).await.unwrap();
    case.publish("a", "of the new stream").await;
    assert!(within("next", reader.next()).await.is_err());
    assert!(within("next", reader.next()).await.is_err(), "it stays broken");
    eventually("ready tells it, too", || {
        std::future::ready(matches!(reader.ready(), Some(Err(_))))
    })
    .await;
}
