//! What a definition says about undoing beside the action: classes of errors, failed calls, facts, what came late.

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::Control;
use crate::ledger::LedgerStatus;
use crate::record::Phase;

const REFUND: &str = "steps.pay.compensate";

/// `pay`, whose compensation has `undo`, then `book`, which may fail.
fn paid(undo: &str) -> World {
    let mut world = World::new(loaded(&format!(
        r"
steps:
  pay: {{effect: charge, compensate: {{effect: refund, {undo}}}}}
  book: {{needs: [pay], effect: book}}
"
    )));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.pay", &json!({"id": "ch-1"}));
    world
}

#[test]
fn a_class_of_errors_that_no_table_names_is_not_tried_again() {
    let mut world = paid("retry: [{errors: [transient], attempts: 3}]");
    world.fail("steps.book", "full");
    world.fail(REFUND, "transient");
    assert_eq!(world.ledger(), [LedgerStatus::BackingOff]);
    world.advance(1_000);
    world.fail(REFUND, "refused");
    assert_eq!(world.ledger(), [LedgerStatus::Stuck]);
    assert_eq!(world.phase(), Phase::CompensationFailed);
    // An operator's retry gives all attempts again.
    world.control("req-1", Control::Retry);
    for pause_ms in [1_000, 2_000] {
        world.fail(REFUND, "transient");
        world.advance(pause_ms);
    }
    world.fail(REFUND, "transient");
    assert_eq!(world.ledger(), [LedgerStatus::Stuck]);
}

#[test]
fn attempts_of_a_table_are_those_of_all_its_classes() {
    let mut world =
        paid("retry: [{errors: [transient, throttled], attempts: 2}, {errors: ['*'], attempts: 2}]");
    world.fail("steps.book", "full");
    world.fail(REFUND, "transient");
    world.advance(1_000);
    world.fail(REFUND, "other");
    world.advance(1_000);
    world.fail(REFUND, "throttled");
    assert_eq!(world.ledger(), [LedgerStatus::Stuck]);
}

#[test]
fn a_failed_call_that_may_have_left_something_behind_is_undone() {
    let text = |on_failed: &str| {
        format!(
            r#"
steps:
  pay:
    effect: charge
    with: {{cents: 12}}
    retry: {{attempts: 2}}
    compensate: {{effect: refund, with: {{cents: "${{input.cents}}", known: "${{result != null}}"}}, on_failed: {on_failed}}}
"#
        )
    };
    for (on_failed, undone) in [("ignore", false), ("compensate", true)] {
        let mut world = World::new(loaded(&text(on_failed)));
        world.event("Order.Placed", &json!({"id": "o-1"}));
        world.fail("steps.pay", "transient");
        world.advance(1_000);
        world.fail("steps.pay", "declined");
        if undone {
            assert_eq!(world.ledger(), [LedgerStatus::Undoing], "{on_failed}");
            assert_eq!(world.payload(REFUND), json!({"cents": 12, "known": false}));
            world.succeed(REFUND, &json!({}));
        }
        assert_eq!(world.phase(), Phase::Failed, "{on_failed}");
    }
    // Given up between two attempts, the first of which has failed.
    let mut world = World::new(loaded(&text("compensate")));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.fail("steps.pay", "transient");
    world.control("req-1", Control::cancel("stop".to_owned()));
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
    // Given up during the second.
    let mut world = World::new(loaded(&text("compensate")));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.fail("steps.pay", "transient");
    world.advance(1_000);
    world.control("req-1", Control::cancel("stop".to_owned()));
    assert_eq!(world.ledger(), []);
    world.fail("steps.pay", "declined");
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
}

#[test]
fn unknown_and_failed_steps_are_undone_as_on_unknown_and_on_failed_say() {
    let begun = |on_unknown: &str, on_failed: &str| {
        let mut world = World::new(loaded(&format!(
            r"
steps:
  pay:
    effect: charge
    retry: {{attempts: 2, errors: [transient, timeout]}}
    compensate: {{effect: refund, on_unknown: {on_unknown}, on_failed: {on_failed}}}
"
        )));
        world.event("Order.Placed", &json!({"id": "o-1"}));
        world
    };
    let stop = |world: &mut World| world.control("req-1", Control::cancel("stop".to_owned()));
    // Given up, then unknown: nothing has failed.
    let mut world = begun("ignore", "compensate");
    stop(&mut world);
    world.time_out("steps.pay");
    assert_eq!((world.ledger(), world.phase()), (vec![], Phase::Cancelled));
    // One attempt has failed before.
    let mut world = begun("ignore", "compensate");
    world.fail("steps.pay", "transient");
    world.advance(1_000);
    stop(&mut world);
    world.time_out("steps.pay");
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
    // The same without being given up.
    let mut world = begun("ignore", "compensate");
    world.time_out("steps.pay");
    world.advance(1_000);
    world.fail("steps.pay", "declined");
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
    // A failure is certain, so nobody is asked.
    let mut world = begun("ask", "compensate");
    world.fail("steps.pay", "declined");
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
    let mut world = begun("ask", "ignore");
    world.time_out("steps.pay");
    world.advance(1_000);
    world.fail("steps.pay", "declined");
    assert_eq!(world.ledger(), [LedgerStatus::Stuck]);
}

#[test]
fn more_steps_are_undone_by_facts_than_one_input_may_publish() {
    let mut world = World::new(loaded(
        r"
steps:
  pay: {foreach: {over: range(300), parallel: 64}, set: {ok: true}, publish: {type: taken}, compensate: {publish: {type: given}}}
  book: {needs: [pay], effect: book}
",
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    for _ in 0..20 {
        world.advance(1);
    }
    world.fail("steps.book", "full");
    for _ in 0..20 {
        world.advance(1);
    }
    assert_eq!(world.phase(), Phase::Failed);
    let given = world.sent.iter().filter(|item| item.path.ends_with("compensate"));
    assert_eq!(given.count(), 300);
}

#[test]
fn a_success_behind_a_failure_is_undone_once() {
    let mut world = World::new(loaded(
        r"
steps:
  pay:
    effect: charge
    retry: {attempts: 2}
    fail_if: result.risky
    compensate: {effect: refund, on_failed: compensate}
",
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.fail("steps.pay", "transient");
    world.advance(1_000);
    world.succeed("steps.pay", &json!({"risky": true}));
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
}

#[test]
fn a_step_may_be_undone_by_a_fact() {
    let mut world = World::new(loaded(
        r#"
steps:
  pay: {effect: charge, compensate: {publish: {type: payment.void, payload: {id: "${result.id}", why: "${failure.code}"}}, on_unknown: ignore}}
  book: {needs: [pay], effect: book}
"#,
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.pay", &json!({"id": "ch-1"}));
    world.fail("steps.book", "full");
    assert_eq!(world.payload(REFUND), json!({"id": "ch-1", "why": "full"}));
    assert_eq!(world.ledger(), [LedgerStatus::Undone]);
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn a_compensation_is_told_why_its_step_came_too_late() {
    let text = r#"
deadline: 1h
handlers: {Order.Closed: {fail: {code: closed}}, Order.Shut: {complete: {outcome: shut}}}
steps:
  a: {effect: charge, timeout: 1d, compensate: {effect: refund, with: {why: "${late == null ? 'none' : late.reason}"}}}
  b: {effect: book}
  c: {needs: [a, b], join: any, stragglers: cancel, wait: {event: Order.Seated, timeout: 2h}}
"#;
    let begun = || {
        let mut world = World::new(loaded(text));
        world.event("Order.Placed", &json!({"id": "o-1"}));
        world
    };
    let told = |mut world: World| {
        world.succeed("steps.a", &json!({}));
        world.payload("steps.a.compensate")["why"].clone()
    };
    let mut world = begun();
    world.succeed("steps.b", &json!({}));
    assert_eq!(told(world), "enough");
    let mut world = begun();
    world.event("Order.Closed", &json!({"id": "o-1"}));
    assert_eq!(told(world), "failed");
    let mut world = begun();
    world.advance(3_600_000);
    assert_eq!(told(world), "deadline");
    let mut world = begun();
    world.control("req-1", Control::cancel("stop".to_owned()));
    assert_eq!(told(world), "cancelled");
    let mut world = begun();
    world.event("Order.Shut", &json!({"id": "o-1"}));
    assert_eq!(told(world), "ended");
    let mut world = begun();
    world.succeed("steps.a", &json!({}));
    world.event("Order.Closed", &json!({"id": "o-1"}));
    assert_eq!(world.payload("steps.a.compensate")["why"], "none");
    // It is given up, and the instance fails because of that.
    let mut world = World::new(loaded(
        &text.replace("timeout: 1d,", "timeout: 1d, deadline: 30m,"),
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    let alone = text
        .replace("timeout: 1d,", "timeout: 1d, deadline: 30m,")
        .replace("needs: [a, b], join: any, stragglers: cancel", "needs: [a, b]");
    let mut world_alone = World::new(loaded(&alone));
    world_alone.event("Order.Placed", &json!({"id": "o-1"}));
    for (mut world, why) in [(world, "enough"), (world_alone, "failed")] {
        world.advance(1_800_000);
        assert_eq!(told(world), why);
    }
    // The outcome was unknown, and the step is over: it is undone for want of knowledge, and once more as late.
    let mut world = begun();
    let command = world.newest("steps.a").command_id;
    world.time_out("steps.a");
    assert_eq!(world.payload("steps.a.compensate")["why"], "none");
    world.succeed("steps.a.compensate", &json!({}));
    let payload = bytes::Bytes::from_static(b"{}");
    world.result(command, crate::input::WorkOutcome::Succeeded { payload });
    assert_eq!(world.payload("steps.a.compensate")["why"], "timed_out");
}
