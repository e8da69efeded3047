//! Gates for events and state: what does not fit is refused as a whole, and nothing has changed.

use saga_runner_language::definition::compile_archived;
use serde_json::{Value, json};

use super::world::World;
use crate::input::InputBody;
use crate::patch::Outcome;

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: gate
start: Order.Placed
key: {"Order.*": event.data.order_id}
events:
  Order.Placed:
    schema: {type: object, required: [cents], properties: {cents: {type: integer, minimum: 1}}}
    versions: [2, 3]
    upcast: {"1": {cents: "${event.data.euros * 100}"}}
state:
  init: {status: new}
  schema:
    type: object
    required: [cents]
    properties: {status: {enum: [new, paid]}, cents: {type: integer, maximum: 1000}}
handlers:
  Order.Placed: {set: {cents: "${event.data.cents}", version: "${event.version}"}}
  Order.Changed: {set: {status: "${event.data.status}"}}
machine:
  initial: open
  states:
    open: {handlers: {Order.Closed: {to: closed}}}
    closed: {final: true}
"#;

fn world() -> World {
    World::new(compile_archived(SAGA).unwrap_or_else(|findings| panic!("{findings:#?}")))
}

/// Gives an event of a version; the state afterwards, or why it was refused.
fn given(
    world: &mut World,
    version: u32,
    event_type: &str,
    payload: &Value,
) -> Result<Value, (&'static str, String)> {
    let mut input = world.event_input(event_type, payload);
    if let InputBody::Event(event) = &mut input.body {
        event.schema_version = version;
    }
    let before = world.record.clone();
    match world.give(&input) {
        Ok(outcome) => {
            assert_eq!(outcome, Outcome::Applied);
            Ok(world.data())
        }
        Err(rejection) => {
            assert_eq!(world.record, before, "nothing has changed");
            Err((rejection.reason, rejection.message))
        }
    }
}

#[test]
fn an_event_of_an_unknown_version_is_a_dead_letter() {
    let (reason, message) =
        given(&mut world(), 4, "Order.Placed", &json!({"cents": 5})).expect_err("version 4");
    assert_eq!(reason, "event.version");
    assert!(message.ends_with("has version 4, taken are 2, 3, 1"), "{message}");
    let state = given(&mut world(), 3, "Order.Placed", &json!({"cents": 5})).expect("version 3");
    assert_eq!(state, json!({"status": "new", "cents": 5, "version": 3}));
}

#[test]
fn data_that_does_not_fit_its_schema_is_a_dead_letter() {
    for (payload, expected) in [
        (json!({}), "data lacks the member \"cents\""),
        (json!({"cents": 0}), "data cents: expected at least 1, found 0"),
        (json!({"cents": 1.5}), "data cents: expected integer, found 1.5"),
    ] {
        let (reason, message) = given(&mut world(), 2, "Order.Placed", &payload).expect_err("bad data");
        assert_eq!(reason, "event.schema");
        assert!(message.ends_with(expected), "{message}");
    }
}

#[test]
fn an_older_event_is_upcast_before_anything_reads_it() {
    let state = given(&mut world(), 1, "Order.Placed", &json!({"euros": 3})).expect("upcast");
    assert_eq!(state, json!({"status": "new", "cents": 300, "version": 1}));
    // What comes out of the upcast is checked as well, and an upcast that fails names itself.
    let (reason, _) = given(&mut world(), 1, "Order.Placed", &json!({"euros": 0})).expect_err("0 cents");
    assert_eq!(reason, "event.schema");
    let (reason, message) = given(&mut world(), 1, "Order.Placed", &json!({})).expect_err("no euros");
    assert_eq!(reason, "expression");
    assert!(message.contains("events.Order.Placed.upcast.1"), "{message}");
}

#[test]
fn a_transition_that_would_leave_another_state_is_refused() {
    let mut world = world();
    let (reason, message) =
        given(&mut world, 2, "Order.Placed", &json!({"cents": 1001})).expect_err("too much");
    assert_eq!(reason, "state.schema");
    assert!(
        message.ends_with("cents: expected at most 1000, found 1001"),
        "{message}"
    );
    given(&mut world, 2, "Order.Placed", &json!({"cents": 1000})).expect("fits");
    let (reason, _) =
        given(&mut world, 1, "Order.Changed", &json!({"status": "lost"})).expect_err("no status");
    assert_eq!(reason, "state.schema");
    let state = given(&mut world, 1, "Order.Changed", &json!({"status": "paid"})).expect("fits");
    assert_eq!(state["status"], "paid");
}
