//! Durable retry of steps.

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Compensation, OnUnknown, StepRetry};
use saga_runner_language::retry::RetryPolicy;
use serde_json::{Value, json};

use super::build::{compensation, effect, expr, saga, step};
use super::world::World;
use crate::input::Control;
use crate::ledger::LedgerStatus;
use crate::record::{Phase, StepStatus};

const CHARGE: &str = "steps.charge";
const REFUND: &str = "steps.charge.compensate";

pub(super) fn table(classes: &[&str], attempts: u32) -> StepRetry {
    StepRetry {
        named: true,
        classes: classes.iter().map(|class| (*class).to_owned()).collect(),
        policy: RetryPolicy {
            attempts,
            initial_ms: 30_000,
            factor: 3.0,
            max_ms: 900_000,
        },
    }
}

/// One step that is retried and undone.
pub(super) fn charging(on_unknown: bool) -> Definition {
    let mut saga = saga("charging", "Order.Placed");
    let mut charge = step(
        "charge",
        &[],
        effect("payments-charge", json!({"amount": "${event.id}"})),
    );
    charge.retry = vec![table(&["transient", "timeout"], 3), table(&["throttled"], 2)];
    charge.compensate = Some(Compensation {
        on_unknown: if on_unknown {
            OnUnknown::Compensate
        } else {
            OnUnknown::Ignore
        },
        ..compensation(effect("payments-refund", json!({"amount": "${input.amount}"})))
    });
    let mut ship = step("ship", &[0], effect("shipping-create", json!({})));
    ship.condition = Some(expr("steps.charge.attempt > 0"));
    saga.steps = vec![charge, ship];
    saga
}

fn placed(on_unknown: bool) -> World {
    let mut world = World::new(charging(on_unknown));
    world.event("Order.Placed", &json!({}));
    world
}

#[test]
fn a_failed_attempt_is_followed_by_another_with_the_same_input() {
    let mut world = placed(false);
    let first = world.newest(CHARGE).clone();
    world.fail(CHARGE, "transient");
    assert_eq!(world.statuses()[0], StepStatus::BackingOff);
    assert_eq!(world.phase(), Phase::Running);
    let timer = world.timers.first().expect("set").clone();
    assert_eq!(
        (timer.name.as_str(), timer.due),
        ("retry:charge", world.now.plus_ms(30_000))
    );
    world.advance(30_000);
    let second = world.newest(CHARGE).clone();
    assert_eq!((second.attempt, world.statuses()[0]), (2, StepStatus::Running));
    assert_ne!(second.command_id, first.command_id);
    assert_eq!(
        second.idempotency_key, first.idempotency_key,
        "nobody has refused the first attempt"
    );
    assert_eq!(
        world.payload(CHARGE),
        json!({"amount": "e-1"}),
        "not the timer's id"
    );
    world.fail(CHARGE, "transient");
    assert_eq!(
        world.timers.first().map(|row| row.due),
        Some(world.now.plus_ms(90_000)),
        "the pause grows"
    );
    world.advance(90_000);
    world.succeed(CHARGE, &json!({}));
    assert_eq!(world.statuses(), [StepStatus::Done, StepStatus::Running]);
    assert_eq!(world.last().steps[0].error, None);
    assert_eq!(world.last().steps[0].sent, None, "the ledger has it now");
}

#[test]
fn each_class_has_attempts_of_its_own_and_the_last_failure_names_the_step() {
    let mut world = placed(false);
    for class in ["transient", "throttled", "transient"] {
        world.fail(CHARGE, class);
        assert_eq!(world.statuses()[0], StepStatus::BackingOff, "{class}");
        world.advance(900_000);
    }
    world.fail(CHARGE, "throttled");
    assert_eq!(world.statuses(), [StepStatus::Failed, StepStatus::Pending]);
    assert_eq!(world.last().steps[0].error.as_deref(), Some("throttled"));
    let failure = world.last().failure.as_ref().expect("failed");
    assert_eq!(
        (failure.code.as_str(), failure.step.as_deref()),
        ("throttled", Some("charge"))
    );
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn a_class_without_a_table_fails_at_once() {
    let mut world = placed(false);
    world.fail(CHARGE, "declined");
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.ledger().is_empty());
}

#[test]
fn only_a_refusal_gives_the_next_attempt_another_key() {
    let key = |world: &World| world.newest(CHARGE).idempotency_key.clone();
    let mut world = placed(true);
    let first = key(&world);
    world.fail(CHARGE, "transient");
    world.advance(30_000);
    assert_eq!(key(&world), first, "it was not done");
    world.refuse(CHARGE, "throttled");
    world.advance(30_000);
    let second = key(&world);
    assert_ne!(
        second, first,
        "the upstream may answer the first with its refusal"
    );
    world.time_out(CHARGE);
    world.advance(900_000);
    assert_eq!(key(&world), second, "it may have been done");
}

/// A refusal says nothing about an attempt before it that may still be under way: with another key both could happen.
#[test]
fn a_refusal_changes_the_key_and_does_not_clear_what_is_unknown() {
    let mut world = placed(true);
    let first = world.newest(CHARGE).idempotency_key.clone();
    world.time_out(CHARGE);
    world.advance(30_000);
    assert_eq!(
        world.newest(CHARGE).idempotency_key,
        first,
        "it may have happened"
    );
    world.refuse(CHARGE, "transient");
    world.advance(90_000);
    let third = world.newest(CHARGE).clone();
    assert_eq!(third.attempt, 3);
    assert_ne!(
        third.idempotency_key, first,
        "the refusal is stored under the old one"
    );
    world.refuse(CHARGE, "declined");
    assert_eq!(world.ledger(), [LedgerStatus::Undoing], "it may have been done");
}

#[test]
fn a_compensation_keeps_its_key_until_it_is_refused() {
    let mut world = placed(true);
    let first = |world: &World| world.newest(REFUND).idempotency_key.clone();
    world.succeed(CHARGE, &json!({}));
    world.fail("steps.ship", "rejected");
    let before = first(&world);
    world.fail(REFUND, "transient");
    world.advance(60_000);
    assert_eq!(first(&world), before);
    world.refuse(REFUND, "permanent");
    world.advance(60_000);
    assert_ne!(first(&world), before);
}

#[test]
fn once_an_outcome_is_unknown_the_key_stays_and_so_does_the_doubt() {
    let mut world = placed(true);
    let first = world.newest(CHARGE).clone();
    world.time_out(CHARGE);
    world.advance(30_000);
    world.fail(CHARGE, "transient");
    world.advance(30_000);
    let third = world.newest(CHARGE).clone();
    assert_eq!(third.attempt, 3);
    assert_eq!(
        third.idempotency_key, first.idempotency_key,
        "the first attempt may have happened, or happen yet"
    );
    world.fail(CHARGE, "declined");
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
    assert_eq!(world.payload(REFUND), json!({"amount": "e-1"}));
    world.succeed(REFUND, &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.ended.is_some());
}

#[test]
fn a_success_clears_the_doubt() {
    let mut world = placed(true);
    world.time_out(CHARGE);
    world.advance(30_000);
    world.succeed(CHARGE, &json!({}));
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_step_that_backs_off_is_abandoned_with_what_may_have_happened() {
    for (on_unknown, ledger) in [(true, vec![LedgerStatus::Undoing]), (false, Vec::new())] {
        let mut world = placed(on_unknown);
        world.time_out(CHARGE);
        world.control("req-1", Control::cancel(String::new()));
        assert_eq!(world.statuses()[0], StepStatus::Abandoned);
        assert!(world.timers.is_empty(), "no attempt follows");
        assert_eq!(world.ledger(), ledger);
    }
}

#[test]
fn a_stray_that_fails_leaves_the_doubt_of_the_attempt_before() {
    let mut world = placed(true);
    world.time_out(CHARGE);
    world.advance(30_000);
    world.control("req-1", Control::cancel(String::new()));
    assert_eq!(
        world.phase(),
        Phase::Compensating,
        "the second attempt is outstanding"
    );
    world.fail(CHARGE, "transient");
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
    world.succeed(REFUND, &json!({}));
    assert!(world.ended.is_some());
}

#[test]
fn a_command_is_sent_again_to_the_same_aggregate() {
    let mut saga = saga("shipping", "Order.Placed");
    let mut ship = step(
        "ship",
        &[],
        saga_runner_language::definition::model::Action::Command(super::build::command(
            "Shipment.Create",
            "shp-${event.id}",
            json!({}),
        )),
    );
    ship.retry = vec![table(&["*"], 2)];
    saga.steps = vec![ship];
    let mut world = World::new(saga);
    world.event("Order.Placed", &Value::Null);
    let target = |world: &World| match &world.newest("steps.ship").kind {
        crate::work::WorkKind::Command { aggregate_id, .. } => aggregate_id.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(target(&world), "shp-e-1");
    world.fail("steps.ship", "unavailable");
    world.advance(30_000);
    assert_eq!(target(&world), "shp-e-1");
    world.succeed("steps.ship", &Value::Null);
    assert_eq!(world.phase(), Phase::Completed);
}
