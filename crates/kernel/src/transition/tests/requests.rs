//! Instances that a request starts.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::build::loaded;
use super::world::World;
use crate::input::{Control, OnConflict};
use crate::patch::{IgnoreReason, Outcome};
use crate::record::Phase;

const SAGA: &str = r#"
input: {type: object, required: [total], properties: {total: {type: integer}}}
state: {init: {total: "${input == null ? 0 : input.total}"}}
handlers:
  Order.Held: {set: {held: "${input.total}"}}
steps:
  charge:
    effect: payments-charge
    with: {amount: "${input.total}"}
    set: {charged: "${result.id + '/' + string(input.total)}"}
    compensate: {effect: payments-refund, with: {amount: "${input.amount}"}}
  ship: {needs: [charge], effect: shipping-create}
finally:
  failed: {publish: {type: order.failed, payload: {total: "${input.total}"}}}
"#;

fn start(input: &Value) -> Control {
    Control::Start {
        input: Bytes::from(input.to_string()),
        parent: None,
        on_conflict: OnConflict::Fail,
        traceparent: None,
    }
}

#[test]
fn an_instance_is_started_with_an_input_that_its_expressions_read() {
    let mut world = World::of(Arc::new(loaded(SAGA)));
    let outcome = world.control("r-1", start(&json!({"total": 12})));
    assert_eq!(outcome, Outcome::Applied);
    assert_eq!(world.data(), json!({"total": 12}));
    assert_eq!(world.last().start_event, "r-1");
    assert_eq!(world.payload("steps.charge"), json!({"amount": 12}));
    world.event("Order.Held", &json!({}));
    assert_eq!(world.data()["held"], json!(12));
    world.succeed("steps.charge", &json!({"id": "c-1"}));
    assert_eq!(world.data()["charged"], json!("c-1/12"));
    world.fail("steps.ship", "gone");
    // Here it is what the step sent.
    assert_eq!(world.payload("steps.charge.compensate"), json!({"amount": 12}));
    world.succeed("steps.charge.compensate", &json!({}));
    assert_eq!(world.phase(), Phase::Failed);
    assert_eq!(
        world.payload("finally.failed[0]"),
        json!({"total": 12}),
        "the input is kept to the end"
    );
}

#[test]
fn an_instance_that_is_there_is_not_started_again() {
    let mut world = World::of(Arc::new(loaded(SAGA)));
    world.control("r-1", start(&json!({"total": 1})));
    let again = world.control("r-1", start(&json!({"total": 1})));
    assert_eq!(again, Outcome::Ignored(IgnoreReason::Duplicate));
    let other = world.control("r-2", start(&json!({"total": 2})));
    assert_eq!(other, Outcome::Ignored(IgnoreReason::Exists));
    assert_eq!(world.data(), json!({"total": 1}));
}

#[test]
fn an_input_that_the_saga_does_not_take_is_refused() {
    for (saga, input, told) in [
        (SAGA, json!({"total": "12"}), "total"),
        (SAGA, json!({}), "total"),
        ("steps: {a: {effect: b}}\n", json!({}), "events alone start it"),
    ] {
        let mut world = World::of(Arc::new(loaded(saga)));
        let input = world.input(
            "r-1",
            crate::input::Origin::Local,
            crate::input::InputBody::Control(start(&input)),
        );
        let rejection = world.give(&input).expect_err("refused");
        assert_eq!(rejection.reason, "input.schema");
        assert!(rejection.message.contains(told), "{rejection}");
        assert!(world.record.is_none());
    }
}

#[test]
fn an_instance_started_by_an_event_has_no_input() {
    let mut world = World::of(Arc::new(loaded(&SAGA.replace(
        "{amount: \"${input.total}\"}\n    set",
        "{amount: \"${input == null}\"}\n    set",
    ))));
    world.event("Order.Placed", &json!({}));
    assert_eq!(world.data(), json!({"total": 0}));
    assert_eq!(world.payload("steps.charge"), json!({"amount": true}));
}
