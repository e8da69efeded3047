//! Completing early, and failures that keep what was done.

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::Control;
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{Phase, StepStatus};

/// Three steps that can be undone, with ways to an early end before and after each of them.
pub(super) fn settling() -> World {
    let definition = loaded(
        r#"
state: {init: {paid: false}}
handlers:
  Order.Settled:
    set: {paid: "${event.data.paid}"}
    complete: {outcome: settled, when: state.paid}
    fail: {code: unpaid, keep: [pack]}
  Order.Dropped: {fail: {code: dropped, keep: [pack, ship]}}
steps:
  reserve: {effect: reserve, with: {n: 1}, compensate: {effect: release, with: {n: 1}}}
  pack: {effect: pack, with: {n: 1}, compensate: {effect: unpack, with: {n: 1}, on_unknown: compensate}}
  ship:
    needs: [reserve, pack]
    effect: ship
    with: {n: 1}
    compensate: {effect: recall, with: {n: 1}}
    on_error: {declined: {set: {paid: true}, undo: [reserve], complete: {outcome: unshipped}}}
timers:
  enough: {after: 1h, complete: {outcome: enough}}
finally:
  completed: {publish: {type: order.over, payload: {how: "${outcome}"}}}
  failed: {publish: {type: order.failed, payload: {how: "${outcome}"}}}
"#,
    );
    let mut world = World::new(definition);
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

const OVER: &str = "finally.completed[0]";

#[test]
fn an_early_end_is_a_success_and_what_runs_is_abandoned() {
    let mut world = settling();
    world.succeed("steps.reserve", &json!({}));
    world.event("Order.Settled", &json!({"paid": true}));
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(world.last().outcome(), "settled");
    assert_eq!(world.payload(OVER), json!({"how": "settled"}));
    assert_eq!(
        world.statuses(),
        [StepStatus::Done, StepStatus::Abandoned, StepStatus::Pending]
    );
    assert!(world.timers.is_empty(), "no timer of the instance is left");
    assert!(world.ended.is_none(), "a result is still to come");
    // It comes too late, and is undone; the outcome stands.
    world.succeed("steps.pack", &json!({}));
    assert_eq!(world.outstanding(), ["steps.pack.compensate"]);
    world.succeed("steps.pack.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert!(world.ended.is_some());
    let told = world.paths().iter().filter(|path| **path == OVER).count();
    assert_eq!(told, 1);
    assert!(!world.paths().contains(&"steps.reserve.compensate"));
}

#[test]
fn where_the_condition_does_not_hold_the_other_way_is_taken() {
    let mut world = settling();
    world.succeed("steps.reserve", &json!({}));
    world.event("Order.Settled", &json!({"paid": false}));
    assert_eq!(world.phase(), Phase::Compensating);
    assert_eq!(world.last().outcome(), "failed");
}

#[test]
fn compensations_in_progress_end_before_the_instance_ends() {
    let mut world = settling();
    world.succeed("steps.reserve", &json!({}));
    world.succeed("steps.pack", &json!({}));
    world.fail("steps.ship", "declined");
    assert_eq!(world.phase(), Phase::Finishing);
    assert_eq!(world.data()["paid"], true);
    assert!(!world.paths().contains(&OVER), "finally waits for what is undone");
    let late = world.event("Order.Dropped", &json!({}));
    assert_eq!(late, Outcome::Ignored(IgnoreReason::NoHandler));
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(world.payload(OVER), json!({"how": "unshipped"}));
}

#[test]
fn a_timer_may_complete_an_instance() {
    let mut world = settling();
    world.advance(3_600_000);
    assert_eq!(
        (world.phase(), world.last().outcome()),
        (Phase::Completed, "enough")
    );
    let cancelled = world.control("req-1", Control::cancel("too late"));
    assert!(matches!(cancelled, Outcome::Ignored(_)), "{cancelled:?}");
}

#[test]
fn a_failure_keeps_what_it_says_also_what_comes_late() {
    let mut world = settling();
    world.succeed("steps.reserve", &json!({}));
    world.succeed("steps.pack", &json!({}));
    world.event("Order.Dropped", &json!({}));
    assert_eq!(world.outstanding(), ["steps.ship", "steps.reserve.compensate"]);
    assert_eq!(world.ledger(), [LedgerStatus::Undoing, LedgerStatus::Kept]);
    assert!(world.notes.contains(&Note::CompensationSkipped {
        step: "pack".to_owned()
    }));
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    world.succeed("steps.ship", &json!({}));
    assert!(world.ended.is_some(), "what came late is kept as well");
    assert!(!world.paths().contains(&"steps.ship.compensate"));
}

#[test]
fn a_saga_of_handlers_alone_may_complete() {
    let definition = loaded(
        r"
state: {init: {n: 0}}
handlers:
  Order.Placed: {set: {n: 1}}
  Order.Done: {complete: {outcome: done}}
",
    );
    let mut world = World::new(definition);
    world.event("Order.Placed", &json!({"id": "o-1"}));
    assert_eq!(world.phase(), Phase::Running);
    world.event("Order.Done", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert!(world.ended.is_some());
}

#[test]
fn a_state_may_complete_the_instance_and_a_failure_keep_its_effects() {
    let definition = loaded(
        r"
machine:
  initial: charging
  states:
    charging:
      entry:
        emit: [{effect: charge, name: charge, with: {n: 1}, compensate: {effect: refund, with: {n: 1}}}]
      handlers:
        result.charge: {to: charged}
        error.charge: {complete: {outcome: free}}
    charged:
      handlers:
        Order.Kept: {fail: {code: kept, keep: charge}}
",
    );
    let definition = std::sync::Arc::new(definition);
    let mut world = World::of(std::sync::Arc::clone(&definition));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.fail("machine.charging.charge", "declined");
    assert_eq!(
        (world.phase(), world.last().outcome()),
        (Phase::Completed, "free")
    );

    let mut world = World::of(definition);
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("machine.charging.charge", &json!({}));
    world.event("Order.Kept", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.ledger(), [LedgerStatus::Kept]);
}
