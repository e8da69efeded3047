//! Results that do not fit: what happened is on the ledger, and the instance goes on without an operator.

use saga_runner_language::definition::model::Action;
use saga_runner_language::definition::{SourceFile, compile_archived, load};
use serde_json::{Value, json};

use super::world::World;
use crate::input::{Control, UnknownClass, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::patch::Note;
use crate::record::{Phase, StepStatus};

const HOLD: &str = "steps.hold";
const FREE: &str = "steps.hold.compensate";

/// Every effect but `plain` gives an id.
fn world_of(body: &str) -> World {
    let head = "apiVersion: sagas/v1\nkind: Saga\nname: probe\nstart: Order.Placed\nkey: {\"*\": event.data.id}\nstate: {init: {}}\n";
    let file = |path: &str, text: String| SourceFile {
        path: path.to_owned(),
        text: text.into(),
    };
    let output = "output: {type: object, required: [id], properties: {id: {type: string, pattern: '^[a-z]'}, n: {type: integer, minimum: 1.5}}}\n";
    let effects: Vec<SourceFile> = [("book", output), ("unbook", output), ("plain", "")]
        .map(|(name, output)| {
            let text = format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\nexternal: {{}}\n{output}");
            file(&format!("{name}.yaml"), text)
        })
        .into();
    let loaded = load(&[file("probe.yaml", format!("{head}{body}"))], &effects);
    let findings: Vec<String> = loaded.findings().iter().map(ToString::to_string).collect();
    let definition = loaded.sagas.first().unwrap_or_else(|| panic!("{findings:#?}"));
    // What an instance runs under after a restart is the archive.
    let archived = compile_archived(&definition.source).expect("compiles");
    assert_eq!(archived.hash, definition.hash);
    let mut world = World::new(archived);
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

fn failure(world: &World) -> (String, Option<String>) {
    let failure = world.last().failure.as_ref().expect("failed");
    (failure.code.clone(), failure.step.clone())
}

const BOOKED: &str = "steps:\n  hold:\n    effect: book\n    set: {id: '${result.id}'}\n    compensate: {effect: unbook, with: {by: '${event.id}'}}\n";

#[test]
fn a_result_that_does_not_fit_is_done_and_its_step_fails() {
    for (result, message) in [
        (json!({}), "id"),
        (json!({"id": 7}), "id"),
        (json!({"id": "A"}), "id"),
        (json!({"id": "a", "n": 1}), "n"),
        (json!("text"), "result"),
    ] {
        let mut world = world_of(BOOKED);
        world.succeed(HOLD, &result);
        assert_eq!(
            failure(&world),
            ("result.schema".to_owned(), Some("hold".to_owned()))
        );
        let told = &world.last().failure.as_ref().expect("failed").message;
        assert!(told.contains(message), "{told}");
        assert_eq!(world.ledger(), [LedgerStatus::Undoing], "{result}");
        world.succeed(FREE, &json!({"id": 9}));
        assert_eq!(
            world.phase(),
            Phase::Failed,
            "what undoes is held against nothing"
        );
        assert_eq!(world.ledger(), [LedgerStatus::Undone]);
    }
    let mut world = world_of(BOOKED);
    world.succeed(HOLD, &json!({"id": "a", "n": 2, "more": [1]}));
    assert_eq!(
        (world.phase(), world.data()),
        (Phase::Completed, json!({"id": "a"}))
    );
}

#[test]
fn the_answer_to_the_class_decides_and_nothing_is_done_again() {
    let body = BOOKED.replace(
        "    compensate",
        "    retry: {attempts: 3, errors: ['*']}\n    on_error: {result.schema: {set: {why: '${error.class}'}, continue: true}}\n    compensate",
    ) + "  next: {needs: [hold], effect: plain}\n";
    let mut world = world_of(&body);
    world.succeed(HOLD, &json!({}));
    assert_eq!(world.statuses(), [StepStatus::Done, StepStatus::Running]);
    assert_eq!(world.data(), json!({"why": "result.schema"}));
    assert_eq!(world.ledger(), [LedgerStatus::Held]);
    world.fail("steps.next", "declined");
    world.succeed(FREE, &json!({"id": "a"}));
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(world.paths().iter().filter(|path| **path == HOLD).count(), 1);
}

#[test]
fn a_worker_that_could_not_make_the_result_says_so_and_it_is_done() {
    let mut world = world_of(BOOKED);
    let outcome = WorkOutcome::Unusable {
        payload: bytes::Bytes::from_static(br#"{"raw": 1}"#),
        class: "result.expression".to_owned(),
        message: "result.id: no such field".to_owned(),
    };
    world.resolve(HOLD, outcome);
    assert_eq!(
        failure(&world),
        ("result.expression".to_owned(), Some("hold".to_owned()))
    );
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
}

#[test]
fn an_expression_that_fails_on_a_result_fails_its_step() {
    // What is set here would be of no use, and so nothing is.
    let body = "steps:\n  hold:\n    effect: plain\n    set: {a: '1', id: '${result.id.x}'}\n    compensate: {effect: unbook}\n";
    let mut world = world_of(body);
    world.succeed(HOLD, &json!({"id": 1}));
    assert_eq!(
        failure(&world),
        ("result.expression".to_owned(), Some("hold".to_owned()))
    );
    let message = &world.last().failure.as_ref().expect("failed").message;
    assert!(message.starts_with("steps.hold.set"), "{message}");
    assert_eq!(
        (world.data(), world.ledger()),
        (json!({}), vec![LedgerStatus::Undoing])
    );
}

/// Neither what comes next, nor the answer, nor an entry of `finally` can be evaluated: the instance ends, and what was
/// done is undone.
#[test]
fn where_nothing_that_follows_can_be_evaluated_the_instance_fails() {
    let body = "steps:
  hold:
    effect: book
    on_error: {'*': {set: {x: '${state.none.x}'}, continue: true}}
    compensate: {effect: unbook}
  next: {needs: [hold], effect: plain, with: {x: '${state.none.y}'}}
finally:
  failed:
    - {publish: {type: told, payload: {x: '${state.none.z}'}}}
    - {effect: plain, name: mail, with: {x: '${state.none.z}'}}
    - {publish: {type: over, payload: {}}}
";
    for (result, code) in [
        (json!({"id": "a"}), "result.expression"),
        (json!({}), "result.schema"),
    ] {
        let mut world = world_of(body);
        world.succeed(HOLD, &result);
        assert_eq!(failure(&world), (code.to_owned(), Some("hold".to_owned())));
        assert_eq!(world.ledger(), [LedgerStatus::Undoing], "{result}");
        // This result would park the instance, too.
        world.succeed(FREE, &json!({}));
        assert_eq!(world.phase(), Phase::Failed);
        assert!(world.ended.is_some());
        let left_out = world
            .notes
            .iter()
            .filter(|note| matches!(note, Note::FinallyFailed { class, .. } if class == "expression"));
        assert_eq!(left_out.count(), 2);
        assert!(world.paths().contains(&"finally.failed[2]"));
    }
    let mut world = world_of(body);
    world.fail(HOLD, "declined");
    assert_eq!(
        failure(&world).0,
        "declined",
        "what has not happened keeps its class"
    );
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn an_undo_that_cannot_read_the_result_waits_for_an_operator() {
    let body = "steps:\n  hold:\n    effect: book\n    compensate: {effect: unbook, on_unknown: ignore, with: {id: '${result.id}'}}\n  next: {needs: [hold], effect: plain}\n";
    let mut world = world_of(body);
    world.succeed(HOLD, &json!({"no": 1}));
    assert_eq!(world.phase(), Phase::CompensationFailed);
    assert_eq!(world.ledger(), [LedgerStatus::Stuck]);
    let told = world.payload("steps.hold.compensate.exhausted");
    assert_eq!(told["class"], json!("expression"));
    assert!(
        told["message"].as_str().is_some_and(|text| text.contains("id")),
        "{told}"
    );
    world.control("r-1", Control::Retry);
    assert_eq!(world.phase(), Phase::CompensationFailed, "it has not changed");
    world.control(
        "r-2",
        Control::DecideStuck(crate::input::StuckDecision {
            verdict: crate::input::Verdict::Resolve,
            step: None,
            item: None,
            by: "ops".to_owned(),
            reason: String::new(),
            found: None,
            result: None,
        }),
    );
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn a_result_too_large_for_the_record_is_done_without_being_kept() {
    let body = "steps:\n  hold:\n    effect: plain\n    compensate: {effect: unbook, on_unknown: ignore, with: {id: '${result.id}'}}\n  next: {needs: [hold], effect: plain}\n";
    let mut world = world_of(body);
    let text = "x".repeat(world.limits.record_bytes);
    world.succeed(HOLD, &json!({"id": "a", "text": text}));
    assert_eq!(
        failure(&world),
        ("result.expression".to_owned(), Some("hold".to_owned()))
    );
    assert_eq!(world.phase(), Phase::CompensationFailed);
}

#[test]
fn late_results_items_states_and_questions_take_what_does_not_fit() {
    // Late.
    let mut world = world_of(BOOKED);
    world.control("c-1", Control::cancel("no"));
    world.succeed(HOLD, &json!({}));
    assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
    // Of an item.
    let items = "steps:\n  all:\n    foreach: {over: '[1, 2]', on_item_error: collect}\n    effect: book\n    set: {got: '${result}'}\n    compensate: {effect: unbook}\n";
    let mut world = world_of(items);
    let commands: Vec<_> = world.outbox.values().map(|item| item.command_id).collect();
    world.result(
        commands[0],
        WorkOutcome::Succeeded {
            payload: bytes::Bytes::from_static(b"{}"),
        },
    );
    world.result(
        commands[1],
        WorkOutcome::Succeeded {
            payload: bytes::Bytes::from_static(br#"{"id": "b"}"#),
        },
    );
    // It has happened, and the loop goes on without it.
    world.succeed("steps.all.item.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(world.data()["got"][0]["error"]["class"], json!("result.schema"));
    assert_eq!(world.data()["got"][1]["ok"]["id"], json!("b"));
    // Of a state.
    let machine = "machine:\n  initial: a\n  states:\n    a:\n      entry: {emit: [{effect: book, name: book, compensate: {effect: unbook}}]}\n      handlers: {result.book: {to: b}, error.book: {set: {why: '${error.class}'}, to: b}}\n    b: {final: true}\n";
    let mut world = world_of(machine);
    let path = world.outstanding()[0].to_owned();
    world.succeed(&path, &json!({}));
    assert_eq!(world.data(), json!({"why": "result.schema"}));
    // It has happened, and its outcome has no owner.
    world.succeed(&format!("{path}.compensate"), &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
    // At the end.
    let mut world =
        world_of("steps:\n  a: {effect: plain}\nfinally:\n  completed: [{effect: book, name: mail}]\n");
    world.succeed("steps.a", &json!({}));
    let path = world.outstanding()[0].to_owned();
    world.succeed(&path, &json!({}));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn unknown_outcomes_keep_the_classes_that_say_why() {
    for class in UnknownClass::ALL {
        let mut world =
            world_of(&BOOKED.replace("effect: unbook,", "effect: unbook, on_unknown: compensate,"));
        world.resolve(
            HOLD,
            WorkOutcome::TimedOut {
                class,
                message: String::new(),
            },
        );
        assert_eq!(failure(&world).0, class.as_str());
        assert_eq!(world.ledger(), [LedgerStatus::Undoing]);
        assert_eq!(UnknownClass::of(class.as_str()), class);
    }
    assert_eq!(UnknownClass::of("deadline"), UnknownClass::Timeout);
}

#[test]
fn an_effect_without_output_is_judged_by_nothing() {
    let world = world_of("steps:\n  a: {effect: plain}\n");
    let Action::Effect { effect, .. } = &world.definition.steps[0].action else {
        panic!("an effect");
    };
    assert!(!world.definition.effects.contains_key(effect));
    let mut world = world;
    world.succeed("steps.a", &Value::Null);
    assert_eq!(world.phase(), Phase::Completed);
}
