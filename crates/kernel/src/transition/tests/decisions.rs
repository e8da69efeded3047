//! Steps that only decide: fields that they set, and ends that they bring about.

use std::sync::Arc;

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::ledger::LedgerStatus;
use crate::patch::Note;
use crate::record::{Phase, StepStatus};

fn placed(steps: &str, total: i64) -> World {
    let body = format!(
        "state: {{init: {{total: 0}}}}\nhandlers: {{Order.Placed: {{set: {{total: \"${{event.data.total}}\"}}}}}}\nsteps:\n{steps}"
    );
    let mut world = World::of(Arc::new(loaded(&body)));
    world.event("Order.Placed", &json!({"total": total}));
    world
}

fn status(world: &World, name: &str) -> StepStatus {
    let steps = &world.definition.steps;
    let at = steps.iter().position(|step| step.name == name).expect("a step");
    world.statuses()[at]
}

const SCORED: &str = r#"
  reserve: {effect: reserve, compensate: {effect: release}}
  reject: {needs: [reserve], if: state.total > 90, set: {why: "${state.total}"}, fail: {code: risky, message: "${state.why}"}}
  ship: {needs: [reject], effect: ship}
"#;

#[test]
fn a_step_that_fails_its_instance_undoes_what_was_done_and_is_to_blame() {
    let mut world = placed(SCORED, 100);
    world.succeed("steps.reserve", &json!({}));
    assert_eq!(world.phase(), Phase::Compensating);
    let failure = world.last().failure.clone().expect("it has failed");
    assert_eq!(
        (
            failure.code.as_str(),
            failure.message.as_str(),
            failure.step.as_deref()
        ),
        ("risky", "100", Some("reject"))
    );
    assert_eq!(status(&world, "reject"), StepStatus::Done);
    assert_eq!(status(&world, "ship"), StepStatus::Pending);
    assert_eq!(world.outstanding(), ["steps.reserve.compensate"]);
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn a_decision_that_is_skipped_lets_go_on_what_needs_it() {
    let mut world = placed(SCORED, 1);
    world.succeed("steps.reserve", &json!({}));
    assert_eq!(status(&world, "reject"), StepStatus::Skipped);
    assert_eq!(world.outstanding(), ["steps.ship"]);
}

#[test]
fn a_step_that_only_sets_is_done_at_once_and_leaves_nothing_on_the_ledger() {
    let world = placed(
        "  note: {set: {n: \"${state.total + 1}\"}}\n  next: {needs: [note], set: {n: \"${state.n + 1}\"}}\n  ship: {needs: [next], effect: ship}\n",
        1,
    );
    assert_eq!(world.data()["n"], json!(3));
    assert_eq!(world.outstanding(), ["steps.ship"]);
    assert_eq!(world.ledger(), Vec::<LedgerStatus>::new());
}

#[test]
fn an_end_with_a_condition_that_does_not_hold_is_followed_by_what_stands_beside_it() {
    let steps =
        "  end: {complete: {outcome: small, when: state.total < 10}}\n  ship: {needs: [end], effect: ship}\n";
    let world = placed(steps, 1);
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(world.last().outcome(), "small");
    assert_eq!(placed(steps, 20).outstanding(), ["steps.ship"]);
    let steps = "  end: {complete: {outcome: small, when: state.total < 10}, fail: {code: large}}\n";
    assert_eq!(placed(steps, 1).phase(), Phase::Completed);
    let world = placed(steps, 20);
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.last().failure.as_ref().expect("failed").code, "large");
}

#[test]
fn an_end_gives_up_what_runs_beside_it() {
    let mut world = placed(
        "  ship: {effect: ship, compensate: {effect: stop}}\n  pause: {delay: 1h, complete: {outcome: late}}\n",
        1,
    );
    assert_eq!(status(&world, "pause"), StepStatus::Delayed);
    world.advance(3_600_000);
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(status(&world, "ship"), StepStatus::Abandoned);
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.outstanding(), ["steps.ship.compensate"]);
}

#[test]
fn alternatives_and_loops_hold_steps_that_decide() {
    let world = placed(
        r#"
  size:
    choice:
      - {when: state.total > 90, steps: {large: {set: {size: large}}}}
      - {else: {steps: {small: {set: {size: small}}}}}
  count: {needs: [size], repeat: {until: state.total > 5, max: 10}, set: {total: "${state.total + 1}"}}
  rows:
    needs: [count]
    foreach: {over: "[1, 2]", as: row}
    steps:
      sum: {set: {total: "${state.total + row}"}}
      stop: {needs: [sum], if: row == 2, fail: {code: two}}
"#,
        1,
    );
    assert_eq!(world.data(), json!({"total": 9, "size": "small"}));
    assert_eq!(world.phase(), Phase::Failed);
    let turns = world
        .notes
        .iter()
        .filter(|note| matches!(note, Note::TurnStarted { .. }));
    assert_eq!(turns.count(), 5);
}

#[test]
fn a_decision_whose_fail_if_holds_fails_as_any_step() {
    let world = placed(
        "  check: {fail_if: state.total > 5, on_error: {fail_if: {set: {large: true}, continue: true}}}\n  ship: {needs: [check], effect: ship}\n",
        9,
    );
    assert_eq!(world.data()["large"], json!(true));
    assert_eq!(world.outstanding(), ["steps.ship"]);
}
