use std::sync::Arc;

use super::*;
use crate::kernel::definition::{self, SourceFile};
use crate::offline::file;

/// What is booked by a handler, a timer, a state or a step, with what undoes it.
const BOOKING: &str =
    r#"effect: book, with: {trip: "${key}"}, compensate: {effect: unbook, with: {trip: "${key}"}}"#;

const SAGA: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: trip
start: Trip.Booked
key: {"Trip.*": event.data.trip}
state: {init: {}}
handlers:
  Trip.Called: {emit: {name: call, BOOKING}}
  Trip.Withdrawn: {fail: {code: withdrawn}}
steps:
  rooms: {foreach: {over: "[1, 2]"}, BOOKING}
  stay: {delay: 7d}
timers:
  remind: {after: 1h, emit: {name: nudge, BOOKING}}
"#;

const MACHINE: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: trip
start: Trip.Booked
key: {"Trip.*": event.data.trip}
machine:
  initial: booking
  states:
    booking:
      entry: {emit: {name: room, BOOKING}}
      handlers: {result.room: {to: booked}, Trip.Withdrawn: {fail: {code: withdrawn}}}
    booked:
      handlers: {Trip.Withdrawn: {fail: {code: withdrawn}}}
"#;

const CASES: &str = "
saga: trip
cases:
  - name: withdrawn
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {event: Trip.Called, data: {trip: t-1}}
      - {advance: 1h, hold: all}
      - {succeed: all}
      - {event: Trip.Withdrawn, data: {trip: t-1}}
";

fn source(path: &str, text: &str) -> SourceFile {
    SourceFile {
        path: path.to_owned(),
        text: Arc::from(text),
    }
}

/// The end of the case when nothing fails.
fn end(saga: &str) -> Ending {
    end_of(CASES, &[saga], &Plan::default())
}

/// The end of the first case.
fn end_of(cases: &str, sagas: &[&str], plan: &Plan) -> Ending {
    let effect = |name: &str| {
        let text = format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\nexternal: {{}}\n");
        source(&format!("{name}.yaml"), &text)
    };
    let sources: Vec<SourceFile> = (0..)
        .zip(sagas)
        .map(|(at, saga)| source(&format!("{at}.yaml"), &saga.replace("BOOKING", BOOKING)))
        .collect();
    let loaded = definition::load(&sources, &[effect("book"), effect("unbook")]);
    assert_eq!(loaded.sagas.len(), sagas.len(), "{:#?}", loaded.diagnostics);
    let suite = file::read(&source("trip.test.yaml", cases)).expect("a suite");
    let of = |name: &str| {
        let mut sagas = loaded.sagas.iter();
        let saga = sagas.find(|saga| saga.name.as_str() == name);
        Arc::clone(saga.expect("a saga of the case"))
    };
    let others = suite.cases[0].sagas.iter().map(|(name, _)| of(name));
    let players = Cast {
        definition: of(&suite.saga),
        others: others.collect(),
    };
    attempt(&suite, &suite.cases[0], &players, plan).expect("an instance")
}

#[test]
fn work_of_steps_states_timers_and_handlers_must_be_undone() {
    for (saga, done) in [
        (SAGA, "steps.rooms.item"),
        (SAGA, "handlers.Trip.Called.call.item"),
        (SAGA, "timers.remind.nudge"),
        (MACHINE, "machine.booking.room"),
    ] {
        let mut ending = end(saga);
        assert_eq!(promises::broken(&ending), None, "{done}");
        let sent = ending.world.sent.len();
        let undo = format!("{done}.compensate");
        ending.world.sent.retain(|item| *item.path != undo);
        assert!(ending.world.sent.len() < sent, "{undo}: {:#?}", ending.answered);
        let broken = promises::broken(&ending).unwrap_or_default();
        assert!(broken.contains("nothing undoes"), "{done}: {broken}");
    }
}

#[test]
fn work_of_unknown_outcome_must_be_undone_too() {
    let plan = Plan {
        always: Some(("machine.booking.room".to_owned(), Failing::Timeout)),
        ..Plan::default()
    };
    let mut ending = end_of(CASES, &[MACHINE], &plan);
    assert_eq!(promises::broken(&ending), None);
    let undo = "machine.booking.room.compensate";
    ending.world.sent.retain(|item| item.path != undo);
    let broken = promises::broken(&ending).unwrap_or_default();
    assert!(broken.ends_with("which perhaps was done"), "{broken}");
}

const PARENT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: trip
start: Trip.Booked
key: {"Trip.*": event.data.trip}
steps:
  stay: {saga: {name: hotel, key: "${key}-stay", input: {}}, compensate: {saga: undo}}
  tell: {needs: [stay], publish: {type: trip.told, payload: {trip: "${key}"}}}
  ship: {needs: [tell], wait: {event: Trip.Shipped, timeout: 7d}}
handlers:
  Trip.Withdrawn: {fail: {code: withdrawn}}
"#;

/// A child by a step, and the one that the fact starts.
const CHILD: &str = r"
apiVersion: sagas/v1
kind: Saga
name: hotel
input: {type: object}
steps:
  room: {BOOKING}
";

const HEARER: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: desk
start: trip.told
key: {"trip.*": event.data.trip}
events: {trip.told: {from: trip}}
steps:
  desk: {BOOKING}
  rest: {needs: [desk], wait: {signal: freed, timeout: 7d}}
"#;

const TOGETHER: &str = "
saga: trip
cases:
  - name: withdrawn
    sagas: [hotel, desk]
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {succeed: all}
      - {event: Trip.Withdrawn, data: {trip: t-1}}
";

/// What a case says about one instance is looked at for all of them.
#[test]
fn work_of_children_and_other_instances_must_be_undone() {
    for (undo, told) in [
        (
            "steps.room.compensate",
            "hotel/t-1-stay ends as cancelled and nothing undoes room",
        ),
        (
            "steps.desk.compensate",
            "desk/t-1 ends as failed and nothing undoes desk",
        ),
    ] {
        let mut ending = end_of(TOGETHER, &[PARENT, CHILD, HEARER], &Plan::default());
        assert_eq!(promises::broken(&ending), None, "{undo}");
        let sent = ending.world.sent.len();
        ending.world.sent.retain(|item| *item.path != *undo);
        assert!(ending.world.sent.len() < sent, "{undo}: {:#?}", ending.answered);
        let broken = promises::broken(&ending).unwrap_or_default();
        assert!(broken.starts_with(told), "{undo}: {broken}");
    }
}

/// Here the case answers for the child.
#[test]
fn a_child_that_has_completed_must_be_undone_by_its_parent() {
    let alone = TOGETHER.replace("    sagas: [hotel, desk]\n", "");
    let mut ending = end_of(&alone, &[PARENT, CHILD], &Plan::default());
    assert_eq!(promises::broken(&ending), None);
    ending
        .world
        .sent
        .retain(|item| item.path != "steps.stay.compensate");
    let broken = promises::broken(&ending).unwrap_or_default();
    assert!(
        broken.starts_with("the instance ends as failed and nothing undoes stay, which was done"),
        "{broken}"
    );
}
