//! Undoing: attempts, exhaustion, operators.

use std::sync::Arc;

use bytes::Bytes;
use saga_runner_language::definition::compile_archived;
use saga_runner_language::ids::CommandId;
use serde_json::json;

use super::order::{charged, reserved};
use super::world::World;
use crate::input::{CancelMode, Control, StuckDecision, Verdict, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::Phase;
use crate::view::why::{Evidence, why};
use crate::view::{InstanceView, StuckIn};
use crate::work::{WorkItem, WorkKind};

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
        world.control("req-0", Control::cancel(String::new())),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    let before = world.newest("steps.charge.compensate").clone();
    assert_eq!(world.control("req-1", Control::Retry), Outcome::Applied);
    assert_eq!(world.phase(), Phase::Compensating);
    let after = world.newest("steps.charge.compensate");
    assert_ne!(after.command_id, before.command_id);
    assert_eq!(
        after.idempotency_key, before.idempotency_key,
        "nobody has refused it"
    );
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
    let charge = world.newest("steps.charge").command_id;
    world.time_out("steps.charge");
    world.succeed("steps.charge.compensate", &json!({}));
    assert!(world.ended.is_some());
    let payload = Bytes::from_static(br#"{"charge_id":"ch-1"}"#);
    world.result(charge, WorkOutcome::Succeeded { payload });
    for _ in 0..3 {
        world.fail("steps.charge.compensate", "transient");
        world.advance(60_000);
    }
    assert_eq!(world.phase(), Phase::Failed, "the outcome stands");
    assert_eq!(world.ledger(), [LedgerStatus::Undone, LedgerStatus::Stuck]);
    assert!(world.record.is_some());
    world.control("req-1", Control::Retry);
    world.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(world.record.is_none());
}

#[test]
fn entries_before_a_stuck_compensation_wait_even_when_inputs_arrive() {
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

const HOTEL: &str = "steps.hotel.compensate";
const FLIGHT: &str = "steps.flight.compensate";
const CAR: &str = "steps.car.compensate";

/// Hotel, flight and car, one after the other; `options` are those of the flight's compensation.
pub(super) fn trip(options: &str, of_saga: &str) -> World {
    let text = format!(
        r#"
apiVersion: sagas/v1
kind: Saga
name: trip
start: Trip.Booked
key: {{"Trip.*": event.data.id}}
{of_saga}
state: {{init: {{}}}}
steps:
  hotel: {{effect: hotel-book, with: {{n: 1}}, compensate: {{effect: hotel-cancel, with: {{n: 1}}, retry: {{attempts: 1}}}}}}
  flight: {{needs: [hotel], effect: flight-book, with: {{n: 2}}, compensate: {{effect: flight-cancel, with: {{n: "${{input.n}}"}}, retry: {{attempts: 1}}{options}}}}}
  car: {{needs: [flight], effect: car-book, with: {{n: 3}}, compensate: {{effect: car-cancel, with: {{n: 3}}, retry: {{attempts: 2}}}}}}
  pay: {{needs: [car], effect: pay, with: {{n: 4}}}}
"#
    );
    let definition = compile_archived(&text).unwrap_or_else(|findings| panic!("{findings:#?}"));
    let mut world = World::of(Arc::new(definition));
    world.event("Trip.Booked", &json!({"id": "o-1"}));
    world
}

/// All three are booked, and the payment is refused.
fn refused(options: &str, of_saga: &str) -> World {
    let mut world = trip(options, of_saga);
    for step in ["hotel", "flight", "car"] {
        world.succeed(&format!("steps.{step}"), &json!({"id": step}));
    }
    world.fail("steps.pay", "refused");
    world
}

pub(super) fn decide(verdict: Verdict, step: Option<&str>) -> Control {
    Control::DecideStuck(StuckDecision {
        verdict,
        step: step.map(str::to_owned),
        item: None,
        by: "ada".to_owned(),
        reason: "by phone".to_owned(),
        found: None,
        result: None,
    })
}

fn ended(world: &World) -> Option<Phase> {
    world.ended.as_ref().map(|summary| summary.record.phase)
}

#[test]
fn in_parallel_everything_is_undone_at_once_and_one_that_is_stuck_blocks_no_other() {
    let mut world = refused("", "compensation: parallel");
    assert_eq!(world.outstanding(), [CAR, FLIGHT, HOTEL]);
    world.fail(FLIGHT, "closed");
    assert_eq!(world.phase(), Phase::CompensationFailed);
    world.fail(CAR, "transient");
    world.succeed(HOTEL, &json!({}));
    world.advance(1_000);
    world.succeed(CAR, &json!({}));
    assert_eq!(
        world.ledger(),
        [LedgerStatus::Undone, LedgerStatus::Stuck, LedgerStatus::Undone]
    );
    world.control("req-1", Control::Retry);
    assert_eq!(world.phase(), Phase::Compensating);
    world.succeed(FLIGHT, &json!({}));
    assert_eq!(ended(&world), Some(Phase::Failed));
}

#[test]
fn of_items_that_are_undone_in_parallel_each_is_tried_again_by_its_own_timer() {
    let text = r#"
apiVersion: sagas/v1
kind: Saga
name: packing
start: Trip.Booked
key: {"Trip.*": event.data.id}
compensation: parallel
state: {init: {lines: []}}
handlers: {Trip.Booked: {set: {lines: "${event.data.lines}"}}}
steps:
  pack:
    foreach: {over: state.lines, as: line, parallel: 64}
    effect: pack-line
    with: {line: "${line}"}
    compensate: {effect: unpack-line, with: {line: "${input.line}"}, retry: {attempts: 5}}
  pay: {needs: [pack], effect: pay, with: {n: 4}}
"#;
    let definition = compile_archived(text).unwrap_or_else(|findings| panic!("{findings:#?}"));
    let mut world = World::of(Arc::new(definition));
    let lines: Vec<u32> = (0..60).collect();
    world.event("Trip.Booked", &json!({"id": "o-1", "lines": lines}));
    for _ in 0..60 {
        world.succeed("steps.pack.item", &json!({}));
    }
    world.fail("steps.pay", "refused");
    let undoing = |world: &World| {
        world
            .outbox
            .values()
            .filter(|item| item.path.ends_with("compensate"))
            .count()
    };
    assert_eq!(undoing(&world), 32, "as many as run at the same time");
    for _ in 0..32 {
        world.fail("steps.pack.item.compensate", "transient");
    }
    assert_eq!((undoing(&world), world.timers.len()), (0, 32));
    world.advance(2_000);
    for _ in 0..60 {
        world.succeed("steps.pack.item.compensate", &json!({}));
    }
    assert_eq!(ended(&world), Some(Phase::Failed));
    assert!(
        world
            .ledger()
            .iter()
            .all(|status| *status == LedgerStatus::Undone)
    );
}

#[test]
fn a_compensation_whose_condition_does_not_hold_leaves_the_step_done() {
    let mut world = refused(", when: 'input.n > 2'", "");
    world.succeed(CAR, &json!({}));
    assert_eq!(world.outstanding(), [HOTEL], "the flight is passed over");
    world.succeed(HOTEL, &json!({}));
    assert_eq!(ended(&world), Some(Phase::Failed));
    assert_eq!(world.ledger()[1], LedgerStatus::Kept);
    let skipped = Note::CompensationSkipped {
        step: "flight".to_owned(),
    };
    assert!(world.notes.contains(&skipped));
}

#[test]
fn exhausted_attempts_may_be_left_so_that_the_others_are_undone() {
    let mut world = refused(", on_exhausted: continue", "");
    world.succeed(CAR, &json!({}));
    world.fail(FLIGHT, "closed");
    assert_eq!(
        world.payload("steps.flight.compensate.exhausted"),
        json!({"class": "closed", "kept": true, "step": "flight"})
    );
    assert_eq!(world.outstanding(), [HOTEL]);
    world.succeed(HOTEL, &json!({}));
    assert_eq!(ended(&world), Some(Phase::Failed));
    assert_eq!(world.ledger()[1], LedgerStatus::Kept);
}

#[test]
fn an_operator_decides_about_each_step_that_is_stuck_and_the_history_tells_who_and_why() {
    for (verdict, status) in [
        (Verdict::Skip, LedgerStatus::Kept),
        (Verdict::Resolve, LedgerStatus::Undone),
    ] {
        let mut world = refused("", "");
        world.succeed(CAR, &json!({}));
        world.fail(FLIGHT, "closed");
        assert_eq!(world.phase(), Phase::CompensationFailed);
        let nothing = world.control("req-1", decide(verdict, Some("hotel")));
        assert_eq!(
            nothing,
            Outcome::Ignored(IgnoreReason::NoHandler),
            "it is not stuck"
        );
        assert_eq!(
            world.control("req-2", decide(verdict, Some("flight"))),
            Outcome::Applied
        );
        assert_eq!((world.phase(), world.ledger()[1]), (Phase::Compensating, status));
        let told = Note::StuckDecided {
            step: "flight".to_owned(),
            verdict: verdict.as_str().to_owned(),
            by: "ada".to_owned(),
            reason: "by phone".to_owned(),
        };
        assert!(world.notes.contains(&told), "{:?}", world.notes);
        world.succeed(HOTEL, &json!({}));
        assert_eq!(ended(&world), Some(Phase::Failed));
    }
}

#[test]
fn a_step_of_unknown_outcome_is_undone_skipped_or_asked_about() {
    let unknown = |options: &str| {
        let mut world = trip(options, "");
        world.succeed("steps.hotel", &json!({}));
        world.time_out("steps.flight");
        world
    };
    let mut world = unknown(", on_unknown: compensate");
    assert_eq!(world.outstanding(), [FLIGHT]);
    world.succeed(FLIGHT, &json!({}));
    assert_eq!(world.outstanding(), [HOTEL]);
    assert_eq!(
        unknown("").outstanding(),
        [FLIGHT],
        "unless the file says otherwise"
    );
    assert_eq!(unknown(", on_unknown: ignore").outstanding(), [HOTEL]);
    let ask = || unknown(", on_unknown: ask");
    let mut world = ask();
    assert_eq!(world.phase(), Phase::CompensationFailed);
    assert_eq!(world.ledger(), [LedgerStatus::Held, LedgerStatus::Stuck]);
    assert!(world.outstanding().is_empty());
    assert_eq!(
        world.payload("steps.flight.compensate.asked"),
        json!({"step": "flight"})
    );
    let view = InstanceView::new(&world.instance, world.last(), Some(&world.definition));
    assert_eq!((view.stuck.len(), view.stuck[0].what), (1, StuckIn::Compensation));
    assert!(view.stuck[0].outcome_unknown);
    assert_eq!(
        view.stuck[0].command_id,
        Some(world.newest("steps.flight").command_id.to_string())
    );
    assert_eq!(
        why(Evidence {
            instance: &view,
            pending: &[],
            hears: &[],
            child: None
        })
        .why,
        "an operator is asked whether step flight, whose outcome is unknown, is to be compensated: its last attempt ended with \
         timeout; retry compensates it, skip leaves it as it is, resolve says that it is compensated by other means"
    );
    // It happened: it is undone.
    world.control("req-1", decide(Verdict::Retry, None));
    assert_eq!(world.payload(FLIGHT), json!({"n": 2}));
    world.succeed(FLIGHT, &json!({}));
    world.succeed(HOTEL, &json!({}));
    assert_eq!(ended(&world), Some(Phase::Failed));
    // It did not.
    let mut world = ask();
    world.control("req-1", decide(Verdict::Skip, Some("flight")));
    world.succeed(HOTEL, &json!({}));
    assert_eq!(ended(&world), Some(Phase::Failed));
    assert_eq!(world.ledger(), [LedgerStatus::Undone, LedgerStatus::Kept]);
}

#[test]
fn a_late_success_is_undone_or_stays_done() {
    let late = |options: &str| {
        let mut world = trip(options, "");
        world.succeed("steps.hotel", &json!({}));
        let reason = String::new();
        world.control("req-0", Control::cancel(reason));
        world.succeed(HOTEL, &json!({}));
        let waits = options.is_empty();
        let phase = if waits {
            Phase::Compensating
        } else {
            Phase::Cancelled
        };
        assert_eq!(world.phase(), phase, "what would be undone holds the end up");
        world.succeed("steps.flight", &json!({"id": "f"}));
        world
    };
    let mut world = late("");
    assert_eq!(world.outstanding(), [FLIGHT]);
    world.succeed(FLIGHT, &json!({}));
    assert_eq!(ended(&world), Some(Phase::Cancelled), "the outcome stands");
    for options in [", on_late: accept", ", on_late: ignore"] {
        let world = late(options);
        assert!(world.outstanding().is_empty(), "{options}");
        assert_eq!(ended(&world), Some(Phase::Cancelled));
    }
}

#[test]
fn a_late_success_that_is_accepted_counts_for_an_instance_that_goes_on() {
    let text = |on_late: &str| {
        format!(
            r#"
apiVersion: sagas/v1
kind: Saga
name: trip
start: Trip.Booked
key: {{"Trip.*": event.data.id}}
state: {{init: {{}}}}
steps:
  hotel: {{effect: hotel-book, with: {{n: 1}}}}
  flight: {{needs: [hotel], effect: flight-book, with: {{n: 2}}, compensate: {{effect: flight-cancel, on_unknown: ignore, with: {{id: "${{result.id}}"}}, on_late: {on_late}}}}}
  visa: {{needs: [hotel], effect: visa-ask, with: {{n: 3}}, on_error: {{other_dates: {{goto: hotel}}}}}}
  pay: {{needs: [flight, visa], effect: pay, with: {{n: 4}}}}
"#
        )
    };
    for (on_late, undone) in [("compensate", 2), ("accept", 2), ("ignore", 1)] {
        let definition = compile_archived(&text(on_late)).unwrap_or_else(|findings| panic!("{findings:#?}"));
        let mut world = World::of(Arc::new(definition));
        world.event("Trip.Booked", &json!({"id": "o-1"}));
        world.succeed("steps.hotel", &json!({}));
        world.fail("steps.visa", "other_dates");
        // The first flight is given up, and succeeds after all.
        world.succeed("steps.flight", &json!({"id": "f-1"}));
        let at_once = world.outstanding().contains(&FLIGHT);
        assert_eq!(at_once, on_late == "compensate", "{on_late}");
        world.succeed("steps.hotel", &json!({}));
        world.succeed("steps.flight", &json!({"id": "f-2"}));
        world.succeed("steps.visa", &json!({}));
        world.fail("steps.pay", "refused");
        let mut times = 0;
        while world.ended.is_none() {
            world.succeed(FLIGHT, &json!({}));
            times += 1;
        }
        assert_eq!(times, undone, "{on_late}");
    }
}

/// The hotel is booked and the flight under way when it is cancelled.
fn cancelled(mode: CancelMode, options: &str) -> World {
    let mut world = trip(options, "finally: {cancelled: {publish: {type: trip.cancelled}}}");
    world.succeed("steps.hotel", &json!({}));
    let reason = "no visa".to_owned();
    assert_eq!(
        world.control("req-0", Control::Cancel { reason, mode }),
        Outcome::Applied
    );
    world
}

#[test]
fn a_cancel_that_drains_undoes_nothing_before_what_runs_has_ended() {
    let mut world = cancelled(CancelMode::Drain, ", on_late: ignore");
    assert_eq!(world.phase(), Phase::Compensating);
    assert!(!world.outstanding().contains(&HOTEL));
    world.succeed("steps.flight", &json!({}));
    assert_eq!(
        world.outstanding(),
        [FLIGHT],
        "it was waited for, and is the newest"
    );
    world.succeed(FLIGHT, &json!({}));
    world.succeed(HOTEL, &json!({}));
    assert_eq!(ended(&world), Some(Phase::Cancelled));
    assert!(
        world.sent.iter().all(|item| item.path != "steps.car"),
        "nothing new began"
    );
    let mut world = cancelled(CancelMode::Drain, "");
    world.fail("steps.flight", "closed");
    assert_eq!(world.outstanding(), [HOTEL]);
    world.succeed(HOTEL, &json!({}));
    assert_eq!(ended(&world), Some(Phase::Cancelled));
}

#[test]
fn a_cancel_that_abandons_leaves_everything_done() {
    let mut world = cancelled(CancelMode::Abandon, "");
    assert_eq!(world.phase(), Phase::Cancelled);
    assert_eq!(world.ledger(), [LedgerStatus::Kept]);
    assert!(world.sent.iter().any(|item| item.path == "finally.cancelled[0]"));
    world.succeed("steps.flight", &json!({}));
    assert_eq!(ended(&world), Some(Phase::Cancelled));
    assert!(world.sent.iter().all(|item| !item.path.ends_with(".compensate")));
}

#[test]
fn an_unneeded_command_is_cancelled_once_unless_it_may_finish() {
    let cancellations = |world: &World| -> Vec<(String, CommandId)> {
        let recall = |item: &WorkItem| match &item.kind {
            WorkKind::Cancel { effect, command } => Some((effect.to_string(), *command)),
            _ => None,
        };
        world.sent.iter().filter_map(recall).collect()
    };
    let mut world = cancelled(CancelMode::Compensate, "");
    let flight = world.newest("steps.flight").command_id;
    assert_eq!(cancellations(&world), [("flight-book".to_owned(), flight)]);
    world.fail("steps.flight", "cancelled");
    world.succeed(HOTEL, &json!({}));
    assert_eq!(ended(&world), Some(Phase::Cancelled));
    assert_eq!(cancellations(&world).len(), 1, "once");
    for mode in [CancelMode::Drain, CancelMode::Abandon] {
        assert_eq!(cancellations(&cancelled(mode, "")), []);
    }
}
