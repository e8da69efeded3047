//! Effects that handlers of the saga emit: each time that one is taken is work of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::build::loaded;
use super::world::World;
use crate::input::Control;
use crate::ledger::LedgerStatus;
use crate::record::Phase;

const ASKED: &str = r#"
state: {init: {told: [], failed: []}}
handlers:
  Order.Asked:
    - {when: event.data.n < 0, set: {told: []}}
    - set: {last: "${event.data.n}"}
      emit:
        - {name: tell, effect: mail, with: {n: "${event.data.n}"}, when: event.data.n < 100, retry: {attempts: 2, errors: [busy], backoff: {initial: 1s}}, compensate: {effect: unmail, with: {n: "${input.n}"}, on_unknown: compensate}}
  signal.ask: {emit: [{name: note, effect: note, with: {by: "${signal.by}", n: "${signal.n}"}}]}
  result.tell: {set: {told: "${state.told + [result]}"}}
  error.tell: {when: error.class == "full", set: {failed: "${state.failed + [error.class]}"}}
steps:
  wait: {wait: {event: Order.Paid, timeout: 30d}}
"#;
const TELL: &str = "handlers.Order.Asked.tell.item";

fn begun() -> World {
    let mut world = World::new(loaded(ASKED));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

fn ask(world: &mut World, n: i64) {
    world.event("Order.Asked", &json!({"id": "o-1", "n": n}));
}

fn pay(world: &mut World) {
    world.event("Order.Paid", &json!({"id": "o-1"}));
}

fn keys(world: &World) -> BTreeSet<&str> {
    let work = world.sent.iter().filter(|item| item.path == TELL);
    work.map(|item| item.idempotency_key.as_str()).collect()
}

fn inputs(world: &World) -> Vec<Value> {
    let work = world.sent.iter().filter(|item| item.path == TELL);
    work.map(|item| serde_json::from_slice(item.kind.payload()).expect("JSON"))
        .collect()
}

#[test]
fn each_event_has_work_of_its_own_and_the_instance_completes_when_all_of_it_is_over() {
    let mut world = begun();
    for n in 1..=3 {
        ask(&mut world, n);
    }
    assert_eq!(
        inputs(&world),
        [json!({"n": 1}), json!({"n": 2}), json!({"n": 3})]
    );
    assert_eq!(keys(&world).len(), 3);
    pay(&mut world);
    for n in 1..=3 {
        assert_eq!(world.phase(), Phase::Running, "{n}");
        world.succeed(TELL, &json!(n));
    }
    assert_eq!(world.phase(), Phase::Completed);
    assert_eq!(world.data()["told"], json!([1, 2, 3]));
}

#[test]
fn work_that_comes_when_all_before_is_over_has_other_keys() {
    let mut world = begun();
    for n in 1..=3 {
        ask(&mut world, n);
        world.succeed(TELL, &json!(n));
    }
    assert_eq!(keys(&world).len(), 3);
    assert_eq!(world.data()["told"], json!([1, 2, 3]));
}

#[test]
fn an_item_whose_condition_is_false_is_skipped_beside_items_in_progress() {
    let mut world = begun();
    ask(&mut world, 1);
    ask(&mut world, 100);
    assert_eq!((inputs(&world).len(), world.outstanding().len()), (1, 1));
    world.succeed(TELL, &json!(1));
    pay(&mut world);
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn a_piece_is_tried_again_with_what_it_was_sent_with_while_others_come() {
    let mut world = begun();
    ask(&mut world, 1);
    world.fail(TELL, "busy");
    ask(&mut world, 2);
    world.succeed(TELL, &json!(2));
    world.advance(1_000);
    assert_eq!(
        inputs(&world),
        [json!({"n": 1}), json!({"n": 2}), json!({"n": 1})]
    );
    assert_eq!(keys(&world).len(), 2, "the same work has the same key");
    world.succeed(TELL, &json!(1));
    pay(&mut world);
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn an_error_that_no_handler_takes_fails_the_instance_and_undoes_the_others() {
    let mut world = begun();
    for n in 1..=4 {
        ask(&mut world, n);
    }
    world.succeed(TELL, &json!(1));
    world.fail(TELL, "full");
    assert_eq!(
        (world.phase(), world.data()["failed"].clone()),
        (Phase::Running, json!(["full"]))
    );
    world.fail(TELL, "broken");
    assert_eq!(world.phase(), Phase::Compensating);
    // The fourth is under way, and is undone when it has succeeded.
    world.succeed(TELL, &json!(4));
    for _ in 0..2 {
        world.succeed("handlers.Order.Asked.tell.item.compensate", &json!({}));
    }
    assert_eq!(world.phase(), Phase::Failed);
    let undone = world
        .ledger()
        .iter()
        .filter(|status| **status == LedgerStatus::Undone)
        .count();
    assert_eq!(undone, 2);
    let undos = world
        .sent
        .iter()
        .filter(|item| item.path.ends_with(".compensate"));
    let of: BTreeSet<String> = undos
        .map(|item| String::from_utf8_lossy(item.kind.payload()).into_owned())
        .collect();
    assert_eq!(
        of,
        BTreeSet::from(["{\"n\":1}".to_owned(), "{\"n\":4}".to_owned()])
    );
}

#[test]
fn an_unknown_outcome_is_undone_with_the_instance() {
    let mut world = begun();
    ask(&mut world, 1);
    world.time_out(TELL);
    assert_eq!(world.outstanding(), ["handlers.Order.Asked.tell.item.compensate"]);
}

/// Whatever becomes of the step meanwhile: an upstream that recognises keys would answer new work with an old result.
#[test]
fn work_behind_a_version_without_the_handler_has_other_keys() {
    let saga = |handlers: &str| {
        let rest = "on_change: migrate\nsteps: {wait: {wait: {event: Order.Paid, timeout: 30d}}}\n";
        Arc::new(loaded(&format!("{rest}{handlers}")))
    };
    let emits = "{name: tell, effect: mail, with: {n: '${event.data.n}'}}";
    let with = saga(&format!("handlers: {{Order.Asked: {{emit: {emits}}}}}\n"));
    let mut world = World::of(Arc::clone(&with));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    ask(&mut world, 1);
    world.succeed(TELL, &json!(1));
    world.migrate(&saga("")).expect("it may");
    world.migrate(&with).expect("it may");
    ask(&mut world, 2);
    assert_eq!(keys(&world).len(), 2);
}

#[test]
fn a_signal_emits_effects_as_an_event_does() {
    let mut world = begun();
    for n in 1..=2 {
        let control = Control::Signal {
            name: "ask".to_owned(),
            data: json!({"n": n}).to_string().into_bytes().into(),
            by: "ada".to_owned(),
            hops: 0,
        };
        world.control(&format!("signal-{n}"), control);
    }
    assert_eq!(
        world.payload("handlers.signal.ask.note.item"),
        json!({"by": "ada", "n": 2})
    );
    pay(&mut world);
    assert_eq!(world.phase(), Phase::Running);
    for n in 1..=2 {
        world.succeed("handlers.signal.ask.note.item", &json!(n));
    }
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn no_more_pieces_are_begun_than_may_be_under_way() {
    let mut world = begun();
    for n in 0..100 {
        ask(&mut world, n % 50);
    }
    let one_more = world.event_input("Order.Asked", &json!({"id": "o-1", "n": 1}));
    let refused = world.give(&one_more).expect_err("too many");
    assert_eq!(refused.reason, "work.pending");
    assert!(!refused.parks(), "their results would wait behind it");
    world.succeed(TELL, &json!(1));
    world.must(&one_more);
}
