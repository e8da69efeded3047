//! Starts in place of an instance that runs.

use bytes::Bytes;
use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::{CancelMode, Control, Input, InputBody, OnConflict, Origin};
use crate::patch::{IgnoreReason, Note, Outcome, Patch};
use crate::record::Phase;
use crate::transition::{Context, Replacement, repeated, replace, replaces};

const SHOP: &str = r#"
input: {type: object}
state: {init: {n: "${input == null ? 0 : input.n}"}}
timers: {late: {after: 1h, set: {n: 7}}}
steps:
  ask: {wait: {signal: go, timeout: 1d}}
  look: {needs: [ask], effect: look, with: {}}
  pay: {needs: [look], effect: charge, with: {}, compensate: {effect: refund}}
  rest: {needs: [pay], wait: {signal: rest, timeout: 1d}}
"#;

fn start(n: u32, on_conflict: OnConflict) -> Control {
    Control::Start {
        input: Bytes::from(json!({"n": n}).to_string()),
        parent: None,
        on_conflict,
        traceparent: None,
    }
}

fn terminate() -> OnConflict {
    OnConflict::TerminateExisting {
        by: "ada".to_owned(),
        reason: "wrong input".to_owned(),
    }
}

fn shop() -> World {
    let mut world = World::new(loaded(SHOP));
    world.control("r-1", start(1, OnConflict::Fail));
    world
}

fn go(world: &mut World) {
    world.control("s-1", super::waits::signal("go", &json!({})));
}

fn input(world: &World, id: &str, control: Control) -> Input {
    world.input(id, Origin::Local, InputBody::Control(control))
}

fn replaced(world: &World, id: &str, n: u32) -> Replacement {
    let input = input(world, id, start(n, terminate()));
    assert!(replaces(&input));
    let record = world.last();
    let context = Context {
        limits: &world.limits,
        cluster: world.cluster,
        log_sequence: 900,
        generation: record.generation,
        again: false,
    };
    let next = Context {
        log_sequence: 901,
        generation: record.generation + 1,
        ..context
    };
    let definition = &world.definition;
    replace(
        definition,
        definition,
        &world.instance,
        record,
        &input,
        [&context, &next],
        None,
    )
    .expect("applied")
}

/// It stays, and the history says why.
fn refusal(world: &World) -> String {
    let Replacement::Stays(patch) = replaced(world, "r-2", 2) else {
        panic!("it is replaced");
    };
    assert_eq!(patch.outcome, Outcome::Ignored(IgnoreReason::Refused));
    assert_eq!(patch.record, None, "nothing has changed");
    match &patch.notes[..] {
        [Note::Refused { message }] => message.clone(),
        notes => panic!("{notes:?}"),
    }
}

#[test]
fn an_instance_that_has_done_nothing_is_killed_and_the_next_generation_begins() {
    let world = shop();
    let Replacement::Replaced { ended, begun } = replaced(&world, "r-2", 2) else {
        panic!("it is replaced");
    };
    let summary = ended.ended.expect("it has ended");
    let failure = summary.record.failure.as_ref().expect("why");
    assert_eq!(
        (
            summary.record.phase,
            failure.code.as_str(),
            failure.message.as_str()
        ),
        (Phase::Cancelled, "killed", "wrong input")
    );
    let told = ended.notes.iter().any(|note| {
        matches!(note, Note::Operated { verb, by, reason } if verb == "terminate" && by == "ada" && reason == "wrong input")
    });
    assert!(told, "{:?}", ended.notes);
    assert_eq!(ended.timers_cleared.len(), 2, "its timers are gone");
    let record = begun.record.expect("it has begun");
    assert_eq!((record.generation, record.start_event.as_str()), (2, "r-2"));
    assert_eq!(record.data.as_slice(), br#"{"n":2}"#);
    assert!(
        begun
            .timers_set
            .iter()
            .all(|timer| timer.set_by.log_sequence == 901)
    );
    // Whoever repeats the request finds it applied, in both.
    let again = input(&world, "r-2", start(2, terminate()));
    for record in [&record, &summary.record] {
        assert_eq!(repeated(record, &again), Some(IgnoreReason::Duplicate));
    }
}

#[test]
fn an_instance_with_work_under_way_or_not_undone_is_not_replaced() {
    let mut world = shop();
    go(&mut world);
    assert!(
        refusal(&world).contains("what look did, or may have done"),
        "under way"
    );
    world.succeed("steps.look", &json!({}));
    let message = refusal(&world);
    assert!(message.contains("what look, pay did"), "{message}");
    world.succeed("steps.pay", &json!({}));
    assert!(refusal(&world).contains("look, pay"), "done");
    let cancel = Control::Cancel {
        reason: "stop".to_owned(),
        mode: CancelMode::Compensate,
    };
    world.control("c-1", cancel);
    assert!(refusal(&world).contains("pay"), "it is being undone");
}

#[test]
fn an_instance_whose_work_was_undone_may_be_replaced() {
    let body = r#"
input: {type: object}
state: {init: {n: "${input == null ? 0 : input.n}"}}
steps:
  pay: {effect: charge, with: {}, compensate: {effect: refund}}
  rest: {needs: [pay], wait: {signal: go, timeout: 1d}}
finally: {cancelled: [{effect: tell, name: tell}]}
"#;
    let mut world = World::new(loaded(body));
    world.control("r-1", start(1, OnConflict::Fail));
    world.succeed("steps.pay", &json!({}));
    let cancel = Control::Cancel {
        reason: "stop".to_owned(),
        mode: CancelMode::Compensate,
    };
    world.control("c-1", cancel);
    world.succeed("steps.pay.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Finishing);
    let replaced = replaced(&world, "r-2", 2);
    assert!(matches!(replaced, Replacement::Replaced { .. }), "{replaced:?}");
}

#[test]
fn a_repetition_and_another_request_of_its_id_change_nothing() {
    let world = shop();
    let repeated = replaced(&world, "r-1", 1);
    // Another policy is another request.
    assert_eq!(
        repeated,
        Replacement::Stays(Box::new(Patch::ignored(IgnoreReason::Mismatch)))
    );
    let mut world = shop();
    assert_eq!(
        world.control("r-1", start(1, OnConflict::Fail)),
        Outcome::Ignored(IgnoreReason::Duplicate)
    );
    assert_eq!(
        world.control("r-1", start(2, OnConflict::Fail)),
        Outcome::Ignored(IgnoreReason::Mismatch)
    );
    assert_eq!(
        world.control("r-2", start(1, OnConflict::Fail)),
        Outcome::Ignored(IgnoreReason::Exists)
    );
    assert_eq!(
        world.control("r-3", start(1, OnConflict::UseExisting)),
        Outcome::Ignored(IgnoreReason::Exists)
    );
    assert_eq!(world.last().start_event, "r-1");
}
