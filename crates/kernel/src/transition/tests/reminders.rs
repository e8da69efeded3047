//! Timers that repeat, that run along with a step, and that are moved by what an expression says.

use std::sync::Arc;

use saga_runner_language::definition::Definition;
use serde_json::json;

use super::build::loaded;
use super::waits::signal;
use super::world::World;
use crate::patch::Note;
use crate::record::Phase;

const HOUR_MS: i64 = 3_600_000;

fn placed(body: &str) -> World {
    let mut world = World::of(Arc::new(loaded(body)));
    world.event("Order.Placed", &json!({}));
    world
}

fn told(world: &World) -> usize {
    let facts = world.sent.iter();
    facts.filter(|item| item.path.starts_with("timers.")).count()
}

const APPROVAL: &str = "
state: {init: {pause: 2h}}
handlers:
  Order.Hushed: {clear_timer: nudge}
steps:
  ask: {effect: ask}
  approve: {needs: [ask], wait: {signal: review, timeout: 30d}}
  act: {needs: [approve], effect: act}
timers:
  nudge:
    during: approve
    after: 1h
    every: '${state.pause}'
    emit:
      - publish: {type: order.nudged, payload: {at: '${event.time}'}}
";

/// What the property tests run.
pub(super) fn nudging() -> Definition {
    loaded(&format!(
        "{APPROVAL}  always: {{every: 10s, cancel_when: steps.act.status == \"running\", set: {{beats: 1}}}}\n"
    ))
}

#[test]
fn a_reminder_comes_again_and_again_while_its_step_waits_and_no_longer() {
    let mut world = placed(APPROVAL);
    world.advance(10 * HOUR_MS);
    assert_eq!(told(&world), 0, "the step has not started");
    world.succeed("steps.ask", &json!({}));
    world.advance(HOUR_MS - 1);
    assert_eq!(told(&world), 0);
    world.advance(1);
    assert_eq!(told(&world), 1, "`after`, then `every`");
    world.advance(2 * HOUR_MS);
    world.advance(2 * HOUR_MS);
    assert_eq!(told(&world), 3);
    world.control("s-1", signal("review", &json!({})));
    assert!(world.timers.is_empty());
    world.advance(100 * HOUR_MS);
    assert_eq!(told(&world), 3);
    world.succeed("steps.act", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_reminder_that_is_cleared_stays_away() {
    let mut world = placed(APPROVAL);
    world.succeed("steps.ask", &json!({}));
    world.advance(HOUR_MS);
    world.event("Order.Hushed", &json!({}));
    world.advance(100 * HOUR_MS);
    assert_eq!(told(&world), 1);
}

#[test]
fn a_timer_may_end_its_own_repetition() {
    let mut world = placed(
        "
state: {init: {left: 3}}
steps: {pay: {effect: pay}}
timers:
  nudge:
    every: 1h
    cancel_when: state.left == 0
    set: {left: '${state.left - 1}'}
",
    );
    world.advance(24 * HOUR_MS);
    assert_eq!(world.data()["left"], 0);
    assert!(world.timers.is_empty());
}

#[test]
fn an_interval_that_an_expression_makes_too_short_is_the_shortest() {
    let mut world = placed(
        "
state: {init: {n: 0}}
steps: {pay: {effect: pay}}
timers:
  tick: {every: \"${'1ms'}\", after: 1ms, set: {n: '${state.n + 1}'}}
",
    );
    world.advance(60_000);
    assert_eq!(world.data()["n"], 6, "every 10 s");
}

#[test]
fn times_that_are_over_for_the_instance_are_left_out() {
    let mut world = placed(
        "
state: {init: {n: 0}}
steps: {pay: {effect: pay}}
timers:
  tick: {every: 1h, set: {n: '${state.n + 1}'}}
",
    );
    // The instance has seen what was stored five hours later before its timer may fire.
    world.now = world.now.plus_ms(5 * HOUR_MS + 1);
    world.succeed("steps.pay", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    let mut world = placed(
        "
state: {init: {n: 0}}
handlers: {Order.Seen: {set: {seen: true}}}
steps: {pay: {effect: pay}}
timers:
  tick: {every: 1h, set: {n: '${state.n + 1}'}}
",
    );
    let row = world.timers.first().expect("set").clone();
    world.now = world.now.plus_ms(5 * HOUR_MS + HOUR_MS / 2);
    world.event("Order.Seen", &json!({}));
    let input = world.timer_input(&row);
    world.must(&input);
    assert_eq!(world.data()["n"], 1);
    let next = world.timers.first().expect("set again").due;
    assert_eq!(next, row.due.plus_ms(5 * HOUR_MS), "the next full hour");
}

#[test]
fn a_timer_is_extended_by_what_an_expression_says() {
    let mut world = placed(
        "
deadline: 1h
handlers:
  Order.Delayed: {timer: {deadline: {extend: '${event.data.by}'}}}
steps: {pay: {effect: pay}}
",
    );
    world.event("Order.Delayed", &json!({"by": "90m"}));
    world.advance(2 * HOUR_MS);
    assert_eq!(world.phase(), Phase::Running);
    let input = world.event_input("Order.Delayed", &json!({"by": "2030-01-01T00:00:00Z"}));
    let refused = world.give(&input).expect_err("an instant is not a span");
    assert_eq!(refused.reason, "timer.value");
    world.advance(HOUR_MS);
    assert_eq!(world.phase(), Phase::Failed);
    let fired = world
        .notes
        .iter()
        .filter(|note| matches!(note, Note::TimerFired { .. }));
    assert_eq!(fired.count(), 1);
}

#[test]
fn a_timer_that_is_moved_has_fired_as_often_as_before() {
    let mut world = placed(
        r#"
state: {init: {n: 0}}
handlers: {Order.Hushed: {timer: {nudge: {extend: 1m}}}}
steps: {approve: {wait: {signal: review, timeout: 30d}}}
timers: {nudge: {every: 1h, max: 2, set: {n: "${state.n + 1}"}}}
"#,
    );
    world.advance(HOUR_MS);
    world.event("Order.Hushed", &json!({}));
    world.advance(10 * HOUR_MS);
    assert_eq!(world.data()["n"], json!(2));
}
