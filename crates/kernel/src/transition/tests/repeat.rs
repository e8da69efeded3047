//! Loops with a condition: turns, delays, keys, the ledger, and the end of their turns.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::Control;
use crate::ledger::LedgerStatus;
use crate::patch::Note;
use crate::record::{Phase, StepStatus};

fn placed(steps: &str) -> World {
    let mut world = World::of(Arc::new(loaded(steps)));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

const POLL: &str = r#"
state: {init: {seen: 0}}
steps:
  poll:
    repeat: {until: result.ready, max: 4, delay: 10s, backoff: {factor: 2, max: 30s}}
    effect: check
    with: {turn: "${steps.poll.iteration}"}
    set: {seen: "${state.seen + 1}"}
  ship: {needs: [poll], effect: ship}
"#;
const TURN: &str = "steps.poll.turn";

#[test]
fn a_turn_follows_after_the_delay_until_the_condition_holds() {
    let mut world = placed(POLL);
    assert_eq!(world.outstanding(), [TURN]);
    world.succeed(TURN, &json!({"ready": false}));
    assert!(world.outstanding().is_empty(), "the delay is not over");
    world.advance(9_999);
    assert!(world.outstanding().is_empty());
    world.advance(1);
    assert_eq!(world.outstanding(), [TURN]);
    assert_eq!(world.payload(TURN), json!({"turn": 1}));
    world.succeed(TURN, &json!({"ready": false}));
    world.advance(19_999);
    assert!(world.outstanding().is_empty(), "the delay has doubled");
    world.advance(1);
    world.succeed(TURN, &json!({"ready": true}));
    assert_eq!(world.outstanding(), ["steps.ship"]);
    assert_eq!(world.data(), json!({"seen": 3}));
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn every_turn_has_a_new_idempotency_key() {
    let mut world = placed(POLL);
    for _ in 0..3 {
        world.succeed(TURN, &json!({"ready": false}));
        world.advance(60_000);
    }
    let turns = world.sent.iter().filter(|item| item.path == TURN);
    let keys: BTreeSet<&str> = turns.map(|item| item.idempotency_key.as_str()).collect();
    assert_eq!(keys.len(), 4);
}

#[test]
fn a_loop_that_has_used_up_its_turns_fails() {
    let mut world = placed(POLL);
    for _ in 0..4 {
        world.succeed(TURN, &json!({"ready": false}));
        world.advance(60_000);
    }
    assert_eq!(world.phase(), Phase::Failed);
    let failure = world.last().failure.as_ref().expect("it failed");
    assert_eq!(
        (failure.code.as_str(), failure.step.as_deref()),
        ("exhausted", Some("poll"))
    );
}

#[test]
fn a_cancelled_instance_takes_no_other_turn() {
    let mut world = placed(POLL);
    world.succeed(TURN, &json!({"ready": false}));
    let reason = String::new();
    world.control("req-1", Control::cancel(reason));
    assert_eq!(world.phase(), Phase::Cancelled);
    assert!(world.timers.is_empty());
}

const BATCHES: &str = r#"
state: {init: {left: 2}}
steps:
  batches:
    repeat: {while: state.left > 0, max: 10}
    steps:
      plan: {effect: plan, compensate: {effect: unplan, on_unknown: ignore, with: {id: "${result.id}"}}}
      route:
        needs: [plan]
        choice:
          - {when: state.left == 1, steps: {last: {effect: last}}}
      send: {needs: [route], effect: send, set: {left: "${state.left - 1}"}}
  report: {needs: [batches], effect: report}
"#;

#[test]
fn a_group_runs_as_a_whole_in_every_turn() {
    let mut world = placed(BATCHES);
    world.succeed("steps.plan", &json!({"id": 1}));
    assert_eq!(world.outstanding(), ["steps.send"], "the choice is skipped");
    world.succeed("steps.send", &json!({}));
    assert_eq!(world.outstanding(), ["steps.plan"]);
    world.succeed("steps.plan", &json!({"id": 2}));
    assert_eq!(world.outstanding(), ["steps.last"], "the choice is made anew");
    world.succeed("steps.last", &json!({}));
    world.succeed("steps.send", &json!({}));
    assert_eq!(world.outstanding(), ["steps.report"]);
    world.succeed("steps.report", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn the_work_of_all_turns_is_undone_newest_first() {
    let mut world = placed(BATCHES);
    world.succeed("steps.plan", &json!({"id": 1}));
    world.succeed("steps.send", &json!({}));
    world.succeed("steps.plan", &json!({"id": 2}));
    world.fail("steps.last", "no");
    let iterations: Vec<u32> = world.last().ledger.iter().map(|entry| entry.iteration).collect();
    assert_eq!(iterations, [0, 1]);
    assert_eq!(world.payload("steps.plan.compensate"), json!({"id": 2}));
    let second = world.newest("steps.plan.compensate").idempotency_key.clone();
    world.succeed("steps.plan.compensate", &json!({}));
    assert_eq!(world.payload("steps.plan.compensate"), json!({"id": 1}));
    assert_ne!(world.newest("steps.plan.compensate").idempotency_key, second);
    world.succeed("steps.plan.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.ledger(), [LedgerStatus::Undone, LedgerStatus::Undone]);
}

#[test]
fn a_loop_whose_condition_never_held_is_skipped() {
    let text = BATCHES.replace("left: 2", "left: 0");
    let world = placed(&text);
    assert_eq!(world.statuses()[0], StepStatus::Skipped);
    assert_eq!(world.outstanding(), ["steps.report"]);
}

#[test]
fn turns_without_work_are_spread_over_inputs() {
    let mut world = placed(
        r#"
state: {init: {}}
steps:
  idle:
    repeat: {while: "true", max: 100}
    steps: {never: {if: "false", effect: nothing}}
"#,
    );
    assert_eq!(world.phase(), Phase::Running);
    let turns = |world: &World| {
        let turns = world
            .notes
            .iter()
            .filter(|note| matches!(note, Note::TurnStarted { .. }));
        turns.count()
    };
    assert!(turns(&world) < 100, "{}", turns(&world));
    world.advance(10);
    assert_eq!(turns(&world), 100);
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn loops_in_loops_never_repeat_a_key() {
    let mut world = placed(
        r#"
state: {init: {outer: 0, inner: 0}}
steps:
  outer:
    repeat: {until: state.outer == 3, max: 5}
    steps:
      inner:
        repeat: {until: result.n % 2 == 1, max: 5}
        effect: count
        set: {inner: "${state.inner + 1}"}
      next: {needs: [inner], effect: next, set: {outer: "${state.outer + 1}"}}
"#,
    );
    for _ in 0..3 {
        world.succeed("steps.inner.turn", &json!({"n": 0}));
        world.succeed("steps.inner.turn", &json!({"n": 1}));
        world.succeed("steps.next", &json!({}));
    }
    assert_eq!(world.phase(), Phase::Completed);
    let keys: BTreeSet<&str> = world
        .sent
        .iter()
        .map(|item| item.idempotency_key.as_str())
        .collect();
    assert_eq!((keys.len(), world.sent.len()), (9, 9));
}

/// `repeat.delay` is what lies between two turns.
#[test]
fn a_delay_beside_a_loop_passes_once() {
    let mut world = World::new(super::build::loaded(
        "steps:\n  poll: {delay: 1h, repeat: {until: result.done, max: 5, delay: 1m}, effect: poll}\n",
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    assert_eq!(world.sent.len(), 0);
    world.advance(3_600_000);
    assert_eq!(world.sent.len(), 1);
    world.succeed("steps.poll.turn", &json!({"done": false}));
    world.advance(60_000);
    assert_eq!(world.sent.len(), 2);
}

#[test]
fn an_answer_in_a_turn_undoes_nothing_of_the_turns_before() {
    let mut world = World::of(std::sync::Arc::new(super::build::loaded(
        r"
state: {init: {n: 0}}
steps:
  rounds:
    repeat: {until: state.n > 1, max: 3}
    steps:
      charge: {effect: charge, compensate: {effect: refund}}
      check: {needs: [charge], effect: check, on_error: {stale: {undo: [charge], continue: true}}}
      count: {needs: [check], set: {n: '${state.n + 1}'}}
",
    )));
    world.event("Order.Placed", &json!({}));
    world.succeed("steps.charge", &json!({}));
    world.succeed("steps.check", &json!({}));
    world.succeed("steps.charge", &json!({}));
    world.fail("steps.check", "stale");
    world.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    let undone = world
        .paths()
        .iter()
        .filter(|path| **path == "steps.charge.compensate")
        .count();
    assert_eq!(undone, 1);
}
