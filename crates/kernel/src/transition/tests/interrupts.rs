//! Handlers and timers that end a step which is under way.

use std::sync::Arc;

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::record::{Phase, StepStatus};

fn begun(steps: &str) -> World {
    let body = format!(
        "state: {{init: {{how: none, items: [1, 2]}}}}\nhandlers: {{Order.Withdrawn: {{interrupt: {{step: paid, class: withdrawn}}}}}}\nsteps:\n{steps}"
    );
    let mut world = World::of(Arc::new(loaded(&body)));
    world.event("Order.Placed", &json!({}));
    world
}

fn status(world: &World, name: &str) -> StepStatus {
    let steps = &world.definition.steps;
    let at = steps.iter().position(|step| step.name == name).expect("a step");
    world.statuses()[at]
}

#[test]
fn a_step_that_waits_fails_with_the_class_and_its_answer_decides() {
    let mut world = begun(
        "  paid: {wait: {event: Order.Paid, timeout: 2d}, on_error: {withdrawn: {set: {how: \"${error.class}: ${error.message}\"}, continue: true}}}\n  next: {needs: [paid], effect: next}\n",
    );
    world.event("Order.Withdrawn", &json!({}));
    assert_eq!(world.data()["how"], json!("withdrawn: it was interrupted"));
    assert_eq!(world.outstanding(), ["steps.next"]);
    assert!(world.timers.is_empty(), "the wait has no timer any more");
}

#[test]
fn without_an_answer_the_instance_fails_and_a_late_success_is_undone() {
    let mut world = begun("  paid: {effect: pay, retry: {errors: [\"*\"]}, compensate: {effect: refund}}\n");
    world.event("Order.Withdrawn", &json!({}));
    assert_eq!(world.phase(), Phase::Compensating);
    assert_eq!(world.last().failure.as_ref().expect("failed").code, "withdrawn");
    world.succeed("steps.paid", &json!({}));
    world.succeed("steps.paid.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn a_step_that_is_not_under_way_is_left_alone() {
    let mut world = begun("  first: {effect: first}\n  paid: {needs: [first], effect: pay}\n");
    world.event("Order.Withdrawn", &json!({}));
    assert_eq!(status(&world, "paid"), StepStatus::Pending);
    world.succeed("steps.first", &json!({}));
    world.succeed("steps.paid", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_loop_is_interrupted_with_all_that_happens_in_it() {
    let mut world = begun(
        "  paid:\n    foreach: {over: state.items}\n    steps: {one: {effect: pay, compensate: {effect: refund}}}\n    on_error: {withdrawn: {continue: true}}\n  next: {needs: [paid], effect: next}\n",
    );
    assert_eq!(world.outstanding().len(), 2);
    world.succeed("steps.one", &json!({}));
    world.event("Order.Withdrawn", &json!({}));
    assert!(world.outstanding().contains(&"steps.next"));
    world.succeed("steps.one", &json!({}));
    assert!(
        world.outstanding().contains(&"steps.one.compensate"),
        "it was given up"
    );
}

#[test]
fn the_step_of_each_item_is_interrupted() {
    let mut world = begun(
        "  all:\n    foreach: {over: state.items, on_item_error: collect}\n    steps: {paid: {wait: {event: Order.Paid, timeout: 1d}}}\n    set: {results: \"${result}\"}\n",
    );
    world.event("Order.Withdrawn", &json!({}));
    let error = json!({"error": {"class": "withdrawn", "message": "it was interrupted"}});
    assert_eq!(world.data()["results"], json!([error, error]));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn goto_after_an_interrupt_begins_the_step_and_its_timer_again() {
    let body = r"
state: {init: {tries: 0}}
timers:
  slow: {during: paid, after: 1h, interrupt: {step: paid, class: slow}}
steps:
  paid: {effect: pay, compensate: {effect: refund}, on_error: {slow: [{when: state.tries < 1, set: {tries: 1}, goto: paid}, {fail: {code: slow}}]}}
";
    let mut world = World::of(Arc::new(loaded(body)));
    world.event("Order.Placed", &json!({}));
    world.advance(3_600_000);
    assert_eq!(world.outstanding(), ["steps.paid", "steps.paid"]);
    assert_eq!(world.timers.len(), 1);
    world.advance(3_600_000);
    assert_eq!(world.phase(), Phase::Compensating);
}

#[test]
fn an_interrupt_comes_before_the_end_that_stands_beside_it() {
    let body = r"
state: {init: {how: none}}
handlers:
  Order.Withdrawn: {interrupt: {step: paid, class: withdrawn}, complete: {outcome: withdrawn}}
steps:
  paid: {wait: {event: Order.Paid, timeout: 2d}, on_error: {withdrawn: {set: {how: answered}, continue: true}}}
";
    let mut world = World::of(Arc::new(loaded(body)));
    world.event("Order.Placed", &json!({}));
    world.event("Order.Withdrawn", &json!({}));
    assert_eq!(world.last().outcome(), "withdrawn");
    assert_eq!(world.data()["how"], json!("answered"));
}

/// What failed attempts may have left behind stands on the ledger once, whoever ends the step.
#[test]
fn attempts_of_unknown_outcome_are_undone_once_when_the_step_is_given_up() {
    let steps = |more: &str| {
        format!(
            "  paid: {{effect: pay, with: {{n: 1}}, retry: {{attempts: 3, backoff: {{initial: 1m}}}}, compensate: {{effect: refund, with: {{n: \"${{input.n}}\"}}, on_failed: compensate}}{more}}}\n"
        )
    };
    let is_undone_once = |mut world: World, what: &str| {
        assert_eq!(world.ledger().len(), 1, "{what}");
        world.succeed("steps.paid.compensate", &json!({}));
        assert_eq!(world.phase(), Phase::Failed, "{what}");
    };
    let mut world = begun(&steps(""));
    world.fail("steps.paid", "transient");
    world.event("Order.Withdrawn", &json!({}));
    is_undone_once(world, "between two attempts");
    let mut world = begun(&steps(""));
    world.fail("steps.paid", "transient");
    world.advance(60_000);
    world.event("Order.Withdrawn", &json!({}));
    world.succeed("steps.paid", &json!({}));
    is_undone_once(world, "during a later attempt");
    let mut world = begun(&steps(", deadline: 90s"));
    world.fail("steps.paid", "transient");
    world.advance(60_000);
    world.advance(30_000);
    world.fail("steps.paid", "transient");
    is_undone_once(world, "by its deadline");
}
