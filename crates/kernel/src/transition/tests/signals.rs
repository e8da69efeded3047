//! Signals that handlers hear: of the saga, of the present state, after the end.

use serde_json::json;

use super::build::loaded;
use super::waits::signal;
use super::world::World;
use crate::input::{CancelMode, Control};
use crate::patch::{IgnoreReason, Outcome};
use crate::record::Phase;

fn placed(body: &str) -> World {
    let mut world = World::new(loaded(body));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

#[test]
fn a_handler_of_a_signal_sees_what_it_says_and_who_says_it() {
    let mut world = placed(
        r#"
state: {init: {notes: [], by: nobody}}
handlers:
  signal.note: {when: signal.text != "", set: {notes: "${state.notes + [signal.text]}", by: "${signal.by}"}}
  signal.stop:
    - {when: signal.hard, fail: {code: stopped, message: "${signal.why}"}}
    - {complete: {outcome: enough}}
steps:
  pay: {effect: charge, compensate: {effect: refund}}
  review: {wait: {signal: note, when: signal.text == "go"}}
"#,
    );
    let note = |text: &str| signal("note", &json!({"text": text}));
    assert_eq!(world.control("c-1", note("a")), Outcome::Applied);
    assert_eq!(
        world.control("c-1", note("a")),
        Outcome::Ignored(IgnoreReason::Duplicate)
    );
    assert_eq!(world.data(), json!({"notes": ["a"], "by": "ada"}));
    // The step that waits hears it, too, behind the handler.
    assert_eq!(world.control("c-2", note("go")), Outcome::Applied);
    assert_eq!(world.data()["notes"], json!(["a", "go"]));
    assert_eq!(world.outstanding(), ["steps.pay"]);
    assert_eq!(
        world.control("c-3", note("")),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    let stop = signal("stop", &json!({"hard": true, "why": "fire"}));
    assert_eq!(world.control("c-4", stop), Outcome::Applied);
    let failure = world.last().failure.clone().expect("failed");
    assert_eq!(
        (failure.code.as_str(), failure.message.as_str()),
        ("stopped", "fire")
    );
}

#[test]
fn the_present_state_hears_a_signal_before_the_saga() {
    let mut world = placed(
        r#"
state: {init: {heard: []}}
handlers: {signal.go: {set: {heard: "${state.heard + ['saga']}"}}}
machine:
  initial: waiting
  states:
    waiting: {handlers: {signal.go: {set: {heard: "${state.heard + ['state']}"}, to: going}}}
    going: {handlers: {signal.go: {when: "!signal.far", to: done}}}
    done: {final: true}
"#,
    );
    assert_eq!(world.control("c-1", signal("go", &json!({}))), Outcome::Applied);
    assert_eq!(world.data()["heard"], json!(["state", "saga"]));
    assert_eq!(world.last().machine.map(|machine| machine.state), Some(1));
    world.control("c-2", signal("go", &json!({"far": true})));
    assert_eq!(world.phase(), Phase::Running);
    world.control("c-3", signal("go", &json!({"far": false})));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn after_the_outcome_is_decided_after_end_hears_signals() {
    let mut world = placed(
        r#"
state: {init: {heard: 0}}
after_end:
  signal.late: {when: outcome == "cancelled", set: {heard: "${state.heard + 1}"}, emit: {publish: {type: order.late, payload: {by: "${signal.by}"}}}}
steps: {pay: {effect: charge, compensate: {effect: refund}}}
"#,
    );
    let late = || signal("late", &json!({}));
    assert_eq!(
        world.control("c-0", late()),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    world.succeed("steps.pay", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(
        world.control("c-1", late()),
        Outcome::Ignored(IgnoreReason::Ended)
    );

    let mut world = World::of(std::sync::Arc::clone(&world.definition));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    let mode = CancelMode::Compensate;
    let reason = "gone".to_owned();
    world.control("stop", Control::Cancel { reason, mode });
    assert_eq!(world.phase(), Phase::Compensating, "the charge is under way");
    assert_eq!(world.control("c-2", late()), Outcome::Applied);
    assert_eq!(
        world.control("c-3", signal("other", &json!({}))),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    world.fail("steps.pay", "cancelled");
    assert!(world.ended.is_some());
    assert_eq!(
        world.control("c-2", late()),
        Outcome::Ignored(IgnoreReason::Duplicate)
    );
    assert_eq!(world.control("c-4", late()), Outcome::Applied);
    assert_eq!(world.data()["heard"], 2);
    assert_eq!(
        world.control("c-5", signal("other", &json!({}))),
        Outcome::Ignored(IgnoreReason::Ended)
    );
    assert_eq!(world.phase(), Phase::Cancelled);
}
