//! Sagas with a state machine: deferral, timers, rounds.

use saga_runner_language::definition::model::{Actions, Delay, Emission, Emit, Machine, TimerSet};
use serde_json::json;

use super::build::{command, consolidate, handler, saga, state, template};
use super::world::World;
use crate::patch::{IgnoreReason, Outcome};
use crate::record::Phase;

fn line(world: &mut World, id: &str, grams: i64) -> Outcome {
    world.event("Line.Ready", &json!({"line_id": id, "grams": grams}))
}

#[test]
fn lines_are_collected_until_the_timer_that_the_first_one_set() {
    let mut world = World::new(consolidate());
    line(&mut world, "l-1", 100);
    let due = world.timers.first().expect("set").due;
    world.advance(60_000);
    line(&mut world, "l-2", 200);
    assert_eq!(
        world.timers.first().expect("set").due,
        due,
        "if_absent keeps the timer"
    );
    world.advance(15 * 60_000);
    let plan = world.payload("machine.flushing.entry[0]");
    assert_eq!(plan, json!({"lines": ["l-1", "l-2"], "grams": 300}));
    assert!(world.timers.is_empty());
    assert_eq!(world.last().machine.expect("has one").state, 1);
}

#[test]
fn deferred_events_come_again_when_the_state_is_left() {
    let mut world = World::new(consolidate());
    line(&mut world, "l-1", 20_000);
    assert!(world.timers.is_empty());
    assert_eq!(line(&mut world, "l-2", 1), Outcome::Deferred);
    assert_eq!(line(&mut world, "l-3", 2), Outcome::Deferred);
    assert_eq!((world.last().deferred, world.waiting.len()), (2, 2));
    assert_eq!(world.data()["lines"], json!(["l-1"]));
    world.event("Dock.Accepted", &json!({}));
    world.give_what_waits();
    assert_eq!(
        world.data(),
        json!({"lines": ["l-2", "l-3"], "grams": 3, "batch": 2})
    );
    assert_eq!((world.last().deferred, world.waiting.len()), (0, 0));
    assert_eq!(world.timers.len(), 1);
}

#[test]
fn an_input_that_waited_does_not_turn_back_the_time() {
    let mut world = World::new(consolidate());
    line(&mut world, "l-1", 20_000);
    line(&mut world, "l-2", 1);
    world.advance(20 * 60_000);
    world.event("Dock.Accepted", &json!({}));
    world.give_what_waits();
    let flush = world.timers.first().expect("set");
    assert_eq!(flush.due, world.now.plus_ms(15 * 60_000));
    assert_eq!(world.last().updated, world.now);
}

#[test]
fn rounds_that_emit_the_same_work_do_not_look_like_repetitions() {
    let mut world = World::new(consolidate());
    line(&mut world, "l-1", 20_000);
    world.event("Dock.Accepted", &json!({}));
    line(&mut world, "l-1", 20_000);
    let plans: Vec<_> = world
        .sent
        .iter()
        .filter(|item| item.path == "machine.flushing.entry[0]")
        .collect();
    assert_eq!(plans.len(), 2);
    assert_ne!(plans[0].idempotency_key, plans[1].idempotency_key);
    assert_ne!(plans[0].command_id, plans[1].command_id);
}

#[test]
fn a_final_state_completes_the_instance() {
    let mut world = World::new(consolidate());
    line(&mut world, "l-1", 20_000);
    line(&mut world, "l-2", 1);
    world.event("Dock.Closed", &json!({}));
    world.give_what_waits();
    assert_eq!(world.phase(), Phase::Completed);
    assert!(world.ended.is_some());
    assert!(
        world.waiting.is_empty(),
        "deferred inputs are given back at the end"
    );
}

#[test]
fn an_event_that_the_present_state_does_not_name_is_ignored() {
    let mut world = World::new(consolidate());
    line(&mut world, "l-1", 1);
    assert_eq!(
        world.event("Dock.Accepted", &json!({})),
        Outcome::Ignored(IgnoreReason::NoHandler)
    );
}

#[test]
fn setting_a_timer_replaces_it_and_the_replaced_one_is_stale() {
    let mut definition = consolidate();
    let machine = definition.machine.as_mut().expect("has one");
    machine.states[0].handlers.get_mut("Line.Ready").expect("there")[1]
        .actions
        .timers[0]
        .if_absent = false;
    let mut world = World::new(definition);
    line(&mut world, "l-1", 1);
    let first = world.timers.first().expect("set").clone();
    world.advance(60_000);
    line(&mut world, "l-2", 1);
    assert_eq!(world.timers.len(), 1);
    assert_eq!(world.timers.first().expect("set").due, first.due.plus_ms(60_000));
    let stale = world.timer_input(&first);
    assert_eq!(world.must(&stale), Outcome::Ignored(IgnoreReason::Stale));
}

#[test]
fn handlers_of_the_state_run_before_those_of_the_saga() {
    let mut definition = consolidate();
    definition.handlers.insert(
        "Line.Ready".to_owned(),
        vec![handler(Actions {
            set: super::build::sets(json!({"seen": "${size(state.lines)}"})),
            emit: vec![Emission::from(Emit::Command(command(
                "Audit.Note",
                "${key}",
                json!({"n": "${state.seen}"}),
            )))],
            ..Actions::default()
        })],
    );
    let mut world = World::new(definition);
    line(&mut world, "l-1", 1);
    assert_eq!(
        world.data()["seen"],
        1,
        "it sees the state after the machine's handler"
    );
    assert_eq!(world.payload("handlers.Line.Ready[0].emit[0]"), json!({"n": 1}));
}

#[test]
fn entering_states_without_end_is_rejected() {
    let mut definition = saga("spin", "A.Begun");
    let mut there = state("there");
    there.entry.to = Some(1);
    let mut back = state("back");
    back.entry.to = Some(0);
    definition.machine = Some(Machine {
        initial: 0,
        states: vec![there, back],
    });
    let mut world = World::new(definition);
    let input = world.event_input("A.Begun", &json!({}));
    let rejection = world.give(&input).expect_err("it never rests");
    assert_eq!(rejection.reason, "machine.loop");
    assert!(world.record.is_none());
}

#[test]
fn a_start_event_that_the_initial_state_defers_waits_for_the_next_state() {
    let mut definition = saga("gate", "A.Begun");
    definition.init = template(json!({"n": 0}));
    let mut waiting = state("waiting");
    waiting.entry.timers = vec![TimerSet {
        name: "open".to_owned(),
        after: Delay::Fixed(1_000),
        if_absent: false,
        extend: false,
    }];
    waiting.handlers.insert(
        "A.Begun".to_owned(),
        vec![handler(Actions {
            defer: true,
            ..Actions::default()
        })],
    );
    waiting.timer_handlers.insert(
        "open".to_owned(),
        vec![handler(Actions {
            to: Some(1),
            ..Actions::default()
        })],
    );
    let mut open = state("open");
    open.handlers.insert(
        "A.Begun".to_owned(),
        vec![handler(Actions {
            set: super::build::sets(json!({"n": "${state.n + event.data.n}"})),
            ..Actions::default()
        })],
    );
    definition.machine = Some(Machine {
        initial: 0,
        states: vec![waiting, open],
    });
    let mut world = World::new(definition);
    assert_eq!(world.event("A.Begun", &json!({"n": 5})), Outcome::Deferred);
    assert_eq!(world.phase(), Phase::Running);
    world.advance(1_000);
    world.give_what_waits();
    assert_eq!(world.data()["n"], 5);
}
