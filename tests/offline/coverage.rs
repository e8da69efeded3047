//! What cases run of a saga, and what is drawn of it: waits, what ends steps from outside, effects of timers and states.

use super::{GOOD, Project, graph};

const NUDGED: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: nudged
start: Trip.Booked
key: {"Trip.*": event.data.trip}
state: {init: {}}
handlers:
  Trip.Withdrawn: {interrupt: {step: approve, class: withdrawn}}
  result.nudge: {set: {told: true}}
  error.nudge: {set: {told: false}}
steps:
  approve:
    wait: {any: [{signal: review}, {event: Trip.Approved, when: event.data.by != ""}], timeout: 7d}
    on_error: {withdrawn: {continue: true}, slow: {fail: {code: slow}}}
  rooms:
    needs: [approve]
    foreach: {over: "[1, 2, 3]", tolerate: 1}
    effect: book
    with: {trip: "${key}"}
    compensate:
      when: late == null
      effect: unbook
      with: {trip: "${key}"}
      on_failed: compensate
timers:
  remind:
    during: approve
    every: 24h
    emit: {effect: book, name: nudge, with: {trip: "${key}"}}
  slow: {during: approve, after: 100h, interrupt: {step: approve, class: slow}}
"#;

#[test]
fn a_saga_is_drawn_with_what_ends_its_steps_and_what_its_timers_do() {
    let project = Project::new("saga: trip\ncases: []\n");
    project.write("sagas/nudged.yaml", NUDGED);
    let path = project.path("sagas/nudged.yaml").display().to_string();
    let drawn = graph(&[&path]);
    let vertex = |label: &str| {
        let line = drawn.lines().find(|line| line.contains(label));
        let line = line.unwrap_or_else(|| panic!("{label}: {drawn}")).trim_start();
        let end = line.find(|c: char| !c.is_ascii_alphanumeric()).expect("a shape");
        line[..end].to_owned()
    };
    let (approve, event) = (vertex("\"approve"), vertex(">\"Trip.Withdrawn\"]"));
    let (remind, slow) = (
        vertex("[\\\"remind<br/>every 24h\"/]"),
        vertex("[\\\"slow<br/>after 100h\"/]"),
    );
    let nudge = vertex("timers.remind.nudge");
    for edge in [
        format!("{event} --x|\"withdrawn\"| {approve}"),
        format!("{slow} --x|\"slow\"| {approve}"),
        format!("{approve} ---|\"during\"| {remind}"),
        format!("{remind} --> {nudge}"),
    ] {
        assert!(drawn.lines().any(|line| line.trim() == edge), "{edge}: {drawn}");
    }
    assert!(graph(&[&path, "--format", "svg"]).contains("remind"));
}

#[test]
fn coverage_knows_waits_for_one_of_several_interrupts_effects_of_timers_and_failures_that_are_borne() {
    let project = Project::new(GOOD);
    project.write("sagas/nudged.yaml", NUDGED);
    let uncovered = || -> Vec<String> {
        let (_, report) = project.json(&["--coverage"]);
        let mut sagas = report["coverage"].as_array().expect("a list").iter();
        let nudged = sagas.find(|saga| saga["saga"] == "nudged").expect("measured");
        let uncovered = nudged["uncovered"].as_array().expect("a list").iter();
        uncovered
            .map(|uncovered| {
                format!(
                    "{} {}",
                    uncovered["line"],
                    uncovered["branch"].as_str().expect("a name")
                )
            })
            .collect()
    };
    let mut branches = vec![
        "9 handlers.Trip.Withdrawn[0].interrupt is taken",
        "10 handlers.result.nudge[0] is taken",
        "11 handlers.error.nudge[0] is taken",
        "14 steps.approve.wait.any[0] is taken",
        "14 steps.approve.wait.any[1] is taken",
        "14 steps.approve.wait.any[1].when is false",
        "18 steps.rooms.foreach.tolerate is taken",
        "22 steps.rooms.item.compensate.when is false",
        "25 steps.rooms.item.compensate.on_failed is taken",
        "21 steps.rooms.item.compensate.late is taken",
        "30 steps.timers.remind.nudge fails",
        "31 timers.slow.interrupt is taken",
    ];
    let all = uncovered();
    for branch in &branches {
        assert!(all.contains(&(*branch).to_owned()), "{branch}: {all:#?}");
    }
    project.write(
        "sagas/nudged.test.yaml",
        r"
saga: nudged
cases:
  - name: withdrawn
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {advance: 24h}
      - {result: {of: timers.remind.nudge, ok: {}}}
      - {event: Trip.Withdrawn, data: {trip: t-1}}
  - name: too slow
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {advance: 24h}
      - {result: {of: timers.remind.nudge, error: gone}}
      - {event: Trip.Approved, data: {trip: t-1, by: ''}}
      - {advance: 76h}
  - name: approved
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {event: Trip.Approved, data: {trip: t-1, by: ada}}
      - {result: {of: rooms, error: gone}}
      - {result: {of: rooms, error: gone}}
      - {result: {of: rooms, ok: {}}}
      - {result: {of: rooms.compensate, ok: {}}}
  - name: reviewed
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {signal: review}
",
    );
    let all = uncovered();
    branches.retain(|branch| all.contains(&(*branch).to_owned()));
    assert_eq!(branches, [""; 0], "{all:#?}");
}

#[test]
fn coverage_finds_handlers_of_the_ends_of_effects_of_states() {
    let saga = r#"
apiVersion: sagas/v1
kind: Saga
name: stay
start: Trip.Booked
key: {"Trip.*": event.data.trip}
machine:
  initial: booking
  states:
    booking:
      entry: {emit: {effect: book, name: room, with: {trip: "${key}"}}}
      handlers:
        result.room: {to: booked}
        error.room: {when: error.class == "full", to: booked}
    booked: {final: true}
"#;
    let project = Project::new(GOOD);
    project.write("sagas/stay.yaml", saga);
    project.write(
        "sagas/stay.test.yaml",
        "saga: stay\ncases:\n  - name: booked\n    steps:\n      - {event: Trip.Booked, data: {trip: t-1}}\n      - {result: {of: machine.booking.room, ok: {}}}\n",
    );
    let (_, report) = project.json(&["--coverage"]);
    let mut sagas = report["coverage"].as_array().expect("a list").iter();
    let stay = sagas.find(|saga| saga["saga"] == "stay").expect("measured");
    let uncovered = stay["uncovered"].to_string();
    assert!(
        uncovered.contains("machine.booking.error.room[0] is taken"),
        "{uncovered}"
    );
    assert!(
        uncovered.contains("machine.booking.error.room[0].when is false"),
        "{uncovered}"
    );
    assert!(
        !uncovered.contains("machine.booking.result.room[0]"),
        "{uncovered}"
    );
}

const UNDONE: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: undone
start: Trip.Booked
key: {"Trip.*": event.data.trip}
state: {init: {}}
handlers:
  Trip.Called:
    emit: {effect: book, name: call, with: {trip: "${key}"}, compensate: {effect: unbook, with: {trip: "${key}"}, retry: {attempts: 1}}}
steps:
  pay: {effect: book, with: {trip: "${key}"}, compensate: {effect: unbook, with: {trip: "${key}"}, retry: {attempts: 1}}}
  tell: {effect: book, with: {trip: "${key}"}, compensate: {publish: {type: trip.untold, payload: {trip: "${key}"}}}}
  keep: {effect: book, with: {trip: "${key}"}, compensate: {effect: unbook, with: {trip: "${key}"}, on_unknown: ignore}}
  ask: {effect: asked, with: {trip: "${key}"}, compensate: {effect: unbook, with: {trip: "${key}"}}}
timers:
  remind:
    after: 1h
    emit: {effect: book, name: nudge, with: {trip: "${key}"}, compensate: {effect: unbook, with: {trip: "${key}"}, retry: {attempts: 1}}}
compensation: parallel
"#;

const STAY: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: stay
start: Trip.Booked
key: {"Trip.*": event.data.trip}
machine:
  initial: booking
  states:
    booking:
      entry: {emit: {effect: book, name: room, with: {trip: "${key}"}, compensate: {effect: unbook, with: {trip: "${key}"}, retry: {attempts: 1}}}}
      handlers: {result.room: {to: booked}}
    booked: {final: true}
"#;

#[test]
fn undo_of_an_unknown_outcome_and_exhausted_undo_are_branches_where_they_can_happen() {
    let project = Project::new(GOOD);
    project.write("sagas/undone.yaml", UNDONE);
    project.write("sagas/stay.yaml", STAY);
    let asked = "apiVersion: sagas/v1\nkind: Effect\nname: asked\non_ambiguous: ask\nhttp: {method: POST, url: \"${upstreams.shop}/x\"}\n";
    project.write("effects/asked.yaml", asked);
    let uncovered = || -> Vec<String> {
        let (_, report) = project.json(&["--coverage"]);
        let sagas = report["coverage"].as_array().expect("a list").iter();
        let sagas = sagas.filter(|saga| saga["saga"] != "trip");
        let branches = sagas.flat_map(|saga| saga["uncovered"].as_array().expect("a list"));
        let names = branches.map(|branch| branch["branch"].as_str().expect("a name").to_owned());
        names
            .filter(|name| name.contains(".on_unknown") || name.contains(".on_exhausted"))
            .collect()
    };
    let (never, mut all) = (
        [
            "steps.ask.compensate.on_exhausted is taken",
            "steps.keep.compensate.on_exhausted is taken",
        ],
        uncovered(),
    );
    all.sort();
    // A fact always goes out, and of an effect that asks an operator knows.
    assert_eq!(
        all,
        [
            "handlers.Trip.Called.call.item.compensate.on_exhausted is taken",
            "handlers.Trip.Called.call.item.compensate.on_unknown is taken",
            "machine.booking.room.compensate.on_exhausted is taken",
            "machine.booking.room.compensate.on_unknown is taken",
            "steps.ask.compensate.on_exhausted is taken",
            "steps.keep.compensate.on_exhausted is taken",
            "steps.pay.compensate.on_exhausted is taken",
            "steps.pay.compensate.on_unknown is taken",
            "steps.tell.compensate.on_unknown is taken",
            "timers.remind.nudge.compensate.on_exhausted is taken",
            "timers.remind.nudge.compensate.on_unknown is taken",
        ]
    );
    project.write(
        "sagas/stay.test.yaml",
        r"
saga: stay
cases:
  - name: unknown outcome
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {result: {of: room, timeout: true}}
      - {result: {of: room.compensate, error: gone}, expect: {phase: compensation_failed}}
",
    );
    project.write(
        "sagas/undone.test.yaml",
        r"
saga: undone
cases:
  - name: unknown outcome
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {event: Trip.Called, data: {trip: t-1}}
      - {advance: 1h, hold: all}
      - {result: {of: call, timeout: true}}
      - {result: {of: nudge, timeout: true}}
      - {result: {of: pay, timeout: true}}
      - {result: {of: tell, timeout: true}}
      - {result: {of: keep, timeout: true}}
      - {result: {of: ask, error: gone}}
      - {result: {of: pay.compensate, error: gone}}
      - {result: {of: nudge.compensate, error: gone}}
      - {result: {of: call.compensate, error: gone}, expect: {phase: compensation_failed}}
",
    );
    let mut left = uncovered();
    left.sort();
    assert_eq!(left, never);
}

const TOLD: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: told
start: Trip.Booked
key: {"Trip.*": event.data.trip}
steps:
  tell: {foreach: {over: "[1, 2]", as: n}, publish: {type: trip.told, payload: {n: "${n}"}}}
  look: {needs: [tell], foreach: {over: "[1, 2]", as: n}, effect: book, with: {n: "${n}"}, compensate: none}
"#;

#[test]
fn an_item_that_cannot_fail_is_no_branch_and_a_cancel_is_one_where_something_is_to_undo() {
    let project = Project::new("saga: trip\ncases: []\n");
    let uncovered = || {
        let (_, report) = project.json(&["--coverage"]);
        report["coverage"].to_string()
    };
    project.write("sagas/told.yaml", TOLD);
    project.write("sagas/told.test.yaml", "saga: told\ncases: []\n");
    let told = uncovered();
    assert!(told.contains("steps.look.foreach item fails"), "{told}");
    assert!(!told.contains("steps.tell.foreach item fails"), "{told}");
    let of_trip = |told: &str| told.matches("a cancel is taken").count();
    assert_eq!(of_trip(&told), 1, "only a trip has something to undo: {told}");
    project.write(
        "sagas/trip.test.yaml",
        "saga: trip\ncases:\n  - {name: a, steps: [{event: Trip.Booked, data: {trip: t-1, cents: 5}}, {cancel: no more}]}\n",
    );
    assert_eq!(of_trip(&uncovered()), 0);
}
