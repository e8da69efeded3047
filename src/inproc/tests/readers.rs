//! Readers behind the memory, and how far silence reaches.

use super::*;

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
