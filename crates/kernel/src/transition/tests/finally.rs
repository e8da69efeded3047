//! The end: effects that are waited for before it.

use std::sync::Arc;

use saga_runner_language::definition::compile_archived;
use serde_json::json;

use super::world::World;
use crate::input::Control;
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{Phase, StepStatus};

/// An order that is charged; at the end its books are closed, or its customer is told.
pub(super) fn closing() -> World {
    let text = r#"
apiVersion: sagas/v1
kind: Saga
name: closing
start: Order.Placed
key: {"Order.*": event.data.id}
state: {init: {n: 1}}
handlers: {Order.Told: {set: {n: 2}}}
steps:
  charge: {effect: pay, with: {n: 1}, set: {charge: "${result.id}"}, compensate: {effect: refund, with: {n: 1}}}
  ship: {needs: [charge], effect: ship, with: {n: 1}}
timers:
  late: {after: 100h, fail: {code: late}}
finally:
  completed:
    - publish: {type: order.done}
    - {effect: books-close, name: books, with: {charge: "${state.charge}"}, retry: {attempts: 3, backoff: {initial: 1s}}}
    - {effect: mail-send, name: mail, with: {n: "${state.n}"}}
  failed: {effect: mail-send, name: mail, with: {why: "${failure.code}"}}
"#;
    let definition = compile_archived(text).unwrap_or_else(|findings| panic!("{findings:#?}"));
    let mut world = World::of(Arc::new(definition));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world.succeed("steps.charge", &json!({"id": "ch-1"}));
    world
}

const BOOKS: &str = "finally.completed.books";
const MAIL: &str = "finally.completed.mail";

#[test]
fn an_instance_ends_when_the_effects_of_its_end_have() {
    let mut world = closing();
    world.succeed("steps.ship", &json!({}));
    assert_eq!(world.phase(), Phase::Finishing);
    assert_eq!(world.outstanding(), [BOOKS, MAIL]);
    assert_eq!(world.payload(BOOKS), json!({"charge": "ch-1"}));
    assert!(world.timers.is_empty(), "no timer of the instance is left");
    assert!(world.sent.iter().any(|item| item.path == "finally.completed[0]"));
    // What it comes to is decided.
    assert_eq!(
        world.event("Order.Told", &json!({})),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
    let cancelled = world.control("req-1", Control::cancel("too late"));
    assert_eq!(cancelled, Outcome::Ignored(IgnoreReason::NoHandler));
    world.succeed(MAIL, &json!({}));
    world.fail(BOOKS, "transient");
    assert_eq!((world.phase(), world.timers.len()), (Phase::Finishing, 1));
    world.advance(1_000);
    assert_eq!(world.newest(BOOKS).attempt, 2);
    world.succeed(BOOKS, &json!({}));
    let ended = &world.ended.as_ref().expect("ended").record;
    assert_eq!(
        (ended.phase, ended.steps[0].status),
        (Phase::Completed, StepStatus::Done)
    );
    assert_eq!(world.data(), json!({"charge": "ch-1", "n": 1}));
}

#[test]
fn an_effect_of_the_end_that_fails_for_good_is_noted_and_changes_no_outcome() {
    let mut world = closing();
    world.succeed("steps.ship", &json!({}));
    world.succeed(BOOKS, &json!({}));
    world.time_out(MAIL);
    assert_eq!(
        world.ended.as_ref().expect("ended").record.phase,
        Phase::Completed
    );
    let noted = Note::FinallyFailed {
        step: MAIL.to_owned(),
        class: "timeout".to_owned(),
    };
    assert!(world.notes.contains(&noted));
}

#[test]
fn effects_of_a_failed_end_follow_all_compensations() {
    let mut world = closing();
    world.fail("steps.ship", "no_driver");
    assert_eq!(world.outstanding(), ["steps.charge.compensate"]);
    world.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Finishing);
    assert_eq!(world.payload("finally.failed.mail"), json!({"why": "no_driver"}));
    world.succeed("finally.failed.mail", &json!({}));
    assert_eq!(world.ended.as_ref().expect("ended").record.phase, Phase::Failed);
}

#[test]
fn a_saga_with_nothing_but_handlers_is_not_over_because_its_end_has_an_effect() {
    let text = r#"
apiVersion: sagas/v1
kind: Saga
name: closing
start: Order.Placed
key: {"Order.*": event.data.id}
state: {init: {}}
handlers: {Order.Lost: {fail: {code: lost}}}
finally: {failed: {effect: mail-send, name: mail, with: {n: 1}}}
"#;
    let definition = compile_archived(text).unwrap_or_else(|findings| panic!("{findings:#?}"));
    let mut world = World::of(Arc::new(definition));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    assert_eq!(world.phase(), Phase::Running);
    world.event("Order.Lost", &json!({}));
    world.succeed("finally.failed.mail", &json!({}));
    assert_eq!(world.ended.as_ref().expect("ended").record.phase, Phase::Failed);
}
