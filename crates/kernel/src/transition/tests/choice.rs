//! Alternatives of steps: which is taken, what is skipped, when they are over.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::Control;
use crate::ledger::LedgerStatus;
use crate::patch::Note;
use crate::record::{Phase, StepStatus};

const PAY: &str = r#"
state: {init: {total: 0}}
handlers:
  Order.Placed: {set: {total: "${event.data.total}"}}
steps:
  reserve: {effect: reserve, compensate: {effect: release}}
  pay:
    needs: [reserve]
    choice:
      - when: state.total > 100
        steps:
          score: {effect: score}
          review:
            needs: [score]
            choice:
              - {when: state.total > 1000, steps: {call: {effect: call}}}
          charge_checked: {needs: [review], effect: charge, compensate: {effect: refund}}
      - when: state.total > 0
        steps: {charge: {effect: charge, compensate: {effect: refund}}}
  ship: {needs: [pay], effect: ship}
"#;

fn placed(total: i64) -> World {
    let mut world = World::of(Arc::new(loaded(PAY)));
    world.event("Order.Placed", &json!({"total": total}));
    world
}

fn status(world: &World, name: &str) -> StepStatus {
    let steps = &world.definition.steps;
    let at = steps.iter().position(|step| step.name == name).expect("a step");
    world.statuses()[at]
}

#[test]
fn members_wait_for_the_choice_and_the_choice_for_its_members() {
    let mut world = placed(50);
    assert_eq!(world.outstanding(), ["steps.reserve"]);
    assert_eq!(status(&world, "charge"), StepStatus::Pending);
    world.succeed("steps.reserve", &json!({}));
    assert_eq!(world.outstanding(), ["steps.charge"]);
    assert_eq!(status(&world, "pay"), StepStatus::Running);
    assert!(world.notes.contains(&Note::BranchTaken {
        step: "pay".to_owned(),
        branch: 1
    }));
    for skipped in ["score", "review", "call", "charge_checked"] {
        assert_eq!(status(&world, skipped), StepStatus::Skipped, "{skipped}");
    }
    world.succeed("steps.charge", &json!({}));
    assert_eq!(status(&world, "pay"), StepStatus::Done);
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn an_inner_choice_without_a_taken_alternative_is_skipped_and_lets_others_start() {
    let mut world = placed(500);
    world.succeed("steps.reserve", &json!({}));
    world.succeed("steps.score", &json!({}));
    assert_eq!(status(&world, "review"), StepStatus::Skipped);
    assert_eq!(status(&world, "call"), StepStatus::Skipped);
    assert_eq!(world.outstanding(), ["steps.charge_checked"]);
    world.succeed("steps.charge_checked", &json!({}));
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn an_inner_choice_is_over_before_what_needs_it() {
    let mut world = placed(5_000);
    world.succeed("steps.reserve", &json!({}));
    world.succeed("steps.score", &json!({}));
    assert_eq!(world.outstanding(), ["steps.call"]);
    world.succeed("steps.call", &json!({}));
    assert_eq!(world.outstanding(), ["steps.charge_checked"]);
}

#[test]
fn where_no_alternative_holds_the_choice_is_skipped_as_a_whole() {
    let mut world = placed(0);
    world.succeed("steps.reserve", &json!({}));
    assert_eq!(status(&world, "pay"), StepStatus::Skipped);
    assert_eq!(world.outstanding(), ["steps.ship"]);
}

#[test]
fn the_work_of_an_alternative_is_undone_with_the_rest() {
    let mut world = placed(50);
    world.succeed("steps.reserve", &json!({}));
    world.succeed("steps.charge", &json!({}));
    world.fail("steps.ship", "no_stock");
    assert_eq!(world.outstanding(), ["steps.charge.compensate"]);
    world.succeed("steps.charge.compensate", &json!({}));
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.ledger(), [LedgerStatus::Undone, LedgerStatus::Undone]);
}

#[test]
fn a_condition_of_an_alternative_that_fails_names_its_place() {
    let text = PAY.replace("state.total > 1000", "state.nothing > 1000");
    let mut world = World::of(Arc::new(loaded(&text)));
    world.event("Order.Placed", &json!({"total": 500}));
    world.succeed("steps.reserve", &json!({}));
    let command = world.newest("steps.score").command_id;
    let payload = bytes::Bytes::from_static(b"{}");
    world.result(command, crate::input::WorkOutcome::Succeeded { payload });
    let failure = world.last().failure.as_ref().expect("it fails");
    assert_eq!(
        (failure.code.as_str(), failure.step.as_deref()),
        ("result.expression", Some("score"))
    );
    assert!(
        failure.message.starts_with("steps.review.choice[0].when"),
        "{failure:?}"
    );
}

proptest! {
    #[test]
    fn a_saga_with_a_choice_ends_and_leaves_nothing_running_under_random_inputs(
        total in -10..3_000_i64,
        turns in proptest::collection::vec((0..4_usize, 0..5_u8), 0..12),
    ) {
        let mut world = placed(total);
        for (which, kind) in turns {
            let paths: Vec<String> = world.outstanding().iter().map(|path| (*path).to_owned()).collect();
            let Some(path) = paths.get(which % paths.len().max(1)) else { break };
            match kind {
                0..=2 => world.succeed(path, &json!({})),
                3 => world.fail(path, "declined"),
                _ => world.control(&format!("c-{which}-{total}"), Control::cancel(String::new())),
            };
        }
        for _ in 0..200 {
            let Some(path) = world.outstanding().first().map(|path| (*path).to_owned()) else {
                if world.ended.is_some() {
                    break;
                }
                world.advance(3_600_000);
                world.control(&format!("heal-{}", world.log_length()), Control::Retry);
                continue;
            };
            world.succeed(&path, &json!({}));
        }
        prop_assert!(world.ended.is_some(), "it rests in {:?}", world.phase());
        prop_assert!(world.statuses().iter().all(|status| *status != StepStatus::Running));
    }
}
