//! Inputs that cannot be applied stop their key and nothing else, and operators get everything back in order.

use std::time::Duration;

use serde_json::{Value, json};

use super::faults::die_with;
use super::world::{
    CONTROLS, EVENTS, LIST, PAY, RESULTS, START, World, added, cancel, compile, corrected, divided, event,
    list, named, opened, pay, pay_opened, result, set_of,
};
use crate::kernel::definition::Definition;
use crate::kernel::ids::TenantId;
use crate::kernel::input::{Input, InputBody, Origin, WorkOutcome};
use crate::kernel::record::Phase;
use crate::kernel::view::BlockedView;
use crate::ports::clock::Clock as _;
use crate::shard::mailbox::{
    Arrival, Delivery, LetterDecision::Discard, LetterDecision::Retry, Mail, Unreadable,
};
use crate::storage::rows::HistoryOutcome;

/// LIST with the division repaired, for the instances that run under LIST.
fn repaired() -> Definition {
    let source = LIST.replace(
        "[100 / event.data.by]",
        "[event.data.by == 0 ? -1 : 100 / event.data.by]",
    );
    assert_ne!(source, LIST);
    corrected(&source, compile(LIST).hash)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn poison_stops_its_key_alone_and_a_retry_goes_on_in_order() {
    let mut world = World::new();
    let shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![opened("a", 1), opened("b", 1)])
        .await;
    shard.deliver(EVENTS, 2, vec![divided("a", 2, 0)]).await;
    shard
        .deliver(EVENTS, 3, vec![added("a", 3, 3), added("b", 3, 3)])
        .await;
    shard.deliver(EVENTS, 4, vec![divided("a", 4, 0)]).await;
    shard.deliver(EVENTS, 5, vec![added("a", 5, 5)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([]));
    assert_eq!(shard.items("b"), json!([3]));
    let letters = shard.dead_letters();
    let [(number, letter)] = letters.as_slice() else {
        panic!("one dead letter, not {letters:?}");
    };
    assert_eq!((letter.reason.as_str(), letter.attempts), ("expression", 1));
    let waiting = ["List.Added/a/3", "List.Divided/a/4", "List.Added/a/5"];
    assert_eq!(
        shard.inbox("a"),
        (Some(*number), waiting.map(str::to_owned).to_vec())
    );
    assert!(matches!(
        &shard.history(&list("a"))[0].outcome,
        HistoryOutcome::Dead { number: dead, .. } if dead == number
    ));

    // Nothing was corrected: the retry fails as before.
    shard.decide(*number, Retry).await.unwrap();
    let letters = shard.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.attempts, 2);
    assert_eq!(shard.inbox("a").1, waiting);
    shard.stop().await;

    // Corrected. It is remembered that the key is blocked, and what waits is applied in order.
    world.definitions = set_of(vec![repaired(), compile(PAY)]);
    let shard = world.start();
    shard.deliver(EVENTS, 6, vec![added("a", 6, 6)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([]));
    shard.decide(letters[0].0, Retry).await.unwrap();
    assert_eq!(shard.items("a"), json!([-1, 3, -1, 5, 6]));
    assert_eq!(shard.dead_letters(), []);
    assert_eq!(shard.inbox("a"), (None, Vec::new()));
    shard.deliver(EVENTS, 7, vec![added("a", 7, 7)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([-1, 3, -1, 5, 6, 7]));
    assert_eq!(shard.handle.status.instances_waiting(), 0);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_discard_goes_on_without_the_input_and_stops_at_the_next_poison() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![divided("a", 2, 0)]).await;
    shard.deliver(EVENTS, 3, vec![added("a", 3, 3)]).await;
    shard.deliver(EVENTS, 4, vec![divided("a", 4, 0)]).await;
    shard.deliver(EVENTS, 5, vec![added("a", 5, 5)]).await;
    shard.until_idle().await;
    shard.decide(shard.dead_letters()[0].0, Discard).await.unwrap();
    assert_eq!(shard.items("a"), json!([3]));
    let letters = shard.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.input.as_ref().unwrap().id, "List.Divided/a/4");
    assert_eq!(shard.inbox("a").1, ["List.Added/a/5"]);
    shard.decide(letters[0].0, Discard).await.unwrap();
    assert_eq!(shard.items("a"), json!([3, 5]));
    shard.stop().await;
}

/// Each decision let the next poison kill the process, whose note was of the decision and of no input: so it was never set
/// aside, and the instance could not be helped.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_input_behind_a_dead_letter_is_applied_alone_after_a_crash() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![divided("a", 2, 0)]).await;
    shard.deliver(EVENTS, 3, vec![added("a", 3, 13)]).await;
    shard.deliver(EVENTS, 4, vec![added("a", 4, 4)]).await;
    shard.until_idle().await;
    shard.stop().await;
    die_with(&world, &added("a", 3, 13), 3);

    let shard = world.start();
    shard.decide(shard.dead_letters()[0].0, Discard).await.unwrap();
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([]));
    let letters = shard.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.reason, "poison.crash");
    assert_eq!(shard.inbox("a").1, ["List.Added/a/4"]);
    shard.decide(letters[0].0, Discard).await.unwrap();
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([4]));
    shard.stop().await;
}

/// The input that let the others in again was taken for what had killed the process: a result was given up in its place, and an
/// operator who resumed a paused instance killed the process, each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn after_a_crash_an_input_that_was_deferred_is_set_aside_and_not_the_one_that_readmits_it() {
    let world = World::new();
    let shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![opened("a", 1), named("a", "List.Held", 1)])
        .await;
    for (sequence, n) in [(2, 1), (3, 13), (4, 2)] {
        shard
            .deliver(EVENTS, sequence, vec![added("a", sequence, n)])
            .await;
    }
    shard.until_idle().await;
    shard.stop().await;
    die_with(&world, &added("a", 3, 13), 3);

    let shard = world.start();
    let released = vec![named("a", "List.Released", 5), added("a", 6, 3)];
    shard.deliver_after(EVENTS, 4, 5, released).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1]));
    let letters = shard.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.reason, "poison.crash");
    assert_eq!(letters[0].1.input.as_ref().unwrap().id, added("a", 3, 13).id);
    assert_eq!(shard.inbox("a").1, ["List.Added/a/4", "List.Added/a/6"]);
    shard.decide(letters[0].0, Discard).await.unwrap();
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1, 2, 3]));
    assert_eq!(shard.inbox("a").1.len(), 0);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn after_a_crash_an_early_event_is_set_aside_and_not_the_one_that_begins_its_instance() {
    let mut world = World::new();
    let early = LIST.replacen("\nkey:", "\nno_instance: {park: 1h}\nkey:", 1);
    world.definitions = set_of(vec![compile(&early), compile(PAY)]);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![added("a", 1, 13)]).await;
    shard.deliver(EVENTS, 2, vec![added("a", 2, 2)]).await;
    shard.until_idle().await;
    shard.stop().await;
    die_with(&world, &added("a", 1, 13), 3);

    let shard = world.start();
    shard.deliver(EVENTS, 3, vec![opened("a", 3)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([]));
    let letters = shard.dead_letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.input.as_ref().unwrap().id, added("a", 1, 13).id);
    shard.decide(letters[0].0, Discard).await.unwrap();
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([2]));
    let timers = shard.handle.reader.clone().timers(None, 10).expect("readable");
    assert_eq!(timers.len(), 0, "nothing is left to expire");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn controls_never_wait_and_their_failure_stops_nothing() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![divided("a", 2, 0)]).await;
    shard.deliver(EVENTS, 3, vec![added("a", 3, 3)]).await;
    shard.deliver(CONTROLS, 1, vec![cancel(list("a"), 1)]).await;
    shard.until_idle().await;
    let ended = shard.ended(&list("a")).expect("it was cancelled at once");
    assert_eq!(ended.phase, Phase::Cancelled);
    shard.decide(shard.dead_letters()[0].0, Retry).await.unwrap();
    assert_eq!(shard.inbox("a"), (None, Vec::new()));
    assert_eq!(shard.dead_letters(), []);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_inbox_overflows_into_the_dead_letters() {
    let mut world = World::new();
    world.limits.inbox_inputs = 2;
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![divided("a", 2, 0)]).await;
    for sequence in 3..=5 {
        let n = i64::try_from(sequence).unwrap();
        shard
            .deliver(EVENTS, sequence, vec![added("a", sequence, n)])
            .await;
    }
    shard.until_idle().await;
    let letters = shard.dead_letters();
    let reasons: Vec<_> = letters.iter().map(|(_, letter)| letter.reason.as_str()).collect();
    assert_eq!(reasons, ["expression", "inbox.overflow"]);
    shard.decide(letters[0].0, Discard).await.unwrap();
    assert_eq!(shard.items("a"), json!([3, 4]));
    // It stands in nobody's way, neither now nor after a restart.
    shard.deliver(EVENTS, 6, vec![added("a", 6, 6)]).await;
    shard.stop().await;
    let shard = world.start();
    shard.deliver(EVENTS, 7, vec![added("a", 7, 7)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([3, 4, 6, 7]));
    shard.decide(letters[1].0, Retry).await.unwrap();
    assert_eq!(shard.items("a"), json!([3, 4, 6, 7, 5]));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_bytes_that_wait_for_one_instance_are_bounded() {
    let mut world = World::new();
    world.limits.inbox_bytes = 3_000;
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![divided("a", 2, 0)]).await;
    for sequence in 3..=5 {
        let data = json!({"text": "x".repeat(1_000)});
        let input = event(list("a"), "List.Filled", sequence, &data);
        shard.deliver(EVENTS, sequence, vec![input]).await;
    }
    shard.until_idle().await;
    assert_eq!(shard.inbox("a").1.len(), 2);
    assert_eq!(shard.dead_letters()[1].1.reason, "inbox.overflow");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn deferred_inputs_come_again_in_the_order_in_which_they_came() {
    let world = World::new();
    let shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![opened("a", 1), named("a", "List.Held", 1)])
        .await;
    for (sequence, n) in [(2, 1), (3, 2), (4, 3)] {
        shard
            .deliver(EVENTS, sequence, vec![added("a", sequence, n)])
            .await;
    }
    shard.stop().await;
    let shard = world.start();
    assert_eq!(shard.items("a"), json!([]));
    assert_eq!(shard.inbox("a").1.len(), 3);
    // 99 goes to another state that defers, too: the first ones are looked at again and stay in front.
    shard.deliver(EVENTS, 5, vec![added("a", 5, 99)]).await;
    shard.deliver(EVENTS, 6, vec![added("a", 6, 4)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([99]));
    shard
        .deliver(EVENTS, 7, vec![named("a", "List.Released", 7)])
        .await;
    shard.deliver(EVENTS, 8, vec![added("a", 8, 5)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([99, 1, 2, 3, 4, 5]));
    assert_eq!(shard.inbox("a"), (None, Vec::new()));
    assert_eq!(shard.record(&list("a")).unwrap().deferred, 0);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn poison_among_readmitted_inputs_keeps_the_later_ones_behind_it() {
    let world = World::new();
    let shard = world.start();
    shard
        .deliver(EVENTS, 1, vec![opened("a", 1), named("a", "List.Held", 1)])
        .await;
    shard.deliver(EVENTS, 2, vec![added("a", 2, 1)]).await;
    shard.deliver(EVENTS, 3, vec![divided("a", 3, 0)]).await;
    shard.deliver(EVENTS, 4, vec![added("a", 4, 2)]).await;
    shard
        .deliver(EVENTS, 5, vec![named("a", "List.Released", 5)])
        .await;
    shard.deliver(EVENTS, 6, vec![added("a", 6, 3)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([1]));
    let (number, letter) = shard.dead_letters().remove(0);
    assert_eq!(letter.input.unwrap().id, "List.Divided/a/3");
    assert_eq!(shard.inbox("a").1, ["List.Added/a/4", "List.Added/a/6"]);
    shard.decide(number, Discard).await.unwrap();
    assert_eq!(shard.items("a"), json!([1, 2, 3]));
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_instance_waits_for_its_definition_and_goes_on_when_it_is_loaded() {
    let mut world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    let (_, item) = shard.outbox().await.remove(0);
    shard.stop().await;
    let with_pay = std::mem::replace(&mut world.definitions, set_of(vec![compile(LIST)]));
    let shard = world.start();
    shard
        .deliver(RESULTS, 1, vec![result(&item, 1, &json!({"receipt": "r"}))])
        .await;
    shard.until_idle().await;
    shard
        .deliver(
            EVENTS,
            2,
            vec![event(pay("p"), "Pay.Settled", 2, &json!({"id": "p"}))],
        )
        .await;
    shard.until_idle().await;
    assert_eq!(shard.dead_letters(), [], "it waits, and is not a dead letter");
    assert_eq!(shard.handle.reader.inbox(&pay("p"), 9).unwrap().1.len(), 2);
    assert!(shard.record(&pay("p")).is_some());
    shard.stop().await;
    world.definitions = with_pay;
    let shard = world.start();
    shard.until_idle().await;
    assert_eq!(shard.dead_letters(), []);
    assert_eq!(shard.ended(&pay("p")).unwrap().phase, Phase::Completed);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_result_on_which_an_expression_fails_stops_nothing() {
    let source = PAY.replace("'${result.receipt}'", "'${100 / result.receipt}'");
    let mut world = World::new();
    world.definitions = set_of(vec![compile(&source)]);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    let (_, item) = shard.outbox().await.remove(0);
    let payload = json!({"receipt": 0}).to_string();
    shard
        .verdict(
            pay("p"),
            item.command_id,
            WorkOutcome::Succeeded {
                payload: payload.into(),
            },
        )
        .await;
    assert_eq!(shard.outbox().await, []);
    assert_eq!(shard.dead_letters(), []);
    assert_eq!(shard.ended(&pay("p")).unwrap().phase, Phase::Failed);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn only_its_tenant_decides_about_a_dead_letter() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![divided("a", 2, 0)]).await;
    shard.until_idle().await;
    let number = shard.dead_letters()[0].0;
    let absent = shard.decide(number + 7, Discard).await;
    assert_eq!(shard.decide_as("t2", number, Discard).await, absent);
    assert!(absent.is_err());
    assert_eq!(shard.dead_letters().len(), 1);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_unreadable_message_is_a_dead_letter_and_stops_nothing() {
    let world = World::new();
    let shard = world.start();
    let unreadable = Unreadable {
        tenant: TenantId::parse("t1").unwrap(),
        subject: "tenant.t1.aggregate.List.a".to_owned(),
        reason: "payload.syntax",
        message: "no JSON".to_owned(),
        time: START,
        excerpt: "{".into(),
        payload_hash: [7; 32],
        sequence: 1,
    };
    shard
        .mail(Mail::Delivery(Delivery {
            stream: EVENTS,
            after: 0,
            sequence: 1,
            stamp: None,
            routed_by: 0,
            inputs: vec![Arrival::Unreadable(unreadable)],
        }))
        .await;
    shard.deliver(EVENTS, 2, vec![opened("a", 2)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), Value::Array(Vec::new()));
    let (number, letter) = shard.dead_letters().remove(0);
    assert_eq!(letter.source, Some((EVENTS, 1)));
    assert_eq!(letter.payload_hash, Some([7; 32]));
    assert!(shard.decide(number, Retry).await.is_err());
    shard.decide(number, Discard).await.unwrap();
    assert_eq!(shard.dead_letters(), []);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_input_that_contradicts_an_earlier_one_is_told_and_holds_up_nothing() {
    let world = World::new();
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![added("a", 2, 2)]).await;
    let mut other = added("a", 2, 99);
    other.origin = Origin::Stream {
        stream: EVENTS,
        sequence: 3,
    };
    shard.deliver(EVENTS, 3, vec![other]).await;
    shard.deliver(EVENTS, 4, vec![added("a", 4, 4)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([2, 4]));
    let letters = shard.dead_letters();
    let [(number, letter)] = letters.as_slice() else {
        panic!("one dead letter, not {letters:?}");
    };
    assert_eq!(letter.reason, "event_id.conflict");
    assert!(letter.message.contains("List.Added/a/2"), "{}", letter.message);
    assert_eq!(shard.inbox("a"), (None, Vec::new()));
    shard.decide(*number, Discard).await.unwrap();
    assert_eq!(shard.dead_letters(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_event_of_an_unknown_version_or_shape_holds_up_nothing_and_is_applied_once_the_version_takes_it() {
    let gates = "events: {List.Added: {versions: [1], schema: {type: object, required: [n], properties: {n: {type: integer}}}}}\n";
    let source = LIST.replace("state:\n", &format!("{gates}state:\n"));
    let mut world = World::new();
    world.definitions = set_of(vec![compile(&source)]);
    let shard = world.start();
    let newer = |mut input: Input| {
        if let InputBody::Event(event) = &mut input.body {
            event.schema_version = 2;
        }
        input
    };
    shard.deliver(EVENTS, 1, vec![opened("a", 1)]).await;
    shard.deliver(EVENTS, 2, vec![newer(added("a", 2, 2))]).await;
    let shapeless = event(list("a"), "List.Added", 3, &json!({"n": "three"}));
    shard.deliver(EVENTS, 3, vec![shapeless]).await;
    shard.deliver(EVENTS, 4, vec![added("a", 4, 4)]).await;
    shard.until_idle().await;
    assert_eq!(shard.items("a"), json!([4]));
    assert_eq!(shard.inbox("a"), (None, Vec::new()));
    let letters = shard.dead_letters();
    let reasons: Vec<_> = letters.iter().map(|(_, letter)| letter.reason.as_str()).collect();
    assert_eq!(reasons, ["event.version", "event.schema"]);
    let number = letters[0].0;
    shard.stop().await;

    let hash = world.definitions.active(&list("a").saga).unwrap().hash;
    world.definitions = set_of(vec![corrected(&source.replace("[1]", "[1, 2]"), hash)]);
    let shard = world.start();
    shard.decide(number, Retry).await.unwrap();
    assert_eq!(shard.items("a"), json!([4, 2]));
    assert_eq!(shard.dead_letters().len(), 1);
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_deadline_passes_a_dead_letter_and_other_timers_wait_behind_it() {
    let source = PAY
        .replace("set: {paid: true}", "set: {paid: '${100 / event.data.by == 1}'}")
        .replace("timers:\n", "deadline: 2m\ntimers:\n");
    let mut world = World::new();
    world.definitions = set_of(vec![compile(&source)]);
    let shard = world.start();
    shard.deliver(EVENTS, 1, vec![pay_opened("p", 1)]).await;
    let bad = event(pay("p"), "Pay.Settled", 2, &json!({"id": "p", "by": 0}));
    shard.deliver(EVENTS, 2, vec![bad]).await;
    world.clock.advance(Duration::from_secs(90));
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    assert_eq!(shard.record(&pay("p")).unwrap().phase, Phase::Running);
    let (behind, waiting) = shard.handle.reader.inbox(&pay("p"), 10).unwrap();
    assert!(
        matches!(&waiting[..], [(_, row)] if row.input.id.starts_with("unpaid@")),
        "{waiting:?}"
    );
    let record = shard.record(&pay("p")).unwrap();
    let kept = shard.handle.reader.kept(&pay("p")).unwrap();
    let blocked_by = BlockedView::of(&record, kept, world.clock.now()).expect("it is blocked");
    let letter = blocked_by.dead_letter.as_ref().expect("by a dead letter");
    assert_eq!((letter.reason.as_str(), blocked_by.inputs), ("expression", 1));
    let overdue: Vec<_> = blocked_by.overdue.iter().map(|timer| &timer.name[..]).collect();
    assert_eq!(overdue, ["unpaid"]);
    assert_eq!(shard.handle.status.instances_blocked(), 1);
    world.clock.advance(Duration::from_mins(1));
    shard.barrier(world.clock.now()).await;
    shard.until_idle().await;
    let record = shard.record(&pay("p")).expect("its charge is under way");
    assert_eq!(record.failure.as_ref().unwrap().code, "deadline");
    assert_eq!(
        shard.handle.reader.inbox(&pay("p"), 10).unwrap().0,
        behind,
        "the letter stands"
    );
    shard.stop().await;
}
