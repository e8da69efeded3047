//! `uid` and `record.seq`: from the input at hand, and from nothing else.

use std::sync::Arc;

use saga_runner_language::ids::Key;
use serde_json::{Value, json};

use super::build::loaded;
use super::world::World;

const SAGA: &str = r#"
state: {init: {}}
handlers:
  Order.Placed: {set: {first: "${uid(1)}", second: "${uid(2)}", seq: "${record.seq}"}}
  Order.Changed: {set: {third: "${uid(1)}", seq: "${record.seq}"}}
machine: {initial: open, states: {open: {}}}
"#;

fn state(key: &str) -> Value {
    let mut world = World::of(Arc::new(loaded(SAGA)));
    world.instance.key = Key::parse(key).expect("legal");
    world.event("Order.Placed", &json!({}));
    world.event("Order.Changed", &json!({}));
    world.data()
}

#[test]
fn ids_differ_by_number_input_and_instance_and_never_between_two_runs() {
    let one = state("o-1");
    assert_eq!(one, state("o-1"));
    assert_eq!(one["seq"], json!(2));
    let ids = [
        &one["first"],
        &one["second"],
        &one["third"],
        &state("o-2")["first"],
    ];
    for (at, id) in ids.iter().enumerate() {
        let id = uuid::Uuid::parse_str(id.as_str().expect("text")).expect("a UUID");
        assert_eq!(id.get_version_num(), 8);
        assert!(ids[..at].iter().all(|other| *other != ids[at]), "{ids:?}");
    }
}

#[test]
fn an_id_takes_an_integer() {
    let text = SAGA.replace("uid(2)", "uid('2')");
    let mut world = World::of(Arc::new(loaded(&text)));
    let input = world.event_input("Order.Placed", &json!({}));
    let rejection = world.give(&input).expect_err("text is not a number");
    assert_eq!(rejection.reason, "expression");
}
