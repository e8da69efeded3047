//! Events and signals that come before a step waits for them: which are kept, and for how long.

use std::sync::Arc;

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::Control;
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{Phase, StepStatus};

fn begun(body: &str) -> World {
    let mut world = World::of(Arc::new(loaded(body)));
    world.event("Order.Placed", &json!({}));
    world
}

fn asking(early: &str) -> World {
    begun(&format!(
        r#"
state: {{init: {{got: [], asked: 0}}}}
steps:
  rounds:
    repeat: {{until: size(state.got) >= 2, max: 5}}
    steps:
      ask: {{effect: ask, set: {{asked: "${{state.asked + 1}}"}}}}
      answered: {{needs: [ask], wait: {{event: Order.Answered, timeout: 1d{early}}}, set: {{got: "${{state.got + [event.data.n]}}"}}}}
"#
    ))
}

fn answer(world: &mut World, n: i64) -> Outcome {
    world.event("Order.Answered", &json!({"n": n}))
}

fn is_early(name: &str) -> Note {
    Note::TooEarly {
        name: name.to_owned(),
    }
}

#[test]
fn in_a_loop_what_came_in_an_earlier_turn_does_not_end_the_wait_of_a_later_one() {
    let mut world = asking("");
    assert_eq!(answer(&mut world, 1), Outcome::Applied);
    assert_eq!(answer(&mut world, 2), Outcome::Applied);
    assert_eq!(world.last().buffer.len(), 2);
    world.succeed("steps.ask", &json!({}));
    assert_eq!(
        world.data()["got"],
        json!([1]),
        "the first of its own turn is taken"
    );
    assert!(
        world.last().buffer.is_empty(),
        "the other was for the turn that is over"
    );
    assert!(world.notes.contains(&is_early("Order.Answered")));
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.statuses()[2], StepStatus::Waiting);
    answer(&mut world, 3);
    assert_eq!(world.data()["got"], json!([1, 3]));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn an_event_kept_for_any_turn_ends_the_wait_of_the_next_turn() {
    let mut world = asking(", early: keep");
    answer(&mut world, 1);
    answer(&mut world, 2);
    world.succeed("steps.ask", &json!({}));
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.data()["got"], json!([1, 2]));
}

#[test]
fn an_event_ignored_for_want_of_a_wait_is_in_the_history() {
    let mut world = asking(", early: ignore");
    assert_eq!(answer(&mut world, 1), Outcome::Ignored(IgnoreReason::Early));
    assert!(world.last().buffer.is_empty());
    world.succeed("steps.ask", &json!({}));
    answer(&mut world, 2);
    assert_eq!(world.data()["got"], json!([2]));
    let signal = |world: &mut World| {
        let control = Control::Signal {
            name: "go".to_owned(),
            data: json!({}).to_string().into_bytes().into(),
            by: "ada".to_owned(),
            hops: 0,
        };
        let id = format!("signal-{}", world.log_length());
        world.control(&id, control)
    };
    let mut world = begun(
        "steps:\n  ask: {effect: ask}\n  go: {needs: [ask], wait: {signal: go, timeout: 1d, early: ignore}}\n",
    );
    assert_eq!(signal(&mut world), Outcome::Ignored(IgnoreReason::Early));
    world.succeed("steps.ask", &json!({}));
    assert_eq!(signal(&mut world), Outcome::Applied);
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn before_its_loop_begins_nothing_is_kept_for_a_turn() {
    let mut world = begun(
        r#"
steps:
  first: {effect: first}
  rounds:
    needs: [first]
    repeat: {until: steps.answered.status == "done", max: 5}
    steps: {answered: {wait: {event: Order.Answered, timeout: 1d}}}
"#,
    );
    assert_eq!(answer(&mut world, 1), Outcome::Ignored(IgnoreReason::Early));
    world.succeed("steps.first", &json!({}));
    answer(&mut world, 2);
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_handler_hears_what_is_not_kept() {
    let mut world = begun(
        r#"
state: {init: {heard: 0}}
handlers: {Order.Answered: {set: {heard: "${state.heard + 1}"}}}
steps:
  ask: {effect: ask}
  answered: {needs: [ask], wait: {event: Order.Answered, timeout: 1d, early: ignore}}
"#,
    );
    assert_eq!(answer(&mut world, 1), Outcome::Applied);
    assert!(world.notes.contains(&is_early("Order.Answered")));
    assert_eq!(world.data()["heard"], json!(1));
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.statuses()[1], StepStatus::Waiting);
}

#[test]
fn an_item_takes_only_what_came_since_it_began() {
    let mut world = begun(
        r#"
state: {init: {items: [1, 2], got: []}}
steps:
  all:
    foreach: {over: state.items, parallel: 1}
    steps:
      ask: {effect: ask}
      answered: {needs: [ask], wait: {event: Order.Answered, timeout: 1d}, set: {got: "${state.got + [event.data.n]}"}}
"#,
    );
    answer(&mut world, 1);
    answer(&mut world, 2);
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.data()["got"], json!([1]));
    assert!(world.last().buffer.is_empty());
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.data()["got"], json!([1]), "the second item waits");
    answer(&mut world, 3);
    assert_eq!(world.data()["got"], json!([1, 3]));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn an_early_event_for_a_step_outside_the_loop_outlives_the_turn() {
    let mut world = begun(
        r#"
state: {init: {turns: 0}}
steps:
  rounds:
    repeat: {while: state.turns < 2, max: 5}
    steps:
      ask: {effect: ask}
      answered: {needs: [ask], wait: {event: Order.Answered, timeout: 1h}, on_timeout: {continue: true}}
      counted: {needs: [answered], set: {turns: "${state.turns + 1}"}}
  last: {needs: [rounds], wait: {event: Order.Answered, timeout: 1d}}
"#,
    );
    answer(&mut world, 1);
    answer(&mut world, 2);
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.last().buffer.len(), 1);
    world.succeed("steps.ask", &json!({}));
    assert_eq!(
        world.statuses()[2],
        StepStatus::Waiting,
        "it is not for the second turn"
    );
    world.advance(3_600_000);
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn going_back_within_a_turn_keeps_what_came_in_it() {
    let mut world = begun(
        r#"
state: {init: {tries: 0}}
steps:
  rounds:
    repeat: {until: steps.answered.status == "done", max: 5}
    steps:
      ask: {effect: ask, on_error: {again: {goto: ask}}}
      answered: {needs: [ask], wait: {event: Order.Answered, timeout: 1d}}
"#,
    );
    answer(&mut world, 1);
    world.fail("steps.ask", "again");
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn events_left_over_by_the_last_turn_take_no_room_after_the_loop() {
    let mut world = begun(
        r#"
buffer: 1
state: {init: {got: 0}}
steps:
  rounds:
    repeat: {until: state.got > 0, max: 5}
    steps:
      ask: {effect: ask}
      answered: {needs: [ask], wait: {event: Order.Answered, when: event.data.n > 1, timeout: 1d}, set: {got: "${event.data.n}"}}
  pack: {needs: [rounds], effect: pack}
  packed: {needs: [pack], wait: {event: Order.Packed, timeout: 1d}}
"#,
    );
    answer(&mut world, 1);
    world.succeed("steps.ask", &json!({}));
    answer(&mut world, 2);
    assert!(world.last().buffer.is_empty());
    world.event("Order.Packed", &json!({}));
    world.succeed("steps.pack", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn an_event_between_two_waits_of_a_loop_is_kept_for_the_next() {
    let mut world = begun(
        r#"
state: {init: {got: []}}
steps:
  rounds:
    repeat: {until: size(state.got) >= 3, max: 5, delay: 1m}
    steps:
      answered: {wait: {event: Order.Answered, timeout: 1d, early: keep}, set: {got: "${state.got + [event.data.n]}"}}
      file: {needs: [answered], effect: file}
"#,
    );
    answer(&mut world, 1);
    assert_eq!(answer(&mut world, 2), Outcome::Applied, "while the turn goes on");
    world.succeed("steps.file", &json!({}));
    assert_eq!(answer(&mut world, 3), Outcome::Applied, "between two turns");
    world.advance(60_000);
    world.succeed("steps.file", &json!({}));
    world.advance(60_000);
    assert_eq!(world.data()["got"], json!([1, 2, 3]));
}
