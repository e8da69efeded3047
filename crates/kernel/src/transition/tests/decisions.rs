//! Steps that only decide: fields that they set, and ends that they bring about.

use std::sync::Arc;

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::CancelMode;
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

#[test]
fn a_step_cancels_its_instance_with_a_mode_and_a_reason() {
    let mut world = placed(
        "  reserve: {effect: reserve, compensate: {effect: release}}\n  gone: {needs: [reserve], if: state.total > 5, cancel: {mode: abandon, reason: \"total ${state.total}\"}}\n  ship: {needs: [gone], effect: ship}\n",
        9,
    );
    world.succeed("steps.reserve", &json!({}));
    assert_eq!(world.phase(), Phase::Cancelled);
    let failure = world.last().failure.clone().expect("cancelled");
    assert_eq!(
        (failure.message.as_str(), failure.step.as_deref()),
        ("total 9", Some("gone"))
    );
    assert_eq!(world.ledger(), [LedgerStatus::Kept]);
}

#[test]
fn handlers_and_timers_cancel_an_instance() {
    let body = r#"
handlers:
  Order.Withdrawn: {cancel: {mode: "MODE", reason: "${event.data.why}"}}
steps:
  reserve: {effect: reserve, compensate: {effect: release}}
  ship: {needs: [reserve], effect: ship, compensate: {effect: stop}}
timers:
  late: {after: 1h, cancel: {}}
finally:
  cancelled: {publish: {type: order.gone, payload: {why: "${failure.message}"}}}
"#;
    let begun = |mode: &str| {
        let mut world = World::of(Arc::new(loaded(&body.replace("MODE", mode))));
        world.event("Order.Placed", &json!({}));
        world.succeed("steps.reserve", &json!({}));
        world
    };
    let mut world = begun("compensate");
    world.event("Order.Withdrawn", &json!({"why": "no money"}));
    assert_eq!(world.outstanding(), ["steps.ship", "steps.reserve.compensate"]);
    let mut world = begun("drain");
    world.event("Order.Withdrawn", &json!({"why": "no money"}));
    assert_eq!(world.outstanding(), ["steps.ship"]);
    world.succeed("steps.ship", &json!({}));
    world.succeed("steps.ship.compensate", &json!({}));
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Cancelled);
    assert_eq!(world.payload("finally.cancelled[0]"), json!({"why": "no money"}));
    let mut world = begun("compensate");
    world.advance(3_600_000);
    assert_eq!(world.phase(), Phase::Compensating);
    let cancelled = world.last().failure.as_ref().expect("cancelled").cancelled;
    assert_eq!(cancelled, Some(CancelMode::Compensate));
}

#[test]
fn the_first_answer_whose_condition_holds_is_taken_and_then_those_to_any_class() {
    let steps = r#"
  charge:
    effect: charge
    on_error:
      declined:
        - {when: state.total < 10, set: {answer: small}, continue: true}
        - {when: state.total < 20, cancel: {reason: "${error.class}"}}
      "*": {set: {answer: any}, continue: true}
"#;
    let failed = |total: i64| {
        let mut world = placed(steps, total);
        world.fail("steps.charge", "declined");
        world
    };
    assert_eq!(failed(1).data()["answer"], json!("small"));
    assert_eq!(failed(15).phase(), Phase::Cancelled);
    let world = failed(30);
    assert_eq!(
        (world.phase(), world.data()["answer"].clone()),
        (Phase::Completed, json!("any"))
    );
    let without = steps.split("      \"*\"").next().expect("the part before");
    let mut world = placed(without, 30);
    world.fail("steps.charge", "declined");
    let code = world.last().failure.as_ref().expect("failed").code.clone();
    assert_eq!((world.phase(), code.as_str()), (Phase::Failed, "declined"));
}

#[test]
fn an_emission_whose_condition_is_false_is_not_sent() {
    let body = r#"
state: {init: {total: 0}}
handlers:
  Order.Placed:
    set: {total: "${event.data.total}"}
    emit:
      - {when: state.total > 5, publish: {type: order.large, payload: {id: "${event.data.id}"}}}
      - {when: event.data.total <= 5, publish: {type: order.small, payload: {}}}
steps: {wait: {delay: 1s}}
finally:
  completed:
    - {when: state.total > 5, effect: tell, name: tell}
    - {when: outcome == "completed", publish: {type: order.done, payload: {}}}
"#;
    let played = |total: i64| {
        let mut world = World::of(Arc::new(loaded(body)));
        world.event("Order.Placed", &json!({"total": total, "id": "x"}));
        world.advance(1_000);
        world
    };
    let world = played(9);
    assert_eq!(
        world.paths(),
        [
            "handlers.Order.Placed[0].emit[0]",
            "finally.completed.tell",
            "finally.completed[1]"
        ]
    );
    assert_eq!(world.phase(), Phase::Finishing);
    let world = played(1);
    assert_eq!(
        world.paths(),
        ["handlers.Order.Placed[0].emit[1]", "finally.completed[1]"]
    );
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(status(&world, "finally.completed.tell"), StepStatus::Skipped);
}

#[test]
fn an_effect_of_a_state_is_left_out_where_its_condition_does_not_hold() {
    let body = r#"
state: {init: {total: 0}}
machine:
  initial: first
  states:
    first:
      entry: {emit: [{when: state.total > 0, effect: tell, name: tell}]}
      handlers:
        Order.Raised: {set: {total: "${state.total + event.data.by}"}, to: first}
        result.tell: {to: last}
    last: {final: true}
"#;
    let mut world = World::of(Arc::new(loaded(body)));
    world.event("Order.Placed", &json!({}));
    assert_eq!(world.outstanding(), Vec::<&str>::new());
    world.event("Order.Raised", &json!({"by": 1}));
    assert_eq!(world.outstanding(), ["machine.first.tell"]);
    world.event("Order.Raised", &json!({"by": -1}));
    assert_eq!(status(&world, "machine.first.tell"), StepStatus::Skipped);
    world.succeed("machine.first.tell", &json!({}));
    assert_eq!(world.phase(), Phase::Running, "it was given up");
}

#[test]
fn an_item_of_a_loop_may_end_the_instance_while_others_run() {
    for (end, phase) in [
        ("complete: {outcome: fine}", Phase::Completed),
        ("fail: {code: bad}", Phase::Failed),
        ("cancel: {}", Phase::Cancelled),
    ] {
        let mut world = placed(
            &format!(
                r"
  all:
    foreach: {{over: '[1, 2, 3]', parallel: 3}}
    steps:
      look: {{effect: look, compensate: {{effect: unlook}}}}
      end: {{needs: [look], if: item == 2, {end}}}
"
            ),
            1,
        );
        let second = world.outbox.values().nth(1).expect("three run").command_id;
        world.succeed("steps.look", &json!({}));
        let good = crate::input::WorkOutcome::Succeeded {
            payload: bytes::Bytes::from_static(b"{}"),
        };
        world.result(second, good);
        while let Some(path) = world.outstanding().first().map(|path| (*path).to_owned()) {
            world.succeed(&path, &json!({}));
        }
        assert_eq!(world.phase(), phase, "{end}");
        assert!(world.ended.is_some());
    }
}

#[test]
fn steps_that_can_start_together_start_in_the_order_of_the_file() {
    let play = |first: &str, second: &str| {
        let mut world = World::new(loaded(&format!(
            "state: {{init: {{n: 1}}}}\nsteps:\n  {first}\n  {second}\n"
        )));
        world.event("Order.Placed", &json!({"id": "o-1"}));
        world.data()["n"].as_i64().expect("a number")
    };
    let (add, double) = (
        "add: {set: {n: \"${state.n + 1}\"}}",
        "double: {set: {n: \"${state.n * 2}\"}}",
    );
    assert_eq!((play(add, double), play(double, add)), (4, 3));
}
