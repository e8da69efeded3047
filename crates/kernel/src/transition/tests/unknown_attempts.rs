//! What a step may have done that the instance goes on without: it is undone at once, or stays where the definition says so.

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::ledger::LedgerStatus;
use crate::record::Phase;

fn placed(text: &str) -> World {
    let mut world = World::new(loaded(text));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

/// `pay`, whose error has this `answer`, and whose compensation has `undo`.
fn paying(answer: &str, undo: &str) -> World {
    placed(&format!(
        r"
steps:
  pay:
    effect: charge
    on_error: {{'*': {answer}}}
    compensate: {{effect: refund, {undo}}}
  book: {{needs: [pay], effect: book}}
"
    ))
}

#[test]
fn an_attempt_of_unknown_outcome_is_undone_when_its_step_begins_again() {
    let mut world = paying("{goto: pay}", "");
    world.time_out("steps.pay");
    assert_eq!(world.outstanding(), ["steps.pay", "steps.pay.compensate"]);
    world.succeed("steps.pay", &json!({}));
    world.succeed("steps.book", &json!({}));
    assert_eq!(
        world.phase(),
        Phase::Running,
        "what is undone on the way is part of it"
    );
    world.succeed("steps.pay.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_refused_attempt_leaves_nothing_to_undo_when_its_step_begins_again() {
    let mut world = paying("{goto: pay}", "");
    world.refuse("steps.pay", "declined");
    assert_eq!(world.outstanding(), ["steps.pay"]);
    assert_eq!(world.ledger(), []);
}

#[test]
fn an_attempt_whose_late_success_counts_is_not_undone_when_its_step_restarts() {
    for undo in ["on_late: accept", "on_unknown: ignore"] {
        let mut world = paying("{goto: pay}", undo);
        world.time_out("steps.pay");
        assert_eq!(world.outstanding(), ["steps.pay"], "{undo}");
    }
}

#[test]
fn a_step_that_counts_as_done_keeps_what_it_may_have_done() {
    let mut world = paying("{continue: true}", "");
    world.time_out("steps.pay");
    assert_eq!(world.outstanding(), ["steps.book"]);
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    world.fail("steps.book", "full");
    assert_eq!(
        world.outstanding(),
        ["steps.pay.compensate"],
        "and with the rest it is undone"
    );
}

#[test]
fn an_answer_that_fails_the_instance_keeps_what_it_names() {
    let mut world = paying("{fail: {code: unpaid, keep: [pay]}}", "");
    world.time_out("steps.pay");
    assert_eq!(world.ledger(), [LedgerStatus::Kept]);
}

#[test]
fn an_early_end_undoes_an_attempt_of_unknown_outcome_first() {
    let mut world = paying("{complete: {outcome: unpaid}}", "");
    world.time_out("steps.pay");
    assert_eq!(world.outstanding(), ["steps.pay.compensate"]);
    assert_eq!(world.phase(), Phase::Finishing);
    world.succeed("steps.pay.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn an_early_end_undoes_what_a_step_may_have_done_that_waits_for_its_next_attempt() {
    let mut world = placed(
        r"
handlers: {Order.Settled: {complete: {outcome: elsewhere}}}
steps:
  pay: {effect: charge, retry: {attempts: 3, errors: ['*']}, compensate: {effect: refund}}
",
    );
    world.time_out("steps.pay");
    assert_eq!(world.outstanding(), [""; 0]);
    world.event("Order.Settled", &json!({"id": "o-1"}));
    assert_eq!(world.outstanding(), ["steps.pay.compensate"]);
}

/// A machine whose state charges, and goes on when that has failed or somebody gives it up.
const CHARGING: &str = r"
machine:
  initial: charging
  states:
    charging:
      entry:
        emit: [{effect: charge, name: pay, retry: {attempts: 2, errors: [timeout], backoff: {initial: 1m}}, compensate: {effect: refund}}]
      handlers:
        result.pay: {to: paid}
        error.pay: {to: waiting}
        Order.Held: {to: waiting}
    waiting:
      handlers: {Order.CardChanged: {to: charging}, Order.Waived: {to: paid}}
    paid: {final: true}
";

const UNDO: &str = "machine.charging.pay.compensate";

#[test]
fn an_error_handler_of_a_state_undoes_what_the_effect_may_have_done() {
    let mut world = placed(CHARGING);
    world.time_out("machine.charging.pay");
    world.advance(60_000);
    world.time_out("machine.charging.pay");
    assert_eq!(world.outstanding(), [UNDO]);
    world.event("Order.CardChanged", &json!({"id": "o-1"}));
    world.succeed("machine.charging.pay", &json!({}));
    assert_eq!(world.phase(), Phase::Running);
    world.succeed(UNDO, &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_state_that_is_left_between_two_attempts_undoes_what_the_first_may_have_done() {
    let mut world = placed(CHARGING);
    world.time_out("machine.charging.pay");
    world.event("Order.Held", &json!({"id": "o-1"}));
    assert_eq!(world.outstanding(), [UNDO]);
}

#[test]
fn an_error_handler_undoes_what_the_effect_of_a_timer_or_handler_may_have_done() {
    let mut world = placed(
        r"
handlers:
  Order.Reminded: {emit: [{effect: charge, name: fee, compensate: {effect: refund}}]}
  error.fee: {set: {problem: fee}}
  error.fine: {set: {problem: fine}}
state: {init: {problem: none}}
timers:
  late: {after: 1m, emit: [{effect: charge, name: fine, compensate: {effect: refund}}]}
steps:
  book: {effect: book}
",
    );
    world.event("Order.Reminded", &json!({"id": "o-1"}));
    let fee = "handlers.Order.Reminded.fee.item";
    world.time_out(fee);
    assert_eq!(world.data()["problem"], "fee");
    world.succeed(&format!("{fee}.compensate"), &json!({}));
    world.advance(60_000);
    let fine = "timers.late.fine";
    world.time_out(fine);
    assert_eq!(world.data()["problem"], "fine");
    assert_eq!(world.phase(), Phase::Running);
    world.succeed("steps.book", &json!({}));
    assert_eq!(
        world.phase(),
        Phase::Running,
        "what is undone on the way is part of it"
    );
    world.succeed(&format!("{fine}.compensate"), &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}
