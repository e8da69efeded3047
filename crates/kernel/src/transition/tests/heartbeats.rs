//! Signs of life of whoever has the token of a step.

use std::sync::Arc;

use bytes::Bytes;
use saga_runner_language::definition::Definition;
use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::{CallbackOutcome, Control};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Outcome};
use crate::record::{Phase, StepStatus};

const SECOND_MS: i64 = 1_000;

const RENDER: &str = "
state: {init: {film: none}}
steps:
  render:
    effect: render
    with: {at: '${event.time}'}
    wait: {callback: true, timeout: 1h, heartbeat: 30s}
    retry: {attempts: 3, backoff: {initial: 5s, factor: 1}}
    set: {film: '${signal.url}'}
    compensate: {effect: discard, on_unknown: ignore, with: {job: '${result.id}'}, retry: {attempts: 1000}}
  show: {needs: [render], effect: show}
";

/// What the property tests run.
pub(super) fn rendering() -> Definition {
    loaded(RENDER)
}

fn waiting() -> World {
    let mut world = World::of(Arc::new(rendering()));
    world.event("Order.Placed", &json!({}));
    world.succeed("steps.render", &json!({"id": "j-1"}));
    world
}

/// A heartbeat of the newest work of the step.
pub(super) fn beat(world: &World) -> Control {
    let work = world.newest("steps.render").idempotency_key.clone();
    Control::Heartbeat { work }
}

fn rendered(work: &str) -> Control {
    Control::Callback {
        work: work.to_owned(),
        outcome: CallbackOutcome::Done {
            data: Bytes::from(json!({"url": "u-1"}).to_string()),
        },
    }
}

#[test]
fn signs_of_life_keep_a_step_waiting_and_take_no_place_among_what_is_remembered() {
    let mut world = waiting();
    let seen = world.last().seen_events.len();
    for number in 0..100 {
        world.advance(29 * SECOND_MS);
        let beat = beat(&world);
        assert_eq!(world.control(&format!("b-{number}"), beat), Outcome::Applied);
    }
    assert_eq!(world.statuses()[0], StepStatus::Waiting);
    assert_eq!(world.last().seen_events.len(), seen);
    let work = world.newest("steps.render").idempotency_key.clone();
    world.control("c-1", rendered(&work));
    assert_eq!(world.data()["film"], "u-1");
    assert!(world.timers.is_empty());
    assert_eq!(world.last().steps[0].sent, None, "nothing is sent again");
}

#[test]
fn after_silence_the_work_is_done_again_and_the_old_token_is_invalid() {
    let mut world = waiting();
    let first = world.newest("steps.render").clone();
    world.advance(30 * SECOND_MS - 1);
    assert_eq!(world.statuses()[0], StepStatus::Waiting);
    world.advance(1);
    assert_eq!(world.statuses()[0], StepStatus::BackingOff);
    assert_eq!(world.last().steps[0].error.as_deref(), Some("heartbeat"));
    let old = rendered(&first.idempotency_key);
    assert_eq!(world.control("c-0", old), Outcome::Ignored(IgnoreReason::Stale));
    world.advance(5 * SECOND_MS);
    let second = world.newest("steps.render").clone();
    assert_eq!(second.attempt, 2);
    assert_ne!(second.idempotency_key, first.idempotency_key);
    assert_eq!(
        second.kind.payload(),
        first.kind.payload(),
        "the same is asked for"
    );
    world.succeed("steps.render", &json!({"id": "j-2"}));
    world.control("c-1", rendered(&second.idempotency_key));
    assert_eq!(world.statuses()[0], StepStatus::Done);

    // Both have happened, so both are undone, each for itself.
    world.fail("steps.show", "declined");
    world.succeed("steps.render.compensate", &json!({}));
    world.succeed("steps.render.compensate", &json!({}));
    assert_eq!(world.ledger(), [LedgerStatus::Undone, LedgerStatus::Undone]);
    let mut undone: Vec<_> = world
        .sent
        .iter()
        .filter(|item| item.path == "steps.render.compensate")
        .map(|item| (item.idempotency_key.as_str(), item.kind.payload()))
        .collect();
    undone.sort_unstable();
    undone.dedup_by_key(|(key, _)| *key);
    assert_eq!(undone.len(), 2, "two pieces of work");
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn silence_after_the_last_attempt_fails_the_step() {
    let mut world = waiting();
    for _ in 0..2 {
        world.advance(30 * SECOND_MS);
        world.advance(5 * SECOND_MS);
        world.succeed("steps.render", &json!({"id": "j"}));
    }
    world.advance(30 * SECOND_MS);
    let failure = world.last().failure.as_ref().expect("failed");
    assert_eq!(
        (failure.code.as_str(), failure.step.as_deref()),
        ("heartbeat", Some("render"))
    );
    assert_eq!(world.ledger().len(), 3);
}

#[test]
fn a_heartbeat_without_a_waiting_step_is_ignored() {
    let mut world = waiting();
    let other = Control::Heartbeat { work: "0".repeat(32) };
    assert_eq!(world.control("b-0", other), Outcome::Ignored(IgnoreReason::Stale));
    world.advance(SECOND_MS);
    let alive = beat(&world);
    assert_eq!(world.control("b-1", alive.clone()), Outcome::Applied);
    assert_eq!(
        world.control("b-2", alive),
        Outcome::Ignored(IgnoreReason::Duplicate),
        "at the same moment"
    );
    let mut world = World::of(Arc::new(loaded(&RENDER.replace(", heartbeat: 30s", ""))));
    world.event("Order.Placed", &json!({}));
    world.succeed("steps.render", &json!({"id": "j-1"}));
    let alive = beat(&world);
    assert_eq!(
        world.control("b-1", alive),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
}

#[test]
fn the_end_of_the_wait_is_the_end_of_its_heartbeat() {
    let text = RENDER.replace("timeout: 1h", "timeout: 20s");
    let mut world = World::of(Arc::new(loaded(&text)));
    world.event("Order.Placed", &json!({}));
    world.succeed("steps.render", &json!({"id": "j-1"}));
    world.advance(20 * SECOND_MS);
    assert_eq!(world.last().failure.as_ref().expect("failed").code, "timeout");
    assert!(world.timers.is_empty());
}
