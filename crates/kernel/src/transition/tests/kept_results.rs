//! Results that other steps and handlers read later, as `steps.<name>.result`.

use serde_json::{Value, json};

use super::build::loaded;
use super::world::World;
use crate::record::{Phase, StepStatus};

fn placed(body: &str) -> World {
    let mut world = World::new(loaded(body));
    world.event("Order.Placed", &json!({"id": "o-1", "sites": ["a", "b"]}));
    world
}

fn kept(world: &World) -> Vec<bool> {
    let steps = world.last().steps.iter();
    steps.map(|step| step.result.is_some()).collect()
}

#[test]
fn a_result_is_read_by_later_steps_handlers_undo_and_the_end_and_kept_only_where_it_is_read() {
    let mut world = placed(
        r#"
state: {init: {seen: null, last: null}}
handlers: {Order.Asked: {set: {seen: "${steps.pay.result == null ? 'none' : steps.pay.result.id}"}}}
steps:
  pay: {effect: pay}
  book: {needs: [pay], effect: book, with: {ref: "${steps.pay.result.id}"}, compensate: {effect: unbook, with: {ref: "${steps.pay.result.id}"}, on_unknown: ignore}}
  ship: {needs: [book], effect: ship}
finally: {failed: {name: tell, effect: tell, with: {ref: "${steps.pay.result.id}"}}}
"#,
    );
    world.event("Order.Asked", &json!({"id": "o-1"}));
    assert_eq!(world.data()["seen"], "none");
    world.succeed("steps.pay", &json!({"id": "p-1", "more": [1, 2]}));
    assert_eq!(world.payload("steps.book"), json!({"ref": "p-1"}));
    world.event("Order.Asked", &json!({"id": "o-1"}));
    assert_eq!(world.data()["seen"], "p-1");
    world.succeed("steps.book", &json!({"id": "b-1"}));
    assert_eq!(kept(&world)[..3], [true, false, false]);
    world.fail("steps.ship", "broken");
    assert_eq!(world.payload("steps.book.compensate"), json!({"ref": "p-1"}));
    world.succeed("steps.book.compensate", &json!({}));
    assert_eq!(world.payload("finally.failed.tell"), json!({"ref": "p-1"}));
}

#[test]
fn a_step_that_went_on_without_a_result_or_begins_again_has_none() {
    let mut world = placed(
        r#"
steps:
  pay: {effect: pay, on_error: {"*": {continue: true}}}
  book: {needs: [pay], effect: book, with: {has: "${steps.pay.result != null}"}, on_error: {again: {goto: pay}}}
"#,
    );
    world.succeed("steps.pay", &json!(1));
    assert_eq!(world.payload("steps.book"), json!({"has": true}));
    world.fail("steps.book", "again");
    assert_eq!(kept(&world), [false, false]);
    world.fail("steps.pay", "broken");
    assert_eq!(world.payload("steps.book"), json!({"has": false}));
}

#[test]
fn the_result_of_a_step_that_waits_is_there_when_the_wait_is_over() {
    let mut world = placed(
        r#"
state: {init: {seen: []}}
handlers: {Order.Asked: {set: {seen: "${state.seen + [steps.pay.result]}"}}}
steps: {pay: {effect: pay, wait: {event: Order.Paid, timeout: 1h}}, book: {needs: [pay], effect: book}}
"#,
    );
    world.succeed("steps.pay", &json!({"id": 7}));
    assert_eq!(world.statuses()[0], StepStatus::Waiting);
    world.event("Order.Asked", &json!({"id": "o-1"}));
    world.event("Order.Paid", &json!({"id": "o-1"}));
    world.event("Order.Asked", &json!({"id": "o-1"}));
    assert_eq!(world.data()["seen"], json!([null, {"id": 7}]));
}

#[test]
fn of_a_loop_it_is_that_of_the_last_turn() {
    let mut world = placed(
        r#"
state: {init: {seen: []}}
handlers: {Order.Asked: {set: {seen: "${state.seen + [steps.poll.result]}"}}}
steps:
  poll: {effect: poll, repeat: {until: result.done, max: 5}}
  turns:
    needs: [poll]
    repeat: {until: steps.check.result > 1, max: 5}
    steps:
      ask: {effect: ask}
      check: {needs: [ask], effect: check, with: {of: "${steps.ask.result}"}}
  book: {needs: [turns], effect: book, with: {poll: "${steps.poll.result.n}", check: "${steps.check.result}"}}
"#,
    );
    let asked = |world: &mut World| world.event("Order.Asked", &json!({"id": "o-1"}));
    asked(&mut world);
    world.succeed("steps.poll.turn", &json!({"done": false, "n": 1}));
    asked(&mut world);
    world.succeed("steps.poll.turn", &json!({"done": true, "n": 2}));
    for turn in 1..=2 {
        world.succeed("steps.ask", &json!(turn));
        assert_eq!(world.payload("steps.check"), json!({"of": turn}));
        world.succeed("steps.check", &json!(turn));
    }
    assert_eq!(world.payload("steps.book"), json!({"poll": 2, "check": 2}));
    assert_eq!(world.data()["seen"], json!([null, {"done": false, "n": 1}]));
}

#[test]
fn of_a_loop_over_a_list_it_is_the_list_and_within_an_item_that_of_the_item() {
    let mut world = placed(
        r#"
state: {init: {sites: []}}
handlers: {Order.Placed: {set: {sites: "${event.data.sites}"}}}
steps:
  one: {foreach: {over: state.sites, parallel: 1, on_item_error: continue}, effect: one}
  many:
    needs: [one]
    foreach: {over: state.sites, parallel: 2}
    steps:
      hold: {effect: hold}
      book: {needs: [hold], effect: book, with: {hold: "${steps.hold.result}"}}
  tell: {needs: [many], effect: tell, with: {one: "${steps.one.result}", many: "${steps.many.result}"}}
"#,
    );
    world.succeed("steps.one.item", &json!(1));
    world.fail("steps.one.item", "full");
    // Both items have begun; the oldest work is answered first.
    for n in [11, 12] {
        world.succeed("steps.hold", &json!(n));
    }
    let holds: Vec<Value> = (0..2)
        .map(|_| {
            let hold = world.payload("steps.book");
            world.succeed("steps.book", &json!("ok"));
            hold
        })
        .collect();
    assert!(holds.contains(&json!({"hold": 12})), "{holds:?}");
    assert_eq!(
        world.payload("steps.tell"),
        json!({"one": [1, null], "many": [{"book": "ok", "hold": 11}, {"book": "ok", "hold": 12}]})
    );
}

#[test]
fn a_result_that_has_no_room_in_the_record_fails_its_step_and_is_undone() {
    let mut world = placed(
        "steps: {pay: {effect: pay, compensate: {effect: refund}}, book: {needs: [pay], effect: book, with: {ref: \"${steps.pay.result.id}\"}}}\n",
    );
    let large = "x".repeat(crate::limits::Limits::default().record_bytes);
    world.succeed("steps.pay", &json!({"id": large}));
    let failure = world.last().failure.as_ref();
    assert_eq!(
        failure.map(|failure| failure.code.as_str()),
        Some("result.expression")
    );
    assert_eq!(world.outstanding(), ["steps.pay.compensate"]);
    world.succeed("steps.pay.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
}
