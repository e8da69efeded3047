//! Sagas that a program decides. The program answers what its input or its state says (`"answer"`).

use std::sync::Arc;

use bytes::Bytes;
use saga_runner_language::definition::{BinaryFiles, Definition, SchemaFiles, SourceFile, load_with};
use saga_runner_language::ids::Key;
use serde_json::{Value, json};

use super::build::loaded;
use super::children::{ask, control, reopened, tell};
use super::world::World;
use crate::input::{Control, OnConflict, WorkOutcome};
use crate::ledger::LedgerStatus;
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{Phase, Record};
use crate::work::WorkKind;

/// A program that answers with the object behind the first `"answer":` in its input, or else in its state.
const ECHO: &str = include_str!("../../../../language/src/program/echo.wat");

const SAGA: &str = "\
apiVersion: sagas/v1
kind: Saga
name: probe
start: Order.Placed
key: {\"Order.*\": event.data.id}
input: {type: object}
state: {init: {}, schema: {type: object, properties: {n: {type: integer}}}}
program:
  file: probe.wasm
  events: [Order.Paid]
  effects: [pay, refund]
  commands: [Order.Cancel]
";

fn definition(saga: &str, wat: &str) -> Arc<Definition> {
    let mut programs = BinaryFiles::default();
    let module = Arc::from(wat::parse_str(wat).expect("a module in text form"));
    programs.0.insert("probe.wasm".to_owned(), Ok(module));
    let file = |name: &str, text: String| SourceFile {
        path: format!("{name}.yaml"),
        text: Arc::from(text),
    };
    let effects = ["pay", "refund"].map(|name| {
        let text =
            format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\ntransform: {{}}\nresult: {{}}\n");
        file(name, text)
    });
    let sagas = [file("saga", saga.to_owned())];
    let loaded = load_with(&sagas, &effects, &SchemaFiles::default(), &programs);
    assert!(loaded.diagnostics.is_empty(), "{:#?}", loaded.diagnostics);
    Arc::clone(&loaded.sagas[0])
}

fn world() -> World {
    World::of(definition(SAGA, ECHO))
}

/// A saga whose instance has begun with `answer`.
fn begun(answer: &Value) -> World {
    let mut world = world();
    world.event("Order.Placed", &json!({"answer": answer}));
    world
}

fn pay(name: &str) -> Value {
    json!({"effect": "pay", "name": name, "with": {"cents": 5}})
}

fn cancel() -> Control {
    Control::cancel("wrong")
}

fn signal(name: &str, data: &Value) -> Control {
    Control::Signal {
        name: name.to_owned(),
        data: Bytes::from(data.to_string()),
        by: "ann".to_owned(),
        hops: 0,
    }
}

#[test]
fn an_instance_runs_from_its_first_event_to_its_end() {
    let mut world = begun(&json!({
        "state": {"n": 1, "b": {}},
        "work": [pay("charge"), {"publish": {"type": "order.seen", "payload": {"z": 1, "a": 2}}}],
    }));
    assert_eq!(world.data(), json!({"n": 1, "b": {}}));
    assert_eq!(world.paths(), ["program.charge", "program.work[1]"]);
    assert_eq!(world.payload("program.charge"), json!({"cents": 5}));
    assert_eq!(world.phase(), Phase::Running);

    let done = json!({"state": {"n": 2}, "work": [{"publish": {"type": "order.paid"}}], "complete": true});
    world.succeed("program.charge", &json!({"answer": done}));
    assert_eq!(world.phase(), Phase::Completed);
    assert!(world.ended.is_some() && world.outbox.is_empty());
    assert_eq!(world.data(), json!({"n": 2}));
    let path = "program.charge".to_owned();
    assert!(world.notes.contains(&Note::WorkEnded {
        work: path,
        outcome: "succeeded".to_owned()
    }));
}

#[test]
fn the_program_is_given_everything_that_happens() {
    // It puts what it is given into its state.
    let mirror = r#"(module (memory (export "memory") 4)
        (data (i32.const 16) "{\22state\22:{\22seen\22:")
        (global $free (mut i32) (i32.const 1024))
        (func (export "saga_alloc") (param $n i32) (result i32) (local $at i32)
            (local.set $at (i32.add (global.get $free) (i32.const 64)))
            (global.set $free (i32.add (local.get $at) (i32.add (local.get $n) (i32.const 64))))
            (local.get $at))
        (func (export "saga_transition") (param i32 i32 i32 i32) (result i64) (local $from i32) (local $end i32)
            (local.set $from (i32.sub (local.get 2) (i32.const 17)))
            (local.set $end (i32.add (local.get 2) (local.get 3)))
            (memory.copy (local.get $from) (i32.const 16) (i32.const 17))
            (i32.store16 (local.get $end) (i32.const 0x7d7d))
            (i64.or (i64.shl (i64.extend_i32_u (local.get $from)) (i64.const 32))
                (i64.extend_i32_u (i32.add (local.get 3) (i32.const 19))))))"#;
    let mut world = World::of(definition(SAGA, mirror));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    let seen = world.data()["seen"].clone();
    assert_eq!(seen["kind"], "event");
    assert_eq!(
        (&seen["key"], &seen["seq"], &seen["phase"]),
        (&json!("o-1"), &json!(1), &json!("running"))
    );
    assert_eq!(seen["time"], json!(1_767_261_600_000_i64));
    assert_eq!(
        (&seen["event"]["type"], &seen["event"]["data"]["id"]),
        (&json!("Order.Placed"), &json!("o-1"))
    );

    world.now = world.now.plus_ms(5);
    world.control("s-1", signal("go", &json!({"fast": true})));
    let seen = world.data()["seen"].clone();
    assert_eq!((&seen["kind"], &seen["seq"]), (&json!("signal"), &json!(2)));
    let expected = json!({"fast": true, "name": "go", "by": "ann", "time": "2026-01-01T10:00:00.005Z"});
    assert_eq!(seen["signal"], expected);

    world.control("c-1", cancel());
    let seen = world.data()["seen"].clone();
    assert_eq!(
        (&seen["kind"], &seen["reason"], &seen["phase"]),
        (&json!("cancel"), &json!("wrong"), &json!("compensating"))
    );
    assert_eq!(seen["mode"], "compensate");
    assert_eq!(world.phase(), Phase::Cancelled);

    let mut world = World::of(definition(SAGA, mirror));
    let input = Bytes::from_static(b"{\"total\":3}");
    world.control(
        "r-1",
        Control::Start {
            input,
            parent: None,
            on_conflict: OnConflict::Fail,
            traceparent: None,
        },
    );
    assert_eq!(world.data()["seen"]["kind"], "start");
    assert_eq!(world.data()["seen"]["input"], json!({"total": 3}));
}

#[test]
fn work_that_ends_badly_comes_back_with_its_class() {
    // What is to be said next stands in the state, where an error has no place for it.
    let next = json!({"state": {"n": 7}, "fail": {"code": "unpaid", "message": "no luck"}});
    for unknown in [false, true] {
        let mut world = begun(&json!({"state": {"answer": next}, "work": [pay("charge")]}));
        if unknown {
            world.time_out("program.charge");
        } else {
            world.fail("program.charge", "declined");
        }
        assert_eq!(world.phase(), Phase::Failed);
        let failure = world.last().failure.clone().expect("it failed");
        assert_eq!(
            (failure.code.as_str(), failure.message.as_str()),
            ("unpaid", "no luck")
        );
        let outcome = if unknown { "timeout" } else { "declined" }.to_owned();
        let work = "program.charge".to_owned();
        assert!(world.notes.contains(&Note::WorkEnded { work, outcome }));
    }
}

#[test]
fn an_end_waits_for_what_is_under_way_and_the_program_can_undo_it() {
    let refund = json!({"state": {}, "work": [{"effect": "refund", "name": "refund"}]});
    let mut world =
        begun(&json!({"state": {}, "work": [pay("a"), pay("b"), {"timer": "late", "after_ms": 1000}]}));
    world.event(
        "Order.Paid",
        &json!({"answer": {"state": {}, "fail": {"code": "stopped"}}}),
    );
    assert_eq!(world.phase(), Phase::Compensating);
    assert!(world.timers.is_empty(), "a failure clears timers");
    world.event("Order.Paid", &json!({"answer": {"state": {"n": 9}}}));
    assert_eq!(world.data(), json!({"n": 9}), "it hears of what comes meanwhile");
    world.succeed("program.a", &json!({"answer": refund}));
    world.succeed("program.b", &json!({"answer": {"state": {}, "complete": true}}));
    assert_eq!(world.outstanding(), ["program.refund"]);
    assert_eq!(world.phase(), Phase::Compensating, "a failure stands");
    world.succeed(
        "program.refund",
        &json!({"answer": {"state": {}, "work": [{"timer": "breath", "after_ms": 10}]}}),
    );
    assert_eq!(world.phase(), Phase::Compensating, "a timer is under way");
    world.last();
}

#[test]
fn a_completion_waits_too_and_can_still_become_a_failure() {
    let begin = json!({"state": {}, "work": [pay("a")], "complete": true});
    let mut world = begun(&begin);
    assert_eq!(world.phase(), Phase::Running);
    world.succeed("program.a", &json!({"answer": {"state": {}}}));
    assert_eq!(world.phase(), Phase::Completed);

    let mut world = begun(&begin);
    world.succeed(
        "program.a",
        &json!({"answer": {"state": {}, "fail": {"code": "after_all"}}}),
    );
    assert_eq!(world.phase(), Phase::Failed);
}

#[test]
fn timers_fire_are_replaced_and_cleared() {
    let fired = json!({"state": {"n": 1}, "work": [{"clear_timer": "other"}], "complete": true});
    let mut world = begun(&json!({
        "state": {"answer": fired},
        "work": [{"timer": "t", "after_ms": 50}, {"timer": "other", "after_ms": 500}, {"timer": "t", "after_ms": 100}],
    }));
    world.advance(99);
    assert_eq!(world.phase(), Phase::Running);
    world.advance(1);
    assert_eq!((world.phase(), world.timers.len()), (Phase::Completed, 0));
    assert_eq!(world.data(), json!({"n": 1}));
}

#[test]
fn a_cancel_is_told_and_the_end_is_cancelled() {
    let undo = json!({"state": {}, "work": [{"effect": "refund", "name": "refund"}]});
    let mut world = begun(&json!({"state": {"answer": undo}}));
    world.control("c-1", cancel());
    assert_eq!(
        (world.phase(), world.outstanding()),
        (Phase::Compensating, vec!["program.refund"])
    );
    world.succeed(
        "program.refund",
        &json!({"answer": {"state": {}, "complete": true}}),
    );
    assert_eq!(world.phase(), Phase::Cancelled);
}

#[test]
fn commands_with_a_name_are_awaited_and_others_are_not() {
    let command = json!({"aggregate": "Order", "id": "o-1", "type": "Order.Cancel", "payload": {"why": "x"}});
    let mut world = begun(&json!({
        "state": {},
        "work": [{"command": command, "name": "cancel", "timeout_ms": 1000}, {"command": command}],
    }));
    assert_eq!(world.outstanding(), ["program.cancel"]);
    let item = world.newest("program.cancel");
    assert_eq!(item.deadline, item.created.plus_ms(1000));
    assert!(
        matches!(&item.kind, WorkKind::Command { awaited: true, aggregate_id, .. } if aggregate_id == "o-1")
    );
    let item = world.newest("program.work[1]");
    assert!(matches!(&item.kind, WorkKind::Command { awaited: false, .. }));
    world.succeed(
        "program.cancel",
        &json!({"answer": {"state": {}, "complete": true}}),
    );
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn the_same_name_is_the_same_piece_of_work_and_a_new_name_is_new_work() {
    let mut world = begun(&json!({"state": {}, "work": [pay("a")]}));
    let again = json!({"state": {}, "work": [pay("a"), pay("b")]});
    let first = world.newest("program.a").clone();
    world.succeed("program.a", &json!({"answer": again}));
    let second = world.newest("program.a").clone();
    assert_eq!(first.idempotency_key, second.idempotency_key);
    assert_ne!(first.command_id, second.command_id);
    assert_ne!(world.newest("program.b").idempotency_key, first.idempotency_key);
}

#[test]
fn a_name_asked_for_again_after_a_refusal_has_another_key() {
    // Each answer asks again, as what stands in the state says.
    let asks = |next: &Value| json!({"state": {"answer": next}, "work": [pay("a")]});
    let failing = |world: &mut World, outcome: WorkOutcome| {
        let before = world.newest("program.a").idempotency_key.clone();
        world.resolve("program.a", outcome);
        (before, world.newest("program.a").idempotency_key.clone())
    };
    let refused = || WorkOutcome::Failed {
        class: "declined".to_owned(),
        message: String::new(),
        refused: true,
    };
    let mut world = begun(&asks(&asks(&asks(&asks(&asks(&json!({"state": {}})))))));
    let (before, after) = failing(&mut world, WorkOutcome::failed("transient", ""));
    assert_eq!(before, after);
    let (before, after) = failing(&mut world, refused());
    assert_ne!(before, after);
    let (before, after) = failing(&mut world, WorkOutcome::timed_out(""));
    assert_eq!(before, after);
    let (before, after) = failing(&mut world, refused());
    assert_ne!(before, after, "the refusal is stored under the old one");
}

#[test]
fn a_faulty_answer_of_a_program_is_a_dead_letter_and_changes_nothing() {
    let many: Vec<Value> = (0..200)
        .map(|n| json!({"publish": {"type": "x", "payload": {"n": n}}}))
        .collect();
    let timers: Vec<Value> = (0..257)
        .map(|n| json!({"timer": format!("t{n}"), "after_ms": 1}))
        .collect();
    for (answer, reason, message) in [
        (
            json!({"stat": {}}),
            "program.answer",
            "probe.wasm at input \"event\": the answer has the key \"stat\"",
        ),
        (json!({"state": {"n": "x"}}), "state.schema", "n"),
        (
            json!({"state": {"x": "y".repeat(300_000)}}),
            "state.size",
            "at most 262144",
        ),
        (
            json!({"state": {}, "work": many}),
            "work.count",
            "program.work[128]: at most 128",
        ),
        (
            json!({"state": {}, "work": timers}),
            "timer.count",
            "work[256]: at most 256 timers",
        ),
        (
            json!({"state": {}, "work": [{"effect": "steal", "name": "a"}]}),
            "program.answer",
            "work[0].effect: \"steal\" is not among program.effects",
        ),
        (
            json!({"state": {}, "work": [{"command": {"aggregate": "A", "id": "a", "type": "A.B"}}]}),
            "program.answer",
            "\"A.B\" is not among program.commands",
        ),
        (
            json!({"state": {}, "work": [pay("a"), pay("a")]}),
            "program.answer",
            "work[1].name: \"a\" is under way already",
        ),
        (
            json!({"state": {}, "work": [{"timer": "a", "after_ms": i64::MAX}]}),
            "timer.range",
            "work[0].after_ms",
        ),
        (
            json!({"state": {}, "work": [{"effect": "pay", "name": "a", "timeout_ms": i64::MAX}]}),
            "timer.range",
            "work[0].timeout_ms",
        ),
        (
            json!({"state": {}, "work": [{"publish": {"type": "x", "payload": {"b": "y".repeat(150_000)}}}]}),
            "work.size",
            "",
        ),
    ] {
        let mut world = world();
        world.limits.payload_bytes = 100_000;
        let input = world.event_input("Order.Placed", &json!({"answer": answer}));
        let rejection = world.give(&input).expect_err(message);
        assert!(rejection.reason.starts_with(reason), "{rejection}");
        assert!(rejection.message.contains(message), "{rejection}");
        assert!(
            rejection.message.starts_with("probe.wasm at") || reason.starts_with("state"),
            "{rejection}"
        );
        assert!(world.record.is_none() && world.sent.is_empty());
    }
}

#[test]
fn a_program_that_stops_or_runs_on_is_a_dead_letter() {
    for (body, reason) in [
        ("unreachable", "program.trap"),
        ("(loop br 0)", "fuel"),
        ("", "program.answer"),
    ] {
        let wat = format!(
            "(module (memory (export \"memory\") 1)
                (func (export \"saga_alloc\") (param i32) (result i32) (i32.const 8))
                (func (export \"saga_transition\") (param i32 i32 i32 i32) (result i64) {body} (i64.const 0)))"
        );
        let mut world = World::of(definition(SAGA, &wat));
        let input = world.event_input("Order.Placed", &json!({}));
        let rejection = world.give(&input).expect_err(body);
        assert_eq!(rejection.reason, reason, "{rejection}");
        assert_eq!(world.give(&input), Err(rejection), "the same each time");
    }
}

#[test]
fn events_that_the_program_does_not_name_are_ignored() {
    let mut world = begun(&json!({"state": {}}));
    let ignored = Outcome::Ignored(IgnoreReason::NoHandler);
    assert_eq!(world.event("Order.Held", &json!({})), ignored);
    assert_eq!(
        world.event("Order.Placed", &json!({"answer": {"state": {"n": 2}}})),
        ignored
    );
    assert_eq!(
        world.event("Order.Paid", &json!({"answer": {"state": {"n": 3}}})),
        Outcome::Applied
    );
    assert_eq!(world.data(), json!({"n": 3}));
}

#[test]
fn a_record_with_pending_work_is_stored_and_read() {
    let world = begun(&json!({"state": {}, "work": [pay("a")], "complete": true}));
    let record = world.record.as_ref().expect("live");
    assert_eq!(Record::decode(&record.encode()).as_ref(), Ok(record));
    assert!(record.encode().len() <= record.encoded_bytes_at_most());
}

#[test]
fn an_instance_migrates_to_another_version_of_its_program_and_to_nothing_else() {
    let other = ECHO.replace("(i32.const 1024)", "(i32.const 2048)");
    let mut world = begun(&json!({"state": {}, "work": [pay("a"), {"timer": "t", "after_ms": 9}]}));
    let to = definition(SAGA, &other);
    assert_ne!(to.hash, world.definition.hash);
    world.migrate(&to).expect("all has a place");
    assert_eq!((world.outstanding(), world.timers.len()), (vec!["program.a"], 1));

    let steps = SAGA.split("program:").next().expect("a head").to_owned() + "steps: {a: {effect: pay}}\n";
    let rejection = world.migrate(&definition(&steps, ECHO)).expect_err("refused");
    assert!(
        rejection.message.contains("the new version has no program"),
        "{rejection}"
    );
    world.succeed("program.a", &json!({"answer": {"state": {}, "complete": true}}));
    assert_eq!(world.phase(), Phase::Completed);
}

/// A parent whose step has started an instance of the saga of a program, which begins with this answer.
fn family(begin: &Value) -> (World, World) {
    let text = r#"
state: {init: {}}
handlers: {Order.Placed: {set: {begin: "${event.data.begin}"}}}
steps:
  pay:
    saga: {name: probe, key: "${key}-pay", input: {answer: "${state.begin}"}}
    set: {paid: "${result.state.n}"}
    compensate: {saga: undo}
  ship: {needs: [pay], effect: shipping-create}
"#;
    let mut parent = World::new(loaded(text));
    parent.event("Order.Placed", &json!({"begin": begin}));
    let mut child = world();
    child.instance.key = Key::parse("o-1-pay").expect("legal");
    assert_eq!(ask(&parent, &mut child, "steps.pay"), Outcome::Applied);
    (parent, child)
}

#[test]
fn a_program_that_has_completed_as_a_child_undoes_itself_when_the_parent_asks() {
    let undo = json!({"state": {"n": 0}, "work": [{"effect": "refund", "name": "refund"}]});
    let (mut parent, mut child) = family(&json!({"state": {}, "work": [pay("charge")]}));
    child.succeed(
        "program.charge",
        &json!({"answer": {"state": {"n": 7, "answer": undo}, "complete": true}}),
    );
    assert_eq!(child.phase(), Phase::Completed);
    tell(&child, &mut parent);
    assert_eq!(parent.data()["paid"], json!(7));

    parent.fail("steps.ship", "gone");
    let message = parent.newest("steps.pay.compensate").clone();
    reopened(&mut child, &message);
    assert_eq!(
        (child.phase(), child.outstanding()),
        (Phase::Compensating, vec!["program.refund"])
    );
    assert!(parent.ended.is_none(), "it waits for the refund");
    child.succeed("program.refund", &json!({"answer": {"state": {"n": 1}}}));
    assert_eq!((child.phase(), child.data()), (Phase::Cancelled, json!({"n": 1})));
    tell(&child, &mut parent);
    assert_eq!(
        (parent.phase(), parent.ledger()),
        (Phase::Failed, vec![LedgerStatus::Undone])
    );
}

#[test]
fn a_program_that_has_nothing_to_undo_says_so_at_once() {
    let (mut parent, mut child) = family(&json!({"state": {"n": 2}, "complete": true}));
    assert_eq!(child.phase(), Phase::Completed);
    tell(&child, &mut parent);
    parent.fail("steps.ship", "gone");
    let undo = parent.newest("steps.pay.compensate").clone();
    let summary = child.ended.take().expect("it has ended");
    child.record = Some(Record {
        data: br#"{"answer":{"state":{}}}"#.to_vec().into(),
        ..summary.record
    });
    assert_eq!(
        child.control(&undo.command_id.to_string(), control(&undo)),
        Outcome::Applied
    );
    assert_eq!(child.phase(), Phase::Cancelled);
    tell(&child, &mut parent);
    assert_eq!(parent.phase(), Phase::Failed);
}
