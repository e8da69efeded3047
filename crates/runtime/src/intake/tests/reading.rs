//! Reading survives faults and slow shards: nothing is lost, repeated or reordered.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use tokio::sync::mpsc;

use super::broker::{Fault, Scripted};
use super::world::{Mood, Plan, STREAMS, World, place, settings};
use super::*;
use crate::intake::Halt;
use crate::kernel::duration::Millis;
use crate::shard::mailbox::{Delivery, Mail, Notice};
use crate::telemetry::Metrics;

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("it happens in time")
}

async fn next_delivery(mailbox: &mut mpsc::Receiver<Mail>) -> Delivery {
    loop {
        match soon(mailbox.recv()).await.expect("the intake lives") {
            Mail::Delivery(delivery) if delivery.stream == SourceStream::AggregateEvents => return delivery,
            _ => {}
        }
    }
}

async fn rebuilt(fault: Fault) -> (World, Vec<u64>) {
    let broker = Scripted::new();
    let mut expected = Vec::new();
    for order in 0..20 {
        expected.push(place(&broker, &format!("o-{order}"), 1).0);
    }
    broker.fault(8, fault);
    let mut world = Plan::new(1).start(broker);
    let mut shard = world.shard(0, Mood::default());
    shard.knows(20).await;
    assert_eq!(shard.applied(), expected);
    let starts = world
        .broker
        .opened(STREAMS[0])
        .iter()
        .map(|spec| spec.start_sequence)
        .collect();
    (world, starts)
}

#[tokio::test]
async fn after_a_fault_a_new_reader_begins_behind_what_was_handled() {
    for fault in [Fault::Lost, Fault::Redelivered, Fault::Broken] {
        let (world, starts) = rebuilt(fault).await;
        assert_eq!(starts, [1, 8], "{fault:?}");
        let opened = world.broker.opened(STREAMS[0]);
        assert_ne!(opened[0].name, opened[1].name, "{fault:?}");
        world.intake.drain().await;
    }
}

#[tokio::test]
async fn a_message_that_got_lost_and_has_none_behind_it_is_asked_for_again() {
    let mut plan = Plan::new(1);
    plan.settings.overdue_after = Millis(50);
    let broker = Scripted::new();
    broker.fault(2, Fault::Lost);
    place(&broker, "o-1", 1);
    place(&broker, "o-2", 1);
    let mut world = plan.start(broker);
    let mut shard = world.shard(0, Mood::default());
    shard.knows(2).await;
    assert_eq!(shard.applied(), [1, 2]);
    let starts: Vec<u64> = world
        .broker
        .opened(STREAMS[0])
        .iter()
        .map(|spec| spec.start_sequence)
        .collect();
    assert_eq!(starts, [1, 2]);
}

#[tokio::test]
async fn two_sagas_on_one_event_are_one_delivery() {
    let mut plan = Plan::new(1);
    plan.settings.delivery_inputs = 1;
    plan.definitions.push(saga(
        "bill",
        1,
        &["Order.Placed"],
        &[("*", "event.data.order_id")],
    ));
    let broker = Scripted::new();
    place(&broker, "o-1", 1);
    place(&broker, "o-2", 1);
    let mut world = plan.start(broker);
    let mut mailbox = world.mailbox(0);
    for sequence in [1, 2] {
        let delivery = next_delivery(&mut mailbox).await;
        assert_eq!((delivery.after, delivery.sequence), (sequence - 1, sequence));
        assert_eq!(delivery.inputs.len(), 2);
    }
}

#[tokio::test]
async fn a_shard_without_messages_learns_how_far_the_stream_was_read() {
    let broker = Scripted::new();
    for order in 0..50 {
        let payload = event(json!({"event_type": "Seen"}));
        broker.store(
            STREAMS[0],
            &format!("tenant.acme.aggregate.Order.o-{order}"),
            payload,
        );
    }
    broker.store(STREAMS[0], "tenant.acme.aggregate.Ship.s-1", "not for us");
    let mut world = Plan::new(1).start(broker);
    let mut shard = world.shard(0, Mood::default());
    shard.knows(51).await;
    assert!(shard.applied().is_empty());
}

/// Reads mail until the barriers of all streams have come; the sequences of events mailed before theirs.
async fn events_before_barriers(
    mailbox: &mut mpsc::Receiver<Mail>,
    broker: &Scripted,
    asked: TimeMs,
) -> Vec<u64> {
    let mut before = Vec::new();
    let mut open: Vec<SourceStream> = SourceStream::ALL.into();
    while !open.is_empty() {
        match soon(mailbox.recv()).await.expect("the intake lives") {
            Mail::Barrier { stream, as_of } => {
                // Times are rounded down.
                assert!(
                    as_of >= asked.plus_ms(-1) && as_of <= broker.time(),
                    "{as_of:?} {asked:?}"
                );
                open.retain(|other| *other != stream);
            }
            Mail::Delivery(delivery)
                if delivery.stream == SourceStream::AggregateEvents && open.contains(&delivery.stream) =>
            {
                before.push(delivery.sequence);
            }
            _ => {}
        }
    }
    before
}

#[tokio::test]
async fn a_barrier_comes_behind_everything_stored_before_it() {
    for quiet in [false, true] {
        let broker = Scripted::new();
        let mut plan = Plan::new(1);
        plan.settings.batch_messages = 3;
        if quiet {
            // Without interested sagas the stream is not read at all.
            plan.definitions.clear();
        }
        let mut world = plan.start(broker);
        let mut mailbox = world.mailbox(0);
        for round in 1..=5_u64 {
            for order in 0..10 {
                place(&world.broker, &format!("o-{round}-{order}"), 1);
            }
            let asked = world.broker.time();
            world
                .notices
                .send(Notice::BarrierWanted { shard: 0 })
                .await
                .expect("the intake lives");
            let before = events_before_barriers(&mut mailbox, &world.broker, asked).await;
            assert!(before.last().is_none_or(|last| *last <= round * 10));
            assert_eq!(
                before.last().copied().unwrap_or(round * 10),
                round * 10,
                "quiet: {quiet}"
            );
        }
    }
}

#[tokio::test]
async fn a_stuck_shard_holds_up_nobody_and_misses_nothing() {
    let broker = Scripted::new();
    let mut plan = Plan::new(2);
    // The word that a reader was opened, for each stream, and two deliveries.
    plan.mailbox = 5;
    plan.settings.delivery_inputs = 1;
    plan.settings.detach_after = Millis(20);
    let mut world = plan.start(broker);
    let mut stuck = Some(world.mailbox(0));
    let mut other = world.shard(1, Mood::default());
    let mut mine = Vec::new();
    let mut last_of_other = 0;
    for order in 0..200 {
        let (sequence, shard) = place(&world.broker, &format!("o-{order}"), 2);
        if shard == 0 {
            mine.push(sequence);
        } else {
            last_of_other = sequence;
        }
    }
    other.knows(last_of_other).await;
    // Where its mailbox has no room for the word that they were opened, it has readers of other streams, too.
    soon(async {
        while world.metrics.shards_detached.get() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;

    // A barrier asked for while the shard is apart is answered by its own reader.
    world
        .notices
        .send(Notice::BarrierWanted { shard: 0 })
        .await
        .expect("the intake lives");
    world.mailboxes[0] = stuck.take();
    let mut shard = world.shard(0, Mood::default());
    shard.knows(200).await;
    assert_eq!(shard.applied(), mine);
    detached(&world.metrics, 0).await;
    place(&world.broker, "late", 2);
    shard.knows(201).await;
    assert_eq!(world.intake.status()[0].detached, 0);
}

/// With the reader of the shard the question was forgotten whether what it jumped over was gone.
#[tokio::test]
async fn a_shard_does_not_join_before_it_is_known_that_nothing_before_it_is_gone() {
    let broker = Scripted::new();
    let mut plan = Plan::new(2);
    plan.mailbox = 5;
    plan.settings.batch_messages = 3;
    plan.settings.delivery_inputs = 1;
    plan.settings.detach_after = Millis(20);
    let mut world = plan.start(broker.clone());
    let mut stuck = Some(world.mailbox(0));
    let mut other = world.shard(1, Mood::default());
    for order in 0..200 {
        place(&broker, &format!("o-{order}"), 2);
    }
    other.knows(200).await;
    soon(async {
        while broker.opened(STREAMS[0]).len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    broker.forget_before(STREAMS[0], 190);
    broker.mute(true);
    world.mailboxes[0] = stuck.take();
    let mut shard = world.shard(0, Mood::default());
    shard.knows(200).await;
    // It has come to where the others are, and nobody answers.
    let (late, _) = place(&broker, "late", 2);
    shard.knows(late).await;
    broker.mute(false);
    assert_eq!(halted(&world).await.reason, "stream.gap");
}

#[tokio::test]
async fn a_shard_far_behind_starts_apart_and_joins() {
    let broker = Scripted::new();
    let mut mine = Vec::new();
    for order in 0..300 {
        let (sequence, shard) = place(&broker, &format!("o-{order}"), 2);
        if shard == 0 && sequence > 10 {
            mine.push(sequence);
        }
    }
    let mut plan = Plan::new(2);
    plan.settings.detach_behind = 100;
    plan.starts = vec![10, 290];
    let mut world = plan.start(broker);
    let (mut behind, mut ahead) = (world.shard(0, Mood::default()), world.shard(1, Mood::default()));
    ahead.knows(300).await;
    behind.knows(300).await;
    assert_eq!(behind.applied(), mine);
    let mut starts: Vec<u64> = world
        .broker
        .opened(STREAMS[0])
        .iter()
        .map(|spec| spec.start_sequence)
        .collect();
    starts.sort_unstable();
    assert_eq!(starts, [11, 291]);
}

#[tokio::test]
async fn a_stream_that_lost_what_was_not_read_is_not_read_on() {
    let broker = Scripted::new();
    for order in 0..20 {
        place(&broker, &format!("o-{order}"), 1);
    }
    broker.forget_before(STREAMS[0], 15);
    let mut plan = Plan::new(1);
    plan.starts = vec![10];
    let world = plan.start(broker);
    assert_eq!(halted(&world).await.reason, "stream.gap");
    assert!(world.broker.opened(STREAMS[0]).is_empty());
}

/// Waits until the events are not read on, and says why.
async fn halted(world: &World) -> Halt {
    soon(async {
        loop {
            if let Some(halt) = world.intake.status()[0].halted.clone() {
                return halt;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
}

#[tokio::test]
async fn messages_dropped_while_no_reader_runs_end_reading() {
    for one_by_one in [false, true] {
        let broker = Scripted::new();
        for order in 0..5 {
            place(&broker, &format!("o-{order}"), 1);
        }
        let mut world = Plan::new(1).start(broker.clone());
        let mut shard = world.shard(0, Mood::default());
        shard.knows(5).await;
        broker.pause(true);
        for order in 5..20 {
            place(&broker, &format!("o-{order}"), 1);
        }
        if one_by_one {
            broker.remove(9);
        } else {
            broker.forget_before(STREAMS[0], 16);
        }
        broker.pause(false);
        let halt = halted(&world).await;
        assert_eq!(halt.reason, "stream.gap");
        let lost = if one_by_one {
            "message 9 of"
        } else {
            "messages 6 to 15 of"
        };
        assert!(halt.message.starts_with(lost), "{halt:?}");
    }
}

/// The end that the probe asks for is that of before, and the silence that of behind.
#[tokio::test]
async fn a_message_dropped_during_a_probe_is_not_skipped() {
    let broker = Scripted::new();
    for order in 0..5 {
        place(&broker, &format!("o-{order}"), 1);
    }
    let mut world = Plan::new(1).start(broker.clone());
    let mut shard = world.shard(0, Mood::default());
    shard.knows(5).await;
    broker.pause(true);
    for order in 5..20 {
        place(&broker, &format!("o-{order}"), 1);
    }
    broker.forget_when_asked(21);
    let halt = halted(&world).await;
    assert!(halt.message.starts_with("messages 6 to 20 of"), "{halt:?}");
    world.intake.drain().await;
    let position = world.positions[0][0].load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(position, 5, "what is gone counts as read");
}

/// Before anything behind the gap is mailed, where the reader knew that it was behind.
#[tokio::test]
async fn nothing_behind_a_gap_in_a_backlog_is_mailed() {
    let broker = Scripted::new();
    let mut plan = Plan::new(1);
    plan.mailbox = 2;
    plan.settings.batch_messages = 3;
    plan.settings.delivery_inputs = 1;
    for order in 0..40 {
        place(&broker, &format!("o-{order}"), 1);
    }
    let mut world = plan.start(broker.clone());
    let read = || world.intake.status()[0].read;
    soon(async {
        while read() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    // It stands there until the shard takes something.
    broker.forget_before(STREAMS[0], 30);
    let shard = world.shard(0, Mood::default());
    let halt = halted(&world).await;
    assert!(halt.message.contains("to 29 of"), "{halt:?}");
    world.intake.drain().await;
    assert!(
        shard.applied().iter().all(|sequence| *sequence < 30),
        "{:?}",
        shard.applied()
    );
}

#[tokio::test]
async fn messages_removed_before_the_start_or_behind_the_reader_are_not_missed() {
    let broker = Scripted::new();
    for order in 0..20 {
        place(&broker, &format!("o-{order}"), 1);
    }
    broker.remove(15);
    let mut world = Plan::new(1).start(broker.clone());
    let mut shard = world.shard(0, Mood::default());
    shard.knows(20).await;
    broker.remove(3);
    broker.forget_before(STREAMS[0], 10);
    for round in 0..3 {
        let mut barriers = world.metrics.messages_read.with_label_values(&[STREAMS[0]]).get();
        place(&broker, &format!("late-{round}"), 1);
        shard.knows(21 + round).await;
        barriers += 1;
        assert!(world.metrics.messages_read.with_label_values(&[STREAMS[0]]).get() >= barriers);
        // Longer than the time between two looks.
        tokio::time::sleep(settings().watermark_interval.duration() * 2).await;
    }
    assert_eq!(world.intake.status()[0].halted, None);
}

#[tokio::test]
async fn a_stream_of_which_nothing_matters_may_drop_what_it_likes() {
    let broker = Scripted::new();
    let mut plan = Plan::new(1);
    plan.definitions.clear();
    for order in 0..20 {
        place(&broker, &format!("o-{order}"), 1);
    }
    broker.forget_before(STREAMS[0], 15);
    let mut world = plan.start(broker);
    world.shard(0, Mood::default()).knows(20).await;
    assert_eq!(world.intake.status()[0].halted, None);
}

#[tokio::test]
async fn a_halted_shard_stops_no_other() {
    let broker = Scripted::new();
    for order in 0..20 {
        place(&broker, &format!("o-{order}"), 2);
    }
    broker.forget_before(STREAMS[0], 15);
    let mut plan = Plan::new(2);
    plan.starts = vec![3, 20];
    plan.halted = vec![0];
    let mut world = plan.start(broker);
    let mut shard = world.shard(1, Mood::default());
    let mut mine = Vec::new();
    for order in 20..40 {
        let (sequence, owner) = place(&world.broker, &format!("o-{order}"), 2);
        if owner == 1 {
            mine.push(sequence);
        }
    }
    shard.knows(40).await;
    assert_eq!(shard.applied(), mine);
    assert_eq!(world.intake.status()[0].halted, None);
}

#[tokio::test]
async fn a_new_connection_ends_the_wait_for_the_next_attempt() {
    let broker = Scripted::new();
    let mut plan = Plan::new(1);
    plan.settings.reopen_initial = Millis::seconds(3_600);
    plan.settings.reopen_max = Millis::seconds(3_600);
    place(&broker, "o-1", 1);
    let mut world = plan.start(broker.clone());
    let mut shard = world.shard(0, Mood::default());
    shard.knows(1).await;
    broker.away(true);
    soon(async {
        while world.intake.status()[0].connected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    place(&broker, "o-2", 1);
    broker.away(false);
    shard.knows(2).await;
    assert_eq!(shard.applied(), [1, 2]);
}

#[tokio::test]
async fn a_broker_that_does_not_say_how_far_a_stream_reaches_holds_up_no_message() {
    let broker = Scripted::new();
    place(&broker, "first", 1);
    let mut plan = Plan::new(1);
    plan.settings.batch_messages = 3;
    let mut world = plan.start(broker.clone());
    let mut mailbox = world.mailbox(0);
    while next_delivery(&mut mailbox).await.sequence < 1 {}
    broker.mute(true);
    world
        .notices
        .send(Notice::BarrierWanted { shard: 0 })
        .await
        .expect("the intake lives");
    for order in 0..300 {
        place(&broker, &format!("o-{order}"), 1);
    }
    while next_delivery(&mut mailbox).await.sequence < 301 {}
    broker.mute(false);
    let asked = world.broker.time();
    world
        .notices
        .send(Notice::BarrierWanted { shard: 0 })
        .await
        .expect("the intake lives");
    while !matches!(
        soon(mailbox.recv()).await,
        Some(Mail::Barrier { stream: SourceStream::AggregateEvents, as_of }) if as_of >= asked.plus_ms(-1)
    ) {}
    assert_eq!(
        broker.in_the_way(),
        0,
        "its end is looked for where nothing else is to be done"
    );
}

#[tokio::test]
async fn a_recreated_stream_is_not_read_on() {
    let broker = Scripted::new();
    place(&broker, "o-1", 1);
    let mut world = Plan::new(1).start(broker);
    let mut shard = world.shard(0, Mood::default());
    shard.knows(1).await;
    world.broker.recreate(STREAMS[0]);
    world.broker.fault(1, Fault::Broken);
    place(&world.broker, "o-2", 1);
    place(&world.broker, "o-3", 1);
    // The reader fails on the new messages, and the one after it finds another stream.
    world.broker.fault(2, Fault::Broken);
    let halted = async {
        while world.intake.status()[0].halted.is_none() {
            world.broker.fault(3, Fault::Broken);
            place(&world.broker, "o-4", 1);
            tokio::task::yield_now().await;
        }
        world.intake.status()[0].halted.clone()
    };
    assert_eq!(
        soon(halted).await.map(|halt| halt.reason),
        Some("stream.identity")
    );
    assert_eq!(shard.applied(), [1]);
}

#[tokio::test]
async fn a_result_without_address_finds_its_instance_by_its_command() {
    let broker = Scripted::new();
    let body = |id: &str| {
        json!({"tenant_id": "acme", "command_id": id, "effect_name": "charge", "result_type": "Succeeded", "payload": {}})
            .to_string()
    };
    let (known, orphan) = (
        "00000000-0000-0000-0000-000000000001",
        "00000000-0000-0000-0000-000000000002",
    );
    let command = json!({
        "tenant_id": "acme", "command_id": known, "effect_name": "charge", "payload": {},
        "metadata": {
            "saga": "order", "key": "o-1", "correlation_id": "o-1", "causation_id": "e-1",
            "idempotency_key": "i", "path": "steps.charge", "attempt": 1, "deadline_ms": 0
        }
    });
    broker.store(
        STREAMS[2],
        &format!("tenant.acme.effect.charge.{known}"),
        command.to_string(),
    );
    for id in [known, orphan] {
        broker.store(
            STREAMS[1],
            &format!("tenant.acme.effect_result.charge.{id}"),
            body(id),
        );
    }
    let mut world = Plan::new(1).start(broker);
    let mut mailbox = world.mailbox(0);
    let mut found = Vec::new();
    while found.len() < 2 {
        if let Some(Mail::Delivery(delivery)) = soon(mailbox.recv()).await {
            found.extend(delivery.inputs);
        }
    }
    assert!(matches!(&found[0], Arrival::Input(input) if input.instance.to_string() == "acme/order/o-1"));
    assert!(matches!(&found[1], Arrival::Unreadable(bad) if bad.reason == "result.orphan"));
}

#[tokio::test]
async fn a_drained_intake_mails_no_more() {
    let broker = Scripted::new();
    place(&broker, "o-1", 1);
    let mut world = Plan::new(1).start(broker);
    let mut mailbox = world.mailbox(0);
    next_delivery(&mut mailbox).await;
    world.intake.drain().await;
    place(&world.broker, "o-2", 1);
    let left = async {
        let mut left = Vec::new();
        while let Some(mail) = mailbox.recv().await {
            left.push(mail);
        }
        left
    };
    // All senders but the test's own are gone, so the mailbox ends.
    let left = soon(left).await;
    assert!(
        left.iter()
            .all(|mail| !matches!(mail, Mail::Delivery(delivery) if !delivery.inputs.is_empty())),
        "{left:?}"
    );
}

#[derive(Debug, Clone)]
struct Storm {
    orders: usize,
    faults: Vec<(u64, Fault)>,
    moods: Vec<Mood>,
    delivery_inputs: usize,
    batch: usize,
    mailbox: usize,
    burst: usize,
}

fn storms() -> impl Strategy<Value = Storm> {
    let fault = prop_oneof![Just(Fault::Lost), Just(Fault::Redelivered), Just(Fault::Broken)];
    let mood = (
        proptest::collection::vec(prop_oneof![6 => Just(0), 2 => 1..3_u64, 1 => 8..15_u64], 1..12),
        proptest::collection::vec(0..60_u64, 0..4),
    )
        .prop_map(|(pauses, holds_back)| Mood {
            pauses,
            mails: 0,
            holds_back,
        });
    (
        100..400_usize,
        proptest::collection::vec((1..300_u64, fault), 0..6),
        proptest::collection::vec(mood, 3),
        1..9_usize,
        1..40_usize,
        1..4_usize,
        1..60_usize,
    )
        .prop_map(
            |(orders, faults, moods, delivery_inputs, batch, mailbox, burst)| Storm {
                orders,
                faults,
                moods,
                delivery_inputs,
                batch,
                mailbox,
                burst,
            },
        )
}

/// Waits until so many shards have a reader of their own.
async fn detached(metrics: &Metrics, shards: i64) {
    soon(async {
        while metrics.shards_detached.get() != shards {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

async fn weather(storm: Storm) {
    let broker = Scripted::new();
    for (sequence, fault) in &storm.faults {
        broker.fault(*sequence, *fault);
    }
    let mut plan = Plan::new(3);
    plan.mailbox = storm.mailbox;
    plan.settings = crate::intake::Settings {
        delivery_inputs: storm.delivery_inputs,
        batch_messages: storm.batch,
        detach_after: Millis(4),
        attach_within: 20,
        attach_inputs: 30,
        watermark_messages: 7,
        overdue_after: Millis(100),
        ..settings()
    };
    plan.definitions.push(saga(
        "bill",
        1,
        &["Order.Placed"],
        &[("*", "event.data.order_id")],
    ));
    let mut world = plan.start(broker);
    let mut shards: Vec<_> = (0..3_u16)
        .map(|index| world.shard(index, storm.moods[usize::from(index)].clone()))
        .collect();
    let mut expected = vec![Vec::new(); 3];
    for order in 0..storm.orders {
        let (sequence, shard) = place(&world.broker, &format!("o-{order}"), 3);
        expected[usize::from(shard)].extend([sequence, sequence]);
        if order % storm.burst == 0 {
            tokio::task::yield_now().await;
        }
    }
    let last = storm.orders as u64;
    for (shard, expected) in shards.iter_mut().zip(expected) {
        shard.knows(last).await;
        assert_eq!(shard.applied(), expected);
    }
    world.intake.drain().await;
    // A reader that was ended is dropped, and no longer counted, a moment later.
    detached(&world.metrics, 0).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_shard_gets_each_input_once_in_order_despite_stalls_breaks_and_restarts(storm in storms()) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(weather(storm));
    }
}
