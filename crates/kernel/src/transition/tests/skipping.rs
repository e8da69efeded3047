//! Steps that an operator skips.

use bytes::Bytes;
use saga_runner_language::limits::Limits;
use serde_json::{Value, json};

use super::build::loaded;
use super::questions::asking;
use super::world::World;
use crate::input::{Control, Found, InputBody, Origin, StuckDecision, Verdict, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{Phase, StepStatus};
use crate::transition::{Unfit, skip_obstacle};

const PAY: &str = "steps.pay";
const REFUND: &str = "steps.pay.compensate";
const UNDONE: &str = "compensate: {effect: refund, with: {id: '${result == null ? null : result.id}'}}";

fn paying(more: &str) -> World {
    let mut world = World::new(asking(
        loaded(&format!(
            r#"
state: {{init: {{paid: none}}}}
steps:
  pay:
    effect: charge
    retry: {{attempts: 3, errors: [timeout, transient], backoff: {{initial: 1m}}}}
    set: {{paid: "${{result.id}}"}}
    {more}
  check: {{effect: check, retry: {{attempts: 2, backoff: {{initial: 1m}}}}}}
  ship: {{needs: [pay], effect: ship, with: {{id: "${{steps.pay.result}}"}}}}
"#
        )),
        &[],
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.check", &json!({}));
    world
}

fn decision(step: &str, found: Option<Found>, result: Option<Value>) -> StuckDecision {
    StuckDecision {
        verdict: Verdict::Skip,
        step: Some(step.to_owned()),
        item: None,
        by: "ada".to_owned(),
        reason: "paid in cash".to_owned(),
        found,
        result: result.map(|result| result.to_string()),
    }
}

fn skip(world: &mut World, found: Option<Found>, result: Option<Value>) -> Outcome {
    let control = Control::DecideStuck(decision("pay", found, result));
    let id = format!("skip-{}-{}", world.sent.len(), world.last().version);
    let input = world.input(&id, Origin::Local, InputBody::Control(control));
    world.give(&input).expect("it is applied or refused")
}

fn done(result: &Value) -> Found {
    let result = result.to_string();
    Found::Done { result }
}

fn obstacle(world: &World, found: Option<Found>, result: Option<Value>) -> String {
    let (limits, decision) = (Limits::default(), decision("pay", found, result));
    match skip_obstacle(&world.definition, world.last(), &decision, &limits) {
        Some(Unfit::Refused(why) | Unfit::Result(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_step_that_backs_off_is_skipped_with_nothing_to_undo_and_the_history_says_by_whom() {
    let mut world = paying(UNDONE);
    world.fail(PAY, "transient");
    assert_eq!(skip(&mut world, None, None), Outcome::Applied);
    assert_eq!(world.statuses()[0], StepStatus::Skipped);
    assert_eq!(world.payload("steps.ship"), json!({"id": null}), "it goes on");
    assert_eq!(
        (world.data()["paid"].as_str(), world.ledger()),
        (Some("none"), vec![])
    );
    assert!(world.timers.is_empty(), "no further attempt");
    let is_told = |note: &Note| {
        matches!(note, Note::StuckDecided { step, verdict, by, reason }
            if (step.as_str(), verdict.as_str(), by.as_str(), reason.as_str()) == ("pay", "skip", "ada", "paid in cash"))
    };
    assert!(world.notes.iter().any(is_told), "{:?}", world.notes);
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn the_result_that_an_operator_gives_is_what_others_read() {
    let mut world = paying(UNDONE);
    world.fail(PAY, "transient");
    let result = json!({"id": "cash-1"});
    assert_eq!(skip(&mut world, None, Some(result.clone())), Outcome::Applied);
    assert_eq!(world.payload("steps.ship"), json!({"id": result}));
    assert_eq!(world.data()["paid"], "cash-1");
    assert_eq!(world.ledger(), [], "it was not done by the runner");
}

#[test]
fn a_step_that_an_operator_says_was_done_is_undone_when_the_instance_fails() {
    let mut world = paying(UNDONE);
    world.time_out(PAY);
    let why = obstacle(&world, None, None);
    assert!(why.contains("say whether there is something to undo"), "{why}");
    assert_eq!(
        skip(&mut world, None, None),
        Outcome::Ignored(IgnoreReason::Refused)
    );
    assert_eq!(world.statuses()[0], StepStatus::BackingOff, "nothing has changed");
    let why = obstacle(&world, Some(done(&Value::Null)), None);
    assert!(why.contains("give the result"), "{why}");
    let result = json!({"id": "ch-9"});
    assert_eq!(
        skip(&mut world, Some(done(&result)), Some(result)),
        Outcome::Applied
    );
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    world.fail("steps.ship", "permanent");
    assert_eq!(world.payload(REFUND), json!({"id": "ch-9"}));
}

#[test]
fn a_late_success_of_a_step_that_was_skipped_as_not_done_is_undone() {
    let mut world = paying(UNDONE);
    let command = world.newest(PAY).command_id;
    world.time_out(PAY);
    assert_eq!(skip(&mut world, Some(Found::NotDone), None), Outcome::Applied);
    assert_eq!(
        (world.statuses()[0], world.ledger()),
        (StepStatus::Skipped, vec![])
    );
    let payload = Bytes::from_static(br#"{"id":"ch-1"}"#);
    assert_eq!(
        world.result(command, WorkOutcome::Succeeded { payload }),
        Outcome::Applied
    );
    assert_eq!(world.payload(REFUND), json!({"id": "ch-1"}), "at once");
    assert_eq!(world.statuses()[0], StepStatus::Skipped);
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Running, "it ends when that is undone");
    world.succeed(REFUND, &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_command_that_is_with_a_worker_is_skipped_only_as_not_done_and_its_success_is_undone() {
    let mut world = paying(UNDONE);
    let why = obstacle(&world, None, None);
    assert!(why.contains("with a worker") && why.contains("not_done"), "{why}");
    let why = obstacle(&world, Some(done(&json!({}))), None);
    assert!(why.contains("wait for it"), "{why}");
    assert_eq!(
        skip(&mut world, None, None),
        Outcome::Ignored(IgnoreReason::Refused)
    );
    assert_eq!(skip(&mut world, Some(Found::NotDone), None), Outcome::Applied);
    let told = world.sent.iter().any(|item| item.path == "steps.pay.cancel");
    assert!(told, "its worker learns that the call is not needed");
    world.succeed(PAY, &json!({"id": "ch-2"}));
    assert_eq!(world.payload(REFUND), json!({"id": "ch-2"}));
}

#[test]
fn with_on_late_ignore_a_late_success_of_a_skipped_step_is_told_and_kept() {
    let mut world = paying("compensate: {effect: refund, on_late: ignore}");
    skip(&mut world, Some(Found::NotDone), None);
    world.succeed(PAY, &json!({"id": "ch-2"}));
    let is_told = |note: &Note| matches!(note, Note::LateResult { step, .. } if step == "pay");
    assert!(world.notes.iter().any(is_told), "{:?}", world.notes);
    assert_eq!(world.ledger(), []);
    assert!(
        world.last().off_ledger.contains(&0),
        "and another go at the instance knows of it"
    );
}

#[test]
fn a_step_that_waits_leaves_what_it_did_before_on_the_ledger() {
    let mut world = paying(&format!("wait: {{event: Order.Paid, timeout: 1d}}\n    {UNDONE}"));
    world.succeed(PAY, &json!({"id": "ch-1"}));
    let why = obstacle(&world, Some(Found::NotDone), None);
    assert!(why.contains("stays on the ledger"), "{why}");
    assert_eq!(skip(&mut world, None, None), Outcome::Applied);
    assert_eq!(
        (world.statuses()[0], world.ledger()),
        (StepStatus::Skipped, vec![LedgerStatus::Held])
    );
    assert!(world.timers.is_empty(), "its timeout is over");
    world.fail("steps.ship", "permanent");
    assert_eq!(world.payload(REFUND), json!({"id": "ch-1"}));
}

#[test]
fn only_a_step_in_progress_of_a_running_instance_is_skipped() {
    let mut world = paying("");
    let not_stuck = |world: &World, step: &str| {
        let found = skip_obstacle(
            &world.definition,
            world.last(),
            &decision(step, None, None),
            &Limits::default(),
        );
        found == Some(Unfit::NotStuck)
    };
    for step in ["check", "ship", "typo"] {
        assert!(not_stuck(&world, step), "{step} is done, pending, or none");
    }
    world.control("c", Control::cancel("enough"));
    assert!(world.phase() != Phase::Running && not_stuck(&world, "pay"));
}

#[test]
fn items_of_a_loop_are_skipped_one_by_one_and_groups_are_not() {
    let mut world = World::new(loaded(
        r#"
state: {init: {boxes: []}}
steps:
  pack: {foreach: {over: "[1, 2]", as: n}, effect: pack, retry: {attempts: 2, backoff: {initial: 1h}}, set: {}}
  ship: {needs: [pack], effect: ship, with: {boxes: "${steps.pack.result}"}}
"#,
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.fail("steps.pack.item", "transient");
    world.succeed("steps.pack.item", &json!({"box": 2}));
    let control = |item| {
        Control::DecideStuck(StuckDecision {
            item,
            ..decision("pack", None, None)
        })
    };
    assert_eq!(
        world.control("s-1", control(Some(7))),
        Outcome::Ignored(IgnoreReason::Refused)
    );
    assert_eq!(
        world.control("s-2", control(None)),
        Outcome::Applied,
        "one is in progress"
    );
    assert_eq!(world.outstanding(), ["steps.ship"]);
    assert_eq!(world.payload("steps.ship"), json!({"boxes": [null, {"box": 2}]}));
}

/// A result of which the step makes nothing is no reason to block the instance.
#[test]
fn a_result_that_the_step_cannot_read_is_refused() {
    let mut world = paying("");
    world.fail(PAY, "transient");
    let control = Control::DecideStuck(decision("pay", None, Some(json!({"no": 1}))));
    let input = world.input("s-1", Origin::Local, InputBody::Control(control));
    let rejection = world.give(&input).expect_err("the step sets a field with it");
    assert_eq!(rejection.reason, "expression");
    assert_eq!(world.statuses()[0], StepStatus::BackingOff);
}
