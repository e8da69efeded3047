//! Effects that timers emit: how often they begin, and what follows their ends.

use std::sync::Arc;

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::patch::Note;
use crate::record::{Phase, StepStatus};

const HOUR_MS: i64 = 3_600_000;

const NUDGED: &str = r#"
state: {init: {told: 0, problem: none}}
handlers:
  result.tell: {set: {told: "${state.told + result.n}"}}
  error.tell: {when: error.class == "gone", set: {problem: "${error.class}"}}
steps:
  approve: {wait: {signal: approve, timeout: 30d}}
timers:
  nudge:
    during: approve
    every: 1h
    emit:
      - {effect: tell, name: tell, with: {order: "${key}"}, retry: {attempts: 2}, compensate: {effect: untell}}
      - {when: state.told > 1, publish: {type: order.nudged, payload: {}}}
"#;

fn begun(body: &str) -> World {
    let mut world = World::of(Arc::new(loaded(body)));
    world.event("Order.Placed", &json!({}));
    world
}

fn approve(world: &mut World) {
    let control = crate::input::Control::Signal {
        name: "approve".to_owned(),
        data: json!({}).to_string().into_bytes().into(),
        by: "ada".to_owned(),
        hops: 0,
    };
    world.control("approve", control);
}

#[test]
fn each_firing_begins_the_effect_again_and_its_result_is_handled() {
    let mut world = begun(NUDGED);
    for told in 1..=3 {
        world.advance(HOUR_MS);
        assert_eq!(world.outstanding(), ["timers.nudge.tell"]);
        world.succeed("timers.nudge.tell", &json!({"n": 1}));
        assert_eq!(world.data()["told"], json!(told));
    }
    let keys: std::collections::BTreeSet<&String> = world
        .sent
        .iter()
        .filter(|item| item.path == "timers.nudge.tell")
        .map(|item| &item.idempotency_key)
        .collect();
    assert_eq!(keys.len(), 3, "each is work of its own");
    assert!(world.paths().contains(&"timers.nudge.emit[1]"));
}

#[test]
fn while_the_effect_is_under_way_it_is_not_begun_once_more_and_that_is_noted() {
    let mut world = begun(NUDGED);
    world.advance(2 * HOUR_MS);
    assert_eq!(world.outstanding(), ["timers.nudge.tell"]);
    let noted = Note::StillRunning {
        step: "timers.nudge.emit[0]".to_owned(),
    };
    assert!(world.notes.contains(&noted), "{:?}", world.notes);
    world.succeed("timers.nudge.tell", &json!({"n": 1}));
    world.advance(HOUR_MS);
    assert_eq!(world.outstanding(), ["timers.nudge.tell"]);
}

#[test]
fn the_instance_completes_when_the_effects_of_its_timers_are_over() {
    let mut world = begun(NUDGED);
    world.advance(HOUR_MS);
    approve(&mut world);
    assert_eq!(world.phase(), Phase::Running);
    assert!(world.timers.is_empty(), "it was set during the step");
    world.fail("timers.nudge.tell", "transient");
    world.advance(HOUR_MS);
    assert_eq!(world.phase(), Phase::Running);
    world.succeed("timers.nudge.tell", &json!({"n": 1}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn an_error_that_no_handler_takes_fails_the_instance_and_what_was_done_is_undone() {
    let mut world = begun(NUDGED);
    world.advance(HOUR_MS);
    world.succeed("timers.nudge.tell", &json!({"n": 1}));
    world.advance(HOUR_MS);
    world.fail("timers.nudge.tell", "gone");
    assert_eq!(world.data()["problem"], json!("gone"));
    assert_eq!(world.phase(), Phase::Running);
    world.advance(HOUR_MS);
    world.fail("timers.nudge.tell", "refused");
    assert_eq!(world.phase(), Phase::Compensating);
    assert_eq!(world.last().failure.as_ref().expect("failed").code, "refused");
    assert_eq!(world.outstanding(), ["timers.nudge.tell.compensate"]);
    world.succeed("timers.nudge.tell.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn an_effect_under_way_when_the_instance_fails_is_undone_when_it_succeeds_late() {
    let mut world = begun(&NUDGED.replace("timeout: 30d", "timeout: 90m"));
    world.advance(HOUR_MS);
    world.advance(HOUR_MS / 2);
    assert_eq!(world.phase(), Phase::Compensating);
    world.succeed("timers.nudge.tell", &json!({"n": 1}));
    assert_eq!(world.outstanding(), ["timers.nudge.tell.compensate"]);
}

#[test]
fn a_timer_fires_as_often_as_it_may_each_time_that_it_is_set() {
    let mut world = begun(
        r#"
state: {init: {n: 0}}
handlers: {Order.Again: {timer: {nudge: {after: 1h}}}}
steps: {approve: {wait: {signal: approve, timeout: 30d}}}
timers: {nudge: {every: 1h, max: 3, set: {n: "${state.n + 1}"}}}
"#,
    );
    world.advance(10 * HOUR_MS);
    assert_eq!(world.data()["n"], json!(3));
    world.event("Order.Again", &json!({}));
    world.advance(10 * HOUR_MS);
    assert_eq!(world.data()["n"], json!(6));
}

#[test]
fn an_effect_goes_with_its_timer_to_a_version_that_calls_it_otherwise() {
    let mut world = begun(NUDGED);
    world.advance(HOUR_MS);
    let to = NUDGED.replace("  nudge:\n", "  remind:\n");
    let to = Arc::new(loaded(&format!(
        "migrate: {{rename_timers: {{nudge: remind}}}}\n{to}"
    )));
    world.migrate(&to).expect("it has a place");
    let at = to
        .steps
        .iter()
        .position(|step| step.name == "timers.remind.tell")
        .expect("a step");
    assert_eq!(world.statuses()[at], StepStatus::Running);
    world.succeed("timers.nudge.tell", &json!({"n": 1}));
    assert_eq!(world.data()["told"], json!(1));
}

/// Each would keep the instance for the other, for ever.
#[test]
fn no_effect_of_a_timer_begins_when_nothing_else_is_left() {
    let mut world = begun(
        r"
state: {init: {}}
steps: {approve: {wait: {signal: approve}}}
timers:
  one: {after: 10s, every: 10s, emit: {effect: one, name: one}}
  two: {after: 15s, every: 10s, emit: {effect: two, name: two}}
",
    );
    world.advance(10_000);
    approve(&mut world);
    world.advance(5_000);
    assert_eq!(world.outstanding(), ["timers.one.one"]);
    world.succeed("timers.one.one", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}
