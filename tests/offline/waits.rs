//! Time in cases: deadlines of steps, reminders, heartbeats.

use super::{Project, text};

const BANK: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: bank
start: Trip.Booked
key: {"Trip.*": event.data.trip}
state: {init: {answer: ""}}
steps:
  pay:
    effect: book
    with: {trip: "${key}"}
    deadline: 10m
    retry: {attempts: 50, backoff: {initial: 2m, factor: 1, max: 2m}}
    on_error: {deadline: {set: {answer: "${error.class}"}, continue: true}}
    compensate: {effect: unbook, with: {trip: "${key}"}}
"#;

const REVIEW: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: review
start: Trip.Booked
key: {"Trip.*": event.data.trip}
steps:
  approve: {wait: {signal: review, timeout: 7d}, on_timeout: {continue: true}}
timers:
  nudge:
    during: approve
    every: 24h
    emit: [{publish: {type: trip.nudged, payload: {trip: "${key}"}}}]
"#;

const REVIEWS: &str = r"
saga: review
cases:
  - name: reminded twice
    start: 2026-01-01T10:00:00Z
    steps:
      - {event: Trip.Booked, data: {trip: t-1}, expect: {timers: {nudge: 24h}, work: []}}
      - {advance: 50h, expect: {timers: {nudge: 22h}, work: [{fact: trip.nudged}, {fact: trip.nudged}], no_other_work: true}}
      - {signal: review, expect: {phase: completed}}
";

const FILM: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: film
start: Trip.Booked
key: {"Trip.*": event.data.trip}
steps:
  render:
    effect: book
    with: {trip: "${key}"}
    wait: {callback: true, timeout: 8h, heartbeat: 5m}
    retry: {errors: [heartbeat], attempts: 3, backoff: {initial: 30s, factor: 1}}
"#;

const FILMS: &str = r#"
saga: film
cases:
  - name: the studio falls silent
    start: 2026-01-01T10:00:00Z
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {result: {of: render, ok: {}}, expect: {timers: {"heartbeat:render": 5m}}}
      - {advance: 4m}
      - {heartbeat: render, expect: {timers: {"heartbeat:render": 5m, "wait:render": 476m}, work: []}}
      - {advance: 5m, expect: {steps: {render: {status: backing_off, error: heartbeat}}}}
      - {heartbeat: render, expect: {ignored: stale}}
      - {advance: 30s, expect: {work: [{effect: book, attempt: 2}]}}
      - {result: {of: render, ok: {}}}
      - {callback: {of: render, ok: {}}, expect: {phase: completed}}
"#;

const CASES: &str = r#"
saga: bank
cases:
  - name: the bank does not answer
    start: 2026-01-01T10:00:00Z
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {result: {of: pay, error: transient}, expect: {timers: {"deadline:pay": 10m, "retry:pay": 2m}}}
      - {advance: 2m, expect: {work: [{effect: book, attempt: 2}]}}
      - {advance: 8m, hold: pay, expect: {state: {answer: deadline}, steps: {pay: done}, timers: {"deadline:pay": null}}}
      - {result: {of: pay, ok: {}}, expect: {work: [{effect: unbook}]}}
      - {result: {of: pay.compensate, ok: {}}, expect: {phase: completed}}
"#;

const VISIT: &str = r#"
apiVersion: sagas/v1
kind: Saga
name: visit
start: Trip.Booked
key: {"Trip.*": event.data.trip}
keep_ended: {completed: 30d}
after_end: {Trip.Lost: {emit: {publish: {type: trip.lost}}}}
steps:
  stay: {wait: {signal: over, timeout: 7d}}
"#;

const VISITS: &str = r"
saga: visit
cases:
  - name: the guest comes again
    start: 2026-01-01T10:00:00Z
    steps:
      - {event: Trip.Booked, id: b-1, data: {trip: t-1}}
      - {signal: over, expect: {phase: completed}}
      - {advance: 30d, expect: {phase: completed}}
      - {event: Trip.Booked, id: b-1, data: {trip: t-1}, expect: {ignored: duplicate}}
      - {event: Trip.Lost, data: {trip: t-1}, expect: {work: [{fact: trip.lost}]}}
      - {advance: 1s, expect: {phase: null}}
      - {event: Trip.Lost, data: {trip: t-1}, expect: {ignored: no_instance}}
      - {event: Trip.Booked, id: b-1, data: {trip: t-1}, expect: {phase: running}}
  - name: what failed is kept as long as the runner says
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {advance: 7d, expect: {phase: failed}}
      - {advance: 31d, expect: {phase: failed}}
";

#[test]
fn an_ended_instance_is_forgotten_when_the_time_is_over_that_its_saga_says() {
    let project = Project::new(VISITS);
    project.write("sagas/trip.yaml", VISIT);
    assert_eq!(project.findings(&[]), [""; 0]);
}

#[test]
fn time_passes_until_the_deadline_of_a_step() {
    let project = Project::new("saga: trip\ncases: []\n");
    project.write("sagas/bank.yaml", BANK);
    project.write("sagas/bank.test.yaml", CASES);
    project.write("sagas/review.yaml", REVIEW);
    project.write("sagas/review.test.yaml", REVIEWS);
    project.write("sagas/film.yaml", FILM);
    project.write("sagas/film.test.yaml", FILMS);
    let (code, report) = project.json(&["--chaos"]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["passed"], 3, "{report:#}");
    let output = super::test(&[&project.path("").display().to_string(), "--coverage"]);
    assert!(text(&output.stdout).contains("bank"), "{}", text(&output.stdout));
}

/// As a runner takes them: who calls back twice, even with another answer, has said it once.
#[test]
fn the_first_callback_counts() {
    let project = Project::new(
        r"
saga: film
cases:
  - name: told twice
    steps:
      - {event: Trip.Booked, data: {trip: t-1}}
      - {result: {of: render, ok: {}}}
      - {callback: {of: render, ok: {}}, expect: {steps: {render: done, show: delayed}}}
      - {callback: {of: render, ok: {}}, expect: {ignored: duplicate}}
      - {callback: {of: render, error: broken}, expect: {ignored: input_mismatch, steps: {render: done}}}
",
    );
    project.write(
        "sagas/film.yaml",
        &format!("{FILM}  show: {{needs: [render], delay: 1h}}\n"),
    );
    assert_eq!(project.findings(&[]), [""; 0]);
}
