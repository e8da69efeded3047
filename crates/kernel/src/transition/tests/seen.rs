//! Events that come again when their ids have been forgotten: the sequences of their aggregates say so.

use serde_json::json;

use super::build::loaded;
use super::world::World;
use crate::input::{Input, InputBody};
use crate::patch::{IgnoreReason, Note, Outcome};
use crate::record::{SEEN_EVENTS_MAX, SOURCES_MAX};

const IDS: u64 = SEEN_EVENTS_MAX as u64;

fn counting() -> World {
    let mut world = World::new(loaded(
        r#"
state: {init: {n: 0}}
handlers: {Order.Line: {set: {n: "${state.n + 1}"}}}
steps: {rest: {wait: {signal: never}}}
"#,
    ));
    world.event("Order.Placed", &json!({"id": "o-1"}));
    world
}

/// An event of an aggregate with this sequence.
fn line(world: &mut World, aggregate: &str, sequence: u64) -> Input {
    let mut input = world.event_input("Order.Line", &json!({"id": "o-1"}));
    let InputBody::Event(event) = &mut input.body else {
        panic!("an event")
    };
    event.aggregate_id = aggregate.to_owned();
    event.sequence = sequence;
    input
}

fn give(world: &mut World, aggregate: &str, sequence: u64) -> Outcome {
    let input = line(world, aggregate, sequence);
    world.must(&input)
}

/// So many lines of `o-1`, from 1 on, after which the first id is forgotten.
fn told(world: &mut World) -> Vec<Input> {
    (1..=IDS + 8)
        .map(|sequence| {
            let input = line(world, "o-1", sequence);
            assert_eq!(world.must(&input), Outcome::Applied);
            input
        })
        .collect()
}

#[test]
fn an_event_that_comes_again_behind_many_others_is_not_applied_again() {
    let mut world = counting();
    let lines = told(&mut world);
    let counted = world.data()["n"].clone();
    for (input, reason) in [
        (&lines[20], IgnoreReason::Duplicate),
        (&lines[7], IgnoreReason::SameSequence),
        (&lines[0], IgnoreReason::TooOld),
    ] {
        assert_eq!(world.must(input), Outcome::Ignored(reason));
    }
    assert_eq!(world.data()["n"], counted);
    let told = world
        .notes
        .iter()
        .filter(|note| matches!(note, Note::SequenceKnown { .. }));
    assert_eq!(told.count(), 2);
}

#[test]
fn an_event_that_was_overtaken_is_applied() {
    let mut world = counting();
    told(&mut world);
    assert_eq!(give(&mut world, "o-1", IDS + 20), Outcome::Applied);
    for late in [IDS + 15, IDS + 19, IDS + 9] {
        assert_eq!(give(&mut world, "o-1", late), Outcome::Applied);
        assert_eq!(
            give(&mut world, "o-1", late),
            Outcome::Ignored(IgnoreReason::SameSequence)
        );
    }
    assert_eq!(give(&mut world, "o-1", IDS + 200), Outcome::Applied);
    assert_eq!(
        give(&mut world, "o-1", IDS + 136),
        Outcome::Applied,
        "at the end of the window"
    );
    assert_eq!(
        give(&mut world, "o-1", IDS + 135),
        Outcome::Ignored(IgnoreReason::TooOld)
    );
}

/// What is still remembered by its id decides first, so this is found out before anything is lost.
#[test]
fn a_constant_sequence_of_events_is_not_used_to_recognise_duplicates() {
    let mut world = counting();
    for _ in 0..2 * IDS {
        assert_eq!(give(&mut world, "o-1", 1), Outcome::Applied);
    }
    for _ in 0..2 * IDS {
        assert_eq!(give(&mut world, "o-2", 0), Outcome::Applied);
    }
    assert_eq!(world.data()["n"], 4 * IDS);
}

/// It may have waited behind them, or been found by another way.
#[test]
fn an_input_that_waited_is_applied_despite_its_age() {
    let mut world = counting();
    let lines = told(&mut world);
    world.again = true;
    assert_eq!(world.must(&lines[0]), Outcome::Applied);
    world.again = false;
    let mut input = line(&mut world, "o-1", 9);
    if let InputBody::Event(event) = &mut input.body {
        event.event_id = saga_runner_language::ids::EventId::parse("another").expect("legal");
    }
    assert_eq!(world.must(&input), Outcome::Ignored(IgnoreReason::SameSequence));
}

#[test]
fn the_aggregates_that_are_remembered_are_bounded() {
    let mut world = counting();
    for number in 0..=SOURCES_MAX as u64 {
        let aggregate = format!("a-{number}");
        assert_eq!(give(&mut world, &aggregate, 5), Outcome::Applied);
    }
    assert_eq!(world.last().sources.len(), SOURCES_MAX);
    for _ in 0..IDS {
        give(&mut world, "o-1", 0);
    }
    assert_eq!(
        give(&mut world, "a-16", 5),
        Outcome::Ignored(IgnoreReason::SameSequence)
    );
    assert_eq!(
        give(&mut world, "a-0", 5),
        Outcome::Applied,
        "that one is forgotten"
    );
}
