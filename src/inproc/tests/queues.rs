//! Queues: members, waits, answers and floors.

use super::*;

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
async fn unacknowledged_messages_are_delivered_again_after_an_abrupt_end() {
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
