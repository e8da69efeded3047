//! Another go at an instance that has ended without success.

use saga_runner_language::ids::EventId;
use saga_runner_language::limits::Limits;
use serde_json::json;

use super::build::{loaded, loaded_as};
use super::operations::operate;
use super::world::World;
use crate::children::SagaMessage;
use crate::input::{Control, DomainEvent, Finding, Found, InputBody, OnConflict, OperationVerb, Origin};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Outcome};
use crate::record::{Phase, StepStatus};
use crate::transition::rerun_obstacle;
use crate::work::WorkKind;

const SHOP: &str = r#"
state: {init: {total: 5}}
timers: {late: {after: 1h, set: {total: 6}}}
steps:
  look: {effect: look, with: {}, alias: {basket: "${key}"}, set: {total: "${result.total}"}}
  pay: {needs: [look], effect: charge, with: {n: "${steps.look.result.total}"}, compensate: {effect: refund}}
  ship: {needs: [pay], effect: ship, with: {}}
finally: {failed: [{effect: tell, name: tell}]}
"#;

/// `look` is done and cannot be undone, `pay` is undone, `ship` has failed.
fn failed(body: &str) -> World {
    let mut world = World::new(loaded(body));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.look", &json!({"total": 9}));
    world.succeed("steps.pay", &json!({}));
    world
}

fn ended() -> World {
    let mut world = failed(SHOP);
    world.fail("steps.ship", "permanent");
    world.succeed("steps.pay.compensate", &json!({}));
    world.succeed("finally.failed.tell", &json!({}));
    assert!(world.ended.is_some());
    world
}

fn rerun(found: &[(&str, Found)]) -> Control {
    let found = found.iter().map(|(step, found)| Finding {
        step: (*step).to_owned(),
        found: found.clone(),
    });
    operate(OperationVerb::Rerun {
        found: found.collect(),
    })
}

fn give(world: &mut World, id: &str, control: Control) -> Outcome {
    let input = world.input(id, Origin::Local, InputBody::Control(control));
    world.give(&input).expect("it is applied")
}

fn obstacle(world: &World) -> String {
    rerun_obstacle(&world.definition, world.last(), &[], &Limits::default()).unwrap_or_default()
}

#[test]
fn a_retry_keeps_what_is_done_and_does_the_rest_under_other_keys() {
    let mut world = ended();
    let (paid, shipped) = (
        world.newest("steps.pay").clone(),
        world.newest("steps.ship").clone(),
    );
    assert_eq!(give(&mut world, "again-1", rerun(&[])), Outcome::Applied);
    assert_eq!(world.last().generation, 2);
    assert_eq!(world.phase(), Phase::Running);
    assert_eq!(world.data(), json!({"total": 9}), "the state is kept");
    assert_eq!(world.statuses()[..2], [StepStatus::Done, StepStatus::Running]);
    assert_eq!(world.outstanding(), ["steps.pay"]);
    assert_ne!(world.newest("steps.pay").idempotency_key, paid.idempotency_key);
    assert_eq!(world.payload("steps.pay"), json!({"n": 9}), "its result is kept");
    assert!(world.last().timers.contains_key("late"));
    let registers = |kind: &WorkKind| {
        matches!(
            kind,
            WorkKind::Saga {
                message: SagaMessage::RegisterAlias { generation: 2 },
                ..
            }
        )
    };
    assert_eq!(world.sent.iter().filter(|item| registers(&item.kind)).count(), 1);
    assert_eq!(world.last().aliases.len(), 1);

    world.succeed("steps.pay", &json!({}));
    assert_ne!(
        world.newest("steps.ship").idempotency_key,
        shipped.idempotency_key
    );
    world.fail("steps.ship", "permanent");
    world.succeed("steps.pay.compensate", &json!({}));
    world.succeed("finally.failed.tell", &json!({}));
    assert!(world.ended.is_some(), "finally has run again");
    assert_eq!(
        give(&mut world, "again-1", rerun(&[])),
        Outcome::Ignored(IgnoreReason::Duplicate),
        "the same request is recognised in the next life"
    );
    assert_eq!(give(&mut world, "again-2", rerun(&[])), Outcome::Applied);
    world.succeed("steps.pay", &json!({}));
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(
        give(&mut world, "again-3", rerun(&[])),
        Outcome::Ignored(IgnoreReason::Refused)
    );
    assert_eq!(obstacle(&world), "it has completed");
}

#[test]
fn a_step_of_unknown_outcome_that_was_not_undone_is_resolved_first() {
    let unknown = || {
        let mut world = failed(SHOP);
        world.time_out("steps.ship");
        world.succeed("steps.pay.compensate", &json!({}));
        world.succeed("finally.failed.tell", &json!({}));
        world
    };
    let mut world = unknown();
    assert!(
        obstacle(&world).starts_with("state the outcome of ship"),
        "{}",
        obstacle(&world)
    );
    assert_eq!(
        give(&mut world, "again-1", rerun(&[])),
        Outcome::Ignored(IgnoreReason::Refused)
    );
    assert_eq!(
        give(
            &mut world,
            "again-2",
            rerun(&[("pay", Found::NotDone), ("ship", Found::NotDone)])
        ),
        Outcome::Ignored(IgnoreReason::Refused),
        "pay was undone"
    );
    give(&mut world, "again-3", rerun(&[("ship", Found::NotDone)]));
    world.succeed("steps.pay", &json!({}));
    assert_eq!(world.outstanding(), ["steps.ship"], "it runs again");

    let mut world = unknown();
    let result = "{}".to_owned();
    give(&mut world, "again-1", rerun(&[("ship", Found::Done { result })]));
    assert_eq!(world.statuses()[2], StepStatus::Done);
    world.succeed("steps.pay", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_killed_instance_keeps_completed_work_and_asks_about_work_in_progress() {
    let mut world = failed(SHOP);
    world.control("k-1", operate(OperationVerb::Kill));
    assert!(obstacle(&world).contains("ship"), "{}", obstacle(&world));
    give(&mut world, "again-1", rerun(&[("ship", Found::NotDone)]));
    assert_eq!(
        world.statuses()[..3],
        [StepStatus::Done, StepStatus::Done, StepStatus::Running]
    );
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    world.fail("steps.ship", "permanent");
    assert_eq!(
        world.outstanding(),
        ["steps.pay.compensate"],
        "it is undone from its old entry"
    );
}

const LOOPED: &str = r#"
state: {init: {}}
steps:
  look: {effect: look, with: {}}
  pay: {needs: [look], foreach: {over: "[1, 2]", as: n}, effect: charge, with: {n: "${n}"}, COMPENSATE}
  ship: {needs: [pay], effect: ship, with: {}}
"#;

#[test]
fn a_loop_runs_again_as_a_whole_if_all_of_it_was_undone_and_else_refuses() {
    let undo = LOOPED.replace("COMPENSATE", "compensate: {effect: refund}");
    let play = |body: &str| {
        let mut world = World::new(loaded(body));
        world.event("Order.Placed", &json!({"id": "o-1"}));
        world.succeed("steps.look", &json!({}));
        for _ in 0..2 {
            let path = world.outstanding()[0].to_owned();
            world.succeed(&path, &json!({}));
        }
        world.fail("steps.ship", "permanent");
        while let Some(path) = world.outstanding().first().map(|path| (*path).to_owned()) {
            world.succeed(&path, &json!({}));
        }
        world
    };
    let mut world = play(&undo);
    give(&mut world, "again-1", rerun(&[]));
    assert_eq!(world.statuses()[0], StepStatus::Done);
    assert_eq!(world.outstanding().len(), 2, "both items run again");

    let kept = LOOPED.replace(", COMPENSATE", "");
    let mut world = play(&kept);
    assert_eq!(
        obstacle(&world),
        "",
        "a loop that is done and not undone stays done"
    );
    give(&mut world, "again-1", rerun(&[]));
    assert_eq!(world.outstanding(), ["steps.ship"]);
}

#[test]
fn a_saga_with_a_machine_and_an_instance_that_an_event_has_started_say_why_not() {
    let mut world = ended();
    assert_eq!(
        give(&mut world, "anew-1", operate(OperationVerb::Restart)),
        Outcome::Ignored(IgnoreReason::Refused)
    );
    let body = "start: Order.Placed\nkey: {\"*\": event.data.id}\nstate: {init: {}}\nhandlers:\n  Order.Stopped: {fail: {code: x}}\nmachine:\n  initial: a\n  states:\n    a: {handlers: {Order.Gone: {to: b}}}\n    b: {final: true}\n";
    let mut world = World::new(loaded_as(body));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.event("Order.Stopped", &json!({"id": "o-1"}));
    assert!(obstacle(&world).contains("machine"), "{}", obstacle(&world));
}

#[test]
fn a_restart_keeps_nothing_but_the_input() {
    let body = "input: {type: object}\nstate: {init: {total: \"${input.total}\"}}\nkey: {\"*\": event.data.id}\nsteps:\n  pay: {effect: charge, with: {}, compensate: {effect: refund}}\n";
    let mut world = World::new(loaded_as(body));
    let start = Control::Start {
        input: br#"{"total":3}"#.as_slice().into(),
        parent: None,
        on_conflict: OnConflict::Fail,
        traceparent: None,
    };
    world.control("r-1", start);
    let key = world.newest("steps.pay").idempotency_key.clone();
    world.fail("steps.pay", "permanent");
    assert_eq!(world.phase(), Phase::Failed);
    give(&mut world, "anew-1", operate(OperationVerb::Restart));
    assert_eq!((world.last().generation, world.phase()), (2, Phase::Running));
    assert_eq!(world.data(), json!({"total": 3}));
    assert_ne!(world.newest("steps.pay").idempotency_key, key);
}

#[test]
fn a_restart_begins_with_the_event_again_and_no_repetition_of_it_begins_a_third_time() {
    let body = "start: Order.Placed\nkey: {\"*\": event.data.id}\nreuse: always\nstate: {init: {total: 0}}\nhandlers: {Order.Placed: {set: {total: \"${event.data.total}\"}}}\nsteps:\n  pay: {effect: charge, with: {}, compensate: {effect: refund}}\n";
    let mut world = World::new(loaded_as(body));
    let placed = world.event_input("Order.Placed", &json!({"id": "o-1", "total": 3}));
    let InputBody::Event(event) = &placed.body else {
        panic!("an event");
    };
    let again = |event: &DomainEvent| {
        operate(OperationVerb::RestartWith {
            event: Box::new(event.clone()),
        })
    };
    assert_eq!(world.give(&placed), Ok(Outcome::Applied));
    let key = world.newest("steps.pay").idempotency_key.clone();
    world.fail("steps.pay", "permanent");
    // Another event has not started it.
    let other = DomainEvent {
        event_id: EventId::parse("another").expect("legal"),
        ..event.clone()
    };
    let refused = Outcome::Ignored(IgnoreReason::Refused);
    assert_eq!(give(&mut world, "other-1", again(&other)), refused);
    assert_eq!(
        give(&mut world, "bare-1", operate(OperationVerb::Restart)),
        refused
    );

    for (generation, request) in [(2, "anew-1"), (3, "anew-2")] {
        assert_eq!(give(&mut world, request, again(event)), Outcome::Applied);
        assert_eq!(
            (world.last().generation, world.phase()),
            (generation, Phase::Running)
        );
        assert_eq!(world.data(), json!({"total": 3}));
        assert_ne!(world.newest("steps.pay").idempotency_key, key);
        let duplicate = Outcome::Ignored(IgnoreReason::Duplicate);
        assert_eq!(world.give(&placed), Ok(duplicate), "while it runs");
        assert_eq!(
            give(&mut world, request, again(event)),
            duplicate,
            "the request once more"
        );
        world.fail("steps.pay", "permanent");
        assert_eq!(world.give(&placed), Ok(duplicate), "after its end");
        // Also where it is long forgotten among the events that were applied.
        let mut last = world.last().clone();
        last.seen_events.clear();
        let is_known = crate::transition::started_by(&last.start_event) == event.event_id.as_str();
        assert!(is_known, "{}", last.start_event);
    }
    assert_eq!(world.last().generation, 3);
}
