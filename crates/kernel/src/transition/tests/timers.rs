//! Timers that are moved, the deadline of a saga, the condition that cancels it.

use std::sync::Arc;

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::patch::Note;
use crate::record::Phase;

const MINUTE_MS: i64 = 60_000;

fn placed(body: &str) -> World {
    let mut world = World::of(Arc::new(loaded(body)));
    world.event("Order.Placed", &json!({}));
    world
}

fn code(world: &World) -> Option<String> {
    world.last().failure.as_ref().map(|failure| failure.code.clone())
}

const DEADLINE: &str = "
deadline: 30m
handlers:
  Order.Delayed: {timer: {deadline: {extend: 10m}}}
steps:
  pay: {effect: pay, compensate: {effect: refund}}
  ship: {needs: [pay], effect: ship}
";

#[test]
fn a_saga_that_passes_its_deadline_fails_and_undoes_what_it_did() {
    let mut world = placed(DEADLINE);
    world.succeed("steps.pay", &json!({}));
    world.advance(30 * MINUTE_MS - 1);
    assert_eq!(world.phase(), Phase::Running);
    world.advance(1);
    assert_eq!(code(&world).as_deref(), Some("deadline"));
    assert!(world.outstanding().contains(&"steps.pay.compensate"));
}

#[test]
fn a_saga_that_ends_in_time_has_no_deadline_any_more() {
    let mut world = placed(DEADLINE);
    world.succeed("steps.pay", &json!({}));
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert!(world.timers.is_empty());
}

#[test]
fn a_deadline_may_be_an_expression_and_has_a_code() {
    let text = DEADLINE.replace(
        "deadline: 30m",
        "state: {init: {within: 5m}}\ndeadline: {after: \"${state.within}\", fail: {code: too_late}}",
    );
    let mut world = placed(&text);
    world.advance(5 * MINUTE_MS);
    assert_eq!(code(&world).as_deref(), Some("too_late"));
}

#[test]
fn a_timer_is_moved_by_so_much_as_often_as_it_is_extended() {
    let mut world = placed(DEADLINE);
    world.advance(20 * MINUTE_MS);
    world.event("Order.Delayed", &json!({}));
    world.event("Order.Delayed", &json!({}));
    world.advance(30 * MINUTE_MS - 1);
    assert_eq!(world.phase(), Phase::Running);
    world.advance(1);
    assert_eq!(code(&world).as_deref(), Some("deadline"));
}

#[test]
fn a_timer_that_is_not_set_is_not_moved() {
    let mut world = placed(
        "
timers: {late: {after: 10m, cancel_when: state.paid, fail: {code: late}}}
state: {init: {paid: false}}
handlers:
  Order.Paid: {set: {paid: true}}
  Order.Delayed: {timer: {late: {extend: 10m}}}
steps: {pay: {effect: pay}}
",
    );
    world.event("Order.Paid", &json!({}));
    world.event("Order.Delayed", &json!({}));
    assert!(world.timers.is_empty());
}

const CANCELLED: &str = "
cancel_when: state.gone
state: {init: {gone: false}}
handlers:
  Order.Placed: {set: {gone: '${has(event.data.gone) && event.data.gone}'}}
  Order.Gone: {set: {gone: true}}
steps:
  pay: {effect: pay, compensate: {effect: refund}}
  ship: {needs: [pay], effect: ship}
finally:
  cancelled: {publish: {type: order.gone}}
";

#[test]
fn a_condition_cancels_the_instance_as_an_operator_would() {
    let mut world = placed(CANCELLED);
    world.succeed("steps.pay", &json!({}));
    world.event("Order.Gone", &json!({}));
    assert_eq!(world.phase(), Phase::Compensating);
    assert_eq!(code(&world).as_deref(), Some("cancelled"));
    world.succeed("steps.pay.compensate", &json!({}));
    world.fail("steps.ship", "declined");
    assert_eq!(world.phase(), Phase::Cancelled);
    assert!(world.sent.iter().any(|item| item.path == "finally.cancelled[0]"));
}

#[test]
fn a_result_may_make_the_condition_hold_and_nothing_starts_then() {
    let text = CANCELLED.replace(
        "pay: {effect: pay,",
        "pay: {effect: pay, set: {gone: '${result.gone}'},",
    );
    let mut world = placed(&text);
    world.succeed("steps.pay", &json!({"gone": true}));
    assert_eq!(world.outstanding(), ["steps.pay.compensate"]);
}

#[test]
fn an_instance_that_is_cancelled_at_its_start_does_nothing() {
    let mut world = World::of(Arc::new(loaded(CANCELLED)));
    world.event("Order.Placed", &json!({"gone": true}));
    assert_eq!(world.phase(), Phase::Cancelled);
    let started = world
        .notes
        .iter()
        .any(|note| matches!(note, Note::StepStarted { .. }));
    assert!(!started);
}
