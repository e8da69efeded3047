//! A broker that ends without warning and comes back.

use std::collections::BTreeSet;
use std::time::Duration;

use saga_runner::ports::broker::{QueueSpec, Reader, StreamState};

use super::{Case, eventually, sequences, take, within};

async fn restart(case: &Case) {
    within("restart", case.ground.restart()).await;
    eventually("the broker is back", || async {
        case.broker.ping().await.is_ok()
    })
    .await;
}

pub async fn a_restart_keeps_messages_and_identity(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 50).await;
    case.broker.trim(&case.stream, 11).await.unwrap();
    let before = case.broker.stream_state(&case.stream).await.unwrap();
    restart(&case).await;
    let after = case.broker.stream_state(&case.stream).await.unwrap();
    let told = before.told;
    assert_eq!(StreamState { told, ..after }, before);
    assert_eq!(case.publish("a", "").await, 51);
    let mut reader = case.reader(&["a"], 1).await;
    assert_eq!(
        sequences(&take(&mut *reader, 41).await),
        (11..=51).collect::<Vec<u64>>()
    );
}

pub async fn a_restart_keeps_the_state_of_queues(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("work.x", 3).await;
    let spec = QueueSpec {
        ack_wait: Duration::from_secs(1),
        ..case.queue_spec()
    };
    let mut queue = case.queue(spec.clone()).await;
    let mut work = Vec::new();
    for _ in 0..3 {
        work.push(within("next", queue.next()).await.unwrap());
    }
    work[0].receipt.ack().await.unwrap();
    eventually("the answer has arrived", || async {
        case.broker.queue_floor(&case.stream, &spec.durable).await == Ok(Some(1))
    })
    .await;
    restart(&case).await;
    // The old member may still hand out what it has, then it breaks.
    within("break", async { while queue.next().await.is_ok() {} }).await;
    let mut queue = case.queue(spec).await;
    // Nothing that is unanswered is lost. An answer may be, and the message then comes again, also behind the others.
    let mut seen = BTreeSet::new();
    let serve = async {
        loop {
            let work = queue.next().await.unwrap();
            work.receipt.ack().await.unwrap();
            seen.insert(work.message.stream_sequence);
        }
    };
    let floor = eventually("floor", || async {
        case.broker
            .queue_floor(&case.stream, &case.queue_spec().durable)
            .await
            == Ok(Some(3))
    });
    tokio::select! {
        () = serve => {}
        () = floor => {}
    }
    assert!(seen.is_superset(&BTreeSet::from([2, 3])), "{seen:?}");
}

/// Reads on after `position` with new readers, however often they break, up to `last`.
async fn read_on(case: &Case, mut reader: Box<dyn Reader>, mut position: u64, last: u64) {
    while position < last {
        if let Ok(message) = within("next", reader.next()).await {
            assert_eq!(message.stream_sequence, position + 1);
            position += 1;
        } else {
            eventually("a new reader", || async { case.broker.ping().await.is_ok() }).await;
            reader = case.reader(&["a"], position + 1).await;
        }
    }
}

pub async fn a_restart_breaks_readers_and_loses_nothing(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("a", 200).await;
    let mut reader = case.reader(&["a"], 1).await;
    take(&mut *reader, 20).await;
    restart(&case).await;
    case.publish_many("a", 100).await;
    read_on(&case, reader, 20, 300).await;
}
