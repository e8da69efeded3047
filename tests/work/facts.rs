//! Facts and other messages for whose delivery nobody waits: each stands once and in order, whatever the shard has forgotten,
//! and none is given up because the broker does not take it.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use bytes::Bytes;
use saga_runner::kernel::children::SagaMessage;
use saga_runner::kernel::ids::{Key, SagaName};
use saga_runner::kernel::subject::Subject;
use saga_runner::kernel::work::{WorkItem, WorkKind, WorkRef};
use saga_runner::ports::broker::{Expect, Publication};

use crate::work::rig::{RelayOptions, Rig, at, effect_name, fact, item, until};

/// Alters a stream behind the runner's back.
pub async fn alter(rig: &Rig, stream: &str, change: impl FnOnce(&mut stream::Config)) {
    let client = async_nats::connect(rig.nats_url()).await.unwrap();
    let context = jetstream::new(client);
    let mut config = context
        .get_stream(stream)
        .await
        .unwrap()
        .cached_info()
        .config
        .clone();
    change(&mut config);
    context.update_stream(config).await.unwrap();
}

/// Waits until the broker has forgotten the ids of all that was published so far.
async fn window_over(rig: &Rig) {
    let probe = || Publication {
        stream: rig.streams.events.clone(),
        subject: "tenant.acme.workflow_event.probe.probe".to_owned(),
        headers: Vec::new(),
        payload: Bytes::from_static(b"{}"),
        expect: Expect::MessageId("probe".to_owned()),
    };
    rig.broker.publish(probe()).await.unwrap();
    until(async || {
        let again = rig.broker.publish(probe()).await.unwrap();
        (!again.duplicate).then_some(())
    })
    .await;
}

fn facts(rig: &Rig, rows: std::ops::RangeInclusive<u64>) -> Vec<(WorkRef, WorkItem)> {
    rows.map(|n| (at(n, 0), fact(rig, "o-1", u128::from(n))))
        .collect()
}

fn subject(item: &WorkItem) -> String {
    Subject::WorkflowEvent {
        tenant: item.instance.tenant.clone(),
        saga: item.instance.saga.clone(),
        key: item.instance.key.clone(),
    }
    .render()
}

/// Ids of the facts of an instance, in the order in which they are stored.
async fn stored(rig: &Rig, of: &WorkItem) -> Vec<String> {
    let mut ids = Vec::new();
    let state = rig.broker.stream_state(&rig.streams.events).await.unwrap();
    for sequence in state.first_sequence..=state.last_sequence {
        let message = rig
            .broker
            .message_at(&rig.streams.events, sequence)
            .await
            .unwrap();
        let message = message.filter(|message| message.subject == subject(of));
        let body: Option<serde_json::Value> =
            message.and_then(|message| serde_json::from_slice(&message.payload).ok());
        ids.extend(body.and_then(|body| Some(body["event_id"].as_str()?.to_owned())));
    }
    ids
}

fn ids(rows: &[(WorkRef, WorkItem)]) -> Vec<String> {
    rows.iter().map(|(_, item)| item.command_id.to_string()).collect()
}

/// A broker that has forgotten the ids of ten facts.
async fn ten_facts() -> (Rig, Vec<(WorkRef, WorkItem)>) {
    let rig = Rig::on_nats().await;
    alter(&rig, &rig.streams.events, |config| {
        config.duplicate_window = Duration::from_millis(100);
    })
    .await;
    let rows = facts(&rig, 1..=10);
    let mut first = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    first.release(rows.clone()).await;
    first.until(|shard| shard.delivered.len() == 10).await;
    window_over(&rig).await;
    (rig, rows)
}

#[tokio::test]
async fn facts_whose_deletion_was_lost_with_the_process_are_not_stored_again() {
    let (rig, mut rows) = ten_facts().await;
    let options = RelayOptions {
        outbox: rows[4..].to_vec(),
        began_after: 10,
        ..RelayOptions::default()
    };
    let mut second = rig.relay(Arc::clone(&rig.broker), options);
    second.until_started().await;
    let next = facts(&rig, 11..=11);
    rows.extend(next.clone());
    second.release(next).await;
    second.until(|shard| shard.delivered.len() == 7).await;
    // Found by the sweeper, behind a later one.
    second.outbox.extend(rows[4..6].iter().cloned());
    second.overdue(at(5, 0)).await;
    second.overdue(at(6, 0)).await;
    second.until(|shard| shard.delivered.len() == 9).await;
    assert_eq!(stored(&rig, &rows[0].1).await, ids(&rows));
}

#[tokio::test]
async fn a_fact_of_an_earlier_life_that_is_not_stored_is_sent_although_others_are_stored() {
    let (rig, mut rows) = ten_facts().await;
    rows.extend(facts(&rig, 11..=11));
    let forged = Publication {
        stream: rig.streams.events.clone(),
        subject: subject(&rows[0].1),
        headers: vec![(
            "saga-runner-position".to_owned(),
            format!("{}-{}", u64::MAX, "0".repeat(32)),
        )],
        payload: Bytes::from_static(b"{}"),
        expect: Expect::Nothing,
    };
    let options = RelayOptions {
        outbox: rows[9..].to_vec(),
        began_after: 11,
        ..RelayOptions::default()
    };
    let mut second = rig.relay(Arc::clone(&rig.broker), options);
    second.until(|shard| shard.delivered.len() == 2).await;
    assert_eq!(stored(&rig, &rows[0].1).await, ids(&rows));
    rig.broker.publish(forged).await.unwrap();
    let lost = facts(&rig, 12..=12);
    let options = RelayOptions {
        outbox: lost.clone(),
        began_after: 12,
        ..RelayOptions::default()
    };
    let mut third = rig.relay(Arc::clone(&rig.broker), options);
    third.until(|shard| shard.delivered.len() == 1).await;
    assert_eq!(stored(&rig, &rows[0].1).await.last(), ids(&lost).last());
}

/// A copy of a folder has the same work in other rows than the original, from where they part.
#[tokio::test]
async fn a_fact_that_was_published_from_another_row_is_recognised_by_its_id_and_a_copied_proof_is_none() {
    let (rig, rows) = ten_facts().await;
    let elsewhere = |row: u64, of: usize| vec![(at(row, 0), rows[of].1.clone())];
    let resumed = |outbox: Vec<(WorkRef, WorkItem)>| RelayOptions {
        outbox,
        began_after: 100,
        ..RelayOptions::default()
    };
    let mut second = rig.relay(Arc::clone(&rig.broker), resumed(elsewhere(90, 9)));
    second.until(|shard| shard.delivered.len() == 1).await;
    assert_eq!(stored(&rig, &rows[0].1).await, ids(&rows));
    // Somebody repeats the proof of the last one with the id of the next.
    let next = facts(&rig, 11..=11);
    let subject = subject(&rows[0].1);
    let last = rig.broker.last_by_subject(&rig.streams.events, &subject);
    let last = last.await.unwrap().expect("the tenth");
    let forged = Publication {
        stream: rig.streams.events.clone(),
        subject: last.subject,
        headers: last.headers,
        payload: Bytes::from(format!("{{\"event_id\": \"{}\"}}", next[0].1.command_id)),
        expect: Expect::Nothing,
    };
    rig.broker.publish(forged).await.unwrap();
    let mut third = rig.relay(Arc::clone(&rig.broker), resumed(next.clone()));
    third.until(|shard| shard.delivered.len() == 1).await;
    let stored = stored(&rig, &rows[0].1).await;
    assert_eq!(
        stored[10..],
        [ids(&next), ids(&next)].concat(),
        "the forged one, and the fact"
    );
}

#[tokio::test]
async fn facts_that_the_broker_refuses_stay_and_are_sent_in_order_later() {
    let rig = Rig::on_nats().await;
    let bytes_max = |bytes: i32| move |config: &mut stream::Config| config.max_message_size = bytes;
    for stream in [&rig.streams.events, &rig.streams.commands] {
        alter(&rig, stream, bytes_max(64)).await;
    }
    let result = WorkKind::Result {
        effect: effect_name(),
        body: Bytes::from(vec![b'x'; 100]),
    };
    let message = WorkKind::Saga {
        saga: SagaName::parse("order").unwrap(),
        key: Key::parse("other").unwrap(),
        message: SagaMessage::RegisterAlias { generation: 1 },
        awaited: false,
    };
    let mut rows = facts(&rig, 1..=3);
    rows.push((at(4, 0), item(&rig, "o-1", 4, result)));
    rows.push((at(5, 0), item(&rig, "o-1", 5, message)));
    let mut shard = rig.relay(Arc::clone(&rig.broker), RelayOptions::default());
    shard.release(rows.clone()).await;
    let refused = rig.metrics.outbox_refused.with_label_values(&["0"]);
    // The later facts wait behind the first one.
    shard.until(|_| refused.get() == 3).await;
    let again = rig
        .metrics
        .messages_relayed
        .with_label_values(&["fact", "refused"]);
    shard.until(|_| again.get() >= 3).await;
    assert!(shard.delivered.is_empty(), "{:?}", shard.delivered);
    for stream in [&rig.streams.events, &rig.streams.commands] {
        alter(&rig, stream, bytes_max(1_000_000)).await;
    }
    shard.until(|shard| shard.delivered.len() == rows.len()).await;
    shard.until(|_| refused.get() == 0).await;
    assert_eq!(stored(&rig, &rows[0].1).await, ids(&rows[..3]));
}
