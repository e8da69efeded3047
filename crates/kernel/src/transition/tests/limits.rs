//! What a transition refuses, and that a refusal changes nothing.

use saga_runner_language::definition::model::{Actions, Delay, TimerSet};
use serde_json::json;

use super::build::{handler, order, publish, saga, sets};
use super::world::World;
use crate::input::InputBody;

fn refusing(actions: Actions, change: impl FnOnce(&mut World)) -> (&'static str, String) {
    let mut definition = saga("limits", "A.Begun");
    definition
        .handlers
        .insert("A.Begun".to_owned(), vec![handler(actions)]);
    let mut world = World::new(definition);
    change(&mut world);
    let input = world.event_input("A.Begun", &json!({"n": 1, "text": "x".repeat(2_000)}));
    let rejection = world.give(&input).expect_err("beyond a limit");
    assert!(world.record.is_none() && world.sent.is_empty());
    (rejection.reason, rejection.message)
}

#[test]
fn a_record_above_its_bound_is_refused() {
    let actions = Actions {
        set: sets(json!({"text": "${event.data.text}"})),
        ..Actions::default()
    };
    let (reason, message) = refusing(actions, |world| world.limits.record_bytes = 2_000);
    assert_eq!(reason, "state.size");
    assert!(message.contains("at most 2000"), "{message}");
}

#[test]
fn more_work_than_its_bound_is_refused() {
    let actions = Actions {
        emit: (0..4).map(|n| publish("a.b", json!(n))).collect(),
        ..Actions::default()
    };
    let (reason, message) = refusing(actions, |world| world.limits.work_items = 3);
    assert_eq!(reason, "work.count");
    assert!(message.starts_with("handlers.A.Begun[0].emit[3]"), "{message}");
}

#[test]
fn a_payload_above_its_bound_is_refused() {
    let actions = Actions {
        emit: vec![publish("a.b", json!("${event.data.text}"))],
        ..Actions::default()
    };
    let (reason, _) = refusing(actions, |world| world.limits.payload_bytes = 1_000);
    assert_eq!(reason, "work.size");
}

#[test]
fn a_state_that_could_not_be_read_again_is_refused() {
    let actions = Actions {
        set: sets(json!({"deep": [[["${event.data.n}"]]]})),
        ..Actions::default()
    };
    let (reason, message) = refusing(actions, |world| world.limits.json_depth = 3);
    assert_eq!(reason, "state.depth");
    assert!(message.starts_with("handlers.A.Begun[0].set.deep:"), "{message}");
}

#[test]
fn a_timer_outside_its_range_is_refused() {
    for after_ms in [-1, i64::MAX] {
        let actions = Actions {
            timers: vec![TimerSet {
                name: "t".to_owned(),
                after: Delay::Fixed(after_ms),
                if_absent: false,
                extend: false,
            }],
            ..Actions::default()
        };
        assert_eq!(refusing(actions, |_| {}).0, "timer.range");
    }
}

#[test]
fn a_failing_expression_is_refused_with_its_place_and_text() {
    let actions = Actions {
        set: sets(json!({"deep": {"a": 1, "b": ["${event.data.n}", "${event.data.nmae}"]}})),
        ..Actions::default()
    };
    let (reason, message) = refusing(actions, |_| {});
    assert_eq!(reason, "expression");
    assert!(
        message.starts_with("handlers.A.Begun[0].set.deep.b[1] in `event.data.nmae`:"),
        "{message}"
    );
}

#[test]
fn the_budget_is_one_for_the_whole_transition() {
    let emit = |count: usize| Actions {
        emit: (0..count)
            .map(|_| publish("a.b", json!("${event.data.n + 1 + 1 + 1}")))
            .collect(),
        ..Actions::default()
    };
    let (reason, message) = refusing(emit(100), |world| world.limits.expression_steps = 200);
    assert_eq!(reason, "fuel");
    assert!(!message.contains(" took "), "all took as much: {message}");
    let heavy = json!("${range(20).map(n, range(20).map(m, n * m).size()).size()}");
    let mut actions = emit(2);
    actions.set = sets(json!({"heavy": heavy, "light": "${range(1000).map(n, n + 1).size()}"}));
    let (reason, message) = refusing(actions, |world| world.limits.expression_steps = 3_000);
    assert_eq!(reason, "fuel");
    assert!(message.contains("handlers.A.Begun[0]"), "{message}");
    assert!(
        message.contains("steps that are left; handlers.A.Begun[0].set.heavy took "),
        "{message}"
    );
    let mut definition = saga("limits", "A.Begun");
    definition
        .handlers
        .insert("A.Begun".to_owned(), vec![handler(emit(2))]);
    let mut world = World::new(definition);
    world.limits.expression_steps = 200;
    world.event("A.Begun", &json!({"n": 1}));
}

#[test]
fn a_chain_of_messages_that_cause_each_other_is_cut() {
    let mut world = World::new(order());
    let mut input = world.event_input(
        "Order.Placed",
        &json!({"customer": {"id": "c"}, "total_cents": 1, "items": []}),
    );
    let hops = |input: &mut crate::input::Input, hops| {
        if let InputBody::Event(event) = &mut input.body {
            event.hops = hops;
        }
    };
    hops(&mut input, 32);
    assert_eq!(world.give(&input).expect_err("too many hops").reason, "loop");
    hops(&mut input, 31);
    world.must(&input);
    assert!(world.sent.iter().all(|item| item.hops == 32));
}

#[test]
fn a_record_of_another_definition_is_refused() {
    let mut world = super::order::placed();
    let mut other = order();
    other.hash = saga_runner_language::ids::DefinitionHash([8; 32]);
    world.definition = std::sync::Arc::new(other);
    let input = world.event_input("Payment.Captured", &json!({}));
    assert_eq!(
        world.give(&input).expect_err("foreign").reason,
        "definition.mismatch"
    );
}
