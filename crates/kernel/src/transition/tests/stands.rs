//! What stands of an instance that was killed, abandoned, or has failed: nobody does it once more, and nobody undoes it twice.

use saga_runner_language::limits::Limits;
use serde_json::json;

use super::build::{loaded, loaded_as};
use super::children::{ask, class, outcome};
use super::operations::operate;
use super::world::World;
use crate::input::{CancelMode, Control, Finding, Found, OnConflict, OperationVerb};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Outcome};
use crate::record::{Phase, StepStatus};
use crate::transition::{rerun_obstacle, restart_obstacle};

const SHOP: &str = r#"
state: {init: {}}
steps:
  look: {effect: look, FAILS}
  pay: {needs: [look], effect: charge, compensate: {effect: refund, with: {id: "${result == null ? '' : result.id}"}, retry: {attempts: 2}}}
  ship: {needs: [pay], effect: ship, compensate: {effect: unship, OF_SHIP}}
"#;

fn shop(fails: &str, of_ship: &str) -> World {
    let text = SHOP.replace(", FAILS", fails).replace(", OF_SHIP", of_ship);
    let mut world = World::new(loaded(&text));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

/// `look` and `pay` are done, and `ship` is under way.
fn paid(of_ship: &str) -> World {
    let mut world = shop("", of_ship);
    world.succeed("steps.look", &json!({"bad": false}));
    world.succeed("steps.pay", &json!({"id": "c-1"}));
    world
}

fn does(world: &mut World, verb: OperationVerb) -> Outcome {
    let id = format!("asked-{}", world.log_length());
    let input = world.input(
        &id,
        crate::input::Origin::Local,
        crate::input::InputBody::Control(operate(verb)),
    );
    world.give(&input).expect("it is applied")
}

fn rerun(world: &mut World, found: &[(&str, Found)]) -> Outcome {
    let found = found.iter().map(|(step, found)| Finding {
        step: (*step).to_owned(),
        found: found.clone(),
    });
    let found = found.collect();
    does(world, OperationVerb::Rerun { found })
}

fn obstacle(world: &World) -> String {
    rerun_obstacle(&world.definition, world.last(), &[], &Limits::default()).unwrap_or_default()
}

fn is_done(result: &str) -> Found {
    Found::Done {
        result: result.to_owned(),
    }
}

#[test]
fn a_success_that_comes_after_a_kill_is_on_the_ledger_and_undoes_nothing() {
    let mut world = paid(", with: {id: '${result == null ? 0 : result.id}'}");
    let command = world.newest("steps.ship").command_id;
    does(&mut world, OperationVerb::Kill);
    let good = crate::input::WorkOutcome::Succeeded {
        payload: r#"{"id":7}"#.into(),
    };
    assert_eq!(world.result(command, good), Outcome::Applied);
    assert_eq!(world.ledger(), [LedgerStatus::Held; 2]);
    assert!(
        world.ended.is_some() && world.outbox.is_empty(),
        "nothing is undone"
    );
    let entry = world.last().ledger.iter().last().expect("of ship").into_owned();
    assert_eq!(
        entry.result.as_deref().map(Vec::as_slice),
        Some(br#"{"id":7}"#.as_slice())
    );
}

#[test]
fn an_undo_that_succeeds_after_a_kill_has_undone_it() {
    let mut world = paid("");
    world.control("c-1", Control::cancel("no more"));
    world.fail("steps.ship", "cancelled");
    let undo = world.newest("steps.pay.compensate").command_id;
    does(&mut world, OperationVerb::Kill);
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    assert!(
        obstacle(&world).starts_with("state the outcome of pay"),
        "{}",
        obstacle(&world)
    );

    let good = crate::input::WorkOutcome::Succeeded { payload: "{}".into() };
    world.result(undo, good);
    assert_eq!(world.ledger(), [LedgerStatus::Undone]);
    assert_eq!(obstacle(&world), "");
    rerun(&mut world, &[]);
    assert_eq!(world.outstanding(), ["steps.pay"], "it is paid once more");
}

#[test]
fn an_undo_of_unknown_outcome_is_repeated_under_its_key_and_not_twice() {
    let killed = || {
        let mut world = paid("");
        world.control("c-1", Control::cancel("no more"));
        world.fail("steps.ship", "cancelled");
        does(&mut world, OperationVerb::Kill);
        world
    };
    let mut world = killed();
    let key = world.newest("steps.pay.compensate").idempotency_key.clone();
    assert_eq!(rerun(&mut world, &[]), Outcome::Ignored(IgnoreReason::Refused));
    rerun(&mut world, &[("pay", Found::NotDone)]);
    assert_eq!(
        world.newest("steps.pay.compensate").idempotency_key,
        key,
        "to be sure"
    );
    assert_eq!(world.newest("steps.pay").path, "steps.pay");
    assert_eq!(world.outstanding().len(), 2, "it is paid once more");

    let mut world = killed();
    rerun(&mut world, &[("pay", is_done("{}"))]);
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    world.fail("steps.ship", "permanent");
    let undo = world.newest("steps.pay.compensate");
    assert_eq!((undo.attempt, &undo.idempotency_key), (1, &key));
    assert_eq!(world.payload("steps.pay.compensate"), json!({"id": "c-1"}));
}

#[test]
fn work_that_an_abandoned_instance_kept_is_undone_by_its_next_generation() {
    let mut world = paid("");
    let mode = CancelMode::Abandon;
    let reason = String::new();
    world.control("c-1", Control::Cancel { reason, mode });
    world.fail("steps.ship", "cancelled");
    assert_eq!(world.ledger(), [LedgerStatus::Kept]);
    rerun(&mut world, &[]);
    assert_eq!(world.outstanding(), ["steps.ship"], "pay stays done");
    world.fail("steps.ship", "permanent");
    assert_eq!(world.payload("steps.pay.compensate"), json!({"id": "c-1"}));
}

#[test]
fn a_step_that_has_happened_and_cannot_be_undone_is_asked_for_before_it_is_done_again() {
    // It has failed after its action.
    let mut world = shop(", fail_if: result.bad", "");
    world.succeed("steps.look", &json!({"bad": true}));
    assert_eq!(world.phase(), Phase::Failed);
    assert!(
        obstacle(&world).starts_with("state the outcome of look"),
        "{}",
        obstacle(&world)
    );
    assert_eq!(rerun(&mut world, &[("look", Found::NotDone)]), Outcome::Applied);
    assert_eq!(world.outstanding(), ["steps.look"]);

    // It succeeds late, and stays as its step says.
    let mut world = paid(", on_late: ignore");
    world.control("c-1", Control::cancel("no more"));
    world.succeed("steps.ship", &json!({}));
    world.succeed("steps.pay.compensate", &json!({}));
    assert!(
        obstacle(&world).starts_with("state the outcome of ship"),
        "{}",
        obstacle(&world)
    );

    // Nobody knows, and it counts as if it had not happened.
    let mut world = paid(", on_unknown: ignore");
    does(&mut world, OperationVerb::Kill);
    assert!(
        obstacle(&world).starts_with("state the outcome of ship"),
        "{}",
        obstacle(&world)
    );
}

#[test]
fn a_loop_of_which_something_may_stand_does_not_run_again() {
    let text = "state: {init: {}}\nsteps:\n  sell: {foreach: {over: '[1, 2]', as: n}, effect: sell, with: {n: '${n}'}, compensate: {effect: unsell, on_unknown: ignore}}\n";
    let mut world = World::new(loaded(text));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.time_out("steps.sell.item");
    world.fail("steps.sell.item", "cancelled");
    assert_eq!(world.phase(), Phase::Failed);
    assert!(obstacle(&world).contains("may have"), "{}", obstacle(&world));
    assert_eq!(rerun(&mut world, &[]), Outcome::Ignored(IgnoreReason::Refused));
}

#[test]
fn the_work_of_every_iteration_of_a_step_stays_on_the_ledger() {
    let text = "state: {init: {}}\nsteps:\n  pay: {effect: charge, with: {}, compensate: {effect: refund}}\n  ship: {needs: [pay], effect: ship, on_error: {lost: {goto: pay}}}\n";
    let mut world = World::new(loaded(text));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.pay", &json!({}));
    world.fail("steps.ship", "lost");
    does(&mut world, OperationVerb::Kill);
    assert_eq!(
        world.ledger(),
        [LedgerStatus::Held; 2],
        "the first payment, and what nobody knows"
    );
    rerun(&mut world, &[("pay", Found::NotDone)]);
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    world.succeed("steps.pay", &json!({}));
    world.fail("steps.ship", "permanent");
    world.succeed("steps.pay.compensate", &json!({}));
    world.succeed("steps.pay.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    let undone = world
        .sent
        .iter()
        .filter(|item| item.path == "steps.pay.compensate");
    let mut keys: Vec<&str> = undone.map(|item| item.idempotency_key.as_str()).collect();
    keys.dedup();
    assert_eq!(keys.len(), 2, "two payments, two refunds");
}

#[test]
fn a_late_success_of_the_generation_before_is_undone_and_is_nobodys_result() {
    let mut world = shop("", "");
    world.succeed("steps.look", &json!({}));
    let first = world.newest("steps.pay").clone();
    does(&mut world, OperationVerb::Kill);
    rerun(&mut world, &[("pay", Found::NotDone)]);
    world.advance(1);
    let good = crate::input::WorkOutcome::Succeeded {
        payload: r#"{"id":"c-1"}"#.into(),
    };
    assert_eq!(world.result(first.command_id, good), Outcome::Applied);
    assert_eq!(
        world.statuses()[1],
        StepStatus::Running,
        "it waits for its own payment"
    );
    assert_eq!(world.payload("steps.pay.compensate"), json!({"id": "c-1"}));
    let late = world.newest("steps.pay.compensate").idempotency_key.clone();
    world.succeed("steps.pay.compensate", &json!({}));
    world.succeed("steps.pay", &json!({"id": "c-2"}));
    world.fail("steps.ship", "permanent");
    assert_eq!(world.payload("steps.pay.compensate"), json!({"id": "c-2"}));
    assert_ne!(
        world.newest("steps.pay.compensate").idempotency_key,
        late,
        "another refund"
    );
}

#[test]
fn an_undo_that_failed_for_good_after_it_came_too_early_is_retried_as_other_work() {
    let mut world = shop("", "");
    world.succeed("steps.look", &json!({}));
    let pay = world.newest("steps.pay").command_id;
    world.time_out("steps.pay");
    let key = world.newest("steps.pay.compensate").idempotency_key.clone();
    let good = crate::input::WorkOutcome::Succeeded {
        payload: r#"{"id":"c-1"}"#.into(),
    };
    world.advance(1);
    world.result(pay, good);
    world.time_out("steps.pay.compensate");
    world.advance(10_000);
    world.fail("steps.pay.compensate", "permanent");
    assert_eq!(world.phase(), Phase::CompensationFailed);
    world.control("r-1", Control::Retry);
    assert_ne!(world.newest("steps.pay.compensate").idempotency_key, key);
    assert_eq!(world.payload("steps.pay.compensate"), json!({"id": "c-1"}));
}

#[test]
fn one_step_is_spoken_of_once() {
    let mut world = paid("");
    does(&mut world, OperationVerb::Kill);
    let twice = [("ship", is_done("{}")), ("ship", is_done("{}"))];
    assert_eq!(rerun(&mut world, &twice), Outcome::Ignored(IgnoreReason::Refused));
    let unknown = [("ship", is_done("{}")), ("look", Found::NotDone)];
    assert_eq!(
        rerun(&mut world, &unknown),
        Outcome::Ignored(IgnoreReason::Refused)
    );
    // What stands may have been undone by hand.
    let by_hand = [("ship", Found::NotDone), ("pay", Found::NotDone)];
    assert_eq!(rerun(&mut world, &by_hand), Outcome::Applied);
    assert_eq!(
        (world.outstanding(), world.ledger()),
        (vec!["steps.pay"], Vec::new())
    );
}

#[test]
fn nothing_that_stands_is_forgotten_by_a_restart() {
    let text = format!("input: {{type: object}}\nkey: {{'*': event.data.id}}\n{SHOP}");
    let text = text.replace(", FAILS", "").replace(", OF_SHIP", "");
    let started = || {
        let mut world = World::new(loaded_as(&text));
        let (input, parent) = (b"{}".as_slice().into(), None);
        world.control(
            "r-1",
            Control::Start {
                input,
                parent,
                on_conflict: OnConflict::Fail,
                traceparent: None,
            },
        );
        world.succeed("steps.look", &json!({}));
        world.succeed("steps.pay", &json!({"id": "c-1"}));
        world
    };
    let mut world = started();
    does(&mut world, OperationVerb::Kill);
    let why = restart_obstacle(&world.definition, world.last(), None).unwrap_or_default();
    assert!(
        why.starts_with("what pay, ship did, or may have done, was not undone"),
        "{why}"
    );
    assert_eq!(
        does(&mut world, OperationVerb::Restart),
        Outcome::Ignored(IgnoreReason::Refused)
    );

    let mut world = started();
    world.fail("steps.ship", "permanent");
    world.succeed("steps.pay.compensate", &json!({}));
    assert_eq!(does(&mut world, OperationVerb::Restart), Outcome::Applied);
    assert_eq!(world.outstanding(), ["steps.look"]);
    assert_eq!(
        does(&mut world, OperationVerb::Restart),
        Outcome::Ignored(IgnoreReason::NothingToDo)
    );
}

#[test]
fn a_killed_child_that_left_something_is_not_taken_for_undone() {
    let mut parent = super::children::parent();
    let mut child = super::children::child();
    ask(&parent, &mut child, super::children::PAY);
    child.succeed("steps.charge", &json!({}));
    super::children::tell(&child, &mut parent);
    parent.fail("steps.ship", "gone");
    super::children::reopened(&mut child, &parent.newest("steps.pay.compensate").clone());
    assert_eq!(child.phase(), Phase::Compensating);
    does(&mut child, OperationVerb::Kill);
    let (_, told) = outcome(child.newest("outcome"));
    assert_eq!(class(&told), "child_compensation_failed");
    super::children::tell(&child, &mut parent);
    assert_ne!(parent.ledger(), [LedgerStatus::Undone], "nobody has undone it");
    assert_ne!(parent.phase(), Phase::Failed);

    // It says so whenever it is asked, and one that has left nothing was cancelled.
    let again = parent.newest("steps.pay.compensate").clone();
    let asked = child.sent.len();
    let input = child.input(
        "ask-again",
        crate::input::Origin::Local,
        crate::input::InputBody::Control(super::children::control(&again)),
    );
    child.give(&input).expect("it is applied");
    let (_, told) = outcome(&child.sent[asked]);
    assert_eq!(class(&told), "child_compensation_failed");
    let mut child = super::children::child();
    ask(&super::children::parent(), &mut child, super::children::PAY);
    child.fail("steps.charge", "permanent");
    let (_, told) = outcome(child.newest("outcome"));
    assert_eq!(class(&told), "child_failed");
}

#[test]
fn a_child_that_completes_while_its_parent_is_killed_is_known_and_undone_with_the_next_generation() {
    let mut parent = super::children::parent();
    let mut child = super::children::child();
    ask(&parent, &mut child, super::children::PAY);
    does(&mut parent, OperationVerb::Kill);
    child.succeed("steps.charge", &json!({}));
    assert_eq!(
        ask(&parent, &mut child, "steps.pay.cancel"),
        Outcome::Ignored(IgnoreReason::Ended)
    );
    super::children::tell(&child, &mut parent);
    assert_eq!(parent.ledger(), [LedgerStatus::Held]);
    assert!(
        obstacle(&parent).starts_with("state the outcome of pay"),
        "{}",
        obstacle(&parent)
    );
    let result = r#"{"key": "o-1-pay", "outcome": "completed", "saga": "payment", "state": {"paid": 12}}"#;
    assert_eq!(rerun(&mut parent, &[("pay", is_done(result))]), Outcome::Applied);
    assert_eq!(parent.outstanding(), ["steps.ship"]);
    parent.fail("steps.ship", "gone");
    super::children::reopened(&mut child, &parent.newest("steps.pay.compensate").clone());
    assert_eq!(child.outstanding(), ["steps.charge.compensate"]);
}
