//! What follows when a step has failed.

use std::collections::BTreeMap;

use saga_runner_language::definition::Definition;
use saga_runner_language::definition::model::{Fail, OnError, Step, Then};
use serde_json::{Value, json};

use super::build::{compensation, effect, expr, saga, sets, step, template};
use super::world::World;
use crate::ledger::LedgerStatus;
use crate::patch::Note;
use crate::record::{Phase, StepStatus};

const RESERVE: &str = "steps.reserve";
const CHARGE: &str = "steps.charge";
const RELEASE: &str = "steps.reserve.compensate";

pub(super) fn then(then: Then) -> OnError {
    OnError {
        when: None,
        set: Vec::new(),
        undo: Vec::new(),
        complete: None,
        then,
    }
}

fn answers(list: Vec<(&str, OnError)>) -> BTreeMap<String, Vec<OnError>> {
    list.into_iter()
        .map(|(class, answer)| (class.to_owned(), vec![answer]))
        .collect()
}

fn undoable(name: &str, needs: &[u16]) -> Step {
    let mut step = step(name, needs, effect(name, json!({"order": "${key}"})));
    step.compensate = Some(compensation(effect(
        &format!("undo-{name}"),
        json!({"id": "${result.id}"}),
    )));
    step
}

/// reserve, charge (which answers errors in every way), ship.
pub(super) fn answering() -> Definition {
    let mut saga = saga("answering", "Order.Placed");
    saga.init = template(json!({"tries": 0}));
    let mut charge = undoable("charge", &[0]);
    charge.fail_if = Some(expr("result.suspicious == true"));
    charge.on_error = answers(vec![
        (
            "unavailable",
            OnError {
                when: None,
                set: sets(json!({"charged": "later: ${error.class}, ${error.message}"})),
                undo: Vec::new(),
                complete: None,
                then: Then::Continue,
            },
        ),
        (
            "out_of_stock",
            OnError {
                when: None,
                set: sets(json!({"tries": "${state.tries + 1}"})),
                undo: vec![0],
                complete: None,
                then: Then::GoTo(0),
            },
        ),
        ("again", then(Then::GoTo(1))),
        (
            "declined",
            then(Then::Fail(Some(Fail {
                code: "card_declined".to_owned(),
                message: Some(template(json!("it said ${error.message}"))),
                keep: Vec::new(),
                drain: false,
            }))),
        ),
        (
            "*",
            OnError {
                when: None,
                set: sets(json!({"other": "${error.class}"})),
                ..then(Then::Fail(None))
            },
        ),
    ]);
    saga.steps = vec![undoable("reserve", &[]), charge, undoable("ship", &[1])];
    saga
}

fn good() -> Value {
    json!({"id": "r-1", "suspicious": false})
}

fn reserved() -> World {
    let mut world = World::new(answering());
    world.event("Order.Placed", &json!({}));
    world.succeed(RESERVE, &good());
    world
}

#[test]
fn a_step_that_continues_counts_as_done_and_keeps_its_error() {
    let mut world = reserved();
    world.fail(CHARGE, "unavailable");
    assert_eq!(world.statuses()[1..], [StepStatus::Done, StepStatus::Running]);
    assert_eq!(world.last().steps[1].error.as_deref(), Some("unavailable"));
    assert_eq!(world.data()["charged"], "later: unavailable, no");
    assert_eq!(
        world.ledger(),
        [LedgerStatus::Held],
        "it did nothing to be undone"
    );
    world.succeed("steps.ship", &good());
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn an_answer_may_fail_with_a_code_of_its_own_and_any_class_has_an_answer() {
    let mut world = reserved();
    world.fail(CHARGE, "declined");
    let failure = world.last().failure.clone().expect("failed");
    assert_eq!(
        (
            failure.code.as_str(),
            failure.message.as_str(),
            failure.step.as_deref()
        ),
        ("card_declined", "it said no", Some("charge"))
    );
    let mut world = reserved();
    world.fail(CHARGE, "strange");
    assert_eq!(world.data()["other"], "strange");
    assert_eq!(
        world.last().failure.as_ref().map(|failure| failure.code.as_str()),
        Some("strange")
    );
}

#[test]
fn fail_if_fails_a_step_that_happened_and_is_undone() {
    let mut world = reserved();
    world.succeed(CHARGE, &json!({"id": "c-1", "suspicious": true}));
    assert_eq!(world.last().steps[1].error.as_deref(), Some("fail_if"));
    assert_eq!(world.phase(), Phase::Compensating);
    assert_eq!(world.ledger(), [LedgerStatus::Held, LedgerStatus::Undoing]);
    assert_eq!(world.payload("steps.charge.compensate"), json!({"id": "c-1"}));
}

#[test]
fn going_back_undoes_the_named_steps_and_begins_again_with_new_keys() {
    let mut world = reserved();
    let first = world.newest(RESERVE).clone();
    world.fail(CHARGE, "out_of_stock");
    assert_eq!(world.phase(), Phase::Running);
    assert_eq!(world.outstanding(), [RELEASE, RESERVE]);
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
    let second = world.newest(RESERVE).clone();
    assert_ne!(second.idempotency_key, first.idempotency_key);
    assert_eq!(second.attempt, 1);
    assert_eq!(world.last().steps[0].iteration, 1);
    world.succeed(RESERVE, &json!({"id": "r-2"}));
    world.succeed(CHARGE, &good());
    world.succeed("steps.ship", &good());
    assert_eq!(world.phase(), Phase::Running, "the release is part of the way");
    world.succeed(RELEASE, &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(world.data()["tries"], 1);
}

#[test]
fn the_work_of_every_iteration_is_undone_when_the_saga_fails() {
    let mut world = reserved();
    world.fail(CHARGE, "out_of_stock");
    world.succeed(RELEASE, &json!({}));
    world.succeed(RESERVE, &json!({"id": "r-2"}));
    world.fail(CHARGE, "declined");
    assert_eq!(world.ledger(), [LedgerStatus::Undone, LedgerStatus::Undoing]);
    assert_eq!(world.payload(RELEASE), json!({"id": "r-2"}));
    world.time_out(RELEASE);
    assert_eq!(
        world.timers.first().map(|row| row.name.as_str()),
        Some("retry:reserve.compensate#1")
    );
    world.advance(60_000);
    world.succeed(RELEASE, &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    let mut keys: Vec<_> = world
        .sent
        .iter()
        .filter(|item| item.path == RELEASE)
        .map(|item| item.idempotency_key.clone())
        .collect();
    keys.dedup();
    assert_eq!(keys.len(), 2, "one per iteration");
}

#[test]
fn a_step_does_not_go_back_for_ever() {
    let mut world = reserved();
    for _ in 0..=super::super::errors::RETURNS_MAX {
        assert_eq!(world.phase(), Phase::Running);
        world.fail(CHARGE, "again");
    }
    let failure = world.last().failure.as_ref().expect("failed");
    assert_eq!(failure.code, "goto_limit");
    assert!(world.notes.contains(&Note::WentBack {
        step: "charge".to_owned()
    }));
}

#[test]
fn a_success_that_comes_after_going_back_is_undone_while_the_saga_goes_on() {
    let mut definition = answering();
    // Beside charge, so that it still runs when charge goes back.
    let mut pack = undoable("pack", &[0]);
    pack.needs = vec![0];
    definition.steps.push(pack);
    let mut world = World::new(definition);
    world.event("Order.Placed", &json!({}));
    world.succeed(RESERVE, &good());
    let pack = world.newest("steps.pack").command_id;
    world.fail(CHARGE, "out_of_stock");
    assert_eq!(world.last().strays.len(), 1);
    world.result(
        pack,
        crate::input::WorkOutcome::Succeeded {
            payload: json!({"id": "p-1"}).to_string().into(),
        },
    );
    assert_eq!(world.phase(), Phase::Running);
    assert_eq!(world.ledger(), [LedgerStatus::Undoing, LedgerStatus::Due]);
    world.succeed(RELEASE, &json!({}));
    assert_eq!(world.payload("steps.pack.compensate"), json!({"id": "p-1"}));
}
