//! Numbers that expressions give: how many items run, may fail and must be done, and how many needs.

use serde_json::{Value, json};

use super::build::loaded;
use super::world::World;
use crate::record::{Phase, StepStatus};

/// A loop over the sites of the event with this `foreach`, whose items are `ask`.
fn asking(foreach: &str, data: &Value) -> World {
    let mut world = World::new(loaded(&format!(
        r#"
handlers: {{Order.Placed: {{set: {{sites: "${{event.data.sites}}", n: "${{event.data.n}}"}}}}}}
state: {{init: {{sites: [], n: null, told: []}}}}
steps:
  ask: {{foreach: {{over: state.sites, {foreach}}}, effect: book, set: {{told: "${{result}}"}}, compensate: none}}
"#
    )));
    let mut event = data.clone();
    event["id"] = json!("o-1");
    world.event("Order.Placed", &event);
    world
}

fn failure_code(world: &World) -> &str {
    let failure = world.last().failure.as_ref();
    failure.map_or("", |failure| &failure.code)
}

fn open(world: &World) -> usize {
    world.outstanding().len()
}

#[test]
fn numbers_of_a_loop_may_come_from_data_and_are_kept() {
    let foreach = "parallel: '${state.n}', max: '${state.n * 2}', join: {at_least: '${state.n}'}";
    let mut world = asking(foreach, &json!({"sites": [1, 2, 3, 4], "n": 2}));
    assert_eq!(open(&world), 2);
    world.succeed("steps.ask.item", &json!(1));
    assert_eq!(open(&world), 2);
    world.succeed("steps.ask.item", &json!(2));
    assert_eq!(
        (world.phase(), open(&world)),
        (Phase::Completed, 1),
        "the third one had begun"
    );
    let world = asking(foreach, &json!({"sites": [1, 2, 3, 4, 5], "n": 2}));
    assert_eq!(failure_code(&world), "too_many_items");
}

#[test]
fn a_number_out_of_range_fails_the_step() {
    for (foreach, n) in [
        ("parallel: '${state.n}'", json!(0)),
        ("parallel: '${state.n}'", json!(65)),
        ("parallel: '${state.n}'", json!("2")),
        ("max: '${state.n}'", json!(-1)),
        ("max: '${state.n}'", json!(1.0)),
        ("join: {at_least: '${state.n}'}", json!(0)),
        ("tolerate: '${state.n}'", json!(null)),
    ] {
        let world = asking(foreach, &json!({"sites": [1], "n": n}));
        assert_eq!(
            (failure_code(&world), open(&world)),
            ("value.range", 0),
            "{foreach} {n}"
        );
    }
}

#[test]
fn a_loop_fails_with_more_failures_than_it_tolerates() {
    let fails = |world: &mut World| world.fail("steps.ask.item", "full");
    let sites = json!({"sites": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "n": 3});
    for (tolerate, allowed) in [
        ("3", 3),
        ("'35%'", 3),
        ("'${state.n}'", 3),
        ("0", 0),
        ("'100%'", 10),
        ("'9%'", 0),
    ] {
        let mut world = asking(&format!("parallel: 1, tolerate: {tolerate}"), &sites);
        for _ in 0..allowed {
            fails(&mut world);
        }
        if allowed == 10 {
            assert_eq!(world.phase(), Phase::Completed, "{tolerate}");
            continue;
        }
        assert_eq!(world.phase(), Phase::Running, "{tolerate}");
        fails(&mut world);
        assert_eq!(
            (failure_code(&world), open(&world)),
            ("too_many_failed", 0),
            "{tolerate}"
        );
    }
    // All of them run, and those that fail have no result.
    let mut world = asking("parallel: 10, tolerate: 2", &json!({"sites": [1, 2, 3], "n": 3}));
    world.fail("steps.ask.item", "full");
    world.succeed("steps.ask.item", &json!(1));
    world.succeed("steps.ask.item", &json!(2));
    assert_eq!(world.phase(), Phase::Completed);
}

#[test]
fn items_that_run_come_to_their_end_where_a_loop_lets_them() {
    let sites = json!({"sites": [1, 2, 3, 4], "n": 3});
    let mut world = asking("parallel: 3, join: any, stragglers: let_run", &sites);
    world.succeed("steps.ask.item", &json!(1));
    assert_eq!(
        (world.phase(), open(&world)),
        (Phase::Running, 2),
        "no other one begins"
    );
    world.fail("steps.ask.item", "full");
    world.succeed("steps.ask.item", &json!(2));
    assert_eq!((world.phase(), open(&world)), (Phase::Completed, 0));
}

#[test]
fn how_many_needs_suffice_is_computed_when_the_first_is_over() {
    let begun = |n: Value| {
        let mut world = World::new(loaded(
            r#"
state: {init: {n: null}}
handlers:
  Order.Placed: {set: {n: "${event.data.n}"}}
  Order.Changed: {set: {n: "${event.data.n}"}}
steps:
  a: {effect: book, compensate: none}
  b: {effect: book, compensate: none}
  c: {effect: book, compensate: none}
  d: {needs: [a, b, c], join: {at_least: "${state.n}"}, effect: charge, compensate: none}
"#,
        ));
        world.event("Order.Placed", &json!({"id": "o-1", "n": n}));
        world
    };
    let mut world = begun(json!(3));
    world.event("Order.Changed", &json!({"id": "o-1", "n": 2}));
    world.succeed("steps.a", &json!({}));
    // Kept from now on.
    world.event("Order.Changed", &json!({"id": "o-1", "n": 1}));
    assert_eq!(world.statuses()[3], StepStatus::Pending);
    world.succeed("steps.b", &json!({}));
    assert_eq!(world.statuses()[3], StepStatus::Running);
    let mut world = begun(json!(4));
    assert_eq!(world.phase(), Phase::Running);
    world.succeed("steps.a", &json!({}));
    assert_eq!(failure_code(&world), "value.range");
}
