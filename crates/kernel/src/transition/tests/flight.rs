//! What is in flight when an instance fails: what holds the end up, and what does not.

use serde_json::json;

use super::build::loaded;
use super::children::{PAY, ask, cancel, child, parent, tell};
use super::world::World;
use crate::input::Verdict;
use crate::input::{CancelMode, Control, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::record::{Phase, StepStatus};
use crate::transition::tests::compensation::decide;

fn cancelled(of_room: &str) -> World {
    let mut world = World::new(loaded(&format!(
        "finally: {{cancelled: {{publish: {{type: order.cancelled}}}}}}\nsteps:\n  room: {{effect: book{of_room}}}\n"
    )));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.control("c-1", Control::cancel(String::new()));
    world
}

/// How something comes about.
type End = fn(&mut World);

#[test]
fn the_end_waits_for_what_would_be_undone_and_for_nothing_else() {
    let undo = ", compensate: {effect: unbook";
    let is_told = |world: &World| world.paths().contains(&"finally.cancelled[0]");
    let ends: [(End, bool); 3] = [
        (|world| _ = world.succeed("steps.room", &json!({})), true),
        (|world| _ = world.time_out("steps.room"), true),
        (|world| _ = world.fail("steps.room", "cancelled"), false),
    ];
    for (end, undone) in ends {
        let mut world = cancelled(&format!("{undo}}}"));
        assert_eq!(world.phase(), Phase::Compensating);
        assert!(!is_told(&world));
        end(&mut world);
        if undone {
            assert!(!is_told(&world));
            world.succeed("steps.room.compensate", &json!({}));
        }
        assert_eq!(world.phase(), Phase::Cancelled);
        assert!(is_told(&world) && world.ended.is_some());
    }
    for of_room in [
        "",
        ", compensate: none",
        &format!("{undo}, on_late: accept}}"),
        &format!("{undo}, on_late: ignore}}"),
    ] {
        let world = cancelled(of_room);
        assert_eq!(world.phase(), Phase::Cancelled, "{of_room}");
        assert!(is_told(&world) && world.ended.is_none());
    }
}

/// The child cannot undo what it did, and neither has its parent then.
#[test]
fn a_cancelled_child_that_is_stuck_leaves_its_parent_to_an_operator() {
    let (mut parent, mut child) = (parent(), child());
    ask(&parent, &mut child, PAY);
    parent.control("stop", cancel(CancelMode::Compensate));
    ask(&parent, &mut child, "steps.pay.cancel");
    child.succeed("steps.charge", &json!({}));
    for _ in 0..10 {
        child.fail("steps.charge.compensate", "unavailable");
        child.advance(600_000);
    }
    assert_eq!(child.phase(), Phase::CompensationFailed);
    tell(&child, &mut parent);
    assert_eq!(parent.phase(), Phase::CompensationFailed, "{}", parent.story);
    assert_eq!(parent.ledger(), [LedgerStatus::Stuck]);
    assert_eq!(
        parent.payload("steps.pay.compensate.exhausted")["class"],
        "child_compensation_failed"
    );
    parent.control("again", decide(Verdict::Retry, None));
    ask(&parent, &mut child, "steps.pay.compensate");
    child.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(child.phase(), Phase::Cancelled);
    tell(&child, &mut parent);
    assert_eq!(
        (parent.phase(), parent.ledger()),
        (Phase::Cancelled, vec![LedgerStatus::Undone])
    );
}

#[test]
fn a_stuck_child_is_cancelled_again_when_its_parent_fails() {
    let mut parent = parent();
    let class = crate::children::CHILD_STUCK;
    parent.resolve(PAY, WorkOutcome::failed(class, "refused"));
    assert_eq!(parent.statuses()[0], StepStatus::Failed);
    assert_eq!(parent.outstanding(), ["steps.pay.compensate"]);
    parent.resolve("steps.pay.compensate", WorkOutcome::failed(class, "refused"));
    assert_eq!(parent.phase(), Phase::CompensationFailed);
    parent.control("skip", decide(Verdict::Skip, None));
    assert_eq!(parent.phase(), Phase::Failed);
}

/// Strict reverse order is what the file asks for.
#[test]
fn a_failure_that_drains_undoes_nothing_before_what_is_in_flight_has_come_to_its_end() {
    let placed = |head: &str| {
        let mut world = World::new(loaded(&format!(
            r#"
{head}
handlers: {{Order.Closed: {{fail: {{code: closed, drain: true}}}}}}
state: {{init: {{room: none}}}}
steps:
  car: {{effect: car, compensate: {{effect: uncar}}}}
  room: {{effect: book, set: {{room: "${{result.id}}"}}, compensate: {{effect: unbook, with: {{id: "${{state.room}}"}}}}}}
  bill: {{needs: [room], effect: bill}}
"#
        )));
        world.event("Order.Placed", &json!({"id": "o-1"}));
        world.succeed("steps.car", &json!({}));
        world
    };
    let fails: [(&str, End); 3] = [
        ("", |world| _ = world.event("Order.Closed", &json!({"id": "o-1"}))),
        ("deadline: {after: 1m, drain: true}", |world| {
            world.advance(60_000);
        }),
        (
            "deadline: {after: 1m, fail: {code: late, drain: true}}",
            |world| world.advance(60_000),
        ),
    ];
    for (head, fail) in fails {
        let mut world = placed(head);
        fail(&mut world);
        assert_eq!(
            (world.phase(), world.outstanding()),
            (Phase::Compensating, vec!["steps.room"]),
            "{head}"
        );
        world.succeed("steps.room", &json!({"id": "r-1"}));
        assert_eq!(world.outstanding(), ["steps.room.compensate"]);
        assert_eq!(world.payload("steps.room.compensate"), json!({"id": "r-1"}));
        world.succeed("steps.room.compensate", &json!({}));
        world.succeed("steps.car.compensate", &json!({}));
        assert_eq!(world.phase(), Phase::Failed);
        assert!(world.ended.is_some());

        let mut world = placed(head);
        fail(&mut world);
        world.control("stop", Control::cancel(String::new()));
        assert_eq!(world.outstanding(), ["steps.room", "steps.car.compensate"]);
        world.fail("steps.room", "cancelled");
        world.succeed("steps.car.compensate", &json!({}));
        assert_eq!(world.phase(), Phase::Failed, "that was decided before");
    }
    let mut world = placed("");
    world.fail("steps.room", "permanent");
    assert_eq!(
        world.outstanding(),
        ["steps.car.compensate"],
        "only where it is asked for"
    );
}

/// The other instance asks for an operator while a step still waits: what the step waits for reaches it all the same.
#[test]
fn a_child_that_is_stuck_does_not_end_what_drains() {
    let mut world = World::new(loaded(
        r#"
handlers: {Order.Withdrawn: {interrupt: {step: stay, class: withdrawn}}}
steps:
  stay: {saga: {name: hotel, key: "${key}"}, compensate: {saga: undo}, on_error: {withdrawn: {continue: true}}}
  pack: {effect: pack, wait: {event: Order.Packed, timeout: 1d}, compensate: {effect: unpack}}
"#,
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.pack", &json!({}));
    world.event("Order.Withdrawn", &json!({"id": "o-1"}));
    world.control("c-1", cancel(CancelMode::Drain));
    world.resolve("steps.stay", WorkOutcome::failed("child_compensation_failed", ""));
    assert_eq!(world.phase(), Phase::Compensating, "it drains");
    world.event("Order.Packed", &json!({"id": "o-1"}));
    assert_eq!(world.statuses()[1], StepStatus::Done);
    assert_eq!(world.phase(), Phase::CompensationFailed);
    world.control("c-2", Control::Retry);
    world.succeed("steps.stay.compensate", &json!({}));
    world.succeed("steps.pack.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Cancelled);
    assert!(world.ended.is_some());
}

/// What was undone on the way has got stuck before the instance fails: it is as if it got stuck now.
#[test]
fn an_instance_that_fails_with_something_stuck_needs_an_operator_at_once() {
    let mut world = World::new(loaded(
        r"
handlers: {Order.Stopped: {fail: {code: stopped}}}
steps:
  room: {effect: book, compensate: {effect: unbook, retry: {attempts: 1}}}
  pay: {needs: [room], effect: pay, on_error: {declined: {undo: [room], continue: true}}}
  sign: {wait: {signal: sign}}
",
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.room", &json!({}));
    world.fail("steps.pay", "declined");
    world.fail("steps.room.compensate", "refused");
    assert_eq!(world.phase(), Phase::Running);
    world.event("Order.Stopped", &json!({"id": "o-1"}));
    assert_eq!(world.phase(), Phase::CompensationFailed);
    world.control("c-1", Control::Retry);
    world.succeed("steps.room.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
}
