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
    let effect = |name: &str| {
        let text =
            format!("apiVersion: sagas/v1\nkind: Effect\nname: {name}\nexternal: {{category: shop}}\n");
        source(&format!("{name}.yaml"), &text)
    };
    let saga = source("trip.yaml", &saga.replace("BOOKING", BOOKING));
    let loaded = definition::load(&[saga], &[effect("book"), effect("unbook")]);
    let definition = loaded.sagas.first();
    let definition = definition.unwrap_or_else(|| panic!("{:#?}", loaded.diagnostics));
    let players = Cast {
        definition: Arc::clone(definition),
        others: Vec::new(),
    };
    let suite = file::read(&source("trip.test.yaml", CASES)).expect("a suite");
    attempt(&suite, &suite.cases[0], &players, &Plan::default()).expect("an instance")
}

#[test]
fn what_steps_states_timers_and_handlers_have_done_must_be_undone() {
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
