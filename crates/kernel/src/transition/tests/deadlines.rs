//! Deadlines of steps: over all attempts, waits and turns.

use std::sync::Arc;

use saga_runner_language::definition::Definition;
use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::ledger::LedgerStatus;
use crate::record::{Phase, StepStatus};

const MINUTE_MS: i64 = 60_000;

fn placed(body: &str) -> World {
    let mut world = World::of(Arc::new(loaded(body)));
    world.event("Order.Placed", &json!({}));
    world
}

fn code(world: &World) -> Option<&str> {
    world.last().failure.as_ref().map(|failure| failure.code.as_str())
}

const CHARGE: &str = "
steps:
  charge:
    effect: charge
    timeout: 4m
    deadline: 10m
    retry: {errors: [transient, timeout], attempts: 100, backoff: {initial: 3m, factor: 1}}
    compensate: {effect: refund, on_unknown: compensate}
";

/// What the property tests run: every attempt, wait and turn may outlast its deadline.
pub(super) fn pressed() -> Definition {
    loaded(
        "
state: {init: {late: 0}}
steps:
  charge:
    effect: charge
    timeout: 4m
    deadline: 10m
    retry: {errors: ['*'], attempts: 50, backoff: {initial: 30s, factor: 2}}
    wait: {event: Other.Thing, timeout: 6m}
    compensate: {effect: refund, on_unknown: compensate, retry: {attempts: 1000}}
  polled:
    repeat: {until: result.id == 'never', max: 1000, delay: 1m}
    effect: poll
    deadline: 25m
    on_error: {deadline: {set: {late: '${state.late + 1}'}, continue: true}}
    compensate: {effect: unpoll, on_unknown: compensate, retry: {attempts: 1000}}
  each:
    needs: [polled]
    foreach: {over: 'range(5)', parallel: 2, on_item_error: continue}
    deadline: 20m
    steps:
      visit: {effect: visit, deadline: 5m, compensate: {effect: leave, on_unknown: compensate, retry: {attempts: 1000}}}
    on_error: {deadline: {continue: true}}
",
    )
}

#[test]
fn the_attempt_that_runs_when_the_deadline_passes_is_given_up_and_undone_when_it_succeeds_late() {
    let mut world = placed(CHARGE);
    world.fail("steps.charge", "transient");
    world.advance(3 * MINUTE_MS);
    assert_eq!(world.newest("steps.charge").attempt, 2);
    world.advance(7 * MINUTE_MS - 1);
    assert_eq!(world.statuses(), [StepStatus::Running]);
    world.advance(1);
    assert_eq!(world.statuses(), [StepStatus::Failed]);
    assert_eq!(code(&world), Some("deadline"));
    assert!(world.timers.is_empty());
    world.succeed("steps.charge", &json!({}));
    assert!(world.outstanding().contains(&"steps.charge.compensate"));
    world.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.ledger(), [LedgerStatus::Undone]);
}

#[test]
fn an_attempt_lasts_no_longer_than_the_step_may() {
    let mut world = placed(CHARGE);
    let first = world.newest("steps.charge").clone();
    assert_eq!(first.deadline, first.created.plus_ms(4 * MINUTE_MS), "its own");
    for _ in 0..2 {
        world.advance(MINUTE_MS);
        world.fail("steps.charge", "transient");
        world.advance(3 * MINUTE_MS);
    }
    let last = world.newest("steps.charge").clone();
    assert_eq!(last.attempt, 3);
    assert_eq!(
        last.deadline,
        first.created.plus_ms(10 * MINUTE_MS),
        "that of the step"
    );
}

#[test]
fn a_pause_that_outlasts_the_deadline_is_not_waited_for() {
    let mut world = placed(CHARGE);
    world.advance(7 * MINUTE_MS);
    world.fail("steps.charge", "transient");
    assert_eq!(code(&world), Some("deadline"));
    let failure = world.last().failure.as_ref().expect("failed");
    assert!(failure.message.contains("transient"), "{}", failure.message);
    assert_eq!(failure.step.as_deref(), Some("charge"));
    assert_eq!(world.phase(), Phase::Failed, "nothing is under way");
}

#[test]
fn attempts_of_unknown_outcome_are_undone_once_after_the_deadline() {
    let mut world = placed(CHARGE);
    world.time_out("steps.charge");
    world.advance(3 * MINUTE_MS);
    world.time_out("steps.charge");
    world.advance(7 * MINUTE_MS);
    assert_eq!(code(&world), Some("deadline"));
    world.fail("steps.charge", "transient");
    assert_eq!(
        world.last().ledger.len(),
        1,
        "the first attempts may have happened"
    );
    assert!(world.outstanding().contains(&"steps.charge.compensate"));
}

#[test]
fn a_step_that_is_over_in_time_has_no_deadline_any_more() {
    let mut world = placed(CHARGE);
    world.succeed("steps.charge", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert!(world.timers.is_empty());
}

#[test]
fn a_deadline_covers_the_wait_and_counts_from_behind_the_delay() {
    let mut world = placed(
        "
state: {init: {late: false}}
steps:
  ask:
    delay: 1h
    effect: ask
    wait: {signal: answer, timeout: 1h}
    deadline: 30m
    on_error: {deadline: {set: {late: true}, continue: true}}
",
    );
    world.advance(60 * MINUTE_MS);
    world.advance(10 * MINUTE_MS);
    world.succeed("steps.ask", &json!({}));
    assert_eq!(world.statuses(), [StepStatus::Waiting]);
    world.advance(20 * MINUTE_MS);
    assert_eq!(world.data()["late"], true);
    assert_eq!(world.phase(), Phase::Completed);
    assert!(world.timers.is_empty());
}

#[test]
fn a_deadline_that_is_past_lets_nothing_begin() {
    let world = placed(
        "
state: {init: {until: '2020-01-01T00:00:00Z'}}
steps:
  ask: {effect: ask, deadline: '${state.until}', on_error: {deadline: {continue: true}}}
  poll:
    repeat: {until: result.over, max: 9}
    effect: poll
    deadline: '${state.until}'
    on_error: {deadline: {continue: true}}
  each:
    foreach: {over: 'range(3)'}
    effect: visit
    deadline: '${state.until}'
    on_error: {deadline: {continue: true}}
",
    );
    assert!(world.sent.is_empty());
    assert_eq!(world.phase(), Phase::Completed);
    assert!(world.timers.is_empty());
}

#[test]
fn a_deadline_beside_a_loop_bounds_all_its_turns() {
    let mut world = placed(
        "
steps:
  poll:
    repeat: {until: result.over, max: 100, delay: 3m}
    effect: poll
    deadline: 10m
    on_error: {deadline: {fail: {code: never_over}}}
    compensate: {effect: unpoll}
",
    );
    for _ in 0..3 {
        world.succeed("steps.poll.turn", &json!({"over": false}));
        world.advance(3 * MINUTE_MS);
    }
    assert_eq!(world.phase(), Phase::Running);
    world.advance(MINUTE_MS);
    assert_eq!(code(&world), Some("never_over"));
    assert_eq!(world.statuses()[1], StepStatus::Abandoned);
    world.succeed("steps.poll.turn", &json!({"over": true}));
    assert_eq!(world.last().ledger.len(), 4, "the late turn, too");
}

#[test]
fn a_deadline_beside_a_foreach_gives_up_the_items_that_are_left() {
    let mut world = placed(
        "
steps:
  each:
    foreach: {over: 'range(5)', parallel: 2}
    effect: visit
    deadline: 10m
    on_error: {deadline: {continue: true}}
  after: {needs: [each], effect: tell}
",
    );
    world.advance(10 * MINUTE_MS);
    assert_eq!(world.last().strays.len(), 2);
    assert!(world.outstanding().contains(&"steps.after"));
    world.succeed("steps.after", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_step_that_begins_again_has_its_full_time_again() {
    let mut world = placed(
        "
steps:
  ask: {effect: ask, deadline: 10m}
  check: {needs: [ask], effect: check, on_error: {stale: {goto: ask}}}
",
    );
    world.advance(9 * MINUTE_MS);
    world.succeed("steps.ask", &json!({}));
    world.fail("steps.check", "stale");
    world.advance(9 * MINUTE_MS);
    assert_eq!(world.phase(), Phase::Running);
    world.advance(MINUTE_MS);
    assert_eq!(code(&world), Some("deadline"));
}
