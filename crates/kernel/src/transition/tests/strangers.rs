//! Events without an instance, and events that come after the end.

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::Control;
use crate::patch::{IgnoreReason, Outcome};
use crate::record::Phase;
use crate::transition::NO_INSTANCE;

const ORDER: &str = r#"
state: {init: {paid: 0, late: 0}}
handlers:
  Order.Paid: {set: {paid: "${state.paid + event.data.cents}"}}
  Order.Closed: {complete: {outcome: closed}}
  Order.Dropped: {fail: {code: dropped}}
steps:
  ship: {effect: ship, with: {n: 1}, compensate: {effect: recall, with: {n: 1}}}
"#;

fn ordering(keys: &str) -> World {
    World::new(loaded(&format!("{ORDER}{keys}")))
}

fn paid(cents: i64) -> serde_json::Value {
    json!({"id": "o-1", "cents": cents})
}

#[test]
fn an_event_without_an_instance_may_be_a_dead_letter() {
    let mut world = ordering("");
    assert_eq!(
        world.event("Order.Paid", &paid(1)),
        Outcome::Ignored(IgnoreReason::NoInstance)
    );
    let mut world = ordering("no_instance: dead_letter\n");
    let early = world.event_input("Order.Paid", &paid(1));
    let rejection = world.give(&early).expect_err("it is a dead letter");
    assert_eq!(rejection.reason, NO_INSTANCE);
    assert!(!rejection.parks(), "the instance may still begin");
    // Controls are answered as ever.
    assert_eq!(
        world.control("r-1", Control::cancel("no")),
        Outcome::Ignored(IgnoreReason::NoInstance)
    );
    assert_eq!(
        world.event("Order.Placed", &json!({"id": "o-1"})),
        Outcome::Applied
    );
}

#[test]
fn an_event_that_waits_for_its_instance_follows_the_start() {
    let mut world = ordering("no_instance: {park: 24h}\n");
    for cents in [1, 20] {
        assert_eq!(world.event("Order.Paid", &paid(cents)), Outcome::Deferred);
    }
    assert!(world.record.is_none());
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.give_what_waits();
    assert_eq!(world.data()["paid"], 21);
    assert_eq!(world.last().version, 3);
}

const AFTER_END: &str = r#"
after_end:
  Order.Paid:
    - when: event.data.cents > 0
      set: {late: "${state.late + event.data.cents}"}
      emit: [{publish: {type: order.paid_late, payload: {order: "${key}", how: "${outcome}", cents: "${event.data.cents}"}}}]
"#;

#[test]
fn a_handler_after_the_end_sets_and_tells_and_leaves_the_outcome() {
    let mut world = ordering(AFTER_END);
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.event("Order.Paid", &paid(5));
    world.succeed("steps.ship", &json!({}));
    let ended = world.ended.as_ref().expect("it has ended").ended;
    world.advance(60_000);
    let late = world.event_input("Order.Paid", &paid(7));
    assert_eq!(world.must(&late), Outcome::Applied);
    assert_eq!(world.data(), json!({"paid": 5, "late": 7}));
    assert_eq!(
        world.payload("after_end.Order.Paid[0].emit[0]"),
        json!({"order": "o-1", "how": "completed", "cents": 7})
    );
    let summary = world.ended.as_ref().expect("it has ended still");
    assert_eq!((summary.ended, summary.record.phase), (ended, Phase::Completed));
    // It is handled once, and only what holds is.
    assert_eq!(world.must(&late), Outcome::Ignored(IgnoreReason::Duplicate));
    let nothing = world.event("Order.Paid", &paid(0));
    assert_eq!(nothing, Outcome::Ignored(IgnoreReason::Ended));
    assert_eq!(
        world.event("Order.Dropped", &json!({})),
        Outcome::Ignored(IgnoreReason::Ended)
    );
}

#[test]
fn after_end_handlers_run_while_a_late_result_is_awaited() {
    let mut world = ordering(AFTER_END);
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.event("Order.Closed", &json!({"id": "o-1"}));
    assert_eq!(world.phase(), Phase::Completed);
    assert!(world.ended.is_none(), "a result is still to come");
    assert_eq!(world.event("Order.Paid", &paid(7)), Outcome::Applied);
    world.succeed("steps.ship", &json!({}));
    world.succeed("steps.ship.compensate", &json!({}));
    assert!(world.ended.is_some());
    assert_eq!(world.data()["late"], 7);
    assert_eq!(world.last().outcome(), "closed");
}
