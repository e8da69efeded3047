//! Waits for one of several events, signals and callbacks.

use std::sync::Arc;

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::{CallbackOutcome, Control};
use crate::record::{Phase, StepStatus};

const PAID: &str = r#"
state: {init: {how: none}}
steps:
  begin: {effect: begin}
  paid:
    needs: [begin]
    wait:
      any:
        - {event: Order.Paid, when: event.data.cents > 0, set: {how: "paid ${event.data.cents}"}}
        - {signal: waive, when: signal.ok, set: {how: "waived by ${signal.by}"}}
        - {event: Order.Paid, set: {how: free}}
      timeout: 2d
    set: {which: "${wait.index}", said: "${state.how}"}
    fail_if: wait.index == 2
    on_error: {timeout: {set: {how: late}, continue: true}, fail_if: {set: {how: nothing}, continue: true}}
"#;

fn begun() -> World {
    let mut world = World::of(Arc::new(loaded(PAID)));
    world.event("Order.Placed", &json!({}));
    world
}

fn waiting() -> World {
    let mut world = begun();
    world.succeed("steps.begin", &json!({}));
    assert_eq!(world.statuses()[1], StepStatus::Waiting);
    world
}

fn signal(world: &mut World, name: &str, ok: bool) {
    let control = Control::Signal {
        name: name.to_owned(),
        data: json!({"ok": ok}).to_string().into_bytes().into(),
        by: "ada".to_owned(),
        hops: 0,
    };
    let id = format!("signal-{name}-{ok}");
    world.control(&id, control);
}

#[test]
fn the_first_that_comes_and_fits_ends_the_wait_and_the_index_tells_which() {
    let mut world = waiting();
    world.event("Order.Paid", &json!({"cents": 5}));
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(
        world.data(),
        json!({"how": "paid 5", "which": 0, "said": "paid 5"})
    );
    let mut world = waiting();
    signal(&mut world, "waive", false);
    assert_eq!(world.statuses()[1], StepStatus::Waiting);
    signal(&mut world, "waive", true);
    assert_eq!(
        world.data(),
        json!({"how": "waived by ada", "which": 1, "said": "waived by ada"})
    );
}

#[test]
fn alternatives_of_one_event_are_tried_in_their_order() {
    let mut world = waiting();
    world.event("Order.Paid", &json!({"cents": 0}));
    assert_eq!(
        world.data(),
        json!({"how": "nothing", "which": 2, "said": "free"})
    );
}

#[test]
fn early_events_are_taken_in_the_order_of_arrival() {
    let mut world = begun();
    signal(&mut world, "waive", false);
    signal(&mut world, "waive", true);
    world.event("Order.Paid", &json!({"cents": 5}));
    world.succeed("steps.begin", &json!({}));
    assert_eq!(world.data()["which"], json!(1));
}

#[test]
fn nothing_in_time_is_a_timeout_of_all_of_them() {
    let mut world = waiting();
    world.advance(2 * 24 * 3_600_000);
    assert_eq!(world.data()["how"], json!("late"));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_callback_may_be_one_of_them_and_its_failure_fails_the_step() {
    let steps = r#"
state: {init: {}}
steps:
  sign:
    effect: ask
    wait: {any: [{callback: true, set: {by: "${signal.name}"}}, {event: Order.Signed, set: {by: event}}], timeout: 2d, heartbeat: 1h}
    set: {which: "${wait.index}", ref: "${result.ref}"}
    on_error: {refused: {set: {by: nobody}, continue: true}, heartbeat: {set: {by: silence}, continue: true}}
"#;
    let asked = || {
        let mut world = World::of(Arc::new(loaded(steps)));
        world.event("Order.Placed", &json!({}));
        let work = world.newest("steps.sign").idempotency_key.clone();
        world.succeed("steps.sign", &json!({"ref": "r"}));
        (world, work)
    };
    let (mut world, work) = asked();
    let data = json!({"name": "ada"}).to_string().into_bytes().into();
    let outcome = CallbackOutcome::Done { data };
    world.control("call", Control::Callback { work, outcome });
    assert_eq!(world.data(), json!({"by": "ada", "which": 0, "ref": "r"}));
    let (mut world, work) = asked();
    let outcome = CallbackOutcome::Failed {
        class: "refused".to_owned(),
        message: String::new(),
    };
    world.control("call", Control::Callback { work, outcome });
    assert_eq!(world.data(), json!({"by": "nobody"}));
    let (mut world, _) = asked();
    world.event("Order.Signed", &json!({}));
    assert_eq!(world.data(), json!({"by": "event", "which": 1, "ref": "r"}));
    let (mut world, _) = asked();
    world.advance(3_600_000);
    assert_eq!(world.data(), json!({"by": "silence"}));
}
