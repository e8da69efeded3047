//! Undoing: attempts, exhaustion, operators.

use serde_json::json;

use super::order::{charged, reserved};
use crate::kernel::input::Control;
use crate::kernel::patch::{IgnoreReason, Outcome};
use crate::kernel::record::{LedgerStatus, Phase};

const RELEASE: &str = "steps.reserve.compensate";

#[test]
fn a_compensation_is_tried_again_by_a_durable_timer() {
    let mut world = reserved();
    world.fail("steps.charge", "declined");
    let first = world.newest(RELEASE).clone();
    world.time_out(RELEASE);
    assert_eq!(world.ledger(), [LedgerStatus::BackingOff]);
    let timer = world.timers.first().expect("set").clone();
    assert_eq!(
        (timer.name.as_str(), timer.due),
        ("retry:reserve.compensate", world.now.plus_ms(1_000))
    );
    assert!(world.outstanding().is_empty());
    world.advance(1_000);
    let second = world.newest(RELEASE).clone();
    assert_eq!(second.attempt, 2);
    assert_ne!(second.command_id, first.command_id);
    assert_eq!(
        second.idempotency_key, first.idempotency_key,
        "the first attempt may have happened"
    );
    world.fail(RELEASE, "transient");
    world.advance(2_000);
    let third = world.newest(RELEASE).clone();
    assert_eq!(third.attempt, 3);
    assert_eq!(
        third.idempotency_key, first.idempotency_key,
        "the second attempt did not happen, and the first one still may"
    );
    world.succeed(RELEASE, &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.ended.is_some());
}

#[test]
fn exhausted_attempts_wait_for_an_operator_and_go_on_after_the_retry() {
    let mut world = charged();
    world.fail("steps.ship", "rejected");
    for _ in 0..3 {
        world.fail("steps.charge.compensate", "transient");
        world.advance(60_000);
    }
    assert_eq!(world.phase(), Phase::CompensationFailed);
    assert_eq!(
        world.ledger(),
        [LedgerStatus::Held, LedgerStatus::Stuck],
        "what lies behind waits"
    );
    assert!(world.outstanding().is_empty() && world.timers.is_empty());
    assert_eq!(
        world.payload("steps.charge.compensate.exhausted"),
        json!({"class": "transient", "step": "charge"})
    );
    assert_eq!(
        world.control(
            "req-0",
            Control::Cancel {
                reason: String::new()
            }
        ),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    let before = world.newest("steps.charge.compensate").clone();
    assert_eq!(world.control("req-1", Control::Retry), Outcome::Applied);
    assert_eq!(world.phase(), Phase::Compensating);
    let after = world.newest("steps.charge.compensate");
    assert_ne!(after.command_id, before.command_id);
    assert_ne!(after.idempotency_key, before.idempotency_key);
    assert_eq!((before.attempt, after.attempt), (3, 1), "all attempts anew");
    assert_eq!(
        world.control("req-2", Control::Retry),
        Outcome::Ignored(IgnoreReason::NoHandler),
        "nothing is stuck"
    );
    world.succeed("steps.charge.compensate", &json!({}));
    world.succeed(RELEASE, &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.ended.is_some());
}

#[test]
fn an_entry_that_is_stuck_after_the_end_keeps_the_record_until_an_operator_acts() {
    let mut world = reserved();
    world.advance(31 * 60_000);
    world.succeed(RELEASE, &json!({}));
    world.succeed("steps.charge", &json!({"charge_id": "ch-1"}));
    for _ in 0..3 {
        world.fail("steps.charge.compensate", "transient");
        world.advance(60_000);
    }
    assert_eq!(world.phase(), Phase::Failed, "the outcome stands");
    assert_eq!(world.ledger(), [LedgerStatus::Undone, LedgerStatus::Stuck]);
    assert!(world.ended.is_none());
    world.control("req-1", Control::Retry);
    world.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.ended.is_some());
}

#[test]
fn what_lies_behind_a_stuck_entry_waits_whatever_comes_in() {
    let mut world = charged();
    world.event("Order.CancelRequested", &json!({}));
    for _ in 0..3 {
        world.fail("steps.charge.compensate", "transient");
        world.advance(60_000);
    }
    world.fail("steps.ship", "rejected");
    assert_eq!(world.ledger(), [LedgerStatus::Held, LedgerStatus::Stuck]);
    assert!(world.outstanding().is_empty());
}

#[test]
fn a_late_success_is_undone_although_an_older_entry_is_stuck() {
    let mut world = reserved();
    world.advance(31 * 60_000);
    for _ in 0..3 {
        world.fail(RELEASE, "transient");
        world.advance(60_000);
    }
    assert_eq!(world.phase(), Phase::CompensationFailed);
    world.succeed("steps.charge", &json!({"charge_id": "ch-1"}));
    assert_eq!(world.outstanding(), ["steps.charge.compensate"]);
    world.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(world.ledger(), [LedgerStatus::Stuck, LedgerStatus::Undone]);
    assert_eq!(world.phase(), Phase::CompensationFailed);
}
