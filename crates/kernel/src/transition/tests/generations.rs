//! Starts with conditions, starts that come again, and keys that are used again.

use bytes::Bytes;
use saga_runner_language::ids::{ClusterId, CommandId, Key, SagaName};
use saga_runner_language::schedule;
use serde_json::{Value, json};

use super::build::{loaded, loaded_as};
use super::world::World;
use crate::children::{CHILD_EXISTS, ParentRef, SagaMessage};
use crate::input::{Control, OnConflict, WorkOutcome};
use crate::patch::{IgnoreReason, Outcome};
use crate::record::Phase;
use crate::transition::START_RUNNING;
use crate::work::WorkKind;

const RENTING: &str = r#"
start:
  - {event: Order.Placed, when: event.data.total > 0, set: {total: "${event.data.total + state.fee}", by: event}}
  - Order.Imported
key: {"*": event.data.id}
input: {type: object}
state: {init: {total: 0, fee: 5, by: nobody}}
handlers:
  Order.Placed: {set: {seen: "${state.total}"}}
  Order.Dropped: {fail: {code: dropped}}
steps:
  charge: {effect: charge, with: {n: "${state.total}"}, compensate: {effect: refund, on_unknown: ignore, with: {n: 1}}}
  ship: {needs: [charge], effect: ship, with: {n: 1}}
timers:
  late: {after: 1h, fail: {code: late}}
"#;

/// A saga with these keys besides.
pub(super) fn renting(keys: &str) -> World {
    World::new(loaded_as(&format!("{RENTING}{keys}")))
}

fn place(world: &mut World) -> Outcome {
    world.event("Order.Placed", &json!({"id": "o-1", "total": 10}))
}

fn complete(world: &mut World) {
    world.succeed("steps.charge", &json!({}));
    world.succeed("steps.ship", &json!({}));
    assert!(world.ended.is_some());
}

fn request() -> Control {
    Control::Start {
        input: Bytes::from_static(b"{}"),
        parent: None,
        on_conflict: OnConflict::Fail,
        traceparent: None,
    }
}

#[test]
fn a_start_has_a_condition_and_sets_before_the_handler_sees_the_event() {
    let mut world = renting("");
    let refused = world.event("Order.Placed", &json!({"id": "o-1", "total": 0}));
    assert_eq!(refused, Outcome::Ignored(IgnoreReason::NoInstance));
    assert!(world.record.is_none());
    assert_eq!(place(&mut world), Outcome::Applied);
    assert_eq!(
        world.data(),
        json!({"total": 15, "fee": 5, "by": "event", "seen": 15})
    );
    // The same event type again is an ordinary event, and sets nothing of its start.
    assert_eq!(place(&mut world), Outcome::Applied);
    assert_eq!(world.data()["total"], 15);

    let mut world = renting("");
    assert_eq!(
        world.event("Order.Imported", &json!({"id": "o-1"})),
        Outcome::Applied
    );
    assert_eq!(world.data(), json!({"total": 0, "fee": 5, "by": "nobody"}));
    let mut world = renting("");
    assert_eq!(world.control("r-1", request()), Outcome::Applied);
    assert_eq!(world.data()["by"], "nobody");
}

#[test]
fn a_start_that_meets_a_running_instance_is_handled_ignored_or_fails() {
    let mut world = renting("on_running: ignore\n");
    place(&mut world);
    let before = world.last().version;
    assert_eq!(place(&mut world), Outcome::Ignored(IgnoreReason::Exists));
    assert_eq!(world.last().version, before);

    let mut world = renting("on_running: fail\n");
    place(&mut world);
    let again = world.event_input("Order.Placed", &json!({"id": "o-1", "total": 1}));
    let rejection = world.give(&again).expect_err("it fails");
    assert_eq!(rejection.reason, START_RUNNING);
    assert!(!rejection.parks(), "nothing waits behind it");
    assert_eq!(world.phase(), Phase::Running);
    // What would start nothing does not fail either.
    let harmless = world.event("Order.Placed", &json!({"id": "o-1", "total": 0}));
    assert_eq!(harmless, Outcome::Applied);
}

#[test]
fn without_reuse_a_key_is_used_once() {
    let mut world = renting("");
    place(&mut world);
    complete(&mut world);
    assert_eq!(place(&mut world), Outcome::Ignored(IgnoreReason::Ended));
    assert_eq!(
        world.control("r-1", request()),
        Outcome::Ignored(IgnoreReason::Ended)
    );
}

#[test]
fn another_generation_has_other_ids_and_hears_nothing_of_the_one_before() {
    let mut world = renting("reuse: always\n");
    let first = world.event_input("Order.Placed", &json!({"id": "o-1", "total": 10}));
    world.must(&first);
    let old = world.newest("steps.charge").clone();
    complete(&mut world);
    // The event that began it comes again: it begins nothing.
    assert_eq!(world.must(&first), Outcome::Ignored(IgnoreReason::Duplicate));
    assert_eq!(place(&mut world), Outcome::Applied);
    assert_eq!(world.last().generation, 2);
    assert_eq!(world.must(&first), Outcome::Ignored(IgnoreReason::Duplicate));
    assert_eq!(world.data()["total"], 15);
    let new = world.newest("steps.charge").clone();
    assert_ne!(old.command_id, new.command_id);
    assert_ne!(old.idempotency_key, new.idempotency_key);
    let payload = Bytes::from_static(b"{}");
    let late = world.result(old.command_id, WorkOutcome::Succeeded { payload });
    assert_eq!(late, Outcome::Ignored(IgnoreReason::Orphan));
    assert_eq!(world.outstanding(), ["steps.charge"]);
    complete(&mut world);
    assert_eq!(world.control("r-1", request()), Outcome::Applied);
    assert_eq!(world.last().generation, 3);
}

/// What the charge of a life is known by, where nothing is known of the lives before; `event` is the number of the
/// event that starts it.
fn charge_of_life(cluster: ClusterId, generation: u32, event: u64) -> String {
    let mut world = renting("");
    (world.cluster, world.generation) = (cluster, generation);
    for _ in 1..event {
        world.domain_event("Order.Placed", &json!({}));
    }
    place(&mut world);
    world.newest("steps.charge").idempotency_key.clone()
}

/// Two clusters once moved the money of one transfer, because the second found the first one's key upstream; and so
/// did two lives of one key, once the tombstone between them was pruned.
#[test]
fn a_key_names_cluster_and_life_and_not_the_generation_that_pruning_forgets() {
    let (one, other) = (ClusterId([1; 16]), ClusterId([2; 16]));
    let first = charge_of_life(one, 1, 1);
    assert_ne!(first, charge_of_life(other, 1, 1), "another cluster");
    assert_ne!(
        first,
        charge_of_life(one, 1, 2),
        "another start behind a pruned tombstone"
    );
    assert_eq!(
        first,
        charge_of_life(one, 1, 1),
        "a duplicate of the start behind a pruned tombstone"
    );
    assert_eq!(
        first,
        charge_of_life(one, 2, 1),
        "and behind one that has only expired"
    );
}

#[test]
fn attempts_compensation_and_finally_of_one_life_are_different_work() {
    let mut world = renting("finally: {failed: [{effect: tell, name: tell, with: {n: 1}}]}\n");
    place(&mut world);
    world.succeed("steps.charge", &json!({}));
    world.fail("steps.ship", "broken");
    world.succeed("steps.charge.compensate", &json!({}));
    let awaited = world.sent.iter().filter(|item| item.kind.awaits_result());
    let mut keys: Vec<&str> = awaited.map(|item| item.idempotency_key.as_str()).collect();
    let all = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert!(all >= 4 && keys.len() == all, "{keys:?}");
}

#[test]
fn a_key_is_used_again_after_the_ends_that_are_named() {
    let mut world = renting("reuse: {after: [failed, cancelled]}\n");
    place(&mut world);
    complete(&mut world);
    assert_eq!(place(&mut world), Outcome::Ignored(IgnoreReason::Ended));

    let mut world = renting("reuse: {after: [failed, cancelled]}\n");
    place(&mut world);
    world.fail("steps.charge", "declined");
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(place(&mut world), Outcome::Applied);
    assert_eq!((world.last().generation, world.phase()), (2, Phase::Running));
}

#[test]
fn a_start_waits_for_the_end_of_an_instance_that_is_being_undone() {
    let mut world = renting("reuse: {after: [failed]}\n");
    place(&mut world);
    world.event("Order.Dropped", &json!({"id": "o-1"}));
    assert_eq!(
        world.phase(),
        Phase::Compensating,
        "the charge is still under way"
    );
    assert_eq!(place(&mut world), Outcome::Deferred);
    assert_eq!(
        world.event("Order.Placed", &json!({"id": "o-1", "total": 20})),
        Outcome::Deferred
    );
    // It succeeds late and is undone, all of it in the first generation.
    world.succeed("steps.charge", &json!({}));
    assert_eq!(world.last().generation, 1);
    world.succeed("steps.charge.compensate", &json!({}));
    world.give_what_waits();
    assert_eq!((world.last().generation, world.phase()), (2, Phase::Running));
    // The first that waited began it, the second is an event like any other.
    assert_eq!(world.data()["total"], 15);
    assert_eq!(world.last().version, 2);
    assert_eq!(world.payload("steps.charge"), json!({"n": 15}));
}

#[test]
fn an_event_behind_a_start_that_waits_is_for_the_next_generation() {
    let mut world = renting("reuse: {after: [failed]}\n");
    place(&mut world);
    world.event("Order.Dropped", &json!({"id": "o-1"}));
    let late = world.event("Order.Dropped", &json!({"id": "o-1"}));
    assert_eq!(
        late,
        Outcome::Ignored(IgnoreReason::NoHandler),
        "nothing waits yet"
    );
    assert_eq!(place(&mut world), Outcome::Deferred);
    let behind = world.event("Order.Dropped", &json!({"id": "o-1"}));
    assert_eq!(behind, Outcome::Deferred);
    world.succeed("steps.charge", &json!({}));
    world.succeed("steps.charge.compensate", &json!({}));
    world.give_what_waits();
    assert_eq!((world.last().generation, world.phase()), (2, Phase::Compensating));
}

#[test]
fn a_final_state_hands_a_deferred_start_to_the_next_generation() {
    let text = r#"
start: Order.Placed
key: {"*": event.data.id}
reuse: always
state: {init: {n: 0}}
machine:
  initial: open
  states:
    open:
      handlers:
        Order.Placed: [{when: state.n == 0, set: {n: 1}}, {defer: true}]
        Order.Closed: {to: closed}
    closed: {final: true}
"#;
    let mut world = World::new(loaded_as(text));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    let second = world.event("Order.Placed", &json!({"id": "o-1"}));
    assert_eq!((second, world.last().generation), (Outcome::Deferred, 1));
    world.event("Order.Closed", &json!({"id": "o-1"}));
    world.give_what_waits();
    assert_eq!(world.last().generation, 2);
    assert_eq!(world.phase(), Phase::Running);
}

fn asked_by(key: &str, command: u128) -> Control {
    let parent = ParentRef {
        saga: SagaName::parse("trip").expect("legal"),
        key: Key::parse(key).expect("legal"),
        command_id: CommandId(uuid::Uuid::from_u128(command)),
        depth: 1,
        waits: true,
        undoable: true,
        hops: 0,
        traceparent: None,
    };
    Control::Start {
        input: Bytes::from_static(b"{}"),
        parent: Some(parent),
        on_conflict: OnConflict::Fail,
        traceparent: None,
    }
}

fn told(world: &World) -> Vec<Value> {
    let answers = world.sent.iter().filter_map(|item| match &item.kind {
        WorkKind::Saga {
            message: SagaMessage::Outcome { outcome, .. },
            ..
        } => Some(outcome),
        _ => None,
    });
    answers
        .map(|outcome| match outcome {
            WorkOutcome::Succeeded { .. } | WorkOutcome::Unusable { .. } => json!("succeeded"),
            WorkOutcome::Failed { class, .. } => json!(class),
            WorkOutcome::TimedOut { .. } => json!("timeout"),
        })
        .collect()
}

#[test]
fn a_parent_that_asks_again_is_told_again_and_another_one_begins_a_new_generation() {
    let mut world = renting("reuse: always\n");
    world.control("c-1", asked_by("t-1", 1));
    complete(&mut world);
    assert_eq!(told(&world), [json!("succeeded")]);
    world.control("c-1", asked_by("t-1", 1));
    assert_eq!(world.last().generation, 1, "the same command begins nothing");
    assert_eq!(told(&world), [json!("succeeded"), json!("succeeded")]);
    world.control("c-2", asked_by("t-2", 2));
    assert_eq!((world.last().generation, world.phase()), (2, Phase::Running));

    let mut world = renting("");
    world.control("c-1", asked_by("t-1", 1));
    complete(&mut world);
    world.control("c-2", asked_by("t-2", 2));
    assert_eq!(told(&world), [json!("succeeded"), json!(CHILD_EXISTS)]);
}

#[test]
fn the_clock_begins_the_next_generation_where_a_request_may_and_no_planned_time_twice() {
    let mut world = renting("reuse: always\n");
    // Somebody was there before the planned time.
    world.control("by-hand", request());
    complete(&mut world);
    world.control("c-1", asked_by(schedule::SCHEDULE_KEY, 1));
    assert_eq!((world.last().generation, world.phase()), (2, Phase::Running));
    // The message of the planned time comes again while its run is under way, and after it.
    let again = world.control("c-1", asked_by(schedule::SCHEDULE_KEY, 1));
    assert_eq!(again, Outcome::Ignored(IgnoreReason::Duplicate));
    complete(&mut world);
    world.control("c-1", asked_by(schedule::SCHEDULE_KEY, 1));
    assert_eq!(world.last().generation, 2);
    assert_eq!(told(&world), [json!("succeeded"), json!("succeeded")]);
    // And after a generation that somebody else has begun.
    world.control("by-hand-2", request());
    complete(&mut world);
    let again = world.control("c-1", asked_by(schedule::SCHEDULE_KEY, 1));
    assert_eq!(again, Outcome::Ignored(IgnoreReason::Duplicate));
    assert_eq!(world.last().generation, 3);

    // Where the key is used once, the run that was there takes the place of the planned one.
    let mut world = renting("reuse: {after: [failed]}\n");
    world.control("by-hand", request());
    complete(&mut world);
    world.control("c-1", asked_by(schedule::SCHEDULE_KEY, 1));
    assert_eq!(
        (world.last().generation, told(&world)),
        (1, vec![json!(CHILD_EXISTS)])
    );
}

const PAID_LATE: &str = r#"
state: {init: {late: 0}}
after_end:
  Order.Paid: {set: {late: "${event.data.cents}"}, emit: {publish: {type: order.paid_late, payload: {outcome: "${outcome}"}}}}
handlers:
  Order.Paid: {set: {late: -1}}
finally:
  failed: [{effect: tell, name: tell}]
steps:
  pre: {effect: charge, compensate: {effect: refund, with: {late: "${state.late}"}, retry: {attempts: 1}}}
  post: {needs: [pre], effect: book}
"#;

/// Its outcome is decided as soon as it has failed, and operators may take days.
#[test]
fn an_event_is_handled_as_late_while_the_instance_undoes_waits_for_an_operator_or_finishes() {
    let paid = |world: &mut World, cents: u32| {
        let payload = json!({"id": "o-1", "cents": cents});
        assert_eq!(world.event("Order.Paid", &payload), Outcome::Applied);
        assert_eq!(world.data()["late"], json!(cents));
        let told = world.sent.last().expect("a fact");
        assert_eq!(told.kind.payload(), br#"{"outcome":"failed"}"#);
    };
    let mut world = World::new(loaded(PAID_LATE));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.pre", &json!({}));
    world.fail("steps.post", "permanent");
    assert_eq!(world.phase(), Phase::Compensating);
    paid(&mut world, 1);
    world.fail("steps.pre.compensate", "permanent");
    assert_eq!(world.phase(), Phase::CompensationFailed);
    paid(&mut world, 2);
    world.control("retry", Control::Retry);
    let undo = world.sent.last().expect("an undo");
    assert_eq!(undo.kind.payload(), br#"{"late":2}"#);
    world.succeed("steps.pre.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Finishing, "{}", world.story);
    paid(&mut world, 3);
    world.succeed("finally.failed.tell", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    paid(&mut world, 4);
}
