//! Sagas of steps: going forward, failing, and results that come late.

use saga_runner_language::ids::CommandId;
use serde_json::{Value, json};

use super::build::{effect, expr, order, saga, step};
use super::world::World;
use crate::input::{Control, InputBody, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{Phase, StepStatus};
use crate::work::WorkKind;

pub(super) fn placed() -> World {
    let mut world = World::new(order());
    let payload =
        json!({"customer": {"id": "c-1"}, "total_cents": 12_999, "items": [{"sku": "a", "qty": 2}]});
    assert_eq!(world.event("Order.Placed", &payload), Outcome::Applied);
    world
}

pub(super) fn reserved() -> World {
    let mut world = placed();
    world.succeed("steps.reserve", &json!({"id": "r-1"}));
    world.succeed("steps.fraud", &json!({"score": 3}));
    world
}

pub(super) fn charged() -> World {
    let mut world = reserved();
    world.succeed("steps.charge", &json!({"charge_id": "ch-1"}));
    world
}

#[test]
fn the_start_event_opens_the_instance_and_starts_what_needs_nothing() {
    let world = placed();
    assert_eq!(
        world.data(),
        json!({"status": "reserving", "paid": false, "customer": "c-1", "total": 12_999,
               "items": [{"sku": "a", "qty": 2}]})
    );
    assert_eq!(world.outstanding(), ["steps.reserve", "steps.fraud"]);
    assert_eq!(
        world.payload("steps.reserve"),
        json!({"order": "o-1", "items": [{"sku": "a", "qty": 2}]})
    );
    let item = world.newest("steps.reserve");
    assert_eq!(
        (
            item.causation_id.as_str(),
            item.root_correlation_id.as_deref(),
            item.hops
        ),
        ("e-1", Some("root-1"), 1)
    );
    assert_eq!(item.deadline, item.created.plus_ms(15 * 60_000));
    assert_eq!(world.last().data.as_slice().first(), Some(&b'{'));
    assert_eq!(world.timers.len(), 1);
}

#[test]
fn an_order_completes_when_every_step_is_done_or_skipped() {
    let mut world = charged();
    assert!(world.timers.is_empty(), "paid: the timer is cancelled");
    assert_eq!(world.outstanding(), ["steps.ship"]);
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(
        world.statuses(),
        [
            StepStatus::Done,
            StepStatus::Done,
            StepStatus::Skipped,
            StepStatus::Done,
            StepStatus::Done
        ]
    );
    assert!(world.ended.is_some());
    assert!(world.ledger().is_empty(), "nothing will be undone any more");
    assert_eq!(world.payload("finally.completed[0]"), json!({"order": "o-1"}));
    assert_eq!(world.data()["status"], "shipped");
}

#[test]
fn a_condition_that_holds_starts_the_step_and_holds_back_what_needs_it() {
    let mut world = placed();
    world.succeed("steps.reserve", &json!({"id": "r-1"}));
    world.succeed("steps.fraud", &json!({"score": 95}));
    assert_eq!(world.outstanding(), ["steps.approve"]);
    world.succeed("steps.approve", &json!(null));
    assert_eq!(world.outstanding(), ["steps.charge"]);
}

#[test]
fn steps_start_in_any_order_of_the_file_and_see_each_other() {
    let mut definition = saga("settle", "A.Begun");
    let audit = || effect("audit", json!({}));
    let mut last = step("last", &[1], audit());
    last.condition = Some(expr(r#"steps.first.status == "skipped""#));
    let mut first = step("first", &[], audit());
    first.condition = Some(expr(r#"steps.first.status != "pending""#));
    definition.steps = vec![last, first];
    let mut world = World::new(definition);
    world.event("A.Begun", &json!({}));
    assert_eq!(world.statuses(), [StepStatus::Running, StepStatus::Skipped]);
    assert_eq!(world.outstanding(), ["steps.last"]);
}

#[test]
fn a_declined_charge_releases_the_stock() {
    let mut world = reserved();
    world.fail("steps.charge", "declined");
    assert_eq!(world.phase(), Phase::Compensating);
    assert!(
        world.timers.is_empty(),
        "it is no longer of interest that it is unpaid"
    );
    assert_eq!(world.outstanding(), ["steps.reserve.compensate"]);
    assert_eq!(world.payload("steps.reserve.compensate"), json!({"id": "r-1"}));
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.ended.is_some());
    assert_eq!(world.payload("finally.failed[0]"), json!({"reason": "declined"}));
    let failure = world.last().failure.as_ref().expect("it failed");
    assert_eq!(
        (failure.code.as_str(), failure.step.as_deref()),
        ("declined", Some("charge"))
    );
    assert_eq!(world.statuses()[4], StepStatus::Pending);
}

#[test]
fn a_charge_that_succeeds_after_the_timeout_is_refunded() {
    let mut world = reserved();
    world.advance(31 * 60_000);
    assert_eq!(world.phase(), Phase::Compensating);
    assert_eq!(world.statuses()[3], StepStatus::Abandoned);
    assert_eq!(world.outstanding(), ["steps.charge", "steps.reserve.compensate"]);
    world.succeed("steps.charge", &json!({"charge_id": "ch-1"}));
    assert_eq!(
        world.ledger(),
        [LedgerStatus::Undoing, LedgerStatus::Due],
        "one at a time"
    );
    assert_eq!(world.data()["paid"], false, "a late result changes no state");
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Compensating);
    assert_eq!(
        world.payload("steps.charge.compensate"),
        json!({"order": "o-1", "amount": 12_999})
    );
    world.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(
        world.last().failure.as_ref().expect("it failed").code,
        "unpaid_timeout"
    );
    assert!(world.ended.is_some());
}

#[test]
fn an_end_waits_for_what_may_still_succeed_and_undoes_it_before() {
    let mut world = reserved();
    world.advance(31 * 60_000);
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Compensating, "the charge may still succeed");
    assert_eq!(
        world.event("Payment.Captured", &json!({})),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    world.succeed("steps.charge", &json!({"charge_id": "ch-1"}));
    assert_eq!(world.phase(), Phase::Compensating);
    assert_eq!(world.outstanding(), ["steps.charge.compensate"]);
    assert!(!world.paths().iter().any(|path| path.starts_with("finally")));
    world.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.ended.is_some());
    assert_eq!(world.ledger(), [LedgerStatus::Undone, LedgerStatus::Undone]);
    let finals = world
        .paths()
        .iter()
        .filter(|path| path.starts_with("finally"))
        .count();
    assert_eq!(finals, 1, "finally runs once");
}

#[test]
fn a_late_definite_failure_leaves_nothing_to_undo() {
    let mut world = reserved();
    world.advance(31 * 60_000);
    world.succeed("steps.reserve.compensate", &json!({}));
    world.fail("steps.charge", "declined");
    assert!(world.ended.is_some());
    assert_eq!(world.ledger(), [LedgerStatus::Undone]);
    assert!(world.notes.contains(&Note::LateResult {
        step: "charge".to_owned(),
        outcome: "declined".to_owned()
    }));
}

#[test]
fn a_customers_cancel_undoes_what_was_done_in_reverse() {
    let mut world = charged();
    assert_eq!(world.event("Order.CancelRequested", &json!({})), Outcome::Applied);
    assert_eq!(world.outstanding(), ["steps.ship", "steps.charge.compensate"]);
    world.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(world.outstanding(), ["steps.ship", "steps.reserve.compensate"]);
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.ended.is_none(), "ship is still under way");
    world.fail("steps.ship", "rejected");
    assert!(world.ended.is_some());
    assert_eq!(
        world.payload("finally.failed[0]"),
        json!({"reason": "customer_cancelled"})
    );
}

#[test]
fn an_operators_cancel_ends_as_cancelled() {
    let mut world = placed();
    let cancel = |reason: &str| Control::cancel(reason.to_owned());
    assert_eq!(world.control("req-1", cancel("fraud ring")), Outcome::Applied);
    assert_eq!(world.phase(), Phase::Compensating, "stock may be reserved");
    assert!(world.timers.is_empty());
    assert_eq!(
        world.control("req-2", cancel("again")),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    world.succeed("steps.reserve", &json!({"id": "r-1"}));
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Cancelled, "nothing undoes a score");
    assert_eq!(
        world.payload("finally.cancelled[0]"),
        json!({"reason": "cancelled"})
    );
    world.succeed("steps.fraud", &json!({"score": 1}));
    assert!(world.ended.is_some());
    assert_eq!(
        world.control("req-3", cancel("again")),
        Outcome::Ignored(IgnoreReason::Ended)
    );
}

#[test]
fn a_refused_shipment_refunds_and_releases() {
    let mut world = charged();
    world.fail("steps.ship", "rejected");
    assert_eq!(world.outstanding(), ["steps.charge.compensate"]);
    world.succeed("steps.charge.compensate", &json!({}));
    world.succeed("steps.reserve.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.last().failure.as_ref().expect("it failed").code, "rejected");
}

#[test]
fn a_step_with_unknown_outcome_is_undone_where_the_definition_says_so() {
    let mut world = reserved();
    world.time_out("steps.charge");
    assert_eq!(world.last().steps[3].error.as_deref(), Some("timeout"));
    assert_eq!(
        world.last().ledger.iter().nth(1).expect("there are two").result,
        None
    );
    assert_eq!(world.outstanding(), ["steps.charge.compensate"]);
    assert_eq!(
        world.payload("steps.charge.compensate"),
        json!({"order": "o-1", "amount": 12_999})
    );

    let mut world = placed();
    world.time_out("steps.reserve");
    assert!(world.ledger().is_empty(), "reserve does not say on_unknown");
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn a_failing_instance_takes_no_events() {
    let mut world = charged();
    world.fail("steps.ship", "rejected");
    assert_eq!(
        world.event("Payment.Captured", &json!({})),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
}

#[test]
fn an_event_whose_condition_does_not_hold_changes_nothing() {
    let mut world = placed();
    world.definition = std::sync::Arc::new({
        let mut order = order();
        order.handlers.get_mut("Order.CancelRequested").expect("there")[0].when = Some(expr("state.paid"));
        order
    });
    let before = world.last().clone();
    assert_eq!(
        world.event("Order.CancelRequested", &json!({})),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    assert_eq!(world.last(), &before);
}

#[test]
fn inputs_without_an_instance_are_told_apart() {
    let mut world = World::new(order());
    let nowhere = CommandId(uuid::Uuid::from_u128(7));
    let succeeded = WorkOutcome::Succeeded { payload: "{}".into() };
    assert_eq!(
        world.event("Payment.Captured", &json!({})),
        Outcome::Ignored(IgnoreReason::NoInstance)
    );
    assert_eq!(
        world.control("req-1", Control::Retry),
        Outcome::Ignored(IgnoreReason::NoInstance)
    );
    assert_eq!(
        world.result(nowhere, succeeded.clone()),
        Outcome::Ignored(IgnoreReason::Orphan)
    );
    let row = crate::patch::TimerRow {
        due: world.now,
        set_by: crate::work::WorkRef {
            log_sequence: 1,
            index: 0,
        },
        name: "unpaid".to_owned(),
        fired: 0,
    };
    let timer = world.timer_input(&row);
    assert_eq!(world.must(&timer), Outcome::Ignored(IgnoreReason::Stale));

    let mut world = placed();
    assert_eq!(
        world.result(nowhere, succeeded),
        Outcome::Ignored(IgnoreReason::Orphan)
    );
    let timer = world.timer_input(&row);
    assert_eq!(
        world.must(&timer),
        Outcome::Ignored(IgnoreReason::Stale),
        "set, but not for that time"
    );
}

#[test]
fn the_refusal_of_a_command_that_nobody_awaits_is_noted() {
    let mut world = placed();
    let nowhere = CommandId(uuid::Uuid::from_u128(7));
    let refused = WorkOutcome::failed("rejected".to_owned(), "no".to_owned());
    let before = world.last().clone();
    assert_eq!(
        world.result(nowhere, refused),
        Outcome::Ignored(IgnoreReason::Orphan)
    );
    assert_eq!(world.last(), &before);
    assert_eq!(
        world.notes.last(),
        Some(&Note::CommandRefused {
            command: nowhere.to_string(),
            class: "rejected".to_owned()
        })
    );
}

#[test]
fn a_start_event_of_a_running_instance_is_an_ordinary_event() {
    let mut world = placed();
    let payload = json!({"customer": {"id": "c-2"}, "total_cents": 1, "items": []});
    assert_eq!(world.event("Order.Placed", &payload), Outcome::Applied);
    assert_eq!(world.data()["customer"], "c-2");
    assert_eq!(world.last().generation, 1);
    assert_eq!(
        world.outstanding(),
        ["steps.reserve", "steps.fraud"],
        "no step starts twice"
    );
}

#[test]
fn an_awaited_command_is_marked_as_such() {
    let world = charged();
    let WorkKind::Command {
        awaited,
        aggregate_id,
        aggregate_type,
        command_type,
        ..
    } = &world.newest("steps.ship").kind
    else {
        panic!("ship is a command");
    };
    assert!(awaited);
    assert_eq!(
        (
            aggregate_id.as_str(),
            aggregate_type.as_str(),
            command_type.as_str()
        ),
        ("shp-o-1", "Shipment", "Shipment.Create")
    );
}

#[test]
fn a_repeated_event_is_recognised_among_the_last_sixty_four_by_its_id() {
    let mut world = placed();
    let first = world.event_input("Payment.Captured", &json!({}));
    world.must(&first);
    for _ in 0..63 {
        world.event("Payment.Captured", &json!({}));
    }
    assert_eq!(world.must(&first), Outcome::Ignored(IgnoreReason::Duplicate));
    world.event("Payment.Captured", &json!({}));
    assert_eq!(world.last().seen_events.len(), 64);
    let known = Outcome::Ignored(IgnoreReason::SameSequence);
    assert_eq!(
        world.must(&first),
        known,
        "its id is forgotten by then, and its sequence is not"
    );
}

#[test]
fn another_event_under_the_same_id_is_a_conflict_and_changes_nothing() {
    let mut world = placed();
    let first = world.event_input("Payment.Captured", &json!({"by": "card"}));
    world.must(&first);
    let other = |payload: Value| {
        let mut other = first.clone();
        if let InputBody::Event(event) = &mut other.body {
            event.payload = payload.to_string().into();
        }
        other
    };
    assert_eq!(
        world.must(&other(json!({"by": "card"}))),
        Outcome::Ignored(IgnoreReason::Duplicate)
    );
    assert_eq!(
        world.must(&other(json!({"by": "cash"}))),
        Outcome::Ignored(IgnoreReason::Conflict)
    );
}

#[test]
fn of_two_results_of_a_command_the_first_stands_and_another_one_is_a_conflict() {
    let mut world = placed();
    let command = world.newest("steps.reserve").command_id;
    let success = |id: &str| WorkOutcome::Succeeded {
        payload: json!({"id": id}).to_string().into(),
    };
    assert_eq!(world.result(command, success("r1")), Outcome::Applied);
    assert_eq!(
        world.result(command, success("r1")),
        Outcome::Ignored(IgnoreReason::Duplicate)
    );
    let failure = WorkOutcome::failed("sold_out".to_owned(), String::new());
    for other in [success("r2"), failure] {
        assert_eq!(
            world.result(command, other),
            Outcome::Ignored(IgnoreReason::Conflict)
        );
    }
    let unknown = WorkOutcome::timed_out(String::new());
    assert_eq!(
        world.result(command, unknown),
        Outcome::Ignored(IgnoreReason::Orphan),
        "a deadline that ran out meanwhile contradicts nothing"
    );
    assert_eq!(world.data()["reservation"], json!("r1"));
}
