//! What operators do to an instance: pausing, killing, timers.

use serde_json::json;

use super::build::loaded;
use super::waits::signal;
use super::world::World;
use crate::input::{CancelMode, Control, InputBody, Operation, OperationVerb, Origin};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{Phase, StepStatus};
use crate::transition::{backing_off, may_be_cancelled};
use crate::work::WorkKind;

const SHOP: &str = r#"
state: {init: {heard: []}}
deadline: 3d
handlers:
  Order.Noted: {set: {heard: "${state.heard + [event.data.n]}"}}
  signal.note: {set: {heard: "${state.heard + [signal.n]}"}}
timers:
  remind: {after: 1h, set: {heard: "${state.heard + [0]}"}}
steps:
  pay: {effect: charge, compensate: {effect: refund, retry: {attempts: 3, backoff: {initial: 1m}}}}
  pack: {needs: [pay], effect: pack, retry: {attempts: 3, backoff: {initial: 1h}}, compensate: {effect: unpack}}
  ship: {needs: [pack], wait: {signal: go, timeout: 1d}}
finally: {cancelled: [{effect: tell, name: tell}], failed: [{effect: tell, name: tell}]}
"#;

pub(super) fn operate(verb: OperationVerb) -> Control {
    Control::Operate(Operation {
        verb,
        by: "ada".to_owned(),
        reason: "why not".to_owned(),
    })
}

fn shop() -> World {
    let mut world = World::new(loaded(SHOP));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

fn noted(world: &mut World, n: u32) -> Outcome {
    world.event("Order.Noted", &json!({"id": "o-1", "n": n}))
}

#[test]
fn a_paused_instance_keeps_what_comes_and_applies_it_in_order_once_it_is_resumed() {
    let mut world = shop();
    assert_eq!(
        world.control("p-1", operate(OperationVerb::Pause)),
        Outcome::Applied
    );
    assert_eq!(
        world.control("p-2", operate(OperationVerb::Pause)),
        Outcome::Ignored(IgnoreReason::NothingToDo)
    );
    let paused = world.last().paused.clone().expect("paused");
    assert_eq!((paused.by.as_str(), paused.reason.as_str()), ("ada", "why not"));

    assert_eq!(noted(&mut world, 1), Outcome::Deferred);
    assert_eq!(
        world.succeed("steps.pay", &json!({})),
        Outcome::Deferred,
        "a result of work under way is kept"
    );
    assert_eq!(
        world.control("s-1", signal("note", &json!({"n": 2}))),
        Outcome::Deferred
    );
    world.advance(3_600_000);
    assert_eq!(noted(&mut world, 3), Outcome::Deferred);
    assert_eq!(world.data(), json!({"heard": []}));
    assert_eq!(world.outstanding(), ["steps.pay"], "nothing begins meanwhile");
    assert!(
        world.last().timers.contains_key("remind"),
        "it is shown as overdue"
    );

    assert_eq!(
        world.control("r-1", operate(OperationVerb::Resume)),
        Outcome::Applied
    );
    world.give_what_waits();
    assert_eq!(world.data(), json!({"heard": [1, 2, 0, 3]}));
    assert_eq!(world.outstanding(), ["steps.pack"]);
    assert_eq!(
        world.control("r-2", operate(OperationVerb::Resume)),
        Outcome::Ignored(IgnoreReason::NothingToDo)
    );
    let told = world
        .notes
        .iter()
        .filter(|note| matches!(note, Note::Operated { by, .. } if by == "ada"));
    assert_eq!(told.count(), 2);
}

#[test]
fn the_deadline_of_a_paused_instance_waits_and_passes_when_it_is_resumed() {
    let mut world = shop();
    world.control("p-1", operate(OperationVerb::Pause));
    world.advance(4 * 24 * 3_600_000);
    assert_eq!(world.phase(), Phase::Running);
    world.control("r-1", operate(OperationVerb::Resume));
    world.give_what_waits();
    assert_eq!(world.phase(), Phase::Compensating);
}

#[test]
fn cancelling_a_paused_instance_ends_the_pause() {
    let mut world = shop();
    world.succeed("steps.pay", &json!({}));
    world.control("p-1", operate(OperationVerb::Pause));
    assert_eq!(noted(&mut world, 1), Outcome::Deferred);
    world.control("c-1", Control::cancel("no more"));
    assert!(world.last().paused.is_none());
    world.give_what_waits();
    assert_eq!(world.phase(), Phase::Compensating);
    assert!(world.outstanding().contains(&"steps.pay.compensate"));
}

#[test]
fn a_killed_instance_ends_at_once_undoes_nothing_and_tells_the_workers() {
    let mut world = shop();
    world.succeed("steps.pay", &json!({}));
    world.control("p-1", operate(OperationVerb::Pause));
    noted(&mut world, 1);
    assert_eq!(
        world.control("k-1", operate(OperationVerb::Kill)),
        Outcome::Applied
    );
    assert!(world.ended.is_some());
    assert_eq!(world.phase(), Phase::Cancelled);
    let last = world.last();
    let failure = last.failure.clone().expect("a failure");
    assert_eq!(
        (failure.code.as_str(), failure.message.as_str()),
        ("killed", "why not")
    );
    assert_eq!(failure.cancelled, Some(CancelMode::Abandon));
    assert_eq!(
        world.ledger(),
        [LedgerStatus::Held, LedgerStatus::Held],
        "completed work, and work of unknown outcome"
    );
    assert!(!world.paths().contains(&"steps.pay.compensate"));
    assert!(!world.paths().iter().any(|path| path.starts_with("finally")));
    let cancelled = |kind: &WorkKind| matches!(kind, WorkKind::Cancel { .. });
    assert_eq!(world.sent.iter().filter(|item| cancelled(&item.kind)).count(), 1);
    world.give_what_waits();
    assert!(world.ended.is_some());
    let input = world.input(
        "k-2",
        Origin::Local,
        InputBody::Control(operate(OperationVerb::Kill)),
    );
    assert_eq!(world.give(&input), Ok(Outcome::Ignored(IgnoreReason::Ended)));
}

#[test]
fn an_instance_that_cannot_be_undone_can_be_killed() {
    let mut world = shop();
    world.succeed("steps.pay", &json!({}));
    world.fail("steps.pack", "permanent");
    let undo = "steps.pay.compensate";
    world.fail(undo, "transient");
    world.advance(60_000);
    world.control("k-1", operate(OperationVerb::Kill));
    assert_eq!(world.phase(), Phase::Cancelled);
    let message = world.last().failure.clone().expect("a failure").message;
    assert!(message.contains("it was failing: permanent"), "{message}");
    assert!(world.ledger().contains(&LedgerStatus::Held));
}

#[test]
fn an_operators_retry_ends_a_backoff_and_removes_its_timer() {
    let mut world = shop();
    world.succeed("steps.pay", &json!({}));
    assert_eq!(
        world.control("t-1", operate(OperationVerb::TryNow { step: None })),
        Outcome::Ignored(IgnoreReason::NothingToDo)
    );
    world.fail("steps.pack", "transient");
    assert_eq!(world.statuses()[1], StepStatus::BackingOff);
    let step = Some("pack".to_owned());
    assert_eq!(
        backing_off(&world.definition, world.last(), step.as_deref()),
        ["retry:pack"]
    );
    world.control("t-2", operate(OperationVerb::TryNow { step }));
    assert_eq!(world.statuses()[1], StepStatus::Running);
    assert_eq!(world.newest("steps.pack").attempt, 2);
    assert!(!world.last().timers.contains_key("retry:pack"));
    world.control("c-1", Control::cancel("no more"));
    world.fail("steps.pack", "cancelled");
    world.fail("steps.pay.compensate", "transient");
    world.control(
        "t-3",
        operate(OperationVerb::TryNow {
            step: Some("pay".to_owned()),
        }),
    );
    assert_eq!(world.newest("steps.pay.compensate").attempt, 2);
}

#[test]
fn a_timer_is_fired_now_or_cancelled_unless_something_would_wait_for_it_for_ever() {
    let mut world = shop();
    let fire = |timer: &str| {
        operate(OperationVerb::FireTimer {
            timer: timer.to_owned(),
        })
    };
    let cancel = |timer: &str| {
        operate(OperationVerb::CancelTimer {
            timer: timer.to_owned(),
        })
    };
    assert_eq!(world.control("f-1", fire("remind")), Outcome::Applied);
    assert_eq!(world.data(), json!({"heard": [0]}));
    assert_eq!(
        world.control("f-2", fire("remind")),
        Outcome::Ignored(IgnoreReason::NothingToDo)
    );
    world.succeed("steps.pay", &json!({}));
    world.fail("steps.pack", "transient");
    assert!(!may_be_cancelled(&world.definition, "retry:pack"));
    assert_eq!(
        world.control("x-1", cancel("retry:pack")),
        Outcome::Ignored(IgnoreReason::NothingToDo)
    );
    world.control("f-3", fire("retry:pack"));
    world.succeed("steps.pack", &json!({}));
    assert_eq!(world.statuses()[2], StepStatus::Waiting);
    assert_eq!(world.control("x-2", cancel("wait:ship")), Outcome::Applied);
    world.advance(2 * 24 * 3_600_000);
    assert_eq!(
        world.statuses()[2],
        StepStatus::Waiting,
        "it waits without a timeout"
    );
    assert_eq!(world.control("f-4", fire("deadline")), Outcome::Applied);
    assert_eq!(world.phase(), Phase::Compensating);
}
