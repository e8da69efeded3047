//! Successes behind an unknown outcome: of attempts, of steps that are over, of instances that have ended.

use bytes::Bytes;
use proptest::prelude::*;
use saga_runner_language::ids::CommandId;
use serde_json::{Value, json};

use super::build::loaded;
use super::compensation::trip;
use super::properties::{good, happenings, heal, live};
use super::retry::charging;
use super::world::World;
use crate::input::{CancelMode, Control, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Outcome};
use crate::record::{DOUBTS_MAX, Phase, StepStatus};

const PAY: &str = "steps.pay";
const REFUND: &str = "steps.pay.compensate";

fn paying(more: &str) -> World {
    let mut world = World::new(loaded(&format!(
        r#"
handlers: {{Order.Closed: {{fail: {{code: closed}}}}}}
state: {{init: {{paid: none}}}}
steps:
  pay:
    effect: charge
    with: {{cents: 12}}
    retry: {{attempts: 2, errors: [timeout, transient], backoff: {{initial: 1m}}}}
    set: {{paid: "${{result.id}}"}}
    compensate: {{effect: refund, with: {{cents: "${{input.cents}}", id: "${{result == null ? null : result.id}}"}}, retry: {{attempts: 1}}}}
{more}
"#
    )));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

fn newest(world: &World) -> CommandId {
    world.newest(PAY).command_id
}

fn ok(world: &mut World, command: CommandId) -> Outcome {
    let payload = Bytes::from_static(br#"{"id":"ch-1"}"#);
    world.result(command, WorkOutcome::Succeeded { payload })
}

fn refund(id: &Value) -> Value {
    json!({"cents": 12, "id": id})
}

#[test]
fn a_step_that_backs_off_is_done_by_the_attempt_whose_outcome_was_unknown() {
    let mut world = paying("");
    let first = newest(&world);
    world.time_out(PAY);
    assert_eq!(world.statuses(), [StepStatus::BackingOff]);
    assert_eq!(ok(&mut world, first), Outcome::Applied);
    assert_eq!((world.phase(), world.sent.len()), (Phase::Completed, 1));
    assert_eq!(world.data()["paid"], "ch-1");
    assert!(world.timers.is_empty());
}

#[test]
fn a_second_attempt_under_the_same_key_is_the_same_work() {
    let mut world = paying("  ship: {needs: [pay], effect: ship}");
    let first = newest(&world);
    world.time_out(PAY);
    world.advance(60_000);
    let second = newest(&world);
    assert_eq!(ok(&mut world, first), Outcome::Applied);
    assert_eq!(world.outstanding(), ["steps.ship"]);
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    assert_eq!(ok(&mut world, second), Outcome::Ignored(IgnoreReason::Orphan));
    world.fail("steps.ship", "permanent");
    assert_eq!(world.payload(REFUND), refund(&json!("ch-1")));
    world.succeed(REFUND, &json!({}));
    assert!(world.ended.is_some());
}

/// Between them the upstream has refused, so the open attempt has another key: it would be a second charge.
#[test]
fn an_open_attempt_under_another_key_is_undone_should_it_succeed() {
    let mut world = paying("  ship: {needs: [pay], effect: ship}");
    let first = newest(&world);
    world.time_out(PAY);
    world.advance(60_000);
    world.refuse(PAY, "transient");
    world.advance(120_000);
    let third = newest(&world);
    assert_eq!(world.sent.len(), 3, "{}", world.story);
    assert_eq!(ok(&mut world, first), Outcome::Applied);
    assert_eq!(ok(&mut world, third), Outcome::Applied);
    assert_eq!(world.outstanding(), ["steps.ship", REFUND]);
    assert_eq!(world.ledger(), [LedgerStatus::Held, LedgerStatus::Undoing]);
}

#[test]
fn a_success_after_its_compensation_is_undone_again_under_another_key() {
    for ended in [false, true] {
        let mut world = paying("finally: {failed: [{effect: tell, name: tell}]}");
        let first = newest(&world);
        world.time_out(PAY);
        world.advance(60_000);
        world.time_out(PAY);
        assert_eq!(world.payload(REFUND), refund(&Value::Null));
        let before = world.newest(REFUND).idempotency_key.clone();
        world.succeed(REFUND, &json!({}));
        if ended {
            world.succeed("finally.failed.tell", &json!({}));
            assert!(world.ended.is_some());
        }
        assert_eq!(ok(&mut world, first), Outcome::Applied);
        assert_eq!(world.payload(REFUND), refund(&json!("ch-1")));
        assert_ne!(world.newest(REFUND).idempotency_key, before);
        assert_eq!(ok(&mut world, first), Outcome::Ignored(IgnoreReason::Duplicate));
        assert!(world.record.is_some());
        world.succeed(REFUND, &json!({}));
        assert_eq!(world.record.is_none(), ended);
        if !ended {
            world.succeed("finally.failed.tell", &json!({}));
        }
        assert_eq!(world.phase(), Phase::Failed, "the outcome stands");
        assert!(world.ended.is_some());
        assert_eq!(
            world
                .paths()
                .iter()
                .filter(|path| path.starts_with("finally"))
                .count(),
            1
        );
    }
}

#[test]
fn a_success_that_comes_while_it_is_being_undone_is_undone_once_more() {
    let mut world = paying("");
    let first = newest(&world);
    world.time_out(PAY);
    world.event("Order.Closed", &json!({"id": "o-1"}));
    let undo = world.newest(REFUND).command_id;
    assert_eq!(ok(&mut world, first), Outcome::Applied);
    assert_eq!(world.newest(REFUND).command_id, undo, "one at a time");
    world.succeed(REFUND, &json!({}));
    assert_eq!(world.payload(REFUND), refund(&json!("ch-1")));
    world.succeed(REFUND, &json!({}));
    assert_eq!(world.phase(), Phase::Failed, "{}", world.story);
    assert_eq!(world.ledger(), [LedgerStatus::Undone]);
}

#[test]
fn a_late_success_that_may_not_be_undone_stays_and_one_before_its_compensation_is_only_recorded() {
    let unknown = |options: &str| {
        let body = format!(
            "steps:\n  pay: {{effect: charge, compensate: {{effect: refund, {options}}}}}\nstate: {{init: {{}}}}\n"
        );
        let mut world = World::new(loaded(&body));
        world.event("Order.Placed", &json!({"id": "o-1"}));
        let first = newest(&world);
        world.time_out(PAY);
        (world, first)
    };
    let (mut world, first) = unknown("on_unknown: ignore");
    assert!(world.ended.is_some());
    ok(&mut world, first);
    assert_eq!(world.outstanding(), [REFUND], "it has happened, so it is undone");

    let (mut world, first) = unknown("on_unknown: ignore, on_late: ignore");
    ok(&mut world, first);
    assert!(world.outstanding().is_empty() && world.ended.is_some());

    let (mut world, first) = unknown("on_unknown: ask");
    assert_eq!(world.phase(), Phase::CompensationFailed);
    ok(&mut world, first);
    assert_eq!(world.outstanding(), [REFUND], "the question is answered");
    assert_eq!(world.phase(), Phase::Compensating, "{}", world.story);
}

/// A step that went on without an answer counts as done, so its late success changes nothing but what is known.
#[test]
fn a_step_that_continued_stays_done_unless_the_instance_fails() {
    let mut world = paying("    on_error: {timeout: {continue: true}}\n  ship: {needs: [pay], effect: ship}");
    let first = newest(&world);
    world.time_out(PAY);
    world.advance(60_000);
    world.time_out(PAY);
    assert_eq!(world.outstanding(), ["steps.ship"]);
    assert_eq!(ok(&mut world, first), Outcome::Applied);
    assert_eq!(world.outstanding(), ["steps.ship"]);
    world.fail("steps.ship", "permanent");
    assert_eq!(world.payload(REFUND), refund(&json!("ch-1")));
}

#[test]
fn no_more_are_remembered_than_there_may_be() {
    let mut world = World::new(loaded(
        "steps:\n  pay: {effect: charge, retry: {attempts: 100, errors: [timeout], backoff: {initial: 1s, max: 1s}}}\n",
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    let first = newest(&world);
    for _ in 0..=DOUBTS_MAX {
        world.time_out(PAY);
        world.advance(1_000);
    }
    assert_eq!(world.last().doubts.len(), DOUBTS_MAX);
    assert_eq!(ok(&mut world, first), Outcome::Ignored(IgnoreReason::Orphan));
    let reason = "enough".to_owned();
    let mode = CancelMode::Compensate;
    world.control("stop", Control::Cancel { reason, mode });
}

/// One of the commands in doubt succeeds. Tells its path, and how much was sent before.
fn late(world: &mut World, which: usize) -> Option<(String, usize)> {
    let doubts = &world.last().doubts;
    let command = doubts.get(which % doubts.len().max(1))?.command;
    let (path, before) = (world.path_of(command), world.sent.len());
    assert_eq!(world.result(command, good()), Outcome::Applied);
    Some((path, before))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn late_successes_are_kept_or_undone_afterwards_under_random_inputs(
        happenings in proptest::collection::vec((happenings(2, 6), any::<bool>(), 0..8_usize), 0..12),
        of_trip in any::<bool>(),
    ) {
        let mut world = if of_trip { trip("", "") } else { World::new(charging(true)) };
        let events = if of_trip { ["Trip.Booked", "Trip.Other"] } else { ["Order.Placed", "Order.Other"] };
        let events = events.map(|event| (event, json!({"id": "o-1"})));
        if !of_trip {
            world.event(events[0].0, &events[0].1);
        }
        let mut successes = Vec::new();
        let mut done = std::collections::BTreeMap::new();
        for (part, comes, which) in &happenings {
            live(&mut world, &events, part);
            if *comes {
                successes.extend(late(&mut world, *which));
            }
        }
        heal(&mut world, &mut done);
        // The rest succeeds after the end.
        while !world.last().doubts.is_empty() {
            let success = late(&mut world, 0);
            prop_assert!(success.is_some());
            successes.extend(success);
            heal(&mut world, &mut done);
        }
        prop_assert!(world.ended.is_some() && world.record.is_none(), "it rests in {:?}", world.phase());
        if world.phase() == Phase::Completed {
            return Ok(());
        }
        prop_assert!(world.ledger().iter().all(|status| *status == LedgerStatus::Undone), "{:?}", world.ledger());
        for (path, before) in successes {
            let undo = format!("{path}.compensate");
            let steps = &world.definition.steps;
            let is_undone = steps.iter().any(|step| path == format!("steps.{}", step.name) && step.compensate.is_some());
            let behind = world.sent[before..].iter().any(|item| item.path == undo);
            prop_assert!(!is_undone || behind, "{path} was not undone after it had succeeded\n{}", world.story);
        }
    }
}
