//! Queues: sharing, answers, floors.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::FutureExt;
use saga_runner::ports::broker::{BrokerError, Queue, QueueMessage, QueueSpec, QueueState};

use super::{Case, eventually, within};

async fn next(queue: &mut dyn Queue) -> QueueMessage {
    within("next", queue.next()).await.expect("the queue holds")
}

async fn floor(case: &Case) -> Option<u64> {
    let durable = case.queue_spec().durable;
    within("floor", case.broker.queue_floor(&case.stream, &durable))
        .await
        .unwrap()
}

async fn state(case: &Case) -> QueueState {
    let durable = case.queue_spec().durable;
    let state = within("state", case.broker.queue_state(&case.stream, &durable)).await;
    state.unwrap().expect("the queue exists")
}

async fn floor_reaches(case: &Case, sequence: u64) {
    eventually("floor", || async { floor(case).await >= Some(sequence) }).await;
    assert_eq!(floor(case).await, Some(sequence));
}

pub async fn each_message_goes_to_one_member(case: Case) {
    let case = case.with_stream().await;
    let other = case.ground.broker().await;
    let mut left = case.queue(case.queue_spec()).await;
    let mut right = within("queue", other.queue(case.queue_spec())).await.unwrap();
    case.publish_many("other", 20).await;
    case.publish_many("work.x", 400).await;
    let (mut seen, mut shares) = (Vec::new(), [0, 0]);
    while seen.len() < 400 {
        let (member, work) = within("work", async {
            tokio::select! {
                work = left.next() => (0, work),
                work = right.next() => (1, work),
            }
        })
        .await;
        let work = work.unwrap();
        assert_eq!(work.message.subject, case.subject("work.x"));
        work.receipt.ack().await.unwrap();
        seen.push(work.message.stream_sequence);
        shares[member] += 1;
    }
    let distinct: BTreeSet<u64> = seen.iter().copied().collect();
    assert_eq!(distinct, (21..=420).collect());
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    floor_reaches(&case, 420).await;
}

pub async fn an_unanswered_message_is_delivered_again(case: Case) {
    let case = case.with_stream().await;
    let spec = QueueSpec {
        ack_wait: Duration::from_secs(1),
        ..case.queue_spec()
    };
    let mut queue = case.queue(spec).await;
    case.publish("work.x", "").await;
    let first = next(&mut *queue).await;
    assert_eq!(first.message.delivered, 1);
    let second = next(&mut *queue).await;
    assert_eq!((second.message.stream_sequence, second.message.delivered), (1, 2));
    second.receipt.ack().await.unwrap();
    floor_reaches(&case, 1).await;
}

pub async fn a_refused_message_is_delivered_again_at_once(case: Case) {
    let case = case.with_stream().await;
    let mut queue = case.queue(case.queue_spec()).await;
    case.publish("work.x", "").await;
    let first = next(&mut *queue).await;
    let begin = Instant::now();
    first.receipt.nak(Duration::ZERO).await.unwrap();
    let second = next(&mut *queue).await;
    assert_eq!((second.message.stream_sequence, second.message.delivered), (1, 2));
    assert!(begin.elapsed() < Duration::from_secs(10), "that was the ack wait");
}

pub async fn a_refused_message_stays_away_for_its_delay(case: Case) {
    let case = case.with_stream().await;
    let mut queue = case.queue(case.queue_spec()).await;
    case.publish("work.x", "delayed").await;
    let delayed = next(&mut *queue).await;
    let begin = Instant::now();
    delayed.receipt.nak(Duration::from_millis(700)).await.unwrap();
    case.publish("work.x", "other").await;
    let other = next(&mut *queue).await;
    assert_eq!(other.message.stream_sequence, 2, "others pass meanwhile");
    let again = next(&mut *queue).await;
    assert_eq!((again.message.stream_sequence, again.message.delivered), (1, 2));
    assert!(
        begin.elapsed() >= Duration::from_millis(700),
        "{:?}",
        begin.elapsed()
    );
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

pub async fn progress_keeps_a_message_with_its_worker(case: Case) {
    let case = case.with_stream().await;
    let spec = QueueSpec {
        ack_wait: Duration::from_millis(1_500),
        ..case.queue_spec()
    };
    let mut queue = case.queue(spec).await;
    case.publish("work.x", "").await;
    let work = next(&mut *queue).await;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        work.receipt.progress().await.unwrap();
        let again = tokio::time::timeout(Duration::from_millis(200), queue.next()).await;
        assert!(again.is_err(), "delivered again after {:?}", begin.elapsed());
    }
    work.receipt.ack().await.unwrap();
    floor_reaches(&case, 1).await;
}

pub async fn a_terminated_message_is_never_delivered_again(case: Case) {
    let case = case.with_stream().await;
    let spec = QueueSpec {
        ack_wait: Duration::from_secs(1),
        ..case.queue_spec()
    };
    let mut queue = case.queue(spec).await;
    case.publish_many("work.x", 2).await;
    next(&mut *queue).await.receipt.term().await.unwrap();
    // The second one comes again after the ack wait; the first would have come before it.
    assert_eq!(next(&mut *queue).await.message.stream_sequence, 2);
    let again = next(&mut *queue).await;
    assert_eq!((again.message.stream_sequence, again.message.delivered), (2, 2));
    again.receipt.ack().await.unwrap();
    floor_reaches(&case, 2).await;
}

pub async fn the_floor_stops_below_an_unanswered_message(case: Case) {
    let case = case.with_stream().await;
    let mut queue = case.queue(case.queue_spec()).await;
    assert_eq!(floor(&case).await, Some(0));
    case.publish_many("work.x", 5).await;
    let mut work = Vec::new();
    for _ in 0..5 {
        work.push(next(&mut *queue).await);
    }
    for n in [0, 1, 3, 4] {
        work[n].receipt.ack().await.unwrap();
    }
    floor_reaches(&case, 2).await;
    work[2].receipt.ack().await.unwrap();
    floor_reaches(&case, 5).await;
}

pub async fn a_queue_tells_how_far_it_was_delivered_and_whether_a_member_asks(case: Case) {
    let case = case.with_stream().await;
    let mut queue = case.queue(case.queue_spec()).await;
    eventually("asked", || async { state(&case).await.is_asked }).await;
    case.publish_many("work.x", 3).await;
    let first = next(&mut *queue).await;
    let second = next(&mut *queue).await;
    second.receipt.ack().await.unwrap();
    let held = |state: QueueState| state.floor == 0 && (2..=3).contains(&state.delivered);
    eventually("delivered", || async { held(state(&case).await) }).await;
    first.receipt.ack().await.unwrap();
    eventually("answered", || async { state(&case).await.floor == 2 }).await;
    within("close", queue.close()).await;
    drop(queue);
    eventually("left alone", || async { !state(&case).await.is_asked }).await;
}

pub async fn the_floor_passes_messages_that_do_not_match(case: Case) {
    let case = case.with_stream().await;
    let mut queue = case.queue(case.queue_spec()).await;
    case.publish_many("other", 10).await;
    case.publish("work.x", "").await;
    next(&mut *queue).await.receipt.ack().await.unwrap();
    floor_reaches(&case, 11).await;
    case.publish_many("other", 10).await;
    floor_reaches(&case, 21).await;
    case.publish("work.x", "").await;
    case.publish("other", "").await;
    // It may fall back, but never reaches what is unanswered.
    assert!(floor(&case).await <= Some(21));
}

pub async fn an_unknown_queue_has_no_floor(case: Case) {
    let case = case.with_stream().await;
    assert_eq!(floor(&case).await, None);
}

pub async fn close_gives_back_what_was_not_taken(case: Case) {
    let case = case.with_stream().await;
    let spec = case.queue_spec();
    let mut leaving = case.queue(spec.clone()).await;
    let sent = if spec.manner.push {
        Some(case.ground.pushed(&spec.durable, 10).await)
    } else {
        None
    };
    case.publish_many("work.x", 10).await;
    let taken = next(&mut *leaving).await;
    if let Some(sent) = sent {
        within("all are sent", sent).await;
    }
    let begin = Instant::now();
    within("close", leaving.close()).await;
    assert!(within("next", leaving.next()).await.is_err(), "closed");
    let mut staying = case.queue(spec).await;
    let mut seen = BTreeSet::new();
    while seen.len() < 9 {
        let work = next(&mut *staying).await;
        work.receipt.ack().await.unwrap();
        seen.insert(work.message.stream_sequence);
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "that was the ack wait");
    assert_eq!(
        seen,
        (1..=10).filter(|n| *n != taken.message.stream_sequence).collect()
    );
    // The one that was taken is still its taker's to answer for.
    taken.receipt.ack().await.unwrap();
    floor_reaches(&case, 10).await;
}

pub async fn members_together_hold_no_more_than_allowed(case: Case) {
    let case = case.with_stream().await;
    let spec = QueueSpec {
        max_unacknowledged: 3,
        ..case.queue_spec()
    };
    let mut left = case.queue(spec.clone()).await;
    let mut right = case.queue(spec).await;
    case.publish_many("work.x", 10).await;
    let mut held = Vec::new();
    let mut answered = 0;
    while answered < 10 {
        let work = within("work", async {
            tokio::select! { work = left.next() => work, work = right.next() => work }
        })
        .await;
        held.push(work.unwrap());
        assert!(held.len() <= 3);
        if held.len() == 3 || answered + held.len() == 10 {
            // Nothing can be on its way: what is out is all that may be.
            assert!(held.len() < 3 || (left.ready().is_none() && right.ready().is_none()));
            held.swap_remove(0).receipt.ack().await.unwrap();
            answered += 1;
        }
        while answered + held.len() == 10 && !held.is_empty() {
            held.swap_remove(0).receipt.ack().await.unwrap();
            answered += 1;
        }
    }
    floor_reaches(&case, 10).await;
}

pub async fn a_queue_with_another_filter_is_not_joined(case: Case) {
    let case = case.with_stream().await;
    let _queue = case.queue(case.queue_spec()).await;
    let other = QueueSpec {
        filters: vec![case.subject("other.>")],
        ..case.queue_spec()
    };
    let refused = within("queue", case.broker.queue(other)).await;
    assert!(matches!(refused.err(), Some(BrokerError::Mismatch { .. })));
}

pub async fn a_queue_outlives_its_members(case: Case) {
    let case = case.with_stream().await;
    case.publish_many("work.x", 4).await;
    let mut queue = case.queue(case.queue_spec()).await;
    for _ in 0..2 {
        next(&mut *queue).await.receipt.ack().await.unwrap();
    }
    within("close", queue.close()).await;
    drop(queue);
    floor_reaches(&case, 2).await;
    let mut queue = case.queue(case.queue_spec()).await;
    let mut seen = BTreeSet::new();
    while seen.len() < 2 {
        let work = next(&mut *queue).await;
        work.receipt.ack().await.unwrap();
        seen.insert(work.message.stream_sequence);
    }
    assert_eq!(seen, BTreeSet::from([3, 4]));
    floor_reaches(&case, 4).await;
    assert!(queue.next().now_or_never().is_none());
}
